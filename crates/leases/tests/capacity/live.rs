//! While the fleet runs, on manual time: who adjusts the row, when, and who notices what.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::{Entropy, ManualTime};
use tenure_leases::WorkerId;
use tenure_leases::capacity::{
    Alarm, Builder, Cap, CapacityHandle, CapacityManager, Count, Evidence, Report, Settings, Why,
};
use tenure_store::{Condition, Faulty, Item, Key, Memory, Store, StoreExt, Update};

use super::site::{APP, STREAM, Shards, Workers, at, soon};

/// How long the tests let pass at once: finer than any period here.
const STEP: Duration = Duration::from_millis(500);

pub(super) struct World {
    pub(super) time: ManualTime,
    env: Env,
    pub(super) store: Arc<dyn Store>,
    pub(super) shards: Arc<Shards>,
    pub(super) workers: Arc<Workers>,
    pub(super) settings: Settings,
}

impl World {
    /// 30 shards, and three workers that are declared.
    pub(super) fn new() -> Self {
        let time = ManualTime::starting_at(at(10, 0, 0));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(7) };
        let store = Arc::new(Memory::new(&env));
        Self {
            time,
            env,
            store,
            shards: Shards::new(30),
            workers: Workers::new(Count::Known(3)),
            settings: Settings::default(),
        }
    }

    pub(super) fn env(&self) -> Env {
        self.env.clone()
    }

    pub(super) fn worker(&self, name: &str) -> Builder {
        self.worker_on(self.store.clone(), name)
    }

    pub(super) fn worker_on(&self, store: Arc<dyn Store>, name: &str) -> Builder {
        CapacityManager::builder(store, self.shards.clone(), STREAM, APP, WorkerId::from(name), &self.env())
            .settings(self.settings.clone())
            .census(self.workers.clone())
    }

    pub(super) async fn start(&self, name: &str) -> CapacityHandle {
        let handle = self.worker(name).build().unwrap().start().await.unwrap();
        // Its task begins now, and not half a second later.
        everybody().await;
        handle
    }

    /// Lets time pass, and everybody do what is due.
    pub(super) async fn pass(&self, seconds: u64) {
        let until = self.time.elapsed() + Duration::from_secs(seconds);
        while self.time.elapsed() < until {
            self.time.advance(STEP);
            everybody().await;
        }
    }

    pub(super) async fn row(&self, worker: &str) -> Option<Item> {
        self.store.get(soon(), &format!("{STREAM}_meta"), &Key::new("worker_id", worker)).await.unwrap()
    }

    /// What the coordinator row says: shards, workers, leases each.
    pub(super) async fn coordinator(&self) -> (i64, i64, i64) {
        let row = self.row("my-app_coordinator").await.expect("a coordinator row");
        let number = |name| row.integer(name).unwrap();
        (number("shard_count"), number("worker_count"), number("max_leases_per_worker"))
    }

    /// Changes a row by hand.
    pub(super) async fn edit(&self, worker: &str, change: Update) {
        let table = format!("{STREAM}_meta");
        let key = Key::new("worker_id", worker);
        self.store.update(soon(), &table, key, change, Condition::Always).await.unwrap();
    }
}

/// Lets every task do what it can do now.
async fn everybody() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

fn cap(handle: &CapacityHandle) -> u64 {
    handle.cap().borrow().value
}

fn ids(names: &[&str]) -> std::collections::BTreeSet<WorkerId> {
    names.iter().map(|name| WorkerId::from(*name)).collect()
}

#[tokio::test]
async fn a_change_needs_no_restart() {
    let world = World::new();
    let running = [world.start("a").await, world.start("b").await, world.start("c").await];
    world.pass(60).await;
    assert_eq!(running.each_ref().map(cap), [10, 10, 10]);
    world.shards.set(60);
    // Two looks of the leader, and one of everybody.
    world.pass(16).await;
    assert_eq!(running.each_ref().map(cap), [20, 20, 20]);
    assert_eq!(world.coordinator().await, (60, 3, 20));
    world.shards.set(30);
    world.pass(20).await;
    assert_eq!(running.each_ref().map(cap), [20, 20, 20], "less is no hurry");
    world.pass(20).await;
    assert_eq!(running.each_ref().map(cap), [10, 10, 10]);
}

