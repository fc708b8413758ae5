//! The two rows of an election in memory, without a store around them.
//!
//! What a conditional write means is said twice on purpose: as conditions in `rows.rs`, which every
//! backend evaluates, and here as plain comparisons, which the simulation and the exhaustive model run
//! millions of times. A property test holds the two together.

use tenure_planted as planted;

use crate::identity::{Epoch, Nonce, OwnerId};
use crate::lock::{Attempt, Lock, Rows};
use crate::machine::Answer;

pub use crate::advisory::fake::{FakeLocks, FakeSession, Link};

/// The rows of one shard, and what a write does to them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LockTable {
    /// The rows as they are; `fence` is always what the FENCE row says.
    pub rows: Rows,
}

impl LockTable {
    /// What a read shows: the FENCE row only where there is no LOCK row.
    #[must_use]
    pub fn read(&self) -> Rows {
        match &self.rows.lock {
            Some(lock) => Rows { lock: Some(lock.clone()), fence: None },
            None => self.rows.clone(),
        }
    }

    /// Carries out an attempt if its condition holds, and answers as a store would.
    pub fn write(&mut self, attempt: &Attempt) -> Answer {
        let current = self.rows.lock.as_mut();
        match attempt {
            Attempt::Acquire(acquire) => {
                if current.as_ref().map(|lock| lock.version()) != acquire.over {
                    return Answer::RefusedByLock(self.rows.lock.clone());
                }
                if !planted::is("fence_in_ttl_row") {
                    if self.rows.fence.map(|mark| mark.epoch) != acquire.fence_was {
                        return Answer::RefusedByFence(self.rows.fence);
                    }
                    self.rows.fence = Some(acquire.fence());
                }
                self.rows.lock = Some(acquire.lock());
                Answer::Applied { resign: None }
            }
            Attempt::Renew(renew) => match current {
                Some(lock)
                    if is_mine(lock, &renew.owner, renew.epoch, [Some(renew.current), Some(renew.fresh)]) =>
                {
                    (lock.ttl, lock.rvn) = (renew.ttl, Some(renew.fresh));
                    Answer::Applied { resign: lock.resign.clone() }
                }
                _ => Answer::RefusedByLock(self.rows.lock.clone()),
            },
            Attempt::Release(release) => match current {
                Some(lock)
                    if planted::is("release_without_version")
                        || is_mine(
                            lock,
                            &release.owner,
                            release.epoch,
                            [Some(release.current), release.pending],
                        ) =>
                {
                    (lock.ttl, lock.rvn) = (0, Some(release.fresh));
                    lock.resign = None;
                    if release.reserved_for.is_some() {
                        lock.reserved_for.clone_from(&release.reserved_for);
                    }
                    Answer::Applied { resign: None }
                }
                _ => Answer::RefusedByLock(self.rows.lock.clone()),
            },
        }
    }

    /// Whether a write guarded by the FENCE row is accepted from the leader of `epoch`.
    #[must_use]
    pub fn admits(&self, epoch: Epoch) -> bool {
        self.rows.fence.is_some_and(|mark| mark.epoch == epoch)
    }

    /// Deletes the LOCK row, as the Go library does on release and as a TTL sweep does.
    pub fn delete_lock(&mut self) {
        self.rows.lock = None;
    }
}

fn is_mine(lock: &Lock, owner: &OwnerId, epoch: Epoch, rvns: [Option<Nonce>; 2]) -> bool {
    lock.owner == *owner && lock.epoch == Some(epoch) && lock.rvn.is_some() && rvns.contains(&lock.rvn)
}
