//! Where the rows are: typed and fast, or the real store with the real conditions.
//!
//! Both must answer alike. A test runs the same schedules on either and compares every line.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tenure_backend::Env;
use tenure_clock::{Entropy, ManualTime, Monotonic};
use tenure_election::testing::LockTable;
use tenure_election::{
    Answer, Attempt, Epoch, Fence, FenceMark, Lock, Nonce, Place, Refused, ResignRequest, ShardId, TABLE,
    table_spec,
};
use tenure_store::{Condition, Item, Key, Memory, Store, Write, Written};

/// The rows of one shard.
pub trait Table: Default {
    /// The LOCK row.
    fn lock(&self) -> Option<Lock>;
    /// The FENCE row.
    fn fence(&self) -> Option<FenceMark>;
    /// Carries out an attempt if its condition holds.
    fn write(&mut self, attempt: &Attempt) -> Answer;
    /// The LOCK row's `ttl`.
    fn ttl(&self) -> Option<i64>;
    /// Deletes the LOCK row; false if there was none.
    fn delete_lock(&mut self) -> bool;
    /// Writes a request to hand over into a row that is led; nothing if there is none.
    fn ask_to_resign(&mut self, nonce: Nonce) -> Option<ResignRequest>;
    /// Whether a write guarded by the FENCE row is accepted from the leader of `epoch`.
    fn admits(&self, epoch: Epoch) -> bool;
}

impl Table for LockTable {
    fn lock(&self) -> Option<Lock> {
        self.rows.lock.clone()
    }

    fn fence(&self) -> Option<FenceMark> {
        self.rows.fence
    }

    fn write(&mut self, attempt: &Attempt) -> Answer {
        self.write(attempt)
    }

    fn ttl(&self) -> Option<i64> {
        self.rows.lock.as_ref().map(|lock| lock.ttl)
    }

    fn delete_lock(&mut self) -> bool {
        let was_there = self.rows.lock.is_some();
        self.delete_lock();
        was_there
    }

    fn ask_to_resign(&mut self, nonce: Nonce) -> Option<ResignRequest> {
        let lock = self.rows.lock.as_mut().filter(|lock| lock.ttl > 0)?;
        let request = ResignRequest { nonce, to: None };
        lock.resign = Some(request.clone());
        Some(request)
    }

    fn admits(&self, epoch: Epoch) -> bool {
        self.admits(epoch)
    }
}

/// The place of the simulated shard.
#[must_use]
pub fn place() -> Place {
    Place { table: TABLE.to_owned(), shard: ShardId::new("s").expect("one letter is a shard id") }
}

/// The rows in a real store, reached as the driver reaches it.
#[derive(Debug)]
pub struct StoredTable {
    store: Memory,
    place: Place,
}

impl Default for StoredTable {
    fn default() -> Self {
        // Its own time stands still, so that it sweeps nothing: reaping is the schedule's.
        let env = Env { clock: Arc::new(ManualTime::default().clock()), entropy: Entropy::seeded(0) };
        let (store, place) = (Memory::new(&env), place());
        ready(store.ensure_table(Monotonic::NEVER, &table_spec(&place.table))).expect("a fresh table");
        Self { store, place }
    }
}

impl StoredTable {
    fn get(&self, key: &Key) -> Option<Item> {
        ready(self.store.get(Monotonic::NEVER, &self.place.table, key)).expect("memory does not fail")
    }

    fn apply(&self, writes: &[Write]) -> Written {
        let written = match writes {
            [write] => ready(self.store.write(Monotonic::NEVER, write)),
            writes => ready(self.store.transact(Monotonic::NEVER, writes, "nonce")),
        };
        written.expect("memory does not fail")
    }
}

impl Table for StoredTable {
    fn lock(&self) -> Option<Lock> {
        self.get(&self.place.lock_key()).map(|item| self.place.lock(&item).expect("the row is ours"))
    }

    fn fence(&self) -> Option<FenceMark> {
        self.get(&self.place.fence_key()).map(|item| self.place.fence(&item).expect("the row is ours"))
    }

    fn write(&mut self, attempt: &Attempt) -> Answer {
        let writes = self.place.writes(attempt);
        match self.apply(&writes) {
            Written::Applied(item) => {
                let renewed = matches!(attempt, Attempt::Renew(_));
                let resign = renewed.then(|| self.place.lock(&item).expect("the row is ours").resign);
                Answer::Applied { resign: resign.flatten() }
            }
            Written::Refused(refusal) => match self.place.refusal(&refusal).expect("the row is ours") {
                Refused::ByLock(lock) => Answer::RefusedByLock(lock),
                Refused::ByFence(mark) => Answer::RefusedByFence(mark),
            },
        }
    }

    fn ttl(&self) -> Option<i64> {
        self.lock().map(|lock| lock.ttl)
    }

    fn delete_lock(&mut self) -> bool {
        let was_there = self.lock().is_some();
        let (table, key) = (self.place.table.clone(), self.place.lock_key());
        self.apply(&[Write::Delete { table, key, when: Condition::Always }]);
        was_there
    }

    fn ask_to_resign(&mut self, nonce: Nonce) -> Option<ResignRequest> {
        let lock = self.lock()?;
        let request = ResignRequest { nonce, to: None };
        let write = self.place.ask_to_resign(&lock.owner, lock.epoch?, &request);
        self.apply(&[write]).is_applied().then_some(request)
    }

    fn admits(&self, epoch: Epoch) -> bool {
        // A real transaction: the check, and a row of the guarded work.
        let fence = Fence::new(self.place.clone(), epoch);
        let work = [Write::Put {
            table: self.place.table.clone(),
            item: Key::new("pk", "work").and("sk", "work").as_item().clone(),
            when: Condition::Always,
        }];
        let transaction = fence.transact(&self.store, Monotonic::NEVER, &work, "nonce");
        ready(Box::pin(transaction)).is_ok()
    }
}

/// The memory store answers at the first poll: there is nothing to wait for.
fn ready<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the memory store does not wait"),
    }
}
