//! What goes wrong when, and how it is made to go wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tenure_clock::Monotonic;
use tenure_store::{Condition, Item, KeyAttribute, StoreExt, TableSpec};

use super::crew::{Crew, Name};
use super::site::{LEASE, Site};

/// Something that goes wrong, or at least changes, under the processes' feet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL to the publisher that leads; a new one takes its place in the queue.
    KillLeader,
    /// SIGSTOP to a worker for longer than its lease, then SIGCONT.
    PauseWorker,
    /// One more worker.
    AddWorker,
    /// Another number of shards, while they are written to and read.
    Reshard,
}

/// When the faults of a cycle happen, in seconds. Within one cycle there is every kind.
///
/// The second reshard falls into the pause: the paused worker's shards are closed with records that
/// nobody has read, and their children must wait for whoever takes them over.
const CYCLE: [(u64, Fault); 6] = [
    (3, Fault::KillLeader),
    (5, Fault::Reshard),
    (7, Fault::AddWorker),
    (10, Fault::PauseWorker),
    (12, Fault::Reshard),
    (17, Fault::KillLeader),
];
const CYCLE_SECONDS: u64 = 20;

/// A fault in the last moment would disturb nobody.
const CALM_AT_THE_END: Duration = Duration::from_secs(1);

/// A pause lasts at least so long: well beyond the lease.
pub(super) const PAUSE_MIN: Duration = LEASE.saturating_mul(2);
/// And it ends after so long even if nobody has taken over.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The faults of a workload of this length, with their time from its beginning.
pub(super) fn calendar(workload: Duration) -> VecDeque<(Duration, Fault)> {
    let cycles = 0..=workload.as_secs() / CYCLE_SECONDS;
    let all = cycles.flat_map(|cycle| {
        CYCLE.map(|(second, fault)| (Duration::from_secs(cycle * CYCLE_SECONDS + second), fault))
    });
    all.filter(|(at, _)| *at + CALM_AT_THE_END <= workload).collect()
}

/// A worker that is stopped just now.
pub(super) struct Paused {
    pub who: Name,
    pub since: Monotonic,
    /// Its shards that nobody has taken over yet.
    pub waiting: BTreeSet<String>,
    /// How many it had.
    pub shards: usize,
}

/// Attempts to stop a worker at a harmless moment.
const STOPS_MAX: u32 = 10;
/// How long the store may take to accept a write while the worker is stopped; each attempt waits
/// longer, in case the disk is slow and not the moment wrong.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);
/// The table that is written to, to see whether the store works on.
const PROBES: &str = "demo_probes";

/// Stops the worker with the most shards, unless nobody has any.
///
/// A process that is stopped in the middle of a commit holds the lock of the SQLite file, and then
/// everybody waits for it: that is the price of sharing a file. Here a worker is to fall silent while
/// the store works on, so it is stopped again until the store accepts a write.
pub(super) async fn pause_worker(crew: &Crew, site: &Site, workers: &[Name]) -> Result<Option<Paused>> {
    let probes = TableSpec::new(PROBES, KeyAttribute::text("probe"));
    site.store.ensure_table(site.soon(), &probes).await.context("make a table")?;
    for attempt in 1..=STOPS_MAX {
        let owned = site.owned_shards().await?;
        let most = workers.iter().max_by_key(|who| owned.get(&who.to_string()).map_or(0, BTreeSet::len));
        let Some(who) = most.copied() else { return Ok(None) };
        crew.signal(who, Signal::STOP)?;
        let since = site.env.clock.monotonic();
        let probe = Item::new().with("probe", "writable");
        let by = site.env.clock.deadline(PROBE_TIMEOUT * attempt);
        if site.store.put(by, PROBES, probe, Condition::Always).await.is_ok() {
            let waiting = site.owned_shards().await?.remove(&who.to_string()).unwrap_or_default();
            if !waiting.is_empty() {
                return Ok(Some(Paused { who, since, shards: waiting.len(), waiting }));
            }
        }
        crew.signal(who, Signal::CONT)?;
        site.env.clock.sleep(site.env.entropy.up_to(Duration::from_millis(50))).await;
    }
    Ok(None)
}

/// Attempts to change the number of shards.
const RESCALES_MAX: u32 = 5;

/// Splits and merges until there are so many shards.
pub(super) async fn rescale(site: &Site, shards: u32) -> Result<()> {
    for _ in 0..RESCALES_MAX {
        let changed = site.stream.rescale(site.soon(), shards).await;
        // Whatever the answer was, what is there decides.
        if let Ok(now) = site.stream.describe(site.soon()).await
            && now.open_shards == shards
        {
            return Ok(());
        }
        if let Err(error) = changed {
            tracing::debug!(error = %error.chain(), "rescaling is tried again");
        }
    }
    bail!("the stream could not be brought to {shards} shards")
}

/// The shards that each worker holds, and has not finished.
pub(super) type Owned = BTreeMap<String, BTreeSet<String>>;

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: u64, expected: &str) {
        let calendar = calendar(Duration::from_secs(seconds));
        let shown: Vec<_> =
            calendar.iter().map(|(at, fault)| format!("{}s {fault:?}", at.as_secs())).collect();
        assert_eq!(shown.join(", "), expected);
    }

    #[test]
    fn every_kind_of_fault_fits_in_twenty_seconds() {
        check(1, "");
        check(6, "3s KillLeader, 5s Reshard");
        let all = "3s KillLeader, 5s Reshard, 7s AddWorker, 10s PauseWorker, 12s Reshard, 17s KillLeader";
        check(20, all);
        check(24, &format!("{all}, 23s KillLeader"));
    }

    #[test]
    fn a_pause_is_over_before_the_next_begins() {
        assert!(PAUSE_MIN > LEASE && PAUSE_MAX < Duration::from_secs(CYCLE_SECONDS));
    }
}
