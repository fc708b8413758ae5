//! What is stored, and the statements on it.
//!
//! ```text
//!   streams      one row each: its mark (changes with its shards), what it keeps, and the least that
//!                the next number, byte count and date may be (kept for when all records are gone)
//!   shards       one row each, by stream and number; hash keys are 16 bytes, big-endian
//!   records_<id> the records of one stream, in the order of its counter, with an index by shard
//! ```
//!
//! `bytes_through` counts all bytes that ever went into the stream up to and including the record, so
//! that the size of what is kept is a difference of two rows and needs no counter of its own.

use std::time::Duration;

use tenure_backend::Result;
use tenure_backend::sqlite::FileSpec;
use tenure_backend::sqlite::rusqlite::{OptionalExtension, Row, params};
use tenure_clock::WallTime;

use super::Work;
use crate::embedded::{FIRST_SEQUENCE, Retention};
use crate::lineage::{Closed, Entry, Lineage};
use crate::stream::StreamSpec;
use crate::{HashKey, HashRange, Limits};

/// "Tens" in ASCII: Tenure's stream.
const APPLICATION_ID: i32 = 0x5465_6e73;

const SCHEMA: &str = "
    CREATE TABLE streams(
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL UNIQUE,
        generation INTEGER NOT NULL,
        next_shard INTEGER NOT NULL,
        sequence INTEGER NOT NULL,
        bytes_through INTEGER NOT NULL,
        arrived_ms INTEGER NOT NULL,
        retention_age_ms INTEGER NOT NULL,
        retention_bytes INTEGER NOT NULL,
        record_bytes_max INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE shards(
        stream INTEGER NOT NULL,
        number INTEGER NOT NULL,
        parent INTEGER,
        adjacent INTEGER,
        start_hash BLOB NOT NULL,
        end_hash BLOB NOT NULL,
        opened_seq INTEGER NOT NULL,
        closed_seq INTEGER,
        closed_ms INTEGER,
        trimmed_seq INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY(stream, number)
    ) STRICT, WITHOUT ROWID;
";

pub(super) fn file_spec(vfs: Option<String>) -> FileSpec {
    FileSpec { role: "stream", application_id: APPLICATION_ID, format: 1, schema: SCHEMA, vfs }
}

/// The row of a stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head {
    pub(super) id: i64,
    /// Drawn anew at every change of the shards, so that a change that was rolled back cannot be
    /// mistaken for one that was not.
    pub(super) generation: i64,
    pub(super) next_shard: u64,
    pub(super) least: Newest,
    pub(super) retention: Retention,
    pub(super) limits: Limits,
}

/// The newest record's number, byte count and date: what the next one's follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) sequence: u64,
    pub(super) bytes_through: u64,
    pub(super) arrived: WallTime,
}

/// The statements on the records of one stream.
#[derive(Debug, Clone)]
pub(super) struct Tables {
    pub(super) newest: String,
    pub(super) insert: String,
    pub(super) oldest: String,
    pub(super) first_from: String,
    pub(super) read: String,
    pub(super) trim: String,
}

impl Tables {
    pub(super) fn of(id: i64) -> Self {
        Self {
            newest: format!(
                "SELECT seq, bytes_through, arrived_ms FROM records_{id} ORDER BY seq DESC LIMIT 1"
            ),
            insert: format!("INSERT INTO records_{id} VALUES (?1, ?2, ?3, ?4, ?5, ?6)"),
            oldest: format!(
                "SELECT seq, shard, arrived_ms, bytes_through, octet_length(partition_key) + length(data) \
                 FROM records_{id} ORDER BY seq LIMIT ?1"
            ),
            first_from: format!(
                "SELECT seq, arrived_ms FROM records_{id} WHERE shard = ?1 AND seq >= ?2 ORDER BY seq LIMIT 1"
            ),
            read: format!(
                "SELECT seq, arrived_ms, partition_key, data FROM records_{id} \
                 WHERE shard = ?1 AND seq >= ?2 ORDER BY seq LIMIT ?3"
            ),
            trim: format!("DELETE FROM records_{id} WHERE seq <= ?1"),
        }
    }
}

/// SQLite's integers are signed; ours stay far below the sign.
pub(super) const fn signed(number: u64) -> i64 {
    number.cast_signed()
}

