//! One session: from connecting to SQL on it, and on to streaming.
//!
//! The session is one connection from its beginning to its end. An advisory lock that is taken on it lives
//! and dies with it, and so does the stream. SQL goes by simple queries, the only ones that a replication
//! session knows.
//!
//! Postgres 14 is the oldest server: version 2 of the plugin's protocol, which streams transactions before
//! they commit, and values in binary form begin there.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex as SyncMutex};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{DataRowBody, Message, RowDescriptionBody};
use postgres_protocol::message::frontend;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};
use tokio::sync::{Mutex, watch};

use super::endpoint::Endpoint;
use super::failure::{ServerError, garbled};
use super::framer::Found;
use super::lock::ReplicationLock;
use super::login;
use super::shared::{Guard, Pulse, Shared, Status, Writer};
use super::wire::{self, Inbox, Outbox};

/// The oldest server that we work with.
const MAJOR_MIN: u32 = 14;
/// Most bytes of one answer to SQL: it is kept as a whole, and none that we ask for comes near.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Most bytes of one message before the stream begins.
pub(super) const SQL_MESSAGE_BYTES_MAX: usize = ANSWER_BYTES_MAX;

/// A session for replication, while it takes SQL. Dropped, it ends.
#[derive(Debug)]
pub struct Session {
    pub(super) shared: Arc<Shared>,
    /// Ends the connection.
    pub(super) guard: Guard,
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `replication=database`: takes one of the server's `max_wal_senders`.
    Replication,
    /// SQL alone.
    Sql,
}

impl Session {
    /// Connects and logs in.
    ///
    /// # Errors
    /// `Denied` if the server does not let us in, `Unavailable` if it cannot be reached or is busy with
    /// itself, `Invalid` if it has no such database or is older than Postgres 14.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn connect(endpoint: &Endpoint, clock: Arc<dyn Clock>, by: Monotonic) -> Result<Self> {
        Self::connect_for(Purpose::Replication, endpoint, clock, by).await
    }

    /// As [`Session::connect`], for SQL alone: it takes none of the server's senders, and needs no REPLICATION.
    ///
    /// # Errors
    /// As [`Session::connect`].
    ///
    /// # Cancel safety
    /// May be dropped.
    pub async fn connect_for_sql(endpoint: &Endpoint, clock: Arc<dyn Clock>, by: Monotonic) -> Result<Self> {
        Self::connect_for(Purpose::Sql, endpoint, clock, by).await
    }

    pub(super) async fn connect_for(
        purpose: Purpose,
        endpoint: &Endpoint,
        clock: Arc<dyn Clock>,
        by: Monotonic,
    ) -> Result<Self> {
        let by = by.min(clock.deadline(endpoint.connect_timeout));
        let connecting = Box::pin(Self::log_in(purpose, endpoint, clock.clone()));
        within(&*clock, by, connecting).await.map_err(|_| {
            Error::unavailable(format!(
                "{}: the server did not answer in time: is it running, and does a firewall let us through?",
                endpoint.place()
            ))
        })?
    }

    async fn log_in(purpose: Purpose, endpoint: &Endpoint, clock: Arc<dyn Clock>) -> Result<Self> {
        let opened = wire::open(endpoint).await?;
        let ties = login::Ties { end_point: opened.end_point, encrypted: opened.encrypted };
        let mut outbox = Outbox::new(opened.write);
        let mut inbox = Inbox::new(opened.read, login::MESSAGE_BYTES_MAX);
        let pulse = Pulse::new();
        let found = login::log_in(purpose, endpoint, ties, &mut outbox, &mut inbox, &pulse).await?;
        let version = ServerVersion::read(endpoint.place(), &found.server_version)?;
        inbox.set_max(SQL_MESSAGE_BYTES_MAX);
        let mut shared = Shared {
            endpoint: endpoint.clone(),
            clock,
            closer: opened.closer,
            backend: found.backend,
            version,
            backend_start: String::new(),
            ended: watch::Sender::new(None),
            reader: Mutex::new(None),
            writer: Mutex::new(Writer { outbox, last: Status::default(), finished: false }),
            pulse,
            streamed: AtomicBool::new(false),
            giving_back: watch::Sender::new(false),
            held: SyncMutex::new(BTreeMap::new()),
            witness: Mutex::new(None),
        };
        // Names as an output function shows them do not depend on the role's own path, and no limit that
        // the role has for people ends a session that waits. A database whose texts have no encoding cannot
        // convert them: it would fail at the first that is not UTF-8, again and again.
        let sql = "SET search_path = ''; SET statement_timeout = 0; SET idle_session_timeout = 0; \
                   SET idle_in_transaction_session_timeout = 0; SET lock_timeout = 0; \
                   SELECT pg_catalog.set_config('client_encoding', 'SQL_ASCII', false) \
                   WHERE pg_catalog.current_setting('server_encoding') = 'SQL_ASCII'; \
                   SELECT backend_start::pg_catalog.text AS backend_start FROM pg_catalog.pg_stat_activity \
                   WHERE pid = pg_catalog.pg_backend_pid()";
        let answer = ask(&shared, &mut inbox, "set up the session", sql).await?;
        shared.backend_start = answer.rows.first().and_then(|row| row.get(0)).unwrap_or_default().to_owned();
        shared.reader = Mutex::new(Some(inbox));
        let shared = Arc::new(shared);
        Ok(Self { guard: Guard(shared.clone()), shared })
    }

    /// Runs statements, and gives the rows of the last one that has any.
    ///
    /// # Errors
    /// `Unknown` if the connection was lost or `by` passed before the answer. What the server refuses is
    /// told by its SQLSTATE, see [`ServerError::of`].
    ///
    /// # Cancel safety
    /// Dropped, the statements may or may not be carried out; the session stays usable.
    pub async fn query(&mut self, by: Monotonic, sql: &str) -> Result<Vec<Row>> {
        match self.read(by, "ask the server", sql).await {
            Err(error) if error.kind() == Kind::Unavailable && ServerError::of(&error).is_none() => {
                Err(Error::new(Kind::Unknown, error.to_string()).because(error))
            }
            answer => answer,
        }
    }

    /// As [`Session::query`], for statements that change nothing: there is nothing to be unsure about.
    pub(crate) async fn read(&mut self, by: Monotonic, doing: &str, sql: &str) -> Result<Vec<Row>> {
        let clock = self.shared.clock.clone();
        let answer = within(&*clock, by, Box::pin(self.shared.ask(doing, sql))).await.map_err(|_| {
            Error::unavailable(format!("{doing}: {} did not answer in time", self.shared.place()))
        })??;
        answer.map(|answer| answer.rows).ok_or_else(|| Error::invalid("a session that streams takes no SQL"))
    }

    /// The lock of this session: take it before streaming, keep it while streaming.
    #[must_use]
    pub fn lock(&self) -> ReplicationLock {
        ReplicationLock::new(self.shared.clone())
    }

    /// The server's process, as it was announced.
    #[must_use]
    pub fn backend(&self) -> i32 {
        self.shared.backend
    }

    /// The server's version.
    #[must_use]
    pub fn version(&self) -> &ServerVersion {
        &self.shared.version
    }

    /// Whom we are connected to.
    #[must_use]
    pub fn endpoint(&self) -> &Endpoint {
        &self.shared.endpoint
    }

    /// Ends the session, and waits until the server has: then its lock and its slot are free.
    ///
    /// # Errors
    /// `Unavailable` if the server did not close the connection in time; it is closed from here anyway.
    pub async fn close(self, by: Monotonic) -> Result<()> {
        let shared = self.shared.clone();
        let closing = async {
            let mut reader = shared.reader.lock().await;
            let Some(inbox) = reader.as_mut() else { return };
            let mut writer = shared.writer.lock().await;
            let bye = writer.outbox.send(shared.place(), |out| {
                frontend::terminate(out);
                Ok(())
            });
            if bye.await.is_ok() {
                // Until there is nothing more to read: that is the end.
                while inbox.next(shared.place(), &shared.pulse).await.is_ok() {}
            }
        };
        let closed = within(&*shared.clock, by, Box::pin(closing)).await;
        shared.tell_end("closed by us");
        closed
            .map_err(|_| Error::unavailable(format!("{}: the server did not close in time", shared.place())))
    }
}

