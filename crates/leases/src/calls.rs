//! What the machine asks of the store and of the streams, carried out and answered.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};
use tenure_store::{Query, Store, StoreExt, TableSpec, Write, Written};
use tenure_stream::{Stream, StreamExt};
use tokio::sync::Semaphore;
use tracing::warn;

use crate::lineage::StreamShards;
use crate::machine::{Answer, Call, Scan};
use crate::rows::{OwnRow, Place, bare_lease_table_spec, lease_row, lease_table_spec};
use crate::settings::LEASES_MAX;
use crate::{Attempt, Lease, LeaseKey, Note};

/// How long table set-up may take.
const TABLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Workers whose rows are read at most: more than any fleet has.
const WORKERS_MAX: usize = 10_000;
/// Writes under way at a time: enough for thousands of leases, and no more than a client has connections.
const WRITES_MAX: usize = 64;

/// A stream whose shards are leased.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Its name in lease keys, where the application reads several.
    pub(crate) name: Option<Arc<str>>,
    pub(crate) stream: Arc<dyn Stream>,
}

/// An answer for the machine, and the error behind it if a person must mend it.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) error: Option<Error>,
}

/// Where the calls of one worker go.
#[derive(Clone)]
pub(crate) struct Calls {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    place: Arc<Place>,
    sources: Arc<[Source]>,
    writes: Arc<Semaphore>,
}

impl Calls {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        place: Place,
        sources: Vec<Source>,
    ) -> Self {
        let writes = Arc::new(Semaphore::new(WRITES_MAX));
        Self { store, clock, place: Arc::new(place), sources: sources.into(), writes }
    }

    /// Makes a call, and answers at `by` at the latest.
    pub(crate) async fn make(self, by: Monotonic, call: Call) -> Answered {
        let is_write = matches!(call, Call::Write(_) | Call::Note(_));
        let clock = self.clock.clone();
        let unanswered = if is_write { Answer::Unknown } else { Answer::Failed };
        let named = match &call {
            Call::Write(attempt) => Some(attempt.name()),
            Call::Note(note) => Some(note.name()),
            _ => None,
        };
        let answered = within(&*clock, by, self.carry_out(by, call))
            .await
            .unwrap_or(Answered { answer: unanswered, error: None });
        if let Some(write) = named {
            let outcome = match answered.answer {
                Answer::Applied(_) => "applied",
                Answer::Refused(_) => "refused",
                Answer::Unknown => "unknown",
                _ => "failed",
            };
            metrics::counter!("tenure_lease_writes_total", "write" => write, "outcome" => outcome)
                .increment(1);
        }
        answered
    }

    async fn carry_out(&self, by: Monotonic, call: Call) -> Answered {
        let (store, place) = (&*self.store, &*self.place);
        match call {
            Call::Scan => read(scan(store, by, place).await.map(Answer::Scanned)),
            Call::Nudge => read(nudge(store, by, place).await.map(Answer::Nudge)),
            Call::Read(key) => {
                read(lease(store, by, place, &key).await.map(|row| Answer::Row(row.map(Arc::new))))
            }
            Call::List => read(list(&self.sources, by).await.map(Answer::Shards)),
            Call::Write(attempt) => {
                // A write that waits here counts as sent, which only brings its deadline forward.
                let _permit = self.writes.acquire().await;
                write(store, by, place, &attempt).await
            }
            Call::Note(note) => written(store.write(by, &place.note(&note)).await, |_| Ok(None)),
        }
    }
}

fn read(found: Result<Answer>) -> Answered {
    match found {
        Ok(answer) => Answered { answer, error: None },
        Err(error) if error.kind() == Kind::Corrupt => {
            Answered { answer: Answer::Foreign(error.chain().into()), error: Some(error) }
        }
        Err(error) => failed(error),
    }
}

async fn write(store: &dyn Store, by: Monotonic, place: &Place, attempt: &Attempt) -> Answered {
    let answered = store.write(by, &place.write(attempt)).await;
    written(answered, |item| place.lease(&item))
}

