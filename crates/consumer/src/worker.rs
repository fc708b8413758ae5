//! Reads every shard whose lease it is given, one task each.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Result};
use tenure_leases::{Holding, LeaseKey};
use tenure_quarantine::DeadLetters;
use tenure_store::Store;
use tenure_stream::Stream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, error, info_span};

use crate::board::{Board, ShardStatus};
use crate::meters::Meters;
use crate::opening::SeekTo;
use crate::processor::ProcessorFactory;
use crate::retention::Retention;
use crate::settings::Settings;
use crate::shard_reader::PERMIT_BYTES;
use crate::shard_task::ShardTask;

/// Reads the shards whose leases it is given.
pub struct Worker {
    site: Arc<Site>,
}

/// What all shards of a worker share.
pub(crate) struct Site {
    pub(crate) env: Env,
    pub(crate) app: Arc<str>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) sources: BTreeMap<String, Source>,
    pub(crate) store: Option<Arc<dyn Store>>,
    pub(crate) dead_letters: Option<DeadLetters>,
    pub(crate) factory: Arc<dyn ProcessorFactory>,
    pub(crate) budget: Arc<Semaphore>,
    pub(crate) board: Board,
}

/// A stream, and what all its readers share. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Source {
    pub(crate) stream: Arc<dyn Stream>,
    pub(crate) retention: Arc<Retention>,
}

impl Source {
    fn new(stream: Arc<dyn Stream>) -> Self {
        let retention = Arc::new(Retention::new(stream.clone()));
        Self { stream, retention }
    }
}

/// Looks at a worker, and tells it what to do with a shard. Cheap to clone.
#[derive(Clone)]
pub struct WorkerHandle {
    site: Arc<Site>,
}

impl Worker {
    /// A worker of an application. `store` is where claim checks and dead letters are; without one, claim checks
    /// are handed over as pointers.
    ///
    /// # Errors
    /// `Invalid` if the settings are, or ask for dead letters and there is no store.
    pub fn new(
        app: &str,
        streams: Vec<Arc<dyn Stream>>,
        store: Option<Arc<dyn Store>>,
        env: Env,
        settings: Settings,
        factory: Arc<dyn ProcessorFactory>,
    ) -> Result<Self> {
        settings.validate()?;
        if streams.is_empty() {
            return Err(Error::invalid("a worker without a stream has nothing to read: give it one"));
        }
        if settings.needs_store() && store.is_none() {
            return Err(Error::invalid(
                "dead letters need a store: give the worker one, or let failures stop the shard",
            ));
        }
        let app: Arc<str> = app.into();
        let dead_letters = store.as_ref().map(|store| {
            DeadLetters::new(store.clone(), env.clock.clone(), app.clone(), settings.dead_letters_kept)
        });
        let budget =
            Arc::new(Semaphore::new((settings.budget_bytes / PERMIT_BYTES).min(Semaphore::MAX_PERMITS)));
        let sources =
            streams.into_iter().map(|stream| (stream.name().to_owned(), Source::new(stream))).collect();
        let settings = Arc::new(settings);
        let board = Board::default();
        Ok(Self {
            site: Arc::new(Site { env, app, settings, sources, store, dead_letters, factory, budget, board }),
        })
    }

