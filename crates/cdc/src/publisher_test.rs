//! Timelines of the publisher, and a model of the stream beside it.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tenure_stream::{HashRange, SequenceNumber, ShardId};

use super::*;

const ERA: Era = Era(1);

fn at(millis: u64) -> Monotonic {
    Monotonic::from_nanos(millis * 1_000_000)
}

fn position(commit: u64, change: u64, k: u32) -> Position {
    Position { era: ERA, commit: Lsn(commit), change: Lsn(change), k }
}

fn settings() -> PublisherSettings {
    PublisherSettings {
        inflight_events_max: 8,
        inflight_bytes_max: 1000,
        record_bytes_max: 64,
        linger: Duration::from_millis(5),
        calls_max: 2,
        backoff_min: Duration::from_millis(100),
        backoff_max: Duration::from_secs(1),
        framing: Framing::Lines,
        shard_records_per_s: None,
        shard_bytes_per_s: None,
    }
}

fn publisher(settings: PublisherSettings) -> Publisher {
    let limits = Limits {
        records_per_put_max: 2,
        bytes_per_put_max: 400,
        bytes_per_record_max: 200,
        ..Limits::default()
    };
    Publisher::new(settings, limits, Lanes::new(4).unwrap(), ERA, Lsn(0), Entropy::seeded(1))
}

fn stored() -> Put {
    Put::Stored { shard: ShardId::numbered(0), sequence: SequenceNumber::from(1u64) }
}

/// Offers one event whose text is its own position.
fn offer(publisher: &mut Publisher, now: Monotonic, lane: u16, id: Position) {
    let text = id.to_string();
    publisher
        .offer(now, Offer { lane: Lane(lane), id, partition_key: "t", bytes: text.as_bytes(), parked: None });
}

/// One transaction with an event on each of these lanes, ending 8 bytes after its commit record.
fn transaction(publisher: &mut Publisher, now: Monotonic, commit: u64, lanes: &[u16]) {
    publisher.begin();
    for (index, lane) in lanes.iter().enumerate() {
        offer(publisher, now, *lane, position(commit, commit - 50 + index as u64, 0));
    }
    publisher.commit(Lsn(commit + 8));
}

fn call(work: Option<Work>) -> Call {
    match work {
        Some(Work::Call(call)) => call,
        other => panic!("a call was expected: {other:?}"),
    }
}

fn texts(call: &Call) -> Vec<String> {
    call.records.iter().map(|record| String::from_utf8(record.data.to_vec()).unwrap()).collect()
}

/// What a replaced event is parked as.
fn parked(text: &'static str) -> Parked {
    Parked { content: Bytes::from_static(text.as_bytes()), reason: Some("too large".into()) }
}

#[test]
fn a_pointer_travels_alone_and_is_never_parked_itself() {
    let mut publisher = publisher(settings());
    let refused = || Answer::Records(vec![Put::Refused { reason: "too large".into() }]);
    transaction(&mut publisher, at(0), 100, &[1]);
    let sent = call(publisher.poll(at(5), true));
    publisher.answered(at(6), sent.id, refused());
    assert!(matches!(publisher.poll(at(6), true), Some(Work::Replace(_))));
    publisher.replace(at(6), Lane(1), vec![(b"pointer".to_vec(), parked("content"))]);
    assert!(matches!(publisher.poll(at(6), true), Some(Work::Store { .. })));
    publisher.stored(at(7), Lane(1), true);
    // What comes now must not join the pointer.
    transaction(&mut publisher, at(7), 200, &[1]);
    let sent = call(publisher.poll(at(20), true));
    assert_eq!(texts(&sent), ["pointer\n"]);
    // And if even the pointer is refused, it is sent again, not parked over its own content.
    publisher.answered(at(21), sent.id, refused());
    let sent = call(publisher.poll(at(2000), true));
    assert_eq!(texts(&sent), ["pointer\n"]);
}

