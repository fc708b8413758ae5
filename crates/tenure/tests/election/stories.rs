//! What must happen, on any store.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tenure_clock::{Clock, SystemClock, pause_thread};

use super::candidate::{Candidate, is_alive};
use super::world::{LONG, SHARD, SHORT, World};
use crate::site::eventually;

pub(super) fn a_killed_leader_takes_its_command_along(world: &World) {
    let ann = world.stand("ann", SHORT);
    let first = world.first_epoch();
    let bob = world.stand("bob", SHORT);
    bob.wait_for_log("standing for election");
    let command = ann.command();
    ann.signal(Signal::KILL);
    eventually("the command is gone", || (!is_alive(command)).then_some(()));
    world.wait_for_epoch(first + 1);
    world.assert_in_order();
    assert_eq!(world.wait_for_leader("bob"), first + 1);
    drop(bob);
}

pub(super) fn a_stopped_leader_does_not_act_when_it_goes_on(world: &World) {
    let ann = world.stand("ann", SHORT);
    let first = world.first_epoch();
    let bob = world.stand("bob", SHORT);
    bob.wait_for_log("standing for election");
    let command = ann.command();
    world.pause(|| ann.signal(Signal::STOP), || ann.signal(Signal::CONT));
    // Its guard ended the command while `ann` could not.
    world.wait_for_epoch(first + 1);
    assert!(!is_alive(command));
    ann.signal(Signal::CONT);
    ann.wait_for_log("expired");
    pause_thread(Duration::from_millis(300));
    world.assert_in_order();
    // It is a candidate like any other.
    bob.signal(Signal::TERM);
    world.wait_for_epoch(first + 2);
    world.assert_in_order();
    assert_eq!(world.wait_for_leader("ann"), first + 2);
}

/// A command that stamps its epoch on a row first, then writes to it only while nobody else has.
const GUARDED: &str = r#"
    put() { "$TENURE_BIN" store put "$GUARDED" --store "$STORE" "{\"name\":\"row\",\"epoch\":$TENURE_EPOCH,\"n\":$1}" "$2" "$3"; }
    epoch() { "$TENURE_BIN" store get "$GUARDED" name=row --plain --store "$STORE" | sed 's/.*"epoch":\([0-9]*\).*/\1/'; }
    put 0 --if epoch=$(epoch)
    n=0
    while :; do
        n=$((n + 1))
        put $n --if epoch=$TENURE_EPOCH > /dev/null
        case $? in
            0) echo "$TENURE_EPOCH applied" >> ledger ;;
            3) echo "$TENURE_EPOCH refused" >> ledger ;;
        esac
        sleep 0.05
    done"#;

pub(super) fn what_runs_after_a_pause_of_everything_is_fenced(world: &World, store: &str) {
    let table = world.table_of_its_own();
    world.site.ok(&format!("store create-table {table} --hash name --store {store}"));
    world.site.ok(&format!("store put {table} --store {store} {{\"name\":\"row\",\"epoch\":0}}"));
    let stand = |name: &str| {
        let options = format!("--owner {name} {SHORT}");
        Candidate::start_in(world, &options, name, GUARDED, &[("STORE", store), ("GUARDED", &table)])
    };
    let count = |epoch, what| {
        world.ledger().iter().filter(|entry| (entry.epoch, &*entry.what) == (epoch, what)).count()
    };
    let ann = stand("ann");
    eventually("the first leader writes", || (count(1, "applied") > 0).then_some(()));
    let (guard, command) = (ann.guard(), ann.command());
    // The machine stands still: all three processes, and what they started.
    let all = |signal: Signal| {
        ann.signal(signal);
        kill_process(guard, signal).unwrap();
        kill_process_group(command, signal).unwrap();
    };
    world.pause(|| all(Signal::STOP), || all(Signal::CONT));
    let bob = stand("bob");
    eventually("the second leader writes", || (count(2, "applied") > 0).then_some(()));
    // The worst order to wake in: the command first.
    kill_process_group(command, Signal::CONT).unwrap();
    eventually("the old command is refused", || (count(1, "refused") > 0).then_some(()));
    kill_process(guard, Signal::CONT).unwrap();
    eventually("the old command is ended", || (!is_alive(command)).then_some(()));
    ann.signal(Signal::CONT);
    let ledger = world.ledger();
    let begun = ledger.iter().position(|entry| entry.epoch == 2).unwrap();
    let late = ledger[begun..].iter().filter(|entry| entry.epoch == 1 && entry.what == "applied").count();
    // One write may have been under way when the machine stood still, and its line comes late.
    assert!(late <= 1, "{ledger:#?}");
    assert_eq!(count(2, "refused"), 0);
    drop(bob);
}

pub(super) fn clocks_an_hour_apart_keep_one_leader(world: &World) {
    // Without a time to live: whoever writes a `ttl` of an hour ago must not have its row swept away.
    world.create_table();
    // A library in the process, rather than the wrapper program: signals must reach the candidate.
    let library = faketime();
    let stand = |name: &str, clock: &str| {
        let script = r#"while :; do echo "$TENURE_EPOCH at-work" >> ledger; sleep 0.05; done"#;
        let faked = [("LD_PRELOAD", library.as_str()), ("FAKETIME", clock), ("FAKETIME_NO_CACHE", "1")];
        Candidate::start_in(world, &format!("--owner {name} {SHORT}"), name, script, &faked)
    };
    let early = stand("early", "-1h");
    world.wait_for_epoch(1);
    // By this clock the row has expired an hour ago and more.
    let late = stand("late", "+1h");
    let right = world.stand("right", SHORT);
    late.wait_for_log("standing for election");
    right.wait_for_log("standing for election");
    // Several renewals, and two leases.
    pause_thread(Duration::from_secs(8));
    assert_eq!(world.leader().unwrap()["epoch"], 1, "nobody else was elected");
    world.assert_in_order();
    early.signal(Signal::TERM);
    world.wait_for_epoch(2);
    // A crash as well: whoever leads now goes, and the last one takes over.
    let leader = world.leader().unwrap()["name"].as_str().unwrap().to_owned();
    if leader == "late" {
        drop(late)
    } else {
        drop(right)
    }
    world.wait_for_epoch(3);
    world.assert_in_order();
}

