//! The store in this process's memory: the reference that every other backend is compared with.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tenure_backend::{Env, Result};
use tenure_clock::{Clock, Monotonic};

use crate::item::{Item, Key};
use crate::table::{Projection, SortedKey, TableSpec};
use crate::ttl::{SWEEP_INTERVAL, SWEEP_ROWS_MAX, Sweeping, expiry_seconds, may_go};
use crate::write::{Effect, Refusal, Write, Written, refuse_same_row, validate_transaction};
use crate::{Cursor, Listing, Page, Query, Store, no_such_table};

/// Rows in a sorted map behind a lock.
#[derive(Debug)]
pub struct Memory {
    clock: Arc<dyn Clock>,
    sweeping: Sweeping,
    tables: Mutex<BTreeMap<String, Table>>,
}

#[derive(Debug)]
struct Table {
    spec: TableSpec,
    rows: BTreeMap<SortedKey, Item>,
}

impl Memory {
    /// An empty store.
    #[must_use]
    pub fn new(env: &Env) -> Self {
        Self {
            clock: env.clock.clone(),
            sweeping: Sweeping::every(SWEEP_INTERVAL, &*env.clock),
            tables: Mutex::new(BTreeMap::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Table>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks every condition, and then, if all hold, makes every change.
    fn apply(&self, writes: &[Write]) -> Result<Written> {
        let mut tables = self.lock();
        let mut effects = Vec::with_capacity(writes.len());
        let mut keys = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            let table = tables.get(write.table()).ok_or_else(|| no_such_table(write.table()))?;
            let key = write.key(&table.spec)?;
            let place = SortedKey::of(&table.spec, &key);
            let current = table.rows.get(&place);
            let Some(effect) = write.decide(&table.spec, current)? else {
                return Ok(Written::Refused(Refusal { index, current: current.cloned() }));
            };
            keys.push(key);
            effects.push((write.table(), place, effect));
        }
        refuse_same_row(&writes.iter().map(Write::table).zip(&keys).collect::<Vec<_>>())?;
        let mut last = Item::new();
        for (name, place, effect) in effects {
            let Some(table) = tables.get_mut(name) else { continue };
            match effect {
                Effect::Store(item) => {
                    last = item.clone();
                    table.rows.insert(place, item);
                }
                Effect::Erase => last = table.rows.remove(&place).unwrap_or_default(),
                Effect::Keep => {}
            }
        }
        if self.sweeping.due(&*self.clock) {
            self.sweep(&mut tables);
        }
        Ok(Written::Applied(if writes.len() == 1 { last } else { Item::new() }))
    }

    fn sweep(&self, tables: &mut BTreeMap<String, Table>) {
        let now = self.clock.wall();
        for table in tables.values_mut() {
            let Some(attribute) = &table.spec.ttl else { continue };
            let expired = |item: &Item| expiry_seconds(item, attribute).is_some_and(|at| may_go(at, now));
            let gone: Vec<_> = table
                .rows
                .iter()
                .filter(|(_, item)| expired(item))
                .map(|(place, _)| place.clone())
                .take(SWEEP_ROWS_MAX)
                .collect();
            for place in gone {
                table.rows.remove(&place);
            }
        }
    }
}

#[async_trait]
impl Store for Memory {
    async fn ensure_table(&self, _by: Monotonic, spec: &TableSpec) -> Result<()> {
        spec.validate()?;
        let mut tables = self.lock();
        let table = tables
            .entry(spec.name.clone())
            .or_insert_with(|| Table { spec: spec.clone(), rows: BTreeMap::new() });
        spec.check_same_key(&table.spec)?;
        table.spec = crate::table::merged(&table.spec, spec)?;
        Ok(())
    }

    async fn describe_table(&self, _by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        Ok(self.lock().get(table).map(|table| table.spec.clone()))
    }

    async fn get(&self, _by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let tables = self.lock();
        let table = tables.get(table).ok_or_else(|| no_such_table(table))?;
        table.spec.check_key(key)?;
        Ok(table.rows.get(&SortedKey::of(&table.spec, key)).cloned())
    }

    async fn write(&self, _by: Monotonic, write: &Write) -> Result<Written> {
        write.validate()?;
        self.apply(std::slice::from_ref(write))
    }

    async fn transact(&self, _by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        validate_transaction(writes, nonce)?;
        let written = self.apply(writes)?;
        Ok(if written.is_applied() { Written::Applied(Item::new()) } else { written })
    }

    async fn query(&self, _by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        query.page.validate()?;
        let tables = self.lock();
        let table = tables.get(table).ok_or_else(|| no_such_table(table))?;
        let spec = &table.spec;
        let hash = spec.partition_of(query)?;
        // Sorted by the index's range key, then by the row's own place: no two rows are at one place.
        let mut places = BTreeMap::new();
        match &query.index {
            None => {
                for (place, item) in &table.rows {
                    if place.hash == hash {
                        places.insert((place.range.clone(), place.clone()), item.clone());
                    }
                }
            }
            Some(name) => {
                let index = spec.index(name)?;
                for (place, item) in &table.rows {
                    if let Some(indexed) = SortedKey::in_index(index, item)
                        && indexed.hash == hash
                    {
                        let shown = match index.projection {
                            Projection::All => item.clone(),
                            Projection::KeysOnly => spec.cursor_of(item, Some(index)),
                        };
                        places.insert((indexed.range, place.clone()), shown);
                    }
                }
            }
        }
        let after = query.page.after.as_ref().map(|cursor| {
            let place = SortedKey::of(spec, &Key::from_item(cursor.0.clone()));
            let range = match &query.index {
                None => place.range.clone(),
                Some(name) => spec
                    .index(name)
                    .ok()
                    .and_then(|index| SortedKey::in_index(index, &cursor.0))
                    .map(|indexed| indexed.range)
                    .unwrap_or_default(),
            };
            (range, place)
        });
        let index = query.index.as_ref().map(|name| spec.index(name)).transpose()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rows = places.range((start, Bound::Unbounded)).map(|(_, item)| item.clone());
        Ok(listing(rows, query.page.limit, |item| Cursor(spec.cursor_of(item, index))))
    }

    async fn scan(&self, _by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        page.validate()?;
        let tables = self.lock();
        let table = tables.get(table).ok_or_else(|| no_such_table(table))?;
        let spec = &table.spec;
        let start = page.after.as_ref().map_or(Bound::Unbounded, |cursor| {
            Bound::Excluded(SortedKey::of(spec, &Key::from_item(cursor.0.clone())))
        });
        let rows = table.rows.range((start, Bound::Unbounded)).map(|(_, item)| item.clone());
        Ok(listing(rows, page.limit, |item| Cursor(spec.cursor_of(item, None))))
    }

    fn is_local(&self) -> bool {
        true
    }
}

/// A page of `rows`, with a cursor if more follow.
fn listing(rows: impl Iterator<Item = Item>, limit: usize, cursor: impl Fn(&Item) -> Cursor) -> Listing {
    let mut items: Vec<_> = rows.take(limit + 1).collect();
    let more = items.len() > limit;
    items.truncate(limit);
    let next = if more { items.last().map(cursor) } else { None };
    Listing { items, next }
}
