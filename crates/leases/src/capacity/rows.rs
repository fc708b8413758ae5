//! What is stored: one row for all workers of an application, one row per worker.
//!
//! | column | type | whose |
//! |---|---|---|
//! | `worker_id` (key), `stream_name`, `app_name` | S | shared with Go |
//! | `max_leases_per_worker`, `shard_count`, `worker_count` | N | shared with Go |
//! | `last_update_time` | S, RFC 3339 in seconds | shared with Go |
//! | `epoch` | N, rises with every change of the coordinator row | ours |
//! | `incarnation` | S, which process wrote the row | ours |
//! | `demand`, `held` | N, leases to be read, and held by this worker | ours |
//! | `behind_ms`, `behind_at` | N, how far this worker was behind its streams, at that epoch second | ours |
//! | `expires_at` | N, epoch second after which a worker's row may be swept away | ours |
//!
//! A put by a Go worker wipes our columns, so each of them may be missing at any time. An epoch therefore
//! begins at the wall clock's milliseconds and not at 1: after a wipe it does not come back to a number that
//! somebody slow may still remember.

use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::WallTime;
use tenure_store::{Condition, Item, Key, KeyAttribute, TableSpec, Update, Value, Write};

use super::machine::Target;

/// What the name of a coordinator row ends with; no worker may be called so.
pub(super) const COORDINATOR_SUFFIX: &str = "_coordinator";
/// An epoch beyond it was not counted up to, and the next could not be stored.
const EPOCH_MAX: u64 = i64::MAX.unsigned_abs() / 2;

/// The table of an application: `worker_id`, and `expires_at` as its time to live.
#[must_use]
pub fn table_spec(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("worker_id")).with_ttl("expires_at")
}

/// A row as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// A worker, or `<app>_coordinator`.
    pub worker_id: String,
    /// What a worker may hold.
    pub max_leases_per_worker: u64,
    /// The stream.
    pub stream_name: String,
    /// The application.
    pub app_name: String,
    /// Open shards, when the row was written.
    pub shard_count: u64,
    /// Workers, when the row was written.
    pub worker_count: u64,
    /// When the columns above were last written: RFC 3339, as whoever wrote it put it.
    pub last_update_time: String,
    /// What a Go worker does not store.
    pub ours: Ours,
}

/// The columns that a Go worker neither writes nor keeps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ours {
    /// Rises with every change of a coordinator row.
    pub epoch: Option<u64>,
    /// The process that wrote the row.
    pub incarnation: Option<String>,
    /// Leases that are not at their end, as the writer counted them.
    pub demand: Option<u64>,
    /// Leases that the worker holds.
    pub held: Option<u64>,
    /// How far the worker was behind its streams.
    pub behind: Option<Behind>,
    /// The epoch second after which a worker's row may be swept away.
    pub expires_at: Option<i64>,
}

/// How far a worker was behind its streams at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// The shard that was furthest behind, in milliseconds.
    pub ms: u64,
    /// When, in epoch seconds.
    pub at: i64,
}

impl Row {
    /// The row that an item is.
    ///
    /// # Errors
    /// `Corrupt`, naming the row and the column.
    pub fn of(table: &str, item: &Item) -> Result<Self> {
        let worker_id = item.text("worker_id").unwrap_or("?").to_owned();
        let columns = Columns { table, row: &worker_id, item };
        let row = Self {
            max_leases_per_worker: columns.positive("max_leases_per_worker")?,
            stream_name: columns.text("stream_name")?,
            app_name: columns.text("app_name")?,
            shard_count: columns.positive("shard_count")?,
            worker_count: columns.positive("worker_count")?,
            last_update_time: columns.text("last_update_time")?,
            ours: Ours {
                epoch: columns.optional("epoch")?,
                incarnation: columns.optional_text("incarnation")?,
                demand: columns.optional("demand")?,
                held: columns.optional("held")?,
                behind: match (columns.optional("behind_ms")?, columns.optional("behind_at")?) {
                    (Some(ms), Some(at)) => Some(Behind { ms, at: at.cast_signed() }),
                    _ => None,
                },
                expires_at: columns.optional("expires_at")?.map(u64::cast_signed),
            },
            worker_id: worker_id.clone(),
        };
        if row.ours.epoch.is_some_and(|epoch| epoch > EPOCH_MAX) {
            return Err(columns.bad("epoch", "too large to have been counted"));
        }
        Ok(row)
    }

