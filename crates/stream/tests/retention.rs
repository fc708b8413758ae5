//! What is too old goes, and a closed shard after its last record.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::Env;
use tenure_clock::{Entropy, ManualTime, Monotonic, WallTime};
use tenure_stream::{
    HashKey, Memory, Position, Read, Record, ShardId, Sqlite, Stream, StreamExt, StreamSpec,
};

const HOUR: Duration = Duration::from_secs(3600);
const BY: Monotonic = Monotonic::NEVER;

/// One record before a split, one after; the first and its shard go a day later, the second does not.
async fn records_and_shards_age(stream: &dyn Stream, time: &ManualTime) {
    let spec = StreamSpec { retention_age: Some(24 * HOUR), ..StreamSpec::default() };
    stream.create(BY, &spec).await.unwrap();
    let parent = ShardId::numbered(0);
    stream.put(BY, &[Record::new("k", "old")]).await.unwrap();
    let unread = stream.cursor(BY, &parent, &Position::TrimHorizon).await.unwrap();
    time.advance(HOUR);
    stream.split(BY, &parent, HashKey(1 << 127)).await.unwrap();
    time.advance(22 * HOUR);
    let put = stream.put(BY, &[Record::new("k", "new")]).await.unwrap();
    let (child, sequence) = put[0].stored().unwrap();
    let before = stream.cursor(BY, child, &Position::TrimHorizon).await.unwrap();

    // 24 h and a half after the record, 23 h and a half after the split: the record has gone.
    time.advance(HOUR + HOUR / 2);
    settled(stream).await;
    let Read::Trimmed { to, .. } = stream.read(BY, &unread, 10).await.unwrap() else {
        panic!("a silent jump")
    };
    let beyond = stream.cursor(BY, &parent, &Position::At(to)).await.unwrap();
    let Read::Records(batch) = stream.read(BY, &beyond, 10).await.unwrap() else { panic!("trimmed again") };
    assert_eq!((batch.records.len(), batch.next), (0, None));
    assert_eq!(stream.all_shards(BY).await.unwrap().len(), 3);

    // An hour later the closed shard has, too. The child has lost nothing.
    time.advance(HOUR);
    settled(stream).await;
    let shards = stream.all_shards(BY).await.unwrap();
    assert_eq!(
        shards.iter().map(|shard| shard.id.clone()).collect::<Vec<_>>(),
        [1, 2].map(ShardId::numbered)
    );
    assert_eq!(shards[0].parent, Some(parent.clone()));
    assert!(stream.cursor(BY, &parent, &Position::TrimHorizon).await.is_err());
    let Read::Records(batch) = stream.read(BY, &before, 10).await.unwrap() else {
        panic!("nothing is missing")
    };
    assert_eq!(&batch.records[0].sequence, sequence);

    // When all is gone, numbers go on where they were.
    time.advance(100 * HOUR);
    settled(stream).await;
    let later = stream.put(BY, &[Record::new("k", "later")]).await.unwrap();
    assert!(later[0].stored().unwrap().1 > sequence);
    assert_eq!(super::everything(stream, BY).await.len(), 1);
}

/// Readers ask for a trimming step in the background; a put takes part in the same queue.
async fn settled(stream: &dyn Stream) {
    for shard in stream.all_shards(BY).await.unwrap() {
        if let Ok(cursor) = stream.cursor(BY, &shard.id, &Position::TrimHorizon).await {
            let _ = stream.read(BY, &cursor, 1).await;
        }
    }
    tokio::task::yield_now().await;
    // Behind the step in the writing thread's queue; refused, it leaves nothing.
    let _ = stream.merge(BY, &ShardId::numbered(77), &ShardId::numbered(78)).await;
}

fn world() -> (ManualTime, Env) {
    let time = ManualTime::starting_at(WallTime::from_millis(1_700_000_000_000));
    let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
    (time, env)
}

#[tokio::test]
async fn memory_forgets_by_age() {
    let (time, env) = world();
    records_and_shards_age(&Memory::new("aging", env.clock.clone()).unwrap(), &time).await;
}

#[tokio::test]
async fn sqlite_forgets_by_age() {
    let (time, env) = world();
    let dir = tempfile::tempdir().unwrap();
    records_and_shards_age(&Sqlite::open(&dir.path().join("aging"), "aging", &env).unwrap(), &time).await;
}

