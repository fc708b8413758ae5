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

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result, Retry, retry_policy};
use tenure_clock::{Clock, Entropy, Monotonic};
use tenure_election::Elector;
use tenure_store::{Refusal, Store, Write, Written};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{Instrument, error, info, info_span, warn};

use super::census::{Census, Count, Heartbeats, OpenShards};
use super::explain::{Alarm, Explanation, Survey, find_table, survey, usual_table, worker_rows};
use super::formula::{Cap, Deficit, Why, effective, per_worker};
use super::machine::{Adjuster, Fleet, Member, Opening, Report, Target, opening};
use super::rows::{COORDINATOR_SUFFIX, Heartbeat, Ours, Place, Row, expiry, table_spec};
use super::settings::Settings;
use crate::WorkerId;

/// How often a call is made again before its error is told.
const CALLS_MAX: u32 = 5;
/// The pause after the first failure; it doubles.
const BACKOFF: Duration = Duration::from_millis(100);
/// How often the coordinator row may change under our eyes before we say so.
const RACES_MAX: u32 = 10;
/// Most rows of workers that are gone that one look removes, so that it never takes long.
const SWEPT_MAX: usize = 25;
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

// === impl Inner: start-up ===

impl Inner {
    async fn initialize(&self) -> Result<Cap> {
        if !self.settings.enable_dynamic_max_leases {
            self.publish();
            return Ok(*self.cap.borrow());
        }
        info!(
            stream = self.stream,
            app = self.app,
            worker = self.worker,
            "Initializing max leases per worker"
        );
        let place = self.ensure_table().await?;
        self.lock().place = Some(place.clone());
        let target = self.open(&place).await?;
        self.save(&place, target).await?;
        info!(maxLeasesPerWorker = target.max, "Successfully initialized dynamic max leases per worker");
        self.publish();
        Ok(*self.cap.borrow())
    }

    /// Counts, and makes the coordinator row say so.
    async fn open(&self, place: &Place) -> Result<Target> {
        let shards = self.count_shards().await?;
        let (declared, workers) = self.count_workers(place).await?;
        info!(currentShardCount = shards, currentWorkerCount = workers, "Retrieved current system state");
        self.settle(place, shards, declared, workers).await
    }

    async fn open_again(&self, place: &Place) -> Result<()> {
        let target = self.open(place).await?;
        self.save(place, target).await
    }

    /// The table, created if there is none.
    async fn ensure_table(&self) -> Result<Place> {
        let found = match &self.settings.table {
            Some(table) => table.clone(),
            None => self
                .again("look for the table", |by| {
                    find_table(&*self.store, by, &self.stream, &self.app, &self.settings)
                })
                .await?
                .unwrap_or_else(|| usual_table(&self.stream)),
        };
        if self.settings.table.is_none() && found != usual_table(&self.stream) {
            info!(table = found, "Using the metadata table of the application");
        }
        let spec = table_spec(&found);
        self.again("create the table", |by| self.store.ensure_table(by, &spec)).await?;
        Ok(Place { table: found, stream: self.stream.clone(), app: self.app.clone() })
    }

    async fn count_shards(&self) -> Result<u64> {
        let shards = self.again("count the shards", |by| self.shards.open_shards(by)).await?;
        if shards == 0 {
            return Err(Error::invalid(format!(
                "stream `{}` has no open shards: check its name, and that it is active",
                self.stream
            )));
        }
        Ok(shards)
    }

    /// The declared count, if there is one, and the number to go by.
    async fn count_workers(&self, place: &Place) -> Result<(Option<u64>, u64)> {
        let count = match self.census.count(self.deadline()).await {
            // Nobody to read and nobody to ask: not a number to divide by.
            Count::Known(0) => Count::Unknown(format!("{} says 0", self.census.source())),
            count => count,
        };
        let alarm = match &count {
            Count::Unknown(why) => Some(Alarm::WorkerCountUnknown { why: why.clone() }),
            Count::Known(_) | Count::ByHeartbeats => None,
        };
        self.lock().count = Some(count.clone());
        self.set_alarm(Subject::WorkerCount, alarm);
        Ok(match count {
            Count::Known(workers) => (Some(workers), workers),
            Count::ByHeartbeats => {
                let alive = self.count_alive(place).await?;
                (Some(alive), alive)
            }
            Count::Unknown(_) => (None, self.count_alive(place).await?),
        })
    }

    /// Workers with a fresh row, and this one.
    async fn count_alive(&self, place: &Place) -> Result<u64> {
        let (rows, bad) =
            self.again("read the workers' rows", |by| worker_rows(&*self.store, by, place)).await?;
        self.note_bad_rows(&bad);
        let (now, wall) = (self.clock.monotonic(), self.clock.wall());
        let report = self.lock().report.clone();
        let members = self.with_me(self.new_fleet().observe(now, wall, &rows, &report));
        let alive = members.len() as u64;
        self.lock().members = members;
        Ok(alive)
    }

