//! What a table looks like, and which row an item is.

use tenure_backend::{Error, Result};

use crate::Query;
use crate::item::{Item, Key, Value};

/// DynamoDB's limits of a key's two parts, and of the names of key attributes.
const HASH_BYTES_MAX: usize = 2048;
const RANGE_BYTES_MAX: usize = 1024;
const KEY_NAME_BYTES_MAX: usize = 255;
/// DynamoDB's default limit of indexes on one table.
const INDEXES_MAX: usize = 20;

/// The types a key attribute may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// Text.
    S,
    /// Number.
    N,
    /// Bytes.
    B,
}

impl KeyType {
    /// DynamoDB's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::S => "S",
            Self::N => "N",
            Self::B => "B",
        }
    }

    const fn fits(self, value: &Value) -> bool {
        matches!((self, value), (Self::S, Value::S(_)) | (Self::N, Value::N(_)) | (Self::B, Value::B(_)))
    }
}

/// A key attribute's name and type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyAttribute {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: KeyType,
}

impl KeyAttribute {
    /// A text attribute.
    pub fn text(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: KeyType::S }
    }

    /// A number attribute.
    pub fn number(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: KeyType::N }
    }

    /// A bytes attribute.
    pub fn bytes(name: impl Into<String>) -> Self {
        Self { name: name.into(), kind: KeyType::B }
    }
}

/// What a query by an index shows of each row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Projection {
    /// The key attributes of the table and of the index.
    KeysOnly,
    /// Everything.
    All,
}

/// Another way to find rows. Rows without its attributes are not in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexSpec {
    /// Its name.
    pub name: String,
    /// What is asked for.
    pub hash: KeyAttribute,
    /// What the answer is sorted by.
    pub range: Option<KeyAttribute>,
    /// What the answer shows.
    pub projection: Projection,
}

/// A table: its name, key, TTL attribute and indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpec {
    /// 3 to 255 letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// What names a partition.
    pub hash: KeyAttribute,
    /// What sorts within a partition.
    pub range: Option<KeyAttribute>,
    /// The attribute that holds the epoch second after which a row may be swept away.
    pub ttl: Option<String>,
    /// Other ways to find rows.
    pub indexes: Vec<IndexSpec>,
}

impl TableSpec {
    /// A table with a hash key only.
    pub fn new(name: impl Into<String>, hash: KeyAttribute) -> Self {
        Self { name: name.into(), hash, range: None, ttl: None, indexes: Vec::new() }
    }

    /// With a range key.
    #[must_use]
    pub fn with_range(mut self, range: KeyAttribute) -> Self {
        self.range = Some(range);
        self
    }

    /// With a TTL attribute.
    #[must_use]
    pub fn with_ttl(mut self, attribute: impl Into<String>) -> Self {
        self.ttl = Some(attribute.into());
        self
    }

    /// With an index.
    #[must_use]
    pub fn with_index(mut self, index: IndexSpec) -> Self {
        self.indexes.push(index);
        self
    }

