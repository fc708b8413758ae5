//! Carries out what the machine decides: reads and writes the table, watches it, and tells the cap.
//!
//! # Expected flow
//! [`CapacityManager::start`] initialises as a Go worker would: table, shard count, worker count, coordinator
//! row, create or update on a condition, own row. Then one task looks at the row twice per lease, says that
//! this worker lives, and, if this worker leads, keeps the row true to the fleet.
//!
//! # Guarantees
//! A coordinator row changes only on the condition that it is the one that was read. Whoever loses uses the
//! winner's row. A count that is not known is never written. Nothing is written over a row that cannot be read.
//!
//! # Caveats
//! A store that is away leaves the last cap in effect.

mod live;
mod start_up;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_backend::{Env, Error, Result, Retry, retry_policy};
use tenure_clock::{Clock, Entropy, Monotonic};
use tenure_election::Elector;
use tenure_store::Store;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{Instrument, error, info, info_span, warn};

use self::live::Task;
use super::census::{Census, Count, Heartbeats, OpenShards};
use super::explain::{Alarm, Explanation, Survey, survey};
use super::formula::{Cap, Deficit, Why, effective};
use super::machine::{Fleet, Member, Report, Target};
use super::rows::{Behind, COORDINATOR_SUFFIX, Ours, Place, Row, expiry};
use super::settings::Settings;
use crate::WorkerId;

/// How often a call is made again before its error is told.
const CALLS_MAX: u32 = 5;
/// The pause after the first failure; it doubles.
const BACKOFF: Duration = Duration::from_millis(100);
/// DynamoDB's limit of a key is 2048 bytes; names of this length fit with every suffix.
const NAME_BYTES_MAX: usize = 512;

/// Describes a capacity manager.
#[must_use]
pub struct Builder {
    store: Arc<dyn Store>,
    stream: String,
    app: String,
    worker: WorkerId,
    env: Env,
    settings: Settings,
    census: Arc<dyn Census>,
    shards: Arc<dyn OpenShards>,
    elector: Option<Elector>,
}

impl Builder {
    /// All settings at once.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Who tells how many workers there are meant to be. [`Heartbeats`] by default.
    pub fn census(mut self, census: Arc<dyn Census>) -> Self {
        self.census = census;
        self
    }

    /// An election that this worker stands in already: whoever leads it adjusts the row. Without one, an
    /// election of its own is held in the table `tenure_coordination`.
    pub fn elector(mut self, elector: Elector) -> Self {
        self.elector = Some(elector);
        self
    }

    /// Checks everything. Nothing is read or written yet.
    ///
    /// # Errors
    /// `Invalid`, naming the setting or the name and what to give instead.
    pub fn build(self) -> Result<CapacityManager> {
        self.settings.validate()?;
        let worker = self.worker.as_str().to_owned();
        for (what, name) in
            [("stream name", &self.stream), ("application name", &self.app), ("worker id", &worker)]
        {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "the {what} has {} bytes: give 1 to {NAME_BYTES_MAX}",
                    name.len()
                )));
            }
        }
        // Of this application or of another that shares the table: its row would be written over.
        if worker.ends_with(COORDINATOR_SUFFIX) {
            return Err(Error::invalid(format!(
                "worker id `{worker}` is the name of a coordinator row: choose one that does not end with \
                 `{COORDINATOR_SUFFIX}`"
            )));
        }
        let dynamic = self.settings.enable_dynamic_max_leases;
        let (elector, own_election) = match self.elector {
            Some(elector) => (Some(elector), false),
            None if dynamic && self.settings.live => {
                let shard = format!("{}-capacity", self.app);
                let elector =
                    Elector::builder(self.store.clone(), shard, &self.env).owner(&worker).build()?;
                (Some(elector), true)
            }
            None => (None, false),
        };
        let first = Cap { value: self.settings.max_leases, why: Why::Fixed };
        let inner = Inner {
            store: self.store,
            clock: self.env.clock,
            incarnation: self.env.entropy.nonce(),
            entropy: self.env.entropy,
            stream: self.stream,
            app: self.app,
            worker,
            settings: self.settings,
            census: self.census,
            shards: self.shards,
            elector,
            own_election,
            cap: watch::Sender::new(first),
            state: Mutex::new(State::default()),
        };
        Ok(CapacityManager { inner: Arc::new(inner) })
    }
}

