//! The workload: tasks that change rows, and know what was committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_clock::Entropy;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Statement};
use tokio_util::sync::CancellationToken;

use super::ledger::RowKey;
use super::site::{Site, TABLES};

pub(super) const WRITERS: u64 = 3;

/// Between two transactions of a writer: some hundred changes a second in all, for eyes to follow.
const PAUSE: Duration = Duration::from_millis(15);
/// Most changes in one transaction.
const CHANGES_MAX: u64 = 5;
/// Most rows of a writer that live at once.
const ROWS_MAX: usize = 60;
/// The greatest price of an order, in cents.
const CENTS_MAX: u64 = 1_000_000;

/// The writers, at work until they are asked to end.
pub(super) struct Workload {
    writers: JoinSet<Result<BTreeMap<RowKey, i64>>>,
    committed: Arc<AtomicU64>,
    stop: CancellationToken,
}

impl Workload {
    pub(super) async fn start(site: &Site) -> Result<Self> {
        let mut workload =
            Self { writers: JoinSet::new(), committed: Arc::default(), stop: CancellationToken::new() };
        for number in 0..WRITERS {
            let client = site.connect(&format!("writer-{number}")).await.context("connect a writer")?;
            let writer = Writer {
                number,
                statements: Statements::prepare(&client).await?,
                client,
                entropy: site.env.entropy.fork(),
                rows: BTreeMap::new(),
                gone: BTreeMap::new(),
                made: 0,
            };
            let clock = Arc::clone(&site.env.clock);
            let (committed, stop) = (Arc::clone(&workload.committed), workload.stop.clone());
            workload.writers.spawn(async move {
                let mut writer = writer;
                while !stop.is_cancelled() {
                    let changes = writer.transact().await.context("write rows")?;
                    committed.fetch_add(changes, Ordering::Relaxed);
                    clock.sleep(PAUSE).await;
                }
                writer.gone.append(&mut writer.rows);
                Ok(writer.gone)
            });
        }
        Ok(workload)
    }

    /// How many changes have been committed so far.
    pub(super) fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Ends it: the last version of every row there ever was.
    pub(super) async fn end(&mut self) -> Result<BTreeMap<RowKey, i64>> {
        self.stop.cancel();
        let mut all = BTreeMap::new();
        while let Some(rows) = self.writers.join_next().await {
            all.append(&mut rows.context("a writer broke down")??);
        }
        Ok(all)
    }
}

/// One writer. It alone changes its rows, so it knows their versions.
struct Writer {
    number: u64,
    client: Client,
    statements: BTreeMap<&'static str, Statements>,
    entropy: Entropy,
    /// Rows that are there, with their version.
    rows: BTreeMap<RowKey, i64>,
    /// Rows that were deleted, with their last one.
    gone: BTreeMap<RowKey, i64>,
    made: u64,
}

struct Statements {
    insert: Statement,
    update: Statement,
    delete: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<BTreeMap<&'static str, Self>> {
        let mut all = BTreeMap::new();
        for table in TABLES {
            let prepare = async |text: String| client.prepare(&text).await.context("prepare a statement");
            let insert = format!(
                "INSERT INTO {table} VALUES ($1, $2, format('customer %s', $1::bigint), $3::bigint / 100.0)"
            );
            let update =
                format!("UPDATE {table} SET version = $2, amount = $3::bigint / 100.0 WHERE id = $1");
            let statements = Self {
                insert: prepare(insert).await?,
                update: prepare(update).await?,
                delete: prepare(format!("DELETE FROM {table} WHERE id = $1")).await?,
            };
            all.insert(table, statements);
        }
        Ok(all)
    }
}

impl Writer {
    /// Changes some rows in one transaction, and says how many.
    async fn transact(&mut self) -> Result<u64> {
        let changes = 1 + self.entropy.below(CHANGES_MAX);
        let transaction = self.client.transaction().await?;
        for _ in 0..changes {
            let cents = i64::try_from(self.entropy.below(CENTS_MAX))?;
            let full = self.rows.len() >= ROWS_MAX;
            // Mostly updates, once there are rows.
            let fresh = self.rows.is_empty() || (!full && self.entropy.chance(0.3));
            if fresh {
                let table = TABLES[usize::try_from(self.entropy.below(TABLES.len() as u64))?];
                self.made += 1;
                let id = i64::try_from(self.number + self.made * WRITERS)?;
                transaction.execute(&self.statements[table].insert, &[&id, &1_i64, &cents]).await?;
                self.rows.insert(RowKey { table: table.to_owned(), id }, 1);
                continue;
            }
            let chosen = usize::try_from(self.entropy.below(self.rows.len() as u64))?;
            let (row, version) = self.rows.iter_mut().nth(chosen).context("a row that is not there")?;
            let statements = &self.statements[row.table.as_str()];
            *version += 1;
            if self.entropy.chance(0.1) {
                transaction.execute(&statements.delete, &[&row.id]).await?;
                let (row, version) = (row.clone(), *version);
                self.rows.remove(&row);
                self.gone.insert(row, version);
            } else {
                transaction.execute(&statements.update, &[&row.id, &*version, &cents]).await?;
            }
        }
        // If this fails, so does the demo: nobody disturbs the server.
        transaction.commit().await?;
        Ok(changes)
    }
}
