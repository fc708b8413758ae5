//! Reading begins where it was asked to.

use std::time::Duration;

use tenure_backend::Kind;

use super::{Fixture, texts};
use crate::{Position, Record, SequenceNumber, ShardId};

const SHARD: u64 = 0;

async fn with_records(fixture: &Fixture, count: usize) -> Vec<SequenceNumber> {
    fixture.created(1).await;
    let records: Vec<_> = (0..count).map(|number| Record::new("k", number.to_string())).collect();
    let puts = fixture.put(&records).await;
    puts.iter().map(|put| put.stored().expect("stored").1.clone()).collect()
}

async fn found(fixture: &Fixture, position: Position, count: usize) -> Vec<String> {
    let cursor = fixture.cursor(&ShardId::numbered(SHARD), position).await;
    texts(&fixture.read_on(cursor, Some(count)).await.0)
}

/// TRIM_HORIZON, on a shard with records and on one without.
pub async fn trim_horizon_begins_with_the_oldest(fixture: Fixture) {
    fixture.created(1).await;
    let early = fixture.cursor(&ShardId::numbered(SHARD), Position::TrimHorizon).await;
    fixture.put(&[Record::new("k", "0"), Record::new("k", "1")]).await;
    assert_eq!(found(&fixture, Position::TrimHorizon, 2).await, ["0", "1"]);
    let (records, next) = fixture.read_on(early, Some(2)).await;
    assert_eq!(texts(&records), ["0", "1"]);
    assert!(next.is_some());
}

/// LATEST skips what is there and sees what comes, even if it is first read later.
pub async fn latest_begins_with_what_comes(fixture: Fixture) {
    with_records(&fixture, 3).await;
    let cursor = fixture.cursor(&ShardId::numbered(SHARD), Position::Latest).await;
    let batch = fixture.read(&cursor, 10).await;
    assert_eq!(batch.records, []);
    let unread = fixture.cursor(&ShardId::numbered(SHARD), Position::Latest).await;
    fixture.put(&[Record::new("k", "new")]).await;
    for cursor in [unread, batch.next.expect("open")] {
        assert_eq!(texts(&fixture.read_on(cursor, Some(1)).await.0), ["new"]);
    }
}

/// AT and AFTER, at the first, a middle and the last record.
pub async fn at_and_after_a_sequence_number(fixture: Fixture) {
    let sequences = with_records(&fixture, 4).await;
    assert_eq!(found(&fixture, Position::At(sequences[0].clone()), 4).await, ["0", "1", "2", "3"]);
    assert_eq!(found(&fixture, Position::At(sequences[2].clone()), 2).await, ["2", "3"]);
    assert_eq!(found(&fixture, Position::At(sequences[3].clone()), 1).await, ["3"]);
    assert_eq!(found(&fixture, Position::After(sequences[0].clone()), 3).await, ["1", "2", "3"]);
    assert_eq!(found(&fixture, Position::After(sequences[2].clone()), 1).await, ["3"]);
    let tip = fixture.cursor(&ShardId::numbered(SHARD), Position::After(sequences[3].clone())).await;
    assert_eq!(fixture.read(&tip, 10).await.records, []);
    fixture.put(&[Record::new("k", "4")]).await;
    assert_eq!(texts(&fixture.read_on(tip, Some(1)).await.0), ["4"]);
}

/// AT_TIMESTAMP: before all, between two, at exactly one, after all.
pub async fn at_a_timestamp(fixture: Fixture) {
    fixture.created(1).await;
    let mut times = Vec::new();
    for number in 0..4 {
        fixture.put(&[Record::new("k", number.to_string())]).await;
        // Far enough apart for services that date by their own clock.
        fixture.clock.sleep(Duration::from_millis(30)).await;
    }
    for record in fixture.first(&ShardId::numbered(SHARD), 4).await {
        times.push(record.arrived);
    }
    let second = Duration::from_secs(1);
    assert_eq!(found(&fixture, Position::AtTimestamp(times[0] - second), 4).await, ["0", "1", "2", "3"]);
    let between = times[1] + Duration::from_millis(1);
    assert_eq!(found(&fixture, Position::AtTimestamp(between), 2).await, ["2", "3"]);
    assert_eq!(found(&fixture, Position::AtTimestamp(times[2]), 2).await, ["2", "3"]);
    let after = times[3] + Duration::from_millis(1);
    fixture.put(&[Record::new("k", "4")]).await;
    assert_eq!(found(&fixture, Position::AtTimestamp(after), 1).await, ["4"]);
}

/// A shard that is not there, a number of another stream, a read of nothing.
pub async fn unknown_places_are_refused(fixture: Fixture) {
    with_records(&fixture, 1).await;
    let by = fixture.soon();
    for shard in ["shardId-000000000077", "shard-of-mine"] {
        let refused =
            fixture.stream.cursor(by, &ShardId::from(shard), &Position::TrimHorizon).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    }
    let foreign: SequenceNumber =
        "99999999999999999999999999999999999999999999999999999999".parse().expect("digits");
    let refused =
        fixture.stream.cursor(by, &ShardId::numbered(SHARD), &Position::At(foreign)).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    let cursor = fixture.cursor(&ShardId::numbered(SHARD), Position::TrimHorizon).await;
    for limit in [0, 10_001] {
        let refused = fixture.stream.read(by, &cursor, limit).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    }
}
