//! What would be a silent gap stops the pipeline, and goes on only if somebody says so.

use super::world::World;

#[test]
fn a_slot_that_is_gone_or_made_anew_stops_the_pipeline() {
    let world = World::set_up();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.run("cdc run --until-lsn now").expect(0);
    world.run("cdc setup --accept-gap").expect(0);
    assert_eq!(world.status()["checkpoint"]["era"], 1, "nothing was missing");

    let slot = &world.database;
    let drop_slot = format!("SELECT pg_catalog.pg_drop_replication_slot('{slot}')");
    world.sql(&drop_slot);
    world.sql("INSERT INTO public.items VALUES (2, 'lost')");
    for line in ["cdc run --log error", "cdc setup"] {
        world.run(line).expect(2).says(&["the slot is gone", "tenure cdc setup --accept-gap"]);
    }
    assert!(world.slots().is_empty(), "nobody makes it anew in silence");
    let said = world.site.ok("cdc setup --accept-gap");
    assert!(said.contains("era 2 begins at") && said.contains("cannot be delivered"), "{said}");
    world.sql("INSERT INTO public.items VALUES (3, 'b')");
    world.run("cdc run --until-lsn now").expect(0);
    let events = world.events();
    let found: Vec<_> = events
        .iter()
        .map(|event| {
            let id = event["tenure"]["id"].as_str().unwrap();
            (event["key"]["id"].as_u64().unwrap(), id.split(':').next().unwrap().to_owned())
        })
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    assert_eq!(found, [(1, "1".to_owned()), (3, "2".to_owned())]);

    // Made anew by hand, it is ahead of the checkpoint.
    world.sql(&drop_slot);
    world.sql("INSERT INTO public.items VALUES (4, 'lost')");
    world.sql(&format!("SELECT pg_catalog.pg_create_logical_replication_slot('{slot}', 'pgoutput')"));
    world.run("cdc run --log error").expect(2).says(&["beyond our checkpoint", "--accept-gap"]);
    let said = world.site.ok("cdc setup --accept-gap");
    assert!(said.contains("era 3 begins at"), "{said}");
    world.run("cdc run --until-lsn now").expect(0);
}

#[test]
fn another_number_of_lanes_or_another_slot_needs_a_new_era() {
    let world = World::set_up();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.run("cdc run --log error --lanes 8").expect(2).says(&[
        "1024 lanes",
        "--lanes 1024",
        "--accept-gap",
    ]);
    let said = world.site.ok("cdc setup --lanes 8 --accept-gap");
    assert!(said.contains("era 2") && said.contains("nothing is missing"), "{said}");
    world.run("cdc run --lanes 8 --until-lsn now").expect(0);
    assert_eq!(world.events().len(), 1);
    let other = format!("{}_2", world.database);
    world
        .run(&format!("cdc run --log error --lanes 8 --slot {other}"))
        .expect(2)
        .says(&["the pipeline reads from slot"]);
    let said = world.site.ok(&format!("cdc setup --lanes 8 --slot {other} --accept-gap"));
    assert!(said.contains("era 3") && said.contains("while it is there"), "{said}");
}
