//! The connection itself: a socket, perhaps with TLS around it, in two halves that work apart.
//!
//! The writing half keeps what was not sent yet, and the reading half what was not understood yet, so
//! every step may be dropped in the middle and taken up again: nothing is sent or read by halves.

use std::future::{Future, poll_fn};
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream as StdTcpStream};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use postgres_protocol::message::frontend;
use rustls::pki_types::ServerName;
use socket2::{SockRef, TcpKeepalive};
use tenure_backend::postgres_tls::{self, SslMode};
use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::coop::{has_budget_remaining, poll_proceed};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::endpoint::{Endpoint, Host};
use super::evidence::Evidence;
use super::failure::{garbled, lost};
use super::framer::{Found, Framer, Unframed};
use super::shared::Pulse;

/// Between two probes of a silent peer.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);
const PROBES: u32 = 3;

/// A new connection, before anybody logged in on it.
pub(super) struct Opened {
    pub(super) read: ReadSide,
    pub(super) write: WriteSide,
    pub(super) closer: Closer,
    /// What ties a login to this connection, if it is encrypted and the certificate allows it.
    pub(super) end_point: Option<Vec<u8>>,
    pub(super) encrypted: bool,
}

/// Connects, and secures the connection as the endpoint says.
pub(super) async fn open(endpoint: &Endpoint) -> Result<Opened> {
    let place = endpoint.place();
    let unreachable = |error: io::Error| {
        Error::unavailable(format!(
            "{place}: the server cannot be reached: is it running, and are host and port right?"
        ))
        .because(error)
    };
    let (name, stream) = match &endpoint.host {
        Host::Unix(folder) => {
            let path = folder.join(format!(".s.PGSQL.{}", endpoint.port));
            let stream = UnixStream::connect(path).await.map_err(unreachable)?;
            return plain(Socket::Unix(stream.into_std().map_err(unreachable)?)).map_err(unreachable);
        }
        Host::Tcp { name, connect_to } => {
            (name, TcpStream::connect((connect_to.as_str(), endpoint.port)).await.map_err(unreachable)?)
        }
    };
    set_up(&stream, endpoint).map_err(unreachable)?;
    let mut stream = stream;
    if let Some(config) = &endpoint.tls
        && is_tls_offered(&mut stream, endpoint).await?
    {
        let name = ServerName::try_from(name.clone()).map_err(|error| {
            Error::invalid(format!("{place}: the host's name cannot be in a certificate")).because(error)
        })?;
        let (stream, closer) = tcp_closer(stream).map_err(unreachable)?;
        let connecting = TlsConnector::from(config.clone()).connect(name, stream);
        let stream = connecting.await.map_err(|error| not_secured(place, error))?;
        let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let end_point = certificate.and_then(|certificate| postgres_tls::end_point_hash(certificate));
        let (read, write) = tokio::io::split(stream);
        let (read, write) = (ReadSide::Tls(read), WriteSide::Tls(write));
        return Ok(Opened { read, write, closer, end_point, encrypted: true });
    }
    plain(Socket::Tcp(stream.into_std().map_err(unreachable)?)).map_err(unreachable)
}

/// The halves of a connection without TLS.
fn plain(socket: Socket) -> io::Result<Opened> {
    let closer = Closer(socket.try_clone()?);
    let write = WriteSide::Plain(Plain { socket: socket.try_clone()?, watched: None });
    let read = ReadSide::Plain(Plain { socket, watched: None });
    Ok(Opened { read, write, closer, end_point: None, encrypted: false })
}

/// Asks for TLS in Postgres' own way. `false` if there is none and none is needed.
async fn is_tls_offered(stream: &mut TcpStream, endpoint: &Endpoint) -> Result<bool> {
    let place = endpoint.place();
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(|error| lost(place, error))?;
    // One byte and no more: what follows belongs to TLS.
    let mut answer = [0];
    stream.read_exact(&mut answer).await.map_err(|error| lost(place, error))?;
    match answer {
        [b'S'] => Ok(true),
        [b'N'] if endpoint.ssl_mode == SslMode::Prefer => Ok(false),
        [b'N'] => Err(Error::new(
            Kind::Denied,
            format!(
                "{place}: the server offers no TLS: enable it there, or trust the network with sslmode=disable"
            ),
        )),
        // Also an error of the server, which nobody has vouched for yet: not shown.
        _ => Err(garbled(place, "no answer to a request for TLS")),
    }
}

