//! A schedule of a fleet: who keeps leases with which clocks and caps, what is written, and what goes wrong when.
//!
//! As in the other scenarios, the seed draws which kinds of faults there are and how strong each is.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_clock::Entropy;
use tenure_leases::{Settings, Timing};

use super::fault::Fault;
use crate::calendar::{MILLI, SECOND, nanos};
use crate::draws::{one_in, spread};
use crate::network::{CALL_FAULTS, Network};
use crate::scenario::{self, Course, Incident, Simpler, Target};
use crate::shrink::PLAIN_LATENCY;

/// Most workers of a drawn schedule.
const WORKERS_MAX: usize = 5;
/// A cap that nobody comes near.
pub const CAP_PLENTY: usize = 80;
/// How deep the lineage of a shard may be: each step down takes a while.
pub const DEPTH_MAX: usize = 3;
/// Most shards of a drawn schedule.
const SHARDS_MAX: usize = 16;

/// A whole schedule.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What happens when.
    pub course: Course<Fault>,
    /// Who keeps leases.
    pub nodes: Vec<NodePlan>,
    /// Who has which name.
    pub names: Names,
    /// Everybody's settings, checked.
    pub timing: Timing,
    /// By how much a clock may be off.
    pub rate_error_ppm: u32,
    /// After how long a consumer that does not get on is called stuck.
    pub stuck_after: u64,
    /// How many shards there are at first.
    pub shards: u32,
    /// And in all, at most.
    pub shards_max: usize,
    /// What is written, and how it is read.
    pub workload: Workload,
    /// What becomes of calls.
    pub network: Network,
    /// How long it is from one planner to the next, at most.
    pub handover_max: u64,
    /// After healing everybody may hold plenty.
    pub plenty_at_last: bool,
}

/// One worker.
#[derive(Debug, Clone)]
pub struct NodePlan {
    /// Whether it takes part.
    pub present: bool,
    /// What its monotonic clock shows at the beginning.
    pub clock_origin: u64,
    /// By how much its monotonic clock is fast.
    pub rate_ppm: i64,
    /// When its first process starts; never before it joins, if that is not at the beginning.
    pub starts_at: Option<u64>,
    /// How many leases it may hold at first.
    pub cap: usize,
    /// How many workers it believes that there are: what the seed's rules go by.
    pub workers_seen: usize,
}

/// Who has which name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Names {
    /// Every process one of its own.
    Fresh,
    /// Every worker one, which its processes have in turn.
    Kept,
    /// The first two workers the same, by mistake.
    Shared,
}

/// What is written, and how it is read.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// How long it is between two writes, at most; 0: nothing is written.
    pub every_max: u64,
    /// Records of one write, at most.
    pub burst_max: u64,
    /// Records that a consumer takes at a time, at most.
    pub batch_max: u64,
    /// How long it takes for them, at most.
    pub processing_max: u64,
    /// How many records it processes between two checkpoints, at most.
    pub checkpoint_every: u64,
}

impl scenario::Plan for Plan {
    type Fault = Fault;

    fn draw(seed: u64) -> Self {
        let entropy = Entropy::seeded(seed);
        let settings = draw_settings(&entropy);
        let timing = settings.timing().expect("the drawn settings are valid");
        let lease = nanos(timing.lease);
        let faults_for = lease * (12 + entropy.below(20));
        let heal_at = faults_for;
        let end_at = heal_at + settling(&timing);
        let names = match entropy.below(10) {
            0..3 => Names::Kept,
            3 => Names::Shared,
            _ => Names::Fresh,
        };
        let rates_on = one_in(&entropy, 2);
        let workers = 2 + below(&entropy, WORKERS_MAX - 1);
        let shards = 1 + entropy.below(8);
        let tight = one_in(&entropy, 4);
        let even = usize::try_from(shards).unwrap_or(1).div_ceil(workers);
        let nodes = (0..workers)
            .map(|index| NodePlan {
                present: true,
                clock_origin: entropy.below(1000 * SECOND),
                rate_ppm: if rates_on { draw_rate(&entropy, settings.rate_error_ppm) } else { 0 },
                starts_at: {
                    let at = entropy.below(lease);
                    (index < 2 || !one_in(&entropy, 4)).then_some(at)
                },
                cap: if tight { even + below(&entropy, 3) } else { CAP_PLENTY },
                workers_seen: 1 + below(&entropy, workers),
            })
            .collect::<Vec<_>>();
        let incidents = draw_incidents(&entropy, workers, lease, heal_at);
        let key = entropy.u64();
        let latency_max = spread(&entropy, 2 * MILLI, (lease / 25).max(4 * MILLI));
        let network = Network {
            latency_min: latency_max / 8,
            latency_max,
            rates: Network::draw_rates(&entropy),
            slow_by_max: spread(&entropy, 100 * MILLI, lease),
            late_by_max: spread(&entropy, SECOND, 4 * lease),
        };
        let mut workload = Workload {
            every_max: spread(&entropy, lease / 20, lease),
            burst_max: 1 + entropy.below(6),
            batch_max: 1 + entropy.below(16),
            processing_max: spread(&entropy, MILLI, lease / 4),
            checkpoint_every: 1 + entropy.below(20),
        };
        // A consumer must be able to keep up even if all goes to one.
        let cycle = workload.processing_max * 5 / 4 + 4 * latency_max;
        let keeps_up = 4 * cycle * (1 + workload.burst_max) / (1 + workload.batch_max);
        workload.every_max = workload.every_max.max(keeps_up);
        Self {
            course: Course { seed, key, incidents, heal_at, end_at, spared_calls: BTreeSet::new() },
            nodes,
            names,
            timing,
            rate_error_ppm: settings.rate_error_ppm,
            stuck_after: lease + entropy.below(lease),
            shards: u32::try_from(shards).unwrap_or(1),
            shards_max: SHARDS_MAX,
            workload,
            network,
            handover_max: spread(&entropy, lease / 8, 3 * lease / 2),
            plenty_at_last: !one_in(&entropy, 4),
        }
    }

