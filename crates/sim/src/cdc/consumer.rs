//! A reader that keeps what `identity.md` says it keeps, and no more: a floor, and a mark for each lane
//! whose last position is above it.

use tenure_stream::identity::{Era, Floor, Lanes, Position};

use super::event::Event;

/// What it knows of one shard.
#[derive(Debug, Clone)]
pub struct Consumer {
    era: Era,
    floor: Floor,
    marks: Vec<Option<Position>>,
}

/// What it makes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The next one of its lane.
    New,
    /// One that it had.
    Duplicate,
    /// Of an older era.
    Zombie,
    /// Something before it is missing.
    Gap,
}

impl Consumer {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(lanes: Lanes) -> Self {
        Self { era: Era(0), floor: Floor::default(), marks: vec![None; usize::from(lanes.count())] }
    }

    /// The reader of a shard that took the place of others: it knows what theirs knew.
    #[must_use]
    pub fn after(parents: &[&Self]) -> Self {
        let era = parents.iter().map(|parent| parent.era).max().unwrap_or_default();
        let of_era = || parents.iter().filter(|parent| parent.era == era);
        let lanes = parents.first().map_or(0, |parent| parent.marks.len());
        let mut child = Self {
            era,
            floor: of_era().map(|parent| parent.floor).max().unwrap_or_default(),
            marks: (0..lanes).map(|lane| of_era().filter_map(|parent| parent.marks[lane]).max()).collect(),
        };
        child.forget_what_the_floor_covers();
        child
    }

    /// Takes an event.
    pub fn take(&mut self, event: &Event) -> Seen {
        if event.id.era < self.era {
            return Seen::Zombie;
        }
        if event.id.era > self.era {
            self.era = event.id.era;
            self.floor = Floor { era: self.era, ..Floor::default() };
            self.marks.fill(None);
        }
        let mark = &mut self.marks[usize::from(event.lane.0)];
        let seen = |position: &Position, floor: &Floor| floor.covers(position) || Some(*position) <= *mark;
        let verdict = if seen(&event.id, &self.floor) {
            Seen::Duplicate
        } else if event.prev.is_none_or(|prev| seen(&prev, &self.floor) || event.floor.covers(&prev)) {
            *mark = Some(event.id);
            Seen::New
        } else {
            Seen::Gap
        };
        if event.floor.era == self.era && event.floor > self.floor {
            self.floor = event.floor;
            self.forget_what_the_floor_covers();
        }
        verdict
    }

    fn forget_what_the_floor_covers(&mut self) {
        let Self { floor, marks, .. } = self;
        for mark in marks {
            if mark.is_some_and(|position| floor.covers(&position)) {
                *mark = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_stream::identity::{Lane, Lsn};

    use super::*;

    fn position(era: u32, commit: u64) -> Position {
        Position { era: Era(era), commit: Lsn(commit), change: Lsn(commit), k: 0 }
    }

    fn event(lane: u16, id: Position, prev: Option<Position>, below: u64) -> Event {
        let floor = Floor { era: id.era, below: Lsn(below) };
        Event { change: 0, id, lane: Lane(lane), prev, floor, leader: 1, run: 1, pointer: false }
    }

    #[test]
    fn hands_on_each_once_and_sees_gaps() {
        let mut consumer = Consumer::new(Lanes::new(2).unwrap());
        assert_eq!(consumer.take(&event(0, position(1, 10), None, 0)), Seen::New);
        assert_eq!(consumer.take(&event(0, position(1, 10), None, 0)), Seen::Duplicate);
        assert_eq!(consumer.take(&event(0, position(1, 30), Some(position(1, 20)), 0)), Seen::Gap);
        assert_eq!(consumer.take(&event(0, position(1, 30), Some(position(1, 20)), 21)), Seen::New);
        assert_eq!(consumer.take(&event(1, position(1, 15), None, 0)), Seen::Duplicate, "below the floor");
        assert_eq!(consumer.take(&event(1, position(2, 5), None, 0)), Seen::New);
        assert_eq!(consumer.take(&event(0, position(1, 40), None, 0)), Seen::Zombie);
    }

    #[test]
    fn a_child_knows_what_its_parents_knew() {
        let mut parents = [Consumer::new(Lanes::new(2).unwrap()), Consumer::new(Lanes::new(2).unwrap())];
        parents[0].take(&event(0, position(1, 30), None, 12));
        parents[1].take(&event(1, position(1, 20), None, 0));
        let mut child = Consumer::after(&[&parents[0], &parents[1]]);
        assert_eq!(child.take(&event(0, position(1, 30), None, 0)), Seen::Duplicate);
        assert_eq!(child.take(&event(1, position(1, 20), None, 0)), Seen::Duplicate);
        assert_eq!(child.take(&event(1, position(1, 11), None, 0)), Seen::Duplicate);
        assert_eq!(child.take(&event(1, position(1, 40), Some(position(1, 20)), 0)), Seen::New);
    }
}
