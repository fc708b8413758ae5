//! What the two embedded backends have in common: retention, positions and cursors.

use std::time::Duration;

use tenure_backend::{Error, Result};
use tenure_clock::WallTime;

use crate::limits::{RECORD_BYTES_RANGE, check_shard_count};
use crate::stream::{Page, StreamSpec};
use crate::{Batch, Cursor, Position, Read, SequenceNumber, ShardId, Stored};

/// How long records are kept unless told otherwise: as long as Kinesis does.
pub(crate) const RETENTION_AGE: Duration = Duration::from_secs(24 * 3600);

/// How long a reader waits before it looks again for what another process may have put.
pub(crate) const READ_POLL: Duration = Duration::from_millis(20);

/// The number at which the first shards of a stream open.
pub(crate) const FIRST_SEQUENCE: u64 = 1;

/// How long and how much a stream keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retention {
    pub(crate) age: Duration,
    pub(crate) bytes: u64,
}

impl Retention {
    pub(crate) fn for_spec(self, spec: &StreamSpec) -> Self {
        Self {
            age: spec.retention_age.unwrap_or(self.age),
            bytes: spec.retention_bytes.unwrap_or(self.bytes),
        }
    }

    pub(crate) fn changed(self, age: Option<Duration>, bytes: Option<u64>) -> Result<Self> {
        let changed = Self { age: age.unwrap_or(self.age), bytes: bytes.unwrap_or(self.bytes) };
        check_retention(changed.age, changed.bytes)?;
        Ok(changed)
    }
}

/// Refuses a specification that no stream can have.
pub(crate) fn check_spec(spec: &StreamSpec) -> Result<()> {
    check_shard_count(spec.shards)?;
    if !RECORD_BYTES_RANGE.contains(&spec.record_bytes_max) {
        return Err(Error::invalid(format!(
            "records of up to {} bytes: allow {} to {}",
            spec.record_bytes_max,
            RECORD_BYTES_RANGE.start(),
            RECORD_BYTES_RANGE.end()
        )));
    }
    check_retention(spec.retention_age.unwrap_or(RETENTION_AGE), spec.retention_bytes.unwrap_or(u64::MAX))
}

fn check_retention(age: Duration, bytes: u64) -> Result<()> {
    if age.is_zero() || bytes == 0 {
        return Err(Error::invalid("retention of nothing: keep records for some time and some bytes"));
    }
    Ok(())
}

pub(crate) fn no_stream(name: &str, place: &str) -> Error {
    Error::invalid(format!(
        "no stream `{name}` in {place}: create it (tenure stream create), or mend the name"
    ))
}

/// The shard number after which a page begins.
pub(crate) fn page_start(page: &Page) -> Result<Option<u64>> {
    let Some(token) = &page.token else { return Ok(None) };
    let number = token.0.parse().map_err(|_| Error::invalid("the page token is not of this stream"))?;
    Ok(Some(number))
}

/// A position in terms of the stream's counter.
pub(crate) enum Spot {
    /// From this number on.
    From(u64),
    /// From the oldest record that is kept.
    Oldest,
    /// From the first record that arrived at or after a moment that has passed.
    ArrivedAt(WallTime),
}

/// What a position means while the stream's highest number is `counter` and its newest date `newest`.
///
/// Dates never go back, so after the wall clock did they lie ahead of `now`.
pub(crate) fn spot(position: &Position, counter: u64, newest: WallTime, now: WallTime) -> Result<Spot> {
    // One past the newest is where a reader goes on after everything before was trimmed.
    let known = |sequence: &SequenceNumber, highest: u64| {
        sequence.as_u64().filter(|&number| number <= highest).ok_or_else(|| {
            Error::invalid(format!(
                "sequence number {sequence} did not come from this stream, whose newest is {counter}: was it created anew?"
            ))
        })
    };
    Ok(match position {
        Position::TrimHorizon => Spot::Oldest,
        Position::Latest => Spot::From(counter + 1),
        Position::At(sequence) => Spot::From(known(sequence, counter + 1)?),
        Position::After(sequence) => Spot::From(known(sequence, counter)? + 1),
        Position::AtTimestamp(time) if *time > now.max(newest) => Spot::From(counter + 1),
        Position::AtTimestamp(time) => Spot::ArrivedAt(*time),
    })
}

/// A cursor that stands before the first record numbered `next` or higher.
pub(crate) fn at_number(shard: ShardId, next: u64) -> Cursor {
    Cursor { shard, position: Position::At(next.into()), token: None }
}

/// The lowest number that a read of this cursor may answer.
pub(crate) fn cursor_start(cursor: &Cursor) -> Result<u64> {
    match &cursor.position {
        Position::At(sequence) => sequence.as_u64(),
        _ => None,
    }
    .ok_or_else(|| Error::invalid("the cursor belongs to another stream: make one with `cursor`"))
}

/// Refuses a cursor that stands beyond everything: it was made for an earlier stream of that name, and
/// would skip what this one gets until its numbers have caught up.
pub(crate) fn check_within(from: u64, counter: u64) -> Result<()> {
    if from <= counter + 1 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the cursor stands at {from}, but the stream's newest number is {counter}: it was created anew; begin again"
    )))
}

/// What a shard has lost to trimming.
pub(crate) struct Horizon {
    /// The highest number of the shard's records that was trimmed.
    pub(crate) trimmed: u64,
}

impl Horizon {
    /// The answer for a reader that stands below the horizon.
    pub(crate) fn missed(&self, from: u64) -> Option<Read> {
        (from <= self.trimmed && self.trimmed > 0)
            .then(|| Read::Trimmed { from: from.into(), to: (self.trimmed + 1).into() })
    }
}

/// Puts together what a read of an embedded stream answers.
pub(crate) fn batch(cursor: &Cursor, records: Vec<Stored>, more: bool, closed: bool, now: WallTime) -> Batch {
    let behind = match records.last() {
        // Never zero while more waits, whatever the wall clock says: zero means "caught up".
        Some(last) if more => Duration::from_millis(
            now.as_millis().saturating_sub(last.arrived.as_millis()).max(1).unsigned_abs(),
        ),
        _ => Duration::ZERO,
    };
    let next = if closed && !more {
        None
    } else {
        let after = records.last().and_then(|last| last.sequence.as_u64());
        Some(after.map_or_else(|| cursor.clone(), |last| at_number(cursor.shard.clone(), last + 1)))
    };
    Batch { records, next, behind }
}
