//! The stream of changes: START_REPLICATION, frames in, feedback out.
//!
//! ```text
//!            ┌────────── Receiver ── next() ──► Frame::Data, Frame::Keepalive, Frame::Done
//!   server ──┤                                  (borrowed from the buffer: nothing is copied)
//!            └────────── Sender ◄── status(received, flushed, applied)
//! ```
//!
//! The two work apart: feedback goes on while nobody reads, else the server would take a slow sink for a
//! dead client. After `finish` and `Frame::Done` they are one [`Session`] again, for SQL: a server's process
//! streams changes once and refuses nothing the second time, but sends nothing either.
//!
//! A server that shuts down in good order first waits until everything that it sent is confirmed, and asks
//! for it by keepalives. Confirm their `wal_end` as flushed as soon as everything before it is settled, or
//! the server waits.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Monotonic, within};
use tenure_stream::identity::Lsn;

use super::failure::{ServerError, garbled};
use super::framer::Found;
use super::name::{PublicationName, SlotName};
use super::session::{SQL_MESSAGE_BYTES_MAX, ServerVersion, Session, message};
use super::shared::{Guard, Shared, Status};
use super::wire::Inbox;

/// Postgres makes no value longer than 1 GiB; the rest is for what surrounds it.
const FRAME_BYTES_MAX: usize = (1 << 30) + (1 << 20);
/// `w`, three numbers.
const DATA_HEADER_BYTES: usize = 25;
/// `k`, two numbers, a flag.
const KEEPALIVE_BYTES: usize = 18;

/// What the plugin `pgoutput` is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginOptions {
    /// Whose tables are published. At least one.
    pub publication_names: Vec<PublicationName>,
    /// The version of the plugin's protocol; `None` for the newest that server and reader share: 2 for
    /// Postgres 14, 3 for 15, 4 from 16 on.
    pub proto_version: Option<u8>,
    /// Values in the types' binary form.
    pub binary: bool,
    /// Large transactions come before they commit. Needs version 2.
    pub streaming: bool,
    /// What `pg_logical_emit_message` wrote comes too.
    pub messages: bool,
    /// Whether changes that came from another server are published.
    pub origin: Origin,
    /// The longest frame that is taken, 1 GiB and 1 MiB by default.
    pub frame_bytes_max: usize,
}

/// Which changes are published, by where they were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// All of them.
    Any,
    /// Those that were made on this server. Needs Postgres 16.
    Local,
}

impl PluginOptions {
    /// Text values, large transactions streamed, no messages, any origin.
    #[must_use]
    pub fn new(publication_names: Vec<PublicationName>) -> Self {
        Self {
            publication_names,
            proto_version: None,
            binary: false,
            streaming: true,
            messages: false,
            origin: Origin::Any,
            frame_bytes_max: FRAME_BYTES_MAX,
        }
    }

    /// The version of the plugin's protocol that is spoken with a server.
    #[must_use]
    pub fn version_for(&self, server: &ServerVersion) -> u8 {
        self.proto_version.unwrap_or(match server.major() {
            ..15 => 2,
            15 => 3,
            16.. => 4,
        })
    }

    fn command(&self, server: &ServerVersion, slot: &SlotName, start: Lsn) -> Result<String> {
        let version = self.version_for(server);
        let newest = Self { proto_version: None, ..self.clone() }.version_for(server);
        if !(1..=newest).contains(&version) {
            return Err(Error::invalid(format!(
                "protocol version {version} is not spoken by Postgres {server}: give 1 to {newest}, or none"
            )));
        }
        if self.streaming && version < 2 {
            return Err(Error::invalid(
                "streaming needs protocol version 2: turn it off, or raise the version",
            ));
        }
        if self.publication_names.is_empty() {
            return Err(Error::invalid("no publication is named: name at least one"));
        }
        let names: Vec<_> = self.publication_names.iter().map(PublicationName::quoted).collect();
        // A literal within a replication command knows doubled quotes and no other escapes.
        let names = names.join(",").replace('\'', "''");
        let mut options = format!("proto_version '{version}', publication_names '{names}'");
        for (wanted, option) in [
            (self.binary, ", binary 'true'"),
            (self.streaming, ", streaming 'on'"),
            (self.messages, ", messages 'true'"),
        ] {
            if wanted {
                options.push_str(option);
            }
        }
        match self.origin {
            Origin::Any => {}
            Origin::Local if server.major() >= 16 => options.push_str(", origin 'none'"),
            Origin::Local => {
                return Err(Error::invalid(format!(
                    "only Postgres 16 and later tell where a change was made, and the server is {server}: publish \
                     changes of any origin"
                )));
            }
        }
        Ok(format!("START_REPLICATION SLOT {} LOGICAL {start} ({options})", slot.quoted()))
    }
}

