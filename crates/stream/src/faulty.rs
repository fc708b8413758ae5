//! A stream that misbehaves by a seed: the real one behind it, the faults of [`Faults`] in front.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Fate, FaultCounts, Faults, Kind, Result};
use tenure_clock::{Clock, Monotonic};

use crate::stream::{Description, Page, ShardPage, Stream, StreamSpec};
use crate::{Cursor, HashKey, Limits, Position, Put, Read, Record, ShardId};

/// How long a call that lands late may take once it is let go.
const LATE_PATIENCE: Duration = Duration::from_secs(30);

/// A stream whose calls are throttled, fail, lose their replies, land late or twice.
///
/// In a put, single records are throttled, too: they are left out and answered as throttled, the
/// rest of the call goes on.
#[derive(Debug, Clone)]
pub struct Faulty {
    inner: Arc<dyn Stream>,
    faults: Arc<Faults>,
    clock: Arc<dyn Clock>,
}

impl Faulty {
    /// Puts `faults` in front of `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Stream>, faults: Arc<Faults>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, faults, clock }
    }

    /// How many calls met each fate so far.
    #[must_use]
    pub fn counts(&self) -> FaultCounts {
        self.faults.counts()
    }

    /// Lets the call through to where it would reach the backend, or fails it on the way.
    async fn on_the_way(&self, by: Monotonic, is_write: bool) -> Result<Fate> {
        let (latency, fate) = self.faults.draw(is_write);
        if !latency.is_zero() {
            let arrives = self.clock.monotonic() + latency;
            self.clock.sleep_until(arrives.min(by)).await;
            if arrives >= by {
                return Err(Error::unavailable("injected latency: the call was not sent in time"));
            }
        }
        match fate {
            Fate::Throttle => Err(Error::new(Kind::Throttled, "injected throttle: nothing was sent")),
            Fate::Fail => Err(Error::unavailable("injected failure: nothing was sent")),
            Fate::Pass | Fate::Lose | Fate::Late(_) | Fate::Duplicate(_) => Ok(fate),
        }
    }

    async fn look<T>(&self, by: Monotonic, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.on_the_way(by, false).await?;
        call.await
    }

    /// Makes a call that changes something, once, later, or twice.
    async fn change<T, C, F>(&self, by: Monotonic, call: C) -> Result<T>
    where
        T: Send + 'static,
        C: Fn(Arc<dyn Stream>, Monotonic) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        match self.on_the_way(by, true).await? {
            Fate::Lose => {
                // Applied or not, nobody hears of it.
                let _ = call(self.inner.clone(), by).await;
                Err(Error::new(Kind::Unknown, "injected loss: the reply did not come"))
            }
            Fate::Late(late_by) => {
                self.land_later(late_by, call);
                Err(Error::new(Kind::Unknown, "injected delay: the call is still under way"))
            }
            Fate::Duplicate(late_by) => {
                let result = call(self.inner.clone(), by).await;
                // Only what was carried out is sent twice: an error still means that it was not.
                if result.is_ok() {
                    self.land_later(late_by, call);
                }
                result
            }
            Fate::Pass | Fate::Throttle | Fate::Fail => call(self.inner.clone(), by).await,
        }
    }

    fn land_later<T, C, F>(&self, late_by: Duration, call: C)
    where
        T: Send + 'static,
        C: Fn(Arc<dyn Stream>, Monotonic) -> F + Send + Sync + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (inner, clock) = (self.inner.clone(), self.clock.clone());
        tokio::spawn(async move {
            clock.sleep(late_by).await;
            // Nobody waits for it any more.
            let _ = call(inner, clock.deadline(LATE_PATIENCE)).await;
        });
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl Stream for Faulty {
    fn name(&self) -> &str {
        self.inner.name()
    }

    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        let spec = *spec;
        self.change(by, move |inner, by| async move { inner.create(by, &spec).await }).await
    }

    async fn describe(&self, by: Monotonic) -> Result<Description> {
        self.look(by, self.inner.describe(by)).await
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.look(by, self.inner.limits(by)).await
    }

    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage> {
        self.look(by, self.inner.shards(by, page)).await
    }

    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        let throttled: Vec<bool> = records.iter().map(|_| self.faults.draw_record_throttled()).collect();
        let sent: Arc<[Record]> = records
            .iter()
            .zip(&throttled)
            .filter(|(_, left_out)| !**left_out)
            .map(|(record, _)| record.clone())
            .collect();
        let puts = self
            .change(by, move |inner, by| {
                let sent = sent.clone();
                async move { inner.put(by, &sent).await }
            })
            .await?;
        let mut puts = puts.into_iter();
        let results =
            throttled.iter().map(|&left_out| if left_out { Some(Put::Throttled) } else { puts.next() });
        results
            .collect::<Option<_>>()
            .ok_or_else(|| Error::new(Kind::Unknown, "results are missing in the reply"))
    }

    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        self.look(by, self.inner.cursor(by, shard, position)).await
    }

    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        self.look(by, self.inner.read(by, cursor, limit)).await
    }

    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        let shard = shard.clone();
        self.change(by, move |inner, by| {
            let shard = shard.clone();
            async move { inner.split(by, &shard, at).await }
        })
        .await
    }

    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        let pair = (shard.clone(), adjacent.clone());
        self.change(by, move |inner, by| {
            let (shard, adjacent) = pair.clone();
            async move { inner.merge(by, &shard, &adjacent).await }
        })
        .await
    }

    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()> {
        self.change(by, move |inner, by| async move { inner.rescale(by, shards).await }).await
    }

    async fn delete(&self, by: Monotonic) -> Result<()> {
        self.change(by, |inner, by| async move { inner.delete(by).await }).await
    }

    async fn wait(&self, by: Monotonic) {
        self.inner.wait(by).await;
    }
}