fn not_secured(place: &str, error: io::Error) -> Error {
    let refused = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
    if !refused {
        return lost(place, error);
    }
    Error::new(
        Kind::Denied,
        format!(
            "{place}: the server's certificate is not accepted: give its authority by sslrootcert=PATH, and the \
             host by the name in the certificate"
        ),
    )
    .because(error)
}

/// Makes this end notice that the other has vanished, at about the client's timeout.
fn set_up(stream: &TcpStream, endpoint: &Endpoint) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let idle = (endpoint.client_timeout / 2).max(Duration::from_secs(1));
    let probing = TcpKeepalive::new().with_time(idle).with_interval(PROBE_INTERVAL).with_retries(PROBES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&probing)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(endpoint.client_timeout))?;
    Ok(())
}

// === closing ===

/// Ends a connection whoever has its halves.
pub(super) struct Closer(Socket);

impl Closer {
    /// Without waiting. That it was closed before is no news.
    pub(super) fn close(&self, how: Shutdown) {
        let _ = match &self.0 {
            Socket::Tcp(socket) => socket.shutdown(how),
            Socket::Unix(socket) => socket.shutdown(how),
        };
    }

    /// How much may lie in the socket unread.
    pub(super) fn kept_bytes_max(&self) -> u64 {
        /// What the layers above the socket may keep: a few records of TLS.
        const ABOVE_BYTES: u64 = 64 * 1024;
        let socket = match &self.0 {
            Socket::Tcp(socket) => SockRef::from(socket),
            Socket::Unix(socket) => SockRef::from(socket),
        };
        // Not known: then nothing is old enough to be told from it.
        socket.recv_buffer_size().map_or(u64::MAX, |bytes| bytes as u64 + ABOVE_BYTES)
    }
}

fn tcp_closer(stream: TcpStream) -> io::Result<(TcpStream, Closer)> {
    let stream = stream.into_std()?;
    let closer = Closer(Socket::Tcp(stream.try_clone()?));
    Ok((TcpStream::from_std(stream)?, closer))
}

// === halves ===

pub(super) enum ReadSide {
    Plain(Plain),
    Tls(ReadHalf<TlsStream<TcpStream>>),
}

impl ReadSide {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(half) => half.poll_read(cx, buf),
            Self::Tls(half) => Pin::new(half).poll_read(cx, buf),
        }
    }
}

pub(super) enum WriteSide {
    Plain(Plain),
    Tls(WriteHalf<TlsStream<TcpStream>>),
}

impl WriteSide {
    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(half) => half.write(bytes).await,
            Self::Tls(half) => half.write(bytes).await,
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Tls(half) => half.flush().await,
        }
    }
}

/// One half of a connection without TLS. The socket is watched only while somebody waits for it, so that
/// what arrives wakes nobody who does not want it yet.
pub(super) struct Plain {
    socket: Socket,
    watched: Option<Watched>,
}

/// It never blocks.
enum Socket {
    Tcp(StdTcpStream),
    Unix(StdUnixStream),
}

/// The same socket, with the runtime's eye on it.
enum Watched {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Plain {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.watched.is_none() {
            // Like every other read, it counts as a turn.
            let turn = ready!(poll_proceed(cx));
            let room = buf.initialize_unfilled();
            let read = match &mut self.socket {
                Socket::Tcp(socket) => socket.read(room),
                Socket::Unix(socket) => socket.read(room),
            };
            if !is_not_ready(&read) {
                turn.made_progress();
                return Poll::Ready(read.map(|bytes| buf.advance(bytes)));
            }
        }
        match self.watch()? {
            Watched::Tcp(socket) => Pin::new(socket).poll_read(cx, buf),
            Watched::Unix(socket) => Pin::new(socket).poll_read(cx, buf),
        }
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match &mut self.socket {
            Socket::Tcp(socket) => socket.write(bytes),
            Socket::Unix(socket) => socket.write(bytes),
        };
        if !is_not_ready(&written) {
            return written;
        }
        let written = match self.watch()? {
            Watched::Tcp(socket) => socket.write(bytes).await,
            Watched::Unix(socket) => socket.write(bytes).await,
        };
        self.unwatch();
        written
    }

    fn watch(&mut self) -> io::Result<&mut Watched> {
        let watched = match self.watched.take() {
            Some(watched) => watched,
            None => match self.socket.try_clone()? {
                Socket::Tcp(socket) => Watched::Tcp(TcpStream::from_std(socket)?),
                Socket::Unix(socket) => Watched::Unix(UnixStream::from_std(socket)?),
            },
        };
        Ok(self.watched.insert(watched))
    }