#[tokio::test]
async fn with_live_adjustment_off_a_worker_keeps_its_cap_until_it_restarts() {
    let mut world = World::new();
    world.settings.live = false;
    let a = world.start("a").await;
    world.shards.set(60);
    world.pass(600).await;
    assert_eq!(cap(&a), 10);
    let again = world.start("a").await;
    assert_eq!((cap(&a), cap(&again)), (10, 20));
}

#[tokio::test]
async fn a_rollout_does_not_make_workers_fight() {
    let world = World::new();
    let a = world.start("a").await;
    let b = world.start("b").await;
    // During a rollout each new pod sees another number.
    world.workers.set(Count::Known(6));
    let c = world.start("c").await;
    assert_eq!(world.coordinator().await, (30, 6, 5), "at the start the declared number is believed");
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 3, 10), "then three are seen alive");
    let epoch = world.row("my-app_coordinator").await.unwrap().integer("epoch");
    world.pass(600).await;
    assert_eq!(world.row("my-app_coordinator").await.unwrap().integer("epoch"), epoch, "nobody fights");
    assert_eq!([&a, &b, &c].map(cap), [10, 10, 10]);
    let leaders = [&a, &b, &c].iter().filter(|handle| handle.explain().leading).count();
    assert_eq!(leaders, 1);
}

#[tokio::test]
async fn the_dead_leave_the_fleet_and_their_rows_go() {
    let mut world = World::new();
    world.settings.keep_rows = Duration::from_secs(600);
    let a = world.start("a").await;
    let b = world.start("b").await;
    let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(1)).unwrap());
    let fragile = Faulty::new(world.store.clone(), faults.clone(), world.env().clock);
    let elector =
        tenure_election::Elector::builder(world.store.clone(), "elsewhere", &world.env()).build().unwrap();
    let c = world.worker_on(Arc::new(fragile), "c").elector(elector).build().unwrap().start().await.unwrap();
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 3, 10));
    // It is cut off from the table: nobody hears of it any more.
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    world.pass(150).await;
    assert_eq!(world.coordinator().await, (30, 2, 15));
    assert_eq!((cap(&a), cap(&b), cap(&c)), (15, 15, 10));
    assert!(world.row("c").await.is_some());
    world.pass(600).await;
    assert!(world.row("c").await.is_none(), "swept away");
    assert!(world.row("a").await.is_some() && world.row("b").await.is_some());
    // Back again: its row is written anew, and the cap follows.
    faults.set_rates(FaultRates::default()).unwrap();
    world.pass(120).await;
    assert!(world.row("c").await.is_some());
    assert_eq!(world.coordinator().await, (30, 3, 10));
    assert_eq!(cap(&c), 10);
}

#[tokio::test]
async fn owners_of_leases_count_although_they_have_no_fresh_row() {
    let world = World::new();
    let a = world.start("a").await;
    let report = |moving: &[&str], stalled: &[&str]| Report {
        demand: Some(30),
        moving: ids(moving),
        stalled: ids(stalled),
        ..Report::default()
    };
    a.report(report(&["a", "go-1", "go-2", "go-3", "go-4"], &[]));
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 5, 6));
    let fleet = a.explain().fleet;
    assert_eq!(
        fleet.iter().map(|member| member.worker_id.as_str()).collect::<Vec<_>>().join(" "),
        "a go-1 go-2 go-3 go-4"
    );
    assert_eq!((fleet[0].evidence, fleet[1].evidence), (Evidence::Both, Evidence::Lease));
    a.report(report(&["a"], &["go-1", "go-2", "go-3", "go-4"]));
    world.pass(30).await;
    assert_eq!(world.coordinator().await, (30, 1, 30));
}

#[tokio::test]
async fn a_row_that_is_deleted_by_hand_comes_back() {
    let world = World::new();
    let a = world.start("a").await;
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 1, 30));
    let table = format!("{STREAM}_meta");
    for worker in ["my-app_coordinator", "a"] {
        let key = Key::new("worker_id", worker);
        world.store.delete(soon(), &table, key, Condition::Always).await.unwrap();
    }
    assert_eq!(cap(&a), 30);
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 1, 30));
    assert!(world.row("a").await.is_some());
    assert_eq!(*a.cap().borrow(), Cap { value: 30, why: Why::Coordinator });
}