    fn into_item(self) -> Item {
        let mut item = Item::new()
            .with("worker_id", self.worker_id)
            .with("max_leases_per_worker", self.max_leases_per_worker)
            .with("stream_name", self.stream_name)
            .with("app_name", self.app_name)
            .with("shard_count", self.shard_count)
            .with("worker_count", self.worker_count)
            .with("last_update_time", self.last_update_time);
        let Ours { epoch, incarnation, demand, held, behind, expires_at } = self.ours;
        let mut set = |name: &str, value: Option<Value>| {
            if let Some(value) = value {
                item.set(name, value);
            }
        };
        set("epoch", epoch.map(Value::from));
        set("incarnation", incarnation.map(Value::from));
        set("demand", demand.map(Value::from));
        set("held", held.map(Value::from));
        set("behind_ms", behind.map(|behind| Value::from(behind.ms)));
        set("behind_at", behind.map(|behind| Value::from(behind.at)));
        set("expires_at", expires_at.map(Value::from));
        item
    }

    /// What the row says of the fleet.
    #[must_use]
    pub const fn target(&self) -> Target {
        Target { shards: self.shard_count, workers: self.worker_count, max: self.max_leases_per_worker }
    }
}

/// Where the rows of one application are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The table.
    pub table: String,
    /// The stream.
    pub stream: String,
    /// The application.
    pub app: String,
}

impl Place {
    /// The name of the coordinator row.
    #[must_use]
    pub fn coordinator(&self) -> String {
        format!("{}{COORDINATOR_SUFFIX}", self.app)
    }

    /// The key of the coordinator row.
    #[must_use]
    pub fn coordinator_key(&self) -> Key {
        Self::key(&self.coordinator())
    }

    /// The key of a worker's row.
    #[must_use]
    pub fn key(worker: &str) -> Key {
        Key::new("worker_id", worker)
    }

    /// The coordinator row of an item: of this application, and of this stream.
    ///
    /// # Errors
    /// `Corrupt` if it cannot be read; `Invalid` if it belongs to somebody else.
    pub fn coordinator_row(&self, item: &Item) -> Result<Row> {
        let row = Row::of(&self.table, item)?;
        if row.app_name != self.app || row.stream_name != self.stream {
            return Err(Error::invalid(format!(
                "row `{}` of table `{}` is of application `{}` and stream `{}`, not of `{}` and `{}`: name \
                 another table for this one",
                row.worker_id, self.table, row.app_name, row.stream_name, self.app, self.stream
            )));
        }
        Ok(row)
    }

    /// A coordinator row of these numbers.
    #[must_use]
    pub fn new_coordinator(
        &self,
        target: Target,
        previous: Option<&Row>,
        incarnation: &str,
        demand: Option<u64>,
        now: WallTime,
    ) -> Row {
        let begins = u64::try_from(now.as_millis()).unwrap_or(1).clamp(1, EPOCH_MAX);
        let epoch = match previous.and_then(|row| row.ours.epoch) {
            Some(epoch) => begins.max(epoch + 1),
            None => begins,
        };
        let ours =
            Ours { epoch: Some(epoch), incarnation: Some(incarnation.to_owned()), demand, ..Ours::default() };
        self.row(self.coordinator(), target, now, ours)
    }

    /// A worker's row of these numbers.
    #[must_use]
    pub fn row(&self, worker_id: String, target: Target, now: WallTime, ours: Ours) -> Row {
        Row {
            worker_id,
            max_leases_per_worker: target.max,
            stream_name: self.stream.clone(),
            app_name: self.app.clone(),
            shard_count: target.shards,
            worker_count: target.workers,
            last_update_time: seconds_text(now),
            ours,
        }
    }

    /// Creates the coordinator row, if there is none.
    #[must_use]
    pub fn create(&self, row: Row) -> Write {
        Write::Put { table: self.table.clone(), item: row.into_item(), when: Condition::absent("worker_id") }
    }

    /// Changes the coordinator row, if it is still the one that was read.
    ///
    /// The columns that Go compares are compared too: a Go worker may change them and leave the epoch alone.
    /// They do not suffice, because they may change and change back.
    #[must_use]
    pub fn update(&self, read: &Row, row: Row) -> Write {
        let same = Condition::eq("shard_count", read.shard_count)
            .and(Condition::eq("worker_count", read.worker_count))
            .and(Condition::eq("last_update_time", read.last_update_time.as_str()));
        let epoch = match read.ours.epoch {
            Some(epoch) => Condition::eq("epoch", epoch),
            None => Condition::absent("epoch"),
        };
        let key = Self::key(&row.worker_id);
        let mut change = Update::new();
        for (name, value) in row.into_item() {
            if name != "worker_id" {
                change = change.set(name, value);
            }
        }
        Write::Update { table: self.table.clone(), key, change, when: same.and(epoch) }
    }

    /// Stores a worker's own row, unless another application has a worker of that name.
    #[must_use]
    pub fn save(&self, row: Row) -> Write {
        let when = Condition::absent("worker_id").or(Condition::eq("app_name", self.app.as_str()));
        Write::Put { table: self.table.clone(), item: row.into_item(), when }
    }

