//! What each shard of a worker is doing, and what it is told to do.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_backend::{Error, Result};
use tenure_clock::Monotonic;
use tenure_leases::LeaseKey;
use tokio::sync::watch;

use crate::checkpointer::Checkpointer;
use crate::opening::SeekTo;
use crate::record::Place;
use crate::stop::Stop;
use crate::worker::Site;

/// Shards that are remembered, those that are gone included: more than a stream may have.
const SHARDS_MAX: usize = 20_000;
/// A reader that waits for records reads more often.
const HELD_UP_AFTER: Duration = Duration::from_secs(30);

/// What a shard is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardState {
    /// It stopped here lately, and is left alone for a while.
    Resting,
    /// It is read.
    Reading,
    /// It is not read, by somebody's wish.
    Paused,
    /// What is under way is finished.
    Draining,
    /// It is with this worker no more.
    Gone,
    /// It stopped, and its lease was given back.
    Stopped(Stop),
}

/// What is known of a shard.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardStatus {
    /// Its lease.
    pub lease: LeaseKey,
    /// Which hold of this worker's it is: another number is another hold.
    pub hold: u64,
    /// What it is doing.
    pub state: ShardState,
    /// How far it was processed in this run.
    pub at: Option<Place>,
    /// Records that are delivered and not settled.
    pub unsettled: u64,
    /// How far reading was behind the newest record.
    pub behind: Duration,
}

/// What a shard is told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Control {
    pub(crate) paused: bool,
    pub(crate) seek: Option<SeekTo>,
}

#[derive(Debug, Default)]
pub(crate) struct Board {
    shards: Mutex<BTreeMap<LeaseKey, Entry>>,
}

#[derive(Debug)]
struct Entry {
    control: watch::Sender<Control>,
    status: ShardStatus,
    /// How often it stopped in a row, and until when it is left alone.
    stops: u32,
    rests_until: Option<Monotonic>,
    /// When it was last told how far reading was behind.
    noted: Option<Monotonic>,
}

impl Board {
    /// Takes up a shard.
    pub(crate) fn take_up(&self, lease: &LeaseKey) -> watch::Receiver<Control> {
        let mut shards = self.lock();
        if shards.len() >= SHARDS_MAX {
            shards.retain(|_, entry| entry.status.state != ShardState::Gone);
        }
        let entry = shards.entry(lease.clone()).or_insert_with(|| Entry {
            control: watch::Sender::new(Control::default()),
            status: ShardStatus {
                lease: lease.clone(),
                hold: 0,
                state: ShardState::Resting,
                at: None,
                unsettled: 0,
                behind: Duration::ZERO,
            },
            stops: 0,
            rests_until: None,
            noted: None,
        });
        entry.status.hold += 1;
        entry.noted = None;
        // What was said of an earlier hold and not done by then is over.
        entry.control.send_replace(Control::default());
        entry.control.subscribe()
    }

    pub(crate) fn show(&self, lease: &LeaseKey, state: ShardState) {
        if let Some(entry) = self.lock().get_mut(lease)
            && entry.status.state != state
        {
            entry.status.state = state;
        }
    }

    /// The reader of a shard found itself so far behind.
    pub(crate) fn note_behind(&self, lease: &LeaseKey, behind: Duration, now: Monotonic) {
        if let Some(entry) = self.lock().get_mut(lease) {
            entry.status.behind = behind;
            entry.noted = Some(now);
        }
    }

    pub(crate) fn note_progress(&self, lease: &LeaseKey, checkpointer: &Checkpointer) {
        if let Some(entry) = self.lock().get_mut(lease) {
            let at = checkpointer.at();
            // It gets on again.
            if entry.stops > 0 && at.is_some() && at != entry.status.at {
                entry.stops = 0;
            }
            entry.status.at = at;
            entry.status.unsettled = checkpointer.outstanding().0;
        }
    }

    pub(crate) fn note_stop(&self, lease: &LeaseKey, site: &Site) {
        if let Some(entry) = self.lock().get_mut(lease) {
            let doubled = site.settings.stop_pause_min.saturating_mul(1 << entry.stops.min(20));
            let pause = doubled.min(site.settings.stop_pause_max);
            entry.stops = entry.stops.saturating_add(1);
            entry.rests_until = Some(site.env.clock.deadline(pause));
        }
    }

    pub(crate) fn rests_until(&self, lease: &LeaseKey) -> Option<Monotonic> {
        let rests = self.lock().get(lease).and_then(|entry| entry.rests_until);
        rests.filter(|_| !tenure_planted::is("stopped_is_read_at_once"))
    }

    pub(crate) fn seek_taken(&self, lease: &LeaseKey, to: &SeekTo) {
        if let Some(entry) = self.lock().get(lease) {
            // Not another that was asked for meanwhile.
            entry.control.send_modify(|control| drop(control.seek.take_if(|next| next == to)));
        }
    }

    pub(crate) fn tell(&self, lease: &LeaseKey, change: impl FnOnce(&mut Control)) -> Result<()> {
        let shards = self.lock();
        let here = |entry: &&Entry| !matches!(entry.status.state, ShardState::Gone | ShardState::Stopped(_));
        let Some(entry) = shards.get(lease).filter(here) else {
            return Err(Error::invalid(format!(
                "this worker does not hold lease {lease}: ask the one that does"
            )));
        };
        entry.control.send_modify(change);
        Ok(())
    }

    /// How far the shard that is furthest behind is behind, of those that are read. A reader that has not read for
    /// long is held up, by its processor or by the stream, and time goes on.
    pub(crate) fn behind(&self, now: Monotonic) -> Option<Duration> {
        let of = |entry: &Entry| {
            let age = now.since(entry.noted?);
            let held_up = if age > HELD_UP_AFTER { age } else { Duration::ZERO };
            (entry.status.state == ShardState::Reading).then_some(entry.status.behind + held_up)
        };
        self.lock().values().filter_map(of).max()
    }

    pub(crate) fn statuses(&self) -> Vec<ShardStatus> {
        self.lock().values().map(|entry| entry.status.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<LeaseKey, Entry>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shard_that_is_furthest_behind_counts_while_it_is_read() {
        let board = Board::default();
        let at = |seconds: u64| Monotonic::from_nanos(seconds * 1_000_000_000);
        let keys = ["shard-1", "shard-2"].map(LeaseKey::from);
        for key in &keys {
            let _ = board.take_up(key);
            board.show(key, ShardState::Reading);
        }
        assert_eq!(board.behind(at(1)), None, "nobody has read yet");
        board.note_behind(&keys[0], Duration::from_secs(7), at(1));
        board.note_behind(&keys[1], Duration::ZERO, at(1));
        assert_eq!(board.behind(at(31)), Some(Duration::from_secs(7)));
        assert_eq!(board.behind(at(61)), Some(Duration::from_secs(67)), "held up for a minute");
        board.show(&keys[0], ShardState::Paused);
        board.note_behind(&keys[1], Duration::ZERO, at(60));
        assert_eq!(board.behind(at(61)), Some(Duration::ZERO));
        let _ = board.take_up(&keys[1]);
        assert_eq!(board.behind(at(61)), None, "another hold begins anew");
    }
}
