//! Creating tables, waiting for them, and remembering what they look like.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_dynamodb::error::BuildError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, CreateGlobalSecondaryIndexAction, GlobalSecondaryIndex,
    GlobalSecondaryIndexUpdate, KeySchemaElement, KeyType as SdkKeyType, Projection as SdkProjection,
    ProjectionType, ProvisionedThroughput, ScalarAttributeType, TimeToLiveSpecification, TimeToLiveStatus,
};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;

use super::DynamoDb;
use super::description::{Described, State};
use super::failure::{Failure, Intent};
use crate::no_such_table;
use crate::table::{IndexSpec, KeyAttribute, KeyType, Projection, TableSpec, merged, valid_table_name};

/// How often a table is looked at while it is being made: soon at first, for emulators; then seldom,
/// because DynamoDB takes ten seconds and more.
const POLL_FIRST: Duration = Duration::from_millis(25);
const POLL_MAX: Duration = Duration::from_secs(2);

/// What an ensured table still lacks.
enum Step<'a> {
    Create,
    Wait(&'static str),
    AddIndex(&'a IndexSpec, Option<(i64, i64)>),
    Done,
}

impl DynamoDb {
    /// Brings the table to `spec` step by step, looking anew after each: whoever else does the same is
    /// met by finding the step already made.
    pub(super) async fn ensure(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.forget(&spec.name);
        let mut poll = POLL_FIRST;
        loop {
            let described = self.describe(by, &spec.name).await?;
            let made = match next_step(described.as_ref(), spec)? {
                Step::Done => break,
                Step::Wait(why) => Ok(why),
                Step::Create => self.create(by, spec).await.map(|()| "it is being made"),
                Step::AddIndex(index, throughput) => {
                    self.add_index(by, spec, index, throughput).await.map(|()| "an index is being added")
                }
            };
            let waiting_for = match made {
                Ok(why) => why.to_owned(),
                // Another creator, an answer that was lost, or a table that went away: the next look tells.
                Err(Failure::InUse(error)) => error.chain(),
                Err(Failure::NoSuchTable) => "the table went away".to_owned(),
                Err(Failure::Other(error)) if is_passing(error.kind()) => error.chain(),
                Err(failure) => return Err(failure.into_error(&spec.name)),
            };
            let next = self.clock.deadline(poll);
            if next >= by {
                return Err(Error::unavailable(format!(
                    "table `{}` is not ready by the deadline: try again",
                    spec.name
                ))
                .because(waiting_for));
            }
            self.clock.sleep_until(next).await;
            poll = (poll * 2).min(POLL_MAX);
        }
        self.ensure_ttl(by, spec).await
    }

    async fn ensure_ttl(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        let found = self.ttl(by, &spec.name).await?;
        spec.check_same_key(&TableSpec { ttl: found.clone(), ..spec.clone() })?;
        let Some(attribute) = spec.ttl.as_ref().filter(|_| found.is_none()) else { return Ok(()) };
        let specification =
            built(TimeToLiveSpecification::builder().enabled(true).attribute_name(attribute).build())?;
        let request = self
            .client
            .update_time_to_live()
            .table_name(&spec.name)
            .time_to_live_specification(specification);
        let Err(failure) = self.send(by, Intent::Write, request.send()).await else { return Ok(()) };
        // Somebody else may have enabled it, or the answer was lost: what counts is what is there now.
        let found = self.ttl(by, &spec.name).await?;
        spec.check_same_key(&TableSpec { ttl: found.clone(), ..spec.clone() })?;
        if found.is_some() { Ok(()) } else { Err(failure.into_error(&spec.name)) }
    }

    /// The description as it is now, remembered.
    pub(super) async fn fresh_spec(&self, by: Monotonic, table: &str) -> Result<Arc<TableSpec>> {
        self.forget(table);
        let described =
            self.describe(by, table).await?.filter(|described| described.state != State::Deleting);
        let spec = Arc::new(described.ok_or_else(|| no_such_table(table))?.spec);
        self.specs().insert(table.to_owned(), spec.clone());
        Ok(spec)
    }

    pub(super) async fn describe_with_ttl(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        let described =
            self.describe(by, table).await?.filter(|described| described.state != State::Deleting);
        let Some(Described { spec, .. }) = described else { return Ok(None) };
        Ok(Some(TableSpec { ttl: self.ttl(by, table).await?, ..spec }))
    }

    async fn describe(&self, by: Monotonic, table: &str) -> Result<Option<Described>> {
        // DynamoDB would call the name a mistake; elsewhere such a table is just not there.
        if valid_table_name(table).is_err() {
            return Ok(None);
        }
        let request = self.client.describe_table().table_name(table);
        let answer = match self.read(by, || request.clone().send()).await {
            Ok(answer) => answer,
            Err(Failure::NoSuchTable) => return Ok(None),
            Err(failure) => return Err(failure.into_error(table)),
        };
        let Some(description) = answer.table else { return Ok(None) };
        let described = Described::of(table, &description)?;
        described.refuse_global(&self.region, self.pinned_region.as_deref())?;
        Ok(Some(described))
    }

    /// The attribute by which rows expire, if any does.
    async fn ttl(&self, by: Monotonic, table: &str) -> Result<Option<String>> {
        let request = self.client.describe_time_to_live().table_name(table);
        let answer = self.read(by, || request.clone().send()).await;
        let answer = answer.map_err(|failure| self.failed(table, failure))?;
        let Some(ttl) = answer.time_to_live_description else { return Ok(None) };
        let enabled =
            matches!(ttl.time_to_live_status(), Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling));
        Ok(ttl.attribute_name.filter(|_| enabled))
    }

    async fn create(&self, by: Monotonic, spec: &TableSpec) -> Result<(), Failure> {
        let mut keys: Vec<&KeyAttribute> = Vec::new();
        let of_indexes =
            spec.indexes.iter().flat_map(|index| std::iter::once(&index.hash).chain(&index.range));
        for attribute in std::iter::once(&spec.hash).chain(&spec.range).chain(of_indexes) {
            if !keys.contains(&attribute) {
                keys.push(attribute);
            }
        }
        let mut request = self
            .client
            .create_table()
            .table_name(&spec.name)
            .billing_mode(BillingMode::PayPerRequest)
            .set_attribute_definitions(Some(definitions(&keys).map_err(Failure::Other)?))
            .set_key_schema(Some(schema(&spec.hash, spec.range.as_ref()).map_err(Failure::Other)?));
        for index in &spec.indexes {
            let index = GlobalSecondaryIndex::builder()
                .index_name(&index.name)
                .set_key_schema(Some(schema(&index.hash, index.range.as_ref()).map_err(Failure::Other)?))
                .projection(projection(index.projection));
            request = request.global_secondary_indexes(built(index.build()).map_err(Failure::Other)?);
        }
        self.send(by, Intent::Write, request.send()).await.map(drop)
    }

    async fn add_index(
        &self,
        by: Monotonic,
        spec: &TableSpec,
        index: &IndexSpec,
        throughput: Option<(i64, i64)>,
    ) -> Result<(), Failure> {
        let mut keys = vec![&index.hash];
        keys.extend(&index.range);
        // A table that pays for fixed units wants some for the index: as many as it has itself.
        let units = throughput.map(|(read, write)| {
            built(
                ProvisionedThroughput::builder()
                    .read_capacity_units(read)
                    .write_capacity_units(write)
                    .build(),
            )
        });
        let action = CreateGlobalSecondaryIndexAction::builder()
            .index_name(&index.name)
            .set_key_schema(Some(schema(&index.hash, index.range.as_ref()).map_err(Failure::Other)?))
            .set_provisioned_throughput(units.transpose().map_err(Failure::Other)?)
            .projection(projection(index.projection));
        let action = built(action.build()).map_err(Failure::Other)?;
        let request = self
            .client
            .update_table()
            .table_name(&spec.name)
            .set_attribute_definitions(Some(definitions(&keys).map_err(Failure::Other)?))
            .global_secondary_index_updates(GlobalSecondaryIndexUpdate::builder().create(action).build());
        self.send(by, Intent::Write, request.send()).await.map(drop)
    }
}

