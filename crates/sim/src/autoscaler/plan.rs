//! A schedule of a cluster: who scales it how often, what is wanted of it, and what goes wrong when.
//!
//! The seed draws which kinds of faults there are and how often each comes.

use std::collections::BTreeSet;

use tenure_clock::Entropy;

use super::fault::Fault;
use crate::calendar::SECOND;
use crate::draws::{one_in, spread};
use crate::scenario::{self, Course, Incident, Named, Simpler, Target};

/// Most executors of a drawn schedule.
const EXECUTORS_MAX: u64 = 3;

/// A whole schedule.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What happens when.
    pub course: Course<Fault>,
    /// How many executors take turns.
    pub executors: usize,
    /// How long it is between two ticks of one, at most.
    pub tick_every_max: u64,
    /// How many workers there are at first.
    pub workers: u32,
    /// Whether an old writer launched them: they lack our tags.
    pub untagged: bool,
    /// How long after its launch an instance joins, in seconds.
    pub join_after: i64,
    /// How long after that it is Ready, in seconds.
    pub ready_after: i64,
    /// How long after its launch it is listed, in seconds.
    pub listed_after: i64,
    /// What is wanted from when on, in order.
    pub demands: Vec<(u64, Demand)>,
}

/// What is wanted of the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// So many pods more, of half a worker each.
    Pods(u32),
    /// A small pod on each worker, and hardly any load.
    Little,
}

impl scenario::Plan for Plan {
    type Fault = Fault;

    fn draw(seed: u64) -> Self {
        let entropy = Entropy::seeded(seed);
        let heal_at = (3600 + entropy.below(3600)) * SECOND;
        let executors = usize::try_from(1 + entropy.below(EXECUTORS_MAX)).unwrap_or(1);
        let tick_every_max = spread(&entropy, 20, 120) * SECOND;
        let workers = u32::try_from(1 + entropy.below(3)).unwrap_or(1);
        let untagged = one_in(&entropy, 3);
        let slow = one_in(&entropy, 4);
        let seconds = |bound: u64| i64::try_from(entropy.below(bound)).unwrap_or(0);
        let join_after = 20 + seconds(if slow { 700 } else { 120 });
        let ready_after = if one_in(&entropy, 2) { 0 } else { seconds(120) };
        let listed_after = if one_in(&entropy, 2) { 0 } else { seconds(120) };
        let mut demands = Vec::new();
        let mut at = entropy.below(120 * SECOND);
        while at < heal_at {
            let pods = u32::try_from(1 + entropy.below(6)).unwrap_or(1);
            demands.push((at, if one_in(&entropy, 2) { Demand::Little } else { Demand::Pods(pods) }));
            at += spread(&entropy, 200, 2000) * SECOND;
        }
        let incidents = draw_incidents(&entropy, executors, heal_at);
        let key = entropy.u64();
        Self {
            course: Course {
                seed,
                key,
                incidents,
                heal_at,
                end_at: heal_at + 7200 * SECOND,
                spared_calls: BTreeSet::new(),
            },
            executors,
            tick_every_max,
            workers,
            untagged,
            join_after,
            ready_after,
            listed_after,
            demands,
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
        for fault in Fault::ALL {
            all.push(Box::new(move |plan| plan.course.incidents.retain(|incident| incident.fault != *fault)));
        }
        for demand in (0..self.demands.len()).rev() {
            all.push(Box::new(move |plan| {
                if demand < plan.demands.len() {
                    plan.demands.remove(demand);
                }
            }));
        }
        all.push(Box::new(|plan| plan.executors = 1));
        all.push(Box::new(|plan| plan.workers = 1));
        all.push(Box::new(|plan| plan.untagged = false));
        all.push(Box::new(|plan| plan.join_after = 20));
        all.push(Box::new(|plan| plan.ready_after = 0));
        all.push(Box::new(|plan| plan.listed_after = 0));
        all.push(Box::new(|plan| plan.tick_every_max = 30 * SECOND));
        all
    }
}

/// Each kind, in how many worlds out of a hundred, and how long it lasts at most, in seconds.
const INCIDENTS: [(Fault, u64, u64); 21] = [
    (Fault::CrashBefore, 50, 1),
    (Fault::CrashAfter, 50, 1),
    (Fault::ReplyLost, 50, 1),
    (Fault::Stalled, 50, 1500),
    (Fault::OldResumes, 15, 1),
    (Fault::OldSteals, 15, 1),
    (Fault::OldLocks, 15, 1),
    (Fault::Killed, 25, 1),
    (Fault::Purged, 20, 1),
    (Fault::Interrupted, 25, 300),
    (Fault::Vanished, 15, 1),
    (Fault::Renamed, 15, 1),
    (Fault::Unmatched, 20, 1200),
    (Fault::NotReady, 25, 900),
    (Fault::Denied, 30, 1200),
    (Fault::LaunchesDenied, 15, 900),
    (Fault::Shortage, 25, 1200),
    (Fault::NeverJoins, 25, 1),
    (Fault::BudgetBlocks, 30, 1500),
    (Fault::MetricsFail, 25, 1500),
    (Fault::PersonCordons, 20, 1500),
];

fn draw_incidents(entropy: &Entropy, executors: usize, heal_at: u64) -> Vec<Incident<Fault>> {
    let mut incidents = Vec::new();
    for (fault, percent, longest) in INCIDENTS {
        let on = entropy.below(100) < percent;
        let every = spread(entropy, 120, 2400) * SECOND;
        if !on {
            continue;
        }
        let mut at = entropy.below(every.min(heal_at));
        while at < heal_at {
            let lasts = spread(entropy, 1, longest) * SECOND;
            let node = usize::try_from(entropy.below(executors as u64)).unwrap_or(0);
            let detail = entropy.u64();
            let until = (at + lasts).min(heal_at);
            incidents.push(Incident { at, until, fault, target: Target::Node(node), detail });
            at += 1 + entropy.below(2 * every);
        }
    }
    incidents.sort_by_key(|incident| incident.at);
    incidents
}
