//! Records that a command fails at again and again, and what becomes of them.

use super::world::{World, eventually};

#[test]
fn dead_letters_are_listed_shown_replayed_and_dropped() {
    let world = World::new(1);
    assert_eq!(world.site.json("dlq list")[0]["dead_letters"], 0);
    world.site.ok("stream put --key a 1 poison 2 venom 3");
    let mut command = world.site.command("consume --app orders --worker ann --on-failure dead_letter");
    command.env("TENURE__CONSUMER__ATTEMPTS", "1");
    command.args(["--exec", "cat > in; if grep -q 'poison\\|venom' in; then exit 9; fi; cat in >> got"]);
    let ann = world.start("ann", command);
    eventually("two dead letters", || {
        (world.site.json("dlq list").last()?["dead_letters"] == 2).then_some(())
    });
    eventually("the others", || (world.lines("got").len() >= 3).then_some(()));
    ann.stop();

    let listed = world.site.json("dlq list");
    let (id, origin) = (listed[0]["id"].as_str().unwrap(), &listed[0]["origin"]);
    assert_eq!((origin, &listed[0]["app"]), (&"consumer".into(), &"orders".into()));
    assert!(id.starts_with("orders#shardId-000000000000#"), "{id}");
    let text = world.site.ok("dlq list");
    assert!(text.contains("consumer  orders#") && text.contains("exit status: 9"), "{text}");
    assert_eq!(world.site.json("dlq list --app other")[0]["dead_letters"], 0);
    assert_eq!(world.site.json("dlq list --source tenure")[0]["dead_letters"], 0);

    let shown = world.site.json(&format!("dlq show {id}")).remove(0);
    assert_eq!((&shown["content"], &shown["partition_key"]), (&"poison".into(), &"a".into()));
    assert_eq!(world.site.ok(&format!("dlq show {id} --raw")), "poison");
    world.run("dlq show orders#shardId-000000000000#999#0").expect(3);
    world.run("dlq show #1").expect(2).says(&["tenure dlq list"]);

    // A command that still fails keeps it.
    let failed = world.site.run_with("dlq replay --app orders --all --yes --exec", "exit 5").expect(1);
    failed.says(&["exit status: 5", "it stays"]);
    assert_eq!(world.site.json("dlq list")[2]["dead_letters"], 2);
    world.run("dlq replay --app orders --all").expect(2).says(&["--yes"]);

    // Into the stream.
    world.site.ok(&format!("dlq replay {id}"));
    let tail = world.site.json("stream tail");
    assert_eq!(tail.last().unwrap()["data"], "poison", "{tail:?}");
    assert_eq!(tail.last().unwrap()["partition_key"], "a");

    // To a command, which has learned.
    let mut replay = world.site.command("dlq replay --app orders --all --yes --json --exec");
    replay.arg("cat >> mended; echo noise");
    let said = crate::site::ran(replay).expect(0).json();
    assert_eq!(said.len(), 2, "{said:?}");
    let mended: Vec<_> =
        world.lines("mended").iter().map(|line| line["data"].as_str().unwrap().to_owned()).collect();
    assert_eq!(mended, ["poison", "venom"]);
    assert_eq!(world.site.json("dlq list")[0]["dead_letters"], 0);
}

#[test]
fn dead_letters_are_dropped_by_name() {
    let world = World::new(1);
    world.site.ok("stream put --key a poison");
    let mut command =
        world.site.command("consume --app orders --worker ann --on-failure dead_letter --exec false");
    command.env("TENURE__CONSUMER__ATTEMPTS", "1");
    let ann = world.start("ann", command);
    let id = eventually("a dead letter", || {
        world.site.json("dlq list").first()?["id"].as_str().map(str::to_owned)
    });
    ann.stop();
    world.run(&format!("dlq drop {id}")).expect(2).says(&["--yes"]);
    world.run(&format!("dlq drop {id} --app billing --yes")).expect(2).says(&["`orders`, not `billing`"]);
    assert_eq!(world.site.json(&format!("dlq drop {id} --yes"))[0]["dropped"], id.as_str());
    world.run(&format!("dlq drop {id} --yes")).expect(3);
    assert_eq!(world.site.json("dlq list")[0]["dead_letters"], 0);
}
