//! Several keys at once, and settling by hand.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tenure_consumer::{
    Batch, Delivered, Drain, Failure, Keyed, KeyedProcessor, Settlement, ShardContext, ShardProcessor,
    ShardState, Stop,
};
use tenure_leases::Ending;
use tenure_stream::Record;
use tokio::sync::Semaphore;

use crate::events::SECOND;
use crate::harness::{Log, World, shown};

/// Logs records; those of some keys wait at a gate.
struct Gated {
    log: Log,
    gates: Arc<BTreeMap<String, Semaphore>>,
    fails: Option<&'static str>,
}

#[async_trait]
impl KeyedProcessor for Gated {
    async fn process(&self, record: &Delivered) -> Result<(), Failure> {
        if let Some(gate) = self.gates.get(&*record.partition_key) {
            gate.acquire().await.unwrap().forget();
        }
        let text = String::from_utf8_lossy(&record.data).into_owned();
        if self.fails == Some(&*text) {
            return Err("does not compute".into());
        }
        self.log.add(text);
        Ok(())
    }

    async fn drain(&self, why: Drain) -> Result<(), Failure> {
        self.log.add(format!("drain {why:?}"));
        Ok(())
    }
}

fn start(world: &mut World, gated: &[&str], fails: Option<&'static str>) -> Arc<BTreeMap<String, Semaphore>> {
    let gates: Arc<BTreeMap<_, _>> =
        Arc::new(gated.iter().map(|key| ((*key).to_owned(), Semaphore::new(0))).collect());
    let (log, opened) = (world.log.clone(), gates.clone());
    world.start(move |_: &ShardContext| {
        let gated = Gated { log: log.clone(), gates: opened.clone(), fails };
        Keyed::new(NonZeroUsize::new(64).unwrap(), gated)
    });
    gates
}

fn records<'a>(texts: &'a [&'a str]) -> impl Iterator<Item = Record> + 'a {
    // `a1`: key a, first record.
    texts.iter().map(|text| Record::new(text[..1].to_owned(), (*text).to_owned()))
}

#[tokio::test]
async fn a_slow_key_holds_up_the_checkpoint_and_nobody_else() {
    let mut world = World::new(1).await;
    let gates = start(&mut world, &["s"], None);
    world.grant(0).await;
    world.put(records(&["a1", "s1", "b1", "a2", "s2"])).await;
    world.put(records(&["b2", "a3"])).await;
    world.logged("a3").await;
    world.logged("b2").await;
    world.pass(5 * SECOND).await;
    assert_eq!(shown(&world.checkpoint(0)), "2.0", "a1 alone comes before s1");
    gates["s"].add_permits(1);
    world.asked("checkpoint 5.0").await;
    // A planned stop waits for it.
    world.end(0, Ending::Stop).await;
    world.pass(5 * SECOND).await;
    assert!(!world.history().contains(&"give 0".to_owned()));
    gates["s"].add_permits(1);
    world.asked("give 0").await;
    assert_eq!(shown(&world.checkpoint(0)), "8.0");
    let lines = world.log.take();
    for key in ["a", "b", "s"] {
        let own: Vec<_> = lines.iter().filter(|line| line.starts_with(key) && line.len() == 2).collect();
        assert!(own.is_sorted() && own.len() >= 2, "{lines:?}");
    }
    assert_eq!(lines.last().unwrap(), "drain Shutdown");
}

#[tokio::test]
async fn what_was_not_settled_comes_again_after_a_crash() {
    let mut world = World::new(1).await;
    start(&mut world, &["s"], None);
    world.grant(0).await;
    world.put(records(&["a1", "s1", "a2"])).await;
    world.logged("a2").await;
    world.asked("checkpoint 2.0").await;
    world.kill();
    world.log.take();
    start(&mut world, &[], None);
    world.grant(0).await;
    world.logged("s1").await;
    world.asked("checkpoint 4.0").await;
    let mut lines = world.log.take();
    lines.sort();
    assert_eq!(lines, ["a2", "s1"]);
}

#[tokio::test]
async fn a_record_that_cannot_be_processed_stops_the_shard_before_it() {
    let mut world = World::new(1).await;
    start(&mut world, &[], Some("b1"));
    world.grant(0).await;
    world.put(records(&["a1", "b1", "a2"])).await;
    world.until("it stops", || matches!(world.handle().status()[0].state, ShardState::Stopped(_))).await;
    let ShardState::Stopped(Stop::Processor(why)) = world.handle().status()[0].state.clone() else {
        panic!()
    };
    assert!(why.contains("does not compute"), "{why}");
    assert_eq!(shown(&world.checkpoint(0)), "2.0");
    assert!(world.log.has("a2"), "other keys were not held up");
}

#[tokio::test]
async fn a_lost_lease_ends_the_slots() {
    let mut world = World::new(1).await;
    let gates = start(&mut world, &["s"], None);
    world.grant(0).await;
    world.put(records(&["s1"])).await;
    world.pass(SECOND).await;
    world.end(0, Ending::Lost).await;
    world.until("gone", || world.handle().status()[0].state == ShardState::Gone).await;
    gates["s"].add_permits(5);
    world.pass(SECOND).await;
    assert_eq!(world.log.take(), Vec::<String>::new());
}

// === settling by hand ===

/// Takes records and settles them when it is told to.
#[derive(Clone, Default)]
struct ByHand {
    taken: Arc<Mutex<Vec<Delivered>>>,
    checkpointer: Arc<Mutex<Option<tenure_consumer::Checkpointer>>>,
    settles_on_drain: bool,
}

#[async_trait]
impl ShardProcessor for ByHand {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        *self.checkpointer.lock().unwrap() = Some(batch.shard().checkpointer().clone());
        self.taken.lock().unwrap().extend(batch.records().iter().cloned());
        Ok(())
    }

    async fn drain(&mut self, _: Drain) -> Result<(), Failure> {
        if self.settles_on_drain
            && let Some(last) = self.taken.lock().unwrap().last()
        {
            self.checkpointer.lock().unwrap().as_ref().unwrap().settle_through(last);
        }
        Ok(())
    }

    fn settlement(&self) -> Settlement {
        Settlement::ByHand
    }
}

