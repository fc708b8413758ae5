//! Our consumer over a whole stream, with a processor that visits every record.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_consumer::{Batch, Consumer, Failure, ShardContext, ShardProcessor, Start};
use tenure_store::Store;
use tenure_stream::Stream;
use tokio::sync::Notify;

use crate::cpu_seconds;

/// What it took, from when the first shard is begun.
pub(crate) struct Visited {
    pub(crate) took: Duration,
    /// Of this whole process.
    pub(crate) cpu_seconds: f64,
}

/// Consumes so many records as a new application, with leases and checkpoints.
pub(crate) async fn visit(
    stream: Arc<dyn Stream>,
    store: Arc<dyn Store>,
    application: String,
    wanted: u64,
) -> anyhow::Result<Visited> {
    let counter = Arc::new(Counter::default());
    let made = counter.clone();
    let cpu_before = cpu_seconds()?;
    let consumer = Consumer::builder(stream, store, application, "one")
        .start(move |_: &ShardContext| Visitor { counter: made.clone(), wanted })
        .await?;
    counter.done.notified().await;
    let first = Monotonic::from_nanos(counter.first.load(Ordering::Relaxed));
    let visited =
        Visited { took: SystemClock.monotonic().since(first), cpu_seconds: cpu_seconds()? - cpu_before };
    consumer.stop().await?;
    Ok(visited)
}

#[derive(Default)]
struct Counter {
    records: AtomicU64,
    bytes: AtomicU64,
    /// When the first shard was begun.
    first: AtomicU64,
    done: Notify,
}

struct Visitor {
    counter: Arc<Counter>,
    wanted: u64,
}

#[async_trait]
impl ShardProcessor for Visitor {
    async fn init(&mut self, _shard: &ShardContext) -> Result<Start, Failure> {
        let now = SystemClock.monotonic().as_nanos();
        let _ = self.counter.first.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        Ok(Start::Lease)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let bytes = batch.records().iter().map(|record| record.data.len() as u64).sum();
        self.counter.bytes.fetch_add(bytes, Ordering::Relaxed);
        let count = batch.records().len() as u64;
        if self.counter.records.fetch_add(count, Ordering::Relaxed) + count >= self.wanted {
            self.counter.done.notify_one();
        }
        Ok(())
    }
}
