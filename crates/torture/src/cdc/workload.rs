//! Writers that change rows without a pause, and write what they changed into a ledger in the same transaction.
//!
//! Each key belongs to one writer, so the order of a key's changes is the order of its ledger rows. The ledger
//! is not published. A commit whose reply was lost in a crash needs no thought: its ledger rows are there, or
//! they are not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_clock::Entropy;
use tenure_clock::{Clock as _, SystemClock, within};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use super::ledger::{Change, Op};

/// What is captured.
pub(crate) const TABLES: [&str; 5] = ["items", "whole", "blobs", "side", "notes"];

pub(crate) const SCHEMA: &str = "
    CREATE SEQUENCE versions;
    CREATE SEQUENCE moments;
    CREATE TABLE items (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
    CREATE TABLE whole (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
    ALTER TABLE whole REPLICA IDENTITY FULL;
    CREATE TABLE blobs (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
    CREATE TABLE side (id bigint PRIMARY KEY, version bigint NOT NULL, note text);
    CREATE TABLE notes (version bigint NOT NULL, note text);
    CREATE TABLE ledger (moment bigint NOT NULL DEFAULT nextval('moments'), name text NOT NULL, id bigint NOT NULL,
                         op text NOT NULL, version bigint);";

/// Each with keys of its own.
pub(crate) const WRITERS: u64 = 4;
/// Rows of each writer in each table: few, so that keys are changed often.
const KEYS: u64 = 25;
/// Writers' keys are this far apart.
const RANGE: u64 = 1_000_000;
/// Within a writer's range, the rows of large transactions begin here.
const LARGE: u64 = 100_000;
const LARGE_ROWS_MAX: u64 = 1200;
/// Beyond what a record of the stream can hold.
const BLOB_BYTES_MIN: u64 = 1_100_000;
/// A statement that takes longer meets a server that is gone.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Shared by the writers and whoever holds their reins.
#[derive(Debug, Default)]
pub(crate) struct Reins {
    stop: AtomicBool,
    hold: AtomicBool,
    ended: AtomicU64,
}

impl Reins {
    /// Nobody begins another transaction while this is on: the pipeline is to catch up.
    pub(crate) fn hold(&self, on: bool) {
        self.hold.store(on, Ordering::SeqCst);
    }

    /// How many transactions came to their end, one way or the other.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::SeqCst)
    }
}

/// The writers.
pub(crate) struct Workload {
    pub(crate) reins: Arc<Reins>,
    writers: JoinSet<()>,
}

impl Workload {
    pub(crate) fn start(url: &str, entropy: &Entropy) -> Self {
        let reins = Arc::new(Reins::default());
        let mut writers = JoinSet::new();
        for number in 0..WRITERS {
            let writer =
                Writer { number, url: url.to_owned(), entropy: entropy.fork(), reins: reins.clone() };
            writers.spawn(writer.write());
        }
        Self { reins, writers }
    }

    /// Lets each writer finish its transaction.
    pub(crate) async fn end(mut self) {
        self.reins.stop.store(true, Ordering::SeqCst);
        while self.writers.join_next().await.is_some() {}
    }
}

struct Writer {
    number: u64,
    url: String,
    entropy: Entropy,
    reins: Arc<Reins>,
}

impl Writer {
    async fn write(self) {
        let mut client: Option<Client> = None;
        while !self.reins.stop.load(Ordering::SeqCst) {
            if self.reins.hold.load(Ordering::SeqCst) {
                SystemClock.sleep(Duration::from_millis(20)).await;
                continue;
            }
            let connected = match client.take() {
                Some(client) => Some(client),
                None => connect(&self.url).await,
            };
            // Postgres is down, or was when the transaction was under way: its ledger rows tell.
            let Some(open) = connected else {
                SystemClock.sleep(Duration::from_millis(100)).await;
                continue;
            };
            if let Ok(Ok(())) = within(
                &SystemClock,
                SystemClock.deadline(STATEMENT_TIMEOUT),
                Box::pin(self.transaction(&open)),
            )
            .await
            {
                self.reins.ended.fetch_add(1, Ordering::SeqCst);
                client = Some(open);
            }
            SystemClock.sleep(Duration::from_millis(20 + self.entropy.below(60))).await;
        }
    }

    async fn transaction(&self, client: &Client) -> Result<()> {
        let mut sql = vec!["BEGIN".to_owned()];
        let mut held = Duration::ZERO;
        match self.entropy.below(100) {
            0..70 => sql.extend((0..=self.entropy.below(6)).map(|_| self.one())),
            70..80 => sql.push(self.some()),
            80..82 => {
                sql.extend(self.large());
                held = self.entropy.up_to(Duration::from_millis(300));
            }
            82..85 => sql.push(self.blob()),
            85..92 if self.number == 0 => sql.push(self.notes()),
            85..95 if self.number == 1 => sql.extend(self.side()),
            _ => {
                sql.push(self.one());
                sql.extend(["SAVEPOINT a".to_owned(), self.some(), self.one()]);
                sql.push("ROLLBACK TO a".to_owned());
                sql.push(self.one());
            }
        }
        // All in one message, but for the end: some transactions stay open for a while.
        client.batch_execute(&sql.join(";\n")).await?;
        if !held.is_zero() {
            SystemClock.sleep(held).await;
        }
        let end = if self.entropy.chance(0.06) { "ROLLBACK" } else { "COMMIT" };
        client.batch_execute(end).await?;
        Ok(())
    }

    fn table(&self) -> &'static str {
        if self.entropy.chance(0.5) { "items" } else { "whole" }
    }

    fn key(&self) -> u64 {
        self.number * RANGE + self.entropy.below(KEYS)
    }

    /// One change of one row, if it can be made: nothing happens to a row that is not there.
    fn one(&self) -> String {
        let (table, key) = (self.table(), self.key());
        let note = format!("repeat('n', {})", self.entropy.below(300));
        match self.entropy.below(10) {
            0..4 => insert(table, key, key, &note),
            4..7 => update(table, key, key, &note),
            7..9 => delete(table, key, key),
            _ => change_key(table, key, self.key()),
        }
    }

    /// All rows of a table at once.
    fn some(&self) -> String {
        let (table, first) = (self.table(), self.number * RANGE);
        update(table, first, first + KEYS - 1, "note")
    }

    /// Thousands of rows, with parts that are taken back.
    fn large(&self) -> Vec<String> {
        let first = self.number * RANGE + LARGE;
        let last =
            |share: u64| first + LARGE_ROWS_MAX / share + self.entropy.below(LARGE_ROWS_MAX / share / 2);
        let note = "repeat('l', 150)";
        let mut sql = vec![insert("whole", first, last(2), note)];
        sql.push("SAVEPOINT a".to_owned());
        sql.push(update("whole", first, last(4), note));
        sql.push(insert("items", first, last(4), note));
        if self.entropy.chance(0.5) {
            sql.push("ROLLBACK TO a".to_owned());
        }
        sql.push("SAVEPOINT b".to_owned());
        sql.push(delete("whole", first + LARGE_ROWS_MAX / 4, last(1)));
        sql.push("RELEASE b".to_owned());
        sql.push(update("items", first, last(8), note));
        if self.entropy.chance(0.3) {
            sql.push(delete("items", first, last(1)));
        }
        sql
    }

    /// A value that no record of the stream can hold, or a change beside it.
    fn blob(&self) -> String {
        let key = self.number * RANGE + self.entropy.below(4);
        let note = format!("repeat('b', {})", BLOB_BYTES_MIN + self.entropy.below(200_000));
        match self.entropy.below(4) {
            0 => delete("blobs", key, key),
            1 => update("blobs", key, key, "note"),
            _ => insert("blobs", key, key, &note),
        }
    }

    /// A table without a key: all in one order.
    fn notes(&self) -> String {
        let rows = 1 + self.entropy.below(5);
        format!(
            "WITH done AS (INSERT INTO notes SELECT nextval('versions'), 'n' FROM generate_series(1, {rows})
                           RETURNING version)
             INSERT INTO ledger (name, id, op, version) SELECT 'notes', 0, 'insert', version FROM done ORDER BY version"
        )
    }

    /// A table that is emptied now and then.
    fn side(&self) -> Vec<String> {
        let mut sql = vec![insert("side", 1, 1 + self.entropy.below(20), "'s'")];
        if self.entropy.chance(0.3) {
            sql.push("TRUNCATE side".to_owned());
            sql.push("INSERT INTO ledger (name, id, op) VALUES ('side', 0, 'truncate')".to_owned());
            sql.push(insert("side", 1, 3, "'t'"));
        }
        sql
    }
}

