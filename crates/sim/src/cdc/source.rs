//! The database: a log that grows, and a slot that can be lost in every way that slots are.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_cdc::start::{ServerView, SlotView, TimelineEnd};
use tenure_stream::identity::{KeyHash, Lane, Lanes, Lsn};

use super::plan::Workload;
use crate::draws::Draws;

/// The name of the slot that the pipeline reads from.
pub const SLOT: &str = "tenure";
/// Where every log begins.
const LOG_START: Lsn = Lsn(1000);
/// The stream of draws for what is committed.
const COMMITS: u64 = 3001;

/// One event that is to be published. Its number is its place in [`Source::changes`].
#[derive(Debug, Clone)]
pub struct Change {
    /// Its transaction.
    pub transaction: u32,
    /// Its place in the log.
    pub lsn: Lsn,
    /// Counts events of the transaction with this place.
    pub k: u32,
    /// Where it belongs.
    pub lane: Lane,
    /// What it is about: a row, or a table without keys; `None` for a barrier, which concerns all.
    pub key: Option<u16>,
    /// The size of its event.
    pub size: usize,
    /// The first event of the barrier that it belongs to, or the end of the barrier before it.
    pub barrier: u32,
}

/// One transaction.
#[derive(Debug, Clone)]
pub struct Transaction {
    /// Where its commit record begins.
    pub commit: Lsn,
    /// Where it ends.
    pub end: Lsn,
    /// Its events.
    pub changes: std::ops::Range<u32>,
    /// The server was restored to before it.
    pub undone: bool,
}

/// The slot.
#[derive(Debug, Clone)]
pub struct Slot {
    /// What was confirmed.
    pub confirmed: Lsn,
    /// What of that survives a crash.
    pub persisted: Lsn,
    /// The server has given it up.
    pub lost: bool,
    /// Who reads from it.
    pub session: Option<u32>,
}

/// See the module.
#[derive(Debug)]
pub struct Source {
    /// Everything that was ever to be published.
    pub changes: Vec<Change>,
    /// Everything that was ever committed.
    pub transactions: Vec<Transaction>,
    /// The log as it is: numbers of transactions.
    pub log: Vec<u32>,
    /// How far it goes.
    pub end: Lsn,
    /// The slot, if there is one.
    pub slot: Option<Slot>,
    /// Places that may be confirmed: ends of transactions, and what the server named while it had none open.
    pub named: BTreeSet<Lsn>,
    /// The slot or the log is not what it was: a leader must halt, or be lucky that nothing is missing.
    pub disturbed: bool,
    /// The log lost what was published.
    pub diverged: bool,
    /// Nothing is committed until somebody has looked.
    pub quiet: bool,
    timeline: u32,
    /// The highest timeline there ever was.
    timelines: u32,
    history: Vec<TimelineEnd>,
    system_id: Arc<str>,
    workload: Workload,
    lanes: Lanes,
    key_lanes: Vec<Lane>,
    commits: u64,
    draws: Draws,
    /// The end of the last barrier's events.
    barrier_end: u32,
}

impl Source {
    /// A log of its own for every key.
    #[must_use]
    pub fn new(key: u64, lanes: Lanes, workload: Workload) -> Self {
        // The last is a table without keys.
        let lane = |key: u16| {
            let mut hash = KeyHash::of_table("public", if key == workload.keys { "log" } else { "orders" });
            if key < workload.keys {
                hash.add(Some(&key.to_le_bytes()));
            }
            lanes.of(hash.digest())
        };
        Self {
            changes: Vec::with_capacity(512),
            transactions: Vec::with_capacity(256),
            log: Vec::with_capacity(256),
            end: LOG_START,
            slot: Some(Slot { confirmed: LOG_START, persisted: LOG_START, lost: false, session: None }),
            named: BTreeSet::from([LOG_START]),
            disturbed: false,
            diverged: false,
            quiet: false,
            timeline: 1,
            timelines: 1,
            history: Vec::new(),
            system_id: "7301".into(),
            key_lanes: (0..=workload.keys).map(lane).collect(),
            workload,
            lanes,
            commits: 0,
            draws: Draws::new(key, COMMITS),
            barrier_end: 0,
        }
    }

