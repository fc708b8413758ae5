//! What a table looks like, prepared once so that each of its rows costs little, and where rows belong.

use std::collections::BTreeMap;
use std::sync::Arc;

use postgres_types::Type;
use tenure_stream::KEY_CHARACTERS_MAX;
use tenure_stream::identity::KeyHash;

use crate::envelope::{Unencodable, Why};
use crate::pgoutput::{Old, Relation, ReplicaIdentity, Tuple, Value};
use crate::value::{Rendering, write_str};

/// Most characters of a partition key that name the table: room is left for a hash.
const LABEL_CHARACTERS_MAX: usize = 200;

/// The names of types that are not built in, as the log told them.
#[derive(Debug, Clone, Default)]
pub struct TypeNames(BTreeMap<u32, Arc<str>>);

impl TypeNames {
    /// Remembers a name, from a type message. These come before the relation that needs them.
    pub fn learn(&mut self, oid: u32, schema: &str, name: &str) {
        let full = if schema.is_empty() { name.to_owned() } else { format!("{schema}.{name}") };
        self.0.insert(oid, full.into());
    }

    fn of(&self, oid: u32) -> Option<Arc<str>> {
        Type::from_oid(oid).map(|built_in| built_in.name().into()).or_else(|| self.0.get(&oid).cloned())
    }
}

/// A table as it looks from one relation message to the next.
#[derive(Debug, Clone)]
pub struct Table {
    /// Its number.
    pub oid: u32,
    /// Its schema.
    pub schema: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// What identifies its rows.
    pub identity: ReplicaIdentity,
    /// Its columns, those that are published.
    pub columns: Vec<Column>,
    /// `"schema":"public","table":"orders"`.
    pub(crate) json_names: Box<[u8]>,
    /// Rows have a key, and each its own lane. Otherwise they share the table's.
    keyed: bool,
    /// How partition keys begin: `public.orders`.
    label: Box<str>,
    /// With the table's name in it, to which keys are added.
    hash: KeyHash,
}

/// A column of a [`Table`].
#[derive(Debug, Clone)]
pub struct Column {
    /// Its name.
    pub name: Arc<str>,
    /// Whether it belongs to the key.
    pub in_key: bool,
    /// Its type.
    pub type_oid: u32,
    /// The type's name, if the log told it.
    pub type_name: Option<Arc<str>>,
    /// The type's modifier, −1 without one.
    pub type_modifier: i32,
    /// `"name":`.
    pub(crate) json_name: Box<[u8]>,
    pub(crate) rendering: Rendering,
}

/// Where a row belongs. Made once, and filled by [`Table::place`] again and again.
#[derive(Debug, Clone)]
pub struct Place {
    /// The partition key: for people who look, and for readers that go by it. The lane goes by the hash.
    pub partition_key: String,
    hash: KeyHash,
}

impl Default for Place {
    fn default() -> Self {
        Self { partition_key: String::new(), hash: KeyHash::of_table("", "") }
    }
}

