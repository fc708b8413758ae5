//! Rows in a Postgres database: one SQL table per table, shared by all who reach the server.
//!
//! A write is one transaction of two round trips. What is pipelined stands on one line:
//!
//! ```text
//!   BEGIN · lock the keys · read the rows FOR UPDATE · read the catalog's versions
//!            decide here, by the one meaning of conditions and updates
//!   insert, update or delete · COMMIT
//! ```
//!
//! Keys are locked by number (`pg_advisory_xact_lock`), so that a row which is not there is locked
//! too, and in the order of the numbers, so that two transactions never wait for each other. Every
//! row that is read is locked, which makes transactions serialisable without the server's own
//! SERIALIZABLE and its retries.
//!
//! Rows carry columns for the table's indexes. A writer that does not know of a new one would leave
//! them out; it reads the table's version after it has the row, and begins again if it is not the
//! one it knows. Adding an index locks the table, so none can be added after that look.
//!
//! Invariant PG-1: after COMMIT was sent, an error is `Unknown` unless the server answered with one.

mod catalog;
mod failure;
mod pool;
mod settings;
mod sql;
mod survey;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Address, Env, Error, Result};
use tenure_clock::{Clock, Entropy, Monotonic};
use tokio_postgres::types::ToSql;

use self::catalog::Known;
use self::failure::{Failure, is_answer, told};
use self::pool::{Lease, Pool, Progress, Step, lost_in_commit, pipelined};
use self::settings::Settings;
use self::sql::{LOCK_KEYS, Place, SchemaSql, StoredRow};
pub use self::survey::{Survey, survey};
use crate::codec::item_from_text;
use crate::item::{Item, Key};
use crate::table::{IndexSpec, Projection, SortedKey, TableSpec};
use crate::ttl::Sweeping;
use crate::write::{Effect, Refusal, Write, Written, refuse_same_row, validate_transaction};
use crate::{Cursor, Listing, Page, Query, Store, no_such_table};

/// How often a write begins again because others were in the way. Locks are taken in order, so
/// only strangers in the database, or a table that just changed, can cause it at all.
const ATTEMPTS_MAX: u32 = 10;
/// Longest pause before a write begins again.
const AGAIN_AFTER_MAX: Duration = Duration::from_millis(20);
/// How long a sweep may take; it is nobody's call, so nobody's deadline bounds it.
const SWEEP_TIME_MAX: Duration = Duration::from_secs(10);

/// Rows in a Postgres database.
pub struct Postgres {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Arc<Pool>,
    schema: SchemaSql,
    clock: Arc<dyn Clock>,
    entropy: Entropy,
    sweeping: Sweeping,
    sweep_is_running: AtomicBool,
    /// Tables as of the catalog version they were read at.
    known: Mutex<BTreeMap<String, Arc<Known>>>,
}

/// What an attempt at a write came to.
enum Attempt {
    Done(Written),
    /// Something was in the way; the error is for when it stays there.
    Again(Error),
}

/// One write of a transaction, and where its row is.
struct Target<'a> {
    write: &'a Write,
    known: Arc<Known>,
    place: Place,
}

