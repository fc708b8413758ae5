//! Compares what was committed with what is in the stream: pure.
//!
//! A change is recognised by its table, its key and its version, an event by its identity. A delete has no
//! version of its own, so it is the so-manieth of its key.
//!
//! ```text
//!   committed, none published                  lost
//!   published, none committed                  uncommitted
//!   one change, one identity, further copies   duplicates published: allowed, a reader can tell
//!   one change, two identities                 duplicates without identity
//!   one identity, two changes                  conflicts
//!   on a lane, first copies not as committed   out of order
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_stream::identity::{Floor, Position};

/// What was done to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    Insert,
    Update,
    Delete,
    Truncate,
    /// The table got other columns.
    Schema,
}

impl Op {
    pub(crate) fn read(name: &str) -> Option<Self> {
        Some(match name {
            "insert" => Self::Insert,
            "update" => Self::Update,
            "delete" => Self::Delete,
            "truncate" => Self::Truncate,
            "schema" => Self::Schema,
            _ => return None,
        })
    }

    /// Whether it is about the table, and told on every lane.
    pub(crate) const fn is_on_all_lanes(self) -> bool {
        matches!(self, Self::Truncate | Self::Schema)
    }

    /// Whether the row tells a version by which the change is recognised.
    const fn has_version(self) -> bool {
        matches!(self, Self::Insert | Self::Update)
    }
}

/// One change of one row, or of one lane when a table was emptied or altered.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Change {
    pub(crate) table: Arc<str>,
    /// The row's key; the lane, if it is about the table.
    pub(crate) key: i64,
    pub(crate) op: Op,
    /// Of inserts and updates.
    pub(crate) version: i64,
}

/// An event as it is in the stream.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: Position,
    pub(crate) lane: u16,
    pub(crate) prev: Option<Position>,
    pub(crate) floor: Floor,
    pub(crate) leader: u64,
    /// It is a pointer, and the change was read from where it points to.
    pub(crate) parked: bool,
    pub(crate) change: Change,
}

/// A shard, with its events in order.
#[derive(Debug, Clone, Default)]
pub(crate) struct ShardEvents {
    /// The places of its parents in the list: always before its own.
    pub(crate) parents: Vec<usize>,
    pub(crate) events: Vec<Event>,
}

/// What the comparison found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) committed: usize,
    pub(crate) published: usize,
    pub(crate) quarantined: usize,
    pub(crate) lost: usize,
    pub(crate) uncommitted: usize,
    pub(crate) duplicates_published: usize,
    pub(crate) duplicates_without_identity: usize,
    pub(crate) conflicts: usize,
    pub(crate) out_of_order: usize,
    pub(crate) handover_duplicates: usize,
    /// Published again after a handover, and owed to an earlier kill.
    pub(crate) repeated_for_kills: usize,
    /// Behind a reader that goes by floors and marks.
    pub(crate) gaps: usize,
    pub(crate) duplicates_after_dedup: usize,
    pub(crate) lost_after_dedup: usize,
    /// The first of each kind, for people.
    pub(crate) examples: Vec<String>,
}

/// Most examples that are told: the first ones say it.
const EXAMPLES_MAX: usize = 20;

impl Verdict {
    /// Whether what is promised held.
    pub(crate) const fn holds(&self) -> bool {
        self.lost == 0
            && self.uncommitted == 0
            && self.duplicates_without_identity == 0
            && self.conflicts == 0
            && self.out_of_order == 0
            && self.handover_duplicates == 0
            && self.gaps == 0
            && self.duplicates_after_dedup == 0
            && self.lost_after_dedup == 0
    }

    fn example(&mut self, text: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(text());
        }
    }
}

/// A change that can be told from every other: what has no version is numbered per key.
type Token = (Change, u64);

/// Numbers what has no version, in the order given.
#[derive(Default)]
struct Numbering(BTreeMap<(Arc<str>, i64, Op), u64>);