    /// Refuses names and shapes that DynamoDB would refuse.
    ///
    /// # Errors
    /// `Invalid`, naming the part.
    pub fn validate(&self) -> Result<()> {
        valid_table_name(&self.name)?;
        for (position, index) in self.indexes.iter().enumerate() {
            valid_table_name(&index.name)?;
            if self.indexes[..position].iter().any(|earlier| earlier.name == index.name) {
                return Err(Error::invalid(format!(
                    "table `{}` names index `{}` twice: keep one",
                    self.name, index.name
                )));
            }
        }
        if self.indexes.len() > INDEXES_MAX {
            return Err(Error::invalid(format!(
                "table `{}` has {} indexes: at most {INDEXES_MAX} are allowed",
                self.name,
                self.indexes.len()
            )));
        }
        let mut seen: Vec<&KeyAttribute> = Vec::new();
        for attribute in self.key_attributes() {
            if attribute.name.is_empty() || attribute.name.len() > KEY_NAME_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "key attribute name `{}` of table `{}` has {} bytes: give 1 to {KEY_NAME_BYTES_MAX}",
                    attribute.name,
                    self.name,
                    attribute.name.len()
                )));
            }
            if let Some(other) = seen.iter().find(|other| other.name == attribute.name)
                && other.kind != attribute.kind
            {
                return Err(Error::invalid(format!(
                    "key attribute `{}` of table `{}` has two types: choose one",
                    attribute.name, self.name
                )));
            }
            seen.push(attribute);
        }
        if self.range.as_ref().is_some_and(|range| range.name == self.hash.name) {
            return Err(Error::invalid(format!(
                "table `{}`: hash and range key are the same attribute",
                self.name
            )));
        }
        Ok(())
    }

    fn key_attributes(&self) -> impl Iterator<Item = &KeyAttribute> {
        let of_table = std::iter::once(&self.hash).chain(&self.range);
        of_table.chain(self.indexes.iter().flat_map(|index| std::iter::once(&index.hash).chain(&index.range)))
    }

    /// Whether a table that exists can serve where this one is asked for; what to do if not.
    ///
    /// # Errors
    /// `Invalid` if the keys, the TTL attribute or an index of the same name differ. What is missing may be
    /// added.
    pub fn check_same_key(&self, existing: &Self) -> Result<()> {
        if self.hash != existing.hash || self.range != existing.range {
            return Err(Error::invalid(format!(
                "table `{}` exists with the key {}, not {}: choose another table name",
                self.name,
                existing.shown_key(),
                self.shown_key()
            )));
        }
        for index in &self.indexes {
            if existing.indexes.iter().any(|found| found.name == index.name && found != index) {
                return Err(Error::invalid(format!(
                    "table `{}` has an index `{}` of another shape: choose another index name",
                    self.name, index.name
                )));
            }
        }
        match (&self.ttl, &existing.ttl) {
            (Some(asked), Some(found)) if asked != found => Err(Error::invalid(format!(
                "table `{}` has its TTL on `{found}`, not `{asked}`: choose another table name",
                self.name
            ))),
            _ => Ok(()),
        }
    }

    fn shown_key(&self) -> String {
        let shown = |attribute: &KeyAttribute| format!("{} {}", attribute.name, attribute.kind.name());
        std::iter::once(&self.hash).chain(&self.range).map(shown).collect::<Vec<_>>().join(" + ")
    }

    /// The index of that name.
    ///
    /// # Errors
    /// `Invalid` if there is none.
    pub fn index(&self, name: &str) -> Result<&IndexSpec> {
        self.indexes
            .iter()
            .find(|index| index.name == name)
            .ok_or_else(|| Error::invalid(format!("table `{}` has no index `{name}`", self.name)))
    }

    /// The key of an item of this table.
    ///
    /// # Errors
    /// `Invalid` if an attribute of the key is missing, of the wrong type, empty or too long.
    pub fn key_of(&self, item: &Item) -> Result<Key> {
        let hash = self.key_value(item, &self.hash, HASH_BYTES_MAX)?;
        let mut key = Key::new(self.hash.name.clone(), hash.clone());
        if let Some(range) = &self.range {
            key = key.and(range.name.clone(), self.key_value(item, range, RANGE_BYTES_MAX)?.clone());
        }
        Ok(key)
    }

    /// Checks a key that a caller made.
    ///
    /// # Errors
    /// As [`TableSpec::key_of`], and `Invalid` if there are more attributes than the key has.
    pub fn check_key(&self, key: &Key) -> Result<()> {
        let item = key.as_item();
        self.key_of(item)?;
        let expected = 1 + usize::from(self.range.is_some());
        if item.len() != expected {
            return Err(Error::invalid(format!(
                "key ({key}) of table `{}` has {} attributes: it has {expected} ({})",
                self.name,
                item.len(),
                self.shown_key()
            )));
        }
        Ok(())
    }

    /// Checks that index attributes have the types and sizes that indexes take.
    ///
    /// # Errors
    /// `Invalid` if one has not; DynamoDB refuses such a row too.
    pub fn check_index_attributes(&self, item: &Item) -> Result<()> {
        for index in &self.indexes {
            let hash = (&index.hash, HASH_BYTES_MAX);
            let range = index.range.as_ref().map(|range| (range, RANGE_BYTES_MAX));
            for (attribute, bytes_max) in std::iter::once(hash).chain(range) {
                let Some(value) = item.get(&attribute.name) else { continue };
                let refused = |why: String| {
                    Error::invalid(format!(
                        "attribute `{}` does not fit index `{}` of table `{}`: {why}",
                        attribute.name, index.name, self.name
                    ))
                };
                if !attribute.kind.fits(value) {
                    return Err(refused(format!(
                        "it is a {}, not a {}",
                        value.type_name(),
                        attribute.kind.name()
                    )));
                }
                let bytes = key_bytes(value);
                if bytes == 0 || bytes > bytes_max {
                    return Err(refused(format!("it has {bytes} bytes, give 1 to {bytes_max}")));
                }
            }
        }
        Ok(())
    }

    /// The key attributes of a row, and of an index if one is given: where a page ended.
    pub(crate) fn cursor_of(&self, item: &Item, index: Option<&IndexSpec>) -> Item {
        let of_table = std::iter::once(&self.hash).chain(&self.range);
        let of_index = index.into_iter().flat_map(|index| std::iter::once(&index.hash).chain(&index.range));
        of_table
            .chain(of_index)
            .filter_map(|attribute| Some((attribute.name.clone(), item.get(&attribute.name)?.clone())))
            .collect()
    }

    /// The sorted bytes of the partition that a query asks for.
    ///
    /// # Errors
    /// `Invalid` if the query does not name the hash attribute, or its value is of another type.
    pub(crate) fn partition_of(&self, query: &Query) -> Result<Vec<u8>> {
        let hash = match &query.index {
            None => &self.hash,
            Some(name) => &self.index(name)?.hash,
        };
        let asked = query.partition.as_item();
        if asked.len() != 1 || asked.get(&hash.name).is_none() {
            return Err(Error::invalid(format!(
                "query of table `{}` by ({}): ask by `{}`",
                self.name, query.partition, hash.name
            )));
        }
        self.key_value(asked, hash, HASH_BYTES_MAX).map(sorted_bytes)
    }

    fn key_value<'a>(&self, item: &'a Item, attribute: &KeyAttribute, bytes_max: usize) -> Result<&'a Value> {
        let KeyAttribute { name, kind } = attribute;
        let Some(value) = item.get(name) else {
            return Err(Error::invalid(format!(
                "key attribute `{name}` is missing: rows of table `{}` are named by {}",
                self.name,
                self.shown_key()
            )));
        };
        if !kind.fits(value) {
            return Err(Error::invalid(format!(
                "key attribute `{name}` of table `{}` is a {}, not a {}",
                self.name,
                kind.name(),
                value.type_name()
            )));
        }
        let bytes = key_bytes(value);
        if bytes == 0 || bytes > bytes_max {
            return Err(Error::invalid(format!(
                "key attribute `{name}` of table `{}` has {bytes} bytes: give 1 to {bytes_max}",
                self.name
            )));
        }
        Ok(value)
    }
}

