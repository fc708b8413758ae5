//! Carries out what the machine decides: one task per candidate.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Entropy, Monotonic, WallTime};
use tenure_store::Store;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{Instrument, info, info_span, warn};

use crate::builder::Builder;
use crate::calls::{Answered, Calls};
use crate::fence::Fence;
use crate::identity::{Epoch, Nonce, OwnerId};
use crate::leadership::{Leadership, Term};
use crate::lock::Lock;
use crate::machine::{Call, CallId, Effect, Event, LossReason, Machine, Me, News, Now, Trouble};
use crate::rows::Place;
use crate::settings::Timing;

/// Commands that may wait for the task: callers beyond that wait in turn.
const COMMANDS_MAX: usize = 16;
/// Tells whether the work of the leader makes progress.
pub type Health = Arc<dyn Fn() -> bool + Send + Sync>;

/// Who leads a shard, as one candidate sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeaderView {
    /// The leader; none if the shard is free, or nothing was read yet.
    pub leader: Option<Leader>,
}

/// A leader, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its id.
    pub owner: OwnerId,
    /// Its name; absent of a Go process.
    pub name: Option<Arc<str>>,
    /// Its term; absent of a Go process.
    pub epoch: Option<Epoch>,
    /// Since when, by its own wall clock; absent of a Go process.
    pub since: Option<WallTime>,
    /// What else it tells about itself.
    pub about: Arc<BTreeMap<String, String>>,
}

impl Leader {
    /// The leader that a LOCK row names; none if it was released.
    #[must_use]
    pub fn of(lock: &Lock) -> Option<Self> {
        if lock.is_released() {
            return None;
        }
        let card = lock.card.as_ref();
        Some(Self {
            owner: lock.owner.clone(),
            name: card.map(|card| card.name.clone()),
            epoch: lock.epoch,
            since: card.map(|card| card.since),
            about: card.map(|card| card.about.clone()).unwrap_or_default(),
        })
    }
}

/// A candidate for one shard. Cheap to clone; the task behind it ends, and gives up what it holds, when
/// the last clone and the last [`Leadership`] are gone.
///
/// ```
/// # async fn example(env: tenure_backend::Env) -> tenure_backend::Result<()> {
/// use std::time::Duration;
/// use tenure_election::Elector;
///
/// let store = tenure_store::open("memory:", &env).await?;
/// let elector = Elector::builder(store, "batch-processor", &env)
///     .owner("host-1")
///     .lease(Duration::from_secs(15))
///     .renew(Duration::from_secs(5))
///     .build()?;
/// let leadership = elector.lead().await?;
/// assert!(leadership.is_valid());
/// leadership.resign(None).await
/// # }
/// ```
#[derive(Clone)]
pub struct Elector {
    inner: Arc<Inner>,
}

struct Inner {
    candidate: Candidate,
    shared: Arc<Shared>,
    commands: Mutex<Option<mpsc::Sender<Command>>>,
    /// How often the candidacy was ended.
    stops: AtomicU64,
}

/// What the task and the handles both look at.
struct Shared {
    view: watch::Sender<LeaderView>,
    /// The deadline of the term under way, in nanoseconds; 0 without one.
    deadline: AtomicU64,
    term: Mutex<Option<Term>>,
}

/// Everything a task needs to begin.
#[derive(Clone)]
pub(crate) struct Candidate {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Entropy,
    pub(crate) place: Place,
    pub(crate) me: Me,
    pub(crate) timing: Timing,
    pub(crate) health: Option<Health>,
}

pub(crate) enum Command {
    Lead { once: bool, elected: oneshot::Sender<Result<Option<Leadership>>> },
    Start,
    Watch,
    Resign { epoch: Epoch, to: Option<Arc<str>>, done: oneshot::Sender<bool> },
    Stop { done: oneshot::Sender<()> },
}