impl Table {
    /// The table that a relation message describes.
    #[must_use]
    pub fn new(relation: &Relation<'_>, types: &TypeNames) -> Self {
        let schema: Arc<str> = if relation.schema.is_empty() { "pg_catalog" } else { relation.schema }.into();
        // With FULL, every column counts as identity, and that is no key.
        let has_key = matches!(relation.identity, ReplicaIdentity::Default | ReplicaIdentity::Index);
        let columns: Vec<Column> = relation
            .columns
            .iter()
            .map(|column| {
                let mut json_name = Vec::new();
                write_str(&mut json_name, column.name);
                json_name.push(b':');
                Column {
                    name: column.name.into(),
                    in_key: has_key && column.in_identity,
                    type_oid: column.type_oid,
                    type_name: types.of(column.type_oid),
                    type_modifier: column.type_modifier,
                    json_name: json_name.into(),
                    rendering: Rendering::of_type(column.type_oid),
                }
            })
            .collect();
        let mut json_names = br#""schema":"#.to_vec();
        write_str(&mut json_names, &schema);
        json_names.extend_from_slice(br#","table":"#);
        write_str(&mut json_names, relation.name);
        let label: String =
            format!("{schema}.{}", relation.name).chars().take(LABEL_CHARACTERS_MAX).collect();
        Self {
            oid: relation.oid,
            name: relation.name.into(),
            identity: relation.identity,
            keyed: columns.iter().any(|column| column.in_key),
            hash: KeyHash::of_table(&schema, relation.name),
            json_names: json_names.into(),
            label: label.into(),
            schema,
            columns,
        }
    }

    /// Whether each key has a lane of its own. Without a key that the log tells (none at all, or replica identity
    /// FULL or NOTHING), all rows share the table's lane.
    #[must_use]
    pub const fn is_keyed(&self) -> bool {
        self.keyed
    }

    /// Fills in where a row belongs and answers the hash that chooses its lane.
    ///
    /// `before` is what the same message tells of the row before: a large key that did not change is there alone.
    ///
    /// # Errors
    /// If the key is not told. [`Table::place_whole`] is a place for what stands in for the row.
    pub fn place(
        &self,
        place: &mut Place,
        row: &Tuple<'_>,
        before: Option<&Old<'_>>,
    ) -> Result<u64, Unencodable> {
        place.hash.clone_from(&self.hash);
        place.partition_key.clear();
        place.partition_key.push_str(&self.label);
        if !self.keyed {
            return Ok(place.hash.digest());
        }
        let mut readable = true;
        for (column, value) in self.values(row, before).filter(|(column, _)| column.in_key) {
            place.partition_key.push('/');
            match value {
                Value::Null => place.hash.add(None),
                Value::Text(text) | Value::Binary(text) => {
                    place.hash.add(Some(text));
                    match std::str::from_utf8(text) {
                        Ok(text) if text.len() <= 4 * KEY_CHARACTERS_MAX => {
                            place.partition_key.push_str(text)
                        }
                        _ => readable = false,
                    }
                }
                Value::Unchanged => {
                    return Err(Unencodable { column: Some(column.name.clone()), why: Why::KeyNotTold });
                }
            }
        }
        let hash = place.hash.digest();
        let fits = |key: &str| key.len() <= KEY_CHARACTERS_MAX || key.chars().count() <= KEY_CHARACTERS_MAX;
        if !readable || !fits(&place.partition_key) {
            place.partition_key.truncate(self.label.len());
            place.partition_key.push_str(&format!("#{hash:016x}"));
        }
        Ok(hash)
    }

    /// Fills in the place of the table as a whole and answers the hash that chooses its lane.
    pub fn place_whole(&self, place: &mut Place) -> u64 {
        place.partition_key.clear();
        place.partition_key.push_str(&self.label);
        self.hash.digest()
    }

    /// Whether an update moves the row to another key, so that it concerns two lanes.
    #[must_use]
    pub fn key_changed(&self, old: &Old<'_>, new: &Tuple<'_>) -> bool {
        let (Old::Key(before) | Old::Full(before)) = old;
        let same = |(before, now): (Value<'_>, Value<'_>)| now == Value::Unchanged || now == before;
        self.columns
            .iter()
            .zip(before.values().zip(new.values()))
            .any(|(column, pair)| column.in_key && !same(pair))
    }

    /// Whether rows of both are shown in the same way. The table's number does not count.
    #[must_use]
    pub fn is_same_shape(&self, other: &Self) -> bool {
        let shape = |column: &Column| (column.type_oid, column.type_modifier, column.in_key);
        self.schema == other.schema
            && self.name == other.name
            && self.identity == other.identity
            && self.columns.len() == other.columns.len()
            && self.columns.iter().zip(&other.columns).all(|(a, b)| a.name == b.name && shape(a) == shape(b))
    }

    /// A number that is the same for tables of the same shape, in every process.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = self.hash.clone();
        hash.add(Some(identity_name(self.identity).as_bytes()));
        for column in &self.columns {
            hash.add(Some(column.name.as_bytes()));
            hash.add(Some(&column.type_oid.to_le_bytes()));
            hash.add(Some(&column.type_modifier.to_le_bytes()));
            hash.add(Some(&[column.in_key.into()]));
        }
        hash.digest()
    }

    /// The row's columns with their values. What did not change is taken from `before` where that tells it.
    pub(crate) fn values<'a>(
        &self,
        row: &Tuple<'a>,
        before: Option<&Old<'a>>,
    ) -> impl Iterator<Item = (&Column, Value<'a>)> {
        let (mut before, full) = match before {
            Some(Old::Full(before)) => (Some(before.values()), true),
            Some(Old::Key(before)) => (Some(before.values()), false),
            None => (None, false),
        };
        self.columns.iter().zip(row.values()).map(move |(column, value)| {
            let earlier = before.as_mut().and_then(Iterator::next);
            match (value, earlier) {
                (Value::Unchanged, Some(earlier)) if full || column.in_key => (column, earlier),
                _ => (column, value),
            }
        })
    }
}

pub(crate) const fn identity_name(identity: ReplicaIdentity) -> &'static str {
    match identity {
        ReplicaIdentity::Default => "default",
        ReplicaIdentity::Nothing => "nothing",
        ReplicaIdentity::Full => "full",
        ReplicaIdentity::Index => "index",
    }
}

#[cfg(test)]
#[path = "table_test.rs"]
pub(crate) mod tests;
