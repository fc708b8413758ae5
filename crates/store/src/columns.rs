//! Reads a row's columns by the types they should have.
//!
//! A column that is missing is no problem here: only its reader knows whether it must be there. A column of
//! another type is one, and the sentence says which: whoever reads the row puts the row's name before it.

use std::collections::BTreeMap;

use crate::{Item, Value};

/// What is wrong with a row: `has …`, to stand after the row's name.
pub type Problem = String;

/// A text.
///
/// # Errors
/// If it is of another type.
pub fn text<'a>(item: &'a Item, name: &str) -> Result<Option<&'a str>, Problem> {
    match item.get(name) {
        None => Ok(None),
        Some(Value::S(text)) => Ok(Some(text)),
        Some(other) => Err(mistyped(name, "S", other)),
    }
}

/// A map.
///
/// # Errors
/// If it is of another type.
pub fn map<'a>(item: &'a Item, name: &str) -> Result<Option<&'a BTreeMap<String, Value>>, Problem> {
    match item.get(name) {
        None => Ok(None),
        Some(Value::M(map)) => Ok(Some(map)),
        Some(other) => Err(mistyped(name, "M", other)),
    }
}

/// A whole number.
///
/// # Errors
/// If it is of another type, a fraction, or beyond 64 bits.
pub fn integer(item: &Item, name: &str) -> Result<Option<i64>, Problem> {
    match item.get(name) {
        None => Ok(None),
        Some(value @ Value::N(number)) => match value.as_i64() {
            Some(integer) => Ok(Some(integer)),
            None => Err(format!("has `{name}` {number}, which is not a whole number in range")),
        },
        Some(other) => Err(mistyped(name, "N", other)),
    }
}

/// A whole number that is not below zero.
///
/// # Errors
/// As [`integer`], or if it is below zero.
pub fn whole(item: &Item, name: &str) -> Result<Option<u64>, Problem> {
    integer(item, name)?
        .map(|integer| u64::try_from(integer).map_err(|_| format!("has `{name}` {integer}, below zero")))
        .transpose()
}

/// Says that a column is of another type than `wanted`, by the types' short names: `S`, `N`, `M`.
#[must_use]
pub fn mistyped(name: &str, wanted: &str, found: &Value) -> Problem {
    format!("has `{name}` of type {}, not {wanted}", found.type_name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_column_is_nothing() {
        let item = Item::new();
        assert_eq!(
            (text(&item, "a"), integer(&item, "a"), whole(&item, "a")),
            (Ok(None), Ok(None), Ok(None))
        );
        assert_eq!(map(&item, "a"), Ok(None));
    }

    #[test]
    fn a_column_of_another_type_is_told() {
        let item = Item::new().with("n", -7).with("s", "seven");
        assert_eq!(text(&item, "n").unwrap_err(), "has `n` of type N, not S");
        assert_eq!(map(&item, "s").unwrap_err(), "has `s` of type S, not M");
        assert_eq!(integer(&item, "s").unwrap_err(), "has `s` of type S, not N");
        assert_eq!(integer(&item, "n"), Ok(Some(-7)));
        assert_eq!(whole(&item, "n").unwrap_err(), "has `n` -7, below zero");
    }
}
