//! Compares what was written to the stream with what the workers got and did: pure.
//!
//! A record is recognised by its key and its number in it, and has one place in one shard. A worker's time
//! with a shard is a tenure: it begins at a checkpoint, delivers, and ends in good order or not at all.
//!
//! ```text
//!   written, never delivered                                    lost
//!   of a key, first deliveries not in the order of numbers      out of order
//!   delivered again                                             duplicate: allowed after a crash
//!   … though a checkpoint beyond it was stored before           beyond the checkpoint
//!   … though the tenure before ended in good order              of a planned move
//!   had its effect twice, behind transactional marks            after dedup
//! ```

use std::collections::{BTreeMap, BTreeSet};

/// A record, by its key and its number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RecordId {
    pub(crate) key: u32,
    pub(crate) number: u64,
}

/// Where a record is in its shard.
pub(crate) type Place = (u128, u64);

/// One worker's time with one shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tenure {
    pub(crate) shard: String,
    /// When it began, in nanoseconds of the machine's monotonic clock.
    pub(crate) began: u64,
    /// What was delivered, in this order.
    pub(crate) deliveries: Vec<(Place, RecordId)>,
    /// It was drained and given away, or the shard ended.
    pub(crate) ended_well: bool,
}

/// A checkpoint that was seen in the table.
#[derive(Debug, Clone)]
pub(crate) struct SeenCheckpoint {
    pub(crate) shard: String,
    pub(crate) at: u64,
    pub(crate) place: Place,
}

/// All that is known in the end.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// What the stream has accepted.
    pub(crate) written: BTreeSet<RecordId>,
    pub(crate) tenures: Vec<Tenure>,
    pub(crate) checkpoints: Vec<SeenCheckpoint>,
    /// How often each record had its effect, behind transactional marks.
    pub(crate) effects: BTreeMap<RecordId, u64>,
}

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) written: usize,
    /// Distinct.
    pub(crate) delivered: usize,
    pub(crate) lost: usize,
    pub(crate) out_of_order: usize,
    pub(crate) duplicates_delivered: usize,
    pub(crate) duplicates_beyond_checkpoint: usize,
    pub(crate) duplicates_after_dedup: usize,
    pub(crate) lost_after_dedup: usize,
    /// Tenures that followed on one that ended in good order.
    pub(crate) planned_moves: usize,
    pub(crate) planned_move_duplicates: usize,
    pub(crate) checkpoints_gone_back: usize,
    pub(crate) examples: Vec<String>,
}

/// Enough to see what is wrong.
const EXAMPLES_MAX: usize = 10;

impl Verdict {
    pub(crate) fn holds(&self) -> bool {
        let bad = self.lost
            + self.out_of_order
            + self.duplicates_beyond_checkpoint
            + self.duplicates_after_dedup
            + self.lost_after_dedup
            + self.planned_move_duplicates
            + self.checkpoints_gone_back;
        bad == 0 && self.written > 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text());
        }
    }
}

impl Ledger {
    pub(crate) fn compare(&mut self) -> Verdict {
        let mut verdict = Verdict { written: self.written.len(), ..Verdict::default() };
        self.tenures.sort_by_key(|tenure| tenure.began);
        self.checkpoints.sort_by_key(|checkpoint| checkpoint.at);
        self.compare_deliveries(&mut verdict);
        self.compare_effects(&mut verdict);
        self.compare_checkpoints(&mut verdict);
        verdict
    }

    fn compare_deliveries(&self, verdict: &mut Verdict) {
        let mut seen: BTreeSet<RecordId> = BTreeSet::new();
        let mut before: BTreeMap<&str, &Tenure> = BTreeMap::new();
        let mut last: BTreeMap<u32, u64> = BTreeMap::new();
        for tenure in &self.tenures {
            let previous = before.insert(&tenure.shard, tenure);
            let planned = previous.filter(|previous| previous.ended_well);
            verdict.planned_moves += usize::from(planned.is_some());
            let had: BTreeSet<_> = planned
                .into_iter()
                .flat_map(|tenure| &tenure.deliveries)
                .map(|(_, record)| *record)
                .collect();
            let stored = self.stored_before(tenure);
            for (place, record) in &tenure.deliveries {
                if stored.is_some_and(|stored| *place <= stored) {
                    verdict.duplicates_beyond_checkpoint += 1;
                    verdict
                        .example(|| format!("{}: {record:?} came again beyond its checkpoint", tenure.shard));
                }
                if had.contains(record) {
                    verdict.planned_move_duplicates += 1;
                    verdict
                        .example(|| format!("{}: {record:?} came again after a planned move", tenure.shard));
                }
                if !seen.insert(*record) {
                    verdict.duplicates_delivered += 1;
                } else if last.insert(record.key, record.number).is_some_and(|last| last > record.number) {
                    verdict.out_of_order += 1;
                    verdict.example(|| format!("{}: {record:?} came behind a later one", tenure.shard));
                }
            }
        }
        verdict.delivered = seen.len();
        for record in self.written.difference(&seen) {
            verdict.lost += 1;
            verdict.example(|| format!("{record:?} was never delivered"));
        }
    }

