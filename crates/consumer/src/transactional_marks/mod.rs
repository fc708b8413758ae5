//! Exactly once in effect: the marks are kept in the transaction of the effect.
//!
//! A processor that writes to a database of its own keeps one row per shard there: how far it came, and the
//! marks. Each batch is one transaction, which begins with the row (locked), leaves out what the row says was
//! done, and ends with the row moved on. So effect and progress are there both or neither, whatever crashes
//! when, and reading begins where the row says and not where the lease does.
//!
//! ```text
//!   begin ──► row locked, fence compared ──► effects of what is new ──► row moved on ──► commit
//! ```
//!
//! - TM-1: a record at or before the row's place has no effect again.
//! - TM-2: whoever holds an older lease than the row's fence is refused: nothing of theirs lands.
//! - TM-3: a child shard begins with what the rows of its parents say.
//!
//! The transaction belongs to what `begin` answers, and ends committed or not at all: it cannot be committed
//! without the row.
//!
//! The table is `tenure_marks`:
//!
//! | column | |
//! |---|---|
//! | `app`, `shard` | the key |
//! | `fence` | the counter of the lease that claimed it, as it was when the lease was taken |
//! | `marks` | place and marks, as beside a checkpoint |

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;

use tenure_backend::{Error, Kind, Result};

#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresApplying, PostgresMarks};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteApplying, SqliteMarks};
use crate::marks::Marks;
use crate::opening::Start;
use crate::processor::{Batch, ShardContext};
use crate::record::Delivered;

/// The table.
pub const TABLE: &str = "tenure_marks";

/// A row, as it was found.
struct Row {
    fence: i64,
    marks: Option<Vec<u8>>,
}

/// Which row a shard has, and who writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Claim {
    app: String,
    shard: String,
    fence: i64,
}

impl Claim {
    fn of(shard: &ShardContext) -> Result<Self> {
        let lease = shard.lease();
        let fence = i64::try_from(lease.counter).map_err(|_| {
            Error::new(Kind::Corrupt, format!("lease {} has counter {}", lease.key, lease.counter))
        })?;
        // Named with the stream: one database may serve several.
        Ok(Self { app: shard.app().to_owned(), shard: row_name(shard, shard.shard().as_str()), fence })
    }

    /// Whether this shard may claim a row that was found.
    fn admits(&self, found: &Row) -> Result<()> {
        if found.fence <= self.fence || tenure_planted::is("marks_without_fence") {
            return Ok(());
        }
        Err(Error::new(
            Kind::Fenced,
            format!(
                "`{}` of `{}` was claimed with lease counter {} and this lease has {}: this worker is late, or the \
                 lease row was deleted and made anew (then call `forget_fence`)",
                self.shard, self.app, found.fence, self.fence
            ),
        ))
    }

    /// Whether the row is still this shard's.
    fn holds(&self, found: Option<&Row>) -> Result<()> {
        match found {
            Some(found) if found.fence == self.fence || tenure_planted::is("marks_without_fence") => Ok(()),
            Some(found) => Err(Error::new(
                Kind::Fenced,
                format!("`{}` was claimed by another worker, with lease counter {}", self.shard, found.fence),
            )),
            None => {
                Err(Error::new(Kind::Fenced, format!("the row of `{}` is gone: claim it again", self.shard)))
            }
        }
    }
}

fn row_name(shard: &ShardContext, id: &str) -> String {
    format!("{}/{id}", shard.stream())
}

/// Where a shard begins, by the rows that were found of it and of its parents.
fn start(own: Option<&Row>, parents: &[Row]) -> Result<Start> {
    if let Some(marks) = own.and_then(|row| row.marks.as_deref()) {
        return Ok(Start::Marks(Marks::decode(marks)?));
    }
    let decode = |row: &Row| row.marks.as_deref().map(Marks::decode);
    let known = parents.iter().filter_map(decode).collect::<Result<Vec<_>>>()?;
    if known.is_empty() || tenure_planted::is("child_forgets_rows") {
        return Ok(Start::Lease);
    }
    Ok(Start::Parents(known))
}

/// Which records of a batch have had no effect yet, by the row.
fn fresh<'a>(batch: &'a Batch, row: Option<&Row>) -> Result<Vec<&'a Delivered>> {
    let done = row.and_then(|row| row.marks.as_deref()).map(Marks::decode).transpose()?;
    let is_new = |record: &&Delivered| {
        tenure_planted::is("applies_again")
            || done.as_ref().is_none_or(|marks| !record.is_at_or_before(&marks.at))
    };
    Ok(batch.records().iter().filter(is_new).collect())
}

/// What the row says after a batch.
fn after(batch: &Batch) -> Result<Vec<u8>> {
    let marks =
        batch.marks().ok_or_else(|| Error::invalid("the batch has no records: there is nothing to apply"))?;
    Ok(marks.encode().bytes.to_vec())
}
