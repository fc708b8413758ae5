//! What cannot be known for sure: who serves, what landed, whose clock is right, where a pod fits.

use std::time::Duration;

use tenure_autoscaler::observation::PodOwner;
use tenure_autoscaler::placement::{Placement, Test};
use tenure_autoscaler::testing::{Gate, Measuring, Mode, World, at_once};
use tenure_autoscaler::{Executor, Readiness, Tick};
use tenure_backend::Kind;

use crate::stories::{check, one_worker, policy, three_idle_workers};

fn tick(executor: &mut Executor) -> Tick {
    at_once(executor.tick()).unwrap().unwrap()
}

fn titles(tick: &Tick) -> String {
    tick.writes.iter().map(|name| name.row().title).collect::<Vec<_>>().join(", ")
}

// === what may not be ended ===

#[test]
fn an_instance_that_may_not_be_ended_is_not_even_cordoned() {
    check(
        three_idle_workers(),
        "
        0s     deny end i-worker1 until 9999s
        0s     a ticks -> migrate, begin down, cordon, roll back, drain, rolled back, terminate, mark done, fail down, windows
        0s     free worker-1
        0s     there i-worker1
        0s     ended i-worker2
        0s     idle
        ",
    );
}

/// Without pods there is nothing else to ask before the cordon.
#[test]
fn nor_is_an_empty_one_that_may_not_be_ended() {
    let world = World::new(policy());
    world.add_control_plane();
    (1..=3).for_each(|number| drop(world.add_worker(number)));
    world.measure(Measuring::Fresh, 5);
    check(
        world,
        "
        0s     deny end i-worker1 until 9999s
        0s     a ticks -> migrate, begin down, cordon, roll back, drain, rolled back, terminate, mark done, fail down, windows
        0s     free worker-1
        0s     there i-worker1
        0s     ended i-worker2
        0s     idle
        ",
    );
}

/// There is no way back from TERMINATING, and its machine registers again under another name and takes a pod.
#[test]
fn what_filled_up_while_it_could_not_be_ended_is_emptied_again() {
    let world = three_idle_workers();
    check(
        world.clone(),
        "
        0s     deny terminate i-worker1 until 300s
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done
        10s    rename worker-1 other
        ",
    );
    world.add_pod_on("other", PodOwner::Controller);
    check(
        world.clone(),
        "
        60s    b ticks -> take over, renew
        60s    cordoned other
        60s    there i-worker1
        300s   b ticks -> renew, mark done, complete down
        300s   ended i-worker1
        ",
    );
    assert_eq!(world.violations(), []);
}

#[test]
fn a_launch_that_failed_and_may_not_be_ended_blocks_nothing() {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    world.never_joins(0);
    check(
        world,
        "
        0s     pods 1
        0s     pods 1
        0s     pods 1
        0s     a ticks -> migrate, begin up, record
        600s   deny terminate i-new0 until 9999s
        600s   a ticks -> abort, reap, reaped, fail up, windows
        600s   there i-new0
        600s   idle
        9999s  a ticks -> begin up, record
        10060s a ticks -> join, complete up, windows
        10060s ended i-new0
        ",
    );
}

// === whose it is ===

#[test]
fn an_instance_of_another_cluster_is_neither_counted_nor_ended() {
    let world = three_idle_workers();
    world.give_to("other", &"i-worker2".into());
    check(
        world,
        "
        0s     a ticks -> migrate, windows
        600s   a ticks
        600s   because node worker-2 and 0 others are Ready and belong to no instance
        600s   live 4
        ",
    );
}

#[test]
fn a_node_that_joined_is_freed_of_its_taint_though_its_action_is_gone() {
    let world = one_worker();
    world.add_pods(3);
    tick(&mut world.executor("a", &Gate::open()));
    world.advance(Duration::from_secs(60));
    let tainted = || world.nodes().into_values().filter(|node| node.startup_taint).map(|node| node.name);
    let new = tainted().next().unwrap();
    world.deny("untaint", &new, world.epoch() + 100);
    tick(&mut world.executor("b", &Gate::open()));
    assert_eq!(tainted().next(), Some(new), "it joined, and is committed");
    world.lose_item();
    world.remove_pods();
    world.advance(Duration::from_secs(120));
    tick(&mut world.executor("c", &Gate::open()));
    assert_eq!(tainted().next(), None);
    assert_eq!(world.violations(), []);
}

// === what landed ===

