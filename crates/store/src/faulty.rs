//! A store that goes wrong as its seed says: where lost replies get injected.
//!
//! The draws are [`Faults`]'; this file carries them out. A late or duplicated write waits here and
//! lands when a later call comes by and its time has come, as a packet that was held up in the
//! network would. Nothing is spawned, so a simulation replays it exactly.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use tenure_backend::{Error, Fate, Faults, Kind, Result};
use tenure_clock::{Clock, Monotonic};

use crate::{Item, Key, Listing, Page, Query, Store, TableSpec, Write, Written};

/// Most writes that may be held up at once; beyond that they are lost for good, which is a fault too.
const HELD_UP_MAX: usize = 1024;

/// Any store, with faults between it and its caller.
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Arc<Faults>,
    clock: Arc<dyn Clock>,
    held_up: Mutex<Vec<HeldUp>>,
}

/// A write that is still under way although its caller has gone on.
#[derive(Debug)]
struct HeldUp {
    lands: Monotonic,
    writes: Vec<Write>,
    /// Of a transaction.
    nonce: Option<String>,
}

impl<S: Store> Faulty<S> {
    /// Puts `faults` between `inner` and its callers.
    pub fn new(inner: S, faults: Arc<Faults>, clock: Arc<dyn Clock>) -> Self {
        Self { inner, faults, clock, held_up: Mutex::new(Vec::new()) }
    }

    /// The faults, to change their rates or count them.
    pub const fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Waits the drawn latency, lets held-up writes land, and says what becomes of this call.
    async fn fate(&self, by: Monotonic, is_write: bool) -> Result<Fate> {
        let (latency, fate) = self.faults.draw(is_write);
        if !latency.is_zero() {
            let arrives = self.clock.monotonic() + latency;
            self.clock.sleep_until(arrives.min(by)).await;
            if arrives > by {
                // Still on its way when the caller gave up, and lost there: it did not land.
                return Err(Error::unavailable("injected fault: too slow to arrive by the deadline"));
            }
        }
        self.land_held_up(by).await;
        match fate {
            Fate::Throttle => Err(Error::new(Kind::Throttled, "injected fault: throttled")),
            Fate::Fail => Err(Error::unavailable("injected fault: failed before it was sent")),
            other => Ok(other),
        }
    }

    async fn land_held_up(&self, by: Monotonic) {
        let now = self.clock.monotonic();
        let due: Vec<_> = {
            let mut held_up = self.held_up.lock().unwrap_or_else(PoisonError::into_inner);
            held_up.extract_if(.., |held| held.lands <= now).collect()
        };
        for held in due {
            // Nobody waits for the answer, whatever it is.
            let _ = match (&held.nonce, held.writes.as_slice()) {
                (None, [write]) => self.inner.write(by, write).await,
                (nonce, writes) => self.inner.transact(by, writes, nonce.as_deref().unwrap_or("")).await,
            };
        }
    }

    fn hold_up(&self, lands: Monotonic, writes: &[Write], nonce: Option<&str>) {
        let mut held_up = self.held_up.lock().unwrap_or_else(PoisonError::into_inner);
        if held_up.len() < HELD_UP_MAX {
            held_up.push(HeldUp { lands, writes: writes.to_vec(), nonce: nonce.map(str::to_owned) });
        }
    }

    async fn carry_out(&self, by: Monotonic, writes: &[Write], nonce: Option<&str>) -> Result<Written> {
        let fate = self.fate(by, true).await?;
        let now = self.clock.monotonic();
        if let Fate::Late(late_by) = fate {
            self.hold_up(now + late_by, writes, nonce);
            return Err(Error::new(Kind::Unknown, "injected fault: no reply, the write is still under way"));
        }
        let answer = match (nonce, writes) {
            (None, [write]) => self.inner.write(by, write).await,
            _ => self.inner.transact(by, writes, nonce.unwrap_or("")).await,
        };
        match fate {
            // What the backend refused as invalid was not applied; its own error says more.
            Fate::Lose if answer.is_ok() => {
                Err(Error::new(Kind::Unknown, "injected fault: the reply was lost"))
            }
            // Only what was sent and applied is sent twice: an error still means that it did not happen.
            Fate::Duplicate(late_by) if matches!(answer, Ok(Written::Applied(_))) => {
                self.hold_up(now + late_by, writes, nonce);
                answer
            }
            _ => answer,
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store> Store for Faulty<S> {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        // Creating is repeated until it works, so its faults are definite ones.
        self.fate(by, false).await?;
        self.inner.ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.fate(by, false).await?;
        self.inner.describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.fate(by, false).await?;
        self.inner.get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.carry_out(by, std::slice::from_ref(write), None).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.carry_out(by, writes, Some(nonce)).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.fate(by, false).await?;
        self.inner.query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.fate(by, false).await?;
        self.inner.scan(by, table, page).await
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }
}

/// A shared store is a store, so that wrappers can be put around what [`crate::open`] gave.
#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: Store + ?Sized> Store for Arc<S> {
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        (**self).ensure_table(by, spec).await
    }

    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        (**self).describe_table(by, table).await
    }

    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        (**self).get(by, table, key).await
    }

    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        (**self).write(by, write).await
    }

    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        (**self).transact(by, writes, nonce).await
    }

    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        (**self).query(by, table, query).await
    }

    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        (**self).scan(by, table, page).await
    }

    fn is_local(&self) -> bool {
        (**self).is_local()
    }
}
