//! The limit: SQLite by itself, with the same durability, one read and one write per transaction.

use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tenure_backend::sqlite::PRAGMAS;
use tenure_backend::sqlite::rusqlite::{Connection, params};
use tenure_clock::{Clock, SystemClock, pause_thread};

use crate::Sample;

/// A fresh file with one table, to be written to without any of our code in between.
#[derive(Debug)]
pub(crate) struct RawSqlite {
    directory: TempDir,
    /// Kept open from one measurement to the next, as ours are: closing the last one would take the log
    /// away, and the next writer would have to grow it anew.
    connections: Vec<Connection>,
    measured: u64,
}

impl RawSqlite {
    /// A file in a temporary directory of its own.
    ///
    /// # Errors
    /// If it cannot be created.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let mut raw = Self { directory: tempfile::tempdir()?, connections: Vec::new(), measured: 0 };
        let connection = raw.connect()?;
        connection.execute_batch("CREATE TABLE t(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")?;
        raw.connections.push(connection);
        Ok(raw)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("raw.db")
    }

    fn connect(&self) -> anyhow::Result<Connection> {
        let mut connection = Connection::open(self.path())?;
        connection.execute_batch("PRAGMA journal_mode=WAL")?;
        connection.execute_batch(PRAGMAS)?;
        connection.busy_handler(Some(|_| {
            pause_thread(Duration::from_micros(300));
            true
        }))?;
        Ok(connection)
    }

    /// What raw writers reach with values of that size: the better of one thread and `writers` threads,
    /// so that the limit is not lowered by threads that contend for the file.
    ///
    /// `fresh_keys` makes every write an insert, as a log's are; otherwise each writer changes its own
    /// row over and over, as a lease's owner does.
    ///
    /// # Errors
    /// If SQLite fails.
    pub(crate) fn measure(
        &mut self,
        writers: usize,
        stretch: Duration,
        value_bytes: usize,
        fresh_keys: bool,
    ) -> anyhow::Result<Sample> {
        let alone = self.measure_threads(1, stretch, value_bytes, fresh_keys)?;
        if writers == 1 {
            return Ok(alone);
        }
        let together = self.measure_threads(writers, stretch, value_bytes, fresh_keys)?;
        Ok(if together.ops_per_s > alone.ops_per_s { together } else { alone })
    }

    fn measure_threads(
        &mut self,
        threads: usize,
        stretch: Duration,
        value_bytes: usize,
        fresh_keys: bool,
    ) -> anyhow::Result<Sample> {
        while self.connections.len() < threads {
            self.connections.push(self.connect()?);
        }
        self.measured += 1;
        let turn = self.measured;
        let began = SystemClock.monotonic();
        let ends = began + stretch;
        let latencies = std::thread::scope(|scope| {
            let writing: Vec<_> = self.connections[..threads]
                .iter_mut()
                .enumerate()
                .map(|(writer, connection)| {
                    scope.spawn(move || -> anyhow::Result<Vec<u64>> {
                        let mut value = vec![b'x'; value_bytes.max(8)];
                        let mut latencies = Vec::new();
                        let mut before = SystemClock.monotonic();
                        while before < ends {
                            let count = if fresh_keys { latencies.len() } else { 0 };
                            let key = format!("{turn}-{writer}-{count}");
                            // SQLite skips the write of a value that is there already.
                            value[..8].copy_from_slice(&(latencies.len() as u64).to_be_bytes());
                            connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
                            let mut read = connection.prepare_cached("SELECT v FROM t WHERE k = ?1")?;
                            let _ = read
                                .query_map(params![key.as_bytes()], |row| row.get::<_, Vec<u8>>(0))?
                                .next();
                            drop(read);
                            connection
                                .prepare_cached("INSERT OR REPLACE INTO t VALUES (?1, ?2)")?
                                .execute(params![key.as_bytes(), value])?;
                            connection.prepare_cached("COMMIT")?.execute([])?;
                            let after = SystemClock.monotonic();
                            latencies.push(u64::try_from(after.since(before).as_nanos()).unwrap_or(u64::MAX));
                            before = after;
                        }
                        Ok(latencies)
                    })
                })
                .collect();
            let mut all = Vec::new();
            for thread in writing {
                match thread.join() {
                    Ok(latencies) => all.extend(latencies?),
                    Err(_) => anyhow::bail!("a raw writer panicked"),
                }
            }
            anyhow::Ok(all)
        })?;
        Ok(Sample::of(latencies, SystemClock.monotonic().since(began)))
    }
}
