//! What a tick costs the store, and how long a decision takes.
//!
//! Run it with `cargo xtask bench autoscaler --json`; names of cases after it select those alone.
//! Each row says its aim and whether it was met.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value as Json, json};
use tenure_autoscaler::observation::{
    Instance, InstanceState, Load, Node, Observation, Pod, PodOwner, Resources, tags,
};
use tenure_autoscaler::placement::Placement;
use tenure_autoscaler::rows::LOGS_TABLE;
use tenure_autoscaler::state::{Place, State};
use tenure_autoscaler::table::Name;
use tenure_autoscaler::testing::{Gate, World, at_once};
use tenure_autoscaler::{Executor, Now, Places, Policy, step};
use tenure_clock::{Clock, SystemClock};
use tenure_store::Counting;

/// How many instances a scale-up launches.
const LAUNCHES: [u32; 4] = [1, 5, 10, 50];
/// As a loop ticks.
const TICK: Duration = Duration::from_secs(15);
/// Most ticks of a scale-up: an instance joins after some of them.
const TICKS_MAX: u32 = 20;
const NODES: usize = 1000;
const PODS: usize = 10_000;
/// The median of these counts: what else the machine does spoils few of them.
const ROUNDS: usize = 11;
const DECISIONS: usize = 200;
const NOW: i64 = 1_730_000_000;

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

    /// The first of `of` tells rows of one case apart; the others are told beside the value.
    fn print(&self, case: &str, of: &[(&str, Json)], value: f64, unit: &str, target: f64) {
        let value = (value * 1000.0).round() / 1000.0;
        let ok = value <= target;
        if self.json {
            let mut row = json!({
                "bench": "autoscaler", "case": case, "backend": "memory",
                "value": value, "unit": unit, "target": target, "ok": ok,
            });
            for (name, value) in of {
                row[*name] = value.clone();
            }
            println!("{row}");
        } else {
            let verdict = if ok { "ok" } else { "MISSED" };
            let of = of.iter().take(1).map(|(name, value)| format!("{name} {value}")).collect::<String>();
            println!("{case:<16} {of:<16} {value:>10.3} {unit:<8} at most {target:<8} {verdict}");
        }
    }
}

fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    say_machine();
    if plan.wants("idle_tick_ops") {
        idle_tick(&plan)?;
    }
    if plan.wants("scale_up_writes") {
        for launches in LAUNCHES {
            scale_up(&plan, launches)?;
        }
    }
    if plan.wants("decide_p99") {
        decide(&plan, "idle", &observation(0, 5))?;
        decide(&plan, "pending", &observation(PODS / 4, 60))?;
        decide(&plan, "all pending", &observation(PODS, 60))?;
    }
    Ok(())
}

fn policy(workers_min: u32, workers_max: u32) -> Policy {
    let place = Place { subnet: "subnet-a".into(), market: "on-demand".into(), template: "1".into() };
    Policy { up_max: 50, ..Policy::new("bench", workers_min, workers_max, vec![place]) }
}

// === the store ===

/// An executor in that world, and the calls that it makes to the store.
fn counted(world: &World, logs_table: Option<&str>) -> anyhow::Result<(Executor, Arc<Counting>)> {
    let mut ports = world.ports(&Gate::open());
    let store = Arc::new(Counting::new(ports.store));
    ports.store = store.clone();
    let places = Places { logs_table: logs_table.map(str::to_owned), ..Places::default() };
    let executor = Executor::builder(ports, world.policy(), world.env()).places(places).build()?;
    Ok((executor, store))
}

fn tick(executor: &mut Executor) -> anyhow::Result<Vec<Name>> {
    let tick = at_once(executor.tick()).context("a tick in the simulated world does not wait")??;
    ensure!(tick.failures.is_empty(), "calls failed: {:?}", tick.failures);
    Ok(tick.writes)
}

/// Nothing to do, and nothing new since the last tick.
fn idle_tick(plan: &Plan) -> anyhow::Result<()> {
    let world = World::new(policy(1, 5));
    world.add_control_plane();
    (1..=3).for_each(|number| drop(world.add_worker(number)));
    let (mut executor, store) = counted(&world, Some(LOGS_TABLE))?;
    tick(&mut executor)?;
    world.advance(TICK);
    let (reads, writes) = (store.reads(), store.writes());
    tick(&mut executor)?;
    plan.print("idle_tick_ops", &[("op", json!("read"))], (store.reads() - reads) as f64, "reads", 1.0);
    plan.print("idle_tick_ops", &[("op", json!("write"))], (store.writes() - writes) as f64, "writes", 0.0);
    Ok(())
}

