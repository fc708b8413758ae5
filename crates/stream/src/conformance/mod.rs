//! The suite that every backend and every wrapper passes: one function per behaviour.
//!
//! A test file names its fixture once; the macro makes one test of each behaviour, so that they run
//! apart and in parallel:
//!
//! ```text
//! mod memory {
//!     tenure_stream::stream_conformance!(async { Fixture::of(…) });
//! }
//! ```
//!
//! What a backend cannot do is a field of [`Capabilities`], and that it refuses it is tested, too.

pub mod ending;
pub mod limiting;
pub mod living;
pub mod ordering;
pub mod positioning;
pub mod resharding;
pub mod routing;
pub mod trimming;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Clock, Monotonic};

use crate::{
    Batch, Cursor, Position, Put, Read, Record, Shard, ShardId, Stored, Stream, StreamExt, StreamSpec,
};

/// A stream that does not exist yet, and what can be expected of it.
#[derive(Debug)]
pub struct Fixture {
    /// The stream.
    pub stream: Arc<dyn Stream>,
    /// Another handle on the same stream, as another process would have it.
    pub other: Arc<dyn Stream>,
    /// The clock that both go by.
    pub clock: Arc<dyn Clock>,
    /// What it can do.
    pub can: Capabilities,
    /// Dropped after the test: a directory, a proxy.
    pub keep: Option<Box<dyn Guard>>,
}

/// What is dropped after the test.
pub trait Guard: Any + Send + Sync + std::fmt::Debug {}
impl<T: Any + Send + Sync + std::fmt::Debug> Guard for T {}

/// What not every backend can do.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// Change the number of shards in one call. Where not, the call is refused as `Invalid`.
    pub rescale: bool,
    /// Keep a number of bytes and drop the rest. Where not, such a stream is refused as `Invalid`.
    pub retention_bytes: bool,
    /// Heed how many shards are wanted on a page. Where not, a page holds what the service likes.
    pub page_sizes: bool,
}

impl Capabilities {
    /// Everything: what the embedded backends can do.
    pub const ALL: Self = Self { rescale: true, retention_bytes: true, page_sizes: true };
}

/// How long a call of the suite may take. Emulators on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(50);

/// How long until an empty read is tried again.
const PAUSE: Duration = Duration::from_millis(20);

impl Fixture {
    /// A deadline for one call, or for all calls of a short test.
    #[must_use]
    pub fn soon(&self) -> Monotonic {
        self.clock.deadline(PATIENCE)
    }

    /// Creates the stream with this many shards and lists them.
    pub async fn created(&self, shards: u32) -> Vec<Shard> {
        self.stream.create(self.soon(), &StreamSpec::with_shards(shards)).await.expect("create");
        self.shards().await
    }

    /// All shards.
    pub async fn shards(&self) -> Vec<Shard> {
        self.stream.all_shards(self.soon()).await.expect("list shards")
    }

    /// The open shards, by hash range.
    pub async fn open_shards(&self) -> Vec<Shard> {
        let mut open: Vec<_> = self.shards().await.into_iter().filter(Shard::is_open).collect();
        open.sort_by_key(|shard| shard.hash_range.start);
        open
    }

    /// Puts the records and wants all of them stored. Those that are throttled are put again.
    pub async fn put(&self, records: &[Record]) -> Vec<Put> {
        let mut puts = self.stream.put_all(self.soon(), records).await.expect("put");
        for (put, record) in puts.iter_mut().zip(records) {
            for _ in 0..50 {
                if *put != Put::Throttled {
                    break;
                }
                self.clock.sleep(PAUSE).await;
                *put =
                    self.stream.put(self.soon(), std::slice::from_ref(record)).await.expect("put").remove(0);
            }
            assert!(put.stored().is_some(), "{put:?}");
        }
        puts
    }

    /// A cursor in a shard.
    pub async fn cursor(&self, shard: &ShardId, position: Position) -> Cursor {
        self.stream.cursor(self.soon(), shard, &position).await.expect("cursor")
    }

    /// One read, which finds records or none but loses none.
    pub async fn read(&self, cursor: &Cursor, limit: usize) -> Batch {
        match self.stream.read(self.soon(), cursor, limit).await.expect("read") {
            Read::Records(batch) => batch,
            trimmed @ Read::Trimmed { .. } => panic!("unexpectedly trimmed: {trimmed:?}"),
        }
    }

    /// Reads on until `count` records were found or the shard ended; `None` reads to the end.
    pub async fn read_on(&self, cursor: Cursor, count: Option<usize>) -> (Vec<Stored>, Option<Cursor>) {
        let by = self.soon();
        let mut found = Vec::new();
        let mut next = Some(cursor);
        while let Some(cursor) = next.clone() {
            if count.is_some_and(|count| found.len() >= count) {
                break;
            }
            assert!(self.clock.monotonic() < by, "found {} of {count:?} records in time", found.len());
            let batch = self.read(&cursor, 1000).await;
            let empty = batch.records.is_empty();
            found.extend(batch.records);
            next = batch.next;
            if empty && next.is_some() {
                self.clock.sleep(PAUSE).await;
            }
        }
        (found, next)
    }

    /// The first `count` records of a shard.
    pub async fn first(&self, shard: &ShardId, count: usize) -> Vec<Stored> {
        let cursor = self.cursor(shard, Position::TrimHorizon).await;
        self.read_on(cursor, Some(count)).await.0
    }
}

fn texts(records: &[Stored]) -> Vec<String> {
    records.iter().map(|record| String::from_utf8_lossy(&record.data).into_owned()).collect()
}

/// Makes a test of every behaviour, for the fixture that the expression (a future) gives.
#[macro_export]
macro_rules! stream_conformance {
    ($fixture:expr) => {
        $crate::stream_conformance!(@tests $fixture;
            routing::{first_shards_are_uniform, keys_choose_their_shard_by_md5,
                explicit_hash_keys_choose_their_shard}
            ordering::{order_holds_within_a_shard, records_come_back_as_they_went_in,
                small_pages_miss_nothing, many_writers_and_readers_agree}
            positioning::{trim_horizon_begins_with_the_oldest, latest_begins_with_what_comes,
                at_and_after_a_sequence_number, at_a_timestamp, unknown_places_are_refused}
            resharding::{shards_come_in_pages, a_split_closes_one_and_opens_two,
                a_merge_closes_two_and_opens_one, impossible_changes_are_refused,
                a_rescale_reaches_its_number, a_rescale_under_writers_loses_nothing,
                splits_and_merges_under_writers_keep_order}
            ending::{a_closed_shard_ends_after_its_records, an_empty_shard_ends_at_once,
                a_reader_at_the_tip_sees_the_end}
            limiting::{large_records_are_refused_alone, bad_keys_are_refused_alone,
                calls_that_are_too_large_are_refused, put_all_divides_calls, larger_records_can_be_allowed}
            living::{creating_again_changes_nothing, racing_creators_agree, a_missing_stream_is_named,
                a_stream_made_anew_is_empty, impossible_streams_are_refused, waiting_ends}
            trimming::{a_reader_below_the_horizon_is_told}
        );
    };
    (@tests $fixture:expr; $($area:ident::{$($behaviour:ident),* $(,)?})*) => {
        $(mod $area {
            #[allow(unused_imports, reason = "the fixture's expression may need them or not")]
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $behaviour() {
                $crate::conformance::$area::$behaviour($fixture.await).await;
            })*
        })*
    };
}
