//! One calm world at the size of a large fleet: how long it takes until every shard is owned, and what that costs.

use serde::Serialize;
use tenure_clock::{Clock, SystemClock};
use tenure_leases::machine::Machine;

use super::plan::Plan;
use super::world::World;
use crate::calendar::{SECOND, nanos};
use crate::scenario::Watch;

/// After so many leases a fleet that does not come to rest has failed.
const LEASES_MAX: u64 = 4;

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct Figures {
    /// What this is about.
    pub scenario: &'static str,
    /// How many shards.
    pub shards: u32,
    /// How many workers.
    pub workers: usize,
    /// Whether every shard was owned in time, and nothing was broken.
    pub ok: bool,
    /// From the first start until every shard was owned, in leases.
    pub converged_leases: Option<f64>,
    /// The same in seconds of simulated time.
    pub converged_s: Option<f64>,
    /// Writes that the store saw until then, a second.
    pub writes_per_s_converging: f64,
    /// Writes that it saw while everything was renewed once more, a second. A large fleet still moves some then.
    pub writes_per_s_after: f64,
    /// Reads that the store sees, a second, over all; a scan is three, whatever it reads.
    pub reads_per_s: f64,
    /// How many leases the worker with the fewest holds at the end, and the one with the most.
    pub held_fewest: usize,
    /// See `held_fewest`.
    pub held_most: usize,
    /// What was broken, if anything.
    pub violations: Vec<String>,
    /// Events of the simulation.
    pub events: u64,
    /// Real time.
    pub real_s: f64,
    /// The most memory that this process has had, where the system says so.
    pub memory_mib: Option<u64>,
}

/// Runs it.
#[must_use]
pub fn run(shards: u32, workers: usize) -> Figures {
    let plan = Plan::large(shards, workers, LEASES_MAX);
    let began = SystemClock.monotonic();
    let mut world = World::<Machine>::new(&plan, Watch::default());
    world.play();
    let all_held = world.all_held_at;
    let (held_fewest, held_most) = world.fewest_and_most();
    let outcome = world.into_outcome();
    let seconds = |nanos: u64| nanos as f64 / SECOND as f64;
    let lived = seconds(outcome.lived_nanos);
    let end = (outcome.lived_nanos, outcome.tally.writes);
    // From one moment to another, each with the writes until then.
    let rate = |from: (u64, u64), to: (u64, u64)| (to.1 - from.1) as f64 / seconds(to.0 - from.0).max(1e-9);
    let held = all_held.unwrap_or(end);
    Figures {
        scenario: "leases_scale",
        shards,
        workers,
        ok: all_held.is_some() && outcome.violations.is_empty(),
        converged_leases: all_held.map(|(at, _)| at as f64 / nanos(plan.timing.lease) as f64),
        converged_s: all_held.map(|(at, _)| seconds(at)),
        writes_per_s_converging: rate((0, 0), held),
        writes_per_s_after: rate(held, end),
        reads_per_s: outcome.tally.reads as f64 / lived,
        held_fewest,
        held_most,
        violations: outcome
            .violations
            .iter()
            .map(|broken| format!("{:?}: {}", broken.rule, broken.what))
            .collect(),
        events: outcome.events,
        real_s: SystemClock.monotonic().since(began).as_secs_f64(),
        memory_mib: memory_mib(),
    }
}

/// The high-water mark of this process, as Linux tells it.
fn memory_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib / 1024)
}
