//! A few connections, opened when they are needed and thrown away when they are not clean.
//!
//! Who takes a connection holds a [`Lease`]. Dropped, it ends the connection: whatever was under
//! way on it dies with it, and the server rolls it back. Only a caller that finished its work gives
//! the connection back, by [`Lease::give_back`] or [`Lease::roll_back`]. So a call that is dropped
//! or timed out anywhere leaves no open transaction to the next.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Row, SimpleQueryMessage, Statement};

use super::failure::{Failure, told};
use super::settings::Settings;

/// The longest that a server is asked to work on a statement, for callers without a deadline.
const STATEMENT_MAX: Duration = Duration::from_secs(600);
/// How much later than the caller the server gives up. The caller's own deadline comes first, so
/// that a commit is never cut short while somebody still waits for it.
const SERVER_GRACE: Duration = Duration::from_millis(250);
/// Prepared statements kept by a connection: some six per table.
const STATEMENTS_MAX: usize = 600;

pub(super) struct Pool {
    settings: Settings,
    clock: Arc<dyn Clock>,
    slots: Arc<Semaphore>,
    idle: Mutex<Vec<Session>>,
}

impl Pool {
    pub(super) fn new(settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let slots = Arc::new(Semaphore::new(settings.connections));
        Self { settings, clock, slots, idle: Mutex::new(Vec::new()) }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Runs `work` until `by`. What the deadline means depends on how far the work got.
    pub(super) async fn in_time<T>(
        &self,
        by: Monotonic,
        progress: &Progress,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let place = &self.settings.place;
        if self.clock.monotonic() >= by {
            return Err(Error::unavailable(format!("{place}: the deadline has passed already")));
        }
        if let Ok(result) = within(&*self.clock, by, work).await {
            return result;
        }
        Err(match progress.step() {
            Step::Waiting => Error::unavailable(format!(
                "{place}: all {} connections were busy until the deadline: raise `connections=`",
                self.settings.connections
            )),
            Step::Connecting => Error::unavailable(format!("{place}: the server cannot be reached in time")),
            Step::Working => Error::unavailable(format!("{place}: not done in time")),
            Step::Committing => unknown(place, "not confirmed in time"),
        })
    }

    /// A connection that is ready for work.
    pub(super) async fn lease(self: &Arc<Self>, progress: &Progress) -> Result<Lease, Failure> {
        progress.reach(Step::Waiting);
        let slot = self.slots.clone().acquire_owned().await;
        let slot = slot.map_err(|_| Error::unavailable("the pool is closed"))?;
        let mut lease = Lease { pool: self.clone(), session: None, _slot: slot };
        while let Some(session) = self.lock_idle().pop() {
            if !session.client.is_closed() {
                lease.session = Some(session);
                break;
            }
        }
        if lease.session.is_none() {
            progress.reach(Step::Connecting);
            lease.session = Some(Box::pin(self.connect()).await?);
            lease.set_up().await?;
        }
        progress.reach(Step::Working);
        Ok(lease)
    }

    async fn connect(&self) -> Result<Session, tokio_postgres::Error> {
        let config = &self.settings.config;
        let (client, driver) = match &self.settings.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                (client, tokio::spawn(drive(connection)).abort_handle())
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                (client, tokio::spawn(drive(connection)).abort_handle())
            }
        };
        Ok(Session { client, driver, statements: BTreeMap::new() })
    }

    /// How long the server may work, in whole milliseconds, for an answer by `by`.
    pub(super) fn server_millis(&self, by: Monotonic) -> u128 {
        let left = by.since(self.clock.monotonic()).min(STATEMENT_MAX) + SERVER_GRACE;
        left.as_millis()
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Neither password nor connections: only where they lead.
impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({})", self.settings.place)
    }
}

/// Runs a connection until it ends. Those who wait on it are told by their own calls.
async fn drive(connection: impl Future<Output = Result<(), tokio_postgres::Error>>) {
    if let Err(error) = connection.await {
        tracing::debug!(error = super::failure::causes(&error), "postgres connection ended");
    }
}

/// A connection and the statements that are prepared on it.
struct Session {
    client: Client,
    driver: AbortHandle,
    statements: BTreeMap<String, Statement>,
}

/// The use of one connection. Dropped, it ends the connection.
pub(super) struct Lease {
    pool: Arc<Pool>,
    session: Option<Session>,
    _slot: OwnedSemaphorePermit,
}

impl Lease {
    fn session(&self) -> &Session {
        self.session.as_ref().expect("a lease has its connection until it is given back")
    }

    pub(super) fn client(&self) -> &Client {
        &self.session().client
    }