impl Postgres {
    /// Takes a `postgres://user:password@host:port/database` address. No connection is made yet.
    ///
    /// | option | default | |
    /// |---|---|---|
    /// | `schema` | `tenure` | where the tables are; created if it is not there |
    /// | `sslmode` | `disable` on this machine, else `verify-full` | as libpq's |
    /// | `sslrootcert` | `system` | a PEM file of the authorities that sign the server's certificate |
    /// | `connections` | 8 | most connections at once |
    /// | `sweep_seconds` | 60 | how often expired rows are looked for |
    ///
    /// and those of libpq that the driver knows, such as `host`, `application_name` or
    /// `connect_timeout`. Without a password in the address, `PGPASSWORD` is used.
    ///
    /// # Errors
    /// `Invalid` for a wrong address or option, and for certificates that do not read.
    #[allow(clippy::unused_async, reason = "opening a backend is async for all of them")]
    pub async fn from_address(address: &mut Address, env: &Env) -> Result<Self> {
        let settings = Settings::from_address(address, std::env::var("PGPASSWORD").ok())?;
        let inner = Inner {
            schema: SchemaSql::new(&settings.schema),
            sweeping: Sweeping::every(settings.sweep_interval, &*env.clock),
            pool: Arc::new(Pool::new(settings, env.clock.clone())),
            clock: env.clock.clone(),
            entropy: env.entropy.fork(),
            sweep_is_running: AtomicBool::new(false),
            known: Mutex::new(BTreeMap::new()),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    async fn write_all(&self, by: Monotonic, writes: &[Write]) -> Result<Written> {
        let progress = Progress::default();
        let inner = &self.inner;
        let written = inner.pool.in_time(by, &progress, Box::pin(inner.apply(by, writes, &progress))).await?;
        if written.is_applied() && inner.sweeping.due(&*inner.clock) {
            inner.clone().sweep_aside();
        }
        Ok(written)
    }
}

/// Where it leads; never a password.
impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Postgres({}, schema {})", self.inner.place(), self.inner.schema.name)
    }
}

#[async_trait]
impl Store for Postgres {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        spec.validate()?;
        let progress = Progress::default();
        let inner = &self.inner;
        inner.pool.in_time(by, &progress, Box::pin(inner.ensure(by, spec, &progress))).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        let progress = Progress::default();
        let inner = &self.inner;
        let found = inner.pool.in_time(by, &progress, Box::pin(inner.look_up(by, table, &progress))).await?;
        Ok(found.map(|known| known.spec.clone()))
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let ask = |known: &Known| {
            known.spec.check_key(key)?;
            let place = Place::of(SortedKey::of(&known.spec, key));
            Ok(Question { text: known.sql.get.clone(), params: vec![Box::new(place.h), Box::new(place.r)] })
        };
        let (_, mut items) = self.inner.asked(by, table, None, ask).await?;
        Ok(items.pop())
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        write.validate()?;
        self.write_all(by, std::slice::from_ref(write)).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        validate_transaction(writes, nonce)?;
        let written = self.write_all(by, writes).await?;
        Ok(if written.is_applied() { Written::Applied(Item::new()) } else { written })
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        query.page.validate()?;
        let index = query.index.as_deref();
        let (known, mut items) = self.inner.asked(by, table, index, |known| known.listed(query)).await?;
        let index = index.map(|name| known.spec.index(name)).transpose()?;
        let more = items.len() > query.page.limit;
        items.truncate(query.page.limit);
        let cursor = |item: &Item| Cursor(known.spec.cursor_of(item, index));
        let next = if more { items.last().map(cursor) } else { None };
        if let Some(IndexSpec { projection: Projection::KeysOnly, .. }) = index {
            items = items.iter().map(|item| known.spec.cursor_of(item, index)).collect();
        }
        Ok(Listing { items, next })
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        page.validate()?;
        let (known, mut items) = self.inner.asked(by, table, None, |known| Ok(known.scanned(page))).await?;
        let more = items.len() > page.limit;
        items.truncate(page.limit);
        let next =
            if more { items.last().map(|item| Cursor(known.spec.cursor_of(item, None))) } else { None };
        Ok(Listing { items, next })
    }
}

/// A statement that reads items, and its parameters.
struct Question {
    text: String,
    params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Question {
    /// At most one row more than the page: it tells whether there is another page.
    fn page(text: String, page: &Page, parts: Vec<Vec<u8>>) -> Self {
        let limit = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
        let mut params: Vec<Box<dyn ToSql + Sync + Send>> = vec![Box::new(limit)];
        params.extend(parts.into_iter().map(|part| Box::new(part) as _));
        Self { text, params }
    }
}

impl Known {
    fn cursor_place(&self, cursor: &Cursor) -> Place {
        Place::of(SortedKey::of(&self.spec, &Key::from_item(cursor.0.clone())))
    }