impl Elector {
    pub(crate) fn of(candidate: Candidate) -> Self {
        let shared = Shared {
            view: watch::Sender::new(LeaderView::default()),
            deadline: AtomicU64::new(0),
            term: Mutex::new(None),
        };
        let inner = Inner {
            candidate,
            shared: Arc::new(shared),
            commands: Mutex::new(None),
            stops: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Begins to describe a candidate for `shard`.
    pub fn builder(store: Arc<dyn Store>, shard: impl Into<String>, env: &Env) -> Builder {
        Builder::new(store, shard.into(), env)
    }

    /// Stands for election until elected.
    ///
    /// # Errors
    /// What a person must mend: a table of another shape, a row that is not a lock, a second live
    /// process with this owner id, missing permissions. A store that is down is waited for.
    ///
    /// # Cancel safety
    /// Dropping it withdraws; a term won in that moment is given up.
    pub async fn lead(&self) -> Result<Leadership> {
        match self.ask_to_lead(false).await? {
            Some(leadership) => Ok(leadership),
            None => Err(stopped()),
        }
    }

    /// Stands once: `None` if the shard is led by somebody else, or the store does not answer.
    ///
    /// Somebody else's lease is judged by watching it, so a candidate that is asked for the first time
    /// takes a shard only if it is free, released, or past its `ttl` under [`Skew::Bounded`](crate::Skew::Bounded).
    ///
    /// # Errors
    /// As [`Elector::lead`].
    ///
    /// # Cancel safety
    /// As [`Elector::lead`].
    pub async fn try_lead(&self) -> Result<Option<Leadership>> {
        self.ask_to_lead(true).await
    }

    async fn ask_to_lead(&self, once: bool) -> Result<Option<Leadership>> {
        let (elected, answer) = oneshot::channel();
        self.send(Command::Lead { once, elected }).await?;
        answer.await.map_err(|_| stopped())?
    }

    /// Runs `work` whenever this candidate leads, and stands again after every loss, until `work` ends
    /// by itself. Work is dropped when the term is lost, and when an operator asks for a handover.
    ///
    /// # Errors
    /// As [`Elector::lead`].
    ///
    /// # Cancel safety
    /// Dropping it drops the work and gives the shard up.
    pub async fn run<W, F>(&self, mut work: W) -> Result<F::Output>
    where
        W: FnMut(Term) -> F,
        F: Future,
    {
        let stops = || self.inner.stops.load(Ordering::Acquire);
        let begun_after = stops();
        loop {
            if stops() != begun_after {
                return Err(stopped());
            }
            let leadership = self.lead().await?;
            let term = leadership.term().clone();
            let handover = {
                let mut task = Box::pin(work(term.clone()));
                tokio::select! {
                    biased;
                    _ = term.lost() => None,
                    to = term.resign_asked() => Some(to),
                    output = &mut task => {
                        // The work is done; whether the release is confirmed changes nothing for it.
                        let _ = leadership.resign(None).await;
                        return Ok(output);
                    }
                }
            };
            if let Some(to) = handover
                && let Err(error) = leadership.resign(to.as_deref()).await
            {
                warn!(error = %error.chain(), "handover");
            }
        }
    }

    /// Stands for election, and again after every loss, until [`Elector::stop`]. Ask
    /// [`Elector::is_leader`] before each piece of work.
    ///
    /// # Errors
    /// If the task cannot be reached.
    pub async fn start(&self) -> Result<()> {
        self.send(Command::Start).await
    }

    /// Whether this candidate leads at this moment.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        let deadline = self.inner.shared.deadline.load(Ordering::Acquire);
        self.inner.candidate.clock.monotonic() < Monotonic::from_nanos(deadline)
    }

    /// The term under way, if this candidate leads.
    #[must_use]
    pub fn term(&self) -> Option<Term> {
        let term = self.inner.shared.term.lock().unwrap_or_else(PoisonError::into_inner).clone();
        term.filter(Term::is_valid)
    }

    /// Ends the candidacy, [`Elector::run`] included: waits for a claim in flight, releases what is held,
    /// and joins the task.
    ///
    /// # Cancel safety
    /// Once the task has taken note, the candidacy ends even if this is dropped.
    pub async fn stop(&self) {
        self.inner.stops.fetch_add(1, Ordering::AcqRel);
        let commands = self.commands().clone();
        if let Some(commands) = commands {
            let (done, ended) = oneshot::channel();
            if commands.send(Command::Stop { done }).await.is_ok() {
                let _ = ended.await;
            }
        }
    }

    /// Who leads, kept up to date.
    ///
    /// # Errors
    /// If the task cannot be reached.
    pub async fn watch(&self) -> Result<watch::Receiver<LeaderView>> {
        let view = self.inner.shared.view.subscribe();
        self.send(Command::Watch).await?;
        Ok(view)
    }

    /// The id in the row.
    #[must_use]
    pub fn owner(&self) -> &OwnerId {
        &self.inner.candidate.me.owner
    }

    async fn send(&self, command: Command) -> Result<()> {
        let sender = {
            let mut commands = self.commands();
            match &*commands {
                Some(sender) if !sender.is_closed() => sender.clone(),
                _ => commands.insert(self.spawn()).clone(),
            }
        };
        sender.send(command).await.map_err(|_| stopped())
    }

    fn commands(&self) -> MutexGuard<'_, Option<mpsc::Sender<Command>>> {
        self.inner.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spawn(&self) -> mpsc::Sender<Command> {
        let (sender, commands) = mpsc::channel(COMMANDS_MAX);
        let candidate = self.inner.candidate.clone();
        let span = info_span!("election", shard = %candidate.place.shard, owner = %candidate.me.owner);
        let task = Task {
            machine: Machine::new(candidate.me.clone(), candidate.timing),
            calls: Calls::new(candidate.store.clone(), candidate.clock.clone(), candidate.place.clone()),
            shared: self.inner.shared.clone(),
            // Weak, so that the task ends when the last handle is gone.
            sender: sender.downgrade(),
            candidate,
            call: None,
            waiting: Vec::new(),
            always: false,
            held: None,
            leaving: Vec::new(),
            stopping: Vec::new(),
            watched: false,
            told: None,
        };
        tokio::spawn(task.run(commands).instrument(span));
        sender
    }
}

impl fmt::Debug for Elector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Elector")
            .field("place", &self.inner.candidate.place)
            .field("owner", &self.inner.candidate.me.owner)
            .finish_non_exhaustive()
    }
}

