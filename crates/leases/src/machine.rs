//! Decides what one worker does about its leases. Nothing here waits, reads a clock or draws a number.
//!
//! ```text
//!   Starting ──► Running ──► Stopping ──► Stopped        the worker
//!
//!   seen ──► claimable ──► taking ──► held ──► given     one lease
//!              ▲ expired, given back,   └────► lost
//!                promised to me
//! ```
//!
//! Whoever may take a lease takes it itself: every worker works out by the same rule who should have a lease
//! that nobody has, and takes its own part. The elected planner only moves what somebody holds, and sees to it
//! that there is a lease for every shard. So nothing stands still while no planner is elected.
//!
//! The rules, each with a test here and a planted bug:
//!
//! - LE-1 A lease is renewed and checkpointed only under the counter that I know, and only while it is mine or
//!   mine to give.
//! - LE-2 My own lease is over at the time its counter was first *sent* + lease − margin, whatever happened
//!   since. What is over stays over.
//! - LE-3 Another's lease is over once its counter stood still for a lease on my own monotonic clock, counted
//!   from when I *received* the first read that showed it. The take is conditional on that counter.
//! - LE-4 An unknown outcome is resolved by reading back, never by assuming.
//! - LE-5 A receiver reads only once no giver is named.
//! - LE-6 A giver that is not drained within the handoff timeout stops renewing, so that its lease runs out. Its
//!   checkpoints are stored from then on, and lengthen nothing.
//! - LE-7 A lease that was mine before this process began is not mine: it is watched like any other's.
//! - LE-8 A lease whose parents are not at their end is not taken (LI-1), nor one whose parent's row has just
//!   vanished.
//! - LE-9 Nobody takes more than its cap, and what is above it is drained and given back.
//! - LE-10 A row that vanished is put back by its holder; by anybody else only after a lease, because until
//!   then its holder may live.
//! - LE-11 A lease whose consumer is busy and does not get on is not renewed, nor lengthened by a checkpoint.
//! - LE-12 Beside workers of another kind nothing is moved.
//! - LE-13 A worker says that it leaves before it gives anything back, and gives back only what is drained.
//!   From when on it is drained, nothing of it is delivered, whether or not it was given yet.
//! - LE-14 A checkpoint never goes back.
//! - LE-15 Two workers with one name: the second does not start.
//! - LE-16 A worker whose leases last for another time does not start.

mod agenda;
mod fleet;
mod knowing;
mod leading;
mod message;
mod presence;
mod tending;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_clock::Monotonic;
use tenure_planted as planted;

use self::agenda::Agenda;
use self::fleet::Fleet;
pub use self::message::{
    Alarm, Answer, Call, CallId, Effect, Event, Fatal, Loss, Me, News, Now, Outcome, Planning, RequestId,
    Scan,
};
use crate::attempt::{Attempt, Note, Presence};
use crate::holding::Ending;
use crate::lineage::{StreamShards, is_ready, parents_of};
use crate::settings::Timing;
use crate::{Checkpoint, Lease, LeaseKey, WorkerId};

/// Requests that may wait per lease.
const QUEUE_MAX: usize = 16;
/// A call that failed is made again after so much of a lease: doubled each time, up to [`PAUSE_LEASES`].
const PAUSES_PER_LEASE: u32 = 40;
/// The longest pause, in sixteenths of a lease.
const PAUSE_DOUBLINGS_MAX: u32 = 3;

/// A large fleet always has news, and a large table is not read or thought through for each: because of news, a worker
/// looks at most at so many rows in a lease. That is 10,000 leases five times, and 1,000 as often as there are news.
const NEWS_ROWS_PER_LEASE: u32 = 50_000;
/// A finished lease that vanished is remembered for so many leases, or for as long as its shard is listed: children
/// that have not begun come back to it.
const GONE_LEASES: u32 = 30;
/// The nudge row is read again if the answer does not come within so many of its periods.
const NUDGE_PATIENCE: u32 = 4;

