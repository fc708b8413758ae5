//! A schedule of changes on their way: what is committed, how it is published, and what goes wrong when.
//!
//! As in an election, the seed draws which kinds of faults there are and how strong each is.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_cdc::framing::Framing;
use tenure_cdc::publisher::PublisherSettings;
use tenure_clock::Entropy;
use tenure_stream::Limits;
use tenure_stream::identity::Lanes;

use super::event::EVENT_BYTES_MIN;
use super::fault::Fault;
use crate::calendar::{MILLI, SECOND};
use crate::draws::{one_in, spread};
use crate::scenario::{self, Course, Incident, Simpler, Target};
use crate::shrink::PLAIN_LATENCY;

/// Most nodes.
pub const NODES: usize = 3;
/// For how long things go wrong, at most.
const FAULTS_MAX: u64 = 60 * SECOND;
/// For how long they go well afterwards: takeovers, an operator's patience, and the longest backoff.
const HEALING: u64 = 60 * SECOND;
/// For how long changes are still committed then.
pub const WORKLOAD_AFTER: u64 = 5 * SECOND;

/// A whole schedule.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What happens when.
    pub course: Course<Fault>,
    /// Who publishes.
    pub nodes: Vec<NodePlan>,
    /// For how long the lock is held without renewal.
    pub lease: u64,
    /// How many lanes.
    pub lanes: Lanes,
    /// How they publish.
    pub settings: PublisherSettings,
    /// What the stream takes at first.
    pub limits: Limits,
    /// How many shards it has at first.
    pub shards: usize,
    /// How often the row is written.
    pub checkpoint_every: Duration,
    /// How often if nothing was settled.
    pub idle_checkpoint_every: Duration,
    /// What is committed.
    pub workload: Workload,
    /// What becomes of calls.
    pub network: Network,
    /// After how long the server gives up a session that does not answer.
    pub session_timeout: u64,
    /// Whether a new leader ends the session of the old one.
    pub ends_old_session: bool,
}

/// One node.
#[derive(Debug, Clone)]
pub struct NodePlan {
    /// Whether it takes part.
    pub present: bool,
    /// What its clock shows at the beginning.
    pub clock_origin: u64,
    /// When its first process starts.
    pub starts_at: u64,
}

/// What is committed.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// How long it is between two commits, at most.
    pub every_max: u64,
    /// How many keys.
    pub keys: u16,
    /// Whether some events are too large for the stream.
    pub oversize: bool,
    /// Whether there are barriers.
    pub barriers: bool,
    /// Whether some transactions are large.
    pub big: bool,
    /// The size of a large event.
    pub large_bytes: usize,
}

/// What becomes of calls.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// The quickest way there or back.
    pub latency_min: u64,
    /// The slowest, where nothing is wrong.
    pub latency_max: u64,
    /// After how long a caller gives up.
    pub time_limit: u64,
    /// Of 65,536 calls, how many meet each of [`CALL_FAULTS`].
    pub rates: [u64; CALL_FAULTS.len()],
    /// By how much a slow call is, at most.
    pub slow_by_max: u64,
    /// How late a late or duplicated call lands, at most.
    pub late_by_max: u64,
}

/// The faults that a single call can meet, in the order in which a draw picks them.
pub const CALL_FAULTS: [Fault; 7] = [
    Fault::Throttled,
    Fault::Failed,
    Fault::RequestLost,
    Fault::ReplyLost,
    Fault::Late,
    Fault::Duplicated,
    Fault::Slow,
];

impl Network {
    /// The fault that sixteen random bits pick, if any.
    #[must_use]
    pub fn pick(&self, bits: u64) -> Option<Fault> {
        let mut below = 0;
        self.rates.iter().zip(CALL_FAULTS).find_map(|(rate, fault)| {
            below += rate;
            (bits < below).then_some(fault)
        })
    }
}

impl scenario::Plan for Plan {
    type Fault = Fault;