pub(crate) async fn connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

// === Changes, each with its ledger rows ===

/// Inserts those of the rows that are not there.
pub(crate) fn insert(table: &str, first: u64, last: u64, note: &str) -> String {
    format!(
        "WITH done AS (INSERT INTO {table} SELECT i, nextval('versions'), {note} FROM generate_series({first}, {last}) i
                       WHERE NOT EXISTS (SELECT FROM {table} there WHERE there.id = i) RETURNING id, version)
         INSERT INTO ledger (name, id, op, version) SELECT '{table}', id, 'insert', version FROM done"
    )
}

fn update(table: &str, first: u64, last: u64, note: &str) -> String {
    format!(
        "WITH done AS (UPDATE {table} SET version = nextval('versions'), note = {note}
                       WHERE id BETWEEN {first} AND {last} RETURNING id, version)
         INSERT INTO ledger (name, id, op, version) SELECT '{table}', id, 'update', version FROM done"
    )
}

pub(crate) fn delete(table: &str, first: u64, last: u64) -> String {
    format!(
        "WITH done AS (DELETE FROM {table} WHERE id BETWEEN {first} AND {last} RETURNING id)
         INSERT INTO ledger (name, id, op) SELECT '{table}', id, 'delete' FROM done"
    )
}

/// Gives a table a column more, or takes that away again. A row follows in the same transaction, so that readers are
/// told at once; but not of a table that nobody has seen before.
pub(crate) fn alter(table: &str, wider: bool, key: u64) -> String {
    let change = if wider { "ADD COLUMN more bigint" } else { "DROP COLUMN more" };
    format!(
        "BEGIN;
         ALTER TABLE {table} {change};
         INSERT INTO ledger (name, id, op) SELECT '{table}', 0, 'schema'
         WHERE EXISTS (SELECT FROM ledger WHERE name = '{table}');
         {};
         COMMIT",
        insert(table, key, key, "'a'")
    )
}

