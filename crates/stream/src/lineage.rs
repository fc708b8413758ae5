//! The shards of an embedded stream, open and closed, and how they descend from each other.
//!
//! Memory and SQLite keep their shards in different places and change them by the rules here. Every
//! change takes two numbers of the stream's counter: the last of what is closed, then the first of
//! what is opened, so that a child's records come after all of its parents'.
//!
//! Invariant: the ranges of the open shards leave no gap and do not overlap.

use std::collections::{BTreeMap, BTreeSet};

use tenure_backend::{Error, Result};
use tenure_clock::WallTime;

use crate::limits::check_shard_count;
use crate::reshaping::{Step, reshape};
use crate::{HashKey, HashRange, SequenceNumber, Shard, ShardId};

/// One shard, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) number: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) adjacent: Option<u64>,
    pub(crate) range: HashRange,
    pub(crate) opened: u64,
    pub(crate) closed: Option<Closed>,
}

/// The end of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed {
    pub(crate) sequence: u64,
    pub(crate) at: WallTime,
}

impl Entry {
    pub(crate) fn shard(&self) -> Shard {
        Shard {
            id: ShardId::numbered(self.number),
            parent: self.parent.map(ShardId::numbered),
            adjacent_parent: self.adjacent.map(ShardId::numbered),
            hash_range: self.range,
            first_sequence: self.opened.into(),
            last_sequence: self.closed.map(|closed| SequenceNumber::from(closed.sequence)),
        }
    }
}

/// All shards of one stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lineage {
    entries: BTreeMap<u64, Entry>,
    /// Open shards by the first point of their range.
    open: BTreeMap<HashKey, u64>,
    /// Closed shards by the moment they closed.
    closed: BTreeSet<(WallTime, u64)>,
    next_number: u64,
}

/// What a change takes from the stream: its counter, and the moment.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) counter: &'a mut u64,
    pub(crate) now: WallTime,
}

impl Change<'_> {
    fn next(&mut self) -> u64 {
        *self.counter += 1;
        *self.counter
    }
}

impl Lineage {
    /// `count` shards of one size, all opened at `opened`.
    pub(crate) fn uniform(count: u32, opened: u64) -> Self {
        let mut lineage = Self::default();
        for range in HashRange::uniform(count) {
            lineage.open_shard(None, None, range, opened);
        }
        lineage
    }

    /// What was stored before. `next_number` is above all numbers ever given.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "memory keeps its lineage as it is"))]
    pub(crate) fn restored(entries: impl Iterator<Item = Entry>, next_number: u64) -> Self {
        let mut lineage = Self { next_number, ..Self::default() };
        for entry in entries {
            match entry.closed {
                None => drop(lineage.open.insert(entry.range.start, entry.number)),
                Some(closed) => drop(lineage.closed.insert((closed.at, entry.number))),
            }
            lineage.entries.insert(entry.number, entry);
        }
        lineage
    }

    /// The number that the next shard gets.
    #[cfg_attr(not(feature = "sqlite"), allow(dead_code, reason = "memory keeps its lineage as it is"))]
    pub(crate) const fn next_number(&self) -> u64 {
        self.next_number
    }

    /// How many shards are open.
    pub(crate) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// All shards after `number`, in the order of their numbers.
    pub(crate) fn after(&self, number: Option<u64>) -> impl Iterator<Item = &Entry> {
        self.entries.range(number.map_or(0, |number| number.saturating_add(1))..).map(|(_, entry)| entry)
    }

    /// The shard with this name.
    pub(crate) fn named(&self, id: &ShardId) -> Result<&Entry> {
        id.number().and_then(|number| self.entries.get(&number)).ok_or_else(|| unknown_shard(id))
    }

    /// The open shard that owns this point.
    ///
    /// # Panics
    /// If the open shards leave a gap, which no change makes.
    pub(crate) fn route(&self, key: HashKey) -> &Entry {
        let number = self.open.range(..=key).next_back().map(|(_, number)| number);
        number.and_then(|number| self.entries.get(number)).expect("the open shards cover the hash space")
    }

