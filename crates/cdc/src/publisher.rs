//! Decides which record goes out when, and what that settles: pure, without waiting for anything.
//!
//! Events come in commit order and each belongs to a lane. A lane fills a record, has at most one of them
//! under way, and sends it again, byte for byte, until the stream has it. Records of distinct lanes travel
//! together in a call, and several calls at once.
//!
//! ```text
//!   offer ─► lane: [open record] [sealed] [sealed]─► call ─► stream ─► answer
//!                                            ▲ one under way               │
//!                                            └────── again ◄───────────────┤
//!                                                        frontier ◄────────┘
//! ```
//!
//! - CP-1, CP-2: the frontier (see [`Frontier`]).
//! - CP-3: a lane has one record under way. What follows waits until the stream has acknowledged it.
//! - CP-4: what failed, was throttled, or has an unknown outcome is sent again with the same bytes, for as
//!   long as it takes. Nothing is dropped.
//! - CP-5: an event's floor is the frontier when the event was written, never ahead of it.
//! - CP-6: what is too large or was refused for good is stored durably before its pointer is sent. The pointer
//!   travels alone, and is never stored in its turn.
//! - CP-7: what is taken in is bounded by count and by bytes.
//! - CP-8: a barrier begins when all lanes are empty, and ends when they are empty again.
//! - CP-9: nothing is sent without leadership.
//! - CP-17: no shard is sent more than it takes (see [`ShardBudget`]).

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_backend::Kind;
use tenure_clock::{Entropy, Monotonic};
pub use tenure_quarantine::Parked;
use tenure_stream::identity::{Era, Floor, Lane, Lanes, Lsn, Position};
use tenure_stream::{HashKey, Limits, Put, Record};

use crate::framing::{Frame, Framing};
use crate::frontier::{Frontier, Ordinal};
use crate::shard_budget::{OpenShard, ShardBudget};

/// How much may be under way, and how it is packed.
#[derive(Debug, Clone)]
pub struct PublisherSettings {
    /// Most events that are taken in and not settled, and most transactions that wait for an older one.
    pub inflight_events_max: usize,
    /// Most bytes of them.
    pub inflight_bytes_max: usize,
    /// A record is full at this size.
    pub record_bytes_max: usize,
    /// How long an event may wait for others to travel with.
    pub linger: Duration,
    /// Most calls at once.
    pub calls_max: usize,
    /// The first wait after a failure; it doubles.
    pub backoff_min: Duration,
    /// The longest wait.
    pub backoff_max: Duration,
    /// How events become a record.
    pub framing: Framing,
    /// Most records that a shard is sent in a second. Zero: without limit. Absent: as the stream says.
    pub shard_records_per_s: Option<u64>,
    /// Most bytes of them, likewise.
    pub shard_bytes_per_s: Option<u64>,
}

impl Default for PublisherSettings {
    fn default() -> Self {
        Self {
            inflight_events_max: 100_000,
            // With buffers and calls on the way, the process stays below 64 MiB.
            inflight_bytes_max: 12 << 20,
            record_bytes_max: 256 << 10,
            linger: Duration::from_millis(3),
            calls_max: 16,
            backoff_min: Duration::from_millis(20),
            backoff_max: Duration::from_secs(10),
            framing: Framing::Aggregated,
            shard_records_per_s: None,
            shard_bytes_per_s: None,
        }
    }
}

/// What an event says about its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// The event before it on its lane.
    pub prev: Option<Position>,
    /// What is settled.
    pub floor: Floor,
}

/// An event to publish.
#[derive(Debug)]
pub struct Offer<'a> {
    /// Where it belongs.
    pub lane: Lane,
    /// Which change it is.
    pub id: Position,
    /// Of its key; never empty, at most 256 characters.
    pub partition_key: &'a str,
    /// The event as it is published: itself, or the pointer to what is parked.
    pub bytes: &'a [u8],
    /// What must be stored before `bytes` may be sent.
    pub parked: Option<Parked>,
}

