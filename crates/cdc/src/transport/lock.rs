//! The advisory lock of a replication session: leadership that lives and dies with the stream itself.
//!
//! The lock is taken by SQL before START_REPLICATION. From then on the session takes no SQL, so a ping is a
//! status update that asks for a reply, and what arrives after it is the answer (see `evidence.rs`).
//!
//! A reader that is held up by a slow sink finds no answer, since it waits behind all the changes that were
//! not read yet; and a server may be busy for long with one statement or one transaction. Then, after a
//! second, a second session is opened, and looks in `pg_locks` whether the first one holds the lock. It is
//! closed when the stream answers again.
//!
//! Giving the lock back while the stream runs ends the session: the lock is free once the server has closed
//! it. [`Receiver::rejoin`](super::Receiver::rejoin) first, and only the lock is given back.

use std::fmt;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tenure_election::{LockKey, LockSession, Pulse, Tried};

use super::session::{Answer, Purpose, Row, Session};
use super::shared::{Held, Shared};

/// How long the session itself may take to answer before the witness is asked too.
const WITNESS_AFTER: Duration = Duration::from_secs(1);
/// How long the witness may take to connect. Every ping tries again.
const WITNESS_TIMEOUT: Duration = Duration::from_secs(10);

/// A handle to the lock of one session, see [`Session::lock`]. It does not keep the session alive.
#[derive(Clone)]
pub struct ReplicationLock {
    shared: Arc<Shared>,
}

impl ReplicationLock {
    pub(super) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// One row by SQL on the session itself; `None` if it streams.
    async fn ask(&self, doing: &'static str, sql: &str) -> Result<Option<Row>> {
        let answer = self.shared.ask(doing, sql).await?;
        answer.map(|answer| last_row(doing, answer)).transpose()
    }

    /// Asks on the session itself: by SQL, or by the stream.
    async fn ping_session(&self, key: LockKey) -> Result<Pulse> {
        let sql =
            format!("SELECT pg_catalog.pg_backend_pid(), {}", holds(key, "pg_catalog.pg_backend_pid()"));
        if let Some(row) = self.ask("ping the session with an advisory lock", &sql).await? {
            return Ok(Pulse { backend: backend(&row), holds: row.get(1).map(|answer| answer == "t") });
        }
        let shared = &self.shared;
        let asked = shared.pulse.ask(shared.closer.kept_bytes_max());
        // Of a stream that is about to end, what still comes is an answer too.
        shared.send_status(None, true).await?;
        shared.pulse.answered(asked).await;
        Ok(Pulse { backend: Some(shared.backend), holds: None })
    }

    /// Asks a second session whether the first one holds the lock.
    async fn ask_witness(&self, key: LockKey) -> Result<Pulse> {
        let shared = &self.shared;
        let mut witness = shared.witness.lock().await;
        let by = shared.clock.deadline(WITNESS_TIMEOUT);
        let mut session = match witness.take() {
            Some(session) => session,
            None => {
                let endpoint = shared.endpoint.clone();
                let connecting = Session::connect_for(Purpose::Sql, &endpoint, shared.clock.clone(), by);
                Box::pin(connecting).await.map_err(|error| error.during("look at the lock from outside"))?
            }
        };
        let backend = shared.backend;
        // Another process of the same number began at another time.
        let sql = format!(
            "SELECT {} AND EXISTS (SELECT FROM pg_catalog.pg_stat_activity WHERE pid = {backend} \
             AND backend_start::pg_catalog.text = '{}')",
            holds(key, &backend.to_string()),
            shared.backend_start.replace('\'', "''"),
        );
        let rows = session.read(by, "look at the lock from outside", &sql).await?;
        // Only a session that answered is kept.
        *witness = Some(session);
        let held = rows.first().and_then(|row| row.get(0)).map(|answer| answer == "t");
        Ok(Pulse { backend: Some(backend), holds: held })
    }
}

