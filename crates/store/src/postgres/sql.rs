//! Names and texts of SQL, and what a row is in them.
//!
//! ```text
//!   tenure.catalog(name, spec, version)                what tables there are
//!   tenure."NAME"(h, r, ttl, item, x0h, x0r, x1h, …)   rows by the sorted bytes of their key
//! ```
//!
//! `item` is DynamoDB's JSON, of type `json`: an operator may ask for `item->'pk'->>'S'` (of rows
//! without a NUL in a text), and a NUL survives, as it would not in `jsonb`. Each index of a table has two columns, `x0h`
//! and `x0r` for the first, which are null in rows that are not in it.
//!
//! Two mappings keep within Postgres' limits:
//! - Names of tables may have 255 bytes, identifiers 63. A longer name (and `catalog`, which is
//!   taken) becomes its beginning, `~` and 32 digits of its SHA-256. `~` is not allowed in names, so
//!   nothing else is called so. The table's comment holds the whole name.
//! - An index entry holds 2704 bytes. Of a hash key longer than 256 bytes, `h` keeps the beginning
//!   and the SHA-256 of all of it: it is only ever compared for equality. The same goes for the
//!   index columns, where a range key is cut after 1024 bytes.

use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;

use crate::codec::item_to_text;
use crate::item::Item;
use crate::table::{SortedKey, TableSpec};
use crate::ttl::{FIVE_YEARS_SECONDS, SWEEP_ROWS_MAX, expiry_seconds};

/// Postgres' limit of an identifier.
const IDENTIFIER_BYTES_MAX: usize = 63;
/// Longest parts of an entry. An index's entry has a hash and a range of its own, then the row's:
/// 257 + 1025 + 257 + 1024 bytes and some for headers, below 2704.
const HASH_BYTES_MAX: usize = 256;
const RANGE_BYTES_MAX: usize = 1024;
const DIGEST_BYTES: usize = 32;
/// The catalog's own name, which no table may have.
const CATALOG: &str = "catalog";

/// Where a row is, in the columns `h` and `r`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) h: Vec<u8>,
    pub(super) r: Vec<u8>,
}

impl Place {
    /// The range key of a table is within its limit already.
    pub(super) fn of(key: SortedKey) -> Self {
        Self { h: shortened(key.hash, HASH_BYTES_MAX), r: shortened(key.range, RANGE_BYTES_MAX) }
    }

    pub(super) fn hash_of(hash: Vec<u8>) -> Vec<u8> {
        shortened(hash, HASH_BYTES_MAX)
    }
}

/// `bytes` themselves if they are at most `max`; otherwise one byte more than `max`, which no
/// other bytes give.
fn shortened(bytes: Vec<u8>, max: usize) -> Vec<u8> {
    if bytes.len() <= max {
        return bytes;
    }
    let digest = Sha256::digest(&bytes);
    let mut short = bytes;
    short.truncate(max + 1 - DIGEST_BYTES);
    short.extend_from_slice(&digest);
    short
}

/// Everything that is stored of a row, in the order of the parameters of `insert` and `update`.
pub(super) struct StoredRow {
    place: Place,
    ttl: Option<i64>,
    item: String,
    indexed: Vec<Option<Vec<u8>>>,
}

impl StoredRow {
    pub(super) fn of(spec: &TableSpec, place: Place, item: &Item) -> Self {
        Self {
            place,
            ttl: spec.ttl.as_ref().and_then(|attribute| expiry_seconds(item, attribute)),
            item: item_to_text(item),
            indexed: indexed(spec, item),
        }
    }

    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&self.place.h, &self.place.r, &self.ttl, &self.item];
        params.extend(self.indexed.iter().map(|value| value as &(dyn ToSql + Sync)));
        params
    }
}

/// The values of all index columns, two for each index.
pub(super) fn indexed(spec: &TableSpec, item: &Item) -> Vec<Option<Vec<u8>>> {
    let of_index = |index| match SortedKey::in_index(index, item).map(Place::of) {
        Some(place) => [Some(place.h), Some(place.r)],
        None => [None, None],
    };
    spec.indexes.iter().flat_map(of_index).collect()
}

