//! What an election costs, and how long a shard is without a leader.
//!
//! Run it with `cargo xtask bench election --json`; names of cases after it select those alone.
//! Each row says its aim and whether it was met.

use std::hint::black_box;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tenure_clock::{Clock, Entropy, ManualTime, SystemClock, WallTime};
use tenure_election::{Elector, Leadership, Settings};
use tenure_store::{Counting, Env, Memory, Store};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// Elections that crash together, each in its own phase between two renewals.
const CRASHES: usize = 100;
const CRASH_ROUNDS: usize = 3;
/// A fifth of the balanced preset: every figure is in units of it.
const CRASH_LEASE: Duration = Duration::from_secs(3);
/// Pairs of candidates that hand over to each other, and how often.
const PAIRS: usize = 50;
const HANDOVERS: usize = 4;
const MANY: usize = 10_000;
/// Short runs in quick turn: what else the machine does then spoils few of them, or both alike.
const IS_LEADER_RUNS: usize = 1001;
const IS_LEADER_CALLS: u32 = 2000;

struct Plan {
    json: bool,
    quick: bool,
    only: Vec<String>,
}

impl Plan {
    fn from_args(args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut plan = Self { json: false, quick: false, only: Vec::new() };
        for arg in args {
            match arg.as_str() {
                "--json" => plan.json = true,
                "--quick" => plan.quick = true,
                // What `cargo bench` itself adds.
                "--bench" => {}
                option if option.starts_with('-') => {
                    anyhow::bail!("unknown option {option}: known are --json, --quick, and names of cases")
                }
                name => plan.only.push(name.to_owned()),
            }
        }
        Ok(plan)
    }

    fn wants(&self, case: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| case.contains(name.as_str()))
    }

    fn print(&self, case: &str, backend: &str, value: f64, unit: &str, target: f64) {
        let value = (value * 1000.0).round() / 1000.0;
        let ok = value <= target;
        if self.json {
            println!(
                "{}",
                json!({
                    "bench": "election", "case": case, "backend": backend,
                    "value": value, "unit": unit, "target": target, "ok": ok,
                })
            );
        } else {
            let verdict = if ok { "ok" } else { "MISSED" };
            println!("{case:<24} {backend:<8} {value:>10.3} {unit:<10} at most {target:<8} {verdict}");
        }
    }
}

fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    say_machine();
    if plan.wants("crash_failover") {
        let store: Arc<dyn Store> = Arc::new(Memory::new(&Env::system()));
        crash_failover(&plan, "memory", &Opener::Shared(store))?;
        let dir = tempfile::tempdir()?;
        crash_failover(&plan, "sqlite", &sqlite(&dir))?;
    }
    if plan.wants("resign_handover") {
        resign_handover(&plan)?;
    }
    if plan.wants("writes_per_lease_hour") || plan.wants("follower_writes") {
        writes(&plan)?;
    }
    if plan.wants("is_leader") {
        is_leader(&plan)?;
    }
    if plan.wants("elections_10k_cpu") {
        many(&plan)?;
    }
    Ok(())
}

/// Opens stores of one place, in any runtime.
#[derive(Clone)]
enum Opener {
    Shared(Arc<dyn Store>),
    At(String),
}

impl Opener {
    async fn open(&self) -> anyhow::Result<Arc<dyn Store>> {
        match self {
            Self::Shared(store) => Ok(store.clone()),
            Self::At(address) => tenure_store::open(address, &Env::system()).await.context("open"),
        }
    }
}

fn sqlite(dir: &tempfile::TempDir) -> Opener {
    Opener::At(format!("sqlite:{}", dir.path().join("bench.db").display()))
}

fn elector(store: &Arc<dyn Store>, shard: &str, name: &str, settings: &Settings) -> anyhow::Result<Elector> {
    Ok(Elector::builder(store.clone(), shard, &Env::system())
        .owner(name)
        .settings(settings.clone())
        .build()?)
}