fn stopped() -> Error {
    Error::unavailable("the elector was stopped")
}

// === impl Task ===

type Pending = Pin<Box<dyn Future<Output = (CallId, Answered)> + Send>>;

/// Whoever waits to be elected.
struct Waiter {
    once: bool,
    elected: oneshot::Sender<Result<Option<Leadership>>>,
}

struct Task {
    candidate: Candidate,
    shared: Arc<Shared>,
    sender: mpsc::WeakSender<Command>,
    machine: Machine,
    calls: Calls,
    call: Option<Pending>,
    waiting: Vec<Waiter>,
    /// Stands again after every loss.
    always: bool,
    /// Resolves when the [`Leadership`] that was handed out is dropped.
    held: Option<oneshot::Receiver<()>>,
    /// Whoever waits for a release.
    leaving: Vec<oneshot::Sender<bool>>,
    stopping: Vec<oneshot::Sender<()>>,
    /// Somebody was given a view of the leader.
    watched: bool,
    /// The last error that was logged: at every read it would be said again.
    told: Option<String>,
}

impl Task {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let (clock, shared) = (self.candidate.clock.clone(), self.shared.clone());
        let mut orphaned = false;
        while !self.machine.is_stopped() {
            let wake = self.machine.wake_at();
            tokio::select! {
                biased;
                command = commands.recv(), if !orphaned => match command {
                    Some(command) => self.obey(command),
                    None => {
                        orphaned = true;
                        self.step(Event::Stop);
                    }
                },
                (id, answered) = answer(&mut self.call) => {
                    self.call = None;
                    self.step(Event::Answered(id, answered.answer));
                    if let Some(error) = answered.error {
                        let standing = self.fail(&error);
                        self.step(standing);
                    }
                }
                () = dropped(&mut self.held) => {
                    self.held = None;
                    self.step(Event::Resign { to: None });
                }
                () = withdrawn(&mut self.waiting) => {
                    self.waiting.retain(|waiter| !waiter.elected.is_closed());
                    self.step(self.standing());
                }
                () = shared.view.closed(), if self.watched => {
                    self.watched = false;
                    self.step(self.standing());
                }
                () = clock.sleep_until(wake), if wake != Monotonic::NEVER => self.step(Event::Wake),
            }
        }
        commands.close();
        for done in self.stopping.drain(..) {
            let _ = done.send(());
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Lead { once, elected } => {
                let waiter = Waiter { once, elected };
                let running = self.term().clone().filter(Term::is_valid);
                match running {
                    // Led since `start`, on nobody's behalf: here is somebody.
                    Some(term) if self.held.is_none() => self.hand_out(&term, waiter),
                    // Led by this very candidate, on behalf of somebody else.
                    Some(_) if once => drop(waiter.elected.send(Ok(None))),
                    _ => {
                        self.waiting.push(waiter);
                        self.step(if once { Event::TryOnce } else { Event::Campaign });
                    }
                }
            }
            Command::Start => {
                self.always = true;
                self.step(Event::Campaign);
            }
            Command::Watch => {
                self.watched = true;
                self.step(self.standing());
            }
            Command::Resign { epoch, to, done } => {
                if self.machine.term().is_some_and(|(current, _)| current == epoch) {
                    self.leaving.push(done);
                    self.step(Event::Resign { to });
                } else {
                    let _ = done.send(false);
                }
            }
            Command::Stop { done } => {
                self.stopping.push(done);
                self.step(Event::Stop);
            }
        }
    }

    /// What the machine should be doing, by who waits for what.
    fn standing(&self) -> Event {
        if self.always || self.waiting.iter().any(|waiter| !waiter.once) {
            Event::Campaign
        } else if !self.waiting.is_empty() {
            Event::TryOnce
        } else if self.shared.view.receiver_count() > 0 {
            Event::Watch
        } else {
            Event::Rest
        }
    }

    fn step(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let now = Now {
                monotonic: self.candidate.clock.monotonic(),
                wall: self.candidate.clock.wall(),
                nonce: nonce(&self.candidate.entropy),
                healthy: self.candidate.health.as_ref().is_none_or(|healthy| healthy()),
            };
            for effect in self.machine.step(now, event) {
                match effect {
                    Effect::Call { id, by, call } => self.call = Some(self.carry_out(id, by, call)),
                    Effect::Tell(news) => next = self.tell(news).or(next),
                }
            }
        }
        self.publish();
    }

    /// Passes news on, and says what follows from it.
    fn tell(&mut self, news: News) -> Option<Event> {
        let shard = &self.candidate.place.shard;
        match news {
            News::Elected { epoch, deadline } => return self.elected(epoch, deadline),
            News::Renewed { deadline } => {
                self.shared.deadline.store(deadline.as_nanos(), Ordering::Release);
                if let Some(term) = &*self.term() {
                    term.renewed(deadline);
                }
            }
            News::Lost(reason) => {
                // First of all: nobody may take this for a term any more.
                self.shared.deadline.store(0, Ordering::Release);
                info!(reason = reason.name(), "leadership lost");
                metrics::counter!("tenure_election_lost_total", "shard" => shard.to_string(), "reason" => reason.name())
                    .increment(1);
                metrics::gauge!("tenure_election_leading", "shard" => shard.to_string()).set(0.0);
                let resigned = reason == LossReason::Resigned;
                if let Some(term) = self.term().take() {
                    term.over(reason);
                }
                self.held = None;
                // Whoever wanted to resign just then came too late: nothing is left to be released.
                if !resigned {
                    for done in self.leaving.drain(..) {
                        let _ = done.send(false);
                    }
                }
                return Some(self.standing());
            }
            News::Declined => {
                self.decline_once();
                return Some(self.standing());
            }
            News::Released { confirmed } => {
                for done in self.leaving.drain(..) {
                    let _ = done.send(confirmed);
                }
            }
            News::ResignAsked(request) => {
                info!(to = request.to.as_deref(), "asked to resign");
                // Whoever holds the leadership ends its work first; without a holder there is nothing to end.
                if self.held.is_none() {
                    return Some(Event::Resign { to: request.to });
                }
                if let Some(term) = &*self.term() {
                    term.asked_to_resign(request);
                }
            }
            News::Trouble(trouble) => {
                let error = self.explain(&trouble);
                return Some(self.fail(&error));
            }
            News::Stopped => {
                self.waiting.clear();
                self.leaving.clear();
            }
        }
        None
    }

    fn elected(&mut self, epoch: Epoch, deadline: Monotonic) -> Option<Event> {
        let Candidate { place, clock, .. } = &self.candidate;
        let term = Term::new(Fence::new(place.clone(), epoch), deadline, clock.clone());
        info!(epoch = epoch.0, "elected");
        self.told = None;
        let shard = place.shard.to_string();
        metrics::counter!("tenure_election_terms_total", "shard" => shard.clone()).increment(1);
        metrics::gauge!("tenure_election_leading", "shard" => shard).set(1.0);
        *self.term() = Some(term.clone());
        self.shared.deadline.store(deadline.as_nanos(), Ordering::Release);
        while self.held.is_none() && !self.waiting.is_empty() {
            let waiter = self.waiting.remove(0);
            self.hand_out(&term, waiter);
        }
        if self.held.is_some() {
            // Whoever wanted it only if it could be had at once cannot have it now.
            self.decline_once();
            return None;
        }
        // Nobody wants it any more.
        (!self.always).then_some(Event::Resign { to: None })
    }

    /// Gives the term to whoever waits, unless it does not wait any more.
    fn hand_out(&mut self, term: &Term, waiter: Waiter) {
        let Some(sender) = self.sender.upgrade() else { return };
        let (leadership, dropped) = Leadership::new(term.clone(), sender);
        if waiter.elected.send(Ok(Some(leadership))).is_ok() {
            self.held = Some(dropped);
        }
    }

    fn decline_once(&mut self) {
        for waiter in self.waiting.extract_if(.., |waiter| waiter.once) {
            let _ = waiter.elected.send(Ok(None));
        }
    }

    /// What a person must mend ends the wait of those who wait; a standing candidate goes on trying.
    fn fail(&mut self, error: &Error) -> Event {
        let text = error.chain();
        if self.told.as_ref() != Some(&text) {
            warn!(error = text, "election");
            self.told = Some(text);
        }
        for waiter in self.waiting.drain(..) {
            let _ = waiter.elected.send(Err(Error::new(error.kind(), error.chain())));
        }
        self.standing()
    }

    fn explain(&self, trouble: &Trouble) -> Error {
        let Candidate { place: Place { shard, table }, me, .. } = &self.candidate;
        match trouble {
            Trouble::ForeignRow(what) => Error::new(Kind::Corrupt, &**what),
            Trouble::GoRow => Error::invalid(format!(
                "the lock row of shard `{shard}` in table `{table}` was written by the Go library: set go_peers with a \
                 skew bound, or delete the row if no Go process runs any more"
            )),
            Trouble::SameOwner => Error::invalid(format!(
                "another live process stands for shard `{shard}` with owner id `{}`: give each process its own",
                me.owner
            )),
        }
    }

    fn term(&self) -> MutexGuard<'_, Option<Term>> {
        self.shared.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self) {
        if let Some(term) = &*self.term() {
            term.failing(self.machine.failing());
        }
        let lock = self.machine.lock().filter(|lock| !lock.is_released());
        self.shared.view.send_if_modified(|view| {
            let same = match (&view.leader, lock) {
                (Some(leader), Some(lock)) => leader.owner == lock.owner && leader.epoch == lock.epoch,
                (None, None) => true,
                _ => false,
            };
            if !same {
                view.leader = lock.and_then(Leader::of);
            }
            !same
        });
    }

    fn carry_out(&self, id: CallId, by: Monotonic, call: Call) -> Pending {
        let calls = self.calls.clone();
        Box::pin(async move { (id, calls.make(by, call).await) })
    }
}

fn nonce(entropy: &Entropy) -> Nonce {
    Nonce(u128::from(entropy.u64()) << 64 | u128::from(entropy.u64()))
}

// === what is awaited ===

async fn answer(call: &mut Option<Pending>) -> (CallId, Answered) {
    match call {
        Some(call) => call.await,
        None => pending().await,
    }
}

async fn dropped(held: &mut Option<oneshot::Receiver<()>>) {
    match held {
        // Nothing is ever sent: the sender goes away with the leadership.
        Some(held) => drop(held.await),
        None => pending().await,
    }
}

/// Completes when somebody who waited to be elected does not wait any more.
async fn withdrawn(waiting: &mut [Waiter]) {
    poll_fn(|cx| {
        let gone = waiting.iter_mut().any(|waiter| waiter.elected.poll_closed(cx).is_ready());
        if gone { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
#[path = "elector_test.rs"]
mod tests;