    fn unwatch(&mut self) {
        self.watched = None;
    }
}

impl Socket {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(socket) => Self::Tcp(socket.try_clone()?),
            Self::Unix(socket) => Self::Unix(socket.try_clone()?),
        })
    }
}

fn is_not_ready(done: &io::Result<usize>) -> bool {
    done.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

// === writing ===

/// Sends messages, each as a whole.
pub(super) struct Outbox {
    side: WriteSide,
    pending: BytesMut,
}

impl Outbox {
    pub(super) fn new(side: WriteSide) -> Self {
        Self { side, pending: BytesMut::with_capacity(1024) }
    }

    /// Sends what `write` appends. Dropped before what was there earlier is gone, nothing is appended;
    /// dropped later, the next call sends the rest.
    ///
    /// # Errors
    /// The connection is lost, or `write` could not say it in Postgres' protocol.
    pub(super) async fn send(
        &mut self,
        place: &str,
        write: impl FnOnce(&mut BytesMut) -> io::Result<()>,
    ) -> Result<()> {
        self.flush(place).await?;
        write(&mut self.pending).map_err(|error| {
            self.pending.clear();
            Error::invalid("it cannot be said to Postgres: it is too long or holds a zero byte")
                .because(error)
        })?;
        self.flush(place).await
    }

    async fn flush(&mut self, place: &str) -> Result<()> {
        while !self.pending.is_empty() {
            let sent = self.side.write(&self.pending).await.map_err(|error| lost(place, error))?;
            if sent == 0 {
                return Err(lost(place, io::ErrorKind::WriteZero.into()));
            }
            self.pending.advance(sent);
        }
        self.side.flush().await.map_err(|error| lost(place, error))
    }
}

// === reading ===

/// Receives messages, where they lie.
pub(super) struct Inbox {
    side: ReadSide,
    framer: Framer,
    pace: Option<Pace>,
    evidence: Evidence,
    /// Answers to statements whose asker has gone, and to the present one.
    pub(super) owed: u32,
}

impl Inbox {
    pub(super) fn new(side: ReadSide, message_bytes_max: usize) -> Self {
        let framer = Framer::new(message_bytes_max);
        Self { side, framer, pace: None, evidence: Evidence::default(), owed: 0 }
    }

    /// From here on much may come in small pieces: see [`Pace`].
    pub(super) fn read_in_batches(&mut self, clock: Arc<dyn Clock>) {
        // What TLS gives at once is one piece of its own, and says nothing of what else is there.
        if let ReadSide::Plain(_) = self.side {
            self.pace = Some(Pace { clock, last: Monotonic::from_nanos(0), soon: 0, until: None });
        }
    }

    pub(super) const fn set_max(&mut self, message_bytes_max: usize) {
        self.framer.set_max(message_bytes_max);
    }

    /// The next message, if it was read already.
    #[inline]
    pub(super) fn buffered(&mut self, place: &str) -> Result<Option<Found>> {
        self.framer.find().map_err(|why| unframed(place, why))
    }

    #[inline]
    pub(super) fn body(&self, found: &Found) -> &[u8] {
        self.framer.body(found)
    }

    pub(super) fn whole(&self, found: &Found) -> &[u8] {
        self.framer.whole(found)
    }

    /// Waits for the next message.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(super) async fn next(&mut self, place: &str, pulse: &Pulse) -> Result<Found> {
        loop {
            if let Some(found) = self.buffered(place)? {
                return Ok(found);
            }
            self.fill(place, pulse).await?;
        }
    }

    /// Waits until more has been read. What was found before is gone.
    ///
    /// # Cancel safety
    /// May be dropped.
    pub(super) async fn fill(&mut self, place: &str, pulse: &Pulse) -> Result<()> {
        let Self { side, framer, pace, evidence, .. } = self;
        if let Some(pace) = pace {
            pace.pause().await;
        }
        let room = framer.room();
        loop {
            let mut nudged = pin!(pulse.nudged());
            let read = poll_fn(|cx| {
                let mut buffer = ReadBuf::new(room);
                match side.poll_read(cx, &mut buffer) {
                    Poll::Ready(Ok(())) => Poll::Ready(Some(Ok(buffer.filled().len()))),
                    Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
                    Poll::Pending => {
                        // A task that has had its turn is told to wait although there may be something.
                        if has_budget_remaining() {
                            evidence.empty(pulse.asked());
                        }
                        nudged.as_mut().poll(cx).map(|()| None)
                    }
                }
            });
            match read.await {
                // Somebody wants to know whether the socket is empty.
                None => {}
                Some(Ok(0)) => {
                    return Err(Error::unavailable(format!("{place}: the server closed the connection")));
                }
                Some(Ok(bytes)) => {
                    if let (Some(pace), ReadSide::Plain(side)) = (pace, side)
                        && pace.read(bytes, bytes < room.len())
                    {
                        side.unwatch();
                    }
                    framer.filled(bytes);
                    if let Some(answered) = evidence.read(pulse.asked(), bytes, pulse.kept_bytes_max()) {
                        pulse.heard(answered);
                    }
                    return Ok(());
                }
                Some(Err(error)) => return Err(lost(place, error)),
            }
        }
    }
}

