//! Short timelines of one cluster.
//!
//! ```text
//!   0s    a ticks        -> migrate, begin up, record, record
//!   45s   a ticks        -> join
//! ```
//!
//! A line is a moment, what happens then, and the writes that were made. Executors are called `a`, `b` and
//! `c`. The world understands `pods 6` (of half a worker each), `kill i-new0`, `vanish worker-2`,
//! `budget blocks until 300s`, `short subnet-a`, `capacity subnet-a`, `interrupt i-worker1`, `load 5`,
//! `pause`, `resume`, `cordon worker-2`, `purge i-new0`, `deny terminate i-worker1 until 300s` (or `end`: asked
//! beforehand, the cloud says so), `behind 90`, `behind unknown`,
//! `unmatch worker-1`, `rename worker-1 other`, `unready worker-1`, `lose item`, `old locks` (or `resumes`,
//! `steals`), `old marks i-worker1`, and is asked `live 3`, `waiting 0`, `idle`, `cordoned worker-2`,
//! `free worker-2`, `failures 1`, `there i-worker1`, `ended i-worker1`. `failed 1` asks how many calls of the
//! last tick failed, `because text` for a reason of it.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure_autoscaler::log::Event;
use tenure_autoscaler::observation::PodOwner;
use tenure_autoscaler::rows::LOGS_TABLE;
use tenure_autoscaler::state::{Interrupt, InterruptKind, Place};
use tenure_autoscaler::testing::{Gate, Measuring, OldWriter, World, at_once};
use tenure_autoscaler::{Executor, Policy, Readiness, Tick};
use tenure_clock::Monotonic;
use tenure_store::{Query, StoreExt, Value};

/// One to three workers, two subnets, no windows: what happens, happens at once.
pub(crate) fn policy() -> Policy {
    let place = |subnet: &str| Place {
        subnet: subnet.to_owned(),
        market: "on-demand".to_owned(),
        template: "7".to_owned(),
    };
    let mut policy = Policy::new("demo", 1, 3, vec![place("subnet-a"), place("subnet-b")]);
    policy.pending_window = Duration::ZERO;
    policy.idle_window = Duration::ZERO;
    policy
}

/// Three workers that idle, each with a pod that may move, and the control plane.
pub(crate) fn three_idle_workers() -> World {
    idle_workers(policy())
}

pub(crate) fn idle_workers(policy: Policy) -> World {
    let world = World::new(policy);
    world.add_control_plane();
    for number in 1..=3 {
        world.add_worker(number);
        world.add_pod_on(&format!("worker-{number}"), PodOwner::Controller);
    }
    world.measure(Measuring::Fresh, 5);
    world
}

pub(crate) fn one_worker() -> World {
    let world = World::new(policy());
    world.add_control_plane();
    world.add_worker(1);
    world
}

