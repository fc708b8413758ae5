//! Decides what happens to each request. Pure: randomness is an argument, and nothing is awaited.
//!
//! Rules are asked in their order, and the first that fires decides; rules behind it do not see the
//! request. So `PutItem=throttle#1` before `PutItem=reset` throttles one and resets the rest.
//!
//! A seed replays a script exactly when the requests come in the same order. Racing clients make
//! their own order, and the seed then fixes the rates, not the victims.

use tenure_clock::Entropy;

use crate::fault::Fault;
use crate::kind::Kind;
use crate::rule::{Rule, RuleError};

/// Rules in order, and how far each has come. The default script lets everything pass.
#[derive(Debug, Clone, Default)]
pub struct Script {
    seed: u64,
    rules: Vec<Rule>,
    progress: Vec<Progress>,
}

/// How far a rule has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Matching requests that reached the rule.
    pub seen: u64,
    /// Those that it hit.
    pub injected: u64,
}

/// What happens to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// It passes untouched.
    Forward,
    /// It is broken in this way.
    Inject {
        /// How it is broken.
        fault: Fault,
        /// For [`Fault::Partial`], the places of the records that fail, ascending and not empty.
        /// Empty for every other fault.
        failing: Vec<usize>,
    },
}

impl Script {
    /// A script of `rules`, whose draws come from `seed`.
    #[must_use]
    pub fn new(seed: u64, rules: Vec<Rule>) -> Self {
        let progress = vec![Progress::default(); rules.len()];
        Self { seed, rules, progress }
    }

    /// A script of rules in their written form ([`Rule::from_str`](std::str::FromStr::from_str)).
    pub fn parse<T: AsRef<str>>(seed: u64, rules: impl IntoIterator<Item = T>) -> Result<Self, RuleError> {
        let rules = rules.into_iter().map(|text| text.as_ref().parse()).collect::<Result<_, _>>()?;
        Ok(Self::new(seed, rules))
    }

    /// The seed of the script's draws.
    #[must_use]
    pub const fn seed(&self) -> u64 {
        self.seed
    }

    /// The rules, in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// How far each rule has come, in the order of the rules.
    #[must_use]
    pub fn progress(&self) -> &[Progress] {
        &self.progress
    }

    /// Whether [`Script::decide`] needs to know how many records a request of `kind` carries.
    #[must_use]
    pub fn asks_for_records(&self, kind: Option<&Kind>) -> bool {
        self.rules.iter().any(|rule| rule.on.matches(kind) && matches!(rule.fault, Fault::Partial { .. }))
    }

    /// Decides about one request and remembers having done so. `record_count` is the number of
    /// records of a PutRecords call, and 0 for any other request.
    ///
    /// A `partial` rule that draws no record has not fired: it uses up none of its times, and the
    /// rules behind it are asked.
    pub fn decide(&mut self, kind: Option<&Kind>, record_count: usize, entropy: &Entropy) -> Decision {
        for (rule, progress) in self.rules.iter().zip(&mut self.progress) {
            if !rule.on.matches(kind) {
                continue;
            }
            progress.seen += 1;
            let skipped = progress.seen <= u64::from(rule.skip);
            let used_up = rule.times.is_some_and(|times| progress.injected >= u64::from(times));
            if skipped || used_up || !entropy.chance(rule.chance.get()) {
                continue;
            }
            let failing = match rule.fault {
                Fault::Partial { share, at_least_one } => {
                    draw(record_count, share.get(), at_least_one, entropy)
                }
                _ => Vec::new(),
            };
            if failing.is_empty() && matches!(rule.fault, Fault::Partial { .. }) {
                continue;
            }
            progress.injected += 1;
            return Decision::Inject { fault: rule.fault, failing };
        }
        Decision::Forward
    }
}

