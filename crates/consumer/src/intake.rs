//! From what the stream answered to what is delivered: taken apart, duplicates dropped, gaps seen. Pure.

use std::sync::Arc;

use bytes::Bytes;
use tenure_clock::WallTime;
use tenure_stream::identity::Header;
use tenure_stream::kpl::{self, Found};
use tenure_stream::{HashRange, SequenceNumber, Stored};

use crate::dedup::{Dedup, Step, Verdict};
use crate::header::Identity;
use crate::opening::Opening;
use crate::record::{Delivered, Place, Pointer};
use crate::settings::OnDamaged;
use crate::stop::Stop;

/// Takes what the stream answers, in order.
#[derive(Debug)]
pub(crate) struct Intake {
    dedup: Dedup,
    range: HashRange,
    skip: Option<(SequenceNumber, u64)>,
    expect: Option<SequenceNumber>,
    /// All that arrived before this was read.
    since: Option<WallTime>,
    on_damaged: OnDamaged,
    accept_loss: bool,
    /// The number of the next record.
    next: u64,
}

/// What records came to.
#[derive(Debug, Default)]
pub(crate) struct Sorted {
    pub(crate) records: Vec<Delivered>,
    /// Each with how many records come up to and including it.
    pub(crate) steps: Vec<(u32, Step)>,
    /// How far it came; `None` if not one record was taken.
    pub(crate) end: Option<Place>,
    /// Which of the records point elsewhere.
    pub(crate) pointers: Vec<usize>,
    /// What is to be kept as dead letters before anything of this is processed.
    pub(crate) dead: Vec<(Delivered, String)>,
    /// Why the next record was not taken.
    pub(crate) stop: Option<Stop>,
    /// What was accepted as lost.
    pub(crate) losses: Vec<Stop>,
    pub(crate) counts: Counts,
}

/// How many of what.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) duplicates: u64,
    pub(crate) zombies: u64,
    pub(crate) untracked: u64,
    pub(crate) damaged: u64,
    pub(crate) elsewhere: u64,
}

impl Sorted {
    /// Leaves out the record at `index` and all after it.
    pub(crate) fn cut(&mut self, index: usize) {
        self.records.truncate(index);
        self.steps.retain(|(upto, _)| *upto as usize <= index);
        self.end = self.records.last().map(Delivered::place);
    }
}

impl Intake {
    pub(crate) fn new(opening: &Opening, range: HashRange, on_damaged: OnDamaged, accept_loss: bool) -> Self {
        Self {
            dedup: opening.dedup.clone(),
            range,
            skip: opening.skip.clone(),
            expect: opening.expect.clone(),
            since: opening.through,
            on_damaged,
            accept_loss,
            next: 0,
        }
    }

    /// Something was lost: what came before on a lane is not known any more.
    pub(crate) fn forget(&mut self) -> Step {
        self.dedup.forget()
    }

    /// Whether it is open if something was trimmed before it was read.
    pub(crate) const fn is_in_doubt(&self) -> bool {
        self.expect.is_some()
    }

    /// Nothing was trimmed, whatever comes next.
    pub(crate) fn nothing_missed(&mut self) {
        self.expect = None;
    }

    /// This record was the last that was taken, and comes again: if it does not, it was trimmed, and maybe more.
    pub(crate) fn expect_again(&mut self, last: &SequenceNumber, since: Option<WallTime>) {
        self.skip = Some((last.clone(), u64::MAX));
        self.expect = Some(last.clone());
        self.since = since;
    }

    /// Takes records, up to the first that stops the shard.
    pub(crate) fn take(&mut self, stored: Vec<Stored>) -> Sorted {
        let mut sorted = Sorted { records: Vec::with_capacity(stored.len()), ..Sorted::default() };
        let last = stored.len().saturating_sub(1);
        let intact = kpl::intact(stored.iter().map(|record| &record.data));
        for (index, record) in stored.into_iter().enumerate() {
            if let Some(stop) = self.missing(&record) {
                if !self.accept_loss {
                    sorted.stop = Some(stop);
                    break;
                }
                let step = self.dedup.forget();
                sorted.steps.push((sorted.records.len() as u32, step));
                sorted.losses.push(stop);
            }
            if let Err(stop) = self.take_one(record, intact[index], index == last, &mut sorted) {
                sorted.stop = Some(stop);
                break;
            }
        }
        sorted
    }

    /// The record with which to go on is gone, if another comes first.
    fn missing(&mut self, record: &Stored) -> Option<Stop> {
        let expected = self.expect.take()?;
        (record.sequence > expected).then(|| {
            // What comes after it was not to be left out.
            self.skip = None;
            Stop::Trimmed { from: expected, to: record.sequence.clone(), since: self.since }
        })
    }

    fn take_one(
        &mut self,
        record: Stored,
        is_intact: bool,
        is_last: bool,
        sorted: &mut Sorted,
    ) -> Result<(), Stop> {
        if record.data.starts_with(&kpl::MAGIC) {
            return self.take_apart(record, is_intact, sorted);
        }
        let Stored { sequence, arrived, partition_key, data, .. } = record;
        let end = is_last.then(|| sequence.clone());
        if !self.is_skipped(&sequence, 0) {
            let part = Part { partition_key, data, sub: 0, is_last: true };
            if let Err((stop, sequence)) = self.deliver(sequence, arrived, part, sorted) {
                // Up to the record before.
                self.end_before(&sequence, 0, sorted);
                return Err(stop);
            }
        }
        sorted.end = end.map(|sequence| Place { sequence, sub: 0, whole: true });
        Ok(())
    }