#[test]
fn a_refused_launch_is_looked_up_before_it_is_believed() {
    let world = one_worker();
    world.add_pods(3);
    let gate = Gate::open();
    let mut executor = world.executor("a", &gate);
    // The first launch has its effect, and its answer is lost.
    let launches_at = {
        let trial = one_worker();
        trial.add_pods(3);
        let counted = Gate::open();
        tick(&mut trial.executor("a", &counted));
        counted.calls().iter().position(|call| *call == "launch").unwrap()
    };
    gate.arm(u32::try_from(launches_at).unwrap(), Mode::ReplyLost);
    assert_eq!(tick(&mut executor).failures.len(), 1);
    assert_eq!(world.launches(), 1);
    world.refuse_launches(Some((Kind::Denied, "injected: the right was taken away")));
    let after = tick(&mut executor);
    assert_eq!(titles(&after), "record", "{after:?}");
    let failures = after.failures.join("; ");
    assert!(failures.starts_with("launch an instance for slot 0 (attempt 0): injected"), "{failures}");
    assert_eq!(after.failures.len(), 1, "told once: {failures}");
    assert_eq!(world.launches(), 1);
    world.advance(Duration::from_secs(60));
    assert_eq!(titles(&tick(&mut executor)), "join, complete up");
    assert_eq!(world.final_violations(), []);
}

#[test]
fn want_of_capacity_is_not_believed_while_an_earlier_call_may_still_land() {
    let world = one_worker();
    world.add_pods(3);
    world.lose_launches(1);
    let mut executor = world.executor("a", &Gate::open());
    assert_eq!(titles(&tick(&mut executor)), "migrate, begin up");
    world.shortage("subnet-a", true);
    let after = tick(&mut executor);
    assert_eq!(titles(&after), "", "it would be sent to subnet-b: {after:?}");
    assert!(after.failures[0].contains("may still land"), "{after:?}");
    assert_eq!(world.launches(), 0);
    // It lands, with its token.
    world.shortage("subnet-a", false);
    assert_eq!(titles(&tick(&mut executor)), "record");
    assert_eq!(world.launches(), 1);
}

// === who serves ===

#[test]
fn a_launch_of_ours_whose_node_may_be_a_stranger_is_not_ended() {
    let world = one_worker();
    world.add_pods(3);
    let mut executor = world.executor("a", &Gate::open());
    tick(&mut executor);
    // The user data of its template registers neither the label nor the taint.
    world.advance(Duration::from_secs(60));
    let node = world.nodes().keys().find(|name| name.contains("i-new0")).unwrap().clone();
    world.lose_match(&node);
    world.serve(&node);
    world.advance(Duration::from_secs(600));
    let after = tick(&mut executor);
    assert_eq!(titles(&after), "abort, keep, fail up", "{after:?}");
    assert!(world.live().contains(&"i-new0".into()));
    assert_eq!(world.violations(), []);
}

#[test]
fn an_orphan_whose_node_may_be_a_stranger_is_not_collected() {
    let world = one_worker();
    world.add_pods(3);
    let mut executor = world.executor("a", &Gate::open());
    tick(&mut executor);
    world.advance(Duration::from_secs(60));
    let node = world.nodes().keys().find(|name| name.contains("i-new0")).unwrap().clone();
    world.lose_match(&node);
    world.serve(&node);
    // Nobody remembers the action: what it launched is not committed.
    world.lose_item();
    for _ in 0..5 {
        world.advance(Duration::from_secs(120));
        tick(&mut executor);
    }
    assert!(tick(&mut executor).reasons.join("; ").contains("may be its: it is not collected"));
    assert!(world.live().contains(&"i-new0".into()));
    assert_eq!(world.violations(), []);
}

#[test]
fn of_a_node_that_the_metrics_do_not_know_nothing_is_believed() {
    let mut policy = policy();
    policy.readiness = Readiness::Prometheus;
    let world = World::new(policy);
    world.add_control_plane();
    world.add_worker(1);
    world.hide_load_of("node-i-new0");
    check(
        world,
        "
        0s     pods 3
        0s     a ticks         -> migrate, begin up, record
        60s    a ticks
        60s    because the metrics do not know which nodes are ready
        600s   a ticks         -> join, complete up
        600s   there i-new0
        ",
    );
}

// === whose clock is right ===

#[test]
fn a_clock_that_is_a_few_minutes_ahead_begins_nothing() {
    for ahead_s in [70, 180] {
        let world = three_idle_workers();
        let mut ahead = world.skewed_executor("ahead", ahead_s * 1000);
        let after = tick(&mut ahead);
        let reasons = after.reasons.join("; ");
        assert!(reasons.contains(&format!("this clock is {ahead_s} s ahead")), "{reasons}");
        assert_eq!(after.state.action(), None);
        world.add_pods(10);
        assert_eq!(tick(&mut ahead).state.action(), None);
    }
}

// === where a pod fits ===

fn wants(label: &str, value: &str) -> Placement {
    let test = (label.to_owned(), Test::In(vec![value.to_owned()]));
    Placement { terms: vec![vec![vec![test]]], ..Placement::default() }
}

