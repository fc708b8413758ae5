//! Makes a schedule that breaks a rule smaller, while it still breaks the same rule.
//!
//! Taken away, in turn and for as long as it helps: incidents, kinds of faults, faults of single calls,
//! nodes, what is wrong with clocks, slowness, and time.

use crate::scenario::{OutcomeOf, Plan, Scenario, Watch};

/// Most runs that one search makes: a few seconds.
const RUNS_MAX: u32 = 4000;
/// The latency of a network that plays no part.
pub const PLAIN_LATENCY: u64 = 1_000_000;

/// A small schedule, and what it does until it breaks the rule.
pub struct Shrunk<S: Scenario> {
    /// The schedule.
    pub plan: S::Plan,
    /// What became of it, with lines.
    pub outcome: OutcomeOf<S>,
}

/// Makes `plan`, which breaks `rule`, smaller.
#[must_use]
pub fn shrink<S: Scenario>(plan: &S::Plan, rules: S::Rules, rule: S::Rule) -> Shrunk<S> {
    let mut search = Search::<S> { plan: plan.clone(), rules, rule, runs: 0 };
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
    let outcome = S::run(&search.plan, rules, Watch { lines: true, until: Some(rule) });
    Shrunk { plan: search.plan, outcome }
}

struct Search<S: Scenario> {
    plan: S::Plan,
    rules: S::Rules,
    rule: S::Rule,
    runs: u32,
}

impl<S: Scenario> Search<S> {
    /// How much there is to read: incidents, faults of calls, nodes, and lines of the story.
    fn size(&mut self) -> usize {
        self.runs += 1;
        let outcome = S::run(&self.plan, self.rules, Watch { lines: true, until: Some(self.rule) });
        let lines = outcome.lines.iter().filter(|line| line.telling).count();
        self.plan.course().incidents.len() + lines
    }

    /// Takes the smaller plan if it breaks the rule as well.
    fn try_plan(&mut self, plan: S::Plan) -> bool {
        if self.runs >= RUNS_MAX {
            return false;
        }
        self.runs += 1;
        let fails =
            S::run(&plan, self.rules, Watch { lines: false, until: Some(self.rule) }).breaks(self.rule);
        if fails {
            self.plan = plan;
        }
        fails
    }

    fn attempt(&mut self, change: impl FnOnce(&mut S::Plan)) -> bool {
        let mut plan = self.plan.clone();
        change(&mut plan);
        self.try_plan(plan)
    }

    /// Halves first, then ever smaller parts, down to single ones.
    fn incidents(&mut self) {
        let mut part = self.plan.course().incidents.len().div_ceil(2);
        while part > 0 {
            let mut from = 0;
            while from < self.plan.course().incidents.len() {
                let to = (from + part).min(self.plan.course().incidents.len());
                let gone = self.attempt(|plan| {
                    plan.course_mut().incidents.drain(from..to);
                });
                if !gone {
                    from = to;
                }
            }
            part /= 2;
        }
    }

    fn traits(&mut self) {
        for simpler in self.plan.simpler() {
            self.attempt(|plan| simpler(plan));
        }
    }

    /// Spares the calls that met a fault, many at a time and then one by one.
    fn calls(&mut self) {
        let outcome = S::run(&self.plan, self.rules, Watch { lines: true, until: Some(self.rule) });
        let calls: Vec<_> = outcome.call_faults.iter().map(|(node, call, _)| (*node, *call)).collect();
        let mut part = calls.len().div_ceil(2);
        while part > 0 {
            for chunk in calls.chunks(part) {
                if !chunk.iter().all(|call| self.plan.course().spared_calls.contains(call)) {
                    self.attempt(|plan| plan.course_mut().spared_calls.extend(chunk));
                }
            }
            part /= 2;
        }
    }

    fn durations(&mut self) {
        for incident in 0..self.plan.course().incidents.len() {
            let halve = |plan: &mut S::Plan| {
                let incident = &mut plan.course_mut().incidents[incident];
                incident.until = incident.at + (incident.until - incident.at) / 2;
            };
            while self.plan.course().incidents[incident].until - self.plan.course().incidents[incident].at
                > PLAIN_LATENCY
                && self.attempt(halve)
            {}
        }
        // Safety breaks at a moment and the run ends there; only healing needs the whole schedule.
        if S::shows_at_the_end(self.rule) {
            while self.plan.course().heal_at > PLAIN_LATENCY && self.attempt(heal_sooner) {}
        }
    }
}

fn heal_sooner<P: Plan>(plan: &mut P) {
    let course = plan.course_mut();
    let sooner = course.heal_at / 2;
    course.end_at -= course.heal_at - sooner;
    course.heal_at = sooner;
    course.incidents.retain(|incident| incident.at < sooner);
    for incident in &mut course.incidents {
        incident.until = incident.until.min(sooner);
    }
}
