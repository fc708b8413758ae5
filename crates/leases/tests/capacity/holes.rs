//! What the seed gets wrong, one test per hole, named after what is true here.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics::{
    Counter, Gauge, GaugeFn, Histogram, Key as MetricKey, KeyName, Metadata, Recorder, SharedString, Unit,
};
use tenure_backend::{Env, Kind};
use tenure_leases::WorkerId;
use tenure_leases::capacity::{
    Alarm, Cap, CapacityManager, Census, Count, Deficit, Heartbeats, OnDeficit, OpenShards, Report, Settings,
    Why, survey, table_spec,
};
use tenure_store::{Condition, Item, Key, Store, StoreExt};
use tenure_stream::{Stream, StreamSpec};

use super::lines::Lines;
use super::live::World;
use super::site::{APP, STREAM, Site, soon};
use super::wrappers::{Calls, Crossing, Mute, Recorded, ShortPages};

fn demand(demand: u64) -> Report {
    Report { demand: Some(demand), ..Report::default() }
}

async fn initialize(world: &World, worker: &str) -> Cap {
    world.worker(worker).build().unwrap().initialize().await.unwrap()
}

// === the order of calls ===

#[tokio::test]
async fn a_start_calls_what_the_seed_calls_in_its_order() {
    let site = Site::memory();
    let calls = Calls::default();
    let recorded = |name: &str| {
        let store: Arc<dyn Store> = Arc::new(Recorded { inner: site_store(&site), calls: calls.clone() });
        let shards: Arc<dyn OpenShards> = site.shards.clone();
        let shards = Arc::new(Recorded { inner: shards, calls: calls.clone() });
        let census: Arc<dyn Census> = Arc::new(tenure_leases::capacity::Declared::new(3).unwrap());
        let settings = Settings { table: Some("meta".into()), live: false, ..Settings::default() };
        CapacityManager::builder(store, shards, STREAM, APP, WorkerId::from(name), &site.env())
            .settings(settings)
            .census(Arc::new(Recorded { inner: census, calls: calls.clone() }))
            .build()
            .unwrap()
    };
    fn site_store(site: &Site) -> Arc<dyn Store> {
        futures_now(site.open())
    }
    let take = || std::mem::take(&mut *calls.lock().unwrap()).join(", ");
    recorded("worker-1").initialize().await.unwrap();
    let get = "get worker_id=my-app_coordinator";
    assert_eq!(
        take(),
        format!(
            "ensure table, count shards, count workers, {get}, put my-app_coordinator applied, put worker-1 applied"
        )
    );
    recorded("worker-2").initialize().await.unwrap();
    assert_eq!(take(), format!("ensure table, count shards, count workers, {get}, put worker-2 applied"));
    site.shards.set(60);
    recorded("worker-1").initialize().await.unwrap();
    assert_eq!(
        take(),
        format!(
            "ensure table, count shards, count workers, {get}, update my-app_coordinator applied, put worker-1 applied"
        )
    );
}

/// A future that is ready at once.
fn futures_now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    match future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("the memory store is ready at once"),
    }
}

// === hole: only open shards are counted ===

#[tokio::test]
async fn closed_parents_do_not_starve_while_the_budget_is_spent_on_children() {
    let world = World::new();
    world.shards.set(60);
    let a = world.start("a").await;
    assert_eq!(*a.cap().borrow(), Cap { value: 20, why: Why::Coordinator });
    // 30 parents were split into 60 children, and are still being read.
    a.report(demand(90));
    assert_eq!(*a.cap().borrow(), Cap { value: 30, why: Why::Demand });
    assert_eq!(world.coordinator().await, (60, 3, 20), "the row keeps the seed's meaning");
    a.report(demand(60));
    assert_eq!(*a.cap().borrow(), Cap { value: 20, why: Why::Coordinator });
}

// === hole: the second page of shards fails ===

#[tokio::test]
async fn shards_beyond_page_one_are_counted() {
    let env = Env::system();
    let address = "memory:many-shards";
    let stream: Arc<dyn Stream> = tenure_stream::open(address, &env).await.unwrap();
    stream.create(soon(), &StreamSpec::with_shards(1200)).await.unwrap();
    let page = stream.shards(soon(), &tenure_stream::Page::default()).await.unwrap();
    assert!(page.next.is_some(), "more than one page");
    assert_eq!(OpenShards::open_shards(&stream, soon()).await.unwrap(), 1200);
}

// === hole: the loser uses its own number ===

