//! The seed document's own publisher: the positive control.
//!
//! It acknowledges the places of changes, sends only what failed again while what came later is there
//! already, gives up after a few attempts and acknowledges what it dropped, and begins wherever the slot
//! happens to be.

use std::collections::VecDeque;
use std::time::Duration;

use tenure_cdc::publisher::{Answer, Barrier, Link, Offer, Parked};
use tenure_cdc::shard_budget::OpenShard;
use tenure_clock::Monotonic;
use tenure_stream::identity::{Floor, Lane, Lanes, Lsn};
use tenure_stream::{Put, Record};

use super::pipeline::{Pipeline, Setup, Task};

/// How often it tries.
const ATTEMPTS_MAX: u32 = 5;
/// Its first wait, which doubles.
const BACKOFF: Duration = Duration::from_millis(20);
/// Most events in a call.
const BATCH_MAX: usize = 8;
/// Most events that wait.
const QUEUE_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct SeedPublisher {
    lanes: Lanes,
    /// What was received: its place, and whether it was published or dropped.
    tracker: VecDeque<(Lsn, bool)>,
    /// How many were taken out of the tracker.
    before: u64,
    frontier: Lsn,
    queue: VecDeque<Entry>,
    /// What is being sent, or waits to be sent again.
    batch: Vec<Entry>,
    attempts: u32,
    calling: bool,
    not_before: Monotonic,
    settled: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    record: Record,
}

impl SeedPublisher {
    /// Published, or dropped: it makes no difference.
    fn done(&mut self, number: u64) {
        self.settled += 1;
        if let Some(entry) = number.checked_sub(self.before).and_then(|at| self.tracker.get_mut(at as usize))
        {
            entry.1 = true;
        }
        while let Some((lsn, true)) = self.tracker.front() {
            self.frontier = *lsn;
            self.tracker.pop_front();
            self.before += 1;
        }
    }
}

impl Pipeline for SeedPublisher {
    const FENCED: bool = false;
    type Call = ();

    fn new(setup: Setup) -> Self {
        Self {
            lanes: setup.lanes,
            tracker: VecDeque::new(),
            before: 0,
            frontier: setup.confirmed,
            queue: VecDeque::new(),
            batch: Vec::new(),
            attempts: 0,
            calling: false,
            not_before: Monotonic::default(),
            settled: 0,
        }
    }

    fn wants_more(&self) -> bool {
        self.queue.len() < QUEUE_MAX
    }

    fn begin(&mut self) {}

    fn commit(&mut self, _end: Lsn) {}

    fn idle(&mut self, _sent: Lsn) {}

    fn link(&self, _lane: Lane) -> Link {
        Link { prev: None, floor: Floor::default() }
    }

    fn fits(&self, _partition_key: &str, _bytes: usize) -> bool {
        true
    }

    fn offer(&mut self, _now: Monotonic, offer: Offer<'_>) {
        let number = self.before + self.tracker.len() as u64;
        self.tracker.push_back((offer.id.change, false));
        let record = Record {
            partition_key: offer.partition_key.into(),
            explicit_hash_key: Some(self.lanes.hash_key(offer.lane)),
            data: offer.bytes.to_vec().into(),
        };
        self.queue.push_back(Entry { number, record });
    }

    fn barrier_begin(&mut self) {}

    fn barrier(&self) -> Barrier {
        Barrier::Ready
    }

    fn barrier_offered(&mut self) {}

    fn poll(&mut self, now: Monotonic, _leading: bool) -> Option<Task<()>> {
        if self.calling || now < self.not_before {
            return None;
        }
        if self.batch.is_empty() {
            let count = self.queue.len().min(BATCH_MAX);
            self.batch.extend(self.queue.drain(..count));
            self.attempts = 0;
        }
        if self.batch.is_empty() {
            return None;
        }
        self.calling = true;
        Some(Task::Call((), self.batch.iter().map(|entry| entry.record.clone()).collect()))
    }

    fn wake(&self) -> Option<Monotonic> {
        let idle = self.batch.is_empty() && self.queue.is_empty();
        (!self.calling && !idle).then_some(self.not_before)
    }

    fn answered(&mut self, now: Monotonic, (): (), answer: Answer) {
        self.calling = false;
        self.attempts += 1;
        let batch = std::mem::take(&mut self.batch);
        let mut results = match answer {
            Answer::Records(results) => results.into_iter(),
            Answer::Failed(_) => Vec::new().into_iter(),
        };
        for entry in batch {
            match results.next() {
                Some(Put::Stored { .. } | Put::Refused { .. }) => self.done(entry.number),
                _ if self.attempts >= ATTEMPTS_MAX => self.done(entry.number),
                _ => self.batch.push(entry),
            }
        }
        self.not_before = now + BACKOFF * (1 << self.attempts.min(6));
    }

    fn asks_for_shards(&mut self, _now: Monotonic) -> bool {
        false
    }

    fn shards(&mut self, _open: &[OpenShard]) {}

    fn stored(&mut self, _now: Monotonic, _lane: Lane, _durable: bool) {}

    fn replace(&mut self, _now: Monotonic, _lane: Lane, _pointers: Vec<(Vec<u8>, Parked)>) {}

    fn confirmed(&self) -> Lsn {
        self.frontier
    }

    fn settled_events(&self) -> u64 {
        self.settled
    }

    fn inflight(&self) -> (usize, usize) {
        (0, 0)
    }
}
