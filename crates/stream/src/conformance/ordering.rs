//! What is put in order comes back in order, once, as it was.

use std::collections::BTreeMap;

use super::{Fixture, texts};
use crate::{HashKey, Position, Record, ShardId};

/// Puts one after the other: numbers rise, dates do not fall, nothing changes places.
pub async fn order_holds_within_a_shard(fixture: Fixture) {
    fixture.created(2).await;
    let mut sequences: BTreeMap<ShardId, Vec<_>> = BTreeMap::new();
    for call in 0..6 {
        let records: Vec<_> =
            (0..20).map(|index| Record::new(format!("key-{index}"), format!("{call}-{index:02}"))).collect();
        for put in fixture.put(&records).await {
            let (shard, sequence) = put.stored().expect("stored");
            sequences.entry(shard.clone()).or_default().push(sequence.clone());
        }
    }
    assert_eq!(sequences.values().map(Vec::len).sum::<usize>(), 120);
    for (shard, sequences) in sequences {
        let records = fixture.first(&shard, sequences.len()).await;
        assert!(records.windows(2).all(|pair| pair[0].sequence < pair[1].sequence), "numbers rise");
        assert!(records.windows(2).all(|pair| pair[0].arrived <= pair[1].arrived), "dates do not fall");
        assert!(records.iter().all(|record| record.shard == shard));
        let read: Vec<_> = records.iter().map(|record| record.sequence.clone()).collect();
        assert_eq!(read, sequences);
        let mut per_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (record, text) in records.iter().zip(texts(&records)) {
            per_key.entry(record.partition_key.clone()).or_default().push(text);
        }
        assert!(per_key.values().all(|texts| texts.is_sorted() && texts.len() == 6));
    }
}

/// Keys and contents of every form survive.
pub async fn records_come_back_as_they_went_in(fixture: Fixture) {
    fixture.created(1).await;
    let records = [
        Record::new("plain", "text"),
        Record::new("ключ 鍵 🗝", vec![0, 255, 128, 10, 13]),
        Record::new("k", vec![7; 300_000]),
        Record::new("x".repeat(256), (0..=255).collect::<Vec<u8>>()),
    ];
    let before = fixture.clock.wall();
    let puts = fixture.put(&records).await;
    let after = fixture.clock.wall();
    let found = fixture.first(&ShardId::numbered(0), records.len()).await;
    assert_eq!(found.len(), records.len());
    for ((stored, record), put) in found.iter().zip(&records).zip(&puts) {
        assert_eq!(stored.partition_key, record.partition_key);
        assert_eq!(stored.data, record.data);
        assert_eq!(put.stored(), Some((&stored.shard, &stored.sequence)));
        // An emulator dates in whole milliseconds of its own; a second covers the difference.
        let slack = std::time::Duration::from_secs(1);
        assert!(stored.arrived >= before - slack && stored.arrived <= after + slack);
    }
}

/// A read of one record at a time finds the same as a read of all.
pub async fn small_pages_miss_nothing(fixture: Fixture) {
    fixture.created(1).await;
    let records: Vec<_> = (0..7).map(|number| Record::new("k", number.to_string())).collect();
    fixture.put(&records).await;
    let mut cursor = fixture.cursor(&ShardId::numbered(0), Position::TrimHorizon).await;
    let mut found = Vec::new();
    for _ in 0..500 {
        let batch = fixture.read(&cursor, 1).await;
        assert!(batch.records.len() <= 1);
        if found.len() == 6 && batch.records.len() == 1 {
            assert_eq!(batch.behind, std::time::Duration::ZERO, "the newest record was read");
        }
        found.extend(batch.records);
        cursor = batch.next.expect("an open shard does not end");
        if found.len() == 7 {
            break;
        }
    }
    assert_eq!(texts(&found), ["0", "1", "2", "3", "4", "5", "6"]);
}

/// Two handles put at once, each many records: none is lost, none comes twice, each key is in order.
pub async fn many_writers_and_readers_agree(fixture: Fixture) {
    fixture.created(2).await;
    let mut writers = Vec::new();
    for writer in 0..4 {
        let stream = if writer % 2 == 0 { fixture.stream.clone() } else { fixture.other.clone() };
        let by = fixture.soon();
        writers.push(tokio::spawn(async move {
            for number in 0..25 {
                let record = Record::new(format!("writer-{writer}"), format!("{number:02}"))
                    .at_hash_key(if writer < 2 { HashKey::MIN } else { HashKey::MAX });
                let puts = stream.put(by, &[record]).await.expect("put");
                assert!(puts[0].stored().is_some(), "{puts:?}");
            }
        }));
    }
    for writer in writers {
        writer.await.expect("writer");
    }
    for shard in 0..2 {
        let records = fixture.first(&ShardId::numbered(shard), 50).await;
        let mut per_key: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (record, text) in records.iter().zip(texts(&records)) {
            per_key.entry(record.partition_key.to_string()).or_default().push(text);
        }
        assert_eq!(per_key.len(), 2);
        for (key, texts) in per_key {
            assert_eq!(texts, (0..25).map(|number| format!("{number:02}")).collect::<Vec<_>>(), "{key}");
        }
    }
}
