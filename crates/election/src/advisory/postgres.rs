//! A session of the `tokio-postgres` driver.

use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Error, Kind, Result};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_postgres::error::Severity;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, SimpleQueryMessage, SimpleQueryRow, Socket};

use super::key::LockKey;
use super::session::{LockSession, Pulse, Tried};
use super::settings::AdvisorySettings;

/// A host that does not answer within this is not there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds between two probes of a silent peer.
const PROBE_SECONDS: u64 = 1;

/// Makes both ends notice that the other has vanished: here at about the deadline, at the server at
/// `server_timeout` and not before. Without it a server keeps the session of a host that lost its power,
/// and with it the lock, for two hours.
///
/// What the server is asked goes into `options`, which Postgres 12 and later know. Poolers drop them, but
/// there is never a pooler.
pub fn prepare_config(config: &mut Config, settings: &AdvisorySettings) {
    if config.get_application_name().is_none() {
        config.application_name("tenure");
    }
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    let second = Duration::from_secs(1);
    config
        .keepalives(true)
        .keepalives_idle((settings.deadline / 2).max(second))
        .keepalives_interval(Duration::from_secs(PROBE_SECONDS))
        .keepalives_retries(3)
        .tcp_user_timeout(settings.deadline);
    let timeout = settings.server_timeout;
    let idle_seconds = (timeout / 2).as_secs().max(1);
    // For servers on systems without a user timeout: as many probes as fill the rest of the time.
    let probes = timeout.as_secs().saturating_sub(idle_seconds).max(1).div_ceil(PROBE_SECONDS) + 1;
    let ours = format!(
        "-c tcp_keepalives_idle={idle_seconds} -c tcp_keepalives_interval={PROBE_SECONDS} \
         -c tcp_keepalives_count={probes} -c tcp_user_timeout={}",
        timeout.as_millis()
    );
    // What comes later counts, so what the caller gave goes last.
    let options = match config.get_options() {
        Some(theirs) => format!("{ours} {theirs}"),
        None => ours,
    };
    config.options(options);
}

/// A connection whose session can hold advisory locks. Dropped, it ends the session.
pub struct PostgresSession {
    client: Client,
    driver: AbortHandle,
    ended: Arc<watch::Sender<Option<String>>>,
    /// What Postgres would grant to this session once more.
    held: Mutex<BTreeMap<LockKey, Held>>,
}

/// What became of a lock that was granted.
#[derive(Clone, Copy)]
enum Held {
    Kept,
    /// The server may have it back already; its answer is on the way.
    GivenBack,
}

impl PostgresSession {
    /// Connects as `config` says; see [`prepare_config`].
    ///
    /// # Errors
    /// `Denied` if the server refuses the user, `Unavailable` if it cannot be reached.
    pub async fn connect<T>(config: &Config, tls: T) -> Result<Self>
    where
        T: MakeTlsConnect<Socket> + Send,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as tokio_postgres::tls::TlsConnect<Socket>>::Future: Send,
    {
        let (client, connection) =
            config.connect(tls).await.map_err(|error| told("connect for an advisory lock", &error))?;
        Ok(Self::new(client, connection))
    }

    /// Takes both halves of a connection, and drives it.
    pub fn new<C>(client: Client, connection: C) -> Self
    where
        C: Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static,
    {
        let ended = Arc::new(watch::Sender::new(None));
        let teller = ended.clone();
        let driving = tokio::spawn(async move {
            let why = match connection.await {
                Ok(()) => "the connection was closed".to_owned(),
                Err(error) => causes(&error),
            };
            tell_once(&teller, why);
        });
        Self { client, driver: driving.abort_handle(), ended, held: Mutex::new(BTreeMap::new()) }
    }

    /// The client, for whatever else is to be done on this session. A transaction that is left open on it
    /// keeps the server from cleaning up dead rows.
    #[must_use]
    pub const fn client(&self) -> &Client {
        &self.client
    }

    /// Runs statements and gives the last row. Simple queries only: a replication session knows no others.
    async fn ask(&self, doing: &'static str, sql: &str) -> Result<SimpleQueryRow> {
        let answer = self.client.simple_query(sql).await.map_err(|error| {
            if !is_answer(&error) {
                tell_once(&self.ended, causes(&error));
            }
            told(doing, &error)
        })?;
        let mut rows = answer.into_iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.next_back().ok_or_else(|| Error::new(Kind::Corrupt, format!("{doing}: the server sent no row")))
    }

