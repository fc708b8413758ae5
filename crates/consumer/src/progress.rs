//! How far a shard was processed, with the marks that belong there.
//!
//! Two states of the marks are kept: the reader's, which is as far as reading came, and the one here, which
//! follows the watermark. A checkpoint with the reader's marks would claim that events were seen that nobody
//! processed, and after a crash they would be dropped as duplicates.
//!
//! Invariant PG-1: the marks of a checkpoint are those as of the checkpoint, not as of what was read.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use tenure_clock::WallTime;
use tenure_leases::Checkpoint;
use tokio::sync::OwnedSemaphorePermit;

use crate::dedup::{Dedup, Step};
use crate::marks::Marks;
use crate::record::{Delivered, Place};
use crate::watermark::Watermark;

/// What one read of the shard came to.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// What is to be delivered.
    pub(crate) records: Vec<Delivered>,
    /// What the events added to the marks, each with how many records come up to and including it.
    pub(crate) steps: Vec<(u32, Step)>,
    /// How far the read came, with what is not delivered. `None`: nowhere.
    pub(crate) end: Option<Place>,
    /// All that arrived before this was read.
    pub(crate) through: Option<WallTime>,
    /// What it takes in memory.
    pub(crate) bytes: usize,
    /// Its part of the budget, given back when nobody needs it any more.
    pub(crate) _permit: Option<OwnedSemaphorePermit>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Progress {
    watermark: Watermark,
    pending: VecDeque<Pending>,
    /// What is known as of the watermark.
    dedup: Dedup,
    at: Option<Place>,
    /// All that arrived before this is at or before the watermark.
    through: Option<WallTime>,
    /// What is stored, for as long as the watermark is no further.
    stored: Option<Marks>,
    bytes: usize,
}

#[derive(Debug)]
struct Pending {
    fetched: Arc<Fetched>,
    /// The number of its first record.
    first: u64,
    /// How many steps were applied.
    stepped: usize,
}

impl Pending {
    fn end(&self) -> u64 {
        self.first + self.fetched.records.len() as u64
    }

    /// Applies what belongs to the first `records` of it.
    fn step(&mut self, records: u64, dedup: &mut Dedup) {
        while let Some((upto, step)) = self.fetched.steps.get(self.stepped) {
            if u64::from(*upto) > records {
                break;
            }
            dedup.apply(step);
            self.stepped += 1;
        }
    }

    /// The place right after its first `records`.
    fn place(&self, records: u64) -> Option<Place> {
        if records == self.fetched.records.len() as u64 {
            return self.fetched.end.clone();
        }
        let last = usize::try_from(records.checked_sub(1)?).ok()?;
        self.fetched.records.get(last).map(Delivered::place)
    }
}

impl Progress {
    /// `stored` are the marks beside the checkpoint at which reading begins, if it begins there.
    pub(crate) fn new(dedup: Dedup, stored: Option<Marks>) -> Self {
        Self {
            watermark: Watermark::default(),
            pending: VecDeque::new(),
            dedup,
            at: None,
            through: stored.as_ref().and_then(|stored| stored.through),
            stored,
            bytes: 0,
        }
    }

    /// These are stored now, and nothing has been processed.
    pub(crate) fn begun(&mut self, marks: Marks) {
        self.through = marks.through;
        self.stored = Some(marks);
    }

    /// Takes note of what was read.
    pub(crate) fn register(&mut self, fetched: Arc<Fetched>) -> Range<u64> {
        let range = self.watermark.register(fetched.records.len() as u64);
        self.bytes += fetched.bytes;
        let mut pending = Pending { fetched, first: range.start, stepped: 0 };
        if tenure_planted::is("marks_as_read") {
            pending.step(u64::MAX, &mut self.dedup);
        }
        if tenure_planted::is("checkpoint_as_read") {
            self.at = pending.fetched.end.clone();
        }
        self.pending.push_back(pending);
        self.advance();
        range
    }

    /// Records with these numbers are done.
    pub(crate) fn settle(&mut self, numbers: Range<u64>) {
        self.watermark.settle(numbers);
        self.advance();
    }

    fn advance(&mut self) {
        let reached = self.watermark.reached();
        while let Some(pending) = self.pending.front_mut() {
            let records = reached.min(pending.end()).saturating_sub(pending.first);
            pending.step(records, &mut self.dedup);
            if records > 0 || pending.fetched.records.is_empty() {
                self.at = pending.place(records).or(self.at.take());
            }
            if reached < pending.end() {
                break;
            }
            self.bytes -= pending.fetched.bytes;
            self.through = self.through.max(pending.fetched.through);
            self.pending.pop_front();
        }
    }

