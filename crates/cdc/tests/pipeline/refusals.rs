//! Where a pipeline must not begin, or not go on: it says why, and what to do.

use tenure_backend::Kind;
use tenure_cdc::server;
use tenure_cdc::transport::PublicationName;
use tenure_stream::identity::Lanes;

use super::world::{World, in_time, soon};

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
