//! The trait that every backend and wrapper implements, and the conveniences on top of it.

use std::fmt::Debug;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::Monotonic;

use crate::{Cursor, HashKey, Limits, Position, Put, Read, Record, Shard, ShardId};

/// A handle on one named stream. Usable as `Arc<dyn Stream>`.
///
/// Every call takes the caller's deadline first. A call that changes something answers
/// [`Kind::Unknown`] if it may have been carried out; every other error means that it was not.
///
/// # Cancel safety
/// Dropping a call that only looks (`describe`, `limits`, `shards`, `cursor`, `read`, `wait`) has no
/// effect. Any other call may still be carried out after it was dropped.
#[async_trait]
pub trait Stream: Debug + Send + Sync {
    /// The stream's name.
    fn name(&self) -> &str;

    /// Creates the stream if there is none of that name, and waits until it can be used.
    ///
    /// One that exists already is left as it is, whatever its shards and retention, and whoever
    /// creates it at the same moment. The answer describes what is there. (Kinesis alone raises a
    /// retention of 24 hours if more is asked for: an earlier `create` may have been cut short there.)
    ///
    /// # Errors
    /// `Invalid` if the name or the specification is.
    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description>;

    /// What the stream is like now.
    ///
    /// # Errors
    /// `Invalid` if there is no such stream, here as in every other call.
    async fn describe(&self, by: Monotonic) -> Result<Description>;

    /// What the stream allows in a record and in a call.
    async fn limits(&self, by: Monotonic) -> Result<Limits>;

    /// One page of the shards, closed ones included, in the order of their names.
    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage>;

    /// Puts up to 500 records and says of each what became of it, in the same order.
    ///
    /// Records of one call and shard that are stored are stored in the order given.
    ///
    /// # Errors
    /// `Invalid` if there are too many records or bytes: nothing was sent. `Throttled` and
    /// `Unavailable`: nothing was stored. `Unknown`: any of the records may have been stored.
    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>>;

    /// A place in a shard from which to read.
    ///
    /// # Errors
    /// `Invalid` if there is no such shard, or the sequence number did not come from this stream.
    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor>;

    /// Up to `limit` records from the cursor on (and less, if they are large).
    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read>;

    /// Closes an open shard and opens two in its place: the part below `at` and the part from `at` on.
    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()>;

    /// Closes two open shards whose ranges touch and opens one in their place.
    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()>;

    /// Splits and merges until there are `shards` open shards of one size.
    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()>;

    /// Deletes the stream and everything in it. Deleting what is not there is done at once.
    async fn delete(&self, by: Monotonic) -> Result<()>;

    /// Completes when there may be something new to read, and at `by` at the latest.
    async fn wait(&self, by: Monotonic);
}

/// What a new stream is to be like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamSpec {
    /// How many shards of one size to begin with.
    pub shards: u32,
    /// How long records are kept. Absent: the address's `retention_hours`, or 24 hours.
    pub retention_age: Option<Duration>,
    /// How many bytes are kept. Absent: the address's `retention_bytes`, or the backend's own bound.
    /// Kinesis keeps by age alone and refuses it.
    pub retention_bytes: Option<u64>,
    /// Most bytes in one record, key included: 1 MiB to 10 MiB.
    pub record_bytes_max: usize,
}

impl StreamSpec {
    /// So many shards, the rest as usual.
    #[must_use]
    pub fn with_shards(shards: u32) -> Self {
        Self { shards, ..Self::default() }
    }
}

impl Default for StreamSpec {
    fn default() -> Self {
        Self {
            shards: 1,
            retention_age: None,
            retention_bytes: None,
            record_bytes_max: Limits::default().bytes_per_record_max,
        }
    }
}

/// What a stream is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Its name.
    pub name: String,
    /// How many shards are open.
    pub open_shards: u32,
    /// How long records are kept.
    pub retention_age: Duration,
    /// How many bytes are kept, if that is bounded.
    pub retention_bytes: Option<u64>,
    /// What it allows in a record and in a call.
    pub limits: Limits,
}

/// Which page of the shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Where the page before ended. Absent: the first.
    pub token: Option<PageToken>,
    /// Most shards on it, 1 to 1000.
    pub size: usize,
}

impl Page {
    /// Most shards on a page.
    pub const SIZE_MAX: usize = 1000;

    /// The page after the one that gave this token.
    #[must_use]
    pub fn after(token: PageToken) -> Self {
        Self { token: Some(token), ..Self::default() }
    }

    pub(crate) fn size_within_bounds(&self) -> usize {
        self.size.clamp(1, Self::SIZE_MAX)
    }
}

impl Default for Page {
    fn default() -> Self {
        Self { token: None, size: Self::SIZE_MAX }
    }
}

/// Where a page of shards ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken(pub(crate) String);

/// One page of the shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPage {
    /// The shards, in the order of their names.
    pub shards: Vec<Shard>,
    /// Where to go on; absent on the last page.
    pub next: Option<PageToken>,
}

/// Pages of shards that [`StreamExt::all_shards`] follows at most: far more shards than any stream has.
const PAGES_MAX: usize = 10_000;

/// What can be said in terms of [`Stream`] alone. Implemented for every stream.
#[async_trait]
pub trait StreamExt: sealed::Sealed {
    /// Every shard, closed ones included.
    ///
    /// # Errors
    /// As [`Stream::shards`].
    async fn all_shards(&self, by: Monotonic) -> Result<Vec<Shard>>;

    /// Puts any number of records in as many calls as needed, one result per record, in their order.
    ///
    /// A call that fails as a whole ends it if nothing was put before. Otherwise the records of
    /// that call and all later ones are answered as throttled when it is known that none of them
    /// landed.
    ///
    /// # Errors
    /// As [`Stream::put`] if nothing was put before; later only `Unknown`: earlier records are stored.
    async fn put_all(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>>;
}

#[async_trait]
impl<S: Stream + ?Sized> StreamExt for S {
    async fn all_shards(&self, by: Monotonic) -> Result<Vec<Shard>> {
        let mut shards = Vec::new();
        let mut page = Page::default();
        for _ in 0..PAGES_MAX {
            let found = self.shards(by, &page).await?;
            shards.extend(found.shards);
            match found.next {
                Some(token) => page = Page::after(token),
                None => break,
            }
        }
        Ok(shards)
    }

    async fn put_all(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        let limits = self.limits(by).await?;
        let mut results = Vec::with_capacity(records.len());
        while results.len() < records.len() {
            let rest = &records[results.len()..];
            let chunk = &rest[..limits.fitting(rest)];
            match self.put(by, chunk).await {
                Ok(puts) => results.extend(puts),
                Err(error)
                    if !results.is_empty() && matches!(error.kind(), Kind::Throttled | Kind::Unavailable) =>
                {
                    results.resize(records.len(), Put::Throttled);
                }
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => {
                    let stored = format!("the first {} records were put, the rest was not", results.len());
                    return Err(Error::new(Kind::Unknown, stored).because(error.chain()));
                }
            }
        }
        Ok(results)
    }
}

mod sealed {
    pub trait Sealed {}
    impl<S: super::Stream + ?Sized> Sealed for S {}
}