/// As `faketime` installs it, for programs with threads.
fn faketime() -> String {
    let places = std::fs::read_dir("/usr/lib").unwrap().map(|place| place.unwrap().path());
    let library =
        places.map(|place| place.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists());
    library.expect("libfaketime is not installed: run `cargo xtask setup`").to_str().unwrap().to_owned()
}

pub(super) fn a_row_that_is_deleted_makes_no_second_leader(world: &World) {
    let ann = world.stand("ann", SHORT);
    let first = world.first_epoch();
    let bob = world.stand("bob", SHORT);
    bob.wait_for_log("standing for election");
    world.delete_row();
    ann.wait_for_log("leadership lost");
    // The epoch is in another row, and rises.
    world.wait_for_epoch(first + 1);
    world.assert_in_order();
}

/// `down` makes the store fail, `up` mends it.
pub(super) fn a_store_that_goes_and_comes_back(world: &World, down: impl FnOnce(), up: impl FnOnce()) {
    let ann = world.stand("ann", SHORT);
    let first = world.first_epoch();
    let bob = world.stand("bob", SHORT);
    bob.wait_for_log("standing for election");
    let command = ann.command();
    down();
    eventually("the leader steps down", || (!is_alive(command)).then_some(()));
    let written = world.ledger().len();
    // Longer than the lease: nobody leads without the store.
    pause_thread(Duration::from_secs(5));
    assert_eq!(world.ledger().len(), written, "{:#?}", world.ledger());
    up();
    eventually("somebody leads again", || {
        world.ledger().last().filter(|entry| entry.epoch > first).map(|_| ())
    });
    world.assert_in_order();
    // By a renewal that failed, or by none that came in time.
    assert!(["store_down", "no renewal came"].iter().any(|why| ann.log().contains(why)), "{}", ann.log());
}

pub(super) fn sigterm_hands_over_at_once(world: &World) {
    let mut ann = world.stand("ann", LONG);
    world.wait_for_epoch(1);
    let bob = world.stand("bob", LONG);
    bob.wait_for_log("standing for election");
    ann.signal(Signal::TERM);
    // The lease would take a minute.
    world.wait_for_epoch(2);
    world.assert_in_order();
    // The shell ends by the signal.
    assert_eq!(ann.status(), 128 + 15);
    drop(bob);
}

pub(super) fn resign_hands_over_to_whom_it_says(world: &World) {
    let ann = world.stand("ann", SHORT);
    let first = world.first_epoch();
    let others = ["bob", "cat", "dan"].map(|name| world.stand(name, SHORT));
    for other in &others {
        other.wait_for_log("standing for election");
    }
    let done = world.run(&format!("resign {SHARD} --to cat --json")).expect(0).json();
    assert_eq!(
        (&done[0]["outcome"], &done[0]["from"]["name"]),
        (&"handed_over".into(), &"ann".into()),
        "{done:?}"
    );
    assert_eq!(
        (&done[0]["to"]["name"], &done[0]["to"]["epoch"]),
        (&"cat".into(), &(first + 1).into()),
        "{done:?}"
    );
    world.wait_for_epoch(first + 1);
    let done = world.run(&format!("resign {SHARD}")).expect(0).stdout;
    assert!(done.starts_with("cat (owner cat-") && done.contains("handed over to"), "{done}");
    world.wait_for_epoch(first + 2);
    world.assert_in_order();
    drop(ann);
}

pub(super) fn one_owner_id_is_for_one_process(world: &World) {
    let script = r#"while :; do echo "$TENURE_EPOCH $TENURE_OWNER" >> ledger; sleep 0.05; done"#;
    let options = format!("--owner-id same {SHORT}");
    let first = Candidate::start(world, &options, "first", script);
    world.wait_for_epoch(1);
    let mut second = Candidate::start(world, &options, "second", script);
    assert_eq!(second.status(), 2);
    assert!(second.log().contains("another live process stands for shard `work` with owner id `same`"));
    pause_thread(Duration::from_secs(1));
    assert!(world.ledger().iter().all(|entry| entry.epoch == 1 && entry.what == "same"));
    assert!(is_alive(Pid::from_child(&first.child)));
}

pub(super) fn leaders_are_listed(world: &World) {
    let ann = world.stand("ann", &format!("{LONG} --about address=10.0.0.7:80 --about version=3"));
    world.wait_for_epoch(1);
    let row = world.leader().unwrap();
    assert_eq!(
        (&row["state"], &row["name"], &row["epoch"]),
        (&"led".into(), &"ann".into(), &1.into()),
        "{row}"
    );
    assert_eq!(
        (&row["about"]["address"], &row["lease_ms"]),
        (&"10.0.0.7:80".into(), &60_000.into()),
        "{row}"
    );
    assert!(row["owner"].as_str().unwrap().starts_with("ann-") && row["since"].is_string(), "{row}");
    let now = SystemClock.wall().as_seconds();
    assert!((now..now + 70).contains(&row["ttl"].as_i64().unwrap()), "{row}");
    ann.signal(Signal::TERM);
    let row = eventually("released", || world.leader().filter(|row| row["state"] == "released"));
    assert_eq!((&row["ttl"], &row["epoch"]), (&0.into(), &1.into()), "{row}");
    world.run(&format!("resign {SHARD}")).expect(3);
}
