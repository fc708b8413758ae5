//! What cannot work is refused, in words, before anything is written.

use crate::site::Site;

#[test]
fn settings_that_cannot_work() {
    let site = Site::new();
    let refused = |options: &str, says: &[&str]| {
        site.run(&format!("elect work {options} -- true")).expect(2).says(says);
    };
    refused("--lease 5s --renew 5s", &["renew period 5s", "less than the lease 5s"]);
    refused("--lease 5s --renew 4990ms", &["over before its renewal"]);
    refused("--lease 50ms", &["lease 50ms is not from"]);
    refused("--go-peers", &["needs a skew bound"]);
    refused("--go-peers --skew 1s --lease 2s", &["too short beside Go peers"]);
    refused("--json", &["standard output is the command's", "--log-format json"]);
    assert!(!site.path("tenure.db").exists(), "nothing was opened");
    refused("--log off --table a/b", &["`a/b`", "letters"]);
    let usage = |line: &str, says: &str| {
        let ran = site.run(line).expect(2);
        assert!(ran.stderr.contains(says), "{ran:#?}");
    };
    usage("elect work", "COMMAND");
    usage("elect work true", "unexpected argument 'true'");
    usage("elect work --owner a --owner-id b -- true", "cannot be used with");
    usage("elect work --about x -- true", "is not NAME=VALUE");
    usage("elect work --preset quick -- true", "balanced");
    usage("elect work --lease 0s -- true", "above zero");
    site.run_with("elect work --log off --owner", "").expect(2);
}

#[test]
fn names_that_cannot_be() {
    let site = Site::new();
    let shard = |shard: &str| {
        let mut command = site.command("elect");
        command.args([shard, "--", "true"]);
        crate::site::ran(command).expect(2)
    };
    shard("").says(&["shard id is empty"]);
    shard("a\nb").says(&["control characters"]);
    shard(&"x".repeat(2000)).says(&["2000 bytes", "at most 1024"]);
    let owner = "x".repeat(600);
    site.run(&format!("elect work --owner {owner} -- true")).expect(2).says(&["at most 512"]);
    site.run(&format!("elect work --owner-id {owner} -- true")).expect(2).says(&["at most 512"]);
}

#[test]
fn commands_that_are_not_there() {
    let site = Site::new();
    site.run("elect work -- no-such-command").expect(127).says(&["`no-such-command` is not there"]);
    site.write("plain", "text");
    site.run("elect work -- ./plain").expect(126).says(&["./plain", "not executable"]);
    assert!(!site.path("tenure.db").exists(), "nobody stood for election");
}

#[test]
fn tables_of_another_shape_and_rows_of_others() {
    let site = Site::new();
    site.ok("store create-table other --hash id");
    for line in
        ["elect work --log off --table other -- true", "leaders --table other", "resign work --table other"]
    {
        site.run(line).expect(2).says(&["`other` exists with the key id S, not pk S + sk S"]);
    }
    for line in ["leaders", "resign work"] {
        site.run(line).expect(2).says(&["`tenure_coordination` does not exist", "nobody stood"]);
    }
    let doctor = site.run("doctor --json").expect(0).json();
    assert!(!doctor.iter().any(|line| line["check"] == "election"), "{doctor:?}");

    site.ok("store create-table tenure_coordination --hash pk --range sk --ttl ttl");
    let put = |row: &str| site.run_with("store put tenure_coordination", row).expect(0);
    put(r#"{"pk":"SHARD#go","sk":"LOCK","ownerId":"go-1","ttl":99999999999}"#);
    put(r#"{"pk":"SHARD#odd","sk":"LOCK","ownerId":5,"ttl":99999999999}"#);
    put(r#"{"pk":"unrelated","sk":"row"}"#);
    let rows = site.json("store scan tenure_coordination");
    site.run("elect go --log off -- true").expect(2).says(&["written by the Go library", "skew bound"]);
    site.run("elect odd --log off -- true").expect(1).says(&["`ownerId` of type N, not S"]);
    site.run("resign go").expect(1).says(&["led by `go-1`", "Go library", "stop that process"]);
    site.run("resign odd").expect(1).says(&["`ownerId` of type N"]);
    site.run("resign nobody").expect(3);
    assert_eq!(site.json("store scan tenure_coordination"), rows, "nothing was written over");
    let listed = site.json("leaders");
    let shown: Vec<_> = listed.iter().map(|line| (line["shard"].as_str(), line["state"].as_str())).collect();
    assert_eq!(shown, [(Some("go"), Some("led")), (Some("odd"), Some("unreadable")), (None, None)]);
    assert_eq!(listed[2]["shards"], 2);
    assert!(listed[1]["problem"].as_str().unwrap().contains("`ownerId` of type N"), "{listed:?}");
    let doctor = site.run("doctor --json").expect(0).json();
    assert!(doctor.iter().any(|line| line["check"] == "election" && line["status"] == "ok"), "{doctor:?}");
}

#[test]
fn settings_say_where_elections_are() {
    let site = Site::new();
    site.write("tenure.toml", "[election]\ntable = 'mine'\npreset = 'fast'\n");
    site.run("leaders").expect(2).says(&["table `mine` does not exist"]);
    site.ok("store create-table mine --hash id");
    let doctor = site.run("doctor --json").expect(1).json();
    let found = doctor.iter().find(|line| line["check"] == "election").unwrap();
    assert!(found["status"] == "fail" && found["advice"].as_str().unwrap().contains("[election]"), "{found}");
    let ran = site.run("elect work --table fine --log-format json -- true").expect(0);
    assert!(
        ran.stderr.lines().all(|line| line.starts_with('{')) && ran.stderr.contains("elected"),
        "{ran:#?}"
    );
    assert_eq!(site.json("leaders --table fine")[0]["lease_ms"], 10_000);
    site.write("tenure.toml", "[election]\npreset = 'quick'\n");
    site.run("leaders").expect(2).says(&["tenure.toml:2", "election.preset", "balanced"]);
    site.write("tenure.toml", "[election]\ntabel = 'mine'\n");
    site.run("leaders").expect(2).says(&["did you mean `election.table`"]);
    site.write("tenure.toml", "[election]\ntable = 'a/b'\n");
    site.run("leaders").expect(2).says(&["tenure.toml:2", "election.table", "`a/b`"]);
}
