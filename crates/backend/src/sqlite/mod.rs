//! One SQLite file that several processes share, with one fsync for many writes.
//!
//! An [`Engine`] owns one writing thread and a few reading ones. Writes that arrive while a commit
//! is under way are carried out together in the next one (group commit), each under a savepoint of
//! its own, so one that fails leaves the others and nothing of itself. WAL mode and
//! `synchronous=FULL`: what was acknowledged survives power loss.
//!
//! ```text
//!   task ─ write(work) ─┐                       ┌ BEGIN IMMEDIATE
//!   task ─ write(work) ─┼─► queue ─► writer ────┤ work, work, work
//!   task ─ write(work) ─┘   (bounded)           └ COMMIT ─► all three are answered
//! ```

mod file;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
pub use rusqlite;
use rusqlite::Connection;
use tenure_clock::{Clock, Monotonic, within};
use tokio::sync::{oneshot, watch};

pub use self::file::{FileSpec, PRAGMAS, failure};
use self::writer::{Stage, WriteJob};
use crate::{Error, Kind, Result};

/// How many calls may wait for a thread; one more is refused with `Throttled`.
///
/// Far above what tasks of one process have outstanding in practice, and small enough that a stuck
/// disk shows as an error instead of as memory growth.
const QUEUE_MAX: usize = 4096;

/// Reads are short and come from the page cache; two threads keep a scan from delaying a get.
const READERS: usize = 2;

type ReadJob = Box<dyn FnOnce(&Connection) + Send>;

/// An open file and its threads. Dropping it finishes what was queued and closes the file.
#[derive(Debug)]
pub struct Engine {
    path: Arc<PathBuf>,
    clock: Arc<dyn Clock>,
    writes: Option<Sender<WriteJob>>,
    reads: Option<Sender<ReadJob>>,
    commits: watch::Receiver<u64>,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Opens the file, creating it and its tables if it is new.
    ///
    /// Blocks for a few milliseconds (longer if another process is creating the file just now).
    ///
    /// # Errors
    /// `Denied` if it may not be opened or written, `Corrupt` if it is damaged or no SQLite file,
    /// `Invalid` if it belongs to something else, `Unavailable` if it stays locked.
    pub fn open(path: &Path, spec: &FileSpec, clock: Arc<dyn Clock>) -> Result<Self> {
        let writer = file::open(path, spec, &clock)?;
        let (writes, write_queue) = bounded(QUEUE_MAX);
        let (reads, read_queue) = bounded::<ReadJob>(QUEUE_MAX);
        let (committed, commits) = watch::channel(0);
        let shared_path = Arc::new(path.to_owned());
        let mut threads = Vec::new();
        {
            let (path, clock) = (shared_path.clone(), clock.clone());
            threads.push(file::thread(spec, "write", move || {
                writer::run(&writer, &write_queue, &path, &clock, &committed);
            })?);
        }
        for _ in 0..READERS {
            let connection = file::open_reader(path, spec, &clock)?;
            let queue: Receiver<ReadJob> = read_queue.clone();
            threads.push(file::thread(spec, "read", move || {
                for job in queue {
                    job(&connection);
                }
            })?);
        }
        Ok(Self { path: shared_path, clock, writes: Some(writes), reads: Some(reads), commits, threads })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Rises with every commit of this process: what a reader in the same process waits on.
    #[must_use]
    pub fn commits(&self) -> watch::Receiver<u64> {
        self.commits.clone()
    }

    /// Carries out `work` in a write transaction and answers once it is durable.
    ///
    /// If `work` fails, nothing of it stays. It must not commit or roll back by itself.
    ///
    /// # Errors
    /// What `work` answered; `Unavailable` if it was not begun by `by`; `Unknown` if it was begun and
    /// `by` passed before it was known to be durable.
    ///
    /// # Cancel safety
    /// Dropped after its first poll, the write may still be carried out.
    pub async fn write<T: Send + 'static>(
        &self,
        by: Monotonic,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let stage = Stage::default();
        let job = WriteJob::new(by, stage.clone(), work, answer);
        self.queued(self.writes.as_ref(), job)?;
        match within(&*self.clock, by, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => {
                Err(self.thread_gone(if stage.cancel() { Kind::Unavailable } else { Kind::Unknown }))
            }
            Err(_) if stage.cancel() => {
                Err(Error::unavailable(format!("{}: the write was not begun in time", self.path.display())))
            }
            Err(_) => Err(Error::new(
                Kind::Unknown,
                format!("{}: the write was begun and not confirmed in time", self.path.display()),
            )),
        }
    }

    /// Runs `work` on a connection that sees all that was committed before the call, by any process.
    ///
    /// # Errors
    /// What `work` answered; `Unavailable` if it was not done by `by`.
    ///
    /// # Cancel safety
    /// A read changes nothing; it may be dropped.
    pub async fn read<T: Send + 'static>(
        &self,
        by: Monotonic,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        let clock = self.clock.clone();
        let job: ReadJob = Box::new(move |connection| {
            file::wait_for_locks_until(clock, by);
            // The caller may have gone; then nobody wants the answer.
            let _ = answer.send(work(connection));
        });
        self.queued(self.reads.as_ref(), job)?;
        match within(&*self.clock, by, answered).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(self.thread_gone(Kind::Unavailable)),
            Err(_) => Err(Error::unavailable(format!("{}: not read in time", self.path.display()))),
        }
    }

    fn queued<J>(&self, queue: Option<&Sender<J>>, job: J) -> Result<()> {
        match queue.map(|queue| queue.try_send(job)) {
            Some(Ok(())) => Ok(()),
            Some(Err(TrySendError::Full(_))) => Err(Error::new(
                Kind::Throttled,
                format!("{}: {QUEUE_MAX} calls are waiting already", self.path.display()),
            )),
            Some(Err(TrySendError::Disconnected(_))) | None => Err(self.thread_gone(Kind::Unavailable)),
        }
    }

    fn thread_gone(&self, kind: Kind) -> Error {
        Error::new(kind, format!("{}: its thread has stopped: open it again", self.path.display()))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Closing the queues ends the threads once they are empty.
        self.writes = None;
        self.reads = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has reported itself; there is nothing to add while dropping.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