/// An existing table's description with what `asked` adds: a TTL, and indexes it lacks.
///
/// # Errors
/// `Invalid` if the two together make no sense, such as one attribute of two types.
pub(crate) fn merged(existing: &TableSpec, asked: &TableSpec) -> Result<TableSpec> {
    let mut merged = existing.clone();
    merged.ttl = merged.ttl.or_else(|| asked.ttl.clone());
    for index in &asked.indexes {
        if !merged.indexes.iter().any(|found| found.name == index.name) {
            merged.indexes.push(index.clone());
        }
    }
    merged.validate()?;
    Ok(merged)
}

/// Where a row stands among the others, in bytes that sort as DynamoDB sorts.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SortedKey {
    /// The partition.
    pub hash: Vec<u8>,
    /// The place in it; empty if the table has no range key.
    pub range: Vec<u8>,
}

impl SortedKey {
    /// The place of a row of a table.
    #[must_use]
    pub(crate) fn of(spec: &TableSpec, key: &Key) -> Self {
        let part = |attribute: &KeyAttribute| key.as_item().get(&attribute.name).map(sorted_bytes);
        Self {
            hash: part(&spec.hash).unwrap_or_default(),
            range: spec.range.as_ref().and_then(part).unwrap_or_default(),
        }
    }

    /// The place of a row in an index, if the row is in it.
    #[must_use]
    pub(crate) fn in_index(index: &IndexSpec, item: &Item) -> Option<Self> {
        let part = |attribute: &KeyAttribute| {
            item.get(&attribute.name).filter(|value| attribute.kind.fits(value)).map(sorted_bytes)
        };
        Some(Self {
            hash: part(&index.hash)?,
            range: match &index.range {
                Some(range) => part(range)?,
                None => Vec::new(),
            },
        })
    }
}