#[test]
fn a_node_whose_pods_no_other_may_take_stays() {
    let unclear = Placement { unclear: Some("it must be spread".to_owned()), ..Placement::default() };
    for unclear in [None, Some(unclear)] {
        let world = three_idle_workers();
        for node in ["worker-1", "worker-2", "worker-3"] {
            world.label(node, "disk", node);
            let placement = unclear.clone().unwrap_or_else(|| wants("disk", node));
            world.place_pods(|pod| pod.node.as_deref() == Some(node), &placement);
        }
        let after = tick(&mut world.executor("a", &Gate::open()));
        let reasons = after.reasons.join("; ");
        assert_eq!(after.state.action(), None, "{after:?}");
        assert!(reasons.contains("node worker-1 idles, but its pod default/"), "{reasons}");
    }
    let world = three_idle_workers();
    for node in ["worker-1", "worker-2", "worker-3"] {
        world.label(node, "disk", "ssd");
    }
    world.place_pods(|_| true, &wants("disk", "ssd"));
    assert!(tick(&mut world.executor("a", &Gate::open())).writes.len() > 2, "here each may take them");
}

#[test]
fn no_worker_is_added_for_pods_that_none_could_take() {
    let world = one_worker();
    world.add_pods(6);
    world.place_pods(|pod| pod.node.is_none(), &wants("gpu", "a100"));
    let mut executor = world.executor("a", &Gate::open());
    let after = tick(&mut executor);
    assert_eq!(after.state.action(), None);
    assert!(after.reasons.join("; ").contains("pods ask for a node unlike every worker"), "{after:?}");
    world.label("worker-1", "gpu", "a100");
    assert!(tick(&mut executor).state.action().is_some(), "one like worker-1 could");
}

// === how far consumers are behind ===

#[test]
fn consumers_that_are_behind_get_a_worker_and_keep_those_they_have() {
    let mut policy = policy();
    policy.lag_max = Some(Duration::from_secs(60));
    let world = World::new(policy.clone());
    world.add_control_plane();
    world.add_worker(1);
    check(
        world,
        "
        0s     behind 61
        0s     a ticks         -> migrate, begin up, record
        60s    a ticks         -> join, complete up, windows
        60s    because the consumers are 61 s behind
        ",
    );
    for behind in ["unknown", "31"] {
        let world = three_idle_workers_with(policy.clone());
        check(
            world,
            &format!(
                "
                0s     behind {behind}
                0s     a ticks         -> migrate, windows
                0s     because nothing is taken away
                1s     behind 30
                1s     a ticks -> begin down, cordon, drain, terminate, mark done, mark done, complete down
                "
            ),
        );
    }
}

fn three_idle_workers_with(policy: tenure_autoscaler::Policy) -> World {
    let world = crate::stories::idle_workers(policy);
    world.measure(Measuring::Fresh, 5);
    world
}

#[test]
fn a_failure_says_what_the_cloud_said() {
    let world = one_worker();
    world.add_pods(4);
    world.refuse_launches(Some((Kind::Denied, "ec2:RunInstances is not granted")));
    tick(&mut world.executor("a", &Gate::open()));
    let failure = world.state().last_failure.unwrap_or_default();
    assert!(failure.starts_with("0 of 1 instances joined: "), "{failure}");
    assert!(failure.contains("ec2:RunInstances is not granted"), "{failure}");
}

#[test]
fn whoever_may_not_ask_about_an_end_gives_the_node_back_at_once() {
    let world = three_idle_workers();
    world.deny("ask", "i-worker1", world.epoch() + 3600);
    world.deny("ask", "i-worker2", world.epoch() + 3600);
    world.deny("ask", "i-worker3", world.epoch() + 3600);
    let mut one = world.executor("a", &Gate::open());
    let told = titles(&tick(&mut one));
    assert!(told.contains("roll back, rolled back, fail down"), "{told}");
    assert_eq!(world.state().action_id(), None, "nobody waits for a quarter of an hour");
    assert!(world.nodes().values().all(|node| !node.unschedulable));
}

#[test]
fn a_worker_of_unknown_load_counts_as_full() {
    let mut policy = policy();
    policy.busy_percent = 50;
    let world = three_idle_workers_with(policy);
    // Two idle, and of the third nobody knows: without one of the two, the other two may be busy.
    world.hide_load_of("worker-3");
    let told = tick(&mut world.executor("a", &Gate::open()));
    assert_eq!(titles(&told), "migrate, windows", "{told:?}");
    assert!(told.reasons.iter().any(|why| why.contains("without it the others")), "{told:?}");
}

#[test]
fn what_nobody_brings_back_is_not_forced() {
    let mut policy = policy();
    policy.force_after = Some(Duration::from_secs(60));
    let world = three_idle_workers_with(policy);
    world.budget_lies();
    let mut one = world.executor("a", &Gate::open());
    // The drain has begun; then a pod that nobody brings back is bound to the node, before the force.
    tick(&mut one);
    let target =
        || world.state().down_nodes.and_then(|nodes| nodes.into_values().next()).map(|node| node.node);
    let Some(node) = target() else { panic!("{:?}", world.state()) };
    assert!(world.nodes()[&node].unschedulable, "it drains");
    world.add_pod_on(&node, PodOwner::Nobody);
    for _ in 0..40 {
        tick(&mut one);
        if world.state().action_id().is_none() {
            break;
        }
        world.advance(Duration::from_secs(30));
    }
    assert!(world.nodes().contains_key(&node), "the node is given back, and its pod with it");
    assert!(world.pods_on(&node) >= 1);
}
