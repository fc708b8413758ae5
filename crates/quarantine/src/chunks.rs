//! Content that is too large for one row, in several.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_store::{Condition, Item, Key, KeyAttribute, Store, StoreExt as _, TableSpec, Value};

/// Fits in a row of every store, with its key and all.
pub(crate) const CHUNK_BYTES_MAX: usize = 256 << 10;
/// Most that is ever parked: as large as a value in Postgres can be, and its text twice that.
const CHUNKS_MAX: usize = (2 << 30) / CHUNK_BYTES_MAX;

/// The rows of one content.
pub(crate) struct Chunks<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) table: &'static str,
    pub(crate) pk: String,
}

impl Chunks<'_> {
    /// Stores them, until the epoch second `expires`. Says how many they are.
    pub(crate) async fn store(&self, by: Monotonic, content: &[u8], expires: i64) -> Result<u32> {
        let chunks = content.chunks(CHUNK_BYTES_MAX);
        let count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        for (number, chunk) in chunks.enumerate() {
            let item = Item::new()
                .with("pk", self.pk.as_str())
                .with("sk", chunk_sk(number))
                .with("data", Value::B(chunk.to_vec()))
                .with("ttl", expires);
            self.store.put(by, self.table, item, Condition::Always).await?;
        }
        Ok(count)
    }

    /// The content, checked.
    pub(crate) async fn load(
        &self,
        by: Monotonic,
        what: &str,
        chunks: u32,
        bytes: u64,
        checksum: &str,
    ) -> Result<Bytes> {
        let corrupt = |why: &str| Error::new(Kind::Corrupt, format!("{what} {why}"));
        if chunks as usize > CHUNKS_MAX {
            return Err(corrupt("has more chunks than there can be"));
        }
        let mut content = Vec::new();
        for number in 0..chunks as usize {
            let found = self.store.get(by, self.table, &self.key(number)).await?;
            match found.as_ref().and_then(|item| item.get("data")) {
                Some(Value::B(chunk)) => content.extend_from_slice(chunk),
                _ => return Err(corrupt(&format!("lacks chunk {number}"))),
            }
        }
        if content.len() as u64 != bytes || sha256(&content) != checksum {
            return Err(corrupt("does not match its checksum"));
        }
        Ok(content.into())
    }

    pub(crate) async fn delete(&self, by: Monotonic, chunks: u32) -> Result<()> {
        for number in 0..chunks as usize {
            self.store.delete(by, self.table, self.key(number), Condition::Always).await?;
        }
        Ok(())
    }

    fn key(&self, number: usize) -> Key {
        Key::new("pk", self.pk.as_str()).and("sk", chunk_sk(number))
    }
}

/// The shape of both tables: `pk`, `sk`, `ttl`.
pub(crate) fn table_spec(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("pk")).with_range(KeyAttribute::text("sk")).with_ttl("ttl")
}

pub(crate) fn chunk_sk(number: usize) -> String {
    format!("{number:08}")
}

/// The checksum of content, in hexadecimal.
#[must_use]
pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}
