//! What a leader runs: the real publisher, or the seed document's own.

use tenure_cdc::publisher::{
    Answer, Barrier, CallId, Link, Offer, Parked, Publisher, PublisherSettings, Refused, Work,
};
use tenure_cdc::shard_budget::OpenShard;
use tenure_clock::{Entropy, Monotonic};
use tenure_stream::identity::{Era, Lane, Lanes, Lsn, Position};
use tenure_stream::{Limits, Record};

/// What a leader begins with.
#[derive(Debug)]
pub struct Setup {
    /// How it publishes.
    pub settings: PublisherSettings,
    /// What the stream takes.
    pub limits: Limits,
    /// How many lanes.
    pub lanes: Lanes,
    /// Under which era.
    pub era: Era,
    /// Everything that committed below is settled.
    pub confirmed: Lsn,
    /// Its randomness.
    pub entropy: Entropy,
}

/// What is to be done, see [`Work`].
#[derive(Debug)]
pub enum Task<C> {
    /// Put these records.
    Call(C, Vec<Record>),
    /// Store this durably.
    Store(Lane, Position, Parked),
    /// Replace these by pointers.
    Replace(Refused),
}

/// See the module. The methods are those of [`Publisher`].
pub trait Pipeline: Sized {
    /// Whether it has a row, eras, lanes and identities. Without them, only what can be judged from outside is.
    const FENCED: bool;
    /// A call's number.
    type Call: Copy;

    /// A run that begins.
    fn new(setup: Setup) -> Self;
    /// See [`Publisher::wants_more`].
    fn wants_more(&self) -> bool;
    /// See [`Publisher::begin`].
    fn begin(&mut self);
    /// See [`Publisher::commit`].
    fn commit(&mut self, end: Lsn);
    /// See [`Publisher::idle`].
    fn idle(&mut self, sent: Lsn);
    /// See [`Publisher::link`].
    fn link(&self, lane: Lane) -> Link;
    /// See [`Publisher::fits`].
    fn fits(&self, partition_key: &str, bytes: usize) -> bool;
    /// See [`Publisher::offer`].
    fn offer(&mut self, now: Monotonic, offer: Offer<'_>);
    /// See [`Publisher::barrier_begin`].
    fn barrier_begin(&mut self);
    /// See [`Publisher::barrier`].
    fn barrier(&self) -> Barrier;
    /// See [`Publisher::barrier_offered`].
    fn barrier_offered(&mut self);
    /// See [`Publisher::poll`].
    fn poll(&mut self, now: Monotonic, leading: bool) -> Option<Task<Self::Call>>;
    /// See [`Publisher::wake`].
    fn wake(&self) -> Option<Monotonic>;
    /// See [`Publisher::answered`].
    fn answered(&mut self, now: Monotonic, call: Self::Call, answer: Answer);
    /// See [`Publisher::asks_for_shards`].
    fn asks_for_shards(&mut self, now: Monotonic) -> bool;
    /// See [`Publisher::shards`].
    fn shards(&mut self, open: &[OpenShard]);
    /// See [`Publisher::stored`].
    fn stored(&mut self, now: Monotonic, lane: Lane, durable: bool);
    /// See [`Publisher::replace`].
    fn replace(&mut self, now: Monotonic, lane: Lane, pointers: Vec<(Vec<u8>, Parked)>);
    /// See [`Publisher::confirmed`].
    fn confirmed(&self) -> Lsn;
    /// See [`Publisher::settled_events`].
    fn settled_events(&self) -> u64;
    /// See [`Publisher::inflight`].
    fn inflight(&self) -> (usize, usize);
}

impl Pipeline for Publisher {
    const FENCED: bool = true;
    type Call = CallId;

    fn new(setup: Setup) -> Self {
        let Setup { settings, limits, lanes, era, confirmed, entropy } = setup;
        Self::new(settings, limits, lanes, era, confirmed, entropy)
    }

    fn wants_more(&self) -> bool {
        self.wants_more()
    }

    fn begin(&mut self) {
        self.begin();
    }

    fn commit(&mut self, end: Lsn) {
        self.commit(end);
    }

    fn idle(&mut self, sent: Lsn) {
        self.idle(sent);
    }

    fn link(&self, lane: Lane) -> Link {
        self.link(lane)
    }

    fn fits(&self, partition_key: &str, bytes: usize) -> bool {
        self.fits(partition_key, bytes)
    }

    fn offer(&mut self, now: Monotonic, offer: Offer<'_>) {
        self.offer(now, offer);
    }

    fn barrier_begin(&mut self) {
        self.barrier_begin();
    }

    fn barrier(&self) -> Barrier {
        self.barrier()
    }

    fn barrier_offered(&mut self) {
        self.barrier_offered();
    }

    fn poll(&mut self, now: Monotonic, leading: bool) -> Option<Task<CallId>> {
        self.poll(now, leading).map(|work| match work {
            Work::Call(call) => Task::Call(call.id, call.records),
            Work::Store { lane, id, parked } => Task::Store(lane, id, parked),
            Work::Replace(refused) => Task::Replace(refused),
        })
    }

    fn wake(&self) -> Option<Monotonic> {
        self.wake()
    }

    fn answered(&mut self, now: Monotonic, call: CallId, answer: Answer) {
        self.answered(now, call, answer);
    }

    fn asks_for_shards(&mut self, now: Monotonic) -> bool {
        self.asks_for_shards(now)
    }

    fn shards(&mut self, open: &[OpenShard]) {
        self.shards(open);
    }

    fn stored(&mut self, now: Monotonic, lane: Lane, durable: bool) {
        self.stored(now, lane, durable);
    }

    fn replace(&mut self, now: Monotonic, lane: Lane, pointers: Vec<(Vec<u8>, Parked)>) {
        self.replace(now, lane, pointers);
    }

    fn confirmed(&self) -> Lsn {
        self.confirmed()
    }

    fn settled_events(&self) -> u64 {
        self.settled_events()
    }

    fn inflight(&self) -> (usize, usize) {
        self.inflight()
    }
}