fn runtime(workers: usize) -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(workers).enable_all().build().context("start a runtime")
}

/// The value that all but the given share of the samples are below or at.
fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len().max(1));
    samples.get(index - 1).copied().unwrap_or(f64::NAN)
}

// === a crash ===

/// From the moment at which a leader is gone to that at which another knows that it leads.
fn crash_failover(plan: &Plan, backend: &str, opener: &Opener) -> anyhow::Result<()> {
    let rounds = if plan.quick { 1 } else { CRASH_ROUNDS };
    let settings = Settings { lease: CRASH_LEASE, renew: CRASH_LEASE / 3, ..Settings::default() };
    eprintln!(
        "crash failover on {backend}: {rounds} times {CRASHES} leaders crash at once, lease {:?}, renew {:?}",
        settings.lease, settings.renew
    );
    let here = runtime(1)?;
    let mut samples = Vec::new();
    for round in 0..rounds {
        let shards = (0..CRASHES).map(|number| format!("crash-{round}-{number}")).collect::<Vec<_>>();
        samples.extend(crash(&here, opener, &shards, &settings)?);
    }
    let lease = settings.lease.as_secs_f64();
    let mut samples = samples.into_iter().map(|took| took.as_secs_f64() / lease).collect::<Vec<_>>();
    plan.print("crash_failover_p50", backend, percentile(&mut samples, 0.5), "L", 0.92);
    plan.print("crash_failover_p99", backend, percentile(&mut samples, 0.99), "L", 1.10);
    Ok(())
}

fn crash(
    here: &Runtime,
    opener: &Opener,
    shards: &[String],
    settings: &Settings,
) -> anyhow::Result<Vec<Duration>> {
    // A process of its own, nearly: it goes away with all its tasks, and nothing is released.
    let process = runtime(1)?;
    let entropy = Entropy::system();
    let leaders = process.block_on(async {
        let store = opener.open().await?;
        let mut standing = JoinSet::new();
        for shard in shards {
            let leader = elector(&store, shard, "leader", settings)?;
            let later = entropy.up_to(settings.renew);
            standing.spawn(async move {
                SystemClock.sleep(later).await;
                leader.lead().await
            });
        }
        let mut leaders: Vec<Leadership> = Vec::new();
        while let Some(leadership) = standing.join_next().await {
            leaders.push(leadership??);
        }
        anyhow::Ok(leaders)
    })?;
    let mut candidates = JoinSet::new();
    here.block_on(async {
        let store = opener.open().await?;
        for shard in shards {
            let candidate = elector(&store, shard, "candidate", settings)?;
            candidates.spawn(async move {
                let leadership = candidate.lead().await?;
                anyhow::Ok((SystemClock.monotonic(), leadership))
            });
        }
        SystemClock.sleep(settings.lease + entropy.up_to(settings.renew)).await;
        anyhow::Ok(())
    })?;
    ensure!(leaders.iter().all(|leader| leader.is_valid()), "a leader was lost before the crash");
    process.shutdown_background();
    let crashed = SystemClock.monotonic();
    here.block_on(async {
        let mut took = Vec::new();
        while let Some(elected) = candidates.join_next().await {
            let (at, leadership) = elected??;
            took.push(at.since(crashed));
            // Given up with the runtime; a release would only disturb those who still wait.
            std::mem::forget(leadership);
        }
        Ok(took)
    })
}

// === a resignation ===

