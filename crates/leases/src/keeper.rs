//! Carries out what the machine decides: one task per worker.

use std::collections::BTreeMap;
use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tenure_election::{Elector, LeaderView, OnRenewalError};
use tenure_store::Store;
use tenure_stream::Stream;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tracing::{Instrument, error, info, info_span, warn};

use crate::calls::{Answered, Calls, Source, prepare};
use crate::holding::{Ending, Holding, KeeperSide, Request};
use crate::machine::{
    Alarm, Answer, CallId, Effect, Event, Fatal, Machine, Me, News, Now, Outcome, Planning, RequestId, View,
};
use crate::rows::Place;
use crate::settings::Settings;
use crate::{LeaseKey, WorkerId};

/// Commands that may wait for the task: callers beyond that wait in turn.
const COMMANDS_MAX: usize = 16;
/// Requests of consumers that may wait for the task, beyond those that wait per lease.
const REQUESTS_MAX: usize = 256;
/// Leases that were granted and that the consumer has not taken up yet.
const GRANTS_MAX: usize = 4096;
/// The view is renewed at most so often: it is a copy of all leases.
const VIEW_INTERVAL: Duration = Duration::from_millis(250);
/// How often consumers are looked at for progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);
/// Most bytes of a name: it is a key of an index.
const NAME_BYTES_MAX: usize = 512;

/// Keeps the leases of one worker.
///
/// ```
/// # async fn example(env: tenure_backend::Env) -> tenure_backend::Result<()> {
/// use std::sync::Arc;
/// use tenure_leases::Keeper;
/// use tenure_stream::Stream;
///
/// let store = tenure_store::open("memory:", &env).await?;
/// let stream: Arc<dyn Stream> = tenure_stream::open("memory:orders", &env).await?;
/// let (keeper, mut holdings) =
///     Keeper::builder(store, &env, "orders-app", "worker-1").stream(stream).cap(80).start().await?;
/// while let Some(holding) = holdings.recv().await {
///     // Read the shard while `holding.is_valid()`, and give it when it is asked for.
///     holding.give().await?;
/// }
/// keeper.stop().await
/// # }
/// ```
#[derive(Debug)]
pub struct Keeper;

impl Keeper {
    /// Begins to describe a worker of an application.
    pub fn builder(
        store: Arc<dyn Store>,
        env: &Env,
        app: impl Into<String>,
        worker: impl Into<String>,
    ) -> Builder {
        Builder {
            store,
            env: env.clone(),
            app: app.into(),
            worker: worker.into(),
            settings: Settings::default(),
            cap: usize::MAX,
            sources: Vec::new(),
        }
    }
}

/// Describes a worker.
#[must_use = "nothing is kept until it is started"]
pub struct Builder {
    store: Arc<dyn Store>,
    env: Env,
    app: String,
    worker: String,
    settings: Settings,
    cap: usize,
    sources: Vec<Source>,
}

impl Builder {
    /// The one stream that the application reads: leases are named by their shards alone.
    pub fn stream(mut self, stream: Arc<dyn Stream>) -> Self {
        self.sources = vec![Source { name: None, stream }];
        self
    }

    /// The streams that the application reads: leases are named `<stream>:<shard>`.
    pub fn streams(mut self, streams: impl IntoIterator<Item = Arc<dyn Stream>>) -> Self {
        let source = |stream: Arc<dyn Stream>| Source { name: Some(stream.name().into()), stream };
        self.sources = streams.into_iter().map(source).collect();
        self
    }

    /// How many leases this worker may hold. As many as there are, by default.
    pub fn cap(mut self, cap: usize) -> Self {
        self.cap = cap;
        self
    }

