//! Attributes on the command line: `pk=a`, or with a type `pk:N=5`.

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tenure_backend::nearest;
use tenure_store::{Condition, IndexSpec, Item, Key, KeyAttribute, KeyType, Projection, TableSpec, Value};

use crate::failure::misuse;
use crate::item_text::guessed_value;

/// An attribute's name and value as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attribute {
    name: String,
    kind: Option<Type>,
    text: String,
}

/// The types that fit on a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    S,
    N,
    B,
    Bool,
    Null,
}

const TYPES: [(&str, Type); 5] =
    [("S", Type::S), ("N", Type::N), ("B", Type::B), ("BOOL", Type::Bool), ("NULL", Type::Null)];

impl FromStr for Attribute {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((left, value)) = text.split_once('=') else {
            return Err(format!(
                "`{text}` has no value: write name=value, or name:TYPE=value as in count:N=5"
            ));
        };
        let (name, kind) = match left.rsplit_once(':') {
            None => (left, None),
            Some((name, word)) => match TYPES.iter().find(|(known, _)| *known == word) {
                Some((_, kind)) => (name, Some(*kind)),
                None => return Err(unknown_type(word)),
            },
        };
        if name.is_empty() {
            return Err(format!("`{text}` has no name: write name=value"));
        }
        Ok(Self { name: name.to_owned(), kind, text: value.to_owned() })
    }
}

fn unknown_type(word: &str) -> String {
    let hint = nearest(&word.to_uppercase(), TYPES.iter().map(|(name, _)| *name))
        .map(|name| format!(" did you mean `{name}`?"))
        .unwrap_or_default();
    let known = TYPES.map(|(name, _)| name).join(", ");
    format!("`{word}` is not a type:{hint} (known: {known}; a name with a colon needs one, as in a:b:S=x)")
}

impl Attribute {
    /// The value by its written type, or else by the type that the table gives the attribute, or else
    /// by its looks.
    fn value(&self, of_table: Option<KeyType>) -> anyhow::Result<Value> {
        let kind = self.kind.or(match of_table {
            Some(KeyType::S) => Some(Type::S),
            Some(KeyType::N) => Some(Type::N),
            Some(KeyType::B) => Some(Type::B),
            None => None,
        });
        let Self { name, text, .. } = self;
        let bad = |expected: &str| misuse(format!("attribute `{name}`: `{text}` is not {expected}"));
        Ok(match kind {
            None => guessed_value(text),
            Some(Type::S) => Value::S(text.clone()),
            Some(Type::N) => Value::N(text.parse().map_err(|error: tenure_store::Error| {
                misuse(format!("attribute `{name}`: {}", error.chain()))
            })?),
            Some(Type::B) => Value::B(STANDARD.decode(text).map_err(|_| bad("base64"))?),
            Some(Type::Bool) => Value::Bool(text.parse().map_err(|_| bad("true or false"))?),
            Some(Type::Null) if text.is_empty() => Value::Null,
            Some(Type::Null) => return Err(bad("empty, as the value of a NULL is: write it as name:NULL=")),
        })
    }
}

/// The key that the words name, by the table's own types.
///
/// # Errors
/// A misuse if an attribute is not of the key or does not read.
pub(crate) fn key(spec: &TableSpec, words: &[Attribute]) -> anyhow::Result<Key> {
    let mut item = Item::new();
    for word in words {
        let kind = key_type(spec, &word.name).ok_or_else(|| not_of_the_key(spec, &word.name))?;
        if item.get(&word.name).is_some() {
            return Err(misuse(format!("key attribute `{}` is given twice: keep one", word.name)));
        }
        item.set(&word.name, word.value(Some(kind))?);
    }
    let key = Key::from_item(item);
    spec.check_key(&key).map_err(crate::failure::misuse_if_invalid)?;
    Ok(key)
}

fn key_type(spec: &TableSpec, name: &str) -> Option<KeyType> {
    std::iter::once(&spec.hash).chain(&spec.range).find(|key| key.name == name).map(|key| key.kind)
}

fn not_of_the_key(spec: &TableSpec, name: &str) -> anyhow::Error {
    let known: Vec<_> = std::iter::once(&spec.hash).chain(&spec.range).map(|key| key.name.as_str()).collect();
    let hint = nearest(name, known.iter().copied())
        .map(|name| format!(" did you mean `{name}`?"))
        .unwrap_or_default();
    misuse(format!(
        "`{name}` is not of the key of table `{}`:{hint} (its key: {})",
        spec.name,
        known.join(", ")
    ))
}

