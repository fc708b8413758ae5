//! The store on DynamoDB, over the AWS SDK. The only place that names the SDK's DynamoDB types.
//!
//! ```text
//!   expression.rs   conditions and updates as expressions        (pure)
//!   attribute.rs    items as the SDK's values                    (pure)
//!   description.rs  what DynamoDB says of a table                (pure)
//!   failure.rs      what its errors mean: may it have landed?    (pure)
//!   tables.rs       creating tables and waiting for them
//!   writes.rs       single writes and transactions
//! ```
//!
//! The SDK's own retries are off: a hidden retry that finds its own earlier write would look like a
//! lost race. Reads are tried again here, a few times; writes only where DynamoDB said that nothing
//! was written and to try at once (a transaction at work on the row).
//!
//! A table is described once and remembered, so that a wrong key is named in the same words as on
//! every other backend; what is remembered is asked anew as soon as DynamoDB disagrees.

mod attribute;
mod description;
mod expression;
mod failure;
mod tables;
mod writes;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::http::HttpResponse;
use aws_sdk_dynamodb::config::retry::RetryConfig;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use tenure_backend::{Address, Env, Error, Result, aws};
use tenure_clock::{Clock, Entropy, Monotonic, within};

use self::attribute::{from_item, from_value, to_item};
use self::expression::Expression;
use self::failure::{Failure, Intent, classify};
use crate::item::{Item, Key};
use crate::table::TableSpec;
use crate::write::{Write, Written, validate_transaction};
use crate::{Cursor, Listing, Page, Query, Store};

/// Most tries of a read that was throttled or not answered: with the pauses between them about a second.
const READ_TRIES_MAX: u32 = 6;
/// The longest pause before the second try; it doubles with each.
const READ_PAUSE: Duration = Duration::from_millis(50);

/// Rows in DynamoDB.
pub struct DynamoDb {
    client: Client,
    region: String,
    /// For messages: where the client connects to.
    endpoint: String,
    pinned_region: Option<String>,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    specs: Mutex<BTreeMap<String, Arc<TableSpec>>>,
}

impl fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDb").field("region", &self.region).field("endpoint", &self.endpoint).finish()
    }
}

impl DynamoDb {
    /// Opens `dynamodb:?region=R&profile=P&endpoint=URL&pinned_region=R`.
    ///
    /// What is not given comes from AWS's usual environment and files. A profile that is given goes
    /// before credentials of the environment. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` if an option is wrong or no region is known.
    pub async fn from_address(address: &mut Address, env: &Env) -> Result<Self> {
        if !address.place().is_empty() {
            return Err(Error::invalid(
                "a `dynamodb:` address names no place: write dynamodb:?region=eu-west-1, tables have their own names",
            ));
        }
        let region = address.take_text("region");
        let profile = address.take_text("profile");
        let endpoint = address.take_text("endpoint");
        let pinned_region = address.take_text("pinned_region");
        address.clone().finish()?;
        if let Some(endpoint) = &endpoint {
            check_endpoint(endpoint)?;
        }

        let shared = aws::config(region.as_deref(), profile.as_deref()).await;
        let Some(region) = shared.region().map(ToString::to_string) else {
            return Err(Error::invalid(
                "no AWS region is known: add `?region=` to the address, e.g. dynamodb:?region=eu-west-1, or set \
                 AWS_REGION",
            ));
        };
        check_region("region", &region)?;
        if let Some(pinned) = &pinned_region
            && *pinned != region
        {
            return Err(Error::invalid(format!(
                "address option `pinned_region={pinned}` is not the region {region} that would be used: all writers \
                 of a global table must use the pinned one"
            )));
        }

        let mut config =
            aws_sdk_dynamodb::config::Builder::from(&shared).retry_config(RetryConfig::disabled());
        if let Some(endpoint) = &endpoint {
            config = config.endpoint_url(endpoint);
        }
        let named = endpoint
            .or_else(|| std::env::var("AWS_ENDPOINT_URL_DYNAMODB").ok())
            .or_else(|| shared.endpoint_url().map(str::to_owned));
        Ok(Self {
            client: Client::from_conf(config.build()),
            endpoint: named.unwrap_or_else(|| format!("the endpoint of region {region}")),
            region,
            pinned_region,
            clock: env.clock.clone(),
            entropy: env.entropy.fork(),
            specs: Mutex::default(),
        })
    }

