//! A schedule of the election: who stands with which settings and clocks, and what goes wrong when.
//!
//! The seed draws not only the faults but how many kinds there are and how strong each is (a swarm):
//! some worlds are calm but for one clock, others are all crashes. Whatever happens at a moment of its
//! own is listed as an [`Incident`], so that a schedule can be made smaller by taking entries away.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_clock::Entropy;
use tenure_election::{OnRenewalError, Settings, Skew, Timing};

use super::fault::Fault;
use crate::calendar::{MILLI, SECOND, nanos};
use crate::draws::{Draws, one_in, spread};
use crate::network::{CALL_FAULTS, CallFault, Network};
use crate::scenario::{self, Course, Incident, Simpler, Target};
use crate::shrink::PLAIN_LATENCY;

/// How long every schedule is.
pub const SCHEDULE_SECONDS: u64 = 600;
/// How many stand.
pub const NODES: usize = 3;
/// The longest wait before a node that lost its term stands again.
pub const COOL_DOWN_MAX: u64 = SECOND;
const HOUR_MILLIS: u64 = 3_600_000;
/// Time for a renewal in a calm world, with some to spare.
const RENEWAL_MAX: Duration = Duration::from_secs(1);
/// A ninth of the time between two renewals, at most.
const BRISK_LATENCY_MAX: u64 = 110 * MILLI;
/// The stream of draws for what sets a few schedules apart.
const CHARACTER: u64 = 2001;

/// A whole schedule.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What happens when.
    pub course: Course<Fault>,
    /// Who stands.
    pub nodes: Vec<NodePlan>,
    /// What becomes of calls.
    pub network: Network,
    /// How long a leader waits between two guarded writes, at most.
    pub work_every_max: u64,
    /// Who is given which owner id.
    pub owners: Owners,
}

/// One node.
#[derive(Debug, Clone)]
pub struct NodePlan {
    /// Whether it takes part.
    pub present: bool,
    /// Its settings, checked.
    pub timing: Timing,
    /// What its monotonic clock shows at the beginning.
    pub clock_origin: u64,
    /// By how much its monotonic clock is fast.
    pub rate_ppm: i64,
    /// By how much its wall is off.
    pub skew_millis: i64,
    /// When its first process starts.
    pub starts_at: u64,
}

/// Who is given which owner id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owners {
    /// Every process one of its own.
    Fresh,
    /// Every node one, which its processes have in turn.
    Kept,
    /// The first two nodes the same, by mistake.
    Shared,
}

impl scenario::Plan for Plan {
    type Fault = Fault;

    fn draw(seed: u64) -> Self {
        let entropy = Entropy::seeded(seed);
        let character = Character::draw(seed);
        let mut settings = draw_settings(&entropy);
        if character.brisk {
            settings.fill(brisk_settings(character.detail));
        }
        let timings: Vec<Timing> =
            settings.iter().map(|one| one.timing(false).expect("the drawn settings are valid")).collect();
        let lease_max = nanos(timings.iter().map(|timing| timing.lease).max().unwrap_or_default());
        let end_at = SCHEDULE_SECONDS * SECOND;
        // Time enough to converge, and then to stay so for a while.
        let heal_at = end_at - 4 * lease_max - 5 * SECOND;
        let rates_on = one_in(&entropy, 2);
        let skews_on = !one_in(&entropy, 4);
        let nodes = timings
            .iter()
            .map(|timing| NodePlan {
                present: true,
                timing: *timing,
                clock_origin: entropy.below(1000 * SECOND),
                rate_ppm: if rates_on { draw_rate(&entropy, timing.rate_error_ppm) } else { 0 },
                skew_millis: if skews_on { draw_skew(&entropy, timing) } else { 0 },
                starts_at: entropy.below(2 * SECOND),
            })
            .collect::<Vec<_>>();
        let incidents = draw_incidents(&entropy, &nodes, character, lease_max, heal_at);
        let key = entropy.u64();
        Self {
            course: Course { seed, key, incidents, heal_at, end_at, spared_calls: BTreeSet::new() },
            network: draw_network(&entropy, character, lease_max),
            nodes,
            work_every_max: (2 + entropy.below(8)) * SECOND,
            owners: character.owners,
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
        all.push(Box::new(|plan| plan.owners = Owners::Fresh));
        for node in 0..self.nodes.len() {
            all.push(Box::new(move |plan| plan.nodes[node].present = false));
            all.push(Box::new(move |plan| plan.nodes[node].rate_ppm = 0));
            all.push(Box::new(move |plan| plan.nodes[node].skew_millis = 0));
            all.push(Box::new(move |plan| plan.nodes[node].starts_at = node as u64 * PLAIN_LATENCY));
        }
        all
    }
}

impl Plan {
    /// The longest lease of those who take part.
    #[must_use]
    pub fn lease_max(&self) -> u64 {
        self.nodes.iter().map(|node| nanos(node.timing.lease)).max().unwrap_or(0)
    }