    fn course(&self) -> &Course<Fault> {
        &self.course
    }

    fn course_mut(&mut self) -> &mut Course<Fault> {
        &mut self.course
    }

    fn simpler(&self) -> Vec<Simpler<Self>> {
        let mut all: Vec<Simpler<Self>> = Vec::new();
        for rate in 0..CALL_FAULTS.len() {
            all.push(Box::new(move |plan| plan.network.rates[rate] = 0));
        }
        all.push(Box::new(|plan| {
            (plan.network.latency_min, plan.network.latency_max) = (PLAIN_LATENCY, PLAIN_LATENCY);
        }));
        for node in 0..self.nodes.len() {
            all.push(Box::new(move |plan| {
                // Somebody must be left to do what has to be done in the end.
                let left = plan.nodes.iter().filter(|node| node.present).count();
                plan.nodes[node].present &= left < 2;
            }));
            all.push(Box::new(move |plan| plan.nodes[node].rate_ppm = 0));
            all.push(Box::new(move |plan| plan.nodes[node].cap = CAP_PLENTY));
            all.push(Box::new(move |plan| plan.nodes[node].starts_at = Some(node as u64 * PLAIN_LATENCY)));
        }
        all.push(Box::new(|plan| plan.names = Names::Fresh));
        all.push(Box::new(|plan| plan.shards = 1));
        all.push(Box::new(|plan| plan.shards = plan.shards.min(2)));
        all.push(Box::new(|plan| plan.workload.every_max = 0));
        all.push(Box::new(|plan| plan.workload.every_max *= 4));
        all.push(Box::new(|plan| plan.workload.processing_max = PLAIN_LATENCY));
        all.push(Box::new(|plan| plan.plenty_at_last = true));
        all.push(Box::new(|plan| plan.handover_max = PLAIN_LATENCY));
        all
    }
}

impl Plan {
    /// A calm world of so many shards and workers, which all start at once. It ends when all is owned.
    #[must_use]
    pub fn large(shards: u32, workers: usize, leases: u64) -> Self {
        let settings = Settings::default();
        let timing = settings.timing().expect("the default settings are valid");
        let lease = nanos(timing.lease);
        let entropy = Entropy::seeded(1);
        let nodes = (0..workers)
            .map(|_| NodePlan {
                present: true,
                clock_origin: entropy.below(1000 * SECOND),
                rate_ppm: 0,
                starts_at: Some(entropy.below(lease / 10)),
                cap: CAP_PLENTY,
                workers_seen: workers,
            })
            .collect();
        Self {
            course: Course {
                seed: 1,
                key: entropy.u64(),
                incidents: Vec::new(),
                heal_at: 0,
                end_at: leases * lease,
                spared_calls: BTreeSet::new(),
            },
            nodes,
            names: Names::Fresh,
            timing,
            rate_error_ppm: settings.rate_error_ppm,
            stuck_after: 30 * lease,
            shards,
            shards_max: usize::try_from(shards).unwrap_or(usize::MAX),
            workload: Workload {
                every_max: 0,
                burst_max: 0,
                batch_max: 1,
                processing_max: MILLI,
                checkpoint_every: 1,
            },
            network: Network {
                latency_min: 2 * MILLI,
                latency_max: 15 * MILLI,
                rates: [0; CALL_FAULTS.len()],
                slow_by_max: MILLI,
                late_by_max: MILLI,
            },
            handover_max: lease / 10,
            plenty_at_last: true,
        }
    }

