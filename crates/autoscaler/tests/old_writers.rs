//! Old writers before, beside and over ours: what they launched, locked, marked and left.

use std::time::Duration;

use tenure_autoscaler::change::{Change, Stamp};
use tenure_autoscaler::observation::{PodOwner, tags};
use tenure_autoscaler::rows::decode;
use tenure_autoscaler::state::{Action, Legacy};
use tenure_autoscaler::table::write;
use tenure_autoscaler::testing::{Gate, Measuring, World, at_once};
use tenure_autoscaler::{Now, step};
use tenure_store::{Item, Value, Write};

use crate::seed_items::item;
use crate::stories::{check, one_worker, policy, three_idle_workers};

fn ids<'a>(ids: impl IntoIterator<Item = &'a str>) -> Value {
    Value::L(ids.into_iter().map(Into::into).collect())
}

/// An old writer's scale-up of these instances, begun so many seconds ago.
fn old_up(world: &World, ago: i64, requested: i64, instances: &[&str]) {
    world.put_item(
        Item::new()
            .with("pk", "cluster")
            .with("scalingInProgress", true)
            .with("lastScaleEpoch", 1_700_000_000)
            .with("scaleUpActionId", "1730000300-req-xyz")
            .with("scaleUpStartedEpoch", world.epoch() - ago)
            .with("scaleUpRequested", requested)
            .with("scaleUpInstanceIds", ids(instances.iter().copied())),
    );
}

#[test]
fn what_an_old_writer_launched_and_serves_is_kept_and_tagged() {
    let world = one_worker();
    world.add_untagged_worker(2);
    world.add_untagged_worker(3);
    world.add_pod_on("worker-3", PodOwner::Controller);
    world.add_untagged_instance("i-lame");
    old_up(&world, 1000, 3, &["i-worker2", "i-worker3", "i-lame"]);
    check(
        world.clone(),
        "
        0s     unready worker-3
        0s     a ticks         -> migrate, adopt up, join
        599s   a ticks         -> renew
        600s   a ticks         -> abort, keep, reap, reaped, fail up
        600s   there i-worker2
        600s   there i-worker3
        600s   ended i-lame
        ",
    );
    let tag = |id: &str, name: &str| world.instance(&id.into()).unwrap().tag(name).map(str::to_owned);
    assert_eq!(tag("i-worker2", tags::CLUSTER).as_deref(), Some("demo"));
    assert_eq!(tag("i-worker3", tags::COMMITTED).as_deref(), Some("1730000300-req-xyz"));
    assert_eq!(
        world.state().last_failure.unwrap(),
        "1 of 3 instances joined, 1 may be serving and were left alone"
    );
}

#[test]
fn an_instance_is_not_ended_while_a_node_that_nobody_knows_may_be_its() {
    let world = one_worker();
    world.add_untagged_worker(2);
    world.add_pod_on("worker-2", PodOwner::Controller);
    world.lose_match("worker-2");
    old_up(&world, 1000, 1, &["i-worker2"]);
    check(
        world,
        "
        0s     a ticks         -> migrate, adopt up
        600s   a ticks         -> abort, keep, fail up
        600s   there i-worker2
        ",
    );
}

#[test]
fn an_instance_that_may_not_be_tagged_keeps_nothing_open() {
    let world = one_worker();
    world.add_untagged_worker(2);
    world.deny("tag", "i-worker2", i64::MAX);
    old_up(&world, 1000, 1, &["i-worker2"]);
    check(
        world,
        "
        0s     a ticks         -> migrate, adopt up, join, complete up
        0s     failed 2
        ",
    );
}

#[test]
fn an_old_writers_instance_that_may_not_be_ended_keeps_nothing_open() {
    let world = one_worker();
    world.add_untagged_instance("i-lame");
    world.deny("terminate", "i-lame", i64::MAX);
    old_up(&world, 1000, 1, &["i-lame"]);
    check(
        world.clone(),
        "
        0s     a ticks         -> migrate, adopt up
        600s   a ticks         -> abort, reap, reaped, fail up, windows
        600s   there i-lame
        600s   idle
        ",
    );
    let failure = world.state().last_failure.unwrap();
    assert_eq!(failure, "0 of 1 instances joined, i-lame may not be ended: end it by hand");
}

