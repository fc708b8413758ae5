//! How quickly shards change hands, and what keeping them costs: real keepers on a store in memory.
//!
//! Times are in leases (D), as they are promised; the lease is short so that the whole takes minutes, not hours.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tenure_backend::Env;
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_leases::admin::Admin;
use tenure_leases::{Ending, Keeper, KeeperHandle, Settings};
use tenure_store::{Counting, Memory, Store};
use tenure_stream::{Stream, StreamSpec};
use tokio::task::JoinHandle;

use crate::{Aim, Plan, cpu_seconds, median};

const NEVER: Monotonic = Monotonic::NEVER;
const RUNS: usize = 5;
/// The lease of the cases that are told in leases.
const SHORT: Duration = Duration::from_secs(2);
/// The lease of the cases that are told by the clock.
const USUAL: Duration = Duration::from_secs(10);
/// How often the table is looked at.
const POLL: Duration = Duration::from_millis(10);
/// Longer than anything should take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn measure(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if plan.wants("join_60") {
        let leases = runtime.block_on(repeated(join))?;
        plan.say("join_60", "memory", leases, "D", Aim::AtMost(2.0));
    }
    if plan.wants("crash_all_owned") {
        let leases = runtime.block_on(repeated(crash))?;
        plan.say("crash_all_owned", "memory", leases, "D", Aim::AtMost(1.5));
    }
    if plan.wants("cold_1000") {
        let leases = runtime.block_on(repeated(cold))?;
        plan.say("cold_1000", "memory", leases, "D", Aim::AtMost(2.0));
    }
    if plan.wants("planned_stop_p99") {
        let seconds = runtime.block_on(planned_stop())?;
        plan.say("planned_stop_p99", "memory", seconds, "s", Aim::AtMost(1.0));
    }
    if plan.wants("writes_per_lease_hour") {
        let writes = runtime.block_on(writes())?;
        plan.say("writes_per_lease_hour", "memory", writes, "writes", Aim::AtMost(1088.0));
    }
    if plan.wants("idle_2000_cpu") {
        let share = runtime.block_on(idle())?;
        plan.say("idle_2000_cpu", "memory", share, "% of a core", Aim::AtMost(5.0));
    }
    Ok(())
}

async fn repeated(case: impl AsyncFn() -> anyhow::Result<Duration>) -> anyhow::Result<f64> {
    let mut all = Vec::new();
    for _ in 0..RUNS {
        all.push(case().await?.as_secs_f64() / SHORT.as_secs_f64());
    }
    Ok(median(all))
}

/// A stream, a store, and workers whose consumers have nothing to do.
struct Fleet {
    env: Env,
    store: Arc<Counting>,
    stream: Arc<dyn Stream>,
    settings: Settings,
    workers: BTreeMap<String, Worker>,
}

struct Worker {
    keeper: KeeperHandle,
    consuming: JoinHandle<()>,
}

impl Fleet {
    async fn new(shards: u32, lease: Duration) -> anyhow::Result<Self> {
        let env = Env::system();
        let memory: Arc<dyn Store> = Arc::new(Memory::new(&env));
        let stream = tenure_stream::Memory::new("bench", env.clock.clone())?;
        stream.create(NEVER, &StreamSpec::with_shards(shards)).await?;
        let settings = Settings { lease, ..Settings::default() };
        let (store, stream) = (Arc::new(Counting::new(memory)), Arc::new(stream));
        Ok(Self { env, store, stream, settings, workers: BTreeMap::new() })
    }

    async fn add(&mut self, name: &str) -> anyhow::Result<()> {
        let (keeper, mut holdings) = Keeper::builder(self.store.clone(), &self.env, "bench", name)
            .stream(self.stream.clone())
            .settings(self.settings.clone())
            .start()
            .await?;
        let consuming = tokio::spawn(async move {
            while let Some(holding) = holdings.recv().await {
                tokio::spawn(async move {
                    if holding.ends(None).await != Ending::Lost {
                        let _ = holding.give().await;
                    }
                });
            }
        });
        self.workers.insert(name.to_owned(), Worker { keeper, consuming });
        Ok(())
    }

    /// As if its process had been killed: nothing is given back.
    fn kill(&mut self, name: &str) {
        if let Some(worker) = self.workers.remove(name) {
            worker.consuming.abort();
            worker.keeper.abandon();
        }
    }

    /// How many leases each worker holds, and how many nobody does.
    async fn shares(&self) -> anyhow::Result<(BTreeMap<String, usize>, usize)> {
        let admin = Admin::new(&*self.store, &self.env, "bench", &self.settings);
        let (mut shares, mut free) = (BTreeMap::new(), 0);
        for lease in admin.inventory().await?.leases {
            match (lease.owner, lease.giver) {
                (Some(owner), None) => *shares.entry(owner.to_string()).or_insert(0) += 1,
                _ => free += 1,
            }
        }
        Ok((shares, free))
    }

    /// Waits until the leases are shared out as wanted, and says how long it took.
    async fn until(
        &self,
        is_so: impl Fn(&BTreeMap<String, usize>, usize) -> bool,
    ) -> anyhow::Result<Duration> {
        let began = SystemClock.monotonic();
        loop {
            // Before there are tables there is nothing to see.
            let (shares, free) = self.shares().await.unwrap_or_default();
            if is_so(&shares, free) {
                return Ok(SystemClock.monotonic().since(began));
            }
            let took = SystemClock.monotonic().since(began);
            ensure!(took < PATIENCE, "it never came to that: {shares:?}, {free} free");
            SystemClock.sleep(POLL).await;
        }
    }

