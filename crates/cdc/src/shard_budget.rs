//! How much each shard may be sent, and which lanes wait for it: pure.
//!
//! A shard of Kinesis takes so many records and bytes a second and turns away the rest. What is turned away
//! waits for a backoff, and meanwhile costs calls and bandwidth. So a shard has two buckets, of records and of
//! bytes, which refill at its rate and hold a second of it. A lane whose shard has too little left is held,
//! and its record goes on growing; lanes of other shards go on.
//!
//! ```text
//!   ready: a b c d ─► shard 1: a c   enough for both, they leave
//!                 └─► shard 2: b     not enough: held until 12:00:00.040; d comes behind it
//! ```
//!
//! - CP-17: while it is known which lanes a shard has, no shard is sent more than its rate and one second of
//!   it in advance. A record that is larger than a second of the rate leaves when the bucket is full, and what
//!   follows waits for it.
//!
//! Which lanes a shard has is asked at the beginning, and again when a record lands on another shard than was
//! thought: the stream was resharded. Until it is known nothing is held.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use tenure_clock::Monotonic;
use tenure_stream::identity::{Lane, Lanes};
use tenure_stream::{HashRange, ShardId, ShardRate};

/// How often it is asked at most which shards there are.
const ASK_INTERVAL: Duration = Duration::from_secs(10);
/// A bucket holds what flows in within this time.
const BURST_NANOS: u64 = 1_000_000_000;
/// Of a lane whose shard is not known.
const NO_SHARD: u32 = u32::MAX;

/// A shard that takes records, and the hash keys that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenShard {
    /// Its name.
    pub id: ShardId,
    /// Its hash keys.
    pub range: HashRange,
}

/// See the module.
#[derive(Debug, Default)]
pub struct ShardBudget {
    records_per_s: u64,
    bytes_per_s: u64,
    shards: Vec<Allowance>,
    /// The shard of each lane. Empty while it is not known.
    of_lane: Vec<u32>,
    /// When to look at each shard that holds lanes.
    due: BinaryHeap<Reverse<(Monotonic, u32)>>,
    ask: Ask,
}

/// What one shard has left, and who waits for more.
#[derive(Debug)]
struct Allowance {
    id: ShardId,
    /// When its buckets are full again.
    records: Bucket,
    bytes: Bucket,
    held: VecDeque<(Lane, Monotonic)>,
}

/// Full again at this moment, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Bucket(u64);

#[derive(Debug, Default)]
struct Ask {
    under_way: bool,
    /// What is known is wrong.
    stale: bool,
    not_before: Monotonic,
}

impl ShardBudget {
    /// What the stream says, unless `records_per_s` or `bytes_per_s` say otherwise. Zero is without limit.
    #[must_use]
    pub fn new(rate: Option<ShardRate>, records_per_s: Option<u64>, bytes_per_s: Option<u64>) -> Self {
        Self {
            records_per_s: records_per_s.or(rate.map(|rate| rate.records_per_s)).unwrap_or(0),
            bytes_per_s: bytes_per_s.or(rate.map(|rate| rate.bytes_per_s)).unwrap_or(0),
            ..Self::default()
        }
    }

    /// Whether anything is limited now.
    #[must_use]
    pub fn is_on(&self) -> bool {
        !self.of_lane.is_empty()
    }

    // === which shards there are ===

    /// Whether it should be asked now which shards there are. Whoever is told so asks, and answers.
    pub fn asks(&mut self, now: Monotonic) -> bool {
        let limited = self.records_per_s > 0 || self.bytes_per_s > 0;
        let wanted = limited && (self.ask.stale || !self.is_on());
        if !wanted || self.ask.under_way || now < self.ask.not_before {
            return false;
        }
        self.ask = Ask { under_way: true, stale: false, not_before: now + ASK_INTERVAL };
        true
    }

