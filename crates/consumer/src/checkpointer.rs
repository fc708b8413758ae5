//! Settling records and storing checkpoints: what a processor may do by hand.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_backend::{Error, Kind, Result};
use tenure_clock::WallTime;
use tenure_leases::{Checkpoint, Holding};
use tokio::sync::Notify;
use tracing::warn;

use crate::dedup::Dedup;
use crate::marks::{Begun, Marks};
use crate::meters::Meters;
use crate::processor::Failure;
use crate::progress::{Fetched, Progress};
use crate::record::{Delivered, Place};

/// Settles records of one shard and stores checkpoints. Cheap to clone.
///
/// A checkpoint is always as far as everything before it is settled, whatever was settled beyond.
#[derive(Debug, Clone)]
pub struct Checkpointer {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    holding: Holding,
    progress: Mutex<Progress>,
    /// What was last stored. Held while one is stored, so that they land in their order.
    stored: tokio::sync::Mutex<Option<(Checkpoint, Option<WallTime>)>>,
    /// Something was settled.
    settled: Notify,
    /// What went wrong in the background, and that something did.
    failure: Mutex<Option<Failure>>,
    failed: Notify,
    /// The run that it belongs to is over.
    closed: AtomicBool,
    meters: Meters,
}

impl Checkpointer {
    pub(crate) fn new(holding: Holding, meters: Meters) -> Self {
        let shared = Shared {
            holding,
            progress: Mutex::new(Progress::new(Dedup::unknown(), None)),
            stored: tokio::sync::Mutex::new(None),
            settled: Notify::new(),
            failure: Mutex::new(None),
            failed: Notify::new(),
            closed: AtomicBool::new(false),
            meters,
        };
        Self { shared: Arc::new(shared) }
    }

    /// This record is processed; others may not be.
    pub fn settle(&self, record: &Delivered) {
        self.settle_numbers(record.number..record.number + 1);
    }

    /// This record and all before it are processed.
    pub fn settle_through(&self, record: &Delivered) {
        self.settle_numbers(0..record.number + 1);
    }

    /// Stops the shard: for processors that work in the background, where nobody waits for an answer. The first
    /// failure counts.
    pub fn fail(&self, failure: Failure) {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        self.shared.failed.notify_one();
    }

    /// Stores how far everything is processed. Does nothing if that is stored already.
    ///
    /// # Errors
    /// `Fenced` if the shard is not ours any more: stop. Anything else may be tried again.
    ///
    /// # Cancel safety
    /// A call that is dropped may still be carried out.
    pub async fn checkpoint(&self) -> Result<()> {
        let mut stored = self.shared.stored.lock().await;
        // Only now: an older one must not follow a newer one.
        let Some(marks) = self.progress().marks() else { return Ok(()) };
        self.store(&mut stored, marks).await
    }

    /// Stores that the shard was read to its end.
    pub(crate) async fn checkpoint_end(&self) -> Result<()> {
        let mut stored = self.shared.stored.lock().await;
        let Some(marks) = self.progress().marks_at_end() else {
            return Err(Error::invalid("records are not settled, so the shard is not at its end"));
        };
        self.store(&mut stored, marks).await
    }

    /// Stores where a shard was begun that nobody has processed anything of.
    pub(crate) async fn checkpoint_begun(
        &self,
        word: Checkpoint,
        begun: Begun,
        through: Option<WallTime>,
    ) -> Result<()> {
        let mut stored = self.shared.stored.lock().await;
        let marks = Marks { begun: Some(begun), through, ..Marks::new(word, false, Dedup::unknown()) };
        self.store(&mut stored, marks.clone()).await?;
        self.progress().begun(marks);
        Ok(())
    }

    async fn store(&self, stored: &mut Option<(Checkpoint, Option<WallTime>)>, marks: Marks) -> Result<()> {
        if stored.as_ref().is_some_and(|(at, through)| *at == marks.at && *through == marks.through) {
            return Ok(());
        }
        if self.shared.closed.load(Ordering::Acquire) {
            return Err(Error::new(
                Kind::Fenced,
                "the shard is read anew: this checkpoint is of an earlier run",
            ));
        }
        let encoded = marks.encode();
        if encoded.cut > 0 {
            self.shared.meters.marks_cut.increment(1);
            warn!(
                sources = encoded.cut,
                "marks do not fit beside the checkpoint: their floors alone are kept"
            );
        }
        self.shared.holding.checkpoint(marks.at.clone(), Some(encoded.bytes)).await?;
        self.shared.meters.checkpoints.increment(1);
        *stored = Some((marks.at, marks.through));
        Ok(())
    }

    pub(crate) fn settle_numbers(&self, numbers: Range<u64>) {
        let outstanding = {
            let mut progress = self.progress();
            progress.settle(numbers);
            progress.outstanding()
        };
        self.shared.holding.progress(outstanding > 0);
        self.shared.settled.notify_one();
    }

    pub(crate) fn begin(&self, dedup: Dedup, stored: Option<Marks>) {
        // Nobody else has it yet. What is stored need not be stored again when it is read once more.
        if let Ok(mut last) = self.shared.stored.try_lock() {
            *last = stored.as_ref().map(|stored| (stored.at.clone(), stored.through));
        }
        *self.progress() = Progress::new(dedup, stored);
    }

    pub(crate) fn register(&self, fetched: Arc<Fetched>) -> Range<u64> {
        self.progress().register(fetched)
    }

    /// Completes when something was settled since the last time.
    pub(crate) async fn settled(&self) {
        self.shared.settled.notified().await;
    }

    /// Completes when something went wrong in the background.
    pub(crate) async fn failed(&self) {
        self.shared.failed.notified().await;
    }

    pub(crate) fn take_failure(&self) -> Option<Failure> {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn outstanding(&self) -> (u64, usize) {
        let progress = self.progress();
        (progress.outstanding(), progress.outstanding_bytes())
    }

    pub(crate) fn reached(&self) -> u64 {
        self.progress().reached()
    }

    pub(crate) fn at(&self) -> Option<Place> {
        self.progress().at().cloned()
    }

    /// What would be stored if everything below `end` were settled.
    pub(crate) fn marks_through(&self, end: u64) -> Option<Marks> {
        self.progress().marks_through(end)
    }

    pub(crate) fn close(&self) {
        self.shared.closed.store(true, Ordering::Release);
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
