//! The embedded default: one file, shared by several processes.
//!
//! Each logical table is one SQL table, sorted as DynamoDB sorts, with the row as DynamoDB's JSON:
//!
//! ```text
//!   catalog(name, spec, version)        what tables there are; the version is drawn at every change
//!   "t:NAME"(h, r, ttl, item)           rows by the sorted bytes of their key
//!   "i:NAME:INDEX"(ih, ir, h, r)        an index: where its rows are
//! ```
//!
//! SQLite takes `Locks` and `locks` for one name, so capitals are written `^l` there.
//!
//! The engine below it gathers writes of concurrent tasks into one commit; a refused write changes
//! nothing, so it needs no undoing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::sqlite::rusqlite::{self, Connection, OptionalExtension, params};
use tenure_backend::sqlite::{Engine, FileSpec, failure};
use tenure_backend::{Address, Env, Error, Result};
use tenure_clock::{Clock, Monotonic};

use crate::codec::{item_from_text, item_to_text, spec_from_text, spec_to_text};
use crate::item::{Item, Key};
use crate::table::{IndexSpec, Projection, SortedKey, TableSpec, merged};
use crate::ttl::{FIVE_YEARS_SECONDS, SWEEP_INTERVAL, SWEEP_ROWS_MAX, Sweeping, expiry_seconds};
use crate::write::{Effect, Refusal, Write, Written, refuse_same_row, validate_transaction};
use crate::{Cursor, Listing, Page, Query, Store, no_such_table};

/// `TENR`, in SQLite's header: this file holds a Tenure store.
const APPLICATION_ID: i32 = 0x5445_4e52;

/// Rows in a SQLite file.
#[derive(Debug)]
pub struct Sqlite {
    engine: Engine,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    clock: Arc<dyn Clock>,
    sweeping: Sweeping,
    /// Descriptions as of the catalog version they were read at.
    specs: Mutex<BTreeMap<String, (i64, Arc<TableSpec>)>>,
}

impl Sqlite {
    /// Opens `sqlite:PATH?sweep_seconds=N`.
    pub(crate) fn from_address(address: &mut Address, env: &Env) -> Result<Self> {
        let path = PathBuf::from(address.place());
        if path.as_os_str().is_empty() || address.place() == ":memory:" {
            return Err(Error::invalid(
                "`sqlite:` names no file: write sqlite:PATH, e.g. sqlite:./tenure.db, or memory: for no file",
            ));
        }
        let sweep = address.take("sweep_seconds", "a whole number of seconds")?.map(Duration::from_secs);
        address.clone().finish()?;
        Self::open_with(&path, env, sweep.unwrap_or(SWEEP_INTERVAL), None)
    }

    /// Opens a file, creating it if it is not there.
    ///
    /// # Errors
    /// What is wrong with the file: see [`Engine::open`].
    pub fn open(path: &Path, env: &Env) -> Result<Self> {
        Self::open_with(path, env, SWEEP_INTERVAL, None)
    }

    /// Opens a file through a SQLite VFS of that name: how tests put a failing disk under it.
    #[doc(hidden)]
    pub fn open_through(path: &Path, env: &Env, vfs: &str) -> Result<Self> {
        Self::open_with(path, env, SWEEP_INTERVAL, Some(vfs.to_owned()))
    }

    fn open_with(path: &Path, env: &Env, sweep: Duration, vfs: Option<String>) -> Result<Self> {
        let spec = FileSpec {
            role: "store",
            application_id: APPLICATION_ID,
            format: 1,
            schema: "CREATE TABLE catalog(name TEXT PRIMARY KEY, spec TEXT NOT NULL, version INTEGER NOT NULL) \
                     WITHOUT ROWID",
            vfs,
        };
        let engine = Engine::open(path, &spec, env.clock.clone())?;
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            clock: env.clock.clone(),
            sweeping: Sweeping::every(sweep, &*env.clock),
            specs: Mutex::new(BTreeMap::new()),
        });
        Ok(Self { engine, shared })
    }

    async fn write_all(&self, by: Monotonic, writes: Vec<Write>) -> Result<Written> {
        let shared = self.shared.clone();
        self.engine.write(by, move |connection| shared.on(connection).apply(&writes)).await
    }

    async fn listed(
        &self,
        by: Monotonic,
        table: &str,
        work: impl FnOnce(OnFile<'_>, &TableSpec) -> Result<Listing> + Send + 'static,
    ) -> Result<Listing> {
        let (shared, table) = (self.shared.clone(), table.to_owned());
        self.engine
            .read(by, move |connection| {
                let file = shared.on(connection);
                let spec = file.spec(&table)?;
                work(file, &spec)
            })
            .await
    }
}