/// The texts that are the same for every table of a schema.
#[derive(Debug)]
pub(super) struct SchemaSql {
    /// The schema's name as it was given.
    pub(super) name: String,
    pub(super) quoted: String,
    pub(super) catalog: String,
    /// One table's description and version.
    pub(super) describe: String,
    /// All names and descriptions.
    pub(super) describe_all: String,
    /// The versions of some tables.
    pub(super) versions: String,
}

/// Locks keys in the order of the array. A statement of its own: the next one's snapshot is taken
/// when the locks are held.
pub(super) const LOCK_KEYS: &str = "SELECT pg_advisory_xact_lock(key) FROM unnest($1::bigint[]) AS key";

impl SchemaSql {
    pub(super) fn new(name: &str) -> Self {
        let quoted = quoted(name);
        let catalog = format!("{quoted}.{CATALOG}");
        Self {
            name: name.to_owned(),
            describe: format!("SELECT spec, version FROM {catalog} WHERE name = $1::text"),
            describe_all: format!("SELECT name, spec, version FROM {catalog} ORDER BY name"),
            versions: format!("SELECT name, version FROM {catalog} WHERE name = ANY($1::text[])"),
            quoted,
            catalog,
        }
    }

    pub(super) fn create_catalog(&self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {} (name text CONSTRAINT \"{CATALOG}~key\" PRIMARY KEY, \
             spec text NOT NULL, version bigint NOT NULL)",
            self.catalog
        )
    }

    /// Begins a table, or changes one. The version is the database's time, so that a table that was
    /// dropped and made again is not taken for the old one.
    pub(super) fn record(&self) -> String {
        let now = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        format!(
            "INSERT INTO {} AS known (name, spec, version) VALUES ($1::text, $2::text, {now}) \
             ON CONFLICT (name) DO UPDATE SET spec = excluded.spec, \
             version = greatest(known.version + 1, excluded.version) RETURNING version",
            self.catalog
        )
    }

    /// What creators of tables in this schema lock, so that one waits for the other.
    pub(super) fn creation_lock(&self) -> i64 {
        lock_number(&[b"create", self.name.as_bytes()])
    }

    /// What writers of a row lock, whether the row is there or not.
    pub(super) fn row_lock(&self, table: &str, place: &Place) -> i64 {
        lock_number(&[b"row", self.name.as_bytes(), table.as_bytes(), &place.h, &place.r])
    }
}