/// From the call of `resign` to the moment at which the other knows that it leads.
fn resign_handover(plan: &Plan) -> anyhow::Result<()> {
    let settings = Settings::balanced();
    let handovers = if plan.quick { 1 } else { HANDOVERS };
    eprintln!(
        "resign handover on sqlite: {PAIRS} pairs hand over {handovers} times, lease {:?}, renew {:?}",
        settings.lease, settings.renew
    );
    let dir = tempfile::tempdir()?;
    let opener = sqlite(&dir);
    let mut samples = runtime(2)?.block_on(async {
        let stores = [opener.open().await?, opener.open().await?];
        let mut pairs = JoinSet::new();
        for number in 0..PAIRS {
            let shard = format!("pair-{number}");
            let one = elector(&stores[0], &shard, "one", &settings)?;
            let other = elector(&stores[1], &shard, "other", &settings)?;
            pairs.spawn(hand_over(one, other, handovers, settings.lease));
        }
        let mut samples = Vec::new();
        while let Some(pair) = pairs.join_next().await {
            samples.extend(pair??.into_iter().map(|took| took.as_secs_f64() * 1000.0));
        }
        anyhow::Ok(samples)
    })?;
    plan.print("resign_handover_p99", "sqlite", percentile(&mut samples, 0.99), "ms", 250.0);
    Ok(())
}

async fn hand_over(
    mut leader: Elector,
    mut other: Elector,
    handovers: usize,
    lease: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let entropy = Entropy::system();
    let mut took = Vec::new();
    let mut leadership = leader.lead().await?;
    for _ in 0..handovers {
        let next = other.clone();
        let elected = tokio::spawn(async move {
            let leadership = next.lead().await?;
            anyhow::Ok((SystemClock.monotonic(), leadership))
        });
        // Whoever resigned holds back for a fifth of the lease; the next handover comes after that.
        SystemClock.sleep(lease / 4 + entropy.up_to(lease / 15)).await;
        let began = SystemClock.monotonic();
        leadership.resign(None).await?;
        let (at, next) = elected.await??;
        took.push(at.since(began));
        leadership = next;
        std::mem::swap(&mut leader, &mut other);
    }
    Ok(took)
}

// === writes ===

