//! Opening a file so that several processes can share it, and telling what is wrong with it.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use tenure_clock::{Clock, Monotonic, pause_thread};

use crate::{Error, Kind, Result};

/// The settings of every connection. The benchmarks' raw limit uses the same.
///
/// `synchronous=FULL` syncs the log at every commit. The size limit keeps a log that once grew
/// under a long reader from staying large for ever.
pub const PRAGMAS: &str = "PRAGMA synchronous=FULL; PRAGMA foreign_keys=OFF; PRAGMA temp_store=MEMORY; \
     PRAGMA journal_size_limit=67108864;";

/// How long opening waits for another process that is creating the file.
const OPEN_PATIENCE: Duration = Duration::from_secs(10);

/// How often a lock held by another process is tried again. A commit takes about one fsync, so
/// waiting much longer would leave the file idle; much shorter would only burn the core.
const LOCK_POLL: Duration = Duration::from_micros(300);

/// What a file of ours looks like.
#[derive(Debug, Clone)]
pub struct FileSpec {
    /// What it holds, as a word for messages and thread names.
    pub role: &'static str,
    /// SQLite's `application_id`: tells our files from others'.
    pub application_id: i32,
    /// SQLite's `user_version`: the format of our tables.
    pub format: i32,
    /// Creates the tables of that format in a new file.
    pub schema: &'static str,
    /// The SQLite VFS to go through; the default one if absent. Tests put a failing disk here.
    pub vfs: Option<String>,
}

pub(super) fn open(path: &Path, spec: &FileSpec, clock: &Arc<dyn Clock>) -> Result<Connection> {
    wait_for_locks_until(clock.clone(), clock.deadline(OPEN_PATIENCE));
    let connection = connect(path, spec)?;
    let prepared = prepare(&connection, spec, &**clock);
    prepared.map_err(|error| match error {
        NotOurs::Sqlite(error) => failure(path, &error),
        NotOurs::Other(found) => Error::invalid(format!(
            "{} is a SQLite file but no Tenure {} ({found}): name another file",
            path.display(),
            spec.role
        )),
    })?;
    Ok(connection)
}

pub(super) fn open_reader(path: &Path, spec: &FileSpec, clock: &Arc<dyn Clock>) -> Result<Connection> {
    wait_for_locks_until(clock.clone(), clock.deadline(OPEN_PATIENCE));
    let connection = connect(path, spec)?;
    connection.execute_batch("PRAGMA query_only=ON").map_err(|error| failure(path, &error))?;
    Ok(connection)
}

pub(super) fn thread(
    spec: &FileSpec,
    task: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("{}-{task}", spec.role))
        .spawn(body)
        .map_err(|error| Error::unavailable("start a thread").because(error))
}

pub(super) fn connect(path: &Path, spec: &FileSpec) -> Result<Connection> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match &spec.vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs.as_str()),
        None => Connection::open_with_flags(path, flags),
    };
    let mut connection = opened.map_err(|error| failure(path, &error))?;
    connection.busy_handler(Some(wait_for_lock)).map_err(|error| failure(path, &error))?;
    connection.set_prepared_statement_cache_capacity(128);
    connection.execute_batch(PRAGMAS).map_err(|error| failure(path, &error))?;
    Ok(connection)
}

pub(super) enum NotOurs {
    Sqlite(rusqlite::Error),
    Other(String),
}

impl From<rusqlite::Error> for NotOurs {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// Switches to WAL and creates the tables, once, whoever comes first.
fn prepare(connection: &Connection, spec: &FileSpec, clock: &dyn Clock) -> Result<(), NotOurs> {
    // Looked at before anything is changed, so that a file of somebody else stays as it is.
    look(connection, spec)?;
    // The change of journal mode does not wait for locks by itself.
    let deadline = clock.deadline(OPEN_PATIENCE);
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error) if is_busy(&error) && clock.monotonic() < deadline => pause_thread(LOCK_POLL),
            other => break other?,
        }
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let created = (|| {
        refuse_foreign(connection, spec)?;
        if pragma(connection, "user_version")? == 0 {
            connection.execute_batch(spec.schema)?;
            connection.pragma_update(None, "application_id", spec.application_id)?;
            connection.pragma_update(None, "user_version", spec.format)?;
        }
        Ok(())
    })();
    connection.execute_batch(if created.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    created
}

