//! Where reading begins for good, and what the stream has trimmed meanwhile.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tenure_consumer::marks::Marks;
use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor, ShardState, Start, Stop, WorkerHandle};
use tenure_leases::{Checkpoint, Ending, LeaseKey};
use tenure_stream::{
    Cursor, Description, HashKey, Limits, Memory, Page, Position, Put, Read, Record, SequenceNumber, ShardId,
    ShardPage, Stored, Stream, StreamSpec,
};

use crate::harness::{FOREVER, World, shown};

const HOUR: Duration = Duration::from_secs(3600);

/// A stream that behaves like Kinesis: its numbers are long, its end is a moment, and it begins with the oldest
/// record that is left without a word of what was before.
#[derive(Debug)]
struct Silent {
    inner: Memory,
    clock: Arc<dyn Clock>,
    /// The next so many reads find that their cursor is forgotten.
    forgets: AtomicU32,
    /// How often it was asked what it is, and how many times from now on it does not say.
    described: AtomicU32,
    throttles: AtomicU32,
    /// The retention that it says, if it was changed: it trims as before.
    retention_hours: AtomicU32,
}

/// Whether there was one left of so many.
fn takes_one(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
}

fn long(sequence: &SequenceNumber) -> SequenceNumber {
    format!("4959033827149025660855969253836157{:012}", sequence.as_u64().unwrap()).parse().unwrap()
}

fn short(sequence: &SequenceNumber) -> SequenceNumber {
    let text = sequence.to_string();
    text[text.len().saturating_sub(12)..].parse().unwrap()
}

#[async_trait]
impl Stream for Silent {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        self.inner.create(by, spec).await
    }

    async fn describe(&self, by: Monotonic) -> Result<Description> {
        self.described.fetch_add(1, Ordering::SeqCst);
        if takes_one(&self.throttles) {
            return Err(Error::new(Kind::Throttled, "twenty a second"));
        }
        let mut described = self.inner.describe(by).await?;
        match self.retention_hours.load(Ordering::SeqCst) {
            0 => {}
            hours => described.retention_age = HOUR * hours,
        }
        Ok(described)
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.inner.limits(by).await
    }

    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage> {
        self.inner.shards(by, page).await
    }

    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        self.inner.put(by, records).await
    }

    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        let position = match position {
            Position::At(sequence) => Position::At(short(sequence)),
            Position::After(sequence) => Position::After(short(sequence)),
            Position::Latest => {
                return Ok(Cursor::new(shard.clone(), Position::AtTimestamp(self.clock.wall())));
            }
            other => other.clone(),
        };
        self.inner.cursor(by, shard, &position).await
    }

    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        if takes_one(&self.forgets) {
            return Err(Error::invalid("the iterator has expired"));
        }
        let asked = cursor;
        let mut cursor = self.inner.cursor(by, asked.shard(), asked.position()).await?;
        loop {
            match self.inner.read(by, &cursor, limit).await? {
                Read::Trimmed { to, .. } => {
                    cursor = self.inner.cursor(by, cursor.shard(), &Position::At(to)).await?;
                }
                Read::Records(mut batch) => {
                    let renamed = |record: Stored| Stored { sequence: long(&record.sequence), ..record };
                    batch.records = batch.records.into_iter().map(renamed).collect();
                    if batch.records.is_empty() {
                        // It stands where it stood.
                        batch.next = batch.next.map(|_| asked.clone());
                    }
                    return Ok(Read::Records(batch));
                }
            }
        }
    }

    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        self.inner.split(by, shard, at).await
    }

    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        self.inner.merge(by, shard, adjacent).await
    }

    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()> {
        self.inner.rescale(by, shards).await
    }

    async fn delete(&self, by: Monotonic) -> Result<()> {
        self.inner.delete(by).await
    }

    async fn wait(&self, by: Monotonic) {
        self.inner.wait(by).await;
    }
}

async fn silent() -> (World, Arc<Silent>) {
    let mut world = World::new(1).await;
    let inner = Memory::new("silent", world.env.clock.clone()).unwrap();
    let none = || AtomicU32::new(0);
    let clock = world.env.clock.clone();
    let (forgets, described, throttles, retention_hours) = (none(), none(), none(), none());
    let stream = Arc::new(Silent { inner, clock, forgets, described, throttles, retention_hours });
    stream.create(FOREVER, &StreamSpec::with_shards(1)).await.unwrap();
    world.stream = stream.clone();
    (world, stream)
}

fn state(world: &World) -> ShardState {
    world.handle().status()[0].state.clone()
}

async fn stopped(world: &World) -> Stop {
    world.until("it stops", || matches!(state(world), ShardState::Stopped(_))).await;
    match state(world) {
        ShardState::Stopped(stop) => stop,
        other => panic!("{other:?}"),
    }
}

/// Hours go by, and everybody does now and then what they do.
async fn hours(world: &World, count: u32) {
    for _ in 0..count / 2 {
        world.time.advance(2 * HOUR);
        world.pass(Duration::from_millis(400)).await;
    }
}