/// Works out how many leases a worker may hold, and keeps it so.
#[derive(Debug)]
pub struct CapacityManager {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    stream: String,
    app: String,
    worker: String,
    /// This process: no other writes it.
    incarnation: String,
    settings: Settings,
    census: Arc<dyn Census>,
    shards: Arc<dyn OpenShards>,
    elector: Option<Elector>,
    own_election: bool,
    cap: watch::Sender<Cap>,
    state: Mutex<State>,
}

/// What is known.
#[derive(Default)]
struct State {
    place: Option<Place>,
    /// The coordinator row, as last read.
    row: Option<Row>,
    /// What holds without a coordinator row.
    alone: Option<Target>,
    /// What our own row says.
    saved: Option<Target>,
    count: Option<Count>,
    report: Report,
    behind: Option<Behind>,
    members: Vec<Member>,
    pending: (u32, u32),
    alarms: BTreeMap<Subject, Alarm>,
    deficit: Option<Deficit>,
}

/// One alarm of each subject at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    WorkerCount,
    Deficit,
    Duplicate,
    Coordinator,
    Workers,
}

/// How a conditional write of the coordinator row ended.
enum Race {
    Won,
    Lost,
    /// No answer, and the row does not show it: it may still land.
    Unclear,
}

impl CapacityManager {
    /// Begins to describe the manager of one worker.
    pub fn builder(
        store: Arc<dyn Store>,
        shards: Arc<dyn OpenShards>,
        stream: impl Into<String>,
        app: impl Into<String>,
        worker: WorkerId,
        env: &Env,
    ) -> Builder {
        Builder {
            store,
            stream: stream.into(),
            app: app.into(),
            worker,
            env: env.clone(),
            settings: Settings::default(),
            census: Arc::new(Heartbeats),
            shards,
            elector: None,
        }
    }

    /// Does what a worker does when it starts, and says what it may hold. Nothing goes on afterwards: see
    /// [`CapacityManager::start`].
    ///
    /// # Errors
    /// `Invalid` if the stream has no shards, or a name is taken; `Corrupt` if the coordinator row cannot be
    /// read; what store and stream say.
    ///
    /// # Cancel safety
    /// A write that is under way may still happen. It may be begun again.
    pub async fn initialize(&self) -> Result<Cap> {
        self.inner.initialize().await
    }

    /// Initialises, and keeps the cap up to date from then on.
    ///
    /// # Errors
    /// As [`CapacityManager::initialize`].
    pub async fn start(self) -> Result<CapacityHandle> {
        let inner = self.inner;
        inner.initialize().await?;
        let (stop, stopped) = watch::channel(false);
        let task = if inner.settings.enable_dynamic_max_leases {
            if let Some(elector) = inner.elector.as_ref().filter(|_| inner.own_election) {
                elector.start().await?;
            }
            let span = info_span!("capacity", app = inner.app, worker = inner.worker);
            Some(tokio::spawn(Task::new(inner.clone()).run(stopped).instrument(span)))
        } else {
            None
        };
        let running = Running { inner, stop, task: Mutex::new(task) };
        Ok(CapacityHandle { running: Arc::new(running) })
    }

    /// Why a worker may hold what it may, by the table alone. Nothing is created or changed.
    ///
    /// # Errors
    /// As [`survey`].
    pub async fn survey(&self) -> Result<Survey> {
        self.inner.survey().await
    }
}

