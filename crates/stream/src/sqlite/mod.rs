//! The stream in a SQLite file: the embedded default. Several processes may put and read at once.
//!
//! - [`tables`] is what is stored, and the statements on it.
//! - [`appending`] puts records; [`trimming`] drops what is older or more than what is kept.
//!
//! Records of all shards stand in one table in the order of one counter, so the newest record says
//! what the next one's number, date and place in the byte count are: a put reads one row and writes
//! one row. What was acknowledged is on the disk (WAL, `synchronous=FULL`).

mod appending;
mod reading;
mod tables;
mod trimming;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::sqlite::rusqlite::{self, Connection};
use tenure_backend::sqlite::{Engine, failure};
use tenure_backend::{Env, Error, Result};
use tenure_clock::{Clock, Entropy, Monotonic, WallTime, within};

use self::tables::{Head, Tables};
use self::trimming::Pace;
use crate::embedded::{self, READ_POLL, Retention};
use crate::limits::{Limits, check_name, check_read_limit};
use crate::lineage::{Change, Lineage};
use crate::stream::{Description, Page, PageToken, ShardPage, Stream, StreamSpec};
use crate::{Cursor, HashKey, Position, Put, Read, Record, ShardId};

/// How many bytes a stream keeps unless told otherwise.
const RETENTION_BYTES: u64 = 4 << 30;

/// A stream in a file. Opening is cheap to share: clone the `Arc` around it.
pub struct Sqlite {
    name: Arc<str>,
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    retention: Retention,
}

/// What the calls of one handle share with the threads that carry them out.
struct Shared {
    name: Arc<str>,
    path: PathBuf,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    /// The shards as last seen, with the mark of that state. Never trusted without comparing the mark.
    seen: Mutex<Option<Arc<Seen>>>,
    pace: Mutex<Pace>,
}

/// The shards of the stream with this id while its mark is `generation`.
struct Seen {
    id: i64,
    generation: i64,
    lineage: Lineage,
    tables: Tables,
}

impl Sqlite {
    /// Opens the file at `path` and takes the stream `name` in it, which need not exist yet.
    ///
    /// Blocks for a few milliseconds.
    ///
    /// # Errors
    /// `Invalid` if the name is, or the file belongs to something else; `Denied` if it may not be
    /// written; `Corrupt` if it is damaged.
    pub fn open(path: &Path, name: &str, env: &Env) -> Result<Self> {
        Self::open_on(path, name, env, None)
    }

    /// As [`Sqlite::open`], through the SQLite VFS of this name: a test's failing disk.
    #[doc(hidden)]
    pub fn open_on(path: &Path, name: &str, env: &Env, vfs: Option<String>) -> Result<Self> {
        check_name(name)?;
        let engine = Engine::open(path, &tables::file_spec(vfs), env.clock.clone())?;
        let shared = Shared {
            name: name.into(),
            path: path.to_owned(),
            clock: env.clock.clone(),
            entropy: env.entropy.fork(),
            seen: Mutex::default(),
            pace: Mutex::default(),
        };
        Ok(Self {
            name: name.into(),
            engine: Arc::new(engine),
            shared: Arc::new(shared),
            retention: Retention { age: embedded::RETENTION_AGE, bytes: RETENTION_BYTES },
        })
    }

    /// Sets what a stream created through this handle keeps if its specification does not say.
    ///
    /// # Errors
    /// `Invalid` if nothing would be kept.
    pub fn with_retention(mut self, age: Option<Duration>, bytes: Option<u64>) -> Result<Self> {
        self.retention = self.retention.changed(age, bytes)?;
        Ok(self)
    }

    async fn look<T: Send + 'static>(
        &self,
        by: Monotonic,
        look: impl FnOnce(&Work<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        self.engine
            .read(by, move |connection| {
                let work = Work { shared: &shared, connection };
                // One snapshot for all statements: what is trimmed or closed between them would
                // otherwise look like records that never were.
                work.sql(connection.prepare_cached("BEGIN").and_then(|mut begin| begin.execute([])))?;
                let found = look(&work);
                // Nothing was changed; a failure to end it would show at the next BEGIN.
                let _ = connection.prepare_cached("COMMIT").and_then(|mut commit| commit.execute([]));
                found
            })
            .await
    }

    async fn change<T: Send + 'static>(
        &self,
        by: Monotonic,
        change: impl FnOnce(&Work<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = self.shared.clone();
        self.engine.write(by, move |connection| change(&Work { shared: &shared, connection })).await
    }

    async fn reshape(
        &self,
        by: Monotonic,
        reshape: impl FnOnce(&mut Lineage, Change<'_>) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.change(by, move |work| {
            let head = work.head()?;
            let seen = work.seen(&head)?;
            let newest = work.newest(&head, &seen.tables)?;
            let mut counter = newest.sequence;
            let mut lineage = seen.lineage.clone();
            reshape(&mut lineage, Change { counter: &mut counter, now: work.now().max(newest.arrived) })?;
            if counter != newest.sequence {
                work.store_reshaped(&head, &seen.lineage, &lineage, counter)?;
            }
            Ok(())
        })
        .await
    }
}