impl Numbering {
    fn token(&mut self, change: &Change) -> Token {
        if change.op.has_version() {
            return (change.clone(), 0);
        }
        let number = self.0.entry((change.table.clone(), change.key, change.op)).or_default();
        *number += 1;
        (Change { version: 0, ..change.clone() }, *number)
    }
}

/// A leader that handed over in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Handover {
    pub(crate) epoch: u64,
    /// It had published everything that leaders before it had published. If it had not, they were killed beyond
    /// where it came, and who follows has to publish that part again: for the kill, not for the handover.
    pub(crate) caught_up: bool,
}

/// Compares. `committed` is in the order in which the changes of each key were committed.
pub(crate) fn compare(
    committed: &[Change],
    shards: &[ShardEvents],
    handed_over: &BTreeSet<Handover>,
) -> Verdict {
    let mut verdict = Verdict { committed: committed.len(), ..Verdict::default() };
    let mut numbering = Numbering::default();
    let expected: BTreeMap<Token, usize> =
        committed.iter().enumerate().map(|(at, change)| (numbering.token(change), at)).collect();

    let first = firsts(shards, &mut verdict);
    verdict.published = first.len();
    verdict.quarantined = first.values().filter(|event| event.parked).count();
    check_tokens(&expected, &first, &mut verdict);
    check_lanes(shards, &mut verdict);
    check_handovers(shards, handed_over, &mut verdict);
    check_reader(&expected, shards, &mut verdict);
    verdict
}

/// The first copy of each event; counts the others.
fn firsts<'a>(shards: &'a [ShardEvents], verdict: &mut Verdict) -> BTreeMap<Position, &'a Event> {
    let mut first: BTreeMap<Position, &Event> = BTreeMap::new();
    for event in shards.iter().flat_map(|shard| &shard.events) {
        match first.get(&event.id) {
            None => {
                first.insert(event.id, event);
            }
            Some(seen) => {
                verdict.duplicates_published += 1;
                if seen.change != event.change || seen.lane != event.lane {
                    verdict.conflicts += 1;
                    verdict.example(|| format!("{} is {:?} and {:?}", event.id, seen.change, event.change));
                }
            }
        }
    }
    first
}

/// Every change once, per key in the order of the commits.
fn check_tokens(
    expected: &BTreeMap<Token, usize>,
    first: &BTreeMap<Position, &Event>,
    verdict: &mut Verdict,
) {
    let mut numbering = Numbering::default();
    let mut found: BTreeMap<Token, Position> = BTreeMap::new();
    let mut last: BTreeMap<(Arc<str>, i64), usize> = BTreeMap::new();
    // In the order of their positions.
    for (id, event) in first {
        let token = numbering.token(&event.change);
        let Some(at) = expected.get(&token) else {
            verdict.uncommitted += 1;
            verdict.example(|| format!("never committed: {id} {token:?}"));
            continue;
        };
        if let Some(other) = found.insert(token.clone(), *id) {
            verdict.duplicates_without_identity += 1;
            verdict.example(|| format!("twice: {other} and {id} are {token:?}"));
        }
        // Only rows have an order of commits that we know; what a lane is told is in order by its number.
        let before = last.insert((event.change.table.clone(), event.change.key), *at);
        if !event.change.op.is_on_all_lanes() && before.is_some_and(|before| before > *at) {
            verdict.out_of_order += 1;
            verdict.example(|| format!("its position is not in the order of commits: {id} {token:?}"));
        }
    }
    for token in expected.keys().filter(|token| !found.contains_key(token)) {
        verdict.lost += 1;
        verdict.example(|| format!("lost: {token:?}"));
    }
}

/// On each lane, first copies come in the order of their positions.
fn check_lanes(shards: &[ShardEvents], verdict: &mut Verdict) {
    let mut highest: BTreeMap<u16, Position> = BTreeMap::new();
    let mut seen: BTreeSet<Position> = BTreeSet::new();
    for event in shards.iter().flat_map(|shard| &shard.events) {
        if !seen.insert(event.id) {
            continue;
        }
        let highest = highest.entry(event.lane).or_insert(event.id);
        if event.id < *highest {
            verdict.out_of_order += 1;
            verdict.example(|| format!("lane {}: {} comes after {highest}", event.lane, event.id));
        }
        *highest = event.id.max(*highest);
    }
}

