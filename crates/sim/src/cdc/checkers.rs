//! What must hold, each rule by its name, and the truth by which it is judged.
//!
//! The ledger sees everything that lands, in the order of landing, and knows everything that was committed.

use std::collections::{BTreeMap, BTreeSet};

use tenure_stream::identity::{Era, Lane, Lanes, Lsn, Position};

use super::consumer::Seen;
use super::event::Event;
use super::source::Source;
use crate::fault::named;
use crate::scenario::Verdict;

named! {
    /// The rules.
    Rule:
    Cd1 "CD-1" "Every committed change is in the stream or durably quarantined, and the row claims nothing else.",
    Cd2 "CD-2" "The acknowledged LSN never passes an unsettled transaction and never lies inside one.",
    Cd3 "CD-3" "First occurrences per key are in commit order.",
    Cd4 "CD-4" "Copies of a change share an identity, and no two changes do.",
    Cd5 "CD-5" "Behind a lost, invalid, recreated or foreign slot, or a diverged log, nobody begins in the same era.",
    Cd6 "CD-6" "Nothing is sent after the deadline of a lost leadership.",
    Consumer "consumer" "A consumer with a floor and marks hands on each change once, in order, and sees no gap.",
    BarrierDivides "barrier_divides" "A barrier comes after all before it and before all after it, on all lanes.",
    OneUnderWay "one_under_way" "A lane of a run has one record under way.",
    SameBytes "same_bytes" "What is sent again is sent as it was.",
    RowFirst "row_first" "The slot is told nothing that the row does not hold.",
    RowForward "row_forward" "The row never goes back, nor to an older fence.",
    IdleIsRare "idle_is_rare" "A row that only follows idle progress is written rarely.",
    InflightBounded "inflight_bounded" "What is taken in and not settled is bounded.",
    HaltHasCause "halt_has_cause" "A leader refuses to begin only behind a slot or a log that was disturbed.",
    ShardRate "shard_rate" "A run that knows its shards sends none of them more than it takes.",
    Heals "heals" "After healing, the row and the slot catch up with the log.",
    Bounded "bounded" "Nobody spins: a schedule has a bounded number of events.",
}

/// See the module.
#[derive(Debug)]
pub struct Ledger {
    era: Era,
    /// The first change of each era, from era 1 on.
    era_first: Vec<u32>,
    /// The era under which each change reached the stream, if it did.
    reached: Vec<Option<Era>>,
    /// The first change of the era that is not in the stream.
    first_missing: u32,
    identities: BTreeMap<Position, u32>,
    quarantine: BTreeSet<(Era, u32)>,
    /// The highest first occurrence of each key.
    keys: Vec<Position>,
    /// And of each lane: of any event, and of a barrier's.
    lanes: Vec<(Position, Position)>,
    /// What each lane has to deliver, in order, and how much of it was; under which era.
    due: Vec<Vec<u32>>,
    delivered: Vec<(Era, usize)>,
    /// What was found broken since the last look.
    pub broken: Vec<(Rule, String)>,
}

impl Ledger {
    /// Nothing has happened.
    #[must_use]
    pub fn new(keys: usize, lanes: Lanes) -> Self {
        let lanes = usize::from(lanes.count());
        Self {
            era: Era(1),
            era_first: vec![0],
            reached: Vec::new(),
            first_missing: 0,
            identities: BTreeMap::new(),
            quarantine: BTreeSet::new(),
            keys: vec![Position::default(); keys],
            lanes: vec![(Position::default(), Position::default()); lanes],
            due: vec![Vec::new(); lanes],
            delivered: vec![(Era(1), 0); lanes],
            broken: Vec::new(),
        }
    }

    /// Under which era changes are to be published now.
    #[must_use]
    pub const fn era(&self) -> Era {
        self.era
    }

    /// Takes in what was committed since.
    pub fn committed(&mut self, source: &Source) {
        for (number, change) in source.changes.iter().enumerate().skip(self.reached.len()) {
            self.reached.push(None);
            self.due[usize::from(change.lane.0)].push(u32::try_from(number).unwrap_or(u32::MAX));
        }
        self.look_ahead(source);
    }

    /// An operator accepted the gap: what counts begins with what is committed from here on.
    pub fn begin_era(&mut self, era: Era, source: &Source) {
        self.committed(source);
        self.era = era;
        self.first_missing = u32::try_from(self.reached.len()).unwrap_or(u32::MAX);
        self.era_first.truncate((era.0 as usize).saturating_sub(1));
        self.era_first.resize(era.0 as usize, self.first_missing);
    }

    fn first_of(&self, era: Era) -> u32 {
        (era.0 as usize).checked_sub(1).and_then(|index| self.era_first.get(index)).copied().unwrap_or(0)
    }

    fn look_ahead(&mut self, source: &Source) {
        while let Some(reached) = self.reached.get(self.first_missing as usize) {
            let undone = || {
                let change = &source.changes[self.first_missing as usize];
                source.transactions[change.transaction as usize].undone
            };
            if reached.is_none() && !undone() {
                break;
            }
            self.first_missing += 1;
        }
    }

