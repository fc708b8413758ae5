//! Which shards a reader reads now, and which wait: parents before children.
//!
//! ```text
//!   shard 0 ──┬── shard 1 ──┐          0 is read to its end,
//!             └── shard 2 ──┴── 3      then 1 and 2, then 3
//! ```

use std::collections::BTreeMap;

use tenure_stream::{Position, Shard, ShardId};

/// How far the reader is with the shards it cares about.
#[derive(Debug)]
pub(super) struct ReadingOrder {
    shards: BTreeMap<ShardId, Entry>,
    /// Whether shards are read that descend from none of those asked for.
    all: bool,
}

#[derive(Debug)]
struct Entry {
    parents: Vec<ShardId>,
    from: Position,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Reading,
    Done,
}

impl ReadingOrder {
    /// Reads those of `shards` that are in `only` (all, if it is empty) from `from` on.
    ///
    /// [`Position::Latest`] leaves out what is closed: nothing is added to it.
    pub(super) fn new(shards: &[Shard], only: &[ShardId], from: &Position) -> Self {
        let mut order = Self { shards: BTreeMap::new(), all: only.is_empty() };
        for shard in shards.iter().filter(|shard| only.is_empty() || only.contains(&shard.id)) {
            let over = *from == Position::Latest && !shard.is_open();
            order.insert(shard, from.clone(), if over { State::Done } else { State::Waiting });
        }
        order
    }

    /// Takes up shards that were opened since: from their beginning.
    pub(super) fn discover(&mut self, shards: &[Shard]) {
        // Parents are listed before their children, so that one pass finds grandchildren, too.
        for shard in shards {
            let ours = self.all || shard.parents().any(|parent| self.shards.contains_key(parent));
            if ours && !self.shards.contains_key(&shard.id) {
                self.insert(shard, Position::TrimHorizon, State::Waiting);
            }
        }
    }

    fn insert(&mut self, shard: &Shard, from: Position, state: State) {
        let parents = shard.parents().cloned().collect();
        self.shards.insert(shard.id.clone(), Entry { parents, from, state });
    }

    /// The shards whose parents are read to the end, and where to begin; each is given once.
    pub(super) fn begin(&mut self) -> Vec<(ShardId, Position)> {
        let done = |parent: &ShardId| self.shards.get(parent).is_none_or(|entry| entry.state == State::Done);
        let ready: Vec<_> = self
            .shards
            .iter()
            .filter(|(_, entry)| entry.state == State::Waiting && entry.parents.iter().all(done))
            .map(|(id, entry)| (id.clone(), entry.from.clone()))
            .collect();
        for (id, _) in &ready {
            self.set(id, State::Reading);
        }
        ready
    }

    /// The shard is read to its end.
    pub(super) fn finish(&mut self, shard: &ShardId) {
        self.set(shard, State::Done);
    }

    fn set(&mut self, shard: &ShardId, state: State) {
        if let Some(entry) = self.shards.get_mut(shard) {
            entry.state = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_stream::HashRange;

    use super::*;

    fn shard(number: u64, parents: &[u64], open: bool) -> Shard {
        Shard {
            id: ShardId::numbered(number),
            parent: parents.first().map(|number| ShardId::numbered(*number)),
            adjacent_parent: parents.get(1).map(|number| ShardId::numbered(*number)),
            hash_range: HashRange::ALL,
            first_sequence: 1.into(),
            last_sequence: (!open).then(|| 9.into()),
        }
    }

    fn family() -> Vec<Shard> {
        vec![shard(0, &[], false), shard(1, &[0], false), shard(2, &[0], false), shard(3, &[1, 2], true)]
    }

    fn begun(order: &mut ReadingOrder) -> Vec<u64> {
        order.begin().iter().map(|(id, _)| id.number().unwrap()).collect()
    }

    #[test]
    fn parents_come_before_children() {
        let mut order = ReadingOrder::new(&family(), &[], &Position::TrimHorizon);
        assert_eq!(begun(&mut order), [0]);
        assert_eq!(begun(&mut order), [0; 0]);
        order.finish(&ShardId::numbered(0));
        assert_eq!(begun(&mut order), [1, 2]);
        order.finish(&ShardId::numbered(2));
        assert_eq!(begun(&mut order), [0; 0]);
        order.finish(&ShardId::numbered(1));
        assert_eq!(begun(&mut order), [3]);
    }

    #[test]
    fn parents_that_were_trimmed_away_are_not_waited_for() {
        let mut order = ReadingOrder::new(&family()[3..], &[], &Position::TrimHorizon);
        assert_eq!(begun(&mut order), [3]);
    }

    #[test]
    fn the_latest_are_in_the_open_shards_and_what_they_become() {
        let mut order = ReadingOrder::new(&family(), &[], &Position::Latest);
        assert_eq!(order.begin(), [(ShardId::numbered(3), Position::Latest)]);
        order.discover(&[shard(4, &[3], true)]);
        assert_eq!(begun(&mut order), [0; 0]);
        order.finish(&ShardId::numbered(3));
        assert_eq!(order.begin(), [(ShardId::numbered(4), Position::TrimHorizon)]);
    }

    #[test]
    fn a_choice_follows_its_own_descendants_only() {
        let mut order = ReadingOrder::new(&family(), &[ShardId::numbered(1)], &Position::TrimHorizon);
        assert_eq!(begun(&mut order), [1]);
        order.finish(&ShardId::numbered(1));
        let mut later = family();
        later.extend([shard(4, &[3], true), shard(5, &[2], true)]);
        order.discover(&later);
        assert_eq!(begun(&mut order), [3]);
        order.finish(&ShardId::numbered(3));
        assert_eq!(begun(&mut order), [4]);
    }
}