#[tokio::test]
async fn the_loser_uses_the_row_and_not_its_own_number() {
    let mut site = Site::memory();
    site.settings.live = false;
    site.worker("worker-1").await.build().unwrap().initialize().await.unwrap();
    let [first, second] = Crossing::pair(site.open().await, site.open().await);
    let winner = site.worker_on(first, "worker-2");
    // The loser saw 90 shards where the winner saw 60.
    let shards = super::site::Shards::new(90);
    let loser =
        CapacityManager::builder(second, shards, STREAM, APP, WorkerId::from("worker-3"), &site.env())
            .settings(site.settings.clone())
            .census(Arc::new(tenure_leases::capacity::Declared::new(3).unwrap()));
    site.shards.set(60);
    let (winner, loser) = (winner.build().unwrap(), loser.build().unwrap());
    let (won, lost) = tokio::join!(winner.initialize(), loser.initialize());
    assert_eq!((won.unwrap().value, lost.unwrap().value), (20, 20));
    assert_eq!(site.row("worker-3").await.unwrap().integer("shard_count"), Some(60));
}

#[tokio::test]
async fn the_loser_of_the_creation_uses_the_row() {
    let site = Site::memory();
    let [first, second] = Crossing::pair(site.open().await, site.open().await);
    let (one, other) = (site.worker_on(first, "worker-1"), site.worker_on(second, "worker-2"));
    let (one, other) = (one.build().unwrap(), other.build().unwrap());
    let lines = Lines::collect();
    let (one, other) = tokio::join!(one.initialize(), other.initialize());
    assert_eq!((one.unwrap().value, other.unwrap().value), (10, 10));
    let lines = lines.take();
    let lost = "INFO  Another worker already created coordinator metadata";
    assert_eq!(lines.iter().filter(|line| line.as_str() == lost).count(), 1, "{lines:#?}");
}

#[tokio::test]
async fn a_write_without_an_answer_is_looked_for() {
    let mut world = World::new();
    world.settings.live = false;
    let manager = world.worker_on(Arc::new(Mute(world.store.clone())), "a").build().unwrap();
    for (shards, cap, said) in [
        (
            30,
            10,
            "INFO  Successfully created coordinator metadata  coordinatorKey=my-app_coordinator maxLeasesPerWorker=10",
        ),
        (
            60,
            20,
            "INFO  Successfully updated coordinator metadata  coordinatorKey=my-app_coordinator newMaxLeasesPerWorker=20",
        ),
    ] {
        world.shards.set(shards);
        let lines = Lines::collect();
        assert_eq!(manager.initialize().await.unwrap().value, cap);
        let lines = lines.take();
        assert_eq!(lines.iter().filter(|line| line.as_str() == said).count(), 1, "{lines:#?}");
    }
    assert_eq!(world.coordinator().await, (60, 3, 20));
}

// === hole: any error becomes "1 worker" ===

#[tokio::test]
async fn an_unknown_worker_count_is_never_written_and_alarmed() {
    let world = World::new();
    let unknown = || Count::Unknown("the API server is away".to_owned());
    let first = world.start("a").await;
    assert_eq!(world.coordinator().await, (30, 3, 10));
    world.workers.set(unknown());
    world.shards.set(60);
    let lines = Lines::collect();
    let b = world.start("b").await;
    assert_eq!(world.coordinator().await, (30, 3, 10), "not one worker, and not 60 shards each");
    assert_eq!(*b.cap().borrow(), Cap { value: 10, why: Why::Coordinator });
    assert_eq!(b.alarms(), [Alarm::WorkerCountUnknown { why: "the API server is away".into() }]);
    let lines = lines.take();
    let alarmed =
        "ERROR  lease capacity needs attention  alarm=the worker count is unknown: the API server is away";
    assert!(lines.iter().any(|line| line == alarmed), "{lines:#?}");
    // Known again, the alarm ends.
    world.workers.set(Count::Known(3));
    world.pass(40).await;
    assert_eq!((b.alarms(), first.alarms()), (vec![], vec![]));
}