    fn scanned(&self, page: &Page) -> Question {
        let after = page.after.as_ref().map(|cursor| self.cursor_place(cursor));
        let text = self.sql.scan(after.is_some());
        Question::page(text, page, after.map_or_else(Vec::new, |place| vec![place.h, place.r]))
    }

    fn listed(&self, query: &Query) -> Result<Question> {
        let mut parts = vec![Place::hash_of(self.spec.partition_of(query)?)];
        let after = query.page.after.as_ref();
        let text = match &query.index {
            None => {
                parts.extend(after.map(|cursor| self.cursor_place(cursor).r));
                self.sql.partition(after.is_some())
            }
            Some(name) => {
                let index = self.spec.index(name)?;
                let number = self.spec.indexes.iter().position(|found| found.name == *name).unwrap_or(0);
                if let Some(cursor) = after {
                    let indexed = SortedKey::in_index(index, &cursor.0).map(|key| Place::of(key).r);
                    let place = self.cursor_place(cursor);
                    parts.extend([indexed.unwrap_or_default(), place.h, place.r]);
                }
                self.sql.by_index(number, after.is_some())
            }
        };
        Ok(Question::page(text, &query.page, parts))
    }
}

impl Inner {
    fn place(&self) -> &str {
        &self.pool.settings().place
    }

    fn lock_known(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn told(&self, failure: Failure) -> Error {
        failure.told(self.place())
    }

    /// Asks a table for items. A table, or an `index` of it, that is not as we knew it is looked up
    /// once more.
    async fn asked(
        &self,
        by: Monotonic,
        table: &str,
        index: Option<&str>,
        ask: impl Fn(&Known) -> Result<Question> + Send + Sync,
    ) -> Result<(Arc<Known>, Vec<Item>)> {
        let progress = Progress::default();
        let work = async {
            let mut known = self.table(by, table, &progress).await?;
            if index.is_some_and(|name| known.spec.index(name).is_err()) {
                known = self.look_up(by, table, &progress).await?.ok_or_else(|| no_such_table(table))?;
            }
            let rows = match self.ask(by, &ask(&known)?, &progress).await {
                Err(failure) if failure.is_missing_relation() => {
                    known = self.look_up(by, table, &progress).await?.ok_or_else(|| no_such_table(table))?;
                    self.ask(by, &ask(&known)?, &progress).await
                }
                answer => answer,
            };
            let rows = rows.map_err(|failure| self.told(failure))?;
            let texts = rows.iter().map(|row| row.try_get::<_, &str>(0));
            let items = texts.map(|text| item_from_text(text.map_err(|error| told(self.place(), &error))?));
            Ok((known, items.collect::<Result<_>>()?))
        };
        self.pool.in_time(by, &progress, Box::pin(work)).await
    }

    async fn ask(
        &self,
        by: Monotonic,
        question: &Question,
        progress: &Progress,
    ) -> Result<Vec<tokio_postgres::Row>, Failure> {
        let mut lease = self.pool.lease(progress).await?;
        let params = question.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect();
        match lease.read(by, &question.text, params).await {
            Ok(rows) => {
                lease.give_back();
                Ok(rows)
            }
            Err(failure) => Err(lease.settle(failure)),
        }
    }

    async fn apply(&self, by: Monotonic, writes: &[Write], progress: &Progress) -> Result<Written> {
        let mut attempt = 1;
        loop {
            match self.attempt(by, writes, progress).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Again(error) if attempt == ATTEMPTS_MAX => return Err(error),
                Attempt::Again(error) => {
                    tracing::debug!(error = error.chain(), attempt, "write begins again");
                    attempt += 1;
                    progress.reach(Step::Working);
                    self.clock.sleep(self.entropy.up_to(AGAIN_AFTER_MAX)).await;
                }
            }
        }
    }