    /// Closes a shard and opens two: the part below `at`, and the part from `at` on.
    pub(crate) fn split(&mut self, id: &ShardId, at: HashKey, mut change: Change<'_>) -> Result<()> {
        let entry = *self.named_open(id)?;
        self.cut(entry.number, at, &mut change)
    }

    fn cut(&mut self, number: u64, at: HashKey, change: &mut Change<'_>) -> Result<()> {
        let range = self.entries[&number].range;
        let (lower, upper) =
            range.split(at).ok_or_else(|| impossible_split(&ShardId::numbered(number), range, at))?;
        self.close(&[number], change);
        let opened = change.next();
        self.open_shard(Some(number), None, lower, opened);
        self.open_shard(Some(number), None, upper, opened);
        Ok(())
    }

    /// Closes two neighbours and opens one.
    pub(crate) fn merge(&mut self, id: &ShardId, adjacent: &ShardId, mut change: Change<'_>) -> Result<()> {
        let (one, two) = (*self.named_open(id)?, *self.named_open(adjacent)?);
        self.join(one.number, two.number, &mut change)
    }

    fn join(&mut self, one: u64, two: u64, change: &mut Change<'_>) -> Result<()> {
        let (first, second) = (self.entries[&one].range, self.entries[&two].range);
        let range = if first.touches(&second) {
            HashRange { start: first.start, end: second.end }
        } else if second.touches(&first) {
            HashRange { start: second.start, end: first.end }
        } else {
            return Err(Error::invalid(format!(
                "{} and {} cannot be merged: their hash ranges do not touch",
                ShardId::numbered(one),
                ShardId::numbered(two)
            )));
        };
        self.close(&[one, two], change);
        let opened = change.next();
        self.open_shard(Some(one), Some(two), range, opened);
        Ok(())
    }

    /// Splits and merges until there are `count` open shards of one size.
    pub(crate) fn rescale(&mut self, count: u32, mut change: Change<'_>) -> Result<()> {
        check_shard_count(count)?;
        let mut numbers: Vec<u64> = self.open.values().copied().collect();
        let ranges: Vec<HashRange> = numbers.iter().map(|number| self.entries[number].range).collect();
        for step in reshape(&ranges, &HashRange::uniform(count)) {
            let first_new = self.next_number;
            match step {
                Step::Split { shard, at } => self.cut(numbers[shard], at, &mut change)?,
                Step::Merge { lower, upper } => self.join(numbers[lower], numbers[upper], &mut change)?,
            }
            numbers.extend(first_new..self.next_number);
        }
        Ok(())
    }

    /// The shards that closed before `moment`, the oldest first.
    pub(crate) fn closed_before(&self, moment: WallTime) -> impl Iterator<Item = u64> {
        self.closed.range(..(moment, 0)).map(|(_, number)| *number)
    }

    /// Drops a closed shard of which nothing is left.
    pub(crate) fn forget(&mut self, number: u64) {
        let Some(closed) = self.entries.get(&number).and_then(|entry| entry.closed) else { return };
        self.closed.remove(&(closed.at, number));
        self.entries.remove(&number);
    }

    fn named_open(&self, id: &ShardId) -> Result<&Entry> {
        let entry = self.named(id)?;
        if entry.closed.is_some() {
            return Err(Error::invalid(format!("{id} is closed: use its children instead")));
        }
        Ok(entry)
    }

    fn close(&mut self, numbers: &[u64], change: &mut Change<'_>) {
        let closed = Closed { sequence: change.next(), at: change.now };
        for number in numbers {
            let entry = self.entries.get_mut(number).expect("closed by its number");
            entry.closed = Some(closed);
            self.open.remove(&entry.range.start);
            self.closed.insert((closed.at, *number));
        }
    }