#[tokio::test]
async fn heartbeats_decide_where_nobody_knows_and_there_is_no_row() {
    let mut world = World::new();
    world.settings.live = false;
    world.workers.set(Count::Unknown("no permission".to_owned()));
    let a = world.start("a").await;
    assert_eq!(*a.cap().borrow(), Cap { value: 30, why: Why::Heartbeats });
    let b = world.start("b").await;
    assert_eq!(*b.cap().borrow(), Cap { value: 15, why: Why::Heartbeats });
    assert!(world.row("my-app_coordinator").await.is_none());
    assert_eq!(b.explain().fleet.len(), 2);
    // As soon as the count is known, it is written, and everybody goes by it.
    world.workers.set(Count::Known(3));
    world.pass(61).await;
    assert_eq!(world.coordinator().await, (30, 3, 10));
    assert_eq!((a.cap().borrow().value, b.cap().borrow().value), (10, 10));
    assert_eq!(world.row("a").await.unwrap().integer("max_leases_per_worker"), Some(10));
}

#[tokio::test]
async fn a_worker_count_of_0_is_not_believed() {
    let world = World::new();
    world.workers.set(Count::Known(0));
    let a = world.start("a").await;
    assert_eq!(a.alarms(), [Alarm::WorkerCountUnknown { why: "the test says 0".into() }]);
    assert!(world.row("my-app_coordinator").await.is_none());
}

#[tokio::test]
async fn a_fleet_may_count_itself() {
    let mut world = World::new();
    world.settings.live = false;
    let start = |name: &str| world.worker(name).census(Arc::new(Heartbeats)).build().unwrap();
    assert_eq!(start("a").initialize().await.unwrap().value, 30);
    assert_eq!(start("b").initialize().await.unwrap().value, 15);
    assert_eq!(start("c").initialize().await.unwrap().value, 10);
    assert_eq!(world.coordinator().await, (30, 3, 10));
    assert_eq!(start("a").initialize().await.unwrap().value, 10, "a restart is no fourth worker");
}

#[tokio::test]
async fn a_stream_without_shards_is_refused() {
    let world = World::new();
    world.shards.set(0);
    let error = world.worker("a").build().unwrap().initialize().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains("stream `kds-stream-prod` has no open shards"), "{error:?}");
    assert!(world.row("my-app_coordinator").await.is_none());
}

// === hole: shards stay unread, silently ===

#[tokio::test]
async fn a_deficit_is_alarmed_and_the_limit_holds() {
    let world = World::new();
    world.shards.set(300);
    let a = world.start("a").await;
    assert_eq!(*a.cap().borrow(), Cap { value: 80, why: Why::Limit });
    assert_eq!(a.alarms(), [Alarm::Deficit { leases: 60, desired_workers: 4 }]);
    assert_eq!(a.explain().deficit, Some(Deficit { leases: 60, desired_workers: 4 }));
    let gauges = Gauges::default();
    metrics::with_local_recorder(&gauges, || a.report(demand(330)));
    assert_eq!(gauges.value("lease_capacity_deficit"), 90.0);
    assert_eq!(gauges.value("lease_capacity_desired_workers"), 5.0);
    assert_eq!(a.alarms(), [Alarm::Deficit { leases: 90, desired_workers: 5 }]);
}

#[tokio::test]
async fn exceeding_the_limit_is_opt_in_and_never_written() {
    let mut world = World::new();
    world.settings.on_deficit = OnDeficit::Exceed;
    world.shards.set(300);
    let a = world.start("a").await;
    assert_eq!(*a.cap().borrow(), Cap { value: 100, why: Why::Exceeded });
    assert_eq!(world.coordinator().await, (300, 3, 80));
    assert_eq!(world.row("a").await.unwrap().integer("max_leases_per_worker"), Some(80));
    assert_eq!(a.alarms(), [Alarm::Deficit { leases: 60, desired_workers: 4 }]);
}

// === hole: there and back again ===

#[tokio::test]
async fn a_row_that_changed_and_changed_back_refuses_a_late_write() {
    let site = Site::memory();
    site.worker("worker-1").await.build().unwrap().initialize().await.unwrap();
    // Whoever reads here writes only after the others below are done.
    let [busy, slow] = Crossing::pair(site.open().await, site.open().await);
    let shards = super::site::Shards::new(45);
    let late = CapacityManager::builder(slow, shards, STREAM, APP, WorkerId::from("late"), &site.env())
        .settings(site.settings.clone())
        .census(Arc::new(tenure_leases::capacity::Declared::new(3).unwrap()))
        .build()
        .unwrap();
    let there_and_back = async {
        let key = Key::new("worker_id", "my-app_coordinator");
        busy.get(soon(), &site.table, &key).await.unwrap();
        for shards in [60, 30] {
            site.shards.set(shards);
            site.worker("worker-2").await.build().unwrap().initialize().await.unwrap();
        }
        // Lets the late one go on.
        let touch = tenure_store::Write::Update {
            table: site.table.clone(),
            key: Key::new("worker_id", "worker-1"),
            change: tenure_store::Update::new().set("held", 1),
            when: Condition::Always,
        };
        busy.write(soon(), &touch).await.unwrap();
    };
    let (cap, ()) = tokio::join!(late.initialize(), there_and_back);
    assert_eq!(cap.unwrap().value, 10, "it lost, and uses the row");
    assert_eq!(site.row("my-app_coordinator").await.unwrap().integer("shard_count"), Some(30));
}

