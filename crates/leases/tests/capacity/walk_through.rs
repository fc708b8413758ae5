//! The walk-through of the seed: steps 1 to 8 with their tables and log lines, word for word, on every store;
//! and a ninth step that is ours.

use std::time::Duration;

use tenure_clock::{Clock, SystemClock};
use tenure_leases::capacity::{Builder, Cap, Why};

use super::lines::Lines;
use super::site::{Site, at};
use super::wrappers::Crossing;

mod memory {
    super::stores!(super::Site::memory());
}

mod sqlite {
    super::stores!(super::Site::sqlite());
}

/// `cargo xtask test` starts it.
mod postgres {
    super::stores!(super::Site::postgres());
}

/// Amazon's own emulator.
#[cfg(feature = "dynamodb")]
mod dynamodb_local {
    super::stores!(super::Site::dynamodb("TENURE_TEST_DYNAMODB_LOCAL"));
}

/// Another's.
#[cfg(feature = "dynamodb")]
mod dynoxide {
    super::stores!(super::Site::dynamodb("TENURE_TEST_DYNOXIDE"));
}

macro_rules! stores {
    ($site:expr) => {
        // On one thread, so that its log lines are this test's.
        #[tokio::test]
        async fn the_walk_through_of_the_seed() {
            super::steps_1_to_7($site).await;
            super::step_8($site).await;
        }

        #[tokio::test]
        async fn step_9_needs_no_restart() {
            super::step_9($site).await;
        }

        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn racing_creation_of_the_table_is_tolerated() {
            super::eight_start_at_once($site).await;
        }
    };
}
use stores;

async fn start(worker: Builder) -> Cap {
    worker.build().unwrap().initialize().await.unwrap()
}

const fn coordinator(value: u64) -> Cap {
    Cap { value, why: Why::Coordinator }
}

/// Phase 1: 30 shards, 3 workers, started one after the other.
async fn steps_1_to_4(site: &Site) {
    let lines = Lines::collect();
    site.shards.set(30);

    // Step 1
    site.clock.set(at(10, 0, 0));
    assert_eq!(start(site.worker("worker-1").await).await, coordinator(10));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
         | `worker-1` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |",
    )
    .await;
    lines.are(
        "INFO  Initializing max leases per worker  stream=kds-stream-prod app=my-app worker=worker-1
         INFO  Retrieved current system state  currentShardCount=30 currentWorkerCount=3
         INFO  Calculated max leases per worker  shardCount=30 workerCount=3 shardsPerWorker=10 maxLeasesPerWorker=10
         INFO  Successfully created coordinator metadata  coordinatorKey=my-app_coordinator maxLeasesPerWorker=10
         INFO  Successfully initialized dynamic max leases per worker  maxLeasesPerWorker=10",
    );

    // Step 2
    site.clock.set(at(10, 0, 2));
    assert_eq!(start(site.worker("worker-2").await).await, coordinator(10));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
         | `worker-1` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
         | `worker-2` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:02Z |",
    )
    .await;
    lines.are(
        "INFO  Initializing max leases per worker  stream=kds-stream-prod app=my-app worker=worker-2
         INFO  Retrieved current system state  currentShardCount=30 currentWorkerCount=3
         INFO  Configuration unchanged, using existing coordinator metadata  maxLeasesPerWorker=10 shardCount=30 workerCount=3
         INFO  Successfully initialized dynamic max leases per worker  maxLeasesPerWorker=10",
    );

    // Step 3
    site.clock.set(at(10, 0, 4));
    assert_eq!(start(site.worker("worker-3").await).await, coordinator(10));
    site.shows(AFTER_STEP_3).await;

    // Step 4: the stream grows, and the table does not know.
    site.clock.set(at(12, 0, 0));
    site.shards.set(60);
    site.shows(AFTER_STEP_3).await;
}

const AFTER_STEP_3: &str =
    "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
     |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
     | `my-app_coordinator` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
     | `worker-1` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
     | `worker-2` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:02Z |
     | `worker-3` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:04Z |";

async fn steps_1_to_7(site: Site) {
    steps_1_to_4(&site).await;
    let lines = Lines::collect();

    // Step 5
    site.clock.set(at(12, 5, 0));
    assert_eq!(start(site.worker("worker-1").await).await, coordinator(20));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | **20** | kds-stream-prod | my-app | **60** | 3 | **2025-11-19T12:05:00Z** |
         | `worker-1` | **20** | kds-stream-prod | my-app | **60** | 3 | **2025-11-19T12:05:00Z** |
         | `worker-2` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:02Z |
         | `worker-3` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:04Z |",
    )
    .await;
    lines.are(
        "INFO  Initializing max leases per worker  stream=kds-stream-prod app=my-app worker=worker-1
         INFO  Retrieved current system state  currentShardCount=60 currentWorkerCount=3
         INFO  Detected configuration change, recalculating max leases per worker  oldShardCount=30 newShardCount=60 oldWorkerCount=3 newWorkerCount=3 oldMaxLeases=10
         INFO  Calculated max leases per worker  shardCount=60 workerCount=3 shardsPerWorker=20 maxLeasesPerWorker=20
         INFO  Successfully updated coordinator metadata  coordinatorKey=my-app_coordinator newMaxLeasesPerWorker=20
         INFO  Successfully initialized dynamic max leases per worker  maxLeasesPerWorker=20",
    );

    // Step 6
    site.clock.set(at(12, 5, 5));
    assert_eq!(start(site.worker("worker-2").await).await, coordinator(20));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:00Z |
         | `worker-1` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:00Z |
         | `worker-2` | **20** | kds-stream-prod | my-app | **60** | 3 | **2025-11-19T12:05:05Z** |
         | `worker-3` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:04Z |",
    )
    .await;
    lines.are(
        "INFO  Initializing max leases per worker  stream=kds-stream-prod app=my-app worker=worker-2
         INFO  Retrieved current system state  currentShardCount=60 currentWorkerCount=3
         INFO  Configuration unchanged, using existing coordinator metadata  maxLeasesPerWorker=20 shardCount=60 workerCount=3
         INFO  Successfully initialized dynamic max leases per worker  maxLeasesPerWorker=20",
    );

    // Step 7
    site.clock.set(at(12, 5, 15));
    assert_eq!(start(site.worker("worker-3").await).await, coordinator(20));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:00Z |
         | `worker-1` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:00Z |
         | `worker-2` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:05Z |
         | `worker-3` | **20** | kds-stream-prod | my-app | **60** | 3 | **2025-11-19T12:05:15Z** |",
    )
    .await;
}

