//! Pausing, resuming and seeking a shard from another process.

use super::world::{World, eventually, numbers};

const LEASE: &str = "shardId-000000000000";

#[test]
fn a_shard_is_paused_whoever_has_it_and_resumed() {
    let world = World::new(1);
    world.put(0..5);
    let ann = world.worker("ann", "");
    eventually("the first", || (ann.printed().len() >= 5).then_some(()));
    let said = world.site.json(&format!("leases pause {LEASE} --app orders"));
    assert_eq!(said[0]["outcome"], "paused");
    assert_eq!(world.leases()[LEASE]["paused"], true);
    assert!(world.site.ok("leases list --app orders").contains("(paused)"));
    ann.stop();
    // Its next worker does not begin it at all.
    world.put(5..10);
    let bob = world.worker("bob", "");
    bob.wait_for_log("reading");
    eventually("bob has it", || (world.shares().get("bob") == Some(&1)).then_some(()));
    tenure_clock::pause_thread(std::time::Duration::from_secs(1));
    assert_eq!(bob.printed().len(), 0);
    assert!(world.site.ok(&format!("leases resume {LEASE} --app orders")).contains("bob, if it is a worker"));
    eventually("the rest", || (bob.printed().len() >= 5).then_some(()));
    bob.stop();
    assert_eq!(numbers(&world.lines("bob.out")).len(), 5);
    assert_eq!(world.leases()[LEASE]["paused"], false);
}

#[test]
fn a_shard_is_read_from_elsewhere() {
    let world = World::new(1);
    world.put(0..5);
    let ann = world.worker("ann", "");
    eventually("the first", || (ann.printed().len() >= 5).then_some(()));
    assert_eq!(
        world.site.json(&format!("leases seek {LEASE} trim-horizon --app orders"))[0]["outcome"],
        "asked"
    );
    eventually("all of it again", || (ann.printed().len() >= 10).then_some(()));
    // Once, although the row is looked at again.
    tenure_clock::pause_thread(std::time::Duration::from_secs(5));
    ann.stop();
    let seen = numbers(&world.lines("ann.out"));
    assert_eq!((seen.len(), &seen[..5]), (10, &seen[5..]));
}

#[test]
fn what_cannot_be_operated_is_told() {
    let world = World::new(1);
    for line in
        ["leases pause X --app orders", "leases move X ann --app orders", "leases release X --app orders"]
    {
        world.run(line).expect(2).says(&["has no leases yet", "tenure consume --app orders"]);
    }
    assert!(world.site.ok("leases list --app orders").contains("there are no leases yet"));
    assert_eq!(world.site.json("leases list --app orders")[0]["leases"], 0);
    assert!(world.site.ok("leases plan --app orders").contains("nothing to do"));
    let ann = world.worker("ann", "");
    eventually("its share", || (world.shares().get("ann") == Some(&1)).then_some(()));
    ann.stop();
    world
        .run("leases pause X --app orders")
        .expect(2)
        .says(&["no lease `X`", "tenure leases list --app orders"]);
    world
        .run(&format!("leases seek {LEASE} yesterday --app orders"))
        .expect(2)
        .says(&["trim-horizon", "sequence"]);
    assert!(world.site.ok(&format!("leases pause {LEASE} --app orders")).contains("nobody has it"));
}