    /// Whether it is a calm world that ends when all is owned.
    #[must_use]
    pub const fn is_large(&self) -> bool {
        self.course.heal_at == 0
    }

    /// How long a shard that can be read may be without an owner once all is well: the bound of LS-5.
    ///
    /// A lease whose holder died runs out (1), a process of the same name is watched first (1), whoever lost it for
    /// being slow leaves it to others (2), a handoff may run into its limit and then out (1 and the limit), and
    /// whoever should have taken it may not have (3/4). A row that was lost with its holder is made again after 1.
    #[must_use]
    pub fn owned_within(&self) -> u64 {
        let Timing { lease, handoff, list, .. } = self.timing;
        7 * nanos(lease) + nanos(handoff) + nanos(list) + self.handover_max + 20 * self.network.latency_max
    }
}

/// How long a schedule goes on after healing: until all is owned, read to its end, and shared out evenly.
fn settling(timing: &Timing) -> u64 {
    let Timing { lease, handoff, list, move_interval, .. } = *timing;
    let depth = u32::try_from(DEPTH_MAX).unwrap_or(1);
    nanos(lease * (14 + 2 * depth) + handoff * 3 + list * 2 + move_interval * 3)
}

fn draw_settings(entropy: &Entropy) -> Settings {
    let millis = spread(entropy, 1000, 10_000);
    let lease = Duration::from_millis(millis);
    Settings {
        lease,
        // Often as by default is slow to simulate, and finds nothing else.
        nudge: Some(lease / u32::try_from(4 + entropy.below(12)).unwrap_or(8)),
        rate_error_ppm: if one_in(entropy, 4) { 1000 } else { 10_000 },
        handoff_timeout: Duration::from_millis(spread(entropy, millis / 2, 3 * millis)),
        move_interval: one_in(entropy, 2)
            .then(|| Duration::from_millis(spread(entropy, millis / 2, 4 * millis))),
        list_interval: Duration::from_millis(spread(entropy, millis, 3 * millis)),
        stop_timeout: Duration::from_millis(spread(entropy, millis, 4 * millis)),
        ..Settings::default()
    }
}

/// The extremes as often as all between: that is where a margin fails.
fn draw_rate(entropy: &Entropy, bound_ppm: u32) -> i64 {
    let bound = i64::from(bound_ppm);
    match entropy.below(4) {
        0 => bound,
        1 => -bound,
        _ => i64::try_from(entropy.below(2 * bound.unsigned_abs() + 1)).unwrap_or(0) - bound,
    }
}

fn below(entropy: &Entropy, bound: usize) -> usize {
    usize::try_from(entropy.below(bound as u64)).unwrap_or(0)
}

/// The faults that come as incidents, in how many worlds out of a hundred, and how long they last at most, in
/// quarters of a lease.
const INCIDENTS: [(Fault, u64, u64); 22] = [
    (Fault::Crash, 40, 12),
    (Fault::Restart, 25, 0),
    (Fault::Pause, 40, 14),
    (Fault::KeeperStalled, 20, 10),
    (Fault::Partition, 25, 14),
    (Fault::RequestsDropped, 20, 10),
    (Fault::RepliesDropped, 20, 10),
    (Fault::Outage, 20, 8),
    (Fault::Join, 30, 0),
    (Fault::Leave, 35, 12),
    (Fault::Deploy, 20, 12),
    (Fault::CapChange, 25, 0),
    (Fault::Split, 40, 0),
    (Fault::Merge, 30, 0),
    (Fault::RowDeleted, 20, 0),
    (Fault::PresenceDeleted, 20, 0),
    (Fault::SlowConsumer, 25, 14),
    (Fault::StuckConsumer, 20, 24),
    (Fault::Foreign, 15, 40),
    (Fault::NoPlanner, 20, 20),
    (Fault::LateHandover, 20, 24),
    (Fault::TwoPlanners, 25, 16),
];

fn draw_incidents(entropy: &Entropy, workers: usize, lease: u64, heal_at: u64) -> Vec<Incident<Fault>> {
    let mut incidents = Vec::new();
    for (fault, percent, longest) in INCIDENTS {
        let on = entropy.below(100) < percent;
        let every = spread(entropy, lease, 24 * lease);
        if !on {
            continue;
        }
        let mut at = entropy.below(every.min(heal_at));
        while at < heal_at {
            let lasts = spread(entropy, lease / 64, (longest * lease / 4).max(lease / 64));
            let target =
                if one_in(entropy, 3) { Target::Leader } else { Target::Node(below(entropy, workers)) };
            let detail = entropy.u64();
            incidents.push(Incident { at, until: (at + lasts).min(heal_at), fault, target, detail });
            at += 1 + entropy.below(2 * every);
        }
    }
    incidents.sort_by_key(|incident| incident.at);
    incidents
}
