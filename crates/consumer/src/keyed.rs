//! Records of different keys at the same time, those of one key in their order.
//!
//! ```text
//!   shard ──► key a ──► slot 0 ──┐
//!         ──► key b ──► slot 1 ──┼──► watermark: as far as everything is done
//!         ──► key c ──► slot 0 ──┘
//! ```

use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroUsize;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::opening::Start;
use crate::processor::{Batch, Drain, Failure, Settlement, ShardContext, ShardProcessor};
use crate::progress::Fetched;
use crate::record::Delivered;
use crate::stop::Stop;

/// Records that wait in one slot.
const QUEUE_MAX: usize = 256;

/// Processes one record at a time; several keys at once.
#[async_trait]
pub trait KeyedProcessor: Send + Sync {
    /// What keeps its order. The partition key, unless you say otherwise.
    fn key<'a>(&self, record: &'a Delivered) -> &'a [u8] {
        record.partition_key.as_bytes()
    }

    /// One record.
    ///
    /// # Errors
    /// Whatever went wrong. It comes again, a few times; then by the policy of the worker.
    async fn process(&self, record: &Delivered) -> Result<(), Failure>;

    /// No record follows, and all are done.
    ///
    /// # Errors
    /// Whatever went wrong.
    async fn drain(&self, why: Drain) -> Result<(), Failure> {
        let _ = why;
        Ok(())
    }
}

/// Runs a [`KeyedProcessor`] in so many slots.
pub struct Keyed<P> {
    processor: Arc<P>,
    slots: NonZeroUsize,
    running: Option<Running>,
}

struct Running {
    queues: Vec<mpsc::Sender<Queued>>,
    /// Dropped, it ends them.
    tasks: Vec<AbortOnDropHandle<()>>,
}

struct Queued {
    fetched: Arc<Fetched>,
    index: usize,
}

impl<P> Keyed<P> {
    /// Up to `slots` records at once.
    #[must_use]
    pub fn new(slots: NonZeroUsize, processor: P) -> Self {
        Self { processor: Arc::new(processor), slots, running: None }
    }
}

#[async_trait]
impl<P: KeyedProcessor + 'static> ShardProcessor for Keyed<P> {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let mut running = Running { queues: Vec::new(), tasks: Vec::new() };
        for _ in 0..self.slots.get() {
            let (queue, queued) = mpsc::channel(QUEUE_MAX);
            let slot = slot(self.processor.clone(), shard.clone(), queued);
            running.queues.push(queue);
            running.tasks.push(AbortOnDropHandle::new(tokio::spawn(slot)));
        }
        self.running = Some(running);
        Ok(Start::Lease)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let Some(running) = &self.running else { return Err(not_running()) };
        for index in batch.range.clone() {
            let Some(record) = batch.fetched.records.get(index) else { continue };
            let mut hasher = DefaultHasher::new();
            self.processor.key(record).hash(&mut hasher);
            let slot = (hasher.finish() % self.slots.get() as u64) as usize;
            let queued = Queued { fetched: batch.fetched.clone(), index };
            let Some(queue) = running.queues.get(slot) else { return Err(not_running()) };
            if queue.send(queued).await.is_err() {
                // Its slot has said why.
                return Err(not_running());
            }
        }
        Ok(())
    }

    async fn drain(&mut self, why: Drain) -> Result<(), Failure> {
        let Some(mut running) = self.running.take() else { return Err(not_running()) };
        running.queues.clear();
        for task in running.tasks.drain(..) {
            // Its own panics are caught inside.
            let _ = task.await;
        }
        self.processor.drain(why).await
    }

    async fn lost(&mut self) {
        self.running = None;
    }

    fn settlement(&self) -> Settlement {
        Settlement::ByHand
    }
}

fn not_running() -> Failure {
    Stop::Processor("the slots of this shard have ended: it is to be taken anew".to_owned()).into()
}

/// Works off the records of its keys, in order, until one stops the shard.
async fn slot<P: KeyedProcessor>(processor: Arc<P>, shard: ShardContext, mut queued: mpsc::Receiver<Queued>) {
    while let Some(Queued { fetched, index }) = queued.recv().await {
        let Some(record) = fetched.records.get(index) else { continue };
        match shard.recovery.one(record, || processor.process(record)).await {
            Ok(()) => shard.checkpointer.settle(record),
            Err(failure) => {
                shard.checkpointer.fail(failure);
                return;
            }
        }
    }
}