    /// How many keys there are, tables without keys included.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.key_lanes.len()
    }

    /// A transaction commits, and perhaps says nothing that is captured.
    pub fn commit(&mut self) {
        self.commits += 1;
        let mut draw = self.draws.at(self.commits);
        let number = u32::try_from(self.transactions.len()).unwrap_or(u32::MAX);
        let first = u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
        let Workload { keys, oversize, barriers, big, large_bytes, .. } = self.workload;
        let count = match draw.below(16) {
            0 | 1 => 0,
            2 if big => 12 + draw.below(20),
            n => 1 + n % 4,
        };
        // Its changes may stand between those of others, and before their commits.
        let mut lsn = Lsn(self.end.0.saturating_sub(draw.below(150)).max(LOG_START.0 + 1));
        let mut k = 0;
        for _ in 0..count {
            let kind = draw.below(64);
            if draw.below(4) > 0 {
                lsn = Lsn(lsn.0 + 1 + draw.below(40));
                k = 0;
            }
            if kind == 0 && barriers {
                lsn = Lsn(lsn.0 + 1);
                let begins = u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
                for (k, lane) in (0..).zip(self.lanes.all()) {
                    self.changes.push(Change {
                        transaction: number,
                        lsn,
                        k,
                        lane,
                        key: None,
                        size: 0,
                        barrier: begins,
                    });
                }
                self.barrier_end = u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
                (lsn, k) = (Lsn(lsn.0 + 1), 0);
                continue;
            }
            // A few keys are hot.
            let any = u16::try_from(draw.below(u64::from(keys))).unwrap_or(0);
            let key = if draw.below(2) == 0 { any % 3 } else { any };
            let key = if kind < 6 { keys } else { key % keys };
            let size = match draw.below(24) {
                0 if oversize => large_bytes * 2,
                1 | 2 => large_bytes,
                _ => 0,
            };
            self.add(number, lsn, &mut k, key, size);
            if (6..12).contains(&kind) {
                // The key changes: gone here, new there.
                self.add(number, lsn, &mut k, (key + 1) % keys, size);
            }
        }
        let commit = Lsn(lsn.0.max(self.end.0) + 1 + draw.below(30));
        let end = Lsn(commit.0 + 8 + draw.below(40));
        let changes = first..u32::try_from(self.changes.len()).unwrap_or(u32::MAX);
        self.transactions.push(Transaction { commit, end, changes, undone: false });
        self.log.push(number);
        self.end = end;
        self.named.insert(end);
    }

    fn add(&mut self, transaction: u32, lsn: Lsn, k: &mut u32, key: u16, size: usize) {
        let lane = self.key_lanes[usize::from(key)];
        let barrier = self.barrier_end;
        self.changes.push(Change { transaction, lsn, k: *k, lane, key: Some(key), size, barrier });
        *k += 1;
    }

    /// Something else is written to the log.
    pub fn idle(&mut self, bytes: u64) {
        self.end = Lsn(self.end.0 + bytes);
    }

    /// The transactions that a reader gets who begins there.
    pub fn from(&self, start: Lsn) -> Vec<u32> {
        let begins = self.log.partition_point(|number| self.transactions[*number as usize].commit < start);
        self.log[begins..].to_vec()
    }

    /// What the server says about itself.
    #[must_use]
    pub fn server(&self) -> ServerView {
        ServerView {
            system_id: self.system_id.clone(),
            timeline: self.timeline,
            log_end: self.end,
            history: self.history.clone(),
        }
    }

    /// What it says about the slot.
    #[must_use]
    pub fn slot_view(&self) -> Option<SlotView> {
        self.slot.as_ref().map(|slot| SlotView {
            plugin: "pgoutput".into(),
            same_database: true,
            two_phase: false,
            confirmed: Some(slot.confirmed),
            lost: slot.lost.then(|| "wal_removed".into()),
        })
    }

    /// A slot is made: it begins here.
    pub fn make_slot(&mut self) {
        self.named.insert(self.end);
        self.slot = Some(Slot { confirmed: self.end, persisted: self.end, lost: false, session: None });
    }

    /// A standby takes over, with all of the log.
    pub fn promote(&mut self) {
        self.history.push(TimelineEnd { timeline: self.timeline, end: self.end });
        self.timelines += 1;
        self.timeline = self.timelines;
    }

    /// The log is that of some time ago, before `published`; false if there is nothing to undo.
    ///
    /// The server either says so by a new timeline, or it is the image of a disk, and says nothing. Then it
    /// can be told only while its log is still short, so nothing is committed until somebody has looked.
    pub fn restore(&mut self, published: Lsn, back: usize, says_so: bool) -> bool {
        let at = |number: &u32| self.transactions[*number as usize].end;
        let kept = self.log.partition_point(|number| at(number) < published).saturating_sub(back);
        let Some(end) = kept.checked_sub(1).and_then(|last| self.log.get(last)).map(at) else { return false };
        if end >= published {
            return false;
        }
        for number in self.log.drain(kept..) {
            self.transactions[number as usize].undone = true;
        }
        self.end = end;
        // It is on the timeline again that it was on then.
        let kept = self.history.partition_point(|left| left.end < end);
        if let Some(left) = self.history.get(kept) {
            self.timeline = left.timeline;
        }
        self.history.truncate(kept);
        if says_so {
            self.promote();
        } else {
            self.quiet = true;
        }
        if let Some(slot) = &mut self.slot {
            slot.confirmed = slot.confirmed.min(end);
            slot.persisted = slot.persisted.min(end);
        }
        (self.disturbed, self.diverged) = (true, true);
        true
    }
}
