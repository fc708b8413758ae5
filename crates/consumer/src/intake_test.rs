use tenure_leases::Checkpoint;
use tenure_stream::identity::{Era, Floor, Lane, Lanes, Lsn, Position as Id};
use tenure_stream::kpl::Aggregator;
use tenure_stream::{Position, ShardId};

use super::*;

fn record(sequence: u64, data: impl Into<Bytes>) -> Stored {
    Stored {
        shard: ShardId::numbered(0),
        sequence: sequence.into(),
        arrived: WallTime::from_millis(0),
        partition_key: "key".into(),
        data: data.into(),
    }
}

/// An event of lane 0, whose predecessor is `prev`.
fn event(commit: u64, prev: u64) -> Vec<u8> {
    let id = |commit| Id { era: Era(1), commit: Lsn(commit), change: Lsn(commit), k: 0 };
    let floor = Floor { era: Era(1), below: Lsn(1) };
    let prev = (prev > 0).then(|| id(prev));
    let mut out = br#"{"tenure":"#.to_vec();
    Header { source: "s", id: id(commit), lane: Lane(0), lanes: Lanes::default(), prev, floor, leader: 1 }
        .write_json(&mut out);
    out.extend_from_slice(br#","op":"insert"}"#);
    out
}

fn aggregated(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut record = Aggregator::begin(&mut out, None);
    for part in parts {
        record.add(&mut out, "inner", part);
    }
    record.finish(&mut out);
    out
}

fn opening(skip: Option<(u64, u64)>) -> Opening {
    Opening {
        position: Position::TrimHorizon,
        skip: skip.map(|(sequence, sub)| (sequence.into(), sub)),
        expect: None,
        through: None,
        stored: None,
        undecided: None,
        dedup: Dedup::complete(),
        doubt: None,
    }
}

fn intake(skip: Option<(u64, u64)>) -> Intake {
    Intake::new(&opening(skip), HashRange::ALL, OnDamaged::Stop, false)
}

/// `sequence.sub` of each record, where it ended, and why it stopped.
fn shown(sorted: &Sorted) -> String {
    let records: Vec<_> = sorted.records.iter().map(|one| format!("{}.{}", one.sequence, one.sub)).collect();
    let end = sorted.end.as_ref().map_or_else(String::new, |end| {
        format!(" | {}.{}{}", end.sequence, end.sub, if end.whole { "" } else { "…" })
    });
    let stop = sorted.stop.as_ref().map_or_else(String::new, |stop| format!(" | {}", stop.name()));
    format!("{}{end}{stop}", records.join(" "))
}

#[test]
fn records_are_taken_apart_and_duplicates_dropped() {
    let mut intake = intake(None);
    let both = aggregated(&[&event(10, 0), &event(20, 10)]);
    let sorted = intake.take(vec![
        record(1, "plain"),
        record(2, both.clone()),
        record(3, both),
        record(4, event(30, 20)),
    ]);
    assert_eq!(shown(&sorted), "1.0 2.0 2.1 4.0 | 4.0");
    assert_eq!(sorted.counts.duplicates, 2);
    assert_eq!(sorted.steps.iter().map(|(upto, _)| *upto).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(sorted.records.iter().map(|one| one.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let again = intake.take(vec![record(5, event(30, 20)), record(6, "plain")]);
    assert_eq!((shown(&again), again.records[0].number), ("6.0 | 6.0".to_owned(), 4));
}

#[test]
fn what_a_checkpoint_covers_is_left_out() {
    let three = aggregated(&[b"a", b"b", b"c"]);
    let sorted = intake(Some((2, 1))).take(vec![record(2, three.clone()), record(3, "plain")]);
    assert_eq!(shown(&sorted), "2.2 3.0 | 3.0");
    let sorted = intake(Some((2, u64::MAX))).take(vec![record(2, three), record(3, "plain")]);
    assert_eq!(shown(&sorted), "3.0 | 3.0");
}

#[test]
fn a_gap_stops_right_before_it() {
    let broken = aggregated(&[&event(10, 0), &event(20, 10), &event(40, 30)]);
    let mut strict = intake(None);
    let sorted = strict.take(vec![record(1, "plain"), record(2, broken.clone()), record(3, "plain")]);
    assert_eq!(shown(&sorted), "1.0 2.0 2.1 | 2.1… | gap");
    let text = sorted.stop.unwrap().to_string();
    assert!(text.contains("1:0/28:0/28:0") && text.contains("1:0/1E:0/1E:0"), "{text}");

    let mut lenient = Intake::new(&opening(None), HashRange::ALL, OnDamaged::Stop, true);
    let sorted = lenient.take(vec![record(2, broken), record(3, "plain")]);
    assert_eq!(shown(&sorted), "2.0 2.1 2.2 3.0 | 3.0");
    assert_eq!(sorted.losses.len(), 1);
}

#[test]
fn damaged_records_go_by_the_policy() {
    let mut damaged = aggregated(&[b"a", b"b"]);
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    let records = || vec![record(1, "plain"), record(2, damaged.clone()), record(3, "plain")];
    let take = |policy| Intake::new(&opening(None), HashRange::ALL, policy, false).take(records());
    assert_eq!(shown(&take(OnDamaged::Stop)), "1.0 | 1.0 | damaged");
    assert_eq!(shown(&take(OnDamaged::Deliver)), "1.0 2.0 3.0 | 3.0");
    let dead = take(OnDamaged::DeadLetter);
    assert_eq!(shown(&dead), "1.0 3.0 | 3.0");
    assert_eq!((dead.dead.len(), dead.dead[0].0.data.len()), (1, damaged.len()));

    let unreadable = String::from_utf8(event(10, 0)).unwrap().replace("0/A:0/A", "0/A");
    let sorted = intake(None).take(vec![record(1, unreadable)]);
    assert_eq!(shown(&sorted), " | damaged");
    let newer = String::from_utf8(event(10, 0)).unwrap().replace("\"v\":1", "\"v\":9");
    assert_eq!(shown(&intake(None).take(vec![record(1, newer)])), " | damaged");
}

#[test]
fn a_record_that_should_come_first_and_does_not_was_trimmed() {
    let mut opening = opening(Some((5, u64::MAX)));
    opening.expect = Some(5.into());
    let mut intake = Intake::new(&opening, HashRange::ALL, OnDamaged::Stop, false);
    assert_eq!(shown(&intake.take(vec![record(5, "done"), record(6, "next")])), "6.0 | 6.0");
    let mut intake = Intake::new(&opening, HashRange::ALL, OnDamaged::Stop, false);
    assert_eq!(shown(&intake.take(vec![record(7, "next")])), " | trimmed");
    let mut intake = Intake::new(&opening, HashRange::ALL, OnDamaged::Stop, true);
    let sorted = intake.take(vec![record(7, "next")]);
    assert_eq!((shown(&sorted), sorted.losses.len()), ("7.0 | 7.0".to_owned(), 1));
    // What is stored must know it, too: else the next owner takes what was accepted for a gap.
    let mut known = Dedup::complete();
    for (upto, step) in &sorted.steps {
        assert_eq!(*upto, 0);
        known.apply(step);
    }
    assert!(!known.complete);
}

#[test]
fn what_was_read_last_is_looked_for_again_where_it_may_have_been_trimmed() {
    let since = Some(WallTime::from_millis(70));
    let mut calm = intake(None);
    assert_eq!(shown(&calm.take(vec![record(1, "a"), record(2, "b")])), "1.0 2.0 | 2.0");
    calm.expect_again(&2.into(), since);
    assert!(calm.is_in_doubt());
    assert_eq!(shown(&calm.take(vec![record(2, "b"), record(3, "c")])), "3.0 | 3.0");
    assert!(!calm.is_in_doubt());
    calm.expect_again(&3.into(), since);
    let sorted = calm.take(vec![record(9, "i")]);
    assert_eq!(sorted.stop, Some(Stop::Trimmed { from: 3.into(), to: 9.into(), since }));
    // The shard was idle, and that is known.
    let mut idle = intake(Some((2, u64::MAX)));
    idle.expect_again(&2.into(), since);
    idle.nothing_missed();
    assert_eq!(shown(&idle.take(vec![record(9, "i")])), "9.0 | 9.0");
}

#[test]
fn records_of_another_shard_are_not_processed() {
    let elsewhere = aggregated(&[b"a"]);
    let key = tenure_stream::HashKey::of("inner");
    let range = HashRange { start: tenure_stream::HashKey(key.0 + 1), end: tenure_stream::HashKey::MAX };
    let mut intake = Intake::new(&opening(None), range, OnDamaged::Stop, false);
    let sorted = intake.take(vec![record(1, elsewhere)]);
    assert_eq!((shown(&sorted), sorted.counts.elsewhere), (" | 1.0".to_owned(), 1));
    let _ = Checkpoint::ShardEnd;
}

#[test]
fn pointers_are_found() {
    let text = String::from_utf8(event(10, 0)).unwrap();
    let pointer = text.replace(
        r#""op":"insert"}"#,
        r#""op":"pointer","pointer":{"kind":"quarantined","op":"insert","place":"p","bytes":1,"sha256":"a","reason":"odd"}}"#,
    );
    let sorted = intake(None).take(vec![record(1, "plain"), record(2, pointer)]);
    assert_eq!(sorted.pointers, [1]);
    assert_eq!(sorted.records[1].pointer.as_ref().unwrap().reason.as_deref(), Some("odd"));
    let broken = text.replace(r#""op":"insert""#, r#""op":"pointer""#);
    assert_eq!(shown(&intake(None).take(vec![record(1, broken)])), " | damaged");
}
