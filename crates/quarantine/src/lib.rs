//! What does not fit in the stream is kept in a table beside it, under its identity.
//!
//! | key | row |
//! |---|---|
//! | pk `QUARANTINE#<source>`, sk `<id>` | the manifest: how much, how many chunks, its checksum, why |
//! | pk `QUARANTINE#<source>#<id>`, sk `<number>` | one chunk |
//!
//! Chunks go first and the manifest last, so whoever finds a manifest finds everything. Content is the same
//! on every replay and from every leader, because it does not hold what differs between them: the event's
//! `tenure` object travels in its pointer. So writing it twice changes nothing.

mod chunks;
mod dead_letters;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, WallTime};
use tenure_store::{Condition, Item, Key, Query, Store, StoreExt as _};
use tenure_stream::HashKey;
use tenure_stream::identity::Position;

use crate::chunks::Chunks;
pub use crate::chunks::sha256;
pub use crate::dead_letters::{DEAD_LETTERS_TABLE, DeadLetter, DeadLetterKey, DeadLetters};

/// The table, unless told otherwise.
pub const TABLE: &str = "tenure_quarantine";
/// How long content stays beyond the stream's own retention.
pub const KEPT_BEYOND_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Something that does not fit in the stream, and is stored beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parked {
    /// Its content.
    pub content: Bytes,
    /// Why it cannot be published as it is; `None` if it is only too large.
    pub reason: Option<Arc<str>>,
}

/// Keeps what does not fit.
#[derive(Debug, Clone)]
pub struct Quarantine {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    source: Arc<str>,
    /// How long rows stay.
    kept: Duration,
}

/// What a manifest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Which event.
    pub id: Position,
    /// Why it cannot be published; `None` if it is only too large.
    pub reason: Option<String>,
    /// Its size.
    pub bytes: u64,
    /// In how many rows.
    pub chunks: u32,
    /// Its checksum, in hexadecimal.
    pub sha256: String,
    /// When it was last stored: a replay stores it again.
    pub stored: WallTime,
    /// The hash key of its lane, for whoever puts it into the stream later.
    pub hash_key: HashKey,
}

