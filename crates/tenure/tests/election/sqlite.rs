//! On a file that the processes share.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tenure_clock::{Clock, SystemClock};

use super::candidate::is_alive;
use super::stories;
use super::world::{LONG, SHARD, SHORT, World};
use crate::site::eventually;

const STORE: &str = "sqlite:./tenure.db";

fn world() -> World {
    World::new(STORE)
}

#[test]
fn a_killed_leader_takes_its_command_along() {
    stories::a_killed_leader_takes_its_command_along(&world());
}

#[test]
fn a_stopped_leader_does_not_act_when_it_goes_on() {
    stories::a_stopped_leader_does_not_act_when_it_goes_on(&world());
}

#[test]
fn what_runs_after_a_pause_of_everything_is_fenced() {
    stories::what_runs_after_a_pause_of_everything_is_fenced(&world(), STORE);
}

#[test]
fn clocks_an_hour_apart_keep_one_leader() {
    stories::clocks_an_hour_apart_keep_one_leader(&world());
}

#[test]
fn a_row_that_is_deleted_makes_no_second_leader() {
    stories::a_row_that_is_deleted_makes_no_second_leader(&world());
}

#[test]
fn a_store_that_goes_and_comes_back() {
    let world = world();
    let file = world.path("tenure.db");
    let mut lock = None;
    let holder = std::cell::RefCell::new(&mut lock);
    // Whoever holds the write lock keeps all others out.
    let down = || {
        let connection = rusqlite::Connection::open(&file).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        **holder.borrow_mut() = Some(connection);
    };
    stories::a_store_that_goes_and_comes_back(&world, down, || drop(holder.borrow_mut().take()));
}

#[test]
fn sigterm_hands_over_at_once() {
    stories::sigterm_hands_over_at_once(&world());
}

#[test]
fn resign_hands_over_to_whom_it_says() {
    stories::resign_hands_over_to_whom_it_says(&world());
}

#[test]
fn one_owner_id_is_for_one_process() {
    stories::one_owner_id_is_for_one_process(&world());
}

#[test]
fn leaders_are_listed() {
    stories::leaders_are_listed(&world());
}

// === what does not depend on the store ===

#[test]
fn the_command_ends_by_itself() {
    let world = world();
    let run = |script: &str| world.stand_with("ann", LONG, script).status();
    assert_eq!(run("exit 7"), 7);
    // Released: the next one need not wait for a lease.
    assert_eq!(run("kill -INT $$"), 128 + 2);
    let expected = format!(
        "echo $TENURE_EPOCH $TENURE_SHARD/$TENURE_TABLE/${{TENURE_OWNER%-*}} > seen; test {SHARD} = $TENURE_SHARD"
    );
    assert_eq!(run(&expected), 0);
    let seen = std::fs::read_to_string(world.path("seen")).unwrap();
    assert!(seen.starts_with("3 work/election-") && seen.trim_end().ends_with("/ann"), "{seen}");
}

#[test]
fn nothing_that_a_command_started_outlives_it() {
    let world = world();
    // One in its group, one that left it.
    let script = "sleep 60 & echo $! >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 60' & sleep 0.3; ";
    let pids = || -> Vec<Pid> {
        let text = std::fs::read_to_string(world.path("pids")).unwrap();
        text.lines().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
    };
    let mut ann = world.stand_with("ann", LONG, &format!("{script} exit 0"));
    assert_eq!(ann.status(), 0);
    assert_eq!(pids().len(), 2);
    assert!(!pids().into_iter().any(is_alive));

    std::fs::remove_file(world.path("pids")).unwrap();
    let ann = world.stand_with("ann", LONG, &format!("{script} echo 2 begun >> ledger; wait"));
    eventually("the command runs", || (!world.ledger().is_empty()).then_some(()));
    ann.signal(Signal::KILL);
    eventually("all are gone", || (!pids().into_iter().any(is_alive)).then_some(()));
}

#[test]
fn a_killed_guard_takes_the_command_along() {
    let world = world();
    let mut ann = world.stand("ann", LONG);
    world.wait_for_epoch(1);
    let command = ann.command();
    rustix::process::kill_process(ann.guard(), Signal::KILL).unwrap();
    assert_eq!(ann.status(), 128 + 9);
    assert!(!is_alive(command));
    assert_eq!(world.leader().unwrap()["state"], "released");
}