/// What is to be done next.
#[derive(Debug)]
pub enum Work {
    /// Put these records, then tell [`Publisher::answered`].
    Call(Call),
    /// Store this durably, then tell [`Publisher::stored`].
    Store {
        /// On behalf of which lane.
        lane: Lane,
        /// The event.
        id: Position,
        /// What to store.
        parked: Parked,
    },
    /// The stream refused these events for good. Park each of them, and hand their pointers to
    /// [`Publisher::replace`] at once.
    Replace(Refused),
}

/// Records to put in one call.
#[derive(Debug)]
pub struct Call {
    /// Which call this is.
    pub id: CallId,
    /// One record per lane.
    pub records: Vec<Record>,
}

/// A call's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u64);

/// How a call ended.
#[derive(Debug)]
pub enum Answer {
    /// With a result per record.
    Records(Vec<Put>),
    /// Without: nothing of it may be there, or all of it.
    Failed(Kind),
}

/// Events that the stream will never take.
#[derive(Debug)]
pub struct Refused {
    /// Their lane.
    pub lane: Lane,
    /// The events, in order.
    pub events: Vec<RefusedEvent>,
    /// Why.
    pub reason: Arc<str>,
}

/// One of them.
#[derive(Debug)]
pub struct RefusedEvent {
    /// Which change it is.
    pub id: Position,
    /// The event before it on its lane.
    pub prev: Option<Position>,
    /// Its partition key.
    pub partition_key: Arc<str>,
    /// The event.
    pub bytes: Bytes,
}

/// The state of a barrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Barrier {
    /// There is none.
    None,
    /// Waiting until all lanes are empty.
    Draining,
    /// All lanes are empty: offer the barrier's events, then call [`Publisher::barrier_offered`]. If there is no
    /// room for all of them, go on when it is ready again.
    Ready,
    /// Waiting until its own events are settled.
    Settling,
}

/// See the module.
#[derive(Debug)]
pub struct Publisher {
    settings: PublisherSettings,
    limits: Limits,
    era: Era,
    lanes: Vec<LaneState>,
    hash: Lanes,
    frontier: Frontier,
    open: Option<Ordinal>,
    events: usize,
    /// Events that were ever settled.
    settled: u64,
    bytes: usize,
    /// Bytes of them that are in calls.
    under_bytes: usize,
    /// Lanes with something to send and nothing under way, the longest waiting first.
    ready: VecDeque<(Lane, Monotonic)>,
    /// Lanes that wait before they send again.
    waiting: BinaryHeap<Reverse<(Monotonic, Lane)>>,
    /// Lanes whose front must be stored or replaced first.
    errands: VecDeque<Lane>,
    /// What each shard may be sent, and the lanes that wait for theirs.
    budget: ShardBudget,
    calls: Vec<Under>,
    next_call: u64,
    barrier: Barrier,
    /// Calls that failed as a whole, one after another.
    failures: u32,
    /// No call before this: the stream as a whole is in trouble.
    paused_until: Option<Monotonic>,
    entropy: Entropy,
}

#[derive(Debug)]
struct Under {
    id: CallId,
    /// Which record of which lane.
    records: Vec<(Lane, u64)>,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Records in order; the front one is sent first, the back one may still grow.
    units: VecDeque<Unit>,
    step: Step,
    last: Option<Position>,
    attempts: u32,
    /// Counts its records.
    next_unit: u64,
    /// Its shard's budget has been spent for its front.
    paid: bool,
}

/// What a lane is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Step {
    /// Nothing to send.
    #[default]
    Empty,
    /// In `ready`, `waiting`, `errands` or held for its shard.
    Listed,
    /// Its front is in a call, or being stored.
    Under,
}

#[derive(Debug)]
struct Unit {
    number: u64,
    /// It is in a call.
    under: bool,
    /// It grows, until it is sealed.
    frame: Option<Frame>,
    /// Sealed; from here on its bytes never change.
    sealed: Option<Record>,
    partition_key: Arc<str>,
    events: Vec<EventMeta>,
    prev: Option<Position>,
    errand: Option<Errand>,
    /// It is the pointer to what is parked, and stays alone: were it refused with others, it would be parked
    /// in the place of its own content.
    pointer: bool,
    /// Its share of the bytes that were taken in.
    bytes: usize,
}

#[derive(Debug)]
enum Errand {
    Store(Parked),
    Replace(Arc<str>),
}

