use tenure_stream::identity::{Era, Lsn};

use super::*;

fn change(key: i64, op: Op, version: i64) -> Change {
    Change { table: "items".into(), key, op, version }
}

fn id(commit: u64) -> Position {
    Position { era: Era(1), commit: Lsn(commit), change: Lsn(commit), k: 0 }
}

/// An event on the lane of its key, linked to the one before.
fn event(commit: u64, prev: u64, leader: u64, change: Change) -> Event {
    Event {
        id: id(commit),
        lane: u16::try_from(change.key).unwrap(),
        prev: (prev > 0).then(|| id(prev)),
        floor: Floor { era: Era(1), below: Lsn(0) },
        leader,
        parked: false,
        change,
    }
}

fn story() -> (Vec<Change>, Vec<Event>) {
    let committed = vec![
        change(1, Op::Insert, 10),
        change(1, Op::Update, 11),
        change(1, Op::Delete, 0),
        change(1, Op::Insert, 12),
        change(1, Op::Delete, 0),
    ];
    let commits = [100, 200, 300, 400, 500];
    let events = committed.iter().zip(commits).map(|(change, commit)| {
        event(commit, if commit == 100 { 0 } else { commit - 100 }, 1, change.clone())
    });
    let events = events.collect();
    (committed, events)
}

fn judge(committed: &[Change], events: Vec<Event>) -> Verdict {
    compare(
        committed,
        &[ShardEvents { parents: vec![], events }],
        &BTreeSet::from([Handover { epoch: 1, caught_up: true }]),
    )
}

#[test]
fn all_is_well() {
    let (committed, events) = story();
    let verdict = judge(&committed, events);
    assert_eq!((verdict.committed, verdict.published), (5, 5));
    assert!(verdict.holds() && verdict.examples.is_empty(), "{verdict:?}");
}

#[test]
fn copies_are_allowed_and_counted() {
    let (committed, mut events) = story();
    events.insert(2, events[0].clone());
    events.push(events[1].clone());
    let verdict = judge(&committed, events);
    assert_eq!(verdict.duplicates_published, 2);
    assert!(verdict.holds(), "{verdict:?}");
}

#[test]
fn whatever_is_missing_is_lost_and_leaves_a_gap() {
    for missing in 0..5 {
        let (committed, mut events) = story();
        events.remove(missing);
        let verdict = judge(&committed, events);
        assert_eq!((verdict.lost, verdict.lost_after_dedup), (1, 1), "{missing}");
        assert_eq!(verdict.gaps, usize::from(missing < 4), "{missing}");
        assert!(!verdict.holds());
    }
}

#[test]
fn what_never_committed_is_told() {
    let (committed, mut events) = story();
    events.push(event(600, 500, 1, change(1, Op::Insert, 99)));
    let verdict = judge(&committed, events);
    assert_eq!(verdict.uncommitted, 1);
    let (committed, mut events) = story();
    events.push(event(600, 500, 1, change(1, Op::Delete, 0)));
    assert_eq!(judge(&committed, events).uncommitted, 1, "a delete too many");
}

#[test]
fn two_identities_of_one_change_are_told() {
    let (committed, mut events) = story();
    events.push(event(600, 500, 1, change(1, Op::Insert, 12)));
    let verdict = judge(&committed, events);
    assert_eq!((verdict.duplicates_without_identity, verdict.lost), (1, 0));
}

#[test]
fn two_changes_under_one_identity_are_told() {
    let (committed, mut events) = story();
    events.push(event(500, 400, 1, change(1, Op::Insert, 12)));
    assert_eq!(judge(&committed, events).conflicts, 1);
}

#[test]
fn order_is_that_of_the_commits() {
    let (committed, mut events) = story();
    events.swap(1, 2);
    let verdict = judge(&committed, events);
    assert_eq!(verdict.out_of_order, 1);
    assert!(verdict.lost_after_dedup > 0, "a reader cannot tell it from a copy");
    // Positions that contradict the ledger.
    let (mut committed, events) = story();
    committed.swap(0, 1);
    assert_eq!(judge(&committed, events).out_of_order, 1);
}

