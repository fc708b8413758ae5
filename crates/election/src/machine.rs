//! Decides what a candidate does next. Nothing here waits, reads a clock or draws a number.
//!
//! ```text
//!              claim sent           claim applied
//!   Following ──────────► Claiming ──────────────► Leading ──► renewed, again and again
//!       ▲  ▲                 │  refused, failed       │  │
//!       │  └─────────────────┘  (unknown: read back)  │  │ resigned, stopped
//!       │                                             │  ▼
//!       ├──────── refused, deadline, error ───────────┘ Releasing ──► Following, or Stopped
//!       └───────────────────────────────────────────────────┘
//! ```
//!
//! The rules, each with a test here and a planted bug in `cargo xtask planted election`:
//!
//! - E-1 One's own lease is over at the time the last successful renewal was first *sent* + validity.
//! - E-2 Another's row is stale once its exact version was seen for its *own* lease (1 + 2ρ), counted on
//!   my monotonic clock from when I *received* the first read that showed it.
//! - E-3 The wall clock is consulted only with a stated skew bound, and beside Go peers only together
//!   with E-2.
//! - E-4 An unknown outcome is resolved by reading back my nonce, never by assuming.
//! - E-5 Every claim raises the epoch of a row that nothing deletes.
//! - E-6 A release is tied to owner, epoch and nonce, and leaves a fresh nonce behind.
//! - E-7 An absent row under a known epoch is watched like a stale one: its `ttl` may have been wrong. Only
//!   with a skew bound is it free, as it is for Go peers.
//! - E-8 A row is mine by its nonce, not by its owner id: another process may have been given the same id.
//! - E-9 A stop waits for a claim in flight, and releases what it won.
//! - E-10 A term that is over stays over.
//! - E-11 Without health there is no renewal, and no claim.
//! - E-12 A renewal computes its `ttl` anew.
//! - E-13 An absent row under the epoch that I won last is mine to claim at once: nobody was elected since.
//!   So a leader whose slow wall clock made a sweep take its row leads again after a round trip.

mod message;

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Monotonic, WallTime};
use tenure_planted as planted;

pub use self::message::{Answer, Call, CallId, Effect, Event, LossReason, Me, News, Now, Trouble};
use crate::identity::{Epoch, Nonce};
use crate::lock::{Acquire, Attempt, Card, FenceMark, Lock, Release, Renew, ResignRequest, Rows};
use crate::settings::{OnRenewalError, Timing};

/// How many of my own nonces are remembered: those of the last claims and renewals, any of which may
/// still land.
const NONCES_MAX: usize = 16;
/// How often in a row a claim is sent again at once because the FENCE row said another epoch.
const FENCE_LESSONS_MAX: u32 = 3;
/// A `ttl` counts whole seconds: the second that it names must be over.
const TTL_GRAIN: Duration = Duration::from_secs(1);

/// One candidate for one shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Machine {
    me: Me,
    timing: Timing,
    standing: Standing,
    state: State,
    /// Set by [`Event::Stop`]: when to end at the latest.
    stop_by: Option<Monotonic>,
    /// The call in flight: there is never more than one.
    call: Option<(CallId, Asked)>,
    /// When it was sent.
    asked_at: Monotonic,
    calls: u64,
    seen: Option<Seen>,
    /// What the FENCE row says, as far as known.
    fence: Option<FenceMark>,
    /// The highest epoch ever seen, in whichever row.
    highest: Epoch,
    /// The nonces of my own last writes, any of which may still land.
    mine: Vec<Nonce>,
    /// The epoch that I won last.
    won: Option<Epoch>,
    next_read: Monotonic,
    /// No claim before this moment: the last one failed.
    next_claim: Monotonic,
    /// When the row that was seen will be claimable; never, if that is not known.
    claimable_at: Monotonic,
    fence_lessons: u32,
    /// Whether a read was answered since [`Event::TryOnce`].
    looked: bool,
    resign_heard: Option<Nonce>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standing {
    Resting,
    Watching,
    Campaigning,
    Once,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asked {
    Read,
    Claim,
    Renewal,
    Release,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Following,
    Claiming(Claim),
    Leading(Lead),
    Releasing(Leave),
    Stopped,
}

/// A claim that was sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Claim {
    acquire: Box<Acquire>,
    sent: Monotonic,
    /// The answer was lost: the row is read instead, from this moment on.
    read_back_at: Option<Monotonic>,
}

