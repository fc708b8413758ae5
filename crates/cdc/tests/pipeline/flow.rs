//! What is committed arrives, in order, once in effect.

use super::world::{World, by_id, id_of, until};

#[tokio::test]
async fn every_change_arrives_with_its_identity() {
    let world = World::new().await;
    let running = world.start();
    for id in 0..100 {
        world.sql.execute("INSERT INTO items VALUES ($1, 0, 'new')", &[&(id as i64)]).await.unwrap();
    }
    world.sql.batch_execute("UPDATE items SET version = 1; DELETE FROM items WHERE id < 10").await.unwrap();
    let events = world.events_when(210).await;
    assert_eq!(events.len(), 210, "nothing twice");
    assert_eq!(by_id(&events).len(), 210);
    let of_seven: Vec<_> = events.iter().filter(|event| event["key"]["id"] == 7).collect();
    assert_eq!(
        of_seven.iter().map(|event| event["op"].as_str().unwrap()).collect::<Vec<_>>(),
        ["insert", "update", "delete"]
    );
    assert!(of_seven.is_sorted_by_key(|event| id_of(event)));
    running.end().await.unwrap();
    world.clean_up().await;
}

#[tokio::test]
async fn a_planned_handover_publishes_nothing_twice() {
    let world = World::new().await;
    let mut expected = 0;
    for round in 0..5i64 {
        let running = world.start();
        for id in 0..50 {
            let key = round * 50 + id;
            world.sql.execute("INSERT INTO items VALUES ($1, 0, 'new')", &[&key]).await.unwrap();
        }
        expected += 50;
        if round % 2 == 0 {
            world.events_when(expected).await;
        }
        running.end().await.unwrap();
    }
    let running = world.start();
    let events = world.events_when(expected).await;
    running.end().await.unwrap();
    assert_eq!(world.events().await.len(), expected, "{}", events.len());
    world.clean_up().await;
}

#[tokio::test]
async fn after_a_crash_what_comes_again_has_the_same_identity() {
    let world = World::new().await;
    let first = world.start();
    for id in 0..200 {
        world.sql.execute("INSERT INTO items VALUES ($1, 0, 'new')", &[&(id as i64)]).await.unwrap();
        if id == 150 {
            world.events_when(100).await;
        }
    }
    first.crash().await;
    let second = world.start();
    let events = world.events_when(200).await;
    let distinct = by_id(&events);
    assert_eq!(distinct.len(), 200);
    for copies in distinct.values() {
        assert!(
            copies.iter().all(|copy| copy["after"] == copies[0]["after"] && copy["key"] == copies[0]["key"])
        );
    }
    second.end().await.unwrap();
    world.clean_up().await;
}

#[tokio::test]
async fn a_standby_takes_over() {
    let world = World::new().await;
    let (first, second) = (world.start(), world.start());
    let leads = |running: &super::world::Running| running.service.progress().snapshot().role == "leader";
    let (leader, standby) = until("one leads", || async {
        match (leads(&first), leads(&second)) {
            (true, false) => Some((0, 1)),
            (false, true) => Some((1, 0)),
            _ => None,
        }
    })
    .await;
    let mut both = [Some(first), Some(second)];
    world.sql.batch_execute("INSERT INTO items VALUES (1, 0, 'a')").await.unwrap();
    world.events_when(1).await;
    both[leader].take().unwrap().crash().await;
    world.sql.batch_execute("INSERT INTO items VALUES (2, 0, 'a')").await.unwrap();
    world.events_when(2).await;
    let standby = both[standby].take().unwrap();
    assert!(leads(&standby));
    standby.end().await.unwrap();
    world.clean_up().await;
}