impl Quarantine {
    /// Keeps what one source cannot publish. Rows stay for `kept`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, source: Arc<str>, kept: Duration) -> Self {
        Self { store, clock, source, kept }
    }

    /// Makes the table, if there is none.
    ///
    /// # Errors
    /// As the store's.
    pub async fn prepare(&self, by: Monotonic) -> Result<()> {
        self.store.ensure_table(by, &chunks::table_spec(TABLE)).await
    }

    /// Stores content durably under its identity. `hash_key` is that of its lane.
    ///
    /// # Errors
    /// As the store's; then nobody may point to it.
    ///
    /// # Cancel safety
    /// Dropped, some of it may be there; storing it again makes it whole.
    pub async fn store(&self, by: Monotonic, id: Position, hash_key: HashKey, parked: &Parked) -> Result<()> {
        let expires =
            self.clock.wall().as_seconds() + i64::try_from(self.kept.as_secs()).unwrap_or(i64::MAX / 2);
        let count = self.chunks(id).store(by, &parked.content, expires).await?;
        let mut manifest = Item::new()
            .with("pk", self.manifests_pk())
            .with("sk", id.to_string())
            .with("bytes", parked.content.len() as u64)
            .with("chunks", count)
            .with("sha256", sha256(&parked.content))
            .with("stored", self.clock.wall().as_millis())
            // Beyond the digits of a number in DynamoDB.
            .with("hash_key", hash_key.0.to_string())
            .with("ttl", expires);
        if let Some(reason) = &parked.reason {
            manifest.set("reason", &**reason);
        }
        self.put(by, manifest).await
    }

    /// All manifests of the source, oldest first, at most `rows_max`.
    ///
    /// # Errors
    /// As the store's.
    pub async fn list(&self, by: Monotonic, rows_max: usize) -> Result<Vec<Manifest>> {
        if self.store.describe_table(by, TABLE).await?.is_none() {
            return Ok(Vec::new());
        }
        let query = Query::partition("pk", self.manifests_pk());
        let items = self.store.query_all(by, TABLE, query, rows_max).await?;
        let mut manifests = items.iter().map(Manifest::read).collect::<Result<Vec<_>>>()?;
        manifests.sort_by_key(|manifest| manifest.id);
        Ok(manifests)
    }

    /// One manifest.
    ///
    /// # Errors
    /// As the store's, `Corrupt` if the row is not one.
    pub async fn manifest(&self, by: Monotonic, id: Position) -> Result<Option<Manifest>> {
        if self.store.describe_table(by, TABLE).await?.is_none() {
            return Ok(None);
        }
        let found = self.store.get(by, TABLE, &self.manifest_key(id)).await?;
        found.as_ref().map(Manifest::read).transpose()
    }

    /// What was stored, checked against its checksum.
    ///
    /// # Errors
    /// `Corrupt` if it is not what the manifest says.
    pub async fn content(&self, by: Monotonic, manifest: &Manifest) -> Result<Bytes> {
        let what = format!("the quarantined event {}", manifest.id);
        self.chunks(manifest.id).load(by, &what, manifest.chunks, manifest.bytes, &manifest.sha256).await
    }

    /// Forgets an event: the manifest first, so that nobody finds half of it.
    ///
    /// # Errors
    /// As the store's.
    pub async fn drop_event(&self, by: Monotonic, manifest: &Manifest) -> Result<()> {
        self.store.delete(by, TABLE, self.manifest_key(manifest.id), Condition::Always).await?;
        self.chunks(manifest.id).delete(by, manifest.chunks).await
    }

    /// How a pointer names the place.
    #[must_use]
    pub fn place(&self, id: Position) -> String {
        format!("{TABLE}/{}/{id}", self.source)
    }

    async fn put(&self, by: Monotonic, item: Item) -> Result<()> {
        // The same content goes to the same key, so an unknown outcome is answered by writing again.
        self.store.put(by, TABLE, item, Condition::Always).await.map(|_| ())
    }

    fn manifests_pk(&self) -> String {
        format!("QUARANTINE#{}", self.source)
    }

    fn chunks(&self, id: Position) -> Chunks<'_> {
        Chunks { store: &*self.store, table: TABLE, pk: format!("QUARANTINE#{}#{id}", self.source) }
    }

    fn manifest_key(&self, id: Position) -> Key {
        Key::new("pk", self.manifests_pk()).and("sk", id.to_string())
    }
}

impl Manifest {
    fn read(item: &Item) -> Result<Self> {
        let broken = |name: &str| {
            let key = item.text("sk").unwrap_or("?");
            Error::new(Kind::Corrupt, format!("the manifest of {key} has no valid `{name}`"))
        };
        let number = |name: &str| item.integer(name).ok_or_else(|| broken(name));
        Ok(Self {
            id: item.text("sk").and_then(|text| text.parse().ok()).ok_or_else(|| broken("sk"))?,
            reason: item.text("reason").map(str::to_owned),
            bytes: number("bytes")?.try_into().map_err(|_| broken("bytes"))?,
            chunks: number("chunks")?.try_into().map_err(|_| broken("chunks"))?,
            sha256: item.text("sha256").ok_or_else(|| broken("sha256"))?.to_owned(),
            stored: WallTime::from_millis(number("stored")?),
            hash_key: item
                .text("hash_key")
                .and_then(|digits| digits.parse().ok())
                .map(HashKey)
                .ok_or_else(|| broken("hash_key"))?,
        })
    }
}

/// In how many rows content is stored, its manifest included.
#[must_use]
pub fn rows_of(parked: &Parked) -> u32 {
    u32::try_from(parked.content.len().div_ceil(chunks::CHUNK_BYTES_MAX))
        .unwrap_or(u32::MAX)
        .saturating_add(1)
}

/// An event without its `tenure` object: what is the same on every replay and from every leader.
///
/// The object comes first and holds no other, so the first closing brace ends it.
#[must_use]
pub fn body_of(event: &[u8]) -> Bytes {
    let body = event.strip_prefix(b"{\"tenure\":{").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest[end + 1..].strip_prefix(b",")
    });
    match body {
        Some(body) => [b"{", body].concat().into(),
        None => Bytes::copy_from_slice(event),
    }
}

