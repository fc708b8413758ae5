//! How to reach a number of shards by splitting and merging.
//!
//! Every open shard is first cut at the boundaries of the wanted ranges that lie inside it, then the
//! pieces of each wanted range are merged pairwise. No shard gets more than two parents. Halving in
//! both phases keeps the lineage shallow: a reader passes about log₂ of the pieces, not all of them.
//!
//! ```text
//!   open    ├───── 0 ─────┼───── 1 ─────┤        three shards from two
//!   cut     ├── 2 ──┼ 3 ──┼ 4 ─┼── 5 ───┤        split 0, split 1
//!   merged  ├── 2 ──┼──── 6 ───┼── 5 ───┤        merge 3 and 4
//! ```

use std::collections::VecDeque;

use crate::{HashKey, HashRange};

/// One step. Shards are numbered: first the open ones as given, then new ones in order of creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Closes one shard and opens two: the part below `at`, then the part from `at` on.
    Split {
        /// The shard to close.
        shard: usize,
        /// The first point of the upper part.
        at: HashKey,
    },
    /// Closes two neighbours and opens one.
    Merge {
        /// The lower shard.
        lower: usize,
        /// The upper shard.
        upper: usize,
    },
}

/// The steps from `open` (in order, without gaps) to `wanted` (in order, without gaps).
///
/// At most one step per boundary on either side: `open.len() + wanted.len()` steps in all.
#[must_use]
pub fn reshape(open: &[HashRange], wanted: &[HashRange]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut created = open.len();
    // Cut, breadth first: (shard, its range), with the boundaries inside it found by search.
    let boundaries: Vec<HashKey> = wanted.iter().skip(1).map(|range| range.start).collect();
    let mut pieces: Vec<(usize, HashRange)> = Vec::new();
    let mut uncut: VecDeque<(usize, HashRange)> = open.iter().copied().enumerate().collect();
    while let Some((shard, range)) = uncut.pop_front() {
        let from = boundaries.partition_point(|&at| at <= range.start);
        let to = boundaries.partition_point(|&at| at <= range.end);
        let middle = boundaries[from..to].get((to - from) / 2).and_then(|&at| Some((at, range.split(at)?)));
        let Some((at, (lower, upper))) = middle else {
            pieces.push((shard, range));
            continue;
        };
        steps.push(Step::Split { shard, at });
        uncut.extend([(created, lower), (created + 1, upper)]);
        created += 2;
    }
    pieces.sort_by_key(|(_, range)| range.start);
    // Merge within each wanted range, round by round.
    let mut rest = pieces.into_iter().peekable();
    for target in wanted {
        let mut row = Vec::new();
        while let Some((shard, _)) = rest.next_if(|(_, range)| range.end <= target.end) {
            row.push(shard);
        }
        while row.len() > 1 {
            row = row
                .chunks(2)
                .map(|pair| match *pair {
                    [lower, upper] => {
                        steps.push(Step::Merge { lower, upper });
                        created += 1;
                        created - 1
                    }
                    _ => pair[0],
                })
                .collect();
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Carries the steps out on ranges alone and gives back what is open, in order, and the depth.
    fn carried_out(open: &[HashRange], steps: &[Step]) -> (Vec<HashRange>, usize) {
        let mut shards: Vec<(HashRange, bool, usize)> = open.iter().map(|range| (*range, true, 0)).collect();
        for step in steps {
            let mut close = |shard: usize| {
                let (range, open, depth) = &mut shards[shard];
                assert!(std::mem::replace(open, false), "closed twice");
                (*range, *depth)
            };
            match *step {
                Step::Split { shard, at } => {
                    let (range, depth) = close(shard);
                    let (lower, upper) = range.split(at).expect("two parts");
                    shards.extend([(lower, true, depth + 1), (upper, true, depth + 1)]);
                }
                Step::Merge { lower, upper } => {
                    let ((low, one), (high, two)) = (close(lower), close(upper));
                    assert!(low.touches(&high));
                    shards.push((HashRange { start: low.start, end: high.end }, true, one.max(two) + 1));
                }
            }
        }
        let mut left: Vec<_> = shards.into_iter().filter(|shard| shard.1).collect();
        left.sort_by_key(|shard| shard.0.start);
        let depth = left.iter().map(|shard| shard.2).max().unwrap_or(0);
        (left.into_iter().map(|shard| shard.0).collect(), depth)
    }

    #[test]
    fn doubling_is_one_split_each_and_halving_one_merge_each() {
        let (two, four) = (HashRange::uniform(2), HashRange::uniform(4));
        let up = reshape(&two, &four);
        assert!(up.len() == 2 && up.iter().all(|step| matches!(step, Step::Split { .. })), "{up:?}");
        let down = reshape(&four, &two);
        assert_eq!(down, [Step::Merge { lower: 0, upper: 1 }, Step::Merge { lower: 2, upper: 3 }]);
        assert_eq!(reshape(&four, &four), []);
    }

    proptest! {
        #[test]
        fn the_wanted_ranges_are_reached_in_bounded_steps(
            cuts in proptest::collection::btree_set(1u128..u128::MAX, 0..40),
            wanted in 1u32..60,
        ) {
            let starts: Vec<u128> = std::iter::once(0).chain(cuts).collect();
            let open: Vec<HashRange> = starts
                .iter()
                .enumerate()
                .map(|(index, &start)| HashRange {
                    start: HashKey(start),
                    end: starts.get(index + 1).map_or(HashKey::MAX, |next| HashKey(next - 1)),
                })
                .collect();
            let wanted = HashRange::uniform(wanted);
            let steps = reshape(&open, &wanted);
            prop_assert!(steps.len() <= open.len() + wanted.len());
            let (left, depth) = carried_out(&open, &steps);
            prop_assert_eq!(left, wanted);
            prop_assert!(depth <= 14, "a lineage of {}", depth);
        }
    }
}
