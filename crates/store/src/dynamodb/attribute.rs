//! Items as the SDK's attribute values, and back. Numbers travel as text, never through a float.

use std::collections::HashMap;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use tenure_backend::{Error, Kind, Result};

use crate::{Item, Value};

/// An item as the SDK wants it.
pub(super) fn from_item(item: &Item) -> HashMap<String, AttributeValue> {
    item.iter().map(|(name, value)| (name.clone(), from_value(value))).collect()
}

/// An item as the SDK gave it.
///
/// # Errors
/// `Corrupt` if a value is of a type that this version does not know.
pub(super) fn to_item(attributes: HashMap<String, AttributeValue>) -> Result<Item> {
    attributes
        .into_iter()
        .map(|(name, value)| {
            let value = to_value(value).map_err(|error| error.during(format!("attribute `{name}`")))?;
            Ok((name, value))
        })
        .collect()
}

pub(super) fn from_value(value: &Value) -> AttributeValue {
    match value {
        Value::S(text) => AttributeValue::S(text.clone()),
        Value::N(number) => AttributeValue::N(number.to_string()),
        Value::B(bytes) => AttributeValue::B(Blob::new(bytes.clone())),
        Value::Bool(value) => AttributeValue::Bool(*value),
        Value::Null => AttributeValue::Null(true),
        Value::L(values) => AttributeValue::L(values.iter().map(from_value).collect()),
        Value::M(entries) => {
            AttributeValue::M(entries.iter().map(|(name, value)| (name.clone(), from_value(value))).collect())
        }
        Value::Ss(set) => AttributeValue::Ss(set.iter().cloned().collect()),
        Value::Ns(set) => AttributeValue::Ns(set.iter().map(ToString::to_string).collect()),
        Value::Bs(set) => AttributeValue::Bs(set.iter().cloned().map(Blob::new).collect()),
    }
}

fn to_value(value: AttributeValue) -> Result<Value> {
    let number = |text: String| {
        text.parse().map_err(|error: Error| {
            Error::new(Kind::Corrupt, "DynamoDB gave a number that does not read").because(error.chain())
        })
    };
    Ok(match value {
        AttributeValue::S(text) => Value::S(text),
        AttributeValue::N(text) => Value::N(number(text)?),
        AttributeValue::B(blob) => Value::B(blob.into_inner()),
        AttributeValue::Bool(value) => Value::Bool(value),
        AttributeValue::Null(_) => Value::Null,
        AttributeValue::L(values) => Value::L(values.into_iter().map(to_value).collect::<Result<_>>()?),
        AttributeValue::M(entries) => Value::M(
            entries.into_iter().map(|(name, value)| Ok((name, to_value(value)?))).collect::<Result<_>>()?,
        ),
        AttributeValue::Ss(set) => Value::Ss(set.into_iter().collect()),
        AttributeValue::Ns(set) => Value::Ns(set.into_iter().map(number).collect::<Result<_>>()?),
        AttributeValue::Bs(set) => Value::Bs(set.into_iter().map(Blob::into_inner).collect()),
        other => {
            return Err(Error::new(
                Kind::Corrupt,
                "DynamoDB gave a value of a type that this version of Tenure does not know: update Tenure",
            )
            .because(format!("{other:?}")));
        }
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
            prop_assert_eq!(to_item(from_item(&item)).unwrap(), item);
        }
    }

    #[test]
    fn dynamodbs_own_way_to_write_numbers_reads() {
        let read = |text: &str| to_value(AttributeValue::N(text.to_owned()));
        assert_eq!(read("1E+125").unwrap(), Value::N("1e125".parse().unwrap()));
        assert_eq!(read("0.50").unwrap(), Value::N("0.5".parse().unwrap()));
        assert_eq!(read("many").unwrap_err().kind(), Kind::Corrupt);
    }
}