    /// All settings at once.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Begins, and returns as soon as the others know of this worker. Each lease that is held comes out of the
    /// receiver.
    ///
    /// # Errors
    /// `Invalid` if a setting cannot work, if the application's leases last for another time, or if another
    /// live process has this worker's name; whatever the store says when its tables cannot be made.
    ///
    /// # Cancel safety
    /// Dropping it ends what was begun.
    pub async fn start(self) -> Result<(KeeperHandle, mpsc::Receiver<Holding>)> {
        let timing = self.settings.timing()?;
        let name = |what: &str, text: &str| {
            if text.is_empty() || text.len() > NAME_BYTES_MAX || text.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "{what} {text:?} must have 1 to {NAME_BYTES_MAX} bytes and no control characters"
                )));
            }
            Ok(())
        };
        name("application", &self.app)?;
        name("worker", &self.worker)?;
        if self.sources.is_empty() {
            return Err(Error::invalid("no stream was named: give the keeper what it keeps leases of"));
        }
        let place = Place::new(&self.app, &self.settings.coordination_table);
        let clock = self.env.clock.clone();
        prepare(&*self.store, &*clock, &place)
            .await
            .map_err(|error| error.during("prepare the lease tables"))?;
        let elector = Elector::builder(self.store.clone(), format!("leases#{}", self.app), &self.env)
            .owner(&self.worker)
            .settings(tenure_election::Settings {
                table: self.settings.coordination_table.clone(),
                lease: timing.lease * 3 / 2,
                renew: timing.lease / 2,
                rate_error_ppm: self.settings.rate_error_ppm,
                on_renewal_error: OnRenewalError::RetryUntilDeadline,
                ..tenure_election::Settings::default()
            })
            .build()?;
        let me = Me { worker: self.worker.as_str().into(), incarnation: self.env.entropy.nonce().into() };
        let worker = me.worker.clone();
        let (commands, orders) = mpsc::channel(COMMANDS_MAX);
        let (grants, holdings) = mpsc::channel(GRANTS_MAX);
        let (asks, requests) = mpsc::channel(REQUESTS_MAX);
        let (view_sender, view) = watch::channel(View::default());
        let (ended_sender, ended) = watch::channel(None);
        let (started_sender, started) = oneshot::channel();
        let span = info_span!("leases", app = %self.app, worker = %worker);
        let task = Task {
            machine: Machine::new(me, self.cap, timing),
            calls: Calls::new(self.store, clock.clone(), place, self.sources),
            clock,
            app: self.app,
            progress_timeout: self.settings.progress_timeout,
            elector,
            planner: None,
            planning: Planning::Nobody,
            under_way: JoinSet::new(),
            sides: BTreeMap::new(),
            grants,
            asks,
            waiting: BTreeMap::new(),
            requests: 0,
            view: view_sender,
            viewed: Monotonic::default(),
            stale_view: true,
            looked: Monotonic::default(),
            started: Some(started_sender),
            fatal: None,
            gauged: false,
            told: None,
            grant: 0,
        };
        let join = tokio::spawn(task.run(orders, requests, ended_sender).instrument(span));
        let handle = KeeperHandle { inner: Arc::new(Inner { commands, view, ended, worker, join }) };
        match started.await {
            Ok(Ok(())) => Ok((handle, holdings)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::unavailable("the keeper ended before it had begun")),
        }
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

/// A running worker. Cheap to clone; when the last clone is gone, the worker gives everything back and ends.
#[derive(Debug, Clone)]
pub struct KeeperHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<View>,
    ended: watch::Receiver<Option<std::result::Result<(), (Kind, String)>>>,
    worker: WorkerId,
    #[cfg_attr(not(any(test, feature = "testing")), expect(dead_code, reason = "it ends with its commands"))]
    join: JoinHandle<()>,
}

#[derive(Debug)]
enum Command {
    Cap(usize),
    Stop,
}

impl KeeperHandle {
    /// Asks for every lease back, gives it on as soon as it is drained, and ends; what is not drained in time
    /// is lost.
    ///
    /// # Errors
    /// Why the worker ended, if it ended by itself before.
    ///
    /// # Cancel safety
    /// Once polled, the worker stops even if this is dropped.
    pub async fn stop(&self) -> Result<()> {
        // Ended already, otherwise.
        let _ = self.inner.commands.send(Command::Stop).await;
        self.ended().await
    }

    /// Waits until the worker has ended: because it was stopped, or because it cannot go on.
    ///
    /// # Errors
    /// Why it cannot go on.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub async fn ended(&self) -> Result<()> {
        let mut ended = self.inner.ended.clone();
        match ended.wait_for(Option::is_some).await.map(|ended| ended.clone()) {
            Ok(Some(Err((kind, why)))) => Err(Error::new(kind, why)),
            Ok(_) => Ok(()),
            Err(_) => Err(Error::unavailable("the keeper's task was ended from outside")),
        }
    }

    /// From now on the worker may hold so many leases; what is above is drained and given back.
    pub async fn set_cap(&self, cap: usize) {
        let _ = self.inner.commands.send(Command::Cap(cap)).await;
    }

    /// What the worker knows, kept up to date within a second or so.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<View> {
        self.inner.view.clone()
    }

    /// Ends at once, as if the process had been killed: nothing is given back.
    #[cfg(any(test, feature = "testing"))]
    pub fn abandon(&self) {
        self.inner.join.abort();
    }

    /// The worker's name.
    #[must_use]
    pub fn worker(&self) -> &WorkerId {
        &self.inner.worker
    }
}

