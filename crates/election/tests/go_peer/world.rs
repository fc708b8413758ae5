//! A world whose clock is held by the test, around an emulator that knows nothing of it.
//!
//! Time passes only while no call to the store is under way and none was answered just now, so an answer
//! arrives, and is acted upon, at the moment at which its request was sent, however long the emulator takes.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::future::{Future, pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::{Clock, Entropy, ManualTime, Monotonic, SystemClock, WallTime, within};
use tenure_election::{Elector, Epoch, Leadership, Place, Settings, ShardId, Skew, table_spec};
use tenure_store::{Faulty, Item, Key, Listing, Page, Query, Result, Store, TableSpec, Write, Written};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::coordinator::GoPeer;
use crate::emulator::{Emulator, OwnTable};

pub(super) const SHARD: &str = "batch-processor";
pub(super) const L: Duration = Duration::from_secs(15);
pub(super) const SKEW: Duration = Duration::from_millis(500);

/// Turns of the clock after which a future counts as stuck.
const TURNS_MAX: usize = 20_000;
/// How often in a row everybody else is let run without a call before time may pass.
const YIELDS: usize = 20;
/// How often in all: beyond it, somebody spins.
const YIELDS_MAX: usize = 20_000;
/// Only a stuck emulator, or a store that waits for the clock within a call, reaches it.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A takeover by watching takes some thirty.
const CALLS_KEPT: usize = 60;

pub(super) struct World {
    time: ManualTime,
    env: Env,
    store: Arc<Counted>,
    table: OwnTable,
}

/// One of ours, and the switch that cuts it off.
pub(super) struct Candidate {
    pub(super) elector: Elector,
    faults: Arc<Faults>,
}

impl Candidate {
    /// Stands from now on, whether or not somebody looks.
    pub(super) fn stand(&self) -> JoinHandle<Leadership> {
        let elector = self.elector.clone();
        tokio::spawn(async move { elector.lead().await.unwrap() })
    }

    pub(super) fn cut_off(&self) {
        self.faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    }

    pub(super) fn reconnect(&self) {
        self.faults.set_rates(FaultRates::default()).unwrap();
    }
}

impl World {
    pub(super) async fn on(emulator: Emulator) -> Self {
        // From now on and ever faster: nothing that is stored is in the emulator's own past, where its
        // TTL would find it.
        let time = ManualTime::starting_at(SystemClock.wall());
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let store = tenure_store::open(&emulator.address(), &env).await.unwrap();
        let table = OwnTable::on(emulator);
        // As the Go library's users make it. By the machine's clock: the emulator takes its time.
        let maker = tenure_store::open(&table.emulator.address(), &Env::system()).await.unwrap();
        maker
            .ensure_table(SystemClock.deadline(Duration::from_secs(30)), &table_spec(&table.name))
            .await
            .unwrap();
        let store = Arc::new(Counted {
            store,
            under_way: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            settled: Notify::new(),
            calls: Mutex::default(),
            time: time.clone(),
        });
        Self { time, env, store, table }
    }

