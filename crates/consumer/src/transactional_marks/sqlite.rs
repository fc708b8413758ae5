//! Marks in a table of your own SQLite file.

use rusqlite::{Connection, OptionalExtension as _, Transaction, TransactionBehavior, params};
use tenure_backend::{Error, Kind, Result};

use super::{Claim, Row, after, fresh, row_name, start};
use crate::opening::Start;
use crate::processor::{Batch, ShardContext};
use crate::record::Delivered;

/// The marks of one shard, in SQLite.
///
/// ```no_run
/// # use rusqlite::Connection;
/// # use tenure_consumer::transactional_marks::SqliteMarks;
/// # use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor, Start};
/// struct Totals {
///     db: Connection,
///     marks: Option<SqliteMarks>,
/// }
///
/// #[async_trait::async_trait]
/// impl ShardProcessor for Totals {
///     async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
///         SqliteMarks::prepare(&self.db)?;
///         let (marks, start) = SqliteMarks::claim(&mut self.db, shard)?;
///         self.marks = Some(marks);
///         Ok(start)
///     }
///
///     async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
///         let Some(marks) = &self.marks else { return Err("no init".into()) };
///         let applying = marks.begin(&mut self.db, batch)?;
///         for record in applying.records() {
///             applying.transaction().execute("insert into totals (data) values (?1)", [&record.data[..]])?;
///         }
///         applying.commit()?;
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct SqliteMarks {
    claim: Claim,
}

impl SqliteMarks {
    /// Makes the table, if there is none.
    ///
    /// # Errors
    /// `Unavailable` if the database is busy; otherwise as SQLite's.
    pub fn prepare(db: &Connection) -> Result<()> {
        let table = "create table if not exists tenure_marks (
            app text not null, shard text not null, fence integer not null, marks blob, primary key (app, shard))";
        db.execute(table, []).map(drop).map_err(|error| explain(error, "make the table of marks"))
    }

    /// Claims the row of a shard, in `init`, and says where to begin: answer that.
    ///
    /// # Errors
    /// `Fenced` if the row was claimed with a newer lease.
    pub fn claim(db: &mut Connection, shard: &ShardContext) -> Result<(Self, Start)> {
        let claim = Claim::of(shard)?;
        let failed = |error| explain(error, "claim a row of marks");
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let own = row(&transaction, &claim.app, &claim.shard)?;
        if let Some(own) = &own {
            claim.admits(own)?;
        }
        let mut parents = Vec::new();
        for parent in &shard.lease().parents {
            parents.extend(row(&transaction, &claim.app, &row_name(shard, parent.as_str()))?);
        }
        let start = start(own.as_ref(), &parents)?;
        let upsert = "insert into tenure_marks (app, shard, fence) values (?1, ?2, ?3)
            on conflict (app, shard) do update set fence = excluded.fence";
        transaction.execute(upsert, params![claim.app, claim.shard, claim.fence]).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        Ok((Self { claim }, start))
    }

    /// Begins the transaction of a batch.
    ///
    /// # Errors
    /// `Fenced` if another worker has claimed the shard: answer that from `process`.
    pub fn begin<'a>(&self, db: &'a mut Connection, batch: &'a Batch) -> Result<SqliteApplying<'a>> {
        let failed = |error| explain(error, "begin a transaction");
        // Immediate: the row is read and then written, and nobody may come between.
        let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let row = row(&transaction, &self.claim.app, &self.claim.shard)?;
        self.claim.holds(row.as_ref())?;
        let fresh = fresh(batch, row.as_ref())?;
        Ok(SqliteApplying { transaction, claim: self.claim.clone(), batch, fresh })
    }

    /// Lets a lease with a lower counter claim the row: after the lease row was deleted and made anew, and when
    /// it is certain that no worker with the old one is left.
    ///
    /// # Errors
    /// As SQLite's.
    pub fn forget_fence(db: &Connection, app: &str, stream: &str, shard: &str) -> Result<()> {
        let forget = "update tenure_marks set fence = 0 where app = ?1 and shard = ?2";
        let forgotten = db.execute(forget, params![app, format!("{stream}/{shard}")]);
        forgotten.map(drop).map_err(|error| explain(error, "forget a fence"))
    }
}

/// The transaction of one batch. Dropped, it is rolled back.
#[derive(Debug)]
#[must_use = "nothing is applied until it is committed"]
pub struct SqliteApplying<'a> {
    transaction: Transaction<'a>,
    claim: Claim,
    batch: &'a Batch,
    fresh: Vec<&'a Delivered>,
}

impl SqliteApplying<'_> {
    /// The records that have had no effect yet.
    #[must_use]
    pub fn records(&self) -> &[&Delivered] {
        &self.fresh
    }

    /// The transaction, for your own statements.
    #[must_use]
    pub fn transaction(&self) -> &Connection {
        &self.transaction
    }

    /// Moves the row on, and commits.
    ///
    /// # Errors
    /// As SQLite's. Then nothing was applied, or everything: the row tells, when the batch comes again.
    pub fn commit(self) -> Result<()> {
        let failed = |error| explain(error, "commit a batch");
        if !self.fresh.is_empty() {
            let update = "update tenure_marks set marks = ?3 where app = ?1 and shard = ?2";
            let marks = after(self.batch)?;
            self.transaction
                .execute(update, params![self.claim.app, self.claim.shard, marks])
                .map_err(failed)?;
        }
        self.transaction.commit().map_err(failed)
    }
}

fn row(transaction: &Transaction<'_>, app: &str, shard: &str) -> Result<Option<Row>> {
    let select = "select fence, marks from tenure_marks where app = ?1 and shard = ?2";
    transaction
        .query_row(select, [app, shard], |row| Ok(Row { fence: row.get(0)?, marks: row.get(1)? }))
        .optional()
        .map_err(|error| explain(error, "read a row of marks"))
}

fn explain(error: rusqlite::Error, what: &str) -> Error {
    use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase};
    let kind = match error.sqlite_error_code() {
        Some(DatabaseBusy | DatabaseLocked | DiskFull) => Kind::Unavailable,
        Some(DatabaseCorrupt | NotADatabase) => Kind::Corrupt,
        _ => Kind::Invalid,
    };
    Error::new(kind, what).because(error)
}
