//! Kinesis as the sink: the real SDK, an emulator, and a proxy between them that breaks calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_cdc::sink::StreamSink;
use tenure_fault_proxy::{FaultProxy, Script};
use tenure_stream::identity::Position;
use tenure_stream::{HashKey, Kinesis, KinesisPlace, Shard, Stream, StreamExt as _, StreamSpec};

use super::world::{World, id_of, soon};

const KEYS: i64 = 20;
const ROUNDS: i64 = 24;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_emulator_that_reshards() {
    keeps_order_and_identity("TENURE_TEST_KINESIS_LOCAL").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_quicker_emulator() {
    keeps_order_and_identity("TENURE_TEST_KINESALITE").await;
}

async fn open(world: &World, name: &str, endpoint: &str) -> Arc<dyn Stream> {
    let place = KinesisPlace { endpoint: Some(endpoint.to_owned()), ..KinesisPlace::default() };
    Arc::new(Kinesis::open(name, place, &world.env).await.unwrap())
}

/// Some records of a call fail, some replies are lost, a shard is split and two are merged, and the leader dies:
/// everything is there, per key in order, and every copy has the identity of the first.
async fn keeps_order_and_identity(variable: &str) {
    let emulator = std::env::var(variable).unwrap_or_else(|_| {
        panic!("{variable} is not set: run cargo xtask services up, or use cargo xtask test")
    });
    let script = |rules: &[&str]| Script::parse(11, rules).unwrap();
    let proxy = FaultProxy::start(&emulator, script(&[])).await.unwrap();
    let mut world = World::new().await;
    let name = format!("cdc-{}", world.env.entropy.nonce());
    world.stream = open(&world, &name, &emulator).await;
    world.stream.create(soon(), &StreamSpec::with_shards(2)).await.unwrap();
    let behind_the_proxy = open(&world, &name, &proxy.url()).await;
    let start = || {
        let mut settings = world.settings();
        settings.publisher.backoff_min = Duration::from_millis(5);
        settings.publisher.backoff_max = Duration::from_millis(50);
        let sink = Arc::new(StreamSink::new(behind_the_proxy.clone()));
        world.start_service(world.service(settings, sink))
    };

    let running = start();
    proxy.set_script(script(&[
        // On a slow machine a few large calls do it all: each kind comes once for certain.
        "PutRecords=partial(0.3, at_least_one)#1",
        "PutRecords=lose_reply#1",
        "PutRecords=partial(0.3, at_least_one)@0.4",
        "PutRecords=lose_reply@0.1",
        "PutRecords=throttle@0.1",
        "PutRecords=server_error_applied(503)@0.05",
    ]));
    let insert = format!("INSERT INTO items SELECT i, 0, 'x' FROM generate_series(1, {KEYS}) i");
    world.sql.batch_execute(&insert).await.unwrap();
    let update = async |rounds: i64| {
        for _ in 0..rounds {
            world.sql.batch_execute("UPDATE items SET version = version + 1").await.unwrap();
        }
    };
    update(ROUNDS / 4).await;
    split_the_first(&*world.stream).await;
    update(ROUNDS / 4).await;
    // Somewhere in the middle of it.
    world.events_when(usize::try_from(KEYS * 2).unwrap()).await;
    running.crash().await;
    let running = start();
    update(ROUNDS / 4).await;
    merge_the_first(&*world.stream).await;
    update(ROUNDS / 4).await;
    let all = usize::try_from(KEYS * (ROUNDS + 1)).unwrap();
    world.events_when(all).await;
    running.end().await.unwrap();

    // From the beginning: what was read in between may have met a shard before the rest of its parent.
    let (events, records) = world.read_afresh(all).await;
    assert!(records < events.len(), "{records} records of {} events: nothing is aggregated", events.len());
    let mut identities: BTreeMap<(i64, i64), Position> = BTreeMap::new();
    let mut versions: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for event in &events {
        let key = event["key"]["id"].as_i64().unwrap();
        let version = event["after"]["version"].as_i64().unwrap();
        let id = *identities.entry((key, version)).or_insert_with(|| {
            versions.entry(key).or_default().push(version);
            id_of(event)
        });
        assert_eq!(id, id_of(event), "a copy has the identity of the first");
    }
    assert_eq!(identities.len(), all);
    for (key, versions) in versions {
        assert_eq!(versions, (0..=ROUNDS).collect::<Vec<_>>(), "{key}");
    }
    let counts = proxy.counts();
    assert!(counts.injected("PutRecords", "partial") > 0 && counts.injected("PutRecords", "lose_reply") > 0);
    assert!(counts.seen("ListShards") > 0, "whoever knows the shards sends each no more than it takes");
    world.stream.delete(soon()).await.unwrap();
    proxy.stop().await;
    world.clean_up().await;
}

async fn open_shards(stream: &dyn Stream) -> Vec<Shard> {
    let mut shards = stream.all_shards(soon()).await.unwrap();
    shards.retain(Shard::is_open);
    shards.sort_by_key(|shard| shard.hash_range.start);
    shards
}

async fn split_the_first(stream: &dyn Stream) {
    let first = open_shards(stream).await.remove(0);
    let (start, end) = (first.hash_range.start.0, first.hash_range.end.0);
    stream.split(soon(), &first.id, HashKey(start + (end - start) / 2)).await.unwrap();
}

async fn merge_the_first(stream: &dyn Stream) {
    let open = open_shards(stream).await;
    stream.merge(soon(), &open[0].id, &open[1].id).await.unwrap();
}
