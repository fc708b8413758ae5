//! Hands a batch to a processor until it is done, or until there is no use in trying.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::processor::{Batch, Settlement, ShardContext, ShardProcessor};
use crate::progress::Fetched;
use crate::recovery::{Answer, caught};
use crate::stop::Stop;

/// A processor, held while it works. Work that is cut off gives it back.
pub(crate) type Shared = Arc<Mutex<Box<dyn ShardProcessor>>>;

/// Why a batch was not delivered.
#[derive(Debug)]
pub(crate) enum Undelivered {
    /// The shard stops.
    Stop(Stop),
    /// Somebody else has the shard.
    Fenced,
}

/// One batch on its way.
pub(crate) struct Delivery {
    pub(crate) processor: Shared,
    pub(crate) context: ShardContext,
    pub(crate) fetched: Arc<Fetched>,
    pub(crate) behind: Duration,
    /// The number of its first record.
    pub(crate) first: u64,
}

impl Delivery {
    /// Delivers it: all at once, again after failures, and in the end one by one if the policy is to go on.
    ///
    /// # Cancel safety
    /// Dropped, the processor's call is dropped. What is not settled counts as not processed.
    pub(crate) async fn run(self) -> Result<(), Undelivered> {
        let count = self.fetched.records.len();
        let mut from = 0;
        let mut failures = 0;
        while from < count {
            let Err(failure) = self.attempt(from..count).await else { return Ok(()) };
            let settled = self.settled();
            if settled > from {
                // It got on: the count begins anew.
                from = settled;
                failures = 0;
            }
            failures += 1;
            match self.context.recovery.after(&failure, failures).await {
                Answer::Again => {}
                Answer::GaveUp(_) => return self.one_by_one(from).await,
                Answer::Stop(stop) => return Err(Undelivered::Stop(stop)),
                Answer::Fenced => return Err(Undelivered::Fenced),
            }
        }
        Ok(())
    }

    /// Finds the records that are to blame: the others are processed, and these are kept as dead letters.
    async fn one_by_one(&self, from: usize) -> Result<(), Undelivered> {
        for index in from..self.fetched.records.len() {
            let Some(record) = self.fetched.records.get(index) else { continue };
            let mut failures = 0;
            while let Err(failure) = self.attempt(index..index + 1).await {
                failures += 1;
                match self.context.recovery.after(&failure, failures).await {
                    Answer::Again => {}
                    Answer::GaveUp(why) => {
                        self.context.recovery.bury(record, &why).await.map_err(Undelivered::Stop)?;
                        self.context.checkpointer.settle(record);
                        break;
                    }
                    Answer::Stop(stop) => return Err(Undelivered::Stop(stop)),
                    Answer::Fenced => return Err(Undelivered::Fenced),
                }
            }
        }
        Ok(())
    }

    async fn attempt(&self, range: std::ops::Range<usize>) -> Result<(), crate::processor::Failure> {
        let mut processor = self.processor.lock().await;
        let numbers = self.first + range.start as u64..self.first + range.end as u64;
        let batch = Batch {
            context: self.context.clone(),
            fetched: self.fetched.clone(),
            range,
            behind: self.behind,
        };
        // Right before: this is the rule that two workers never deliver at once.
        self.context.recovery.until_valid().await;
        self.context.holding.progress(true);
        let settlement = caught(async {
            processor.process(&batch).await?;
            Ok(processor.settlement())
        });
        if settlement.await? == Settlement::OnReturn {
            self.context.checkpointer.settle_numbers(numbers);
        }
        Ok(())
    }

    /// How many of its records are settled, from the first on.
    fn settled(&self) -> usize {
        let reached = self.context.checkpointer.reached().saturating_sub(self.first);
        usize::try_from(reached).unwrap_or(usize::MAX).min(self.fetched.records.len())
    }
}