impl Session {
    /// Begins to stream from a slot. A `start` of zero, or before what the slot has confirmed, begins where
    /// the slot has confirmed to.
    ///
    /// # Errors
    /// `Unavailable` if somebody else uses the slot (SQLSTATE 55006), `Invalid` if there is no such slot
    /// (42704) or it has lost its WAL (55000), if the options do not fit, or if the session has streamed before. That a publication is missing is
    /// told only when a change is decoded, by [`Receiver::next`]. The session is over in any case.
    ///
    /// # Cancel safety
    /// Dropped, the session is over.
    pub async fn start_replication(
        mut self,
        by: Monotonic,
        slot: &SlotName,
        start: Lsn,
        options: &PluginOptions,
    ) -> Result<(Receiver, Sender)> {
        let command = options.command(self.version(), slot, start)?;
        // A reader that is held up by its sink closes the window of the connection, and the system of the
        // server would take that for a vanished peer. From here on the server judges by our feedback.
        self.query(by, "SET tcp_user_timeout = 0")
            .await
            .map_err(|error| error.during("prepare to stream"))?;
        let shared = self.shared.clone();
        let doing = format!("stream from slot `{slot}`");
        let starting = Box::pin(begin(&shared, &doing, &command));
        let started = within(&*shared.clock, by, starting).await;
        let mut inbox = started.map_err(|_| {
            Error::unavailable(format!("{doing}: {} did not answer in time", shared.place()))
        })??;
        inbox.set_max(options.frame_bytes_max);
        inbox.read_in_batches(shared.clock.clone());
        let Self { shared, guard } = self;
        let receiver =
            Receiver { inbox: Some(inbox), shared: shared.clone(), guard: Some(guard), over: None, doing };
        Ok((receiver, Sender { shared }))
    }
}

/// Sends the command, and takes the reading half once the stream has begun.
async fn begin(shared: &Shared, doing: &str, command: &str) -> Result<Inbox> {
    let place = shared.place();
    let mut reader = shared.reader.lock().await;
    let inbox = reader.as_mut().ok_or_else(|| Error::invalid("the session streams already"))?;
    if shared.streamed.swap(true, Ordering::Relaxed) {
        return Err(Error::invalid(
            "the session has streamed before, and a server's process streams once: connect anew",
        ));
    }
    {
        let mut writer = shared.writer.lock().await;
        writer
            .outbox
            .send(place, |out| frontend::query(command, out))
            .await
            .map_err(|e| shared.noted(e, true))?;
    }
    loop {
        let found = inbox.next(place, &shared.pulse).await.map_err(|e| shared.noted(e, true))?;
        // Answers that nobody waits for any more come first.
        if inbox.owed > 0 {
            inbox.owed -= u32::from(found.tag == b'Z');
            continue;
        }
        match found.tag {
            b'W' => break,
            b'E' => return Err(shared.noted(server_error(place, inbox, &found, doing)?, true)),
            b'N' | b'S' | b'A' => {}
            _ => return Err(garbled(place, "no stream begins")),
        }
    }
    reader.take().ok_or_else(|| Error::invalid("the session streams already"))
}

fn server_error(place: &str, inbox: &Inbox, found: &Found, doing: &str) -> Result<Error> {
    match message(place, inbox, found)? {
        Message::ErrorResponse(body) => {
            Ok(ServerError::read(body.fields()).map_err(|error| garbled(place, error))?.told(doing))
        }
        _ => Err(garbled(place, "an error that is none")),
    }
}

/// One frame of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the plugin.
    Data {
        /// Where in the log it begins; zero for messages that stand for no place of their own.
        wal_start: Lsn,
        /// How far the server's log reaches.
        wal_end: Lsn,
        /// When it was sent, in microseconds since 2000, on the server's clock.
        sent_micros: i64,
        /// The message, for the decoder.
        payload: &'a [u8],
    },
    /// A sign of life.
    Keepalive {
        /// How far the server has sent: with nothing pending before it, it can be confirmed.
        wal_end: Lsn,
        /// When it was sent, in microseconds since 2000, on the server's clock.
        sent_micros: i64,
        /// The server wants a status now, else it takes us for dead.
        reply_requested: bool,
    },
    /// The stream is over in good order: both sides said so.
    Done,
}