/// Refuses a file of somebody else, by what is there in one moment: one that another process creates meanwhile would
/// look like that.
pub(super) fn look(connection: &Connection, spec: &FileSpec) -> Result<(), NotOurs> {
    connection.execute_batch("BEGIN")?;
    let looked = refuse_foreign(connection, spec);
    connection.execute_batch("ROLLBACK")?;
    looked
}

fn refuse_foreign(connection: &Connection, spec: &FileSpec) -> Result<(), NotOurs> {
    let (application_id, format) =
        (pragma(connection, "application_id")?, pragma(connection, "user_version")?);
    let tables: i32 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application_id == spec.application_id && format == spec.format {
        return Ok(());
    }
    if application_id == spec.application_id {
        return Err(NotOurs::Other(format!("its format is {format}, this version reads {}", spec.format)));
    }
    if application_id == 0 && format == 0 && tables == 0 {
        return Ok(());
    }
    Err(NotOurs::Other(format!("application id {application_id:#x}, {tables} tables and indexes")))
}

fn pragma(connection: &Connection, name: &str) -> rusqlite::Result<i32> {
    connection.pragma_query_value(None, name, |row| row.get(0))
}

fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// What a SQLite error means for the caller.
#[must_use]
pub fn failure(path: &Path, error: &rusqlite::Error) -> Error {
    let shown = path.display();
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Kind::Unavailable, format!("{shown} stayed locked by another process until the deadline"))
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => (
            Kind::Corrupt,
            format!(
                "{shown} is damaged or not a SQLite file: restore it from a backup, or name another file"
            ),
        ),
        Some(ErrorCode::ReadOnly) => {
            (Kind::Denied, format!("{shown} is read-only: let this user write the file and its directory"))
        }
        Some(ErrorCode::CannotOpen) => (
            Kind::Denied,
            format!("cannot open {shown}: does its directory exist, and may this user write there?"),
        ),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (Kind::Denied, format!("no permission for {shown}: let this user write it"))
        }
        Some(ErrorCode::DiskFull) => {
            (Kind::Unavailable, format!("the disk of {shown} is full: free space; nothing was written"))
        }
        Some(
            ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::SchemaChanged
            | ErrorCode::OperationInterrupted
            | ErrorCode::OperationAborted,
        ) => (Kind::Unavailable, format!("{shown} could not be used just now: try again")),
        Some(ErrorCode::TooBig) => {
            (Kind::Invalid, format!("a value is too long for {shown}: keep large data elsewhere"))
        }
        Some(ErrorCode::SystemIoFailure) => {
            (Kind::Unavailable, format!("the disk of {shown} reports an I/O error: check the disk"))
        }
        _ => (Kind::Corrupt, format!("{shown} does not have the tables it should: was it changed by hand?")),
    };
    Error::new(kind, message).because(error.to_string())
}

thread_local! {
    /// Until when this thread waits for another process's lock. SQLite's callback carries no state.
    static PATIENCE: RefCell<Option<(Arc<dyn Clock>, Monotonic)>> = const { RefCell::new(None) };
}

/// Sets how long statements of this thread wait for a lock from now on.
pub(super) fn wait_for_locks_until(clock: Arc<dyn Clock>, deadline: Monotonic) {
    PATIENCE.with_borrow_mut(|patience| *patience = Some((clock, deadline)));
}

fn wait_for_lock(_attempts: i32) -> bool {
    PATIENCE.with_borrow(|patience| {
        let Some((clock, deadline)) = patience else { return false };
        if clock.monotonic() >= *deadline {
            return false;
        }
        pause_thread(LOCK_POLL);
        true
    })
}
