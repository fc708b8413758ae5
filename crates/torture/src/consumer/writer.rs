//! Writes records to the stream, and knows which it accepted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tenure_clock::{Clock as _, SystemClock};
use tenure_stream::{Record, Stream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::ledger::RecordId;

/// Keys whose order is looked at.
const KEYS: u32 = 64;
/// Records of one put, all of distinct keys: so that a put that is partly refused disorders nothing.
const RECORDS_PER_PUT: u32 = 16;
/// Between two puts.
const PAUSE: Duration = Duration::from_millis(20);
const PUT_TIMEOUT: Duration = Duration::from_secs(10);

/// At work until it is asked to end.
pub(crate) struct Writer {
    stop: CancellationToken,
    task: JoinHandle<BTreeSet<RecordId>>,
}

impl Writer {
    pub(crate) fn start(stream: Arc<dyn Stream>) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(write(stream, stop.clone()));
        Self { stop, task }
    }

    /// Ends it: what the stream has accepted.
    pub(crate) async fn end(self) -> Result<BTreeSet<RecordId>> {
        self.stop.cancel();
        self.task.await.context("the writer broke down")
    }
}

async fn write(stream: Arc<dyn Stream>, stop: CancellationToken) -> BTreeSet<RecordId> {
    let mut written = BTreeSet::new();
    let mut next: BTreeMap<u32, u64> = BTreeMap::new();
    let mut first = 0;
    while !stop.is_cancelled() {
        let keys = (0..RECORDS_PER_PUT).map(|offset| (first + offset) % KEYS);
        let batch: Vec<_> = keys
            .map(|key| {
                let number = next.entry(key).or_default();
                // A number that may have landed is never used again.
                *number += 1;
                RecordId { key, number: *number }
            })
            .collect();
        let records: Vec<_> = batch
            .iter()
            .map(|id| Record::new(format!("key-{}", id.key), format!("{}:{}", id.key, id.number)))
            .collect();
        if let Ok(puts) = stream.put(SystemClock.deadline(PUT_TIMEOUT), &records).await {
            written
                .extend(batch.iter().zip(&puts).filter(|(_, put)| put.stored().is_some()).map(|(id, _)| *id));
        }
        first = (first + RECORDS_PER_PUT) % KEYS;
        SystemClock.sleep(PAUSE).await;
    }
    written
}
