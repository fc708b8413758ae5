//! Where reading a shard begins, and with which marks: pure.
//!
//! | the lease says | reading begins | marks |
//! |---|---|---|
//! | a record, and marks that name it | right after it, or within it | as stored |
//! | a record, and no marks or others | within it: what is left of it, if anything | not known |
//! | TRIM_HORIZON, and there are parents | at the oldest record | what the parents' readers knew |
//! | LATEST, AT_TIMESTAMP, and marks that name it | where the first reader found it to be | not known |
//! | TRIM_HORIZON, LATEST, AT_TIMESTAMP | there | not known |
//!
//! LATEST is another place a second later, and the moment of AT_TIMESTAMP is a setting. So the first reader finds
//! out where that is and stores it ([`Opening::undecided`]) before it delivers anything: whoever takes over before
//! the first checkpoint begins there, too.
//!
//! Also from TRIM_HORIZON without parents the marks are not known: what a shard has trimmed in good time is
//! nobody's loss, and yet the event before the first may be missing.

use std::fmt;

use tenure_backend::{Error, Result};
use tenure_clock::WallTime;
use tenure_leases::{Checkpoint, Lease};
use tenure_stream::{HashRange, Position, SequenceNumber};

use crate::dedup::Dedup;
use crate::marks::{Begun, Marks};

/// Where to begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opening {
    /// Where to read.
    pub position: Position,
    /// What to leave out at the beginning: of this record all up to and including this part.
    pub skip: Option<(SequenceNumber, u64)>,
    /// The record that must come first; if it does not, it has been trimmed, and maybe more with it. 0 if there is
    /// none that could: then whatever comes is too late, unless `through` says otherwise.
    pub expect: Option<SequenceNumber>,
    /// All that arrived before this was read, or is nobody's loss.
    pub through: Option<WallTime>,
    /// What is stored beside the lease, if reading begins there.
    pub stored: Option<Marks>,
    /// What the lease says, if that would be another place later: to be found out and stored.
    pub undecided: Option<Checkpoint>,
    /// What is known of what came before.
    pub dedup: Dedup,
    /// Why marks that there should be are not known.
    pub doubt: Option<Doubt>,
}

/// Why marks are not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// None are stored with the checkpoint: another kind of worker wrote it.
    Absent,
    /// They belong to another checkpoint: another kind of worker has written one since.
    Other,
    /// They cannot be read.
    Damaged(String),
    /// Those of a parent are not known.
    Parent,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("none are stored with the checkpoint"),
            Self::Other => f.write_str("they belong to another checkpoint"),
            Self::Damaged(why) => f.write_str(why),
            Self::Parent => f.write_str("those of a parent shard are not known"),
        }
    }
}

/// Where a processor wants its shard to begin.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Start {
    /// Where the lease says.
    #[default]
    Lease,
    /// Where its own store says: see `TransactionalMarks`.
    Marks(Marks),
    /// With what these knew together, at the oldest record: the marks of the parents, from its own store.
    Parents(Vec<Marks>),
}

/// Where an operator wants a shard to be read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SeekTo {
    /// The oldest record that is kept.
    TrimHorizon,
    /// What comes from now on.
    Latest,
    /// The first record that arrived then or later.
    Timestamp(WallTime),
    /// This record.
    Sequence(SequenceNumber),
}

impl SeekTo {
    /// There, knowing nothing of what came before.
    #[must_use]
    pub fn opening(&self) -> Opening {
        let position = match self {
            Self::TrimHorizon => Position::TrimHorizon,
            Self::Latest => Position::Latest,
            Self::Timestamp(moment) => Position::AtTimestamp(*moment),
            Self::Sequence(sequence) => Position::At(sequence.clone()),
        };
        Opening::from(position)
    }
}

impl Opening {
    /// From the lease and what the processor says. `None`: the shard was read to its end.
    ///
    /// # Errors
    /// `Invalid` if a moment is asked for and none is configured.
    pub fn new(
        lease: &Lease,
        parents: &[Lease],
        start: &Start,
        timestamp: Option<WallTime>,
    ) -> Result<Option<Self>> {
        let range = lease.range.unwrap_or(HashRange::ALL);
        match start {
            Start::Marks(marks) => {
                let opening = Self::at(&marks.at, timestamp, marks.dedup.clone(), Some(marks.whole), None)?;
                // Where both stand at one place, the lease's may know better that nothing has come since.
                let beside = stored(lease).ok().filter(|beside| beside.at == marks.at);
                return Ok(opening.map(|opening| Self { through: marks.through, ..opening }.beside(beside)));
            }
            Start::Parents(marks) => {
                // A parent whose row says nothing may have marks beside its lease: what was stored there is never
                // ahead of what was committed.
                let rows = marks.iter().map(|marks| (Some(marks.clone()), None));
                let beside =
                    parents.iter().filter_map(|parent| Some((Some(stored(parent).ok()?), parent.range)));
                let known: Vec<_> = rows.chain(beside).collect();
                let dedup = Dedup::after(&with_missing(&known, lease), range);
                return Self::at(&Checkpoint::TrimHorizon, timestamp, dedup, None, None);
            }
            Start::Lease => {}
        }
        match &lease.checkpoint {
            Checkpoint::At { .. } => match stored(lease) {
                Ok(marks) => {
                    let dedup = marks.dedup.clone();
                    let opening = Self::at(&lease.checkpoint, timestamp, dedup, Some(marks.whole), None)?;
                    Ok(opening.map(|opening| opening.beside(Some(marks))))
                }
                Err(doubt) => Self::at(&lease.checkpoint, timestamp, Dedup::unknown(), None, Some(doubt)),
            },
            Checkpoint::TrimHorizon if !lease.parents.is_empty() => {
                let known: Vec<_> =
                    parents.iter().map(|parent| (stored(parent).ok(), parent.range)).collect();
                let states = with_missing(&known, lease);
                let doubt = states.iter().any(|(state, _)| state.is_none()).then_some(Doubt::Parent);
                Self::at(&lease.checkpoint, timestamp, Dedup::after(&states, range), None, doubt)
            }
            word @ (Checkpoint::Latest | Checkpoint::AtTimestamp) => {
                if let Some((begun, marks)) = begun(lease) {
                    return Ok(Some(Self::begun(&begun, marks)));
                }
                let opening = Self::at(word, timestamp, Dedup::unknown(), None, None)?;
                Ok(opening.map(|opening| Self { undecided: Some(word.clone()), ..opening }))
            }
            other => Self::at(other, timestamp, Dedup::unknown(), None, None),
        }
    }

