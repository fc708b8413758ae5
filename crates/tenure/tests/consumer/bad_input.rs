//! What is wrong is told before anything is read.

use super::world::{World, eventually};
use crate::site::Site;

#[test]
fn bad_settings_name_the_setting() {
    let world = World::new(1);
    for (line, parts) in [
        ("--lease 0s", ["--lease", "consumer.lease"]),
        ("--lease soon", ["--lease", "is not a duration"]),
        ("--max-leases 0", ["--max-leases", "not a number above zero"]),
        ("--max-leases-limit none", ["--max-leases-limit", "not a number above zero"]),
        ("--dynamic-max-leases --worker-count 0", ["--worker-count", "heartbeats"]),
        (
            "--dynamic-max-leases --worker-count kubernetes:job/x",
            ["--worker-count", "kubernetes:deployment/NAME"],
        ),
        ("--from yesterday", ["--from", "trim-horizon"]),
        ("--on-failure ignore", ["--on-failure", "dead_letter"]),
        ("--checkpoint-interval 1ms", ["--checkpoint-interval", "10ms"]),
        ("--worker orders_coordinator", ["orders_coordinator", "choose one that does not end with"]),
    ] {
        world.run(&format!("consume --app orders {line}")).expect(2).says(&parts);
    }
    for app in ["x", "a/b", "tenure_coordination", "tenure_dead_letters"] {
        world.run(&format!("consume --app {app}")).expect(2).says(&["--app", "consumer.app"]);
        world.run(&format!("leases list --app {app}")).expect(2).says(&["--app", "consumer.app"]);
    }
    let mut command = world.site.command("consume --app orders --dynamic-max-leases");
    command.env("WORKER_COUNT", "three");
    crate::site::ran(command).expect(2).says(&["WORKER_COUNT is `three`"]);
    // Nothing of this has made a table.
    assert!(world.site.ok("leases list --app orders").contains("there are no leases yet"));
}

#[test]
fn a_stream_that_is_not_there_is_told() {
    let site = Site::new();
    site.run("consume --app orders").expect(2).says(&["no stream `main`", "tenure stream create"]);
    site.ok("stream create");
    site.run("consume --app orders --stream sqlite:./tenure.db?name=other")
        .expect(2)
        .says(&["no stream `other`"]);
}

#[test]
fn two_workers_may_not_have_one_name() {
    let world = World::new(1);
    let ann = world.worker("ann", "");
    eventually("its share", || (world.shares().get("ann") == Some(&1)).then_some(()));
    let second = world.run("consume --app orders --worker ann --log error").expect(2);
    assert!(second.stderr.contains("is called `ann`: give each worker its own name"), "{second:?}");
    assert_eq!(world.shares().get("ann"), Some(&1));
    ann.stop();
}

#[test]
fn workers_with_another_lease_are_refused() {
    let world = World::new(1);
    let ann = world.worker("ann", "");
    eventually("its share", || (world.shares().get("ann") == Some(&1)).then_some(()));
    let second = world.run("consume --app orders --worker bob --lease 20s").expect(2);
    assert!(second.stderr.contains("last 10s"), "{second:?}");
    ann.stop();
}

#[cfg(not(feature = "kubernetes"))]
#[test]
fn a_build_without_kubernetes_says_so() {
    let world = World::new(1);
    world
        .run("consume --app orders --dynamic-max-leases --worker-count kubernetes:deployment/orders")
        .expect(2)
        .says(&["--features kubernetes", "heartbeats"]);
}
