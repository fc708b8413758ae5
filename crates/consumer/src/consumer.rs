//! The front door: leases, how many of them there may be, and a worker that reads what it holds.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Result};
use tenure_clock::Clock;
use tenure_leases::capacity::{self, Cap, CapacityHandle, CapacityManager, Census, OpenShards};
use tenure_leases::machine::View;
use tenure_leases::{Keeper, KeeperHandle};
use tenure_store::Store;
use tenure_stream::Stream;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;
use tracing::info;

use crate::processor::ProcessorFactory;
use crate::settings::Settings;
use crate::worker::{Worker, WorkerHandle};

/// How often it is told how far the worker is behind.
const BEHIND_EVERY: Duration = Duration::from_secs(5);

/// Reads streams together with all other workers of an application.
///
/// ```no_run
/// # use tenure_consumer::{Batch, Consumer, Env, Failure, ShardContext, ShardProcessor};
/// struct Print;
///
/// #[async_trait::async_trait]
/// impl ShardProcessor for Print {
///     async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
///         for record in batch.records() {
///             println!("{} {}", record.partition_key, String::from_utf8_lossy(&record.data));
///         }
///         Ok(())
///     }
/// }
///
/// # async fn example() -> tenure_backend::Result<()> {
/// let env = Env::system();
/// let store = tenure_store::open("sqlite:./tenure.db", &env).await?;
/// let stream = tenure_stream::open("sqlite:./tenure.db", &env).await?;
/// let interrupted = async { _ = tokio::signal::ctrl_c().await };
/// Consumer::builder(stream, store, "printer", "worker-1").run(|_: &ShardContext| Print, interrupted).await
/// # }
/// ```
pub struct Consumer {
    keeper: KeeperHandle,
    handle: WorkerHandle,
    worker: AbortOnDropHandle<Result<()>>,
    capacity: Option<CapacityHandle>,
    /// Passes the cap on to the leases, and what is seen of them back.
    _passing: Option<AbortOnDropHandle<()>>,
}

/// Describes a consumer.
#[must_use = "nothing is read until it is started"]
pub struct Builder {
    streams: Vec<Arc<dyn Stream>>,
    several: bool,
    store: Arc<dyn Store>,
    env: Env,
    app: String,
    worker: String,
    cap: usize,
    settings: Settings,
    leases: tenure_leases::Settings,
    capacity: Option<(capacity::Settings, Arc<dyn Census>)>,
}

impl Consumer {
    /// A worker of an application that reads one stream. Leases, dead letters and claim checks are in `store`.
    pub fn builder(
        stream: Arc<dyn Stream>,
        store: Arc<dyn Store>,
        app: impl Into<String>,
        worker: impl Into<String>,
    ) -> Builder {
        Builder {
            streams: vec![stream],
            several: false,
            store,
            env: Env::system(),
            app: app.into(),
            worker: worker.into(),
            cap: usize::MAX,
            settings: Settings::default(),
            leases: tenure_leases::Settings::default(),
            capacity: None,
        }
    }

    /// Looks at its shards, and tells it what to do with one.
    #[must_use]
    pub const fn handle(&self) -> &WorkerHandle {
        &self.handle
    }

    /// Its leases.
    #[must_use]
    pub const fn leases(&self) -> &KeeperHandle {
        &self.keeper
    }

    /// How many leases it may hold, now and later, where the workers agree on it.
    #[must_use]
    pub fn cap(&self) -> Option<watch::Receiver<Cap>> {
        self.capacity.as_ref().map(CapacityHandle::cap)
    }

    /// Stops in good order: what is under way is finished and checkpointed, and every lease is given back.
    ///
    /// # Errors
    /// Why it ended, if it ended by itself before.
    ///
    /// # Cancel safety
    /// Once polled, it stops; dropped, it stops at once, as if it had been killed.
    pub async fn stop(self) -> Result<()> {
        let stopped = self.keeper.stop().await;
        if let Some(capacity) = &self.capacity {
            capacity.stop().await;
        }
        let finished = joined(self.worker).await;
        stopped.and(finished)
    }

    /// Waits until it cannot go on.
    ///
    /// # Errors
    /// Why.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn ended(&self) -> Result<()> {
        self.keeper.ended().await
    }
}

async fn joined(worker: AbortOnDropHandle<Result<()>>) -> Result<()> {
    worker.await.unwrap_or_else(|_| Err(Error::unavailable("the worker was ended from outside")))
}

impl Builder {
    /// Another stream. Leases are then named with their stream in front.
    pub fn and_stream(mut self, stream: Arc<dyn Stream>) -> Self {
        self.streams.push(stream);
        self.several = true;
        self
    }

    /// How many leases it may hold. As many as there are, by default.
    pub fn cap(mut self, cap: usize) -> Self {
        self.cap = cap;
        self
    }

    /// Lets the workers agree on how many leases each may hold, as `settings` say. `census` tells how many
    /// workers there are meant to be. It takes the place of [`Builder::cap`].
    pub fn capacity(mut self, settings: capacity::Settings, census: Arc<dyn Census>) -> Self {
        self.capacity = Some((settings, census));
        self
    }

    /// How it reads, retries and checkpoints.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// How leases are kept.
    pub fn leases(mut self, settings: tenure_leases::Settings) -> Self {
        self.leases = settings;
        self
    }