#[tokio::test]
async fn a_damaged_row_is_alarmed_and_not_written_over() {
    let world = World::new();
    let a = world.start("a").await;
    world.pass(30).await;
    world.edit("my-app_coordinator", Update::new().set("worker_count", "three")).await;
    world.shards.set(60);
    world.pass(60).await;
    let [Alarm::BadRow { what }] = &a.alarms()[..] else { panic!("{:?}", a.alarms()) };
    assert!(what.contains("`worker_count` of row `my-app_coordinator`"), "{what}");
    let row = world.row("my-app_coordinator").await.unwrap();
    assert_eq!(row.text("worker_count"), Some("three"));
    assert_eq!(cap(&a), 30, "the last good one");
    world.edit("my-app_coordinator", Update::new().set("worker_count", 1)).await;
    world.pass(60).await;
    assert_eq!(a.alarms(), []);
    assert_eq!(world.coordinator().await, (60, 1, 60));
}

#[tokio::test]
async fn a_damaged_row_of_a_worker_is_alarmed_and_not_counted() {
    let world = World::new();
    let a = world.start("a").await;
    let _b = world.start("b").await;
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 2, 15));
    world.edit("b", Update::new().set("shard_count", "many")).await;
    world.pass(6).await;
    let alarms = a.alarms();
    let [Alarm::BadRow { what }] = &alarms[..] else { panic!("{alarms:?}") };
    assert!(what.contains("`shard_count` of row `b`"), "{what}");
    assert_eq!(a.survey().await.unwrap().bad_rows, [what.as_str()]);
    // The next time that b has something to say it writes the row anew.
    world.pass(60).await;
    assert_eq!(a.alarms(), []);
    assert_eq!(world.coordinator().await, (30, 2, 15));
}

#[tokio::test]
async fn two_workers_with_one_id_are_detected() {
    let world = World::new();
    let first = world.start("a").await;
    world.pass(60).await;
    assert_eq!(first.alarms(), []);
    let second = world.start("a").await;
    world.pass(60).await;
    let incarnation = world.row("a").await.unwrap().text("incarnation").map(str::to_owned);
    assert_eq!(first.alarms(), [Alarm::DuplicateWorker { incarnation }]);
    assert_eq!(second.alarms(), []);
    // The first leaves, and does not take the second's row along.
    first.stop().await;
    assert!(world.row("a").await.is_some());
    second.stop().await;
    assert!(world.row("a").await.is_none());
}

#[tokio::test]
async fn a_store_that_is_away_leaves_the_cap_in_effect() {
    let world = World::new();
    let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(1)).unwrap());
    let store = Faulty::new(world.store.clone(), faults.clone(), world.env().clock);
    let a = world.worker_on(Arc::new(store), "a").build().unwrap().start().await.unwrap();
    world.pass(60).await;
    assert_eq!(cap(&a), 30);
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    world.shards.set(60);
    world.pass(300).await;
    assert_eq!(cap(&a), 30);
    faults.set_rates(FaultRates::default()).unwrap();
    world.pass(120).await;
    assert_eq!(cap(&a), 60);
}

#[tokio::test]
async fn a_leader_whose_stream_cannot_be_asked_still_says_that_it_lives() {
    let world = World::new();
    let a = world.start("a").await;
    world.pass(60).await;
    // No open shards is an answer that nobody goes by.
    world.shards.set(0);
    let before = world.row("a").await.unwrap().integer("expires_at").unwrap();
    world.pass(120).await;
    assert!(world.row("a").await.unwrap().integer("expires_at").unwrap() >= before + 90);
    assert_eq!(cap(&a), 30);
    assert_eq!(world.coordinator().await, (30, 1, 30));
}

#[tokio::test]
async fn a_handle_that_is_dropped_ends_it() {
    let world = World::new();
    let a = world.start("a").await;
    let cap = a.cap();
    drop(a);
    world.pass(30).await;
    assert!(world.row("a").await.is_none());
    assert!(cap.has_changed().is_err(), "nobody tells it any more");
}