/// A term under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Lead {
    epoch: Epoch,
    rvn: Nonce,
    deadline: Monotonic,
    next_renewal: Monotonic,
    /// A renewal that was sent and did not succeed yet.
    pending: Option<Pending>,
    /// The reason, should the deadline pass now.
    failing: Option<LossReason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pending {
    rvn: Nonce,
    first_sent: Monotonic,
    ttl: i64,
}

/// A term being given up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Leave {
    epoch: Epoch,
    rvn: Nonce,
    /// Of a renewal whose outcome is not known.
    pending: Option<Nonce>,
    /// The release's own nonce, once it was sent.
    fresh: Option<Nonce>,
    to: Option<Arc<str>>,
    next_try: Monotonic,
    until: Monotonic,
}

/// The rows as last read, and since when they were so.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    rows: Rows,
    since: Monotonic,
    /// Two reads in a row showed it.
    confirmed: bool,
}

impl Machine {
    /// A candidate that rests.
    #[must_use]
    pub fn new(me: Me, timing: Timing) -> Self {
        Self {
            me,
            timing,
            standing: Standing::Resting,
            state: State::Following,
            stop_by: None,
            call: None,
            asked_at: Monotonic::default(),
            calls: 0,
            seen: None,
            fence: None,
            highest: Epoch(0),
            mine: Vec::new(),
            won: None,
            next_read: Monotonic::default(),
            next_claim: Monotonic::default(),
            claimable_at: Monotonic::NEVER,
            fence_lessons: 0,
            looked: false,
            resign_heard: None,
        }
    }