#[track_caller]
pub(crate) fn check(world: World, timeline: &str) {
    let began = world.epoch();
    let mut executors: BTreeMap<String, Executor> = BTreeMap::new();
    let mut last: Option<Tick> = None;
    for line in timeline.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (left, told) = line.split_once("->").unwrap_or((line, ""));
        let (at, what) = left.trim().split_once(' ').unwrap_or((left, ""));
        let seconds: i64 =
            at.trim_end_matches('s').parse().unwrap_or_else(|_| panic!("no moment in `{line}`"));
        let ahead = u64::try_from(began + seconds - world.epoch()).expect("time goes forward");
        world.advance(Duration::from_secs(ahead));
        let words: Vec<&str> = what.split_whitespace().collect();
        let node =
            |name: &str| world.nodes().get(name).cloned().unwrap_or_else(|| panic!("no {name}: `{line}`"));
        match words[..] {
            [who, "ticks"] => {
                let executor =
                    executors.entry(who.to_owned()).or_insert_with(|| world.executor(who, &Gate::open()));
                let writes: Vec<&str> = match at_once(executor.tick()).expect("a tick does not wait") {
                    Ok(tick) => {
                        let titles = tick.writes.iter().map(|name| name.row().title).collect();
                        last = Some(tick);
                        titles
                    }
                    Err(error) => panic!("`{line}`: {}", error.chain()),
                };
                assert_eq!(writes.join(", "), told.trim(), "`{line}`");
            }
            ["pods", count] => world.add_pods(count.parse().unwrap()),
            ["kill", id] => world.kill(&id.into()),
            ["vanish", node] => world.vanish(node),
            ["purge", id] => world.purge(&id.into()),
            ["unmatch", node] => world.lose_match(node),
            ["rename", node, name] => world.rename(node, name),
            ["unready", node] => world.set_ready(node, false),
            ["lose", "item"] => world.lose_item(),
            ["deny", call @ ("terminate" | "end"), id, "until", at] => {
                let until: i64 = at.trim_end_matches('s').parse().unwrap();
                world.deny(if call == "end" { "end" } else { "terminate" }, id, began + until);
            }
            ["behind", "unknown"] => world.set_behind(None),
            ["behind", seconds] => world.set_behind(Some(Duration::from_secs(seconds.parse().unwrap()))),
            ["old", "marks", id] => {
                let mut item = world.item();
                let mut done = world.state().down_completed.unwrap_or_default();
                done.push(id.into());
                let list = done.iter().map(|id| id.as_str().into()).collect();
                item.set("scaleDownCompletedInstanceIds", Value::L(list));
                world.put_item(item);
            }
            ["old", how] => {
                let writer = match how {
                    "locks" => OldWriter::Locks,
                    "resumes" => OldWriter::Resumes,
                    "steals" => OldWriter::Steals,
                    _ => panic!("not understood: `{line}`"),
                };
                at_once(world.old_writer(writer).tick()).unwrap().unwrap();
            }
            ["there", id] => assert!(world.live().contains(&id.into()), "`{line}`: {:?}", world.live()),
            ["ended", id] => assert!(!world.live().contains(&id.into()), "`{line}`"),
            ["failed", count] => {
                let failures = last.as_ref().map(|tick| tick.failures.clone()).unwrap_or_default();
                assert_eq!(failures.len().to_string(), count, "`{line}`: {failures:?}");
            }
            ["because", ..] => {
                let wanted = words[1..].join(" ");
                let reasons = last.as_ref().map(|tick| tick.reasons.join("; ")).unwrap_or_default();
                assert!(reasons.contains(&wanted), "`{line}`: {reasons}");
            }
            ["budget", "blocks", "until", at] => {
                let until: i64 = at.trim_end_matches('s').parse().unwrap();
                world.budget_blocks_until(began + until);
            }
            ["short", subnet] => world.shortage(subnet, true),
            ["capacity", subnet] => world.shortage(subnet, false),
            ["interrupt", id] => {
                let interrupt = Interrupt::told(InterruptKind::Spot, world.epoch());
                let executor = world.executor("inbox", &Gate::open());
                at_once(executor.book().interrupt(&id.into(), interrupt)).unwrap().unwrap();
            }
            ["load", percent] => world.measure(Measuring::Fresh, percent.parse().unwrap()),
            ["pause"] => at_once(world.executor("p", &Gate::open()).book().pause(true)).unwrap().unwrap(),
            ["resume"] => at_once(world.executor("p", &Gate::open()).book().pause(false)).unwrap().unwrap(),
            ["cordon", node] => world.cordon_by_hand(node),
            ["live", count] => {
                assert_eq!(world.live().len().to_string(), count, "`{line}`: {:?}", world.live())
            }
            ["waiting", count] => assert_eq!(world.waiting_pods().to_string(), count, "`{line}`"),
            ["idle"] => assert_eq!(world.state().action(), None, "`{line}`"),
            ["cordoned", name] => assert!(node(name).unschedulable, "`{line}`"),
            ["free", name] => assert!(!node(name).unschedulable, "`{line}`"),
            ["failures", count] => {
                assert_eq!(world.state().fail_count.unwrap_or(0).to_string(), count, "`{line}`");
            }
            _ => panic!("not understood: `{line}`"),
        }
    }
    assert_eq!(world.violations(), []);
}

#[test]
fn pods_that_wait_get_workers_in_three_writes_and_one_each() {
    check(
        one_worker(),
        "
        0s     a ticks         -> migrate, windows
        0s     pods 6
        5s     a ticks         -> begin up, record, record
        30s    a ticks
        50s    a ticks         -> join, complete up
        50s    waiting 0
        51s    a ticks
        51s    live 4
        ",
    );
}

#[test]
fn an_idle_tick_reads_once_and_writes_nothing() {
    let world = one_worker();
    let gate = Gate::open();
    let mut executor = world.executor("a", &gate);
    at_once(executor.tick()).unwrap().unwrap();
    let before = gate.calls().len();
    at_once(executor.tick()).unwrap().unwrap();
    assert_eq!(gate.calls()[before..], ["get", "instances", "nodes", "pods", "measures"]);
}

