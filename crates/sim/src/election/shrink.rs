//! Makes a schedule that breaks a rule smaller, while it still breaks the same rule.
//!
//! Taken away, in turn and for as long as it helps: incidents, kinds of faults, faults of single calls,
//! nodes, what is wrong with clocks, slowness, and time.

use super::checkers::Rule;
use super::outcome::Outcome;
use super::plan::{CALL_FAULTS, Owners, Plan};
use super::{Rules, Watch, run};

/// Most runs that one search makes: a few seconds.
const RUNS_MAX: u32 = 4000;
/// The latency of a network that plays no part.
const PLAIN_LATENCY: u64 = 1_000_000;

/// A small schedule, and what it does until it breaks the rule.
#[derive(Debug)]
pub struct Shrunk {
    /// The schedule.
    pub plan: Plan,
    /// What became of it, with lines.
    pub outcome: Outcome,
}

/// Makes `plan`, which breaks `rule`, smaller.
#[must_use]
pub fn shrink(plan: &Plan, rules: Rules, rule: Rule) -> Shrunk {
    let mut search = Search { plan: plan.clone(), rules, rule, runs: 0 };
    loop {
        let size = search.size();
        search.incidents();
        search.traits();
        search.calls();
        search.durations();
        if search.size() >= size || search.runs >= RUNS_MAX {
            break;
        }
    }
    let outcome = run(&search.plan, rules, Watch { lines: true, until: Some(rule) });
    Shrunk { plan: search.plan, outcome }
}

struct Search {
    plan: Plan,
    rules: Rules,
    rule: Rule,
    runs: u32,
}

impl Search {
    /// How much there is to read: incidents, faults of calls, nodes, and lines of the story.
    fn size(&mut self) -> usize {
        self.runs += 1;
        let outcome = run(&self.plan, self.rules, Watch { lines: true, until: Some(self.rule) });
        let lines = outcome.lines.iter().filter(|line| line.telling).count();
        self.plan.incidents.len() + lines
    }

    /// Takes the smaller plan if it breaks the rule as well.
    fn try_plan(&mut self, plan: Plan) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let fails = run(&plan, self.rules, Watch { lines: false, until: Some(self.rule) }).breaks(self.rule);
        if fails {
            self.plan = plan;
        }
        fails
    }

    fn attempt(&mut self, change: impl FnOnce(&mut Plan)) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan);
        self.try_plan(plan)
    }

    /// Halves first, then ever smaller parts, down to single ones.
    fn incidents(&mut self) {
        let mut part = self.plan.incidents.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < self.plan.incidents.len() {
                let to = (from + part).min(self.plan.incidents.len());
                let gone = self.attempt(|plan| {
                    plan.incidents.drain(from..to);
                });
                if !gone {
                    from = to;
                }
            }
            part /= 2;
        }
    }

    fn traits(&mut self) {
        for fault in CALL_FAULTS {
            self.attempt(|plan| {
                if let Some(rate) = plan.network.rate_mut(fault) {
                    *rate = 0;
                }
            });
        }
        self.attempt(|plan| {
            (plan.network.latency_min, plan.network.latency_max) = (PLAIN_LATENCY, PLAIN_LATENCY);
        });
        self.attempt(|plan| plan.owners = Owners::Fresh);
        for node in 0..self.plan.nodes.len() {
            self.attempt(|plan| plan.nodes[node].present = false);
            self.attempt(|plan| plan.nodes[node].rate_ppm = 0);
            self.attempt(|plan| plan.nodes[node].skew_millis = 0);
            self.attempt(|plan| plan.nodes[node].starts_at = node as u64 * PLAIN_LATENCY);
        }
    }

    /// Spares the calls that met a fault, many at a time and then one by one.
    fn calls(&mut self) {
        let outcome = run(&self.plan, self.rules, Watch { lines: true, until: Some(self.rule) });
        let calls: Vec<_> = outcome.call_faults.iter().map(|(node, call, _)| (*node, *call)).collect();
        let mut part = calls.len().div_ceil(2);
        while part > 0 {
            for chunk in calls.chunks(part) {
                if !chunk.iter().all(|call| self.plan.spared_calls.contains(call)) {
                    self.attempt(|plan| plan.spared_calls.extend(chunk));
                }
            }
            part /= 2;
        }
    }

    fn durations(&mut self) {
        for incident in 0..self.plan.incidents.len() {
            let halve = |plan: &mut Plan| {
                let incident = &mut plan.incidents[incident];
                incident.until = incident.at + (incident.until - incident.at) / 2;
            };
            while self.plan.incidents[incident].until - self.plan.incidents[incident].at > PLAIN_LATENCY
                && self.attempt(halve)
            {}
        }
        // Safety breaks at a moment and the run ends there; only healing needs the whole schedule.
        if self.rule == Rule::Ld4 {
            while self.plan.heal_at > PLAIN_LATENCY && self.attempt(heal_sooner) {}
        }
    }
}

fn heal_sooner(plan: &mut Plan) {
    let sooner = plan.heal_at / 2;
    plan.end_at -= plan.heal_at - sooner;
    plan.heal_at = sooner;
    plan.incidents.retain(|incident| incident.at < sooner);
    for incident in &mut plan.incidents {
        incident.until = incident.until.min(sooner);
    }
}
