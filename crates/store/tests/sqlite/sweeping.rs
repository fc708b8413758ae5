//! Expired rows go away in time, and only those.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Entropy, ManualTime, Monotonic, WallTime};
use tenure_store::{
    Condition, Env, Item, KeyAttribute, Memory, SWEEP_INTERVAL, Sqlite, Store, StoreExt, TableSpec,
};

const BY: Monotonic = Monotonic::NEVER;

async fn sweeps(store: &dyn Store, time: &ManualTime) {
    let now = 1_800_000_000;
    let spec = TableSpec::new("rows", KeyAttribute::text("pk")).with_ttl("ttl");
    store.ensure_table(BY, &spec).await.unwrap();
    let row = |pk: &str| Item::new().with("pk", pk);
    for item in [
        row("expired").with("ttl", now - 1),
        row("released").with("ttl", 0),
        row("to come").with("ttl", now + 1_000_000),
        row("endless"),
        row("text").with("ttl", "x"),
    ] {
        store.put(BY, "rows", item, Condition::Always).await.unwrap();
    }
    assert_eq!(store.scan_all(BY, "rows", 10).await.unwrap().len(), 5, "not swept at once");
    time.advance(SWEEP_INTERVAL + Duration::from_secs(1));
    store.put(BY, "rows", row("another"), Condition::Always).await.unwrap();
    let mut left: Vec<_> = store
        .scan_all(BY, "rows", 10)
        .await
        .unwrap()
        .iter()
        .map(|row| row.text("pk").unwrap().to_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["another", "endless", "released", "text", "to come"]);
}

fn world() -> (ManualTime, Env) {
    let time = ManualTime::starting_at(WallTime::from_millis(1_800_000_000_000));
    let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
    (time, env)
}

#[tokio::test]
async fn sqlite_sweeps_what_expired() {
    let (time, env) = world();
    let dir = tempfile::tempdir().unwrap();
    sweeps(&Sqlite::open(&dir.path().join("tenure.db"), &env).unwrap(), &time).await;
}

#[tokio::test]
async fn memory_sweeps_what_expired() {
    let (time, env) = world();
    sweeps(&Memory::new(&env), &time).await;
}