/// Gives a row another key, if that is free: a delete of the one and an insert of the other. Where the whole row is
/// the identity there is no key to change, and it is an update.
fn change_key(table: &str, from: u64, to: u64) -> String {
    let told = match table {
        "whole" => format!("({to}::bigint, 'update', done.version)"),
        _ => format!("({from}::bigint, 'delete', NULL::bigint), ({to}, 'insert', done.version)"),
    };
    format!(
        "WITH done AS (UPDATE {table} SET id = {to}, version = nextval('versions')
                       WHERE id = {from} AND NOT EXISTS (SELECT FROM {table} there WHERE there.id = {to})
                       RETURNING version)
         INSERT INTO ledger (name, id, op, version)
         SELECT '{table}', id, op, told FROM done, LATERAL (VALUES {told}) event (id, op, told)"
    )
}

/// What was committed, in the order of each key's commits; what concerns a table, once for each lane.
pub(crate) async fn committed(client: &Client, lanes: u16) -> Result<Vec<Change>> {
    let rows = client
        .query("SELECT name, id, op, version FROM ledger ORDER BY moment", &[])
        .await
        .context("read the ledger")?;
    let mut changes = Vec::with_capacity(rows.len());
    for row in rows {
        let (name, key): (&str, i64) = (row.get(0), row.get(1));
        let op = Op::read(row.get(2)).context("the ledger has an operation that nobody wrote")?;
        let version = row.get::<_, Option<i64>>(3).unwrap_or(0);
        let change = Change { table: name.into(), key, op, version };
        if op.is_on_all_lanes() {
            changes.extend((0..lanes).map(|lane| Change { key: lane.into(), ..change.clone() }));
        } else {
            changes.push(change);
        }
    }
    Ok(changes)
}
