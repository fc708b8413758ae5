//! SIGKILL never loses an acknowledged write.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_store::testing::soon;
use tenure_store::{Condition, Store, StoreExt};

use super::processes::{assignment, said, start};
use super::{open_at, row, spec};

/// Kills per run; ten times as many with `TENURE_LONG=1`.
const KILLS: usize = 100;

/// Writes rows from four tasks and prints each after it was acknowledged, until it is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the part of another process: started by the test below"]
async fn writer() {
    let (file, number) = assignment();
    let store = std::sync::Arc::new(open_at(&file));
    let mut tasks = Vec::new();
    for task in 0..4 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for count in 0..100_000 {
                let pk = format!("{number}-{task}-{count}");
                let written = store.put(soon(), "rows", row(&pk), Condition::absent("pk")).await.unwrap();
                assert!(written.is_applied());
                println!("ACK {pk}");
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn killed_writers_lose_nothing_they_acknowledged() {
    let kills = if std::env::var_os("TENURE_LONG").is_some() { 10 * KILLS } else { KILLS };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenure.db");
    let store = open_at(&file);
    store.ensure_table(soon(), &spec()).await.unwrap();
    let entropy = Entropy::seeded(1);
    let mut acknowledged = BTreeSet::new();
    for number in 0..kills {
        let mut writer = start("sqlite::kills::writer", &file, number);
        // Some are killed while opening, most while writing.
        SystemClock.sleep(Duration::from_millis(20 + entropy.below(120))).await;
        writer.kill().unwrap();
        writer.wait().unwrap();
        acknowledged.extend(said(&mut writer, "ACK "));
    }
    let stored: BTreeSet<String> = {
        let rows = store.scan_all(soon(), "rows", 10_000_000).await.unwrap();
        rows.iter().filter_map(|row| row.text("pk").map(str::to_owned)).collect()
    };
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} acknowledged rows are lost: {lost:?}", lost.len(), acknowledged.len());
    assert!(acknowledged.len() > kills, "the writers hardly wrote: {}", acknowledged.len());
}
