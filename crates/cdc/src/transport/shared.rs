//! What the parts of one session share: who it is, its two halves while nobody streams, and its end.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as SyncMutex, MutexGuard, PoisonError};

use postgres_protocol::message::frontend;
use tenure_backend::{Error, Result};
use tenure_clock::Clock;
use tenure_election::LockKey;
use tenure_stream::identity::Lsn;
use tokio::sync::{Mutex, Notify, futures::Notified, watch};

use super::endpoint::Endpoint;
use super::session::{Answer, ServerVersion, Session};
use super::wire::{Closer, Inbox, Outbox};

/// From 1970 to 2000, where Postgres' time begins.
const POSTGRES_EPOCH_MILLIS: i64 = 946_684_800_000;

pub(super) struct Shared {
    pub(super) endpoint: Endpoint,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) closer: Closer,
    pub(super) backend: i32,
    pub(super) version: ServerVersion,
    /// When the server's process began, as it says itself: tells it from a later one of the same number.
    pub(super) backend_start: String,
    pub(super) ended: watch::Sender<Option<String>>,
    /// `None` while somebody streams.
    pub(super) reader: Mutex<Option<Inbox>>,
    pub(super) writer: Mutex<Writer>,
    pub(super) pulse: Pulse,
    /// A stream has begun on it.
    pub(super) streamed: AtomicBool,
    /// The session is being ended to give its lock back; whoever does that tells first.
    pub(super) giving_back: watch::Sender<bool>,
    /// What Postgres would grant to this session once more.
    pub(super) held: SyncMutex<BTreeMap<LockKey, Held>>,
    /// A second session that looks at the first one's lock.
    pub(super) witness: Mutex<Option<Session>>,
}

/// What became of a lock that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    Kept,
    /// The server may have it back already; its answer is on the way.
    GivenBack,
}

/// The writing half, and what was last said with it.
pub(super) struct Writer {
    pub(super) outbox: Outbox,
    pub(super) last: Status,
    pub(super) finished: bool,
}

/// How far we are. A position that is zero says nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Status {
    pub(super) received: Lsn,
    pub(super) flushed: Lsn,
    pub(super) applied: Lsn,
}

/// Questions whether the server is alive, and answers to them.
#[derive(Debug)]
pub(super) struct Pulse {
    asked: AtomicU64,
    kept_bytes_max: AtomicU64,
    nudge: Notify,
    heard: watch::Sender<u64>,
}

impl Pulse {
    pub(super) fn new() -> Self {
        Self {
            asked: AtomicU64::new(0),
            kept_bytes_max: AtomicU64::new(u64::MAX),
            nudge: Notify::new(),
            heard: watch::Sender::new(0),
        }
    }

    /// Begins a question.
    pub(super) fn ask(&self, kept_bytes_max: u64) -> u64 {
        self.kept_bytes_max.store(kept_bytes_max, Ordering::Relaxed);
        let asked = self.asked.fetch_add(1, Ordering::AcqRel) + 1;
        self.nudge.notify_one();
        asked
    }

    pub(super) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    pub(super) fn kept_bytes_max(&self) -> u64 {
        self.kept_bytes_max.load(Ordering::Relaxed)
    }

    pub(super) fn nudged(&self) -> Notified<'_> {
        self.nudge.notified()
    }

    pub(super) fn heard(&self, answered: u64) {
        self.heard.send_if_modified(|heard| {
            let news = *heard < answered;
            *heard = answered.max(*heard);
            news
        });
    }

    /// Completes once the question is answered.
    pub(super) async fn answered(&self, asked: u64) {
        // It cannot fail: the sender lives as long as this.
        let _ = self.heard.subscribe().wait_for(|heard| *heard >= asked).await;
    }
}

impl Shared {
    pub(super) fn place(&self) -> &str {
        self.endpoint.place()
    }

    /// Says why the session is over. The first reason counts: what follows is only its consequence.
    pub(super) fn tell_end(&self, why: impl Into<String>) {
        self.ended.send_if_modified(|told| {
            let first = told.is_none();
            told.get_or_insert_with(|| why.into());
            first
        });
    }

    /// Ends the session without waiting.
    pub(super) fn end(&self, why: &str) {
        self.tell_end(why);
        self.closer.close(Shutdown::Both);
    }

    /// Completes when the session is over.
    pub(super) async fn ended(&self) -> Error {
        let mut ended = self.ended.subscribe();
        // It cannot fail: the sender lives as long as this.
        let why = ended.wait_for(Option::is_some).await.map_or(None, |why| why.clone());
        Error::unavailable(why.unwrap_or_default())
    }

    /// Keeps the reason if an error means that the session is over, and gives the first reason back.
    pub(super) fn noted(&self, error: Error, over: bool) -> Error {
        if !over {
            return error;
        }
        let before = self.ended.borrow().clone();
        match before {
            Some(first) => {
                Error::new(error.kind(), first).during(format!("{}: the session is over", self.place()))
            }
            None => {
                self.tell_end(error.chain());
                error
            }
        }
    }

    pub(super) fn held(&self) -> MutexGuard<'_, BTreeMap<LockKey, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs statements on a session that does not stream. Gives `None` if it does.
    ///
    /// # Cancel safety
    /// Dropped, the statements may or may not be carried out; the session stays usable.
    pub(super) async fn ask(&self, doing: &str, sql: &str) -> Result<Option<Answer>> {
        let mut reader = self.reader.lock().await;
        let Some(inbox) = reader.as_mut() else { return Ok(None) };
        super::session::ask(self, inbox, doing, sql).await.map(Some)
    }

    /// Sends a StandbyStatusUpdate: a new status, or the last one again. `false` if the stream was finished,
    /// and nothing can be sent on it any more.
    ///
    /// # Cancel safety
    /// May be dropped; then it may or may not be sent.
    pub(super) async fn send_status(&self, status: Option<Status>, reply: bool) -> Result<bool> {
        let mut writer = self.writer.lock().await;
        if writer.finished {
            return Ok(false);
        }
        let status = status.unwrap_or(writer.last);
        writer.last = status;
        let micros = (self.clock.wall().as_millis() - POSTGRES_EPOCH_MILLIS).saturating_mul(1000);
        let mut body = [0; 34];
        body[0] = b'r';
        for (at, lsn) in [(1, status.received), (9, status.flushed), (17, status.applied)] {
            body[at..at + 8].copy_from_slice(&lsn.0.to_be_bytes());
        }
        body[25..33].copy_from_slice(&micros.to_be_bytes());
        body[33] = u8::from(reply);
        let sent = writer.outbox.send(self.place(), |out| {
            frontend::CopyData::new(&body[..])?.write(out);
            Ok(())
        });
        sent.await.map_err(|error| self.noted(error, true))?;
        Ok(true)
    }
}

/// Neither user nor password.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("place", &self.place())
            .field("backend", &self.backend)
            .field("ended", &*self.ended.borrow())
            .finish_non_exhaustive()
    }
}

/// Ends the session when the part that it cannot do without is dropped.
#[derive(Debug)]
pub(super) struct Guard(pub(super) Arc<Shared>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.end("dropped by us");
    }
}
