//! `--exec`: commands that do well, fail, are not there, hang, or do not listen.

use std::time::Duration;

use rustix::process::Signal;
use tenure_clock::pause_thread;

use super::world::{World, eventually, numbers};

#[test]
fn a_command_gets_every_batch_and_knows_its_shard() {
    let world = World::new(2);
    world.put(0..30);
    let ann =
        world.exec("ann", "", r#"cat >> got; echo "$TENURE_APP $TENURE_STREAM $TENURE_SHARD" >> where"#);
    eventually("all records", || (world.lines("got").len() >= 30).then_some(()));
    ann.stop();
    let mut seen = numbers(&world.lines("got"));
    seen.sort_unstable();
    assert_eq!(seen, (0..30).collect::<Vec<_>>());
    let told = std::fs::read_to_string(world.site.path("where")).unwrap();
    assert!(told.lines().all(|line| line.starts_with("orders main shardId-00000000000")), "{told}");
}

#[test]
fn what_a_command_fails_at_stops_its_shard_and_is_not_skipped() {
    let world = World::new(1);
    world.put(0..5);
    let bad = world.exec("bad", "", "cat >> tried; exit 7");
    bad.wait_for_log("shard stopped");
    assert!(bad.log().contains("exit status: 7"), "{}", bad.log());
    bad.stop();
    assert_eq!(world.leases()["shardId-000000000000"]["checkpoint"], "TRIM_HORIZON");
    let good = world.exec("good", "", "cat >> got");
    eventually("all records", || (world.lines("got").len() >= 5).then_some(()));
    good.stop();
    assert_eq!(world.lines("got").len(), 5);
}

#[test]
fn a_command_that_is_not_there_makes_no_dead_letters() {
    let world = World::new(1);
    world.put(0..5);
    let mut command = world.site.command("consume --app orders --on-failure dead_letter --exec ./nowhere");
    command.env("TENURE__CONSUMER__ATTEMPTS", "2");
    let bad = world.start("bad", command);
    bad.wait_for_log("shard stopped");
    assert!(bad.log().contains("could not be run (status 127): correct --exec"), "{}", bad.log());
    bad.stop();
    assert_eq!(world.site.json("dlq list")[0]["dead_letters"], 0);
}

#[test]
fn a_command_need_not_read() {
    let world = World::new(1);
    // Far more than fits in a pipe.
    let line = format!("{}\n", "x".repeat(4000));
    world.site.run_on("stream put --key a --lines", line.repeat(200).as_bytes()).expect(0);
    let deaf = world.exec("deaf", "--checkpoint-interval 100ms", "echo done >> done");
    eventually("a checkpoint at the end", || {
        let leases = world.leases();
        let at = leases.get("shardId-000000000000")?["checkpoint"].as_str()?.parse::<u64>().ok();
        (at >= Some(200)).then_some(())
    });
    deaf.stop();
}

#[test]
fn a_command_that_hangs_is_killed_when_the_worker_is_told_twice() {
    let world = World::new(1);
    world.put(0..5);
    let mut stuck = world.exec("stuck", "", "echo $$ > pid; cat > begun; exec sleep 7777");
    eventually("it has begun", || (world.lines("begun").len() == 5).then_some(()));
    stuck.signal(Signal::TERM);
    stuck.wait_for_log("asked to let go");
    // A person's second signal comes later than a copy of the first.
    pause_thread(Duration::from_millis(500));
    stuck.signal(Signal::TERM);
    assert_eq!(stuck.status(), 130, "{}", stuck.log());
    let pid = std::fs::read_to_string(world.site.path("pid")).unwrap();
    eventually("the command is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        // Its number may be another's by then, or nobody has asked how it ended.
        (!stat.contains("(sleep)") || stat.contains(") Z ")).then_some(())
    });
    assert_eq!(world.leases()["shardId-000000000000"]["checkpoint"], "TRIM_HORIZON");
}