    /// Makes the coordinator row say what is so, or uses what somebody else made it say.
    async fn settle(
        &self,
        place: &Place,
        shards: u64,
        declared: Option<u64>,
        workers: u64,
    ) -> Result<Target> {
        for _ in 0..RACES_MAX {
            let row = self.read_coordinator(place).await?;
            let opening = opening(row.as_ref(), shards, declared, self.settings.limit);
            let (target, race) = match (opening, &row) {
                (Opening::Use, Some(row)) => {
                    let target = row.target();
                    if declared.is_some() {
                        info!(
                            maxLeasesPerWorker = target.max,
                            shardCount = target.shards,
                            workerCount = target.workers,
                            "Configuration unchanged, using existing coordinator metadata"
                        );
                    } else {
                        info!(
                            maxLeasesPerWorker = target.max,
                            "Worker count unknown, using existing coordinator metadata"
                        );
                    }
                    return Ok(self.use_row(row.clone()));
                }
                (Opening::Use | Opening::Abstain, _) => {
                    let target = Target::of(shards, workers, self.settings.limit);
                    let mut state = self.lock();
                    state.row = None;
                    state.alone = Some(target);
                    return Ok(target);
                }
                (Opening::Update(target), Some(row)) => {
                    info!(
                        oldShardCount = row.shard_count,
                        newShardCount = target.shards,
                        oldWorkerCount = row.worker_count,
                        newWorkerCount = target.workers,
                        oldMaxLeases = row.max_leases_per_worker,
                        "Detected configuration change, recalculating max leases per worker"
                    );
                    calculated(target);
                    (target, self.change(place, Some(row), target).await?)
                }
                (Opening::Create(target) | Opening::Update(target), _) => {
                    calculated(target);
                    (target, self.change(place, None, target).await?)
                }
            };
            let coordinator = place.coordinator();
            match (race, row.is_some()) {
                (Race::Won, true) => {
                    info!(
                        coordinatorKey = coordinator,
                        newMaxLeasesPerWorker = target.max,
                        "Successfully updated coordinator metadata"
                    );
                    return Ok(target);
                }
                (Race::Won, false) => {
                    info!(
                        coordinatorKey = coordinator,
                        maxLeasesPerWorker = target.max,
                        "Successfully created coordinator metadata"
                    );
                    return Ok(target);
                }
                (Race::Lost, existed) => {
                    if existed {
                        info!("Another worker already updated coordinator metadata");
                    } else {
                        info!("Another worker already created coordinator metadata");
                    }
                    // The winner's number, whatever ours was.
                    if let Some(row) = self.read_coordinator(place).await? {
                        return Ok(self.use_row(row));
                    }
                }
                (Race::Unclear, _) => {}
            }
        }
        Err(Error::unavailable(format!(
            "row `{}` of table `{}` changed {RACES_MAX} times while it was read: start the worker again",
            place.coordinator(),
            place.table
        )))
    }

    fn use_row(&self, row: Row) -> Target {
        let target = row.target();
        let mut state = self.lock();
        state.row = Some(row);
        state.alone = None;
        target
    }

    async fn read_coordinator(&self, place: &Place) -> Result<Option<Row>> {
        let key = place.coordinator_key();
        let item =
            self.again("read the coordinator row", |by| self.store.get(by, &place.table, &key)).await?;
        item.map(|item| place.coordinator_row(&item)).transpose()
    }

    /// Writes the coordinator row, if it is still the one that was read.
    async fn change(&self, place: &Place, read: Option<&Row>, target: Target) -> Result<Race> {
        let demand = self.lock().report.demand;
        let row = place.new_coordinator(target, read, &self.incarnation, demand, self.clock.wall());
        let write = match read {
            Some(read) => place.update(read, row.clone()),
            None => place.create(row.clone()),
        };
        let mut pause = BACKOFF;
        for attempt in 1..=CALLS_MAX {
            match self.store.write(self.deadline(), &write).await {
                Ok(Written::Applied(_)) => {
                    self.use_row(row);
                    return Ok(Race::Won);
                }
                Ok(Written::Refused(_)) => return Ok(Race::Lost),
                Err(error) => match retry_policy(error.kind()) {
                    Retry::AfterReadingBack => return self.look_for(place, read, row).await,
                    Retry::Soon | Retry::AfterBackoff if attempt < CALLS_MAX => {
                        warn!(error = %error.chain(), attempt, "write the coordinator row");
                        self.pause(&mut pause).await;
                    }
                    _ => return Err(error.during("write the coordinator row")),
                },
            }
        }
        Ok(Race::Unclear)
    }

