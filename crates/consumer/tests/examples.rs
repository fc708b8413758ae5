//! The examples, started as a new user would.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tenure_backend::Env;
use tenure_clock::{Clock as _, SystemClock};
use tenure_stream::{Record, StreamExt as _, StreamSpec};

use crate::effects_postgres::Place;
use crate::harness::FOREVER;

/// How long a slow machine may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// Cargo builds the examples before the tests that it runs, next to them.
fn example(name: &str) -> Option<PathBuf> {
    let tests = std::env::current_exe().unwrap();
    let profile = tests.parent().and_then(Path::parent).unwrap();
    let path = profile.join("examples").join(name);
    if !path.exists() {
        eprintln!("skipped: build {} with `cargo build --examples -p tenure-consumer`", path.display());
        return None;
    }
    Some(path)
}

/// A program that is killed when the test ends.
struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Running {
    fn start(program: &Path, arguments: &[&str], folder: &Path) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .current_dir(folder)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self { child, lines }
    }

    /// Asks it to end, as Ctrl-C does, and waits for it.
    fn interrupt(mut self) -> std::process::ExitStatus {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.child.wait().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The embedded stream in a folder, with some records.
async fn stream_with(folder: &Path, texts: &[&str]) {
    let address = format!("sqlite:{}", folder.join("tenure.db").display());
    let stream = tenure_stream::open(&address, &Env::system()).await.unwrap();
    stream.create(FOREVER, &StreamSpec::with_shards(2)).await.unwrap();
    let records: Vec<_> = texts.iter().map(|text| Record::new(*text, (*text).to_owned())).collect();
    let puts = stream.put_all(FOREVER, &records).await.unwrap();
    assert!(puts.iter().all(|put| put.stored().is_some()));
}

#[tokio::test(flavor = "multi_thread")]
async fn consume_prints_every_record_and_goes_on_where_it_was() {
    let Some(program) = example("consume") else { return };
    let folder = tempfile::tempdir().unwrap();
    stream_with(folder.path(), &["created", "paid", "shipped"]).await;
    let first = Running::start(&program, &[], folder.path());
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(first.lines.recv_timeout(PATIENCE).unwrap());
    }
    for text in ["created", "paid", "shipped"] {
        assert!(seen.iter().any(|line| line.ends_with(text)), "{seen:?}");
    }
    assert!(first.interrupt().success());
    stream_with(folder.path(), &["returned"]).await;
    let second = Running::start(&program, &[], folder.path());
    let line = second.lines.recv_timeout(PATIENCE).unwrap();
    assert!(line.ends_with("returned"), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exactly_once_counts_every_event_once() {
    let Some(program) = example("exactly_once") else { return };
    let Some(place) = Place::new().await else { return };
    let folder = tempfile::tempdir().unwrap();
    let events = [r#"{"table":"orders","n":1}"#, r#"{"table":"orders","n":2}"#, r#"{"table":"carts","n":3}"#];
    stream_with(folder.path(), &events).await;
    let client = place.connect().await;
    // Killed, and started again with one event more: each is counted once.
    let mut counts = Vec::new();
    for expected in [3, 4] {
        let running = Running::start(&program, &[&place.url()], folder.path());
        let query = "select coalesce(sum(events), 0)::bigint from totals";
        let mut counted = 0;
        for _ in 0..600 {
            // The table is not there at first.
            counted = client.query_one(query, &[]).await.map_or(0, |row| row.get::<_, i64>(0));
            if counted >= expected {
                break;
            }
            SystemClock.sleep(Duration::from_millis(50)).await;
        }
        drop(running);
        counts.push(counted);
        stream_with(folder.path(), &[r#"{"table":"carts","n":4}"#]).await;
    }
    place.drop().await;
    assert_eq!(counts, [3, 4]);
}
