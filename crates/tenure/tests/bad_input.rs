//! What is wrong is named, with what to do, and nothing is half-written.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::site::{Site, ran};

#[test]
fn addresses_that_nothing_opens() {
    let site = Site::new();
    site.run("store scan locks --store sqlit:x.db")
        .expect(2)
        .says(&["unknown scheme `sqlit:`", "did you mean `sqlite:`"]);
    site.run("stream list --stream kinesys:x")
        .expect(2)
        .says(&["unknown scheme `kinesys:`", "did you mean `kinesis:`"]);
    let usage = site.run("store scan locks --store tenure.db").expect(2);
    assert!(
        usage.stderr.contains("has no scheme") && usage.stderr.contains("sqlite:./tenure.db"),
        "{usage:#?}"
    );
    site.run("store scan locks --store sqlite:/nowhere/at/all.db")
        .expect_failure(&["/nowhere/at/all.db", "directory"]);
    let doctor = site.run("doctor --store sqlit:x.db --json").expect(1).json();
    assert_eq!(doctor[1]["status"], "fail");
    assert_eq!(doctor.last().unwrap()["ok"], false);
}

#[test]
fn tables_and_names() {
    let site = Site::new();
    for line in
        ["store scan nowhere", "store get nowhere pk=a", "store watch nowhere", "store describe nowhere"]
    {
        site.run(line)
            .expect(2)
            .says(&["table `nowhere` does not exist", "tenure store create-table nowhere"]);
    }
    site.run_with("store put nowhere", r#"{"pk":"a"}"#).expect(2).says(&["create-table"]);
    site.run("store create-table a/b --hash pk").expect(2).says(&["`a/b`", "letters"]);
    site.run("stream list --stream memory:a/b").expect(2).says(&["`a/b`", "letters"]);
    site.ok("store create-table locks --hash name");
    site.run("store create-table locks --hash other")
        .expect(2)
        .says(&["locks", "exists with the key name S"]);
    let usage = site.run("store create-table locks --hash name:Q").expect(2);
    assert!(usage.stderr.contains("S (text), N (number) or B (bytes)"), "{usage:#?}");
}

#[test]
fn keys_and_numbers() {
    let site = Site::new();
    site.ok("store create-table events --hash stream --range at:N");
    site.run("store get events stream=o at=x").expect(2).says(&["attribute `at`", "`x` is not a number"]);
    site.run("store get events stream:N=5 at=1")
        .expect(2)
        .says(&["`stream` of table `events` is a S, not a N"]);
    site.run("store get events stream=o").expect(2).says(&["`at` is missing"]);
    site.run("store get events stream=o ta=1").expect(2).says(&["did you mean `at`"]);
    let put = |row: &str| site.run_with("store put events", row).expect(2);
    put(r#"{"stream":5,"at":1}"#).says(&["`stream` of table `events` is a S, not a N"]);
    put(r#"{"stream":"o","at":1,"n":1e126}"#).says(&["attribute `n`", "out of range", "store it as text"]);
    put(r#"{"stream":"o","at":1,"n":123456789012345678901234567890123456789}"#)
        .says(&["attribute `n`", "digits"]);
    put(r#"{"stream":"o","at":1"#).says(&["not a JSON object"]);
    put(r#"{"stream":"","at":1}"#).says(&["`stream`"]);
    put(&format!(r#"{{"stream":"{}","at":1}}"#, "x".repeat(3000))).says(&["2048"]);
    assert_eq!(site.json("store scan events")[0]["rows"], 0, "nothing was written");
}

#[test]
fn too_large() {
    let site = Site::new();
    site.ok("store create-table locks --hash name");
    let row = format!(r#"{{"name":"a","v":"{}"}}"#, "x".repeat(500_000));
    site.run_on("store put locks -", row.as_bytes()).expect(2).says(&["409600"]);
    let endless = "x".repeat(4_000_000);
    site.run_on("store put locks -", endless.as_bytes()).expect(2).says(&["standard input", "409600"]);
    assert_eq!(site.json("store scan locks")[0]["rows"], 0);

    site.ok("stream create");
    let large = format!("small\n{}\n", "x".repeat(2_000_000));
    let put = site.run_on("stream put --lines --key k", large.as_bytes()).expect(2);
    put.says(&["line 2", "1048576", "after 1 record stored"]);
    let key = "k".repeat(300);
    let put = site.run(&format!("stream put --key {key} data --json")).expect(1);
    assert!(put.stderr.contains("300 characters"), "{put:#?}");
    assert_eq!(put.json().last().unwrap()["failed"], 1);
    let read = site.json("stream tail");
    assert_eq!((read.len(), read[0]["data"].as_str()), (1, Some("small")));
}

#[test]
fn streams_that_are_reshaped_wrongly() {
    let site = Site::new();
    site.run("stream put --key a x").expect(2).says(&["no stream `main`", "tenure stream create"]);
    site.run("stream create --shards 0").expect(2).says(&["0 shards"]);
    site.ok("stream create --shards 3");
    site.run("stream split shardId-00000000001").expect(2).says(&["did you mean `shardId-00000000000"]);
    site.run("stream split shardId-000000000001 --at 1").expect(2).says(&["cannot be split at 1"]);
    let apart = site.run("stream merge shardId-000000000000 shardId-000000000002").expect(2);
    apart.says(&["do not touch"]);
    site.run("stream tail --from 5").expect(2).says(&["--shard"]);
    site.run("stream tail --shard shardId-000000000000 --from 99999").expect(2).says(&["99999"]);
    let usage = site.run("stream tail --from lates").expect(2);
    assert!(usage.stderr.contains("did you mean `latest`"), "{usage:#?}");
    assert_eq!(site.json("stream list").last().unwrap()["open"], 3, "nothing was changed");
}

#[test]
fn files_that_cannot_be_used() {
    let site = Site::new();
    site.write("broken.db", "this is no database, and never was one; ".repeat(200));
    let before = std::fs::read(site.path("broken.db")).unwrap();
    site.run("store scan locks --store sqlite:./broken.db").expect(1).says(&["broken.db", "restore"]);
    assert_eq!(std::fs::read(site.path("broken.db")).unwrap(), before, "nothing was written over it");
    site.write("broken.db-stream", &before);
    site.run("stream list --stream sqlite:./broken.db").expect(1).says(&["broken.db-stream", "restore"]);
    let doctor = site.run("doctor --json --store sqlite:./broken.db").expect(1).json();
    assert!(doctor[1]["message"].as_str().unwrap().contains("broken.db"), "{doctor:?}");

    site.ok("store create-table locks --hash name");
    site.run_with("store put locks", r#"{"name":"a"}"#).expect(0);
    std::fs::set_permissions(site.path("tenure.db"), std::fs::Permissions::from_mode(0o444)).unwrap();
    let mut put = bound_by_permissions(&site.command("store put locks"));
    put.arg(r#"{"name":"b"}"#);
    ran(put).expect(1).says(&["tenure.db", "read-only"]);
    // Reading needs no more than that.
    let scan = ran(bound_by_permissions(&site.command("store scan locks --json"))).expect(0).json();
    assert_eq!(
        (scan.len(), &scan[0]["item"]["name"]["S"], &scan[1]["rows"]),
        (2, &"a".into(), &1.into()),
        "{scan:?}"
    );
}

/// The same command in a process that may do what a file's mode says, root or not.
fn bound_by_permissions(command: &Command) -> Command {
    let mut bound = Command::new(command.get_program());
    if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
        // What lets root write any file is taken from it; whose the files are stays as it is.
        bound = Command::new("setpriv");
        bound.arg("--bounding-set=-dac_override,-dac_read_search").arg(command.get_program());
    }
    bound.args(command.get_args()).current_dir(command.get_current_dir().unwrap());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    bound
}

#[cfg(feature = "postgres")]
#[test]
fn servers_that_cannot_be_reached() {
    let site = Site::new();
    // Port 1 is closed everywhere.
    let store = "postgres://ann@127.0.0.1:1/app";
    let ran = site.run(&format!("store scan locks --timeout 3s --store {store}")).expect(1);
    ran.says(&["127.0.0.1:1/app", "cannot be reached", "is it running"]);
    site.write("tenure.toml", format!("[postgres]\nurl = '{store}'\n"));
    let doctor = site.run("doctor --json --timeout 3s").expect(1).json();
    let found = doctor.iter().find(|line| line["check"] == "postgres").unwrap();
    assert!(
        found["status"] == "fail" && found["message"].as_str().unwrap().contains("is it running"),
        "{found}"
    );
}

impl crate::site::Ran {
    /// Must have failed, whether by a mistake or not, with all of these in its one line.
    #[track_caller]
    fn expect_failure(self, parts: &[&str]) {
        assert!([1, 2].contains(&self.code), "{self:#?}");
        self.says(parts);
    }
}
