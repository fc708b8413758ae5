//! Conditional writes on items: the one thing that everything else rests on.
//!
//! A write names a row, a change and a [`Condition`]; it happens only if the condition is true of
//! the row at that moment, and it ends in one of three ways:
//!
//! ```text
//!   Ok(Written::Applied(row))     it happened
//!   Ok(Written::Refused(..))      it did not: here is the row that refused it
//!   Err(kind Unknown)             it may have: read back, look for your own nonce
//! ```
//!
//! (All other errors mean that it did not happen.) Conditions and updates are data with one pure
//! meaning, [`Condition::holds`] and [`Update::apply`], and every backend is held to it by the suite
//! in [`conformance`].

pub mod codec;
pub mod columns;
mod condition;
#[cfg(feature = "conformance")]
pub mod conformance;
mod counting;
#[cfg(feature = "dynamodb")]
mod dynamodb;
mod faulty;
mod instrumented;
mod item;
mod memory;
mod number;
mod open;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
mod table;
#[cfg(feature = "conformance")]
pub mod testing;
mod ttl;
mod update;
mod write;

use std::fmt::Debug;

use async_trait::async_trait;
pub use tenure_backend::{Address, Env, Error, FaultCounts, FaultRates, Faults, Kind, Result};
use tenure_clock::Monotonic;

pub use self::condition::{Comparison, Condition};
pub use self::counting::Counting;
#[cfg(feature = "dynamodb")]
pub use self::dynamodb::DynamoDb;
pub use self::faulty::Faulty;
pub use self::instrumented::Instrumented;
pub use self::item::{Item, Key, Value};
pub use self::memory::Memory;
pub use self::number::Number;
pub use self::open::open;
#[cfg(feature = "postgres")]
pub use self::postgres::{Postgres, Survey as PostgresSurvey, survey as survey_postgres};
#[cfg(feature = "sqlite")]
pub use self::sqlite::Sqlite;
pub use self::table::{IndexSpec, KeyAttribute, KeyType, Projection, TableSpec};
pub use self::ttl::{SWEEP_INTERVAL, SWEEP_ROWS_MAX};
pub use self::update::{Change, Update};
pub use self::write::{Effect, ITEM_BYTES_MAX, Refusal, WRITES_MAX, Write, Written};

/// A place where rows live and change only on conditions. Usable as `Arc<dyn Store>`.
///
/// Every call takes the moment `by` which the caller wants an answer, on the clock that the store
/// was opened with.
#[async_trait]
pub trait Store: Debug + Send + Sync {
    /// Creates the table if it is not there, and waits until it can be used. Several may try at once.
    /// Indexes that an existing table lacks are added, and so is its TTL.
    ///
    /// # Errors
    /// `Invalid` if a table of that name has another key or TTL attribute.
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()>;

    /// What a table looks like, if it is there.
    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>>;

    /// The row, as the last write left it.
    ///
    /// # Errors
    /// `Invalid` if there is no such table or the key does not fit it.
    ///
    /// # Cancel safety
    /// A read changes nothing; it may be dropped.
    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>>;

    /// One conditional write.
    ///
    /// # Errors
    /// `Unknown` if it may have happened; all others if it did not.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the write may or may not happen.
    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written>;

    /// Several conditional writes of distinct rows, all or none.
    ///
    /// `nonce` names this attempt: draw a new one for each. DynamoDB takes it as its request token and
    /// recognises a resend for ten minutes; other backends do not, so after `Unknown` read back, as after
    /// a single write.
    ///
    /// # Errors
    /// As [`Store::write`].
    ///
    /// # Cancel safety
    /// As [`Store::write`].
    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written>;

    /// Rows of one partition, sorted by the range key; or of one value of an index, sorted by the
    /// index's range key. An index may lag behind the rows.
    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing>;

    /// Rows of the whole table, in an order of the backend's own. Rows that stay throughout the pages
    /// are shown once.
    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing>;

    /// Whether reads stay on this machine and cost next to nothing: whoever waits for a change may then
    /// look often.
    fn is_local(&self) -> bool {
        false
    }
}

/// Which rows to list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// The index to ask; the table itself if absent.
    pub index: Option<String>,
    /// The hash attribute's name and value.
    pub partition: Key,
    /// Which part of the answer.
    pub page: Page,
}

