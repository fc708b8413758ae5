//! The stream at Amazon Kinesis. The only file that names its SDK.
//!
//! The SDK does not retry by itself: a put that is sent twice is stored twice, and whether to try
//! again is the caller's decision, by [`Kind`]. What a failed call means:
//!
//! ```text
//!   never sent (refused connection, no name, deadline passed before)   Unavailable
//!   sent, no answer (connection lost, deadline, 5xx)                   Unknown if it changes something
//!   answered: slow down                                                Throttled
//!   answered: who are you?                                             Denied
//! ```
//!
//! An iterator lives for five minutes. A cursor therefore carries the place in its own terms, too, and
//! an expired iterator is replaced without the caller noticing. For one at LATEST that has seen no
//! record yet the place is the moment at which Kinesis made it, by Kinesis's own clock and a second
//! early: records of that second may come, none is passed over, however wrong this machine's clock is.
//!
//! A stream is born with a retention of 24 hours and raised afterwards, by another call. `create`
//! therefore also raises one that it finds with 24 hours, if more is asked for: an earlier `create`
//! may have come no further. Any other retention is left as it is.
//!
//! Kinesis does not say that a position has been trimmed: it begins with the oldest record there is.
//! `Read::Trimmed` never comes from here; watch `behind` against the retention.

use std::error::Error as StdError;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_kinesis::Client;
use aws_sdk_kinesis::config::interceptors::BeforeDeserializationInterceptorContextRef;
use aws_sdk_kinesis::config::retry::RetryConfig;
use aws_sdk_kinesis::config::{ConfigBag, Credentials, Intercept, Region, RuntimeComponents};
use aws_sdk_kinesis::error::{BoxError, ConnectorError, ProvideErrorMetadata, SdkError};
use aws_sdk_kinesis::operation::get_shard_iterator::builders::GetShardIteratorFluentBuilder;
use aws_sdk_kinesis::primitives::{Blob, DateTime, DateTimeFormat};
use aws_sdk_kinesis::types::{
    PutRecordsRequestEntry, PutRecordsResultEntry, ScalingType, ShardIteratorType, StreamDescriptionSummary,
    StreamStatus,
};
use bytes::Bytes;
use tenure_backend::{Env, Error, Kind, Result, aws};
use tenure_clock::{Clock, Monotonic, WallTime, within};

use crate::embedded::{RETENTION_AGE, check_spec};
use crate::limits::{check_name, check_read_limit, check_shard_count};
use crate::lineage::{impossible_split, unknown_shard};
use crate::stream::{Description, Page, PageToken, ShardPage, Stream, StreamExt, StreamSpec};
use crate::{
    Batch, Cursor, HashKey, HashRange, Limits, Position, Put, Read, Record, Shard, ShardId, ShardRate, Stored,
};

/// Kinesis allows five reads of a shard per second.
const READ_POLL: Duration = Duration::from_millis(200);

/// How soon the state of a stream that is changing is looked at again, and how long at most between
/// two looks: describing is limited to a few calls per second and account.
const STATUS_POLL_MIN: Duration = Duration::from_millis(50);
const STATUS_POLL_MAX: Duration = Duration::from_secs(1);

/// How far the clock that dates an answer may be before the one that dates records.
const CLOCKS_APART_MAX: Duration = Duration::from_secs(1);

/// What Kinesis keeps at most.
const RETENTION_HOURS_MAX: u64 = 8760;

/// A call that failed, with the service's own code for those who go on after some of them.
#[derive(Debug)]
struct Failed {
    code: Option<String>,
    error: Error,
}

impl Failed {
    fn is(&self, code: &str) -> bool {
        self.code.as_deref() == Some(code)
    }

