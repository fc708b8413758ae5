//! A record lands where Kinesis would put it.

use super::Fixture;
use crate::{HashKey, HashRange, Record, ShardId, route};

/// A new stream's shards divide the hash space as Kinesis's do, and are named from zero on.
pub async fn first_shards_are_uniform(fixture: Fixture) {
    let shards = fixture.created(3).await;
    let ranges: Vec<_> = shards.iter().map(|shard| shard.hash_range).collect();
    assert_eq!(ranges, HashRange::uniform(3));
    let ids: Vec<_> = shards.iter().map(|shard| shard.id.clone()).collect();
    assert_eq!(ids, [0, 1, 2].map(ShardId::numbered));
    assert!(shards.iter().all(|shard| shard.is_open() && shard.parents().next().is_none()));
}

/// The MD5 of the key chooses, for keys of any script and length.
pub async fn keys_choose_their_shard_by_md5(fixture: Fixture) {
    let shards = fixture.created(4).await;
    let mut records: Vec<_> = (0..120).map(|number| Record::new(format!("key-{number}"), "x")).collect();
    for key in ["a", "abc", "message digest", "ключ", "鍵/🗝", " ", &"long".repeat(64)] {
        records.push(Record::new(key, "x"));
    }
    let puts = fixture.put(&records).await;
    for (put, record) in puts.iter().zip(&records) {
        let expected = route(&shards, record).expect("no gap");
        assert_eq!(put.stored().expect("stored").0, &expected.id, "{record:?}");
    }
    // Known by hand: 0x0cc1… lies in the first quarter, 0x9001… in the third, 0xf96b… in the last.
    let shard_of = |key: &str| {
        let place = records.iter().position(|record| &*record.partition_key == key).expect("put above");
        puts[place].stored().expect("stored").0.clone()
    };
    assert_eq!(shard_of("a"), ShardId::numbered(0));
    assert_eq!(shard_of("abc"), ShardId::numbered(2));
    assert_eq!(shard_of("message digest"), ShardId::numbered(3));
}

/// An explicit hash key goes before the partition key, up to the last point of every range.
pub async fn explicit_hash_keys_choose_their_shard(fixture: Fixture) {
    let shards = fixture.created(3).await;
    let mut records = Vec::new();
    let mut expected = Vec::new();
    for shard in &shards {
        for key in [shard.hash_range.start, shard.hash_range.end] {
            records.push(Record::new("same key", "x").at_hash_key(key));
            expected.push(shard.id.clone());
        }
    }
    assert_eq!(records[0].explicit_hash_key, Some(HashKey::MIN));
    assert_eq!(records[5].explicit_hash_key, Some(HashKey::MAX));
    let puts = fixture.put(&records).await;
    let found: Vec<_> = puts.iter().map(|put| put.stored().expect("stored").0.clone()).collect();
    assert_eq!(found, expected);
}
