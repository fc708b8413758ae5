//! The state item and its log, as a store holds them: what executors and people's commands share.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tenure_store::{Item, Page, Query, Store, Write, Written};
use tracing::{info, warn};

use crate::change::{Change, Stamp};
use crate::log::{Event, Snapshot};
use crate::policy::seconds;
use crate::repair::{Repair, repair};
use crate::rows::{self, CLUSTER, decode, state_key};
use crate::state::{InstanceId, Interrupt, InterruptKind, State};
use crate::table;

/// Most writes that a person's command tries before it gives up: each lost race is a write of another's.
const ATTEMPTS_MAX: u32 = 10;

/// Where the book is, and how it is kept.
#[derive(Debug, Clone)]
pub struct Places {
    /// The state table.
    pub state_table: String,
    /// The log's table, or none.
    pub logs_table: Option<String>,
    /// How long events are kept.
    pub log_retention: Duration,
    /// How long a single call may take.
    pub call_timeout: Duration,
}

impl Default for Places {
    /// The tables of the old writers, 90 days, 10 s.
    fn default() -> Self {
        Self {
            state_table: rows::STATE_TABLE.to_owned(),
            logs_table: Some(rows::LOGS_TABLE.to_owned()),
            log_retention: Duration::from_secs(90 * 86_400),
            call_timeout: Duration::from_secs(10),
        }
    }
}

/// The state item and its log. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Book {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    owner: String,
    places: Places,
}

