//! A directory, a store and a table in which candidates meet, and the ledger that their commands write.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value as Json;
use tenure_clock::Entropy;

use super::candidate::Candidate;
use crate::site::{Ran, Site, eventually};

/// Short, so that tests are quick; long enough for a busy machine.
pub(super) const SHORT: &str = "--lease 4s --renew 1s";
/// So long that no test waits for it: what happens sooner happened on purpose.
pub(super) const LONG: &str = "--lease 60s --renew 15s --stop-grace 2s";
/// The shard of every test.
pub(super) const SHARD: &str = "work";

pub(super) struct World {
    pub(super) site: Site,
    store: String,
    table: String,
}

/// A line that a command wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) epoch: u64,
    pub(super) what: String,
}

impl World {
    pub(super) fn new(store: &str) -> Self {
        let table = format!("election-{}", &Entropy::system().nonce()[..12]);
        Self { site: Site::new(), store: store.to_owned(), table }
    }

    /// The arguments that say where elections are held.
    pub(super) fn place(&self) -> String {
        format!("--store {} --table {}", self.store, self.table)
    }

    /// The name of a table for what a leader guards.
    pub(super) fn table_of_its_own(&self) -> String {
        format!("{}-guarded", self.table)
    }

    /// Makes the table by hand, with no time to live.
    pub(super) fn create_table(&self) {
        self.site
            .ok(&format!("store create-table {} --hash pk --range sk --store {}", self.table, self.store));
    }

    /// Removes the row that says who leads, as an operator might, or a sweep of what has expired.
    pub(super) fn delete_row(&self) {
        let Self { site, table, store } = self;
        site.ok(&format!("store delete {table} pk=SHARD#{SHARD} sk=LOCK --store {store}"));
    }

    /// Calls `stop`, and `resume` and `stop` again if that was in the middle of a write: on SQLite a stopped
    /// writer keeps everybody else out.
    pub(super) fn pause(&self, stop: impl Fn(), resume: impl Fn()) {
        let file = self.path("tenure.db");
        eventually("a pause between writes", || {
            stop();
            if !file.exists() {
                return Some(());
            }
            let store = rusqlite::Connection::open(&file).unwrap();
            store.busy_timeout(Duration::from_millis(300)).unwrap();
            let free = store.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok();
            if !free {
                resume();
            }
            free.then_some(())
        });
    }

    /// Stands for election as `name`; while leading it writes its epoch to the ledger again and again.
    pub(super) fn stand(&self, name: &str, options: &str) -> Candidate {
        self.stand_with(
            name,
            options,
            r#"while :; do echo "$TENURE_EPOCH at-work" >> ledger; sleep 0.05; done"#,
        )
    }

    /// As [`World::stand`], with a script of its own.
    pub(super) fn stand_with(&self, name: &str, options: &str, script: &str) -> Candidate {
        Candidate::start(self, &format!("--owner {name} {options}"), name, script)
    }

    pub(super) fn ledger(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(self.path("ledger")).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let entry = |line: &str| {
            let (epoch, what) = line.split_once(' ').unwrap();
            Entry { epoch: epoch.parse().unwrap(), what: what.to_owned() }
        };
        whole.lines().map(entry).collect()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    /// Waits until a command has written, and tells its epoch: 1, or a later one if the store was so slow at first
    /// that a term was over before it began.
    #[track_caller]
    pub(super) fn first_epoch(&self) -> u64 {
        eventually("somebody writes", || self.ledger().last().map(|entry| entry.epoch))
    }

    /// Waits until a command of this epoch has written.
    #[track_caller]
    pub(super) fn wait_for_epoch(&self, epoch: u64) {
        eventually(&format!("epoch {epoch} writes"), || {
            self.ledger().iter().any(|entry| entry.epoch == epoch).then_some(())
        });
    }

    /// Nobody wrote under an epoch once a later one had begun.
    #[track_caller]
    pub(super) fn assert_in_order(&self) {
        let ledger = self.ledger();
        assert!(ledger.is_sorted_by_key(|entry| entry.epoch), "{ledger:#?}");
    }

    pub(super) fn run(&self, line: &str) -> Ran {
        self.site.run(&format!("{line} {}", self.place()))
    }

    /// The row of the shard as `tenure leaders` tells it.
    pub(super) fn leader(&self) -> Option<Json> {
        let ran = self.run("leaders --json");
        // Nobody may have made the table yet.
        (ran.code == 0)
            .then(|| ran.json())
            .and_then(|lines| lines.into_iter().find(|line| line["shard"] == SHARD))
    }

    /// Waits until a candidate of this name leads, and tells its epoch.
    #[track_caller]
    pub(super) fn wait_for_leader(&self, name: &str) -> u64 {
        eventually(&format!("{name} leads"), || {
            let leader = self.leader()?;
            (leader["name"] == name && leader["state"] == "led").then(|| leader["epoch"].as_u64().unwrap())
        })
    }
}