#[test]
fn only_who_follows_a_handover_must_repeat_nothing() {
    let (committed, mut events) = story();
    events.push(Event { leader: 2, ..events[4].clone() });
    assert_eq!(judge(&committed, events.clone()).handover_duplicates, 1);
    let shards = [ShardEvents { parents: vec![], events: events.clone() }];
    assert_eq!(compare(&committed, &shards, &BTreeSet::new()).handover_duplicates, 0);
    // A copy of the leader's own is the stream's doing.
    events[4].leader = 1;
    events[5].leader = 1;
    assert_eq!(judge(&committed, events).handover_duplicates, 0);
}

/// Leader 1 is killed after the fifth event, leader 2 hands over after it has come to the `reached`th again, and
/// leader 3 goes on from its `from`th.
fn after_a_kill(reached: usize, from: usize, caught_up: bool) -> (usize, usize) {
    let (committed, mut events) = story();
    let again: Vec<Event> =
        events[..reached].iter().map(|event| Event { leader: 2, ..event.clone() }).collect();
    let rest: Vec<Event> = events[from..].iter().map(|event| Event { leader: 3, ..event.clone() }).collect();
    events.extend(again);
    events.extend(rest);
    let shards = [ShardEvents { parents: vec![], events }];
    let verdict = compare(&committed, &shards, &BTreeSet::from([Handover { epoch: 2, caught_up }]));
    (verdict.handover_duplicates, verdict.repeated_for_kills)
}

#[test]
fn what_a_kill_has_repeated_is_not_laid_to_the_handover_after_it() {
    assert_eq!(after_a_kill(3, 3, false), (0, 2));
    assert_eq!(after_a_kill(3, 2, false), (1, 2), "its own third event comes again");
    assert_eq!(after_a_kill(5, 5, true), (0, 0));
    assert_eq!(after_a_kill(5, 4, true), (1, 0));
    assert_eq!(after_a_kill(3, 3, true), (2, 0), "it was not as far as it was said to be");
}

#[test]
fn a_child_goes_on_where_its_parent_ended() {
    let (committed, mut events) = story();
    let mut later = events.split_off(3);
    later.insert(0, events[2].clone());
    let parent = ShardEvents { parents: vec![], events };
    let child = ShardEvents { parents: vec![0], events: later.clone() };
    let verdict = compare(&committed, &[parent.clone(), child], &BTreeSet::new());
    assert!(verdict.holds(), "{verdict:?}");
    // One that forgot its parent delivers the copy again.
    let orphan = ShardEvents { parents: vec![], events: later };
    let verdict = compare(&committed, &[parent, orphan], &BTreeSet::new());
    assert_eq!((verdict.duplicates_after_dedup, verdict.gaps), (1, 1));
}

#[test]
fn a_floor_that_runs_ahead_is_found() {
    let (committed, mut events) = story();
    events[1].floor.below = Lsn(350);
    let verdict = judge(&committed, events);
    assert_eq!(verdict.lost_after_dedup, 1, "a reader drops what the floor says it has seen");
}

#[test]
fn what_concerns_a_table_is_told_once_per_lane() {
    for op in [Op::Truncate, Op::Schema] {
        let told = |lane| Change { table: "side".into(), key: lane, op, version: 0 };
        let committed = vec![told(0), told(1)];
        let first = event(100, 0, 1, told(0));
        let second = Event { id: Position { k: 1, ..id(100) }, ..event(100, 0, 1, told(1)) };
        assert!(judge(&committed, vec![first.clone(), second.clone()]).holds());
        assert_eq!(judge(&committed, vec![first.clone()]).lost, 1);
        let again = event(200, 100, 1, told(0));
        assert_eq!(judge(&committed, vec![first, second, again]).uncommitted, 1, "a leader that forgot");
    }
}