#[cfg(test)]
mod tests {
    use tenure_backend::Env;
    use tenure_clock::SystemClock;
    use tenure_store::{Memory, Value};

    use super::*;
    use crate::chunks::{CHUNK_BYTES_MAX, chunk_sk};

    const KEY: HashKey = HashKey(u128::MAX - 7);

    async fn quarantine() -> Quarantine {
        let store = Arc::new(Memory::new(&Env::system()));
        let week = Duration::from_secs(7 * 24 * 3600);
        let quarantine = Quarantine::new(store, Arc::new(SystemClock), "shop".into(), week);
        assert_eq!(quarantine.list(Monotonic::NEVER, 10).await.unwrap(), [], "even before there is a table");
        quarantine.prepare(Monotonic::NEVER).await.unwrap();
        quarantine
    }

    fn id(change: &str) -> Position {
        format!("1:0/20:0/{change}:0").parse().unwrap()
    }

    #[tokio::test]
    async fn what_is_stored_comes_back_whole_and_goes_away_whole() {
        let quarantine = quarantine().await;
        for (change, size) in [("1", 0), ("2", 1), ("3", CHUNK_BYTES_MAX), ("4", 3 * CHUNK_BYTES_MAX + 5)] {
            let content: Bytes = (0..size).map(|index| index as u8).collect::<Vec<_>>().into();
            let parked = Parked { content: content.clone(), reason: Some("too odd".into()) };
            let before = quarantine.store.scan_all(Monotonic::NEVER, TABLE, 100).await.unwrap().len();
            quarantine.store(Monotonic::NEVER, id(change), KEY, &parked).await.unwrap();
            let after = quarantine.store.scan_all(Monotonic::NEVER, TABLE, 100).await.unwrap().len();
            assert_eq!(after - before, rows_of(&parked) as usize);
            // Again, as after a lost reply.
            quarantine.store(Monotonic::NEVER, id(change), KEY, &parked).await.unwrap();
            let manifest = quarantine.manifest(Monotonic::NEVER, id(change)).await.unwrap().unwrap();
            assert_eq!((manifest.reason.as_deref(), manifest.hash_key), (Some("too odd"), KEY));
            assert_eq!(quarantine.content(Monotonic::NEVER, &manifest).await.unwrap(), content);
        }
        let listed = quarantine.list(Monotonic::NEVER, 10).await.unwrap();
        assert_eq!(listed.iter().map(|manifest| manifest.chunks).collect::<Vec<_>>(), [0, 1, 1, 4]);
        for manifest in &listed {
            quarantine.drop_event(Monotonic::NEVER, manifest).await.unwrap();
        }
        assert!(quarantine.store.scan_all(Monotonic::NEVER, TABLE, 10).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn damage_is_told() {
        let quarantine = quarantine().await;
        let parked = Parked { content: vec![7; 2 * CHUNK_BYTES_MAX].into(), reason: None };
        quarantine.store(Monotonic::NEVER, id("1"), KEY, &parked).await.unwrap();
        let manifest = quarantine.manifest(Monotonic::NEVER, id("1")).await.unwrap().unwrap();
        let key = Key::new("pk", quarantine.chunks(id("1")).pk).and("sk", chunk_sk(1));
        let chunk = quarantine.store.get(Monotonic::NEVER, TABLE, &key).await.unwrap().unwrap();
        let damaged = chunk.with("data", Value::B(vec![8; CHUNK_BYTES_MAX]));
        quarantine.store.put(Monotonic::NEVER, TABLE, damaged, Condition::Always).await.unwrap();
        assert_eq!(quarantine.content(Monotonic::NEVER, &manifest).await.unwrap_err().kind(), Kind::Corrupt);
        quarantine.store.delete(Monotonic::NEVER, TABLE, key, Condition::Always).await.unwrap();
        assert_eq!(quarantine.content(Monotonic::NEVER, &manifest).await.unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_body_is_the_event_without_its_tenure_object() {
        let event = br#"{"tenure":{"v":1,"id":"x"},"op":"insert","after":{"a":{}}}"#;
        assert_eq!(&body_of(event)[..], br#"{"op":"insert","after":{"a":{}}}"#);
        assert_eq!(&body_of(b"no event")[..], b"no event");
    }
}