fn unsigned(row: &Row<'_>, column: usize) -> tenure_backend::sqlite::rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(i64::cast_unsigned)
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

impl Work<'_> {
    pub(super) fn find_head(&self) -> Result<Option<Head>> {
        let mut select = self.sql(self.connection.prepare_cached(
            "SELECT id, generation, next_shard, sequence, bytes_through, arrived_ms, retention_age_ms, \
             retention_bytes, record_bytes_max FROM streams WHERE name = ?1",
        ))?;
        let head = select.query_row([&*self.shared.name], |row| {
            Ok(Head {
                id: row.get(0)?,
                generation: row.get(1)?,
                next_shard: unsigned(row, 2)?,
                least: Newest {
                    sequence: unsigned(row, 3)?,
                    bytes_through: unsigned(row, 4)?,
                    arrived: WallTime::from_millis(row.get(5)?),
                },
                retention: Retention {
                    age: Duration::from_millis(unsigned(row, 6)?),
                    bytes: unsigned(row, 7)?,
                },
                limits: Limits::for_record_bytes(usize::try_from(unsigned(row, 8)?).unwrap_or(usize::MAX)),
            })
        });
        self.sql(head.optional())
    }

    /// The newest record, or what is left to know of those that were trimmed.
    pub(super) fn newest(&self, head: &Head, tables: &Tables) -> Result<Newest> {
        let mut select = self.sql(self.connection.prepare_cached(&tables.newest))?;
        let last = self.sql(
            select
                .query_row([], |row| {
                    Ok(Newest {
                        sequence: unsigned(row, 0)?,
                        bytes_through: unsigned(row, 1)?,
                        arrived: WallTime::from_millis(row.get(2)?),
                    })
                })
                .optional(),
        )?;
        let Some(last) = last else { return Ok(head.least) };
        // A split or merge takes numbers without adding a record.
        Ok(Newest { sequence: last.sequence.max(head.least.sequence), ..last })
    }

    pub(super) fn create(&self, spec: &StreamSpec, retention: Retention) -> Result<()> {
        let lineage = Lineage::uniform(spec.shards, FIRST_SEQUENCE);
        self.sql(self.connection.execute(
            "INSERT INTO streams(name, generation, next_shard, sequence, bytes_through, arrived_ms, \
             retention_age_ms, retention_bytes, record_bytes_max) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8)",
            params![
                &*self.shared.name,
                self.shared.entropy.u64().cast_signed(),
                signed(lineage.next_number()),
                signed(FIRST_SEQUENCE),
                i64::MIN,
                millis(retention.age),
                i64::try_from(retention.bytes).unwrap_or(i64::MAX),
                signed(spec.record_bytes_max as u64),
            ],
        ))?;
        let id = self.connection.last_insert_rowid();
        self.sql(self.connection.execute_batch(&format!(
            "CREATE TABLE records_{id}(
                seq INTEGER PRIMARY KEY,
                shard INTEGER NOT NULL,
                arrived_ms INTEGER NOT NULL,
                bytes_through INTEGER NOT NULL,
                partition_key TEXT NOT NULL,
                data BLOB NOT NULL
            ) STRICT;
            CREATE INDEX records_{id}_by_shard ON records_{id}(shard);"
        )))?;
        lineage.after(None).try_for_each(|entry| self.store_entry(id, entry))
    }

    pub(super) fn delete(&self, head: &Head) -> Result<()> {
        let id = head.id;
        self.sql(self.connection.execute_batch(&format!(
            "DROP TABLE records_{id}; DELETE FROM shards WHERE stream = {id}; DELETE FROM streams WHERE id = {id};"
        )))
    }

    pub(super) fn open_shards(&self, stream: i64) -> Result<u32> {
        self.sql(self.connection.query_row(
            "SELECT count(*) FROM shards WHERE stream = ?1 AND closed_seq IS NULL",
            [stream],
            |row| row.get(0),
        ))
    }

    /// Up to `limit` shards after number `after`, in order.
    pub(super) fn entries(&self, stream: i64, after: Option<u64>, limit: usize) -> Result<Vec<Entry>> {
        let mut select = self.sql(self.connection.prepare_cached(
            "SELECT number, parent, adjacent, start_hash, end_hash, opened_seq, closed_seq, closed_ms \
             FROM shards WHERE stream = ?1 AND number > ?2 ORDER BY number LIMIT ?3",
        ))?;
        let after = after.map_or(-1, signed);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.sql(select.query_map(params![stream, after, limit], entry).and_then(Iterator::collect))
    }

    fn store_entry(&self, stream: i64, entry: &Entry) -> Result<()> {
        let mut insert = self.sql(self.connection.prepare_cached(
            "INSERT INTO shards(stream, number, parent, adjacent, start_hash, end_hash, opened_seq, closed_seq, \
             closed_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
             ON CONFLICT DO UPDATE SET closed_seq = excluded.closed_seq, closed_ms = excluded.closed_ms",
        ))?;
        let stored = insert.execute(params![
            stream,
            signed(entry.number),
            entry.parent.map(signed),
            entry.adjacent.map(signed),
            entry.range.start.0.to_be_bytes(),
            entry.range.end.0.to_be_bytes(),
            signed(entry.opened),
            entry.closed.map(|closed| signed(closed.sequence)),
            entry.closed.map(|closed| closed.at.as_millis()),
        ]);
        self.sql(stored).map(drop)
    }

    /// Stores what a split, merge or rescale changed, and gives the shards a new mark.
    pub(super) fn store_reshaped(
        &self,
        head: &Head,
        before: &Lineage,
        after: &Lineage,
        counter: u64,
    ) -> Result<()> {
        let mut old = before.after(None).peekable();
        for entry in after.after(None) {
            let unchanged = old.next_if(|old| old.number == entry.number).is_some_and(|old| old == entry);
            if !unchanged {
                self.store_entry(head.id, entry)?;
            }
        }
        let mut update = self.sql(self.connection.prepare_cached(
            "UPDATE streams SET generation = ?2, next_shard = ?3, sequence = max(sequence, ?4) WHERE id = ?1",
        ))?;
        let generation = self.shared.entropy.u64().cast_signed();
        self.sql(update.execute(params![head.id, generation, signed(after.next_number()), signed(counter)]))
            .map(drop)
    }
}

fn entry(row: &Row<'_>) -> tenure_backend::sqlite::rusqlite::Result<Entry> {
    let hash_key = |column| row.get(column).map(|bytes| HashKey(u128::from_be_bytes(bytes)));
    let number = |column| row.get::<_, Option<i64>>(column).map(|number| number.map(i64::cast_unsigned));
    let closed_ms: Option<i64> = row.get(7)?;
    Ok(Entry {
        number: unsigned(row, 0)?,
        parent: number(1)?,
        adjacent: number(2)?,
        range: HashRange { start: hash_key(3)?, end: hash_key(4)? },
        opened: unsigned(row, 5)?,
        closed: number(6)?
            .zip(closed_ms)
            .map(|(sequence, at)| Closed { sequence, at: WallTime::from_millis(at) }),
    })
}
