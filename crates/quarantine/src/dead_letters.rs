//! Records that a consumer could not process, kept so that the shard can go on.
//!
//! | key | row |
//! |---|---|
//! | pk `DEAD#<app>`, sk `<lease>#<sequence>#<sub>` | the manifest: partition key, size, checksum, why |
//! | pk `DEAD#<app>#<lease>#<sequence>#<sub>`, sk `<number>` | one chunk |
//! | pk `DEAD`, sk `<app>` | that the application has had dead letters, so that a person finds them |
//!
//! As in the quarantine, chunks go first and the manifest last, and storing a record twice changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, WallTime};
use tenure_store::{Condition, Item, Key, Query, Store, StoreExt as _};
use tenure_stream::SequenceNumber;

use crate::chunks::{Chunks, sha256, table_spec};

/// The table.
pub const DEAD_LETTERS_TABLE: &str = "tenure_dead_letters";
/// The partition of the rows that name applications.
const APPLICATIONS: &str = "DEAD";
/// Longer reasons are cut: a row has to hold it.
const REASON_BYTES_MAX: usize = 4096;

/// The dead letters of one application.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    app: Arc<str>,
    kept: Duration,
}

/// Which record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadLetterKey {
    /// The lease of its shard.
    pub lease: String,
    /// Its number in the shard.
    pub sequence: SequenceNumber,
    /// Its place among those that were put in one.
    pub sub: u64,
}

impl fmt::Display for DeadLetterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}#{}", self.lease, self.sequence, self.sub)
    }
}

/// A record that could not be processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// Which one.
    pub key: DeadLetterKey,
    /// Its partition key.
    pub partition_key: String,
    /// Why it could not be processed.
    pub reason: String,
    /// Its size.
    pub bytes: u64,
    /// When it was stored.
    pub stored: WallTime,
    chunks: u32,
    sha256: String,
}

impl DeadLetters {
    /// The dead letters of an application. Rows stay for `kept`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, app: Arc<str>, kept: Duration) -> Self {
        Self { store, clock, app, kept }
    }

    /// Makes the table, if there is none.
    ///
    /// # Errors
    /// As the store's.
    pub async fn prepare(&self, by: Monotonic) -> Result<()> {
        self.store.ensure_table(by, &table_spec(DEAD_LETTERS_TABLE)).await
    }

    /// Stores a record durably.
    ///
    /// # Errors
    /// As the store's; then it is not safe to go on without the record.
    ///
    /// # Cancel safety
    /// Dropped, some of it may be there; storing it again makes it whole.
    pub async fn store(
        &self,
        by: Monotonic,
        key: &DeadLetterKey,
        partition_key: &str,
        content: &[u8],
        reason: &str,
    ) -> Result<()> {
        let now = self.clock.wall();
        let expires = now.as_seconds() + i64::try_from(self.kept.as_secs()).unwrap_or(i64::MAX / 2);
        let chunks = self.chunks(key).store(by, content, expires).await?;
        let cut = reason.char_indices().map(|(at, _)| at).take_while(|at| *at <= REASON_BYTES_MAX).last();
        let manifest = Item::new()
            .with("pk", self.pk())
            .with("sk", key.to_string())
            .with("partition_key", partition_key)
            .with(
                "reason",
                if reason.len() > REASON_BYTES_MAX { &reason[..cut.unwrap_or(0)] } else { reason },
            )
            .with("bytes", content.len() as u64)
            .with("chunks", chunks)
            .with("sha256", sha256(content))
            .with("stored", now.as_millis())
            .with("ttl", expires);
        let known = Item::new().with("pk", APPLICATIONS).with("sk", &*self.app).with("ttl", expires);
        self.store.put(by, DEAD_LETTERS_TABLE, known, Condition::Always).await?;
        // The same content goes to the same key, so an unknown outcome is answered by writing again.
        self.store.put(by, DEAD_LETTERS_TABLE, manifest, Condition::Always).await.map(drop)
    }

    /// The applications that have dead letters, or had some lately; by name, at most `rows_max`.
    ///
    /// # Errors
    /// As the store's.
    pub async fn applications(store: &dyn Store, by: Monotonic, rows_max: usize) -> Result<Vec<Arc<str>>> {
        if store.describe_table(by, DEAD_LETTERS_TABLE).await?.is_none() {
            return Ok(Vec::new());
        }
        let query = Query::partition("pk", APPLICATIONS);
        let items = store.query_all(by, DEAD_LETTERS_TABLE, query, rows_max).await?;
        Ok(items.iter().filter_map(|item| item.text("sk")).map(Arc::from).collect())
    }

    /// All of them, by lease and then in the order of the shard; at most `rows_max`.
    ///
    /// # Errors
    /// As the store's, `Corrupt` if a row is not one.
    pub async fn list(&self, by: Monotonic, rows_max: usize) -> Result<Vec<DeadLetter>> {
        if self.store.describe_table(by, DEAD_LETTERS_TABLE).await?.is_none() {
            return Ok(Vec::new());
        }
        let query = Query::partition("pk", self.pk());
        let items = self.store.query_all(by, DEAD_LETTERS_TABLE, query, rows_max).await?;
        let mut letters = items.iter().map(DeadLetter::read).collect::<Result<Vec<_>>>()?;
        letters.sort_by(|one, two| one.key.cmp(&two.key));
        Ok(letters)
    }

    /// The record as it was, checked against its checksum.
    ///
    /// # Errors
    /// `Corrupt` if it is not what the row says.
    pub async fn content(&self, by: Monotonic, letter: &DeadLetter) -> Result<Bytes> {
        let what = format!("the dead letter {}", letter.key);
        self.chunks(&letter.key).load(by, &what, letter.chunks, letter.bytes, &letter.sha256).await
    }

    /// Forgets a record.
    ///
    /// # Errors
    /// As the store's.
    pub async fn forget(&self, by: Monotonic, letter: &DeadLetter) -> Result<()> {
        let key = Key::new("pk", self.pk()).and("sk", letter.key.to_string());
        self.store.delete(by, DEAD_LETTERS_TABLE, key, Condition::Always).await?;
        self.chunks(&letter.key).delete(by, letter.chunks).await
    }

    fn pk(&self) -> String {
        format!("DEAD#{}", self.app)
    }

    fn chunks(&self, key: &DeadLetterKey) -> Chunks<'_> {
        Chunks { store: &*self.store, table: DEAD_LETTERS_TABLE, pk: format!("DEAD#{}#{key}", self.app) }
    }
}