    /// Says that a worker lives, if the row is of this process, or was wiped by a Go worker's put. The columns
    /// that Go knows are left alone.
    #[must_use]
    pub fn heartbeat(&self, worker: &str, ours: &Ours, over: Heartbeat) -> Write {
        let Ours { epoch: _, incarnation, demand, held, behind, expires_at } = ours;
        let me = incarnation.as_deref().unwrap_or_default();
        let mut change = Update::new();
        if let Some(expires_at) = expires_at {
            change = change.set("expires_at", *expires_at);
        }
        if let Some(demand) = demand {
            change = change.set("demand", *demand);
        }
        if let Some(held) = held {
            change = change.set("held", *held);
        }
        change = match behind {
            Some(Behind { ms, at }) => change.set("behind_ms", *ms).set("behind_at", *at),
            None => change.remove("behind_ms").remove("behind_at"),
        };
        let when = match over {
            Heartbeat::Ours => Condition::eq("incarnation", me),
            Heartbeat::Wiped => {
                change = change.set("incarnation", me);
                Condition::absent("incarnation").and(Condition::eq("app_name", self.app.as_str()))
            }
        };
        Write::Update { table: self.table.clone(), key: Self::key(worker), change, when }
    }

    /// Removes the row of a worker that is gone, if it is still the one that was read. Absent for a row of a Go
    /// worker, which says nothing about whether it lives.
    #[must_use]
    pub fn sweep(&self, row: &Row) -> Option<Write> {
        let (incarnation, expires_at) = (row.ours.incarnation.as_deref()?, row.ours.expires_at?);
        let when = Condition::eq("incarnation", incarnation).and(Condition::eq("expires_at", expires_at));
        Some(Write::Delete { table: self.table.clone(), key: Self::key(&row.worker_id), when })
    }

    /// Removes a worker's own row on its way out.
    #[must_use]
    pub fn leave(&self, worker: &str, incarnation: &str) -> Write {
        Write::Delete {
            table: self.table.clone(),
            key: Self::key(worker),
            when: Condition::eq("incarnation", incarnation),
        }
    }
}

/// What a heartbeat expects of the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heartbeat {
    /// This process wrote it.
    Ours,
    /// A put wiped our columns.
    Wiped,
}

/// When a row may be swept away that is written now.
pub(super) const fn expiry(now: WallTime, keep: Duration) -> i64 {
    #[allow(clippy::cast_possible_wrap, reason = "settings bound it to ten years")]
    let keep_seconds = keep.as_secs() as i64;
    now.as_seconds() + keep_seconds
}

/// RFC 3339 in UTC, without the fraction: what Go's `time.RFC3339` shows.
fn seconds_text(now: WallTime) -> String {
    let shown = now.to_string();
    format!("{}Z", shown.split('.').next().unwrap_or_default())
}

/// Reads the columns of one row, and says which it could not read.
struct Columns<'a> {
    table: &'a str,
    row: &'a str,
    item: &'a Item,
}

impl Columns<'_> {
    fn text(&self, column: &str) -> Result<String> {
        match self.item.get(column) {
            Some(Value::S(text)) => Ok(text.clone()),
            Some(other) => Err(self.bad(column, &format!("{}, not text", shown(other)))),
            None => Err(self.bad(column, "missing")),
        }
    }

    /// A count that the formula divides or multiplies by: a 0 would be a lie that spreads.
    fn positive(&self, column: &str) -> Result<u64> {
        match self.item.get(column) {
            None => Err(self.bad(column, "missing")),
            Some(value) => match whole(value) {
                Some(0) => Err(self.bad(column, "0")),
                Some(number) => Ok(number),
                None => Err(self.bad(column, &format!("{}, not a whole number", shown(value)))),
            },
        }
    }

    fn optional(&self, column: &str) -> Result<Option<u64>> {
        self.item
            .get(column)
            .map(|value| {
                whole(value).ok_or_else(|| self.bad(column, &format!("{}, not a whole number", shown(value))))
            })
            .transpose()
    }

    fn optional_text(&self, column: &str) -> Result<Option<String>> {
        self.item.get(column).map(|_| self.text(column)).transpose()
    }

    fn bad(&self, column: &str, what: &str) -> Error {
        let Self { table, row, .. } = self;
        Error::new(
            Kind::Corrupt,
            format!(
                "column `{column}` of row `{row}` in table `{table}` is {what}: mend the row, or delete it"
            ),
        )
    }
}

/// A number from 0 to what an i64 holds.
fn whole(value: &Value) -> Option<u64> {
    value.as_i64().and_then(|number| u64::try_from(number).ok())
}

/// A value in a message: its type, and a number's digits.
fn shown(value: &Value) -> String {
    match value {
        Value::N(number) => format!("{number}"),
        other => format!("of type {}", other.type_name()),
    }
}

#[cfg(test)]
#[path = "rows_test.rs"]
mod tests;