/// A number for `pg_advisory_xact_lock`. Two things may share one: then they wait for each other
/// without need, and nothing else happens.
fn lock_number(parts: &[&[u8]]) -> i64 {
    let mut hash = Sha256::new();
    hash.update(b"tenure store");
    for part in parts {
        hash.update(part.len().to_be_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// The texts of one table.
#[derive(Debug)]
pub(super) struct TableSql {
    /// Schema and name, quoted.
    pub(super) table: String,
    pub(super) get: String,
    /// As `get`, and keeps the row as it is until the transaction ends.
    pub(super) get_locked: String,
    pub(super) insert: String,
    pub(super) update: String,
    pub(super) delete: String,
    pub(super) sweep: String,
}

impl TableSql {
    pub(super) fn new(schema: &SchemaSql, spec: &TableSpec) -> Self {
        let table = format!("{}.{}", schema.quoted, quoted(&identifier(&spec.name, "")));
        let columns = index_columns(0..spec.indexes.len());
        let names: String = columns.iter().map(|column| format!(", {column}")).collect();
        let numbers: String = (0..columns.len()).map(|number| format!(", ${}", number + 5)).collect();
        let settings: String = columns
            .iter()
            .enumerate()
            .map(|(number, column)| format!(", {column} = ${}", number + 5))
            .collect();
        let get = format!("SELECT item::text FROM {table} WHERE h = $1 AND r = $2");
        let now = "floor(extract(epoch FROM now()))::bigint";
        let expired = format!("ttl < {now} AND ttl > {now} - {FIVE_YEARS_SECONDS}");
        Self {
            get_locked: format!("{get} FOR UPDATE"),
            get,
            insert: format!(
                "INSERT INTO {table} (h, r, ttl, item{names}) VALUES ($1, $2, $3, $4::text::json{numbers})"
            ),
            update: format!(
                "UPDATE {table} SET ttl = $3, item = $4::text::json{settings} WHERE h = $1 AND r = $2"
            ),
            delete: format!("DELETE FROM {table} WHERE h = $1 AND r = $2"),
            // Materialized, so that the limit is applied once. Rows that somebody is writing are passed by.
            sweep: format!(
                "WITH expired AS MATERIALIZED (SELECT h, r FROM {table} WHERE {expired} ORDER BY ttl \
                 LIMIT {SWEEP_ROWS_MAX} FOR UPDATE SKIP LOCKED) \
                 DELETE FROM {table} AS t USING expired WHERE t.h = expired.h AND t.r = expired.r AND {expired}"
            ),
            table,
        }
    }

    /// The table and its key. `item` comes last in what is read, so that columns may be added.
    pub(super) fn create(&self, spec: &TableSpec) -> String {
        let Self { table, .. } = self;
        let key = quoted(&identifier(&spec.name, "~key"));
        format!(
            "CREATE TABLE {table} (h bytea NOT NULL, r bytea NOT NULL, ttl bigint, item json NOT NULL, \
             CONSTRAINT {key} PRIMARY KEY (h, r)); COMMENT ON TABLE {table} IS '{}'",
            spec.name
        )
    }

    /// The columns of an index, by its number.
    pub(super) fn add_index_columns(&self, number: usize) -> String {
        let Self { table, .. } = self;
        format!("ALTER TABLE {table} ADD COLUMN x{number}h bytea, ADD COLUMN x{number}r bytea")
    }

    /// The index over its columns; after the rows are filled in, which is quicker.
    pub(super) fn create_index(&self, spec: &TableSpec, number: usize) -> String {
        let Self { table, .. } = self;
        let name = quoted(&identifier(&spec.name, &format!("~x{number}")));
        format!("CREATE INDEX {name} ON {table} (x{number}h, x{number}r, h, r) WHERE x{number}h IS NOT NULL")
    }

    /// Finds expired rows without reading the others.
    pub(super) fn create_ttl_index(&self, spec: &TableSpec) -> String {
        let Self { table, .. } = self;
        let name = quoted(&identifier(&spec.name, "~ttl"));
        format!("CREATE INDEX {name} ON {table} (ttl) WHERE ttl IS NOT NULL")
    }

    /// Some rows, in order, from a place on: for filling in.
    pub(super) fn some_rows(&self, rows: usize) -> String {
        let Self { table, .. } = self;
        format!("SELECT h, r, item::text FROM {table} WHERE (h, r) > ($1, $2) ORDER BY h, r LIMIT {rows}")
    }

    /// Fills in a row's derived columns: as `update`, without the item.
    pub(super) fn fill_in(&self, indexes: usize) -> String {
        let Self { table, .. } = self;
        let columns = index_columns(0..indexes);
        let settings: String = columns
            .iter()
            .enumerate()
            .map(|(number, column)| format!(", {column} = ${}", number + 4))
            .collect();
        format!("UPDATE {table} SET ttl = $3{settings} WHERE h = $1 AND r = $2")
    }

    /// A page of the table: after `(h, r)`, at most so many.
    pub(super) fn scan(&self, after: bool) -> String {
        let Self { table, .. } = self;
        let after = if after { "WHERE (h, r) > ($2, $3) " } else { "" };
        format!("SELECT item::text FROM {table} {after}ORDER BY h, r LIMIT $1")
    }

    /// A page of a partition.
    pub(super) fn partition(&self, after: bool) -> String {
        let Self { table, .. } = self;
        let after = if after { "AND r > $3 " } else { "" };
        format!("SELECT item::text FROM {table} WHERE h = $2 {after}ORDER BY r LIMIT $1")
    }

    /// A page of one value of an index: after `(range, h, r)`.
    pub(super) fn by_index(&self, number: usize, after: bool) -> String {
        let Self { table, .. } = self;
        let after = if after { format!("AND (x{number}r, h, r) > ($3, $4, $5) ") } else { String::new() };
        format!(
            "SELECT item::text FROM {table} WHERE x{number}h = $2 {after}ORDER BY x{number}r, h, r LIMIT $1"
        )
    }
}

fn index_columns(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.flat_map(|number| [format!("x{number}h"), format!("x{number}r")]).collect()
}

/// The identifier of a table, or with a suffix of one of its indexes. Indexes share the tables'
/// name space, hence the `~` in every suffix.
fn identifier(name: &str, suffix: &str) -> String {
    const DIGITS: usize = 32;
    if name != CATALOG && name.len() + suffix.len() <= IDENTIFIER_BYTES_MAX {
        return format!("{name}{suffix}");
    }
    let digest = Sha256::digest(name.as_bytes());
    let digits: String = digest[..DIGITS / 2].iter().map(|byte| format!("{byte:02x}")).collect();
    // Names are ASCII, so they may be cut anywhere.
    let room = IDENTIFIER_BYTES_MAX - 1 - DIGITS - suffix.len();
    format!("{}~{digits}{suffix}", &name[..name.len().min(room)])
}

fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{IndexSpec, KeyAttribute, Projection};

    #[test]
    fn names_stay_themselves_while_they_fit() {
        assert_eq!(identifier("locks", ""), "locks");
        assert_eq!(identifier("locks", "~key"), "locks~key");
        assert_eq!(identifier(&"x".repeat(63), ""), "x".repeat(63));
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }

    #[test]
    fn long_and_taken_names_become_others_that_fit() {
        let long = |last: char| format!("{}{last}", "x".repeat(254));
        let mut seen = std::collections::BTreeSet::new();
        for name in [long('a'), long('b'), "catalog".to_owned(), "x".repeat(64), "x".repeat(63)] {
            for suffix in ["", "~key", "~ttl", "~x0", "~x19"] {
                let identifier = identifier(&name, suffix);
                assert!(identifier.len() <= 63 && identifier.ends_with(suffix), "{identifier}");
                assert!(seen.insert(identifier), "{name}{suffix} is called like another");
            }
        }
        assert!(!seen.contains("catalog") && !seen.contains("catalog~key"));
    }

    #[test]
    fn long_keys_fit_an_index_entry_and_stay_apart() {
        let key = |last: u8| {
            let mut bytes = vec![7; 2048];
            bytes[2047] = last;
            Place::of(SortedKey { hash: bytes, range: vec![1; 1024] })
        };
        assert_ne!(key(1), key(2));
        assert_eq!((key(1).h.len(), key(1).r.len()), (257, 1024));
        assert_eq!(shortened(vec![9; 256], 256), vec![9; 256]);
        assert_eq!(shortened(vec![9; 257], 256).len(), 257);
        let schema = SchemaSql::new("tenure");
        assert_ne!(schema.row_lock("locks", &key(1)), schema.row_lock("locks", &key(2)));
        assert_ne!(schema.row_lock("locks", &key(1)), SchemaSql::new("other").row_lock("locks", &key(1)));
    }

    #[test]
    fn every_index_has_its_two_columns() {
        let index = |name: &str| IndexSpec {
            name: name.into(),
            hash: KeyAttribute::text("owner"),
            range: None,
            projection: Projection::All,
        };
        let spec = TableSpec::new("locks", KeyAttribute::text("pk"))
            .with_index(index("one"))
            .with_index(index("two"));
        let sql = TableSql::new(&SchemaSql::new("tenure"), &spec);
        assert_eq!(
            sql.insert,
            "INSERT INTO \"tenure\".\"locks\" (h, r, ttl, item, x0h, x0r, x1h, x1r) \
             VALUES ($1, $2, $3, $4::text::json, $5, $6, $7, $8)"
        );
        let item = Item::new().with("pk", "a").with("owner", "me");
        let row = StoredRow::of(&spec, Place { h: vec![], r: vec![] }, &item);
        assert_eq!(row.params().len(), 8);
        assert_eq!(row.indexed[2], Some(b"me".to_vec()));
    }
}