    /// After a write without an answer: did it land?
    async fn look_for(&self, place: &Place, read: Option<&Row>, row: Row) -> Result<Race> {
        let now = self.read_coordinator(place).await?;
        if now.as_ref().is_some_and(|now| {
            (now.ours.epoch, &now.ours.incarnation) == (row.ours.epoch, &row.ours.incarnation)
        }) {
            self.use_row(row);
            return Ok(Race::Won);
        }
        Ok(if now.as_ref() == read { Race::Unclear } else { Race::Lost })
    }

    /// Stores this worker's own row.
    async fn save(&self, place: &Place, target: Target) -> Result<()> {
        let row = place.row(self.worker.clone(), target, self.clock.wall(), self.ours());
        let write = place.save(row);
        match self.again("save this worker's row", |by| self.store.write(by, &write)).await? {
            Written::Applied(_) => {
                self.lock().saved = Some(target);
                Ok(())
            }
            Written::Refused(Refusal { current, .. }) => Err(Error::invalid(format!(
                "worker id `{}` is in use by application `{}` in table `{}`: choose another worker id, or \
                 another table",
                self.worker,
                current.as_ref().and_then(|item| item.text("app_name")).unwrap_or("?"),
                place.table
            ))),
        }
    }
}

fn calculated(target: Target) {
    info!(
        shardCount = target.shards,
        workerCount = target.workers,
        shardsPerWorker = per_worker(target.shards, target.workers),
        maxLeasesPerWorker = target.max,
        "Calculated max leases per worker"
    );
}

// === impl Inner: what is known ===

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

// === impl Task ===

/// Logs what failed.
fn told<T>(result: Result<T>, what: &'static str) -> Option<T> {
    result.inspect_err(|error| warn!(error = %error.chain(), "{what}")).ok()
}

/// What goes on after the start.
struct Task {
    inner: Arc<Inner>,
    adjuster: Adjuster,
    fleet: Fleet,
    heartbeat_due: Monotonic,
    /// When to ask again for a count that was unknown.
    census_due: Monotonic,
}