/// Reads the stream. Dropped, it ends the session.
pub struct Receiver {
    /// There until rejoined.
    inbox: Option<Inbox>,
    shared: Arc<Shared>,
    guard: Option<Guard>,
    over: Option<Over>,
    doing: String,
}

/// How the stream ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// With CopyDone.
    Done,
    Failed,
}

impl Receiver {
    /// Waits for the next frame.
    ///
    /// # Errors
    /// `Unavailable` if the connection is lost or the server ends it, also in good order when it shuts down.
    /// What the server says is told by its SQLSTATE, see [`ServerError::of`]: 42704 if a publication is
    /// missing. After an error, and after `Frame::Done`, the stream is over.
    ///
    /// # Cancel safety
    /// May be dropped; no frame is lost.
    pub async fn next(&mut self) -> Result<Frame<'_>> {
        loop {
            if let Some(found) = self.find()? {
                return self.frame(found);
            }
            self.fill().await?;
        }
    }

    /// The next frame, if it was read already: takes many frames per wake-up.
    ///
    /// # Errors
    /// As [`Receiver::next`].
    #[inline]
    pub fn try_next_buffered(&mut self) -> Result<Option<Frame<'_>>> {
        match self.find()? {
            Some(found) => self.frame(found).map(Some),
            None => Ok(None),
        }
    }

    /// The server's process.
    #[must_use]
    pub fn backend(&self) -> i32 {
        self.shared.backend
    }

    /// The server's version.
    #[must_use]
    pub fn version(&self) -> &ServerVersion {
        &self.shared.version
    }

    /// Ends the stream in good order, and gives the session back for SQL. What was not read yet is skipped,
    /// so confirm first what is settled.
    ///
    /// # Errors
    /// The connection was lost or `by` passed: then the session is over.
    ///
    /// # Cancel safety
    /// Dropped, the session is over.
    pub async fn rejoin(mut self, by: Monotonic, sender: Sender) -> Result<Session> {
        if !Arc::ptr_eq(&self.shared, &sender.shared) {
            return Err(Error::invalid("the two halves are not of one session"));
        }
        let shared = self.shared.clone();
        let ending = Box::pin(async {
            sender.finish().await?;
            while self.over != Some(Over::Done) {
                self.next().await?;
            }
            self.until_ready().await
        });
        within(&*shared.clock, by, ending).await.map_err(|_| {
            Error::unavailable(format!("end the stream: {} did not answer in time", shared.place()))
        })??;
        let (Some(mut inbox), Some(guard)) = (self.inbox.take(), self.guard.take()) else {
            return Err(Error::invalid("the stream was rejoined before"));
        };
        inbox.set_max(SQL_MESSAGE_BYTES_MAX);
        *shared.reader.lock().await = Some(inbox);
        Ok(Session { shared, guard })
    }

    /// Skips the rest of the answer to START_REPLICATION.
    async fn until_ready(&mut self) -> Result<()> {
        let place = self.shared.place();
        let inbox = self.inbox.as_mut().ok_or_else(|| garbled(place, "no stream"))?;
        loop {
            let found =
                inbox.next(place, &self.shared.pulse).await.map_err(|e| self.shared.noted(e, true))?;
            match found.tag {
                b'Z' => return Ok(()),
                b'E' => {
                    let error = server_error(place, inbox, &found, "end the stream")?;
                    return Err(self.shared.noted(error, true));
                }
                _ => {}
            }
        }
    }

    async fn fill(&mut self) -> Result<()> {
        let Self { inbox, shared, .. } = self;
        let filled = match inbox {
            Some(inbox) => inbox.fill(shared.place(), &shared.pulse).await,
            None => return Err(self.after_the_end()),
        };
        filled.map_err(|error| self.failed(error))
    }

    /// The next frame's place, if it was read already. What concerns nobody is skipped.
    #[inline]
    fn find(&mut self) -> Result<Option<Found>> {
        if self.over.is_some() {
            return Err(self.after_the_end());
        }
        loop {
            let Some(inbox) = self.inbox.as_mut() else { return Err(self.after_the_end()) };
            match inbox.buffered(self.shared.place()) {
                Ok(None) => return Ok(None),
                Ok(Some(found)) => match found.tag {
                    b'd' if is_frame(inbox.body(&found)) => return Ok(Some(found)),
                    b'c' => return Ok(Some(found)),
                    // Notices, changed parameters, notifications.
                    b'N' | b'S' | b'A' => {}
                    _ => return Err(self.refused(&found)),
                },
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    #[inline]
    fn frame(&mut self, found: Found) -> Result<Frame<'_>> {
        if found.tag == b'c' {
            self.over = Some(Over::Done);
            return Ok(Frame::Done);
        }
        let frame = self.inbox.as_ref().and_then(|inbox| read_frame(inbox.body(&found)));
        frame.ok_or_else(|| garbled(self.shared.place(), "an unknown frame of the stream"))
    }

    /// What is neither data nor chatter.
    #[cold]
    fn refused(&mut self, found: &Found) -> Error {
        let place = self.shared.place();
        let error = match (found.tag, &self.inbox) {
            (b'E', Some(inbox)) => {
                server_error(place, inbox, found, &self.doing).unwrap_or_else(|error| error)
            }
            // Without a CopyDone before it, this is how a server says goodbye that shuts down.
            (b'C', _) => Error::unavailable(format!(
                "{place}: the server is shutting down; everything that it sent was confirmed"
            )),
            (tag, _) => garbled(place, format!("message {:?} within a stream", char::from(tag))),
        };
        self.failed(error)
    }

    #[cold]
    fn failed(&mut self, error: Error) -> Error {
        self.over = Some(Over::Failed);
        self.shared.noted(error, true)
    }

    #[cold]
    fn after_the_end(&self) -> Error {
        match self.over {
            Some(Over::Done) => Error::invalid("the stream is over: rejoin its halves"),
            _ => Error::unavailable("the stream has failed: connect anew"),
        }
    }
}

impl fmt::Debug for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("session", &self.shared)
            .field("over", &self.over)
            .finish_non_exhaustive()
    }
}