/// Runs statements. The asker may go away in the middle: the next one skips the answer that is owed.
///
/// Kept out of [`Session`] since it also runs before there is one.
pub(super) async fn ask(shared: &Shared, inbox: &mut Inbox, doing: &str, sql: &str) -> Result<Answer> {
    let asked = asked(shared, inbox, doing, sql).await;
    asked.map_err(|error| {
        let over = ServerError::of(&error)
            .map_or_else(|| matches!(error.kind(), Kind::Unavailable | Kind::Corrupt), ServerError::is_fatal);
        shared.noted(error, over)
    })
}

async fn asked(shared: &Shared, inbox: &mut Inbox, doing: &str, sql: &str) -> Result<Answer> {
    let place = shared.place();
    {
        let mut writer = shared.writer.lock().await;
        let owed = &mut inbox.owed;
        let sent = writer.outbox.send(place, |out| {
            frontend::query(sql, out)?;
            // From here on the whole statement goes out, now or with the next one.
            *owed += 1;
            Ok(())
        });
        sent.await?;
    }
    let mut reading = Reading::default();
    loop {
        let found = inbox.next(place, &shared.pulse).await?;
        if inbox.owed > 1 {
            if found.tag == b'Z' {
                inbox.owed -= 1;
            }
            continue;
        }
        match found.tag {
            // What we never send or take; the server is told, or goes on by itself.
            b'G' => {
                reading.fail(Error::invalid(format!("{doing}: COPY FROM STDIN is not spoken here")));
                let mut writer = shared.writer.lock().await;
                writer.outbox.send(place, |out| frontend::copy_fail("not spoken", out)).await?;
            }
            b'H' => reading.fail(Error::invalid(format!("{doing}: COPY TO STDOUT is not spoken here"))),
            b'd' | b'c' => {}
            b'W' => return Err(garbled(place, "a stream that nobody asked for")),
            _ => match message(place, inbox, &found)? {
                Message::RowDescription(body) => reading.describe(place, &body)?,
                Message::DataRow(body) => reading.take(place, doing, &body)?,
                Message::ErrorResponse(body) => {
                    let answer = ServerError::read(body.fields()).map_err(|error| garbled(place, error))?;
                    if answer.is_fatal() {
                        return Err(answer.told(doing));
                    }
                    reading.fail(answer.told(doing));
                }
                Message::ReadyForQuery(_) => {
                    inbox.owed -= 1;
                    return reading.done();
                }
                _ => {}
            },
        }
    }
}

