//! Random histories give the same answers on memory and on SQLite.

use std::sync::Arc;

use proptest::prelude::*;
use tenure_backend::{Env, Kind};
use tenure_clock::{Entropy, ManualTime, Monotonic, WallTime};
use tenure_stream::{
    Cursor, HashKey, Memory, Position, Put, Read, Record, Result, Shard, ShardId, Sqlite, Stream, StreamExt,
    StreamSpec,
};

#[derive(Debug, Clone)]
enum Step {
    Put(Vec<(u8, Option<u128>)>),
    Split(u8, u128),
    Merge(u8, u8),
    Rescale(u8),
    Cursor(u8, Place),
    /// Reads on with the cursor made last.
    Read(u8),
    Pass(u16),
}

#[derive(Debug, Clone, Copy)]
enum Place {
    TrimHorizon,
    Latest,
    At(u16),
    After(u16),
    AtTimestamp(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let place = prop_oneof![
        Just(Place::TrimHorizon),
        Just(Place::Latest),
        (0u16..60).prop_map(Place::At),
        (0u16..60).prop_map(Place::After),
        (0u16..2000).prop_map(Place::AtTimestamp),
    ];
    prop_oneof![
        4 => proptest::collection::vec((any::<u8>(), proptest::option::of(any::<u128>())), 0..6).prop_map(Step::Put),
        1 => (0u8..12, any::<u128>()).prop_map(|(shard, at)| Step::Split(shard, at)),
        1 => (0u8..12, 0u8..12).prop_map(|(one, two)| Step::Merge(one, two)),
        1 => (0u8..6).prop_map(Step::Rescale),
        2 => (0u8..12, place).prop_map(|(shard, place)| Step::Cursor(shard, place)),
        3 => (0u8..5).prop_map(Step::Read),
        1 => (0u16..400).prop_map(Step::Pass),
    ]
}

/// Everything that a step can answer. Messages may differ, kinds may not.
#[derive(Debug, PartialEq)]
enum Answer {
    Put(Result<Vec<Put>, Kind>),
    Done(Result<(), Kind>),
    Cursor(Result<Cursor, Kind>),
    Read(Result<Read, Kind>),
    Nothing,
}

const EPOCH: i64 = 1_700_000_000_000;

async fn answer(stream: &dyn Stream, step: &Step, cursor: &mut Option<Cursor>) -> Answer {
    let by = Monotonic::NEVER;
    let kind = |error: tenure_stream::Error| error.kind();
    let shard = |number: u8| ShardId::numbered(number.into());
    match step {
        Step::Put(records) => {
            let records: Vec<_> = records
                .iter()
                .map(|(key, hash)| Record {
                    // One key in 256 is empty, and refused.
                    partition_key: if *key == 0 { "".into() } else { format!("key-{key}").into() },
                    explicit_hash_key: hash.map(HashKey),
                    data: vec![*key; usize::from(*key)].into(),
                })
                .collect();
            Answer::Put(stream.put(by, &records).await.map_err(kind))
        }
        Step::Split(number, at) => {
            Answer::Done(stream.split(by, &shard(*number), HashKey(*at)).await.map_err(kind))
        }
        Step::Merge(one, two) => {
            Answer::Done(stream.merge(by, &shard(*one), &shard(*two)).await.map_err(kind))
        }
        Step::Rescale(count) => Answer::Done(stream.rescale(by, (*count).into()).await.map_err(kind)),
        Step::Cursor(number, place) => {
            let position = match *place {
                Place::TrimHorizon => Position::TrimHorizon,
                Place::Latest => Position::Latest,
                Place::At(sequence) => Position::At(u64::from(sequence).into()),
                Place::After(sequence) => Position::After(u64::from(sequence).into()),
                Place::AtTimestamp(millis) => {
                    Position::AtTimestamp(WallTime::from_millis(EPOCH + i64::from(millis)))
                }
            };
            let made = stream.cursor(by, &shard(*number), &position).await.map_err(kind);
            if let Ok(made) = &made {
                *cursor = Some(made.clone());
            }
            Answer::Cursor(made)
        }
        Step::Read(limit) => {
            let Some(from) = cursor.clone() else { return Answer::Nothing };
            let read = stream.read(by, &from, (*limit).into()).await.map_err(kind);
            if let Ok(Read::Records(batch)) = &read {
                cursor.clone_from(&batch.next);
            }
            Answer::Read(read)
        }
        Step::Pass(_) => Answer::Nothing,
    }
}

async fn replay(steps: Vec<Step>) {
    let time = ManualTime::starting_at(WallTime::from_millis(EPOCH));
    let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::new("model", env.clock.clone()).unwrap();
    let sqlite = Sqlite::open(&dir.path().join("model"), "model", &env).unwrap();
    let spec = StreamSpec::with_shards(2);
    let by = Monotonic::NEVER;
    let created = memory.create(by, &spec).await.unwrap();
    assert_eq!(sqlite.create(by, &spec).await.unwrap().limits, created.limits);
    let (mut model_cursor, mut cursor) = (None, None);
    for step in &steps {
        if let Step::Pass(millis) = step {
            time.advance(std::time::Duration::from_millis((*millis).into()));
        }
        let expected = answer(&memory, step, &mut model_cursor).await;
        assert_eq!(answer(&sqlite, step, &mut cursor).await, expected, "after {step:?}");
    }
    let expected: Vec<Shard> = memory.all_shards(by).await.unwrap();
    assert_eq!(sqlite.all_shards(by).await.unwrap(), expected);
    assert_eq!(crate::everything(&sqlite, by).await, crate::everything(&memory, by).await);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_and_sqlite_answer_alike(steps in proptest::collection::vec(step(), 1..40)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(replay(steps));
    }
}
