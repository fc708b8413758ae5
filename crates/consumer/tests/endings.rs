//! How a shard is left: handed over, stopped, lost, read to its end.

use std::sync::Arc;
use std::time::Duration;

use tenure_consumer::{SeekTo, ShardContext};
use tenure_leases::{Checkpoint, Ending, LeaseKey};
use tenure_stream::HashKey;
use tokio::sync::Semaphore;

use crate::harness::{FOREVER, Recorder, World, shown};

#[tokio::test]
async fn a_planned_move_delivers_nothing_twice() {
    for (ending, drained) in [(Ending::Handoff, "drain Handoff"), (Ending::Stop, "drain Shutdown")] {
        let mut world = World::new(1).await;
        world.start_recorder();
        world.grant(0).await;
        world.put_texts(["a", "b", "c"]).await;
        world.logged("c").await;
        world.end(0, ending).await;
        world.asked("give 0").await;
        assert_eq!(world.log.take(), ["init", "a", "b", "c", drained]);
        // The checkpoint first, and then the lease.
        assert_eq!(world.history(), ["checkpoint 4.0", "give 0"]);

        world.put_texts(["d"]).await;
        world.start_recorder();
        world.grant(0).await;
        world.logged("d").await;
        assert_eq!(world.log.take(), ["init", "d"]);
    }
}

#[tokio::test]
async fn checkpoints_are_stored_while_work_goes_on() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.asked("checkpoint 2.0").await;
    world.put_texts(["b", "c"]).await;
    world.asked("checkpoint 4.0").await;
    // Nothing new, nothing written.
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(world.history(), ["checkpoint 2.0", "checkpoint 4.0"]);
}

#[tokio::test]
async fn how_much_is_read_is_measured_for_whoever_shares_out_leases() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts([&*"x".repeat(500 << 10)]).await;
    world.pass(Duration::from_secs(12)).await;
    let kbps = world.measured(0).await.unwrap();
    assert!((40.0..55.0).contains(&kbps), "{kbps}");
    world.pass(Duration::from_secs(12)).await;
    assert_eq!(world.measured(0).await, Some(0.0));
}

#[tokio::test]
async fn what_was_processed_after_the_last_checkpoint_comes_again_after_a_crash() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.asked("checkpoint 2.0").await;
    world.put_texts(["b"]).await;
    world.logged("b").await;
    world.kill();
    world.log.take();
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["c"]).await;
    world.logged("c").await;
    assert_eq!(world.log.take(), ["init", "b", "c"]);
}

#[tokio::test]
async fn a_lost_lease_cuts_off_what_is_under_way() {
    let mut world = World::new(1).await;
    let log = world.log.clone();
    world.start(move |_: &ShardContext| Stuck(Recorder::new(log.clone())));
    world.grant(0).await;
    world.put_texts(["a", "b"]).await;
    world.logged("begun").await;
    world.end(0, Ending::Lost).await;
    world.logged("lost").await;
    world.pass(Duration::from_secs(5)).await;
    assert_eq!(world.log.take(), ["init", "begun", "lost"]);
    assert_eq!(world.history(), Vec::<String>::new());
}

#[tokio::test]
async fn work_that_hangs_is_seen_by_the_keeper() {
    let mut world = World::new(1).await;
    let log = world.log.clone();
    world.start(move |_: &ShardContext| Stuck(Recorder::new(log.clone())));
    world.grant(0).await;
    world.pass(Duration::from_secs(3)).await;
    assert_eq!(world.stuck_since(0).await, None, "nothing is under way");
    world.put_texts(["a"]).await;
    world.logged("begun").await;
    let began = world.stuck_since(0).await.unwrap();
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(world.stuck_since(0).await, Some(began), "and it does not get on");
}

/// Gets on with a batch once it may.
struct Held(Recorder, Arc<Semaphore>);

#[async_trait::async_trait]
impl tenure_consumer::ShardProcessor for Held {
    async fn init(
        &mut self,
        shard: &ShardContext,
    ) -> Result<tenure_consumer::Start, tenure_consumer::Failure> {
        self.0.log.add(format!("sought {:?}", shard.sought()));
        Ok(tenure_consumer::Start::Lease)
    }

    async fn process(&mut self, _: &tenure_consumer::Batch) -> Result<(), tenure_consumer::Failure> {
        self.0.log.add("begun");
        self.1.acquire().await?.forget();
        Ok(())
    }
}

#[tokio::test]
async fn a_seek_of_a_shard_that_is_leaving_is_left_to_the_next_worker() {
    let mut world = World::new(1).await;
    let (log, may) = (world.log.clone(), Arc::new(Semaphore::new(0)));
    let allowed = may.clone();
    world.start(move |_: &ShardContext| Held(Recorder::new(log.clone()), allowed.clone()));
    let lease = LeaseKey::of_shard(&world.grant(0).await);
    world.put_texts(["a"]).await;
    world.logged("begun").await;
    world.handle().seek(&lease, SeekTo::Latest).unwrap();
    world.pass(Duration::from_millis(50)).await;
    world.end(0, Ending::Handoff).await;
    world.pass(Duration::from_millis(50)).await;
    may.add_permits(1);
    world.asked("give 0").await;
    assert_eq!(world.log.take(), ["sought None", "begun"], "it is not begun there for a moment");
    // One that stays is.
    world.grant(0).await;
    world.logged("sought None").await;
    let holds: Vec<_> = world.handle().status().into_iter().map(|shard| shard.hold).collect();
    assert_eq!(holds, [2]);
    world.handle().seek(&lease, SeekTo::Latest).unwrap();
    world.logged("sought Some(Latest)").await;
}