    fn draw(seed: u64) -> Self {
        let entropy = Entropy::seeded(seed);
        let lease = spread(&entropy, 2 * SECOND, 12 * SECOND);
        let heal_at = FAULTS_MAX / 2 + entropy.below(FAULTS_MAX / 2);
        let incidents = draw_incidents(&entropy, lease, heal_at);
        let key = entropy.u64();
        let record_bytes_max = 400 + below(&entropy, 400);
        let nodes = (0..2 + below(&entropy, NODES - 1)).map(|_| NodePlan {
            present: true,
            clock_origin: entropy.below(1000 * SECOND),
            starts_at: entropy.below(2 * SECOND),
        });
        let nodes = nodes.collect();
        let lanes = 1 + entropy.below(if one_in(&entropy, 4) { 3 } else { 12 });
        let network = draw_network(&entropy, lease);
        let linger = spread(&entropy, MILLI, 50 * MILLI);
        let framing = if one_in(&entropy, 4) { Framing::Single } else { Framing::Lines };
        // A lane sends one record at a time, and must be able to keep up even if all goes to one.
        let records = if framing == Framing::Single { 6 } else { 3 };
        let keeps_up = 2 * records * (2 * network.latency_max + linger);
        let mut plan = Self {
            course: Course {
                seed,
                key,
                incidents,
                heal_at,
                end_at: heal_at + HEALING,
                spared_calls: BTreeSet::new(),
            },
            nodes,
            lease,
            lanes: u16::try_from(lanes).ok().and_then(Lanes::new).unwrap_or_default(),
            settings: PublisherSettings {
                inflight_events_max: 4 + below(&entropy, 60),
                inflight_bytes_max: 1000 + below(&entropy, 20_000),
                record_bytes_max: 200 + below(&entropy, 600),
                linger: Duration::from_nanos(linger),
                calls_max: 1 + below(&entropy, 4),
                backoff_min: Duration::from_millis(20),
                backoff_max: Duration::from_nanos(spread(&entropy, 200 * MILLI, 3 * SECOND)),
                framing,
                shard_records_per_s: None,
                shard_bytes_per_s: None,
            },
            limits: Limits {
                records_per_put_max: 1 + below(&entropy, 8),
                bytes_per_put_max: record_bytes_max * (1 + below(&entropy, 4)),
                bytes_per_record_max: record_bytes_max,
                ..Limits::default()
            },
            shards: 1 + below(&entropy, 4),
            checkpoint_every: Duration::from_nanos(spread(&entropy, 100 * MILLI, 2 * SECOND)),
            idle_checkpoint_every: Duration::from_nanos(spread(&entropy, 2 * SECOND, 8 * SECOND)),
            workload: Workload {
                every_max: spread(&entropy, 100 * MILLI, SECOND).max(keeps_up),
                keys: 2 + u16::try_from(entropy.below(20)).unwrap_or(0),
                oversize: one_in(&entropy, 2),
                barriers: one_in(&entropy, 2),
                big: one_in(&entropy, 2),
                large_bytes: record_bytes_max - 40,
            },
            network,
            session_timeout: spread(&entropy, SECOND, 10 * SECOND),
            ends_old_session: one_in(&entropy, 2),
        };
        if one_in(&entropy, 3) {
            // What is committed gets through even if all of it goes to one shard.
            let records = (spread(&entropy, 30, 120) * SECOND / plan.workload.every_max).max(15);
            plan.settings.shard_records_per_s = Some(records);
            plan.settings.shard_bytes_per_s = Some(records * spread(&entropy, 300, 1000));
        }
        plan
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
            all.push(Box::new(move |plan| plan.nodes[node].starts_at = node as u64 * PLAIN_LATENCY));
        }
        all.push(Box::new(|plan| plan.workload.oversize = false));
        all.push(Box::new(|plan| plan.workload.barriers = false));
        all.push(Box::new(|plan| plan.workload.big = false));
        all.push(Box::new(|plan| plan.workload.every_max = (4 * plan.workload.every_max).min(2 * SECOND)));
        all.push(Box::new(|plan| plan.settings.framing = Framing::Single));
        all.push(Box::new(|plan| plan.settings.calls_max = 1));
        all.push(Box::new(|plan| plan.shards = 1));
        all.push(Box::new(|plan| {
            (plan.settings.shard_records_per_s, plan.settings.shard_bytes_per_s) = (None, None);
        }));
        all.push(Box::new(|plan| plan.ends_old_session = false));
        all
    }
}

