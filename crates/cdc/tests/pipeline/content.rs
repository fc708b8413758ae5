//! Unusual content: large, streamed, emptied, changed in shape, and none at all.

use std::time::Duration;

use tenure_cdc::server;
use tenure_cdc::settings::PipelineSettings;
use tenure_stream::identity::{Lanes, Lsn};

use super::world::{World, by_id, id_of, soon, until};

#[tokio::test]
async fn what_is_too_large_is_parked_and_a_pointer_takes_its_place() {
    let world = World::new().await;
    let running = world.start();
    world
        .sql
        .batch_execute(
            "INSERT INTO items VALUES (1, 0, 'small');
             UPDATE items SET note = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 60000) i);
             UPDATE items SET note = 'small again', version = 2",
        )
        .await
        .unwrap();
    let events = world.events_when(3).await;
    assert_eq!(events.len(), 3);
    assert!(events.is_sorted_by_key(|event| id_of(event)), "in its place");
    let manifests = world.quarantine().list(soon(), 10).await.unwrap();
    assert_eq!(manifests.len(), 1);
    assert_eq!(manifests[0].id, id_of(&events[1]));
    let content = world.quarantine().content(soon(), &manifests[0]).await.unwrap();
    let whole: serde_json::Value = serde_json::from_slice(&content).unwrap();
    assert_eq!(whole["after"]["note"].as_str().unwrap().len(), 32 * 60_000);
    running.end().await.unwrap();
    world.clean_up().await;
}

/// The same identity whether a transaction comes in one piece or in chunks, and rolled back parts are not
/// published.
#[tokio::test]
async fn a_large_transaction_is_spilled_and_published_at_its_commit() {
    let world = World::new().await;
    let sql = format!("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'", world.database);
    world.sql.batch_execute(&sql).await.unwrap();
    let settings = PipelineSettings { streaming: true, ..world.settings() };
    let running = world.start_service(world.service(settings, world.sink()));
    let rows = 20_000;
    world
        .sql
        .batch_execute(&format!(
            "BEGIN;
             INSERT INTO items SELECT i, 0, repeat('x', 100) FROM generate_series(1, {rows}) i;
             SAVEPOINT a;
             INSERT INTO items SELECT i, 1, repeat('y', 100) FROM generate_series(100001, 105000) i;
             ROLLBACK TO a;
             INSERT INTO items VALUES (200000, 2, 'last');"
        ))
        .await
        .unwrap();
    // It waits on disk for its commit.
    until("something is spilled", || async {
        (running.service.progress().snapshot().spilled_bytes > 0).then_some(())
    })
    .await;
    assert!(world.events().await.is_empty());
    world.sql.batch_execute("COMMIT").await.unwrap();
    let events = world.events_when(rows + 1).await;
    assert_eq!(events.len(), rows + 1);
    assert!(events.iter().all(|event| event["after"]["version"] != 1));
    let commits: Vec<Lsn> = by_id(&events).keys().map(|id| id.commit).collect();
    assert!(commits.iter().all(|commit| *commit == commits[0]));
    until("nothing is left on disk", || async {
        (running.service.progress().snapshot().spilled_bytes == 0).then_some(())
    })
    .await;
    running.end().await.unwrap();
    world.clean_up().await;
}

#[tokio::test]
async fn a_truncate_comes_after_what_was_before_and_before_what_is_after() {
    let world = World::new().await;
    let running = world.start();
    world
        .sql
        .batch_execute(
            "INSERT INTO items SELECT i, 0, 'a' FROM generate_series(1, 50) i;
             TRUNCATE items;
             INSERT INTO items SELECT i, 1, 'b' FROM generate_series(1, 50) i",
        )
        .await
        .unwrap();
    let events = world.events_when(50 + 64 + 50).await;
    for lane in 0..64 {
        let on_lane: Vec<_> = events.iter().filter(|event| event["tenure"]["lane"] == lane).collect();
        let truncate = on_lane.iter().position(|event| event["op"] == "truncate").expect("one on each lane");
        assert!(on_lane[..truncate].iter().all(|event| event["after"]["version"] == 0));
        assert!(on_lane[truncate + 1..].iter().all(|event| event["after"]["version"] == 1));
    }
    running.end().await.unwrap();
    world.clean_up().await;
}