/// Who follows a leader that handed over in good order publishes nothing that was published before.
fn check_handovers(shards: &[ShardEvents], handed_over: &BTreeSet<Handover>, verdict: &mut Verdict) {
    let mut leaders: BTreeMap<Position, BTreeSet<u64>> = BTreeMap::new();
    let mut highest: BTreeMap<u64, Position> = BTreeMap::new();
    for event in shards.iter().flat_map(|shard| &shard.events) {
        leaders.entry(event.id).or_default().insert(event.leader);
        let highest = highest.entry(event.leader).or_insert(event.id);
        *highest = event.id.max(*highest);
    }
    for Handover { epoch, caught_up } in handed_over {
        let Some((next, _)) = highest.range(epoch + 1..).next() else { continue };
        let reached = highest.get(epoch);
        for (id, by) in leaders.iter().filter(|(_, by)| by.contains(next)) {
            if by.range(..next).next().is_none() {
                continue;
            }
            if *caught_up || reached.is_some_and(|reached| id <= reached) {
                verdict.handover_duplicates += 1;
                verdict.example(|| {
                    format!("published again after leader {epoch} handed over to {next}: {id} by {by:?}")
                });
            } else {
                verdict.repeated_for_kills += 1;
            }
        }
    }
}

/// What a reader keeps of a shard.
#[derive(Debug, Clone, Default)]
struct Marks {
    floor: Floor,
    lanes: BTreeMap<u16, Position>,
}

impl Marks {
    fn has_seen(&self, lane: u16, id: &Position) -> bool {
        self.floor.covers(id) || self.lanes.get(&lane).is_some_and(|mark| id <= mark)
    }
}

/// A reader that goes by floors and marks alone gets everything, once, without a gap.
fn check_reader(expected: &BTreeMap<Token, usize>, shards: &[ShardEvents], verdict: &mut Verdict) {
    let mut ends: Vec<Marks> = Vec::with_capacity(shards.len());
    let mut delivered: BTreeMap<Position, &Event> = BTreeMap::new();
    for shard in shards {
        let mut marks = Marks::default();
        for parent in shard.parents.iter().filter_map(|parent| ends.get(*parent)) {
            marks.floor = marks.floor.max(parent.floor);
            // Lanes of the other half never come up here.
            for (lane, mark) in &parent.lanes {
                let own = marks.lanes.entry(*lane).or_insert(*mark);
                *own = (*own).max(*mark);
            }
        }
        for event in &shard.events {
            if !marks.has_seen(event.lane, &event.id) {
                let chained = event
                    .prev
                    .is_none_or(|prev| marks.has_seen(event.lane, &prev) || event.floor.covers(&prev));
                if !chained {
                    verdict.gaps += 1;
                    verdict.example(|| {
                        format!("lane {}: a gap between {:?} and {}", event.lane, event.prev, event.id)
                    });
                }
                if delivered.insert(event.id, event).is_some() {
                    verdict.duplicates_after_dedup += 1;
                    verdict.example(|| format!("delivered twice: {}", event.id));
                }
                marks.lanes.insert(event.lane, event.id);
            }
            marks.floor = marks.floor.max(event.floor);
        }
        ends.push(marks);
    }
    let mut numbering = Numbering::default();
    let tokens: BTreeSet<Token> = delivered.values().map(|event| numbering.token(&event.change)).collect();
    for token in expected.keys().filter(|token| !tokens.contains(token)) {
        verdict.lost_after_dedup += 1;
        verdict.example(|| format!("dropped by a reader that goes by floors and marks: {token:?}"));
    }
}

#[cfg(test)]
#[path = "ledger_test.rs"]
mod tests;
