//! The writing thread: takes what is queued and commits it together.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crossbeam_channel::{Receiver, RecvError, TryRecvError};
use rusqlite::Connection;
use tenure_clock::{Clock, Monotonic};
use tokio::sync::{oneshot, watch};

use super::file::{failure, wait_for_locks_until};
use crate::{Error, Kind, Result};

/// Most writes in one commit. Bounds how long the file stays locked for other processes.
const GROUP_MAX: usize = 512;

/// How often the queue is looked at before the thread goes to sleep: some tenths of a millisecond, longer
/// than a task takes to be woken and to write again, and far too short to show as load. Between two looks
/// the core is offered to others: the task that will write next may need it to wake up. Counted, not timed:
/// a clock that stands still must not keep the thread awake.
const LOOKS_MAX: usize = 1000;

/// Who looked in vain goes to sleep at once so many times, before it looks again: writes that come from
/// somewhere else, a few in each millisecond, would otherwise keep half a core awake.
const VAIN_ROUNDS: u32 = 8;

/// Whether a job was begun, or given up before that: the difference between `Unknown` and
/// `Unavailable` for a caller whose time is over.
#[derive(Debug, Clone, Default)]
pub(super) struct Stage(Arc<AtomicU8>);

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;

impl Stage {
    /// True if the job will never run.
    pub(super) fn cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn begin(&self) -> bool {
        self.0.compare_exchange(QUEUED, BEGUN, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// Tells the caller how the commit that its work was part of went.
type Conclude = Box<dyn FnOnce(Result<()>)>;

type Run = Box<dyn FnOnce(Result<&Connection>) -> Ran + Send>;

struct Ran {
    failed: bool,
    conclude: Conclude,
}

/// One piece of work and whoever waits for it.
pub(super) struct WriteJob {
    by: Monotonic,
    stage: Stage,
    run: Run,
}

impl WriteJob {
    pub(super) fn new<T: Send + 'static>(
        by: Monotonic,
        stage: Stage,
        work: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
        answer: oneshot::Sender<Result<T>>,
    ) -> Self {
        let run: Run = Box::new(move |connection| {
            let result = connection.and_then(work);
            let failed = result.is_err();
            let conclude: Conclude = Box::new(move |committed| {
                // The caller may have gone; then nobody wants the answer.
                let _ = answer.send(match committed {
                    Ok(()) => result,
                    // What failed by itself failed for its own reason.
                    Err(error) => result.and(Err(error)),
                });
            });
            Ran { failed, conclude }
        });
        Self { by, stage, run }
    }

    /// Answers without having run.
    fn refuse(self, error: Error) {
        (self.run)(Err(error)).conclude_with(Ok(()));
    }
}

impl Ran {
    fn conclude_with(self, committed: Result<()>) {
        (self.conclude)(committed);
    }
}

/// Serves the queue until its other end is dropped.
pub(super) fn run(
    connection: &Connection,
    queue: &Receiver<WriteJob>,
    path: &Path,
    clock: &Arc<dyn Clock>,
    committed: &watch::Sender<u64>,
) {
    let mut asleep = 0;
    while let Ok(first) = next(queue, &mut asleep) {
        let group = std::iter::once(first).chain(queue.try_iter()).take(GROUP_MAX).collect();
        commit_together(connection, group, path, clock);
        committed.send_modify(|commits| *commits += 1);
    }
}

/// The next job, however long it takes to come.
///
/// A writer that was just answered sends its next write within microseconds. Waiting for it awake
/// saves putting this thread to sleep and waking it, which costs a good part of an fsync. `asleep` counts the
/// rounds that it sleeps through because the last look was in vain.
fn next(queue: &Receiver<WriteJob>, asleep: &mut u32) -> Result<WriteJob, RecvError> {
    let looks = if *asleep == 0 { LOOKS_MAX } else { 1 };
    for _ in 0..looks {
        match queue.try_recv() {
            Ok(job) => {
                *asleep = asleep.saturating_sub(1);
                return Ok(job);
            }
            Err(TryRecvError::Disconnected) => return Err(RecvError),
            Err(TryRecvError::Empty) => std::thread::yield_now(),
        }
    }
    *asleep = asleep.checked_sub(1).unwrap_or(VAIN_ROUNDS);
    queue.recv()
}

fn commit_together(connection: &Connection, group: Vec<WriteJob>, path: &Path, clock: &Arc<dyn Clock>) {
    let now = clock.monotonic();
    let (group, late): (Vec<_>, Vec<_>) = group.into_iter().partition(|job| job.by > now);
    for job in late {
        job.refuse(Error::unavailable(format!("{}: the write was not begun in time", path.display())));
    }
    let Some(patience) = group.iter().map(|job| job.by).max() else { return };
    wait_for_locks_until(clock.clone(), patience);
    let begun = connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut begin| begin.execute([]));
    if let Err(error) = begun {
        for job in group {
            job.refuse(failure(path, &error));
        }
        return;
    }

    let alone = group.len() == 1;
    let mut ran = Vec::with_capacity(group.len());
    for job in group {
        if connection.is_autocommit() {
            // SQLite gave up the whole transaction (disk full, I/O error): nothing of it stays.
            job.refuse(Lost::rolled_back().error(path));
        } else if job.stage.begin() {
            ran.push(run_one(connection, job.run, alone));
        }
    }
    let committed =
        if connection.is_autocommit() { Err(Lost::rolled_back()) } else { commit(connection, path) };
    for outcome in ran {
        outcome.conclude_with(match &committed {
            Ok(()) => Ok(()),
            Err(lost) => Err(lost.error(path)),
        });
    }
}

fn commit(connection: &Connection, path: &Path) -> Result<(), Lost> {
    let Err(error) = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([])) else {
        return Ok(());
    };
    // The rollback of a commit that failed may fail too; the next BEGIN would then say so.
    let _ = connection.execute_batch("ROLLBACK");
    // After an I/O error the commit may stand in the log, unseen by readers, and come to life in a
    // recovery. Another commit takes its place in the log; only if that fails too is it unknown.
    let unknown = error.sqlite_error_code() == Some(rusqlite::ErrorCode::SystemIoFailure)
        && overwrite_log_tail(connection).is_err();
    Err(Lost { unknown, why: failure(path, &error).chain() })
}