#[test]
fn a_scale_down_of_nothing_is_no_success() {
    let world = one_worker();
    world.put_item(
        Item::new()
            .with("pk", "cluster")
            .with("scalingInProgress", true)
            .with("lastScaleEpoch", 1_700_000_000)
            .with("scaleDownActionId", "sd-1730000300-req-xyz")
            .with("scaleDownStartedEpoch", world.epoch() - 1000),
    );
    check(
        world.clone(),
        "
        0s     a ticks         -> migrate, adopt down, fail down
        0s     failures 1
        ",
    );
    assert_eq!(world.state().last_scale_epoch, Some(1_700_000_000));
}

#[test]
fn a_target_that_an_old_writer_marked_is_done() {
    check(
        three_idle_workers(),
        "
        0s     deny terminate i-worker1 until 99999s
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done
        10s    kill i-worker1
        10s    old marks i-worker1
        20s    a ticks         -> note done, complete down
        20s    idle
        ",
    );
}

#[test]
fn what_an_old_writer_marked_is_not_drained_by_us_and_given_back_if_it_stays() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 100s
        0s     a ticks         -> migrate, begin down
        10s    old marks i-worker1
        100s   a ticks -> renew, cordon, drain, terminate, mark done
        100s   because instance i-worker1 is marked as done by an old writer, and still there
        100s   free worker-1
        900s   a ticks         -> roll back, rolled back, fail down, windows
        900s   there i-worker1
        ",
    );
}

#[test]
fn an_old_writer_that_resumes_our_scale_down_leaves_nothing_behind() {
    let world = three_idle_workers();
    check(
        world.clone(),
        "
        0s     budget blocks until 50s
        0s     a ticks         -> migrate, begin down
        60s    old resumes
        60s    live 2
        60s    idle
        70s    a ticks         -> windows
        ",
    );
    // It completed the action, and its time is the cooldown's.
    world.add_pods(4);
    check(
        world,
        "
        100s   a ticks         -> windows
        100s   because cooling down
        300s   a ticks         -> begin up, record, record
        ",
    );
}

#[test]
fn a_lock_that_an_old_writer_took_is_waited_for() {
    let world = one_worker();
    world.never_joins(0);
    check(
        world,
        "
        0s     pods 4
        0s     a ticks         -> migrate, begin up, record
        700s   old locks
        701s   a ticks
        701s   because an old writer, holds the lock
        710s   b ticks
        820s   b ticks
        826s   b ticks         -> take over, abort, reap, reaped, fail up, windows
        ",
    );
}