#[test]
fn what_did_not_join_in_time_is_ended_and_the_next_try_waits() {
    let world = one_worker();
    world.never_joins(1);
    check(
        world,
        "
        0s     pods 6
        0s     a ticks         -> migrate, begin up, record, record
        60s    a ticks         -> join
        300s   a ticks
        600s   a ticks         -> abort, reap, reaped, fail up, windows
        600s   failures 1
        600s   live 3
        659s   a ticks
        661s   a ticks         -> begin up, record
        720s   a ticks         -> join, complete up
        720s   failures 0
        ",
    );
}

#[test]
fn another_subnet_is_tried_where_there_is_no_capacity() {
    check(
        one_worker(),
        "
        0s     pods 6
        0s     short subnet-a
        0s     a ticks         -> migrate, begin up, retarget, record, retarget, record
        60s    a ticks         -> join, complete up
        ",
    );
}

#[test]
fn without_any_capacity_the_action_fails_at_once_and_waits_longer_each_time() {
    check(
        one_worker(),
        "
        0s     pods 6
        0s     short subnet-a
        0s     short subnet-b
        0s     a ticks   -> migrate, begin up, retarget, reap, retarget, reap, reaped, fail up, windows
        30s    a ticks
        61s    a ticks   -> begin up, retarget, reap, retarget, reap, reaped, fail up, windows
        100s   failures 2
        122s   a ticks
        182s   a ticks   -> begin up, retarget, reap, retarget, reap, reaped, fail up, windows
        182s   live 2
        ",
    );
}

#[test]
fn another_executor_goes_on_once_the_lease_is_over() {
    check(
        one_worker(),
        "
        0s     pods 6
        0s     a ticks         -> migrate, begin up, record, record
        45s    b ticks
        51s    b ticks         -> take over, join, complete up
        52s    a ticks
        ",
    );
}

#[test]
fn idle_nodes_are_emptied_and_taken_away() {
    check(
        three_idle_workers(),
        "
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done, mark done, complete down
        0s     live 2
        0s     idle
        ",
    );
}

#[test]
fn a_budget_that_blocks_is_waited_for() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 300s
        0s     a ticks         -> migrate, begin down
        60s    a ticks         -> renew
        60s    free worker-1
        299s   a ticks         -> renew
        300s   a ticks -> cordon, drain, terminate, mark done, mark done, complete down
        300s   live 2
        ",
    );
}

#[test]
fn a_budget_that_never_yields_gives_the_nodes_back() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 99999s
        0s     a ticks         -> migrate, begin down
        899s   a ticks         -> renew
        900s   a ticks         -> roll back, rolled back, fail down, windows
        900s   failures 1
        900s   live 4
        900s   free worker-1
        900s   free worker-2
        1000s  a ticks         -> begin down
        ",
    );
}

#[test]
fn a_policy_may_force_what_cannot_be_evicted() {
    let mut policy = policy();
    policy.force_after = Some(Duration::from_secs(600));
    check(
        idle_workers(policy),
        "
        0s     budget blocks until 99999s
        0s     a ticks         -> migrate, begin down
        599s   a ticks         -> renew
        600s   a ticks -> cordon, drain, terminate, mark done, mark done, complete down
        600s   live 2
        ",
    );
}

#[test]
fn an_instance_that_somebody_else_ended_is_done() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 100s
        0s     a ticks         -> migrate, begin down
        10s    kill i-worker1
        20s    a ticks         -> terminate, mark done
        100s   a ticks         -> renew, cordon, drain, terminate, mark done, complete down
        100s   live 2
        ",
    );
}

#[test]
fn an_instance_whose_node_vanished_is_ended_only_once_it_is_sure_to_have_none() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 99999s
        0s     a ticks         -> migrate, begin down
        10s    vanish worker-1
        10s    vanish worker-2
        20s    a ticks
        20s    because pods are still on node worker-2, which is not listed
        100s   a ticks
        100s   because its node worker-2 is not there
        100s   live 4
        900s   a ticks         -> terminate, mark done, mark done, complete down
        900s   live 2
        ",
    );
}

#[test]
fn an_instance_whose_node_may_have_another_name_is_not_ended() {
    let world = three_idle_workers();
    check(
        world.clone(),
        "
        0s     budget blocks until 99999s
        0s     a ticks         -> migrate, begin down
        10s    rename worker-1 other
        10s    unmatch other
        20s    a ticks         -> renew
        20s    because node other belongs to no known instance, and may be its
        900s   a ticks         -> roll back, rolled back, fail down, windows
        900s   there i-worker1
        ",
    );
    assert_eq!(world.pods_on("other"), 1, "it went on serving");
}

