//! What a person does about leases at a terminal, without being a worker.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_store::{Store, Written};

use crate::attempt::{Attempt, Presence};
use crate::calls::{lease, scan, tell_everybody};
use crate::lineage::is_ready;
use crate::plan::{Load, Plan, Worker, plan};
use crate::rows::Place;
use crate::settings::{Balance, Settings};
use crate::{Lease, LeaseKey, WorkerId};

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// While a lease is watched, it is read so often.
const WATCH_POLLS: u32 = 20;
/// While workers are watched, everything is read so often: a live one writes three times in a lease.
const LIFE_POLLS: u32 = 6;
/// So many live workers are named at most.
const NAMES_MAX: usize = 20;

/// The leases of an application, and who is about.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// The leases, by name.
    pub leases: Vec<Lease>,
    /// The workers' own rows. Whether they live, only time tells.
    pub workers: Vec<Presence>,
    /// For how long leases last, if anybody ever said so.
    pub lease: Option<Duration>,
    /// Rows that could not be understood, and why.
    pub bad: Vec<(LeaseKey, String)>,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// It was so already.
    Already,
    /// Its holder was asked, and gives it as soon as it is drained.
    Asked,
    /// It was nobody's, and is where it was wanted.
    Done,
}

/// Acts on the leases of one application.
#[derive(Debug, Clone)]
pub struct Admin<'a> {
    store: &'a dyn Store,
    env: &'a Env,
    place: Place,
    forced: bool,
}

impl<'a> Admin<'a> {
    /// Of the application `app`, with its own rows in the table that the settings name.
    #[must_use]
    pub fn new(store: &'a dyn Store, env: &'a Env, app: &str, settings: &Settings) -> Self {
        Self { store, env, place: Place::new(app, &settings.coordination_table), forced: false }
    }

    /// From now on a lease is moved as asked, even to a worker that is unknown or gives no sign of life. Should it
    /// not come, the lease runs out, and goes to another.
    #[must_use]
    pub fn forced(self, forced: bool) -> Self {
        Self { forced, ..self }
    }

    fn soon(&self) -> Monotonic {
        self.env.clock.deadline(CALL_TIMEOUT)
    }

    /// Everything that is stored.
    ///
    /// # Errors
    /// As the store's; `Invalid` if the application has no tables.
    pub async fn inventory(&self) -> Result<Inventory> {
        let found = scan(self.store, self.soon(), &self.place).await?;
        let mut leases: Vec<Lease> = found.leases.into_iter().map(Arc::unwrap_or_clone).collect();
        leases.sort_by(|one, two| one.key.cmp(&two.key));
        Ok(Inventory {
            leases,
            workers: found.workers,
            lease: found.settings,
            bad: found.bad.into_iter().map(|(key, why)| (key, why.to_string())).collect(),
        })
    }

    /// What a planner would do if every worker that has a row, or holds a lease, were alive. Nothing is written.
    ///
    /// # Errors
    /// As [`Admin::inventory`].
    pub async fn plan(&self, balance: Balance) -> Result<Plan> {
        let found = self.inventory().await?;
        let mut workers: Vec<Worker> = found
            .workers
            .iter()
            .map(|row| Worker { id: row.worker.clone(), cap: usize::try_from(row.cap).unwrap_or(usize::MAX) })
            .collect();
        for owner in found.leases.iter().filter_map(|lease| lease.owner.as_ref()) {
            if workers.iter().all(|worker| worker.id != *owner) {
                workers.push(Worker { id: owner.clone(), cap: usize::MAX });
            }
        }
        let lookup = |key: &LeaseKey| found.leases.iter().find(|lease| lease.key == *key);
        let loads: Vec<Load> = found
            .leases
            .iter()
            .filter(|lease| !lease.checkpoint.is_end() && is_ready(lease, lookup))
            .map(|lease| Load {
                key: lease.key.clone(),
                holder: lease.owner.clone(),
                kbps: lease.throughput_kbps,
                pinned: lease.giver.is_some(),
            })
            .collect();
        Ok(plan(&workers, &loads, balance))
    }

    /// Moves a lease to a worker: its holder is asked to hand it over. If nobody holds it, or its holder does
    /// not renew it for a whole lease (which is waited for), it is the worker's at once.
    ///
    /// The worker must live: it is waited for a sign of that, for a lease at most, unless [`Admin::forced`].
    ///
    /// # Errors
    /// `Invalid` if there is no such lease or live worker, if the lease is at its end or on its way already;
    /// `Unavailable` if somebody else was faster.
    pub async fn move_lease(&self, key: &LeaseKey, to: &WorkerId) -> Result<Moved> {
        let found = self.inventory().await?;
        let row = self.row(key).await?;
        if row.checkpoint.is_end() {
            return Err(Error::invalid(format!("lease {key} was read to its end: there is nothing to move")));
        }
        if row.owner.as_ref() == Some(to) && row.giver.is_none() {
            return Ok(Moved::Already);
        }
        if !self.forced {
            self.expect_life(to, &found).await?;
        }
        if let Some(giver) = &row.giver {
            return Err(Error::invalid(format!(
                "lease {key} is on its way from `{giver}` already: wait until it has arrived"
            )));
        }
        let attempt = match &row.owner {
            // Somebody renews it: that is who must drain it.
            Some(owner) if self.is_renewed(&row, found.lease).await? => {
                Attempt::BeginHandoff { key: key.clone(), from: owner.clone(), to: to.clone() }
            }
            from => {
                Attempt::Take { key: key.clone(), counter: row.counter, me: to.clone(), from: from.clone() }
            }
        };
        let asked = matches!(attempt, Attempt::BeginHandoff { .. });
        self.write(key, &attempt).await?;
        Ok(if asked { Moved::Asked } else { Moved::Done })
    }