/// A parent whose row is lost is waited for until it is back, but not for ever: its shard may be gone as well.
const PARENT_PATIENCE_LEASES: u32 = 50;
/// Whoever has just come cannot know whether a parent's row has just vanished, and waits for so long.
const STRANGER_PATIENCE_LEASES: u32 = 6;

/// One worker's keeper.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct Machine {
    me: Me,
    cap: usize,
    timing: Timing,
    phase: Phase,
    /// When the first scan was received.
    began: Option<Monotonic>,
    known: BTreeMap<LeaseKey, Known>,
    /// When each lease is to be looked at next, at the latest: of what others hold it may be too early, because
    /// their renewals put it off all the time.
    due: Agenda,
    /// When each lease that I hold is over.
    deadlines: BTreeSet<(Monotonic, LeaseKey)>,
    /// What I hold, and what I am about to.
    mine: BTreeSet<LeaseKey>,
    /// Rows that vanished.
    gone: BTreeMap<LeaseKey, Gone>,
    /// What I should take, as it was last worked out.
    claims: Option<Claims>,
    /// Something ended: what waited for it is to be looked at.
    relook: bool,
    bad: BTreeMap<LeaseKey, Arc<str>>,
    fleet: Fleet,
    planning: Planning,
    unplanned_since: Monotonic,
    calls: u64,
    asked: BTreeMap<CallId, Asked>,
    scan: Pace,
    /// When the last scan was received.
    scanned: Monotonic,
    nudge: Pace,
    list: Pace,
    /// What the nudge row said when leases were last read.
    nudge_seen: u64,
    /// When to tell everybody to look, if that is wanted.
    nudge_at: Option<Monotonic>,
    nudged: Monotonic,
    nudging: bool,
    own: OwnRow,
    shards: Option<Vec<StreamShards>>,
    /// The leases that these want.
    shard_keys: BTreeSet<LeaseKey>,
    /// When these were asked for.
    listed: Monotonic,
    /// Rows that are being made or deleted.
    chores: BTreeSet<LeaseKey>,
    /// There were no leases when this worker came, and nobody held any.
    fresh_table: bool,
    /// Something is to be looked at with a planner's eyes.
    review: bool,
    alarms: BTreeSet<Alarm>,
    deficit: usize,
    desired_workers: usize,
    fatal: Option<Fatal>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
enum Phase {
    /// Watches the row that another process of this name left, if there is one.
    Starting {
        rival: Option<Rival>,
    },
    Running,
    Stopping {
        by: Monotonic,
        noted: bool,
        leaving: bool,
    },
    Stopped,
}

/// Another process of this name, dead or alive.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Rival {
    incarnation: Arc<str>,
    counter: u64,
    /// The counters of what it holds.
    leases: BTreeMap<LeaseKey, u64>,
    since: Monotonic,
}

/// A call that is made again and again.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
struct Pace {
    next: Monotonic,
    /// When the one under way was sent.
    sent: Option<Monotonic>,
}

/// My row, as I last wrote it.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
struct OwnRow {
    counter: u64,
    written: Option<Monotonic>,
    cap: u64,
    holding: bool,
    writing: bool,
    /// What is being written is news for the others.
    is_news: bool,
    retry_at: Monotonic,
}

#[derive(Debug, Clone, PartialEq, Hash)]
enum Asked {
    Scan,
    Nudge,
    List,
    Row(LeaseKey),
    Write(LeaseKey),
    Create(LeaseKey),
    Delete(LeaseKey),
    Settings,
    Presence { first: bool },
    Leave,
    NudgeWrite,
}

/// What a plan says about me. To make one takes a look at every lease.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Claims {
    /// Good until then, or until leases are read again.
    until: Monotonic,
    /// What nobody has and I should take.
    mine: BTreeSet<LeaseKey>,
    /// The most that a worker should hold, by count.
    share: usize,
}

