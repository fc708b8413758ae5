//! A reader that was too slow is told, and never led past what it missed.

use super::Fixture;
use crate::{Position, Read, Record, ShardId, StreamSpec};

/// Keeps 100 kB, puts far more: a cursor from before gets `Trimmed`, and reading on from there works.
pub async fn a_reader_below_the_horizon_is_told(fixture: Fixture) {
    let spec = StreamSpec { retention_bytes: Some(100_000), ..StreamSpec::default() };
    if !fixture.can.retention_bytes {
        let refused = fixture.stream.create(fixture.soon(), &spec).await.unwrap_err();
        assert_eq!(refused.kind(), tenure_backend::Kind::Invalid);
        return;
    }
    fixture.stream.create(fixture.soon(), &spec).await.expect("create");
    let shard = ShardId::numbered(0);
    let puts = fixture.put(&vec![Record::new("k", vec![0; 1000]); 10]).await;
    let third = puts[2].stored().expect("stored").1.clone();
    let unread = fixture.cursor(&shard, Position::TrimHorizon).await;
    let mut newest = None;
    for _ in 0..40 {
        newest = fixture.put(&vec![Record::new("k", vec![1; 1000]); 20]).await.pop();
    }
    let newest = newest.expect("put").stored().expect("stored").1.clone();
    for cursor in [
        unread,
        fixture.cursor(&shard, Position::At(third.clone())).await,
        fixture.cursor(&shard, Position::After(third)).await,
    ] {
        let Read::Trimmed { from, to } =
            fixture.stream.read(fixture.soon(), &cursor, 100).await.expect("read")
        else {
            panic!("a silent jump")
        };
        assert!(from < to && to <= newest, "{from} {to} {newest}");
        let cursor = fixture.cursor(&shard, Position::At(to.clone())).await;
        let batch = fixture.read(&cursor, 10_000).await;
        assert_eq!(batch.records[0].sequence, to);
        assert_eq!(batch.records.last().expect("records").sequence, newest);
        let kept: usize = batch.records.iter().map(|record| record.data.len() + 1).sum();
        // Trimming comes in steps, so a little more than asked for may be there.
        assert!((50_000..150_000).contains(&kept), "{kept} bytes are kept of 100,000");
    }
    let oldest = fixture.cursor(&shard, Position::TrimHorizon).await;
    assert_ne!(fixture.read(&oldest, 1).await.records, []);
}