/// A worker's cap, kept up to date until it is stopped, or the last clone is gone.
#[derive(Debug, Clone)]
pub struct CapacityHandle {
    running: Arc<Running>,
}

struct Running {
    inner: Arc<Inner>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl CapacityHandle {
    /// The cap in effect, now and later.
    #[must_use]
    pub fn cap(&self) -> watch::Receiver<Cap> {
        self.running.inner.cap.subscribe()
    }

    /// Tells what the side of the leases knows. The cap follows at once if it is to change.
    pub fn report(&self, report: Report) {
        self.running.inner.lock().report = report;
        self.running.inner.publish();
    }

    /// Tells how far this worker is behind its streams; none if it reads nothing. Its row says so from the next
    /// heartbeat on.
    pub fn note_behind(&self, behind: Option<Duration>) {
        let inner = &self.running.inner;
        let at = inner.clock.wall().as_seconds();
        let ms = |behind: Duration| u64::try_from(behind.as_millis()).unwrap_or(u64::MAX / 2);
        inner.lock().behind = behind.map(|behind| Behind { ms: ms(behind), at });
    }

    /// Why the cap is what it is.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        self.running.inner.explain()
    }

    /// What a person should look at now.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        self.running.inner.lock().alarms.values().cloned().collect()
    }

    /// The rows of the table, as they are now.
    ///
    /// # Errors
    /// As [`survey`].
    pub async fn survey(&self) -> Result<Survey> {
        self.running.inner.survey().await
    }

    /// Ends it: with live adjustment the worker's own row goes away, so that the others know.
    ///
    /// # Cancel safety
    /// Once polled, it ends even if this is dropped.
    pub async fn stop(&self) {
        self.running.stop.send_replace(true);
        let task = self.running.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // A task that panicked has nothing left to do.
            let _ = task.await;
        }
    }
}

