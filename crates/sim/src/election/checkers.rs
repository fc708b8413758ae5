//! What must hold, each rule by its name.
//!
//! The checkers see everything, as nobody in the world does: true time, every landing at the store, and
//! when each row was written. They judge; they never act.

use tenure_election::{Acquire, Attempt, Epoch, Nonce, OwnerId};

use super::plan::nanos;

/// The rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// At most one node leads at any true moment, also when a paused one resumes.
    Ld1,
    /// Every acquisition has a higher epoch than all before it.
    Ld2,
    /// A guarded resource accepts no epoch below the highest it saw.
    Ld3,
    /// After healing there is one leader within a bound, and it stays.
    Ld4,
    /// A node has at most one call in flight.
    OneCall,
    /// A process that said it stopped leads no more, and none is elected after it was told to stop.
    StopJoins,
    /// A claim is sent only for a row that is free, the claimer's own, or past its lease in true time.
    ClaimHasCause,
    /// A renewal is sent only by a leader, a release only by one who gave up.
    WriteHasCause,
    /// Nobody spins: a schedule has a bounded number of events.
    Bounded,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Ld1,
        Self::Ld2,
        Self::Ld3,
        Self::Ld4,
        Self::OneCall,
        Self::StopJoins,
        Self::ClaimHasCause,
        Self::WriteHasCause,
        Self::Bounded,
    ];

    /// As it is called in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ld1 => "LD-1",
            Self::Ld2 => "LD-2",
            Self::Ld3 => "LD-3",
            Self::Ld4 => "LD-4",
            Self::OneCall => "one_call",
            Self::StopJoins => "stop_joins",
            Self::ClaimHasCause => "claim_has_cause",
            Self::WriteHasCause => "write_has_cause",
            Self::Bounded => "bounded",
        }
    }
}

/// A rule that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: Rule,
    /// When, in true time.
    pub at: u64,
    /// How.
    pub what: String,
}

/// How a check ended: in the words of what broke it, if it did.
pub type Verdict = Result<(), String>;

/// LD-1. `until` is the true moment at which each node's term ends, by its own deadline.
pub fn at_most_one_leader(now: u64, node: usize, until: &[u64]) -> Verdict {
    if until[node] <= now {
        return Ok(());
    }
    match until.iter().enumerate().find(|(other, until)| *other != node && **until > now) {
        Some((other, _)) => Err(format!("{} and {} both lead", name(node), name(other))),
        None => Ok(()),
    }
}

/// LD-2, for the claims that landed and for the terms that began alike.
#[derive(Debug, Default)]
pub struct EpochsRise {
    landed: u64,
    elected: u64,
}

impl EpochsRise {
    /// A claim landed in the store.
    pub fn landed(&mut self, epoch: Epoch) -> Verdict {
        rises(&mut self.landed, epoch, "a claim landed")
    }

    /// A term began.
    pub fn elected(&mut self, epoch: Epoch) -> Verdict {
        rises(&mut self.elected, epoch, "a term began")
    }
}

fn rises(last: &mut u64, epoch: Epoch, what: &str) -> Verdict {
    if epoch.0 <= *last {
        return Err(format!("{what} with epoch {epoch} after {last}"));
    }
    *last = epoch.0;
    Ok(())
}

/// LD-3, for one guarded resource: told of every write that it accepted.
#[derive(Debug, Default)]
pub struct GuardHolds {
    highest: u64,
}

impl GuardHolds {
    /// A write was accepted.
    pub fn accepted(&mut self, token: u64) -> Verdict {
        if token < self.highest {
            return Err(format!("a write of term {token} was accepted after one of {}", self.highest));
        }
        self.highest = token;
        Ok(())
    }
}

/// LD-4: exactly one leads.
pub fn one_leader(now: u64, until: &[u64]) -> Verdict {
    match until.iter().filter(|until| **until > now).count() {
        1 => Ok(()),
        leaders => Err(format!("{leaders} lead")),
    }
}