impl Book {
    /// The book in a store, for somebody of that name: a request id, a host name. A nonce is added.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, env: &Env, name: &str, places: Places) -> Self {
        let nonce = env.entropy.nonce();
        let owner = format!("{name}-{}", nonce.get(..8).unwrap_or(&nonce));
        Self { store, clock: env.clock.clone(), owner, places }
    }

    /// The name in `lockOwner` and in the log.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Creates the two tables if they are not there.
    ///
    /// # Errors
    /// As the store's.
    pub async fn ensure_tables(&self) -> Result<()> {
        let by = self.by();
        self.store.ensure_table(by, &rows::state_table(&self.places.state_table)).await?;
        if let Some(logs) = &self.places.logs_table {
            self.store.ensure_table(by, &rows::logs_table(logs)).await?;
        }
        Ok(())
    }

    /// The item as it is, if there is one.
    ///
    /// # Errors
    /// As the store's.
    pub async fn item(&self) -> Result<Option<Item>> {
        let item = self.store.get(self.by(), &self.places.state_table, &state_key()).await;
        item.map_err(|error| error.during("read the state item"))
    }

    /// The state as it is; that of a cluster in which nothing ever happened if there is no item.
    ///
    /// # Errors
    /// `Corrupt` if an attribute has another type; else as the store's.
    pub async fn state(&self) -> Result<State> {
        decode(&self.item().await?.unwrap_or_default())
    }

    /// Keys of other items in the state table, so many at most: executors read `cluster` alone.
    ///
    /// # Errors
    /// As the store's.
    pub async fn strangers(&self, most: usize) -> Result<Vec<String>> {
        let page = Page { limit: most + 1, after: None };
        let listing = self.store.scan(self.by(), &self.places.state_table, &page).await;
        let items = listing.map_err(|error| error.during("look for other items"))?.items;
        let keys = items.iter().filter_map(|item| item.get("pk")?.as_text());
        Ok(keys.filter(|key| *key != CLUSTER).map(str::to_owned).collect())
    }

    /// Events since then, oldest first, so many at most, and what is there and is no event.
    ///
    /// # Errors
    /// `Invalid` if no log is kept, or there are more; else as the store's.
    pub async fn events(&self, since_epoch: i64, most: usize) -> Result<(Vec<Event>, Vec<Error>)> {
        self.events_if(most, |event| event.epoch >= since_epoch).await
    }

    /// As [`Book::events`], of those that are wanted.
    ///
    /// # Errors
    /// As [`Book::events`].
    pub async fn events_if(
        &self,
        most: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<(Vec<Event>, Vec<Error>)> {
        let Some(logs) = &self.places.logs_table else {
            return Err(Error::invalid("no table of events is configured, so there is no log"));
        };
        let (mut events, mut strange, mut anew) = (Vec::new(), Vec::new(), false);
        let mut page = Page { limit: Page::LIMIT_MAX, after: None };
        // Page by page: what is older is not kept, however much there is of it.
        loop {
            let query = Query::partition("pk", CLUSTER).page(page.clone());
            let listing = self.store.query(self.by(), logs, &query).await;
            let listing = listing.map_err(|error| error.during("read the log"))?;
            for item in &listing.items {
                anew |= Event::is_beside(item);
                match Event::read(item) {
                    Ok(event) if wanted(&event) => events.push(event),
                    Ok(_) => {}
                    Err(error) => strange.push(error),
                }
            }
            if events.len() + strange.len() > most {
                return Err(Error::invalid(format!(
                    "there are more than {most} events since then: ask for a shorter time"
                )));
            }
            page.after = listing.next;
            if page.after.is_none() {
                // The item was lost, and its numbers began again.
                if anew {
                    events.sort_by_key(|event| event.epoch);
                }
                return Ok((events, strange));
            }
        }
    }

    // === what people and signals ask for ===

    /// Puts an interruption into the inbox. Telling it twice is telling it once.
    ///
    /// # Errors
    /// `Unavailable` if it kept losing races; else as the store's.
    pub async fn interrupt(&self, instance: &InstanceId, interrupt: Interrupt) -> Result<()> {
        let change = Change::Interrupt { instance: instance.clone(), interrupt };
        let told = |state: &State| state.interrupted().any(|(id, _)| id == instance);
        let reason = match interrupt.kind {
            InterruptKind::Spot => format!("the spot capacity of instance {instance} is taken back"),
            InterruptKind::Rebalance => format!("the cloud advises to move away from instance {instance}"),
        };
        self.command(&change, &[reason], told).await
    }

    /// Asks that nothing new begins, or that it may again.
    ///
    /// # Errors
    /// As [`Book::interrupt`].
    pub async fn pause(&self, paused: bool) -> Result<()> {
        let change = if paused { Change::Pause } else { Change::Resume };
        self.command(&change, &[], |state| state.is_paused() == paused).await
    }

    /// Gives the item the form of this version.
    ///
    /// # Errors
    /// As [`Book::interrupt`].
    pub async fn migrate(&self) -> Result<()> {
        let mut attempts = 0;
        loop {
            let state = self.state().await?;
            if state.is_migrated() {
                return Ok(());
            }
            self.try_command(&state, &Change::Migrate, &[], &mut attempts).await?;
        }
    }

    /// Mends what can be mended of an item that nobody can go on with, and says what is left to do. With `dry_run`
    /// nothing is written. `None` if there is no item.
    ///
    /// # Errors
    /// As [`Book::interrupt`].
    pub async fn repair(&self, dry_run: bool) -> Result<Option<Repair>> {
        // What was sent and not answered: if it is found in order then, that landed.
        let mut sent: Option<Repair> = None;
        for _ in 0..ATTEMPTS_MAX {
            let Some(item) = self.item().await? else { return Ok(None) };
            let repair = repair(&item, self.clock.wall().as_seconds());
            if let Some(sent) = sent.take().filter(|_| repair.mended.is_empty()) {
                let after = decode(&item).unwrap_or_default();
                self.log_as("repair", &after, &after, &sent.mended, None).await;
                return Ok(Some(sent));
            }
            let Some(write) = repair.write(&self.places.state_table, &item).filter(|_| !dry_run) else {
                return Ok(Some(repair));
            };
            match self.send(&write).await {
                Ok(Written::Applied(after)) => {
                    let (before, after) =
                        (decode(&item).unwrap_or_default(), decode(&after).unwrap_or_default());
                    self.log_as("repair", &before, &after, &repair.mended, None).await;
                    return Ok(Some(repair));
                }
                Ok(Written::Refused(_)) => {}
                Err(error) if error.kind() == Kind::Unknown => sent = Some(repair),
                Err(error) => return Err(error),
            }
        }
        Err(keeps_changing())
    }

    async fn command(
        &self,
        change: &Change,
        reasons: &[String],
        is_done: impl Fn(&State) -> bool,
    ) -> Result<()> {
        self.migrate().await?;
        let mut attempts = 0;
        loop {
            let state = self.state().await?;
            if is_done(&state) {
                return Ok(());
            }
            self.try_command(&state, change, reasons, &mut attempts).await?;
        }
    }

    async fn try_command(
        &self,
        state: &State,
        change: &Change,
        reasons: &[String],
        attempts: &mut u32,
    ) -> Result<()> {
        *attempts += 1;
        if *attempts > ATTEMPTS_MAX {
            return Err(keeps_changing());
        }
        // A person's command holds no lease, and judges nobody's.
        let now_ms = self.clock.wall().as_millis();
        let stamp = Stamp { owner: self.owner.clone(), now_ms, lease_ms: 0, skew_ms: 0 };
        match self.send(&self.write_of(state, change, &stamp)?).await {
            Ok(Written::Applied(item)) => self.log(state, &decode(&item)?, change, reasons, None).await,
            Ok(Written::Refused(_)) => {}
            // Read back: whether it landed is seen there.
            Err(error) if error.kind() == Kind::Unknown => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    // === for whoever carries out ===

    /// The write of a change, as the transition table says.
    ///
    /// # Errors
    /// `Invalid` if it does not fit the state.
    pub(crate) fn write_of(&self, seen: &State, change: &Change, stamp: &Stamp) -> Result<Write> {
        table::write(&self.places.state_table, seen, change, stamp)
    }

    pub(crate) async fn send(&self, write: &Write) -> Result<Written> {
        let written = self.store.write(self.by(), write).await;
        written.map_err(|error| error.during("write the state item"))
    }

    /// An event that cannot be stored is told and left out: the state is what counts.
    pub(crate) async fn log(
        &self,
        before: &State,
        after: &State,
        change: &Change,
        reasons: &[String],
        decided: Option<Snapshot>,
    ) {
        self.log_as(change.name().row().title, before, after, reasons, decided).await;
    }

    async fn log_as(
        &self,
        title: &str,
        before: &State,
        after: &State,
        reasons: &[String],
        decided: Option<Snapshot>,
    ) {
        let now = self.clock.wall().as_seconds();
        let event = Event { seen: decided, ..Event::of(before, after, title, &self.owner, now, reasons) };
        let action = event.action.as_ref().map(ToString::to_string).unwrap_or_default();
        info!(rev = event.rev, action_id = action, event = title, reasons = ?event.reasons, "state changed");
        let Some(logs) = &self.places.logs_table else { return };
        let expires = now + seconds(self.places.log_retention);
        let mut written = self.store.write(self.by(), &event.write(logs, expires)).await;
        if matches!(written, Ok(Written::Refused(_))) {
            written = self.store.write(self.by(), &event.write_beside(logs, expires)).await;
        }
        if let Err(error) = written {
            warn!(error = %error.chain(), rev = event.rev, "an event could not be logged");
        }
    }

    /// Until when a single call may take.
    pub(crate) fn by(&self) -> Monotonic {
        self.clock.deadline(self.places.call_timeout)
    }

    /// By when an effect that begins now has ended: a write and its event are two calls.
    pub(crate) fn by_of_effect(&self) -> Monotonic {
        self.clock.deadline(self.places.call_timeout * 2)
    }
}

fn keeps_changing() -> Error {
    Error::unavailable("the state item keeps changing under this write: try again")
}
