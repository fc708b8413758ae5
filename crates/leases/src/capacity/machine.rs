//! What to do about the coordinator row: at the start of a worker, and while the fleet runs.
//!
//! At the start the declared count is believed, and any worker may write. While the fleet runs only the leader
//! writes, by the workers that it sees alive, and not at the first sign: during a rollout the count wavers.
//!
//! A worker is alive if its row was seen to change within the window, by the leader's own monotonic clock, or
//! if a lease of its was renewed. Wall clocks decide nothing but the first look. A worker that owns leases
//! and renews none of them is gone, whatever its row says.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tenure_clock::{Monotonic, WallTime};

use super::formula::max_leases;
use super::rows::Row;
use crate::WorkerId;

/// Looks in a row at which more leases per worker must be wanted before the row says so.
pub const TICKS_UP: u32 = 2;
/// Looks in a row at which fewer, or no more, must be wanted: a worker that is away may be restarting.
pub const TICKS_DOWN: u32 = 6;

/// What a coordinator row is to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Open shards.
    pub shards: u64,
    /// Workers.
    pub workers: u64,
    /// What each may hold.
    pub max: u64,
}

impl Target {
    /// By the formula.
    #[must_use]
    pub fn of(shards: u64, workers: u64, limit: u64) -> Self {
        Self { shards, workers, max: max_leases(limit, shards, workers) }
    }
}

/// What a worker that starts does about the coordinator row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// There is none: create it.
    Create(Target),
    /// It says something else: change it.
    Update(Target),
    /// It says the same, or we do not know better: use it.
    Use,
    /// There is none, and we do not know what it should say.
    Abstain,
}

/// Decides what a worker that starts does. `workers` is absent if the count is unknown.
#[must_use]
pub fn opening(row: Option<&Row>, shards: u64, workers: Option<u64>, limit: u64) -> Opening {
    match (row, workers) {
        (None, None) => Opening::Abstain,
        (None, Some(workers)) => Opening::Create(Target::of(shards, workers, limit)),
        // A number that is not known is never written.
        (Some(_), None) => Opening::Use,
        (Some(row), Some(workers)) if (row.shard_count, row.worker_count) == (shards, workers) => {
            Opening::Use
        }
        (Some(_), Some(workers)) => Opening::Update(Target::of(shards, workers, limit)),
    }
}

/// Decides when the leader changes the row: not at the first sign.
#[derive(Debug, Clone, Default)]
pub struct Adjuster {
    up: u32,
    down: u32,
}

impl Adjuster {
    /// One look at the row and the fleet. `Some` if the row is to be written now.
    pub fn tick(&mut self, row: Option<&Row>, wanted: Target) -> Option<Target> {
        let current = row.map(Row::target);
        let due = match current {
            None => true,
            Some(current) if current == wanted => {
                *self = Self::default();
                false
            }
            Some(current) if wanted.max > current.max => {
                *self = Self { up: self.up + 1, down: 0 };
                self.up >= TICKS_UP
            }
            Some(_) => {
                *self = Self { up: 0, down: self.down + 1 };
                self.down >= TICKS_DOWN
            }
        };
        due.then(|| {
            *self = Self::default();
            wanted
        })
    }

    /// Looks so far at which more, and at which less, was wanted.
    #[must_use]
    pub const fn pending(&self) -> (u32, u32) {
        (self.up, self.down)
    }
}

/// What the side of the leases knows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Leases that are not at their end, of all workers. Absent: not counted yet.
    pub demand: Option<u64>,
    /// Leases that this worker holds.
    pub held: u64,
    /// Owners of whom a lease was renewed within its time.
    pub moving: BTreeSet<WorkerId>,
    /// Owners of whom no lease was renewed within its time.
    pub stalled: BTreeSet<WorkerId>,
}

/// Why a worker counts as alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// Its row was seen to change.
    Row,
    /// A lease of its was renewed.
    Lease,
    /// Both.
    Both,
}

/// A worker that is alive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name.
    pub worker_id: String,
    /// Why it counts.
    pub evidence: Evidence,
}

/// Watches the rows of workers.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// How long a row that changed speaks for its worker.
    window: Duration,
    /// How long after a heartbeat a row expires.
    keep: Duration,
    seen: BTreeMap<String, Sighting>,
}

#[derive(Debug, Clone)]
struct Sighting {
    incarnation: Option<String>,
    expires_at: i64,
    /// When it was seen to change. Absent: it was old at the first look, and has not changed since.
    changed: Option<Monotonic>,
}

impl Fleet {
    /// Nothing seen yet. `keep` is what is added to the wall clock in `expires_at`.
    #[must_use]
    pub const fn new(window: Duration, keep: Duration) -> Self {
        Self { window, keep, seen: BTreeMap::new() }
    }

    /// Looks at the rows of this application's workers, and says who is alive.
    pub fn observe(&mut self, now: Monotonic, wall: WallTime, rows: &[Row], report: &Report) -> Vec<Member> {
        let mut seen = BTreeMap::new();
        let mut fresh = BTreeSet::new();
        for row in rows {
            let Some(expires_at) = row.ours.expires_at else { continue };
            let incarnation = row.ours.incarnation.clone();
            let changed = match self.seen.get(&row.worker_id) {
                Some(before) if before.expires_at == expires_at && before.incarnation == incarnation => {
                    before.changed
                }
                Some(_) => Some(now),
                None => self.looks_fresh(expires_at, wall).then_some(now),
            };
            if changed.is_some_and(|changed| now.since(changed) < self.window) {
                fresh.insert(row.worker_id.clone());
            }
            seen.insert(row.worker_id.clone(), Sighting { incarnation, expires_at, changed });
        }
        self.seen = seen;
        members(&fresh, report)
    }

    /// Whether a row that is seen for the first time was written lately, as far as wall clocks tell.
    fn looks_fresh(&self, expires_at: i64, wall: WallTime) -> bool {
        let written = WallTime::from_millis(expires_at.saturating_mul(1000)) - self.keep;
        // The stored second was rounded down.
        written + self.window + Duration::from_secs(1) > wall
    }
}

fn members(fresh: &BTreeSet<String>, report: &Report) -> Vec<Member> {
    let moving = |id: &str| report.moving.contains(&WorkerId::from(id));
    let stalled = |id: &str| report.stalled.contains(&WorkerId::from(id)) && !moving(id);
    let of_rows = fresh.iter().filter(|id| !stalled(id)).map(|id| Member {
        worker_id: id.clone(),
        evidence: if moving(id) { Evidence::Both } else { Evidence::Row },
    });
    let of_leases = report
        .moving
        .iter()
        .filter(|id| !fresh.contains(id.as_str()))
        .map(|id| Member { worker_id: id.as_str().to_owned(), evidence: Evidence::Lease });
    let mut members: Vec<_> = of_rows.chain(of_leases).collect();
    members.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
    members
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod tests;