/// What `--if` and `--if-absent` ask for: all of it.
///
/// # Errors
/// A misuse if a value does not read.
pub(crate) fn condition(spec: &TableSpec, absent: bool, equal: &[Attribute]) -> anyhow::Result<Condition> {
    let mut when = if absent { Condition::absent(&spec.hash.name) } else { Condition::Always };
    for word in equal {
        when = when.and(Condition::eq(&word.name, word.value(key_type(spec, &word.name))?));
    }
    Ok(when)
}

/// Reads `name` or `name:TYPE`, a key attribute of a new table; text if no type is given.
///
/// # Errors
/// A message that says what was expected.
pub(crate) fn key_attribute(text: &str) -> Result<KeyAttribute, String> {
    typed_name(text, ':')
}

/// Reads `INDEX:hash` or `INDEX:hash:range`, where an attribute with a type is written `name=N`.
///
/// # Errors
/// A message that says what was expected.
pub(crate) fn index(text: &str) -> Result<IndexSpec, String> {
    let parts: Vec<_> = text.split(':').collect();
    let (name, hash, range) = match parts[..] {
        [name, hash] => (name, hash, None),
        [name, hash, range] => (name, hash, Some(range)),
        _ => {
            return Err(format!(
                "`{text}` is not an index: write NAME:hash or NAME:hash:range, as in by_owner:owner:expires=N"
            ));
        }
    };
    Ok(IndexSpec {
        name: name.to_owned(),
        hash: typed_name(hash, '=')?,
        range: range.map(|range| typed_name(range, '=')).transpose()?,
        projection: Projection::All,
    })
}

fn typed_name(text: &str, separator: char) -> Result<KeyAttribute, String> {
    let (name, kind) = text.rsplit_once(separator).unwrap_or((text, "S"));
    if name.is_empty() {
        return Err(format!("`{text}` has no name: write name{separator}TYPE, as in id{separator}S"));
    }
    match kind {
        "S" => Ok(KeyAttribute::text(name)),
        "N" => Ok(KeyAttribute::number(name)),
        "B" => Ok(KeyAttribute::bytes(name)),
        _ => Err(format!("`{kind}` is not a type of a key: write S (text), N (number) or B (bytes)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TableSpec {
        TableSpec::new("tables", KeyAttribute::text("pk")).with_range(KeyAttribute::number("sk"))
    }

    fn words(text: &str) -> Vec<Attribute> {
        text.split(' ').map(|word| word.parse().unwrap()).collect()
    }

    #[test]
    fn a_key_has_the_types_of_its_table() {
        let expected = Key::new("pk", "5").and("sk", 7);
        assert_eq!(key(&spec(), &words("pk=5 sk=7")).unwrap(), expected);
        assert_eq!(key(&spec(), &words("sk:N=7.0 pk:S=5")).unwrap(), expected);
    }

    #[test]
    fn wrong_keys_are_told() {
        let refused = |text: &str| key(&spec(), &words(text)).unwrap_err().to_string();
        assert!(refused("pk=a sj=1").contains("did you mean `sk`"));
        assert!(refused("pk=a sk=x").contains("attribute `sk`: `x` is not a number"));
        assert!(refused("pk:N=5 sk=1").contains("`pk` of table `tables` is a S, not a N"));
        assert!(refused("pk=a").contains("`sk` is missing"));
        assert!(refused("pk=a pk=b").contains("given twice"));
        assert!("pk".parse::<Attribute>().unwrap_err().contains("name=value"));
        assert!("pk:n=5".parse::<Attribute>().unwrap_err().contains("did you mean `N`"));
        assert!("=5".parse::<Attribute>().unwrap_err().contains("no name"));
    }

    #[test]
    fn conditions_guess_what_is_no_key() {
        let of = |absent, text: &str| condition(&spec(), absent, &words(text)).unwrap();
        assert_eq!(of(false, "n=5"), Condition::eq("n", 5));
        assert_eq!(of(false, "n:S=5"), Condition::eq("n", "5"));
        assert_eq!(of(false, "pk=5"), Condition::eq("pk", "5"));
        assert_eq!(of(true, "on=true"), Condition::absent("pk").and(Condition::eq("on", true)));
    }

    #[test]
    fn indexes_are_read() {
        let found = index("by_owner:owner:expires=N").unwrap();
        assert_eq!((found.name.as_str(), found.hash), ("by_owner", KeyAttribute::text("owner")));
        assert_eq!(found.range, Some(KeyAttribute::number("expires")));
        assert!(index("x").is_err() && index("x:a=Q").is_err() && index("a:b:c:d").is_err());
        assert_eq!(key_attribute("pk:N"), Ok(KeyAttribute::number("pk")));
        assert_eq!(key_attribute("pk"), Ok(KeyAttribute::text("pk")));
    }
}
