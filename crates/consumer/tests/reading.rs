//! What is read, where it begins, and what is not delivered.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::Env;
use tenure_consumer::{OnDamaged, SeekTo, ShardState, Stop};
use tenure_leases::{Checkpoint, Ending, LeaseKey};
use tenure_quarantine::{Parked, Quarantine, sha256};
use tenure_store::Store;
use tenure_stream::{HashKey, ShardId, StreamSpec};

use crate::events::{SECOND, aggregated, event, event_of, number, position, record};
use crate::harness::{FOREVER, World, shown};

/// The numbers of the events in the log.
fn numbers(world: &World) -> Vec<u64> {
    world.log.lines().iter().filter_map(|line| number(line)).collect()
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

#[tokio::test]
async fn copies_are_not_delivered_also_after_a_restart() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world
        .put([aggregated(0, &[event(0, 10, 0, 1), event(0, 20, 10, 1)]), record(1, event(1, 15, 0, 1))])
        .await;
    world.put([aggregated(0, &[event(0, 10, 0, 1), event(0, 20, 10, 1)])]).await;
    world.until("three", || numbers(&world).len() == 3).await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    // A zombie of a publisher sends them once more, and then comes news.
    world.start_recorder();
    world.grant(0).await;
    world
        .put([record(0, event(0, 20, 10, 1)), record(1, event(1, 15, 0, 1)), record(1, event(1, 30, 15, 1))])
        .await;
    world.until("the news", || numbers(&world).contains(&30)).await;
    assert_eq!(numbers(&world), [10, 20, 15, 30]);
}

#[tokio::test]
async fn a_child_drops_copies_of_what_its_parents_had() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put([record(0, event(0, 10, 0, 1)), record(3, event(3, 20, 0, 1))]).await;
    world.until("both", || numbers(&world).len() == 2).await;
    world.stream.split(FOREVER, &ShardId::numbered(0), HashKey(1 << 127)).await.unwrap();
    world.asked("give 0").await;
    world.grant(1).await;
    world.grant(2).await;
    world.put([record(0, event(0, 10, 0, 1)), record(3, event(3, 20, 0, 1))]).await;
    world.put([record(0, event(0, 30, 10, 1)), record(3, event(3, 40, 20, 1))]).await;
    world.until("the news", || numbers(&world).len() >= 4).await;
    world.pass(SECOND).await;
    let mut all = numbers(&world);
    all[2..].sort_unstable();
    assert_eq!(all, [10, 20, 30, 40]);
    // And together again.
    world.end(1, Ending::Stop).await;
    world.end(2, Ending::Stop).await;
    world.asked("give 2").await;
    world.stream.merge(FOREVER, &ShardId::numbered(1), &ShardId::numbered(2)).await.unwrap();
    world.grant(1).await;
    world.grant(2).await;
    world
        .until("both end", || [1, 2].iter().all(|shard| world.checkpoint(*shard) == Checkpoint::ShardEnd))
        .await;
    world.grant(3).await;
    world
        .put([record(0, event(0, 30, 10, 1)), record(3, event(3, 40, 20, 1)), record(3, event(3, 50, 40, 1))])
        .await;
    world.until("the news", || numbers(&world).contains(&50)).await;
    assert_eq!(numbers(&world).len(), 5);
}

#[tokio::test]
async fn a_gap_stops_the_shard_and_an_operator_lets_it_pass() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put([record(0, event(0, 10, 0, 1)), record(0, event(0, 30, 20, 1))]).await;
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::Gap { .. }), "{stop}");
    assert_eq!((numbers(&world), shown(&world.checkpoint(0))), (vec![10], "2.0".to_owned()));
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    world.until("past it", || numbers(&world).contains(&30)).await;
    world.put([record(0, event(0, 40, 30, 1)), record(0, event(0, 20, 10, 1))]).await;
    world.until("and on", || numbers(&world).contains(&40)).await;
    world.pass(SECOND).await;
    assert_eq!(numbers(&world), [10, 30, 40], "what was missing comes too late");
}