#[derive(Debug, Clone, Copy)]
struct EventMeta {
    id: Position,
    ordinal: Ordinal,
    start: u32,
    end: u32,
}

impl Publisher {
    /// Everything that committed below `confirmed` is settled already.
    #[must_use]
    pub fn new(
        settings: PublisherSettings,
        limits: Limits,
        lanes: Lanes,
        era: Era,
        confirmed: Lsn,
        entropy: Entropy,
    ) -> Self {
        let states = lanes.all().map(|_| LaneState::default()).collect();
        let PublisherSettings { shard_records_per_s, shard_bytes_per_s, .. } = settings;
        let budget = ShardBudget::new(limits.shard_rate, shard_records_per_s, shard_bytes_per_s);
        Self {
            settings,
            limits,
            era,
            lanes: states,
            hash: lanes,
            frontier: Frontier::new(confirmed),
            open: None,
            events: 0,
            settled: 0,
            bytes: 0,
            under_bytes: 0,
            ready: VecDeque::new(),
            waiting: BinaryHeap::new(),
            errands: VecDeque::new(),
            budget,
            calls: Vec::new(),
            next_call: 0,
            barrier: Barrier::None,
            failures: 0,
            paused_until: None,
            entropy,
        }
    }

    // === What comes in ===

    /// Whether there is room for another event (CP-7), and no barrier in the way.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        self.barrier == Barrier::None && (self.has_room() || tenure_planted::is("takes_without_bound"))
    }

    /// Whether there is room for another event of a barrier (CP-7).
    #[must_use]
    pub fn has_room(&self) -> bool {
        let Self { settings, frontier, .. } = self;
        self.events < settings.inflight_events_max
            && self.bytes < settings.inflight_bytes_max
            // One lane that is held up keeps all that was settled behind it in the ring. The open one may go on.
            && frontier.pending() <= settings.inflight_events_max
    }

    /// A transaction begins.
    pub fn begin(&mut self) {
        self.open = Some(self.frontier.begin());
    }

    /// The open transaction has ended.
    pub fn commit(&mut self, end: Lsn) {
        self.open = None;
        let end = if tenure_planted::is("acks_inside_the_commit") { Lsn(end.0 - 1) } else { end };
        self.frontier.close(end);
    }

    /// The server has sent all that committed below `sent`.
    pub fn idle(&mut self, sent: Lsn) {
        self.frontier.idle(sent);
    }

    /// What the next event of a lane says about its neighbours (CP-5).
    #[must_use]
    pub fn link(&self, lane: Lane) -> Link {
        let below = self.frontier.confirmed();
        let below = if tenure_planted::is("floor_ahead") { Lsn(below.0 + 1024) } else { below };
        Link { prev: self.lane(lane).last, floor: Floor { era: self.era, below } }
    }

    /// Whether an event of this size fits in a record of its own.
    #[must_use]
    pub fn fits(&self, partition_key: &str, bytes: usize) -> bool {
        let alone = self.settings.framing.size_alone(partition_key, bytes) + partition_key.len();
        alone <= self.limits.bytes_per_record_max
    }

    /// Takes an event of the open transaction.
    pub fn offer(&mut self, now: Monotonic, offer: Offer<'_>) {
        let Offer { lane, id, partition_key, bytes, parked } = offer;
        let Some(ordinal) = self.open else {
            debug_assert!(false, "an event outside a transaction");
            return;
        };
        self.frontier.add(ordinal);
        self.events += 1;
        let size = bytes.len() + parked.as_ref().map_or(0, |parked| parked.content.len());
        self.bytes += size;
        let settings = &self.settings;
        let limit = settings.record_bytes_max.min(self.limits.bytes_per_record_max);
        let hash_key = self.hash.hash_key(lane);
        let state = &mut self.lanes[usize::from(lane.0)];
        debug_assert!(state.last.is_none_or(|last| last < id), "{:?} then {id:?}", state.last);
        let grows = parked.is_none()
            && state.units.back().is_some_and(|unit| {
                let alone = unit.pointer && !tenure_planted::is("pointer_takes_company");
                let frame = unit.frame.as_ref().filter(|_| unit.errand.is_none() && !alone);
                let size = frame.and_then(|frame| frame.size_with(partition_key, bytes.len()));
                size.is_some_and(|size| size + unit.partition_key.len() <= limit)
            });
        if !grows {
            let room = settings.framing.size_alone(partition_key, bytes.len());
            state.units.push_back(Unit {
                number: state.next_unit,
                under: false,
                frame: Some(settings.framing.begin(hash_key, room)),
                sealed: None,
                partition_key: partition_key.into(),
                events: Vec::with_capacity(1),
                prev: state.last,
                pointer: parked.is_some(),
                errand: parked.map(Errand::Store),
                bytes: 0,
            });
            state.next_unit += 1;
        }
        if let Some(unit) = state.units.back_mut()
            && let Some(frame) = &mut unit.frame
        {
            let start = frame.add(partition_key, bytes);
            let end = start + bytes.len();
            // Records are far smaller than 4 GiB.
            unit.events.push(EventMeta { id, ordinal, start: start as u32, end: end as u32 });
            unit.bytes += size;
        }
        state.last = Some(id);
        if state.step == Step::Empty {
            self.list(lane, now);
        }
    }

    /// Begins a barrier: nothing more is taken in until it is over (CP-8).
    pub fn barrier_begin(&mut self) {
        self.barrier = Barrier::Draining;
    }

    /// How far the barrier is.
    #[must_use]
    pub fn barrier(&self) -> Barrier {
        match self.barrier {
            Barrier::Draining if self.events == 0 || tenure_planted::is("barrier_does_not_drain") => {
                Barrier::Ready
            }
            other => other,
        }
    }

    /// The barrier's events have been offered.
    pub fn barrier_offered(&mut self) {
        self.barrier = if tenure_planted::is("barrier_does_not_wait") || self.events == 0 {
            Barrier::None
        } else {
            Barrier::Settling
        };
    }

    // === What goes out ===

    /// What to do next, if anything. To be asked again until it says `None`.
    pub fn poll(&mut self, now: Monotonic, leading: bool) -> Option<Work> {
        if !leading && !tenure_planted::is("publish_without_leadership") {
            return None;
        }
        while let Some(Reverse((at, lane))) = self.waiting.peek().copied() {
            if at > now {
                break;
            }
            self.waiting.pop();
            self.list(lane, at);
        }
        if let Some(lane) = self.errands.pop_front() {
            return Some(self.errand(lane));
        }
        self.release(now);
        if !self.is_due(now) {
            return None;
        }
        self.pack(now).map(Work::Call)
    }

    /// Whether it should be asked now which shards there are. Then tell [`Publisher::shards`].
    pub fn asks_for_shards(&mut self, now: Monotonic) -> bool {
        self.budget.asks(now)
    }

    /// The shards that take records now; none if that is not known.
    pub fn shards(&mut self, open: &[OpenShard]) {
        // What was paid for has not left, and its shard may be another now.
        self.lanes.iter_mut().for_each(|state| state.paid = false);
        for (lane, since) in self.budget.answered(self.hash, open).into_iter().rev() {
            self.ready.push_front((lane, since));
        }
    }

    /// When to ask again at the latest, if nothing happens before.
    #[must_use]
    pub fn wake(&self) -> Option<Monotonic> {
        let waiting = self.waiting.peek().map(|Reverse((at, _))| *at);
        let lingering = match self.ready.front() {
            Some((_, since)) if self.calls.len() < self.settings.calls_max => {
                Some(self.paused_until.unwrap_or(*since).max(*since + self.settings.linger))
            }
            _ => None,
        };
        let held = self.budget.wake().filter(|_| self.calls.len() < self.settings.calls_max);
        let held = held.map(|at| self.paused_until.map_or(at, |until| until.max(at)));
        [waiting, lingering, held].into_iter().flatten().min()
    }

    fn may_call(&self, now: Monotonic) -> bool {
        self.calls.len() < self.settings.calls_max && self.paused_until.is_none_or(|until| until <= now)
    }

    /// Lets those go whose shard has enough again.
    fn release(&mut self, now: Monotonic) {
        if !self.budget.holds_any() || !self.may_call(now) {
            return;
        }
        let mut released = Vec::new();
        while let Some(lane) = self.budget.due(now) {
            let state = &mut self.lanes[usize::from(lane.0)];
            let front = state.units.iter_mut().find(|unit| !unit.under);
            let size = front.as_ref().map_or(0, |unit| unit.size());
            let Some(held) = self.budget.release(now, size) else { continue };
            // From here on it grows no more: it has a price.
            if let Some(unit) = front {
                self.budget.spend(now, lane, unit.seal(self.hash.hash_key(lane)).size_bytes());
                state.paid = true;
            }
            released.push(held);
        }
        for held in released.into_iter().rev() {
            self.ready.push_front(held);
        }
    }

    /// Whether a call should leave now.
    fn is_due(&self, now: Monotonic) -> bool {
        let Some((_, since)) = self.ready.front() else { return false };
        if !self.may_call(now) {
            return false;
        }
        let full = self.ready.len() >= self.limits.records_per_put_max
            // What waits for its shard fills no call.
            || (self.bytes - self.under_bytes >= self.limits.bytes_per_put_max && !self.budget.holds_any());
        // Whoever cannot take more in has nothing to wait for.
        full || !self.wants_more() || now >= *since + self.settings.linger
    }

    /// Packs the front records of the lanes that have waited longest. None if all of them wait for their shard.
    fn pack(&mut self, now: Monotonic) -> Option<Call> {
        let (mut under, mut records, mut bytes) = (Vec::new(), Vec::new(), 0);
        while records.len() < self.limits.records_per_put_max {
            let Some((lane, since)) = self.ready.pop_front() else { break };
            let state = &mut self.lanes[usize::from(lane.0)];
            let Some(unit) = state.units.iter_mut().find(|unit| !unit.under) else { continue };
            if !state.paid && !self.budget.admits(now, lane, unit.size()) {
                self.budget.hold(lane, since, unit.size());
                continue;
            }
            let record = unit.seal(self.hash.hash_key(lane));
            let size = record.size_bytes();
            if bytes + size > self.limits.bytes_per_put_max && !records.is_empty() {
                self.ready.push_front((lane, since));
                break;
            }
            bytes += size;
            records.push(record.clone());
            if !std::mem::take(&mut state.paid) {
                self.budget.spend(now, lane, size);
            }
            unit.under = true;
            self.under_bytes += unit.bytes;
            under.push((lane, unit.number));
            state.step = Step::Under;
            let rest = || state.units.iter().find(|unit| !unit.under);
            if tenure_planted::is("two_outstanding") && rest().is_some_and(|unit| unit.errand.is_none()) {
                self.list(lane, since);
            }
        }
        if records.is_empty() {
            return None;
        }
        let id = CallId(self.next_call);
        self.next_call += 1;
        self.calls.push(Under { id, records: under });
        Some(Call { id, records })
    }

    /// A call has ended.
    pub fn answered(&mut self, now: Monotonic, call: CallId, answer: Answer) {
        let Some(index) = self.calls.iter().position(|under| under.id == call) else { return };
        let Under { records, .. } = self.calls.swap_remove(index);
        for (lane, number) in &records {
            if let Some(unit) = self.lane_mut(*lane).unit(*number) {
                unit.under = false;
                self.under_bytes -= unit.bytes;
            }
        }
        match answer {
            Answer::Failed(_) => {
                self.failures = self.failures.saturating_add(1);
                self.paused_until = Some(now + self.backoff(self.failures));
                for (lane, number) in records {
                    self.again(now, lane, number);
                }
            }
            Answer::Records(results) => {
                self.failures = 0;
                self.paused_until = None;
                let mut results = results.into_iter();
                for (lane, number) in records {
                    match results.next() {
                        Some(Put::Stored { shard, .. }) => {
                            self.budget.landed(lane, &shard);
                            self.settled(now, lane, number);
                        }
                        Some(Put::Refused { reason }) => self.refused(now, lane, number, &reason),
                        // Without a result the outcome is unknown.
                        Some(Put::Throttled) | None => self.again(now, lane, number),
                    }
                }
            }
        }
    }

    /// What was parked on behalf of a lane is durable, or could not be stored.
    pub fn stored(&mut self, now: Monotonic, lane: Lane, durable: bool) {
        let state = self.lane_mut(lane);
        let Some(unit) = state.units.front_mut() else { return };
        if !durable {
            state.attempts = state.attempts.saturating_add(1);
            let at = now + self.backoff(self.lane(lane).attempts);
            self.lane_mut(lane).step = Step::Listed;
            self.waiting.push(Reverse((at, lane)));
            return;
        }
        if let Some(Errand::Store(parked)) = unit.errand.take() {
            unit.bytes -= parked.content.len();
            state.attempts = 0;
            self.bytes -= parked.content.len();
        }
        self.list(lane, now);
    }

    /// The pointers to what was refused, each with what it points to; the answer to [`Work::Replace`].
    pub fn replace(&mut self, now: Monotonic, lane: Lane, pointers: Vec<(Vec<u8>, Parked)>) {
        let (framing, hash_key) = (self.settings.framing, self.hash.hash_key(lane));
        let state = &mut self.lanes[usize::from(lane.0)];
        let Some(unit) = state.units.pop_front() else { return };
        debug_assert_eq!(pointers.len(), unit.events.len());
        self.bytes -= unit.bytes;
        let mut prev = unit.prev;
        let mut units = Vec::new();
        for (meta, (pointer, parked)) in unit.events.iter().zip(pointers) {
            let bytes = pointer.len() + parked.content.len();
            self.bytes += bytes;
            let room = framing.size_alone(&unit.partition_key, pointer.len());
            let mut frame = framing.begin(hash_key, room);
            let start = frame.add(&unit.partition_key, &pointer);
            let (start, end) = (start as u32, (start + pointer.len()) as u32);
            units.push(Unit {
                number: state.next_unit,
                under: false,
                frame: Some(frame),
                sealed: None,
                partition_key: unit.partition_key.clone(),
                events: vec![EventMeta { start, end, ..*meta }],
                prev,
                errand: Some(Errand::Store(parked)),
                pointer: true,
                bytes,
            });
            state.next_unit += 1;
            prev = Some(meta.id);
        }
        for unit in units.into_iter().rev() {
            state.units.push_front(unit);
        }
        self.list(lane, now);
    }

    // === What it has come to ===

    /// Everything that committed below this is settled.
    #[must_use]
    pub const fn confirmed(&self) -> Lsn {
        self.frontier.confirmed()
    }

    /// How many events were ever settled.
    #[must_use]
    pub const fn settled_events(&self) -> u64 {
        self.settled
    }

    /// Whether everything that was taken in is settled.
    #[must_use]
    pub const fn is_drained(&self) -> bool {
        self.events == 0
    }

    /// Whether a transaction has begun and not ended.
    #[must_use]
    pub const fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// How much is taken in and not settled: events and bytes.
    #[must_use]
    pub const fn inflight(&self) -> (usize, usize) {
        (self.events, self.bytes)
    }

    /// How many calls failed as a whole, one after another.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }

    // === Lanes ===

    fn lane(&self, lane: Lane) -> &LaneState {
        &self.lanes[usize::from(lane.0)]
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[usize::from(lane.0)]
    }

    /// Puts a lane where its next step is taken from.
    fn list(&mut self, lane: Lane, since: Monotonic) {
        let state = &mut self.lanes[usize::from(lane.0)];
        let Some(unit) = state.units.iter().find(|unit| !unit.under) else {
            state.step = Step::Empty;
            return;
        };
        state.step = Step::Listed;
        if unit.errand.is_some() && !tenure_planted::is("pointer_before_content") {
            self.errands.push_back(lane);
        } else {
            self.ready.push_back((lane, since));
        }
    }

    fn errand(&mut self, lane: Lane) -> Work {
        let state = self.lane_mut(lane);
        state.step = Step::Under;
        let Some(unit) = state.units.front() else { unreachable!("a lane with an errand has a record") };
        match &unit.errand {
            Some(Errand::Replace(reason)) => Work::Replace(unit.taken_apart(lane, reason.clone())),
            Some(Errand::Store(parked)) => {
                let id = unit.events.first().map_or_else(Position::default, |meta| meta.id);
                Work::Store { lane, id, parked: parked.clone() }
            }
            None => unreachable!("an errand is listed once"),
        }
    }

    /// A record of a lane is in the stream.
    fn settled(&mut self, now: Monotonic, lane: Lane, number: u64) {
        let state = &mut self.lanes[usize::from(lane.0)];
        let Some(index) = state.units.iter().position(|unit| unit.number == number) else { return };
        let Some(unit) = state.units.remove(index) else { return };
        state.attempts = 0;
        self.bytes -= unit.bytes;
        self.events -= unit.events.len();
        self.settled += unit.events.len() as u64;
        for meta in &unit.events {
            self.frontier.settle(meta.ordinal);
        }
        if self.events == 0 && self.barrier == Barrier::Settling {
            self.barrier = Barrier::None;
        }
        self.list(lane, now);
    }

    /// A record of a lane goes out again, later (CP-4).
    fn again(&mut self, now: Monotonic, lane: Lane, number: u64) {
        if tenure_planted::is("failed_is_settled") {
            return self.settled(now, lane, number);
        }
        let state = self.lane_mut(lane);
        if tenure_planted::is("failed_goes_last") {
            // Only what failed is sent again, behind what came later.
            state.units.rotate_left(1);
        }
        state.attempts = state.attempts.saturating_add(1);
        state.step = Step::Listed;
        let at = now + self.backoff(self.lane(lane).attempts);
        self.waiting.push(Reverse((at, lane)));
    }

    fn refused(&mut self, now: Monotonic, lane: Lane, number: u64, reason: &str) {
        if tenure_planted::is("refused_is_dropped") {
            return self.settled(now, lane, number);
        }
        match self.lane_mut(lane).unit(number) {
            // What it points to is stored already; there is nothing smaller to send.
            Some(unit) if unit.pointer && !tenure_planted::is("pointer_takes_company") => {
                return self.again(now, lane, number);
            }
            Some(unit) => unit.errand = Some(Errand::Replace(reason.into())),
            None => {}
        }
        self.list(lane, now);
    }

    /// Doubles, up to a maximum, and half of it is drawn: many publishers do not come back at once.
    fn backoff(&self, attempts: u32) -> Duration {
        let doubled = self.settings.backoff_min * 2u32.saturating_pow(attempts.saturating_sub(1).min(16));
        let longest = doubled.min(self.settings.backoff_max);
        longest / 2 + self.entropy.up_to(longest / 2)
    }
}