    const fn from(position: Position) -> Self {
        Self {
            position,
            skip: None,
            expect: None,
            through: None,
            stored: None,
            undecided: None,
            dedup: Dedup::unknown(),
            doubt: None,
        }
    }

    fn begun(begun: &Begun, marks: Marks) -> Self {
        // A stream that counts in 64 bits says itself what it trimmed.
        let silent = matches!(begun, Begun::Since(_)) && marks.through.is_some();
        let dedup = marks.dedup.clone();
        let expect = silent.then(|| 0.into());
        Self { expect, dedup, ..Self::from(begun.position()) }.beside(Some(marks))
    }

    fn beside(mut self, stored: Option<Marks>) -> Self {
        self.through = self.through.max(stored.as_ref().and_then(|stored| stored.through));
        self.stored = stored;
        self
    }

    fn at(
        checkpoint: &Checkpoint,
        timestamp: Option<WallTime>,
        dedup: Dedup,
        whole: Option<bool>,
        doubt: Option<Doubt>,
    ) -> Result<Option<Self>> {
        let from = Self::from;
        let opening = match checkpoint {
            Checkpoint::ShardEnd => return Ok(None),
            Checkpoint::TrimHorizon => from(Position::TrimHorizon),
            Checkpoint::Latest => from(Position::Latest),
            Checkpoint::AtTimestamp => {
                let missing = || {
                    Error::invalid("the lease begins AT_TIMESTAMP: say at which moment (`initial_timestamp`)")
                };
                from(Position::AtTimestamp(timestamp.ok_or_else(missing)?))
            }
            Checkpoint::At { sequence, sub } => {
                let whole = whole == Some(true);
                // Kinesis does not say that a place was trimmed; that the record is missing says it.
                let silent = sequence.as_u64().is_none();
                let skip = if tenure_planted::is("skips_whole_record") { u64::MAX } else { *sub };
                match (whole, silent) {
                    (true, false) => from(Position::After(sequence.clone())),
                    (true, true) => Self {
                        skip: Some((sequence.clone(), u64::MAX)),
                        expect: Some(sequence.clone()),
                        ..from(Position::At(sequence.clone()))
                    },
                    (false, _) => Self {
                        skip: Some((sequence.clone(), skip)),
                        expect: silent.then(|| sequence.clone()),
                        ..from(Position::At(sequence.clone()))
                    },
                }
            }
        };
        Ok(Some(Self { dedup, doubt, ..opening }))
    }
}

/// What is known of each parent: nothing, of one that is gone.
fn with_missing<'a>(
    known: &'a [(Option<Marks>, Option<HashRange>)],
    lease: &Lease,
) -> Vec<(Option<&'a Dedup>, Option<HashRange>)> {
    let mut states: Vec<_> =
        known.iter().map(|(marks, range)| (marks.as_ref().map(|marks| &marks.dedup), *range)).collect();
    states.resize(states.len().max(lease.parents.len()), (None, None));
    states
}

/// Where the first reader of a lease found its checkpoint to be.
fn begun(lease: &Lease) -> Option<(Begun, Marks)> {
    let marks = stored(lease).ok()?;
    Some((marks.begun.clone()?, marks))
}

/// The marks of a lease, if they are those of its checkpoint.
fn stored(lease: &Lease) -> Result<Marks, Doubt> {
    let Some(bytes) = &lease.marks else { return Err(Doubt::Absent) };
    let marks = Marks::decode(bytes).map_err(|error| Doubt::Damaged(error.chain()))?;
    if marks.at == lease.checkpoint || tenure_planted::is("marks_of_another_checkpoint") {
        Ok(marks)
    } else {
        Err(Doubt::Other)
    }
}

#[cfg(test)]
#[path = "opening_test.rs"]
mod tests;
