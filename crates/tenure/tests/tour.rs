//! The tour of the README, and what each command shows.

use std::collections::BTreeMap;
use std::process::Stdio;

use serde_json::{Value as Json, json};

use crate::site::{Site, ran};

#[test]
fn from_nothing_to_a_row() {
    let site = Site::new();
    assert!(site.ok("init").contains("wrote tenure.toml"));
    site.run("init").expect(2).says(&["tenure.toml is there already", "--force"]);
    site.ok("init --force --preset embedded");
    let doctor = site.ok("doctor");
    assert!(doctor.contains("tenure_doctor") && doctor.contains("tenure stream create"), "{doctor}");

    assert!(site.ok("store create-table locks --hash name").contains("`locks` is ready"));
    site.ok("store create-table locks --hash name");
    let first = site.run_with("store put locks --if-absent", r#"{"name":"orders","owner":"ann","epoch":1}"#);
    assert_eq!(first.expect(0).stdout, "written\n");
    let second = site.run_with("store put locks --if-absent", r#"{"name":"orders","owner":"bob","epoch":1}"#);
    let second = second.expect(3).stdout;
    assert!(second.starts_with("refused") && second.contains("ann"), "{second}");
    let row = site.ok("store get locks name=orders");
    assert!(row.contains("owner  S     \"ann\""), "{row}");
    let moved = r#"{"name":"orders","owner":"bob","epoch":2}"#;
    site.run_with("store put locks --if owner=ann --if epoch=2", moved).expect(3);
    site.run_with("store put locks --if owner=ann --if epoch=1", moved).expect(0);
    assert_eq!(site.ok("store scan locks"), "name=orders  {\"epoch\":2,\"owner\":\"bob\"}\n");
    site.run("store delete locks name=orders --if owner=ann").expect(3);
    assert_eq!(site.ok("store delete locks name=orders --if owner=bob"), "deleted\n");
    assert_eq!(site.ok("store delete locks name=orders"), "there was no such row\n");
    site.run("store get locks name=orders").expect(3);
}

#[test]
fn rows_as_json() {
    let site = Site::new();
    let created = site.json(
        "store create-table events --hash stream --range at:N --ttl expires --index by_owner:owner:n=N",
    );
    assert_eq!(created[0]["range"], json!({ "name": "at", "type": "N" }));
    assert_eq!(created[0], site.json("store describe events")[0]);
    assert_eq!(created[0]["indexes"][0]["name"], "by_owner");
    assert!(site.ok("store describe events").contains("stream:S + at:N"));

    let digits = "12345678901234567890123456789012345678";
    let plain = format!(r#"{{"stream":"o","at":1,"big":{digits},"l":[1,"a",null,{{"k":true}}]}}"#);
    let put = site.run_with("store put events --json", &plain).expect(0).json();
    assert_eq!(put[0]["outcome"], "applied");
    assert_eq!(put[0]["item"]["big"], json!({ "N": digits }));
    let typed = r#"{"stream":{"S":"o"},"at":{"N":"2"},"b":{"B":"aGk="},"set":{"SS":["x","y"]}}"#;
    site.run_on("store put events -", typed.as_bytes()).expect(0);

    let found = site.json("store get events stream=o at=2");
    assert_eq!(
        (&found[0]["found"], &found[0]["item"]),
        (&json!(true), &serde_json::from_str(typed).unwrap())
    );
    let found = site.run("store get events stream:S=o at:N=1 --plain").expect(0).stdout;
    assert!(found.contains(&format!("\"big\":{digits}")), "{found}");
    let missing = site.run("store get events stream=o at=3 --json").expect(3);
    assert_eq!(missing.json(), [json!({ "found": false, "item": null })]);

    let all = site.json("store scan events");
    assert_eq!((all.len(), &all[2]), (3, &json!({ "rows": 2, "complete": true })));
    let some = site.json("store scan events --limit 1");
    assert_eq!(some[1], json!({ "rows": 1, "complete": false }));
    // What one prints the other takes.
    for row in site.ok("store scan events --plain").lines().filter(|row| row.contains("big")) {
        site.run_on("store put events -", row.as_bytes()).expect(0);
    }
    let refused = site.run_with("store put events --json --if-absent", &plain).expect(3).json();
    assert_eq!(
        (&refused[0]["outcome"], &refused[0]["current"]["at"]),
        (&json!("refused"), &json!({ "N": "1" }))
    );
    let nobody = site.run("store delete events stream=o at=9 --if owner=ann --json").expect(3).json();
    assert_eq!(nobody, [json!({ "outcome": "refused", "current": null })]);
}

#[test]
fn a_stream_is_written_reshaped_and_read_in_order() {
    let site = Site::new();
    let created = site.json("stream create --shards 2 --retention 48h");
    assert_eq!((&created[0]["created"], &created[0]["retention_seconds"]), (&json!(true), &json!(172_800)));
    assert_eq!(site.json("stream create --shards 7")[0]["open_shards"], 2);
    assert!(site.ok("stream describe").contains("2d"));

    let put = site.json("stream put --key a one two");
    assert_eq!((put.len(), &put[2]["stored"]), (3, &json!(2)));
    let shard = put[0]["shard"].as_str().unwrap().to_owned();
    assert_eq!(put[0]["shard"], put[1]["shard"]);

    let split = site.json(&format!("stream split {shard}"));
    assert_eq!(split[2], json!({ "opened": 2, "open": 3 }));
    site.ok("stream put --key a three");
    let children: Vec<_> = split[..2].iter().map(|line| line["shard"].as_str().unwrap()).collect();
    let merged = site.json(&format!("stream merge {} {}", children[0], children[1]));
    assert_eq!(
        (&merged[0]["parent"], &merged[0]["adjacent_parent"]),
        (&split[0]["shard"], &split[1]["shard"])
    );
    site.ok("stream put --key a four");
    assert!(site.ok("stream rescale 4").contains("4 open now"));
    site.ok("stream put --key a five");

    let listed = site.json("stream list");
    let summary = listed.last().unwrap();
    assert_eq!((&summary["open"], summary["shards"].as_u64().unwrap()), (&json!(4), listed.len() as u64 - 1));
    assert_eq!((&listed[0]["open"], &listed[0]["parent"]), (&json!(false), &Json::Null));

    let read = site.json("stream tail");
    let data: Vec<_> = read.iter().map(|record| record["data"].as_str().unwrap()).collect();
    assert_eq!(data, ["one", "two", "three", "four", "five"]);
    assert!(site.ok("stream tail --limit 1").contains("  a  one"));
    assert_eq!(site.json("stream tail --from latest").len(), 0);
    let second = read[1]["sequence"].as_str().unwrap();
    let at = site.json(&format!("stream tail --shard {shard} --from {second}"));
    assert_eq!((at.len(), &at[0]["data"]), (1, &json!("two")));
    assert_eq!(site.json(&format!("stream tail --shard {shard} --from after:{second}")).len(), 0);
    let arrived = read[4]["arrived"].as_str().unwrap();
    assert_eq!(site.json(&format!("stream tail --from {arrived}")).last().unwrap()["data"], "five");
    assert_eq!(site.json("stream tail --from ago:1h").len(), 5);

    site.run("stream delete").expect(2).says(&["--yes"]);
    site.ok("stream delete --yes");
    site.run("stream tail").expect(2).says(&["no stream `main`", "tenure stream create"]);
}

#[test]
fn lines_become_records() {
    let site = Site::new();
    site.ok("stream create --shards 3");
    let lines: String = (0..1200).map(|n| format!("{{\"id\":\"k{}\",\"n\":{n}}}\n", n % 7)).collect();
    let put = site.run_on("stream put --lines --key-field id --json", lines.as_bytes()).expect(0).json();
    assert_eq!(put.len(), 1201);
    assert_eq!(put[1200], json!({ "stored": 1200, "failed": 0, "interrupted": false }));
    let mut of_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for record in site.json("stream tail") {
        let data: Json = serde_json::from_str(record["data"].as_str().unwrap()).unwrap();
        assert_eq!(record["partition_key"], data["id"]);
        of_key.entry(data["id"].to_string()).or_default().push(data["n"].as_i64().unwrap());
    }
    assert_eq!(of_key.len(), 7);
    assert!(of_key.values().all(|numbers| numbers.is_sorted()), "order holds within a key");
    assert_eq!(of_key.values().map(Vec::len).sum::<usize>(), 1200);
    let wrong = site.run_on("stream put --lines --key-field id", b"{\"id\":1}\n{\"ib\":2}\n").expect(2);
    wrong.says(&["record 2", "no field `id`", "did you mean `ib`"]);
    // Bytes that are no text are shown so that nothing is lost.
    site.ok("stream delete --yes");
    site.ok("stream create");
    site.run_on("stream put --lines --key k", b"\xff\x1b[2J\nsecond").expect(0);
    let read = site.json("stream tail");
    assert_eq!((&read[0]["data_base64"], &read[1]["data"]), (&json!("/xtbMko="), &json!("second")));
}

#[test]
fn what_goes_wrong_by_a_seed_is_told_apart() {
    let site = Site::new();
    site.ok("store create-table locks --hash name");
    let mut codes = BTreeMap::new();
    for seed in 0..30 {
        let store = format!("faulty+sqlite:./tenure.db?seed={seed}&lost=0.4");
        let row = format!("{{\"name\":\"row{seed}\"}}");
        let ran = site.run_with(&format!("store put locks --if-absent --store {store}"), &row);
        *codes.entry(ran.code).or_insert(0) += 1;
        if ran.code == 4 {
            assert!(ran.stderr.contains("read back"), "{ran:#?}");
        }
    }
    assert!(codes.contains_key(&0) && codes.contains_key(&4), "{codes:?}");
    assert!(codes.keys().all(|code| [0, 1, 4].contains(code)), "{codes:?}");

    // Throttled records are sent again until all are stored, whatever the seed.
    site.ok("stream create --shards 2");
    let lines: String = (0..100).map(|n| format!("{n}\n")).collect();
    for seed in 1..3 {
        let stream = format!("faulty+sqlite:./tenure.db?seed={seed}&throttled=0.3");
        let put = site
            .run_on(&format!("stream put --lines --json --timeout 60s --stream {stream}"), lines.as_bytes());
        assert_eq!(put.expect(0).json().last().unwrap()["stored"], 100);
    }
    assert_eq!(site.json("stream tail").len(), 200);
    let reported = (0..60).any(|seed| {
        let stream = format!("faulty+sqlite:./tenure.db?seed={seed}&throttled=0.9");
        let put =
            site.run_on(&format!("stream put --lines --json --timeout 200ms --stream {stream}"), b"x\n");
        let reported = put.stderr.contains("record 1 was not stored: ");
        if reported {
            assert_eq!(put.json().last().unwrap()["failed"], 1);
            assert_eq!(put.code, 1);
        }
        reported
    });
    assert!(reported, "what stays throttled until --timeout is reported");
}

#[test]
fn what_was_trimmed_is_not_passed_over_silently() {
    let site = Site::new();
    site.ok("stream create --stream sqlite:./tenure.db?retention_bytes=20000");
    let lines: String = (0..200).map(|n| format!("{n} {}\n", "x".repeat(1000))).collect();
    for _ in 0..3 {
        site.run_on("stream put --lines --key k", lines.as_bytes()).expect(0);
    }
    let shard = "shardId-000000000000";
    let lost = site.run(&format!("stream tail --shard {shard} --from 2")).expect(1);
    lost.says(&[shard, "trimmed before they were read", "--accept-loss"]);
    let accepted = site.run(&format!("stream tail --shard {shard} --from 2 --accept-loss --json")).expect(0);
    assert!(accepted.stderr.starts_with("warning: shardId"), "{accepted:#?}");
    let lines = accepted.json();
    assert_eq!((&lines[0]["trimmed"]["shard"], &lines[0]["trimmed"]["from"]), (&json!(shard), &json!("2")));
    assert_eq!(lines[1]["sequence"], lines[0]["trimmed"]["to"]);
    site.ok("stream tail --limit 1");
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let site = Site::new();
    site.ok("stream create");
    let lines: String = (0..5000).map(|n| format!("{n} {}\n", "x".repeat(100))).collect();
    site.run_on("stream put --lines", lines.as_bytes()).expect(0);
    for line in ["stream tail", "stream tail --follow --json", "completions bash", "man"] {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = site.command(line);
        command.stdout(writer).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        drop((reader, command));
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{line}: {output:?}");
    }
}

#[test]
fn help_completions_and_man_pages() {
    let site = Site::new();
    assert!(site.ok("--version").starts_with("tenure 0."));
    let help = site.ok("--help");
    assert!(help.contains("TENURE__STORE__URL") && help.contains("Exit status"), "{help}");
    assert!(!help.contains("demo-worker"), "{help}");
    site.run("").expect(2);
    let usage = site.run("store delte x").expect(2);
    assert!(usage.stderr.contains("'delete'"), "{usage:#?}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(site.ok(&format!("completions {shell}")).contains("create-table"), "{shell}");
    }
    site.run("completions bash --json").expect(2).says(&["--json"]);
    assert!(site.ok("man").contains(".TH tenure 1"));
    site.ok("man --out pages");
    let pages = std::fs::read_dir(site.path("pages")).unwrap().count();
    assert!(pages > 20, "{pages}");
    let page = std::fs::read_to_string(site.path("pages/tenure-store-put.1")).unwrap();
    assert!(page.contains("if") && page.contains("Examples"), "{page}");
    // These do not need settings that read.
    site.write("tenure.toml", "[nonsense]");
    for line in ["completions bash", "man", "init --path other.toml", "--help"] {
        site.ok(line);
    }
}

#[test]
fn what_is_configured_by_flag_alone_is_used() {
    let site = Site::new();
    site.ok("store create-table locks --hash name --store sqlite:./other.db");
    assert!(site.path("other.db").exists() && !site.path("tenure.db").exists());
    let mut command = site.command("store describe locks --json");
    command.env("TENURE__STORE__URL", "sqlite:./other.db");
    assert_eq!(ran(command).expect(0).json()[0]["table"], "locks");
}