    fn open_shard(&mut self, parent: Option<u64>, adjacent: Option<u64>, range: HashRange, opened: u64) {
        let number = self.next_number;
        self.next_number += 1;
        self.open.insert(range.start, number);
        self.entries.insert(number, Entry { number, parent, adjacent, range, opened, closed: None });
    }
}

pub(crate) fn unknown_shard(id: &ShardId) -> Error {
    Error::invalid(format!("no shard {id}: it was trimmed away or never was; list the shards"))
}

pub(crate) fn impossible_split(id: &ShardId, range: HashRange, at: HashKey) -> Error {
    Error::invalid(format!(
        "{id} cannot be split at {at}: choose a hash key above {} and up to {}",
        range.start, range.end
    ))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn covers_the_space(lineage: &Lineage) -> bool {
        let ranges: Vec<_> = lineage.open.values().map(|number| lineage.entries[number].range).collect();
        ranges.first().is_some_and(|range| range.start == HashKey::MIN)
            && ranges.last().is_some_and(|range| range.end == HashKey::MAX)
            && ranges.windows(2).all(|pair| pair[0].touches(&pair[1]))
    }

    fn change(counter: &mut u64) -> Change<'_> {
        Change { counter, now: WallTime::from_millis(0) }
    }

    #[test]
    fn children_begin_after_their_parents_end() {
        let mut counter = 10;
        let mut lineage = Lineage::uniform(1, 1);
        lineage.split(&ShardId::numbered(0), HashKey(100), change(&mut counter)).unwrap();
        lineage.merge(&ShardId::numbered(2), &ShardId::numbered(1), change(&mut counter)).unwrap();
        let shards: Vec<Shard> = lineage.after(None).map(Entry::shard).collect();
        assert_eq!(shards[0].last_sequence, Some(11.into()));
        assert_eq!((&shards[1].first_sequence, &shards[1].parent), (&12.into(), &Some(ShardId::numbered(0))));
        assert_eq!(shards[3].parent, Some(ShardId::numbered(2)));
        assert_eq!(shards[3].adjacent_parent, Some(ShardId::numbered(1)));
        assert_eq!(shards[3].hash_range, HashRange::ALL);
        assert_eq!((shards.len(), lineage.open_count(), counter), (4, 1, 14));
    }

    #[test]
    fn what_cannot_be_done_changes_nothing() {
        let mut counter = 1;
        let mut lineage = Lineage::uniform(3, 1);
        let id = ShardId::numbered;
        assert!(lineage.split(&id(0), HashKey::MIN, change(&mut counter)).is_err());
        assert!(lineage.split(&id(0), HashKey::MAX, change(&mut counter)).is_err());
        assert!(lineage.split(&id(9), HashKey(5), change(&mut counter)).is_err());
        assert!(lineage.merge(&id(0), &id(2), change(&mut counter)).is_err());
        assert!(lineage.merge(&id(0), &id(0), change(&mut counter)).is_err());
        assert!(lineage.rescale(0, change(&mut counter)).is_err());
        assert_eq!((lineage.open_count(), lineage.next_number(), counter), (3, 3, 1));
    }

    proptest! {
        #[test]
        fn the_open_shards_always_cover_the_space(
            steps in proptest::collection::vec((0u8..3, any::<u64>(), any::<u128>()), 0..30)
        ) {
            let mut counter = 1;
            let mut lineage = Lineage::uniform(2, 1);
            for (step, pick, at) in steps {
                let shard = ShardId::numbered(pick % lineage.next_number());
                let other = ShardId::numbered((pick >> 32) % lineage.next_number());
                let _ = match step {
                    0 => lineage.split(&shard, HashKey(at), change(&mut counter)),
                    1 => lineage.merge(&shard, &other, change(&mut counter)),
                    _ => lineage.rescale(u32::try_from(pick % 9).unwrap(), change(&mut counter)),
                };
                prop_assert!(covers_the_space(&lineage));
                let owner = lineage.route(HashKey(at));
                prop_assert!(owner.range.contains(HashKey(at)) && owner.closed.is_none());
            }
        }
    }
}