    const fn kind(&self) -> Kind {
        self.error.kind()
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self { code: None, error }
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// Which Kinesis to talk to. What is absent comes from the environment and the AWS configuration files.
#[derive(Debug, Clone, Default)]
pub struct KinesisPlace {
    /// The AWS region.
    pub region: Option<String>,
    /// The profile of the AWS configuration files.
    pub profile: Option<String>,
    /// Another address of the service. One on this machine is an emulator and needs no credentials.
    pub endpoint: Option<String>,
}

/// A stream at Kinesis.
pub struct Kinesis {
    name: Arc<str>,
    client: Client,
    clock: Arc<dyn Clock>,
    /// What the stream allowed when it was last described.
    limits: Mutex<Option<Limits>>,
}

impl Kinesis {
    /// Takes the stream `name`, which need not exist yet. Nothing is sent.
    ///
    /// # Errors
    /// `Invalid` if the name is, or no region is configured.
    pub async fn open(name: &str, place: KinesisPlace, env: &Env) -> Result<Self> {
        check_name(name)?;
        let mut loader = aws::loader().retry_config(RetryConfig::disabled());
        if let Some(profile) = place.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(endpoint) = place.endpoint {
            if is_loopback(&endpoint) {
                loader = loader
                    .region(Region::new("us-east-1"))
                    .credentials_provider(Credentials::new("local", "local", None, None, "loopback"));
            }
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(region) = place.region {
            loader = loader.region(Region::new(region));
        }
        let config = loader.load().await;
        if config.region().is_none() {
            return Err(Error::invalid(format!(
                "no AWS region for stream `{name}`: write kinesis:{name}?region=eu-west-1, or set AWS_REGION"
            )));
        }
        let client = Client::new(&config);
        Ok(Self { name: name.into(), client, clock: env.clock.clone(), limits: Mutex::default() })
    }

    /// Makes one call that changes nothing.
    async fn look<T, E, F>(&self, by: Monotonic, what: &str, call: F) -> Result<T, Failed>
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E>>>,
    {
        self.call(by, what, Effect::None, call).await
    }

    /// Makes one call that changes something.
    async fn change<T, E, F>(&self, by: Monotonic, what: &str, call: F) -> Result<T, Failed>
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E>>>,
    {
        self.call(by, what, Effect::Write, call).await
    }

    async fn call<T, E, F>(&self, by: Monotonic, what: &str, effect: Effect, call: F) -> Result<T, Failed>
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E>>>,
    {
        let doing = || format!("{what} of Kinesis stream `{}`", self.name);
        if self.clock.monotonic() >= by {
            return Err(Error::unavailable("the deadline passed before it was sent").during(doing()).into());
        }
        // Boxed: the SDK's futures are several kilobytes, and callers nest them.
        match within(&*self.clock, by, Box::pin(call)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let code = error.as_service_error().and_then(|refusal| refusal.code()).map(str::to_owned);
                Err(Failed { code, error: self.failure(&error, effect).during(doing()) })
            }
            Err(_) => Err(Error::new(effect.unanswered(), "no answer in time").during(doing()).into()),
        }
    }

    fn failure<E>(&self, error: &SdkError<E>, effect: Effect) -> Error
    where
        E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
    {
        let (kind, message) = match error {
            SdkError::ConstructionFailure(_) => (Kind::Invalid, "the request cannot be built".to_owned()),
            SdkError::DispatchFailure(failure) => match failure.as_connector_error() {
                Some(connector) => dispatch_failure(connector, effect),
                None => (effect.unanswered(), "the request failed on its way".to_owned()),
            },
            SdkError::TimeoutError(_) | SdkError::ResponseError(_) => {
                (effect.unanswered(), "no usable answer came".to_owned())
            }
            SdkError::ServiceError(service) => {
                let status = service.raw().status().as_u16();
                self.refusal(service.err().code(), status, effect)
            }
            _ => (effect.unanswered(), "the call failed".to_owned()),
        };
        Error::new(kind, message).because(cause(error))
    }

    /// What an answer of the service that is no result means.
    fn refusal(&self, code: Option<&str>, status: u16, effect: Effect) -> (Kind, String) {
        match code {
            Some("ResourceNotFoundException") => (
                Kind::Invalid,
                format!(
                    "no stream `{}` there, or no such shard in it: create it (tenure stream create), or mend the name, region or account",
                    self.name
                ),
            ),
            Some("ResourceInUseException") => {
                (Kind::Unavailable, format!("stream `{}` is changing", self.name))
            }
            Some(
                "ProvisionedThroughputExceededException"
                | "LimitExceededException"
                | "ThrottlingException"
                | "Throttling"
                | "RequestLimitExceeded"
                | "KMSThrottlingException",
            ) => (Kind::Throttled, "Kinesis asks for less".to_owned()),
            Some(
                "AccessDeniedException"
                | "UnrecognizedClientException"
                | "ExpiredTokenException"
                | "ExpiredToken"
                | "InvalidSignatureException"
                | "SignatureDoesNotMatch"
                | "IncompleteSignatureException"
                | "MissingAuthenticationTokenException"
                | "MissingAuthenticationToken"
                | "InvalidClientTokenId"
                | "OptInRequired"
                | "NotAuthorized"
                | "KMSAccessDeniedException"
                | "KMSDisabledException"
                | "KMSNotFoundException"
                | "KMSInvalidStateException"
                | "KMSOptInRequired",
            ) => (
                Kind::Denied,
                format!("no permission for stream `{}`: check the credentials and their policy", self.name),
            ),
            _ if status >= 500 => (effect.unanswered(), "Kinesis failed on its side".to_owned()),
            Some("UnknownOperationException") => {
                (Kind::Invalid, "this Kinesis does not know the operation (an emulator?)".to_owned())
            }
            _ => (Kind::Invalid, "Kinesis refuses the request".to_owned()),
        }
    }

    async fn summary(&self, by: Monotonic) -> Result<StreamDescriptionSummary, Failed> {
        let call = self.client.describe_stream_summary().stream_name(&*self.name).send();
        let answer = self.look(by, "describe", call).await?;
        let summary = answer.stream_description_summary.ok_or_else(|| unexpected("a description"))?;
        let kib = summary.max_record_size_in_kib().and_then(|kib| usize::try_from(kib).ok());
        let limits = kib.map_or_else(Limits::default, |kib| Limits::for_record_bytes(kib * 1024));
        let limits = Limits { shard_rate: Some(ShardRate::KINESIS), ..limits };
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = Some(limits);
        Ok(summary)
    }

    /// Waits until the stream is not changing any more.
    async fn active(&self, by: Monotonic) -> Result<Description, Failed> {
        let mut pause = STATUS_POLL_MIN;
        loop {
            let summary = match self.summary(by).await {
                Ok(summary) => Some(summary),
                Err(error) if error.kind() == Kind::Throttled => None,
                Err(error) => return Err(error),
            };
            if let Some(summary) = summary.filter(|summary| *summary.stream_status() == StreamStatus::Active)
            {
                return Ok(self.description(&summary));
            }
            if self.clock.monotonic() + pause >= by {
                return Err(Error::new(
                    Kind::Unknown,
                    format!("Kinesis stream `{}` is still changing: look again later", self.name),
                )
                .into());
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(STATUS_POLL_MAX);
        }
    }

    fn description(&self, summary: &StreamDescriptionSummary) -> Description {
        let hours = u64::try_from(summary.retention_period_hours()).unwrap_or(0);
        let limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or_default();
        Description {
            name: self.name.to_string(),
            open_shards: u32::try_from(summary.open_shard_count()).unwrap_or(0),
            retention_age: Duration::from_secs(hours * 3600),
            retention_bytes: None,
            limits,
        }
    }

    /// Makes a change once the stream is not changing otherwise, and waits until it is done.
    async fn reshape<F>(&self, by: Monotonic, change: impl Fn() -> F) -> Result<Description, Failed>
    where
        F: Future<Output = Result<(), Failed>>,
    {
        loop {
            self.active(by).await?;
            match change().await {
                Ok(()) => return self.active(by).await.map_err(|failed| begun(failed.error).into()),
                // Somebody else's change came between: what was sent was refused.
                Err(error)
                    if error.kind() == Kind::Unavailable && self.clock.monotonic() + STATUS_POLL_MIN < by =>
                {
                    self.clock.sleep(STATUS_POLL_MIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn iterator(
        &self,
        by: Monotonic,
        shard: &ShardId,
        position: &Position,
    ) -> Result<Option<Arc<str>>> {
        let call = self.client.get_shard_iterator().stream_name(&*self.name).shard_id(shard.as_str());
        let answer = self.look(by, "cursor", at_position(call, position).send()).await?;
        Ok(answer.shard_iterator.map(Into::into))
    }

    /// An iterator at the end of the shard, and a place that is not behind it and stays where it is.
    async fn latest(&self, by: Monotonic, shard: &ShardId) -> Result<(Option<Arc<str>>, Position)> {
        let date = AnswerDate::default();
        let call = self.client.get_shard_iterator().stream_name(&*self.name).shard_id(shard.as_str());
        let call = at_position(call, &Position::Latest).customize().interceptor(date.clone()).send();
        let asked = self.clock.monotonic();
        let answer = self.look(by, "cursor", call).await?;
        // Somewhere between question and answer. Dates are in whole seconds, rounded down.
        let took = self.clock.monotonic().since(asked);
        let place = match date.get() {
            Some(answered) => Position::AtTimestamp(answered - took - CLOCKS_APART_MAX),
            None => Position::Latest,
        };
        Ok((answer.shard_iterator.map(Into::into), place))
    }

    async fn begin_create(&self, by: Monotonic, spec: &StreamSpec) -> Result<(), Failed> {
        let mut call = self
            .client
            .create_stream()
            .stream_name(&*self.name)
            .shard_count(i32::try_from(spec.shards).unwrap_or(i32::MAX));
        if spec.record_bytes_max > Limits::default().bytes_per_record_max {
            let kib = i32::try_from(spec.record_bytes_max / 1024).unwrap_or(i32::MAX);
            call = call.max_record_size_in_kib(kib);
        }
        self.change(by, "create", call.send()).await.map(drop)
    }

    /// Raises the retention that a stream is born with, and looks whether it was.
    async fn keep_for(&self, by: Monotonic, found: Description, age: Duration) -> Result<Description> {
        let hours = age.as_secs().div_ceil(3600);
        let wanted = Duration::from_secs(hours * 3600);
        let mut pause = STATUS_POLL_MIN;
        let mut now = found;
        while now.retention_age == RETENTION_AGE && wanted > RETENTION_AGE {
            let call = self
                .client
                .increase_stream_retention_period()
                .stream_name(&*self.name)
                .retention_period_hours(i32::try_from(hours).unwrap_or(i32::MAX))
                .send();
            let raised = self.change(by, "retention", call).await.map(drop);
            // Whatever was answered, or not: what counts is what is there.
            now = self.active(by).await.map_err(|failed| half_created(failed.error))?;
            match raised {
                Ok(()) => break,
                Err(_) if now.retention_age == wanted => break,
                Err(failed)
                    if matches!(failed.kind(), Kind::Unknown | Kind::Unavailable | Kind::Throttled) =>
                {
                    if self.clock.monotonic() + pause >= by {
                        return Err(half_created(failed.error));
                    }
                    self.clock.sleep(pause).await;
                    pause = (pause * 2).min(STATUS_POLL_MAX);
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        Ok(now)
    }
}

#[async_trait]
impl Stream for Kinesis {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        check_spec(spec)?;
        check_retention(spec)?;
        let mut begun = false;
        let mut pause = STATUS_POLL_MIN;
        loop {
            let again = match self.begin_create(by, spec).await {
                Ok(()) => {
                    begun = true;
                    None
                }
                // It exists, somebody is creating it, or it is being deleted.
                Err(failed) if failed.is("ResourceInUseException") => None,
                // Whether it was carried out is seen from whether it is there.
                Err(failed) if failed.kind() == Kind::Unknown => {
                    begun = true;
                    Some(failed)
                }
                // Only a few streams may be in creation at once.
                Err(failed) if failed.kind() == Kind::Throttled => Some(failed),
                Err(failed) if begun => return Err(half_created(failed.error)),
                Err(failed) => return Err(failed.into()),
            };
            let again = match self.active(by).await {
                Ok(found) => {
                    return self.keep_for(by, found, spec.retention_age.unwrap_or(RETENTION_AGE)).await;
                }
                Err(failed) if failed.is("ResourceNotFoundException") => again.unwrap_or(failed),
                Err(failed) if begun => return Err(half_created(failed.error)),
                Err(failed) => return Err(failed.into()),
            };
            // Creating again is harmless.
            if self.clock.monotonic() + pause >= by {
                return Err(if begun { half_created(again.error) } else { again.into() });
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(STATUS_POLL_MAX);
        }
    }

    async fn describe(&self, by: Monotonic) -> Result<Description> {
        let summary = self.summary(by).await?;
        Ok(self.description(&summary))
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        let known = *self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        match known {
            Some(limits) => Ok(limits),
            None => Ok(self.describe(by).await?.limits),
        }
    }

    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage> {
        let mut call = self
            .client
            .list_shards()
            .max_results(i32::try_from(page.size_within_bounds()).unwrap_or(i32::MAX));
        // A token stands for the stream, too: both together are refused.
        call = match &page.token {
            Some(token) => call.next_token(&token.0),
            None => call.stream_name(&*self.name),
        };
        let answer = self.look(by, "list shards", call.send()).await?;
        let shards = answer.shards.unwrap_or_default().into_iter().map(shard).collect::<Result<_>>()?;
        Ok(ShardPage { shards, next: answer.next_token.map(PageToken) })
    }

    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        let limits = self.limits(by).await?;
        limits.check_call(records.iter())?;
        let mut results: Vec<Option<Put>> = records.iter().map(|record| limits.refusal(record)).collect();
        let mut entries = Vec::with_capacity(records.len());
        for (record, _) in records.iter().zip(&results).filter(|(_, refused)| refused.is_none()) {
            entries.push(
                PutRecordsRequestEntry::builder()
                    .partition_key(&*record.partition_key)
                    .set_explicit_hash_key(record.explicit_hash_key.map(|key| key.to_string()))
                    .data(Blob::new(record.data.as_ref()))
                    .build()
                    .map_err(|error| Error::invalid("a record cannot be sent").because(error))?,
            );
        }
        if !entries.is_empty() {
            let call = self.client.put_records().stream_name(&*self.name).set_records(Some(entries)).send();
            let mut answers = self.change(by, "put", call).await?.records.into_iter();
            for result in results.iter_mut().filter(|result| result.is_none()) {
                *result = answers.next().map(put_result).transpose()?;
            }
        }
        let missing = || Error::new(Kind::Unknown, "Kinesis answered for fewer records than were put");
        results.into_iter().collect::<Option<_>>().ok_or_else(missing)
    }

    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        let (token, position) = match position {
            // Asked for again later, "latest" would be another place.
            Position::Latest => self.latest(by, shard).await?,
            other => (self.iterator(by, shard, other).await?, other.clone()),
        };
        Ok(Cursor { shard: shard.clone(), position, token })
    }

    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        check_read_limit(limit)?;
        let mut token = cursor.token.clone();
        // The iterator of a cursor expires once; a fresh one does not on its first use.
        for fresh in [false, true] {
            if fresh && cursor.position == Position::Latest {
                return Err(lost_place(&cursor.shard));
            }
            if fresh || token.is_none() {
                token = self.iterator(by, &cursor.shard, &cursor.position).await?;
            }
            // No iterator: the shard ended before the position.
            let Some(token) = token.clone() else { return Ok(ended()) };
            let call = self.client.get_records().shard_iterator(&*token);
            let call = call.limit(i32::try_from(limit).unwrap_or(i32::MAX)).send();
            match self.look(by, "read", call).await {
                Err(error) if !fresh && error.is("ExpiredIteratorException") => {}
                Err(error) => return Err(error.into()),
                Ok(answer) => {
                    let behind = answer.millis_behind_latest.and_then(|millis| u64::try_from(millis).ok());
                    let records: Vec<_> = answer
                        .records
                        .into_iter()
                        .map(|record| stored(&cursor.shard, record))
                        .collect::<Result<_>>()?;
                    let position = records.last().map_or_else(
                        || cursor.position.clone(),
                        |last| Position::After(last.sequence.clone()),
                    );
                    let next = answer.next_shard_iterator.map(|token| Cursor {
                        shard: cursor.shard.clone(),
                        position,
                        token: Some(token.into()),
                    });
                    return Ok(Read::Records(Batch {
                        records,
                        next,
                        behind: Duration::from_millis(behind.unwrap_or(0)),
                    }));
                }
            }
        }
        Err(unexpected("an iterator that has not expired yet"))
    }

    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        // Looked at here: the service's own refusal does not say which keys would do.
        let shards = self.all_shards(by).await?;
        let found = shards.iter().find(|listed| listed.id == *shard).ok_or_else(|| unknown_shard(shard))?;
        found.hash_range.split(at).ok_or_else(|| impossible_split(shard, found.hash_range, at))?;
        self.reshape(by, || async {
            let call = self
                .client
                .split_shard()
                .stream_name(&*self.name)
                .shard_to_split(shard.as_str())
                .new_starting_hash_key(at.to_string())
                .send();
            self.change(by, "split", call).await.map(drop)
        })
        .await?;
        Ok(())
    }

    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        self.reshape(by, || async {
            let call = self
                .client
                .merge_shards()
                .stream_name(&*self.name)
                .shard_to_merge(shard.as_str())
                .adjacent_shard_to_merge(adjacent.as_str())
                .send();
            self.change(by, "merge", call).await.map(drop)
        })
        .await?;
        Ok(())
    }

    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()> {
        check_shard_count(shards)?;
        let first = self.active(by).await?.open_shards;
        let mut now = first;
        while now != shards {
            // One call may at most double the shards, or halve them.
            let target = shards.clamp(now.div_ceil(2), now.saturating_mul(2));
            let reached = self
                .reshape(by, || async {
                    let call = self
                        .client
                        .update_shard_count()
                        .stream_name(&*self.name)
                        .target_shard_count(i32::try_from(target).unwrap_or(i32::MAX))
                        .scaling_type(ScalingType::UniformScaling)
                        .send();
                    self.change(by, "rescale", call).await.map(drop)
                })
                .await
                .map_err(|failed| if now == first { failed.error } else { begun(failed.error) })?
                .open_shards;
            if reached == now {
                return Err(Error::invalid(format!("Kinesis left stream `{}` at {now} shards", self.name)));
            }
            now = reached;
        }
        Ok(())
    }

    async fn delete(&self, by: Monotonic) -> Result<()> {
        let mut pause = STATUS_POLL_MIN;
        loop {
            let call =
                self.client.delete_stream().stream_name(&*self.name).enforce_consumer_deletion(true).send();
            match self.change(by, "delete", call).await {
                // Deleting takes a while; it is over once the stream cannot be found.
                Ok(_) => {}
                Err(error) if error.is("ResourceNotFoundException") => break,
                Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::Throttled) => {
                    tracing::debug!(error = %error.error.chain(), "delete is tried again");
                }
                Err(error) => return Err(error.into()),
            }
            if self.clock.monotonic() + pause >= by {
                return Err(Error::new(
                    Kind::Unknown,
                    format!("Kinesis stream `{}` is still being deleted: look again later", self.name),
                ));
            }
            self.clock.sleep(pause).await;
            pause = (pause * 2).min(STATUS_POLL_MAX);
        }
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }

    async fn wait(&self, by: Monotonic) {
        self.clock.sleep_until(self.clock.deadline(READ_POLL).min(by)).await;
    }
}

impl fmt::Debug for Kinesis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kinesis").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Whether a call that fails without an answer may have changed something.
#[derive(Debug, Clone, Copy)]
enum Effect {
    None,
    Write,
}

impl Effect {
    const fn unanswered(self) -> Kind {
        match self {
            Self::None => Kind::Unavailable,
            Self::Write => Kind::Unknown,
        }
    }
}

fn dispatch_failure(connector: &ConnectorError, effect: Effect) -> (Kind, String) {
    let causes = || std::iter::successors(Some(connector as &dyn StdError), |&error| error.source());
    if causes().any(|error| error.to_string().contains("credential")) {
        return (
            Kind::Denied,
            "no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned(),
        );
    }
    if connector.is_user() {
        return (Kind::Invalid, "the endpoint is no address that can be asked".to_owned());
    }
    // Without a connection nothing was sent. The time limit of a connector is that of connecting.
    let refused = causes().filter_map(|error| error.downcast_ref::<std::io::Error>()).any(|error| {
        use std::io::ErrorKind;
        matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable
        )
    });
    let unconnected = causes().any(|error| {
        let text = error.to_string();
        text.contains("(Connect)") || text.contains("dns error")
    });
    if connector.is_timeout() || refused || unconnected {
        return (
            Kind::Unavailable,
            "Kinesis cannot be reached: check region, endpoint and network".to_owned(),
        );
    }
    (effect.unanswered(), "the connection was lost".to_owned())
}

/// What the service said, or what happened on the way, in one line and without the raw response.
fn cause<E>(error: &SdkError<E>) -> String
where
    E: ProvideErrorMetadata + StdError + Send + Sync + 'static,
{
    if let SdkError::ServiceError(service) = error {
        let (code, message) = (service.err().code(), service.err().message());
        return format!(
            "{}: {}",
            code.unwrap_or("an error without a code"),
            message.unwrap_or("without a message")
        );
    }
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// An iterator at LATEST came without a date, and has expired: records may have come since.
fn lost_place(shard: &ShardId) -> Error {
    Error::invalid(format!(
        "a cursor at the end of shard `{shard}` was left unread for too long: take a new one, at a time or a sequence number"
    ))
}

/// Something was sent that may have created the stream: "it did not happen" is not true any more.
fn half_created(error: Error) -> Error {
    Error::new(Kind::Unknown, "the stream may be there, or not yet as it was asked for: create it again")
        .because(error.chain())
}

fn unexpected(missing: &str) -> Error {
    Error::unavailable(format!("Kinesis answered without {missing}"))
}

fn ended() -> Read {
    Read::Records(Batch { records: Vec::new(), next: None, behind: Duration::ZERO })
}

fn is_loopback(endpoint: &str) -> bool {
    let host = endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or(host);
    host.starts_with("127.") || host.starts_with("localhost") || host.starts_with("[::1]")
}

fn check_retention(spec: &StreamSpec) -> Result<()> {
    if spec.retention_bytes.is_some() {
        return Err(Error::invalid("Kinesis keeps records by age alone: leave out retention_bytes"));
    }
    let hours = spec.retention_age.unwrap_or(RETENTION_AGE).as_secs().div_ceil(3600);
    if (24..=RETENTION_HOURS_MAX).contains(&hours) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "retention of {hours} hours: Kinesis keeps records for 24 to {RETENTION_HOURS_MAX}"
    )))
}

/// The date of a call's answer, by the clock of whoever answered.
#[derive(Debug, Clone, Default)]
struct AnswerDate(Arc<OnceLock<WallTime>>);

impl AnswerDate {
    fn get(&self) -> Option<WallTime> {
        self.0.get().copied()
    }
}

impl Intercept for AnswerDate {
    fn name(&self) -> &'static str {
        "AnswerDate"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _settings: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let date = date.and_then(|text| DateTime::from_str(text, DateTimeFormat::HttpDate).ok());
        if let Some(date) = date {
            // Set at most once: the SDK does not retry.
            let _ = self.0.set(WallTime::from_millis(date.secs() * 1000));
        }
        Ok(())
    }
}

fn at_position(call: GetShardIteratorFluentBuilder, position: &Position) -> GetShardIteratorFluentBuilder {
    match position {
        Position::TrimHorizon => call.shard_iterator_type(ShardIteratorType::TrimHorizon),
        Position::Latest => call.shard_iterator_type(ShardIteratorType::Latest),
        Position::At(sequence) => call
            .shard_iterator_type(ShardIteratorType::AtSequenceNumber)
            .starting_sequence_number(sequence.to_string()),
        Position::After(sequence) => call
            .shard_iterator_type(ShardIteratorType::AfterSequenceNumber)
            .starting_sequence_number(sequence.to_string()),
        Position::AtTimestamp(time) => call
            .shard_iterator_type(ShardIteratorType::AtTimestamp)
            .timestamp(DateTime::from_millis(time.as_millis())),
    }
}

/// A change was accepted, and then something failed: whatever that was, "it did not happen" is not true.
fn begun(error: Error) -> Error {
    Error::new(Kind::Unknown, "the change was begun, and how it ended is not known: list the shards")
        .because(error.chain())
}

fn shard(shard: aws_sdk_kinesis::types::Shard) -> Result<Shard> {
    let hashes = shard.hash_key_range.ok_or_else(|| unexpected("a shard's hash range"))?;
    let sequences = shard.sequence_number_range.ok_or_else(|| unexpected("a shard's sequence numbers"))?;
    Ok(Shard {
        id: ShardId::from(shard.shard_id.as_str()),
        parent: shard.parent_shard_id.as_deref().map(ShardId::from),
        adjacent_parent: shard.adjacent_parent_shard_id.as_deref().map(ShardId::from),
        hash_range: HashRange {
            start: hashes.starting_hash_key.parse()?,
            end: hashes.ending_hash_key.parse()?,
        },
        first_sequence: sequences.starting_sequence_number.parse()?,
        last_sequence: sequences.ending_sequence_number.map(|number| number.parse()).transpose()?,
    })
}

fn put_result(entry: PutRecordsResultEntry) -> Result<Put> {
    match (entry.shard_id, entry.sequence_number) {
        (Some(shard), Some(sequence)) if entry.error_code.is_none() => {
            Ok(Put::Stored { shard: ShardId::from(shard.as_str()), sequence: sequence.parse()? })
        }
        // `ProvisionedThroughputExceededException`, or `InternalFailure`: not stored, to be tried again.
        _ => Ok(Put::Throttled),
    }
}

fn stored(shard: &ShardId, record: aws_sdk_kinesis::types::Record) -> Result<Stored> {
    // Dates travel as a fraction of seconds, which lands a hair beside the millisecond that was meant.
    let millis = |time: DateTime| time.secs() * 1000 + i64::from((time.subsec_nanos() + 500_000) / 1_000_000);
    let arrived = record.approximate_arrival_timestamp.map(millis);
    Ok(Stored {
        shard: shard.clone(),
        sequence: record.sequence_number.parse()?,
        arrived: WallTime::from_millis(arrived.unwrap_or(0)),
        partition_key: record.partition_key.unwrap_or_default().into(),
        data: Bytes::from(record.data.into_inner()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_an_emulator() {
        for local in ["http://127.0.0.1:4567", "http://localhost:4567/", "http://[::1]:1"] {
            assert!(is_loopback(local), "{local}");
        }
        for remote in ["https://kinesis.eu-west-1.amazonaws.com", "http://10.0.0.1", "https://x/127.0.0.1"] {
            assert!(!is_loopback(remote), "{remote}");
        }
    }

    #[test]
    fn an_unanswered_write_may_have_landed_and_a_read_has_not() {
        assert_eq!(Effect::Write.unanswered(), Kind::Unknown);
        assert_eq!(Effect::None.unanswered(), Kind::Unavailable);
    }
}
