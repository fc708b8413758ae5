//! Who gets which records.

use std::collections::BTreeMap;

use rustix::process::Signal;

use super::world::{World, eventually, numbers};

#[test]
fn two_workers_share_the_shards_and_planned_moves_repeat_nothing() {
    let world = World::new(4);
    world.put(0..40);
    let ann = world.worker("ann", "");
    eventually("the first records", || (ann.printed().len() >= 40).then_some(()));
    assert_eq!(world.shares(), BTreeMap::from([("ann".to_owned(), 4)]));

    let bob = world.worker("bob", "");
    eventually("both have their share", || {
        (world.shares() == BTreeMap::from([("ann".to_owned(), 2), ("bob".to_owned(), 2)])).then_some(())
    });
    assert_eq!(world.site.json("leases plan --app orders")[0]["moves"].as_array().unwrap().len(), 0);
    world.put(40..80);
    eventually("more records", || (ann.printed().len() + bob.printed().len() >= 80).then_some(()));

    ann.stop();
    eventually("bob has all", || (world.shares() == BTreeMap::from([("bob".to_owned(), 4)])).then_some(()));
    world.put(80..120);
    let of_ann = world.lines("ann.out");
    eventually("the last records", || (of_ann.len() + bob.printed().len() >= 120).then_some(()));
    bob.stop();
    assert_eq!(world.shares(), BTreeMap::from([("nobody".to_owned(), 4)]));

    let mut all = numbers(&[world.lines("ann.out"), world.lines("bob.out")].concat());
    all.sort_unstable();
    assert_eq!(all, (0..120).collect::<Vec<_>>());
    for file in ["ann.out", "bob.out"] {
        for key in 0..5 {
            let of_key: Vec<_> =
                numbers(&world.lines(file)).into_iter().filter(|number| number % 5 == key).collect();
            assert!(of_key.is_sorted(), "{file}: {of_key:?}");
        }
    }
}

#[test]
fn a_lease_is_moved_by_hand() {
    let world = World::new(2);
    let ann = world.worker("ann", "");
    let bob = world.worker("bob", "");
    eventually("each has one", || {
        (world.shares() == BTreeMap::from([("ann".to_owned(), 1), ("bob".to_owned(), 1)])).then_some(())
    });
    let owner = |lease: &str| world.leases()[lease]["owner"].as_str().unwrap_or_default().to_owned();
    let lease = "shardId-000000000000";
    let to = if owner(lease) == "ann" { "bob" } else { "ann" };
    let said = world.site.json(&format!("leases move {lease} {to} --app orders"));
    assert_eq!((&said[0]["lease"], &said[0]["outcome"]), (&lease.into(), &"asked".into()));
    // The planner puts the counts right again in time; it may have begun already.
    eventually("it moved", || (world.leases()[lease]["owner_switches"].as_u64() >= Some(1)).then_some(()));
    world.run("leases move shardId-9 ann --app orders").expect(2).says(&["shardId-9"]);
    world.run(&format!("leases move {lease} carl --app orders")).expect(2).says(&["no worker `carl`"]);
    world.run("leases release shardId-9 --app orders").expect(2).says(&["shardId-9"]);
    ann.stop();
    bob.stop();
    assert_eq!(world.site.json(&format!("leases release {lease} --app orders"))[0]["outcome"], "already");
}

#[test]
fn a_worker_is_stopped_while_it_starts() {
    let world = World::new(1);
    let mut ann = world.worker("ann", "--lease 5m");
    eventually("its share", || (world.shares().get("ann") == Some(&1)).then_some(()));
    ann.signal(Signal::KILL);
    ann.status();
    // Whoever has the name now watches for a whole lease whether the first one lives.
    let again = world.start("again", world.site.command("consume --app orders --worker ann --lease 5m"));
    again.wait_for_log("worker starts");
    again.stop();
    assert_eq!(world.shares().get("ann"), Some(&1));
}

#[test]
fn a_worker_begins_where_it_is_told_and_goes_on_where_it_was() {
    let world = World::new(1);
    world.put(0..5);
    let late = world.worker("late", "--from latest");
    late.wait_for_log("reading");
    // What "latest" is, is known once it has read there: something that comes later is the first.
    let mut next = 5;
    eventually("something new", || {
        world.put(next..next + 1);
        next += 1;
        (!late.printed().is_empty()).then_some(())
    });
    eventually("all that is new", || numbers(&late.printed()).contains(&(next - 1)).then_some(()));
    late.stop();
    let seen = numbers(&world.lines("late.out"));
    assert_eq!(seen, (seen[0]..next).collect::<Vec<_>>());
    assert!(seen[0] >= 5, "{seen:?}");
    world.put(next..next + 5);
    // There is a checkpoint by now: it counts, and not --from.
    let again = world.worker("again", "--from trim-horizon");
    eventually("the rest", || (again.printed().len() >= 5).then_some(()));
    again.stop();
    let mut seen = numbers(&world.lines("again.out"));
    seen.sort_unstable();
    assert_eq!(seen, (next..next + 5).collect::<Vec<_>>());
}

#[test]
fn workers_agree_on_how_many_each_may_hold() {
    let world = World::new(4);
    let told = world.site.ok("workers --app orders");
    assert!(told.contains("there is no table of workers yet"), "{told}");
    let told = world.site.ok("capacity explain --app orders");
    assert!(told.contains("any number of leases"), "{told}");
    let ann = world.worker("ann", "--dynamic-max-leases --worker-count 2");
    eventually("its share", || (world.shares().get("ann") == Some(&2)).then_some(()));
    let rows = world.site.json("workers --app orders");
    assert_eq!(
        (&rows[0]["worker_id"], &rows[0]["max_leases_per_worker"], &rows[1]["worker_id"]),
        (&"orders_coordinator".into(), &2.into(), &"ann".into())
    );
    // Also without the flag: what was agreed on is there to see.
    let told = world.site.json("capacity explain --app orders").remove(0);
    assert_eq!((&told["cap"], &told["shards"], &told["workers"]), (&2.into(), &4.into(), &2.into()));
    assert!(world.site.ok("workers --app other").contains("no rows of application `other`"));
    eventually("how far it is behind", || {
        (world.site.json("workers --app orders")[1]["behind_ms"] == 0).then_some(())
    });
    ann.stop();
}

#[test]
fn a_signal_and_its_copy_are_one() {
    let world = World::new(1);
    world.put(0..5);
    let mut ann = world.worker("ann", "");
    eventually("the records", || (ann.printed().len() >= 5).then_some(()));
    // As `timeout` does, which signals the process and then its group.
    ann.signal(Signal::TERM);
    ann.signal(Signal::INT);
    assert_eq!(ann.status(), 0, "{}", ann.log());
    assert_eq!(world.shares(), BTreeMap::from([("nobody".to_owned(), 1)]));
}