    /// The lowest number that is not settled.
    pub(crate) fn reached(&self) -> u64 {
        self.watermark.reached()
    }

    /// How many records are not settled.
    pub(crate) fn outstanding(&self) -> u64 {
        self.watermark.outstanding()
    }

    /// How many bytes are held for what is not settled.
    pub(crate) fn outstanding_bytes(&self) -> usize {
        self.bytes
    }

    /// How far everything was processed. `None`: no further than where reading began.
    pub(crate) fn at(&self) -> Option<&Place> {
        self.at.as_ref()
    }

    /// A checkpoint there.
    pub(crate) fn marks(&self) -> Option<Marks> {
        let Some(at) = &self.at else {
            // Nothing was processed, and yet more may be known: that nothing has come for long.
            let stored = self.stored.as_ref().filter(|stored| stored.through < self.through)?;
            return Some(Marks { dedup: self.dedup.clone(), through: self.through, ..stored.clone() });
        };
        let marks = Marks::new(at.checkpoint(), at.whole, self.dedup.clone());
        Some(Marks { through: self.through, ..marks })
    }

    /// A checkpoint at the end of the shard. `None` while something is not settled.
    pub(crate) fn marks_at_end(&self) -> Option<Marks> {
        (self.outstanding() == 0).then(|| Marks::new(Checkpoint::ShardEnd, true, self.dedup.clone()))
    }

    /// The checkpoint that there would be if everything up to `end` (excluded) were settled.
    pub(crate) fn marks_through(&self, end: u64) -> Option<Marks> {
        let mut dedup = self.dedup.clone();
        let mut at = self.at.clone();
        let mut passed = self.through;
        for pending in &self.pending {
            if pending.first >= end && !pending.fetched.records.is_empty() {
                break;
            }
            let records = end.min(pending.end()).saturating_sub(pending.first);
            let mut through =
                Pending { fetched: pending.fetched.clone(), first: pending.first, stepped: pending.stepped };
            through.step(records, &mut dedup);
            at = through.place(records).or(at);
            if end >= pending.end() {
                passed = passed.max(pending.fetched.through);
            }
        }
        at.map(|at| Marks { through: passed, ..Marks::new(at.checkpoint(), at.whole, dedup) })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tenure_clock::WallTime;
    use tenure_stream::identity::{Era, Floor, Header, Lane, Lanes, Lsn, Position};

    use super::*;
    use crate::dedup::Verdict;

    fn header(number: u64) -> Header<'static> {
        let id = Position { era: Era(1), commit: Lsn(number), change: Lsn(number), k: 0 };
        let floor = Floor { era: Era(1), below: Lsn(1) };
        let lanes = Lanes::new(1).unwrap();
        Header { source: "s", id, lane: Lane(0), lanes, prev: None, floor, leader: 1 }
    }

    /// Records with these numbers, each an event of one lane; those below zero are duplicates of its last.
    fn fetch(read: &mut Dedup, first: u64, sequences: &[u64]) -> Arc<Fetched> {
        let mut records = Vec::new();
        let mut steps = Vec::new();
        for sequence in sequences {
            let (verdict, step) = read.take(&header(*sequence));
            assert_eq!(verdict, Verdict::New);
            records.push(Delivered {
                sequence: (*sequence).into(),
                sub: 0,
                arrived: WallTime::from_millis(0),
                partition_key: "k".into(),
                data: "d".into(),
                pointer: None,
                number: first + records.len() as u64,
                is_last: true,
            });
            steps.extend(step.map(|step| (records.len() as u32, step)));
        }
        let end = Some(Place { sequence: (sequences.last().unwrap() + 5).into(), sub: 0, whole: true });
        let through = Some(WallTime::from_millis(*sequences.last().unwrap() as i64));
        Arc::new(Fetched { records, steps, end, through, bytes: 10, _permit: None })
    }

    fn shown(marks: Option<Marks>) -> String {
        let Some(marks) = marks else { return "nothing".to_owned() };
        let Checkpoint::At { sequence, .. } = &marks.at else { return format!("{:?}", marks.at) };
        let seen = (0..100).take_while(|number| marks.dedup.judge(&header(*number)) != Verdict::New);
        format!("at {sequence}, seen up to {}", seen.last().unwrap_or(0))
    }

