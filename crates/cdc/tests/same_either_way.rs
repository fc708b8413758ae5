//! Who a change is must not depend on how the server sent it: the same log, read by two sessions of a real
//! server, one that streams whatever exceeds 64 kB and one that never does, gives the same transactions.

use std::fmt::Write as _;

use tenure_clock::Entropy;
use tokio_postgres::Client;

use crate::golden::committed;
use crate::server::{Database, in_time, url};

const SESSIONS: u64 = 4;
const TRANSACTIONS: u64 = 450;

#[tokio::test]
async fn a_streamed_transaction_has_the_same_changes_at_the_same_places() {
    Database::lend(&url(), |database| Box::pin(compare(database))).await;
}

async fn compare(database: Database) {
    let admin = database.client().await;
    let mut setup = String::from(
        "CREATE TABLE shared (id bigint PRIMARY KEY, name text, big text);
         ALTER TABLE shared ALTER big SET STORAGE EXTERNAL;
         CREATE TABLE entire (a bigint, b text);
         ALTER TABLE entire REPLICA IDENTITY FULL;
         CREATE TABLE filler (id int);",
    );
    for session in 0..SESSIONS {
        writeln!(setup, "CREATE TABLE own_{session} (id bigint PRIMARY KEY, c text);").unwrap();
    }
    let owned: Vec<String> = (0..SESSIONS).map(|session| format!("own_{session}")).collect();
    write!(setup, "CREATE PUBLICATION p FOR TABLE shared, entire, {};", owned.join(", ")).unwrap();
    admin.batch_execute(&setup).await.unwrap();

    let options = "messages 'on', publication_names 'p'";
    let plain = database.record("plain", &format!("proto_version '1', {options}"), "64MB").await;
    let streamed = format!("proto_version '2', streaming 'on', {options}");
    let streamed = database.record("streamed", &streamed, "64kB").await;
    let reads: Vec<_> = [plain, streamed]
        .into_iter()
        .map(|mut recording| {
            tokio::spawn(async move {
                recording.until("all is done").await;
                recording.messages
            })
        })
        .collect();

    let seed = Entropy::system().u64();
    println!("seed {seed}");
    let mut sessions = Vec::new();
    for session in 0..SESSIONS {
        let client = database.client().await;
        let entropy = Entropy::seeded(seed ^ session);
        sessions.push(tokio::spawn(async move {
            for _ in 0..TRANSACTIONS {
                in_time(transaction(&client, &entropy, session)).await;
            }
        }));
    }
    for session in sessions {
        session.await.unwrap();
    }
    admin.batch_execute("SELECT pg_logical_emit_message(true, 'tenure', 'all is done')").await.unwrap();

    let mut recorded = Vec::new();
    for read in reads {
        recorded.push(read.await.unwrap());
    }
    let kinds = |kind: u8| recorded[1].iter().filter(|(_, message)| message[0] == kind).count();
    let whole = |message: &[u8]| message[1..5] == message[5..9];
    let aborts = recorded[1].iter().filter(|(_, message)| message[0] == b'A');
    let (wholes, parts): (Vec<_>, Vec<_>) = aborts.partition(|(_, message)| whole(message));
    println!("{} chunks, {} commits, {} and {} aborts", kinds(b'S'), kinds(b'c'), wholes.len(), parts.len());
    assert!(kinds(b'c') >= 50 && !wholes.is_empty() && !parts.is_empty(), "the test tests something");
    assert!(recorded[0].iter().all(|(_, message)| !b"SEcA".contains(&message[0])));

    // The one that is never streamed needs no disk.
    let (plain, streamed) = (committed(&recorded[0], 0), committed(&recorded[1], u64::MAX));
    let count = plain.iter().filter(|line| line.starts_with("begin")).count();
    assert!(count >= 1000, "{count} transactions");
    for (number, (plain, streamed)) in plain.iter().zip(&streamed).enumerate() {
        assert_eq!(plain, streamed, "line {number}");
    }
    assert_eq!(plain.len(), streamed.len());
}

/// One transaction that does a few random things, with savepoints, and in the end mostly commits.
async fn transaction(client: &Client, entropy: &Entropy, session: u64) {
    let large = entropy.chance(0.2);
    // Messages and rollbacks to savepoints in one streamed transaction are refused.
    let speaks = entropy.chance(0.4);
    let mut depth = 0;
    client.batch_execute("BEGIN").await.unwrap();
    for _ in 0..=entropy.below(if large { 12 } else { 4 }) {
        let id = session * 1000 + entropy.below(50);
        let other = session * 1000 + 50 + entropy.below(900);
        let statement = match entropy.below(16) {
            0..=3 => format!(
                "INSERT INTO shared VALUES ({id}, 'é{other}', repeat('{}', {})) \
                 ON CONFLICT (id) DO UPDATE SET name = excluded.name",
                other % 10,
                entropy.below(4) * 1500
            ),
            4 => format!(
                "UPDATE shared SET id = {other} WHERE id = {id} AND NOT EXISTS (SELECT FROM shared WHERE id = {other})"
            ),
            5 => format!("DELETE FROM shared WHERE id = {id}"),
            6 => format!(
                "INSERT INTO entire SELECT {id}, n::text FROM generate_series(1, {}) n",
                entropy.below(30)
            ),
            7 => format!("DELETE FROM entire WHERE a = {id}"),
            8 => format!("INSERT INTO own_{session} VALUES ({id}, 'x') ON CONFLICT DO NOTHING"),
            9 if speaks => {
                format!("SELECT pg_logical_emit_message({}, 'topic', '{id}')", entropy.chance(0.7))
            }
            10 if entropy.chance(0.2) => format!("TRUNCATE own_{session} RESTART IDENTITY"),
            // A table that looks otherwise, maybe only until the savepoint is rolled back.
            11 if entropy.chance(0.3) => format!(
                "ALTER TABLE own_{session} ADD COLUMN IF NOT EXISTS c{other} int; INSERT INTO own_{session} (id) VALUES ({id}) ON CONFLICT DO NOTHING"
            ),
            12 if depth > 0 && !speaks => {
                depth -= 1;
                // So that some of it was streamed before.
                format!("SELECT pg_sleep(0.003); ROLLBACK TO s{depth}; RELEASE s{depth}")
            }
            13 if depth > 0 => {
                depth -= 1;
                format!("RELEASE s{depth}")
            }
            _ if depth < 4 => {
                depth += 1;
                format!("SAVEPOINT s{}", depth - 1)
            }
            _ => String::new(),
        };
        client.batch_execute(&statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        if large {
            client.batch_execute("INSERT INTO filler SELECT generate_series(1, 300)").await.unwrap();
        }
    }
    let end = if entropy.chance(0.1) { "ROLLBACK" } else { "COMMIT" };
    client.batch_execute(end).await.unwrap();
}
