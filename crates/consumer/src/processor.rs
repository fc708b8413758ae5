//! What your code implements.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_leases::{Holding, Lease};
use tenure_stream::ShardId;

use crate::checkpointer::Checkpointer;
use crate::marks::Marks;
use crate::opening::{SeekTo, Start};
use crate::progress::Fetched;
use crate::record::Delivered;
use crate::recovery::Recovery;

/// Why a processor failed: any error. A [`tenure_backend::Error`] says by its kind whether it may help to
/// try again, and [`crate::Stop`] stops the shard at once.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Processes the records of one shard.
///
/// ```text
///   init ──► process … process ──► drain      the shard goes elsewhere, this program stops, or it has ended
///                    └───────────► lost       it is not ours any more
/// ```
///
/// Calls never overlap. A record comes at least once; what comes twice was not checkpointed before a crash.
/// Records of one partition key come in their order.
#[async_trait]
pub trait ShardProcessor: Send {
    /// Before the first batch. Answers where to begin: where the lease says, unless your own store knows better.
    ///
    /// # Errors
    /// Whatever keeps it from beginning. It is asked again after a pause, a few times.
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let _ = shard;
        Ok(Start::Lease)
    }

    /// Some records, in order.
    ///
    /// # Errors
    /// Whatever went wrong. What was not settled with [`Batch::settle_through`] comes again.
    ///
    /// # Cancel safety
    /// The call is dropped when the lease is lost.
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure>;

    /// No batch follows. Finish what is under way: a checkpoint follows, and whoever comes next begins there.
    ///
    /// # Errors
    /// Whatever went wrong. What is settled by then is checkpointed all the same.
    async fn drain(&mut self, why: Drain) -> Result<(), Failure> {
        let _ = why;
        Ok(())
    }

    /// The lease is lost: somebody else may be reading already. Undo or leave what is under way.
    async fn lost(&mut self) {}

    /// When a record counts as processed.
    fn settlement(&self) -> Settlement {
        Settlement::OnReturn
    }
}

/// When a record counts as processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Settlement {
    /// When [`ShardProcessor::process`] returns.
    #[default]
    OnReturn,
    /// When it is settled through a [`Checkpointer`], which may be after `process` returned.
    ByHand,
}

/// Why no batch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// Another worker takes the shard.
    Handoff,
    /// This worker stops reading it.
    Shutdown,
    /// The shard is closed, and this was its end.
    ShardEnd,
}

/// Makes a processor for each shard. Closures that return one are factories.
pub trait ProcessorFactory: Send + Sync {
    /// A processor for this shard.
    fn make(&self, shard: &ShardContext) -> Box<dyn ShardProcessor>;
}

impl<F, P> ProcessorFactory for F
where
    F: Fn(&ShardContext) -> P + Send + Sync,
    P: ShardProcessor + 'static,
{
    fn make(&self, shard: &ShardContext) -> Box<dyn ShardProcessor> {
        Box::new(self(shard))
    }
}

/// What a processor knows of its shard. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ShardContext {
    pub(crate) app: Arc<str>,
    pub(crate) stream: Arc<str>,
    pub(crate) holding: Holding,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) sought: Option<SeekTo>,
    pub(crate) recovery: Recovery,
}

impl ShardContext {
    /// The application.
    #[must_use]
    pub fn app(&self) -> &str {
        &self.app
    }

    /// The stream's name.
    #[must_use]
    pub fn stream(&self) -> &str {
        &self.stream
    }

    /// The shard.
    #[must_use]
    pub fn shard(&self) -> &ShardId {
        &self.lease().shard
    }

    /// The lease as it was when it was taken.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        self.holding.lease()
    }

    /// The leases of its parents.
    #[must_use]
    pub fn parents(&self) -> &[Lease] {
        self.holding.parents()
    }

    /// Where an operator wanted it read from, if it is begun for that.
    #[must_use]
    pub const fn sought(&self) -> Option<&SeekTo> {
        self.sought.as_ref()
    }

    /// Whether records may be processed now.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.holding.is_valid()
    }

    /// For processors that settle by hand, or want a checkpoint now.
    #[must_use]
    pub const fn checkpointer(&self) -> &Checkpointer {
        &self.checkpointer
    }
}

/// Some records of a shard, in order.
#[derive(Debug)]
pub struct Batch {
    pub(crate) context: ShardContext,
    pub(crate) fetched: Arc<Fetched>,
    /// Which of them.
    pub(crate) range: Range<usize>,
    pub(crate) behind: Duration,
}

impl Batch {
    /// The records.
    #[must_use]
    pub fn records(&self) -> &[Delivered] {
        self.fetched.records.get(self.range.clone()).unwrap_or_default()
    }

    /// The shard.
    #[must_use]
    pub const fn shard(&self) -> &ShardContext {
        &self.context
    }

    /// How far the end of this batch was behind the shard's newest record when it was read.
    #[must_use]
    pub const fn behind(&self) -> Duration {
        self.behind
    }

    /// Whether to go on with the records: ask before each one that takes long.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.context.is_valid()
    }

    /// This record and all before it are processed: should the rest fail, they do not come again. It also
    /// says that work gets on, which keeps the lease.
    pub fn settle_through(&self, record: &Delivered) {
        self.context.checkpointer.settle_through(record);
    }

    /// What a checkpoint at the end of this batch would hold: for a store of your own.
    #[must_use]
    pub fn marks(&self) -> Option<Marks> {
        let last = self.records().last()?;
        self.context.checkpointer.marks_through(last.number + 1)
    }
}
