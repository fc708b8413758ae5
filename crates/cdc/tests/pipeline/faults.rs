//! What goes wrong around a pipeline while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, FaultRates, Faults, Kind, Result};
use tenure_cdc::framing::Framing;
use tenure_cdc::sink::{Sink, StreamSink};
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_store::{Item, Key, Listing, Page, Query, Store, TableSpec, Write, Written};
use tenure_stream::identity::Lanes;
use tenure_stream::{Faulty, Limits, Put, Record};

use super::world::{World, by_id, id_of, until};

/// Fails in the way it is told, and then works.
#[derive(Debug)]
struct Moody {
    inner: Arc<dyn Sink>,
    /// Calls that still fail.
    failing: AtomicU64,
    kind: Kind,
    calls: AtomicU64,
}

#[async_trait]
impl Sink for Moody {
    fn name(&self) -> &str {
        self.inner.name()
    }
    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.inner.limits(by).await
    }
    fn framing(&self) -> Framing {
        self.inner.framing()
    }
    fn lanes(&self) -> Lanes {
        self.inner.lanes()
    }
    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let left =
            self.failing.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if left.is_ok() {
            return Err(Error::new(self.kind, "as told"));
        }
        self.inner.put(by, records).await
    }
}

/// Every way in which a sink can fail, whatever its kind: events wait, nothing is dropped, and the slot is
/// not told of what is not there.
#[tokio::test]
async fn no_failure_of_the_sink_drops_anything() {
    for kind in [
        Kind::Throttled,
        Kind::Unavailable,
        Kind::Unknown,
        Kind::Denied,
        Kind::Invalid,
        Kind::Corrupt,
        Kind::Fenced,
    ] {
        let world = World::new().await;
        let moody = Arc::new(Moody {
            inner: world.sink(),
            failing: AtomicU64::new(6),
            kind,
            calls: AtomicU64::new(0),
        });
        let running = world.start_service(world.service(world.settings(), moody.clone()));
        world
            .sql
            .batch_execute("INSERT INTO items SELECT i, 0, 'x' FROM generate_series(1, 20) i")
            .await
            .unwrap();
        until("trouble is told", || async {
            let snapshot = running.service.progress().snapshot();
            snapshot.trouble.is_some_and(|trouble| trouble.contains("as told")).then_some(())
        })
        .await;
        let before = running.service.progress().snapshot();
        let events = world.events_when(20).await;
        assert_eq!(by_id(&events).len(), 20, "{kind}");
        assert!(moody.calls.load(Ordering::Relaxed) > 6);
        assert!(
            before.published <= id_of(&events[0]).commit.0,
            "{kind}: nothing is confirmed before it is there"
        );
        running.end().await.unwrap();
        world.clean_up().await;
    }
}

/// Throttled records, lost replies, failures: per key the first occurrences come in commit order.
#[tokio::test]
async fn a_stream_that_throttles_and_loses_replies_keeps_order() {
    let world = World::new().await;
    let rates = FaultRates {
        throttled: 0.1,
        failed: 0.05,
        lost: 0.1,
        late: 0.05,
        duplicated: 0.05,
        latency_max: Duration::from_millis(20),
        late_by_max: Duration::from_millis(200),
    };
    let faults = Arc::new(Faults::new(rates, world.env.entropy.fork()).unwrap());
    let faulty = Faulty::new(world.stream.clone(), faults, world.env.clock.clone());
    let sink = Arc::new(StreamSink::new(Arc::new(faulty)));
    let mut settings = world.settings();
    settings.publisher.backoff_min = Duration::from_millis(5);
    settings.publisher.backoff_max = Duration::from_millis(40);
    let running = world.start_service(world.service(settings, sink));
    world
        .sql
        .batch_execute("INSERT INTO items SELECT i, 0, 'x' FROM generate_series(1, 20) i")
        .await
        .unwrap();
    for _ in 0..30 {
        world.sql.batch_execute("UPDATE items SET version = version + 1").await.unwrap();
    }
    let events = world.events_when(20 * 31).await;
    for id in 1..=20 {
        let mut versions: Vec<i64> = Vec::new();
        for event in events.iter().filter(|event| event["key"]["id"] == id) {
            let version = event["after"]["version"].as_i64().unwrap();
            if !versions.contains(&version) {
                versions.push(version);
            }
        }
        assert!(versions.is_sorted(), "{id}: {versions:?}");
        assert_eq!(versions.len(), 31);
    }
    running.end().await.unwrap();
    world.clean_up().await;
}

/// Takes nothing until it is told to.
#[derive(Debug)]
struct Stalled {
    inner: Arc<dyn Sink>,
    open: tokio::sync::watch::Sender<bool>,
}

#[async_trait]
impl Sink for Stalled {
    fn name(&self) -> &str {
        self.inner.name()
    }
    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.inner.limits(by).await
    }
    fn framing(&self) -> Framing {
        self.inner.framing()
    }
    fn lanes(&self) -> Lanes {
        self.inner.lanes()
    }
    async fn put(&self, by: Monotonic, records: Vec<Record>) -> Result<Vec<Put>> {
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        self.inner.put(by, records).await
    }
}