/// A row that was there and is not any more.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Gone {
    lease: Arc<Lease>,
    since: Monotonic,
}

/// A lease, and what is known about it.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Known {
    lease: Arc<Lease>,
    /// When the row was first seen.
    since: Monotonic,
    /// When this counter was first received.
    seen: Monotonic,
    /// When the row was last learned of.
    updated: Monotonic,
    /// When the last read that showed it was sent.
    shown: Monotonic,
    /// Its counter was seen to move.
    moves: bool,
    /// It is not to be moved before then.
    pinned_until: Monotonic,
    /// It was plainly mine when this process first saw it, and nothing happened to it since.
    inherited: bool,
    /// Since when I could take it.
    claimable: Option<Monotonic>,
    /// Not to be looked at before then, as far as taking it is concerned.
    look_at: Monotonic,
    /// I had it, and it did not go well: others first, until then.
    shunned_until: Monotonic,
    failures: u32,
    /// The counter that I last sent for it, and when first. It outlasts a hold: the write may land after its loss.
    counted: Option<(u64, Monotonic)>,
    // Few of all that is known are held or written: the rest stays small.
    doing: Option<Box<Doing>>,
    hold: Option<Box<Hold>>,
    due: Monotonic,
    deadline: Monotonic,
}

/// A lease that I hold.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Hold {
    deadline: Monotonic,
    next_renewal: Monotonic,
    /// When the next counter was first sent.
    first_sent: Option<Monotonic>,
    retry_at: Monotonic,
    asked: Option<Ending>,
    handoff: Option<Handoff>,
    queue: VecDeque<Ask>,
    stuck: bool,
    /// Its consumer has drained it: nothing more is delivered.
    drained: bool,
    /// The row vanished: put it back.
    restore: bool,
    kbps: Option<Measured>,
}

/// What was measured, in KiB a second.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured(f64);

impl Hash for Measured {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Handoff {
    to: WorkerId,
    since: Monotonic,
}

#[derive(Debug, Clone, PartialEq, Hash)]
enum Ask {
    Checkpoint { request: RequestId, at: Checkpoint, marks: Option<Bytes> },
    Give { request: Option<RequestId> },
}

/// A write under way.
#[derive(Debug, Clone, PartialEq, Hash)]
struct Doing {
    /// Which call's answer counts.
    call: CallId,
    what: What,
    /// The counter before, and after.
    from: u64,
    to: u64,
    sent: Monotonic,
    /// The answer was lost: the row is read instead.
    reading: bool,
}

#[derive(Debug, Clone, PartialEq, Hash)]
enum What {
    Renew,
    Checkpoint { at: Checkpoint, marks: Option<Bytes> },
    Restore,
    Take,
    Accept,
    Evict,
    Finish { to: WorkerId },
    Begin { from: WorkerId, to: WorkerId },
}

/// What a worker knows, for whoever asks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct View {
    /// All leases, as they were last seen.
    pub leases: Vec<Arc<Lease>>,
    /// What this worker holds, and until when.
    pub held: BTreeMap<LeaseKey, Monotonic>,
    /// Who is alive, and how many leases each may hold; `None` if it does not say so.
    pub fleet: BTreeMap<WorkerId, Option<u64>>,
    /// Whether this worker plans.
    pub plans: bool,
    /// How many leases nobody may hold; known to the planner alone.
    pub deficit: usize,
    /// How many workers would do; known to the planner alone.
    pub desired_workers: usize,
    /// What a person should know.
    pub alarms: Vec<Alarm>,
}

