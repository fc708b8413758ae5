//! What a person does about leases at a terminal, without being a worker.

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
}

impl<'a> Admin<'a> {
    /// Of the application `app`, with its own rows in the table that the settings name.
    #[must_use]
    pub fn new(store: &'a dyn Store, env: &'a Env, app: &str, settings: &Settings) -> Self {
        Self { store, env, place: Place::new(app, &settings.coordination_table) }
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
        let mut leases = found.leases;
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
    /// # Errors
    /// `Invalid` if there is no such lease or worker, if the lease is at its end or on its way already;
    /// `Unavailable` if somebody else was faster.
    pub async fn move_lease(&self, key: &LeaseKey, to: &WorkerId) -> Result<Moved> {
        let found = self.inventory().await?;
        if found.workers.iter().all(|row| row.worker != *to) {
            return Err(Error::invalid(format!(
                "application `{}` has no worker `{to}`: nobody of that name has a row in `{}`",
                self.place.app, self.place.coordination
            )));
        }
        let row = self.row(key).await?;
        if row.checkpoint.is_end() {
            return Err(Error::invalid(format!("lease {key} was read to its end: there is nothing to move")));
        }
        if let Some(giver) = &row.giver {
            return Err(Error::invalid(format!(
                "lease {key} is on its way from `{giver}` already: wait until it has arrived"
            )));
        }
        let attempt = match &row.owner {
            Some(owner) if owner == to => return Ok(Moved::Already),
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