    /// One call, until `by`.
    async fn send<T, E>(
        &self,
        by: Monotonic,
        intent: Intent,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
    ) -> Result<T, Failure>
    where
        E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        if self.clock.monotonic() >= by {
            return Err(Failure::Other(Error::unavailable("the deadline passed before anything was sent")));
        }
        // Boxed: the SDK's futures are many kilobytes.
        match within(&*self.clock, by, Box::pin(call)).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => Err(classify(error, intent, &self.endpoint)),
            Err(_) => {
                let message = format!("no answer from DynamoDB at {} by the deadline", self.endpoint);
                Err(Failure::Other(Error::new(intent.unanswered(), message)))
            }
        }
    }

    /// A read, tried again while it is throttled or not answered.
    async fn read<T, E, F>(&self, by: Monotonic, call: impl Fn() -> F + Send + Sync) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
        E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let mut tries = 0;
        loop {
            let answer = self.send(by, Intent::Read, call()).await;
            tries += 1;
            match answer {
                Err(failure) if failure.is_passing() && tries < READ_TRIES_MAX => {
                    if !self.pause(by, READ_PAUSE * 2_u32.pow(tries - 1)).await {
                        return Err(failure);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Waits for a random time up to `max`; false, and at once, if the deadline comes first.
    async fn pause(&self, by: Monotonic, max: Duration) -> bool {
        let until = self.clock.deadline(self.entropy.up_to(max));
        if until >= by {
            return false;
        }
        self.clock.sleep_until(until).await;
        true
    }

    fn specs(&self) -> MutexGuard<'_, BTreeMap<String, Arc<TableSpec>>> {
        self.specs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, table: &str) {
        self.specs().remove(table);
    }

    /// The table's description, from memory if it is known, and what `check` makes of it. A check that
    /// fails by what is remembered is made again by what is true now.
    async fn checked<T>(
        &self,
        by: Monotonic,
        table: &str,
        check: impl Fn(&TableSpec) -> Result<T> + Send + Sync,
    ) -> Result<(Arc<TableSpec>, T)> {
        let remembered = self.specs().get(table).cloned();
        if let Some(spec) = remembered
            && let Ok(checked) = check(&spec)
        {
            return Ok((spec, checked));
        }
        let spec = self.fresh_spec(by, table).await?;
        let checked = check(&spec)?;
        Ok((spec, checked))
    }

    /// What a failed call on `table` comes to, if it is an error and nothing else.
    fn failed(&self, table: &str, failure: Failure) -> Error {
        if matches!(failure, Failure::NoSuchTable | Failure::Mistake(_)) {
            self.forget(table);
        }
        failure.into_error(table)
    }

    async fn row(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let request = self.client.get_item().table_name(table).consistent_read(true);
        let request = request.set_key(Some(from_item(key.as_item())));
        let answer = self.read(by, || request.clone().send()).await;
        let answer = answer.map_err(|failure| self.failed(table, failure))?;
        answer.item.map(to_item).transpose()
    }
}

#[async_trait]
impl Store for DynamoDb {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        spec.validate()?;
        self.ensure(by, spec).await.map_err(|error| error.during(format!("ensure table `{}`", spec.name)))
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        let described = self.describe_with_ttl(by, table).await;
        described.map_err(|error| error.during(format!("describe table `{table}`")))
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.checked(by, table, |spec| spec.check_key(key)).await?;
        self.row(by, table, key).await.map_err(|error| error.during(format!("get from table `{table}`")))
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        write.validate()?;
        self.write_one(by, write).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        validate_transaction(writes, nonce)?;
        self.write_all(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        query.page.validate()?;
        self.checked(by, table, |spec| spec.partition_of(query)).await?;
        let Some((name, value)) = query.partition.as_item().iter().next() else {
            return Err(Error::invalid(format!("query of table `{table}` names no partition")));
        };
        let Expression { condition, names, values, .. } = Expression::partition(name, value);
        let request = self
            .client
            .query()
            .table_name(table)
            .set_index_name(query.index.clone())
            // An index is never consistent.
            .consistent_read(query.index.is_none())
            .set_key_condition_expression(condition)
            .set_expression_attribute_names(Some(names.into_iter().collect()))
            .set_expression_attribute_values(Some(
                values.iter().map(|(p, v)| (p.clone(), from_value(v))).collect(),
            ))
            .limit(limit(&query.page))
            .set_exclusive_start_key(query.page.after.as_ref().map(|cursor| from_item(&cursor.0)));
        let answer = self.read(by, || request.clone().send()).await;
        let answer =
            answer.map_err(|failure| self.failed(table, failure).during(format!("query table `{table}`")))?;
        listing(answer.items, answer.last_evaluated_key)
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        page.validate()?;
        self.checked(by, table, |_| Ok(())).await?;
        let request = self
            .client
            .scan()
            .table_name(table)
            .consistent_read(true)
            .limit(limit(page))
            .set_exclusive_start_key(page.after.as_ref().map(|cursor| from_item(&cursor.0)));
        let answer = self.read(by, || request.clone().send()).await;
        let answer =
            answer.map_err(|failure| self.failed(table, failure).during(format!("scan table `{table}`")))?;
        listing(answer.items, answer.last_evaluated_key)
    }
}

type Attributes = std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>;

fn listing(items: Option<Vec<Attributes>>, next: Option<Attributes>) -> Result<Listing> {
    let items = items.unwrap_or_default().into_iter().map(to_item).collect::<Result<_>>()?;
    let next = next.filter(|key| !key.is_empty()).map(to_item).transpose()?.map(Cursor);
    Ok(Listing { items, next })
}

fn limit(page: &Page) -> i32 {
    i32::try_from(page.limit).unwrap_or(i32::MAX)
}

fn check_endpoint(endpoint: &str) -> Result<()> {
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    if host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace)) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "address option `endpoint={endpoint}` is not a URL: write http://host:port or https://host"
    )))
}

