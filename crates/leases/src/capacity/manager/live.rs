//! What goes on after the start: the row is watched, and whoever leads keeps it true to the fleet.

use std::sync::Arc;

use tenure_backend::{Kind, Result};
use tenure_clock::Monotonic;
use tenure_election::Elector;
use tenure_store::{Refusal, Write, Written};
use tokio::sync::watch;
use tracing::{info, warn};

use super::super::census::Count;
use super::super::explain::{Alarm, worker_rows};
use super::super::machine::{Adjuster, Fleet, Target};
use super::super::rows::{Heartbeat, Place, Row};
use super::{Inner, Race, Subject};

/// Most rows of workers that are gone that one look removes, so that it never takes long.
const SWEPT_MAX: usize = 25;

/// Logs what failed.
fn told<T>(result: Result<T>, what: &'static str) -> Option<T> {
    result.inspect_err(|error| warn!(error = %error.chain(), "{what}")).ok()
}

/// What goes on after the start.
pub(super) struct Task {
    inner: Arc<Inner>,
    adjuster: Adjuster,
    fleet: Fleet,
    heartbeat_due: Monotonic,
    /// When to ask again for a count that was unknown.
    census_due: Monotonic,
}

impl Task {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        let due = inner.clock.monotonic() + inner.settings.heartbeat;
        let (adjuster, fleet) = (Adjuster::default(), inner.new_fleet());
        Self { inner, adjuster, fleet, heartbeat_due: due, census_due: due }
    }

    pub(super) async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        let place = self.inner.lock().place.clone();
        let Some(place) = place else { return };
        let live = self.inner.settings.live;
        let period = if live { self.inner.settings.watch_interval() } else { self.inner.settings.heartbeat };
        let clock = self.inner.clock.clone();
        loop {
            tokio::select! {
                biased;
                // Told to stop, or nobody is left to ask.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = clock.sleep(period) => {}
            }
            self.tick(&place).await;
        }
        self.leave(&place).await;
    }

    /// What fails is tried again at the next look, and keeps nothing else from being done: a worker whose
    /// stream cannot be asked says that it lives all the same.
    async fn tick(&mut self, place: &Place) {
        let unknown = matches!(self.inner.lock().count, Some(Count::Unknown(_)));
        let now = self.inner.clock.monotonic();
        if unknown && now >= self.census_due {
            // Perhaps it can be told by now.
            self.census_due = now + self.inner.settings.heartbeat;
            told(self.inner.open_again(place).await, "count the workers again");
        }
        if self.inner.settings.live {
            let readable = told(self.look(place).await, "look at the coordinator row").unwrap_or(false);
            if self.inner.elector.as_ref().is_some_and(Elector::is_leader) {
                told(self.lead(place, readable).await, "adjust the coordinator row");
            } else {
                self.adjuster = Adjuster::default();
                self.fleet = self.inner.new_fleet();
                self.inner.lock().pending = (0, 0);
            }
        }
        self.inner.publish();
        told(self.keep_own_row(place).await, "keep this worker's row");
    }

    /// Reads the coordinator row. False if it cannot be read, and so must not be written over.
    async fn look(&self, place: &Place) -> Result<bool> {
        match self.inner.read_coordinator(place).await {
            Ok(Some(row)) => {
                self.inner.set_alarm(Subject::Coordinator, None);
                let before = self.inner.lock().row.as_ref().map(Row::target);
                let target = self.inner.use_row(row);
                if let Some(before) = before.filter(|before| *before != target) {
                    info!(
                        oldShardCount = before.shards,
                        newShardCount = target.shards,
                        oldWorkerCount = before.workers,
                        newWorkerCount = target.workers,
                        oldMaxLeases = before.max,
                        maxLeasesPerWorker = target.max,
                        "Coordinator metadata changed, using it without a restart"
                    );
                }
                Ok(true)
            }
            // Deleted by hand: what it said holds until the leader writes it again.
            Ok(None) => {
                let mut state = self.inner.lock();
                let last = state.row.take().map(|row| row.target());
                state.alone = last.or(state.alone);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                let what = error.chain();
                self.inner.set_alarm(Subject::Coordinator, Some(Alarm::BadRow { what }));
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Keeps the row true to the fleet that lives, and takes away the rows of those that do not.
    async fn lead(&mut self, place: &Place, readable: bool) -> Result<()> {
        let inner = &self.inner;
        let shards = inner.count_shards().await?;
        let (rows, bad) =
            inner.again("read the workers' rows", |by| worker_rows(&*inner.store, by, place)).await?;
        inner.note_bad_rows(&bad);
        let report = inner.lock().report.clone();
        let (now, wall) = (inner.clock.monotonic(), inner.clock.wall());
        let members = inner.with_me(self.fleet.observe(now, wall, &rows, &report));
        let target = Target::of(shards, members.len() as u64, inner.settings.limit);
        let gone: Vec<_> = rows
            .iter()
            .filter(|row| row.ours.expires_at.is_some_and(|at| at < wall.as_seconds()))
            .filter(|row| !members.iter().any(|member| member.worker_id == row.worker_id))
            .filter_map(|row| place.sweep(row))
            .take(SWEPT_MAX)
            .collect();
        let row = inner.lock().row.clone();
        let due = if readable { self.adjuster.tick(row.as_ref(), target) } else { None };
        {
            let mut state = inner.lock();
            state.members = members;
            state.pending = self.adjuster.pending();
        }
        if let Some(target) = due {
            match inner.change(place, row.as_ref(), target).await? {
                Race::Won => info!(
                    coordinatorKey = place.coordinator(),
                    shardCount = target.shards,
                    workerCount = target.workers,
                    newMaxLeasesPerWorker = target.max,
                    "Adjusted coordinator metadata to the live fleet"
                ),
                // A worker that has just started: looked at again next time.
                Race::Lost | Race::Unclear => info!("Another worker already updated coordinator metadata"),
            }
        }
        for write in gone {
            // Refused if it came back to life meanwhile.
            let _ = inner
                .again("remove the row of a worker that is gone", |by| inner.store.write(by, &write))
                .await?;
        }
        Ok(())
    }

    /// Says that this worker lives, and what it goes by.
    async fn keep_own_row(&mut self, place: &Place) -> Result<()> {
        let inner = self.inner.clone();
        let due = inner.clock.monotonic() >= self.heartbeat_due;
        let (target, saved, duplicate) = {
            let state = inner.lock();
            let target = Inner::stored(&state).map(|(_, target)| target);
            (target, state.saved, state.alarms.contains_key(&Subject::Duplicate))
        };
        let changed = inner.settings.live && target != saved && !duplicate;
        if !due && !changed {
            return Ok(());
        }
        self.heartbeat_due = inner.clock.monotonic() + inner.settings.heartbeat;
        let beat = |over| place.heartbeat(&inner.worker, &inner.ours(), over);
        let ours = self.write(&beat(Heartbeat::Ours)).await?;
        let current = match ours {
            Written::Applied(_) => {
                inner.set_alarm(Subject::Duplicate, None);
                if let (true, Some(target)) = (changed, target) {
                    inner.save(place, target).await?;
                }
                return Ok(());
            }
            Written::Refused(Refusal { current, .. }) => current,
        };
        match current {
            // Swept away while we could not say that we live, or never stored.
            None => {
                inner.set_alarm(Subject::Duplicate, None);
                if let Some(target) = target {
                    inner.save(place, target).await?;
                }
            }
            Some(item) => {
                let other = item.text("incarnation").map(str::to_owned);
                if other.is_none() {
                    // A Go worker of our name started and put its own row; ours are the columns beside it.
                    self.write(&beat(Heartbeat::Wiped)).await?;
                }
                inner.set_alarm(Subject::Duplicate, Some(Alarm::DuplicateWorker { incarnation: other }));
            }
        }
        Ok(())
    }

    async fn write(&self, write: &Write) -> Result<Written> {
        self.inner.again("say that this worker lives", |by| self.inner.store.write(by, write)).await
    }

    /// On the way out.
    async fn leave(&self, place: &Place) {
        let inner = &self.inner;
        if inner.settings.live {
            let write = place.leave(&inner.worker, &inner.incarnation);
            if let Err(error) = inner.store.write(inner.deadline(), &write).await {
                warn!(error = %error.chain(), "remove this worker's row: it will expire");
            }
        }
        if let Some(elector) = inner.elector.as_ref().filter(|_| inner.own_election) {
            elector.stop().await;
        }
    }
}
