//! The task and its handles, on a clock that moves by itself as soon as everybody waits.

use std::future::Future;
use std::task::Poll;

use tenure_clock::{Entropy, ManualTime, WallTime};
use tenure_store::{Condition, Memory, StoreExt};
use tenure_stream::{Memory as MemoryStream, StreamSpec};

use super::*;
use crate::rows::lease_row;
use crate::{Checkpoint, Lease};

/// Turns that each task gets before time may pass.
const TURNS: usize = 40;

struct World {
    time: ManualTime,
    env: Env,
    store: Arc<Memory>,
    stream: Arc<dyn Stream>,
}

impl World {
    async fn new(shards: u32) -> Self {
        let time = ManualTime::starting_at(WallTime::from_millis(1_763_553_900_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let stream = MemoryStream::new("orders", env.clock.clone()).unwrap();
        stream.create(Monotonic::NEVER, &StreamSpec::with_shards(shards)).await.unwrap();
        Self { store: Arc::new(Memory::new(&env)), stream: Arc::new(stream), time, env }
    }

    fn worker(&self, name: &str) -> Builder {
        Keeper::builder(self.store.clone(), &self.env, "orders-app", name).stream(self.stream.clone())
    }

    /// Lets time pass until the future is done.
    async fn until<F: Future>(&self, future: F) -> F::Output {
        let mut future = Box::pin(future);
        for _ in 0..200_000 {
            for _ in 0..TURNS {
                let polled = std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
                if let Poll::Ready(output) = polled {
                    return output;
                }
                tokio::task::yield_now().await;
            }
            self.time.advance_to_next().expect("everybody waits for something that never comes");
        }
        panic!("not done after 200,000 turns of the clock, {:?}", self.time.elapsed());
    }

    async fn pass(&self, duration: Duration) {
        let clock = self.time.clock();
        self.until(clock.sleep(duration)).await;
    }

    async fn row(&self, number: u64) -> Option<Lease> {
        let key = LeaseKey::of_shard(&tenure_stream::ShardId::numbered(number));
        let item = self.store.get(Monotonic::NEVER, "orders-app", &lease_row(&key)).await.unwrap()?;
        Place::new("orders-app", crate::COORDINATION_TABLE).lease(&item).unwrap()
    }
}

fn at(number: u64) -> Checkpoint {
    Checkpoint::At { sequence: number.into(), sub: 0 }
}

#[tokio::test]
async fn stopping_hands_everything_to_the_others() {
    let world = World::new(2).await;
    let (a, mut of_a) = world.until(world.worker("a").cap(2).start()).await.unwrap();
    let (b, mut of_b) = world.until(world.worker("b").cap(0).start()).await.unwrap();
    let held = [world.until(of_a.recv()).await.unwrap(), world.until(of_a.recv()).await.unwrap()];
    world.pass(Duration::from_secs(60)).await;
    assert!(held.iter().all(Holding::is_valid), "renewed");
    world.until(held[0].checkpoint(at(7), None)).await.unwrap();
    let back = world.until(held[0].checkpoint(at(6), None)).await.unwrap_err();
    assert_eq!(back.kind(), Kind::Invalid);
    b.set_cap(5).await;
    world.pass(Duration::from_secs(1)).await;
    let began = world.time.elapsed();
    let stopping = tokio::spawn({
        let a = a.clone();
        async move { a.stop().await }
    });
    for holding in held {
        assert_eq!(world.until(holding.ends(None)).await, Ending::Stop);
        world.until(holding.give()).await.unwrap();
        assert!(!holding.is_valid());
    }
    let first = world.until(of_b.recv()).await.unwrap();
    let second = world.until(of_b.recv()).await.unwrap();
    let took = world.time.elapsed() - began;
    assert!(took <= Duration::from_secs(1), "{took:?}");
    assert!([&first, &second].iter().any(|holding| holding.lease().checkpoint == at(7)));
    world.until(stopping).await.unwrap().unwrap();
    // It is gone, and says so.
    assert!(world.until(b.view().wait_for(|view| view.fleet.len() == 1)).await.is_ok());
}

#[tokio::test]
async fn a_lease_that_nobody_wants_is_given_back() {
    let world = World::new(1).await;
    let (_a, mut of_a) = world.until(world.worker("a").start()).await.unwrap();
    drop(world.until(of_a.recv()).await.unwrap());
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.row(0).await.unwrap().owner, None);
}

#[tokio::test]
async fn a_consumer_that_does_not_get_on_loses_its_lease() {
    let world = World::new(1).await;
    let settings = Settings { progress_timeout: Some(Duration::from_secs(20)), ..Settings::default() };
    let (a, mut of_a) = world.until(world.worker("a").settings(settings).start()).await.unwrap();
    let holding = world.until(of_a.recv()).await.unwrap();
    for _ in 0..10 {
        world.pass(Duration::from_secs(10)).await;
        holding.progress(true);
        assert!(holding.is_valid());
    }
    let began = world.time.elapsed();
    assert_eq!(world.until(holding.ends(None)).await, Ending::Lost);
    let took = world.time.elapsed() - began;
    assert!(took > Duration::from_secs(20) && took < Duration::from_secs(32), "{took:?}");
    assert_eq!(world.until(holding.checkpoint(at(5), None)).await.unwrap_err().kind(), Kind::Fenced);
    drop(a);
}

#[tokio::test]
async fn who_cannot_start_says_why() {
    let world = World::new(1).await;
    let (_a, _of_a) = world.until(world.worker("a").start()).await.unwrap();
    let other = Settings { lease: Duration::from_secs(20), ..Settings::default() };
    let refused = world.until(world.worker("b").settings(other).start()).await.unwrap_err();
    assert!(refused.kind() == Kind::Invalid && refused.chain().contains("last 10s"), "{refused:?}");
    let refused = world.until(world.worker("a").start()).await.unwrap_err();
    assert!(refused.chain().contains("give each worker its own name"), "{refused:?}");
    let refused = world.until(world.worker("").start()).await.unwrap_err();
    assert!(refused.chain().contains("1 to 512 bytes"), "{refused:?}");
    let bare = Keeper::builder(world.store.clone(), &world.env, "orders-app", "c");
    assert!(world.until(bare.start()).await.unwrap_err().chain().contains("no stream was named"));
}

#[tokio::test]
async fn what_a_consumer_measures_is_stored_with_a_renewal() {
    let world = World::new(1).await;
    let (_a, mut of_a) = world.until(world.worker("a").start()).await.unwrap();
    let holding = world.until(of_a.recv()).await.unwrap();
    holding.measured(f64::NAN);
    world.pass(Duration::from_secs(8)).await;
    assert_eq!(world.row(0).await.unwrap().throughput_kbps, None);
    holding.measured(12.5);
    world.pass(Duration::from_secs(8)).await;
    assert_eq!(world.row(0).await.unwrap().throughput_kbps, Some(12.5));
}

#[tokio::test]
async fn a_handle_that_is_dropped_ends_the_worker() {
    let world = World::new(1).await;
    let (a, mut of_a) = world.until(world.worker("a").start()).await.unwrap();
    let holding = world.until(of_a.recv()).await.unwrap();
    drop(a);
    assert_eq!(world.until(holding.ends(None)).await, Ending::Stop);
    world.until(holding.give()).await.unwrap();
    assert!(world.until(of_a.recv()).await.is_none());
    assert_eq!(world.row(0).await.unwrap().owner, None);
}

#[tokio::test]
async fn a_table_of_an_old_kcl_is_used_as_it_is() {
    let world = World::new(1).await;
    let old = crate::rows::bare_lease_table_spec("orders-app");
    world.store.ensure_table(Monotonic::NEVER, &old).await.unwrap();
    let row = tenure_store::Item::new()
        .with("leaseKey", "shardId-000000000000")
        .with("leaseCounter", 12)
        .with("ownerSwitchesSinceCheckpoint", 0)
        .with("checkpoint", "17")
        .with("checkpointSubSequenceNumber", 0);
    world.store.put(Monotonic::NEVER, "orders-app", row, Condition::Always).await.unwrap();
    let (_a, mut of_a) = world.until(world.worker("a").start()).await.unwrap();
    assert_eq!(world.until(of_a.recv()).await.unwrap().lease().checkpoint, at(17));
    let now = world.store.describe_table(Monotonic::NEVER, "orders-app").await.unwrap().unwrap();
    assert_eq!(now, old);
}