// === impl Inner ===

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn deadline(&self) -> Monotonic {
        self.clock.deadline(self.settings.call_timeout)
    }

    fn new_fleet(&self) -> Fleet {
        Fleet::new(self.settings.window(), self.settings.keep_rows)
    }

    /// Our columns of our own row, as of now.
    fn ours(&self) -> Ours {
        let state = self.lock();
        Ours {
            epoch: None,
            incarnation: Some(self.incarnation.clone()),
            demand: state.report.demand,
            held: Some(state.report.held),
            behind: state.behind,
            expires_at: Some(expiry(self.clock.wall(), self.settings.keep_rows)),
        }
    }

    /// This worker lives, whatever its row says.
    fn with_me(&self, mut members: Vec<Member>) -> Vec<Member> {
        if !members.iter().any(|member| member.worker_id == self.worker) {
            let evidence = super::machine::Evidence::Row;
            members.push(Member { worker_id: self.worker.clone(), evidence });
            members.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
        }
        members
    }

    fn stored(state: &State) -> Option<(Cap, Target)> {
        let of = |target: Target, why| (Cap { value: target.max, why }, target);
        match (&state.row, state.alone) {
            (Some(row), _) => Some(of(row.target(), Why::Coordinator)),
            (None, Some(target)) => Some(of(target, Why::Heartbeats)),
            (None, None) => None,
        }
    }

    /// Works out the cap in effect, and tells it if it is another.
    fn publish(&self) {
        let (cap, deficit) = {
            let mut state = self.lock();
            let worked_out = Self::stored(&state).map(|(stored, target)| {
                effective(
                    stored,
                    target.shards,
                    state.report.demand,
                    target.workers,
                    self.settings.limit,
                    self.settings.on_deficit,
                )
            });
            match worked_out {
                Some((cap, deficit)) => {
                    state.deficit = Some(deficit);
                    (cap, Some(deficit))
                }
                None => (Cap { value: self.settings.max_leases, why: Why::Fixed }, None),
            }
        };
        let labels = || [("app", self.app.clone()), ("stream", self.stream.clone())];
        #[allow(clippy::cast_precision_loss, reason = "counts of leases are small")]
        let gauge = |name: &'static str, value: u64| metrics::gauge!(name, &labels()).set(value as f64);
        gauge("lease_capacity_cap", cap.value);
        if let Some(Deficit { leases, desired_workers }) = deficit {
            gauge("lease_capacity_deficit", leases);
            gauge("lease_capacity_desired_workers", desired_workers);
            let alarm = (leases > 0).then_some(Alarm::Deficit { leases, desired_workers });
            self.set_alarm(Subject::Deficit, alarm);
        }
        self.cap.send_if_modified(|current| {
            let changes = *current != cap;
            *current = cap;
            changes
        });
    }

    /// Raises, changes or ends an alarm, and says so once.
    fn set_alarm(&self, subject: Subject, alarm: Option<Alarm>) {
        let before = {
            let mut state = self.lock();
            match &alarm {
                Some(alarm) => state.alarms.insert(subject, alarm.clone()),
                None => state.alarms.remove(&subject),
            }
        };
        match (before, alarm) {
            (before, Some(alarm)) if before.as_ref() != Some(&alarm) => {
                error!(alarm = %alarm, "lease capacity needs attention");
                metrics::counter!("lease_capacity_alarms_total", "app" => self.app.clone()).increment(1);
            }
            (Some(alarm), None) => info!(alarm = %alarm, "lease capacity is in order again"),
            _ => {}
        }
    }

    fn note_bad_rows(&self, bad: &[String]) {
        // One of them is enough to make somebody look; `survey` lists all.
        self.set_alarm(Subject::Workers, bad.first().map(|what| Alarm::BadRow { what: what.clone() }));
    }

    fn explain(&self) -> Explanation {
        let state = self.lock();
        let dynamic = self.settings.enable_dynamic_max_leases;
        Explanation {
            stream: self.stream.clone(),
            app: self.app.clone(),
            table: state.place.as_ref().map(|place| place.table.clone()),
            cap: Some(*self.cap.borrow()),
            coordinator: state.row.clone(),
            limit: self.settings.limit,
            demand: state.report.demand,
            held: Some(state.report.held),
            declared: state.count.clone().map(|count| (count, self.census.source())),
            fleet: state.members.clone(),
            leading: dynamic && self.elector.as_ref().is_some_and(Elector::is_leader),
            pending: state.pending,
            deficit: state.deficit,
            alarms: state.alarms.values().cloned().collect(),
        }
    }

    async fn survey(&self) -> Result<Survey> {
        if !self.settings.enable_dynamic_max_leases {
            let (workers, bad_rows) = (Vec::new(), Vec::new());
            return Ok(Survey { table: None, coordinator: None, workers, bad_rows });
        }
        survey(&*self.store, self.deadline(), &self.stream, &self.app, &self.settings).await
    }

    /// Makes a call that may be made again, until it works or will not.
    async fn again<T, F, C>(&self, what: &str, mut call: C) -> Result<T>
    where
        C: FnMut(Monotonic) -> F,
        F: Future<Output = Result<T>>,
    {
        let mut pause = BACKOFF;
        let mut attempt = 1;
        loop {
            let error = match call(self.deadline()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if retry_policy(error.kind()) == Retry::Never || attempt == CALLS_MAX {
                return Err(error.during(what));
            }
            warn!(error = %error.chain(), attempt, "{what}");
            self.pause(&mut pause).await;
            attempt += 1;
        }
    }

    /// Waits, and longer the next time; not all workers at the same moment.
    async fn pause(&self, pause: &mut Duration) {
        self.clock.sleep(*pause + self.entropy.up_to(*pause)).await;
        *pause *= 2;
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Capacity")
            .field("stream", &self.stream)
            .field("app", &self.app)
            .field("worker", &self.worker)
            .field("cap", &*self.cap.borrow())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Running {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}
