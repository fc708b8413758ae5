//! Which tables there are, and how they come to be.

use std::sync::Arc;

use tenure_backend::{Error, Result};
use tenure_clock::Monotonic;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::failure::Failure;
use super::pool::{Lease, Progress, pipelined};
use super::sql::{LOCK_KEYS, TableSql, indexed};
use super::{ATTEMPTS_MAX, Inner};
use crate::codec::{item_from_text, spec_from_text, spec_to_text};
use crate::no_such_table;
use crate::table::{TableSpec, merged};
use crate::ttl::expiry_seconds;

/// Rows filled in per round trip when a table gets an index or a TTL.
const FILL_IN_ROWS: usize = 500;

/// A table as the catalog described it at a version.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) spec: TableSpec,
    pub(super) version: i64,
    pub(super) sql: TableSql,
}

impl Inner {
    /// A table, as it was when it was last looked up.
    pub(super) async fn table(&self, by: Monotonic, table: &str, progress: &Progress) -> Result<Arc<Known>> {
        let known = self.lock_known().get(table).cloned();
        match known {
            Some(known) => Ok(known),
            None => self.look_up(by, table, progress).await?.ok_or_else(|| no_such_table(table)),
        }
    }

    /// A table, as it is.
    pub(super) async fn look_up(
        &self,
        by: Monotonic,
        table: &str,
        progress: &Progress,
    ) -> Result<Option<Arc<Known>>> {
        let mut lease = self.pool.lease(progress).await.map_err(|failure| self.told(failure))?;
        let found = match lease.read(by, &self.schema.describe, vec![&table]).await {
            Ok(rows) => {
                lease.give_back();
                rows.first()
                    .map(|row| self.known_from(row, 0))
                    .transpose()
                    .map_err(|failure| self.told(failure))?
            }
            Err(failure) => {
                let failure = lease.settle(failure);
                if !failure.is_missing_relation() {
                    return Err(self.told(failure));
                }
                // No schema or no catalog: no tables.
                None
            }
        };
        let found = found.map(Arc::new);
        let mut known = self.lock_known();
        match &found {
            Some(found) => known.insert(table.to_owned(), found.clone()),
            None => known.remove(table),
        };
        Ok(found)
    }

    /// From a row whose columns, `first` on, are the description and the version.
    pub(super) fn known_from(&self, row: &Row, first: usize) -> Result<Known, Failure> {
        let spec = spec_from_text(row.try_get(first)?)?;
        let sql = TableSql::new(&self.schema, &spec);
        Ok(Known { sql, version: row.try_get(first + 1)?, spec })
    }

    pub(super) async fn ensure(&self, by: Monotonic, asked: &TableSpec, progress: &Progress) -> Result<()> {
        for attempt in 1.. {
            // Mostly it is there already, and whoever may not create may still use it.
            if let Some(known) = self.look_up(by, &asked.name, progress).await? {
                asked.check_same_key(&known.spec)?;
                if merged(&known.spec, asked)? == known.spec {
                    return Ok(());
                }
            }
            let mut lease = self.pool.lease(progress).await.map_err(|failure| self.told(failure))?;
            match self.create(by, &mut lease, asked).await {
                Ok(()) => lease.give_back(),
                Err(failure) => {
                    let failure = lease.settle(failure);
                    if attempt == ATTEMPTS_MAX || !failure.is_conflict() {
                        return Err(self.told(failure).during(format!("create table `{}`", asked.name)));
                    }
                }
            }
            if attempt == ATTEMPTS_MAX {
                break;
            }
        }
        Err(Error::unavailable(format!("{}: table `{}` is changed by others", self.place(), asked.name)))
    }

