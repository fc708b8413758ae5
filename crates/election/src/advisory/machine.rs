//! Decides what a candidate for an advisory lock does next. Nothing here waits, reads a clock or draws a
//! number.
//!
//! ```text
//!             granted             epoch raised
//!   Polling ──────────► Fencing ───────────────► Leading ──► pinged, again and again
//!      ▲                   │ store does not answer  │ │
//!      └──── unlocked ─────┘                        │ │ resigned
//!                                                   │ ▼
//!             session over, silent, not ours ◄──────┘ Releasing ──► Over
//! ```
//!
//! Two calls may be under way: one on the session, one to the store. Pings go on while the epoch is raised.
//!
//! The rules, each with a test:
//!
//! - A-1 The lock counts as held until the last answered call was *sent* + deadline, and no longer.
//! - A-2 A term begins after the epoch rose under the lock, and only while A-1 still holds.
//! - A-3 An unknown outcome is resolved by reading back epoch and nonce, never by assuming.
//! - A-4 A lock that is granted to somebody who does not want it any more is given back.
//! - A-5 What is lost stays lost, and its session is ended: it must not hold the lock for nobody.
//! - A-6 A session that another process of the server answers for goes through a pooler, which may lend
//!   its lock to anybody: it never leads.
//! - A-7 A candidate that cannot raise the epoch gives the lock back, and lets others have it first.

use std::fmt;
use std::time::Duration;

use tenure_clock::Monotonic;

use super::fence_row::{FenceRow, Raise};
use super::session::{Pulse, Tried};
use super::settings::AdvisorySettings;
use crate::identity::{Epoch, Nonce};

/// How often one store call may be tried within the store's time.
const STORE_CALLS: u32 = 3;

/// What a step may use of the outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// To measure with.
    pub(super) monotonic: Monotonic,
    /// Fresh for every step.
    pub(super) nonce: Nonce,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Event {
    /// The moment of [`Machine::wake_at`] has come. Harmless at any other.
    Wake,
    /// A call was answered. Every call is, once: at its time limit with `Failed` or `Unknown`.
    Answered(CallId, Answer),
    /// The session is over.
    SessionEnded,
    /// Give back what is held, and end.
    Withdraw,
}

/// Tells the answers to several calls apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct CallId(u64);

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    /// To [`Call::TryLock`].
    Tried(Tried),
    /// To [`Call::Ping`].
    Pulse(Pulse),
    /// To [`Call::Unlock`]: whether the session is without the lock now.
    Unlocked(bool),
    /// To [`Call::ReadFence`].
    Fence(Option<FenceRow>),
    /// To [`Call::Raise`]: it happened.
    Raised,
    /// To [`Call::Raise`]: it did not happen, and the row looks like this.
    Refused(Option<FenceRow>),
    /// To [`Call::Raise`]: it may have happened.
    Unknown,
    /// No answer, or one that may be better next time.
    Failed,
    /// It failed in a way that a person must mend.
    Broken,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    /// Make this call and answer it, at the latest at `by`.
    Call {
        /// To answer with.
        id: CallId,
        /// When to give up.
        by: Monotonic,
        /// What to ask.
        call: Call,
    },
    /// End the session, so that the server frees the lock.
    EndSession,
    /// Tell whoever is concerned.
    Tell(News),
}

/// A request to the session or to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// Session: the lock, if it is free.
    TryLock,
    /// Session: a sign of life.
    Ping,
    /// Session: give the lock back.
    Unlock,
    /// Store: the FENCE row.
    ReadFence,
    /// Store: raise the epoch.
    Raise(Raise),
}

impl Call {
    /// Whether the session is asked, and not the store.
    #[must_use]
    pub(super) const fn is_on_session(self) -> bool {
        matches!(self, Self::TryLock | Self::Ping | Self::Unlock)
    }
}

/// What whoever is concerned should know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum News {
    /// The server granted the lock. The epoch is raised next.
    Granted,
    /// The lock was given back because the epoch could not be raised.
    GaveBack,
    /// A term began.
    Elected {
        /// Its number.
        epoch: Epoch,
        /// Until when, unless a ping is answered.
        deadline: Monotonic,
    },
    /// A ping was answered.
    Renewed {
        /// Until when.
        deadline: Monotonic,
    },
    /// The term is given up on purpose; the lock follows.
    Resigned,
    /// The end: nothing is held, and nothing more happens.
    Over(LockEnd),
}