async fn processed_until_checkpoint(world: &mut World, text: &'static str) {
    world.start_recorder();
    world.grant(0).await;
    world.put_texts([text]).await;
    world.logged(text).await;
    world.pass(Duration::from_secs(2)).await;
}

// === LATEST ===

#[tokio::test]
async fn latest_is_one_place_for_all_who_take_over_before_the_first_checkpoint() {
    let mut world = World::new(1).await;
    world.settings.checkpoint_every = None;
    world.put_texts(["old"]).await;
    world.row(&ShardId::numbered(0), Checkpoint::Latest).await;
    world.start_recorder();
    world.grant(0).await;
    world.asked("checkpoint Latest").await;
    // It dies before anything came.
    world.kill();
    world.put_texts(["a"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("a").await;
    // It dies after it has processed something, and before it has stored how far it came.
    world.kill();
    world.put_texts(["b"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("b").await;
    assert_eq!(world.log.take(), ["init", "init", "a", "init", "a", "b"]);
    assert_eq!(world.history(), ["checkpoint Latest"], "found out once");
    // A planned move stores how far it came, and that is the end of it.
    world.end(0, Ending::Handoff).await;
    world.asked("give 0").await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["c"]).await;
    world.logged("c").await;
    assert_eq!(world.log.take(), ["drain Handoff", "init", "c"]);
}

#[tokio::test]
async fn nothing_is_delivered_before_it_is_stored_where_latest_is() {
    let mut world = World::new(1).await;
    world.row(&ShardId::numbered(0), Checkpoint::Latest).await;
    world.rows.lock().unwrap().refuse = vec![Kind::Unavailable; 3];
    world.start_recorder();
    world.grant(0).await;
    world.until("it has tried", || world.rows.lock().unwrap().refuse.len() < 3).await;
    world.put_texts(["a"]).await;
    while !world.history().contains(&"checkpoint Latest".to_owned()) {
        assert!(!world.log.has("a"));
        world.pass(Duration::from_millis(5)).await;
    }
    world.logged("a").await;
}

/// Pauses its own shard before anything of it is read.
struct Paused {
    worker: Arc<OnceLock<WorkerHandle>>,
}

#[async_trait]
impl ShardProcessor for Paused {
    async fn init(&mut self, shard: &ShardContext) -> std::result::Result<Start, Failure> {
        self.worker.get().unwrap().pause(&shard.lease().key).unwrap();
        Ok(Start::Lease)
    }

    async fn process(&mut self, _: &Batch) -> std::result::Result<(), Failure> {
        panic!("it is paused")
    }
}

#[tokio::test]
async fn it_is_stored_where_latest_is_also_while_nothing_is_read() {
    let mut world = World::new(1).await;
    world.row(&ShardId::numbered(0), Checkpoint::Latest).await;
    let worker = Arc::new(OnceLock::new());
    let made = worker.clone();
    world.start(move |_: &ShardContext| Paused { worker: made.clone() });
    worker.set(world.handle().clone()).ok().unwrap();
    world.grant(0).await;
    world.asked("checkpoint Latest").await;
    assert_eq!(state(&world), ShardState::Paused);
    world.put_texts(["a"]).await;
    world.pass(Duration::from_secs(1)).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("a").await;
}

// === streams that do not say what they trimmed ===

#[tokio::test]
async fn a_shard_that_was_idle_for_longer_than_records_are_kept_has_lost_nothing() {
    let (mut world, _) = silent().await;
    world.settings.checkpoint_every = Some(Duration::from_millis(50));
    processed_until_checkpoint(&mut world, "a").await;
    let before = world.history().len();
    hours(&world, 40).await;
    let notes = world.history().len() - before;
    assert!((5..=14).contains(&notes), "a write every three hours at most: {notes}");
    world.kill();
    hours(&world, 16).await;
    world.put_texts(["b"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("b").await;
    assert_eq!(state(&world), ShardState::Reading);
    // So does an owner that has read nothing itself.
    world.pass(Duration::from_secs(2)).await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    for _ in 0..4 {
        world.start_recorder();
        world.grant(0).await;
        hours(&world, 10).await;
        world.kill();
    }
    world.put_texts(["c"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("c").await;
}

#[tokio::test]
async fn how_long_records_are_kept_is_waited_for_where_it_decides() {
    let (mut world, stream) = silent().await;
    world.settings.checkpoint_every = Some(Duration::from_millis(50));
    processed_until_checkpoint(&mut world, "a").await;
    hours(&world, 40).await;
    world.kill();
    stream.throttles.store(10, Ordering::SeqCst);
    world.put_texts(["b"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("b").await;
    assert_eq!(stream.throttles.load(Ordering::SeqCst), 0);
    assert_eq!(state(&world), ShardState::Reading);
}

#[tokio::test]
async fn a_longer_retention_does_not_bring_back_what_was_trimmed() {
    let (mut world, stream) = silent().await;
    processed_until_checkpoint(&mut world, "a").await;
    world.end(0, Ending::Handoff).await;
    world.asked("give 0").await;
    world.put_texts(["lost"]).await;
    hours(&world, 30).await;
    stream.retention_hours.store(168, Ordering::SeqCst);
    world.put_texts(["b"]).await;
    world.grant(0).await;
    assert!(matches!(stopped(&world).await, Stop::Trimmed { .. }));
    assert!(!world.log.has("b"));
    assert_eq!(stream.described.load(Ordering::SeqCst), 2, "each reader has the answer of the first");
}

#[tokio::test]
async fn a_shard_begun_at_latest_that_stays_idle_has_lost_nothing() {
    let (mut world, _) = silent().await;
    world.settings.checkpoint_every = Some(Duration::from_millis(50));
    world.row(&ShardId::numbered(0), Checkpoint::Latest).await;
    world.start_recorder();
    world.grant(0).await;
    world.asked("checkpoint Latest").await;
    hours(&world, 40).await;
    world.kill();
    world.put_texts(["a"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("a").await;
    assert_eq!(state(&world), ShardState::Reading);
}

#[tokio::test]
async fn what_was_trimmed_unread_stops_the_shard_although_the_stream_says_nothing() {
    let (mut world, _) = silent().await;
    processed_until_checkpoint(&mut world, "a").await;
    world.kill();
    world.put_texts(["b"]).await;
    world.time.advance(30 * HOUR);
    world.put_texts(["c"]).await;
    world.start_recorder();
    world.grant(0).await;
    let stop = stopped(&world).await;
    let Stop::Trimmed { from, to, since } = &stop else { panic!("{stop}") };
    assert_eq!((short(from), short(to)), (2.into(), 4.into()));
    assert!(since.is_some() && stop.to_string().contains("may have been trimmed"), "{stop}");
    assert!(!world.log.has("c"));

    // Nobody notes that nothing came while it is open whether something was lost.
    let marks = |world: &World| {
        let rows = world.rows.lock().unwrap();
        Marks::decode(rows.leases[&ShardId::numbered(0)].marks.as_ref().unwrap()).unwrap()
    };
    assert_eq!(marks(&world).through, *since);
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    world.logged("c").await;
    world.pass(Duration::from_secs(2)).await;
    assert_eq!(shown(&world.checkpoint(0)), format!("{}.0", long(&4.into())));
}

#[tokio::test]
async fn a_reader_that_stood_still_for_too_long_notices_what_it_missed() {
    let (mut world, _) = silent().await;
    world.settings.records_per_read_max = 1;
    world.settings.prefetch_batches = 1;
    processed_until_checkpoint(&mut world, "a").await;
    let lease = LeaseKey::of_shard(&ShardId::numbered(0));
    world.handle().pause(&lease).unwrap();
    world.until("paused", || state(&world) == ShardState::Paused).await;
    world.put_texts(["b", "c", "d", "e", "f", "g"]).await;
    world.pass(Duration::from_secs(1)).await;
    world.time.advance(30 * HOUR);
    world.put_texts(["z"]).await;
    world.handle().resume(&lease).unwrap();
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::Trimmed { .. }), "{stop}");
    assert!(world.log.has("b") && !world.log.has("z"), "{:?}", world.log.lines());
}

#[tokio::test]
async fn a_reader_close_to_the_horizon_goes_on_as_long_as_nothing_is_missing() {
    let (mut world, _) = silent().await;
    world.settings.records_per_read_max = 1;
    world.settings.prefetch_batches = 1;
    processed_until_checkpoint(&mut world, "a").await;
    let lease = LeaseKey::of_shard(&ShardId::numbered(0));
    world.handle().pause(&lease).unwrap();
    world.until("paused", || state(&world) == ShardState::Paused).await;
    world.put_texts(["b", "c", "d", "e", "f", "g"]).await;
    world.time.advance(24 * HOUR - Duration::from_secs(60));
    world.handle().resume(&lease).unwrap();
    world.logged("g").await;
    let texts: Vec<_> = world.log.take();
    assert_eq!(texts, ["init", "a", "b", "c", "d", "e", "f", "g"]);
}

#[tokio::test]
async fn a_cursor_that_was_forgotten_is_taken_anew() {
    let (mut world, stream) = silent().await;
    processed_until_checkpoint(&mut world, "a").await;
    stream.forgets.store(1, Ordering::SeqCst);
    world.put_texts(["b"]).await;
    world.logged("b").await;
    stream.forgets.store(1, Ordering::SeqCst);
    world.put_texts(["c"]).await;
    world.logged("c").await;
    assert_eq!(world.log.take(), ["init", "a", "b", "c"]);
}

// === a loss that was accepted ===

#[tokio::test]
async fn a_loss_that_was_accepted_is_not_told_again() {
    let mut world = World::new(1).await;
    processed_until_checkpoint(&mut world, "a").await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    world.put_texts(["b", "c"]).await;
    world.time.advance(25 * HOUR);
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    // Also if nothing comes after it.
    world.asked("checkpoint 4.0").await;
    world.kill();
    world.settings.accept_loss = false;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["d"]).await;
    world.logged("d").await;
    assert!(!world.log.has("b"));
}