// === hole: rows, pages, numbers, names ===

#[tokio::test]
async fn the_scan_follows_every_page() {
    let mut world = World::new();
    world.settings.live = false;
    for number in 0..7 {
        initialize(&world, &format!("worker-{number}")).await;
    }
    let store = Arc::new(ShortPages(world.store.clone()));
    let manager = world.worker_on(store, "worker-7").census(Arc::new(Heartbeats)).build().unwrap();
    assert_eq!(manager.initialize().await.unwrap().value, 4, "30 shards, 8 workers");
    assert_eq!(manager.survey().await.unwrap().workers.len(), 8);
}

#[tokio::test]
async fn bad_numbers_are_rejected_and_not_read_as_0() {
    let world = World::new();
    initialize(&world, "a").await;
    for bad in [tenure_store::Value::from("30"), tenure_store::Value::from(0)] {
        world.edit("my-app_coordinator", tenure_store::Update::new().set("shard_count", bad.clone())).await;
        let error = world.worker("b").build().unwrap().initialize().await.unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        let names = "column `shard_count` of row `my-app_coordinator` in table `kds-stream-prod_meta`";
        assert!(error.chain().contains(names), "{error:?}");
        assert_eq!(world.row("my-app_coordinator").await.unwrap().get("shard_count"), Some(&bad));
    }
}

#[tokio::test]
async fn a_worker_named_like_a_coordinator_is_refused() {
    let world = World::new();
    for name in ["my-app_coordinator", "other-app_coordinator"] {
        let error = world.worker(name).build().unwrap_err();
        assert!(error.chain().contains(name), "{error:?}");
    }
    assert!(world.worker("").build().is_err());
    assert!(world.worker(&"x".repeat(600)).build().is_err());
}

#[tokio::test]
async fn a_worker_of_another_application_is_not_written_over() {
    let world = World::new();
    initialize(&world, "a").await;
    let other = CapacityManager::builder(
        world.store.clone(),
        world.shards.clone(),
        STREAM,
        "other-app",
        WorkerId::from("a"),
        &world.env(),
    )
    .build()
    .unwrap();
    let error = other.initialize().await.unwrap_err();
    assert!(error.chain().contains("worker id `a` is in use by application `my-app`"), "{error:?}");
    assert_eq!(world.row("a").await.unwrap().text("app_name"), Some("my-app"));
}

#[tokio::test]
async fn applications_that_share_a_table_do_not_count_each_other() {
    let mut world = World::new();
    world.settings.live = false;
    initialize(&world, "a").await;
    let other = CapacityManager::builder(
        world.store.clone(),
        world.shards.clone(),
        STREAM,
        "other-app",
        WorkerId::from("b"),
        &world.env(),
    )
    .settings(world.settings.clone())
    .build()
    .unwrap();
    assert_eq!(other.initialize().await.unwrap().value, 30, "one worker of its own");
    assert_eq!(world.coordinator().await, (30, 3, 10));
    assert_eq!(other.survey().await.unwrap().workers.len(), 1);
}

// === taking over, and staying out of the way ===