#[test]
fn a_theft_of_a_scale_down_is_judged_by_what_the_thief_wrote() {
    let now = 1_730_002_000;
    let stamp =
        |epoch: i64| Stamp { owner: "me".into(), now_ms: epoch * 1000, lease_ms: 45_000, skew_ms: 5000 };
    let ours = Change::BeginDown {
        action: "sd-ours".into(),
        nodes: [("i-aaa".into(), ("worker-a".to_owned(), "uid-a".to_owned()))].into(),
        deadline: now - 500,
    };
    let idle =
        decode(&item(r#"{"pk":"cluster","schemaVersion":2,"rev":1,"fence":0,"actionSeq":0}"#)).unwrap();
    // Begun long ago; the old writer stole it a moment ago.
    let mut stolen = tenure_autoscaler::rows::encode(&ours.apply(&idle, &stamp(now - 1400)).unwrap());
    stolen.set("lockOwner", "old");
    stolen.set("lockUntilEpoch", now + 120);
    stolen.set("scaleUpActionId", "1730002000-old");
    stolen.set("scaleUpStartedEpoch", now);
    let state = decode(&stolen).unwrap();
    assert_eq!(state.action(), Some(Action::Legacy(Legacy::Up(&"1730002000-old".into()))));
    let adopts = |epoch: i64| {
        let moment = Now { ms: epoch * 1000, owner: "me".into(), lease_left_ms: 0 };
        let decided = !step(&state, &Default::default(), &policy(), &moment).effects.is_empty();
        let change = Change::AdoptUp { deadline: epoch + 600 };
        let Write::Update { when, .. } = write("t", &state, &change, &stamp(epoch)).unwrap() else {
            panic!()
        };
        assert_eq!(decided, when.holds(&stolen), "the step and the write agree at {epoch}");
        decided
    };
    assert!(!adopts(now + 10), "the thief is at work");
    assert!(!adopts(now + 125), "by the skew");
    assert!(adopts(now + 126));
    // The second document's writer takes no lock; ours, which is past, is not its own.
    stolen.set("lockUntilEpoch", decode(&stolen).unwrap().own_lock().unwrap());
    let state = decode(&stolen).unwrap();
    let moment = |epoch: i64| Now { ms: epoch * 1000, owner: "me".into(), lease_left_ms: 0 };
    assert_eq!(step(&state, &Default::default(), &policy(), &moment(now + 800)).effects, []);
    assert_eq!(step(&state, &Default::default(), &policy(), &moment(now + 901)).effects.len(), 1);
}

#[test]
fn workers_without_our_tags_are_counted() {
    let world = World::new(policy());
    world.add_control_plane();
    for number in 1..=3 {
        world.add_untagged_worker(number);
    }
    world.add_pods(10);
    check(
        world,
        "
        0s     a ticks         -> migrate, windows
        0s     because 3 workers are the most allowed
        0s     live 4
        ",
    );
}

#[test]
fn workers_without_our_tags_are_taken_away_when_they_idle() {
    let world = World::new(policy());
    world.add_control_plane();
    for number in 1..=3 {
        world.add_untagged_worker(number);
    }
    world.measure(Measuring::Fresh, 5);
    check(
        world,
        "
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done, mark done, complete down
        0s     live 2
        ",
    );
}

#[test]
fn nothing_begins_while_a_ready_node_belongs_to_no_instance() {
    let world = three_idle_workers();
    world.add_pods(10);
    check(
        world,
        "
        0s     unmatch worker-1
        0s     a ticks         -> migrate, windows
        0s     because nothing begins until then
        0s     load 5
        60s    a ticks
        60s    live 4
        ",
    );
}

#[test]
fn what_an_old_writer_completed_cools_down() {
    let world = one_worker();
    let last = world.epoch() - 100;
    world.put_item(item(r#"{"pk":"cluster","scalingInProgress":false}"#).with("lastScaleEpoch", last));
    check(
        world,
        "
        0s     pods 4
        0s     a ticks         -> migrate, windows
        0s     because cooling down for 200 s more
        199s   a ticks
        200s   a ticks         -> begin up, record
        ",
    );
}

#[test]
fn more_ids_than_our_own_bound_are_adopted() {
    let world = one_worker();
    let many: Vec<String> = (0..60).map(|number| format!("i-old{number}")).collect();
    let names: Vec<&str> = many.iter().map(String::as_str).chain(["i-old0"]).collect();
    for id in &many {
        world.add_untagged_instance(id);
    }
    old_up(&world, 1000, 60, &names);
    let mut executor = world.executor("a", &Gate::open());
    at_once(executor.tick()).unwrap().unwrap();
    assert_eq!(world.state().up_slots.unwrap().len(), 60, "each once");
    world.advance(Duration::from_secs(600));
    at_once(executor.tick()).unwrap().unwrap();
    assert_eq!(world.state().action(), None);
    assert_eq!(world.live().len(), 2);

    let world = one_worker();
    let names = vec!["i-x"; 1001];
    old_up(&world, 1000, 1, &names);
    check(
        world,
        "
        0s     a ticks         -> migrate
        0s     because shorten its list by hand
        ",
    );
}

#[test]
fn what_an_old_writer_records_after_it_was_adopted_is_admitted() {
    let world = one_worker();
    world.add_untagged_worker(2);
    old_up(&world, 100, 1, &[]);
    let lock = world.epoch() - 10;
    world.put_item(world.item().with("lockOwner", "old").with("lockUntilEpoch", lock));
    let mut executor = world.executor("a", &Gate::open());
    let tick = at_once(executor.tick()).unwrap().unwrap();
    assert_eq!(tick.reasons, ["an old writer may still record what it launched"]);
    // As `recordScaleUpInstances` does, if the action id is the same.
    world.put_item(world.item().with("scaleUpInstanceIds", ids(["i-worker2"])));
    check(
        world,
        "
        60s    b ticks         -> take over, admit, join, complete up
        60s    idle
        ",
    );
}

#[test]
fn an_adopted_scale_up_without_instances_fails_once_nothing_can_be_recorded_any_more() {
    let world = one_worker();
    old_up(&world, 100, 2, &[]);
    let lock = world.epoch() - 10;
    world.put_item(world.item().with("lockOwner", "old").with("lockUntilEpoch", lock));
    check(
        world,
        "
        0s     a ticks         -> migrate, adopt up
        799s   b ticks         -> take over
        800s   b ticks         -> fail up
        ",
    );
}
