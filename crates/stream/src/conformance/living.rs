//! Streams are made once, by whoever comes first, and are gone when deleted.

use std::time::Duration;

use tenure_backend::Kind;

use super::{Fixture, texts};
use crate::{Page, Position, Record, ShardId, StreamSpec};

/// The second creator finds the first one's stream, whatever it asks for.
pub async fn creating_again_changes_nothing(fixture: Fixture) {
    let shards = fixture.created(2).await;
    fixture.put(&[Record::new("k", "kept").at_hash_key(crate::HashKey::MIN)]).await;
    let described =
        fixture.other.create(fixture.soon(), &StreamSpec::with_shards(5)).await.expect("create again");
    assert_eq!((described.open_shards, described.name.as_str()), (2, fixture.stream.name()));
    assert_eq!(described, fixture.stream.describe(fixture.soon()).await.expect("describe"));
    assert_eq!(fixture.shards().await, shards);
    assert_eq!(texts(&fixture.first(&ShardId::numbered(0), 1).await), ["kept"]);
}

/// Eight at once: all of them may use it afterwards, and there is one.
pub async fn racing_creators_agree(fixture: Fixture) {
    let by = fixture.soon();
    let racers: Vec<_> = (0..8)
        .map(|racer| {
            let stream = if racer % 2 == 0 { fixture.stream.clone() } else { fixture.other.clone() };
            tokio::spawn(async move {
                stream.create(by, &StreamSpec::with_shards(2)).await.expect("create");
                stream.put(by, &[Record::new("k", "x")]).await.expect("put")[0].clone()
            })
        })
        .collect();
    for racer in racers {
        assert!(racer.await.expect("racer").stored().is_some());
    }
    assert_eq!(fixture.shards().await.len(), 2);
}

/// Every call on a stream that is not there names it; deleting it is done at once.
pub async fn a_missing_stream_is_named(fixture: Fixture) {
    let (by, stream, shard) = (fixture.soon(), &fixture.stream, ShardId::numbered(0));
    stream.delete(by).await.expect("nothing to delete");
    let errors = [
        stream.describe(by).await.map(drop).unwrap_err(),
        stream.limits(by).await.map(drop).unwrap_err(),
        stream.shards(by, &Page::default()).await.map(drop).unwrap_err(),
        stream.put(by, &[Record::new("k", "x")]).await.map(drop).unwrap_err(),
        stream.cursor(by, &shard, &Position::TrimHorizon).await.map(drop).unwrap_err(),
        stream.split(by, &shard, crate::HashKey(5)).await.unwrap_err(),
        stream.merge(by, &shard, &ShardId::numbered(1)).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
        assert!(error.chain().contains(stream.name()), "{error:?}");
    }
}

/// Deleted and created again under the same name, nothing of the first is left.
pub async fn a_stream_made_anew_is_empty(fixture: Fixture) {
    fixture.created(2).await;
    fixture.put(&[Record::new("k", "old")]).await;
    fixture.stream.delete(fixture.soon()).await.expect("delete");
    assert_eq!(fixture.other.describe(fixture.soon()).await.unwrap_err().kind(), Kind::Invalid);
    let shards = fixture.created(1).await;
    assert_eq!(shards.len(), 1);
    fixture.put(&[Record::new("k", "new")]).await;
    assert_eq!(texts(&fixture.first(&shards[0].id, 1).await), ["new"]);
}

/// No shards, too many, a retention of nothing.
pub async fn impossible_streams_are_refused(fixture: Fixture) {
    let usual = StreamSpec::default();
    let mut specs = vec![
        StreamSpec { shards: 0, ..usual },
        StreamSpec { shards: crate::SHARDS_MAX + 1, ..usual },
        StreamSpec { retention_age: Some(Duration::ZERO), ..usual },
        StreamSpec { retention_bytes: Some(0), ..usual },
        StreamSpec { record_bytes_max: 10, ..usual },
        StreamSpec { record_bytes_max: 11 << 20, ..usual },
    ];
    if !fixture.can.retention_bytes {
        specs.push(StreamSpec { retention_bytes: Some(1 << 20), ..usual });
    }
    for spec in specs {
        let refused = fixture.stream.create(fixture.soon(), &spec).await.unwrap_err();
        assert_eq!(refused.kind(), Kind::Invalid, "{spec:?}: {refused:?}");
    }
    assert_eq!(fixture.stream.describe(fixture.soon()).await.unwrap_err().kind(), Kind::Invalid);
}

/// Waiting ends at the deadline at the latest, and does not take for ever when something comes.
pub async fn waiting_ends(fixture: Fixture) {
    fixture.created(1).await;
    let begun = fixture.clock.monotonic();
    fixture.stream.wait(fixture.clock.deadline(Duration::from_millis(10))).await;
    fixture.put(&[Record::new("k", "x")]).await;
    fixture.stream.wait(fixture.clock.deadline(Duration::from_secs(20))).await;
    assert!(fixture.clock.monotonic().since(begun) < Duration::from_secs(15));
}