#[tokio::test]
async fn checkpoints_go_as_far_as_is_settled_by_hand() {
    let mut world = World::new(1).await;
    let by_hand = ByHand::default();
    let made = by_hand.clone();
    world.start(move |_: &ShardContext| made.clone());
    world.grant(0).await;
    world.put(records(&["a1", "a2", "a3"])).await;
    world.until("taken", || by_hand.taken.lock().unwrap().len() == 3).await;
    world.pass(3 * SECOND).await;
    assert_eq!(world.history(), Vec::<String>::new());
    let checkpointer = by_hand.checkpointer.lock().unwrap().clone().unwrap();
    let taken = by_hand.taken.lock().unwrap().clone();
    checkpointer.settle(&taken[1]);
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(world.history(), Vec::<String>::new());
    checkpointer.settle(&taken[0]);
    checkpointer.checkpoint().await.unwrap();
    assert_eq!(world.history(), ["checkpoint 3.0"]);
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    checkpointer.settle(&taken[2]);
    assert!(checkpointer.checkpoint().await.is_err(), "its run is over");
    assert_eq!(world.history(), ["checkpoint 3.0", "give 0"]);
}

#[tokio::test]
async fn the_end_of_a_shard_wants_everything_settled() {
    for settles_on_drain in [false, true] {
        let mut world = World::new(1).await;
        let by_hand = ByHand { settles_on_drain, ..ByHand::default() };
        world.start(move |_: &ShardContext| by_hand.clone());
        world.put(records(&["a1"])).await;
        let shards = world.shards().await;
        let middle = tenure_stream::HashKey(1 << 127);
        world.stream.split(crate::harness::FOREVER, &shards[0].id, middle).await.unwrap();
        world.grant(0).await;
        world.asked("give 0").await;
        let expected = if settles_on_drain { vec!["checkpoint ShardEnd", "give 0"] } else { vec!["give 0"] };
        assert_eq!(world.history(), expected);
    }
}

#[tokio::test]
async fn whoever_settles_nothing_gets_no_more_than_a_bound() {
    let mut world = World::new(1).await;
    world.settings.unsettled_records_max = 4;
    world.settings.records_per_read_max = 2;
    let by_hand = ByHand::default();
    let made = by_hand.clone();
    world.start(move |_: &ShardContext| made.clone());
    world.grant(0).await;
    world.put(records(&["a1", "a2", "a3", "a4", "a5", "a6", "a7"])).await;
    world.pass(5 * SECOND).await;
    assert_eq!(by_hand.taken.lock().unwrap().len(), 4);
    let (checkpointer, last) =
        (by_hand.checkpointer.lock().unwrap().clone().unwrap(), by_hand.taken.lock().unwrap()[1].clone());
    checkpointer.settle_through(&last);
    world.until("two more", || by_hand.taken.lock().unwrap().len() == 6).await;
}
