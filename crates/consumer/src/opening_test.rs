use std::collections::BTreeSet;

use tenure_leases::LeaseKey;
use tenure_stream::ShardId;
use tenure_stream::identity::{Era, Floor, Header, Lane, Lanes, Lsn, Position as Id};

use super::*;
use crate::dedup::Verdict;

const LONG: &str = "49590338271490256608559692538361571095921575989136588898";

fn lease(number: u64, checkpoint: Checkpoint) -> Lease {
    let shard = ShardId::numbered(number);
    Lease {
        key: LeaseKey::of_shard(&shard),
        stream: None,
        shard,
        owner: None,
        giver: None,
        counter: 1,
        owner_switches: 0,
        checkpoint,
        parents: BTreeSet::new(),
        children: BTreeSet::new(),
        range: Some(HashRange::ALL),
        throughput_kbps: None,
        marks: None,
    }
}

fn at(sequence: &str, sub: u64) -> Checkpoint {
    Checkpoint::At { sequence: sequence.parse().unwrap(), sub }
}

fn header(commit: u64) -> Header<'static> {
    let id = Id { era: Era(1), commit: Lsn(commit), change: Lsn(commit), k: 0 };
    let floor = Floor { era: Era(1), below: Lsn(1) };
    Header { source: "s", id, lane: Lane(0), lanes: Lanes::default(), prev: None, floor, leader: 1 }
}

fn seen(commit: u64) -> Dedup {
    let mut dedup = Dedup::complete();
    let _ = dedup.take(&header(commit));
    dedup
}

fn with_marks(mut lease: Lease, at: Checkpoint, whole: bool) -> Lease {
    lease.marks = Some(Marks::new(at, whole, seen(10)).encode().bytes);
    lease
}

fn open(lease: &Lease) -> Opening {
    Opening::new(lease, &[], &Start::Lease, None).unwrap().unwrap()
}

#[test]
fn marks_of_the_checkpoint_say_where_to_go_on() {
    let done = open(&with_marks(lease(0, at("7", 2)), at("7", 2), true));
    assert_eq!((&done.position, &done.skip, &done.doubt), (&Position::After(7.into()), &None, &None));
    assert_eq!(done.dedup.judge(&header(10)), Verdict::Duplicate);

    let within = open(&with_marks(lease(0, at("7", 2)), at("7", 2), false));
    assert_eq!((within.position, within.skip), (Position::At(7.into()), Some((7.into(), 2))));
    assert_eq!(within.expect, None, "such a stream says itself what it trimmed");
}

#[test]
fn marks_of_another_checkpoint_are_not_known() {
    let other = open(&with_marks(lease(0, at("9", 0)), at("7", 2), true));
    assert_eq!(other.doubt, Some(Doubt::Other));
    assert_eq!((other.position, other.skip), (Position::At(9.into()), Some((9.into(), 0))));
    assert_eq!(other.dedup, Dedup::unknown());

    assert_eq!(open(&lease(0, at("9", 0))).doubt, Some(Doubt::Absent));
    let mut damaged = with_marks(lease(0, at("7", 2)), at("7", 2), true);
    damaged.marks = damaged.marks.map(|marks| marks.slice(1..));
    assert!(matches!(open(&damaged).doubt, Some(Doubt::Damaged(_))));
}

#[test]
fn a_stream_that_does_not_tell_what_it_trimmed_is_asked_for_a_record_that_was_there() {
    let done = open(&with_marks(lease(0, at(LONG, 2)), at(LONG, 2), true));
    let sequence: SequenceNumber = LONG.parse().unwrap();
    assert_eq!(done.position, Position::At(sequence.clone()));
    assert_eq!((done.skip, done.expect), (Some((sequence.clone(), u64::MAX)), Some(sequence)));
}

#[test]
fn a_child_begins_with_what_its_parents_knew() {
    let mut child = lease(2, Checkpoint::TrimHorizon);
    child.parents = [ShardId::numbered(0), ShardId::numbered(1)].into();
    let parents =
        [0, 1].map(|number| with_marks(lease(number, Checkpoint::ShardEnd), Checkpoint::ShardEnd, true));
    let known = Opening::new(&child, &parents, &Start::Lease, None).unwrap().unwrap();
    assert_eq!((&known.position, &known.doubt), (&Position::TrimHorizon, &None));
    assert!(known.dedup.complete);
    assert_eq!(known.dedup.judge(&header(10)), Verdict::Duplicate);

    // One parent's lease is gone, or another kind of worker read it.
    for parents in [&parents[..1], &[parents[0].clone(), lease(1, Checkpoint::ShardEnd)]] {
        let doubtful = Opening::new(&child, parents, &Start::Lease, None).unwrap().unwrap();
        assert_eq!(doubtful.doubt, Some(Doubt::Parent));
        assert!(!doubtful.dedup.complete);
        assert_eq!(doubtful.dedup.judge(&header(10)), Verdict::Duplicate);
    }
}