    /// What every connection must have, whatever the server's or the role's defaults.
    async fn set_up(&self) -> Result<(), Failure> {
        const SETTINGS: &str = "SET synchronous_commit = on; SET search_path = pg_catalog; \
             SET client_min_messages = warning; SELECT pg_is_in_recovery()";
        // Lets the server notice a vanished client while it waits for a lock; older ones lack it.
        const NOTICE_ABSENCE: &str = "SET client_connection_check_interval = 1000";
        let client = self.client();
        let (settings, _) = tokio::join!(client.simple_query(SETTINGS), client.batch_execute(NOTICE_ABSENCE));
        let standby = settings?.iter().any(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0) == Some("t"),
            _ => false,
        });
        if standby {
            // Its rows lag behind the primary's, so not even reads are right.
            return Err(Error::unavailable(format!(
                "{}: the server is a standby: connect to the primary",
                self.pool.settings.place
            ))
            .into());
        }
        Ok(())
    }

    /// Prepares what is not prepared yet, in one round trip.
    pub(super) async fn prepare(&mut self, texts: &[&str]) -> Result<(), Failure> {
        let session = self.session.as_mut().expect("a lease has its connection until it is given back");
        if session.statements.len() > STATEMENTS_MAX {
            session.statements.clear();
        }
        let mut missing: Vec<&str> = Vec::new();
        for text in texts {
            if !session.statements.contains_key(*text) && !missing.contains(text) {
                missing.push(text);
            }
        }
        let client = &session.client;
        let prepared =
            pipelined(missing.iter().map(|text| Box::pin(client.prepare(text)) as _).collect()).await;
        for (text, statement) in missing.into_iter().zip(prepared) {
            session.statements.insert(text.to_owned(), statement?);
        }
        Ok(())
    }

    /// A statement that was prepared, ready to be sent.
    pub(super) fn step<'a>(
        &'a self,
        text: &str,
        params: Vec<&'a (dyn ToSql + Sync)>,
    ) -> Sending<'a, Vec<Row>> {
        let session = self.session();
        let statement = session.statements.get(text).expect("prepared before it is used");
        Box::pin(async move { session.client.query(statement, &params).await })
    }

    /// Statements without parameters, ready to be sent.
    pub(super) fn batch(&self, text: String) -> Sending<'_, Vec<Row>> {
        let client = self.client();
        Box::pin(async move { client.batch_execute(&text).await.map(|()| Vec::new()) })
    }

    /// Prepares and runs one statement.
    pub(super) async fn run(
        &mut self,
        text: &str,
        params: Vec<&(dyn ToSql + Sync)>,
    ) -> Result<Vec<Row>, Failure> {
        self.prepare(&[text]).await?;
        Ok(self.step(text, params).await?)
    }

    /// Reads by one statement outside any transaction; the server gives up soon after `by`.
    pub(super) async fn read(
        &mut self,
        by: Monotonic,
        text: &str,
        params: Vec<&(dyn ToSql + Sync)>,
    ) -> Result<Vec<Row>, Failure> {
        self.prepare(&[text]).await?;
        // For this statement alone: the next user of the connection has a deadline of its own.
        let limit = self.batch(format!("SET statement_timeout = {}", self.pool.server_millis(by)));
        let unlimit = self.batch("RESET statement_timeout".to_owned());
        let (limited, rows, _) = tokio::join!(biased; limit, self.step(text, params), unlimit);
        limited?;
        Ok(rows?)
    }

    /// What begins a transaction that the server ends by itself if we vanish or stop: a paused
    /// process must not keep others from its rows.
    pub(super) fn begin(&self, by: Monotonic) -> Sending<'_, Vec<Row>> {
        let millis = self.pool.server_millis(by);
        self.batch(format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL statement_timeout = {millis}; \
             SET LOCAL lock_timeout = {millis}; SET LOCAL idle_in_transaction_session_timeout = {millis}"
        ))
    }

    /// Returns the connection: nothing is under way on it.
    pub(super) fn give_back(mut self) {
        if let Some(session) = self.session.take()
            && !session.client.is_closed()
        {
            self.pool.lock_idle().push(session);
        }
    }

    /// Sends a ROLLBACK and returns the connection. Its answer is not waited for: whoever comes next
    /// is served after it.
    pub(super) fn roll_back(self) {
        let mut sending = self.batch("ROLLBACK".to_owned());
        let sent = sending.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
        drop(sending);
        if sent {
            self.give_back();
        }
    }

    /// After a failure: rolls back if the connection is still of use, and ends it if not.
    pub(super) fn settle(self, failure: Failure) -> Failure {
        if failure.spares_the_connection() {
            self.roll_back();
        }
        failure
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            // Without this the driver would wait for the answers that are still to come.
            session.driver.abort();
        }
    }
}

/// Something to be sent when it is first polled.
pub(super) type Sending<'a, T> = Pin<Box<dyn Future<Output = Result<T, tokio_postgres::Error>> + Send + 'a>>;

/// Sends all at once, in order, and gives the answers in the same order: one round trip.
pub(super) async fn pipelined<T>(mut steps: Vec<Sending<'_, T>>) -> Vec<Result<T, tokio_postgres::Error>> {
    let mut answers: Vec<Option<Result<T, tokio_postgres::Error>>> = steps.iter().map(|_| None).collect();
    poll_fn(|cx| {
        let mut waiting = false;
        for (step, answer) in steps.iter_mut().zip(&mut answers) {
            if answer.is_none() {
                match step.as_mut().poll(cx) {
                    Poll::Ready(ready) => *answer = Some(ready),
                    Poll::Pending => waiting = true,
                }
            }
        }
        if waiting { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    answers.into_iter().flatten().collect()
}

/// How far a call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Waiting,
    Connecting,
    Working,
    Committing,
}

/// Shared between a call and its deadline.
#[derive(Debug, Default)]
pub(super) struct Progress(AtomicU8);

impl Progress {
    pub(super) fn reach(&self, step: Step) {
        self.0.store(step as u8, Ordering::Relaxed);
    }

    fn step(&self) -> Step {
        match self.0.load(Ordering::Relaxed) {
            0 => Step::Waiting,
            1 => Step::Connecting,
            2 => Step::Working,
            _ => Step::Committing,
        }
    }
}

/// COMMIT was sent, and no answer tells how it ended.
pub(super) fn unknown(place: &str, why: impl fmt::Display) -> Error {
    Error::new(Kind::Unknown, format!("{place}: the write was sent and may have happened: read back"))
        .because(why.to_string())
}

/// The connection ended while a COMMIT was under way.
pub(super) fn lost_in_commit(place: &str, error: &tokio_postgres::Error) -> Error {
    unknown(place, told(place, error).chain())
}