#[tokio::test]
async fn a_change_of_shape_is_told_before_the_first_row_that_has_it() {
    let world = World::new().await;
    let running = world.start();
    world
        .sql
        .batch_execute(
            "INSERT INTO items VALUES (1, 0, 'a');
             ALTER TABLE items ADD COLUMN more int;
             INSERT INTO items VALUES (2, 0, 'b', 7)",
        )
        .await
        .unwrap();
    let events = world.events_when(2 + 64).await;
    let lane = events.iter().find(|event| event["key"]["id"] == 2).unwrap()["tenure"]["lane"].clone();
    let on_lane: Vec<_> = events.iter().filter(|event| event["tenure"]["lane"] == lane).collect();
    let ops: Vec<_> = on_lane.iter().map(|event| event["op"].as_str().unwrap()).collect();
    assert_eq!(ops[ops.len() - 2..], ["schema", "insert"]);
    assert_eq!(on_lane.last().unwrap()["after"]["more"], 7);
    running.end().await.unwrap();
    world.clean_up().await;
}

/// Whoever leads when it happens.
#[tokio::test]
async fn a_change_of_shape_between_two_leaders_is_told_once() {
    let world = World::new().await;
    let schemas = |events: &[std::sync::Arc<serde_json::Value>]| {
        events.iter().filter(|event| event["op"] == "schema").map(|event| id_of(event)).collect::<Vec<_>>()
    };
    let first = world.start();
    world.sql.batch_execute("INSERT INTO items VALUES (1, 0, 'a')").await.unwrap();
    let events = world.events_when(1).await;
    let commit = id_of(&events[0]).commit.0;
    until("the checkpoint has passed it", || async {
        (first.service.progress().snapshot().acknowledged > commit).then_some(())
    })
    .await;
    first.crash().await;
    world
        .sql
        .batch_execute(
            "ALTER TABLE items ADD COLUMN more int; INSERT INTO items VALUES (2, 0, 'b', 7);
             CREATE TABLE others (id int PRIMARY KEY); INSERT INTO others VALUES (1)",
        )
        .await
        .unwrap();
    let second = world.start();
    let events = world.events_when(3 + 64).await;
    let told = schemas(&events);
    assert_eq!(told.len(), 64, "once on each lane, and nothing of the new table");
    let row = events.iter().find(|event| event["key"]["id"] == 2).unwrap();
    assert!(told.iter().all(|id| *id < id_of(row)), "before the first row that has it");
    // Wherever the second is when it ends, the third tells nothing new.
    second.crash().await;
    world.sql.batch_execute("INSERT INTO items VALUES (3, 0, 'c', 8)").await.unwrap();
    let third = world.start();
    world.events_when(4 + 64).await;
    third.end().await.unwrap();
    world.sql.batch_execute("INSERT INTO items VALUES (4, 0, 'd', 9)").await.unwrap();
    let fourth = world.start();
    let events = world.events_when(5 + 64).await;
    let mut again = schemas(&events);
    again.sort_unstable();
    again.dedup();
    assert_eq!(again.len(), 64, "every copy has the identity of the first");
    fourth.end().await.unwrap();
    world.clean_up().await;
}

