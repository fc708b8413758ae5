//! From setup to teardown, through crashes and handovers.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value as Json;
use tenure_clock::{Clock as _, SystemClock};

use super::world::World;

fn ids(events: &[Json]) -> BTreeSet<&str> {
    events.iter().map(|event| event["tenure"]["id"].as_str().unwrap()).collect()
}

#[test]
fn changes_arrive_through_a_crash_and_a_handover() {
    let world = World::new();
    let first = world.site.json("cdc setup --table public.items");
    let outcome = |lines: &[Json], what: &str| {
        lines.iter().find(|line| line["what"] == what).map(|line| line["outcome"].clone()).unwrap()
    };
    for what in ["publication", "slot", "checkpoint"] {
        assert_eq!(outcome(&first, what), "created");
    }
    let again = world.site.json("cdc setup --table public.items");
    for what in ["publication", "slot", "checkpoint"] {
        assert_eq!(outcome(&again, what), "found");
    }

    let mut run = world.start("first", "cdc run --json");
    run.leads();
    world.sql("INSERT INTO public.items SELECT g, 'new' FROM generate_series(1, 50) g");
    world.events_when(50);
    let status = world.status();
    assert_eq!(status["processes"][0]["role"], "leader", "{status}");
    assert_eq!(status["leader"], status["processes"][0]["instance"], "{status}");
    assert_eq!(
        (&status["slot"]["active"], &status["checkpoint"]["era"]),
        (&true.into(), &1.into()),
        "{status}"
    );
    assert!(status["lag_bytes"].is_u64() && status["retained_wal_bytes"].is_u64(), "{status}");
    let text = world.site.ok("cdc status");
    for part in ["leader", "in use by the server's process", "acknowledged", "era 1"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
    run.kill();
    world.sql(
        "UPDATE public.items SET note = 'changed' WHERE id <= 10; DELETE FROM public.items WHERE id = 50",
    );

    let mut run = world.start("second", "cdc run --json");
    run.leads();
    let events = world.events_when(61);
    assert_eq!(ids(&events).len(), 61);
    run.end();
    let status = world.status();
    assert_eq!((&status["leader"], &status["slot"]["active"]), (&Json::Null, &false.into()), "{status}");
    let own = run.json().last().unwrap()["instance"].clone();
    let rows = status["processes"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["instance"] != own), "it took its row with it: {status}");

    // A planned stop leaves nothing to publish again.
    let before = world.events().len();
    let ran = world.run("cdc run --until-lsn now --json").expect(0);
    assert_eq!(ran.json().last().unwrap()["event"], "end");
    assert_eq!(world.events().len(), before);

    let shapes = || world.site.ok("store scan tenure_coordination").contains("tenure#shapes");
    assert!(shapes(), "how the tables looked");
    world.run("cdc teardown").expect(2).says(&["--yes"]);
    assert_eq!(world.slots().len(), 1, "nothing was changed");
    let gone = world.site.json("cdc teardown --yes --drop-publication");
    assert_eq!(outcome(&gone, "slot"), "dropped");
    assert_eq!(outcome(&gone, "checkpoint"), "ended");
    assert!(!shapes());
    assert!(world.slots().is_empty() && world.publications().is_empty());
    let gone = world.site.json("cdc teardown --yes");
    assert_eq!(outcome(&gone, "slot"), "absent");

    // Set up again, it begins another era: readers must not take its events for old ones.
    world.run("cdc run").expect(2).says(&["run `tenure cdc setup`"]);
    let again = world.site.ok("cdc setup --all-tables");
    assert!(again.contains("era 2"), "{again}");
    world.sql("INSERT INTO public.items VALUES (77, 'again')");
    world.run("cdc run --until-lsn now").expect(0);
    assert!(world.events().last().unwrap()["tenure"]["id"].as_str().unwrap().starts_with("2:"));
}

#[test]
fn a_standby_takes_over_and_a_slot_in_use_is_not_torn_down() {
    let world = World::set_up();
    let mut first = world.start("first", "cdc run --json");
    first.leads();
    let mut second = world.start("second", "cdc run --json");
    second.wait_for("it stands by", |run| run.json().iter().any(|line| line["role"] == "standby"));
    world.run("cdc teardown --yes").expect(2).says(&["in use by", "stop it first"]);
    first.kill();
    second.leads();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.events_when(1);
    second.end();
}

#[test]
fn an_election_on_the_store_chooses_the_leader_too() {
    let world = World::set_up();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.run("cdc run --leadership store --until-lsn now --no-aggregation").expect(0);
    assert_eq!(world.events().len(), 1);
    let leaders = world.site.json("leaders");
    assert!(leaders.iter().any(|line| line["shard"] == "cdc-tenure"), "{leaders:?}");
}