#[test]
fn what_comes_within_the_linger_travels_together_in_one_record_per_lane() {
    let mut publisher = publisher(settings());
    publisher.limits.records_per_put_max = 3;
    transaction(&mut publisher, at(0), 100, &[1, 2]);
    assert!(publisher.poll(at(4), true).is_none(), "others may come");
    assert_eq!(publisher.wake(), Some(at(5)));
    transaction(&mut publisher, at(4), 200, &[1]);
    let sent = call(publisher.poll(at(5), true));
    assert_eq!(texts(&sent), ["1:0/64:0/32:0\n1:0/C8:0/96:0\n", "1:0/64:0/33:0\n"]);
    let lanes = Lanes::new(4).unwrap();
    assert_eq!(sent.records[0].explicit_hash_key, Some(lanes.hash_key(Lane(1))));
    publisher.answered(at(6), sent.id, Answer::Records(vec![stored(), stored()]));
    assert_eq!(publisher.confirmed(), Lsn(208));
    assert_eq!(publisher.inflight(), (0, 0));
    assert!(publisher.poll(at(100), true).is_none());
    assert_eq!(publisher.wake(), None);
}

#[test]
fn a_full_call_does_not_wait() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0, 1, 2]);
    assert_eq!(call(publisher.poll(at(0), true)).records.len(), 2);
    assert!(publisher.poll(at(0), true).is_none(), "the third waits for others");
}

#[test]
fn a_lane_has_one_record_under_way() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[1]);
    let first = call(publisher.poll(at(5), true));
    transaction(&mut publisher, at(6), 200, &[1]);
    assert!(publisher.poll(at(50), true).is_none(), "the first is under way");
    publisher.answered(at(60), first.id, Answer::Records(vec![stored()]));
    let second = call(publisher.poll(at(65), true));
    assert_eq!(texts(&second), ["1:0/C8:0/96:0\n"]);
}

#[test]
fn what_failed_goes_out_again_unchanged_before_what_follows() {
    for answer in [
        Answer::Records(vec![Put::Throttled]),
        Answer::Records(vec![]),
        Answer::Failed(Kind::Unknown),
        Answer::Failed(Kind::Denied),
        Answer::Failed(Kind::Invalid),
    ] {
        let mut publisher = publisher(settings());
        transaction(&mut publisher, at(0), 100, &[1]);
        let first = call(publisher.poll(at(5), true));
        transaction(&mut publisher, at(6), 200, &[1]);
        publisher.answered(at(7), first.id, answer);
        assert_eq!(publisher.confirmed(), Lsn(0));
        assert!(publisher.poll(at(20), true).is_none(), "not at once");
        let again = call(publisher.poll(at(1000), true));
        assert_eq!(again.records, first.records);
        publisher.answered(at(1001), again.id, Answer::Records(vec![stored()]));
        assert_eq!(publisher.confirmed(), Lsn(108));
        let next = call(publisher.poll(at(1006), true));
        assert_eq!(texts(&next), ["1:0/C8:0/96:0\n"]);
    }
}

#[test]
fn other_lanes_go_on_while_one_is_throttled_and_the_frontier_waits() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0, 1]);
    let first = call(publisher.poll(at(5), true));
    publisher.answered(at(6), first.id, Answer::Records(vec![Put::Throttled, stored()]));
    transaction(&mut publisher, at(7), 200, &[1]);
    let second = call(publisher.poll(at(12), true));
    assert_eq!(texts(&second), ["1:0/C8:0/96:0\n"]);
    publisher.answered(at(13), second.id, Answer::Records(vec![stored()]));
    assert_eq!(publisher.confirmed(), Lsn(0));
    let again = call(publisher.poll(at(500), true));
    publisher.answered(at(501), again.id, Answer::Records(vec![stored()]));
    assert_eq!(publisher.confirmed(), Lsn(208));
}