    /// The answer: the open shards, none if it is not known. Those that were held are given back, those who
    /// waited longest first.
    pub fn answered(&mut self, lanes: Lanes, open: &[OpenShard]) -> Vec<(Lane, Monotonic)> {
        self.ask.under_way = false;
        if open.is_empty() {
            // What was known is better than nothing, and it is asked again.
            self.ask.stale = true;
            return Vec::new();
        }
        self.due.clear();
        let mut held = Vec::new();
        let mut before = BTreeMap::new();
        for shard in self.shards.drain(..) {
            held.extend(shard.held);
            before.insert(shard.id, (shard.records, shard.bytes));
        }
        held.sort_by_key(|(lane, since)| (*since, *lane));
        self.shards.extend(open.iter().map(|shard| {
            let (records, bytes) = before.get(&shard.id).copied().unwrap_or_default();
            Allowance { id: shard.id.clone(), records, bytes, held: VecDeque::new() }
        }));
        let shard_of = |lane| {
            let key = lanes.hash_key(lane);
            let found = open.iter().position(|shard| shard.range.contains(key));
            found.and_then(|index| u32::try_from(index).ok()).unwrap_or(NO_SHARD)
        };
        self.of_lane = lanes.all().map(shard_of).collect();
        held
    }

    /// A record of the lane is on this shard.
    pub fn landed(&mut self, lane: Lane, on: &ShardId) {
        if self.is_on() && self.shard(lane).is_some_and(|shard| self.shards[shard].id != *on) {
            self.ask.stale = true;
        }
    }

    // === what they may be sent ===

    /// Whether a record of the lane may leave now. Nobody overtakes those who are held.
    #[must_use]
    pub fn admits(&self, now: Monotonic, lane: Lane, bytes: usize) -> bool {
        let Some(shard) = self.shard(lane) else { return true };
        (self.shards[shard].held.is_empty() && self.affordable_at(shard, bytes) <= now)
            || tenure_planted::is("shard_rate_is_ignored")
    }

    /// A record of the lane leaves.
    pub fn spend(&mut self, now: Monotonic, lane: Lane, bytes: usize) {
        let Some(shard) = self.shard(lane) else { return };
        let (record, bytes) = (self.cost_of_record(), self.cost_of_bytes(bytes));
        self.shards[shard].records.spend(now, record);
        self.shards[shard].bytes.spend(now, bytes);
    }

    /// The lane waits for its shard.
    pub fn hold(&mut self, lane: Lane, since: Monotonic, bytes: usize) {
        let Some(shard) = self.shard(lane) else { return };
        if self.shards[shard].held.is_empty() {
            let at = self.affordable_at(shard, bytes);
            self.due.push(Reverse((at, shard as u32)));
        }
        self.shards[shard].held.push_back((lane, since));
    }

    /// A lane that may be waiting no longer; then [`release`](Self::release) says whether it is.
    #[must_use]
    pub fn due(&self, now: Monotonic) -> Option<Lane> {
        let Reverse((at, shard)) = self.due.peek().filter(|Reverse((at, _))| *at <= now)?;
        debug_assert!(*at <= now);
        self.shards[*shard as usize].held.front().map(|(lane, _)| *lane)
    }

    /// Gives the lane back that [`due`](Self::due) has named, if its record, which has this size by now, may
    /// leave. Whoever gets it spends for it.
    pub fn release(&mut self, now: Monotonic, bytes: usize) -> Option<(Lane, Monotonic)> {
        let Reverse((_, shard)) = self.due.pop()?;
        let at = self.affordable_at(shard as usize, bytes);
        if at > now {
            self.due.push(Reverse((at, shard)));
            return None;
        }
        let held = &mut self.shards[shard as usize].held;
        let released = held.pop_front();
        if !held.is_empty() {
            // Looked at next, with its own size.
            self.due.push(Reverse((now, shard)));
        }
        released
    }

    /// When to look at the next.
    #[must_use]
    pub fn wake(&self) -> Option<Monotonic> {
        self.due.peek().map(|Reverse((at, _))| *at)
    }

    /// Whether anybody is held.
    #[must_use]
    pub fn holds_any(&self) -> bool {
        !self.due.is_empty()
    }

    fn shard(&self, lane: Lane) -> Option<usize> {
        self.of_lane.get(usize::from(lane.0)).filter(|shard| **shard != NO_SHARD).map(|shard| *shard as usize)
    }

    fn affordable_at(&self, shard: usize, bytes: usize) -> Monotonic {
        let Allowance { records, bytes: of_bytes, .. } = &self.shards[shard];
        records.holds_at(self.cost_of_record()).max(of_bytes.holds_at(self.cost_of_bytes(bytes)))
    }

