//! What does not fit goes to the quarantine, and comes back from it.

use serde_json::Value as Json;

use super::world::World;

#[test]
fn an_oversize_row_is_kept_shown_replayed_and_dropped() {
    let world = World::set_up();
    assert_eq!(world.site.json("dlq list")[0]["events"], 0);
    // Random enough that no compression hides its size.
    world.sql(
        "INSERT INTO public.items VALUES (1, 'small'); \
         INSERT INTO public.items SELECT 7, pg_catalog.string_agg(pg_catalog.md5(g::pg_catalog.text), '') \
         FROM pg_catalog.generate_series(1, 40000) g; \
         UPDATE public.items SET note = 'small again' WHERE id = 7",
    );
    world.run("cdc run --until-lsn now").expect(0);
    let events = world.events();
    let pointer = events.iter().find(|event| event["op"] == "pointer").expect("a pointer");
    assert_eq!((events.len(), &pointer["pointer"]["kind"]), (3, &"claim_check".into()), "{pointer}");

    let listed = world.site.json("dlq list");
    let id = listed[0]["id"].as_str().unwrap();
    assert_eq!((listed.len(), &pointer["tenure"]["id"]), (2, &id.into()));
    assert!(listed[0]["bytes"].as_u64().unwrap() > 1 << 20, "{listed:?}");
    assert!(world.site.ok("dlq list").contains("too large for the stream"));
    assert_eq!(world.site.json("dlq list --source other")[0]["events"], 0);

    let shown = world.site.json(&format!("dlq show {id}")).remove(0);
    assert_eq!((&shown["cut"], &shown["sha256"]), (&true.into(), &pointer["pointer"]["sha256"]));
    let raw: Json = serde_json::from_str(&world.site.ok(&format!("dlq show {id} --raw"))).unwrap();
    assert_eq!((&raw["key"]["id"], raw["after"]["note"].as_str().unwrap().len()), (&7.into(), 40_000 * 32));

    world.run(&format!("dlq replay {id}")).expect(2).says(&[
        "at most 1048576",
        "--record-bytes-max",
        "--raw",
    ]);
    world.site.ok("stream create --record-bytes-max 10485760 --stream sqlite:./large.db");
    world.site.ok(&format!("dlq replay {id} --stream sqlite:./large.db"));
    let record = world.site.json("stream tail --stream sqlite:./large.db").remove(0);
    assert_eq!(record["partition_key"], "public.items/7");
    let replayed: Json = serde_json::from_str(record["data"].as_str().unwrap()).unwrap();
    assert_eq!(
        (&replayed["replayed"]["id"], &replayed["replayed"]["source"]),
        (&id.into(), &"tenure".into())
    );
    assert_eq!((replayed.get("tenure"), &replayed["after"]), (None, &raw["after"]));

    world.run(&format!("dlq drop {id}")).expect(2).says(&["--yes"]);
    world.run("dlq replay --all").expect(2).says(&["--yes"]);
    world.run("dlq show nonsense").expect(2).says(&["nonsense", "tenure dlq list"]);
    world.run("dlq show 9:0/1:0/1:0").expect(3).says(&["9:0/1:0/1:0"]);
    world.site.ok(&format!("dlq drop {id} --yes"));
    assert_eq!(world.site.json("dlq list")[0]["events"], 0);
    assert!(world.site.json("store scan tenure_quarantine").len() <= 1, "its chunks are gone, too");
}
