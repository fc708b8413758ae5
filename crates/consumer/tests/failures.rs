//! Processors that fail, and shards that stop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure_backend::{Env, Error, Kind};
use tenure_clock::Monotonic;
use tenure_consumer::{Failure, OnFailure, ShardContext, ShardState, Stop};
use tenure_quarantine::DeadLetters;
use tenure_store::Store;

use crate::harness::{FOREVER, Recorder, World, shown};

/// Starts a worker whose processor fails at one text, as long as `fails` says.
fn start_failing(
    world: &mut World,
    at: &'static str,
    fails: u32,
    failure: fn() -> Failure,
) -> Arc<AtomicU32> {
    let count = Arc::new(AtomicU32::new(0));
    let (log, counted) = (world.log.clone(), count.clone());
    world.start(move |_: &ShardContext| {
        let counted = counted.clone();
        Recorder::hooked(log.clone(), move |text| {
            if text == at && counted.fetch_add(1, Ordering::SeqCst) < fails { Err(failure()) } else { Ok(()) }
        })
    });
    count
}

fn plain() -> Failure {
    "does not compute".into()
}

fn state(world: &World) -> ShardState {
    world.handle().status()[0].state.clone()
}

#[tokio::test]
async fn a_failure_is_tried_again() {
    let mut world = World::new(1).await;
    world.put_texts(["a", "b", "c"]).await;
    let tried = start_failing(&mut world, "b", 3, plain);
    world.grant(0).await;
    world.logged("c").await;
    assert_eq!(tried.load(Ordering::SeqCst), 4);
    // What a batch did not settle comes again.
    assert_eq!(world.log.take(), ["init", "a", "a", "a", "a", "b", "c"]);
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let mut world = World::new(1).await;
    world.put_texts(["a"]).await;
    let log = world.log.clone();
    let count = Arc::new(AtomicU32::new(0));
    world.start(move |_: &ShardContext| {
        let count = count.clone();
        Recorder::hooked(log.clone(), move |_| {
            assert!(count.fetch_add(1, Ordering::SeqCst) > 1, "this panic belongs to the test");
            Ok(())
        })
    });
    world.grant(0).await;
    world.logged("a").await;
}

#[tokio::test]
async fn after_all_attempts_the_shard_stops_where_it_is_and_is_left_alone() {
    let mut world = World::new(1).await;
    world.put_texts(["a"]).await;
    let tried = start_failing(&mut world, "b", u32::MAX, plain);
    world.grant(0).await;
    world.logged("a").await;
    world.put_texts(["b", "c"]).await;
    world.asked("give 0").await;
    assert_eq!(tried.load(Ordering::SeqCst), 5);
    world.pass(Duration::from_millis(10)).await;
    let ShardState::Stopped(Stop::Processor(why)) = state(&world) else { panic!("{:?}", state(&world)) };
    assert!(why.contains("does not compute"), "{why}");
    assert_eq!(world.history().last().unwrap(), "give 0");
    assert_eq!(shown(&world.checkpoint(0)), "2.0", "nothing is passed that was not processed");
    assert_eq!(world.log.take(), ["init", "a", "drain Shutdown"]);

    // The lease comes back at once; the worker does not.
    world.grant(0).await;
    world.pass(Duration::from_millis(500)).await;
    assert_eq!((world.log.take(), state(&world)), (vec![], ShardState::Resting));
    world.logged("init").await;
    // And if it is to go elsewhere meanwhile, it goes.
    world.until("stops again", || matches!(state(&world), ShardState::Stopped(_))).await;
    world.grant(0).await;
    world.end(0, tenure_leases::Ending::Handoff).await;
    world.until("three times", || world.history().iter().filter(|line| *line == "give 0").count() == 3).await;
}

async fn with_store(world: &mut World) -> DeadLetters {
    let store: Arc<dyn Store> = Arc::new(tenure_store::Memory::new(&world.env));
    world.store = Some(store.clone());
    DeadLetters::new(store, world.env.clock.clone(), "app".into(), Duration::from_secs(3600))
}

#[tokio::test]
async fn a_record_that_cannot_be_processed_is_kept_and_the_shard_goes_on() {
    let mut world = World::new(1).await;
    world.settings.on_failure = OnFailure::DeadLetter;
    let letters = with_store(&mut world).await;
    world.put_texts(["a", "b", "c"]).await;
    start_failing(&mut world, "b", u32::MAX, plain);
    world.grant(0).await;
    world.logged("c").await;
    world.asked("checkpoint 4.0").await;
    let kept = letters.list(FOREVER, 10).await.unwrap();
    assert_eq!(kept.len(), 1);
    assert_eq!(
        (kept[0].key.to_string().as_str(), kept[0].reason.as_str()),
        ("shardId-000000000000#3#0", "does not compute")
    );
    assert_eq!(letters.content(FOREVER, &kept[0]).await.unwrap(), "b");
}

#[tokio::test]
async fn an_outage_buries_nothing() {
    let mut world = World::new(1).await;
    world.settings.on_failure = OnFailure::DeadLetter;
    let letters = with_store(&mut world).await;
    world.put_texts(["a"]).await;
    start_failing(&mut world, "a", u32::MAX, || Error::unavailable("the database is down").into());
    world.grant(0).await;
    world.asked("give 0").await;
    assert_eq!(letters.list(FOREVER, 10).await.unwrap(), []);
    assert_eq!(world.history(), ["give 0"]);
}