#[test]
fn a_stream_in_trouble_is_left_alone_for_a_while() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0]);
    let mut now = 5;
    for _ in 0..20 {
        let sent = call(publisher.poll(at(now), true));
        publisher.answered(at(now), sent.id, Answer::Failed(Kind::Unavailable));
        transaction(&mut publisher, at(now), 1000 + now, &[]);
        assert!(publisher.poll(at(now + 9), true).is_none());
        now += 1000;
    }
    assert_eq!(publisher.failures(), 20);
    let sent = call(publisher.poll(at(now), true));
    publisher.answered(at(now), sent.id, Answer::Records(vec![stored()]));
    assert_eq!(publisher.failures(), 0);
}

#[test]
fn intake_is_bounded_by_count_and_by_bytes() {
    let mut by_count = publisher(settings());
    by_count.begin();
    for index in 0..8 {
        assert!(by_count.wants_more());
        offer(&mut by_count, at(0), 0, position(100, index, 0));
    }
    assert!(!by_count.wants_more());
    assert!(by_count.poll(at(0), true).is_some(), "who cannot take more in has nothing to wait for");

    let mut by_bytes = publisher(PublisherSettings { inflight_bytes_max: 20, ..settings() });
    by_bytes.begin();
    offer(&mut by_bytes, at(0), 0, position(100, 1, 0));
    assert!(by_bytes.wants_more());
    offer(&mut by_bytes, at(0), 0, position(100, 2, 0));
    assert!(!by_bytes.wants_more());
}

#[test]
fn one_lane_that_is_held_up_does_not_let_the_ring_grow_for_ever() {
    let mut publisher = publisher(settings());
    publisher.limits.records_per_put_max = 1;
    transaction(&mut publisher, at(0), 100, &[1]);
    let held = call(publisher.poll(at(5), true));
    let mut taken = 0;
    while publisher.wants_more() && taken < 1000 {
        taken += 1;
        transaction(&mut publisher, at(10), 100 + 100 * taken, &[2]);
        let other = call(publisher.poll(at(20), true));
        publisher.answered(at(20), other.id, Answer::Records(vec![stored()]));
    }
    assert_eq!((taken, publisher.inflight().0), (8, 1));
    publisher.answered(at(30), held.id, Answer::Records(vec![stored()]));
    assert!(publisher.wants_more());
    assert_eq!(publisher.confirmed(), Lsn(908));

    // An open transaction is not in its own way.
    publisher.settings.inflight_events_max = 1;
    publisher.begin();
    assert!(publisher.wants_more());
}

#[test]
fn links_name_the_neighbour_on_the_lane_and_what_is_settled() {
    let mut publisher = publisher(settings());
    assert_eq!(publisher.link(Lane(1)), Link { prev: None, floor: Floor { era: ERA, below: Lsn(0) } });
    transaction(&mut publisher, at(0), 100, &[1]);
    assert_eq!(publisher.link(Lane(1)).prev, Some(position(100, 50, 0)));
    assert_eq!(publisher.link(Lane(2)).prev, None);
    assert_eq!(publisher.link(Lane(1)).floor.below, Lsn(0), "sent is not settled");
    let sent = call(publisher.poll(at(5), true));
    publisher.answered(at(6), sent.id, Answer::Records(vec![stored()]));
    assert_eq!(publisher.link(Lane(1)).floor.below, Lsn(108));
}