/// One message as the protocol crate reads it. Copied: SQL is not where speed matters.
pub(super) fn message(place: &str, inbox: &Inbox, found: &Found) -> Result<Message> {
    let mut bytes = BytesMut::from(inbox.whole(found));
    let read = Message::parse(&mut bytes).map_err(|error| garbled(place, error))?;
    read.ok_or_else(|| garbled(place, "half a message"))
}

/// What statements gave.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) rows: Vec<Row>,
}

#[derive(Default)]
struct Reading {
    columns: Arc<[String]>,
    rows: Vec<Row>,
    bytes: usize,
    failed: Option<Error>,
}

impl Reading {
    fn describe(&mut self, place: &str, body: &RowDescriptionBody) -> Result<()> {
        let names = body.fields().map(|field| Ok(field.name().to_owned())).collect::<Vec<_>>();
        self.columns = names.map_err(|error| garbled(place, error))?.into();
        (self.rows, self.bytes) = (Vec::new(), 0);
        Ok(())
    }

    fn take(&mut self, place: &str, doing: &str, body: &DataRowBody) -> Result<()> {
        self.bytes += body.buffer().len();
        if self.bytes > ANSWER_BYTES_MAX {
            self.rows = Vec::new();
            self.fail(Error::invalid(format!(
                "{doing}: the answer is larger than {ANSWER_BYTES_MAX} bytes: ask for less at a time"
            )));
        }
        if self.failed.is_some() {
            return Ok(());
        }
        let values = body.ranges().map(|range| {
            let value = range.and_then(|range| body.buffer().get(range));
            Ok(value.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
        });
        let values = values.collect().map_err(|error| garbled(place, error))?;
        self.rows.push(Row { columns: self.columns.clone(), values });
        Ok(())
    }

    /// The first reason counts.
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    fn done(self) -> Result<Answer> {
        self.failed.map_or(Ok(Answer { rows: self.rows }), Err)
    }
}

/// One row of an answer, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    columns: Arc<[String]>,
    values: Vec<Option<String>>,
}

impl Row {
    /// The value of a column by its place; `None` if it is null or there is no such column.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<&str> {
        self.values.get(index)?.as_deref()
    }

    /// The value of a column by its name; `None` if it is null or there is no such column.
    #[must_use]
    pub fn named(&self, name: &str) -> Option<&str> {
        self.get(self.columns.iter().position(|column| column == name)?)
    }

    /// The names of the columns.
    #[must_use]
    pub fn columns(&self) -> &[String] {
        &self.columns
    }
}

/// Which Postgres it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerVersion {
    major: u32,
    text: String,
}

impl ServerVersion {
    fn read(place: &str, text: &str) -> Result<Self> {
        let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
        let major = digits.parse().map_err(|_| garbled(place, "no version of the server"))?;
        if major < MAJOR_MIN {
            return Err(Error::invalid(format!(
                "{place}: the server is Postgres {text}: Postgres {MAJOR_MIN} or later is needed, upgrade it"
            )));
        }
        Ok(Self { major, text: text.to_owned() })
    }

    #[cfg(test)]
    pub(super) fn for_test(text: &str) -> Self {
        Self::read("test", text).expect("a version")
    }

    /// 15 for Postgres 15.4.
    #[must_use]
    pub const fn major(&self) -> u32 {
        self.major
    }
}

/// As the server says it.
impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_are_too_old_are_refused() {
        let major = |text: &str| ServerVersion::read("here", text).map(|version| version.major());
        assert_eq!(major("15.14 (Debian 15.14-0+deb12u1)").unwrap(), 15);
        assert_eq!(major("18beta1").unwrap(), 18);
        assert_eq!(major("14.0").unwrap(), 14);
        for old in ["13.22", "9.6.24"] {
            assert!(major(old).unwrap_err().chain().contains("Postgres 14 or later"));
        }
        assert_eq!(major("").unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn a_row_is_read_by_place_and_by_name() {
        let row =
            Row { columns: ["a".to_owned(), "b".to_owned()].into(), values: vec![Some("1".into()), None] };
        assert_eq!((row.get(0), row.get(1), row.get(2)), (Some("1"), None, None));
        assert_eq!((row.named("a"), row.named("b"), row.named("c")), (Some("1"), None, None));
    }
}