#[test]
fn a_command_that_does_not_listen_is_killed_after_its_grace() {
    let world = world();
    let deaf = "trap '' TERM; echo 1 begun >> ledger; while :; do sleep 0.1; done";
    let mut ann = world.stand_with("ann", "--lease 60s --renew 15s --stop-grace 500ms", deaf);
    eventually("the command runs", || (!world.ledger().is_empty()).then_some(()));
    ann.signal(Signal::TERM);
    assert_eq!(ann.status(), 128 + 9);
    assert_eq!(world.leader().unwrap()["state"], "released");

    // A second signal does not wait for a long grace.
    std::fs::remove_file(world.path("ledger")).unwrap();
    let mut bob = world.stand_with("bob", "--lease 60s --renew 15s --stop-grace 40s", deaf);
    eventually("the command runs", || (!world.ledger().is_empty()).then_some(()));
    let command = bob.command();
    bob.signal(Signal::TERM);
    bob.wait_for_log("ending the command");
    // What follows at once is taken for a copy, as `timeout` sends one.
    tenure_clock::pause_thread(Duration::from_millis(500));
    bob.signal(Signal::TERM);
    let begun = SystemClock.monotonic();
    bob.status();
    eventually("the command is gone", || (!is_alive(command)).then_some(()));
    assert!(SystemClock.monotonic().since(begun) < Duration::from_secs(10));
}

#[test]
fn once_means_one_term() {
    let world = world();
    let mut ann = world.stand("ann", &format!("{SHORT} --once"));
    world.wait_for_epoch(1);
    world.run(&format!("resign {SHARD}")).expect(0);
    assert_eq!(ann.status(), 1);
    assert!(ann.log().contains("--once"), "{}", ann.log());
}

#[test]
fn a_follower_ends_when_asked() {
    let world = world();
    let ann = world.stand("ann", LONG);
    world.wait_for_epoch(1);
    let mut bob = world.stand("bob", LONG);
    bob.wait_for_log("standing for election");
    bob.signal(Signal::INT);
    assert_eq!(bob.status(), 128 + 2);
    assert_eq!(world.leader().unwrap()["name"], "ann");
    drop(ann);
}

#[test]
fn changes_of_leaders_are_watched() {
    let world = world();
    let ann = world.stand("ann", LONG);
    world.wait_for_epoch(1);
    let out = std::fs::File::create(world.path("out")).unwrap();
    let line = format!("leaders --watch --interval 50ms --json {}", world.place());
    let mut watch = world.site.command(&line).stdout(out).spawn().unwrap();
    let seen = |event: &str, state: &str| {
        let text = std::fs::read_to_string(world.path("out")).unwrap();
        let (event, state) = (format!("\"event\":\"{event}\""), format!("\"state\":\"{state}\""));
        text.lines().any(|line| line.contains(&event) && line.contains(&state)).then_some(())
    };
    eventually("who leads at the beginning", || seen("present", "led"));
    ann.signal(Signal::TERM);
    eventually("a release", || seen("changed", "released"));
    let bob = world.stand("bob", LONG);
    eventually("a new leader", || seen("changed", "led"));
    rustix::process::kill_process(Pid::from_child(&watch), Signal::TERM).unwrap();
    let status = eventually("it ends", || watch.try_wait().unwrap());
    assert!(status.success());
    drop(bob);
}

#[test]
fn a_leader_that_was_asked_and_does_not_answer() {
    let world = world();
    let mut ann = world.stand("ann", LONG);
    world.wait_for_epoch(1);
    world.pause(|| ann.signal(Signal::STOP), || ann.signal(Signal::CONT));
    world.run(&format!("resign {SHARD} --wait 500ms")).expect(1).says(&[
        "ann (owner ann-",
        "has not handed over in 500ms",
        "the request stays",
    ]);
    assert_eq!(world.leader().unwrap()["resign_asked"], true);
    ann.signal(Signal::CONT);
    ann.signal(Signal::TERM);
    assert_eq!(ann.status(), 128 + 15);
}
