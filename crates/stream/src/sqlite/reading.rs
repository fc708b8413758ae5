//! Finding places in a shard and reading from them.

use std::sync::Arc;

use bytes::Bytes;
use tenure_backend::Result;
use tenure_backend::sqlite::rusqlite::{OptionalExtension, params};
use tenure_clock::WallTime;

use super::Work;
use super::tables::{Head, Tables, signed};
use crate::embedded::{self, Horizon, Spot};
use crate::limits::BYTES_PER_READ;
use crate::lineage::unknown_shard;
use crate::{Cursor, Position, Read, ShardId, Stored};

/// The parts of a shard's row that a reader needs.
struct Place {
    number: u64,
    closed: bool,
    horizon: Horizon,
}

fn place(work: &Work<'_>, head: &Head, shard: &ShardId) -> Result<Place> {
    let number = shard.number().ok_or_else(|| unknown_shard(shard))?;
    let mut select = work.sql(work.connection.prepare_cached(
        "SELECT closed_seq IS NOT NULL, trimmed_seq FROM shards WHERE stream = ?1 AND number = ?2",
    ))?;
    let found = select
        .query_row(params![head.id, signed(number)], |row| {
            let trimmed = row.get::<_, i64>(1)?.cast_unsigned();
            Ok(Place { number, closed: row.get(0)?, horizon: Horizon { trimmed } })
        })
        .optional();
    work.sql(found)?.ok_or_else(|| unknown_shard(shard))
}

pub(super) fn cursor(work: &Work<'_>, shard: ShardId, position: &Position) -> Result<Cursor> {
    let head = work.head()?;
    let place = place(work, &head, &shard)?;
    let tables = Tables::of(head.id);
    let newest = work.newest(&head, &tables)?;
    let counter = newest.sequence;
    let next = match embedded::spot(position, counter, newest.arrived, work.now())? {
        Spot::From(next) => next,
        Spot::Oldest => place.horizon.trimmed + 1,
        Spot::ArrivedAt(time) => arrived_at(work, &tables, &place, time, counter)?,
    };
    Ok(embedded::at_number(shard, next))
}

/// The first record of the shard that arrived at `time` or later, or the one after the newest.
///
/// Dates never fall with the numbers, so halving the numbers finds it without an index of dates.
fn arrived_at(work: &Work<'_>, tables: &Tables, place: &Place, time: WallTime, counter: u64) -> Result<u64> {
    let mut first_from = work.sql(work.connection.prepare_cached(&tables.first_from))?;
    let mut first_from = |sequence: u64| {
        let found = first_from
            .query_row(params![signed(place.number), signed(sequence)], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), WallTime::from_millis(row.get(1)?)))
            })
            .optional();
        work.sql(found)
    };
    let (mut low, mut high) = (place.horizon.trimmed + 1, counter + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match first_from(middle)? {
            Some((sequence, arrived)) if arrived < time => low = sequence + 1,
            _ => high = middle,
        }
    }
    Ok(first_from(low)?.map_or(counter + 1, |(sequence, _)| sequence))
}

pub(super) fn read(work: &Work<'_>, cursor: &Cursor, limit: usize) -> Result<Read> {
    let head = work.head()?;
    let from = embedded::cursor_start(cursor)?;
    let place = place(work, &head, &cursor.shard)?;
    if let Some(trimmed) = place.horizon.missed(from) {
        return Ok(trimmed);
    }
    let seen = work.seen(&head)?;
    let mut select = work.sql(work.connection.prepare_cached(&seen.tables.read))?;
    // One more than asked for tells whether there is more.
    let asked = signed(limit as u64 + 1);
    let mut rows = work.sql(select.query(params![signed(place.number), signed(from), asked]))?;
    let mut records = Vec::new();
    let (mut bytes, mut more) = (0, false);
    while let Some(row) = work.sql(rows.next())? {
        more = records.len() == limit || bytes >= BYTES_PER_READ;
        if more {
            break;
        }
        let stored = (|| {
            Ok(Stored {
                shard: cursor.shard.clone(),
                sequence: row.get::<_, i64>(0)?.cast_unsigned().into(),
                arrived: WallTime::from_millis(row.get(1)?),
                partition_key: Arc::from(row.get_ref(2)?.as_str()?),
                data: Bytes::copy_from_slice(row.get_ref(3)?.as_blob()?),
            })
        })();
        let stored = work.sql(stored)?;
        bytes += stored.data.len() + stored.partition_key.len();
        records.push(stored);
    }
    if records.is_empty() {
        embedded::check_within(from, work.newest(&head, &seen.tables)?.sequence)?;
    }
    Ok(Read::Records(embedded::batch(cursor, records, more, place.closed, work.now())))
}
