//! Leadership held by a Postgres advisory lock, on a session that somebody else brings.
//!
//! Every candidate asks for the lock again and again, on a session of its own; the server grants it to
//! one. Then the epoch in the store rises, and only then the candidate leads. The lock is not what keeps
//! an old leader out: after a failover of Postgres two servers may grant it, and a leader that is cut off
//! does not hear that its session has ended. The [`Fence`] is.
//!
//! # Guarantees
//! - Each term has a higher epoch than all terms before it, whichever server granted the lock.
//! - A term is over at the latest a `deadline` after the last answered ping was sent, on a clock that
//!   counts suspended time; and at once when the session is known to be over.
//! - Nobody waits for the lock inside the server, so no candidate holds back its clean-up of dead rows.
//! - Programs that take the same key by Postgres' own functions are excluded, and exclude us.
//!
//! # Caveats
//! - The server frees the lock when it knows that the session is over. A killed process: at once. A
//!   vanished host or a cut network: after `server_timeout`, if the session was opened with
//!   `prepare_config`; until then every standby waits. That is longer than the `deadline`, so the
//!   old leader has stopped by then.
//! - Never through a pooler: it may lend the connection that holds the lock to anybody. It is found out
//!   when another process of the server answers, and then the term is over.
//! - Locks of a standby server exclude nobody on the primary; a standby is refused.
//! - A shard is led by lock or by rows ([`Elector`](crate::Elector)), not by both: the two do not exclude
//!   each other. If they meet, the later one's epoch fences the earlier one.
//!
//! `advisory/machine.rs` decides, `advisory/fence_row.rs` translates, this file carries out.

#[cfg(feature = "testing")]
pub(crate) mod fake;
mod fence_row;
mod key;
mod machine;
#[cfg(feature = "postgres")]
mod postgres;
mod session;
mod settings;

use std::fmt;
use std::future::{Future, pending};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Entropy, Monotonic, within};
use tenure_store::{Store, Written};
use tokio::sync::{oneshot, watch};
use tracing::{Instrument, debug, info, info_span, warn};

pub use self::key::LockKey;
pub use self::machine::LockEnd;
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresSession, prepare_config};
pub use self::session::{LockSession, Pulse, Tried};
pub use self::settings::AdvisorySettings;

use self::fence_row::Raise;
use self::machine::{Answer, Call, CallId, Effect, Event, Machine, News, Now};
use crate::calls::prepare;
use crate::fence::Fence;
use crate::identity::{Epoch, Nonce, ShardId};
use crate::leadership::Term;
use crate::machine::LossReason;
use crate::rows::Place;

/// A candidate for one shard, by an advisory lock on one session.
///
/// ```
/// # async fn example(
/// #     session: std::sync::Arc<dyn tenure_election::LockSession>,
/// #     env: tenure_backend::Env,
/// # ) -> tenure_backend::Result<()> {
/// use tenure_election::{AdvisoryElector, AdvisorySettings, LockKey};
///
/// let store = tenure_store::open("memory:", &env).await?;
/// let key = LockKey::named("orders-publisher");
/// let settings = AdvisorySettings::default();
/// let elector = AdvisoryElector::new(session, key, store, "orders-publisher", settings, &env)?;
/// let leadership = elector.lead().await?;
/// assert!(leadership.is_valid());
/// leadership.resign().await
/// # }
/// ```
pub struct AdvisoryElector {
    session: Arc<dyn LockSession>,
    key: LockKey,
    store: Arc<dyn Store>,
    place: Place,
    settings: AdvisorySettings,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
}