#[tokio::test]
async fn a_crash_within_an_aggregated_record_goes_on_within_it() {
    let mut world = World::new(1).await;
    let events: Vec<_> = (1..=4).map(|index| event(0, 10 * index, 10 * (index - 1), 1)).collect();
    world.put([aggregated(0, &events)]).await;
    let log = world.log.clone();
    world.start(move |_: &tenure_consumer::ShardContext| Halfway(log.clone()));
    world.grant(0).await;
    world.asked("checkpoint 2.1").await;
    world.kill();
    world.log.take();
    world.start_recorder();
    world.grant(0).await;
    world.until("the rest", || numbers(&world).len() == 2).await;
    assert_eq!(numbers(&world), [30, 40]);
    world.asked("checkpoint 2.3").await;
}

/// Settles the first two of a batch, and then hangs.
struct Halfway(crate::harness::Log);

#[async_trait::async_trait]
impl tenure_consumer::ShardProcessor for Halfway {
    async fn process(&mut self, batch: &tenure_consumer::Batch) -> Result<(), tenure_consumer::Failure> {
        batch.settle_through(&batch.records()[1]);
        self.0.add("halfway");
        std::future::pending().await
    }
}

#[tokio::test]
async fn without_the_marks_of_a_checkpoint_copies_come_and_no_gap_is_judged() {
    let mut world = World::new(1).await;
    world.put([record(0, event(0, 10, 0, 1)), record(0, event(0, 20, 10, 1))]).await;
    // Another kind of worker was here.
    world.row(&ShardId::numbered(0), Checkpoint::At { sequence: 3.into(), sub: 0 }).await;
    world.start_recorder();
    world.grant(0).await;
    world
        .put([record(0, event(0, 20, 10, 1)), record(0, event(0, 40, 30, 1)), record(0, event(0, 60, 50, 1))])
        .await;
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::Gap { .. }), "the lane is known by then: {stop}");
    assert_eq!(numbers(&world), [20]);
}

#[tokio::test]
async fn what_was_trimmed_stops_the_shard_and_an_operator_lets_it_pass() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    world.put_texts(["b", "c"]).await;
    world.time.advance(Duration::from_secs(25 * 3600));
    world.put_texts(["d"]).await;
    world.start_recorder();
    world.grant(0).await;
    let stop = stopped(&world).await;
    let Stop::Trimmed { from, to, since } = &stop else { panic!("{stop}") };
    assert_eq!((from.as_u64(), to.as_u64(), since.is_some()), (Some(3), Some(5), true), "{stop}");
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    world.logged("d").await;
    assert!(!world.log.has("b"));
}

#[tokio::test]
async fn after_a_loss_that_was_accepted_a_quiet_lane_is_no_gap_to_the_next_owner() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put([record(0, event(0, 10, 0, 1)), record(1, event(1, 20, 0, 1))]).await;
    world.until("both", || numbers(&world).len() == 2).await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    world.put([record(0, event(0, 30, 10, 1)), record(1, event(1, 40, 20, 1))]).await;
    world.time.advance(Duration::from_secs(25 * 3600));
    world.put([record(0, event(0, 50, 30, 1))]).await;
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    world.until("past it", || numbers(&world).contains(&50)).await;
    world.end(0, Ending::Stop).await;
    world.until("given", || world.history().iter().filter(|line| *line == "give 0").count() == 2).await;
    // The operator has turned it off again, and only now lane 1 has news. Its event 40 was trimmed, too.
    world.settings.accept_loss = false;
    world.start_recorder();
    world.grant(0).await;
    world.put([record(1, event(1, 60, 40, 1)), record(0, event(0, 80, 70, 1))]).await;
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::Gap { .. }), "a lane that was seen since is judged: {stop}");
    assert_eq!(numbers(&world), [10, 20, 50, 60]);
}

#[tokio::test]
async fn what_is_trimmed_after_its_checkpoint_is_no_loss() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    world.time.advance(Duration::from_secs(25 * 3600));
    world.put_texts(["b"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("b").await;
}

#[tokio::test]
async fn a_stream_that_was_created_anew_stops_the_shard() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a", "b", "c"]).await;
    world.logged("c").await;
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    world.stream.delete(FOREVER).await.unwrap();
    world.stream.create(FOREVER, &StreamSpec::with_shards(1)).await.unwrap();
    world.put_texts(["x"]).await;
    world.start_recorder();
    world.grant(0).await;
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::Recreated(_)) && stop.to_string().contains("created anew"), "{stop}");
    assert!(!world.log.has("x"));
}