    async fn attempt(&self, by: Monotonic, writes: &[Write], progress: &Progress) -> Result<Attempt> {
        let mut targets = Vec::with_capacity(writes.len());
        let mut keys = Vec::with_capacity(writes.len());
        for write in writes {
            let known = self.table(by, write.table(), progress).await?;
            let key = write.key(&known.spec)?;
            let place = Place::of(SortedKey::of(&known.spec, &key));
            keys.push(key);
            targets.push(Target { write, known, place });
        }

        let mut lease = self.pool.lease(progress).await.map_err(|failure| self.told(failure))?;
        let rows = match self.locked_rows(by, &mut lease, &targets).await {
            Ok(Some(rows)) => rows,
            Ok(None) => {
                lease.roll_back();
                self.forget(&targets);
                return Ok(Attempt::Again(Error::unavailable(format!(
                    "{}: the tables are being changed by others",
                    self.place()
                ))));
            }
            Err(failure) => return self.again_or_not(lease.settle(failure), &targets),
        };
        let mut effects = Vec::with_capacity(targets.len());
        for (index, (target, current)) in targets.iter().zip(&rows).enumerate() {
            match target.write.decide(&target.known.spec, current.as_ref()) {
                Ok(Some(effect)) => effects.push(effect),
                Ok(None) => {
                    lease.roll_back();
                    return Ok(Attempt::Done(Written::Refused(Refusal { index, current: current.clone() })));
                }
                Err(error) => {
                    lease.roll_back();
                    return Err(error);
                }
            }
        }
        if let Err(error) = refuse_same_row(&writes.iter().map(Write::table).zip(&keys).collect::<Vec<_>>()) {
            lease.roll_back();
            return Err(error);
        }
        match self.carry_out(lease, progress, &targets, &rows, &effects).await? {
            Some(failure) => self.again_or_not(failure, &targets),
            None => Ok(Attempt::Done(Written::Applied(last_row(effects, rows)))),
        }
    }