    /// Takes in what happened and says what to do. Invariant: at most one call is in flight.
    #[must_use]
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.expire(now, &mut effects);
        match event {
            Event::Wake => {}
            Event::Answered(id, answer) => {
                if let Some((asked_id, asked)) = self.call
                    && asked_id == id
                {
                    self.call = None;
                    self.answered(now, asked, answer, &mut effects);
                }
            }
            Event::Campaign => self.stand(Standing::Campaigning),
            Event::TryOnce => self.stand(Standing::Once),
            Event::Watch => self.stand(Standing::Watching),
            Event::Rest => self.stand(Standing::Resting),
            Event::Resign { to } => self.resign(now, to, &mut effects),
            Event::Stop => self.stop(now, &mut effects),
        }
        self.proceed(now, &mut effects);
        effects
    }

    /// When [`Event::Wake`] is wanted at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Monotonic {
        let idle = self.call.is_none();
        let at = match &self.state {
            State::Stopped => return Monotonic::NEVER,
            State::Following if !idle || self.standing == Standing::Resting => Monotonic::NEVER,
            State::Following => self.next_read.min(self.claimable_at),
            State::Claiming(claim) if idle => claim.read_back_at.unwrap_or(Monotonic::NEVER),
            State::Claiming(_) => Monotonic::NEVER,
            State::Leading(lead) if idle => lead.deadline.min(lead.next_renewal),
            State::Leading(lead) => lead.deadline,
            State::Releasing(leave) if idle => leave.until.min(leave.next_try),
            State::Releasing(leave) => leave.until,
        };
        at.min(self.stop_by.unwrap_or(Monotonic::NEVER))
    }

    /// Whether this is the leader at `now`, whatever happened since the last step.
    #[must_use]
    pub fn is_leader(&self, now: Monotonic) -> bool {
        matches!(&self.state, State::Leading(lead) if now < lead.deadline)
    }

    /// The term under way: its epoch and its deadline.
    #[must_use]
    pub const fn term(&self) -> Option<(Epoch, Monotonic)> {
        match &self.state {
            State::Leading(lead) => Some((lead.epoch, lead.deadline)),
            _ => None,
        }
    }

    /// Why the term under way would end if its deadline passed now; absent while all is well.
    #[must_use]
    pub const fn failing(&self) -> Option<&LossReason> {
        match &self.state {
            State::Leading(lead) => lead.failing.as_ref(),
            _ => None,
        }
    }

    /// The LOCK row as last read or written: who leads, as far as this candidate knows.
    #[must_use]
    pub fn lock(&self) -> Option<&Lock> {
        self.seen.as_ref().and_then(|seen| seen.rows.lock.as_ref())
    }

    /// Whether the machine ended.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// Who stands.
    #[must_use]
    pub const fn me(&self) -> &Me {
        &self.me
    }

    /// Ends a term whose deadline has passed, before anything else is looked at (E-1, E-10).
    fn expire(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if planted::is("expired_term_revives") && self.call.is_some() {
            return;
        }
        if let State::Leading(lead) = &self.state
            && now.monotonic >= lead.deadline
        {
            let reason = lead.failing.clone().unwrap_or(LossReason::Expired);
            self.lose(reason, effects);
        }
    }

    fn lose(&mut self, reason: LossReason, effects: &mut Vec<Effect>) {
        self.state = State::Following;
        self.standing = Standing::Watching;
        effects.push(Effect::Tell(News::Lost(reason)));
    }

    const fn stands(&self) -> bool {
        matches!(self.standing, Standing::Campaigning | Standing::Once)
    }

    fn stand(&mut self, standing: Standing) {
        if self.stop_by.is_none() {
            self.standing = standing;
            self.looked = false;
        }
    }

    // === answers ===

    fn answered(&mut self, now: Now, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        if let Answer::Foreign(what) = answer {
            return self.met_foreign_row(now, what, effects);
        }
        match asked {
            Asked::Read => self.read_answered(now, answer, effects),
            Asked::Claim => self.claim_answered(now, answer, effects),
            Asked::Renewal => self.renewal_answered(now, answer, effects),
            Asked::Release => self.release_answered(now, answer, effects),
        }
    }

    /// A row that is not a lock is left alone, and nothing that was seen before counts any more.
    fn met_foreign_row(&mut self, now: Now, what: Arc<str>, effects: &mut Vec<Effect>) {
        self.seen = None;
        self.next_read = self.after_poll(now);
        effects.push(Effect::Tell(News::Trouble(Trouble::ForeignRow(what))));
        match self.state {
            State::Leading(_) => self.lose(LossReason::Superseded { by: None, epoch: None }, effects),
            State::Releasing(_) => self.left(now, false, effects),
            State::Claiming(_) | State::Following => {
                self.state = State::Following;
                self.decline(effects);
            }
            State::Stopped => {}
        }
    }

    fn read_answered(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let soon = self.after_poll(now);
        self.next_read = soon;
        if let Answer::Rows(rows) = answer {
            self.looked = true;
            self.remember(now, rows, effects);
            // E-4: the row with my nonce means that I won.
            if let State::Claiming(claim) = &self.state {
                let claim = claim.clone();
                self.state = State::Following;
                if self.lock().is_some_and(|lock| lock.rvn == Some(claim.acquire.rvn)) {
                    self.won(now, &claim, effects);
                } else {
                    // It may still land, or the next be lost as well: not at the pace of a store's errors.
                    self.next_claim = soon;
                }
            }
            return;
        }
        if planted::is("follower_gives_up") {
            (self.next_read, self.next_claim) = (Monotonic::NEVER, Monotonic::NEVER);
        }
        match &mut self.state {
            // Asked again while the claim, had it landed, would be of use.
            State::Claiming(claim) if now.monotonic < claim.sent + self.timing.validity => {
                claim.read_back_at = Some(soon);
            }
            _ => {
                self.state = State::Following;
                self.decline(effects);
            }
        }
    }

    fn claim_answered(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let State::Claiming(claim) = &self.state else { return };
        let mut claim = claim.clone();
        self.state = State::Following;
        match answer {
            Answer::Applied { .. } => self.won(now, &claim, effects),
            Answer::Unknown if planted::is("unknown_is_success") => self.won(now, &claim, effects),
            Answer::Unknown => {
                claim.read_back_at = Some(now.monotonic);
                self.state = State::Claiming(claim);
            }
            Answer::RefusedByLock(lock) => {
                self.looked = true;
                self.refused(now, lock, effects);
            }
            Answer::RefusedByFence(mark) => {
                self.fence = mark;
                self.highest = self.highest.max(mark.map_or(Epoch(0), |mark| mark.epoch));
                if claim.acquire.over.is_none() {
                    // Somebody led meanwhile, and the row vanished again: that absence is news (E-7).
                    self.seen = Some(Seen {
                        rows: Rows { lock: None, fence: mark },
                        since: now.monotonic,
                        confirmed: false,
                    });
                }
                self.fence_lessons += 1;
                if self.fence_lessons > FENCE_LESSONS_MAX {
                    self.fence_lessons = 0;
                    self.next_claim = self.after_poll(now);
                }
            }
            Answer::Failed | Answer::Rows(_) | Answer::Foreign(_) => {
                self.next_claim = self.after_poll(now);
                self.next_read = self.next_claim;
                self.decline(effects);
            }
        }
    }

    fn renewal_answered(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let soon = self.after_poll(now);
        let taken_for_success = matches!(answer, Answer::Applied { .. })
            || (answer == Answer::Unknown && planted::is("unknown_is_success"));
        match &mut self.state {
            State::Leading(lead) if taken_for_success => {
                let Some(pending) = lead.pending.take() else { return };
                let sent =
                    if planted::is("deadline_from_receipt") { now.monotonic } else { pending.first_sent };
                lead.rvn = pending.rvn;
                lead.deadline = sent + self.timing.validity;
                lead.next_renewal = sent + self.timing.renew;
                lead.failing = None;
                let deadline = lead.deadline;
                self.wrote(now, pending.rvn, pending.ttl);
                effects.push(Effect::Tell(News::Renewed { deadline }));
                if let Answer::Applied { resign: Some(request) } = answer {
                    self.heard(request, effects);
                }
                // A renewal that took very long may be over already.
                self.expire(now, effects);
            }
            State::Leading(lead) => match answer {
                Answer::RefusedByLock(lock) => {
                    let by = lock.as_ref().map(|lock| lock.owner.clone());
                    let epoch = lock.as_ref().and_then(|lock| lock.epoch);
                    self.refused(now, lock, effects);
                    self.lose(LossReason::Superseded { by, epoch }, effects);
                }
                _ => {
                    lead.failing = Some(LossReason::StoreDown);
                    lead.next_renewal = soon;
                    if self.timing.on_renewal_error == OnRenewalError::StepDown {
                        self.lose(LossReason::StoreDown, effects);
                    }
                }
            },
            // It was under way when the term was given up: the release follows now, whatever came of it.
            State::Releasing(leave) => {
                if taken_for_success && let Some(rvn) = leave.pending.take() {
                    leave.rvn = rvn;
                }
            }
            State::Following | State::Claiming(_) | State::Stopped => {
                if let Answer::RefusedByLock(lock) = answer {
                    self.refused(now, lock, effects);
                }
            }
        }
    }

    fn release_answered(&mut self, now: Now, answer: Answer, effects: &mut Vec<Effect>) {
        let soon = self.after_poll(now);
        let State::Releasing(leave) = &mut self.state else { return };
        match answer {
            Answer::Applied { .. } => {
                let (fresh, to) = (leave.fresh, leave.to.take());
                if let Some(fresh) = fresh {
                    self.wrote(now, fresh, 0);
                }
                if let Some(lock) = self.seen.as_mut().and_then(|seen| seen.rows.lock.as_mut()) {
                    lock.reserved_for = to;
                }
                self.left(now, true, effects);
            }
            Answer::RefusedByLock(lock) => {
                // Released by an earlier try whose answer was lost, or somebody else's by now.
                let ours = leave.fresh.is_some() && lock.as_ref().and_then(|lock| lock.rvn) == leave.fresh;
                self.refused(now, lock, effects);
                self.left(now, ours, effects);
            }
            _ => leave.next_try = soon,
        }
    }

    /// The LOCK row was not as a write needed it, but like this.
    fn refused(&mut self, now: Now, lock: Option<Lock>, effects: &mut Vec<Effect>) {
        if lock.is_some() {
            self.next_read = self.after_poll(now);
            self.remember(now, Rows { lock, fence: None }, effects);
        } else {
            // That says nothing about the FENCE row: a read shows both.
            self.seen = None;
            self.next_read = now.monotonic;
        }
    }

    /// Keeps what was read, and since when it is so (E-2).
    fn remember(&mut self, now: Now, rows: Rows, effects: &mut Vec<Effect>) {
        match &rows.lock {
            // The FENCE row says the same, unless somebody meddled: then the claim will be told.
            Some(Lock { epoch: Some(epoch), lease, .. }) => {
                self.fence = Some(FenceMark { epoch: *epoch, lease: *lease, skew: None });
            }
            Some(_) => {}
            None => self.fence = rows.fence,
        }
        self.highest = self.highest.max(self.fence.map_or(Epoch(0), |mark| mark.epoch));
        let before = self.seen.as_ref();
        let unchanged = before.is_some_and(|seen| match (&seen.rows.lock, &rows.lock) {
            (Some(then), Some(now)) => {
                then.is_at(now) || (planted::is("watch_ignores_version") && then.owner == now.owner)
            }
            (None, None) => seen.rows.fence == rows.fence,
            _ => false,
        });
        if !unchanged {
            let stranger = |rows: &Rows| rows.lock.as_ref().is_some_and(|lock| self.has_my_name_only(lock));
            if stranger(&rows) && before.is_some_and(|seen| stranger(&seen.rows)) {
                effects.push(Effect::Tell(News::Trouble(Trouble::SameOwner)));
            }
        }
        let go = rows.lock.as_ref().is_some_and(|lock| lock.lease.is_none() && !lock.is_released());
        if go && !self.timing.go_peers && (self.stands() || !unchanged) {
            effects.push(Effect::Tell(News::Trouble(Trouble::GoRow)));
        }
        // Two reads cannot tell an absent row from one whose claim is being committed, row by row, in
        // between. So an absence counts from the second look that shows it.
        let since = match before {
            Some(seen) if unchanged && (seen.confirmed || rows.lock.is_some()) => seen.since,
            _ if planted::is("stale_from_send") => self.asked_at,
            _ => now.monotonic,
        };
        self.seen = Some(Seen { rows, since, confirmed: unchanged });
    }

    /// My last write is what the row says now.
    fn wrote(&mut self, now: Now, rvn: Nonce, ttl: i64) {
        if let Some(seen) = &mut self.seen
            && let Some(lock) = &mut seen.rows.lock
        {
            (lock.rvn, lock.ttl) = (Some(rvn), ttl);
            seen.since = now.monotonic;
        }
    }

    /// E-8: live, with my owner id, and yet not written by me.
    fn has_my_name_only(&self, lock: &Lock) -> bool {
        lock.owner == self.me.owner && !lock.is_released() && !self.is_mine(lock)
    }

    fn is_mine(&self, lock: &Lock) -> bool {
        lock.owner == self.me.owner
            && (lock.rvn.is_some_and(|rvn| self.mine.contains(&rvn)) || planted::is("own_row_by_owner_id"))
    }

    fn heard(&mut self, request: ResignRequest, effects: &mut Vec<Effect>) {
        if self.resign_heard != Some(request.nonce) || planted::is("resign_request_repeats") {
            self.resign_heard = Some(request.nonce);
            effects.push(Effect::Tell(News::ResignAsked(request)));
        }
    }

    fn decline(&mut self, effects: &mut Vec<Effect>) {
        if self.standing == Standing::Once {
            self.standing = Standing::Watching;
            effects.push(Effect::Tell(News::Declined));
        }
    }

    /// A claim is known to have landed.
    fn won(&mut self, now: Now, claim: &Claim, effects: &mut Vec<Effect>) {
        let Acquire { epoch, rvn, .. } = *claim.acquire;
        let rows = Rows { lock: Some(claim.acquire.lock()), fence: Some(claim.acquire.fence()) };
        self.fence = rows.fence;
        self.fence_lessons = 0;
        self.won = Some(epoch);
        self.highest = self.highest.max(epoch);
        self.seen = Some(Seen { rows, since: now.monotonic, confirmed: false });
        if self.stop_by.is_some() {
            // E-9
            return self.leave(now, epoch, rvn, None, None);
        }
        let sent = if planted::is("deadline_from_receipt") { now.monotonic } else { claim.sent };
        let deadline = sent + self.timing.validity;
        if now.monotonic >= deadline {
            // Too late to be of use. The row is mine, and may be claimed again under a new epoch.
            return;
        }
        self.state = State::Leading(Lead {
            epoch,
            rvn,
            deadline,
            next_renewal: sent + self.timing.renew,
            pending: None,
            failing: None,
        });
        effects.push(Effect::Tell(News::Elected { epoch, deadline }));
    }

    // === leaving ===

    fn resign(&mut self, now: Now, to: Option<Arc<str>>, effects: &mut Vec<Effect>) {
        if let State::Leading(lead) = &self.state {
            let (epoch, rvn, pending) = (lead.epoch, lead.rvn, lead.pending.map(|pending| pending.rvn));
            self.standing = Standing::Watching;
            effects.push(Effect::Tell(News::Lost(LossReason::Resigned)));
            self.leave(now, epoch, rvn, pending, to);
        }
    }

    fn leave(&mut self, now: Now, epoch: Epoch, rvn: Nonce, pending: Option<Nonce>, to: Option<Arc<str>>) {
        self.state = State::Releasing(Leave {
            epoch,
            rvn,
            pending,
            fresh: None,
            to,
            next_try: now.monotonic,
            until: now.monotonic + self.timing.lease,
        });
    }

    fn left(&mut self, now: Now, confirmed: bool, effects: &mut Vec<Effect>) {
        self.state = State::Following;
        // Somebody else should have it: time enough for every follower to have read the row.
        self.next_claim = now.monotonic + self.timing.lease / 5;
        effects.push(Effect::Tell(News::Released { confirmed }));
    }

    fn stop(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.stop_by.is_some() {
            return;
        }
        if planted::is("stop_does_not_join") && matches!(self.state, State::Claiming(_)) {
            return effects.push(Effect::Tell(News::Stopped));
        }
        self.resign(now, None, effects);
        self.standing = Standing::Resting;
        self.stop_by = Some(now.monotonic + self.timing.lease);
    }

    // === what is due ===

    /// Starts what is due, if no call is in flight.
    fn proceed(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if let State::Releasing(leave) = &self.state
            && now.monotonic >= leave.until
        {
            // A call that is still in flight is answered at its own time limit: none is sent beside it.
            self.left(now, false, effects);
        }
        if let Some(by) = self.stop_by
            && !self.is_stopped()
        {
            // E-9: what is under way is waited for, within reason; what is held runs out by itself.
            let under_way = matches!(self.state, State::Claiming(_) | State::Releasing(_));
            if !under_way || now.monotonic >= by {
                self.state = State::Stopped;
                self.call = None;
                effects.push(Effect::Tell(News::Stopped));
            }
        }
        if self.call.is_some() {
            return;
        }
        match &self.state {
            State::Following => self.follow(now, effects),
            State::Claiming(claim) => {
                if claim.read_back_at.is_some_and(|at| now.monotonic >= at) {
                    self.read(now, effects);
                }
            }
            State::Leading(_) => self.renew(now, effects),
            State::Releasing(_) => self.release(now, effects),
            State::Stopped => {}
        }
    }

    fn follow(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.claimable_at = Monotonic::NEVER;
        if self.stands() {
            self.claimable_at = self.claimable_at(now).max(self.next_claim);
            if !now.healthy && !planted::is("unhealthy_claims") {
                // E-11: asked again soon. Who does not get on must not take the shard back from itself.
                self.claimable_at = self.claimable_at.max(now.monotonic + self.timing.renew / 8);
            }
            if now.monotonic >= self.claimable_at {
                return self.claim(now, effects);
            }
            if self.looked {
                self.decline(effects);
            }
        }
        let curious = self.standing == Standing::Once && !self.looked;
        if self.standing != Standing::Resting && (curious || now.monotonic >= self.next_read) {
            self.read(now, effects);
        }
    }

    /// From when on the shard may be claimed, as things are: the one place that judges another's lease.
    fn claimable_at(&self, now: Now) -> Monotonic {
        let at_once = Monotonic::default();
        let Some(seen) = &self.seen else { return Monotonic::NEVER };
        let stale = |lease: Option<Duration>| {
            let lease = if planted::is("stale_by_own_lease") { None } else { lease };
            seen.since + self.timing.stale_after(lease.unwrap_or(self.timing.lease))
        };
        let Some(lock) = &seen.rows.lock else {
            return match seen.rows.fence {
                // Swept away when its `ttl` was past, or deleted by a Go process to release it: to be
                // believed within the bound, if the last leader took the bound off its own time.
                Some(mark) if self.timing.skew.is_some() && mark.skew >= self.timing.skew => at_once,
                Some(_) if planted::is("absent_is_free") => at_once,
                Some(mark) if self.won == Some(mark.epoch) => at_once, // E-13
                Some(_) if self.won.is_some() && planted::is("old_win_counts") => at_once,
                Some(mark) if seen.confirmed => stale(mark.lease), // E-7
                Some(_) => Monotonic::NEVER,
                None => at_once,
            };
        };
        if lock.is_released() {
            let reserved = lock.reserved_for.as_ref().is_some_and(|name| *name != self.me.name);
            return if reserved { stale(lock.lease) } else { at_once };
        }
        if self.is_mine(lock) {
            return at_once;
        }
        if planted::is("bare_wall_clock") && lock.ttl < now.wall.as_seconds() {
            return at_once;
        }
        // E-3: when every clock within the bound shows that the second named by `ttl` is over.
        let expired = self.timing.skew.map(|bound| {
            let over = WallTime::from_millis(lock.ttl.saturating_mul(1000)) + TTL_GRAIN + bound;
            let left = over.as_millis().saturating_sub(now.wall.as_millis());
            now.monotonic + Duration::from_millis(u64::try_from(left).unwrap_or(0))
        });
        match (lock.lease, expired) {
            (Some(_), Some(expired)) => stale(lock.lease).min(expired),
            (Some(_), None) => stale(lock.lease),
            (None, Some(expired)) if planted::is("go_row_by_ttl_alone") => expired,
            (None, Some(expired)) if self.timing.go_peers => stale(None).max(expired),
            (None, _) => Monotonic::NEVER,
        }
    }

    fn claim(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let over = self.lock().map(Lock::version);
        let mut fence_was = self.fence.map(|mark| mark.epoch);
        let mut epoch = self.highest.max(fence_was.unwrap_or(Epoch(0))).next(); // E-5
        if planted::is("fence_in_ttl_row") {
            fence_was = None;
            epoch = self.lock().and_then(|lock| lock.epoch).unwrap_or(Epoch(0)).next();
        }
        if planted::is("own_claim_keeps_epoch") && self.lock().is_some_and(|lock| self.is_mine(lock)) {
            epoch = self.highest;
        }
        let card = Card { name: self.me.name.clone(), since: now.wall, about: self.me.about.clone() };
        let acquire = Box::new(Acquire {
            over,
            fence_was,
            rvn: now.nonce,
            epoch,
            owner: self.me.owner.clone(),
            ttl: ttl_from(now.wall, self.timing.lease),
            lease: self.timing.lease,
            skew: self.timing.skew,
            card: Arc::new(card),
        });
        self.state =
            State::Claiming(Claim { acquire: acquire.clone(), sent: now.monotonic, read_back_at: None });
        let by = now.monotonic + self.timing.lease / 3;
        self.write(now, by, Asked::Claim, Attempt::Acquire(acquire), effects);
    }

    fn renew(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Leading(lead) = &mut self.state else { return };
        if now.monotonic < lead.next_renewal {
            return;
        }
        if !now.healthy && !planted::is("unhealthy_renews") {
            // E-11: asked again soon, and over at the deadline.
            lead.failing = Some(LossReason::Unhealthy);
            lead.next_renewal = now.monotonic + self.timing.renew / 8;
            return;
        }
        let ttl = ttl_from(now.wall, self.timing.lease);
        let pending = lead.pending.get_or_insert(Pending { rvn: now.nonce, first_sent: now.monotonic, ttl });
        pending.ttl = ttl; // E-12
        if planted::is("retry_stretches_deadline") {
            pending.first_sent = now.monotonic;
        }
        if planted::is("renewal_reuses_ttl")
            && let Some(lock) = self.seen.as_ref().and_then(|seen| seen.rows.lock.as_ref())
        {
            pending.ttl = lock.ttl;
        }
        let attempt = Attempt::Renew(Renew {
            owner: self.me.owner.clone(),
            epoch: lead.epoch,
            current: lead.rvn,
            fresh: pending.rvn,
            ttl: pending.ttl,
        });
        // A slow answer is waited for until the deadline, unless one may ask again.
        let by = match self.timing.on_renewal_error {
            OnRenewalError::StepDown => lead.deadline,
            OnRenewalError::RetryUntilDeadline => lead.deadline.min(now.monotonic + self.timing.renew / 2),
        };
        self.write(now, by, Asked::Renewal, attempt, effects);
    }

    fn release(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let State::Releasing(leave) = &mut self.state else { return };
        if now.monotonic < leave.next_try {
            return;
        }
        let fresh = *leave.fresh.get_or_insert(now.nonce);
        let release = Release {
            owner: self.me.owner.clone(),
            epoch: leave.epoch,
            current: leave.rvn,
            pending: leave.pending,
            fresh: if planted::is("release_keeps_rvn") { leave.rvn } else { fresh }, // E-6
            reserved_for: leave.to.clone(),
        };
        let by = leave.until.min(now.monotonic + self.timing.lease / 6);
        self.write(now, by, Asked::Release, Attempt::Release(release), effects);
    }

    fn read(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.ask(now, now.monotonic + self.timing.lease / 5, Asked::Read, Call::Read, effects);
    }

    fn write(&mut self, now: Now, by: Monotonic, asked: Asked, attempt: Attempt, effects: &mut Vec<Effect>) {
        let nonce = attempt.nonce();
        if !self.mine.contains(&nonce) {
            if self.mine.len() == NONCES_MAX {
                self.mine.remove(0);
            }
            self.mine.push(nonce);
        }
        self.ask(now, by, asked, Call::Write(attempt), effects);
    }

    fn ask(&mut self, now: Now, by: Monotonic, asked: Asked, call: Call, effects: &mut Vec<Effect>) {
        self.calls += 1;
        self.asked_at = now.monotonic;
        let id = CallId(self.calls);
        self.call = Some((id, asked));
        effects.push(Effect::Call { id, by, call });
    }

    /// The next read: up to a quarter sooner than the poll period, so that followers do not march in step.
    fn after_poll(&self, now: Now) -> Monotonic {
        // 32 bits of the nonce as a fraction: they are as random as all of them.
        let draw = now.nonce.0 & u128::from(u32::MAX);
        let sooner_nanos = ((self.timing.poll / 4).as_nanos() * draw) >> 32;
        let sooner = Duration::from_nanos(u64::try_from(sooner_nanos).unwrap_or(0));
        now.monotonic + (self.timing.poll - sooner)
    }
}

/// As the Go library computes it: whole seconds, rounded down.
fn ttl_from(wall: WallTime, lease: Duration) -> i64 {
    (wall + lease).as_seconds()
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod tests;