fn written(answered: Result<Written>, row: impl Fn(tenure_store::Item) -> Result<Option<Lease>>) -> Answered {
    let answer = match answered {
        Ok(Written::Applied(item)) => row(item).map(|row| Answer::Applied(row.map(Arc::new))),
        Ok(Written::Refused(refusal)) => {
            let current = refusal.current.map(&row).transpose();
            current.map(|row| Answer::Refused(row.flatten().map(Arc::new)))
        }
        Err(error) if error.kind() == Kind::Unknown => Ok(Answer::Unknown),
        Err(error) => return failed(error),
    };
    read(answer)
}

fn failed(error: Error) -> Answered {
    let lasting = matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Corrupt | Kind::Fenced);
    Answered { answer: Answer::Failed, error: lasting.then_some(error) }
}

/// Makes sure of both tables. An existing lease table is used as it is: the index is the KCL's business.
pub(crate) async fn prepare(store: &dyn Store, clock: &dyn Clock, place: &Place) -> Result<()> {
    let by = clock.deadline(TABLE_TIMEOUT);
    let preparing = async {
        table(store, by, &bare_lease_table_spec(&place.leases), &lease_table_spec(&place.leases)).await?;
        let own = tenure_election::table_spec(&place.coordination);
        table(store, by, &own, &own).await
    };
    let late = |_| Err(Error::unavailable(format!("the tables are not ready after {TABLE_TIMEOUT:?}")));
    within(clock, by, preparing).await.unwrap_or_else(late)
}

async fn table(store: &dyn Store, by: Monotonic, needed: &TableSpec, new: &TableSpec) -> Result<()> {
    match store.describe_table(by, &needed.name).await? {
        Some(existing) => needed.check_same_key(&existing),
        None => store.ensure_table(by, new).await,
    }
}

/// Our own rows, and then the leases: a nudge that comes in between is seen the next time.
pub(crate) async fn scan(store: &dyn Store, by: Monotonic, place: &Place) -> Result<Scan> {
    let mut found = Scan::default();
    let query = Query::partition("pk", place.partition());
    for item in store.query_all(by, &place.coordination, query, WORKERS_MAX).await? {
        match place.own(&item) {
            Ok(Some(OwnRow::Settings(lease))) => found.settings = Some(lease),
            Ok(Some(OwnRow::Nudge(counter))) => found.nudge = counter,
            Ok(Some(OwnRow::Worker(presence))) => found.workers.push(presence),
            Ok(None) => {}
            // For how long leases last must be known.
            Err(error) if item.text("sk") == Some("settings") => return Err(error),
            Err(error) => warn!(error = %error.chain(), "row passed over"),
        }
    }
    for item in store.scan_all(by, &place.leases, LEASES_MAX).await? {
        match place.lease(&item) {
            Ok(Some(lease)) => found.leases.push(Arc::new(lease)),
            Ok(None) => {}
            Err(error) => {
                let key = item.text("leaseKey").unwrap_or_default();
                found.bad.push((key.into(), error.chain().into()));
            }
        }
    }
    Ok(found)
}

async fn nudge(store: &dyn Store, by: Monotonic, place: &Place) -> Result<u64> {
    let item = store.get(by, &place.coordination, &place.nudge_key()).await?;
    Ok(match item.map(|item| place.own(&item)).transpose()? {
        Some(Some(OwnRow::Nudge(counter))) => counter,
        _ => 0,
    })
}

pub(crate) async fn lease(
    store: &dyn Store,
    by: Monotonic,
    place: &Place,
    key: &LeaseKey,
) -> Result<Option<Lease>> {
    let item = store.get(by, &place.leases, &lease_row(key)).await?;
    Ok(item.map(|item| place.lease(&item)).transpose()?.flatten())
}

async fn list(sources: &[Source], by: Monotonic) -> Result<Vec<StreamShards>> {
    let mut found = Vec::with_capacity(sources.len());
    for source in sources {
        let shards = source.stream.all_shards(by).await?;
        found.push(StreamShards { stream: source.name.clone(), shards });
    }
    Ok(found)
}

/// Tells everybody to look.
pub(crate) async fn tell_everybody(store: &dyn Store, by: Monotonic, place: &Place) -> Result<()> {
    let write: Write = place.note(&Note::Nudge);
    store.write(by, &write).await.map(drop)
}