impl DeadLetter {
    fn read(item: &Item) -> Result<Self> {
        let broken = |name: &str| {
            let key = item.text("sk").unwrap_or("?");
            Error::new(Kind::Corrupt, format!("the row of the dead letter {key} has no valid `{name}`"))
        };
        let text = |name: &str| item.text(name).map(str::to_owned).ok_or_else(|| broken(name));
        let number = |name: &str| item.integer(name).ok_or_else(|| broken(name));
        let sk = text("sk")?;
        let mut parts = sk.rsplitn(3, '#');
        let mut part = || parts.next().ok_or_else(|| broken("sk"));
        let sub = part()?.parse().map_err(|_| broken("sk"))?;
        let sequence = part()?.parse().map_err(|_| broken("sk"))?;
        let lease = part()?.to_owned();
        Ok(Self {
            key: DeadLetterKey { lease, sequence, sub },
            partition_key: text("partition_key")?,
            reason: text("reason")?,
            bytes: number("bytes")?.try_into().map_err(|_| broken("bytes"))?,
            stored: WallTime::from_millis(number("stored")?),
            chunks: number("chunks")?.try_into().map_err(|_| broken("chunks"))?,
            sha256: text("sha256")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tenure_backend::Env;
    use tenure_clock::SystemClock;
    use tenure_store::Memory;

    use super::*;

    #[tokio::test]
    async fn what_is_stored_comes_back_whole_and_goes_away_whole() {
        let store = Arc::new(Memory::new(&Env::system()));
        let week = Duration::from_secs(7 * 24 * 3600);
        let letters = DeadLetters::new(store.clone(), Arc::new(SystemClock), "app".into(), week);
        assert_eq!(letters.list(Monotonic::NEVER, 10).await.unwrap(), [], "even before there is a table");
        letters.prepare(Monotonic::NEVER).await.unwrap();
        let key = |sequence: u64| DeadLetterKey {
            lease: "orders:shardId-000000000001".to_owned(),
            sequence: sequence.into(),
            sub: 3,
        };
        let content = vec![7; 600_000];
        for sequence in [20, 3] {
            letters
                .store(Monotonic::NEVER, &key(sequence), "orders/7", &content, &"é".repeat(4000))
                .await
                .unwrap();
        }
        let listed = letters.list(Monotonic::NEVER, 10).await.unwrap();
        assert_eq!(listed.iter().map(|letter| letter.key.clone()).collect::<Vec<_>>(), [key(3), key(20)]);
        assert_eq!((listed[0].partition_key.as_str(), listed[0].reason.len()), ("orders/7", 4096));
        assert_eq!(letters.content(Monotonic::NEVER, &listed[0]).await.unwrap(), content);
        for letter in &listed {
            letters.forget(Monotonic::NEVER, letter).await.unwrap();
        }
        assert!(letters.list(Monotonic::NEVER, 10).await.unwrap().is_empty());
        let left = store.scan_all(Monotonic::NEVER, DEAD_LETTERS_TABLE, 10).await.unwrap();
        assert_eq!(left.len(), 1, "its chunks are gone, too: {left:?}");
        let known = DeadLetters::applications(&*store, Monotonic::NEVER, 10).await.unwrap();
        assert_eq!(known.iter().map(|app| &**app).collect::<Vec<_>>(), ["app"]);
    }
}