impl AdvisoryElector {
    /// Checks everything. Nothing is asked or written yet.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn new(
        session: Arc<dyn LockSession>,
        key: LockKey,
        store: Arc<dyn Store>,
        shard: impl AsRef<str>,
        settings: AdvisorySettings,
        env: &Env,
    ) -> Result<Self> {
        settings.validate()?;
        let place = Place { table: settings.table.clone(), shard: ShardId::new(shard)? };
        let (clock, entropy) = (env.clock.clone(), env.entropy.clone());
        Ok(Self { session, key, store, place, settings, clock, entropy })
    }

    /// Stands by until elected. The session is the caller's to share, as long as it is not left inside a
    /// transaction; for another term, or after a loss, begin anew, with a new session unless the last term
    /// was resigned from.
    ///
    /// # Errors
    /// The session ended, stopped answering, or goes through a pooler; or what a person must mend: a table of
    /// another shape, a row that is not a fence, missing permissions. A store that is down when the lock is
    /// granted is waited for in turns, so that a candidate with a better connection may lead.
    ///
    /// # Cancel safety
    /// Dropping it withdraws; a lock granted in that moment is given back.
    pub async fn lead(self) -> Result<AdvisoryLeadership> {
        prepare(&*self.store, &*self.clock, &self.place.table).await?;
        let (elected, answer) = oneshot::channel();
        let span = info_span!("advisory_election", shard = %self.place.shard, key = %self.key);
        let task = Task {
            machine: Machine::new(&self.settings, self.session.announced_backend()),
            on_session: None,
            on_store: None,
            waiter: Some(elected),
            held: None,
            term: None,
            end: watch::Sender::new(None),
            failing: false,
            broken: None,
            elector: self,
        };
        tokio::spawn(task.run().instrument(span));
        answer.await.map_err(|_| Error::unavailable("the election's task was stopped"))?
    }
}

impl fmt::Debug for AdvisoryElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdvisoryElector")
            .field("place", &self.place)
            .field("key", &self.key)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

/// Being the leader. Dropping it gives the lock back, as [`AdvisoryLeadership::resign`] does, without
/// waiting.
///
/// Every loss but a resignation is [`LossReason::LeaderLockLost`]; [`AdvisoryLeadership::end`] tells more.
#[derive(Debug)]
pub struct AdvisoryLeadership {
    term: Term,
    end: watch::Receiver<Option<LockEnd>>,
    /// Dropped with this value: the task takes that for a resignation.
    held: oneshot::Sender<()>,
}

impl AdvisoryLeadership {
    /// The term, to hand to whoever works under it.
    #[must_use]
    pub const fn term(&self) -> &Term {
        &self.term
    }

    /// How the lock was lost, once it is.
    #[must_use]
    pub fn end(&self) -> Option<LockEnd> {
        *self.end.borrow()
    }

    /// Gives the lock back: the next candidate has it within a poll. End the guarded work first.
    ///
    /// # Errors
    /// `Unknown` if it could not be confirmed: then the session was ended, and the lock is free when the
    /// server notices. Also if it was lost before.
    ///
    /// # Cancel safety
    /// Once polled, the release happens even if this is dropped.
    pub async fn resign(self) -> Result<()> {
        let Self { term, mut end, held } = self;
        drop(held);
        let end = end.wait_for(Option::is_some).await.map_or(None, |end| *end);
        match end {
            Some(LockEnd::Released { confirmed: true }) => Ok(()),
            end => {
                let why =
                    end.map_or_else(|| "the election's task was stopped".to_owned(), |end| end.to_string());
                Err(Error::new(Kind::Unknown, format!("resign from shard `{}`", term.fence().shard()))
                    .because(why))
            }
        }
    }
}

impl Deref for AdvisoryLeadership {
    type Target = Term;
    fn deref(&self) -> &Term {
        &self.term
    }
}

// === the task ===

/// A call under way, and the error behind its answer.
type Pending = Pin<Box<dyn Future<Output = (CallId, Answer, Option<Error>)> + Send>>;

struct Task {
    elector: AdvisoryElector,
    machine: Machine,
    on_session: Option<Pending>,
    on_store: Option<Pending>,
    /// Whoever waits to be elected.
    waiter: Option<oneshot::Sender<Result<AdvisoryLeadership>>>,
    /// Resolves when the leadership that was handed out is dropped.
    held: Option<oneshot::Receiver<()>>,
    term: Option<Term>,
    end: watch::Sender<Option<LockEnd>>,
    /// The last call failed, and that was told.
    failing: bool,
    /// What a person must mend, or what ended the session.
    broken: Option<Error>,
}

