//! Who is alive, as one worker sees it: by presence rows, and by renewals.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::Monotonic;

use crate::WorkerId;
use crate::attempt::Presence;

/// The presence rows, and since when each is as it is.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub(super) struct Fleet {
    rows: BTreeMap<WorkerId, Seen>,
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Seen {
    row: Presence,
    /// When this counter was first received.
    since: Monotonic,
}

impl Fleet {
    /// Takes in the rows of a scan.
    pub(super) fn update(&mut self, now: Monotonic, mut rows: Vec<Presence>) {
        rows.sort_by(|one, two| one.worker.cmp(&two.worker));
        // Side by side with those of the last one: a large fleet is not searched row by row.
        let mut before = std::mem::take(&mut self.rows).into_iter().peekable();
        let seen = rows.into_iter().map(|row| {
            while before.next_if(|(worker, _)| *worker < row.worker).is_some() {}
            let same =
                |seen: &Seen| seen.row.counter == row.counter && seen.row.incarnation == row.incarnation;
            let since = match before.next_if(|(worker, _)| *worker == row.worker) {
                Some((_, before)) if same(&before) => before.since,
                _ => now,
            };
            (row.worker.clone(), Seen { row, since })
        });
        self.rows = seen.collect();
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn row(&self, worker: &WorkerId) -> Option<&Presence> {
        self.rows.get(worker).map(|seen| &seen.row)
    }

    /// Those whose row was written within a lease, as far as was seen.
    pub(super) fn fresh(&self, now: Monotonic, lease: Duration) -> BTreeSet<WorkerId> {
        self.rows
            .iter()
            .filter(|(_, seen)| now < seen.since + lease)
            .map(|(worker, _)| worker.clone())
            .collect()
    }

    /// Whether any worker but `me` says that it holds leases.
    pub(super) fn others_hold(&self, me: &WorkerId) -> bool {
        self.rows.iter().any(|(worker, seen)| worker != me && seen.row.holding)
    }
}