#[test]
fn a_node_that_is_renamed_and_still_names_its_instance_is_emptied_under_its_new_name() {
    check(
        three_idle_workers(),
        "
        0s     budget blocks until 300s
        0s     a ticks         -> migrate, begin down
        10s    rename worker-1 other
        300s   a ticks -> renew, cordon, drain, terminate, mark done, mark done, complete down
        300s   ended i-worker1
        ",
    );
}

#[test]
fn a_cordon_is_lifted_though_the_node_lost_its_match() {
    let world = three_idle_workers();
    world.budget_lies();
    check(
        world,
        "
        0s     a ticks         -> migrate, begin down, cordon, drain
        0s     cordoned worker-1
        10s    unmatch worker-1
        20s    a ticks         -> renew
        900s   a ticks         -> roll back, rolled back, fail down, windows
        900s   free worker-1
        900s   free worker-2
        900s   live 4
        ",
    );
}

#[test]
fn a_cordon_whose_action_is_forgotten_is_lifted_though_the_node_has_no_match() {
    let world = three_idle_workers();
    world.budget_lies();
    check(
        world,
        "
        0s     a ticks         -> migrate, begin down, cordon, drain
        10s    unmatch worker-1
        20s    lose item
        30s    b ticks         -> migrate, recount, windows, windows
        30s    free worker-1
        30s    free worker-2
        ",
    );
}

#[test]
fn one_refused_call_keeps_no_other_from_being_made() {
    check(
        three_idle_workers(),
        "
        0s     deny terminate i-worker1 until 300s
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done
        0s     failed 1
        0s     there i-worker1
        0s     ended i-worker2
        100s   a ticks         -> renew
        100s   failed 1
        300s   a ticks         -> renew, mark done, complete down
        300s   failed 0
        300s   live 2
        ",
    );
}

#[test]
fn what_joined_and_was_forgotten_by_the_cloud_ends_nothing_but_its_slot() {
    let world = one_worker();
    world.deny("tag", "i-new0", world.epoch() + 400);
    check(
        world,
        "
        0s     pods 4
        0s     a ticks         -> migrate, begin up, record
        60s    a ticks         -> join
        60s    failed 1
        100s   purge i-new0
        120s   a ticks         -> renew
        300s   a ticks         -> complete up, windows
        300s   idle
        ",
    );
}

#[test]
fn the_number_of_actions_survives_the_item() {
    check(
        one_worker(),
        "
        0s     pods 6
        0s     a ticks         -> migrate, begin up, record, record
        10s    lose item
        20s    b ticks         -> migrate, recount, windows
        20s    live 4
        90s    b ticks         -> begin up, record, record
        90s    ended i-new0
        90s    ended i-new1
        90s    live 4
        ",
    );
}

#[test]
fn the_lock_stays_ahead_of_old_writers_past_the_deadline() {
    let world = three_idle_workers();
    world.deny("terminate", "i-worker1", world.epoch() + 3000);
    let mut executor = world.executor("a", &Gate::open());
    for minute in 0..50 {
        let tick = at_once(executor.tick()).unwrap().unwrap();
        let ahead = tick.state.lock_until_epoch.unwrap() - world.epoch();
        assert!(ahead >= 120, "after {minute} minutes the lock is ahead by {ahead} s");
        world.advance(Duration::from_secs(60));
    }
    assert_eq!(world.violations(), []);
}

#[test]
fn unknown_readiness_reaps_nothing_that_is_ready() {
    for measuring in [Measuring::Failing, Measuring::Empty] {
        let mut policy = policy();
        policy.readiness = Readiness::Prometheus;
        let world = World::new(policy);
        world.add_control_plane();
        world.add_worker(1);
        world.measure(measuring, 60);
        check(
            world,
            "
            0s     pods 6
            0s     a ticks         -> migrate, begin up, record, record
            60s    a ticks
            60s    because the metrics do not know which nodes are ready
            600s   a ticks         -> join, complete up
            600s   live 4
            ",
        );
    }
}

#[test]
fn readiness_by_query_is_believed() {
    let mut policy = policy();
    policy.readiness = Readiness::Prometheus;
    let world = World::new(policy);
    world.add_control_plane();
    world.add_worker(1);
    check(
        world,
        "
        0s     pods 6
        0s     a ticks         -> migrate, begin up, record, record
        60s    a ticks         -> join, complete up
        ",
    );
}

