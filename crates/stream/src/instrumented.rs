//! A stream that counts and times its calls.
//!
//! | Metric | Labels | Meaning |
//! |---|---|---|
//! | `tenure_stream_calls_total` | `stream`, `op`, `outcome` | calls by how they ended: `ok` or the kind of the error |
//! | `tenure_stream_call_seconds` | `stream`, `op` | how long they took |
//! | `tenure_stream_records_total` | `stream`, `op`, `outcome` | records put (`stored`, `throttled`, `refused`) and read (`ok`) |
//! | `tenure_stream_bytes_total` | `stream`, `op` | bytes of records stored and read, keys included |

use std::sync::Arc;

use async_trait::async_trait;
use metrics::{SharedString, counter, histogram};
use tenure_backend::Result;
use tenure_clock::{Clock, Monotonic};
use tracing::Instrument;

use crate::stream::{Description, Page, ShardPage, Stream, StreamSpec};
use crate::{Cursor, HashKey, Limits, Position, Put, Read, Record, ShardId};

/// Counts and times the calls of the stream behind it, and gives each a tracing span.
#[derive(Debug, Clone)]
pub struct Instrumented {
    inner: Arc<dyn Stream>,
    clock: Arc<dyn Clock>,
    label: SharedString,
}

impl Instrumented {
    /// Watches `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Stream>, clock: Arc<dyn Clock>) -> Self {
        let label = SharedString::from(inner.name().to_owned());
        Self { inner, clock, label }
    }

    async fn watched<T>(&self, op: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
        let span = tracing::debug_span!("stream", stream = self.inner.name(), op);
        let begun = self.clock.monotonic();
        let result = call.instrument(span.clone()).await;
        let took = self.clock.monotonic().since(begun);
        let outcome = result.as_ref().map_or_else(|error| error.kind().name(), |_| "ok");
        histogram!("tenure_stream_call_seconds", "stream" => self.label.clone(), "op" => op)
            .record(took.as_secs_f64());
        counter!("tenure_stream_calls_total", "stream" => self.label.clone(), "op" => op, "outcome" => outcome)
            .increment(1);
        if let Err(error) = &result {
            span.in_scope(|| tracing::debug!(error = %error.chain(), kind = outcome, "stream call failed"));
        }
        result
    }

    fn count_records(&self, op: &'static str, outcome: &'static str, records: usize) {
        if records > 0 {
            counter!("tenure_stream_records_total", "stream" => self.label.clone(), "op" => op, "outcome" => outcome)
                .increment(records as u64);
        }
    }

    fn count_bytes(&self, op: &'static str, bytes: usize) {
        counter!("tenure_stream_bytes_total", "stream" => self.label.clone(), "op" => op)
            .increment(bytes as u64);
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Stream for Instrumented {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        self.watched("create", self.inner.create(by, spec)).await
    }

    async fn describe(&self, by: Monotonic) -> Result<Description> {
        self.watched("describe", self.inner.describe(by)).await
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.watched("limits", self.inner.limits(by)).await
    }

    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage> {
        self.watched("shards", self.inner.shards(by, page)).await
    }

    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        let puts = self.watched("put", self.inner.put(by, records)).await?;
        let (mut stored, mut throttled, mut refused, mut bytes) = (0, 0, 0, 0);
        for (put, record) in puts.iter().zip(records) {
            match put {
                Put::Stored { .. } => {
                    stored += 1;
                    bytes += record.size_bytes();
                }
                Put::Throttled => throttled += 1,
                Put::Refused { .. } => refused += 1,
            }
        }
        self.count_records("put", "stored", stored);
        self.count_records("put", "throttled", throttled);
        self.count_records("put", "refused", refused);
        self.count_bytes("put", bytes);
        Ok(puts)
    }

    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        self.watched("cursor", self.inner.cursor(by, shard, position)).await
    }

    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        let read = self.watched("read", self.inner.read(by, cursor, limit)).await?;
        if let Read::Records(batch) = &read {
            self.count_records("read", "ok", batch.records.len());
            let size = |record: &crate::Stored| record.data.len() + record.partition_key.len();
            self.count_bytes("read", batch.records.iter().map(size).sum());
        }
        Ok(read)
    }

    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        self.watched("split", self.inner.split(by, shard, at)).await
    }

    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        self.watched("merge", self.inner.merge(by, shard, adjacent)).await
    }

    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()> {
        self.watched("rescale", self.inner.rescale(by, shards)).await
    }

    async fn delete(&self, by: Monotonic) -> Result<()> {
        self.watched("delete", self.inner.delete(by)).await
    }

    async fn wait(&self, by: Monotonic) {
        self.inner.wait(by).await;
    }
}
