//! What DynamoDB says of a table, in our terms. Pure.

use std::collections::HashMap;

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, IndexStatus, KeySchemaElement, KeyType as SdkKeyType, ProjectionType,
    ScalarAttributeType, TableDescription, TableStatus,
};
use tenure_backend::{Error, Kind, Result};

use crate::{IndexSpec, KeyAttribute, KeyType, Projection, TableSpec};

/// A table as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Described {
    /// Its shape, without the TTL, which is another call's answer.
    pub(super) spec: TableSpec,
    pub(super) state: State,
    /// The indexes that cannot be asked yet.
    pub(super) building: Vec<String>,
    /// Other regions that hold the table too.
    pub(super) replicas: Vec<String>,
    /// Read and write units, if the table is not on demand.
    pub(super) throughput: Option<(i64, i64)>,
}

/// Whether a table can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Usable,
    /// Usable, and being changed.
    Changing,
    Creating,
    Deleting,
    /// It will stay out of reach until a person acts.
    Stuck,
}

impl Described {
    /// # Errors
    /// `Corrupt` if the description lacks what every table has.
    pub(super) fn of(name: &str, table: &TableDescription) -> Result<Self> {
        let lacking = |what: &str| {
            Error::new(Kind::Corrupt, format!("DynamoDB describes table `{name}` without {what}"))
        };
        let kinds = kinds_of(table.attribute_definitions());
        let key = |schema: &[KeySchemaElement]| {
            let part = |wanted: SdkKeyType| {
                let element = schema.iter().find(|element| element.key_type == wanted)?;
                let kind = *kinds.get(element.attribute_name.as_str())?;
                Some(KeyAttribute { name: element.attribute_name.clone(), kind })
            };
            let hash = part(SdkKeyType::Hash).ok_or_else(|| lacking("a hash key"))?;
            Ok::<_, Error>((hash, part(SdkKeyType::Range)))
        };
        let (hash, range) = key(table.key_schema())?;
        let mut spec = TableSpec { name: name.to_owned(), hash, range, ttl: None, indexes: Vec::new() };
        let mut building = Vec::new();
        for index in table.global_secondary_indexes() {
            let index_name = index.index_name().ok_or_else(|| lacking("an index's name"))?;
            let (hash, range) = key(index.key_schema())?;
            let all = index.projection().and_then(|p| p.projection_type()) == Some(&ProjectionType::All);
            let projection = if all { Projection::All } else { Projection::KeysOnly };
            spec.indexes.push(IndexSpec { name: index_name.to_owned(), hash, range, projection });
            if matches!(index.index_status(), Some(IndexStatus::Creating | IndexStatus::Deleting)) {
                building.push(index_name.to_owned());
            }
        }
        let state = match table.table_status() {
            // Emulators may leave it out.
            None | Some(TableStatus::Active) => State::Usable,
            Some(TableStatus::Updating) => State::Changing,
            Some(TableStatus::Creating) => State::Creating,
            Some(TableStatus::Deleting) => State::Deleting,
            Some(_) => State::Stuck,
        };
        let on_demand = table.billing_mode_summary().and_then(|summary| summary.billing_mode())
            == Some(&BillingMode::PayPerRequest);
        let units = table
            .provisioned_throughput()
            .and_then(|t| t.read_capacity_units().zip(t.write_capacity_units()));
        let throughput = units.filter(|(read, write)| !on_demand && *read > 0 && *write > 0);
        let replicas = table.replicas().iter();
        let replicas =
            replicas.map(|replica| replica.region_name().unwrap_or("unnamed").to_owned()).collect();
        Ok(Self { spec, state, building, replicas, throughput })
    }

