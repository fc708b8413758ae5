use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestRng;
use tenure_stream::HashKey;

use super::*;

pub(crate) fn position(era: u32, commit: u64, k: u32) -> Position {
    Position { era: Era(era), commit: Lsn(commit), change: Lsn(commit - 1), k }
}

fn event(lane: u16, id: Position, prev: Option<Position>, below: u64) -> Header<'static> {
    let floor = Floor { era: id.era, below: Lsn(below) };
    Header { source: "shop", id, lane: Lane(lane), lanes: Lanes::new(4).unwrap(), prev, floor, leader: 1 }
}

fn at(commit: u64) -> Position {
    position(1, commit, 0)
}

/// One line per event: `lane commit prev floor -> verdict`, `-` for no prev. Every event is noted.
#[track_caller]
fn check(dedup: &mut Dedup, story: &str) {
    for line in story.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (told, verdict) = line.split_once(" -> ").unwrap();
        let words: Vec<&str> = told.split_whitespace().collect();
        let [lane, id, prev, below] = words[..] else { panic!("{line}") };
        let position = |text: &str| match text.split_once(':') {
            Some((era, commit)) => position(era.parse().unwrap(), commit.parse().unwrap(), 0),
            None => at(text.parse().unwrap()),
        };
        let prev = (prev != "-").then(|| position(prev));
        let event = event(lane.parse().unwrap(), position(id), prev, below.parse().unwrap());
        assert_eq!(format!("{:?}", dedup.take(&event).0).to_lowercase(), verdict, "{line}");
    }
}

#[test]
fn each_is_new_once_and_gaps_are_seen() {
    let mut dedup = Dedup::complete();
    check(
        &mut dedup,
        "
        0 10 - 1     -> new
        0 10 - 1     -> duplicate
        0 30 20 1    -> gap
        0 30 20 21   -> new
        1 15 - 1     -> duplicate
        1 40 25 1    -> gap
        1 40 20 1    -> new
        1 2:5 - 1    -> new
        0 40 - 1     -> zombie
        0 2:3 - 1    -> new
        0 2:9 2:8 1  -> gap
        ",
    );
}

#[test]
fn a_gap_changes_nothing_until_an_operator_says_so() {
    let mut dedup = Dedup::complete();
    check(&mut dedup, "0 10 - 1 -> new");
    let before = dedup.clone();
    let gap = event(0, at(40), Some(at(30)), 20);
    assert_eq!(dedup.take(&gap), (Verdict::Gap, None));
    assert_eq!(dedup, before);
    let step = dedup.take_over_gap(&gap);
    check(
        &mut dedup,
        "
        0 50 40 1 -> new
        0 30 10 1 -> duplicate
        ",
    );
    let mut other = before;
    other.apply(&step);
    check(&mut other, "0 50 40 1 -> new");
}

#[test]
fn who_began_in_the_middle_judges_no_gap_until_a_lane_is_known() {
    let mut dedup = Dedup::unknown();
    check(
        &mut dedup,
        "
        0 30 20 1  -> new
        0 50 40 1  -> gap
        0 50 30 35 -> new
        1 60 55 1  -> new
        1 70 65 1  -> gap
        1 2:9 2:8 1 -> new
        1 2:11 2:10 1 -> gap
        0 2:11 2:10 1 -> new
        ",
    );
    // Its mark is forgotten below the floor; that the lane is known is not.
    let mut dedup = Dedup::unknown();
    check(
        &mut dedup,
        "
        0 30 20 1   -> new
        1 60 - 50   -> new
        ",
    );
    let mut dedup = dedup.compacted();
    assert_eq!(dedup.marks(), 1);
    check(&mut dedup, "0 90 80 1 -> gap");
    let _ = dedup.forget();
    check(
        &mut dedup,
        "
        0 40 - 1    -> duplicate
        0 90 80 1   -> new
        0 110 100 1 -> gap
        ",
    );
}

#[test]
fn a_child_knows_what_its_parents_knew_of_its_lanes() {
    let halves = HashRange::uniform(2);
    let mut parent = Dedup::complete();
    check(&mut parent, "0 30 - 12 -> new\n3 40 - 1 -> new");
    let lower = Dedup::after(&[(Some(&parent), Some(HashRange::ALL))], halves[0]);
    let upper = Dedup::after(&[(Some(&parent), Some(HashRange::ALL))], halves[1]);
    assert_eq!((lower.marks(), upper.marks()), (1, 1));
    let mut merged =
        Dedup::after(&[(Some(&lower), Some(halves[0])), (Some(&upper), Some(halves[1]))], HashRange::ALL);
    check(
        &mut merged,
        "
        0 30 - 1   -> duplicate
        3 40 - 1   -> duplicate
        1 11 - 1   -> duplicate
        3 60 50 1  -> gap
        3 60 40 1  -> new
        ",
    );
}