#[tokio::test]
async fn the_table_of_the_application_is_taken_over_if_it_is_there() {
    let mut world = World::new();
    world.settings.live = false;
    // As the Go service makes it: no time to live.
    let mut spec = table_spec("my-app_meta");
    spec.ttl = None;
    world.store.ensure_table(soon(), &spec).await.unwrap();
    assert_eq!(initialize(&world, "a").await.value, 10);
    assert_eq!(world.store.scan_all(soon(), "my-app_meta", 10).await.unwrap().len(), 2);
    assert!(world.store.describe_table(soon(), "kds-stream-prod_meta").await.unwrap().is_none());
    assert_eq!(
        world.store.describe_table(soon(), "my-app_meta").await.unwrap(),
        Some(table_spec("my-app_meta"))
    );
    // Of two tables, the one with the row of the application.
    world.store.ensure_table(soon(), &table_spec("kds-stream-prod_meta")).await.unwrap();
    assert_eq!(initialize(&world, "b").await.value, 10);
    assert_eq!(world.store.scan_all(soon(), "my-app_meta", 10).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_fixed_cap_touches_no_table() {
    let world = World::new();
    let calls = Calls::default();
    let store = Arc::new(Recorded { inner: world.store.clone(), calls: calls.clone() });
    let settings = Settings { enable_dynamic_max_leases: false, max_leases: 25, ..Settings::default() };
    let a = world.worker_on(store, "a").settings(settings).build().unwrap().start().await.unwrap();
    a.report(demand(9000));
    world.pass(60).await;
    assert_eq!(*a.cap().borrow(), Cap { value: 25, why: Why::Fixed });
    assert!(a.survey().await.unwrap().workers.is_empty());
    assert_eq!(a.explain().table, None);
    a.stop().await;
    assert_eq!(*calls.lock().unwrap(), [""; 0]);
}

// === why ===

#[tokio::test]
async fn an_explanation_says_where_the_number_comes_from() {
    let world = World::new();
    let a = world.start("a").await;
    a.report(Report { demand: Some(45), held: 9, ..Report::default() });
    world.pass(60).await;
    let explained = a.explain();
    assert_eq!(explained.cap, Some(Cap { value: 45, why: Why::Demand }));
    assert_eq!((explained.demand, explained.held, explained.limit), (Some(45), Some(9), 80));
    assert_eq!(explained.table.as_deref(), Some("kds-stream-prod_meta"));
    assert_eq!(explained.declared, Some((Count::Known(3), "the test".into())));
    assert!(explained.leading);
    let row = explained.coordinator.unwrap();
    assert_eq!((row.shard_count, row.worker_count, row.max_leases_per_worker), (30, 1, 30));

    // And from outside, by the table alone.
    let survey = survey(&*world.store, soon(), STREAM, APP, &Settings::default()).await.unwrap();
    assert_eq!(survey.workers.len(), 1);
    assert_eq!((survey.workers[0].ours.held, survey.workers[0].ours.demand), (Some(9), Some(45)));
    let from_outside = survey.explain(STREAM, APP, &Settings::default());
    assert_eq!(from_outside.cap, Some(Cap { value: 45, why: Why::Demand }));
    assert_eq!(from_outside.coordinator.map(|row| row.worker_count), Some(1));
}

#[tokio::test]
async fn a_survey_of_nothing_creates_nothing() {
    let world = World::new();
    let found = survey(&*world.store, soon(), STREAM, APP, &Settings::default()).await.unwrap();
    assert_eq!((&found.table, &found.coordinator), (&None, &None));
    assert_eq!(found.explain(STREAM, APP, &Settings::default()).cap, None);
    assert!(world.store.describe_table(soon(), "kds-stream-prod_meta").await.unwrap().is_none());
}

#[tokio::test]
async fn a_heartbeat_touches_none_of_the_seeds_columns() {
    let mut world = World::new();
    world.settings.live = false;
    let _a = world.start("a").await;
    let before = world.row("a").await.unwrap();
    world.pass(70).await;
    let after = world.row("a").await.unwrap();
    let expires = |row: &Item| row.integer("expires_at").unwrap();
    assert_eq!(expires(&after) - expires(&before), 60);
    assert_eq!(after.with("expires_at", expires(&before)), before);
    assert_eq!(Duration::from_secs(30), world.settings.heartbeat);
}

// === a recorder of gauges ===

#[derive(Default)]
struct Gauges(Arc<Mutex<Vec<(String, f64)>>>);

impl Gauges {
    fn value(&self, name: &str) -> f64 {
        let told = self.0.lock().unwrap();
        told.iter().rev().find(|(key, _)| key == name).map(|(_, value)| *value).expect("told")
    }
}

struct Told(Arc<Mutex<Vec<(String, f64)>>>, String);

impl GaugeFn for Told {
    fn increment(&self, _value: f64) {}
    fn decrement(&self, _value: f64) {}
    fn set(&self, value: f64) {
        self.0.lock().unwrap().push((self.1.clone(), value));
    }
}

impl Recorder for Gauges {
    fn describe_counter(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}
    fn describe_gauge(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}
    fn describe_histogram(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}
    fn register_counter(&self, _key: &MetricKey, _metadata: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, key: &MetricKey, _metadata: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(Arc::new(Told(self.0.clone(), key.name().to_owned())))
    }
    fn register_histogram(&self, _key: &MetricKey, _metadata: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}