impl LaneState {
    fn unit(&mut self, number: u64) -> Option<&mut Unit> {
        self.units.iter_mut().find(|unit| unit.number == number)
    }
}

impl Unit {
    /// How large its record is by now, about: the frame comes to it.
    fn size(&self) -> usize {
        let unsealed = || self.bytes + self.partition_key.len();
        self.sealed.as_ref().map_or_else(unsealed, Record::size_bytes)
    }

    /// Finishes the record.
    fn seal(&mut self, hash_key: HashKey) -> &Record {
        let Self { frame, sealed, partition_key, .. } = self;
        if let Some(record) = sealed
            && tenure_planted::is("resent_with_other_bytes")
        {
            let mut data = record.data.to_vec();
            data.iter_mut().rev().take(1).for_each(|last| *last = last.wrapping_add(1));
            record.data = data.into();
        }
        sealed.get_or_insert_with(|| {
            let data = frame.take().map(Frame::finish).unwrap_or_default();
            Record::new(partition_key.clone(), data).at_hash_key(hash_key)
        })
    }

    fn taken_apart(&self, lane: Lane, reason: Arc<str>) -> Refused {
        // Only what was sent can be refused.
        let data = self.sealed.as_ref().map(|record| record.data.clone()).unwrap_or_default();
        let mut prev = self.prev;
        let events = self.events.iter().map(|meta| RefusedEvent {
            id: meta.id,
            prev: prev.replace(meta.id),
            partition_key: self.partition_key.clone(),
            bytes: data.slice(meta.start as usize..meta.end as usize),
        });
        Refused { lane, events: events.collect(), reason }
    }
}

#[cfg(test)]
#[path = "publisher_test.rs"]
mod tests;