#[test]
fn other_places_to_begin() {
    assert_eq!(open(&lease(0, Checkpoint::TrimHorizon)).position, Position::TrimHorizon);
    assert_eq!(open(&lease(0, Checkpoint::Latest)).position, Position::Latest);
    assert_eq!(open(&lease(0, Checkpoint::Latest)).dedup, Dedup::unknown());
    let at_time = lease(0, Checkpoint::AtTimestamp);
    assert!(Opening::new(&at_time, &[], &Start::Lease, None).is_err());
    let moment = WallTime::from_millis(5);
    let opening = Opening::new(&at_time, &[], &Start::Lease, Some(moment)).unwrap().unwrap();
    assert_eq!(opening.position, Position::AtTimestamp(moment));
    assert_eq!(Opening::new(&lease(0, Checkpoint::ShardEnd), &[], &Start::Lease, None).unwrap(), None);
}

#[test]
fn a_processor_with_a_store_of_its_own_begins_there() {
    let lease = with_marks(lease(0, at("7", 2)), at("7", 2), true);
    let own = Marks::new(at("90", 0), true, seen(50));
    let opening = Opening::new(&lease, &[], &Start::Marks(own.clone()), None).unwrap().unwrap();
    assert_eq!(opening.position, Position::After(90.into()));
    let opening = Opening::new(&lease, &[], &Start::Parents(vec![own]), None).unwrap().unwrap();
    assert_eq!(opening.position, Position::TrimHorizon);
    assert_eq!(opening.dedup.judge(&header(50)), Verdict::Duplicate);
}

fn moment(millis: i64) -> Option<WallTime> {
    Some(WallTime::from_millis(millis))
}

#[test]
fn a_word_that_means_another_place_later_is_found_out_once() {
    for word in [Checkpoint::Latest, Checkpoint::AtTimestamp] {
        let first = Opening::new(&lease(0, word.clone()), &[], &Start::Lease, moment(5)).unwrap().unwrap();
        assert_eq!((first.undecided, first.stored), (Some(word.clone()), None));
        for (begun, position) in [
            (Begun::At(7.into()), Position::At(7.into())),
            (Begun::Since(WallTime::from_millis(900)), Position::AtTimestamp(WallTime::from_millis(900))),
        ] {
            let mut lease = lease(0, word.clone());
            let marks = Marks { begun: Some(begun), ..Marks::new(word.clone(), false, Dedup::unknown()) };
            lease.marks = Some(marks.encode().bytes);
            // Also where no moment is configured any more, or another.
            for timestamp in [None, moment(6)] {
                let next = Opening::new(&lease, &[], &Start::Lease, timestamp).unwrap().unwrap();
                assert_eq!((&next.position, &next.undecided, &next.expect), (&position, &None, &None));
                assert_eq!(next.stored.as_ref(), Some(&marks));
            }
            // Another kind of worker has set the lease back: the marks are of another checkpoint.
            lease.checkpoint = Checkpoint::TrimHorizon;
            assert_eq!(open(&lease).position, Position::TrimHorizon);
        }
    }
}

#[test]
fn a_moment_that_the_stream_may_not_keep_any_more_is_in_doubt() {
    let mut lease = lease(0, Checkpoint::Latest);
    let marks = Marks {
        begun: Some(Begun::Since(WallTime::from_millis(900))),
        through: moment(950),
        ..Marks::new(Checkpoint::Latest, false, Dedup::unknown())
    };
    lease.marks = Some(marks.encode().bytes);
    let next = open(&lease);
    assert_eq!((next.expect, next.through), (Some(0.into()), moment(950)));
}

#[test]
fn whichever_store_knows_longer_that_nothing_came_is_believed() {
    let marks = |sequence: &str, through| Marks {
        through: moment(through),
        ..Marks::new(at(sequence, 0), true, Dedup::unknown())
    };
    let mut lease = lease(0, at(LONG, 0));
    lease.marks = Some(marks(LONG, 500).encode().bytes);
    assert_eq!(open(&lease).through, moment(500));
    let from = |own| Opening::new(&lease, &[], &Start::Marks(own), None).unwrap().unwrap();
    assert_eq!((from(marks(LONG, 400)).through, from(marks(LONG, 600)).through), (moment(500), moment(600)));
    let elsewhere = from(marks("49590338271490256608559692538361571095921575989136588899", 400));
    assert_eq!((elsewhere.through, elsewhere.stored), (moment(400), None));
}