    pub(super) fn candidate(&self, name: &str) -> Candidate {
        let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(2)).unwrap());
        let store = Faulty::new(self.store.clone(), faults.clone(), self.env.clock.clone());
        let settings = Settings {
            table: self.table.name.clone(),
            lease: L,
            skew: Skew::Bounded(SKEW),
            go_peers: true,
            ..Settings::balanced()
        };
        let elector =
            Elector::builder(Arc::new(store), SHARD, &self.env).owner(name).settings(settings).build();
        Candidate { elector: elector.unwrap(), faults }
    }

    /// A process with the Go library whose wall is off by `skew_millis`.
    pub(super) fn go_peer(&self, owner: &str, skew_millis: i64, renewal: &'static str) -> GoPeer {
        GoPeer {
            emulator: self.table.emulator.clone(),
            table: self.table.name.clone(),
            shard: SHARD,
            owner: owner.to_owned(),
            lease: L,
            clock: self.time.node(skew_millis, 0),
            renewal,
        }
    }

    /// Lets time pass, from one sleeper to the next, until the future is done.
    pub(super) async fn until<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        for _ in 0..TURNS_MAX {
            if let Some(output) = self.calm_down(future.as_mut()).await {
                return output;
            }
            self.time.advance_to_next().expect("everybody waits for something that never comes");
        }
        panic!("not done after {TURNS_MAX} turns of the clock");
    }

    pub(super) async fn pass(&self, duration: Duration) {
        let clock = self.time.clock();
        self.until(clock.sleep(duration)).await;
        // Whoever was due at that very moment has its turn, and its answer.
        self.calm_down(pin!(pending::<()>())).await;
    }

    /// Lets everybody run until all wait for the clock, or the future is done.
    ///
    /// That no call is under way is not enough: an answer may have come in a moment ago, and whoever waits
    /// for it, or for what follows from it, has not looked yet. So nobody may have had a call for a while.
    async fn calm_down<F: Future>(&self, mut future: Pin<&mut F>) -> Option<F::Output> {
        let mut calm = 0;
        for _ in 0..YIELDS_MAX {
            if let Poll::Ready(output) = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await {
                return Some(output);
            }
            let begun = self.store.begun.load(Ordering::SeqCst);
            let called = self.store.settle().await;
            tokio::task::yield_now().await;
            calm = if called || self.store.begun.load(Ordering::SeqCst) != begun { 0 } else { calm + 1 };
            if calm == YIELDS {
                return None;
            }
        }
        panic!("calls without end at one moment");
    }

    /// The last calls of ours, and how each ended.
    pub(super) fn last_calls(&self) -> String {
        let calls = self.store.calls.lock().unwrap();
        calls.iter().map(|call| format!("  {call}\n")).collect()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.time.elapsed()
    }

    pub(super) fn wall(&self) -> WallTime {
        self.env.clock.wall()
    }

    pub(super) async fn lock(&self) -> Option<Item> {
        self.row(&self.place().lock_key()).await
    }

    /// What the FENCE row says.
    pub(super) async fn fence(&self) -> Option<Epoch> {
        let item = self.row(&self.place().fence_key()).await?;
        Some(self.place().fence(&item).unwrap().epoch)
    }

    fn place(&self) -> Place {
        Place { table: self.table.name.clone(), shard: ShardId::new(SHARD).unwrap() }
    }

    async fn row(&self, key: &Key) -> Option<Item> {
        self.store.get(Monotonic::NEVER, &self.table.name, key).await.unwrap()
    }
}

/// Knows how many calls are under way.
#[derive(Debug)]
struct Counted {
    store: Arc<dyn Store>,
    under_way: AtomicUsize,
    /// How many there were so far.
    begun: AtomicUsize,
    settled: Notify,
    /// The last calls and how each ended: a takeover that is late is judged by them.
    calls: Mutex<VecDeque<String>>,
    time: ManualTime,
}

impl Counted {
    /// Waits for an answer if there is one to come; false if there is none.
    async fn settle(&self) -> bool {
        let settled = self.settled.notified();
        if self.under_way.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let by = SystemClock.deadline(CALL_TIMEOUT);
        within(&SystemClock, by, settled).await.expect("the emulator answers");
        true
    }

    fn noted<T: Debug>(&self, call: &str, result: Result<T>) -> Result<T> {
        let mut calls = self.calls.lock().unwrap();
        if calls.len() == CALLS_KEPT {
            calls.pop_front();
        }
        calls.push_back(format!("{:?} {call}: {result:?}", self.time.elapsed()));
        result
    }

    fn begin(&self) -> UnderWay<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(self)
    }
}

struct UnderWay<'a>(&'a Counted);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
        self.0.settled.notify_waiters();
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Store for Counted {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        let _call = self.begin();
        self.store.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        let _call = self.begin();
        self.store.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let _call = self.begin();
        self.noted("get", self.store.get(by, table, key).await)
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        let _call = self.begin();
        self.noted("write", self.store.write(by, write).await)
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        let _call = self.begin();
        self.noted("transact", self.store.transact(by, writes, nonce).await)
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        let _call = self.begin();
        self.store.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        let _call = self.begin();
        self.store.scan(by, table, page).await
    }

    fn is_local(&self) -> bool {
        self.store.is_local()
    }
}