impl Machine {
    /// A worker that has not begun.
    #[must_use]
    pub fn new(me: Me, cap: usize, timing: Timing) -> Self {
        Self {
            me,
            cap,
            timing,
            phase: Phase::Starting { rival: None },
            began: None,
            known: BTreeMap::new(),
            due: Agenda::default(),
            deadlines: BTreeSet::new(),
            mine: BTreeSet::new(),
            gone: BTreeMap::new(),
            claims: None,
            relook: false,
            bad: BTreeMap::new(),
            fleet: Fleet::default(),
            planning: Planning::Nobody,
            unplanned_since: Monotonic::default(),
            calls: 0,
            asked: BTreeMap::new(),
            scan: Pace::default(),
            scanned: Monotonic::default(),
            nudge: Pace::default(),
            list: Pace::default(),
            nudge_seen: 0,
            nudge_at: None,
            nudged: Monotonic::default(),
            nudging: false,
            own: OwnRow::default(),
            shards: None,
            shard_keys: BTreeSet::new(),
            listed: Monotonic::default(),
            chores: BTreeSet::new(),
            fresh_table: false,
            review: false,
            alarms: BTreeSet::new(),
            deficit: 0,
            desired_workers: 0,
            fatal: None,
        }
    }

    /// Takes in what happened and says what to do. Invariant: at most one write of a lease is in flight.
    #[must_use]
    pub fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.expire(now, &mut effects);
        match event {
            Event::Wake => {}
            Event::Answered(id, answer) => {
                if let Some(asked) = self.asked.remove(&id) {
                    self.answered(now, id, asked, answer, &mut effects);
                }
            }
            Event::Cap(cap) => {
                if cap > self.cap {
                    self.look_again(now);
                }
                self.cap = cap;
            }
            Event::Planner(planning) => self.planner_is(now, planning),
            Event::Checkpoint { key, request, at, marks } => {
                self.ask(now, &key, Ask::Checkpoint { request, at, marks }, &mut effects);
            }
            Event::Give { key, request } => self.ask(now, &key, Ask::Give { request }, &mut effects),
            Event::Stuck { key, stuck } => self.stuck(now, &key, stuck, &mut effects),
            Event::Measured { key, kbps } => {
                if let Some(hold) = self.hold_mut(&key) {
                    hold.kbps = Some(Measured(kbps));
                }
            }
            Event::Stop => self.stop(now, &mut effects),
        }
        self.proceed(now, &mut effects);
        effects
    }

    /// When [`Event::Wake`] is wanted at the latest.
    #[must_use]
    pub fn wake_at(&self) -> Monotonic {
        let deadline = self.deadlines.first().map_or(Monotonic::NEVER, |(at, _)| *at);
        let idle = |pace: &Pace| if pace.sent.is_none() { pace.next } else { Monotonic::NEVER };
        let nudge_write = match self.nudge_at {
            Some(at) if !self.nudging => at,
            _ => Monotonic::NEVER,
        };
        let common = self.due.first().min(deadline).min(idle(&self.scan)).min(nudge_write);
        match &self.phase {
            Phase::Stopped => Monotonic::NEVER,
            Phase::Starting { .. } => idle(&self.scan),
            Phase::Running => {
                let list = if self.acts_at() == Monotonic::NEVER {
                    Monotonic::NEVER
                } else {
                    idle(&self.list).max(self.acts_at())
                };
                common.min(idle(&self.nudge)).min(self.presence_at()).min(list)
            }
            Phase::Stopping { by, .. } => common.min(*by).min(self.presence_at()),
        }
    }

    /// Whether this worker may deliver the records of a lease at `now`, whatever happened since the last step.
    #[must_use]
    pub fn may_deliver(&self, key: &LeaseKey, now: Monotonic) -> bool {
        self.hold(key).is_some_and(|hold| now < hold.deadline && !hold.drained)
    }

    /// The leases whose records may be delivered, and until when.
    pub fn held(&self) -> impl Iterator<Item = (&Lease, Monotonic)> {
        self.mine.iter().filter_map(|key| {
            let known = self.known.get(key)?;
            let hold = known.hold.as_ref().filter(|hold| !hold.drained)?;
            Some((&*known.lease, hold.deadline))
        })
    }

    /// A lease, as it was last seen.
    #[must_use]
    pub fn lease(&self, key: &LeaseKey) -> Option<&Lease> {
        self.known.get(key).map(|known| &*known.lease)
    }

    /// Who keeps leases.
    #[must_use]
    pub const fn me(&self) -> &Me {
        &self.me
    }

    /// Whether the worker takes leases.
    #[must_use]
    pub const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running)
    }

    /// Whether the machine ended.
    #[must_use]
    pub const fn is_stopped(&self) -> bool {
        matches!(self.phase, Phase::Stopped)
    }

    /// What this worker knows.
    #[must_use]
    pub fn view(&self, now: Monotonic) -> View {
        let fleet = self.alive(now).into_iter();
        View {
            leases: self.known.values().map(|known| known.lease.clone()).collect(),
            held: self.held().map(|(lease, deadline)| (lease.key.clone(), deadline)).collect(),
            fleet: fleet.map(|id| (id.clone(), self.fleet.row(&id).map(|row| row.cap))).collect(),
            plans: self.planning == Planning::Me,
            deficit: self.deficit,
            desired_workers: self.desired_workers,
            alarms: self.alarms.iter().cloned().collect(),
        }
    }

    /// Numbers calls from the first again, if none is under way: to a model, states that differ by nothing else are one.
    #[cfg(feature = "testing")]
    pub fn number_calls_anew(&mut self) {
        if self.asked.is_empty() {
            self.calls = 0;
        }
    }

    // === what everything else uses ===

    fn hold(&self, key: &LeaseKey) -> Option<&Hold> {
        self.known.get(key)?.hold.as_deref()
    }

    fn hold_mut(&mut self, key: &LeaseKey) -> Option<&mut Hold> {
        self.known.get_mut(key)?.hold.as_deref_mut()
    }

    fn call(&mut self, by: Monotonic, asked: Asked, call: Call, effects: &mut Vec<Effect>) -> CallId {
        self.calls += 1;
        let id = CallId(self.calls);
        self.asked.insert(id, asked);
        effects.push(Effect::Call { id, by, call });
        id
    }

    /// How long to wait after so many failures in a row.
    fn pause(&self, failures: u32) -> Duration {
        self.timing.lease / PAUSES_PER_LEASE * 2_u32.pow(failures.saturating_sub(1).min(PAUSE_DOUBLINGS_MAX))
    }

    /// How long a look at everything is good for, however much is new.
    fn breath(&self) -> Duration {
        let rows = self.known.len() + self.fleet.len();
        let rows = u32::try_from(rows).unwrap_or(u32::MAX).min(NEWS_ROWS_PER_LEASE);
        self.timing.lease * rows / NEWS_ROWS_PER_LEASE
    }

    /// Tells everybody to look, soon: several changes in a moment are one.
    fn tell_everybody(&mut self, now: Now) {
        let soon = (self.nudged + self.timing.nudge / 2).max(now.monotonic);
        self.nudge_at = Some(self.nudge_at.map_or(soon, |at| at.min(soon)));
    }

    fn raise(&mut self, alarm: Alarm, effects: &mut Vec<Effect>) {
        if self.alarms.insert(alarm.clone()) {
            effects.push(Effect::Tell(News::Alarm(alarm)));
        }
    }

    // === phases ===

    fn proceed(&mut self, now: Now, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Stopped => return,
            Phase::Starting { .. } => {}
            Phase::Running => {
                if self.relook {
                    self.look_again(now);
                }
                self.shed(now, effects);
                self.attend(now, effects);
                self.lead(now, effects);
                self.keep_presence(now, effects);
            }
            Phase::Stopping { .. } => {
                self.attend(now, effects);
                self.keep_presence(now, effects);
                self.leave(now, effects);
            }
        }
        self.look(now, effects);
    }

    fn look(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let at = now.monotonic;
        if self.phase == Phase::Stopped {
            return;
        }
        if self.scan.sent.is_none() && at >= self.scan.next {
            self.scan.sent = Some(at);
            self.call(at + self.timing.lease / 2, Asked::Scan, Call::Scan, effects);
        }
        let runs = self.phase == Phase::Running;
        if runs && self.nudge.sent.is_none() && at >= self.nudge.next {
            self.nudge.sent = Some(at);
            self.call(at + self.timing.nudge * NUDGE_PATIENCE, Asked::Nudge, Call::Nudge, effects);
        }
        if let Some(due) = self.nudge_at
            && at >= due
            && !self.nudging
        {
            (self.nudge_at, self.nudging, self.nudged) = (None, true, at);
            self.call(at + self.timing.renew, Asked::NudgeWrite, Call::Note(Note::Nudge), effects);
        }
        if runs && self.list.sent.is_none() && at >= self.list.next && at >= self.acts_at() {
            self.list.sent = Some(at);
            self.call(at + self.timing.lease.max(Duration::from_secs(10)), Asked::List, Call::List, effects);
        }
    }

    fn stop(&mut self, now: Now, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Starting { .. } => {
                // A presence row that was just written is left to its time to live.
                self.phase = Phase::Stopped;
                effects.push(Effect::Tell(News::Stopped));
            }
            Phase::Running => {
                let by = now.monotonic + self.timing.stop;
                // Whose row it is not cannot say that it leaves; and whoever may hold nothing has said so already.
                let said = self.own.written.is_some() && self.own.cap == 0 && !self.own.writing;
                let noted = self.fatal.is_some() || said;
                self.phase = Phase::Stopping { by, noted, leaving: false };
                for key in self.mine.clone() {
                    self.ask_to_give(now, &key, Ending::Stop, effects);
                }
                // Nothing more is taken, and what was promised is given back.
                for key in self.known.keys().cloned().collect::<Vec<_>>() {
                    self.retime(now, &key);
                    self.decline(now, &key, effects);
                }
            }
            Phase::Stopping { .. } | Phase::Stopped => {}
        }
    }

    /// The end, once nothing is held and nothing is under way.
    fn leave(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Phase::Stopping { by, leaving, .. } = self.phase else { return };
        if now.monotonic >= by {
            for key in self.mine.clone() {
                self.lose(now, &key, Loss::Stopped, effects);
            }
            self.end(effects);
            return;
        }
        let is_doing = |key| self.known.get(key).is_some_and(|known| known.doing.is_some());
        let busy = self.asked.values().any(|asked| match asked {
            Asked::Write(key) | Asked::Row(key) => is_doing(key),
            _ => false,
        });
        let busy = busy || self.own.writing || self.nudge_at.is_some() || self.nudging;
        if leaving || busy || !self.mine.is_empty() {
            return;
        }
        if self.fatal.is_some() || self.own.written.is_none() {
            self.end(effects);
            return;
        }
        if let Phase::Stopping { leaving, .. } = &mut self.phase {
            *leaving = true;
        }
        let note = Note::Leave { worker: self.me.worker.clone(), incarnation: self.me.incarnation.clone() };
        self.call(now.monotonic + self.timing.renew, Asked::Leave, Call::Note(note), effects);
    }

    fn end(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Stopped;
        effects.push(Effect::Tell(News::Stopped));
    }

    fn fail(&mut self, now: Now, fatal: Fatal, effects: &mut Vec<Effect>) {
        if self.fatal.is_none() {
            self.fatal = Some(fatal.clone());
            effects.push(Effect::Tell(News::Fatal(fatal)));
            self.stop(now, effects);
        }
    }

    // === answers ===

    fn answered(&mut self, now: Now, id: CallId, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        match asked {
            Asked::Scan => {
                let sent = self.scan.sent.take().unwrap_or(now.monotonic);
                match answer {
                    Answer::Scanned(scan) => {
                        self.scan.next = now.monotonic + self.timing.scan;
                        self.scanned(now, sent, scan, effects);
                    }
                    _ => self.scan.next = now.monotonic + self.pause(3),
                }
            }
            Asked::Nudge => {
                self.nudge.sent = None;
                self.nudge.next = now.monotonic + self.timing.nudge;
                if let Answer::Nudge(counter) = answer
                    && counter != self.nudge_seen
                {
                    self.scan.next = self.scan.next.min(now.monotonic.max(self.scanned + self.breath()));
                }
            }
            Asked::List => {
                let sent = self.list.sent.take().unwrap_or(now.monotonic);
                self.list.next = now.monotonic + self.pause(3);
                if let Answer::Shards(streams) = answer {
                    self.list.next = now.monotonic + self.timing.list;
                    self.take_in_shards(sent, streams);
                    self.review = true;
                }
            }
            Asked::Row(key) => self.row_answered(now, id, &key, answer, effects),
            Asked::Write(key) => self.write_answered(now, id, &key, answer, effects),
            Asked::Create(key) => self.create_answered(now, &key, answer, effects),
            Asked::Delete(key) => self.delete_answered(now, &key, answer, effects),
            // Whatever came of it, the row says.
            Asked::Settings => self.scan.next = now.monotonic,
            Asked::Presence { first } => self.presence_answered(now, first, &answer, effects),
            Asked::Leave => self.end(effects),
            Asked::NudgeWrite => {
                self.nudging = false;
                if !matches!(answer, Answer::Applied(_)) {
                    self.nudge_at = Some(now.monotonic + self.pause(1));
                }
            }
        }
    }

    fn scanned(&mut self, now: Now, sent: Monotonic, scan: Scan, effects: &mut Vec<Effect>) {
        let before = std::mem::replace(&mut self.scanned, now.monotonic);
        self.nudge_seen = scan.nudge;
        let first = self.began.is_none();
        self.fleet.update(now.monotonic, scan.workers);
        if !first && before + self.timing.lease < now.monotonic {
            // Whoever did not look for so long knows as little as one who has just come.
            (self.began, self.fresh_table) = (Some(now.monotonic), false);
            // A row that had vanished may have been put back, and have vanished again.
            self.gone.values_mut().for_each(|gone| gone.since = now.monotonic);
        }
        if first {
            self.began = Some(now.monotonic);
            self.unplanned_since = now.monotonic;
            self.fresh_table =
                scan.leases.is_empty() && scan.bad.is_empty() && !self.fleet.others_hold(&self.me.worker);
        }
        self.take_in(now, sent, first, scan.leases, scan.bad, effects);
        if let Some(stored) = scan.settings
            && stored != self.timing.lease
            && !planted::is("any_lease_will_do")
        {
            return self.fail(now, Fatal::OtherLease { stored }, effects);
        }
        let mine = self.fleet.row(&self.me.worker).cloned();
        match (&self.phase, mine) {
            (Phase::Starting { .. }, _) if scan.settings.is_none() => {
                let note = Note::Settings { lease: self.timing.lease };
                self.scan.next = now.monotonic + self.timing.scan;
                self.call(now.monotonic + self.timing.renew, Asked::Settings, Call::Note(note), effects);
            }
            (Phase::Starting { .. }, Some(row)) if row.incarnation != self.me.incarnation => {
                self.watch_rival(now, &row, effects);
            }
            (Phase::Starting { .. }, _) => self.write_presence(now, None, effects),
            (Phase::Running, Some(row)) if row.incarnation != self.me.incarnation => {
                self.fail(now, Fatal::SameWorker, effects);
            }
            // Swept away, or deleted: the others must not take us for strangers.
            (Phase::Running, None) if !self.own.writing => self.own.written = None,
            // An older one, which came late and found no row: what it says is not so any more.
            (Phase::Running, Some(row))
                if row.counter < self.own.counter && self.own.written.is_some_and(|at| at < sent) =>
            {
                self.own.written = None;
            }
            _ => {}
        }
        self.review = true;
    }
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod tests;
