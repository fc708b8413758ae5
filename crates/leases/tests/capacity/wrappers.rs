//! Stores that stand between a worker and its table: one that writes down what is called, one that lets two
//! workers read before either writes, one that gives short pages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_leases::capacity::{Census, Count, OpenShards};
use tenure_store::{Item, Key, Listing, Page, Query, Store, TableSpec, Write, Written};
use tokio::sync::{Barrier, Semaphore};

/// What was called, in order.
pub(super) type Calls = Arc<Mutex<Vec<String>>>;

/// Any store, census or stream, whose calls are written down.
#[derive(Debug)]
pub(super) struct Recorded<S> {
    pub(super) inner: S,
    pub(super) calls: Calls,
}

/// A store that carries writes of coordinator rows out, and loses the answer.
#[derive(Debug)]
pub(super) struct Mute(pub(super) Arc<dyn Store>);

impl<S> Recorded<S> {
    fn note(&self, call: impl Into<String>) {
        self.calls.lock().unwrap().push(call.into());
    }
}

#[async_trait]
impl Store for Recorded<Arc<dyn Store>> {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.note("ensure table");
        self.inner.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.note(format!("describe {table}"));
        self.inner.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.note(format!("get {key}"));
        self.inner.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        let (verb, key) = match write {
            Write::Put { item, .. } => ("put", item.text("worker_id").unwrap_or("?").to_owned()),
            Write::Update { key, .. } => ("update", key.to_string()),
            Write::Delete { key, .. } => ("delete", key.to_string()),
            Write::Check { key, .. } => ("check", key.to_string()),
        };
        let written = self.inner.write(by, write).await?;
        let how = if written.is_applied() { "applied" } else { "refused" };
        self.note(format!("{verb} {} {how}", key.trim_start_matches("worker_id=")));
        Ok(written)
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.note("transact");
        self.inner.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.note("query");
        self.inner.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.note("scan");
        self.inner.scan(by, table, page).await
    }
}

#[async_trait]
impl OpenShards for Recorded<Arc<dyn OpenShards>> {
    async fn open_shards(&self, by: Monotonic) -> Result<u64> {
        self.note("count shards");
        self.inner.open_shards(by).await
    }
}

#[async_trait]
impl Census for Recorded<Arc<dyn Census>> {
    async fn count(&self, by: Monotonic) -> Count {
        self.note("count workers");
        self.inner.count(by).await
    }

    fn source(&self) -> String {
        self.inner.source()
    }
}

/// A store whose first read of a row waits for that of another worker, and whose first write may have to wait.
#[derive(Debug)]
pub(super) struct Crossing {
    pub(super) inner: Arc<dyn Store>,
    /// Both have read.
    pub(super) both_read: Arc<Barrier>,
    /// The first write of the first worker has happened.
    pub(super) written: Arc<Semaphore>,
    /// Whether this is the worker that writes first.
    pub(super) first: bool,
    pub(super) has_read: AtomicBool,
    pub(super) has_written: AtomicBool,
}

impl Crossing {
    /// The stores of two workers; the first of them writes first.
    pub(super) fn pair(one: Arc<dyn Store>, other: Arc<dyn Store>) -> [Arc<Self>; 2] {
        let (both_read, written) = (Arc::new(Barrier::new(2)), Arc::new(Semaphore::new(0)));
        [(one, true), (other, false)].map(|(inner, first)| {
            Arc::new(Self {
                inner,
                both_read: both_read.clone(),
                written: written.clone(),
                first,
                has_read: AtomicBool::new(false),
                has_written: AtomicBool::new(false),
            })
        })
    }
}

#[async_trait]
impl Store for Crossing {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.inner.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.inner.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let row = self.inner.get(by, table, key).await;
        if !self.has_read.swap(true, Ordering::SeqCst) {
            self.both_read.wait().await;
        }
        row
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        let first_write = !self.has_written.swap(true, Ordering::SeqCst);
        if first_write && !self.first {
            self.written.acquire().await.unwrap().forget();
        }
        let written = self.inner.write(by, write).await;
        if first_write && self.first {
            self.written.add_permits(1);
        }
        written
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.inner.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.inner.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.inner.scan(by, table, page).await
    }
}

/// A store whose pages are short, as DynamoDB's may be.
#[derive(Debug)]
pub(super) struct ShortPages(pub(super) Arc<dyn Store>);

#[async_trait]
impl Store for ShortPages {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.0.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.0.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.0.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.0.write(by, write).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.0.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.0.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.0.scan(by, table, &Page { limit: 2, after: page.after.clone() }).await
    }
}

#[async_trait]
impl Store for Mute {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.0.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.0.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.0.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        let written = self.0.write(by, write).await?;
        let of_coordinator = match write {
            Write::Put { item, .. } => item.text("worker_id").is_some_and(|id| id.ends_with("_coordinator")),
            Write::Update { key, .. } => key.to_string().ends_with("_coordinator"),
            Write::Delete { .. } | Write::Check { .. } => false,
        };
        if of_coordinator {
            return Err(Error::new(Kind::Unknown, "the reply was lost"));
        }
        Ok(written)
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.0.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.0.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.0.scan(by, table, page).await
    }
}