#[async_trait]
impl Stream for Sqlite {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        embedded::check_spec(spec)?;
        let (spec, retention) = (*spec, self.retention.for_spec(spec));
        self.change(by, move |work| {
            if work.find_head()?.is_none() {
                work.create(&spec, retention)?;
            }
            work.describe()
        })
        .await
    }

    async fn describe(&self, by: Monotonic) -> Result<Description> {
        self.look(by, |work| work.describe()).await
    }

    async fn limits(&self, by: Monotonic) -> Result<Limits> {
        self.look(by, |work| Ok(work.head()?.limits)).await
    }

    async fn shards(&self, by: Monotonic, page: &Page) -> Result<ShardPage> {
        let (after, size) = (embedded::page_start(page)?, page.size_within_bounds());
        self.look(by, move |work| {
            let mut entries = work.entries(work.head()?.id, after, size + 1)?;
            let more = entries.len() > size;
            entries.truncate(size);
            let next = entries.last().filter(|_| more).map(|last| PageToken(last.number.to_string()));
            Ok(ShardPage { shards: entries.iter().map(|entry| entry.shard()).collect(), next })
        })
        .await
    }

    async fn put(&self, by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        // Hashed here: the writing thread is the one that everybody waits for.
        let records: Vec<_> = records.iter().map(|record| (record.hash_key(), record.clone())).collect();
        self.change(by, move |work| appending::put(work, &records)).await
    }

    async fn cursor(&self, by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        let (shard, position) = (shard.clone(), position.clone());
        self.look(by, move |work| reading::cursor(work, shard, &position)).await
    }

    async fn read(&self, by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        check_read_limit(limit)?;
        let cursor = cursor.clone();
        let (read, overdue) = self
            .look(by, move |work| Ok((reading::read(work, &cursor, limit)?, trimming::overdue(work)?)))
            .await?;
        if overdue {
            // Nobody may be writing, and what is too old goes all the same. The reader does not wait.
            let (engine, shared) = (self.engine.clone(), self.shared.clone());
            let by = shared.clock.deadline(trimming::PATIENCE);
            tokio::spawn(async move {
                let trimmed = engine
                    .write(by, move |connection| trimming::step(&Work { shared: &shared, connection }))
                    .await;
                if let Err(error) = trimmed {
                    tracing::debug!(error = %error.chain(), "trimming was put off");
                }
            });
        }
        Ok(read)
    }

    async fn split(&self, by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        let shard = shard.clone();
        self.reshape(by, move |lineage, change| lineage.split(&shard, at, change)).await
    }

    async fn merge(&self, by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        let (shard, adjacent) = (shard.clone(), adjacent.clone());
        self.reshape(by, move |lineage, change| lineage.merge(&shard, &adjacent, change)).await
    }

    async fn rescale(&self, by: Monotonic, shards: u32) -> Result<()> {
        self.reshape(by, move |lineage, change| lineage.rescale(shards, change)).await
    }

    async fn delete(&self, by: Monotonic) -> Result<()> {
        self.change(by, |work| match work.find_head()? {
            Some(head) => work.delete(&head),
            None => Ok(()),
        })
        .await
    }

    async fn wait(&self, by: Monotonic) {
        let mut commits = self.engine.commits();
        commits.mark_unchanged();
        let poll = self.shared.clock.deadline(READ_POLL).min(by);
        let _ = within(&*self.shared.clock, poll, commits.changed()).await;
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sqlite")
            .field("name", &self.name)
            .field("path", &self.shared.path)
            .finish_non_exhaustive()
    }
}

/// One piece of work on a connection.
struct Work<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
}

impl Work<'_> {
    fn sql<T>(&self, result: rusqlite::Result<T>) -> Result<T> {
        result.map_err(|error| failure(&self.shared.path, &error))
    }

    fn now(&self) -> WallTime {
        self.shared.clock.wall()
    }

    fn head(&self) -> Result<Head> {
        self.find_head()?
            .ok_or_else(|| embedded::no_stream(&self.shared.name, &self.shared.path.display().to_string()))
    }

    /// The shards, from memory if nobody has changed them since.
    fn seen(&self, head: &Head) -> Result<Arc<Seen>> {
        let mut kept = self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) =
            kept.as_ref().filter(|seen| (seen.id, seen.generation) == (head.id, head.generation))
        {
            return Ok(seen.clone());
        }
        let entries = self.entries(head.id, None, usize::MAX)?;
        let lineage = Lineage::restored(entries.into_iter(), head.next_shard);
        if lineage.open_count() == 0 {
            return Err(Error::new(
                tenure_backend::Kind::Corrupt,
                format!("{}: stream `{}` has no open shard", self.shared.path.display(), self.shared.name),
            ));
        }
        let tables = Tables::of(head.id);
        let seen = Arc::new(Seen { id: head.id, generation: head.generation, lineage, tables });
        *kept = Some(seen.clone());
        Ok(seen)
    }

    fn describe(&self) -> Result<Description> {
        let head = self.head()?;
        Ok(Description {
            name: self.shared.name.to_string(),
            open_shards: self.open_shards(head.id)?,
            retention_age: head.retention.age,
            retention_bytes: Some(head.retention.bytes),
            limits: head.limits,
        })
    }
}