#[async_trait]
impl Store for Sqlite {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        spec.validate()?;
        let (shared, spec) = (self.shared.clone(), spec.clone());
        self.engine.write(by, move |connection| shared.on(connection).ensure(&spec)).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        let (shared, table) = (self.shared.clone(), table.to_owned());
        let found = self.engine.read(by, move |connection| shared.on(connection).find_spec(&table)).await?;
        Ok(found.map(|spec| (*spec).clone()))
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let (shared, table, key) = (self.shared.clone(), table.to_owned(), key.clone());
        self.engine
            .read(by, move |connection| {
                let file = shared.on(connection);
                let spec = file.spec(&table)?;
                spec.check_key(&key)?;
                file.row(&spec, &SortedKey::of(&spec, &key))
            })
            .await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        write.validate()?;
        self.write_all(by, vec![write.clone()]).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        validate_transaction(writes, nonce)?;
        let written = self.write_all(by, writes.to_vec()).await?;
        Ok(if written.is_applied() { Written::Applied(Item::new()) } else { written })
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        query.page.validate()?;
        let query = query.clone();
        self.listed(by, table, move |file, spec| {
            let hash = spec.partition_of(&query)?;
            match &query.index {
                None => file.partition(spec, &hash, &query.page),
                Some(name) => file.index_rows(spec, spec.index(name)?, &hash, &query.page),
            }
        })
        .await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        page.validate()?;
        let page = page.clone();
        self.listed(by, table, move |file, spec| file.all(spec, &page)).await
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Shared {
    const fn on<'a>(&'a self, connection: &'a Connection) -> OnFile<'a> {
        OnFile { shared: self, connection }
    }
}

/// What is done on one of the engine's threads.
#[derive(Clone, Copy)]
struct OnFile<'a> {
    shared: &'a Shared,
    connection: &'a Connection,
}

// Names are checked to be letters, digits, `_`, `-` and `.`, so they need no escaping in quotes.
fn rows_of(spec: &TableSpec) -> String {
    format!("\"t:{}\"", small(&spec.name))
}

fn index_of(spec: &TableSpec, index: &IndexSpec) -> String {
    format!("\"i:{}:{}\"", small(&spec.name), small(&index.name))
}

fn expiry_index_of(spec: &TableSpec) -> String {
    format!("\"x:{}\"", small(&spec.name))
}

/// A name in small letters, from which it can be told again.
fn small(name: &str) -> String {
    let mut small = String::with_capacity(name.len());
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            small.push('^');
        }
        small.push(letter.to_ascii_lowercase());
    }
    small
}