/// Feedback goes on, leadership stays, and no more is taken in than may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stalled_sink_ends_neither_the_session_nor_the_leadership() {
    let world = World::new().await;
    let stalled = Arc::new(Stalled { inner: world.sink(), open: tokio::sync::watch::Sender::new(false) });
    let mut settings = world.settings();
    settings.publisher.inflight_events_max = 50;
    settings.call_timeout = Duration::from_secs(300);
    let running = world.start_service(world.service(settings, stalled.clone()));
    until("it leads", || async { (running.service.progress().snapshot().role == "leader").then_some(()) })
        .await;
    let sql = "INSERT INTO items SELECT i, 0, repeat('x', 1000) FROM generate_series(1, 10000) i";
    world.sql.batch_execute(sql).await.unwrap();
    let epoch = until("it is full", || async {
        let snapshot = running.service.progress().snapshot();
        (snapshot.inflight_events == 50).then_some(snapshot.epoch)
    })
    .await;
    // Longer than the server waits for a sign of life, and than leadership lasts without one.
    SystemClock.sleep(Duration::from_secs(23)).await;
    let snapshot = running.service.progress().snapshot();
    assert_eq!(
        (snapshot.role.as_str(), snapshot.epoch, snapshot.inflight_events),
        ("leader", epoch, 50),
        "{snapshot:?}"
    );
    stalled.open.send_replace(true);
    let events = world.events_when(10_000).await;
    assert_eq!(events.len(), 10_000, "in one term, so nothing twice");
    running.end().await.unwrap();
    world.clean_up().await;
}

#[tokio::test]
async fn a_terminated_session_is_begun_anew() {
    let world = World::new().await;
    let running = world.start();
    for round in 1..=5i64 {
        world.sql.execute("INSERT INTO items VALUES ($1, 0, 'x')", &[&round]).await.unwrap();
        world.events_when(round as usize).await;
        let sql = format!(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'",
            world.slot
        );
        world.sql.batch_execute(&sql).await.unwrap();
    }
    world.sql.batch_execute("INSERT INTO items VALUES (6, 0, 'x')").await.unwrap();
    let events = world.events_when(6).await;
    assert_eq!(by_id(&events).len(), 6);
    running.end().await.unwrap();
    world.clean_up().await;
}

/// Whoever watches is told while the store fails, and no longer.
#[tokio::test]
async fn trouble_with_the_store_is_told_while_it_lasts() {
    let mut world = World::new().await;
    let faults = Arc::new(Faults::new(FaultRates::default(), world.env.entropy.fork()).unwrap());
    world.store =
        Arc::new(tenure_store::Faulty::new(world.store.clone(), faults.clone(), world.env.clock.clone()));
    let running = world.start();
    world.sql.batch_execute("INSERT INTO items VALUES (1, 0, 'x')").await.unwrap();
    world.events_when(1).await;
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    world.sql.batch_execute("INSERT INTO items VALUES (2, 0, 'x')").await.unwrap();
    let trouble = || running.service.progress().snapshot().trouble;
    until("trouble is told", || async { trouble().filter(|trouble| trouble.contains("store")) }).await;
    faults.set_rates(FaultRates::default()).unwrap();
    until("it is over", || async { trouble().is_none().then_some(()) }).await;
    running.end().await.unwrap();
    world.clean_up().await;
}

/// A store that takes its time with every row.
#[derive(Debug)]
struct Slow(Arc<dyn Store>);

#[async_trait]
impl Store for Slow {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.0.ensure_table(by, spec).await
    }
    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.0.describe_table(by, table).await
    }
    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.0.get(by, table, key).await
    }
    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        if matches!(write, Write::Put { table, .. } if table == tenure_cdc::quarantine::TABLE) {
            SystemClock.sleep(Duration::from_millis(600)).await;
        }
        self.0.write(by, write).await
    }
    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.0.transact(by, writes, nonce).await
    }
    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.0.query(by, table, query).await
    }
    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.0.scan(by, table, page).await
    }
}

/// However large an event is, it is parked some time: not all of it must fit in the time of one call.
#[tokio::test]
async fn what_takes_long_to_park_is_parked() {
    let mut world = World::new().await;
    world.store = Arc::new(Slow(world.store.clone()));
    let mut settings = world.settings();
    settings.call_timeout = Duration::from_secs(4);
    let running = world.start_service(world.service(settings, world.sink()));
    // Twelve rows.
    world.sql.batch_execute("INSERT INTO items SELECT 1, 0, repeat('x', 11 * 256 * 1024)").await.unwrap();
    let events = world.events_when(1).await;
    assert_eq!(events[0]["op"], "pointer");
    running.end().await.unwrap();
    world.clean_up().await;
}