    /// A handle on it, for while it runs.
    #[must_use]
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle { site: self.site.clone() }
    }

    /// Reads the shards of the leases that come, until no more come and all are given back or lost.
    ///
    /// To stop in good order, let the keeper end the leases ([`tenure_leases::Ending::Stop`]).
    ///
    /// # Errors
    /// As the store's, if the table of dead letters is needed and cannot be made.
    ///
    /// # Cancel safety
    /// Dropped, all shards end as if the process had been killed: nothing is checkpointed.
    pub async fn run(self, mut holdings: mpsc::Receiver<Holding>) -> Result<()> {
        self.prepare().await?;
        let tracker = TaskTracker::new();
        let mut tasks = Tasks(BTreeMap::new());
        while let Some(holding) = holdings.recv().await {
            let lease = holding.lease();
            let key = lease.key.clone();
            let Some(source) = self.source_of(&holding) else {
                error!(lease = %key, stream = lease.stream.as_deref(), "a lease of a stream that this worker does not read");
                continue;
            };
            let span = info_span!("shard", stream = source.stream.name(), shard = %lease.shard);
            let control = self.site.board.take_up(&key);
            let meters = Meters::new(source.stream.name(), lease.shard.as_str());
            let task = ShardTask { site: self.site.clone(), source, holding, control, meters };
            let before = tasks.0.remove(&key);
            let site = self.site.clone();
            let run = async move {
                finished(before, &site).await;
                task.run().await;
            };
            tasks.0.retain(|_, task| !task.is_finished());
            tasks.0.insert(key, tracker.spawn(run.instrument(span)));
        }
        tracker.close();
        tracker.wait().await;
        Ok(())
    }

    /// Makes the table of dead letters, if it is needed.
    pub(crate) async fn prepare(&self) -> Result<()> {
        let letters = self.site.dead_letters.as_ref().filter(|_| self.site.settings.needs_store());
        let Some(letters) = letters else { return Ok(()) };
        let by = self.site.env.clock.deadline(self.site.settings.call_timeout);
        letters.prepare(by).await.map_err(|error| error.during("make the table of dead letters"))
    }

    fn source_of(&self, holding: &Holding) -> Option<Source> {
        let sources = &self.site.sources;
        match &holding.lease().stream {
            Some(name) => sources.get(&**name).cloned(),
            None => sources.values().next().cloned(),
        }
    }
}

/// The tasks of the shards. Dropped, they end.
struct Tasks(BTreeMap<LeaseKey, JoinHandle<()>>);

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.0.values() {
            task.abort();
        }
    }
}

/// Waits for the task that had the shard before, and ends it if it does not end.
async fn finished(before: Option<JoinHandle<()>>, site: &Site) {
    let Some(mut before) = before else { return };
    let by = site.env.clock.deadline(site.settings.call_timeout);
    if tenure_clock::within(&*site.env.clock, by, &mut before).await.is_err() {
        error!("the processor did not let go of a lost shard: it is cut off");
        before.abort();
        let _ = before.await;
    }
}

impl WorkerHandle {
    /// What each shard is doing.
    #[must_use]
    pub fn status(&self) -> Vec<ShardStatus> {
        self.site.board.statuses()
    }

    /// How far the shard that is furthest behind is behind; none if none is read.
    #[must_use]
    pub fn behind(&self) -> Option<Duration> {
        self.site.board.behind(self.site.env.clock.monotonic())
    }

    /// Stops reading a shard. Its lease is kept.
    ///
    /// # Errors
    /// `Invalid` if this worker does not hold it.
    pub fn pause(&self, lease: &LeaseKey) -> Result<()> {
        self.site.board.tell(lease, |control| control.paused = true)
    }

    /// Reads it again.
    ///
    /// # Errors
    /// `Invalid` if this worker does not hold it.
    pub fn resume(&self, lease: &LeaseKey) -> Result<()> {
        self.site.board.tell(lease, |control| control.paused = false)
    }

    /// Reads a shard from elsewhere: drains, checkpoints, and begins there. Checkpoints only go forward, so after
    /// a step back none is stored until the old one is passed: a restart before that goes on where it was.
    ///
    /// # Errors
    /// `Invalid` if this worker does not hold it.
    pub fn seek(&self, lease: &LeaseKey, to: SeekTo) -> Result<()> {
        self.site.board.tell(lease, |control| control.seek = Some(to))
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("app", &self.site.app).finish_non_exhaustive()
    }
}

impl fmt::Debug for WorkerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerHandle").field("app", &self.site.app).finish_non_exhaustive()
    }
}