/// Two restart at the same time: both read before either writes.
async fn step_8(site: Site) {
    steps_1_to_4(&site).await;
    site.clock.set(at(12, 5, 5));
    let [first, second] = Crossing::pair(site.open().await, site.open().await);
    let (worker_2, worker_3) = (site.worker_on(first, "worker-2"), site.worker_on(second, "worker-3"));
    let lines = Lines::collect();
    let caps = tokio::join!(start(worker_2), start(worker_3));
    assert_eq!(caps, (coordinator(20), coordinator(20)));
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:05Z |
         | `worker-1` | 10 | kds-stream-prod | my-app | 30 | 3 | 2025-11-19T10:00:00Z |
         | `worker-2` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:05Z |
         | `worker-3` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:05:05Z |",
    )
    .await;
    // Their lines are mixed; each is there as often as it should be.
    let lines = lines.take();
    let count = |line: &str| lines.iter().filter(|logged| logged.as_str() == line).count();
    for (line, times) in [
        ("INFO  Retrieved current system state  currentShardCount=60 currentWorkerCount=3", 2),
        (
            "INFO  Detected configuration change, recalculating max leases per worker  oldShardCount=30 newShardCount=60 oldWorkerCount=3 newWorkerCount=3 oldMaxLeases=10",
            2,
        ),
        (
            "INFO  Calculated max leases per worker  shardCount=60 workerCount=3 shardsPerWorker=20 maxLeasesPerWorker=20",
            2,
        ),
        (
            "INFO  Successfully updated coordinator metadata  coordinatorKey=my-app_coordinator newMaxLeasesPerWorker=20",
            1,
        ),
        ("INFO  Another worker already updated coordinator metadata", 1),
        ("INFO  Successfully initialized dynamic max leases per worker  maxLeasesPerWorker=20", 2),
    ] {
        assert_eq!(count(line), times, "{line} in {lines:#?}");
    }
}

/// Live adjustment on: after step 4 every worker reaches 20, and none is restarted.
async fn step_9(mut site: Site) {
    site.settings.live = true;
    site.settings.lease = Duration::from_secs(1);
    let mut running = Vec::new();
    for name in ["worker-1", "worker-2", "worker-3"] {
        let elector = site.elector(name).await;
        elector.start().await.unwrap();
        let handle = site.worker(name).await.elector(elector).build().unwrap().start().await.unwrap();
        assert_eq!(*handle.cap().borrow(), coordinator(10));
        running.push(handle);
    }
    site.clock.set(at(12, 0, 0));
    site.shards.set(60);
    let by = SystemClock.deadline(Duration::from_secs(60));
    for handle in &running {
        let mut cap = handle.cap();
        tenure_clock::within(&SystemClock, by, cap.wait_for(|cap| cap.value == 20)).await.unwrap().unwrap();
        assert_eq!(*cap.borrow(), coordinator(20));
    }
    // Each says so in its own row too; the cap is told first.
    while site.rows().await.iter().any(|row| row.integer("max_leases_per_worker") != Some(20)) {
        assert!(SystemClock.monotonic() < by, "{:?}", site.rows().await);
        SystemClock.sleep(Duration::from_millis(20)).await;
    }
    site.shows(
        "| worker_id | max_leases_per_worker | stream_name | app_name | shard_count | worker_count | last_update_time |
         |-----------|----------------------|-------------|----------|-------------|--------------|------------------|
         | `my-app_coordinator` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:00:00Z |
         | `worker-1` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:00:00Z |
         | `worker-2` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:00:00Z |
         | `worker-3` | 20 | kds-stream-prod | my-app | 60 | 3 | 2025-11-19T12:00:00Z |",
    )
    .await;
    for handle in &running {
        handle.stop().await;
    }
    let left = site.rows().await;
    assert_eq!(left.len(), 1, "whoever leaves takes its row along: {left:?}");
}

async fn eight_start_at_once(site: Site) {
    let mut starting = Vec::new();
    for number in 0..8 {
        starting.push(tokio::spawn(start(site.worker(&format!("worker-{number}")).await)));
    }
    for started in starting {
        assert_eq!(started.await.unwrap(), coordinator(10));
    }
    assert_eq!(site.rows().await.len(), 9);
}