    fn held(&self) -> MutexGuard<'_, BTreeMap<LockKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl LockSession for PostgresSession {
    async fn try_lock(&self, key: LockKey) -> Result<Tried> {
        const DOING: &str = "try for an advisory lock";
        match self.held().get(&key) {
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
        let row = self.ask(DOING, &sql).await?;
        let granted = match row.get(1) {
            Some(answer) => answer == "t",
            None => {
                return Err(Error::unavailable(
                    "the server is a standby, whose locks exclude nobody on the primary: connect to the primary",
                ));
            }
        };
        if granted {
            self.held().insert(key, Held::Kept);
        }
        Ok(Tried { granted, backend: backend(&row) })
    }

    async fn ping(&self, key: LockKey) -> Result<Pulse> {
        let sql = format!("SELECT pg_catalog.pg_backend_pid(), {}", holds(key));
        let row = self.ask("ping the session with an advisory lock", &sql).await?;
        Ok(Pulse { backend: backend(&row), holds: row.get(1).map(|answer| answer == "t") })
    }

    async fn unlock(&self, key: LockKey) -> Result<bool> {
        if let Some(held) = self.held().get_mut(&key) {
            *held = Held::GivenBack;
        }
        let sql = format!("SELECT pg_catalog.pg_advisory_unlock({}); SELECT {}", key.arguments(), holds(key));
        let row = self.ask("give an advisory lock back", &sql).await?;
        let free = row.get(0) == Some("f");
        match free {
            true => self.held().remove(&key),
            false => self.held().insert(key, Held::Kept),
        };
        Ok(free)
    }

    async fn ended(&self) -> Error {
        let mut ended = self.ended.subscribe();
        // It cannot fail: the sender lives as long as this.
        let why = ended.wait_for(Option::is_some).await.map_or(None, |why| why.clone());
        Error::unavailable(why.unwrap_or_default())
    }

    fn end(&self) {
        tell_once(&self.ended, "ended by us".to_owned());
        // The socket closes with the driver; whoever waits for an answer is told.
        self.driver.abort();
    }
}

impl Drop for PostgresSession {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Neither user nor password.
impl fmt::Debug for PostgresSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresSession").field("ended", &*self.ended.borrow()).finish_non_exhaustive()
    }
}

/// An expression: whether this session holds the lock.
fn holds(key: LockKey) -> String {
    let (class, object, sub) = key.in_pg_locks();
    format!(
        "EXISTS (SELECT FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted \
         AND pid = pg_catalog.pg_backend_pid() \
         AND classid = '{class}'::oid AND objid = '{object}'::oid AND objsubid = {sub})"
    )
}

fn backend(row: &SimpleQueryRow) -> Option<i32> {
    row.get(0).and_then(|pid| pid.parse().ok())
}

/// The first reason counts: what follows is only its consequence.
fn tell_once(ended: &watch::Sender<Option<String>>, why: String) {
    ended.send_if_modified(|told| {
        let first = told.is_none();
        told.get_or_insert(why);
        first
    });
}

/// Whether the server refused the statement and the session lives on.
fn is_answer(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|answer| {
        !matches!(answer.parsed_severity(), None | Some(Severity::Fatal | Severity::Panic))
    })
}

fn told(doing: &str, error: &tokio_postgres::Error) -> Error {
    let kind = match error.code().map(|code| code.code()) {
        Some("42501" | "0A000") => Kind::Denied,
        Some(code) if code.starts_with("28") => Kind::Denied,
        Some("3D000" | "42704" | "42883" | "22023") => Kind::Invalid,
        _ => Kind::Unavailable,
    };
    Error::new(kind, doing).because(causes(error))
}

/// The texts of an error's causes, joined: the driver's own texts say little by themselves.
fn causes(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_notice_a_vanished_peer_and_the_server_last() {
        let mut config = Config::new();
        config.options("-c search_path=app");
        prepare_config(&mut config, &AdvisorySettings::default());
        assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_secs(5)));
        assert_eq!(config.get_keepalives_idle(), Duration::from_millis(2500));
        assert_eq!(config.get_application_name(), Some("tenure"));
        assert_eq!(
            config.get_options(),
            Some(
                "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=1 -c tcp_keepalives_count=6 \
                 -c tcp_user_timeout=10000 -c search_path=app"
            )
        );
    }
}