#[test]
fn what_is_parked_is_stored_before_its_pointer_is_sent() {
    let mut publisher = publisher(settings());
    assert!(!publisher.fits("t", 300));
    publisher.begin();
    let parked = Parked { content: Bytes::from(vec![b'x'; 300]), reason: None };
    let id = position(100, 50, 0);
    let pointer =
        Offer { lane: Lane(1), id, partition_key: "t", bytes: b"pointer", parked: Some(parked.clone()) };
    publisher.offer(at(0), pointer);
    offer(&mut publisher, at(0), 1, position(100, 60, 0));
    publisher.commit(Lsn(108));
    assert_eq!(publisher.inflight().1, 300 + 7 + 13);
    for now in [0, 1000] {
        match publisher.poll(at(now), true) {
            Some(Work::Store { lane: Lane(1), id: stored, parked: content }) => {
                assert_eq!((stored, content), (id, parked.clone()));
            }
            other => panic!("{other:?}"),
        }
        assert!(publisher.poll(at(now + 500), true).is_none());
        publisher.stored(at(now), Lane(1), now == 1000);
    }
    assert_eq!(publisher.inflight().1, 7 + 13, "what is stored needs no memory");
    let sent = call(publisher.poll(at(1005), true));
    assert_eq!(texts(&sent), ["pointer\n"]);
    publisher.answered(at(1006), sent.id, Answer::Records(vec![stored()]));
    let sent = call(publisher.poll(at(1011), true));
    publisher.answered(at(1012), sent.id, Answer::Records(vec![stored()]));
    assert_eq!((publisher.confirmed(), publisher.inflight()), (Lsn(108), (0, 0)));
}

#[test]
fn a_refused_pointer_does_not_take_the_place_of_what_it_points_to() {
    let mut publisher = publisher(settings());
    publisher.begin();
    let parked = Some(Parked { content: Bytes::from(vec![b'x'; 300]), reason: None });
    let id = position(100, 50, 0);
    publisher.offer(at(0), Offer { lane: Lane(1), id, partition_key: "t", bytes: b"pointer", parked });
    let Some(Work::Store { .. }) = publisher.poll(at(0), true) else { panic!("to be stored") };
    publisher.stored(at(0), Lane(1), true);
    offer(&mut publisher, at(0), 1, position(100, 60, 0));
    publisher.commit(Lsn(108));
    let mut now = 5;
    for _ in 0..3 {
        let sent = call(publisher.poll(at(now), true));
        assert_eq!(texts(&sent), ["pointer\n"], "alone, so that nothing else can have it refused");
        let refusal = Put::Refused { reason: "no".to_owned() };
        publisher.answered(at(now), sent.id, Answer::Records(vec![refusal]));
        assert!(publisher.poll(at(now + 9), true).is_none(), "later, and nothing is stored over its content");
        now += 5000;
    }
    let sent = call(publisher.poll(at(now), true));
    publisher.answered(at(now), sent.id, Answer::Records(vec![stored()]));
    let sent = call(publisher.poll(at(now + 5), true));
    publisher.answered(at(now + 5), sent.id, Answer::Records(vec![stored()]));
    assert_eq!((publisher.confirmed(), publisher.inflight()), (Lsn(108), (0, 0)));
}

#[test]
fn what_is_refused_for_good_is_parked_event_by_event_in_its_place() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[1, 1]);
    let sent = call(publisher.poll(at(5), true));
    transaction(&mut publisher, at(6), 200, &[1]);
    let refusal = Put::Refused { reason: "no".to_owned() };
    publisher.answered(at(7), sent.id, Answer::Records(vec![refusal]));
    let Some(Work::Replace(refused)) = publisher.poll(at(7), true) else { panic!("to be replaced") };
    assert_eq!((&*refused.reason, refused.lane), ("no", Lane(1)));
    let (first, second) = (position(100, 50, 0), position(100, 51, 0));
    assert_eq!(refused.events.iter().map(|event| event.id).collect::<Vec<_>>(), [first, second]);
    assert_eq!(refused.events.iter().map(|event| event.prev).collect::<Vec<_>>(), [None, Some(first)]);
    assert_eq!(&refused.events[1].bytes[..], second.to_string().as_bytes());
    let pointers = refused.events.into_iter().map(|event| {
        let parked = Parked { content: event.bytes, reason: Some(refused.reason.clone()) };
        (format!("-> {}", event.id).into_bytes(), parked)
    });
    publisher.replace(at(7), Lane(1), pointers.collect());
    for id in [first, second] {
        let Some(Work::Store { id: stored_id, .. }) = publisher.poll(at(7), true) else { panic!() };
        assert_eq!(stored_id, id);
        publisher.stored(at(7), Lane(1), true);
        let sent = call(publisher.poll(at(12), true));
        assert_eq!(texts(&sent), [format!("-> {id}\n")]);
        assert_eq!(publisher.confirmed(), Lsn(0));
        publisher.answered(at(7), sent.id, Answer::Records(vec![stored()]));
    }
    assert_eq!(publisher.confirmed(), Lsn(108));
    let sent = call(publisher.poll(at(30), true));
    publisher.answered(at(30), sent.id, Answer::Records(vec![stored()]));
    assert_eq!((publisher.confirmed(), publisher.inflight()), (Lsn(208), (0, 0)));
}

