//! The rows of an application in memory, without a store around them.
//!
//! What a conditional write means is said twice on purpose: as conditions in `rows.rs`, which every backend
//! evaluates, and here as plain comparisons, which the simulation and the exhaustive model run millions of
//! times. A property test holds the two together.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_planted as planted;

use crate::attempt::{Attempt, Note, Presence};
use crate::machine::{Answer, Scan};
use crate::{Lease, LeaseKey, WorkerId};

/// The lease table and our own rows of one application, and what a write does to them.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub struct LeaseTable {
    /// The leases.
    pub leases: BTreeMap<LeaseKey, Arc<Lease>>,
    /// The workers' rows.
    pub workers: BTreeMap<WorkerId, Presence>,
    /// What the settings row says.
    pub settings: Option<Duration>,
    /// What the nudge row says.
    pub nudge: u64,
}

impl LeaseTable {
    /// What a scan shows at this moment.
    #[must_use]
    pub fn scan(&self) -> Scan {
        Scan {
            nudge: self.nudge,
            settings: self.settings,
            workers: self.workers.values().cloned().collect(),
            leases: self.leases.values().cloned().collect(),
            bad: Vec::new(),
        }
    }

    /// Carries out an attempt if its condition holds, and answers as a store would.
    pub fn write(&mut self, attempt: &Attempt) -> Answer {
        let key = attempt.key();
        if let Attempt::Create(lease) = attempt {
            return match self.leases.get(key) {
                Some(current) => Answer::Refused(Some(current.clone())),
                None => {
                    let row = Arc::new((**lease).clone());
                    self.leases.insert(key.clone(), row.clone());
                    Answer::Applied(Some(row))
                }
            };
        }
        let Some(row) = self.leases.get_mut(key) else { return Answer::Refused(None) };
        if !applies(attempt, row) {
            return Answer::Refused(Some(row.clone()));
        }
        let lease = Arc::make_mut(row);
        match attempt {
            Attempt::Create(_) => {}
            Attempt::Renew { kbps, .. } => lease.throughput_kbps = kbps.or(lease.throughput_kbps),
            Attempt::Take { me, .. } => {
                if lease.owner.as_ref() != Some(me) {
                    lease.owner_switches += 1;
                }
                (lease.owner, lease.giver) = (Some(me.clone()), None);
            }
            Attempt::Checkpoint { at, marks, .. } => {
                lease.owner_switches = 0;
                (lease.checkpoint, lease.marks) = (at.clone(), marks.clone());
            }
            Attempt::BeginHandoff { from, to, .. } => {
                (lease.owner, lease.giver) = (Some(to.clone()), Some(from.clone()));
            }
            Attempt::FinishHandoff { .. } => {
                lease.giver = None;
                lease.owner_switches += 1;
            }
            Attempt::Evict { .. } => lease.owner = None,
            Attempt::Delete { .. } => {
                let gone = self.leases.remove(key);
                return Answer::Applied(gone);
            }
        }
        match attempt {
            Attempt::BeginHandoff { .. } => {}
            Attempt::Renew { counter, .. }
            | Attempt::Take { counter, .. }
            | Attempt::Checkpoint { counter, .. }
            | Attempt::FinishHandoff { counter, .. }
            | Attempt::Evict { counter, .. }
            | Attempt::Delete { counter, .. } => lease.counter = counter + 1,
            Attempt::Create(_) => {}
        }
        Answer::Applied(Some(row.clone()))
    }

    /// Carries out a note if its condition holds.
    pub fn note(&mut self, note: &Note) -> Answer {
        let holds = match note {
            Note::Settings { .. } => self.settings.is_none(),
            Note::Presence { me, over } => match (self.workers.get(&me.worker), over) {
                (None, over) => over.is_none(),
                (Some(row), None) => row.incarnation == me.incarnation && row.counter < me.counter,
                (Some(row), Some((incarnation, counter))) => {
                    row.incarnation == *incarnation && row.counter == *counter
                }
            },
            Note::Leave { worker, incarnation } => {
                self.workers.get(worker).is_some_and(|row| row.incarnation == *incarnation)
            }
            Note::Nudge => true,
        };
        if !holds {
            return Answer::Refused(None);
        }
        match note {
            Note::Settings { lease } => self.settings = Some(*lease),
            Note::Presence { me, .. } => drop(self.workers.insert(me.worker.clone(), me.clone())),
            Note::Leave { worker, .. } => drop(self.workers.remove(worker)),
            Note::Nudge => self.nudge += 1,
        }
        Answer::Applied(None)
    }
}

fn applies(attempt: &Attempt, lease: &Lease) -> bool {
    let is = |side: &Option<WorkerId>, who: &WorkerId| side.as_ref() == Some(who);
    let plainly = |who: &WorkerId| is(&lease.owner, who) && lease.giver.is_none();
    match attempt {
        Attempt::Create(_) => false,
        Attempt::Renew { counter, me, .. } => {
            lease.counter == *counter && (plainly(me) || is(&lease.giver, me))
        }
        Attempt::Checkpoint { counter, me, .. } => {
            planted::is("lease_checkpoint_without_fence")
                || (lease.counter == *counter && (plainly(me) || is(&lease.giver, me)))
        }
        Attempt::Take { counter, .. } => planted::is("take_without_counter") || lease.counter == *counter,
        Attempt::BeginHandoff { from, .. } => plainly(from),
        Attempt::FinishHandoff { counter, from, to, .. } => {
            is(&lease.owner, to)
                && is(&lease.giver, from)
                && (lease.counter == *counter || planted::is("finish_without_counter"))
        }
        Attempt::Evict { counter, me, .. } => {
            plainly(me) && (lease.counter == *counter || planted::is("evict_without_counter"))
        }
        Attempt::Delete { counter, finished, .. } => {
            lease.counter == *counter
                && if *finished { lease.checkpoint.is_end() } else { lease.owner.is_none() }
        }
    }
}
