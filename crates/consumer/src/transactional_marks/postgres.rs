//! Marks in a table of your own Postgres.

use tenure_backend::{Error, Kind, Result};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Transaction};

use super::{Claim, Row, after, fresh, row_name, start};
use crate::opening::Start;
use crate::processor::{Batch, ShardContext};
use crate::record::Delivered;

/// The marks of one shard, in Postgres.
///
/// ```no_run
/// # use tenure_consumer::transactional_marks::PostgresMarks;
/// # use tenure_consumer::{Batch, Failure, ShardContext, ShardProcessor, Start};
/// struct Totals {
///     db: tokio_postgres::Client,
///     marks: Option<PostgresMarks>,
/// }
///
/// #[async_trait::async_trait]
/// impl ShardProcessor for Totals {
///     async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
///         let (marks, start) = PostgresMarks::claim(&mut self.db, shard).await?;
///         self.marks = Some(marks);
///         Ok(start)
///     }
///
///     async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
///         let Some(marks) = &self.marks else { return Err("no init".into()) };
///         let applying = marks.begin(&mut self.db, batch).await?;
///         for record in applying.records() {
///             let data = &record.data[..];
///             applying.transaction().execute("insert into totals (data) values ($1)", &[&data]).await?;
///         }
///         applying.commit().await?;
///         Ok(())
///     }
/// }
/// ```
#[derive(Debug, Clone)]
pub struct PostgresMarks {
    claim: Claim,
}

impl PostgresMarks {
    /// Makes the table, if there is none.
    ///
    /// # Errors
    /// `Denied` if that is not allowed: let somebody who may do it.
    pub async fn prepare(db: &Client) -> Result<()> {
        // Two that make it at once would collide in the catalog; the second finds it there.
        let table = "do $$ begin
            create table if not exists tenure_marks (
                app text not null, shard text not null, fence bigint not null, marks bytea, primary key (app, shard));
            exception when unique_violation or duplicate_table or duplicate_object then null; end $$";
        db.batch_execute(table).await.map_err(|error| explain(error, "make the table of marks"))
    }

    /// Claims the row of a shard, in `init`, and says where to begin: answer that.
    ///
    /// # Errors
    /// `Fenced` if the row was claimed with a newer lease.
    pub async fn claim(db: &mut Client, shard: &ShardContext) -> Result<(Self, Start)> {
        let claim = Claim::of(shard)?;
        let failed = |error| explain(error, "claim a row of marks");
        let transaction = db.transaction().await.map_err(failed)?;
        let insert =
            "insert into tenure_marks (app, shard, fence) values ($1, $2, $3) on conflict do nothing";
        transaction.execute(insert, &[&claim.app, &claim.shard, &claim.fence]).await.map_err(failed)?;
        let own = row(&transaction, &claim.app, &claim.shard).await?;
        if let Some(own) = &own {
            claim.admits(own)?;
        }
        let mut parents = Vec::new();
        for parent in &shard.lease().parents {
            parents.extend(row(&transaction, &claim.app, &row_name(shard, parent.as_str())).await?);
        }
        let start = start(own.as_ref(), &parents)?;
        let update = "update tenure_marks set fence = $3 where app = $1 and shard = $2";
        transaction.execute(update, &[&claim.app, &claim.shard, &claim.fence]).await.map_err(failed)?;
        transaction.commit().await.map_err(failed)?;
        Ok((Self { claim }, start))
    }

    /// Begins the transaction of a batch.
    ///
    /// # Errors
    /// `Fenced` if another worker has claimed the shard: answer that from `process`.
    pub async fn begin<'a>(&self, db: &'a mut Client, batch: &'a Batch) -> Result<PostgresApplying<'a>> {
        let transaction = db.transaction().await.map_err(|error| explain(error, "begin a transaction"))?;
        let row = row(&transaction, &self.claim.app, &self.claim.shard).await?;
        self.claim.holds(row.as_ref())?;
        let fresh = fresh(batch, row.as_ref())?;
        Ok(PostgresApplying { transaction, claim: self.claim.clone(), batch, fresh })
    }

    /// Lets a lease with a lower counter claim the row: after the lease row was deleted and made anew, and when
    /// it is certain that no worker with the old one is left.
    ///
    /// # Errors
    /// As the database's.
    pub async fn forget_fence(db: &Client, app: &str, stream: &str, shard: &str) -> Result<()> {
        let forget = "update tenure_marks set fence = 0 where app = $1 and shard = $2";
        let forgotten = db.execute(forget, &[&app, &format!("{stream}/{shard}")]).await;
        forgotten.map(drop).map_err(|error| explain(error, "forget a fence"))
    }
}

/// The transaction of one batch. Dropped, it is rolled back.
#[must_use = "nothing is applied until it is committed"]
pub struct PostgresApplying<'a> {
    transaction: Transaction<'a>,
    claim: Claim,
    batch: &'a Batch,
    fresh: Vec<&'a Delivered>,
}

impl<'a> PostgresApplying<'a> {
    /// The records that have had no effect yet.
    #[must_use]
    pub fn records(&self) -> &[&'a Delivered] {
        &self.fresh
    }

    /// The transaction, for your own statements. It has no `commit`: [`PostgresApplying::commit`] does that.
    #[must_use]
    pub const fn transaction(&self) -> &Transaction<'a> {
        &self.transaction
    }

    /// Moves the row on, and commits.
    ///
    /// # Errors
    /// As the database's. Then nothing was applied, or everything: the row tells, when the batch comes again.
    ///
    /// # Cancel safety
    /// Dropped, nothing was applied, or everything.
    pub async fn commit(self) -> Result<()> {
        let failed = |error| explain(error, "commit a batch");
        if !self.fresh.is_empty() {
            let update = "update tenure_marks set marks = $3 where app = $1 and shard = $2";
            let marks = after(self.batch)?;
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&self.claim.app, &self.claim.shard, &marks];
            self.transaction.execute(update, &values).await.map_err(failed)?;
        }
        self.transaction.commit().await.map_err(failed)
    }
}

impl std::fmt::Debug for PostgresApplying<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresApplying").field("claim", &self.claim).finish_non_exhaustive()
    }
}

async fn row(transaction: &Transaction<'_>, app: &str, shard: &str) -> Result<Option<Row>> {
    let select = "select fence, marks from tenure_marks where app = $1 and shard = $2 for update";
    let found = transaction.query_opt(select, &[&app, &shard]).await;
    let found = found.map_err(|error| explain(error, "read a row of marks"))?;
    Ok(found.map(|row| Row { fence: row.get(0), marks: row.get(1) }))
}

/// A commit whose answer was lost may have landed; the row tells, so trying again is safe.
fn explain(error: tokio_postgres::Error, what: &str) -> Error {
    let kind = match error.code() {
        None => Kind::Unavailable,
        Some(code) if *code == SqlState::INSUFFICIENT_PRIVILEGE || code.code().starts_with("28") => {
            Kind::Denied
        }
        Some(code) if matches!(&code.code()[..2], "08" | "40" | "53" | "55" | "57") => Kind::Unavailable,
        Some(_) => Kind::Invalid,
    };
    Error::new(kind, what).because(error)
}
