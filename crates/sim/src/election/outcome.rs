//! What became of one schedule.

use super::checkers::{Rule, Violation};
use crate::fault::{Fault, FaultTally};
use crate::trace::Line;

/// What became of one schedule.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// The first breach of each rule, in order of time.
    pub violations: Vec<Violation>,
    /// What was injected.
    pub faults: FaultTally,
    /// How many terms began.
    pub terms: u64,
    /// Guarded writes that were accepted.
    pub writes_accepted: u64,
    /// Guarded writes that were refused: an old leader's.
    pub writes_refused: u64,
    /// Renewals and releases that were sent.
    pub leader_writes: u64,
    /// Claims that were sent: the only writes of followers.
    pub claims: u64,
    /// True time with a leader.
    pub led_nanos: u64,
    /// True time in all.
    pub lived_nanos: u64,
    /// Times from a leader's crash to the next leader, in thousandths of the lease.
    pub failovers: Vec<u32>,
    /// Faults of single calls: the node, the number of its call, and which. Kept with lines only.
    pub call_faults: Vec<(usize, u32, Fault)>,
    /// A number that differs if anything did.
    pub hash: u64,
    /// The record, if it was asked for.
    pub lines: Vec<Line>,
    /// How many events there were.
    pub events: u64,
}

impl Outcome {
    /// Whether this rule was broken.
    #[must_use]
    pub fn breaks(&self, rule: Rule) -> bool {
        self.violations.iter().any(|violation| violation.rule == rule)
    }
}