    /// The first round trip: all rows, locked until the transaction ends. `None` if a table is not
    /// what we know it to be.
    async fn locked_rows(
        &self,
        by: Monotonic,
        lease: &mut Lease,
        targets: &[Target<'_>],
    ) -> Result<Option<Vec<Option<Item>>>, Failure> {
        let mut texts = vec![LOCK_KEYS, self.schema.versions.as_str()];
        for Target { known, .. } in targets {
            let sql = &known.sql;
            texts.extend([&*sql.get_locked, &*sql.insert, &*sql.update, &*sql.delete]);
        }
        lease.prepare(&texts).await?;

        let tables: BTreeMap<&str, i64> =
            targets.iter().map(|target| (target.write.table(), target.known.version)).collect();
        let names: Vec<&str> = tables.keys().copied().collect();
        let mut locks: Vec<i64> =
            targets.iter().map(|target| self.schema.row_lock(target.write.table(), &target.place)).collect();
        locks.sort_unstable();
        locks.dedup();

        let mut steps = vec![lease.begin(by), lease.step(LOCK_KEYS, vec![&locks])];
        for Target { known, place, .. } in targets {
            steps.push(lease.step(&known.sql.get_locked, vec![&place.h, &place.r]));
        }
        // Last: by now we hold the tables, and they cannot change any more.
        steps.push(lease.step(&self.schema.versions, vec![&names]));

        let mut answers = Vec::with_capacity(steps.len());
        for answer in pipelined(steps).await {
            answers.push(answer?);
        }
        let versions = answers.pop().unwrap_or_default();
        let mut found = BTreeMap::new();
        for row in &versions {
            found.insert(row.try_get::<_, &str>(0)?, row.try_get::<_, i64>(1)?);
        }
        if found != tables {
            return Ok(None);
        }
        let mut rows = Vec::with_capacity(targets.len());
        for answer in &answers[2..] {
            let text = answer.first().map(|row| row.try_get::<_, &str>(0)).transpose()?;
            rows.push(text.map(item_from_text).transpose()?);
        }
        Ok(Some(rows))
    }

    /// The second round trip. `Some` if the server refused, and nothing was changed.
    ///
    /// # Errors
    /// `Unknown` if no answer tells how it ended.
    async fn carry_out(
        &self,
        lease: Lease,
        progress: &Progress,
        targets: &[Target<'_>],
        rows: &[Option<Item>],
        effects: &[Effect],
    ) -> Result<Option<Failure>> {
        let mut changes = Vec::with_capacity(effects.len());
        for ((target, current), effect) in targets.iter().zip(rows).zip(effects) {
            let Target { known, place, .. } = target;
            match effect {
                Effect::Store(item) => {
                    // A plain INSERT: if a stranger put the row there, this fails and begins again.
                    let text = if current.is_some() { &known.sql.update } else { &known.sql.insert };
                    changes.push((text, Some(StoredRow::of(&known.spec, place.clone(), item)), place));
                }
                Effect::Erase if current.is_some() => changes.push((&known.sql.delete, None, place)),
                Effect::Erase | Effect::Keep => {}
            }
        }
        if changes.is_empty() {
            lease.roll_back();
            return Ok(None);
        }
        let mut steps: Vec<_> = changes
            .iter()
            .map(|(text, row, place)| {
                lease.step(
                    text,
                    row.as_ref().map_or_else(|| vec![&place.h as _, &place.r as _], StoredRow::params),
                )
            })
            .collect();
        steps.push(lease.batch("COMMIT".to_owned()));
        progress.reach(Step::Committing);
        // A refused change turns the COMMIT after it into a ROLLBACK, so the first error tells.
        let failed = pipelined(steps).await.into_iter().find_map(Result::err);
        match failed {
            None => {
                lease.give_back();
                Ok(None)
            }
            Some(error) if is_answer(&error) => {
                lease.roll_back();
                Ok(Some(error.into()))
            }
            Some(error) => Err(lost_in_commit(self.place(), &error)),
        }
    }

    fn again_or_not(&self, failure: Failure, targets: &[Target<'_>]) -> Result<Attempt> {
        let stale = failure.is_missing_relation();
        if stale {
            self.forget(targets);
        }
        let again = stale || failure.is_conflict();
        let error = self.told(failure);
        if again { Ok(Attempt::Again(error)) } else { Err(error) }
    }

    fn forget(&self, targets: &[Target<'_>]) {
        let mut known = self.lock_known();
        for target in targets {
            known.remove(target.write.table());
        }
    }

    /// Takes away some of what expired, in a task of its own: the writer who noticed does not wait.
    fn sweep_aside(self: Arc<Self>) {
        if self.sweep_is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        tokio::spawn(async move {
            let progress = Progress::default();
            let by = self.clock.deadline(SWEEP_TIME_MAX);
            if let Err(error) = self.pool.in_time(by, &progress, Box::pin(self.sweep(by, &progress))).await {
                // The next sweep takes what this one left.
                tracing::warn!(error = error.chain(), "sweep of expired rows failed");
            }
            self.sweep_is_running.store(false, Ordering::Relaxed);
        });
    }

    async fn sweep(&self, by: Monotonic, progress: &Progress) -> Result<()> {
        let everything = Question { text: self.schema.describe_all.clone(), params: Vec::new() };
        let rows = self.ask(by, &everything, progress).await.map_err(|failure| self.told(failure))?;
        for row in &rows {
            let known = self.known_from(row, 1).map_err(|failure| self.told(failure))?;
            if known.spec.ttl.is_none() {
                continue;
            }
            let sweep = Question { text: known.sql.sweep.clone(), params: Vec::new() };
            self.ask(by, &sweep, progress).await.map_err(|failure| self.told(failure))?;
        }
        Ok(())
    }
}

/// What a single write shows: the row as it is now, or of a delete as it was.
fn last_row(mut effects: Vec<Effect>, mut rows: Vec<Option<Item>>) -> Item {
    match effects.pop() {
        Some(Effect::Store(item)) => item,
        Some(Effect::Erase) => rows.pop().flatten().unwrap_or_default(),
        Some(Effect::Keep) | None => Item::new(),
    }
}