    #[test]
    fn marks_are_those_of_the_watermark_and_not_of_what_was_read() {
        let mut read = Dedup::complete();
        let mut progress = Progress::new(Dedup::complete(), None);
        assert_eq!(shown(progress.marks()), "nothing");
        progress.register(fetch(&mut read, 0, &[10, 20, 30]));
        progress.register(fetch(&mut read, 3, &[40, 50]));
        assert_eq!(shown(progress.marks()), "nothing");
        assert_eq!(shown(progress.marks_through(2)), "at 20, seen up to 20");
        assert_eq!(shown(progress.marks_through(3)), "at 35, seen up to 30");
        assert_eq!(shown(progress.marks_through(5)), "at 55, seen up to 50");
        progress.settle(1..4);
        assert_eq!(shown(progress.marks()), "nothing");
        progress.settle(0..1);
        assert_eq!(shown(progress.marks()), "at 40, seen up to 40");
        assert_eq!((progress.outstanding(), progress.outstanding_bytes()), (1, 10));
        assert_eq!(shown(progress.marks_at_end()), "nothing");
        progress.settle(4..5);
        assert_eq!(shown(progress.marks()), "at 55, seen up to 50");
        assert_eq!(progress.outstanding_bytes(), 0);
        assert_eq!(shown(progress.marks_at_end()), "ShardEnd");
    }

    #[test]
    fn what_is_dropped_is_passed_once_all_before_it_is_settled() {
        let mut progress = Progress::new(Dedup::complete(), None);
        let mut read = Dedup::complete();
        progress.register(fetch(&mut read, 0, &[10]));
        let end = Some(Place { sequence: 99.into(), sub: 0, whole: true });
        let dropped =
            Fetched { records: Vec::new(), steps: Vec::new(), end, through: None, bytes: 1, _permit: None };
        progress.register(Arc::new(dropped));
        assert_eq!(shown(progress.marks()), "nothing");
        progress.settle(0..1);
        assert_eq!(shown(progress.marks()), "at 99, seen up to 10");
    }
    fn note(millis: i64) -> Arc<Fetched> {
        let through = Some(WallTime::from_millis(millis));
        Arc::new(Fetched {
            records: Vec::new(),
            steps: Vec::new(),
            end: None,
            through,
            bytes: 0,
            _permit: None,
        })
    }

    fn through(marks: Option<Marks>) -> Option<i64> {
        marks.and_then(|marks| marks.through).map(WallTime::as_millis)
    }

    #[test]
    fn that_nothing_came_is_known_once_all_before_it_is_settled() {
        let mut read = Dedup::complete();
        let mut progress = Progress::new(Dedup::complete(), None);
        progress.register(fetch(&mut read, 0, &[10]));
        progress.register(note(500));
        assert_eq!(through(progress.marks_through(1)), Some(500));
        assert_eq!(progress.marks(), None);
        progress.settle(0..1);
        assert_eq!(
            (shown(progress.marks()), through(progress.marks())),
            ("at 15, seen up to 10".to_owned(), Some(500))
        );
    }

    #[test]
    fn while_nothing_is_processed_the_stored_marks_are_stored_again_only_if_more_is_known() {
        let at = Checkpoint::At { sequence: 10.into(), sub: 3 };
        let known =
            Marks { through: Some(WallTime::from_millis(100)), ..Marks::new(at, true, Dedup::complete()) };
        let mut progress = Progress::new(Dedup::complete(), Some(known.clone()));
        assert_eq!(progress.marks(), None);
        progress.register(note(100));
        assert_eq!(progress.marks(), None);
        progress.register(note(101));
        assert_eq!(progress.marks(), Some(Marks { through: Some(WallTime::from_millis(101)), ..known }));
        let mut elsewhere = Progress::new(Dedup::complete(), None);
        elsewhere.register(note(100));
        assert_eq!(elsewhere.marks(), None, "whoever began elsewhere stores nothing");
    }

    #[test]
    fn an_accepted_loss_is_in_the_marks() {
        let mut read = Dedup::complete();
        let mut progress = Progress::new(Dedup::complete(), None);
        progress.register(fetch(&mut read, 0, &[10]));
        let end = Some(Place { sequence: 30.into(), sub: 0, whole: true });
        let steps = vec![(0, read.forget())];
        progress.register(Arc::new(Fetched {
            records: Vec::new(),
            steps,
            end,
            through: None,
            bytes: 0,
            _permit: None,
        }));
        assert_eq!(progress.marks(), None);
        progress.settle(0..1);
        let marks = progress.marks().unwrap();
        assert_eq!(
            (shown(Some(marks.clone())), marks.dedup.complete),
            ("at 30, seen up to 10".to_owned(), false)
        );
    }
}