#[test]
fn a_child_of_a_parent_that_is_not_known_judges_what_the_other_knew() {
    let halves = HashRange::uniform(2);
    let mut known = Dedup::complete();
    check(&mut known, "0 30 - 1 -> new");
    let parents = [(Some(&known), Some(halves[0])), (None, Some(halves[1]))];
    let mut child = Dedup::after(&parents, HashRange::ALL);
    check(
        &mut child,
        "
        0 30 - 1   -> duplicate
        0 50 40 1  -> gap
        1 50 40 1  -> gap
        2 50 40 1  -> new
        2 70 60 1  -> gap
        ",
    );
    assert!(!child.complete);
}

#[test]
fn sources_are_told_apart_and_their_number_is_bounded() {
    let mut dedup = Dedup::complete();
    let names: Vec<String> = (0..=SOURCES_MAX).map(|number| format!("source-{number}")).collect();
    for (index, name) in names.iter().enumerate() {
        let event = Header { source: name, ..event(0, at(10), None, 1) };
        let last = index == SOURCES_MAX;
        assert_eq!(dedup.take(&event).0, if last { Verdict::Untracked } else { Verdict::New });
        assert_eq!(dedup.take(&event).0, if last { Verdict::Untracked } else { Verdict::Duplicate });
    }
}

// === random publishers ===

/// As an event stands in the stream.
type Published = (u16, Position, Option<Position>, u64);

const LANES: u16 = 4;

/// What leaders publish that crash, lose replies, overlap and begin again. Every change is published in the
/// end, at most one record of a lane is under way, and a floor never runs ahead.
struct Publisher<'a> {
    rng: &'a mut TestRng,
    changes: Vec<(u16, Position)>,
    stream: Vec<Published>,
}

/// One leader: which changes it published, which of them are acknowledged, and since when it leads.
#[derive(Clone)]
struct Leader {
    acked: BTreeSet<usize>,
    last: [Option<Position>; LANES as usize],
    next: [usize; LANES as usize],
    start: usize,
}

impl Publisher<'_> {
    fn new(rng: &mut TestRng, count: usize) -> Publisher<'_> {
        let mut changes = Vec::new();
        for index in 0..count {
            // Transactions of two changes.
            changes.push((
                rng.random_range(0..LANES),
                position(1, 10 * (index as u64 / 2 + 1), index as u32 % 2),
            ));
        }
        Publisher { rng, changes, stream: Vec::new() }
    }

    fn leader(&self, start: usize) -> Leader {
        Leader {
            acked: (0..start).collect(),
            last: [None; LANES as usize],
            next: [start; LANES as usize],
            start,
        }
    }

    fn frontier(&self, leader: &Leader) -> usize {
        (leader.start..self.changes.len())
            .find(|index| !leader.acked.contains(index))
            .unwrap_or(self.changes.len())
    }

    /// Publishes one record of a lane; `false` if it has no more. Its acknowledgement may be lost: then the
    /// record is sent again.
    fn publish(&mut self, leader: &mut Leader, lane: u16) -> bool {
        let place = usize::from(lane);
        let Some(index) =
            (leader.next[place]..self.changes.len()).find(|index| self.changes[*index].0 == lane)
        else {
            return false;
        };
        let below = self.changes.get(self.frontier(leader)).map_or(u64::MAX, |(_, id)| id.commit.0);
        let id = self.changes[index].1;
        for _ in 0..self.rng.random_range(1..3) {
            self.stream.push((lane, id, leader.last[place], below));
        }
        leader.acked.insert(index);
        leader.last[place] = Some(id);
        leader.next[place] = index + 1;
        true
    }

    fn run(mut self) -> (Vec<(u16, Position)>, Vec<Published>) {
        let mut old: Option<Leader> = None;
        let mut leader = self.leader(0);
        for _ in 0..self.rng.random_range(0..60) {
            let lane = self.rng.random_range(0..LANES);
            match self.rng.random_range(0..10) {
                // A zombie goes on for a while.
                0..3 => {
                    if let Some(mut zombie) = old.take() {
                        self.publish(&mut zombie, lane);
                        old = Some(zombie);
                    }
                }
                3 => {
                    let frontier = self.frontier(&leader);
                    let start = self.rng.random_range(leader.start..=frontier);
                    old = Some(std::mem::replace(&mut leader, self.leader(start)));
                }
                _ => {
                    self.publish(&mut leader, lane);
                }
            }
        }
        for lane in 0..LANES {
            while self.publish(&mut leader, lane) {}
        }
        (self.changes, self.stream)
    }
}

fn header(published: &Published) -> Header<'static> {
    event(published.0, published.1, published.2, published.3)
}

/// The rule as `identity.md` says it, with a mark for every lane for ever.
#[derive(Default)]
struct Model {
    below: u64,
    marks: [Option<Position>; LANES as usize],
}