/// An hour of one leader and two followers, on a clock that jumps from one sleeper to the next.
fn writes(plan: &Plan) -> anyhow::Result<()> {
    let settings = Settings::balanced();
    let hour = Duration::from_secs(3600);
    eprintln!(
        "writes: a simulated hour, one leader and two followers, lease {:?}, renew {:?}",
        settings.lease, settings.renew
    );
    let (leader, followers) = Builder::new_current_thread().build()?.block_on(async {
        let time = ManualTime::starting_at(WallTime::from_millis(1_763_553_900_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let memory: Arc<dyn Store> = Arc::new(Memory::new(&env));
        let mut stores = Vec::new();
        let mut electors = Vec::new();
        for name in ["a", "b", "c"] {
            let store = Arc::new(Counting::new(memory.clone()));
            let elector = Elector::builder(store.clone(), "shard", &env).owner(name).build()?;
            elector.start().await?;
            // The first is elected before the next stands.
            pass(&time, Duration::from_secs(1)).await;
            stores.push(store);
            electors.push(elector);
        }
        pass(&time, hour).await;
        ensure!(electors[0].is_leader(), "the leader changed within the hour");
        let count = |store: &Arc<Counting>| store.writes();
        Ok((count(&stores[0]), count(&stores[1]) + count(&stores[2])))
    })?;
    let target = hour.as_secs_f64() / settings.renew.as_secs_f64() + 10.0;
    plan.print("writes_per_lease_hour", "memory", leader as f64, "writes", target);
    plan.print("follower_writes", "memory", followers as f64, "writes", 0.0);
    Ok(())
}

async fn pass(time: &ManualTime, duration: Duration) {
    let clock = time.clock();
    let mut passed = clock.sleep(duration);
    loop {
        for _ in 0..10 {
            let polled = std::future::poll_fn(|cx| Poll::Ready(passed.as_mut().poll(cx))).await;
            if polled.is_ready() {
                return;
            }
            tokio::task::yield_now().await;
        }
        time.advance_to_next();
    }
}

// === is_leader ===

/// Beside a bare reading of the clock that it must make, in turn.
fn is_leader(plan: &Plan) -> anyhow::Result<()> {
    eprintln!(
        "is_leader: {IS_LEADER_RUNS} runs of {IS_LEADER_CALLS} calls, in turn with bare CLOCK_BOOTTIME reads"
    );
    let runtime = runtime(1)?;
    let store: Arc<dyn Store> = Arc::new(Memory::new(&Env::system()));
    let (mut bare, mut ours, mut ratios) = runtime.block_on(async {
        let elector = elector(&store, "shard", "a", &Settings::stable())?;
        let _leadership = elector.lead().await?;
        let timed = |call: &dyn Fn()| {
            let began = SystemClock.monotonic();
            call();
            SystemClock.monotonic().since(began).as_nanos() as f64 / f64::from(IS_LEADER_CALLS)
        };
        let (mut bare, mut ours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..IS_LEADER_RUNS {
            let one = timed(&|| {
                for _ in 0..IS_LEADER_CALLS {
                    black_box(SystemClock.monotonic());
                }
            });
            let other = timed(&|| {
                for _ in 0..IS_LEADER_CALLS {
                    black_box(black_box(&elector).is_leader());
                }
            });
            bare.push(one);
            ours.push(other);
            ratios.push(other / one);
        }
        ensure!(elector.is_leader(), "it did not lead");
        Ok((bare, ours, ratios))
    })?;
    let middle = |samples: &mut [f64]| percentile(samples, 0.5);
    eprintln!("  a bare read {:.1} ns, is_leader {:.1} ns", middle(&mut bare), middle(&mut ours));
    plan.print("is_leader", "memory", middle(&mut ratios), "ratio", 1.3);
    Ok(())
}

// === ten thousand ===

/// The process's time on a processor while it leads ten thousand shards and does nothing else.
fn many(plan: &Plan) -> anyhow::Result<()> {
    let settings = Settings::balanced();
    let stretch = Duration::from_secs(if plan.quick { 10 } else { 30 });
    eprintln!(
        "{MANY} elections in one process for {stretch:?}, lease {:?}, renew {:?}",
        settings.lease, settings.renew
    );
    let store: Arc<dyn Store> = Arc::new(Memory::new(&Env::system()));
    let share = runtime(2)?.block_on(async {
        let entropy = Entropy::system();
        let mut standing = JoinSet::new();
        for number in 0..MANY {
            let elector = elector(&store, &format!("shard-{number}"), "a", &settings)?;
            // As services start: not all in one moment.
            let later = entropy.up_to(settings.renew);
            standing.spawn(async move {
                SystemClock.sleep(later).await;
                elector.lead().await.map(|leadership| (elector, leadership))
            });
        }
        let mut leaders = Vec::new();
        while let Some(elected) = standing.join_next().await {
            leaders.push(elected??);
        }
        SystemClock.sleep(settings.renew * 2).await;
        let (began, before) = (SystemClock.monotonic(), cpu_time()?);
        SystemClock.sleep(stretch).await;
        let (ended, after) = (SystemClock.monotonic(), cpu_time()?);
        ensure!(leaders.iter().all(|(elector, _)| elector.is_leader()), "a leader was lost");
        // Given up with the process; ten thousand releases would measure nothing.
        std::mem::forget(leaders);
        Ok((after - before).as_secs_f64() / ended.since(began).as_secs_f64())
    })?;
    plan.print("elections_10k_cpu", "memory", share * 100.0, "% of core", 10.0);
    Ok(())
}

/// User and system time of this process, in the kernel's hundredths of a second.
fn cpu_time() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    // The name of the program, in parentheses, may have spaces; the fields begin after it with the third.
    let fields = stat.rsplit_once(") ").context("a name in parentheses")?.1;
    let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>).sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}

fn say_machine() {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    eprintln!(
        "machine: {cores} cores, {}, Linux {}, load {}",
        model.trim_matches([':', ' ', '\t']),
        kernel.trim(),
        load.trim()
    );
}
