//! What was acknowledged survives the loss of power, whatever the disk had not synced.

use std::sync::Arc;

use tenure_store::testing::{env, soon};
use tenure_store::{Condition, Key, Sqlite, Store, StoreExt};
use tenure_torn_disk::TornDisk;
use tenure_torn_disk::power_loss::{Plan, images};

use super::{open_at, row, spec};

/// Four tasks write at once, so that commits hold several writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_rows_survive_power_loss() {
    let disk = TornDisk::register();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tenure.db");
    let store = Arc::new(Sqlite::open_through(&path, &env(0), disk.vfs_name()).unwrap());
    store.ensure_table(soon(), &spec()).await.unwrap();
    let mut acks = vec![(disk.mark(), None)];
    let mut tasks = Vec::new();
    for task in 0..4 {
        let (store, disk) = (store.clone(), disk.clone());
        tasks.push(tokio::spawn(async move {
            let mut acks = Vec::new();
            for count in 0..60 {
                let pk = format!("{task}-{count}");
                // Large enough that the log is copied back into the file along the way.
                let item = row(&pk).with("v", "x".repeat(8_000));
                assert!(store.put(soon(), "rows", item, Condition::absent("pk")).await.unwrap().is_applied());
                acks.push((disk.mark(), Some(pk)));
            }
            acks
        }));
    }
    for task in tasks {
        acks.extend(task.await.unwrap());
    }
    let plan = Plan { moments_max: 60, ..Plan::default() };
    let mut checked = 0;
    for image in images(&disk, &path, acks, plan) {
        if image.acked().is_empty() {
            continue;
        }
        let after = open_at(image.db());
        for pk in image.acked().iter().flatten() {
            let found = after.get(soon(), "rows", &Key::new("pk", pk.clone())).await.unwrap();
            assert!(found.is_some(), "{image}: row {pk} is lost");
        }
        checked += 1;
    }
    assert!(checked > 100, "only {checked} images were checked");
}
