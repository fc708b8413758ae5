//! Several processes on one file, and processes that are killed while they write.
//!
//! The test program starts itself again with a role in the environment; the roles are tests that do
//! nothing without it.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tenure_backend::Env;
use tenure_backend::sqlite::rusqlite::Connection;
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_stream::{HashKey, Position, Put, Read, Record, ShardId, Sqlite, Stream, StreamExt, StreamSpec};

use super::{everything, soon};

const PATH: &str = "TENURE_STREAM_TEST_PATH";
const NAME: &str = "TENURE_STREAM_TEST_NAME";
const COUNT: &str = "TENURE_STREAM_TEST_COUNT";

/// Starts this program again in a role, with its own name and a number that the role understands.
fn start(role: &str, path: &Path, name: &str, count: usize) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{role}"), "--nocapture", "--include-ignored", "--quiet"])
        .env(PATH, path)
        .env(NAME, name)
        .env(COUNT, count.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What this process was told, if it was started in a role.
fn told() -> Option<(Sqlite, String, usize)> {
    let path = std::env::var_os(PATH)?;
    let name = std::env::var(NAME).unwrap();
    let count = std::env::var(COUNT).unwrap().parse().unwrap();
    Some((Sqlite::open(Path::new(&path), "shared", &Env::system()).unwrap(), name, count))
}

/// One line, whole, and out before anything else is done.
fn say(line: &str) {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(line.as_bytes()).unwrap();
    stdout.flush().unwrap();
}

/// Puts `count` records, a few at a time, and says each once it is acknowledged.
#[tokio::test]
#[ignore = "a role of the tests below"]
async fn role_writer() {
    let Some((stream, name, count)) = told() else { return };
    let entropy = Entropy::system();
    let mut next = 0;
    while next < count {
        let until = (next + 1 + usize::try_from(entropy.below(4)).unwrap()).min(count);
        let texts: Vec<_> = (next..until).map(|number| format!("{name}/{number}")).collect();
        let records: Vec<_> = texts
            .iter()
            .map(|text| Record::new(text.as_str(), [text.as_bytes(), &[b'.'; 300]].concat()))
            .collect();
        let puts = stream.put(soon(), &records).await.unwrap();
        let mut lines = String::from("\n");
        for (put, text) in puts.iter().zip(&texts) {
            let Put::Stored { shard, sequence } = put else { panic!("{put:?}") };
            lines.push_str(&format!("put {shard} {sequence} {text}\n"));
        }
        say(&lines);
        next = until;
    }
}

/// Reads all shards, new ones too, until it has seen `count` records, and says what it saw.
#[tokio::test]
#[ignore = "a role of the tests below"]
async fn role_reader() {
    let Some((stream, _, count)) = told() else { return };
    let mut cursors: BTreeMap<ShardId, Option<tenure_stream::Cursor>> = BTreeMap::new();
    let mut seen = 0;
    while seen < count {
        for shard in stream.all_shards(soon()).await.unwrap() {
            if let Entry::Vacant(place) = cursors.entry(shard.id.clone()) {
                let cursor = stream.cursor(soon(), &shard.id, &Position::TrimHorizon).await.unwrap();
                place.insert(Some(cursor));
            }
        }
        for cursor in cursors.values_mut() {
            let Some(from) = cursor.clone() else { continue };
            let Read::Records(batch) = stream.read(soon(), &from, 100).await.unwrap() else {
                panic!("trimmed")
            };
            *cursor = batch.next;
            seen += batch.records.len();
            for record in batch.records {
                say(&format!("\nput {} {} {}\n", record.shard, record.sequence, text_of(&record.data)));
            }
        }
        stream.wait(SystemClock.deadline(Duration::from_secs(1))).await;
    }
}

fn text_of(data: &[u8]) -> String {
    String::from_utf8_lossy(data).trim_end_matches('.').to_owned()
}

/// A record as a process told it: shard, sequence number, text.
type Told = (String, u64, String);

/// What was told so far, up to the last whole line.
fn listen(stdout: ChildStdout) -> impl Iterator<Item = Told> {
    let mut lines = BufReader::new(stdout);
    std::iter::from_fn(move || {
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line).ok()? == 0 || !line.ends_with('\n') {
                return None;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            if let ["put", shard, sequence, text] = words[..] {
                return Some((shard.to_owned(), sequence.parse().unwrap(), text.to_owned()));
            }
        }
    })
}