    /// Creates the table, or adds what it lacks, in one transaction.
    async fn create(&self, by: Monotonic, lease: &mut Lease, asked: &TableSpec) -> Result<(), Failure> {
        // One creator at a time. `IF NOT EXISTS` alone fails when two are at it.
        lease.prepare(&[LOCK_KEYS]).await?;
        let locks = vec![self.schema.creation_lock()];
        for answer in pipelined(vec![lease.begin(by), lease.step(LOCK_KEYS, vec![&locks])]).await {
            answer?;
        }
        self.create_catalog(lease).await?;
        let rows = lease.run(&self.schema.describe, vec![&asked.name]).await?;
        let existing = rows.first().map(|row| self.known_from(row, 0)).transpose()?;
        let wanted = match &existing {
            Some(existing) => {
                asked.check_same_key(&existing.spec)?;
                merged(&existing.spec, asked)?
            }
            None => asked.clone(),
        };
        let sql = TableSql::new(&self.schema, &wanted);
        let indexes_before = existing.as_ref().map_or(0, |existing| existing.spec.indexes.len());
        let new_indexes = indexes_before..wanted.indexes.len();
        let new_ttl =
            wanted.ttl.is_some() && existing.as_ref().is_none_or(|existing| existing.spec.ttl.is_none());
        if existing.is_none() {
            lease.batch(sql.create(&wanted)).await?;
        } else {
            // Writers wait, and see the new version when they get on.
            lease.batch(format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", sql.table)).await?;
        }
        for number in new_indexes.clone() {
            lease.batch(sql.add_index_columns(number)).await?;
        }
        if existing.is_some() {
            fill_in(lease, &wanted, &sql).await?;
        }
        for number in new_indexes {
            lease.batch(sql.create_index(&wanted, number)).await?;
        }
        if new_ttl {
            lease.batch(sql.create_ttl_index(&wanted)).await?;
        }
        lease.run(&self.schema.record(), vec![&wanted.name, &spec_to_text(&wanted)]).await?;
        lease.batch("COMMIT".to_owned()).await?;
        Ok(())
    }

    /// Creates the schema and the catalog, if need be: asking first, because creating what is there
    /// needs the right to create, too.
    async fn create_catalog(&self, lease: &mut Lease) -> Result<(), Failure> {
        const IS_THERE: &str =
            "SELECT to_regnamespace($1::text) IS NOT NULL, to_regclass($2::text) IS NOT NULL";
        let rows = lease.run(IS_THERE, vec![&self.schema.quoted, &self.schema.catalog]).await?;
        let is_there = |column: usize| rows.first().map_or(Ok(false), |row| row.try_get(column));
        if !is_there(0)? {
            lease.batch(format!("CREATE SCHEMA IF NOT EXISTS {}", self.schema.quoted)).await?;
        }
        if !is_there(1)? {
            lease.batch(self.schema.create_catalog()).await?;
        }
        Ok(())
    }
}

/// Gives every row its expiry and its places in the indexes.
async fn fill_in(lease: &mut Lease, spec: &TableSpec, sql: &TableSql) -> Result<(), Failure> {
    let some_rows = sql.some_rows(FILL_IN_ROWS);
    let update = sql.fill_in(spec.indexes.len());
    lease.prepare(&[&some_rows, &update]).await?;
    // No row is before this one, and none is there: a hash key has at least one byte.
    let mut last = (Vec::new(), Vec::new());
    loop {
        let rows = lease.step(&some_rows, vec![&last.0, &last.1]).await?;
        let mut filled = Vec::with_capacity(rows.len());
        for row in &rows {
            let (h, r): (Vec<u8>, Vec<u8>) = (row.try_get(0)?, row.try_get(1)?);
            let item = item_from_text(row.try_get(2)?)?;
            let ttl = spec.ttl.as_ref().and_then(|attribute| expiry_seconds(&item, attribute));
            filled.push((h, r, ttl, indexed(spec, &item)));
        }
        let steps = filled.iter().map(|(h, r, ttl, columns)| {
            let mut params: Vec<&(dyn ToSql + Sync)> = vec![h, r, ttl];
            params.extend(columns.iter().map(|column| column as &(dyn ToSql + Sync)));
            lease.step(&update, params)
        });
        for answer in pipelined(steps.collect()).await {
            answer?;
        }
        match filled.pop() {
            Some((h, r, ..)) if rows.len() == FILL_IN_ROWS => last = (h, r),
            _ => return Ok(()),
        }
    }
}