    /// Whether everything of this era that committed below `lsn` is in the stream.
    pub fn settled_below(&mut self, lsn: Lsn, source: &Source) -> Verdict {
        self.look_ahead(source);
        let Some(change) = source.changes.get(self.first_missing as usize) else { return Ok(()) };
        let commit = source.transactions[change.transaction as usize].commit;
        if commit < lsn {
            return Err(format!(
                "{lsn} is said to be settled, and change {} of {commit} is not in the stream",
                self.first_missing
            ));
        }
        Ok(())
    }

    /// CD-2: what the slot is told.
    pub fn acknowledged(&mut self, lsn: Lsn, source: &Source) -> Verdict {
        if !source.named.contains(&lsn) {
            return Err(format!("{lsn} is neither the end of a commit nor a place that the server named"));
        }
        self.settled_below(lsn, source)
    }

    /// This is durable under the identity `id`.
    pub fn parked(&mut self, id: &Position, content: &Event) {
        if content.id != *id || content.pointer {
            let what = format!("what is stored for {id} is not its content");
            self.broken.push((Rule::Cd1, what));
            self.quarantine.remove(&(id.era, content.change));
            return;
        }
        self.quarantine.insert((id.era, content.change));
    }

    /// A copy of an event is in the stream; whether it is the first.
    pub fn landed(&mut self, event: &Event, source: &Source) -> bool {
        let Event { change: number, id, lane, .. } = *event;
        let mut broken = |rule, what| self.broken.push((rule, what));
        if event.pointer && !self.quarantine.contains(&(id.era, number)) {
            broken(Rule::Cd1, format!("change {number} is a pointer to what is not stored"));
        }
        let reached = &mut self.reached[number as usize];
        let first = reached.is_none();
        match *reached {
            Some(era) if era != id.era => {
                broken(
                    Rule::Cd4,
                    format!("change {number} has two identities, in eras {} and {}", era.0, id.era.0),
                );
            }
            Some(_) => {}
            None => {
                *reached = Some(id.era);
                if let Some(other) = self.identities.insert(id, number) {
                    broken(Rule::Cd4, format!("changes {other} and {number} are both {id}"));
                }
            }
        }
        // What comes from before an accepted gap is judged no more.
        if !first || id.era != self.era {
            return first;
        }
        let change = &source.changes[number as usize];
        let (last, last_barrier) = &mut self.lanes[usize::from(lane.0)];
        let before = match change.key {
            Some(key) => {
                let last_of_key = &mut self.keys[usize::from(key)];
                let before = (*last_of_key).max(*last_barrier);
                *last_of_key = id.max(*last_of_key);
                before
            }
            None => {
                let before = *last;
                *last_barrier = id.max(*last_barrier);
                before
            }
        };
        *last = id.max(*last);
        if id < before {
            broken(Rule::Cd3, format!("change {number}, {id} on lane {lane}, comes after {before}"));
        }
        let divided = change.barrier.max(self.first_of(self.era));
        self.look_ahead(source);
        if self.first_missing < divided && self.first_missing < number {
            let what = format!(
                "change {number} is there, and {} on the other side of a barrier is not",
                self.first_missing
            );
            self.broken.push((Rule::BarrierDivides, what));
        }
        first
    }

    /// What the consumer makes of it.
    pub fn consumed(&mut self, event: &Event, seen: Seen) {
        let Event { change: number, id, lane: Lane(lane), .. } = *event;
        match seen {
            Seen::Gap => {
                let prev = event.prev.unwrap_or_default();
                let what = format!("a gap on lane {lane}: {prev} is missing before {id}, change {number}");
                self.broken.push((Rule::Consumer, what));
            }
            Seen::New => {
                let lane = usize::from(lane);
                let from = self.next_due(lane, id.era);
                let next = self.due[lane].get(from).copied();
                if next != Some(number) {
                    let next = next.map_or_else(|| "nothing".to_owned(), |next| format!("change {next}"));
                    let what = format!("lane {lane} hands on change {number}, and {next} is due");
                    self.broken.push((Rule::Consumer, what));
                }
                // From here on, what follows it.
                let after = self.due[lane].partition_point(|due| *due <= number);
                self.delivered[lane] = (id.era, after);
            }
            Seen::Duplicate | Seen::Zombie => {}
        }
    }

    fn next_due(&self, lane: usize, era: Era) -> usize {
        let (was, next) = self.delivered[lane];
        let first = self.first_of(era);
        if was == era { next } else { self.due[lane].partition_point(|due| *due < first) }
    }

    /// CD-1 in the end: everything of this era is in the stream, and `consumer` says that it was handed on.
    pub fn complete(&mut self, source: &Source, by_consumer: bool) -> Verdict {
        self.settled_below(Lsn(u64::MAX), source)?;
        let lanes = 0..if by_consumer { self.due.len() } else { 0 };
        for lane in lanes {
            let rest = &self.due[lane][self.next_due(lane, self.era)..];
            let undone = |number: u32| {
                source.transactions[source.changes[number as usize].transaction as usize].undone
            };
            if let Some(number) = rest.iter().find(|number| !undone(**number)) {
                return Err(format!("change {number} on lane {lane} was never handed on"));
            }
        }
        Ok(())
    }
}
