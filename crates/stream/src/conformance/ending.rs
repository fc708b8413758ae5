//! A closed shard ends, and a reader is told.

use super::{Fixture, texts};
use crate::{HashKey, Position, Record, ShardId};

const SHARD: u64 = 0;
const MIDDLE: HashKey = HashKey(1 << 127);

/// All records, then the end, however few are read at a time.
pub async fn a_closed_shard_ends_after_its_records(fixture: Fixture) {
    fixture.created(1).await;
    let records: Vec<_> = (0..6).map(|number| Record::new("k", number.to_string())).collect();
    fixture.put(&records).await;
    fixture.stream.split(fixture.soon(), &ShardId::numbered(SHARD), MIDDLE).await.expect("split");
    fixture.put(&[Record::new("k", "to a child")]).await;
    for limit in [1, 3, 6, 100] {
        let mut next = Some(fixture.cursor(&ShardId::numbered(SHARD), Position::TrimHorizon).await);
        let mut found = Vec::new();
        for _ in 0..500 {
            let Some(cursor) = next else { break };
            let batch = fixture.read(&cursor, limit).await;
            found.extend(batch.records);
            next = batch.next;
        }
        assert_eq!(next, None, "the shard did not end");
        assert_eq!(texts(&found), ["0", "1", "2", "3", "4", "5"]);
    }
}

/// Nothing was ever put: it ends without a record.
pub async fn an_empty_shard_ends_at_once(fixture: Fixture) {
    fixture.created(1).await;
    fixture.stream.split(fixture.soon(), &ShardId::numbered(SHARD), MIDDLE).await.expect("split");
    let cursor = fixture.cursor(&ShardId::numbered(SHARD), Position::TrimHorizon).await;
    assert_eq!(fixture.read_on(cursor, None).await, (vec![], None));
}

/// A reader that has read everything waits at the tip; when the shard closes, it ends there.
pub async fn a_reader_at_the_tip_sees_the_end(fixture: Fixture) {
    fixture.created(1).await;
    fixture.put(&[Record::new("k", "0")]).await;
    let begun = fixture.cursor(&ShardId::numbered(SHARD), Position::TrimHorizon).await;
    let (records, next) = fixture.read_on(begun, Some(1)).await;
    assert_eq!(records.len(), 1);
    let tip = next.expect("still open");
    fixture.put(&[Record::new("k", "1")]).await;
    fixture.stream.split(fixture.soon(), &ShardId::numbered(SHARD), MIDDLE).await.expect("split");
    let (records, next) = fixture.read_on(tip, None).await;
    assert_eq!((texts(&records), next), (vec!["1".to_owned()], None));
}