impl OnFile<'_> {
    fn failed(&self, error: &rusqlite::Error) -> Error {
        failure(&self.shared.path, error)
    }

    fn execute(&self, sql: &str, params: impl rusqlite::Params) -> Result<usize> {
        let run = || self.connection.prepare_cached(sql)?.execute(params);
        run().map_err(|error| self.failed(&error))
    }

    /// Rows whose last column is an item's text.
    fn items(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<Item>> {
        let run = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            let texts = statement.query_map(params, |row| row.get::<_, String>(0))?;
            texts.collect::<rusqlite::Result<Vec<_>>>()
        };
        run().map_err(|error| self.failed(&error))?.iter().map(|text| item_from_text(text)).collect()
    }

    fn find_spec(&self, table: &str) -> Result<Option<Arc<TableSpec>>> {
        let version: Option<i64> = self
            .connection
            .prepare_cached("SELECT version FROM catalog WHERE name = ?1")
            .and_then(|mut statement| statement.query_row([table], |row| row.get(0)).optional())
            .map_err(|error| self.failed(&error))?;
        let Some(version) = version else { return Ok(None) };
        let mut specs = self.shared.specs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, spec)) = specs.get(table)
            && *known == version
        {
            return Ok(Some(spec.clone()));
        }
        let (text, version): (String, i64) = self
            .connection
            .query_row("SELECT spec, version FROM catalog WHERE name = ?1", [table], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .map_err(|error| self.failed(&error))?;
        let spec = Arc::new(spec_from_text(&text)?);
        specs.insert(table.to_owned(), (version, spec.clone()));
        Ok(Some(spec))
    }

    fn spec(&self, table: &str) -> Result<Arc<TableSpec>> {
        self.find_spec(table)?.ok_or_else(|| no_such_table(table))
    }

    fn ensure(&self, asked: &TableSpec) -> Result<()> {
        let existing = self.find_spec(&asked.name)?;
        let wanted = match &existing {
            Some(existing) => {
                asked.check_same_key(existing)?;
                merged(existing, asked)?
            }
            None => asked.clone(),
        };
        if existing.as_deref() == Some(&wanted) {
            return Ok(());
        }
        let rows = rows_of(&wanted);
        let ddl = |sql: String| self.connection.execute_batch(&sql).map_err(|error| self.failed(&error));
        ddl(format!(
            "CREATE TABLE IF NOT EXISTS {rows}(h BLOB NOT NULL, r BLOB NOT NULL, ttl INTEGER, item TEXT NOT NULL, \
             PRIMARY KEY(h, r)) WITHOUT ROWID"
        ))?;
        if wanted.ttl.is_some() {
            // Partial, so that tables whose rows do not expire pay nothing.
            let name = expiry_index_of(&wanted);
            ddl(format!("CREATE INDEX IF NOT EXISTS {name} ON {rows}(ttl) WHERE ttl IS NOT NULL"))?;
        }
        let is_new =
            |index: &&IndexSpec| !existing.iter().any(|e| e.indexes.iter().any(|i| i.name == index.name));
        for index in wanted.indexes.iter().filter(is_new) {
            let name = index_of(&wanted, index);
            ddl(format!(
                "CREATE TABLE {name}(ih BLOB NOT NULL, ir BLOB NOT NULL, h BLOB NOT NULL, r BLOB NOT NULL, \
                 PRIMARY KEY(ih, ir, h, r)) WITHOUT ROWID"
            ))?;
        }
        self.execute(
            // Drawn, not counted: the number of a change that was rolled back never comes again.
            "INSERT INTO catalog VALUES (?1, ?2, random()) \
             ON CONFLICT(name) DO UPDATE SET spec = excluded.spec, version = excluded.version",
            params![wanted.name, spec_to_text(&wanted)],
        )?;
        match existing {
            Some(existing) => self.complete_rows(&existing, &wanted),
            None => Ok(()),
        }
    }

    /// Gives the rows of an existing table their expiry and their places in new indexes, page by page.
    fn complete_rows(&self, existing: &TableSpec, wanted: &TableSpec) -> Result<()> {
        let new_indexes: Vec<_> =
            wanted.indexes.iter().filter(|index| !existing.indexes.contains(index)).collect();
        let mut page = Page { limit: Page::LIMIT_MAX, after: None };
        loop {
            let listing = self.all(wanted, &page)?;
            for item in &listing.items {
                let place = SortedKey::of(wanted, &wanted.key_of(item)?);
                for index in &new_indexes {
                    self.index(wanted, index, &place, item)?;
                }
                let expiry = wanted.ttl.as_ref().and_then(|attribute| expiry_seconds(item, attribute));
                if existing.ttl.is_none() && expiry.is_some() {
                    let sql = format!("UPDATE {} SET ttl = ?3 WHERE h = ?1 AND r = ?2", rows_of(wanted));
                    self.execute(&sql, params![place.hash, place.range, expiry])?;
                }
            }
            page.after = listing.next;
            if page.after.is_none() {
                return Ok(());
            }
        }
    }

    fn row(&self, spec: &TableSpec, place: &SortedKey) -> Result<Option<Item>> {
        let sql = format!("SELECT item FROM {} WHERE h = ?1 AND r = ?2", rows_of(spec));
        Ok(self.items(&sql, params![place.hash, place.range])?.pop())
    }

    /// Checks every condition, and then, if all hold, makes every change.
    fn apply(&self, writes: &[Write]) -> Result<Written> {
        let mut effects = Vec::with_capacity(writes.len());
        let mut keys = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            let spec = self.spec(write.table())?;
            let key = write.key(&spec)?;
            let place = SortedKey::of(&spec, &key);
            let current = self.row(&spec, &place)?;
            let Some(effect) = write.decide(&spec, current.as_ref())? else {
                return Ok(Written::Refused(Refusal { index, current }));
            };
            keys.push(key);
            effects.push((spec, place, current, effect));
        }
        refuse_same_row(&writes.iter().map(Write::table).zip(&keys).collect::<Vec<_>>())?;
        let mut last = Item::new();
        for (spec, place, current, effect) in effects {
            if matches!(effect, Effect::Keep) {
                continue;
            }
            if let Some(current) = &current {
                self.unindex(&spec, &place, current)?;
            }
            match effect {
                Effect::Store(item) => {
                    self.store(&spec, &place, &item)?;
                    last = item;
                }
                Effect::Erase => {
                    self.erase(&spec, &place)?;
                    last = current.unwrap_or_default();
                }
                Effect::Keep => {}
            }
        }
        if self.shared.sweeping.due(&*self.shared.clock) {
            self.sweep()?;
        }
        Ok(Written::Applied(last))
    }

    fn store(&self, spec: &TableSpec, place: &SortedKey, item: &Item) -> Result<()> {
        let expiry = spec.ttl.as_ref().and_then(|attribute| expiry_seconds(item, attribute));
        self.execute(
            &format!("INSERT OR REPLACE INTO {} VALUES (?1, ?2, ?3, ?4)", rows_of(spec)),
            params![place.hash, place.range, expiry, item_to_text(item)],
        )?;
        spec.indexes.iter().try_for_each(|index| self.index(spec, index, place, item))
    }

    /// Puts a row in an index, if it has the index's attributes.
    fn index(&self, spec: &TableSpec, index: &IndexSpec, place: &SortedKey, item: &Item) -> Result<()> {
        let Some(indexed) = SortedKey::in_index(index, item) else { return Ok(()) };
        let sql = format!("INSERT OR REPLACE INTO {} VALUES (?1, ?2, ?3, ?4)", index_of(spec, index));
        self.execute(&sql, params![indexed.hash, indexed.range, place.hash, place.range]).map(drop)
    }

    fn erase(&self, spec: &TableSpec, place: &SortedKey) -> Result<()> {
        let sql = format!("DELETE FROM {} WHERE h = ?1 AND r = ?2", rows_of(spec));
        self.execute(&sql, params![place.hash, place.range]).map(drop)
    }

    fn unindex(&self, spec: &TableSpec, place: &SortedKey, item: &Item) -> Result<()> {
        for index in &spec.indexes {
            if let Some(indexed) = SortedKey::in_index(index, item) {
                let sql = format!(
                    "DELETE FROM {} WHERE ih = ?1 AND ir = ?2 AND h = ?3 AND r = ?4",
                    index_of(spec, index)
                );
                self.execute(&sql, params![indexed.hash, indexed.range, place.hash, place.range])?;
            }
        }
        Ok(())
    }

    /// Takes away some of what expired, as part of a write that is under way anyway.
    fn sweep(&self) -> Result<()> {
        let now = self.shared.clock.wall().as_seconds();
        let names: Vec<String> = {
            let run = || {
                let mut statement = self.connection.prepare_cached("SELECT name FROM catalog")?;
                statement.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()
            };
            run().map_err(|error| self.failed(&error))?
        };
        for name in names {
            let spec = self.spec(&name)?;
            if spec.ttl.is_none() {
                continue;
            }
            let sql = format!(
                "SELECT item FROM {} WHERE ttl IS NOT NULL AND ttl < ?1 AND ttl > ?2 LIMIT ?3",
                rows_of(&spec)
            );
            let rows_max = i64::try_from(SWEEP_ROWS_MAX).unwrap_or(i64::MAX);
            for item in self.items(&sql, params![now, now - FIVE_YEARS_SECONDS, rows_max])? {
                let place = SortedKey::of(&spec, &spec.key_of(&item)?);
                self.unindex(&spec, &place, &item)?;
                self.erase(&spec, &place)?;
            }
        }
        Ok(())
    }

    fn partition(&self, spec: &TableSpec, hash: &[u8], page: &Page) -> Result<Listing> {
        let limit = fetch_limit(page);
        let rows = rows_of(spec);
        let items = match &page.after {
            None => self.items(
                &format!("SELECT item FROM {rows} WHERE h = ?1 ORDER BY r LIMIT ?2"),
                params![hash, limit],
            )?,
            Some(cursor) => {
                let after = SortedKey::of(spec, &Key::from_item(cursor.0.clone()));
                self.items(
                    &format!("SELECT item FROM {rows} WHERE h = ?1 AND r > ?3 ORDER BY r LIMIT ?2"),
                    params![hash, limit, after.range],
                )?
            }
        };
        Ok(paged(items, page, |item| Cursor(spec.cursor_of(item, None))))
    }

    fn index_rows(&self, spec: &TableSpec, index: &IndexSpec, hash: &[u8], page: &Page) -> Result<Listing> {
        let limit = fetch_limit(page);
        let select = format!(
            "SELECT t.item FROM {} i JOIN {} t ON t.h = i.h AND t.r = i.r WHERE i.ih = ?1",
            index_of(spec, index),
            rows_of(spec)
        );
        let order = "ORDER BY i.ir, i.h, i.r LIMIT ?2";
        let items = match &page.after {
            None => self.items(&format!("{select} {order}"), params![hash, limit])?,
            Some(cursor) => {
                let place = SortedKey::of(spec, &Key::from_item(cursor.0.clone()));
                let indexed = SortedKey::in_index(index, &cursor.0)
                    .ok_or_else(|| Error::invalid(format!("the cursor is not of index `{}`", index.name)))?;
                self.items(
                    &format!("{select} AND (i.ir, i.h, i.r) > (?3, ?4, ?5) {order}"),
                    params![hash, limit, indexed.range, place.hash, place.range],
                )?
            }
        };
        let mut listing = paged(items, page, |item| Cursor(spec.cursor_of(item, Some(index))));
        if index.projection == Projection::KeysOnly {
            for item in &mut listing.items {
                *item = spec.cursor_of(item, Some(index));
            }
        }
        Ok(listing)
    }

    fn all(&self, spec: &TableSpec, page: &Page) -> Result<Listing> {
        let limit = fetch_limit(page);
        let rows = rows_of(spec);
        let items = match &page.after {
            None => self.items(&format!("SELECT item FROM {rows} ORDER BY h, r LIMIT ?1"), params![limit])?,
            Some(cursor) => {
                let after = SortedKey::of(spec, &Key::from_item(cursor.0.clone()));
                self.items(
                    &format!("SELECT item FROM {rows} WHERE (h, r) > (?2, ?3) ORDER BY h, r LIMIT ?1"),
                    params![limit, after.hash, after.range],
                )?
            }
        };
        Ok(paged(items, page, |item| Cursor(spec.cursor_of(item, None))))
    }
}

/// One row more than asked for, to see whether more follow.
fn fetch_limit(page: &Page) -> i64 {
    i64::try_from(page.limit + 1).unwrap_or(i64::MAX)
}

fn paged(mut items: Vec<Item>, page: &Page, cursor: impl Fn(&Item) -> Cursor) -> Listing {
    let more = items.len() > page.limit;
    items.truncate(page.limit);
    let next = if more { items.last().map(cursor) } else { None };
    Listing { items, next }
}
