//! Several processes on one file. The test binary runs itself again as the other processes.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tenure_store::testing::soon;
use tenure_store::{Condition, Key, Store, StoreExt, Update, Written};

use super::{open_at, row, spec};

/// Which file a process of the test works on, and its number.
const FILE: &str = "TENURE_TEST_FILE";
const NUMBER: &str = "TENURE_TEST_NUMBER";

/// A copy of this test binary that runs `entry` alone, with its standard output to read from.
pub(super) fn start(entry: &str, file: &Path, number: usize) -> Child {
    start_by(Command::new(std::env::current_exe().unwrap()), entry, file, number)
}

/// As [`start`], where `command` runs this test binary.
pub(super) fn start_by(mut command: Command, entry: &str, file: &Path, number: usize) -> Child {
    command
        .args(["--exact", entry, "--nocapture", "--ignored"])
        .env(FILE, file)
        .env(NUMBER, number.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What this copy was started for.
pub(super) fn assignment() -> (PathBuf, usize) {
    let file = std::env::var_os(FILE).expect("started by another test, with the file to work on");
    (file.into(), std::env::var(NUMBER).unwrap().parse().unwrap())
}

/// The lines a process printed that begin with `word`, without it.
pub(super) fn said(child: &mut Child, word: &str) -> Vec<String> {
    let output = child.stdout.take().unwrap();
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    // The test harness may print its own words before the first of ours on the same line.
    lines.filter_map(|line| line.split_once(word).map(|(_, rest)| rest.trim().to_owned())).collect()
}

/// Races one row, then adds 25 to a counter by compare-and-swap.
#[tokio::test]
#[ignore = "the part of another process: started by the test below"]
async fn racer() {
    let (file, number) = assignment();
    let store = open_at(&file);
    store.ensure_table(soon(), &spec()).await.unwrap();
    let mine = row("lock").with("owner", i64::try_from(number).unwrap());
    if store.put(soon(), "rows", mine, Condition::absent("pk")).await.unwrap().is_applied() {
        println!("WON {number}");
    }
    let key = || Key::new("pk", "counter");
    for _ in 0..25 {
        loop {
            let seen = store.get(soon(), "rows", &key()).await.unwrap();
            let n = seen.and_then(|row| row.integer("n"));
            let when = n.map_or(Condition::absent("n"), |n| Condition::eq("n", n));
            let change = Update::new().set("n", n.unwrap_or(0) + 1);
            if let Written::Applied(_) = store.update(soon(), "rows", key(), change, when).await.unwrap() {
                break;
            }
        }
    }
    println!("DONE {number}");
}

#[tokio::test]
async fn four_processes_race_one_row_and_share_one_counter() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenure.db");
    let mut racers: Vec<_> = (0..4).map(|number| start("sqlite::processes::racer", &file, number)).collect();
    let (mut winners, mut done) = (Vec::new(), 0);
    for racer in &mut racers {
        let output = racer.stdout.take().unwrap();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            winners.extend(line.split_once("WON ").map(|(_, number)| number.trim().parse::<i64>().unwrap()));
            done += usize::from(line.contains("DONE "));
        }
        assert!(racer.wait().unwrap().success());
    }
    assert_eq!((winners.len(), done), (1, 4));
    let store = open_at(&file);
    let lock = store.get(soon(), "rows", &Key::new("pk", "lock")).await.unwrap().unwrap();
    assert_eq!(lock.integer("owner"), winners.first().copied());
    let counter = store.get(soon(), "rows", &Key::new("pk", "counter")).await.unwrap().unwrap();
    assert_eq!(counter.integer("n"), Some(100));
}