fn check_region(what: &str, region: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !region.is_empty() && region.bytes().all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{what} `{region}` is not the name of an AWS region: write it like eu-west-1"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn opened(address: &str) -> Result<DynamoDb> {
        DynamoDb::from_address(&mut Address::parse(address)?, &Env::system()).await
    }

    #[tokio::test]
    async fn wrong_addresses_say_what_to_write() {
        async fn check(address: &str, expected: &str) {
            let refused = opened(address).await.unwrap_err();
            assert_eq!(refused.kind(), tenure_backend::Kind::Invalid);
            assert!(refused.chain().contains(expected), "{address}: {refused:?}");
        }
        check("dynamodb:orders?region=eu-west-1", "write dynamodb:?region=eu-west-1").await;
        check("dynamodb:?regoin=eu-west-1", "did you mean `region`?").await;
        check("dynamodb:?region=EU%20west", "write it like eu-west-1").await;
        check("dynamodb:?region=eu-west-1&endpoint=127.0.0.1:8000", "write http://host:port").await;
        check("dynamodb:?region=eu-west-1&pinned_region=us-east-1", "all writers of a global table").await;
    }

    #[tokio::test]
    async fn an_address_opens_without_a_call_and_shows_no_secret() {
        let store =
            opened("dynamodb:?region=eu-west-1&endpoint=http://127.0.0.1:9&pinned_region=eu-west-1").await;
        let shown = format!("{:?}", store.unwrap());
        assert_eq!(shown, r#"DynamoDb { region: "eu-west-1", endpoint: "http://127.0.0.1:9" }"#);
    }
}