/// What an existing table, or none, lacks next. The TTL comes after all.
fn next_step<'a>(described: Option<&Described>, asked: &'a TableSpec) -> Result<Step<'a>> {
    let Some(described) = described else { return Ok(Step::Create) };
    match described.state {
        State::Deleting => return Ok(Step::Wait("an older table of that name is being deleted")),
        State::Stuck => {
            return Err(Error::unavailable(format!(
                "table `{}` cannot be used (archived, or its key is out of reach): see its status in the AWS console",
                asked.name
            )));
        }
        State::Usable | State::Changing | State::Creating => {}
    }
    asked.check_same_key(&described.spec)?;
    merged(&described.spec, asked)?;
    let missing = described.missing_index(asked)?;
    if described.state != State::Usable {
        return Ok(Step::Wait("the table is being made or changed"));
    }
    if let Some(index) = missing {
        return Ok(Step::AddIndex(index, described.throughput));
    }
    if asked.indexes.iter().any(|index| described.building.contains(&index.name)) {
        return Ok(Step::Wait("an index is being built"));
    }
    Ok(Step::Done)
}

/// Whether looking again may show that it went well after all.
const fn is_passing(kind: Kind) -> bool {
    matches!(kind, Kind::Throttled | Kind::Unavailable | Kind::Unknown)
}