    /// Its time and randomness. Those of the machine, by default.
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// Begins.
    ///
    /// # Errors
    /// `Invalid` if settings are; whatever the store says when its tables cannot be made.
    pub async fn start(mut self, factory: impl ProcessorFactory + 'static) -> Result<Consumer> {
        let store = Some(self.store.clone());
        let env = self.env.clone();
        let worker = Worker::new(
            &self.app,
            self.streams.clone(),
            store,
            env,
            self.settings.clone(),
            Arc::new(factory),
        )?;
        worker.prepare().await?;
        let handle = worker.handle();
        let capacity = match self.capacity.take() {
            None => None,
            Some((settings, census)) => Some(self.start_capacity(settings, census).await?),
        };
        let cap = capacity.as_ref().map_or(self.cap, |capacity| leases_of(*capacity.cap().borrow()));
        info!(app = %self.app, worker = %self.worker, "worker starts");
        let keeper =
            Keeper::builder(self.store, &self.env, self.app, self.worker).cap(cap).settings(self.leases);
        let keeper = match (self.several, self.streams.first()) {
            (false, Some(stream)) => keeper.stream(stream.clone()),
            _ => keeper.streams(self.streams),
        };
        let (keeper, holdings) = keeper.start().await?;
        let worker = AbortOnDropHandle::new(tokio::spawn(worker.run(holdings)));
        let passing = capacity.clone().map(|capacity| {
            tokio::spawn(pass_on(capacity, keeper.clone(), handle.clone(), self.env.clock.clone()))
        });
        let passing = passing.map(AbortOnDropHandle::new);
        Ok(Consumer { keeper, handle, worker, capacity, _passing: passing })
    }

    async fn start_capacity(
        &self,
        settings: capacity::Settings,
        census: Arc<dyn Census>,
    ) -> Result<CapacityHandle> {
        let names: Vec<_> = self.streams.iter().map(|stream| stream.name()).collect();
        let shards: Arc<dyn OpenShards> = Arc::new(AllStreams(self.streams.clone()));
        let worker = self.worker.as_str().into();
        CapacityManager::builder(self.store.clone(), shards, names.join("+"), &self.app, worker, &self.env)
            .settings(settings)
            .census(census)
            .build()?
            .start()
            .await
    }

    /// Begins, goes on until `shutdown` is done or it cannot go on, and stops in good order.
    ///
    /// # Errors
    /// As [`Builder::start`], and why it could not go on.
    ///
    /// # Cancel safety
    /// Dropped, it ends as if it had been killed.
    pub async fn run(
        self,
        factory: impl ProcessorFactory + 'static,
        shutdown: impl Future<Output = ()>,
    ) -> Result<()> {
        let consumer = self.start(factory).await?;
        tokio::select! {
            biased;
            () = shutdown => {}
            ended = consumer.ended() => ended?,
        }
        consumer.stop().await
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("worker", self.keeper.worker()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("app", &self.app)
            .field("worker", &self.worker)
            .finish_non_exhaustive()
    }
}

fn leases_of(cap: Cap) -> usize {
    usize::try_from(cap.value).unwrap_or(usize::MAX)
}

/// Tells the keeper what the worker may hold, and the capacity what keeper and worker see.
async fn pass_on(
    capacity: CapacityHandle,
    keeper: KeeperHandle,
    worker: WorkerHandle,
    clock: Arc<dyn Clock>,
) {
    let (mut caps, mut views) = (capacity.cap(), keeper.view());
    // It may have changed while the keeper began.
    let cap = *caps.borrow_and_update();
    keeper.set_cap(leases_of(cap)).await;
    loop {
        tokio::select! {
            biased;
            changed = caps.changed() => {
                if changed.is_err() {
                    return;
                }
                let cap = *caps.borrow_and_update();
                info!(leases = cap.value, why = cap.why.text(), "max leases changed");
                keeper.set_cap(leases_of(cap)).await;
            }
            changed = views.changed() => {
                if changed.is_err() {
                    return;
                }
                let report = report_of(&views.borrow_and_update());
                capacity.report(report);
                capacity.note_behind(worker.behind());
            }
            () = clock.sleep(BEHIND_EVERY) => capacity.note_behind(worker.behind()),
        }
    }
}

fn report_of(view: &View) -> capacity::Report {
    let demand = view.leases.iter().filter(|lease| !lease.checkpoint.is_end()).count();
    let owners = view.leases.iter().filter_map(|lease| lease.owner.clone());
    let (moving, stalled) = owners.partition(|owner| view.fleet.contains_key(owner));
    capacity::Report {
        // Before the first look at the table nothing is known.
        demand: (!view.leases.is_empty()).then_some(demand as u64),
        held: view.held.len() as u64,
        moving,
        stalled,
    }
}

/// The open shards of all streams together.
#[derive(Debug)]
struct AllStreams(Vec<Arc<dyn Stream>>);

#[async_trait::async_trait]
impl OpenShards for AllStreams {
    async fn open_shards(&self, by: tenure_clock::Monotonic) -> Result<u64> {
        let mut shards = 0;
        for stream in &self.0 {
            shards += stream.open_shards(by).await?;
        }
        Ok(shards)
    }
}