    /// Refuses a table that lives in several regions, unless its user said that only this one writes.
    ///
    /// # Errors
    /// `Invalid`, with the reason.
    pub(super) fn refuse_global(&self, region: &str, pinned: Option<&str>) -> Result<()> {
        if self.replicas.is_empty() || pinned == Some(region) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "table `{}` is a global table (also in {}): each region judges conditions by its own copy, so two \
             regions can both win one conditional write; use a table of one region, or add \
             `pinned_region={region}` if every writer uses {region}",
            self.spec.name,
            self.replicas.join(", ")
        )))
    }

    /// The first index that is asked for and not there.
    ///
    /// # Errors
    /// `Invalid` if one of that name has another key.
    pub(super) fn missing_index<'a>(&self, asked: &'a TableSpec) -> Result<Option<&'a IndexSpec>> {
        for index in &asked.indexes {
            match self.spec.indexes.iter().find(|found| found.name == index.name) {
                None => return Ok(Some(index)),
                Some(found) if found.hash != index.hash || found.range != index.range => {
                    return Err(Error::invalid(format!(
                        "index `{}` of table `{}` exists with another key: choose another index name",
                        index.name, asked.name
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(None)
    }
}

fn kinds_of(definitions: &[AttributeDefinition]) -> HashMap<&str, KeyType> {
    let kind = |kind: &ScalarAttributeType| match kind {
        ScalarAttributeType::S => Some(KeyType::S),
        ScalarAttributeType::N => Some(KeyType::N),
        ScalarAttributeType::B => Some(KeyType::B),
        _ => None,
    };
    definitions
        .iter()
        .filter_map(|definition| {
            Some((definition.attribute_name.as_str(), kind(&definition.attribute_type)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use aws_sdk_dynamodb::types::{
        GlobalSecondaryIndexDescription, Projection as SdkProjection, ReplicaDescription,
    };

    use super::*;

    fn table() -> aws_sdk_dynamodb::types::builders::TableDescriptionBuilder {
        let define = |name: &str, kind| {
            AttributeDefinition::builder().attribute_name(name).attribute_type(kind).build().unwrap()
        };
        let part = |name: &str, kind| {
            KeySchemaElement::builder().attribute_name(name).key_type(kind).build().unwrap()
        };
        TableDescription::builder()
            .attribute_definitions(define("pk", ScalarAttributeType::S))
            .attribute_definitions(define("at", ScalarAttributeType::N))
            .key_schema(part("pk", SdkKeyType::Hash))
            .key_schema(part("at", SdkKeyType::Range))
            .global_secondary_indexes(
                GlobalSecondaryIndexDescription::builder()
                    .index_name("by-at")
                    .key_schema(part("at", SdkKeyType::Hash))
                    .projection(SdkProjection::builder().projection_type(ProjectionType::KeysOnly).build())
                    .index_status(IndexStatus::Creating)
                    .build(),
            )
            .table_status(TableStatus::Updating)
    }

    fn index(hash: KeyAttribute) -> IndexSpec {
        IndexSpec { name: "by-at".into(), hash, range: None, projection: Projection::KeysOnly }
    }

    fn spec() -> TableSpec {
        TableSpec::new("rows", KeyAttribute::text("pk")).with_range(KeyAttribute::number("at"))
    }

    #[test]
    fn a_description_becomes_a_spec() {
        let described = Described::of("rows", &table().build()).unwrap();
        let expected = Described {
            spec: spec().with_index(index(KeyAttribute::number("at"))),
            state: State::Changing,
            building: vec!["by-at".into()],
            replicas: vec![],
            throughput: None,
        };
        assert_eq!(described, expected);
        let empty = Described::of("rows", &TableDescription::builder().build()).unwrap_err();
        assert_eq!(empty.kind(), Kind::Corrupt);
    }

    #[test]
    fn a_global_table_is_refused_unless_one_region_writes_it() {
        let replica = ReplicaDescription::builder().region_name("us-west-2").build();
        let global = Described::of("rows", &table().replicas(replica).build()).unwrap();
        let refused = global.refuse_global("eu-west-1", None).unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid);
        assert!(refused.chain().contains("both win one conditional write"), "{refused:?}");
        assert!(refused.chain().contains("pinned_region=eu-west-1"), "{refused:?}");
        assert!(global.refuse_global("eu-west-1", Some("us-west-2")).is_err());
        global.refuse_global("eu-west-1", Some("eu-west-1")).unwrap();
        Described::of("rows", &table().build()).unwrap().refuse_global("eu-west-1", None).unwrap();
    }

    #[test]
    fn an_index_is_missing_there_or_another() {
        let described = Described::of("rows", &table().build()).unwrap();
        assert_eq!(described.missing_index(&spec()).unwrap(), None);
        let asked = spec().with_index(index(KeyAttribute::number("at")));
        assert_eq!(described.missing_index(&asked).unwrap(), None);
        assert!(described.missing_index(&spec().with_index(index(KeyAttribute::text("at")))).is_err());
        let more = IndexSpec { name: "more".into(), ..index(KeyAttribute::text("x")) };
        assert_eq!(described.missing_index(&spec().with_index(more.clone())).unwrap(), Some(&more));
    }
}
