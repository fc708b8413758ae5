//! A store that counts what is read and written: for benchmarks that promise how little it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tenure_backend::Result;
use tenure_clock::Monotonic;

use crate::{Item, Key, Listing, Page, Query, Store, TableSpec, Write, Written};

/// Counts the calls that go through it.
#[derive(Debug)]
pub struct Counting {
    store: Arc<dyn Store>,
    reads: AtomicU64,
    writes: AtomicU64,
}

impl Counting {
    /// None yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self { store, reads: AtomicU64::new(0), writes: AtomicU64::new(0) }
    }

    /// How many writes there were.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// How many reads there were: of a row, or of a page.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Counting {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.store.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.store.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.write(by, write).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.writes.fetch_add(writes.len() as u64, Ordering::Relaxed);
        self.store.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.store.scan(by, table, page).await
    }

    fn is_local(&self) -> bool {
        self.store.is_local()
    }
}