// === impl Task ===

struct Task {
    machine: Machine,
    calls: Calls,
    clock: Arc<dyn Clock>,
    app: String,
    progress_timeout: Option<Duration>,
    elector: Elector,
    planner: Option<watch::Receiver<LeaderView>>,
    planning: Planning,
    under_way: JoinSet<(CallId, Answered)>,
    sides: BTreeMap<LeaseKey, Side>,
    grants: mpsc::Sender<Holding>,
    asks: mpsc::Sender<Asked>,
    waiting: BTreeMap<RequestId, oneshot::Sender<Result<()>>>,
    requests: u64,
    view: watch::Sender<View>,
    viewed: Monotonic,
    stale_view: bool,
    looked: Monotonic,
    started: Option<oneshot::Sender<Result<()>>>,
    fatal: Option<(Kind, String)>,
    /// The gauges of the planner show something.
    gauged: bool,
    /// The last error that was logged: at every call it would be said again.
    told: Option<String>,
    grant: u64,
}

/// The keeper's side of a lease, and which grant of it this is.
struct Side {
    grant: u64,
    side: KeeperSide,
    stuck: bool,
}

/// What a consumer asks for; `None` if it wants the lease no more.
struct Asked {
    key: LeaseKey,
    grant: u64,
    request: Option<Request>,
}