    fn cost_of_record(&self) -> u64 {
        cost(1, self.records_per_s)
    }

    fn cost_of_bytes(&self, bytes: usize) -> u64 {
        cost(bytes as u64, self.bytes_per_s)
    }
}

impl Bucket {
    /// When it holds so much. More than it can hold is had when it is full.
    fn holds_at(self, cost: u64) -> Monotonic {
        Monotonic::from_nanos(self.0.saturating_sub(BURST_NANOS - cost.min(BURST_NANOS)))
    }

    fn spend(&mut self, now: Monotonic, cost: u64) {
        self.0 = self.0.max(now.as_nanos()).saturating_add(cost);
    }
}

/// For how long so much flows in, in nanoseconds.
fn cost(amount: u64, per_s: u64) -> u64 {
    if per_s == 0 {
        return 0;
    }
    let nanos = u128::from(amount) * u128::from(BURST_NANOS) / u128::from(per_s);
    u64::try_from(nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Monotonic {
        Monotonic::from_nanos(millis * 1_000_000)
    }

    fn four_lanes() -> Lanes {
        Lanes::new(4).unwrap()
    }

    /// So many shards of one size, their names counting from `first`.
    fn shards(first: u64, count: u32) -> Vec<OpenShard> {
        let ranges = HashRange::uniform(count).into_iter().zip(first..);
        ranges.map(|(range, number)| OpenShard { id: ShardId::numbered(number), range }).collect()
    }

    /// Lanes 0 and 1 on the first shard, 2 and 3 on the second.
    fn budget(records_per_s: u64, bytes_per_s: u64) -> ShardBudget {
        let mut budget = ShardBudget::new(None, Some(records_per_s), Some(bytes_per_s));
        assert!(budget.asks(at(0)));
        budget.answered(four_lanes(), &shards(0, 2));
        budget
    }

    /// Sends as the publisher does, or is held.
    fn send(budget: &mut ShardBudget, now: Monotonic, lane: u16, bytes: usize) -> bool {
        let admitted = budget.admits(now, Lane(lane), bytes);
        if admitted {
            budget.spend(now, Lane(lane), bytes);
        } else {
            budget.hold(Lane(lane), now, bytes);
        }
        admitted
    }

    fn released(budget: &mut ShardBudget, now: Monotonic, bytes: usize) -> Vec<u16> {
        let mut all = Vec::new();
        while budget.due(now).is_some() {
            if let Some((lane, _)) = budget.release(now, bytes) {
                budget.spend(now, lane, bytes);
                all.push(lane.0);
            }
        }
        all
    }

    #[test]
    fn without_a_rate_or_without_shards_nothing_is_held() {
        let mut off = ShardBudget::new(None, None, None);
        assert!(!off.asks(at(0)), "nobody asks for nothing");
        let mut set_off = ShardBudget::new(Some(ShardRate::KINESIS), Some(0), Some(0));
        assert!(!set_off.asks(at(0)));
        let mut unknown = ShardBudget::new(Some(ShardRate::KINESIS), None, None);
        for _ in 0..5000 {
            assert!(send(&mut unknown, at(0), 1, 1 << 20));
        }
        assert_eq!((unknown.wake(), unknown.is_on()), (None, false));
        assert!(unknown.asks(at(0)), "it is not known, so it is asked");
        assert!(!unknown.asks(at(0)), "once");
        assert!(unknown.answered(four_lanes(), &[]).is_empty());
        assert!(!unknown.asks(at(9_999)) && unknown.asks(at(10_000)), "and not often");
    }

    #[test]
    fn a_second_of_records_leaves_at_once_and_then_one_by_one() {
        let mut budget = budget(10, 0);
        let sent = (0..12).filter(|_| send(&mut budget, at(0), 0, 100)).count();
        assert_eq!(sent, 10);
        assert!(send(&mut budget, at(0), 2, 100), "the other shard has its own");
        assert_eq!(budget.wake(), Some(at(100)));
        assert!(released(&mut budget, at(99), 100).is_empty());
        assert_eq!(released(&mut budget, at(100), 100), [0]);
        assert_eq!(budget.wake(), Some(at(200)));
        assert!(released(&mut budget, at(199), 100).is_empty());
        assert_eq!(released(&mut budget, at(200), 100), [0]);
        assert_eq!((budget.wake(), budget.holds_any()), (None, false));
    }

    #[test]
    fn nobody_overtakes_those_who_are_held() {
        let mut budget = budget(1, 0);
        assert!(send(&mut budget, at(0), 0, 1));
        assert!(!send(&mut budget, at(10), 1, 1));
        assert!(!send(&mut budget, at(1_500), 0, 1), "there is enough, and somebody waited for it");
        assert_eq!(released(&mut budget, at(1_500), 1), [1]);
        assert_eq!(released(&mut budget, at(2_500), 1), [0]);
    }

    #[test]
    fn bytes_count_too_and_what_grew_meanwhile_waits_longer() {
        let mut budget = budget(0, 1000);
        assert!(send(&mut budget, at(0), 0, 900));
        assert!(!send(&mut budget, at(0), 1, 200));
        assert_eq!(budget.wake(), Some(at(100)));
        assert!(released(&mut budget, at(100), 500).is_empty());
        assert_eq!(budget.wake(), Some(at(400)));
        assert_eq!(released(&mut budget, at(400), 500), [1]);
    }

    #[test]
    fn what_is_larger_than_a_second_leaves_and_the_next_waits_for_it() {
        let mut budget = budget(0, 1000);
        assert!(send(&mut budget, at(0), 0, 5000));
        assert!(!send(&mut budget, at(1), 1, 5000));
        assert_eq!(budget.wake(), Some(at(5000)));
        assert_eq!(released(&mut budget, at(5000), 5000), [1]);
    }

    #[test]
    fn a_reshard_is_noticed_and_those_who_were_held_are_placed_anew() {
        let mut budget = budget(1, 0);
        budget.landed(Lane(0), &ShardId::numbered(0));
        assert!(!budget.asks(at(60_000)), "all is as it was");
        assert!(send(&mut budget, at(60_000), 0, 1) && send(&mut budget, at(60_000), 2, 1));
        assert!(!send(&mut budget, at(60_000), 3, 1) && !send(&mut budget, at(60_001), 1, 1));
        budget.landed(Lane(0), &ShardId::numbered(7));
        assert!(budget.asks(at(60_002)));
        // The first was divided, the second is as it was.
        let halves = shards(7, 4);
        let now = [halves[0].clone(), halves[1].clone(), shards(0, 2)[1].clone()];
        assert_eq!(budget.answered(four_lanes(), &now), [(Lane(3), at(60_000)), (Lane(1), at(60_001))]);
        assert!(!budget.holds_any());
        assert!(budget.admits(at(60_002), Lane(1), 1), "a new shard has a new bucket");
        assert!(!budget.admits(at(60_002), Lane(3), 1), "an old one keeps what it had");
    }

    #[test]
    fn no_answer_leaves_what_was_known() {
        let mut budget = budget(1, 0);
        budget.landed(Lane(0), &ShardId::numbered(7));
        assert!(budget.asks(at(60_000)));
        budget.answered(four_lanes(), &[]);
        assert!(budget.is_on());
        assert!(!budget.asks(at(60_001)) && budget.asks(at(70_000)));
    }

    proptest! {
        #[test]
        fn in_no_window_is_more_sent_than_its_length_and_one_burst(
            records_per_s in 1u64..50,
            bytes_per_s in 100u64..5000,
            sends in prop::collection::vec((0u64..200, 0u16..2, 1usize..400), 1..200),
        ) {
            let mut budget = budget(records_per_s, bytes_per_s);
            let (mut now, mut sent) = (0, Vec::new());
            for (pause, lane, bytes) in sends {
                now += pause;
                for _ in released(&mut budget, at(now), 400) {
                    sent.push((now, 400));
                }
                if send(&mut budget, at(now), lane, bytes) {
                    sent.push((now, bytes));
                }
            }
            for (index, (from, _)) in sent.iter().enumerate() {
                let (mut records, mut bytes) = (0, 0);
                for (until, size) in &sent[index..] {
                    records += 1;
                    bytes += *size as u64;
                    let millis = until - from + 1000;
                    prop_assert!(records * 1000 <= records_per_s * millis + 1000);
                    // What is larger than the bucket goes when it is full.
                    prop_assert!(bytes * 1000 <= bytes_per_s * millis + 400_000);
                }
            }
        }
    }
}