impl Query {
    /// The rows of a partition.
    pub fn partition(name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { index: None, partition: Key::new(name, value), page: Page::default() }
    }

    /// The rows whose attribute has the value, by an index.
    pub fn index(index: impl Into<String>, name: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { index: Some(index.into()), ..Self::partition(name, value) }
    }

    /// Another part of the answer.
    #[must_use]
    pub fn page(mut self, page: Page) -> Self {
        self.page = page;
        self
    }
}

/// Which part of a long answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Most rows wanted, 1 to [`Page::LIMIT_MAX`]. Fewer may come although more follow.
    pub limit: usize,
    /// Where the page before ended.
    pub after: Option<Cursor>,
}

impl Page {
    /// Most rows that a page may have.
    pub const LIMIT_MAX: usize = 1000;

    pub(crate) fn validate(&self) -> Result<()> {
        if (1..=Self::LIMIT_MAX).contains(&self.limit) {
            return Ok(());
        }
        Err(Error::invalid(format!("page limit {} is not from 1 to {}", self.limit, Self::LIMIT_MAX)))
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { limit: 100, after: None }
    }
}

/// Where a page ended: the key attributes of its last row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor(pub(crate) Item);

/// A page of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    /// The rows.
    pub items: Vec<Item>,
    /// Where the next page begins; absent if this was the last.
    pub next: Option<Cursor>,
}

mod sealed {
    pub trait Sealed {}
    impl<S: super::Store + ?Sized> Sealed for S {}
}

/// Conveniences over [`Store`].
#[async_trait]
pub trait StoreExt: Store + sealed::Sealed {
    /// The row becomes `item`, if `when` holds.
    async fn put(&self, by: Monotonic, table: &str, item: Item, when: Condition) -> Result<Written> {
        self.write(by, &Write::Put { table: table.to_owned(), item, when }).await
    }

    /// The row is changed, if `when` holds.
    async fn update(
        &self,
        by: Monotonic,
        table: &str,
        key: Key,
        change: Update,
        when: Condition,
    ) -> Result<Written> {
        self.write(by, &Write::Update { table: table.to_owned(), key, change, when }).await
    }

    /// The row goes away, if `when` holds.
    async fn delete(&self, by: Monotonic, table: &str, key: Key, when: Condition) -> Result<Written> {
        self.write(by, &Write::Delete { table: table.to_owned(), key, when }).await
    }

    /// All rows of the table, up to `rows_max`.
    ///
    /// # Errors
    /// `Invalid` if there are more than `rows_max`: no list is silently cut.
    async fn scan_all(&self, by: Monotonic, table: &str, rows_max: usize) -> Result<Vec<Item>> {
        let mut rows = Vec::new();
        let mut page = Page { limit: Page::LIMIT_MAX, after: None };
        loop {
            let listing = self.scan(by, table, &page).await?;
            rows.extend(listing.items);
            if rows.len() > rows_max {
                return Err(Error::invalid(format!("table `{table}` has more than {rows_max} rows")));
            }
            page.after = listing.next;
            if page.after.is_none() {
                return Ok(rows);
            }
        }
    }

    /// All rows of a query, up to `rows_max`.
    ///
    /// # Errors
    /// `Invalid` if there are more than `rows_max`: no list is silently cut.
    async fn query_all(
        &self,
        by: Monotonic,
        table: &str,
        mut query: Query,
        rows_max: usize,
    ) -> Result<Vec<Item>> {
        let mut rows = Vec::new();
        query.page = Page { limit: Page::LIMIT_MAX, after: None };
        loop {
            let listing = self.query(by, table, &query).await?;
            rows.extend(listing.items);
            if rows.len() > rows_max {
                return Err(Error::invalid(format!(
                    "query of table `{table}` has more than {rows_max} rows"
                )));
            }
            query.page.after = listing.next;
            if query.page.after.is_none() {
                return Ok(rows);
            }
        }
    }
}

impl<S: Store + ?Sized> StoreExt for S {}

/// What every backend says of a table that is not there.
pub(crate) fn no_such_table(table: &str) -> Error {
    Error::invalid(format!(
        "table `{table}` does not exist: create it with `tenure store create-table {table}`, or check the name"
    ))
}