    /// The furthest checkpoint of the shard that was in the table before the tenure began.
    fn stored_before(&self, tenure: &Tenure) -> Option<Place> {
        let of_shard = self.checkpoints.iter().filter(|checkpoint| checkpoint.shard == tenure.shard);
        of_shard
            .take_while(|checkpoint| checkpoint.at < tenure.began)
            .map(|checkpoint| checkpoint.place)
            .max()
    }

    fn compare_effects(&self, verdict: &mut Verdict) {
        for (record, times) in &self.effects {
            if *times > 1 {
                verdict.duplicates_after_dedup += 1;
                verdict.example(|| format!("{record:?} had its effect {times} times"));
            }
        }
        let missing = self.written.iter().filter(|record| !self.effects.contains_key(record));
        for record in missing {
            verdict.lost_after_dedup += 1;
            verdict.example(|| format!("{record:?} had no effect"));
        }
    }

    fn compare_checkpoints(&self, verdict: &mut Verdict) {
        let mut furthest: BTreeMap<&str, Place> = BTreeMap::new();
        for SeenCheckpoint { shard, place, .. } in &self.checkpoints {
            let reached = furthest.entry(shard).or_insert(*place);
            if place < reached {
                verdict.checkpoints_gone_back += 1;
                verdict
                    .example(|| format!("{shard}: its checkpoint went back from {reached:?} to {place:?}"));
            }
            *reached = (*reached).max(*place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn record(key: u32, number: u64) -> RecordId {
        RecordId { key, number }
    }

    fn tenure(shard: &str, began: u64, deliveries: &[(u64, u64)], ended_well: bool) -> Tenure {
        // Key 1, at a place that is ten times its number.
        let deliveries =
            deliveries.iter().map(|&(place, number)| ((u128::from(place), 0), record(1, number))).collect();
        Tenure { shard: shard.to_owned(), began, deliveries, ended_well }
    }

    fn checkpoint(at: u64, place: u64) -> SeenCheckpoint {
        SeenCheckpoint { shard: "a".to_owned(), at, place: (u128::from(place), 0) }
    }

    /// Three records of one key; two tenures of one shard.
    fn ledger(first: Tenure, second: Tenure, checkpoints: Vec<SeenCheckpoint>) -> Ledger {
        let written: BTreeSet<_> = (1..=3).map(|number| record(1, number)).collect();
        let effects = written.iter().map(|record| (*record, 1)).collect();
        Ledger { written, tenures: vec![second, first], checkpoints, effects }
    }

    fn good() -> Ledger {
        ledger(
            tenure("a", 1, &[(10, 1), (20, 2)], true),
            tenure("a", 9, &[(30, 3)], true),
            vec![checkpoint(2, 10), checkpoint(5, 20), checkpoint(12, 30)],
        )
    }

    #[test]
    fn a_planned_move_that_repeats_nothing_holds() {
        let verdict = good().compare();
        assert!(verdict.holds(), "{verdict:?}");
        assert_eq!((verdict.written, verdict.delivered, verdict.planned_moves), (3, 3, 1));
    }

    #[test]
    fn a_crash_may_repeat_what_no_checkpoint_covered() {
        let mut ledger = ledger(
            tenure("a", 1, &[(10, 1), (20, 2)], false),
            tenure("a", 9, &[(20, 2), (30, 3)], true),
            vec![checkpoint(2, 10)],
        );
        let verdict = ledger.compare();
        assert!(verdict.holds(), "{verdict:?}");
        assert_eq!((verdict.duplicates_delivered, verdict.planned_moves), (1, 0));
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        let check = |damage: fn(&mut Ledger), found: fn(&Verdict) -> usize| {
            let mut ledger = good();
            damage(&mut ledger);
            let verdict = ledger.compare();
            assert!(found(&verdict) > 0 && !verdict.holds(), "{verdict:?}");
        };
        check(|ledger| ledger.tenures[0].deliveries.clear(), |verdict| verdict.lost);
        check(|ledger| ledger.tenures[1].deliveries.swap(0, 1), |verdict| verdict.out_of_order);
        check(
            |ledger| ledger.tenures[0].deliveries.insert(0, ((20, 0), record(1, 2))),
            |verdict| verdict.planned_move_duplicates,
        );
        check(
            |ledger| {
                ledger.tenures[1].ended_well = false;
                ledger.tenures[0].deliveries.insert(0, ((20, 0), record(1, 2)));
            },
            |verdict| verdict.duplicates_beyond_checkpoint,
        );
        check(|ledger| _ = ledger.effects.insert(record(1, 2), 2), |verdict| verdict.duplicates_after_dedup);
        check(|ledger| _ = ledger.effects.remove(&record(1, 2)), |verdict| verdict.lost_after_dedup);
        check(|ledger| ledger.checkpoints.push(checkpoint(13, 20)), |verdict| verdict.checkpoints_gone_back);
    }
}
