//! What is wrong is named, with what to do.

use std::sync::Arc;

use tenure_cdc::server;
use tenure_cdc::transport::{Endpoint, PluginOptions, PublicationName, Session, SlotName};
use tenure_clock::{Clock as _, SystemClock};

use super::world::{World, try_sql};
use crate::site::{Site, ran};

#[test]
fn what_can_be_seen_without_a_server() {
    let site = Site::new();
    site.run("cdc run").expect(2).says(&["no database is named", "--postgres"]);
    let run = |flags: &str| site.run(&format!("cdc run --postgres postgres://ann@127.0.0.1:1/app {flags}"));
    run("--slot Orders").expect(2).says(&["--slot", "cdc.slot", "`Orders`", "a to z"]);
    run("--to kafka:x").expect(2).says(&["--to", "`kafka:x` is no destination", "file:PATH"]);
    run("--lanes 0").expect(2).says(&["--lanes", "above zero"]);
    run("--lanes 20000").expect(2).says(&["20000 lanes", "16384"]);
    run("--inflight-bytes lots").expect(2).says(&["--inflight-bytes", "`lots` is not a size", "16MiB"]);
    run("--linger 3").expect(2).says(&["--linger", "3", "10s"]);
    run("--leadership zookeeper").expect(2).says(&["--leadership", "zookeeper", "advisory"]);
    run("--spill /nowhere/at/all --to null").expect(2).says(&["/nowhere/at/all", "--spill"]);
    run("").expect(2).says(&["no stream `main`", "tenure stream create"]);
    run("--to file:/nowhere/at/all.jsonl").expect(2).says(&["/nowhere/at/all.jsonl"]);
    let usage = run("--until-lsn tomorrow").expect(2);
    assert!(usage.stderr.contains("0/16B3748"), "{usage:#?}");
    site.run("cdc run --postgres mysql://ann@h/x").expect(2).says(&["--postgres", "`mysql:` is no database"]);
    site.run("cdc setup --timeout 3s --to null --postgres postgres://ann@127.0.0.1:1/app")
        .expect(1)
        .says(&["127.0.0.1:1/app"]);
    let mut command = site.command("cdc run");
    command.env("TENURE__CDC__SLTO", "x");
    ran(command).expect(2).says(&["did you mean `TENURE__CDC__SLOT`"]);
}

#[test]
fn either_side_may_be_down() {
    let world = World::set_up();
    let gone =
        world.run("cdc status --json --timeout 3s --postgres postgres://ann@127.0.0.1:1/app").expect(0);
    let gone = &gone.json()[0];
    assert!(gone["server_error"].as_str().unwrap().contains("127.0.0.1:1") && gone["checkpoint"].is_object());
    let gone = world.run("cdc status --timeout 3s --store postgres://ann@127.0.0.1:1/app").expect(0);
    assert!(gone.stdout.contains("cannot be asked") && gone.stdout.contains("not in use"), "{gone:#?}");
    let both = "--store postgres://ann@127.0.0.1:1/app --postgres postgres://ann@127.0.0.1:1/app";
    world.run(&format!("cdc status --timeout 3s {both}")).expect(1);
}