/// How a candidacy ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LockEnd {
    /// Given up on purpose.
    Released {
        /// False if the server did not confirm it: then the session was ended, and the lock is free when
        /// the server notices.
        confirmed: bool,
    },
    /// The session is over: the server ended it, or the connection was cut.
    SessionEnded,
    /// The session did not answer within the deadline.
    Silent,
    /// Another process of the server answered: there is a pooler in between.
    Pooler {
        /// The process before.
        was: i32,
        /// The process now.
        is: i32,
    },
    /// The session lives, but the lock was taken from it.
    NotHeld,
    /// A call failed in a way that a person must mend.
    Broken,
}

impl fmt::Display for LockEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released { confirmed: true } => f.write_str("the advisory lock was given back"),
            Self::Released { confirmed: false } => f.write_str(
                "giving the advisory lock back was not confirmed: it is free when the server notices that the session \
                 has ended",
            ),
            Self::SessionEnded => f.write_str("the session that held the advisory lock has ended"),
            Self::Silent => f.write_str("the session with the advisory lock did not answer within the deadline"),
            Self::Pooler { was, is } => write!(
                f,
                "the session is served by process {is} of the server, and before by {was}: there is a pooler in between. \
                 An advisory lock belongs to one process, so never through a pooler: connect to the server itself. \
                 The lock may stay with the pooler's own connection until that ends"
            ),
            Self::NotHeld => f.write_str(
                "the session lives, but does not hold the advisory lock any more: something ran \
                 pg_advisory_unlock, pg_advisory_unlock_all or DISCARD ALL on it, perhaps a pooler",
            ),
            Self::Broken => f.write_str("a call failed in a way that must be mended first"),
        }
    }
}

/// One candidate on one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Machine {
    timing: Timing,
    state: State,
    /// The process that answers for the session.
    backend: Option<i32>,
    on_session: Option<Asked>,
    on_store: Option<Asked>,
    calls: u64,
    /// Nobody wants the lock any more.
    withdrawn: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Timing {
    poll: Duration,
    ping: Duration,
    deadline: Duration,
    store_timeout: Duration,
}

/// A call in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Asked {
    id: CallId,
    sent: Monotonic,
    call: Call,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Polling { next: Monotonic },
    Fencing(Held, Fencing),
    Leading(Held, Epoch),
    Releasing(Leave),
    Over,
}

/// The lock, as far as this side knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    deadline: Monotonic,
    next_ping: Monotonic,
}

/// Raising the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Fencing {
    step: Step,
    next: Monotonic,
    until: Monotonic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// What does the row say? After an unknown outcome: is it what that raise left?
    Read { lost: Option<Raise> },
    /// The row said this.
    Raise { was: Option<Epoch> },
}

/// Giving the lock back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Leave {
    until: Monotonic,
    /// Poll again afterwards, but not at once.
    stays: bool,
}

impl Machine {
    /// A candidate that polls from now on. `backend` is the process that the server announced, if known.
    #[must_use]
    pub(super) fn new(settings: &AdvisorySettings, backend: Option<i32>) -> Self {
        let &AdvisorySettings { poll, ping, deadline, store_timeout, .. } = settings;
        Self {
            timing: Timing { poll, ping, deadline, store_timeout },
            state: State::Polling { next: Monotonic::default() },
            backend,
            on_session: None,
            on_store: None,
            calls: 0,
            withdrawn: false,
        }
    }