#[test]
fn a_barrier_waits_for_all_lanes_before_and_after() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0, 1]);
    publisher.begin();
    publisher.barrier_begin();
    assert!(!publisher.wants_more());
    assert_eq!(publisher.barrier(), Barrier::Draining);
    let sent = call(publisher.poll(at(0), true));
    publisher.answered(at(1), sent.id, Answer::Records(vec![stored(), stored()]));
    assert_eq!(publisher.barrier(), Barrier::Ready);
    for lane in 0..4 {
        offer(&mut publisher, at(1), lane, position(200, 190, lane.into()));
    }
    publisher.barrier_offered();
    assert_eq!(publisher.barrier(), Barrier::Settling);
    for _ in 0..2 {
        assert!(!publisher.wants_more());
        let sent = call(publisher.poll(at(1), true));
        publisher.answered(at(1), sent.id, Answer::Records(vec![stored(), stored()]));
    }
    assert_eq!(publisher.barrier(), Barrier::None);
    assert!(publisher.wants_more());
    publisher.commit(Lsn(208));
    assert_eq!(publisher.confirmed(), Lsn(208));
}

#[test]
fn nothing_is_sent_without_leadership() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0]);
    assert!(publisher.poll(at(50), false).is_none());
    assert!(publisher.poll(at(50), true).is_some());
}

#[test]
fn a_late_answer_to_a_call_of_the_past_changes_nothing() {
    let mut publisher = publisher(settings());
    transaction(&mut publisher, at(0), 100, &[0]);
    let sent = call(publisher.poll(at(5), true));
    publisher.answered(at(6), sent.id, Answer::Failed(Kind::Unknown));
    publisher.answered(at(7), sent.id, Answer::Records(vec![stored()]));
    assert_eq!(publisher.confirmed(), Lsn(0));
}

/// Lanes 0 and 1 are on the first of two shards, 2 and 3 on the second.
fn two_shards() -> Vec<OpenShard> {
    let ranges = HashRange::uniform(2).into_iter().zip(0..);
    ranges.map(|(range, number)| OpenShard { id: ShardId::numbered(number), range }).collect()
}

/// A shard takes so many records a second.
fn limited(records_per_s: u64) -> Publisher {
    let mut publisher =
        publisher(PublisherSettings { shard_records_per_s: Some(records_per_s), ..settings() });
    assert!(publisher.asks_for_shards(at(0)));
    publisher.shards(&two_shards());
    publisher
}

fn stored_on(shard: u64) -> Answer {
    Answer::Records(vec![Put::Stored {
        shard: ShardId::numbered(shard),
        sequence: SequenceNumber::from(1u64),
    }])
}

