//! A store that deletes the tables it made, once it is dropped.
//!
//! Not for neatness: DynamoDB Local (3.3.1) gives each table with a TTL one of the ten threads of its
//! background jobs, and three are its own. With seven such tables about, an index that is added to a
//! table stays CREATING for ever. A test run makes about that many, so each test takes its own away.

use std::collections::BTreeSet;
use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::Monotonic;
use tenure_store::{DynamoDb, Item, Key, Listing, Page, Query, Result, Store, TableSpec, Write, Written};

#[derive(Debug)]
pub(super) struct Tidy {
    store: DynamoDb,
    endpoint: String,
    made: Mutex<BTreeSet<String>>,
}

impl Tidy {
    pub(super) fn new(store: DynamoDb, endpoint: &str) -> Self {
        Self { store, endpoint: endpoint.to_owned(), made: Mutex::default() }
    }
}

impl Drop for Tidy {
    fn drop(&mut self) {
        for table in self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).iter() {
            delete_table(&self.endpoint, table);
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Tidy {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.made.lock().unwrap().insert(spec.name.clone());
        self.store.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.store.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.store.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.store.write(by, write).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.store.transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.store.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.store.scan(by, table, page).await
    }

    fn is_local(&self) -> bool {
        self.store.is_local()
    }
}

/// Deletes a table of an emulator, if it is there. Emulators read the signature's form, not its truth.
fn delete_table(endpoint: &str, table: &str) {
    let host = endpoint.trim_start_matches("http://");
    let Ok(mut stream) = TcpStream::connect(host) else { return };
    let body = format!(r#"{{"TableName":"{table}"}}"#);
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-amz-target: DynamoDB_20120810.DeleteTable\r\n\
         content-type: application/x-amz-json-1.0\r\nx-amz-date: 20250101T000000Z\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=test/20250101/eu-west-1/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=00\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
    let _ = stream.write_all(request.as_bytes());
    // Wait for the answer; what it says is of no concern.
    let _ = stream.read(&mut [0; 512]);
}