    /// Takes a lease away from a worker that is dead: if it is not renewed for a whole lease (which is waited
    /// for), it is nobody's, and whoever should have it takes it.
    ///
    /// # Errors
    /// `Invalid` if there is no such lease, or its holder lives; `Unavailable` if somebody else was faster.
    pub async fn release(&self, key: &LeaseKey) -> Result<Moved> {
        let found = self.inventory().await?;
        let row = self.row(key).await?;
        let Some(owner) = row.owner.clone() else { return Ok(Moved::Already) };
        if self.is_renewed(&row, found.lease).await? {
            return Err(Error::invalid(format!(
                "lease {key} is renewed by `{}`: move it to another worker, or stop that one",
                row.giver.as_ref().unwrap_or(&owner)
            )));
        }
        // During a handoff that nobody finishes, the promise is as dead as its giver.
        let attempt = match &row.giver {
            Some(giver) => Attempt::FinishHandoff {
                key: key.clone(),
                counter: row.counter,
                from: giver.clone(),
                to: owner,
            },
            None => Attempt::Evict { key: key.clone(), counter: row.counter, me: owner },
        };
        self.write(key, &attempt).await?;
        Ok(Moved::Done)
    }

    async fn row(&self, key: &LeaseKey) -> Result<Lease> {
        lease(self.store, self.soon(), &self.place, key).await?.ok_or_else(|| {
            Error::invalid(format!("application `{}` has no lease `{key}`: list them first", self.place.app))
        })
    }

    /// Waits for a sign of life of a worker.
    async fn expect_life(&self, of: &WorkerId, found: &Inventory) -> Result<()> {
        let patience = found.lease.unwrap_or(Settings::default().lease);
        let end = self.env.clock.deadline(patience);
        let row_in = |found: &Inventory| found.workers.iter().find(|row| row.worker == *of).cloned();
        let mut row = row_in(found);
        let mut live = BTreeSet::new();
        while self.env.clock.monotonic() < end {
            self.env.clock.sleep(patience / LIFE_POLLS).await;
            let now = self.inventory().await?;
            live.extend(signs_of_life(found, &now));
            // It may have started only now.
            row = row_in(&now);
            if live.contains(of) && row.as_ref().is_some_and(|row| row.cap > 0) {
                return Ok(());
            }
        }
        let app = &self.place.app;
        let why = match row {
            None => format!("application `{app}` has no worker `{of}`"),
            Some(row) if row.cap == 0 => {
                format!("worker `{of}` of application `{app}` takes no leases: it leaves, or may hold none")
            }
            Some(_) => {
                format!("worker `{of}` of application `{app}` gave no sign of life for {patience:?}")
            }
        };
        let others: Vec<&str> =
            live.iter().filter(|live| *live != of).map(WorkerId::as_str).take(NAMES_MAX).collect();
        Err(Error::invalid(if others.is_empty() {
            format!("{why}, and nobody else lives: start a worker first")
        } else {
            format!("{why}: name one of those that live ({})", others.join(", "))
        }))
    }

    /// Whether the counter moves within a lease, as anybody would judge it.
    async fn is_renewed(&self, row: &Lease, lease_time: Option<Duration>) -> Result<bool> {
        let patience = lease_time.unwrap_or(Settings::default().lease);
        let end = self.env.clock.deadline(patience);
        while self.env.clock.monotonic() < end {
            self.env.clock.sleep(patience / WATCH_POLLS).await;
            if self.row(&row.key).await?.counter != row.counter {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn write(&self, key: &LeaseKey, attempt: &Attempt) -> Result<()> {
        match self.store.write(self.soon(), &self.place.write(attempt)).await? {
            Written::Applied(_) => tell_everybody(self.store, self.soon(), &self.place).await,
            Written::Refused(_) => Err(Error::new(
                Kind::Unavailable,
                format!("lease {key} changed meanwhile: look at it and ask again"),
            )),
        }
    }
}

/// Who has written its row since, or renewed a lease.
fn signs_of_life(before: &Inventory, now: &Inventory) -> BTreeSet<WorkerId> {
    let said = now.workers.iter().filter(|row| !before.workers.contains(row)).map(|row| row.worker.clone());
    let renewed = now.leases.iter().filter_map(|lease| {
        let at = before.leases.binary_search_by(|old| old.key.cmp(&lease.key)).ok()?;
        let old = &before.leases[at];
        // Whoever gives counts for whoever receives.
        let same = old.owner == lease.owner && old.giver == lease.giver && old.counter != lease.counter;
        lease.giver.clone().or_else(|| lease.owner.clone()).filter(|_| same)
    });
    said.chain(renewed).collect()
}