/// Never gets on.
struct Stuck(Recorder);

#[async_trait::async_trait]
impl tenure_consumer::ShardProcessor for Stuck {
    async fn init(
        &mut self,
        shard: &ShardContext,
    ) -> Result<tenure_consumer::Start, tenure_consumer::Failure> {
        self.0.init(shard).await
    }

    async fn process(&mut self, _: &tenure_consumer::Batch) -> Result<(), tenure_consumer::Failure> {
        self.0.log.add("begun");
        std::future::pending().await
    }

    async fn lost(&mut self) {
        self.0.lost().await;
    }
}

#[tokio::test]
async fn nothing_is_delivered_while_the_lease_is_not_valid() {
    let mut world = World::new(1).await;
    world.start_recorder();
    let deadline = world.env.clock.deadline(Duration::from_secs(10));
    world.grant_until(0, deadline).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    world.pass(Duration::from_secs(11)).await;
    world.put_texts(["b"]).await;
    world.pass(Duration::from_secs(11)).await;
    assert!(!world.log.has("b"));
    world.extend(0, FOREVER).await;
    world.logged("b").await;
}

#[tokio::test]
async fn a_shard_ends_and_its_children_go_on() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a", "b"]).await;
    world.logged("b").await;
    let shards = world.shards().await;
    world.stream.split(FOREVER, &shards[0].id, HashKey(1 << 127)).await.unwrap();
    world.put_texts(["c"]).await;
    world.asked("give 0").await;
    assert_eq!(world.log.take(), ["init", "a", "b", "drain ShardEnd"]);
    assert_eq!(world.checkpoint(0), Checkpoint::ShardEnd);
    world.grant(1).await;
    world.grant(2).await;
    world.logged("c").await;
    assert_eq!(world.log.take(), ["init", "init", "c"]);
}

#[tokio::test]
async fn a_refused_checkpoint_is_stored_later_and_a_fenced_one_ends_the_shard() {
    let mut world = World::new(1).await;
    world.start_recorder();
    world.grant(0).await;
    world.rows.lock().unwrap().refuse = vec![tenure_backend::Kind::Unavailable; 2];
    world.put_texts(["a"]).await;
    world.asked("checkpoint 2.0").await;
    world.rows.lock().unwrap().refuse = vec![tenure_backend::Kind::Fenced];
    world.put_texts(["b"]).await;
    world.logged("lost").await;
    assert_eq!(shown(&world.checkpoint(0)), "2.0");
}

#[tokio::test]
async fn a_final_checkpoint_is_tried_until_it_is_stored() {
    let mut world = World::new(1).await;
    world.settings.checkpoint_every = None;
    world.start_recorder();
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    world.pass(Duration::from_secs(30)).await;
    assert_eq!(world.history(), Vec::<String>::new(), "only when it is asked for");
    world.rows.lock().unwrap().refuse = vec![tenure_backend::Kind::Throttled; 3];
    world.end(0, Ending::Stop).await;
    world.asked("give 0").await;
    assert_eq!(world.history(), ["checkpoint 2.0", "give 0"]);
}

#[tokio::test]
async fn after_a_crash_nothing_is_missing_and_only_what_follows_the_checkpoint_comes_again() {
    for seed in 0..10 {
        let entropy = tenure_clock::Entropy::seeded(seed);
        let mut world = World::new(1).await;
        world.settings.records_per_read_max = 1 + entropy.below(4) as usize;
        world.settings.checkpoint_every = Some(Duration::from_millis(10 + entropy.below(100)));
        let mut written: u64 = 0;
        for _ in 0..10 {
            // Record n has the number n + 1.
            let done =
                match world.rows.lock().unwrap().leases.values().next().map(|lease| lease.checkpoint.clone())
                {
                    Some(Checkpoint::At { sequence, .. }) => sequence.as_u64().unwrap() - 1,
                    _ => 0,
                };
            world.start_recorder();
            world.grant(0).await;
            let texts: Vec<String> =
                (written + 1..=written + entropy.below(9)).map(|n| n.to_string()).collect();
            written += texts.len() as u64;
            world.put_texts(texts.iter().map(String::as_str)).await;
            world.pass(Duration::from_millis(entropy.below(200))).await;
            let planned = entropy.chance(0.3);
            if planned {
                world.end(0, Ending::Stop).await;
                world.asked("give 0").await;
            }
            world.kill();
            world.rows.lock().unwrap().history.clear();
            let got: Vec<u64> = world.log.take().iter().filter_map(|line| line.parse().ok()).collect();
            let expected: Vec<u64> = (done + 1..).take(got.len()).collect();
            assert_eq!(got, expected, "seed {seed}, checkpoint after {done}");
            if planned && !got.is_empty() {
                assert_eq!(
                    shown(&world.checkpoint(0)),
                    format!("{}.0", got.last().unwrap() + 1),
                    "seed {seed}"
                );
            }
        }
        world.start_recorder();
        world.grant(0).await;
        world.put_texts(["end"]).await;
        world.logged("end").await;
    }
}
