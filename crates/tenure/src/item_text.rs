//! Rows as people write and read them: DynamoDB's JSON, or plain JSON.
//!
//! | plain | typed |
//! |---|---|
//! | `"text"` | `{"S":"text"}` |
//! | `1.50` | `{"N":"1.50"}` |
//! | `true`, `null` | `{"BOOL":true}`, `{"NULL":true}` |
//! | `[…]`, `{…}` | `{"L":[…]}`, `{"M":{…}}` |
//!
//! A number is read from its digits and written as its digits; it never passes through a float.
//! Plain JSON has no sets and bytes: they are shown as lists and as base64.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use tenure_store::{Item, Value, codec};

use crate::failure::misuse;

/// How a row is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum Form {
    /// DynamoDB's JSON if every attribute reads as such, plain JSON if none does.
    #[default]
    Auto,
    /// Plain JSON.
    Plain,
    /// DynamoDB's JSON.
    Typed,
}

/// The types of DynamoDB's JSON.
const TYPES: [&str; 10] = ["S", "N", "B", "BOOL", "NULL", "L", "M", "SS", "NS", "BS"];
/// Deepest nesting that is read: twice what a row may have, so that the store's own message is seen.
const DEPTH_MAX: usize = 64;

/// Reads a row.
///
/// # Errors
/// A misuse that names the attribute and what to do.
pub(crate) fn parse(text: &str, form: Form) -> anyhow::Result<Item> {
    let attributes: Entries = serde_json::from_str(text).map_err(|error| {
        misuse(format!(r#"the row is not a JSON object like {{"pk":"a","n":1}}: {error}"#))
    })?;
    let typed = match form {
        Form::Typed => true,
        Form::Plain => false,
        Form::Auto => looks_typed(&attributes)?,
    };
    let mut item = Item::new();
    for (name, raw) in &attributes.0 {
        let value = if typed { typed_value(raw) } else { plain_value(raw, 1) };
        item.set(name, value.map_err(|message| misuse(format!("attribute `{name}`: {message}")))?);
    }
    Ok(item)
}

fn looks_typed(attributes: &Entries) -> anyhow::Result<bool> {
    let is_typed = |raw: &RawValue| {
        let entries: Result<Entries, _> = serde_json::from_str(raw.get());
        entries.is_ok_and(|entries| matches!(&entries.0[..], [(name, _)] if TYPES.contains(&name.as_str())))
    };
    let (typed, plain): (Vec<_>, Vec<_>) = attributes.0.iter().partition(|(_, raw)| is_typed(raw));
    if let (Some((typed, _)), Some((plain, _))) = (typed.first(), plain.first()) {
        return Err(misuse(format!(
            "attribute `{typed}` reads as DynamoDB's JSON and `{plain}` as plain JSON: use one form, \
             or say which with --format"
        )));
    }
    Ok(plain.is_empty() && !typed.is_empty())
}

fn typed_value(raw: &RawValue) -> Result<Value, String> {
    // Numbers are texts in this form, so nothing is lost on the way.
    let json = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
    codec::value_from_json(&json).map_err(|error| error.chain())
}

fn plain_value(raw: &RawValue, depth: usize) -> Result<Value, String> {
    if depth > DEPTH_MAX {
        return Err(format!("is nested more than {DEPTH_MAX} deep: store it as text"));
    }
    let text = raw.get().trim();
    let bad = |error: serde_json::Error| error.to_string();
    Ok(match text.as_bytes().first() {
        Some(b'"') => Value::S(serde_json::from_str(text).map_err(bad)?),
        Some(b't') => Value::Bool(true),
        Some(b'f') => Value::Bool(false),
        Some(b'n') => Value::Null,
        Some(b'[') => {
            let values: Vec<Box<RawValue>> = serde_json::from_str(text).map_err(bad)?;
            Value::L(values.iter().map(|value| plain_value(value, depth + 1)).collect::<Result<_, _>>()?)
        }
        Some(b'{') => {
            let Entries(entries) = serde_json::from_str(text).map_err(bad)?;
            let value = |(name, raw): (String, Box<RawValue>)| Ok((name, plain_value(&raw, depth + 1)?));
            Value::M(entries.into_iter().map(value).collect::<Result<_, String>>()?)
        }
        _ => Value::N(text.parse().map_err(|error: tenure_store::Error| error.chain())?),
    })
}

/// A word on the command line as a value: a number, `true`, `false` and `null` are what they look
/// like, anything else is text.
pub(crate) fn guessed_value(word: &str) -> Value {
    match word {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        "null" => Value::Null,
        _ => word.parse().map_or_else(|_| Value::S(word.to_owned()), Value::N),
    }
}

/// The entries of an object in their order, with the text of each value. A name that stands twice
/// is refused.
struct Entries(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reading;
        impl<'de> Visitor<'de> for Reading {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries: Vec<(String, Box<RawValue>)> = Vec::new();
                let mut names = std::collections::BTreeSet::new();
                while let Some((name, value)) = map.next_entry::<String, Box<RawValue>>()? {
                    if !names.insert(name.clone()) {
                        return Err(serde::de::Error::custom(format!("`{name}` stands twice: keep one")));
                    }
                    entries.push((name, value));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(Reading)
    }
}

// === Showing ===

/// A row in the form asked for, as a part of a JSON line.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Shown(Box<RawValue>);

/// A row as DynamoDB's JSON, or as plain JSON.
pub(crate) fn shown(item: &Item, plain: bool) -> Shown {
    let text = if plain { plain_text(item) } else { codec::item_to_json(item).to_string() };
    Shown(RawValue::from_string(text).expect("JSON of our own making"))
}

/// A row as one line of plain JSON.
pub(crate) fn plain_text(item: &Item) -> String {
    let mut text = String::new();
    write_entries(&mut text, item.iter());
    text
}

/// A value as plain JSON.
pub(crate) fn plain_value_text(value: &Value) -> String {
    let mut text = String::new();
    write_plain(&mut text, value);
    text
}

fn write_plain(text: &mut String, value: &Value) {
    match value {
        Value::S(value) => write_text(text, value),
        Value::N(number) => text.push_str(&number.to_string()),
        Value::B(bytes) => write_text(text, &STANDARD.encode(bytes)),
        Value::Bool(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Null => text.push_str("null"),
        Value::L(values) => write_list(text, values.iter(), write_plain),
        Value::M(entries) => write_entries(text, entries.iter()),
        Value::Ss(set) => write_list(text, set.iter(), |text, value| write_text(text, value)),
        Value::Ns(set) => write_list(text, set.iter(), |text, value| text.push_str(&value.to_string())),
        Value::Bs(set) => {
            write_list(text, set.iter(), |text, value| write_text(text, &STANDARD.encode(value)))
        }
    }
}

fn write_text(text: &mut String, value: &str) {
    text.push_str(&serde_json::Value::from(value).to_string());
}

fn write_list<T>(text: &mut String, values: impl Iterator<Item = T>, write: impl Fn(&mut String, T)) {
    text.push('[');
    for (index, value) in values.enumerate() {
        if index > 0 {
            text.push(',');
        }
        write(text, value);
    }
    text.push(']');
}

fn write_entries<'a>(text: &mut String, entries: impl Iterator<Item = (&'a String, &'a Value)>) {
    text.push('{');
    for (index, (name, value)) in entries.enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_text(text, name);
        text.push(':');
        write_plain(text, value);
    }
    text.push('}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        parse(text, Form::Auto).unwrap_err().to_string()
    }

    #[test]
    fn both_forms_say_the_same() {
        let plain = r#"{"pk":"a","n":9007199254740993,"x":-1.50,"on":true,"none":null,"l":[1,"b"],"m":{"k":{"S":2}}}"#;
        let typed = r#"{"pk":{"S":"a"},"n":{"N":"9007199254740993"},"x":{"N":"-1.5"},"on":{"BOOL":true},"none":{"NULL":true},
            "l":{"L":[{"N":"1"},{"S":"b"}]},"m":{"M":{"k":{"M":{"S":{"N":"2"}}}}}}"#;
        let item = parse(plain, Form::Auto).unwrap();
        assert_eq!(item, parse(typed, Form::Auto).unwrap());
        assert_eq!(parse(&plain_text(&item), Form::Plain).unwrap(), item);
        let again = serde_json::to_string(&shown(&item, false)).unwrap();
        assert_eq!(parse(&again, Form::Typed).unwrap(), item);
    }

    #[test]
    fn digits_survive() {
        let digits = "12345678901234567890123456789012345678";
        let item = parse(&format!(r#"{{"n":{digits}}}"#), Form::Auto).unwrap();
        assert_eq!(plain_text(&item), format!(r#"{{"n":{digits}}}"#));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(refused("[1]").contains("not a JSON object"));
        assert!(refused(r#"{"pk":"a""#).contains("not a JSON object"));
        assert!(refused(r#"{"pk":"a","pk":"b"}"#).contains("`pk` stands twice"));
        assert!(refused(r#"{"pk":{"S":"a"},"n":1}"#).contains("--format"));
        assert!(refused(r#"{"pk":"a","n":1e126}"#).contains("attribute `n`"));
        assert!(refused(r#"{"pk":{"N":"x"}}"#).contains("attribute `pk`: `x` is not a number"));
        let deep = format!(r#"{{"l":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(refused(&deep).contains("nested more than 64"));
    }

    #[test]
    fn a_map_with_the_name_of_a_type_can_be_meant() {
        let item = parse(r#"{"m":{"S":"x"}}"#, Form::Plain).unwrap();
        assert!(matches!(item.get("m"), Some(Value::M(_))));
    }

    #[test]
    fn words_are_what_they_look_like() {
        assert_eq!(guessed_value("5"), Value::from(5));
        assert_eq!(guessed_value("true"), Value::Bool(true));
        assert_eq!(guessed_value("5 apples"), Value::from("5 apples"));
    }
}