/// Commits something that changes nothing but takes a place in the log.
fn overwrite_log_tail(connection: &Connection) -> rusqlite::Result<()> {
    let format: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    connection.pragma_update(None, "user_version", format)
}

/// Runs one job so that its failure leaves the others' work and nothing of its own.
fn run_one(connection: &Connection, run: Run, alone: bool) -> Ran {
    let statement =
        |sql| connection.prepare_cached(sql).and_then(|mut statement| statement.execute([])).map(drop);
    let begun = if alone { Ok(()) } else { statement("SAVEPOINT one") };
    let ran = run(Ok(connection));
    if connection.is_autocommit() {
        return ran;
    }
    let ended = begun.and_then(|()| match (alone, ran.failed) {
        (true, false) => Ok(()),
        (true, true) => statement("ROLLBACK").and_then(|()| statement("BEGIN IMMEDIATE")),
        (false, false) => statement("RELEASE one"),
        (false, true) => statement("ROLLBACK TO one").and_then(|()| statement("RELEASE one")),
    });
    if ended.is_err() && !connection.is_autocommit() {
        // What this job left behind cannot be told from the others' work: all of it goes.
        let _ = statement("ROLLBACK");
    }
    ran
}

/// Why a commit did not happen, to be told to each of those who were in it.
struct Lost {
    unknown: bool,
    why: String,
}

impl Lost {
    fn rolled_back() -> Self {
        Self { unknown: false, why: "the transaction was rolled back: is the disk full?".into() }
    }

    fn error(&self, path: &Path) -> Error {
        let kind = if self.unknown { Kind::Unknown } else { Kind::Unavailable };
        Error::new(kind, format!("commit {}", path.display())).because(self.why.clone())
    }
}