impl Task {
    async fn run(mut self) {
        let (session, clock) = (self.elector.session.clone(), self.elector.clock.clone());
        let mut ended = session.ended();
        self.step(Event::Wake);
        while !self.machine.is_over() {
            let wake = self.machine.wake_at();
            tokio::select! {
                biased;
                // First: a call that failed because the session is over is not merely a failed call.
                error = &mut ended => {
                    self.broken = Some(error);
                    self.step(Event::SessionEnded);
                }
                (id, answer, error) = answer(&mut self.on_session) => {
                    self.on_session = None;
                    self.answered(id, answer, error);
                }
                (id, answer, error) = answer(&mut self.on_store) => {
                    self.on_store = None;
                    self.answered(id, answer, error);
                }
                () = withdrawn(&mut self.waiter, &mut self.held) => {
                    (self.waiter, self.held) = (None, None);
                    self.step(Event::Withdraw);
                }
                () = clock.sleep_until(wake), if wake != Monotonic::NEVER => self.step(Event::Wake),
            }
        }
    }

    fn answered(&mut self, id: CallId, answer: Answer, error: Option<Error>) {
        match error {
            None => self.failing = false,
            Some(error) => {
                if self.failing {
                    debug!(error = %error.chain(), "advisory election");
                } else {
                    warn!(error = %error.chain(), "advisory election");
                }
                self.failing = true;
                if answer == Answer::Broken {
                    self.broken = Some(error);
                }
            }
        }
        self.step(Event::Answered(id, answer));
    }

    fn step(&mut self, event: Event) {
        let mut next = Some(event);
        while let Some(event) = next.take() {
            let entropy = &self.elector.entropy;
            let now = Now {
                monotonic: self.elector.clock.monotonic(),
                nonce: Nonce(u128::from(entropy.u64()) << 64 | u128::from(entropy.u64())),
            };
            for effect in self.machine.step(now, event) {
                match effect {
                    Effect::Call { id, by, call } => self.carry_out(id, by, call),
                    Effect::EndSession => self.elector.session.end(),
                    Effect::Tell(news) => next = self.tell(news).or(next),
                }
            }
        }
    }

    /// Passes news on, and says what follows from it.
    fn tell(&mut self, news: News) -> Option<Event> {
        match news {
            News::Granted => info!("lock granted"),
            News::GaveBack => warn!("the epoch could not be raised in time: gave the lock back"),
            News::Elected { epoch, deadline } => return self.elected(epoch, deadline),
            News::Renewed { deadline } => {
                if let Some(term) = &self.term {
                    term.renewed(deadline);
                }
            }
            News::Resigned => self.lose(LossReason::Resigned),
            News::Over(end) => {
                self.lose(LossReason::LeaderLockLost);
                (self.on_session, self.on_store, self.held) = (None, None, None);
                if let Some(waiter) = self.waiter.take() {
                    let _ = waiter.send(Err(self.explain(end)));
                } else if !matches!(end, LockEnd::Released { confirmed: true }) {
                    warn!(error = %self.explain(end).chain(), "advisory lock lost");
                }
                self.end.send_replace(Some(end));
            }
        }
        None
    }

    fn elected(&mut self, epoch: Epoch, deadline: Monotonic) -> Option<Event> {
        let place = &self.elector.place;
        let term = Term::new(Fence::new(place.clone(), epoch), deadline, self.elector.clock.clone());
        // Should the deadline pass, then because the session did not answer.
        term.failing(Some(&LossReason::LeaderLockLost));
        info!(epoch = epoch.0, "elected");
        let shard = place.shard.to_string();
        metrics::counter!("tenure_election_terms_total", "shard" => shard.clone()).increment(1);
        metrics::gauge!("tenure_election_leading", "shard" => shard).set(1.0);
        self.term = Some(term.clone());
        let (held, dropped) = oneshot::channel();
        let leadership = AdvisoryLeadership { term, end: self.end.subscribe(), held };
        let wanted = self.waiter.take().is_some_and(|waiter| waiter.send(Ok(leadership)).is_ok());
        self.held = wanted.then_some(dropped);
        (!wanted).then_some(Event::Withdraw)
    }

    fn lose(&mut self, reason: LossReason) {
        let Some(term) = self.term.take() else { return };
        // First of all: nobody may take this for a term any more.
        info!(reason = reason.name(), "leadership lost");
        let shard = term.fence().shard().to_string();
        metrics::counter!("tenure_election_lost_total", "shard" => shard.clone(), "reason" => reason.name())
            .increment(1);
        metrics::gauge!("tenure_election_leading", "shard" => shard).set(0.0);
        term.over(reason);
    }

