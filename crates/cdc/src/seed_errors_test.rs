//! The error cases of the service that Tenure succeeds, one by one: what it retried and then dropped, and
//! what it dropped at once. Nothing is dropped here. That each of Kinesis's codes has its kind is tested in
//! `stream` (`tests/canned.rs`); what comes of a kind, here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_backend::Kind;
use tenure_clock::{Entropy, Monotonic};
use tenure_stream::identity::{Era, Lane, Lanes, Lsn, Position};
use tenure_stream::{Limits, Put, SequenceNumber, ShardId};

use crate::framing::Framing;
use crate::publisher::{Answer, Call, Offer, Parked, Publisher, PublisherSettings, Work};

/// More often than anybody would have tried.
const TIMES: usize = 100;

/// What the stream answers to two records of two lanes.
enum Case {
    /// The call fails as a whole.
    Call(Kind),
    /// The first record fails, the second is stored.
    Record(Put),
}

struct World {
    publisher: Publisher,
    now: Monotonic,
    stored: usize,
    parked: Vec<Bytes>,
}

impl World {
    fn new() -> Self {
        let settings = PublisherSettings { framing: Framing::Lines, ..PublisherSettings::default() };
        let lanes = Lanes::new(2).unwrap();
        let mut publisher =
            Publisher::new(settings, Limits::default(), lanes, Era(1), Lsn(0), Entropy::seeded(1));
        let now = Monotonic::from_nanos(0);
        publisher.begin();
        for lane in 0..2 {
            let id = Position { era: Era(1), commit: Lsn(100), change: Lsn(u64::from(lane) + 1), k: 0 };
            let bytes = format!("event {lane}").into_bytes();
            publisher
                .offer(now, Offer { lane: Lane(lane), id, partition_key: "t", bytes: &bytes, parked: None });
        }
        publisher.commit(Lsn(108));
        Self { publisher, now, stored: 0, parked: Vec::new() }
    }

    /// The next call, after what must be done first.
    fn call(&mut self) -> Call {
        for _ in 0..10 {
            self.now = self.now + Duration::from_secs(60);
            match self.publisher.poll(self.now, true) {
                Some(Work::Call(call)) => return call,
                Some(Work::Replace(refused)) => {
                    let pointers = refused.events.into_iter().map(|event| {
                        let parked = Parked { content: event.bytes, reason: Some(Arc::from("refused")) };
                        (b"pointer".to_vec(), parked)
                    });
                    let pointers = pointers.collect();
                    self.publisher.replace(self.now, refused.lane, pointers);
                }
                Some(Work::Store { lane, parked, .. }) => {
                    self.parked.push(parked.content);
                    self.publisher.stored(self.now, lane, true);
                }
                None => {}
            }
        }
        panic!("there is something to send");
    }

    fn answer(&mut self, call: &Call, results: Vec<Put>) {
        self.stored += results.iter().filter(|put| put.stored().is_some()).count();
        self.publisher.answered(self.now, call.id, Answer::Records(results));
    }
}

fn stored() -> Put {
    Put::Stored { shard: ShardId::numbered(0), sequence: SequenceNumber::from(1u64) }
}

#[test]
fn every_case_of_the_table_waits_and_none_drops() {
    let cases = [
        ("a retriable error of the call: InternalFailure, a lost connection", Case::Call(Kind::Unavailable)),
        ("a call without an answer", Case::Call(Kind::Unknown)),
        ("a throttled call: LimitExceededException", Case::Call(Kind::Throttled)),
        ("AccessDenied*, an expired token", Case::Call(Kind::Denied)),
        ("ResourceNotFound*, validation", Case::Call(Kind::Invalid)),
        ("a retriable error of one record: ProvisionedThroughputExceeded", Case::Record(Put::Throttled)),
    ];
    for (name, case) in cases {
        let mut world = World::new();
        let mut first = None;
        for _ in 0..TIMES {
            let call = world.call();
            let again: Vec<Bytes> = call.records.iter().map(|record| record.data.clone()).collect();
            let sent = first.get_or_insert_with(|| again.clone());
            assert!(again.iter().all(|data| sent.contains(data)), "{name}: the same bytes");
            match &case {
                Case::Call(kind) => world.publisher.answered(world.now, call.id, Answer::Failed(*kind)),
                Case::Record(put) => {
                    let mut results = vec![put.clone()];
                    results.resize_with(call.records.len(), stored);
                    world.answer(&call, results);
                }
            }
            assert_eq!(world.publisher.confirmed(), Lsn(0), "{name}: nothing is confirmed");
        }
        while world.stored < 2 {
            let call = world.call();
            let results = vec![stored(); call.records.len()];
            world.answer(&call, results);
        }
        assert_eq!(world.publisher.confirmed(), Lsn(108), "{name}: all of it, once it works again");
        assert!(world.parked.is_empty(), "{name}");
    }
}

/// What the table calls final for one record: it is kept, and only then pointed to.
#[test]
fn a_record_that_is_refused_for_good_is_kept_before_anything_is_confirmed() {
    let mut world = World::new();
    let call = world.call();
    world.answer(&call, vec![Put::Refused { reason: "larger than 1 MB".to_owned() }, stored()]);
    assert_eq!(world.publisher.confirmed(), Lsn(0));
    let call = world.call();
    assert_eq!(world.parked, [Bytes::from_static(b"event 0")], "kept before its pointer is sent");
    assert_eq!(world.publisher.confirmed(), Lsn(0));
    assert_eq!(&call.records[0].data[..], b"pointer\n");
    world.answer(&call, vec![stored()]);
    assert_eq!(world.publisher.confirmed(), Lsn(108));
}