#[test]
fn a_hot_shard_waits_while_others_go_on_and_its_record_grows_meanwhile() {
    let mut publisher = limited(1);
    transaction(&mut publisher, at(0), 100, &[0]);
    let first = call(publisher.poll(at(5), true));
    publisher.answered(at(6), first.id, stored_on(0));
    // Its second is spent.
    transaction(&mut publisher, at(10), 200, &[1]);
    assert!(publisher.poll(at(20), true).is_none(), "no call without records");
    assert_eq!(publisher.wake(), Some(at(1005)));
    transaction(&mut publisher, at(30), 300, &[2]);
    let other = call(publisher.poll(at(40), true));
    assert_eq!(texts(&other), ["1:0/12C:0/FA:0\n"], "the other shard goes on");
    publisher.answered(at(41), other.id, stored_on(1));
    transaction(&mut publisher, at(50), 400, &[1, 0]);
    assert!(publisher.poll(at(1004), true).is_none());
    assert_eq!(publisher.confirmed(), Lsn(108), "and the frontier waits");
    let held = call(publisher.poll(at(1005), true));
    assert_eq!(texts(&held), ["1:0/C8:0/96:0\n1:0/190:0/15E:0\n"], "one record, with what came meanwhile");
    publisher.answered(at(1006), held.id, stored_on(0));
    let last = call(publisher.poll(at(2005), true));
    publisher.answered(at(2006), last.id, stored_on(0));
    assert_eq!((publisher.confirmed(), publisher.inflight()), (Lsn(408), (0, 0)));
    assert_eq!(publisher.wake(), None);
}

#[test]
fn after_a_reshard_those_who_waited_are_placed_anew() {
    let mut publisher = limited(1);
    transaction(&mut publisher, at(20_000), 100, &[0]);
    let first = call(publisher.poll(at(20_005), true));
    transaction(&mut publisher, at(20_006), 200, &[1]);
    assert!(publisher.poll(at(20_011), true).is_none(), "held");
    assert!(!publisher.asks_for_shards(at(20_011)));
    publisher.answered(at(20_012), first.id, stored_on(2));
    assert!(publisher.asks_for_shards(at(20_012)), "nobody knew that shard");
    let quarters = HashRange::uniform(4).into_iter().zip(2..);
    let quarters: Vec<_> =
        quarters.map(|(range, number)| OpenShard { id: ShardId::numbered(number), range }).collect();
    publisher.shards(&quarters);
    let second = call(publisher.poll(at(20_012), true));
    assert_eq!(texts(&second), ["1:0/C8:0/96:0\n"], "on a shard of its own, at once");
}

#[test]
fn what_waits_for_its_shard_lets_no_half_full_calls_leave() {
    let mut publisher = limited(1);
    publisher.limits.bytes_per_put_max = 10;
    transaction(&mut publisher, at(0), 100, &[0]);
    let first = call(publisher.poll(at(5), true));
    publisher.answered(at(6), first.id, stored_on(0));
    transaction(&mut publisher, at(10), 200, &[0]);
    assert!(publisher.poll(at(20), true).is_none());
    transaction(&mut publisher, at(20), 300, &[2]);
    assert!(publisher.poll(at(21), true).is_none(), "others may come");
    assert!(publisher.poll(at(25), true).is_some());
}

#[derive(Debug, Clone)]
enum Do {
    Transaction(Vec<u16>),
    Poll,
    Answer { which: usize, outcomes: Vec<u8> },
    Fail { which: usize, landed: bool },
    Wait(u64),
    Idle,
}

fn doing() -> impl Strategy<Value = Do> {
    prop_oneof![
        3 => prop::collection::vec(0u16..4, 0..4).prop_map(Do::Transaction),
        4 => Just(Do::Poll),
        3 => (any::<usize>(), prop::collection::vec(0u8..4, 0..3))
            .prop_map(|(which, outcomes)| Do::Answer { which, outcomes }),
        1 => (any::<usize>(), any::<bool>()).prop_map(|(which, landed)| Do::Fail { which, landed }),
        2 => (1u64..300).prop_map(Do::Wait),
        1 => Just(Do::Idle),
    ]
}