    fn explain(&mut self, end: LockEnd) -> Error {
        let kind = match end {
            LockEnd::Pooler { .. } => Kind::Invalid,
            LockEnd::Released { .. } | LockEnd::SessionEnded | LockEnd::Silent | LockEnd::NotHeld => {
                Kind::Unavailable
            }
            LockEnd::Broken => self.broken.as_ref().map_or(Kind::Unavailable, Error::kind),
        };
        let what = format!("lead shard `{}` by advisory lock {}", self.elector.place.shard, self.elector.key);
        match (self.broken.take(), end) {
            // The lock was given back in good order; what made it so is what matters.
            (Some(error), LockEnd::Released { .. } | LockEnd::Broken) => error.during(what),
            (Some(error), end) => Error::new(kind, end.to_string()).because(error).during(what),
            (None, end) => Error::new(kind, end.to_string()).during(what),
        }
    }

    fn carry_out(&mut self, id: CallId, by: Monotonic, call: Call) {
        let AdvisoryElector { session, key, store, place, clock, .. } = &self.elector;
        let (session, key, store, place, clock) =
            (session.clone(), *key, store.clone(), place.clone(), clock.clone());
        let pending: Pending = Box::pin(async move {
            let answering = async {
                match call {
                    Call::TryLock => session.try_lock(key).await.map(Answer::Tried),
                    Call::Ping => session.ping(key).await.map(Answer::Pulse),
                    Call::Unlock => session.unlock(key).await.map(Answer::Unlocked),
                    Call::ReadFence => read_fence(&*store, by, &place).await,
                    Call::Raise(raise) => raise_fence(&*store, by, &place, &raise).await,
                }
            };
            match within(&*clock, by, answering).await {
                Ok(Ok(answer)) => (id, answer, None),
                Ok(Err(error)) => (id, failed(error.kind()), Some(error)),
                // Of a raise it is not known; of everything else it does not matter.
                Err(_) => {
                    (id, if matches!(call, Call::Raise(_)) { Answer::Unknown } else { Answer::Failed }, None)
                }
            }
        });
        if call.is_on_session() {
            self.on_session = Some(pending);
        } else {
            self.on_store = Some(pending);
        }
    }
}

fn failed(kind: Kind) -> Answer {
    match kind {
        Kind::Denied | Kind::Invalid | Kind::Corrupt | Kind::Fenced => Answer::Broken,
        Kind::Unknown => Answer::Unknown,
        Kind::Throttled | Kind::Unavailable => Answer::Failed,
    }
}

async fn read_fence(store: &dyn Store, by: Monotonic, place: &Place) -> Result<Answer> {
    let item = store.get(by, &place.table, &place.fence_key()).await?;
    let row = item.map(|item| fence_row::read(place, &item)).transpose()?;
    Ok(Answer::Fence(row))
}

async fn raise_fence(store: &dyn Store, by: Monotonic, place: &Place, raise: &Raise) -> Result<Answer> {
    Ok(match store.write(by, &raise.write(place)).await? {
        Written::Applied(_) => Answer::Raised,
        Written::Refused(refusal) => {
            let row = refusal.current.as_ref().map(|item| fence_row::read(place, item)).transpose()?;
            Answer::Refused(row)
        }
    })
}

// === what is awaited ===

async fn answer(call: &mut Option<Pending>) -> (CallId, Answer, Option<Error>) {
    match call {
        Some(call) => call.await,
        None => pending().await,
    }
}

/// Completes when nobody waits to be elected any more, or when the leadership is dropped.
async fn withdrawn(
    waiter: &mut Option<oneshot::Sender<Result<AdvisoryLeadership>>>,
    held: &mut Option<oneshot::Receiver<()>>,
) {
    match (waiter, held) {
        (Some(waiter), _) => waiter.closed().await,
        // Nothing is ever sent: the sender goes away with the leadership.
        (None, Some(held)) => drop(held.await),
        (None, None) => pending().await,
    }
}

#[cfg(test)]
#[path = "advisory_test.rs"]
mod tests;
