//! The seed document's own rules, as a positive control: a world that cannot catch these catches nothing.
//!
//! A put succeeds if the row is absent or its `ttl`, in whole seconds, is below the caller's bare wall
//! clock. Leadership is a flag, set by a put that succeeded and cleared by a renewal that failed; it has
//! no deadline. A renewal and the release (which deletes) ask for the owner alone. An answer that does
//! not come counts as a failure. There are no epochs, so nothing can be fenced.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::Monotonic;
use tenure_election::{
    Acquire, Answer, Attempt, Call, CallId, Card, Effect, Epoch, Event, FenceMark, Lock, LossReason, Me,
    News, Nonce, Now, Release, Renew, ResignRequest, Timing,
};

use super::candidate::Candidate;
use super::table::Table;

/// One process with the seed's rules.
#[derive(Debug)]
pub struct SeedMachine {
    me: Me,
    lease: Duration,
    renew: Duration,
    leads: bool,
    stopping: bool,
    stopped: bool,
    started: bool,
    call: Option<(CallId, Asked)>,
    calls: u64,
    /// The next round of its loop.
    next: Monotonic,
    /// The row is to be deleted.
    leaving: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Put,
    Renewal,
    Release,
}

/// There are no epochs: a number that is never compared.
const NO_EPOCH: Epoch = Epoch(0);

impl SeedMachine {
    fn lose(&mut self, reason: LossReason, effects: &mut Vec<Effect>) {
        if self.leads {
            self.leads = false;
            effects.push(Effect::Tell(News::Lost(reason)));
        }
    }

    fn ask(&mut self, now: Now, asked: Asked, attempt: Attempt, effects: &mut Vec<Effect>) {
        self.calls += 1;
        let id = CallId(self.calls);
        self.call = Some((id, asked));
        effects.push(Effect::Call { id, by: now.monotonic + self.renew, call: Call::Write(attempt) });
    }

    fn put(&self, now: Now) -> Attempt {
        let card = Card { name: self.me.name.clone(), since: now.wall, about: self.me.about.clone() };
        Attempt::Acquire(Box::new(Acquire {
            over: None,
            fence_was: None,
            rvn: now.nonce,
            epoch: NO_EPOCH,
            owner: self.me.owner.clone(),
            ttl: (now.wall + self.lease).as_seconds(),
            lease: self.lease,
            skew: None,
            card: Arc::new(card),
        }))
    }
}

impl Candidate for SeedMachine {
    const FENCED: bool = false;

    fn new(me: Me, timing: Timing) -> Self {
        Self {
            me,
            lease: timing.lease,
            renew: timing.renew,
            leads: false,
            stopping: false,
            stopped: false,
            started: false,
            call: None,
            calls: 0,
            next: Monotonic::NEVER,
            leaving: false,
        }
    }

    fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            Event::Answered(id, answer) => {
                if let Some((asked_id, asked)) = self.call
                    && asked_id == id
                {
                    self.call = None;
                    let applied = matches!(answer, Answer::Applied { .. });
                    match asked {
                        Asked::Put if applied && !self.stopping => {
                            self.leads = true;
                            let deadline = Monotonic::NEVER;
                            effects.push(Effect::Tell(News::Elected { epoch: NO_EPOCH, deadline }));
                        }
                        Asked::Put => self.leaving |= applied,
                        Asked::Renewal if applied => {}
                        Asked::Renewal => self.lose(LossReason::StoreDown, &mut effects),
                        Asked::Release => {}
                    }
                }
            }
            Event::Campaign | Event::TryOnce if !self.started => {
                self.started = true;
                self.next = now.monotonic;
            }
            Event::Resign { .. } if self.leads => {
                self.lose(LossReason::Resigned, &mut effects);
                self.leaving = true;
            }
            Event::Stop => {
                self.leaving |= self.leads;
                self.lose(LossReason::Resigned, &mut effects);
                self.stopping = true;
            }
            _ => {}
        }
        if self.call.is_some() || self.stopped {
            return effects;
        }
        if self.leaving {
            self.leaving = false;
            self.next = now.monotonic + self.renew;
            let attempt = Attempt::Release(Release {
                owner: self.me.owner.clone(),
                epoch: NO_EPOCH,
                current: now.nonce,
                pending: None,
                fresh: now.nonce,
                reserved_for: None,
            });
            self.ask(now, Asked::Release, attempt, &mut effects);
        } else if self.stopping {
            self.stopped = true;
            effects.push(Effect::Tell(News::Stopped));
        } else if now.monotonic >= self.next {
            self.next = now.monotonic + self.renew;
            if self.leads {
                let attempt = Attempt::Renew(Renew {
                    owner: self.me.owner.clone(),
                    epoch: NO_EPOCH,
                    current: now.nonce,
                    fresh: now.nonce,
                    ttl: (now.wall + self.lease).as_seconds(),
                });
                self.ask(now, Asked::Renewal, attempt, &mut effects);
            } else {
                self.ask(now, Asked::Put, self.put(now), &mut effects);
            }
        }
        effects
    }

    fn wake_at(&self) -> Monotonic {
        if self.call.is_some() || self.stopped { Monotonic::NEVER } else { self.next }
    }

    fn is_leader(&self, _now: Monotonic) -> bool {
        self.leads
    }

    fn term(&self) -> Option<(Epoch, Monotonic)> {
        self.leads.then_some((NO_EPOCH, Monotonic::NEVER))
    }

    fn is_stopped(&self) -> bool {
        self.stopped
    }
}

/// The one row that the seed's rules know.
#[derive(Debug, Default)]
pub struct SeedTable {
    row: Option<Lock>,
}

impl Table for SeedTable {
    fn lock(&self) -> Option<Lock> {
        self.row.clone()
    }

    fn fence(&self) -> Option<FenceMark> {
        None
    }

    fn write(&mut self, attempt: &Attempt) -> Answer {
        let holds = match (attempt, &self.row) {
            (Attempt::Acquire(put), Some(row)) => row.ttl < put.card.since.as_seconds(),
            (Attempt::Acquire(_), None) => true,
            (Attempt::Renew(Renew { owner, .. }) | Attempt::Release(Release { owner, .. }), row) => {
                row.as_ref().is_some_and(|row| row.owner == *owner)
            }
        };
        if !holds {
            return Answer::RefusedByLock(self.row.clone());
        }
        match (attempt, &mut self.row) {
            (Attempt::Acquire(put), row) => *row = Some(put.lock()),
            (Attempt::Renew(renew), Some(row)) => row.ttl = renew.ttl,
            (Attempt::Renew(_), None) => {}
            (Attempt::Release(_), row) => *row = None,
        }
        Answer::Applied { resign: None }
    }

    fn ttl(&self) -> Option<i64> {
        self.row.as_ref().map(|row| row.ttl)
    }

    fn delete_lock(&mut self) -> bool {
        self.row.take().is_some()
    }

    fn ask_to_resign(&mut self, _nonce: Nonce) -> Option<ResignRequest> {
        None
    }

    /// Nothing says who led last, so nothing can be refused.
    fn admits(&self, _epoch: Epoch) -> bool {
        true
    }
}