fn definitions(keys: &[&KeyAttribute]) -> Result<Vec<AttributeDefinition>> {
    let definition = |attribute: &&KeyAttribute| {
        let kind = match attribute.kind {
            KeyType::S => ScalarAttributeType::S,
            KeyType::N => ScalarAttributeType::N,
            KeyType::B => ScalarAttributeType::B,
        };
        built(AttributeDefinition::builder().attribute_name(&attribute.name).attribute_type(kind).build())
    };
    keys.iter().map(definition).collect()
}

fn schema(hash: &KeyAttribute, range: Option<&KeyAttribute>) -> Result<Vec<KeySchemaElement>> {
    let element = |attribute: &KeyAttribute, kind| {
        built(KeySchemaElement::builder().attribute_name(&attribute.name).key_type(kind).build())
    };
    let mut elements = vec![element(hash, SdkKeyType::Hash)?];
    if let Some(range) = range {
        elements.push(element(range, SdkKeyType::Range)?);
    }
    Ok(elements)
}

fn projection(projection: Projection) -> SdkProjection {
    let kind = match projection {
        Projection::KeysOnly => ProjectionType::KeysOnly,
        Projection::All => ProjectionType::All,
    };
    SdkProjection::builder().projection_type(kind).build()
}

/// A part of a request, which the SDK refuses to build only if a field is left out.
pub(super) fn built<T>(part: Result<T, BuildError>) -> Result<T> {
    part.map_err(|error| Error::invalid("a part of the request is missing").because(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TableSpec {
        TableSpec::new("rows", KeyAttribute::text("pk")).with_index(IndexSpec {
            name: "by-owner".into(),
            hash: KeyAttribute::text("owner"),
            range: None,
            projection: Projection::All,
        })
    }

    fn described() -> Described {
        Described { spec: spec(), state: State::Usable, building: vec![], replicas: vec![], throughput: None }
    }

    #[track_caller]
    fn check(described: Option<Described>, expected: &str) {
        let asked = spec();
        let step = match next_step(described.as_ref(), &asked) {
            Ok(Step::Create) => "create".to_owned(),
            Ok(Step::Wait(why)) => format!("wait: {why}"),
            Ok(Step::AddIndex(index, _)) => format!("add {}", index.name),
            Ok(Step::Done) => "done".to_owned(),
            Err(error) => error.chain(),
        };
        assert!(step.starts_with(expected), "{step}");
    }

    #[test]
    fn one_step_at_a_time() {
        check(None, "create");
        check(Some(Described { state: State::Creating, ..described() }), "wait: the table is being made");
        check(Some(Described { state: State::Deleting, ..described() }), "wait: an older table");
        check(Some(Described { state: State::Stuck, ..described() }), "table `rows` cannot be used");
        let bare = TableSpec::new("rows", KeyAttribute::text("pk"));
        check(Some(Described { spec: bare, ..described() }), "add by-owner");
        check(Some(Described { building: vec!["by-owner".into()], ..described() }), "wait: an index");
        check(Some(Described { building: vec!["another".into()], ..described() }), "done");
        let other = TableSpec::new("rows", KeyAttribute::number("pk"));
        check(
            Some(Described { spec: other, state: State::Creating, ..described() }),
            "table `rows` exists with the key",
        );
    }
}