/// A wall clock that was set back does not put a record before its predecessor.
#[tokio::test]
async fn dates_do_not_fall_when_the_clock_does() {
    let (time, mut env) = world();
    let dir = tempfile::tempdir().unwrap();
    let clock = time.node(0, 0);
    env.clock = Arc::new(clock.clone());
    let stream = Sqlite::open(&dir.path().join("a"), "a", &env).unwrap();
    stream.create(BY, &StreamSpec::default()).await.unwrap();
    for skew in [5000, 0, -60_000, 9000] {
        clock.set_skew_millis(skew);
        stream.put(BY, &[Record::new("k", "x")]).await.unwrap();
    }
    let dates: Vec<_> = super::everything(&stream, BY)
        .await
        .iter()
        .map(|record| record.arrived.as_millis() - 1_700_000_000_000)
        .collect();
    assert_eq!(dates, [5000, 5000, 5000, 9000]);
}

/// Nor does it hide records: whoever has more to read is behind, and a date ahead of now is found.
#[tokio::test]
async fn a_clock_that_was_set_back_hides_no_record() {
    let (time, _) = world();
    let clock = time.node(0, 0);
    let env = Env { clock: Arc::new(clock.clone()), entropy: Entropy::seeded(1) };
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&dir.path().join("a"), "a", &env).unwrap();
    let memory = Memory::new("a", env.clock.clone()).unwrap();
    for stream in [&sqlite as &dyn Stream, &memory] {
        clock.set_skew_millis(0);
        stream.create(BY, &StreamSpec::default()).await.unwrap();
        stream.put(BY, &[Record::new("k", "x"), Record::new("k", "y")]).await.unwrap();
        clock.set_skew_millis(-60_000);
        let shard = ShardId::numbered(0);
        let oldest = stream.cursor(BY, &shard, &Position::TrimHorizon).await.unwrap();
        let Read::Records(batch) = stream.read(BY, &oldest, 1).await.unwrap() else { panic!("trimmed") };
        assert!(!batch.behind.is_zero(), "another record waits");
        let ahead = Position::AtTimestamp(WallTime::from_millis(1_700_000_000_000 - 30_000));
        let cursor = stream.cursor(BY, &shard, &ahead).await.unwrap();
        let Read::Records(batch) = stream.read(BY, &cursor, 10).await.unwrap() else { panic!("trimmed") };
        assert_eq!(batch.records.len(), 2);
    }
}

/// However small the records and however fast they come, what is kept stays near its bound.
#[tokio::test]
async fn many_small_records_stay_within_the_bytes_kept() {
    let (_, env) = world();
    let dir = tempfile::tempdir().unwrap();
    let stream = Sqlite::open(&dir.path().join("a"), "a", &env).unwrap();
    let spec = StreamSpec { retention_bytes: Some(20_000), ..StreamSpec::default() };
    stream.create(BY, &spec).await.unwrap();
    let records: Vec<_> = (0..500).map(|_| Record::new("k", "123")).collect();
    // 80 puts of 2000 bytes, all in one moment of the clock.
    for _ in 0..80 {
        stream.put(BY, &records).await.unwrap();
    }
    let kept = super::everything(&stream, BY).await.len() * 4;
    assert!(kept <= 40_000, "{kept} bytes are kept where 20000 were asked for");
}

/// A cursor of a stream that was deleted does not wait in the one that took its name.
#[tokio::test]
async fn an_old_cursor_is_refused_by_a_stream_made_anew() {
    let (_, env) = world();
    let dir = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&dir.path().join("a"), "a", &env).unwrap();
    let memory = Memory::new("a", env.clock.clone()).unwrap();
    for stream in [&sqlite as &dyn Stream, &memory] {
        stream.create(BY, &StreamSpec::default()).await.unwrap();
        let records: Vec<_> = (0..10).map(|_| Record::new("k", "x")).collect();
        stream.put(BY, &records).await.unwrap();
        let old = stream.cursor(BY, &ShardId::numbered(0), &Position::Latest).await.unwrap();
        stream.delete(BY).await.unwrap();
        stream.create(BY, &StreamSpec::default()).await.unwrap();
        stream.put(BY, &records[..3]).await.unwrap();
        let refused = stream.read(BY, &old, 10).await.unwrap_err();
        assert!(refused.chain().contains("created anew"), "{refused:?}");
    }
}
