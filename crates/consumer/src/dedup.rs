//! Which events of a shard were had before: what `docs/events.md` calls a duplicate, judged with little state.
//!
//! Per source there is a floor, and a mark for each lane whose last position is above it. Whatever is at or
//! below either was seen in this shard or in the shards that it came from.
//!
//! ```text
//!   position of an event on its lane
//!   ──────────────┬────────────────────┬───────────────►
//!             floor                  mark
//!   ◄── duplicate ──────────────────►│ new, if the event before it is at or below mark or floor;
//!                                    │ otherwise something is missing: a gap
//! ```
//!
//! - DD-1: what is at or below the mark of its lane, or below the floor, is not delivered.
//! - DD-2: an event whose predecessor was not seen is a gap, on every lane that is known.
//! - DD-3: an older era is a zombie's; a newer one starts anew.
//! - DD-4: the reader of a child shard begins with what the readers of its parents knew, of the lanes that
//!   are the child's.
//!
//! Whoever began in the middle (at LATEST, at a moment, after trimming, without marks) does not know what
//! came before on a lane until the lane's first event. Until then no gap is judged on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_stream::HashRange;
use tenure_stream::identity::{Era, Floor, Header, Lane, Lanes, Lsn, Position};

/// Most sources that are told apart: what is kept of them fits beside a checkpoint.
pub const SOURCES_MAX: usize = 128;
/// Marks below the floor are forgotten when there are this many, and then at twice what is left.
const FORGET_AT_MIN: usize = 64;

/// What an event is to its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The next one of its lane: to be delivered.
    New,
    /// One that was seen.
    Duplicate,
    /// Of an older era: its publisher should not run any more.
    Zombie,
    /// Something before it is missing.
    Gap,
    /// There are more sources than can be told apart: to be delivered, maybe again.
    Untracked,
}

/// What is known of one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dedup {
    pub(crate) sources: Vec<Source>,
    /// Whether everything was seen from the shard's beginning on, and in its ancestors.
    pub(crate) complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) name: Arc<str>,
    pub(crate) era: Era,
    pub(crate) lanes: Lanes,
    pub(crate) below: Lsn,
    /// By lane. Some may be below the floor.
    pub(crate) marks: BTreeMap<u16, Position>,
    /// The lanes on which gaps are judged. `None`: all of them.
    pub(crate) known: Option<LaneSet>,
    forget_at: usize,
}

/// What an event adds to what is known, or what a loss takes from it. Applied in the order in which they came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Seen(Seen),
    Forgotten,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    source: Arc<str>,
    id: Position,
    lane: Lane,
    lanes: Lanes,
    floor: Floor,
    /// It was new, and sets the mark; otherwise it raises the floor alone.
    new: bool,
}

impl Dedup {
    /// Knows that there was nothing before.
    #[must_use]
    pub const fn complete() -> Self {
        Self { sources: Vec::new(), complete: true }
    }

    /// Knows nothing of what was before.
    #[must_use]
    pub const fn unknown() -> Self {
        Self { sources: Vec::new(), complete: false }
    }

    /// What the reader of a shard knows that took the place of others. `None` is a parent of which nothing
    /// is known any more.
    #[must_use]
    pub fn after(parents: &[(Option<&Self>, Option<HashRange>)], range: HashRange) -> Self {
        if tenure_planted::is("child_forgets_parents") {
            return Self::complete();
        }
        let complete = parents.iter().all(|(state, _)| state.is_some_and(|state| state.complete));
        let mut child = Self { sources: Vec::new(), complete };
        for (state, _) in parents {
            for name in state.iter().flat_map(|state| &state.sources).map(|source| &source.name) {
                if child.find(name).is_none() && child.sources.len() < SOURCES_MAX {
                    child.sources.extend(Source::after(name, parents, range, complete));
                }
            }
        }
        child
    }

    /// What was before is not known any more: something was lost. The step does the same to another state.
    pub fn forget(&mut self) -> Step {
        self.complete = false;
        for source in &mut self.sources {
            source.known = Some(LaneSet::default());
        }
        Step(Kind::Forgotten)
    }

