//! What was acknowledged survives the loss of power at any moment, on a disk that keeps only what was
//! synced.

use std::path::Path;

use tenure_backend::Env;
use tenure_stream::{HashKey, Kind, Record, SequenceNumber, ShardId, Sqlite, Stream, StreamExt, StreamSpec};
use tenure_torn_disk::power_loss::{Image, Plan, images};
use tenure_torn_disk::{Mark, TornDisk};

use super::{everything, soon};

/// What the caller was told.
#[derive(Debug, Clone)]
enum Acked {
    Created,
    Stored(ShardId, SequenceNumber, String),
    Split(ShardId),
}

/// Creates, puts (alone and many at once), splits and puts on, noting the moment of every answer.
async fn history(disk: &TornDisk, db: &Path) -> Vec<(Mark, Acked)> {
    let stream = Sqlite::open_on(db, "torn", &Env::system(), Some(disk.vfs_name().to_owned())).unwrap();
    let mut acks = Vec::new();
    stream.create(soon(), &StreamSpec::with_shards(2)).await.unwrap();
    acks.push((disk.mark(), Acked::Created));
    for round in 0..40 {
        let texts: Vec<_> = (0..=round % 5).map(|index| format!("{round}-{index}")).collect();
        let records: Vec<_> = texts.iter().map(|text| Record::new(text.as_str(), text.clone())).collect();
        let puts = stream.put(soon(), &records).await.unwrap();
        let mark = disk.mark();
        for (put, text) in puts.iter().zip(texts) {
            let (shard, sequence) = put.stored().unwrap();
            acks.push((mark, Acked::Stored(shard.clone(), sequence.clone(), text)));
        }
        if round == 20 {
            let shard = ShardId::numbered(0);
            stream.split(soon(), &shard, HashKey(1 << 100)).await.unwrap();
            acks.push((disk.mark(), Acked::Split(shard)));
        }
    }
    acks
}

/// What is missing in an image, if anything.
async fn missing(image: &Image<Acked>) -> Option<String> {
    if image.acked().is_empty() {
        return None;
    }
    let stream = match Sqlite::open(image.db(), "torn", &Env::system()) {
        Ok(stream) => stream,
        Err(error) => return Some(format!("{error:?}")),
    };
    if let Err(error) = stream.describe(soon()).await {
        return Some(format!("{error:?}"));
    }
    let found = everything(&stream, soon()).await;
    let shards = stream.all_shards(soon()).await.unwrap();
    image.acked().iter().find_map(|acked| {
        let kept = match acked {
            Acked::Created => !shards.is_empty(),
            Acked::Split(shard) => shards.iter().any(|listed| listed.id == *shard && !listed.is_open()),
            Acked::Stored(shard, sequence, text) => found.iter().any(|record| {
                (&record.shard, &record.sequence, &*record.data) == (shard, sequence, text.as_bytes())
            }),
        };
        (!kept).then(|| format!("{acked:?}"))
    })
}

const PLAN: Plan = Plan { seed: 42, moments_max: 60, seeded_per_moment: 2 };

#[tokio::test]
async fn what_was_acknowledged_survives_the_loss_of_power() {
    let (disk, dir) = (TornDisk::register(), tempfile::tempdir().unwrap());
    let db = dir.path().join("torn-stream");
    let acks = history(&disk, &db).await;
    let mut tried = 0;
    for image in images(&disk, &db, acks, PLAN) {
        if let Some(missing) = missing(&image).await {
            panic!("{image}: lost {missing}");
        }
        tried += 1;
    }
    assert!(tried >= 100, "{tried} images");
}

/// The test of the test: on a disk that lies about syncing, the same check finds a loss.
#[tokio::test]
async fn a_disk_that_does_not_sync_is_caught() {
    let (disk, dir) = (TornDisk::register(), tempfile::tempdir().unwrap());
    disk.ignore_syncs(true);
    let db = dir.path().join("torn-stream");
    let acks = history(&disk, &db).await;
    for image in images(&disk, &db, acks, PLAN) {
        if missing(&image).await.is_some() {
            return;
        }
    }
    panic!("nothing was synced and nothing was missed");
}

/// A put that finds no room is refused whole, and what was there before stays readable and writable.
#[tokio::test]
async fn a_full_disk_refuses_whole_puts() {
    let (disk, dir) = (TornDisk::register(), tempfile::tempdir().unwrap());
    let db = dir.path().join("full-stream");
    let stream = Sqlite::open_on(&db, "torn", &Env::system(), Some(disk.vfs_name().to_owned())).unwrap();
    stream.create(soon(), &StreamSpec::default()).await.unwrap();
    stream.put(soon(), &[Record::new("k", "before")]).await.unwrap();
    disk.fill_after(20_000);
    let large = [Record::new("k", "small"), Record::new("k", vec![0; 500_000])];
    let full = stream.put(soon(), &large).await.unwrap_err();
    assert_eq!(full.kind(), Kind::Unavailable, "{full:?}");
    assert!(full.chain().contains("full"), "{full:?}");
    assert_eq!(everything(&stream, soon()).await.len(), 1);
    disk.free();
    stream.put(soon(), &large).await.unwrap();
    assert_eq!(everything(&stream, soon()).await.len(), 3);
}