/// Lets a little gather before it is read.
///
/// A server sends each message by itself. Whoever reads it at once is woken for each of them, which costs more
/// than all that is done with it, and costs the server too. So once several reads in a row gave little, there is
/// a pause before the next, as short as timers are; what comes meanwhile wakes nobody.
struct Pace {
    clock: Arc<dyn Clock>,
    /// When something was read.
    last: Monotonic,
    /// How many reads in a row came soon after the one before.
    soon: u32,
    /// No read before this.
    until: Option<Monotonic>,
}

/// How long a pause is.
const PAUSE: Duration = Duration::from_millis(1);
/// Reads this close are of one busy stretch. Longer than a pause, even if a timer is late.
const SOON: Duration = Duration::from_millis(5);
/// So many of them: a transaction or two that come by themselves are not held up.
const SOON_READS_MIN: u32 = 24;
/// Whoever finds this much reads on: it must not gather until the socket is full.
const MUCH_BYTES: usize = 32 * 1024;

impl Pace {
    async fn pause(&mut self) {
        if let Some(until) = self.until {
            self.clock.sleep_until(until).await;
            self.until = None;
        }
    }

    /// Notes a read, and says whether a pause follows.
    fn read(&mut self, bytes: usize, drained: bool) -> bool {
        let now = self.clock.monotonic();
        self.soon = if now.since(self.last) <= SOON { self.soon.saturating_add(1) } else { 0 };
        self.last = now;
        let pauses = drained && bytes < MUCH_BYTES && self.soon >= SOON_READS_MIN;
        self.until = pauses.then(|| now + PAUSE);
        pauses
    }
}

fn unframed(place: &str, why: Unframed) -> Error {
    match why {
        Unframed::BadLength => garbled(place, "a message without a length"),
        Unframed::TooLong { bytes } => Error::invalid(format!(
            "{place}: the server sends a message of {bytes} bytes, more than is taken: raise the limit on one change"
        )),
    }
}

#[cfg(test)]
mod tests {
    use tenure_clock::ManualTime;

    use super::*;

    struct Reads {
        time: ManualTime,
        pace: Pace,
    }

    impl Reads {
        fn new() -> Self {
            let time = ManualTime::default();
            let clock = Arc::new(time.node(0, 0));
            Self { time, pace: Pace { clock, last: Monotonic::from_nanos(0), soon: 0, until: None } }
        }

        /// Whether a pause follows the last of so many reads, each so long after the one before.
        fn then(&mut self, reads: u32, after: Duration, bytes: usize, drained: bool) -> bool {
            let mut pauses = false;
            for _ in 0..reads {
                self.time.advance(after);
                pauses = self.pace.read(bytes, drained);
            }
            pauses
        }
    }

    #[test]
    fn what_comes_by_itself_is_read_at_once() {
        let (at_once, later) = (Duration::from_micros(50), Duration::from_millis(50));
        let mut reads = Reads::new();
        for _ in 0..10 {
            assert!(!reads.then(1, later, 100, true));
            assert!(!reads.then(SOON_READS_MIN - 1, at_once, 100, true));
        }
    }

    #[test]
    fn a_busy_stretch_is_read_in_batches_until_it_is_over() {
        let (at_once, later) = (Duration::from_micros(50), Duration::from_millis(50));
        let mut reads = Reads::new();
        assert!(reads.then(SOON_READS_MIN + 1, at_once, 100, true));
        assert!(reads.then(1, PAUSE * 2, 3000, true), "it goes on although reads are rarer");
        assert!(!reads.then(1, PAUSE * 2, MUCH_BYTES, true), "much has gathered");
        assert!(!reads.then(1, PAUSE * 2, 100, false), "there is more");
        assert!(reads.then(1, PAUSE * 2, 100, true));
        assert!(!reads.then(1, later, 100, true), "it was over");
    }
}
