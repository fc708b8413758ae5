//! Records on standard output, a line of JSON each.
//!
//! Whoever reads them may be slow, or not read at all. Then nothing more is taken from the shards, and a shard
//! that does not get on for long loses its lease, as with any processor that hangs. Nothing waits inside a
//! write: it is looked first whether there is room. So a shard that is lost, or a worker that is asked to end,
//! stops between two lines, and exactly what was written counts as processed.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use rustix::io::Errno;
use tenure_backend::{Error, Kind};
use tenure_clock::pause_thread;
use tenure_consumer::{Batch, Failure, Settlement, ShardContext, ShardProcessor};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio_util::sync::CancellationToken;

use super::consume::lines;

/// Records whose lines are made at once.
const RECORDS_MAX: usize = 500;
/// What is written at once: a pipe that has room at all has room for so much.
const PIECE_BYTES_MAX: usize = 4096;
/// What is written at once to what always has room, as a file.
const FILE_PIECE_BYTES_MAX: usize = 1 << 20;
/// The pause after a write that found no room although there seemed to be some.
const PAUSE: Duration = Duration::from_millis(5);

/// Standard output, shared by all shards.
pub(super) struct Printer {
    /// Cancelled when nothing is to be printed any more.
    stop: CancellationToken,
    /// One shard writes at a time.
    line: tokio::sync::Mutex<Unfinished>,
    /// Why nothing can be printed any more.
    closed: Mutex<Option<io::Error>>,
}

impl Printer {
    /// Prints until `stop` is cancelled; it cancels it when nobody reads any more.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { stop, line: tokio::sync::Mutex::default(), closed: Mutex::new(None) }
    }

    /// Why nothing could be printed any more, if so.
    pub(super) fn take_closed(&self) -> Option<io::Error> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn close(&self, error: io::Error) {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        // Nobody is left to read for.
        self.stop.cancel();
    }

    /// Writes lines, and says how many.
    ///
    /// # Cancel safety
    /// Dropped, it ends between two lines, or leaves the rest of one to whoever prints next.
    async fn print(&self, shard: &ShardContext, text: &[u8]) -> Printed {
        let lines = AtomicUsize::new(0);
        let printing = async {
            let mut unfinished = self.line.lock().await;
            unfinished.write(&mut Stdout::default(), text, &lines, || shard.is_valid()).await
        };
        let result = tokio::select! {
            biased;
            () = self.stop.cancelled() => Ok(()),
            result = printing => result,
        };
        Printed { lines: lines.into_inner(), result }
    }
}

/// Prints the records of one shard.
pub(super) struct Print {
    pub(super) printer: Arc<Printer>,
}

#[async_trait]
impl ShardProcessor for Print {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        for records in batch.records().chunks(RECORDS_MAX) {
            if !batch.is_valid() {
                return Err(Error::new(Kind::Fenced, "the lease is over").into());
            }
            let text = lines(batch.shard(), records);
            let printed = self.printer.print(batch.shard(), &text).await;
            if let Some(last) = printed.lines.checked_sub(1).and_then(|last| records.get(last)) {
                batch.settle_through(last);
            }
            if let Err(error) = printed.result {
                self.printer.close(error);
                return Ok(());
            }
            if self.printer.stop.is_cancelled() {
                return Ok(());
            }
            if printed.lines < records.len() {
                return Err(Error::new(Kind::Fenced, "the lease is over").into());
            }
        }
        Ok(())
    }

    /// What was not written before the end comes again.
    fn settlement(&self) -> Settlement {
        Settlement::ByHand
    }
}

/// What became of lines.
#[derive(Debug)]
struct Printed {
    /// How many are written to their end.
    lines: usize,
    result: io::Result<()>,
}

/// The rest of a line that was begun: it goes out before anything else.
#[derive(Debug, Default)]
struct Unfinished(Vec<u8>);

impl Unfinished {
    /// Writes lines while `goes_on` says so, and counts those that are written to their end.
    ///
    /// # Cancel safety
    /// Between two writes everything is noted.
    async fn write(
        &mut self,
        out: &mut impl Out,
        lines: &[u8],
        whole: &AtomicUsize,
        goes_on: impl Fn() -> bool + Sync,
    ) -> io::Result<()> {
        let (mut at, mut mine) = (0, false);
        while at < lines.len() || (mine && !self.0.is_empty()) {
            let room = out.room().await?;
            if !goes_on() {
                return Ok(());
            }
            if !self.0.is_empty() {
                let piece = self.0.len().min(room);
                let wrote = out.write(&self.0[..piece])?;
                self.0.drain(..wrote);
                if mine && self.0.is_empty() {
                    whole.fetch_add(1, Ordering::Relaxed);
                }
                continue;
            }
            let piece = &lines[at..lines.len().min(at + room)];
            // Up to the end of a line, if there is one: that is where it can stop.
            let end = piece.iter().rposition(|byte| *byte == b'\n').map_or(piece.len(), |end| end + 1);
            let wrote = out.write(&piece[..end])?;
            whole.fetch_add(piece[..wrote].iter().filter(|byte| **byte == b'\n').count(), Ordering::Relaxed);
            at += wrote;
            if wrote > 0 && piece[wrote - 1] != b'\n' {
                let rest = lines[at..]
                    .iter()
                    .position(|byte| *byte == b'\n')
                    .map_or(lines.len(), |end| at + end + 1);
                self.0.extend_from_slice(&lines[at..rest]);
                (at, mine) = (rest, true);
            }
        }
        Ok(())
    }
}