/// Draws the records that fail, each with the chance `share`.
fn draw(record_count: usize, share: f64, at_least_one: bool, entropy: &Entropy) -> Vec<usize> {
    let mut failing: Vec<_> = (0..record_count).filter(|_| entropy.chance(share)).collect();
    if failing.is_empty() && at_least_one && record_count > 0 {
        let unlucky = entropy.below(u64::try_from(record_count).unwrap_or(u64::MAX));
        failing.push(usize::try_from(unlucky).unwrap_or(0));
    }
    failing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays requests against rules under seed 1, and compares what each of them met.
    ///
    /// A request is a kind, with its number of records after a colon. An answer is `ok`, a fault's
    /// name, or `partial` with the places that fail.
    fn check(rules: &[&str], requests: &str, expected: &str) {
        let mut script = Script::parse(1, rules).unwrap();
        let entropy = Entropy::seeded(script.seed());
        let met: Vec<_> = requests
            .split_whitespace()
            .map(|request| {
                let (kind, records) = request.split_once(':').unwrap_or((request, "0"));
                match script.decide(Kind::new(kind).as_ref(), records.parse().unwrap(), &entropy) {
                    Decision::Forward => "ok".to_owned(),
                    Decision::Inject { fault, failing } if failing.is_empty() => fault.name().to_owned(),
                    Decision::Inject { fault, failing } => {
                        let places: Vec<_> = failing.iter().map(usize::to_string).collect();
                        format!("{}:{}", fault.name(), places.join(","))
                    }
                }
            })
            .collect();
        assert_eq!(met.join(" "), expected);
    }

    #[test]
    fn a_rule_meets_its_own_kind_alone() {
        check(&["PutItem=throttle"], "PutItem GetItem PutItem -", "throttle ok throttle ok");
        check(&["*=reset"], "PutItem GetItem -", "reset reset reset");
        check(&[], "PutItem", "ok");
    }

    #[test]
    fn skip_passes_some_and_times_ends_it() {
        check(&["A=hang+2#3"], "A A B A A A A", "ok ok ok hang hang hang ok");
        check(&["A=hang#0"], "A A", "ok ok");
    }

    #[test]
    fn the_first_rule_that_fires_decides() {
        check(&["A=throttle#1", "A=reset"], "A A A", "throttle reset reset");
        // The second rule does not see what the first one hit: its skip counts from there.
        check(&["A=throttle#1", "A=reset+1"], "A A A", "throttle ok reset");
    }

    #[test]
    fn a_chance_is_drawn_per_request_and_replays() {
        let requests = "A ".repeat(12);
        check(&["A=hang@0"], &requests, "ok ".repeat(12).trim());
        check(&["A=hang@0.5"], &requests, "hang hang ok hang hang ok hang hang ok ok hang ok");
        check(&["A=hang@0.5#4"], &requests, "hang hang ok hang hang ok ok ok ok ok ok ok");
    }

    #[test]
    fn partial_draws_records() {
        check(
            &["PutRecords=partial(0.4)"],
            "PutRecords:8 PutRecords:8 PutRecords:1",
            "partial:0,2,3,6 partial:2,3,5 partial:0",
        );
        check(&["PutRecords=partial(1)"], "PutRecords:3", "partial:0,1,2");
    }

    #[test]
    fn a_partial_that_draws_nothing_has_not_fired() {
        check(
            &["PutRecords=partial(0)", "PutRecords=partial(1)#1", "PutRecords=hang"],
            "PutRecords:0 PutRecords:2 PutRecords:2",
            "hang partial:0,1 hang",
        );
        check(&["PutRecords=partial(0, at_least_one)"], "PutRecords:0 PutRecords:1", "ok partial:0");
    }

    #[test]
    fn progress_tells_what_each_rule_met() {
        let mut script = Script::parse(0, ["A=hang+1#1", "B=hang"]).unwrap();
        let (kind, entropy) = (Kind::new("A"), Entropy::seeded(0));
        for _ in 0..3 {
            script.decide(kind.as_ref(), 0, &entropy);
        }
        assert_eq!(script.progress(), [Progress { seen: 3, injected: 1 }, Progress::default()]);
    }
}