    /// Judges an event.
    #[must_use]
    pub fn judge(&self, event: &Header<'_>) -> Verdict {
        let Some(source) = self.find(event.source) else {
            return if self.sources.len() >= SOURCES_MAX {
                Verdict::Untracked
            } else if self.complete && !is_chained(event, None, None) {
                Verdict::Gap
            } else {
                Verdict::New
            };
        };
        if event.id.era < source.era && !tenure_planted::is("zombie_is_delivered") {
            return Verdict::Zombie;
        }
        // Under a new era nothing has been seen yet.
        let same = event.id.era == source.era;
        let mark = source.marks.get(&event.lane.0).filter(|_| same);
        let floor = same.then(|| source.floor());
        if mark.is_some_and(|mark| event.id <= *mark) || covers(floor.as_ref(), &event.id) {
            return Verdict::Duplicate;
        }
        let judged = source.known.as_ref().is_none_or(|known| same && known.contains(event.lane));
        if judged && !is_chained(event, mark, floor.as_ref()) && !tenure_planted::is("gap_not_judged") {
            return Verdict::Gap;
        }
        Verdict::New
    }

    /// Judges an event and notes it. The step, if there is one, does the same to another state.
    #[must_use]
    pub fn take(&mut self, event: &Header<'_>) -> (Verdict, Option<Step>) {
        let verdict = self.judge(event);
        match verdict {
            Verdict::New => (verdict, Some(self.note(event, true))),
            Verdict::Duplicate if self.raises_floor(event) => (verdict, Some(self.note(event, false))),
            // A gap stops the shard: what is known stays as it was before it.
            Verdict::Duplicate | Verdict::Zombie | Verdict::Gap | Verdict::Untracked => (verdict, None),
        }
    }

    /// Takes an event although something before it is missing, because an operator said so.
    #[must_use]
    pub fn take_over_gap(&mut self, event: &Header<'_>) -> Step {
        self.note(event, true)
    }

    /// Takes what an event added elsewhere.
    pub fn apply(&mut self, step: &Step) {
        match &step.0 {
            Kind::Seen(seen) => self.see(seen),
            Kind::Forgotten => _ = self.forget(),
        }
    }

    fn see(&mut self, step: &Seen) {
        let complete = self.complete;
        let index = match self.sources.iter().position(|source| source.name == step.source) {
            Some(index) => index,
            None => {
                self.sources.push(Source::new(&step.source, step.id.era, step.lanes, complete));
                self.sources.len() - 1
            }
        };
        if let Some(source) = self.sources.get_mut(index) {
            source.apply(step);
        }
    }

    /// Without marks that the floor covers, which mean nothing: what is stored, and what can be compared.
    #[must_use]
    pub fn compacted(mut self) -> Self {
        for source in &mut self.sources {
            source.forget_covered();
            source.forget_at = FORGET_AT_MIN;
        }
        self
    }

    /// How many marks there are.
    #[must_use]
    pub fn marks(&self) -> usize {
        self.sources.iter().map(|source| source.marks.len()).sum()
    }

    fn find(&self, name: &str) -> Option<&Source> {
        self.sources.iter().find(|source| *source.name == *name)
    }

    fn raises_floor(&self, event: &Header<'_>) -> bool {
        let raises = |source: &Source| event.floor.era == source.era && event.floor.below > source.below;
        self.find(event.source).is_some_and(raises)
    }

    fn note(&mut self, event: &Header<'_>, new: bool) -> Step {
        let source = self.find(event.source).map_or_else(|| event.source.into(), |found| found.name.clone());
        let seen =
            Seen { source, id: event.id, lane: event.lane, lanes: event.lanes, floor: event.floor, new };
        self.see(&seen);
        Step(Kind::Seen(seen))
    }
}

/// Whether what came before an event was seen, or acknowledged before the event was written.
fn is_chained(event: &Header<'_>, mark: Option<&Position>, floor: Option<&Floor>) -> bool {
    event.prev.is_none_or(|prev| {
        mark.is_some_and(|mark| prev <= *mark) || covers(floor, &prev) || event.floor.covers(&prev)
    })
}

fn covers(floor: Option<&Floor>, position: &Position) -> bool {
    floor.is_some_and(|floor| floor.covers(position)) && !tenure_planted::is("dedup_ignores_floor")
}