/// Judged before it is borrowed: an error changes what a frame is borrowed from.
#[inline]
fn is_frame(body: &[u8]) -> bool {
    match body.first() {
        Some(b'w') => body.len() >= DATA_HEADER_BYTES,
        Some(b'k') => body.len() == KEEPALIVE_BYTES,
        _ => false,
    }
}

/// `None` if it is none.
#[inline]
fn read_frame(body: &[u8]) -> Option<Frame<'_>> {
    if !is_frame(body) {
        return None;
    }
    let number = |at: usize| {
        body.get(at..at + 8).and_then(|bytes| bytes.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes))
    };
    match body.first()? {
        b'w' => Some(Frame::Data {
            wal_start: Lsn(number(1)?),
            wal_end: Lsn(number(9)?),
            sent_micros: number(17)?.cast_signed(),
            payload: body.get(DATA_HEADER_BYTES..)?,
        }),
        b'k' => Some(Frame::Keepalive {
            wal_end: Lsn(number(1)?),
            sent_micros: number(9)?.cast_signed(),
            reply_requested: *body.get(KEEPALIVE_BYTES - 1)? != 0,
        }),
        _ => None,
    }
}

/// Sends feedback. May be cloned, and works while nobody reads.
#[derive(Debug, Clone)]
pub struct Sender {
    shared: Arc<Shared>,
}

impl Sender {
    /// Says how far we are. `flushed` is what the slot may forget; zero says nothing. With `reply_requested`
    /// the server answers by a keepalive.
    ///
    /// # Errors
    /// `Unavailable` if the connection is lost, `Invalid` after [`Sender::finish`].
    ///
    /// # Cancel safety
    /// May be dropped; then it may or may not be sent.
    pub async fn status(
        &self,
        received: Lsn,
        flushed: Lsn,
        applied: Lsn,
        reply_requested: bool,
    ) -> Result<()> {
        match self.shared.send_status(Some(Status { received, flushed, applied }), reply_requested).await? {
            true => Ok(()),
            false => Err(Error::invalid("the stream was finished: there is nothing more to confirm on it")),
        }
    }

    /// Says that no more is wanted. The server stops, and [`Receiver::next`] gives what was on the way and
    /// then `Frame::Done`. Asked again, it does nothing.
    ///
    /// # Errors
    /// `Unavailable` if the connection is lost.
    ///
    /// # Cancel safety
    /// May be dropped; then it may or may not be sent. Ask again.
    pub async fn finish(&self) -> Result<()> {
        let place = self.shared.place();
        let mut guard = self.shared.writer.lock().await;
        let writer = &mut *guard;
        let finished = &mut writer.finished;
        let sent = writer.outbox.send(place, |out| {
            if !std::mem::replace(finished, true) {
                frontend::copy_done(out);
            }
            Ok(())
        });
        sent.await.map_err(|error| {
            Error::new(Kind::Unavailable, "end the stream").because(self.shared.noted(error, true))
        })
    }
}

#[cfg(test)]
#[path = "stream_test.rs"]
mod tests;