fn below(entropy: &Entropy, bound: usize) -> usize {
    usize::try_from(entropy.below(bound as u64)).unwrap_or(0)
}

/// The size to which the stream's limit is lowered: more than a pointer has, less than a large event.
#[must_use]
pub const fn lowered_limit() -> usize {
    2 * EVENT_BYTES_MIN
}

fn draw_network(entropy: &Entropy, lease: u64) -> Network {
    let latency_max = spread(entropy, 2 * MILLI, 200 * MILLI);
    // One world in four has calls that never fail.
    let calm = one_in(entropy, 4);
    let rates = CALL_FAULTS.map(|_| {
        let on = one_in(entropy, 3) && !calm;
        let rate = spread(entropy, 1 << 8, 1 << 13);
        if on { rate } else { 0 }
    });
    Network {
        latency_min: latency_max / 8,
        latency_max,
        time_limit: spread(entropy, SECOND, 5 * SECOND),
        rates,
        slow_by_max: spread(entropy, 100 * MILLI, 2 * SECOND),
        late_by_max: spread(entropy, SECOND, 4 * lease),
    }
}

/// The faults that come as incidents, in how many worlds out of a hundred, and how long they last at most.
const INCIDENTS: [(Fault, u64, u64); 23] = [
    (Fault::Pause, 40, 30 * SECOND),
    (Fault::Crash, 40, 5 * SECOND),
    (Fault::CrashAtEffect, 40, 5 * SECOND),
    (Fault::Handover, 25, 0),
    (Fault::CutFromStream, 25, 20 * SECOND),
    (Fault::CutFromStore, 25, 20 * SECOND),
    (Fault::CutFromLock, 25, 20 * SECOND),
    (Fault::CutFromPostgres, 25, 20 * SECOND),
    (Fault::LockLost, 35, 0),
    (Fault::StreamOutage, 20, 10 * SECOND),
    (Fault::StoreOutage, 20, 10 * SECOND),
    (Fault::ThrottleStorm, 25, 20 * SECOND),
    (Fault::LimitLowered, 20, 20 * SECOND),
    (Fault::Split, 35, 0),
    (Fault::Merge, 35, 0),
    (Fault::PostgresCrash, 25, 0),
    (Fault::Promotion, 12, 0),
    (Fault::SlotNotPromoted, 6, 0),
    (Fault::SlotDropped, 8, 0),
    (Fault::SlotRecreated, 8, 0),
    (Fault::SlotInvalidated, 8, 0),
    (Fault::SlotAdvanced, 10, 0),
    (Fault::Restored, 10, 0),
];

fn draw_incidents(entropy: &Entropy, lease: u64, heal_at: u64) -> Vec<Incident<Fault>> {
    let mut incidents = Vec::new();
    for (fault, percent, longest) in INCIDENTS {
        let on = entropy.below(100) < percent;
        let every = spread(entropy, 4 * SECOND, 60 * SECOND);
        if !on {
            continue;
        }
        let mut at = entropy.below(2 * every);
        while at < heal_at {
            // A pause matters by how it compares with a lease.
            let longest = if fault == Fault::Pause { longest.min(3 * lease) } else { longest };
            let lasts = spread(entropy, 50 * MILLI, longest.max(50 * MILLI));
            let target =
                if one_in(entropy, 3) { Target::Node(below(entropy, NODES)) } else { Target::Leader };
            let detail = entropy.u64();
            incidents.push(Incident { at, until: (at + lasts).min(heal_at), fault, target, detail });
            at += 1 + entropy.below(2 * every);
        }
    }
    incidents.sort_by_key(|incident| incident.at);
    incidents
}