#[tokio::test]
async fn a_fenced_processor_lets_go_at_once() {
    let mut world = World::new(1).await;
    world.put_texts(["a"]).await;
    let tried = start_failing(&mut world, "a", u32::MAX, || {
        Error::new(Kind::Fenced, "another worker writes there").into()
    });
    world.grant(0).await;
    world.asked("give 0").await;
    assert_eq!(tried.load(Ordering::SeqCst), 1);
    assert_eq!(world.log.take(), ["init", "lost"]);
}

/// Does not let go: it panics, or hangs, when the shard is lost.
struct Clinging {
    recorder: Recorder,
    panics: bool,
}

#[async_trait::async_trait]
impl tenure_consumer::ShardProcessor for Clinging {
    async fn process(&mut self, batch: &tenure_consumer::Batch) -> Result<(), Failure> {
        self.recorder.process(batch).await
    }

    async fn lost(&mut self) {
        assert!(!self.panics, "this panic belongs to the test");
        std::future::pending().await
    }
}

#[tokio::test]
async fn a_processor_that_does_not_let_go_is_left_behind() {
    for (panics, is_fenced) in [(true, true), (false, true), (true, false), (false, false)] {
        let mut world = World::new(1).await;
        let log = world.log.clone();
        world.start(move |_: &ShardContext| {
            let fenced = move |_: &str| match is_fenced {
                true => Err(Error::new(Kind::Fenced, "another worker writes there").into()),
                false => Ok(()),
            };
            Clinging { recorder: Recorder::hooked(log.clone(), fenced), panics }
        });
        world.grant(0).await;
        world.put_texts(["a"]).await;
        if is_fenced {
            world.asked("give 0").await;
        } else {
            world.logged("a").await;
            world.end(0, tenure_leases::Ending::Lost).await;
        }
        world.until("it is gone", || state(&world) == ShardState::Gone).await;
    }
}

#[tokio::test]
async fn a_factory_that_panics_stops_the_shard() {
    let mut world = World::new(1).await;
    let log = world.log.clone();
    world.start(move |_: &ShardContext| {
        assert!(log.has("mended"), "this panic belongs to the test");
        Recorder::new(log.clone())
    });
    world.grant(0).await;
    world.until("it stops", || matches!(state(&world), ShardState::Stopped(_))).await;
    let ShardState::Stopped(stop) = state(&world) else { panic!("{:?}", state(&world)) };
    assert!(stop.to_string().contains("this panic belongs to the test"), "{stop}");
    assert_eq!(world.history(), ["give 0"]);
    world.log.add("mended");
    world.put_texts(["a"]).await;
    world.grant(0).await;
    world.logged("a").await;
}

#[tokio::test]
async fn a_processor_that_panics_while_it_drains_stops_the_shard_where_it_was() {
    struct Leaky(Recorder);
    #[async_trait::async_trait]
    impl tenure_consumer::ShardProcessor for Leaky {
        async fn process(&mut self, batch: &tenure_consumer::Batch) -> Result<(), Failure> {
            self.0.process(batch).await
        }
        async fn drain(&mut self, _: tenure_consumer::Drain) -> Result<(), Failure> {
            panic!("this panic belongs to the test");
        }
    }
    let mut world = World::new(1).await;
    let log = world.log.clone();
    world.start(move |_: &ShardContext| Leaky(Recorder::new(log.clone())));
    world.grant(0).await;
    world.put_texts(["a"]).await;
    world.logged("a").await;
    world.end(0, tenure_leases::Ending::Stop).await;
    world.asked("give 0").await;
    assert_eq!(world.history(), ["checkpoint 2.0", "give 0"]);
}

#[tokio::test]
async fn a_processor_that_cannot_begin_stops_the_shard() {
    struct Broken;
    #[async_trait::async_trait]
    impl tenure_consumer::ShardProcessor for Broken {
        async fn init(&mut self, _: &ShardContext) -> Result<tenure_consumer::Start, Failure> {
            Err("no password".into())
        }
        async fn process(&mut self, _: &tenure_consumer::Batch) -> Result<(), Failure> {
            Ok(())
        }
    }
    let mut world = World::new(1).await;
    world.start(|_: &ShardContext| Broken);
    world.grant(0).await;
    world.until("it stops", || matches!(state(&world), ShardState::Stopped(_))).await;
    assert_eq!(world.history(), ["give 0"]);
}

#[tokio::test]
async fn settings_that_need_a_store_are_refused_without_one() {
    let env = Env::system();
    let stream: Arc<dyn tenure_stream::Stream> =
        Arc::new(tenure_stream::Memory::new("s", env.clock.clone()).unwrap());
    let settings = tenure_consumer::Settings { on_failure: OnFailure::DeadLetter, ..Default::default() };
    let factory = Arc::new(|_: &ShardContext| Recorder::new(crate::harness::Log::default()));
    let refused =
        tenure_consumer::Worker::new("app", vec![stream], None, env, settings, factory).unwrap_err();
    assert!(refused.to_string().contains("store"), "{refused}");
    let _ = Monotonic::NEVER;
}