impl Source {
    pub(crate) fn new(name: &Arc<str>, era: Era, lanes: Lanes, complete: bool) -> Self {
        Self {
            name: name.clone(),
            era,
            lanes,
            below: Lsn(0),
            marks: BTreeMap::new(),
            known: (!complete).then(LaneSet::default),
            forget_at: FORGET_AT_MIN,
        }
    }

    fn after(
        name: &Arc<str>,
        parents: &[(Option<&Dedup>, Option<HashRange>)],
        range: HashRange,
        complete: bool,
    ) -> Option<Self> {
        let found = || {
            let own = |state: &&Dedup| state.sources.iter().find(|source| source.name == *name).cloned();
            parents.iter().filter_map(move |(state, range)| Some((own(&(*state)?)?, *range)))
        };
        let era = found().map(|(source, _)| source.era).max()?;
        let of_era: Vec<_> = found().filter(|(source, _)| source.era == era).collect();
        let lanes = of_era.first()?.0.lanes;
        let is_ours = |lane: u16| {
            tenure_planted::is("marks_of_other_lanes") || range.contains(lanes.hash_key(Lane(lane)))
        };
        let mut child = Self::new(name, era, lanes, complete);
        for (parent, parent_range) in &of_era {
            child.below = child.below.max(parent.below);
            for (lane, mark) in parent.marks.iter().filter(|(lane, _)| is_ours(**lane)) {
                let own = child.marks.entry(*lane).or_insert(*mark);
                *own = (*own).max(*mark);
            }
            let Some(known) = &mut child.known else { continue };
            let knew = |lane: Lane| match (&parent.known, parent_range) {
                (Some(known), _) => known.contains(lane),
                (None, Some(range)) => range.contains(lanes.hash_key(lane)),
                (None, None) => false,
            };
            for lane in lanes.all().filter(|lane| is_ours(lane.0) && knew(*lane)) {
                known.insert(lane);
            }
        }
        child.forget_covered();
        Some(child)
    }

    pub(crate) const fn floor(&self) -> Floor {
        Floor { era: self.era, below: self.below }
    }

    fn apply(&mut self, step: &Seen) {
        if step.id.era > self.era {
            self.era = step.id.era;
            self.below = Lsn(0);
            self.marks.clear();
            self.known = self.known.as_ref().map(|_| LaneSet::default());
        }
        if step.new && step.id.era == self.era {
            self.lanes = step.lanes;
            self.marks.insert(step.lane.0, step.id);
            if let Some(known) = &mut self.known {
                known.insert(step.lane);
            }
        }
        if step.floor.era == self.era && step.floor.below > self.below {
            self.below = step.floor.below;
        }
        if self.marks.len() >= self.forget_at {
            self.forget_covered();
            self.forget_at = (2 * self.marks.len()).max(FORGET_AT_MIN);
        }
    }

    fn forget_covered(&mut self) {
        let floor = self.floor();
        self.marks.retain(|_, mark| !floor.covers(mark));
    }
}

/// Some lanes, one bit each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct LaneSet(Vec<u8>);

impl LaneSet {
    pub(crate) fn contains(&self, lane: Lane) -> bool {
        self.0.get(usize::from(lane.0 / 8)).is_some_and(|byte| byte >> (lane.0 % 8) & 1 == 1)
    }

    pub(crate) fn insert(&mut self, lane: Lane) {
        let index = usize::from(lane.0 / 8);
        if index >= self.0.len() {
            self.0.resize(index + 1, 0);
        }
        self.0[index] |= 1 << (lane.0 % 8);
    }

    /// Its bytes; the last is not zero.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// A set of lanes below `lanes`, from its bytes.
    pub(crate) fn from_bytes(bytes: &[u8], lanes: Lanes) -> Option<Self> {
        let highest = match bytes.last() {
            None => return Some(Self::default()),
            Some(0) => return None,
            Some(last) => 8 * (bytes.len() - 1) + 7 - last.leading_zeros() as usize,
        };
        (highest < usize::from(lanes.count())).then(|| Self(bytes.to_vec()))
    }
}

#[cfg(test)]
#[path = "dedup_test.rs"]
mod tests;