    /// When, at the latest, there is one leader again: the bound of LD-4.
    #[must_use]
    pub fn converged_by(&self) -> u64 {
        let poll = self.nodes.iter().map(|node| nanos(node.timing.poll)).max().unwrap_or(0);
        self.course.heal_at + 2 * self.lease_max() + poll + COOL_DOWN_MAX + 4 * self.network.latency_max
    }
}

/// What sets a few schedules apart. Drawn beside the rest, so that the others are as they always were.
#[derive(Debug, Clone, Copy)]
struct Character {
    owners: Owners,
    /// Short leases, renewals that are tried again, replies that get lost, leaders that are paused or
    /// resign: where a retry, or a write that comes late, meets the end of a term.
    brisk: bool,
    detail: u64,
}

impl Character {
    fn draw(seed: u64) -> Self {
        let draws = Draws::new(seed, CHARACTER);
        let mut draw = draws.at(0);
        let owners = match draw.below(12) {
            0 => Owners::Kept,
            1 => Owners::Shared,
            _ => Owners::Fresh,
        };
        Self { owners, brisk: draw.below(12) == 0, detail: draws.at(1).bits() }
    }
}

/// Between three and six seconds, and quick retries.
fn brisk_settings(detail: u64) -> Settings {
    let lease = Duration::from_millis(3000 + detail % 3000);
    Settings {
        lease,
        renew: lease / 3,
        on_renewal_error: OnRenewalError::RetryUntilDeadline,
        ..Settings::fast()
    }
}

fn draw_settings(entropy: &Entropy) -> Vec<Settings> {
    let preset = |entropy: &Entropy| match entropy.below(10) {
        0..3 => Settings::stable(),
        3..6 => Settings::balanced(),
        6..9 => Settings::fast(),
        _ => {
            let renew = Duration::from_secs(2 + entropy.below(5));
            Settings {
                renew,
                lease: renew * 3 + Duration::from_millis(entropy.below(3000)),
                ..Settings::fast()
            }
        }
    };
    let common = preset(entropy);
    let mixed = one_in(entropy, 6);
    let on_renewal_error =
        if one_in(entropy, 2) { OnRenewalError::StepDown } else { OnRenewalError::RetryUntilDeadline };
    let skew = match one_in(entropy, 3) {
        true => Skew::Bounded(Duration::from_millis(2 * (50 + entropy.below(2000)))),
        false => Skew::Unbounded,
    };
    let rate_error_ppm = if one_in(entropy, 5) { 1000 } else { 10_000 };
    let mut settings: Vec<Settings> = (0..NODES)
        .map(|_| {
            let own = if mixed { preset(entropy) } else { common.clone() };
            Settings { on_renewal_error, skew, rate_error_ppm, ..own }
        })
        .collect();
    // The bound comes off a leader's own lease, which must outlast a renewal that takes a while.
    let spare = |one: &Settings| (one.lease * 98 / 100).saturating_sub(one.renew + RENEWAL_MAX);
    let spare = settings.iter().map(spare).min().unwrap_or_default();
    for one in &mut settings {
        if let Skew::Bounded(bound) = &mut one.skew {
            *bound = spare.min(*bound);
        }
    }
    settings
}

/// The extremes as often as all between: that is where a margin fails.
fn draw_rate(entropy: &Entropy, bound_ppm: u32) -> i64 {
    let bound = i64::from(bound_ppm);
    match entropy.below(4) {
        0 => bound,
        1 => -bound,
        _ => in_range(entropy, bound),
    }
}

fn draw_skew(entropy: &Entropy, timing: &Timing) -> i64 {
    let bound = match timing.skew {
        // Within half the bound of true time, so that any two are within the bound.
        Some(bound) => i64::try_from(bound.as_millis() / 2).unwrap_or(0),
        None if one_in(entropy, 2) => 60_000,
        None => i64::try_from(HOUR_MILLIS).unwrap_or(0),
    };
    match entropy.below(4) {
        0 => bound,
        1 => -bound,
        _ => in_range(entropy, bound),
    }
}

fn in_range(entropy: &Entropy, bound: i64) -> i64 {
    i64::try_from(entropy.below(2 * bound.unsigned_abs() + 1)).unwrap_or(0) - bound
}

fn draw_network(entropy: &Entropy, character: Character, lease_max: u64) -> Network {
    let latency_max = spread(entropy, 2 * MILLI, 200 * MILLI);
    let (slow_by_max, late_by_max) =
        (spread(entropy, 100 * MILLI, lease_max), spread(entropy, SECOND, 4 * lease_max));
    let rates = Network::draw_rates(entropy);
    let mut network = Network { latency_min: latency_max / 8, latency_max, rates, slow_by_max, late_by_max };
    if character.brisk {
        // One call in sixteen comes late.
        network.at_least(CallFault::Late, 1 << 12);
        if character.detail & (1 << 63) == 0 {
            // One in four loses its reply.
            network.at_least(CallFault::ReplyLost, 1 << 14);
        } else {
            // A renewal is often under way when something happens.
            (network.latency_min, network.latency_max) = (BRISK_LATENCY_MAX / 2, BRISK_LATENCY_MAX);
        }
    }
    network
}

/// The faults that come as incidents, and how long they last at most, in leases; 0 for a moment.
const INCIDENTS: [(Fault, u64); 14] = [
    (Fault::Pause, 4),
    (Fault::Crash, 2),
    (Fault::Stop, 1),
    (Fault::Partition, 4),
    (Fault::RequestsDropped, 3),
    (Fault::RepliesDropped, 3),
    (Fault::Outage, 2),
    (Fault::Reaped, 0),
    (Fault::Deleted, 0),
    (Fault::Resign, 0),
    (Fault::ResignTo, 0),
    (Fault::ResignAsked, 0),
    (Fault::Unhealthy, 3),
    (Fault::WallStep, 0),
];

fn draw_incidents(
    entropy: &Entropy,
    nodes: &[NodePlan],
    character: Character,
    lease_max: u64,
    heal_at: u64,
) -> Vec<Incident<Fault>> {
    let mut incidents = Vec::new();
    for (fault, leases) in INCIDENTS {
        // A row is deleted by hand seldom; a crash is what failover is measured by.
        let on = match fault {
            Fault::Crash => one_in(entropy, 2),
            // With a skew bound an absent row is taken for swept, and must not be deleted by hand.
            Fault::Deleted => one_in(entropy, 6) && nodes.iter().all(|node| node.timing.skew.is_none()),
            _ => one_in(entropy, 3),
        };
        let mut every = spread(entropy, 15 * SECOND, 300 * SECOND);
        let brisk = character.brisk && matches!(fault, Fault::Pause | Fault::Partition | Fault::Resign);
        let on = on || brisk;
        if brisk {
            every = every.min(20 * SECOND);
        }
        if !on {
            continue;
        }
        let mut at = entropy.below(2 * every);
        while at < heal_at {
            let lasts = spread(entropy, 50 * MILLI, (leases * lease_max).max(50 * MILLI));
            let node = usize::try_from(entropy.below(NODES as u64)).unwrap_or(0);
            let target = if one_in(entropy, 2) { Target::Leader } else { Target::Node(node) };
            let (target, detail) = match fault {
                Fault::WallStep => {
                    let skew = draw_skew(entropy, &nodes[node].timing);
                    (Target::Node(node), skew.cast_unsigned())
                }
                Fault::Resign | Fault::ResignTo => (Target::Leader, entropy.u64()),
                _ => (target, entropy.u64()),
            };
            incidents.push(Incident { at, until: (at + lasts).min(heal_at), fault, target, detail });
            at += 1 + entropy.below(2 * every);
        }
    }
    incidents.sort_by_key(|incident| incident.at);
    incidents
}
