//! Items and table descriptions as JSON text: what SQLite and Postgres keep.
//!
//! An item is written as DynamoDB's own JSON (`{"pk":{"S":"a"},"n":{"N":"1"}}`), so that it reads
//! the same wherever an operator looks. Numbers travel as text, never through a float.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value as Json, json};
use tenure_backend::{Error, Kind, Result};

use crate::item::{Item, Value};
use crate::table::{IndexSpec, KeyAttribute, KeyType, Projection, TableSpec};

/// An item as DynamoDB's JSON.
#[must_use]
pub fn item_to_json(item: &Item) -> Json {
    Json::Object(item.iter().map(|(name, value)| (name.clone(), value_to_json(value))).collect())
}

/// An item from DynamoDB's JSON.
///
/// # Errors
/// `Invalid`, naming the attribute that does not read.
pub fn item_from_json(json: &Json) -> Result<Item> {
    let Json::Object(attributes) = json else {
        return Err(Error::invalid(r#"an item is a JSON object like {"pk":{"S":"a"},"n":{"N":"1"}}"#));
    };
    attributes
        .iter()
        .map(|(name, value)| {
            let value =
                value_from_json(value).map_err(|error| error.during(format!("attribute `{name}`")))?;
            Ok((name.clone(), value))
        })
        .collect()
}

/// One value as DynamoDB's JSON, e.g. `{"N":"1"}`.
#[must_use]
pub fn value_to_json(value: &Value) -> Json {
    match value {
        Value::S(text) => json!({ "S": text }),
        Value::N(number) => json!({ "N": number.to_string() }),
        Value::B(bytes) => json!({ "B": STANDARD.encode(bytes) }),
        Value::Bool(value) => json!({ "BOOL": value }),
        Value::Null => json!({ "NULL": true }),
        Value::L(values) => json!({ "L": values.iter().map(value_to_json).collect::<Vec<_>>() }),
        Value::M(entries) => {
            let entries: Map<_, _> = entries.iter().map(|(k, v)| (k.clone(), value_to_json(v))).collect();
            json!({ "M": entries })
        }
        Value::Ss(set) => json!({ "SS": set }),
        Value::Ns(set) => json!({ "NS": set.iter().map(ToString::to_string).collect::<Vec<_>>() }),
        Value::Bs(set) => json!({ "BS": set.iter().map(|b| STANDARD.encode(b)).collect::<Vec<_>>() }),
    }
}

/// One value from DynamoDB's JSON.
///
/// # Errors
/// `Invalid` if it has no type or the type does not fit.
pub fn value_from_json(json: &Json) -> Result<Value> {
    let bad = || {
        Error::invalid(format!(
            r#"`{json}` is not a typed value like {{"S":"text"}}, {{"N":"1"}}, {{"BOOL":true}}"#
        ))
    };
    let (kind, inner) = match json.as_object() {
        Some(object) if object.len() == 1 => object.iter().next().ok_or_else(bad)?,
        _ => return Err(bad()),
    };
    let text = |json: &Json| json.as_str().map(str::to_owned).ok_or_else(bad);
    let bytes = |json: &Json| STANDARD.decode(json.as_str().ok_or_else(bad)?).map_err(|_| bad());
    let number = |json: &Json| json.as_str().ok_or_else(bad)?.parse();
    let list = || inner.as_array().ok_or_else(bad);
    Ok(match kind.as_str() {
        "S" => Value::S(text(inner)?),
        "N" => Value::N(number(inner)?),
        "B" => Value::B(bytes(inner)?),
        "BOOL" => Value::Bool(inner.as_bool().ok_or_else(bad)?),
        "NULL" if inner == &Json::Bool(true) => Value::Null,
        "L" => Value::L(list()?.iter().map(value_from_json).collect::<Result<_>>()?),
        "M" => Value::M(
            inner
                .as_object()
                .ok_or_else(bad)?
                .iter()
                .map(|(name, value)| Ok((name.clone(), value_from_json(value)?)))
                .collect::<Result<_>>()?,
        ),
        "SS" => Value::Ss(list()?.iter().map(text).collect::<Result<_>>()?),
        "NS" => Value::Ns(list()?.iter().map(number).collect::<Result<_>>()?),
        "BS" => Value::Bs(list()?.iter().map(bytes).collect::<Result<_>>()?),
        _ => return Err(bad()),
    })
}

/// An item as kept text.
#[cfg(any(feature = "sqlite", feature = "postgres", test))]
#[must_use]
pub(crate) fn item_to_text(item: &Item) -> String {
    item_to_json(item).to_string()
}

/// An item from kept text: what we wrote ourselves, so a failure means damage.
#[cfg(any(feature = "sqlite", feature = "postgres", test))]
pub(crate) fn item_from_text(text: &str) -> Result<Item> {
    let damaged = |why: String| Error::new(Kind::Corrupt, "a stored row does not read").because(why);
    let json: Json = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    item_from_json(&json).map_err(|error| damaged(error.chain()))
}

/// The version of the description's format, kept with it.
const SPEC_FORMAT: u64 = 1;

/// A table's description as kept text.
#[must_use]
pub fn spec_to_text(spec: &TableSpec) -> String {
    let key = |attribute: &KeyAttribute| json!({ "name": attribute.name, "type": attribute.kind.name() });
    json!({
        "format": SPEC_FORMAT,
        "name": spec.name,
        "hash": key(&spec.hash),
        "range": spec.range.as_ref().map(key),
        "ttl": spec.ttl,
        "indexes": spec.indexes.iter().map(|index| json!({
            "name": index.name,
            "hash": key(&index.hash),
            "range": index.range.as_ref().map(key),
            "projection": match index.projection { Projection::KeysOnly => "keys", Projection::All => "all" },
        })).collect::<Vec<_>>(),
    })
    .to_string()
}

/// A table's description from kept text.
///
/// # Errors
/// `Corrupt` if it does not read.
pub fn spec_from_text(text: &str) -> Result<TableSpec> {
    let damaged = || Error::new(Kind::Corrupt, format!("a stored table description does not read: {text}"));
    let json: Json = serde_json::from_str(text).map_err(|_| damaged())?;
    let word = |json: &Json, name: &str| json[name].as_str().map(str::to_owned).ok_or_else(damaged);
    let key = |json: &Json| {
        let kind = match json["type"].as_str() {
            Some("S") => KeyType::S,
            Some("N") => KeyType::N,
            Some("B") => KeyType::B,
            _ => return Err(damaged()),
        };
        Ok(KeyAttribute { name: word(json, "name")?, kind })
    };
    let optional_key = |json: &Json| if json.is_null() { Ok(None) } else { key(json).map(Some) };
    if json["format"] != SPEC_FORMAT {
        return Err(damaged());
    }
    let indexes = json["indexes"].as_array().ok_or_else(damaged)?.iter().map(|index| {
        Ok(IndexSpec {
            name: word(index, "name")?,
            hash: key(&index["hash"])?,
            range: optional_key(&index["range"])?,
            projection: match index["projection"].as_str() {
                Some("keys") => Projection::KeysOnly,
                Some("all") => Projection::All,
                _ => return Err(damaged()),
            },
        })
    });
    Ok(TableSpec {
        name: word(&json, "name")?,
        hash: key(&json["hash"])?,
        range: optional_key(&json["range"])?,
        ttl: json["ttl"].as_str().map(str::to_owned),
        indexes: indexes.collect::<Result<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_item;

    proptest! {
        #[test]
        fn items_round_trip(item in any_item()) {
            prop_assert_eq!(item_from_text(&item_to_text(&item)).unwrap(), item);
        }
    }

    #[test]
    fn specs_round_trip_and_old_text_still_reads() {
        let spec =
            TableSpec::new("leases", KeyAttribute::text("leaseKey")).with_ttl("ttl").with_index(IndexSpec {
                name: "LeaseOwnerToLeaseKeyIndex".into(),
                hash: KeyAttribute::text("leaseOwner"),
                range: Some(KeyAttribute::text("leaseKey")),
                projection: Projection::KeysOnly,
            });
        assert_eq!(spec_from_text(&spec_to_text(&spec)).unwrap(), spec);
        let old = r#"{"format":1,"hash":{"name":"pk","type":"S"},"indexes":[],"name":"abc","range":{"name":"sk","type":"N"},"ttl":null}"#;
        let read = spec_from_text(old).unwrap();
        assert_eq!(
            read,
            TableSpec::new("abc", KeyAttribute::text("pk")).with_range(KeyAttribute::number("sk"))
        );
    }

    #[test]
    fn wrong_json_is_named() {
        let refused = |text: &str| item_from_json(&serde_json::from_str(text).unwrap()).unwrap_err().chain();
        assert!(refused("[]").contains("an item is a JSON object"));
        assert!(refused(r#"{"a":1}"#).contains("attribute `a`: `1` is not a typed value"));
        assert!(refused(r#"{"a":{"N":1}}"#).contains("not a typed value"));
        assert!(refused(r#"{"a":{"N":"x"}}"#).contains("`x` is not a number"));
        assert_eq!(item_from_text("{").unwrap_err().kind(), Kind::Corrupt);
    }
}