/// Where lines go.
trait Out: Send {
    /// Waits until something can be written, and says how much at once.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    fn room(&mut self) -> impl Future<Output = io::Result<usize>> + Send;

    /// Writes some of it, and none if there is no room.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
}

/// Our own. Nothing else writes to it while records are printed.
#[derive(Default)]
struct Stdout {
    /// It always has room, and a write may wait for a disk.
    is_file: bool,
}

impl Out for Stdout {
    #[expect(
        deprecated,
        reason = "asks for a file that stays open, as ours does; what replaces it is unsafe to call"
    )]
    async fn room(&mut self) -> io::Result<usize> {
        // Registered anew each time: it is told at once whether there is room now. The file stays in the mode that
        // it has, which others may share.
        match AsyncFd::with_interest(io::stdout(), Interest::WRITABLE) {
            // Also if it was closed: the write says so.
            Ok(out) => out.writable().await.map(|_| PIECE_BYTES_MAX),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.is_file = true;
                Ok(FILE_PIECE_BYTES_MAX)
            }
            Err(error) => Err(error),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let write = || match rustix::io::write(io::stdout(), bytes) {
            Ok(bytes) => Ok(bytes),
            Err(Errno::INTR) => Ok(0),
            Err(Errno::AGAIN) => {
                pause_thread(PAUSE);
                Ok(0)
            }
            Err(error) => Err(error.into()),
        };
        if self.is_file { tokio::task::block_in_place(write) } else { write() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes so many bytes, and then nothing.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Out for Narrow {
        async fn room(&mut self) -> io::Result<usize> {
            match self.room {
                0 => std::future::pending().await,
                _ => Ok(PIECE_BYTES_MAX),
            }
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.room);
            self.taken.extend_from_slice(&bytes[..taken]);
            self.room -= taken;
            Ok(taken)
        }
    }

    /// Writes until there is no room, and says how many lines.
    async fn write(unfinished: &mut Unfinished, out: &mut Narrow, lines: &str) -> usize {
        let whole = AtomicUsize::new(0);
        tokio::select! {
            biased;
            done = unfinished.write(out, lines.as_bytes(), &whole, || true) => done.unwrap(),
            () = std::future::ready(()) => {}
        }
        whole.into_inner()
    }

    #[tokio::test]
    async fn a_line_that_was_begun_is_finished_before_the_next() {
        let mut out = Narrow { room: 9, taken: Vec::new() };
        let mut unfinished = Unfinished::default();
        assert_eq!(write(&mut unfinished, &mut out, "one\ntwo\nthree\n").await, 2);
        assert_eq!(out.taken, b"one\ntwo\nt");
        // Of another shard; nothing of it is written before the rest.
        assert_eq!(write(&mut unfinished, &mut out, "other\n").await, 0);
        out.room = 100;
        assert_eq!(write(&mut unfinished, &mut out, "other\n").await, 1);
        assert_eq!(out.taken, b"one\ntwo\nthree\nother\n");
    }

    #[tokio::test]
    async fn a_long_line_goes_out_in_pieces_and_counts_once() {
        let line = format!("{}\n", "x".repeat(3 * PIECE_BYTES_MAX));
        let mut out = Narrow { room: 2 * PIECE_BYTES_MAX, taken: Vec::new() };
        let mut unfinished = Unfinished::default();
        assert_eq!(write(&mut unfinished, &mut out, &line).await, 0);
        out.room = usize::MAX;
        assert_eq!(write(&mut unfinished, &mut out, &format!("{line}next\n")).await, 2);
        assert_eq!(out.taken, format!("{line}{line}next\n").into_bytes());
        assert!(unfinished.0.is_empty());
    }

    #[tokio::test]
    async fn nothing_is_begun_when_it_is_not_to_go_on() {
        let mut out = Narrow { room: 100, taken: Vec::new() };
        let whole = AtomicUsize::new(0);
        Unfinished::default().write(&mut out, b"one\n", &whole, || false).await.unwrap();
        assert_eq!((whole.into_inner(), out.taken), (0, Vec::new()));
    }
}
