//! Where a pipeline must not begin, or not go on: it says why, and what to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tenure_backend::{Kind, Result};
use tenure_cdc::server;
use tenure_cdc::transport::{PublicationName, SlotName};
use tenure_clock::Monotonic;
use tenure_store::{
    Condition, Item, Key, Listing, Page, Query, Store, StoreExt as _, TableSpec, Write, Written,
};
use tenure_stream::identity::{Lanes, Lsn};

use super::world::{World, client, in_time, soon, until};

/// Runs a pipeline that ends by itself, and gives what it says.
async fn refusal(world: &World) -> String {
    let running = world.start();
    let error = in_time(running.task).await.unwrap().expect_err("it must not run");
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    error.chain()
}

async fn drop_slot(world: &World) {
    server::drop_slot(&mut world.session().await, soon(), &world.slot).await.unwrap();
}

/// A pipeline has run once, and stands at what it has published.
async fn world_that_has_run() -> World {
    let world = World::new().await;
    let running = world.start();
    world.sql.batch_execute("INSERT INTO items VALUES (1, 0, 'a')").await.unwrap();
    world.events_when(1).await;
    running.end().await.unwrap();
    world
}

#[tokio::test]
async fn a_slot_that_never_was() {
    let world = World::new().await;
    drop_slot(&world).await;
    let text = refusal(&world).await;
    assert!(text.contains("run `tenure cdc setup`"), "{text}");
    world.clean_up().await;
}

#[tokio::test]
async fn a_slot_that_is_gone() {
    let world = world_that_has_run().await;
    drop_slot(&world).await;
    let text = refusal(&world).await;
    assert!(text.contains("the slot is gone") && text.contains("--accept-gap"), "{text}");
    world.clean_up().await;
}

#[tokio::test]
async fn a_slot_that_was_made_anew() {
    let world = world_that_has_run().await;
    drop_slot(&world).await;
    world.sql.batch_execute("INSERT INTO items VALUES (2, 0, 'lost')").await.unwrap();
    world.create_slot().await;
    let text = refusal(&world).await;
    assert!(text.contains("beyond our checkpoint"), "{text}");
    assert_eq!(world.events().await.len(), 1, "nothing is published over the gap");
    world.clean_up().await;
}

#[tokio::test]
async fn a_slot_that_somebody_else_has_moved() {
    let world = world_that_has_run().await;
    world.sql.batch_execute("INSERT INTO items VALUES (2, 0, 'lost')").await.unwrap();
    let sql = format!("SELECT pg_replication_slot_advance('{}', pg_current_wal_lsn())", world.slot);
    world.sql.batch_execute(&sql).await.unwrap();
    let text = refusal(&world).await;
    assert!(text.contains("beyond our checkpoint"), "{text}");
    world.clean_up().await;
}

/// A store whose reader of the checkpoint row is overtaken, once.
#[derive(Debug)]
struct Overtaken {
    inner: Arc<dyn Store>,
    url: String,
    slot: SlotName,
    left: AtomicU64,
}

#[async_trait]
impl Store for Overtaken {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.inner.ensure_table(by, spec).await
    }
    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.inner.describe_table(by, table).await
    }
    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        let found = self.inner.get(by, table, key).await?;
        let Some(row) = found.as_ref().filter(|row| row.text("pk") == Some("CDC#orders")) else {
            return Ok(found);
        };
        if self.left.swap(0, Ordering::Relaxed) > 0 {
            // The leader before goes on for a moment: first the row, then the slot.
            let sql = client(&self.url).await;
            let end = sql.query_one("SELECT pg_current_wal_flush_lsn()::text", &[]).await.unwrap();
            let end: Lsn = end.get::<_, &str>(0).parse().unwrap();
            self.inner.put(by, table, row.clone().with("lsn", end.0), Condition::Always).await?;
            let advance = format!("SELECT pg_replication_slot_advance('{}', '{end}')", self.slot);
            sql.batch_execute(&advance).await.unwrap();
        }
        Ok(found)
    }
    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.inner.write(by, write).await
    }
    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.inner.transact(by, writes, nonce).await
    }
    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.inner.query(by, table, query).await
    }
    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.inner.scan(by, table, page).await
    }
}

/// With an election on a store, the leader before may confirm something after we were elected. That is no
/// foreign hand.
#[tokio::test]
async fn a_leader_before_us_that_still_runs_is_no_reason_to_stop() {
    let mut world = world_that_has_run().await;
    world.sql.batch_execute("INSERT INTO items VALUES (2, 0, 'published by the other')").await.unwrap();
    world.store = Arc::new(Overtaken {
        inner: world.store.clone(),
        url: world.url.clone(),
        slot: world.slot.clone(),
        left: AtomicU64::new(1),
    });
    let running = world.start();
    until("it leads", || async {
        assert!(!running.task.is_finished(), "it has stopped");
        (running.service.progress().snapshot().started_at > 0).then_some(())
    })
    .await;
    world.sql.batch_execute("INSERT INTO items VALUES (3, 0, 'c')").await.unwrap();
    world.events_when(2).await;
    running.end().await.unwrap();
    world.clean_up().await;
}

/// An old primary that has come back: its first timeline has no history to look at.
#[tokio::test]
async fn a_server_that_others_have_left_behind() {
    let world = world_that_has_run().await;
    let place = world.service(world.settings(), world.sink()).place();
    let row = world.store.get(soon(), &place.table, &place.key()).await.unwrap().unwrap();
    world.store.put(soon(), &place.table, row.with("timeline", 7u32), Condition::Always).await.unwrap();
    let text = refusal(&world).await;
    assert!(text.contains("restored or promoted behind us"), "{text}");
    world.clean_up().await;
}

#[tokio::test]
async fn a_slot_with_another_plugin() {
    let world = World::new().await;
    drop_slot(&world).await;
    let sql = format!("SELECT pg_create_logical_replication_slot('{}', 'test_decoding')", world.slot);
    world.sql.batch_execute(&sql).await.unwrap();
    let text = refusal(&world).await;
    assert!(text.contains("test_decoding"), "{text}");
    world.clean_up().await;
}

#[tokio::test]
async fn another_number_of_lanes() {
    let mut world = world_that_has_run().await;
    world.lanes = Lanes::new(65).unwrap();
    let text = refusal(&world).await;
    assert!(text.contains("64 lanes"), "{text}");
    world.clean_up().await;
}

#[tokio::test]
async fn a_publication_that_is_not_there() {
    let world = World::new().await;
    let mut settings = world.settings();
    settings.publications = vec![PublicationName::new("nobody's").unwrap()];
    let running = world.start_service(world.service(settings, world.sink()));
    let error = in_time(running.task).await.unwrap().unwrap_err();
    assert!(error.chain().contains("`nobody's` does not exist"), "{error:?}");
    world.clean_up().await;
}

#[tokio::test]
async fn a_publication_that_goes_away() {
    let world = world_that_has_run().await;
    let running = world.start();
    world.sql.batch_execute("DROP PUBLICATION tenure; INSERT INTO items VALUES (2, 0, 'b')").await.unwrap();
    let error = in_time(running.task).await.unwrap().unwrap_err();
    assert!(error.chain().contains("publication"), "{error:?}");
    // Nothing was confirmed, so nothing is lost once it is there again... as far as Postgres remembers it:
    // a publication applies from its creation on.
    world.clean_up().await;
}