/// How long a key attribute is, as far as its limit is concerned: numbers always fit.
const fn key_bytes(value: &Value) -> usize {
    match value {
        Value::S(text) => text.len(),
        Value::B(bytes) => bytes.len(),
        _ => 1,
    }
}

/// Bytes that sort as the values do: texts and bytes by their bytes, numbers by their value.
#[must_use]
pub(crate) fn sorted_bytes(value: &Value) -> Vec<u8> {
    match value {
        Value::S(text) => text.as_bytes().to_vec(),
        Value::B(bytes) => bytes.clone(),
        Value::N(number) => number.sort_key().to_vec(),
        // Not a key type; refused before a row gets here.
        _ => Vec::new(),
    }
}

/// Checks a table's or index's name.
///
/// # Errors
/// `Invalid`, with the rule.
pub(crate) fn valid_table_name(name: &str) -> Result<()> {
    let fits = (3..=255).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if fits {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "name `{name}` is not valid: give 3 to 255 letters, digits, `_`, `-` and `.`"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> TableSpec {
        TableSpec::new("locks", KeyAttribute::text("pk")).with_range(KeyAttribute::number("at"))
    }

    #[test]
    fn keys_are_checked_by_name_type_and_size() {
        let spec = spec();
        let refused = |item: Item| spec.key_of(&item).unwrap_err().chain();
        assert!(
            refused(Item::new()).contains("`pk` is missing: rows of table `locks` are named by pk S + at N")
        );
        assert!(
            refused(Item::new().with("pk", 1).with("at", 1))
                .contains("`pk` of table `locks` is a S, not a N")
        );
        assert!(refused(Item::new().with("pk", "").with("at", 1)).contains("give 1 to 2048"));
        assert!(refused(Item::new().with("pk", "x".repeat(2049)).with("at", 1)).contains("2049 bytes"));
        let extra = Key::new("pk", "a").and("at", 1).and("more", 2);
        assert!(spec.check_key(&extra).unwrap_err().chain().contains("has 3 attributes: it has 2"));
        spec.check_key(&Key::new("pk", "a").and("at", 1)).unwrap();
    }

    #[test]
    fn names_are_dynamodbs() {
        for name in ["abc", "a-b_c.D9", &"x".repeat(255)] {
            valid_table_name(name).unwrap();
        }
        for name in ["", "ab", "a b c", "käse", &"x".repeat(256)] {
            assert!(valid_table_name(name).is_err(), "{name}");
        }
        let twice = TableSpec::new("abc", KeyAttribute::text("pk")).with_range(KeyAttribute::text("pk"));
        assert!(twice.validate().is_err());
    }

    #[test]
    fn rows_sort_by_value() {
        let place = |at: i64| SortedKey::of(&spec(), &Key::new("pk", "a").and("at", at));
        assert!(place(-10) < place(-9) && place(-9) < place(0) && place(9) < place(10));
    }

    #[test]
    fn another_key_is_not_the_same_table() {
        let other = TableSpec::new("locks", KeyAttribute::text("pk"));
        let refused = spec().check_same_key(&other).unwrap_err().chain();
        assert!(refused.contains("exists with the key pk S, not pk S + at N"), "{refused}");
    }
}
