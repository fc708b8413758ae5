//! Beside Go workers, whose puts wipe our columns: a worker that writes what the Go service writes, by the store.

use tenure_leases::capacity::{Alarm, Cap, Count, Why};
use tenure_store::{Condition, Item, Key, StoreExt, Update};

use super::live::World;
use super::site::{APP, STREAM, soon};

fn table() -> String {
    format!("{STREAM}_meta")
}

fn go_row(worker: &str, shards: u64, workers: u64, max: u64, time: &str) -> Item {
    Item::new()
        .with("worker_id", worker)
        .with("max_leases_per_worker", max)
        .with("stream_name", STREAM)
        .with("app_name", APP)
        .with("shard_count", shards)
        .with("worker_count", workers)
        .with("last_update_time", time)
}

/// A worker of the Go service starts: its update is conditional on the counts it read, its own row is not.
async fn go_starts(world: &World, worker: &str, read: (u64, u64), now: (u64, u64, u64), time: &str) -> bool {
    let (shards, workers, max) = now;
    let when = Condition::eq("shard_count", read.0).and(Condition::eq("worker_count", read.1));
    let coordinator = go_row("my-app_coordinator", shards, workers, max, time);
    let won = world.store.put(soon(), &table(), coordinator, when).await.unwrap().is_applied();
    let own = go_row(worker, shards, workers, max, time);
    world.store.put(soon(), &table(), own, Condition::Always).await.unwrap();
    won
}

#[tokio::test]
async fn a_go_workers_row_is_used_and_changed_on_its_own_terms() {
    let mut world = World::new();
    world.settings.live = false;
    world.store.ensure_table(soon(), &tenure_leases::capacity::table_spec(&table())).await.unwrap();
    let row = go_row("my-app_coordinator", 30, 3, 10, "2025-11-19T09:00:00Z");
    world.store.put(soon(), &table(), row, Condition::Always).await.unwrap();
    // The same numbers: nothing is written.
    assert_eq!(world.worker("a").build().unwrap().initialize().await.unwrap().value, 10);
    assert_eq!(world.row("my-app_coordinator").await.unwrap().get("epoch"), None);
    // Others: ours is conditional on what a Go worker compares, and it now carries an epoch.
    world.shards.set(60);
    assert_eq!(world.worker("a").build().unwrap().initialize().await.unwrap().value, 20);
    assert!(world.row("my-app_coordinator").await.unwrap().integer("epoch").is_some());
    // A Go worker that read before that loses; one that reads now wins, and wipes the epoch.
    assert!(!go_starts(&world, "go", (30, 3), (60, 4, 15), "2025-11-19T10:00:00Z").await);
    assert!(go_starts(&world, "go", (60, 3), (60, 4, 15), "2025-11-19T10:00:00Z").await);
    assert_eq!(world.row("my-app_coordinator").await.unwrap().get("epoch"), None);
    world.workers.set(Count::Known(4));
    let cap = world.worker("a").build().unwrap().initialize().await.unwrap();
    assert_eq!(cap, Cap { value: 15, why: Why::Coordinator });
}

#[tokio::test]
async fn a_go_workers_put_is_noticed_and_lived_with() {
    let world = World::new();
    let a = world.start("a").await;
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 1, 30));
    assert!(go_starts(&world, "go", (30, 1), (30, 3, 10), "2025-11-19T10:01:00Z").await);
    world.pass(6).await;
    assert_eq!(a.cap().borrow().value, 10, "its row is respected at once");
    world.pass(60).await;
    assert_eq!(world.coordinator().await, (30, 1, 30), "until the leader has seen for long enough who lives");
    assert!(world.row("my-app_coordinator").await.unwrap().integer("epoch").is_some());
    assert!(world.row("go").await.is_some(), "a Go worker's row is not ours to sweep");
    assert_eq!(a.alarms(), []);
}

#[tokio::test]
async fn a_go_worker_of_our_own_name_is_told_apart() {
    let world = World::new();
    let a = world.start("a").await;
    world.pass(30).await;
    go_starts(&world, "a", (30, 1), (30, 3, 10), "2025-11-19T10:00:30Z").await;
    assert_eq!(world.row("a").await.unwrap().get("expires_at"), None, "wiped");
    world.pass(6).await;
    assert_eq!(a.alarms(), [Alarm::DuplicateWorker { incarnation: None }]);
    assert!(world.row("a").await.unwrap().integer("expires_at").is_some(), "ours are beside its own again");
    world.pass(60).await;
    assert_eq!(a.alarms(), [], "it did it once");
}

#[tokio::test]
async fn a_go_update_that_keeps_our_epoch_is_not_overwritten_blindly() {
    let mut world = World::new();
    world.settings.live = false;
    world.worker("a").build().unwrap().initialize().await.unwrap();
    let before = world.row("my-app_coordinator").await.unwrap();
    // An UpdateItem leaves columns alone that it does not name.
    let change = Update::new()
        .set("shard_count", 45)
        .set("max_leases_per_worker", 15)
        .set("last_update_time", "2025-11-19T10:00:30Z");
    let key = Key::new("worker_id", "my-app_coordinator");
    let when = Condition::eq("shard_count", 30);
    world.store.update(soon(), &table(), key, change, when).await.unwrap();
    assert_eq!(world.row("my-app_coordinator").await.unwrap().get("epoch"), before.get("epoch"));
    world.shards.set(45);
    let cap = world.worker("b").build().unwrap().initialize().await.unwrap();
    assert_eq!(cap, Cap { value: 15, why: Why::Coordinator });
}