    async fn end(self) -> anyhow::Result<()> {
        for worker in self.workers.into_values() {
            worker.keeper.stop().await?;
        }
        Ok(())
    }
}

fn even(shares: &BTreeMap<String, usize>, workers: usize, leases: usize) -> bool {
    shares.len() == workers
        && shares.values().sum::<usize>() == leases
        && shares.values().all(|share| (leases / workers..=leases.div_ceil(workers)).contains(share))
}

/// A fourth worker joins three that hold 60 leases.
async fn join() -> anyhow::Result<Duration> {
    let mut fleet = Fleet::new(60, SHORT).await?;
    for name in ["one", "two", "three"] {
        fleet.add(name).await?;
    }
    fleet.until(|shares, _| even(shares, 3, 60)).await?;
    // What was just taken stays for a while: the fleet is at rest.
    SystemClock.sleep(SHORT * 4).await;
    let began = SystemClock.monotonic();
    fleet.add("four").await?;
    fleet.until(|shares, _| even(shares, 4, 60)).await?;
    let took = SystemClock.monotonic().since(began);
    fleet.end().await?;
    Ok(took)
}

/// The worker that plans is killed.
async fn crash() -> anyhow::Result<Duration> {
    let mut fleet = Fleet::new(60, SHORT).await?;
    for name in ["one", "two", "three", "four"] {
        fleet.add(name).await?;
    }
    fleet.until(|shares, _| even(shares, 4, 60)).await?;
    SystemClock.sleep(SHORT * 4).await;
    let plans = |worker: &Worker| worker.keeper.view().borrow().plans;
    let planner = fleet.workers.iter().find(|(_, worker)| plans(worker)).map(|(name, _)| name.clone());
    let planner = planner.unwrap_or_else(|| "one".to_owned());
    fleet.kill(&planner);
    let took =
        fleet.until(|shares, free| free == 0 && !shares.contains_key(&planner) && !shares.is_empty()).await?;
    fleet.end().await?;
    Ok(took)
}

/// Ten workers and a thousand shards that nobody has ever read.
async fn cold() -> anyhow::Result<Duration> {
    let mut fleet = Fleet::new(1000, SHORT).await?;
    let began = SystemClock.monotonic();
    for number in 0..10 {
        fleet.add(&format!("worker-{number}")).await?;
    }
    fleet.until(|shares, free| free == 0 && shares.values().sum::<usize>() == 1000).await?;
    let took = SystemClock.monotonic().since(began);
    fleet.end().await?;
    Ok(took)
}

/// One of three workers stops as planned, again and again: how long each of its leases was nobody's.
async fn planned_stop() -> anyhow::Result<f64> {
    let mut fleet = Fleet::new(30, USUAL).await?;
    for name in ["one", "two", "three"] {
        fleet.add(name).await?;
    }
    let mut all = Vec::new();
    for round in 0..10 {
        fleet
            .until(|shares, free| free == 0 && shares.values().sum::<usize>() == 30 && shares.len() >= 2)
            .await?;
        let name = fleet.workers.keys().next().cloned().unwrap_or_default();
        let Some(worker) = fleet.workers.remove(&name) else { break };
        let began = SystemClock.monotonic();
        let stopping = tokio::spawn(async move { worker.keeper.stop().await });
        fleet.until(|shares, free| free == 0 && !shares.contains_key(&name)).await?;
        all.push(SystemClock.monotonic().since(began).as_secs_f64());
        stopping.await??;
        fleet.add(&format!("next-{round}")).await?;
    }
    fleet.end().await?;
    // Of ten rounds, the slowest: no better p99 can be told from them.
    Ok(all.into_iter().fold(0.0, f64::max))
}

/// Half a minute of 60 leases and 4 workers, as an hour would go on.
async fn writes() -> anyhow::Result<f64> {
    const WATCHED: Duration = Duration::from_secs(35);
    let mut fleet = Fleet::new(60, USUAL).await?;
    for name in ["one", "two", "three", "four"] {
        fleet.add(name).await?;
    }
    fleet.until(|shares, _| even(shares, 4, 60)).await?;
    SystemClock.sleep(Duration::from_secs(5)).await;
    let (began, before) = (SystemClock.monotonic(), fleet.store.writes());
    SystemClock.sleep(WATCHED).await;
    let hours = SystemClock.monotonic().since(began).as_secs_f64() / 3600.0;
    let written = (fleet.store.writes() - before) as f64;
    fleet.end().await?;
    Ok(written / 60.0 / hours)
}

/// The whole process, store and stream in memory included.
async fn idle() -> anyhow::Result<f64> {
    const WATCHED: Duration = Duration::from_secs(20);
    let mut fleet = Fleet::new(2000, USUAL).await?;
    fleet.add("one").await?;
    fleet.until(|shares, _| shares.get("one") == Some(&2000)).await?;
    SystemClock.sleep(Duration::from_secs(5)).await;
    let before = cpu_seconds()?;
    SystemClock.sleep(WATCHED).await;
    let spent = cpu_seconds()? - before;
    fleet.end().await?;
    Ok(100.0 * spent / WATCHED.as_secs_f64())
}
