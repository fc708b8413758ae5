//! A store that counts and times its calls, and traces them.
//!
//! Metrics: `tenure_store_calls_total{op, outcome}` and `tenure_store_call_seconds{op}`. Outcomes
//! are `ok`, `refused`, or the error's kind. Row contents stay out of spans.

use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_backend::Result;
use tenure_clock::{Clock, Monotonic};
use tracing::Instrument;

use crate::{Item, Key, Listing, Page, Query, Store, TableSpec, Write, Written};

/// Any store, observed.
#[derive(Debug)]
pub struct Instrumented<S> {
    inner: S,
    clock: Arc<dyn Clock>,
}

impl<S: Store> Instrumented<S> {
    /// Observes the calls to `inner`.
    pub fn new(inner: S, clock: Arc<dyn Clock>) -> Self {
        metrics::describe_counter!(
            "tenure_store_calls_total",
            "Calls to the store, by operation and outcome"
        );
        metrics::describe_histogram!(
            "tenure_store_call_seconds",
            metrics::Unit::Seconds,
            "How long calls to the store took, by operation"
        );
        Self { inner, clock }
    }

    async fn observed<T>(
        &self,
        op: &'static str,
        table: &str,
        call: impl Future<Output = Result<T>> + Send,
        outcome: impl Fn(&T) -> &'static str + Send,
    ) -> Result<T> {
        let began = self.clock.monotonic();
        let result = call.instrument(tracing::debug_span!("store", op, table)).await;
        let outcome = match &result {
            Ok(answer) => outcome(answer),
            Err(error) => error.kind().name(),
        };
        metrics::counter!("tenure_store_calls_total", "op" => op, "outcome" => outcome).increment(1);
        metrics::histogram!("tenure_store_call_seconds", "op" => op)
            .record(self.clock.monotonic().since(began).as_secs_f64());
        tracing::trace!(op, table, outcome, "store call");
        result
    }
}

fn ok<T>(_: &T) -> &'static str {
    "ok"
}

const fn written(written: &Written) -> &'static str {
    match written {
        Written::Applied(_) => "ok",
        Written::Refused(_) => "refused",
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Instrumented<S> {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.observed("ensure_table", &spec.name, self.inner.ensure_table(by, spec), ok).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.observed("describe_table", table, self.inner.describe_table(by, table), ok).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.observed("get", table, self.inner.get(by, table, key), ok).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        let op = match write {
            Write::Put { .. } => "put",
            Write::Update { .. } => "update",
            Write::Delete { .. } => "delete",
            Write::Check { .. } => "check",
        };
        self.observed(op, write.table(), self.inner.write(by, write), written).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        let table = writes.first().map_or("", Write::table);
        self.observed("transact", table, self.inner.transact(by, writes, nonce), written).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.observed("query", table, self.inner.query(by, table, query), ok).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.observed("scan", table, self.inner.scan(by, table, page), ok).await
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
}