#[test]
fn a_file_gets_lines_in_commit_order_once() {
    let world = World::new();
    let to = "--to file:changes.jsonl --source files";
    world.run(&format!("cdc setup --all-tables {to}")).expect(0);
    world.sql("INSERT INTO public.items SELECT g, 'x' FROM generate_series(1, 20) g");
    world.sql("UPDATE public.items SET note = 'y'");
    world.run(&format!("cdc run --until-lsn now {to}")).expect(0);
    let lines = || -> Vec<Json> {
        let text = std::fs::read_to_string(world.site.path("changes.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(lines().len(), 40);
    let order: Vec<_> = lines().iter().map(|event| event["key"]["id"].as_u64().unwrap()).collect();
    assert_eq!(order, (1..=20).chain(1..=20).collect::<Vec<_>>());
    assert_eq!(lines()[0]["tenure"]["source"], "files");
    world.sql("DELETE FROM public.items WHERE id = 1");
    // Somebody may have died in the middle of a line.
    std::fs::OpenOptions::new()
        .append(true)
        .open(world.site.path("changes.jsonl"))
        .and_then(|mut file| std::io::Write::write_all(&mut file, b"{\"half"))
        .unwrap();
    world.run(&format!("cdc run --until-lsn now {to}")).expect(0);
    assert_eq!((lines().len(), &lines()[40]["op"]), (41, &"delete".into()));
    world.run(&format!("cdc teardown --yes {to}")).expect(0);
}

#[test]
fn two_writers_of_a_file_take_turns() {
    let world = World::new();
    let to = "--to file:changes.jsonl";
    world.run(&format!("cdc setup --all-tables {to}")).expect(0);
    let mut first = world.start("first", &format!("cdc run --json {to}"));
    first.leads();
    let mut second = world.start("second", &format!("cdc run --json {to}"));
    second.wait_for("it waits for the file", |run| run.stderr().contains("standing by"));
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    let count = || std::fs::read_to_string(world.site.path("changes.jsonl")).unwrap().lines().count();
    super::world::until("the first line", || (count() == 1).then_some(()));
    first.end();
    second.leads();
    world.sql("INSERT INTO public.items VALUES (2, 'b')");
    super::world::until("the second line", || (count() == 2).then_some(()));
    second.end();
}

#[test]
fn standard_output_gets_events_and_nothing_else() {
    let world = World::new();
    world.run("cdc setup --all-tables --to -").expect(0);
    world.sql(
        "INSERT INTO public.items VALUES (1, 'a'); SELECT pg_catalog.pg_logical_emit_message(true, 'audit', 'hello')",
    );
    let ran = world.run("cdc run --to - --until-lsn now --messages --json").expect(0);
    let ops: Vec<_> = ran.json().iter().map(|event| event["op"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ops, ["insert", "message"]);
    world.sql("INSERT INTO public.items VALUES (2, 'a')");
    assert_eq!(world.run("cdc run --to null --source nowhere --until-lsn now").expect(0).stdout, "");
}

/// As `tenure cdc run --to - | head -1` does.
#[test]
fn a_reader_that_goes_away_ends_the_run_with_a_word() {
    let world = World::new();
    world.run("cdc setup --all-tables --to -").expect(0);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let errors = std::fs::File::create(world.site.path("run.err")).unwrap();
    let mut child = world.site.command("cdc run --to -").stdout(writer).stderr(errors).spawn().unwrap();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    let status = super::world::until("it ends", || child.try_wait().unwrap());
    let told = std::fs::read_to_string(world.site.path("run.err")).unwrap();
    assert_eq!(status.code(), Some(2), "{told}");
    assert!(told.contains("whoever read from stdout has gone"), "{told}");
    // What it had not taken comes again.
    let ran = world.run("cdc run --to - --until-lsn now").expect(0);
    assert_eq!(ran.json().len(), 1);
}

#[test]
fn a_shard_is_sent_no_more_than_the_settings_say() {
    let world = World::set_up();
    world.run("cdc run --shard-records-per-s many").expect(2).says(&["--shard-records-per-s", "many"]);
    world.sql("INSERT INTO public.items SELECT g, 'x' FROM generate_series(1, 200) g");
    let took = |more: &str| {
        let began = SystemClock.monotonic();
        world.run(&format!("cdc run --until-lsn now --no-aggregation {more}")).expect(0);
        SystemClock.monotonic().since(began)
    };
    // Two shards with a hundred events each: forty at once, and then forty a second.
    assert!(took("--shard-records-per-s 40") > Duration::from_millis(1000));
    assert_eq!(world.events().len(), 200);
}

#[test]
fn metrics_and_watches_go_with_a_run() {
    let world = World::set_up();
    // Free when asked; nobody else is likely to take it within the moment.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut run = world.start("run", &format!("cdc run --json --metrics {free}"));
    run.leads();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.events_when(1);
    super::world::until("the page has the gauges", || {
        let page = crate::long_running::get(&free.to_string())?;
        let has = |part: &str| page.contains(part);
        (has("tenure_cdc_retained_wal_bytes{source=\"tenure\"}") && has("tenure_cdc_acknowledged_lsn"))
            .then_some(())
    });
    let mut watch = world.start("watch", "cdc status --watch --interval 100ms --json");
    watch.wait_for("two looks", |watch| watch.lines().len() >= 2);
    assert!(watch.json()[0]["leader"].is_string());
    watch.end();
    run.end();
    assert!(run.stderr().contains("asked to stop"), "{}", run.stderr());
}

#[test]
fn a_crashed_process_is_marked_as_stale() {
    let world = World::set_up();
    let mut run = world.start("run", "cdc run --json");
    run.leads();
    super::world::until("its row", || (!world.status()["processes"].as_array()?.is_empty()).then_some(()));
    run.kill();
    super::world::until("it is stale", || (world.status()["processes"][0]["stale"] == true).then_some(()));
    assert!(world.site.ok("cdc status").contains("STALE"));
    world.site.ok("cdc teardown --yes");
    assert_eq!(world.status()["processes"], serde_json::json!([]));
}