proptest! {
    /// Whatever the stream answers: first occurrences on a lane in order, and the frontier behind what is
    /// there.
    #[test]
    fn whatever_is_answered_nothing_is_lost_or_out_of_order(
        story in prop::collection::vec(doing(), 0..200),
        hot in any::<bool>(),
    ) {
        let mut publisher = if hot { limited(2) } else { publisher(settings()) };
        let (mut now, mut commit) = (0, 100);
        let mut under: Vec<Call> = Vec::new();
        let mut log: BTreeMap<u128, Vec<String>> = BTreeMap::new();
        let mut parked: Vec<String> = Vec::new();
        let mut committed: Vec<(u64, Vec<String>)> = Vec::new();
        let healing = std::iter::repeat_n([Do::Wait(2000), Do::Poll, Do::Answer { which: 0, outcomes: vec![] }], 400).flatten();
        for step in story.into_iter().chain(healing) {
            match step {
                Do::Transaction(lanes) if publisher.wants_more() => {
                    commit += 100;
                    transaction(&mut publisher, at(now), commit, &lanes);
                    let ids = (0..lanes.len()).map(|index| position(commit, commit - 50 + index as u64, 0).to_string());
                    committed.push((commit, ids.collect()));
                }
                Do::Transaction(_) => {}
                Do::Idle => publisher.idle(Lsn(commit + 8)),
                Do::Wait(millis) => now += millis,
                Do::Poll => while let Some(work) = publisher.poll(at(now), true) {
                    match work {
                        Work::Call(call) => under.push(call),
                        Work::Store { lane, parked: content, .. } => {
                            parked.push(String::from_utf8(content.content.to_vec()).unwrap());
                            publisher.stored(at(now), lane, true);
                        }
                        Work::Replace(refused) => {
                            let pointers = refused.events.iter().map(|event| {
                                (event.id.to_string().into_bytes(), Parked { content: event.bytes.clone(), reason: None })
                            }).collect();
                            publisher.replace(at(now), refused.lane, pointers);
                        }
                    }
                },
                Do::Answer { which, outcomes } if !under.is_empty() => {
                    let call = under.swap_remove(which % under.len());
                    let mut results = Vec::new();
                    for (index, record) in call.records.iter().enumerate() {
                        let outcome = outcomes.get(index).copied().unwrap_or(0);
                        if outcome == 0 {
                            append(&mut log, record);
                        }
                        results.push(match outcome {
                            0 => stored(),
                            3 => Put::Refused { reason: "no".to_owned() },
                            _ => Put::Throttled,
                        });
                    }
                    publisher.answered(at(now), call.id, Answer::Records(results));
                }
                Do::Fail { which, landed } if !under.is_empty() => {
                    let call = under.swap_remove(which % under.len());
                    if landed {
                        call.records.iter().for_each(|record| append(&mut log, record));
                    }
                    publisher.answered(at(now), call.id, Answer::Failed(Kind::Unknown));
                }
                Do::Answer { .. } | Do::Fail { .. } => {}
            }
            let seen: Vec<&String> = log.values().flatten().collect();
            for (commit, ids) in &committed {
                if publisher.confirmed() > Lsn(*commit) {
                    for id in ids {
                        prop_assert!(seen.contains(&id), "{id} is confirmed and not there");
                    }
                }
            }
        }
        prop_assert_eq!(publisher.inflight(), (0, 0));
        prop_assert!(committed.is_empty() || publisher.confirmed() == Lsn(commit + 8));
        for texts in log.values() {
            let mut firsts: Vec<Position> = Vec::new();
            for text in texts {
                let id: Position = text.parse().unwrap();
                if !firsts.contains(&id) {
                    firsts.push(id);
                }
            }
            prop_assert!(firsts.is_sorted(), "{texts:?}");
        }
    }
}

fn append(log: &mut BTreeMap<u128, Vec<String>>, record: &Record) {
    let lane = log.entry(record.explicit_hash_key.unwrap().0).or_default();
    lane.extend(String::from_utf8(record.data.to_vec()).unwrap().lines().map(str::to_owned));
}
