//! What goes wrong when, and how it is made to go wrong.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tenure_clock::Monotonic;
use tenure_store::{Condition, Item, StoreExt};

use super::crew::{Crew, Name};
use super::division::TAKEOVER;
use super::rows::{PROBES, ROWS_MAX, SHARDS, ShardRow};
use super::site::Site;

/// Something that goes wrong, or at least changes, under the processes' feet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// SIGKILL to a writer; a new one takes its place.
    KillWriter,
    /// SIGSTOP to a reader for longer than others wait for it, then SIGCONT.
    PauseReader,
    /// Another number of shards, while they are written to and read.
    Reshard,
}

/// When the faults of a cycle happen, in seconds. Within one cycle there is every kind.
///
/// The second reshard falls into the pause: the paused reader's shards are closed with records that
/// nobody has read, and their children must wait for whoever takes them over.
const CYCLE: [(u64, Fault); 5] = [
    (2, Fault::KillWriter),
    (5, Fault::Reshard),
    (9, Fault::PauseReader),
    (10, Fault::Reshard),
    (16, Fault::KillWriter),
];
const CYCLE_SECONDS: u64 = 20;

/// A fault in the last moment would disturb nobody.
const CALM_AT_THE_END: Duration = Duration::from_secs(1);

/// A pause lasts at least so long: twice what the others wait before they take over.
pub(super) const PAUSE_MIN: Duration = TAKEOVER.saturating_mul(2);
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

/// A reader that is stopped just now.
pub(super) struct Paused {
    pub who: Name,
    pub since: Monotonic,
    /// Its shards that nobody has taken over yet.
    pub waiting: BTreeSet<String>,
    /// How many it had.
    pub shards: usize,
}

/// Attempts to stop a reader at a harmless moment.
const STOPS_MAX: u32 = 10;
/// How long the store may take to accept a write while the reader is stopped; each attempt waits
/// longer, in case the disk is slow and not the moment wrong.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// Stops the reader with the most shards, unless nobody has any.
///
/// A process that is stopped in the middle of a commit holds the lock of the SQLite file, and then
/// everybody waits for it: that is the price of sharing a file. Here a reader is to fall silent while
/// the store works on, so it is stopped again until the store accepts a write.
pub(super) async fn pause_reader(crew: &Crew, site: &Site, readers: &[Name]) -> Result<Option<Paused>> {
    for attempt in 1..=STOPS_MAX {
        let owned = owned_shards(site).await?;
        let most = readers.iter().max_by_key(|who| owned.get(&who.to_string()).map_or(0, BTreeSet::len));
        let Some(who) = most.copied() else { return Ok(None) };
        crew.signal(who, Signal::STOP)?;
        let since = site.env.clock.monotonic();
        let probe = Item::new().with("probe", "writable");
        let by = site.env.clock.deadline(PROBE_TIMEOUT * attempt);
        if site.store.put(by, PROBES, probe, Condition::Always).await.is_ok() {
            let waiting = owned_shards(site).await?.remove(&who.to_string()).unwrap_or_default();
            if !waiting.is_empty() {
                return Ok(Some(Paused { who, since, shards: waiting.len(), waiting }));
            }
        }
        crew.signal(who, Signal::CONT)?;
        site.env.clock.sleep(site.env.entropy.up_to(Duration::from_millis(50))).await;
    }
    Ok(None)
}

/// The shards of each owner.
async fn owned_shards(site: &Site) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut owned: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for item in site.store.scan_all(site.soon(), SHARDS, ROWS_MAX).await.context("read the shards' rows")? {
        let row = ShardRow::from_item(&item)?;
        if let Some(owner) = row.owner {
            owned.entry(owner).or_default().insert(row.shard.to_string());
        }
    }
    Ok(owned)
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
        check(6, "2s KillWriter, 5s Reshard");
        check(20, "2s KillWriter, 5s Reshard, 9s PauseReader, 10s Reshard, 16s KillWriter");
        check(24, "2s KillWriter, 5s Reshard, 9s PauseReader, 10s Reshard, 16s KillWriter, 22s KillWriter");
    }

    #[test]
    fn a_pause_is_over_before_the_next_begins() {
        assert!(PAUSE_MIN > TAKEOVER && PAUSE_MAX < Duration::from_secs(CYCLE_SECONDS));
    }
}
