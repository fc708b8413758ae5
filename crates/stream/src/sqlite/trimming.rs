//! Dropping what is older, or more, than what the stream keeps.
//!
//! No call scans: each step looks at a bounded number of the oldest records. Puts take a step now and
//! then; a reader that sees something overdue asks for one.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use tenure_backend::Result;
use tenure_backend::sqlite::rusqlite::params;
use tenure_clock::{Monotonic, WallTime};

use super::tables::{Head, Newest, signed};
use super::{Seen, Work};

/// Most records that one step drops, and most shards: a few milliseconds of the file's lock.
const STEP: usize = 2000;

/// Time between two steps of one process while nothing presses.
const INTERVAL: Duration = Duration::from_millis(250);

/// How long a step that a reader asked for may wait for the file.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// When this process last took a step, and what it put since.
#[derive(Debug, Default)]
pub(super) struct Pace {
    next: Monotonic,
    bytes: u64,
}

impl Pace {
    /// Whether to take a step now: some time has passed, or much was put.
    ///
    /// "Much" is a share of what is kept, so that the excess stays small, and the work, too.
    pub(super) fn due(&mut self, now: Monotonic, put_bytes: u64, kept_bytes_max: u64) -> bool {
        self.bytes = self.bytes.saturating_add(put_bytes);
        let due = now >= self.next || self.bytes > kept_bytes_max / 16;
        if due {
            self.next = now + INTERVAL;
            self.bytes = 0;
        }
        due
    }
}

impl Pace {
    /// The next step is due at once.
    fn hurry(&mut self) {
        self.next = Monotonic::default();
    }
}

/// Whether a reader sees something that should have gone, at most once per interval.
pub(super) fn overdue(work: &Work<'_>) -> Result<bool> {
    let due = work.shared.pace.lock().unwrap_or_else(PoisonError::into_inner).due(
        work.shared.clock.monotonic(),
        0,
        u64::MAX,
    );
    if !due {
        return Ok(false);
    }
    let head = work.head()?;
    let oldest_kept = work.now() - head.retention.age;
    let seen = work.seen(&head)?;
    let newest = work.newest(&head, &seen.tables)?;
    let old = oldest(work, &seen, 1)?.iter().any(|row| row.must_go(&newest, &head, oldest_kept));
    Ok(old || seen.lineage.closed_before(oldest_kept).next().is_some())
}

/// One step on its own, for a stream that may have been deleted meanwhile.
pub(super) fn step(work: &Work<'_>) -> Result<()> {
    let Some(head) = work.find_head()? else { return Ok(()) };
    let seen = work.seen(&head)?;
    let newest = work.newest(&head, &seen.tables)?;
    trim(work, &head, &seen, newest)
}

/// Drops the oldest records that must go, up to a step's worth, and shards of which nothing is left.
pub(super) fn trim(work: &Work<'_>, head: &Head, seen: &Seen, newest: Newest) -> Result<()> {
    let oldest_kept = work.now() - head.retention.age;
    if oldest(work, seen, 1)?.iter().any(|row| row.must_go(&newest, head, oldest_kept)) {
        drop_records(work, head, seen, newest, oldest_kept)?;
    }
    drop_shards(work, head, seen, oldest_kept)
}

struct Oldest {
    sequence: i64,
    shard: i64,
    arrived: WallTime,
    bytes_through: u64,
    size: u64,
}

impl Oldest {
    fn must_go(&self, newest: &Newest, head: &Head, oldest_kept: WallTime) -> bool {
        let kept_bytes = newest.bytes_through + self.size - self.bytes_through;
        self.arrived < oldest_kept || kept_bytes > head.retention.bytes
    }
}

fn oldest(work: &Work<'_>, seen: &Seen, limit: usize) -> Result<Vec<Oldest>> {
    let mut select = work.sql(work.connection.prepare_cached(&seen.tables.oldest))?;
    let rows = select.query_map([signed(limit as u64)], |row| {
        Ok(Oldest {
            sequence: row.get(0)?,
            shard: row.get(1)?,
            arrived: WallTime::from_millis(row.get(2)?),
            bytes_through: row.get::<_, i64>(3)?.cast_unsigned(),
            size: row.get::<_, i64>(4)?.cast_unsigned(),
        })
    });
    work.sql(rows.and_then(Iterator::collect))
}

fn drop_records(
    work: &Work<'_>,
    head: &Head,
    seen: &Seen,
    newest: Newest,
    oldest_kept: WallTime,
) -> Result<()> {
    let (mut through, mut dropped) = (None, 0);
    let mut last_of_shard = BTreeMap::new();
    for row in oldest(work, seen, STEP)?.iter().take_while(|row| row.must_go(&newest, head, oldest_kept)) {
        last_of_shard.insert(row.shard, row.sequence);
        through = Some(row.sequence);
        dropped += 1;
    }
    let Some(through) = through else { return Ok(()) };
    if dropped == STEP {
        // There may be more to drop: the next put takes the next step. A put stores fewer records than a
        // step drops, so what is kept comes back to its bound however fast records come in.
        work.shared.pace.lock().unwrap_or_else(PoisonError::into_inner).hurry();
    }
    let mut mark = work.sql(work.connection.prepare_cached(
        "UPDATE shards SET trimmed_seq = max(trimmed_seq, ?3) WHERE stream = ?1 AND number = ?2",
    ))?;
    for (shard, sequence) in last_of_shard {
        work.sql(mark.execute(params![head.id, shard, sequence]))?;
    }
    let mut delete = work.sql(work.connection.prepare_cached(&seen.tables.trim))?;
    work.sql(delete.execute([through]))?;
    // Should all records go, the next one still follows the newest there was.
    let mut keep = work.sql(work.connection.prepare_cached(
        "UPDATE streams SET sequence = max(sequence, ?2), bytes_through = ?3, arrived_ms = ?4 WHERE id = ?1",
    ))?;
    let kept =
        params![head.id, signed(newest.sequence), signed(newest.bytes_through), newest.arrived.as_millis()];
    work.sql(keep.execute(kept)).map(drop)
}

/// A shard that closed empty (in the middle of a rescale, say) stays as long as a record would, so
/// that readers can follow the lineage across it.
fn drop_shards(work: &Work<'_>, head: &Head, seen: &Seen, oldest_kept: WallTime) -> Result<()> {
    let mut dropped = false;
    for number in seen.lineage.closed_before(oldest_kept).take(STEP) {
        let mut first = work.sql(work.connection.prepare_cached(&seen.tables.first_from))?;
        if work.sql(first.exists(params![signed(number), 0]))? {
            continue;
        }
        let mut delete =
            work.sql(work.connection.prepare_cached("DELETE FROM shards WHERE stream = ?1 AND number = ?2"))?;
        work.sql(delete.execute(params![head.id, signed(number)]))?;
        dropped = true;
    }
    if !dropped {
        return Ok(());
    }
    let mut mark =
        work.sql(work.connection.prepare_cached("UPDATE streams SET generation = ?2 WHERE id = ?1"))?;
    work.sql(mark.execute(params![head.id, work.shared.entropy.u64().cast_signed()])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_after_some_time_or_many_bytes() {
        let mut pace = Pace::default();
        let at = |millis: u64| Monotonic::from_nanos(millis * 1_000_000);
        assert!(pace.due(at(1000), 1, 1600));
        assert!(!pace.due(at(1001), 100, 1600));
        assert!(pace.due(at(1002), 1, 1600));
        assert!(!pace.due(at(1003), 1, 1600));
        assert!(pace.due(at(1252), 0, 1600));
    }
}