impl Task {
    async fn run(
        mut self,
        mut orders: mpsc::Receiver<Command>,
        mut requests: mpsc::Receiver<Asked>,
        ended: watch::Sender<Option<std::result::Result<(), (Kind, String)>>>,
    ) {
        let clock = self.clock.clone();
        let mut orphaned = false;
        self.step(Event::Wake);
        while !self.machine.is_stopped() {
            let wake = self.machine.wake_at();
            tokio::select! {
                biased;
                order = orders.recv(), if !orphaned => match order {
                    Some(Command::Cap(cap)) => self.step(Event::Cap(cap)),
                    Some(Command::Stop) => self.step(Event::Stop),
                    None => {
                        orphaned = true;
                        self.step(Event::Stop);
                    }
                },
                Some(answered) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                    // A call that panicked is not answered, and its lease runs out: nothing is assumed.
                    if let Ok((id, answered)) = answered {
                        self.answered(id, answered);
                    }
                }
                Some(asked) = requests.recv() => self.asked(asked),
                () = changed(&mut self.planner) => {}
                () = clock.sleep_until(wake), if wake != Monotonic::NEVER => self.step(Event::Wake),
            }
            self.look_around();
        }
        self.sides.clear();
        self.elector.stop().await;
        self.publish(true);
        if let Some(started) = self.started.take() {
            let _ = started.send(match &self.fatal {
                Some((kind, why)) => Err(Error::new(*kind, why.clone())),
                None => Err(Error::unavailable("the keeper was stopped before it had begun")),
            });
        }
        let _ = ended.send(Some(self.fatal.take().map_or(Ok(()), Err)));
    }

    fn step(&mut self, event: Event) {
        let now = Now { monotonic: self.clock.monotonic(), wall: self.clock.wall() };
        for effect in self.machine.step(now, event) {
            match effect {
                Effect::Call { id, by, call } => {
                    let calls = self.calls.clone();
                    let making = async move { (id, calls.make(by, call).await) };
                    self.under_way.spawn(making.in_current_span());
                }
                Effect::Tell(news) => self.tell(news),
            }
        }
    }

    fn answered(&mut self, id: CallId, answered: Answered) {
        if let Some(error) = answered.error {
            let text = error.chain();
            if self.told.as_ref() != Some(&text) {
                warn!(error = text, "leases");
                self.told = Some(text);
            }
            // What a person must mend is no reason to wait for ever at the beginning.
            if self.started.is_some()
                && let Some(started) = self.started.take()
            {
                let _ = started.send(Err(error));
                self.step(Event::Stop);
                return;
            }
        }
        self.stale_view |= matches!(answered.answer, Answer::Scanned(_));
        self.step(Event::Answered(id, answered.answer));
    }

    fn asked(&mut self, asked: Asked) {
        let Asked { key, grant, request } = asked;
        if self.sides.get(&key).is_none_or(|side| side.grant != grant) {
            // Of a lease that is over: whoever asked hears so.
            if let Some(Request::Checkpoint { reply, .. } | Request::Give { reply }) = request {
                let _ = reply.send(Err(fenced(&key)));
            }
            return;
        }
        if let Some(side) = self.sides.get(&key)
            && matches!(request, None | Some(Request::Give { .. }))
        {
            side.side.close();
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        let event = match request {
            Some(Request::Checkpoint { at, marks, reply }) => {
                self.waiting.insert(id, reply);
                Event::Checkpoint { key, request: id, at, marks }
            }
            Some(Request::Give { reply }) => {
                self.waiting.insert(id, reply);
                Event::Give { key, request: Some(id) }
            }
            None => Event::Give { key, request: None },
        };
        self.step(event);
    }

    fn tell(&mut self, news: News) {
        self.stale_view |= !matches!(news, News::Extended { .. });
        match news {
            News::Started => {
                info!("the others know of this worker");
                if let Some(started) = self.started.take() {
                    let _ = started.send(Ok(()));
                }
            }
            News::Granted { lease, parents, deadline } => {
                info!(lease = %lease.key, "lease taken");
                metrics::counter!("tenure_lease_taken_total", "app" => self.app.clone()).increment(1);
                let key = lease.key.clone();
                let (mut side, holding) = KeeperSide::grant(self.clock.clone(), *lease, parents, deadline);
                self.grant += 1;
                let grant = self.grant;
                let requests = std::mem::replace(&mut side.requests, mpsc::channel(1).1);
                tokio::spawn(forward(key.clone(), grant, requests, self.asks.clone()));
                self.sides.insert(key.clone(), Side { grant, side, stuck: false });
                if self.grants.try_send(holding).is_err() {
                    // Dropped with the holding, the lease is given back.
                    warn!(lease = %key, "nobody takes up the lease: it is given back");
                }
                self.gauge();
            }
            News::Extended { key, deadline } => {
                if let Some(side) = self.sides.get(&key) {
                    side.side.extend(deadline);
                }
            }
            News::GiveAsked { key, how } => {
                info!(lease = %key, why = ?how, "lease is to be given");
                if let Some(side) = self.sides.get(&key) {
                    side.side.end(how);
                }
            }
            News::Lost { key, why } => {
                // First of all: nobody may deliver any more.
                if let Some(side) = self.sides.remove(&key) {
                    side.side.end(Ending::Lost);
                }
                warn!(lease = %key, why = why.name(), "lease lost");
                metrics::counter!("tenure_lease_lost_total", "app" => self.app.clone(), "reason" => why.name())
                    .increment(1);
                self.gauge();
            }
            News::Given { key, to } => {
                if let Some(side) = self.sides.remove(&key) {
                    side.side.end(Ending::Lost);
                }
                info!(lease = %key, to = to.as_ref().map(WorkerId::as_str), "lease given");
                metrics::counter!("tenure_lease_given_total", "app" => self.app.clone()).increment(1);
                self.gauge();
            }
            News::Done { request, outcome } => {
                if let Some(reply) = self.waiting.remove(&request) {
                    let _ = reply.send(result(outcome));
                }
            }
            News::Alarm(alarm) => match alarm {
                Alarm::Deficit { leases, desired_workers } => {
                    warn!(
                        lease_capacity_deficit = leases,
                        desired_workers, "the fleet may hold fewer leases than there are"
                    );
                }
                Alarm::Stuck(key) => {
                    error!(lease = %key, "the consumer makes no progress: the lease is not renewed")
                }
                Alarm::BadRow(key, why) => error!(lease = %key, error = %why, "a lease cannot be read"),
                Alarm::Foreign(worker) => {
                    info!(foreign = %worker, "a worker of another kind holds leases: nothing is moved beside it");
                }
            },
            News::Fatal(fatal) => {
                let (kind, why) = self.explain(&fatal);
                error!(error = why, "the worker cannot go on");
                self.fatal = Some((kind, why));
            }
            News::Stopped => {
                for side in std::mem::take(&mut self.sides).into_values() {
                    side.side.end(Ending::Lost);
                }
                self.waiting.clear();
            }
        }
    }

    fn explain(&self, fatal: &Fatal) -> (Kind, String) {
        let (app, worker) = (&self.app, &self.machine.me().worker);
        let why = match fatal {
            Fatal::OtherLease { stored } => format!(
                "leases of application `{app}` last {stored:?}: give this worker the same lease, or stop all workers and \
                 delete the row `LEASES#{app}` / `settings` to change it"
            ),
            Fatal::SameWorker => format!(
                "another live process of application `{app}` is called `{worker}`: give each worker its own name"
            ),
        };
        (Kind::Invalid, why)
    }

    fn gauge(&self) {
        let held = u32::try_from(self.sides.len()).unwrap_or(u32::MAX);
        metrics::gauge!("tenure_leases_held", "app" => self.app.clone()).set(f64::from(held));
    }

    /// What is looked at between events: who plans, who makes no progress, and what the view shows.
    fn look_around(&mut self) {
        if self.machine.is_running() {
            if self.planner.is_none() {
                self.planner = Some(self.campaign());
            }
            let planning = self.who_plans();
            if planning != self.planning {
                self.planning = planning;
                self.step(Event::Planner(planning));
            }
        }
        let now = self.clock.monotonic();
        if now >= self.looked + PROGRESS_INTERVAL {
            self.looked = now;
            self.look_at_consumers(now);
        }
        self.publish(false);
    }

    /// Stands for planner from now on.
    fn campaign(&self) -> watch::Receiver<LeaderView> {
        let elector = self.elector.clone();
        let (sender, view) = watch::channel(LeaderView::default());
        let following = async move {
            let Ok(mut leader) = elector.watch().await else { return };
            if elector.start().await.is_err() {
                return;
            }
            loop {
                let current = leader.borrow_and_update().clone();
                if sender.send(current).is_err() || leader.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::spawn(following.in_current_span());
        view
    }

    fn who_plans(&self) -> Planning {
        if self.elector.is_leader() {
            return Planning::Me;
        }
        let leader = self.planner.as_ref().and_then(|view| view.borrow().leader.clone());
        match leader {
            Some(leader) if leader.owner != *self.elector.owner() => Planning::Other,
            _ => Planning::Nobody,
        }
    }

    fn look_at_consumers(&mut self, now: Monotonic) {
        let mut events = Vec::new();
        for (key, side) in &mut self.sides {
            if let Some(kbps) = side.side.take_measured() {
                events.push(Event::Measured { key: key.clone(), kbps });
            }
            let Some(timeout) = self.progress_timeout else { continue };
            let stuck = side.side.stuck_since().is_some_and(|since| now >= since + timeout);
            if stuck != side.stuck {
                side.stuck = stuck;
                events.push(Event::Stuck { key: key.clone(), stuck });
            }
        }
        for event in events {
            self.step(event);
        }
    }

    fn publish(&mut self, at_once: bool) {
        let now = self.clock.monotonic();
        if !at_once && (!self.stale_view || now < self.viewed + VIEW_INTERVAL) {
            return;
        }
        (self.viewed, self.stale_view) = (now, false);
        let view = self.machine.view(now);
        let plans = view.plans && !self.machine.is_stopped();
        // The planner alone knows. Whoever plans no more says nothing, rather than what was true once.
        let gauged = std::mem::replace(&mut self.gauged, plans);
        if plans || gauged {
            let count = |number: usize| {
                if plans { f64::from(u32::try_from(number).unwrap_or(u32::MAX)) } else { 0.0 }
            };
            metrics::gauge!("lease_capacity_deficit", "app" => self.app.clone()).set(count(view.deficit));
            metrics::gauge!("desired_workers", "app" => self.app.clone()).set(count(view.desired_workers));
        }
        self.view.send_replace(view);
    }
}

/// Passes on what a consumer asks for; and at the end that it asks for nothing any more.
async fn forward(
    key: LeaseKey,
    grant: u64,
    mut requests: mpsc::Receiver<Request>,
    asks: mpsc::Sender<Asked>,
) {
    loop {
        let request = requests.recv().await;
        let is_last = request.is_none();
        if asks.send(Asked { key: key.clone(), grant, request }).await.is_err() || is_last {
            return;
        }
    }
}

async fn changed(planner: &mut Option<watch::Receiver<LeaderView>>) {
    match planner {
        Some(view) => {
            if view.changed().await.is_err() {
                pending().await
            }
        }
        None => pending().await,
    }
}

fn fenced(key: &LeaseKey) -> Error {
    Error::new(Kind::Fenced, format!("lease {key} is not held any more: stop reading its shard"))
}

fn result(outcome: Outcome) -> Result<()> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Fenced => {
            Err(Error::new(Kind::Fenced, "the lease is not held any more: stop reading its shard"))
        }
        Outcome::Behind => Err(Error::invalid(
            "the checkpoint lies before the one that is stored: checkpoints of a shard only go forward",
        )),
        Outcome::Busy => Err(Error::new(
            Kind::Throttled,
            "too many requests of one lease wait: wait for the answer to one before the next",
        )),
    }
}

#[cfg(test)]
#[path = "keeper_test.rs"]
mod tests;