#[test]
fn what_the_server_lacks_is_named() {
    let world = World::new();
    let slot = &world.database;
    world
        .run("cdc run --log error")
        .expect(2)
        .says(&["publication `tenure` does not exist", "tenure cdc setup"]);
    world.run("cdc setup").expect(2).says(&["--table", "--all-tables"]);
    world.run("cdc setup --table public.nothing").expect(2).says(&["public.nothing", "does not exist"]);
    world.sql("CREATE PUBLICATION tenure FOR TABLE public.items; CREATE TABLE public.other (x int)");
    world.run("cdc run --log error").expect(2).says(&["the slot does not exist", "tenure cdc setup"]);
    world.run("cdc setup --table public.other").expect(2).says(&["ALTER PUBLICATION \"tenure\" ADD TABLE"]);
    world.run("cdc setup --all-tables").expect(2).says(&["does not publish all tables"]);
    world.sql(&format!("SELECT pg_catalog.pg_create_logical_replication_slot('{slot}', 'test_decoding')"));
    for line in ["cdc run --log error", "cdc setup", "cdc setup --accept-gap"] {
        world.run(line).expect(2).says(&["test_decoding", "pgoutput", "--slot"]);
    }
    assert_eq!(world.slots(), std::slice::from_ref(slot), "it is not ours to drop");
    world.sql(&format!("SELECT pg_catalog.pg_drop_replication_slot('{slot}')"));
    world.sql("ALTER PUBLICATION tenure ADD TABLE public.other");
    let said = world.site.ok("cdc setup");
    assert!(
        said.contains("public.other")
            && said.contains(r#"ALTER TABLE "public"."other" REPLICA IDENTITY FULL"#),
        "{said}"
    );
}

#[test]
fn a_user_who_may_not_is_told_what_is_missing() {
    let world = World::new();
    let role = format!("{}_role", world.database);
    world.sql(&format!("CREATE ROLE {role} LOGIN"));
    let url = world.url.replace("://postgres@", &format!("://{role}@"));
    let outcome = std::panic::catch_unwind(|| {
        for line in ["cdc setup --all-tables", "cdc run --log error", "cdc tail"] {
            let mut command = world.site.command(line);
            command.env("TENURE__POSTGRES__URL", &url);
            ran(command).expect(1).says(&["REPLICATION"]);
        }
        world.sql(&format!("ALTER ROLE {role} REPLICATION"));
        let mut command = world.site.command("cdc setup --all-tables");
        command.env("TENURE__POSTGRES__URL", &url);
        ran(command).expect(1).says(&["create publication", "superuser"]);
        assert!(world.publications().is_empty() && world.slots().is_empty());
    });
    try_sql(&world.url, &format!("DROP ROLE {role}")).unwrap();
    if let Err(failed) = outcome {
        std::panic::resume_unwind(failed);
    }
}

#[test]
fn a_slot_in_use_is_waited_for_and_its_user_is_named() {
    let world = World::set_up();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let by = || SystemClock.deadline(std::time::Duration::from_secs(60));
    let holder = runtime.block_on(async {
        let endpoint = Endpoint::parse(&format!("{}?application_name=holder", world.url)).unwrap();
        let mut session = Session::connect(&endpoint, Arc::new(SystemClock), by()).await.unwrap();
        let slot = SlotName::new(&*world.database).unwrap();
        let found = server::slot(&mut session, by(), &slot).await.unwrap().unwrap();
        let options = PluginOptions::new(vec![PublicationName::new("tenure").unwrap()]);
        session.start_replication(by(), &slot, found.confirmed_flush.unwrap(), &options).await.unwrap()
    });
    // Kept alive as any reader does.
    let (mut receiver, sender) = holder;
    let holding = runtime.spawn(async move {
        loop {
            let at = server_position(&mut receiver).await;
            sender
                .status(at, tenure_stream::identity::Lsn(0), tenure_stream::identity::Lsn(0), false)
                .await
                .unwrap();
        }
    });
    let text = world.site.ok("cdc status");
    assert!(text.contains("application holder"), "{text}");
    world.run("cdc teardown --yes").expect(2).says(&["in use by", "application holder"]);
    let mut run = world.start("run", "cdc run --json");
    run.wait_for("it says who", |run| run.stderr().contains("is in use by process"));
    holding.abort();
    world.sql("INSERT INTO public.items VALUES (1, 'a')");
    world.events_when(1);
    run.end();
}

async fn server_position(receiver: &mut tenure_cdc::transport::Receiver) -> tenure_stream::identity::Lsn {
    use tenure_cdc::transport::Frame;
    match receiver.next().await.unwrap() {
        Frame::Data { wal_end, .. } | Frame::Keepalive { wal_end, .. } => wal_end,
        Frame::Done => panic!("the stream ended"),
    }
}

#[test]
fn a_slot_that_keeps_too_much_ends_the_run() {
    let world = World::set_up();
    world.sql("INSERT INTO public.items SELECT g, 'x' FROM generate_series(1, 1000) g");
    let ran = world.run("cdc run --retained-warn 1B --retained-stop 2B --json").expect(1);
    for part in ["more than --retained-stop 2 B", "tenure cdc teardown", "WARN"] {
        assert!(ran.stderr.contains(part), "no `{part}` in {}", ran.stderr);
    }
    assert!(ran.json().last().unwrap()["alarm"].is_string(), "{ran:#?}");
    let shown = world.run("cdc status").expect(0);
    assert!(!shown.stdout.contains("ALARM"), "{shown:#?}");
    let mut command = world.site.command("cdc status");
    command.env("TENURE__CDC__RETAINED_WARN", "1B");
    assert!(crate::site::ran(command).stdout.contains("ALARM"));
}

#[test]
fn passwords_are_in_no_output() {
    const SECRET: &str = "Xq7hunter2";
    let site = Site::new();
    let url = format!("postgres://ann:{SECRET}@127.0.0.1:1/app");
    for line in
        ["cdc status", "cdc status --json", "cdc setup --to null", "cdc tail", "cdc teardown --yes --to null"]
    {
        for flag in [&*url, &format!("{url}?nonsense=1"), &format!("x{url}")] {
            let mut command = site.command(&format!("{line} --timeout 2s"));
            match line {
                "cdc tail" => command.arg(flag),
                _ => command.args(["--postgres", flag]),
            };
            command.env("RUST_LOG", "trace");
            let ran = ran(command);
            assert!(ran.code != 0 || line.contains("status"), "{line}: {ran:#?}");
            assert!(!ran.stdout.contains(SECRET) && !ran.stderr.contains(SECRET), "{line}: {ran:#?}");
        }
    }
    let mut command = site.command("config check");
    command.env("TENURE__POSTGRES__URL", &url);
    let shown = ran(command).expect(0);
    assert!(shown.stdout.contains("ann:***@") && !shown.stdout.contains(SECRET), "{shown:#?}");
}
