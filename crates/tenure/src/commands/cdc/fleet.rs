//! The row that a process keeps about itself, so that others can see it without talking to it.
//!
//! Table of the elections, pk `STATUS#cdc-<source>`, sk `cdc#<instance>`: role, version, a digest of the
//! settings, and the snapshot as JSON. It is removed at a planned stop, and goes by its ttl after a crash.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_backend::{Env, Result};
use tenure_cdc::progress::Snapshot;
use tenure_clock::{Monotonic, WallTime};
use tenure_store::{Condition, Item, Key, Query, Store, StoreExt as _};

use super::retained::Retained;

/// How often the row is written: often where it costs nothing.
pub(super) const INTERVAL_LOCAL: Duration = Duration::from_secs(2);
pub(super) const INTERVAL_REMOTE: Duration = Duration::from_secs(15);
/// A row that was not written for so many of its intervals is stale.
const STALE_INTERVALS: u32 = 3;
/// How long a row of a process that crashed stays to be seen.
const KEPT: Duration = Duration::from_secs(3600);
/// Most rows that are read: far more than anybody runs.
const ROWS_MAX: usize = 1000;
/// Most of a message that goes into the row.
const TROUBLE_CHARACTERS_MAX: usize = 2000;

/// What a process says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Word {
    /// How far it is.
    pub(super) progress: Snapshot,
    /// What the slot costs the server, as it last saw.
    pub(super) retained: Option<Retained>,
    /// What a person should look at.
    pub(super) alarm: Option<String>,
}

/// The row of this process.
#[derive(Debug, Clone)]
pub(super) struct OwnRow {
    pub(super) env: Env,
    pub(super) store: Arc<dyn Store>,
    pub(super) table: String,
    pub(super) source: String,
    pub(super) instance: String,
    pub(super) digest: String,
}

impl OwnRow {
    /// How often it is to be written.
    pub(super) fn interval(&self) -> Duration {
        if self.store.is_local() { INTERVAL_LOCAL } else { INTERVAL_REMOTE }
    }

    /// Writes it.
    pub(super) async fn write(&self, by: Monotonic, word: &Word) -> Result<()> {
        let mut word = word.clone();
        if let Some(trouble) = &mut word.progress.trouble {
            *trouble = trouble.chars().take(TROUBLE_CHARACTERS_MAX).collect();
        }
        let now = self.env.clock.wall();
        let kept = i64::try_from(KEPT.as_secs()).unwrap_or(i64::MAX);
        let item = Item::new()
            .with("pk", pk(&self.source))
            .with("sk", sk(&self.instance))
            .with("role", word.progress.role.as_str())
            .with("version", env!("CARGO_PKG_VERSION"))
            .with("settings", self.digest.as_str())
            .with("updated", now.as_millis())
            .with("interval_ms", u64::try_from(self.interval().as_millis()).unwrap_or(u64::MAX))
            .with("snapshot", serde_json::to_string(&word).unwrap_or_default())
            .with("ttl", now.as_seconds() + kept);
        self.store.put(by, &self.table, item, Condition::Always).await.map(drop)
    }

    /// Removes it.
    pub(super) async fn remove(&self, by: Monotonic) -> Result<()> {
        let key = key(&self.source, &self.instance);
        self.store.delete(by, &self.table, key, Condition::Always).await.map(drop)
    }
}

/// A process as its row tells it.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) instance: String,
    pub(super) version: String,
    pub(super) digest: String,
    pub(super) updated: WallTime,
    interval: Duration,
    pub(super) word: Word,
}

impl Process {
    fn read(item: &Item) -> Option<Self> {
        let interval = item.integer("interval_ms").and_then(|millis| u64::try_from(millis).ok())?;
        Some(Self {
            instance: item.text("sk")?.strip_prefix("cdc#")?.to_owned(),
            version: item.text("version").unwrap_or("?").to_owned(),
            digest: item.text("settings").unwrap_or("?").to_owned(),
            updated: WallTime::from_millis(item.integer("updated")?),
            interval: Duration::from_millis(interval),
            word: serde_json::from_str(item.text("snapshot")?).ok()?,
        })
    }

    /// How old its row is.
    pub(super) fn age(&self, now: WallTime) -> Duration {
        Duration::from_millis(u64::try_from(now.as_millis() - self.updated.as_millis()).unwrap_or(0))
    }

    /// Whether it has not been heard of for too long.
    pub(super) fn is_stale(&self, now: WallTime) -> bool {
        self.age(now) > self.interval * STALE_INTERVALS
    }
}

/// All processes of a pipeline that have a row; those that cannot be read are left out.
pub(super) async fn processes(
    store: &dyn Store,
    by: Monotonic,
    table: &str,
    source: &str,
) -> Result<Vec<Process>> {
    let rows = store.query_all(by, table, Query::partition("pk", pk(source)), ROWS_MAX).await?;
    Ok(rows.iter().filter_map(Process::read).collect())
}

/// The key of a process's row.
pub(super) fn key(source: &str, instance: &str) -> Key {
    Key::new("pk", pk(source)).and("sk", sk(instance))
}

fn pk(source: &str) -> String {
    format!("STATUS#cdc-{source}")
}

fn sk(instance: &str) -> String {
    format!("cdc#{instance}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_row_comes_back_goes_stale_and_goes() {
        let env = Env::system();
        let store: Arc<dyn Store> = Arc::new(tenure_store::Memory::new(&env));
        store.ensure_table(Monotonic::NEVER, &tenure_election::table_spec("rows")).await.unwrap();
        let row = OwnRow {
            env: env.clone(),
            store: store.clone(),
            table: "rows".to_owned(),
            source: "shop".to_owned(),
            instance: "host-1".to_owned(),
            digest: "d".to_owned(),
        };
        let mut word = Word::default();
        word.progress.role = "leader".to_owned();
        word.progress.trouble = Some("ä".repeat(100_000));
        row.write(Monotonic::NEVER, &word).await.unwrap();
        let read = async || processes(&*store, Monotonic::NEVER, "rows", "shop").await.unwrap();
        let found = read().await;
        assert_eq!(
            (found.len(), &*found[0].instance, &*found[0].word.progress.role),
            (1, "host-1", "leader")
        );
        assert_eq!(found[0].word.progress.trouble.as_ref().unwrap().chars().count(), TROUBLE_CHARACTERS_MAX);
        let later = |intervals: u32| {
            let millis = (row.interval() * intervals).as_millis();
            WallTime::from_millis(found[0].updated.as_millis() + i64::try_from(millis).unwrap())
        };
        assert!(!found[0].is_stale(env.clock.wall()) && !found[0].is_stale(later(3)));
        assert!(found[0].is_stale(later(4)));
        row.remove(Monotonic::NEVER).await.unwrap();
        assert!(read().await.is_empty());
    }
}