fn told_by(child: &mut Child) -> Vec<Told> {
    let told = listen(child.stdout.take().unwrap()).collect();
    assert!(child.wait().unwrap().success(), "a process failed");
    told
}

/// Three writing and two reading processes share a file, while this one splits and merges.
#[tokio::test]
async fn processes_share_a_file() {
    const EACH: usize = 150;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared-stream");
    let stream = Sqlite::open(&path, "shared", &Env::system()).unwrap();
    stream.create(soon(), &StreamSpec::with_shards(2)).await.unwrap();
    let mut readers: Vec<_> = (0..2).map(|_| start("role_reader", &path, "reader", 3 * EACH)).collect();
    let mut writers: Vec<_> =
        (0..3).map(|writer| start("role_writer", &path, &format!("w{writer}"), EACH)).collect();
    let mut watched = 0;
    while watched < EACH {
        watched = everything(&stream, soon()).await.len();
        stream.wait(SystemClock.deadline(Duration::from_secs(1))).await;
    }
    stream.split(soon(), &ShardId::numbered(0), HashKey(1 << 126)).await.unwrap();
    stream.merge(soon(), &ShardId::numbered(3), &ShardId::numbered(1)).await.unwrap();

    let written: BTreeSet<Told> = writers.iter_mut().flat_map(told_by).collect();
    assert_eq!(written.len(), 3 * EACH);
    for reader in &mut readers {
        let read = told_by(reader);
        assert_eq!(read.len(), 3 * EACH, "each record once");
        let mut last: BTreeMap<&str, u64> = BTreeMap::new();
        for (shard, sequence, _) in &read {
            let before = last.insert(shard, *sequence);
            assert!(before.is_none_or(|before| before < *sequence), "out of order in {shard}");
        }
        assert_eq!(read.into_iter().collect::<BTreeSet<_>>(), written);
    }
}

/// Writers are killed in the middle of their work, again and again: what they were told is there.
#[tokio::test]
async fn killed_writers_lose_nothing_that_was_acknowledged() {
    let kills = if std::env::var_os("TENURE_LONG").is_some() { 1000 } else { 100 };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shared-stream");
    let stream = Sqlite::open(&path, "shared", &Env::system()).unwrap();
    stream.create(soon(), &StreamSpec::with_shards(4)).await.unwrap();
    drop(stream);
    let entropy = Entropy::seeded(9);
    let mut acknowledged: BTreeSet<Told> = BTreeSet::new();
    // Two at a time, so that the one that is killed holds up, or is held up by, the other.
    let mut previous: Option<Child> = None;
    for kill in 0..=kills {
        let mut next = (kill < kills).then(|| start("role_writer", &path, &format!("w{kill}"), 1_000_000));
        std::mem::swap(&mut previous, &mut next);
        let Some(mut victim) = next else { continue };
        let mut told = listen(victim.stdout.take().unwrap());
        let wanted = 1 + usize::try_from(entropy.below(30)).unwrap();
        acknowledged.extend(told.by_ref().take(wanted));
        victim.kill().unwrap();
        acknowledged.extend(told);
        victim.wait().unwrap();
    }
    assert!(acknowledged.len() >= kills);

    let sound: String =
        Connection::open(&path).unwrap().query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(sound, "ok");
    let stream = Sqlite::open(&path, "shared", &Env::system()).unwrap();
    let found = everything(&stream, soon()).await;
    let kept: BTreeSet<Told> = found
        .iter()
        .map(|record| (record.shard.to_string(), record.sequence.as_u64().unwrap(), text_of(&record.data)))
        .collect();
    assert_eq!(kept.len(), found.len(), "each record once");
    let lost: Vec<_> = acknowledged.difference(&kept).collect();
    assert!(lost.is_empty(), "lost {} of {}: {:?}", lost.len(), acknowledged.len(), lost.first());
}