/// A quiet database on a busy server does not keep the server's log.
#[tokio::test]
async fn an_idle_slot_advances_while_another_database_writes() {
    let world = World::new().await;
    let other = World::new().await;
    let mut settings = world.settings();
    settings.idle_checkpoint_interval = Duration::from_millis(200);
    let running = world.start_service(world.service(settings, world.sink()));
    let confirmed = || async {
        server::slot(&mut other.session().await, soon(), &world.slot).await.unwrap().unwrap().confirmed_flush
    };
    let before = confirmed().await;
    other
        .sql
        .batch_execute("INSERT INTO items SELECT i, 0, 'x' FROM generate_series(1, 1000) i")
        .await
        .unwrap();
    let target = server::current_wal(&mut other.session().await, soon()).await.unwrap();
    until("the slot has passed what the other database wrote", || async {
        (confirmed().await >= Some(target)).then_some(())
    })
    .await;
    assert!(before < Some(target));
    assert!(world.events().await.is_empty());
    running.end().await.unwrap();
    other.clean_up().await;
    world.clean_up().await;
}

/// A database that does not know the encoding of its texts.
#[tokio::test]
async fn a_text_that_is_not_utf8_is_quarantined_and_the_rest_goes_on() {
    let world = World::with_encoding("SQL_ASCII").await;
    let running = world.start();
    world
        .sql
        .batch_execute(
            "SET client_encoding = 'SQL_ASCII';
             INSERT INTO items VALUES (1, 0, 'plain');
             INSERT INTO items VALUES (2, 0, E'\\xff\\xfe');
             INSERT INTO items VALUES (3, 0, 'plain')",
        )
        .await
        .unwrap();
    let events = world.events_when(3).await;
    assert_eq!(by_id(&events).len(), 3);
    let manifests = world.quarantine().list(soon(), 10).await.unwrap();
    assert!(manifests[0].reason.as_ref().unwrap().contains("UTF-8"), "{manifests:?}");
    let content = world.quarantine().content(soon(), &manifests[0]).await.unwrap();
    let raw: serde_json::Value = serde_json::from_slice(&content).unwrap();
    assert_eq!(raw["raw_after"][2]["text"], "//4=");
    running.end().await.unwrap();
    world.clean_up().await;
}

/// What `pg_logical_emit_message` writes, in a transaction and outside of one.
#[tokio::test]
async fn messages_are_published_if_asked_for() {
    let world = World::new().await;
    let mut settings = world.settings();
    settings.messages = true;
    let running = world.start_service(world.service(settings, world.sink()));
    world
        .sql
        .batch_execute(
            "BEGIN;
             INSERT INTO items VALUES (1, 0, 'a');
             SELECT pg_logical_emit_message(true, 'audit', 'within');
             COMMIT;
             SELECT pg_logical_emit_message(false, 'audit', 'by itself');
             INSERT INTO items VALUES (2, 0, 'b')",
        )
        .await
        .unwrap();
    let events = world.events_when(4).await;
    let ordered: Vec<_> = by_id(&events).into_values().map(|copies| copies[0]["op"].clone()).collect();
    assert_eq!(ordered, ["insert", "message", "message", "insert"]);
    running.end().await.unwrap();
    world.clean_up().await;
}

/// A message outside of transactions comes before the transaction around it, and so does its position: else
/// readers would take the transaction for something that they have seen.
#[tokio::test]
async fn a_message_right_before_a_commit_stands_before_it() {
    let mut world = World::new().await;
    world.lanes = Lanes::new(1).unwrap();
    let mut settings = world.settings();
    settings.messages = true;
    let running = world.start_service(world.service(settings, world.sink()));
    world
        .sql
        .batch_execute(
            "BEGIN; INSERT INTO items VALUES (1, 0, 'a'); SELECT pg_logical_emit_message(false, 'p', 'c'); COMMIT",
        )
        .await
        .unwrap();
    let events = world.events_when(2).await;
    let ops: Vec<_> = events.iter().map(|event| event["op"].as_str().unwrap()).collect();
    assert_eq!(ops, ["message", "insert"]);
    assert!(id_of(&events[0]) < id_of(&events[1]), "{events:?}");
    running.end().await.unwrap();
    world.clean_up().await;
}