/// What the row went through in true time: the evidence by which a claim is judged.
#[derive(Debug, Default)]
pub struct RowHistory {
    /// Nonce, first landing, and the lease of the row; the last is the row as it is.
    written: Vec<(Nonce, u64, u64)>,
    /// Of LOCK rows that were deleted: the epoch, when, and the lease.
    deleted: Vec<(Epoch, u64, u64)>,
    /// Whose claim began each epoch.
    claimants: Vec<(Epoch, OwnerId)>,
}

impl RowHistory {
    /// A write landed.
    pub fn landed(&mut self, now: u64, attempt: &Attempt) {
        let (nonce, lease) = match attempt {
            Attempt::Acquire(acquire) => {
                self.claimants.push((acquire.epoch, acquire.owner.clone()));
                (acquire.rvn, nanos(acquire.lease))
            }
            Attempt::Renew(renew) => (renew.fresh, self.lease()),
            Attempt::Release(release) => (release.fresh, self.lease()),
        };
        // The same write may land twice, but only while the row is as it left it.
        if self.written.last().is_none_or(|(last, ..)| *last != nonce) {
            self.written.push((nonce, now, lease));
        }
    }

    /// The LOCK row of this epoch was deleted.
    pub fn deleted(&mut self, now: u64, epoch: Epoch) {
        self.deleted.push((epoch, now, self.lease()));
    }

    fn lease(&self) -> u64 {
        self.written.last().map_or(0, |(_, _, lease)| *lease)
    }

    /// Whether a claim has a cause: `own` if the version that it replaces was written by its own
    /// process, `expired` if a skew bound is set and the row's `ttl` is past on every clock within it, or the row
    /// was swept away.
    pub fn claim_has_cause(&self, now: u64, acquire: &Acquire, own: bool, expired: bool) -> Verdict {
        let Some(over) = &acquire.over else {
            let mine = |(epoch, owner): &(Epoch, OwnerId)| {
                Some(*epoch) == acquire.fence_was && *owner == acquire.owner
            };
            if expired || self.claimants.iter().rev().any(mine) {
                return Ok(());
            }
            let deleted = self.deleted.iter().find(|(epoch, ..)| Some(*epoch) == acquire.fence_was);
            return match deleted {
                Some((_, at, lease)) if now < at + lease => {
                    Err(format!("claims a row that was deleted {} ms ago", (now - at) / 1_000_000))
                }
                _ => Ok(()),
            };
        };
        if own || expired || over.ttl == 0 {
            return Ok(());
        }
        let written = self.written.iter().rev().find(|(nonce, ..)| Some(*nonce) == over.rvn);
        match written {
            Some((_, at, lease)) if now >= at + lease => Ok(()),
            Some((_, at, _)) => {
                Err(format!("claims a row that was written {} ms ago", (now - at) / 1_000_000))
            }
            None => Err("claims a row that nobody wrote".to_owned()),
        }
    }
}

/// What a node is called in a report.
#[must_use]
pub fn name(node: usize) -> char {
    char::from(b'a' + u8::try_from(node).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_leaders_are_noticed_until_the_first_one_ends() {
        assert!(at_most_one_leader(10, 1, &[11, 20, 0]).is_err());
        assert!(at_most_one_leader(11, 1, &[11, 20, 0]).is_ok());
        assert!(at_most_one_leader(10, 2, &[11, 20, 0]).is_ok(), "only the asked node is judged");
    }

    #[test]
    fn epochs_rise_strictly() {
        let mut epochs = EpochsRise::default();
        assert!(epochs.landed(Epoch(1)).is_ok() && epochs.elected(Epoch(1)).is_ok());
        assert!(epochs.landed(Epoch(1)).is_err());
        assert!(epochs.elected(Epoch(3)).is_ok() && epochs.elected(Epoch(2)).is_err());
    }

    #[test]
    fn a_guard_that_lets_an_old_term_in_is_noticed() {
        let mut guard = GuardHolds::default();
        assert!(guard.accepted(2).is_ok() && guard.accepted(2).is_ok() && guard.accepted(1).is_err());
    }

    #[test]
    fn one_leader_is_neither_none_nor_two() {
        assert!(one_leader(5, &[0, 9]).is_ok());
        assert!(one_leader(5, &[0, 0]).is_err() && one_leader(5, &[9, 9]).is_err());
    }
}