/// From the beginning of a scale-up to its completion: writes of the state item. The windows, which an idle tick
/// writes when pods begin to wait and when none does any more, are not the action's.
fn scale_up(plan: &Plan, launches: u32) -> anyhow::Result<()> {
    let writes = |logs_table| {
        let world = World::new(policy(1, 60));
        world.add_control_plane();
        world.add_worker(1);
        // Each takes half a worker; the first two find room.
        world.add_pods(2 + 2 * launches);
        let (mut executor, store) = counted(&world, logs_table)?;
        tick(&mut executor)?;
        world.advance(world.policy().pending_window);
        let before = store.writes();
        let mut windows = 0;
        for _ in 0..TICKS_MAX {
            let writes = tick(&mut executor)?;
            windows += writes.iter().filter(|name| **name == Name::Windows).count() as u64;
            if world.ended_actions() > 0 {
                break;
            }
            world.advance(TICK);
        }
        let writes = store.writes() - before;
        ensure!(world.state().last_failure.is_none(), "the scale-up failed");
        ensure!(world.launches() == u64::from(launches), "{} were launched", world.launches());
        ensure!(world.ended_actions() == 1, "it did not complete");
        anyhow::Ok((writes, windows))
    };
    let (all, windows) = writes(None)?;
    let (with_log, _) = writes(Some(LOGS_TABLE))?;
    let of_state = all - windows;
    eprintln!(
        "scale-up of {launches}: {of_state} writes of the action, {windows} of the windows afterwards, {} events \
         in the log",
        with_log - all
    );
    let target = f64::from(3 + launches);
    let beside = [("n", json!(launches)), ("of_windows", json!(windows)), ("of_log", json!(with_log - all))];
    plan.print("scale_up_writes", &beside, of_state as f64, "writes", target);
    Ok(())
}

// === decisions ===

/// So many pods wait, the others are spread over the nodes; every node is loaded so far.
fn observation(waiting: usize, load_percent: u32) -> Observation {
    let id = |number: usize| format!("i-{number:05}");
    let name = |number: usize| format!("ip-10-0-{}-{}", number / 250, number % 250);
    let instance = |number: usize| Instance {
        id: id(number).into(),
        state: InstanceState::Running,
        private_ip: Some(name(number)),
        launched_epoch: NOW - 86_400,
        tags: [(tags::CLUSTER.to_owned(), "bench".to_owned())].into(),
    };
    let node = |number: usize| Node {
        name: name(number),
        uid: format!("uid-{number}"),
        version: number.to_string(),
        provider_id: Some(format!("aws:///eu-west-1a/{}", id(number))),
        instance_label: None,
        internal_ip: Some(name(number)),
        created_epoch: NOW - 86_000,
        ready: true,
        unschedulable: false,
        control_plane: false,
        startup_taint: false,
        cordoned_by: None,
        released_by: None,
        allocatable: Resources { cpu_millis: 2000, memory_mib: 4096 },
        labels: [("topology.kubernetes.io/zone".to_owned(), "eu-west-1a".to_owned())].into(),
        taints: Vec::new(),
    };
    // Of many sizes: packing has work to do.
    let requests = |number: usize| Resources {
        cpu_millis: 20 + (number as u64 * 37) % (if number < waiting { 900 } else { 120 }),
        memory_mib: 32 + (number as u64 * 53) % (if number < waiting { 1800 } else { 250 }),
    };
    let pod = |number: usize| Pod {
        namespace: format!("team-{}", number % 20),
        name: format!("pod-{number}"),
        uid: format!("pod-uid-{number}"),
        node: (number >= waiting).then(|| name(number % NODES)),
        unschedulable: number < waiting,
        requests: requests(number),
        owner: if number % 10 == 9 { PodOwner::DaemonSet } else { PodOwner::Controller },
        local_storage: false,
        placement: Placement::default(),
    };
    let load = Load { cpu_percent: load_percent, memory_percent: load_percent, at_epoch: NOW - 10 };
    let loads: BTreeMap<_, _> = (0..NODES).map(|number| (name(number), load)).collect();
    Observation {
        instances: (0..NODES).map(instance).collect(),
        nodes: (0..NODES).map(node).collect(),
        pods: (0..PODS).map(pod).collect(),
        loads: Some(loads),
        metrics_epoch: Some(NOW),
        ..Observation::default()
    }
}

fn decide(plan: &Plan, mix: &str, observation: &Observation) -> anyhow::Result<()> {
    let policy = policy(10, 2000);
    let state = State {
        schema_version: Some(2),
        rev: Some(7),
        last_scale_epoch: Some(NOW - 3600),
        // Both windows have passed.
        pending_since_epoch: Some(NOW - 700),
        idle_since_epoch: Some(NOW - 700),
        worker_count: Some(NODES as i64),
        ..State::default()
    };
    let now = Now { ms: NOW * 1000, owner: "bench".to_owned(), lease_left_ms: 0 };
    let first = step(&state, observation, &policy, &now);
    ensure!(first.effects.len() == 1, "something begins: {:?}", first.reasons);
    eprintln!("decide, {mix}: {NODES} nodes, {PODS} pods: {}", first.reasons.join("; "));
    let one = |_| {
        let began = SystemClock.monotonic();
        black_box(step(black_box(&state), black_box(observation), &policy, &now));
        SystemClock.monotonic().since(began).as_secs_f64() * 1000.0
    };
    let (mut middles, mut highs) = (Vec::new(), Vec::new());
    for _ in 0..if plan.quick { 1 } else { ROUNDS } {
        let mut millis: Vec<f64> = (0..DECISIONS).map(one).collect();
        middles.push(percentile(&mut millis, 0.5));
        highs.push(percentile(&mut millis, 0.99));
    }
    let (p50, p99) = (percentile(&mut middles, 0.5), percentile(&mut highs, 0.5));
    eprintln!("  p50 {p50:.3} ms, p99 {p99:.3} ms: medians of {} rounds of {DECISIONS}", highs.len());
    plan.print("decide_p99", &[("mix", json!(mix))], p99, "ms", 5.0);
    Ok(())
}

/// The value that all but the given share of the samples are below or at.
fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len().max(1));
    samples.get(index - 1).copied().unwrap_or(f64::NAN)
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