#[test]
fn an_interruption_becomes_an_ordinary_deficit() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_worker(2);
    check(
        world,
        "
        0s     a ticks             -> migrate, windows
        10s    interrupt i-worker1
        20s    a ticks             -> begin up, record
        70s    kill i-worker1
        80s    a ticks             -> join, complete up
        81s    a ticks
        81s    live 2
        ",
    );
}

#[test]
fn an_interruption_is_not_forgotten_by_a_scale_up_that_failed() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_worker(2);
    check(
        world,
        "
        0s     a ticks             -> migrate, windows
        10s    interrupt i-worker1
        10s    short subnet-a
        10s    short subnet-b
        20s    a ticks             -> begin up, retarget, reap, reaped, fail up, windows
        30s    capacity subnet-a
        81s    a ticks             -> begin up, record
        150s   a ticks             -> join, complete up
        500s   a ticks
        ",
    );
}

/// Both are told to go, one of their successors joins: one is still missing, and not two.
#[test]
fn each_interruption_is_answered_by_a_worker_that_joined() {
    let world = World::new(policy());
    world.add_worker(1);
    world.add_worker(2);
    world.never_joins(0);
    check(
        world.clone(),
        "
        0s     a ticks             -> migrate, windows
        10s    interrupt i-worker1
        11s    interrupt i-worker2
        20s    a ticks             -> begin up, record, record
        80s    a ticks             -> join
        620s   a ticks             -> abort, reap, reaped, fail up, windows
        ",
    );
    let left: Vec<_> = world.state().interrupted().map(|(id, _)| id.to_string()).collect();
    assert_eq!(left, ["i-worker2"]);
    check(
        world.clone(),
        "
        690s   a ticks             -> begin up, record
        760s   a ticks             -> join, complete up
        ",
    );
    assert_eq!(world.state().interrupted().count(), 0);
}

#[test]
fn fewer_than_the_minimum_are_made_up_for_at_once() {
    let world = World::new(policy());
    world.add_control_plane();
    check(
        world,
        "
        0s     a ticks         -> migrate, begin up, record
        60s    a ticks         -> join, complete up
        60s    live 2
        ",
    );
}

#[test]
fn nothing_begins_while_it_is_paused_but_what_is_under_way_goes_on() {
    check(
        one_worker(),
        "
        0s     pause
        0s     pods 3
        5s     a ticks         -> windows
        60s    a ticks
        60s    resume
        61s    a ticks         -> begin up, record
        62s    pause
        110s   a ticks         -> join, complete up
        ",
    );
}

#[test]
fn nothing_begins_during_the_cooldown() {
    check(
        one_worker(),
        "
        0s     pods 4
        0s     a ticks         -> migrate, begin up, record
        60s    a ticks         -> join, complete up
        61s    pods 2
        62s    a ticks         -> windows
        359s   a ticks
        360s   a ticks         -> begin up, record
        ",
    );
}

#[test]
fn the_windows_are_waited_out() {
    let mut policy = policy();
    policy.pending_window = Duration::from_secs(30);
    let world = World::new(policy);
    world.add_worker(1);
    check(
        world,
        "
        0s     a ticks         -> migrate, windows
        10s    pods 4
        10s    a ticks         -> windows
        39s    a ticks
        40s    a ticks         -> begin up, record
        ",
    );
}

#[test]
fn a_cordon_of_a_person_stays() {
    check(
        three_idle_workers(),
        "
        0s     cordon worker-1
        0s     a ticks -> migrate, begin down, cordon, drain, terminate, mark done, complete down
        0s     cordoned worker-1
        ",
    );
}

#[test]
fn every_write_has_an_event_with_its_reasons() {
    let world = one_worker();
    world.add_pods(4);
    let mut executor = world.executor("a", &Gate::open());
    at_once(executor.tick()).unwrap().unwrap();
    let query = Query::partition("pk", "cluster");
    let rows = at_once(world.store().query_all(Monotonic::NEVER, LOGS_TABLE, query, 100)).unwrap().unwrap();
    let events: Vec<Event> = rows.iter().map(|row| Event::read(row).unwrap()).collect();
    let told: Vec<_> = events.iter().map(|event| (event.rev, event.event.as_str())).collect();
    assert_eq!(told, [(1, "migrate"), (2, "begin up"), (3, "record")]);
    assert_eq!(events[1].reasons, ["2 pods wait for 1 workers"]);
    assert_eq!(events[1].owner, executor.book().owner());
    assert_eq!(events[1].action, world.state().up_action_id);
}