#[async_trait]
impl LockSession for ReplicationLock {
    async fn try_lock(&self, key: LockKey) -> Result<Tried> {
        match self.shared.held().get(&key) {
            None => {}
            // For a moment this session's last leader is in the way, like any other.
            Some(Held::GivenBack) => return Ok(Tried { granted: false, backend: None }),
            Some(Held::Kept) => {
                return Err(Error::invalid(format!(
                    "this session holds advisory lock {key} already: each candidate needs a session of its own"
                )));
            }
        }
        let sql = format!(
            "SELECT pg_catalog.pg_backend_pid(), CASE WHEN NOT pg_catalog.pg_is_in_recovery() \
             THEN pg_catalog.pg_try_advisory_lock({}) END",
            key.arguments()
        );
        let row = self.ask("try for an advisory lock", &sql).await?.ok_or_else(|| {
            Error::invalid("the session streams already: take the lock before the stream begins")
        })?;
        let granted = row.get(1).ok_or_else(|| {
            Error::unavailable(
                "the server is a standby, whose locks exclude nobody on the primary: connect to the primary",
            )
        })? == "t";
        if granted {
            self.shared.held().insert(key, Held::Kept);
        }
        Ok(Tried { granted, backend: backend(&row) })
    }

    async fn ping(&self, key: LockKey) -> Result<Pulse> {
        let own = async {
            let pulse = self.ping_session(key).await;
            // Answered: no second opinion is needed. If it is just being asked, it stays for another time.
            if let (Ok(_), Ok(mut witness)) = (&pulse, self.shared.witness.try_lock()) {
                *witness = None;
            }
            pulse
        };
        let witness = async {
            self.shared.clock.sleep(WITNESS_AFTER).await;
            loop {
                match self.ask_witness(key).await {
                    Ok(pulse) => return pulse,
                    Err(error) => tracing::debug!(error = %error.chain(), "witness of the advisory lock"),
                }
                self.shared.clock.sleep(WITNESS_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            pulse = own => pulse,
            pulse = witness => Ok(pulse),
        }
    }

    async fn unlock(&self, key: LockKey) -> Result<bool> {
        if let Some(held) = self.shared.held().get_mut(&key) {
            *held = Held::GivenBack;
        }
        let sql = format!(
            "SELECT pg_catalog.pg_advisory_unlock({}); SELECT {}",
            key.arguments(),
            holds(key, "pg_catalog.pg_backend_pid()")
        );
        let Some(row) = self.ask("give an advisory lock back", &sql).await? else {
            // The server lets go of its locks before it closes, and the reader sees that.
            let _giving_back = GivingBack::begin(&self.shared);
            self.shared.closer.close(Shutdown::Write);
            let why = self.shared.ended().await;
            tracing::debug!(error = %why.chain(), "the session ended with its lock");
            return Ok(true);
        };
        let free = row.get(0) == Some("f");
        let mut held = self.shared.held();
        match free {
            true => held.remove(&key),
            false => held.insert(key, Held::Kept),
        };
        Ok(free)
    }

    async fn ended(&self) -> Error {
        let why = self.shared.ended().await;
        // It cannot fail: the sender lives as long as this.
        let _ = self.shared.giving_back.subscribe().wait_for(|giving| !giving).await;
        why
    }

    fn end(&self) {
        self.shared.end("ended by us");
    }

    fn announced_backend(&self) -> Option<i32> {
        Some(self.shared.backend)
    }
}

impl fmt::Debug for ReplicationLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplicationLock").field(&self.shared).finish()
    }
}

/// While it lives, the end of the session is an answer to `unlock` and not a loss.
struct GivingBack<'a>(&'a Shared);

impl<'a> GivingBack<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.giving_back.send_replace(true);
        Self(shared)
    }
}

impl Drop for GivingBack<'_> {
    fn drop(&mut self) {
        self.0.giving_back.send_replace(false);
    }
}

/// An expression: whether a process holds the lock.
fn holds(key: LockKey, backend: &str) -> String {
    let (class, object, sub) = key.in_pg_locks();
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND pid = {backend} \
         AND classid = '{class}'::pg_catalog.oid AND objid = '{object}'::pg_catalog.oid AND objsubid = {sub} \
         AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()))"
    )
}

fn last_row(doing: &str, mut answer: Answer) -> Result<Row> {
    answer.rows.pop().ok_or_else(|| Error::new(Kind::Corrupt, format!("{doing}: the server sent no row")))
}

fn backend(row: &Row) -> Option<i32> {
    row.get(0).and_then(|pid| pid.parse().ok())
}
