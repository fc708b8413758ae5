//! What must hold, each rule by its name.
//!
//! The checkers see everything, as nobody in the world does: true time, every landing at the store, and
//! when each row was written. They judge; they never act.

use std::time::Duration;

use tenure_clock::Monotonic;
use tenure_election::{Acquire, Attempt, Epoch, Nonce};

use crate::calendar::nanos;
use crate::fault::named;
use crate::scenario::{Verdict, name};

named! {
    /// The rules.
    Rule:
    Ld1 "LD-1" "At most one node leads at any true moment, also when a paused one resumes.",
    Ld2 "LD-2" "Every acquisition has a higher epoch than all before it.",
    Ld3 "LD-3" "A guarded resource accepts no epoch below the highest it saw.",
    Ld4 "LD-4" "After healing there is one leader within a bound, and it stays.",
    OneCall "one_call" "A node has at most one call in flight.",
    StopJoins "stop_joins" "A process that said it stopped leads no more, and none is elected after it was told to stop.",
    ClaimHasCause "claim_has_cause" "A claim is sent only for a row that is free, the claimer's own, or past its lease in true time.",
    WriteHasCause "write_has_cause" "A renewal is sent only by a leader, a release only by one who gave up.",
    DeadlineFromSend "deadline_from_send" "A term lasts no longer than its validity from when the write that it rests on was first sent.",
    TermStaysOver "term_stays_over" "A term that is over stays over: its epoch is never led under again.",
    HealthGates "health_gates" "No claim and no renewal is sent by a node that is unhealthy at that moment.",
    ReleaseStays "release_stays" "A row that was released stays so until it is claimed: no write that comes late revives it.",
    Bounded "bounded" "Nobody spins: a schedule has a bounded number of events.",
}

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

/// A step shows another deadline; the last claim or renewal was first sent at `sent`. All by the node's
/// own clock.
pub fn deadline_from_send(deadline: Monotonic, sent: Monotonic, validity: Duration) -> Verdict {
    if deadline > sent + validity {
        let beyond = deadline.since(sent + validity);
        return Err(format!("leads for {beyond:?} longer than since its last write was first sent"));
    }
    Ok(())
}

/// A step shows another deadline, for the term of `epoch`. The term before was of `last`, and ended at
/// `until`.
pub fn term_stays_over(now: u64, epoch: Epoch, last: Epoch, until: u64) -> Verdict {
    if epoch == last && until <= now {
        return Err(format!("leads again under epoch {epoch}, whose term was over"));
    }
    Ok(())
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
    claimants: Vec<(Epoch, Process)>,
    released: bool,
}

/// One life of one node. An owner id does not tell processes apart: two may have been given the same.
pub type Process = (u8, u32);

impl RowHistory {
    /// A write of this process landed.
    pub fn landed(&mut self, now: u64, by: Process, attempt: &Attempt) -> Verdict {
        let was_released = self.released;
        self.released = matches!(attempt, Attempt::Release(_));
        let (nonce, lease) = match attempt {
            Attempt::Acquire(acquire) => {
                self.claimants.push((acquire.epoch, by));
                (acquire.rvn, nanos(acquire.lease))
            }
            Attempt::Renew(renew) => (renew.fresh, self.lease()),
            Attempt::Release(release) => (release.fresh, self.lease()),
        };
        // The same write may land twice, but only while the row is as it left it.
        if self.written.last().is_none_or(|(last, ..)| *last != nonce) {
            self.written.push((nonce, now, lease));
        }
        if was_released && matches!(attempt, Attempt::Renew(_)) {
            return Err("a renewal revives a row that was released".to_owned());
        }
        Ok(())
    }

    /// The LOCK row of this epoch was deleted.
    pub fn deleted(&mut self, now: u64, epoch: Epoch) {
        self.deleted.push((epoch, now, self.lease()));
    }

    fn lease(&self) -> u64 {
        self.written.last().map_or(0, |(_, _, lease)| *lease)
    }

    /// Whether a claim of this process has a cause: `own` if the version that it replaces was written by its own
    /// process, `expired` if a skew bound is set and the row's `ttl` is past on every clock within it, or the row
    /// was swept away.
    pub fn claim_has_cause(
        &self,
        now: u64,
        by: Process,
        acquire: &Acquire,
        own: bool,
        expired: bool,
    ) -> Verdict {
        let Some(over) = &acquire.over else {
            let mine = |claim: &(Epoch, Process)| (Some(claim.0), claim.1) == (acquire.fence_was, by);
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

#[cfg(test)]
mod tests {
    use tenure_election::{OwnerId, Release, Renew};

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
    fn a_deadline_counts_from_the_first_send() {
        let (sent, validity) = (Monotonic::from_nanos(5), Duration::from_nanos(10));
        assert!(deadline_from_send(Monotonic::from_nanos(15), sent, validity).is_ok());
        assert!(deadline_from_send(Monotonic::from_nanos(16), sent, validity).is_err());
    }

    #[test]
    fn a_term_may_be_renewed_but_not_revived() {
        assert!(term_stays_over(9, Epoch(1), Epoch(1), 10).is_ok(), "renewed in time");
        assert!(term_stays_over(10, Epoch(1), Epoch(1), 10).is_err());
        assert!(term_stays_over(10, Epoch(2), Epoch(1), 10).is_ok(), "another term");
    }

    #[test]
    fn a_released_row_is_not_renewed() {
        let owner = || OwnerId::new("a").unwrap();
        let release = Attempt::Release(Release {
            owner: owner(),
            epoch: Epoch(1),
            current: Nonce(1),
            pending: None,
            fresh: Nonce(2),
            reserved_for: None,
        });
        let renewal = Attempt::Renew(Renew {
            owner: owner(),
            epoch: Epoch(1),
            current: Nonce(1),
            fresh: Nonce(3),
            ttl: 9,
        });
        let mut history = RowHistory::default();
        assert!(history.landed(1, (0, 0), &renewal).is_ok() && history.landed(2, (0, 0), &release).is_ok());
        assert!(history.landed(3, (0, 0), &renewal).is_err());
    }

    #[test]
    fn one_leader_is_neither_none_nor_two() {
        assert!(one_leader(5, &[0, 9]).is_ok());
        assert!(one_leader(5, &[0, 0]).is_err() && one_leader(5, &[9, 9]).is_err());
    }
}