    /// Takes in what happened and says what to do. At most one call is in flight on the session, and one
    /// to the store.
    #[must_use]
    pub(super) fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.expire(now, &mut effects);
        match event {
            Event::Wake => {}
            Event::Answered(id, answer) => {
                if let Some(asked) = self.take_call(id) {
                    self.answered(now, asked, answer, &mut effects);
                }
            }
            Event::SessionEnded => self.session_ended(&mut effects),
            Event::Withdraw => self.withdraw(now, &mut effects),
        }
        self.proceed(now, &mut effects);
        effects
    }

    /// When [`Event::Wake`] is wanted at the latest.
    #[must_use]
    pub(super) fn wake_at(&self) -> Monotonic {
        let never = Monotonic::NEVER;
        let if_idle = |at: Monotonic| if self.on_session.is_none() { at } else { never };
        let silent = self.on_session.map_or(never, |asked| asked.sent + self.timing.deadline);
        match &self.state {
            State::Polling { next } => if_idle(*next).min(silent),
            State::Fencing(held, fencing) => {
                let store = if self.on_store.is_none() { fencing.next } else { never };
                held.deadline.min(if_idle(held.next_ping)).min(store).min(fencing.until)
            }
            State::Leading(held, _) => held.deadline.min(if_idle(held.next_ping)),
            State::Releasing(leave) => leave.until,
            State::Over => never,
        }
    }

    /// The term under way: its epoch and its deadline.
    #[cfg(test)]
    pub(super) const fn term(&self) -> Option<(Epoch, Monotonic)> {
        match &self.state {
            State::Leading(held, epoch) => Some((*epoch, held.deadline)),
            _ => None,
        }
    }

    /// Whether nothing more will happen.
    #[must_use]
    pub(super) const fn is_over(&self) -> bool {
        matches!(self.state, State::Over)
    }

    // === endings ===

    /// Ends what nobody answered for in time, before anything else is looked at (A-1).
    fn expire(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let expired = match &self.state {
            State::Fencing(held, _) | State::Leading(held, _) => now.monotonic >= held.deadline,
            State::Polling { .. } => {
                self.on_session.is_some_and(|asked| now.monotonic >= asked.sent + self.timing.deadline)
            }
            State::Releasing(leave) => {
                if now.monotonic >= leave.until {
                    return self.end(LockEnd::Released { confirmed: false }, effects);
                }
                false
            }
            State::Over => false,
        };
        if expired {
            self.end(LockEnd::Silent, effects);
        }
    }

    /// A-5: whatever the session may still hold, it does not hold it for long.
    fn end(&mut self, how: LockEnd, effects: &mut Vec<Effect>) {
        let nothing_held = how == LockEnd::Released { confirmed: true };
        (self.state, self.on_session, self.on_store) = (State::Over, None, None);
        effects.push(Effect::Tell(News::Over(how)));
        if !nothing_held {
            effects.push(Effect::EndSession);
        }
    }

    fn session_ended(&mut self, effects: &mut Vec<Effect>) {
        match &self.state {
            State::Over => {}
            // That is what was wanted; but the server may not have noticed yet.
            State::Releasing(Leave { stays: false, .. }) => {
                self.end(LockEnd::Released { confirmed: false }, effects);
            }
            _ => self.end(LockEnd::SessionEnded, effects),
        }
    }

    fn withdraw(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.withdrawn = true;
        match &mut self.state {
            // A-4: a try under way is waited for.
            State::Polling { .. } => {
                if self.on_session.is_none() {
                    self.end(LockEnd::Released { confirmed: true }, effects);
                }
            }
            State::Fencing(..) => self.leave(now, false),
            State::Leading(..) => {
                effects.push(Effect::Tell(News::Resigned));
                self.leave(now, false);
            }
            State::Releasing(leave) => leave.stays = false,
            State::Over => {}
        }
    }

    fn leave(&mut self, now: Now, stays: bool) {
        // A raise that is under way may still land: it makes the epoch rise for nobody, which harms nobody.
        self.on_store = None;
        self.state = State::Releasing(Leave { until: now.monotonic + self.timing.deadline, stays });
    }

    // === answers ===

    fn take_call(&mut self, id: CallId) -> Option<Asked> {
        for slot in [&mut self.on_session, &mut self.on_store] {
            if slot.is_some_and(|asked| asked.id == id) {
                return slot.take();
            }
        }
        None
    }

    fn answered(&mut self, now: Now, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        if answer == Answer::Broken {
            return self.broken(now, asked, effects);
        }
        match asked.call {
            Call::TryLock => self.tried(now, asked, answer, effects),
            Call::Ping => self.pinged(now, asked, answer, effects),
            Call::Unlock => self.unlocked(now, answer, effects),
            Call::ReadFence => self.fence_read(now, answer, effects),
            Call::Raise(raise) => self.raise_answered(now, raise, answer, effects),
        }
    }

    fn broken(&mut self, now: Now, asked: Asked, effects: &mut Vec<Effect>) {
        match &self.state {
            // The lock is given back in good order, if it can be.
            State::Fencing(..) if !asked.call.is_on_session() => self.leave(now, false),
            State::Releasing(_) if asked.call == Call::Ping => {}
            State::Releasing(_) => self.unlocked(now, Answer::Broken, effects),
            // The server said no. What else there is on the session, another candidate even, stays.
            State::Polling { .. } => {
                self.state = State::Over;
                effects.push(Effect::Tell(News::Over(LockEnd::Broken)));
            }
            _ => self.end(LockEnd::Broken, effects),
        }
    }

    fn tried(&mut self, now: Now, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        let State::Polling { .. } = self.state else { return };
        self.state = State::Polling { next: self.after_poll(now) };
        let Answer::Tried(tried) = answer else {
            // The lock may be held all the same: then the next try is granted, too.
            return self.settle_withdrawal(LockEnd::Released { confirmed: false }, effects);
        };
        if self.met_pooler(tried.backend, effects) {
            return;
        }
        if !tried.granted {
            return self.settle_withdrawal(LockEnd::Released { confirmed: true }, effects);
        }
        if self.withdrawn {
            return self.leave(now, false); // A-4
        }
        let held = self.held(asked.sent);
        effects.push(Effect::Tell(News::Granted));
        let until = now.monotonic + self.timing.store_timeout;
        let step = Step::Read { lost: None };
        self.state = State::Fencing(held, Fencing { step, next: now.monotonic, until });
    }

    /// Ends a candidacy that nobody wants, now that no try is under way.
    fn settle_withdrawal(&mut self, how: LockEnd, effects: &mut Vec<Effect>) {
        if self.withdrawn {
            self.end(how, effects);
        }
    }

    /// A-1: what an answered call says of the time to come.
    fn held(&self, sent: Monotonic) -> Held {
        Held { deadline: sent + self.timing.deadline, next_ping: sent + self.timing.ping }
    }

    fn pinged(&mut self, now: Now, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        let renewed = self.held(asked.sent);
        let soon = self.after_poll(now);
        let (State::Fencing(held, _) | State::Leading(held, _)) = &mut self.state else { return };
        let Answer::Pulse(pulse) = answer else {
            // The session lives, or its end would have been told: asked again until the deadline.
            held.next_ping = soon;
            return;
        };
        *held = renewed;
        if self.met_pooler(pulse.backend, effects) {
            return;
        }
        if pulse.holds == Some(false) {
            return self.end(LockEnd::NotHeld, effects);
        }
        if matches!(self.state, State::Leading(..)) {
            effects.push(Effect::Tell(News::Renewed { deadline: renewed.deadline }));
        }
        // An answer that took very long may be over already.
        self.expire(now, effects);
    }

    /// A-6
    fn met_pooler(&mut self, backend: Option<i32>, effects: &mut Vec<Effect>) -> bool {
        let Some(is) = backend else { return false };
        let was = *self.backend.get_or_insert(is);
        let pooler = was != is;
        if pooler {
            self.end(LockEnd::Pooler { was, is }, effects);
        }
        pooler
    }

    fn unlocked(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let State::Releasing(leave) = &self.state else { return };
        let stays = leave.stays;
        match answer {
            Answer::Unlocked(true) if stays => {
                // A-7: time enough for every other candidate to have tried.
                self.state = State::Polling { next: now.monotonic + self.timing.deadline };
                effects.push(Effect::Tell(News::GaveBack));
            }
            Answer::Unlocked(true) => self.end(LockEnd::Released { confirmed: true }, effects),
            // Held still, or not known: the end of the session frees it for certain.
            _ => self.end(LockEnd::Released { confirmed: false }, effects),
        }
    }

    fn fence_read(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let again = self.after_poll(now);
        let State::Fencing(held, fencing) = &mut self.state else { return };
        let held = *held;
        match (answer, fencing.step) {
            // A-3
            (Answer::Fence(row), Step::Read { lost: Some(raise) }) if raise.is_what(row) => {
                self.elected(held, raise.epoch(), effects);
            }
            (Answer::Fence(row), _) => fencing.step = Step::Raise { was: row.map(|row| row.epoch) },
            _ => fencing.next = again,
        }
    }

    fn raise_answered(&mut self, now: Now, raise: Raise, answer: Answer, effects: &mut Vec<Effect>) {
        let again = self.after_poll(now);
        let State::Fencing(held, fencing) = &mut self.state else { return };
        let held = *held;
        match answer {
            Answer::Raised => self.elected(held, raise.epoch(), effects),
            Answer::Unknown => fencing.step = Step::Read { lost: Some(raise) },
            // Somebody raised it meanwhile: two servers grant the lock, or somebody leads by rows.
            Answer::Refused(row) => fencing.step = Step::Raise { was: row.map(|row| row.epoch) },
            _ => {
                fencing.step = Step::Read { lost: None };
                fencing.next = again;
            }
        }
    }

    /// A-2: the epoch rose under a lock that is still held, or `expire` had ended this before.
    fn elected(&mut self, held: Held, epoch: Epoch, effects: &mut Vec<Effect>) {
        self.state = State::Leading(held, epoch);
        effects.push(Effect::Tell(News::Elected { epoch, deadline: held.deadline }));
    }

    // === what is due ===

    fn proceed(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if let State::Fencing(_, fencing) = &self.state
            && now.monotonic >= fencing.until
        {
            self.leave(now, true); // A-7
        }
        match self.state {
            State::Polling { next } => {
                self.on_session_if(next, now, now.monotonic + self.timing.deadline, Call::TryLock, effects);
            }
            State::Fencing(held, fencing) => {
                self.on_session_if(held.next_ping, now, held.deadline, Call::Ping, effects);
                self.raise(now, fencing, effects);
            }
            State::Leading(held, _) => {
                self.on_session_if(held.next_ping, now, held.deadline, Call::Ping, effects);
            }
            State::Releasing(leave) => {
                self.on_session_if(now.monotonic, now, leave.until, Call::Unlock, effects);
            }
            State::Over => {}
        }
    }

    fn raise(&mut self, now: Now, fencing: Fencing, effects: &mut Vec<Effect>) {
        if self.on_store.is_some() || now.monotonic < fencing.next {
            return;
        }
        let call = match fencing.step {
            Step::Read { .. } => Call::ReadFence,
            Step::Raise { was } => Call::Raise(Raise { was, nonce: now.nonce }),
        };
        let by = fencing.until.min(now.monotonic + self.timing.store_timeout / STORE_CALLS);
        self.on_store = Some(self.ask(now, by, call, effects));
    }

    fn on_session_if(
        &mut self,
        due: Monotonic,
        now: Now,
        by: Monotonic,
        call: Call,
        effects: &mut Vec<Effect>,
    ) {
        if self.on_session.is_none() && now.monotonic >= due {
            self.on_session = Some(self.ask(now, by, call, effects));
        }
    }

    fn ask(&mut self, now: Now, by: Monotonic, call: Call, effects: &mut Vec<Effect>) -> Asked {
        self.calls += 1;
        let id = CallId(self.calls);
        effects.push(Effect::Call { id, by, call });
        Asked { id, sent: now.monotonic, call }
    }

    /// The next try: between half the poll period and all of it, so that candidates do not march in step.
    fn after_poll(&self, now: Now) -> Monotonic {
        // 32 bits of the nonce as a fraction: they are as random as all of them.
        let draw = now.nonce.0 & u128::from(u32::MAX);
        let sooner_nanos = ((self.timing.poll / 2).as_nanos() * draw) >> 32;
        now.monotonic + (self.timing.poll - Duration::from_nanos(u64::try_from(sooner_nanos).unwrap_or(0)))
    }
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod tests;