#[tokio::test]
async fn a_damaged_record_goes_by_the_policy() {
    let mut world = World::new(1).await;
    let mut damaged = aggregated(0, &[event(0, 10, 0, 1)]);
    let mut bytes = damaged.data.to_vec();
    bytes[20] ^= 1;
    damaged.data = bytes.into();
    world.put([record(0, "first"), damaged, record(0, "last")]).await;
    world.start_recorder();
    world.grant(0).await;
    assert!(matches!(stopped(&world).await, Stop::Damaged(_)));
    assert_eq!(shown(&world.checkpoint(0)), "2.0");
    world.settings.on_damaged = OnDamaged::DeadLetter;
    let store: Arc<dyn Store> = Arc::new(tenure_store::Memory::new(&world.env));
    world.store = Some(store.clone());
    world.start_recorder();
    world.grant(0).await;
    world.logged("last").await;
    let letters = tenure_quarantine::DeadLetters::new(
        store,
        world.env.clock.clone(),
        "app".into(),
        Duration::from_secs(9),
    );
    assert_eq!(letters.list(FOREVER, 9).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_paused_shard_keeps_its_lease_and_is_not_read() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    let lease = LeaseKey::of_shard(&ShardId::numbered(0));
    world.handle().pause(&lease).unwrap();
    world.until("paused", || state(&world) == ShardState::Paused).await;
    world.put_texts(["b"]).await;
    world.pass(5 * SECOND).await;
    assert!(!world.log.has("b") && !world.history().contains(&"give 0".to_owned()));
    world.handle().resume(&lease).unwrap();
    world.logged("b").await;
    assert!(world.handle().pause(&LeaseKey::from("other")).is_err());
}

#[tokio::test]
async fn a_shard_is_read_from_elsewhere() {
    let mut world = World::new(1).await;
    world.put_texts(["a", "b", "c"]).await;
    world.start_recorder();
    world.grant(0).await;
    world.logged("c").await;
    world.log.take();
    let lease = LeaseKey::of_shard(&ShardId::numbered(0));
    let read_again = |log: Vec<String>| log.into_iter().filter(|line| line.len() == 1).collect::<Vec<_>>();
    world.rows.lock().unwrap().may_go_back = true;
    for (to, expected) in [
        (SeekTo::TrimHorizon, vec!["a", "b", "c"]),
        (SeekTo::Sequence(3.into()), vec!["b", "c"]),
        (SeekTo::Latest, vec!["d"]),
    ] {
        world.handle().seek(&lease, to.clone()).unwrap();
        world.logged("init").await;
        if to == SeekTo::Latest {
            world.pass(Duration::from_millis(100)).await;
            world.put_texts(["d"]).await;
        }
        world.until("all of it", || read_again(world.log.lines()).len() >= expected.len()).await;
        assert_eq!(read_again(world.log.take()), expected, "{to:?}");
    }
}

// === events that are kept beside the stream ===

async fn parked(world: &mut World, commit: u64, content: &str) -> (String, Quarantine) {
    let store: Arc<dyn Store> = Arc::new(tenure_store::Memory::new(&world.env));
    world.store = Some(store.clone());
    let quarantine =
        Quarantine::new(store, world.env.clock.clone(), "shop".into(), Duration::from_secs(3600));
    quarantine.prepare(FOREVER).await.unwrap();
    let parked = Parked { content: content.to_owned().into(), reason: None };
    quarantine.store(FOREVER, position(commit), HashKey(0), &parked).await.unwrap();
    let pointer = format!(
        r#""op":"pointer","pointer":{{"kind":"KIND","op":"insert","place":"p","bytes":{},"sha256":"{}"}}"#,
        content.len(),
        sha256(content.as_bytes())
    );
    (pointer, quarantine)
}

#[tokio::test]
async fn a_claim_check_is_fetched_and_what_is_quarantined_is_handed_over() {
    let mut world = World::new(1).await;
    let (pointer, _) = parked(&mut world, 20, r#"{"op":"insert","after":{"n":20}}"#).await;
    world
        .put([
            record(0, event(0, 10, 0, 1)),
            record(0, event_of(0, 20, 10, 1, &pointer.replace("KIND", "claim_check"))),
            record(0, event_of(0, 30, 20, 1, &pointer.replace("KIND", "quarantined"))),
            record(0, event(0, 40, 30, 1)),
        ])
        .await;
    world.start_recorder();
    world.grant(0).await;
    world.until("all", || numbers(&world).contains(&40)).await;
    assert_eq!(numbers(&world), [10, 20, 40]);
    let lines = world.log.lines();
    assert!(lines[2].starts_with(r#"{"tenure":{"v":1,"source":"shop","id":"1:0/14:0/14:0""#), "{}", lines[2]);
    assert!(lines[3].contains("quarantined"), "{}", lines[3]);
}

#[tokio::test]
async fn a_claim_check_that_cannot_be_fetched_stops_the_shard() {
    let mut world = World::new(1).await;
    let (pointer, quarantine) = parked(&mut world, 20, r#"{"op":"insert","after":{"n":20}}"#).await;
    let manifest = quarantine.manifest(FOREVER, position(20)).await.unwrap().unwrap();
    quarantine.drop_event(FOREVER, &manifest).await.unwrap();
    let pointer = pointer.replace("KIND", "claim_check");
    world.put([record(0, event(0, 10, 0, 1)), record(0, event_of(0, 20, 10, 1, &pointer))]).await;
    world.start_recorder();
    world.grant(0).await;
    let stop = stopped(&world).await;
    assert!(matches!(stop, Stop::ClaimCheck(_)), "{stop}");
    assert_eq!((numbers(&world), shown(&world.checkpoint(0))), (vec![10], "2.0".to_owned()));
    world.settings.accept_loss = true;
    world.start_recorder();
    world.grant(0).await;
    world.until("its pointer", || world.log.lines().iter().any(|line| line.contains("claim_check"))).await;
}

// === other streams ===

#[tokio::test]
async fn a_stream_that_misbehaves_is_read_all_the_same() {
    let mut world = World::new(1).await;
    world.row(&ShardId::numbered(0), Checkpoint::TrimHorizon).await;
    let mut faults = tenure_backend::Address::parse("x:y?seed=3&throttled=0.3&failed=0.3").unwrap();
    let faults = tenure_backend::Faults::from_address(&mut faults).unwrap();
    let plain = world.stream.clone();
    world.stream =
        Arc::new(tenure_stream::Faulty::new(plain.clone(), Arc::new(faults), world.env.clock.clone()));
    world.settings.records_per_read_max = 3;
    let texts: Vec<String> = (0..40).map(|index| format!("r{index}")).collect();
    let records: Vec<_> = texts.iter().map(|text| tenure_stream::Record::new("k", text.clone())).collect();
    plain.put(FOREVER, &records).await.unwrap();
    world.start_recorder();
    world.grant(0).await;
    world.logged("r39").await;
    assert_eq!(world.log.take()[1..], texts);
}

#[tokio::test]
async fn the_embedded_stream_is_read_and_gone_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::system();
    let stream =
        tenure_stream::open(&format!("sqlite:{}/s.db", folder.path().display()), &env).await.unwrap();
    stream.create(FOREVER, &StreamSpec::with_shards(1)).await.unwrap();
    let mut world = World::new(1).await;
    // Real time: its threads know no other.
    world.env = env.clone();
    world.stream = stream;
    let logged = async |world: &World, line: &'static str| {
        for _ in 0..3000 {
            if world.log.has(line) {
                return;
            }
            env.clock.sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {line}");
    };
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a", "b"]).await;
    logged(&world, "b").await;
    world.end(0, Ending::Handoff).await;
    logged(&world, "drain Handoff").await;
    while !world.history().contains(&"give 0".to_owned()) {
        env.clock.sleep(Duration::from_millis(10)).await;
    }
    world.put_texts(["c"]).await;
    world.log.take();
    world.start_recorder();
    world.grant(0).await;
    logged(&world, "c").await;
    assert_eq!(world.log.take(), ["init", "c"]);
    let _ = world.stream.name();
}