impl Model {
    fn take(&mut self, (lane, id, prev, below): &Published) -> Verdict {
        let mark = &mut self.marks[usize::from(*lane)];
        let seen = |position: &Position| position.commit.0 < self.below || Some(*position) <= *mark;
        let verdict = if seen(id) {
            Verdict::Duplicate
        } else if prev.is_none_or(|prev| seen(&prev) || prev.commit.0 < *below) {
            Verdict::New
        } else {
            Verdict::Gap
        };
        if verdict != Verdict::Duplicate {
            *mark = Some(*id);
        }
        self.below = self.below.max(*below);
        verdict
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn whatever_publishers_do_each_change_is_delivered_once_in_order(
        count in 1_usize..40, mut rng in any::<u64>().prop_perturb(|_, rng| rng), reshard: bool,
    ) {
        let (mut changes, stream) = Publisher::new(&mut rng, count).run();
        let halves = HashRange::uniform(2);
        let cut = if reshard { rng.random_range(0..=stream.len()) } else { stream.len() };
        let cut_again = rng.random_range(cut..=stream.len());
        let mut delivered: Vec<(u16, Position)> = Vec::new();
        let mut read = |dedup: &mut Dedup, part: &[Published], range: HashRange| {
            for published in part {
                let event = header(published);
                if !range.contains(event.lanes.hash_key(event.lane)) {
                    continue;
                }
                match dedup.take(&event).0 {
                    Verdict::New => delivered.push((published.0, published.1)),
                    Verdict::Duplicate => {}
                    other => panic!("{other:?} at {published:?} of {stream:?}"),
                }
            }
        };
        let mut whole = Dedup::complete();
        read(&mut whole, &stream[..cut], HashRange::ALL);
        // Two shards for a while, then one again. States travel as they do between workers: compacted.
        let parent = whole.compacted();
        let [mut lower, mut upper] =
            [0, 1].map(|half: usize| Dedup::after(&[(Some(&parent), Some(HashRange::ALL))], halves[half]));
        read(&mut lower, &stream[cut..cut_again], halves[0]);
        read(&mut upper, &stream[cut..cut_again], halves[1]);
        let (lower, upper) = (lower.compacted(), upper.compacted());
        let mut merged =
            Dedup::after(&[(Some(&lower), Some(halves[0])), (Some(&upper), Some(halves[1]))], HashRange::ALL);
        read(&mut merged, &stream[cut_again..], HashRange::ALL);
        changes.sort_by_key(|(lane, _)| *lane);
        // The sort is stable: per lane it is the order of delivery.
        delivered.sort_by_key(|(lane, _)| *lane);
        prop_assert_eq!(delivered, changes);
    }

    #[test]
    fn verdicts_are_those_of_the_model(
        count in 1_usize..40, mut rng in any::<u64>().prop_perturb(|_, rng| rng), losses in 0_u32..4,
    ) {
        let (changes, mut stream) = Publisher::new(&mut rng, count).run();
        for _ in 0..losses {
            let lost = changes[rng.random_range(0..changes.len())].1;
            stream.retain(|(_, id, ..)| *id != lost);
        }
        let (mut dedup, mut model) = (Dedup::complete(), Model::default());
        for published in &stream {
            let event = header(published);
            let verdict = dedup.judge(&event);
            prop_assert_eq!(verdict, model.take(published), "{:?}", published);
            match verdict {
                Verdict::Gap => _ = dedup.take_over_gap(&event),
                _ => _ = dedup.take(&event),
            }
            if rng.random_range(0..4) == 0 {
                dedup = dedup.compacted();
            }
        }
    }

    #[test]
    fn steps_make_the_same_state(
        count in 1_usize..40, mut rng in any::<u64>().prop_perturb(|_, rng| rng), complete: bool,
    ) {
        let (_, stream) = Publisher::new(&mut rng, count).run();
        let mut read = if complete { Dedup::complete() } else { Dedup::unknown() };
        let mut settled = read.clone();
        for published in &stream {
            if let Some(step) = read.take(&header(published)).1 {
                settled.apply(&step);
            }
        }
        prop_assert_eq!(read.compacted(), settled.compacted());
    }
}

#[test]
fn a_lane_set_keeps_what_it_was_told() {
    let lanes = Lanes::new(20).unwrap();
    let mut set = LaneSet::default();
    for lane in [0, 7, 8, 19] {
        set.insert(Lane(lane));
    }
    let told: Vec<u16> = lanes.all().filter(|lane| set.contains(*lane)).map(|lane| lane.0).collect();
    assert_eq!(told, [0, 7, 8, 19]);
    assert_eq!(LaneSet::from_bytes(set.as_bytes(), lanes), Some(set.clone()));
    assert_eq!(LaneSet::from_bytes(set.as_bytes(), Lanes::new(19).unwrap()), None);
    assert_eq!(LaneSet::from_bytes(&[1, 0], lanes), None);
    let _ = HashKey::MIN;
}