impl Task {
    fn new(inner: Arc<Inner>) -> Self {
        let due = inner.clock.monotonic() + inner.settings.heartbeat;
        let (adjuster, fleet) = (Adjuster::default(), inner.new_fleet());
        Self { inner, adjuster, fleet, heartbeat_due: due, census_due: due }
    }

    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let place = self.inner.lock().place.clone();
        let Some(place) = place else { return };
        let live = self.inner.settings.live;
        let period = if live { self.inner.settings.watch_interval() } else { self.inner.settings.heartbeat };
        let clock = self.inner.clock.clone();
        loop {
            tokio::select! {
                biased;
                // Told to stop, or nobody is left to ask.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = clock.sleep(period) => {}
            }
            self.tick(&place).await;
        }
        self.leave(&place).await;
    }

    /// What fails is tried again at the next look, and keeps nothing else from being done: a worker whose
    /// stream cannot be asked says that it lives all the same.
    async fn tick(&mut self, place: &Place) {
        let unknown = matches!(self.inner.lock().count, Some(Count::Unknown(_)));
        let now = self.inner.clock.monotonic();
        if unknown && now >= self.census_due {
            // Perhaps it can be told by now.
            self.census_due = now + self.inner.settings.heartbeat;
            told(self.inner.open_again(place).await, "count the workers again");
        }
        if self.inner.settings.live {
            let readable = told(self.look(place).await, "look at the coordinator row").unwrap_or(false);
            if self.inner.elector.as_ref().is_some_and(Elector::is_leader) {
                told(self.lead(place, readable).await, "adjust the coordinator row");
            } else {
                self.adjuster = Adjuster::default();
                self.fleet = self.inner.new_fleet();
                self.inner.lock().pending = (0, 0);
            }
        }
        self.inner.publish();
        told(self.keep_own_row(place).await, "keep this worker's row");
    }

    /// Reads the coordinator row. False if it cannot be read, and so must not be written over.
    async fn look(&self, place: &Place) -> Result<bool> {
        match self.inner.read_coordinator(place).await {
            Ok(Some(row)) => {
                self.inner.set_alarm(Subject::Coordinator, None);
                let before = self.inner.lock().row.as_ref().map(Row::target);
                let target = self.inner.use_row(row);
                if let Some(before) = before.filter(|before| *before != target) {
                    info!(
                        oldShardCount = before.shards,
                        newShardCount = target.shards,
                        oldWorkerCount = before.workers,
                        newWorkerCount = target.workers,
                        oldMaxLeases = before.max,
                        maxLeasesPerWorker = target.max,
                        "Coordinator metadata changed, using it without a restart"
                    );
                }
                Ok(true)
            }
            // Deleted by hand: what it said holds until the leader writes it again.
            Ok(None) => {
                let mut state = self.inner.lock();
                let last = state.row.take().map(|row| row.target());
                state.alone = last.or(state.alone);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                let what = error.chain();
                self.inner.set_alarm(Subject::Coordinator, Some(Alarm::BadRow { what }));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps the row true to the fleet that lives, and takes away the rows of those that do not.
    async fn lead(&mut self, place: &Place, readable: bool) -> Result<()> {
        let inner = &self.inner;
        let shards = inner.count_shards().await?;
        let (rows, bad) =
            inner.again("read the workers' rows", |by| worker_rows(&*inner.store, by, place)).await?;
        inner.note_bad_rows(&bad);
        let report = inner.lock().report.clone();
        let (now, wall) = (inner.clock.monotonic(), inner.clock.wall());
        let members = inner.with_me(self.fleet.observe(now, wall, &rows, &report));
        let target = Target::of(shards, members.len() as u64, inner.settings.limit);
        let gone: Vec<_> = rows
            .iter()
            .filter(|row| row.ours.expires_at.is_some_and(|at| at < wall.as_seconds()))
            .filter(|row| !members.iter().any(|member| member.worker_id == row.worker_id))
            .filter_map(|row| place.sweep(row))
            .take(SWEPT_MAX)
            .collect();
        let row = inner.lock().row.clone();
        let due = if readable { self.adjuster.tick(row.as_ref(), target) } else { None };
        {
            let mut state = inner.lock();
            state.members = members;
            state.pending = self.adjuster.pending();
        }
        if let Some(target) = due {
            match inner.change(place, row.as_ref(), target).await? {
                Race::Won => info!(
                    coordinatorKey = place.coordinator(),
                    shardCount = target.shards,
                    workerCount = target.workers,
                    newMaxLeasesPerWorker = target.max,
                    "Adjusted coordinator metadata to the live fleet"
                ),
                // A worker that has just started: looked at again next time.
                Race::Lost | Race::Unclear => info!("Another worker already updated coordinator metadata"),
            }
        }
        for write in gone {
            // Refused if it came back to life meanwhile.
            let _ = inner
                .again("remove the row of a worker that is gone", |by| inner.store.write(by, &write))
                .await?;
        }
        Ok(())
    }

    /// Says that this worker lives, and what it goes by.
    async fn keep_own_row(&mut self, place: &Place) -> Result<()> {
        let inner = self.inner.clone();
        let due = inner.clock.monotonic() >= self.heartbeat_due;
        let (target, saved, duplicate) = {
            let state = inner.lock();
            let target = Inner::stored(&state).map(|(_, target)| target);
            (target, state.saved, state.alarms.contains_key(&Subject::Duplicate))
        };
        let changed = inner.settings.live && target != saved && !duplicate;
        if !due && !changed {
            return Ok(());
        }
        self.heartbeat_due = inner.clock.monotonic() + inner.settings.heartbeat;
        let beat = |over| place.heartbeat(&inner.worker, &inner.ours(), over);
        let ours = self.write(&beat(Heartbeat::Ours)).await?;
        let current = match ours {
            Written::Applied(_) => {
                inner.set_alarm(Subject::Duplicate, None);
                if let (true, Some(target)) = (changed, target) {
                    inner.save(place, target).await?;
                }
                return Ok(());
            }
            Written::Refused(Refusal { current, .. }) => current,
        };
        match current {
            // Swept away while we could not say that we live, or never stored.
            None => {
                inner.set_alarm(Subject::Duplicate, None);
                if let Some(target) = target {
                    inner.save(place, target).await?;
                }
            }
            Some(item) => {
                let other = item.text("incarnation").map(str::to_owned);
                if other.is_none() {
                    // A Go worker of our name started and put its own row; ours are the columns beside it.
                    self.write(&beat(Heartbeat::Wiped)).await?;
                }
                inner.set_alarm(Subject::Duplicate, Some(Alarm::DuplicateWorker { incarnation: other }));
            }
        }
        Ok(())
    }

    async fn write(&self, write: &Write) -> Result<Written> {
        self.inner.again("say that this worker lives", |by| self.inner.store.write(by, write)).await
    }

    /// On the way out.
    async fn leave(&self, place: &Place) {
        let inner = &self.inner;
        if inner.settings.live {
            let write = place.leave(&inner.worker, &inner.incarnation);
            if let Err(error) = inner.store.write(inner.deadline(), &write).await {
                warn!(error = %error.chain(), "remove this worker's row: it will expire");
            }
        }
        if let Some(elector) = inner.elector.as_ref().filter(|_| inner.own_election) {
            elector.stop().await;
        }
    }
}