    fn take_apart(&mut self, record: Stored, is_intact: bool, sorted: &mut Sorted) -> Result<(), Stop> {
        let apart = kpl::deaggregate_checked(&record.partition_key, &record.data, self.range, is_intact);
        match apart.found {
            Found::Aggregated | Found::Plain => {}
            Found::Elsewhere => sorted.counts.elsewhere += 1,
            Found::Damaged(damage) => {
                sorted.counts.damaged += 1;
                let why = format!(
                    "record {} begins like an aggregated one and is damaged ({damage:?}); read it with another tool, \
                     or let it pass with `on_damaged`",
                    record.sequence
                );
                match self.on_damaged {
                    OnDamaged::Deliver => {}
                    OnDamaged::Stop => {
                        self.end_before(&record.sequence, 0, sorted);
                        return Err(Stop::Damaged(why));
                    }
                    OnDamaged::DeadLetter => {
                        if !self.is_skipped(&record.sequence, 0) {
                            let place = Place { sequence: record.sequence.clone(), sub: 0, whole: true };
                            sorted.dead.push((whole(record), why));
                            sorted.end = Some(place);
                        }
                        return Ok(());
                    }
                }
            }
        }
        let count = apart.records.len();
        let mut sub_max = 0;
        for part in apart.records {
            let sub = part.sub_sequence as u64;
            sub_max = sub;
            if self.is_skipped(&record.sequence, sub) {
                continue;
            }
            let is_last = part.sub_sequence + 1 == count;
            let part = Part { partition_key: part.partition_key, data: part.data, sub, is_last };
            if let Err((stop, sequence)) = self.deliver(record.sequence.clone(), record.arrived, part, sorted)
            {
                self.end_before(&sequence, sub, sorted);
                return Err(stop);
            }
        }
        sorted.end = Some(Place { sequence: record.sequence, sub: sub_max, whole: true });
        Ok(())
    }

    fn is_skipped(&mut self, sequence: &SequenceNumber, sub: u64) -> bool {
        let Some((skipped, through)) = &self.skip else { return false };
        if sequence > skipped {
            self.skip = None;
            return false;
        }
        sequence < skipped || sub <= *through
    }

    /// The end is right before this record, as far as that can be said.
    fn end_before(&self, sequence: &SequenceNumber, sub: u64, sorted: &mut Sorted) {
        if sub > 0 {
            sorted.end = Some(Place { sequence: sequence.clone(), sub: sub - 1, whole: false });
        } else if let Some(last) = sorted.records.last() {
            sorted.end = Some(last.place());
        }
    }

    fn deliver(
        &mut self,
        sequence: SequenceNumber,
        arrived: WallTime,
        part: Part,
        sorted: &mut Sorted,
    ) -> Result<(), (Stop, SequenceNumber)> {
        let mut pointer = None;
        match Identity::of(&part.data) {
            Identity::None => {}
            Identity::Event { header, is_pointer } => {
                let (verdict, step) = match self.dedup.take(&header) {
                    (Verdict::Gap, _) => {
                        let stop = gap(&header, &sequence);
                        if !self.accept_loss {
                            return Err((stop, sequence));
                        }
                        sorted.losses.push(stop);
                        (Verdict::New, Some(self.dedup.take_over_gap(&header)))
                    }
                    other => other,
                };
                let is_new = matches!(verdict, Verdict::New | Verdict::Untracked);
                if let Some(step) = step {
                    sorted.steps.push((sorted.records.len() as u32 + u32::from(is_new), step));
                }
                match verdict {
                    Verdict::Duplicate => sorted.counts.duplicates += 1,
                    Verdict::Zombie => sorted.counts.zombies += 1,
                    Verdict::Untracked => sorted.counts.untracked += 1,
                    Verdict::New | Verdict::Gap => {}
                }
                if !is_new {
                    return Ok(());
                }
                if is_pointer {
                    let Some(found) = Pointer::of(&part.data) else {
                        let why = format!(
                            "record {sequence}: the pointer of event {} cannot be understood",
                            header.id
                        );
                        return Err((Stop::Damaged(why), sequence));
                    };
                    sorted.pointers.push(sorted.records.len());
                    pointer = Some(Box::new(found));
                }
            }
            Identity::Damaged => {
                let why = format!(
                    "record {sequence} has a `tenure` object that cannot be understood: look at it with `tenure stream`"
                );
                return Err((Stop::Damaged(why), sequence));
            }
            Identity::Newer => {
                let why = format!("record {sequence} was published by a newer version: update this program");
                return Err((Stop::Damaged(why), sequence));
            }
        }
        sorted.records.push(Delivered {
            sequence,
            sub: part.sub,
            arrived,
            partition_key: part.partition_key,
            data: part.data,
            pointer,
            number: self.next,
            is_last: part.is_last,
        });
        self.next += 1;
        Ok(())
    }
}

/// One of the records that were put in one.
struct Part {
    partition_key: Arc<str>,
    data: Bytes,
    sub: u64,
    is_last: bool,
}

fn whole(record: Stored) -> Delivered {
    let Stored { sequence, arrived, partition_key, data, .. } = record;
    Delivered { sequence, sub: 0, arrived, partition_key, data, pointer: None, number: 0, is_last: true }
}

fn gap(header: &Header<'_>, sequence: &SequenceNumber) -> Stop {
    let before = header.prev.map(|prev| prev.to_string()).unwrap_or_default();
    let Header { source, id, lane, .. } = header;
    Stop::Gap {
        what: format!(
            "source {source}, lane {lane}: event {id} (record {sequence}) comes after {before}, which is missing"
        ),
    }
}

#[cfg(test)]
#[path = "intake_test.rs"]
mod tests;
