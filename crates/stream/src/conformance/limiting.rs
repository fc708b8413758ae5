//! What is too large is refused: a record alone, a call whole, and never half.

use tenure_backend::Kind;

use super::{Fixture, texts};
use crate::{Put, Record, ShardId, StreamExt, StreamSpec};

const MIB: usize = 1 << 20;

fn refused(put: &Put) -> bool {
    matches!(put, Put::Refused { .. })
}

/// One byte too many, among good records: they are stored, it is not. The largest that fits is.
pub async fn large_records_are_refused_alone(fixture: Fixture) {
    fixture.created(1).await;
    let records = [
        Record::new("k", "before"),
        Record::new("k", vec![1; MIB]),
        Record::new("k", "after"),
        Record::new("k", vec![2; MIB - 1]),
    ];
    let puts = fixture.stream.put(fixture.soon(), &records).await.expect("put");
    assert_eq!(puts.iter().map(refused).collect::<Vec<_>>(), [false, true, false, false], "{puts:?}");
    let found = fixture.first(&ShardId::numbered(0), 3).await;
    assert_eq!(texts(&found[..2]), ["before", "after"]);
    assert_eq!(found[2].data.len(), MIB - 1);
}

/// An empty key and a key of 257 characters; 256 characters of any script are fine.
pub async fn bad_keys_are_refused_alone(fixture: Fixture) {
    fixture.created(1).await;
    let records = [
        Record::new("", "empty"),
        Record::new("ю".repeat(257), "long"),
        Record::new("ю".repeat(256), "fits"),
    ];
    let puts = fixture.stream.put(fixture.soon(), &records).await.expect("put");
    assert_eq!(puts.iter().map(refused).collect::<Vec<_>>(), [true, true, false], "{puts:?}");
    assert_eq!(texts(&fixture.first(&ShardId::numbered(0), 1).await), ["fits"]);
    // Refused all: there is nothing left to send.
    let puts = fixture.stream.put(fixture.soon(), &records[..2]).await.expect("put");
    assert!(puts.iter().all(refused));
}

/// 501 records, or more than 5 MiB: nothing of the call is stored. No records are no work.
pub async fn calls_that_are_too_large_are_refused(fixture: Fixture) {
    fixture.created(1).await;
    assert_eq!(fixture.stream.put(fixture.soon(), &[]).await.expect("put nothing"), []);
    let many = vec![Record::new("k", "x"); 501];
    let large = vec![Record::new("k", vec![0; MIB - 1]); 6];
    for records in [many, large] {
        let refused = fixture.stream.put(fixture.soon(), &records).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    }
    fixture.put(&[Record::new("k", "only this")]).await;
    assert_eq!(texts(&fixture.first(&ShardId::numbered(0), 1).await), ["only this"]);
}

/// More than fits in a call goes in several, with the results in the order of the records.
pub async fn put_all_divides_calls(fixture: Fixture) {
    fixture.created(1).await;
    let mut records: Vec<_> = (0..620).map(|number| Record::new("k", number.to_string())).collect();
    records.insert(300, Record::new("", "refused"));
    let puts = fixture.stream.put_all(fixture.soon(), &records).await.expect("put");
    assert_eq!(puts.len(), 621);
    assert!(refused(&puts[300]));
    let sequences: Vec<_> = puts.iter().filter_map(Put::stored).map(|(_, sequence)| sequence).collect();
    assert_eq!(sequences.len(), 620);
    assert!(sequences.is_sorted());
    let found = fixture.first(&ShardId::numbered(0), 620).await;
    assert_eq!(texts(&found), (0..620).map(|number| number.to_string()).collect::<Vec<_>>());
}

/// The limits in force are those that the stream tells.
pub async fn larger_records_can_be_allowed(fixture: Fixture) {
    let spec = StreamSpec { record_bytes_max: 2 * MIB, ..StreamSpec::default() };
    let limits = fixture.stream.create(fixture.soon(), &spec).await.expect("create").limits;
    assert_eq!(fixture.stream.limits(fixture.soon()).await.expect("limits"), limits);
    assert_eq!(fixture.other.limits(fixture.soon()).await.expect("limits"), limits);
    let puts =
        fixture.stream.put(fixture.soon(), &[Record::new("k", vec![1; 2 * MIB - 1])]).await.expect("put");
    // Services that do not know larger records tell 1 MiB, and it is refused here.
    assert_eq!(refused(&puts[0]), limits.bytes_per_record_max < 2 * MIB, "{limits:?} {:?}", puts[0]);
}
