//! What the machine asks of the store, carried out and answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};
use tenure_store::{Item, Store, Written};

use crate::lock::{Attempt, ResignRequest, Rows};
use crate::machine::{Answer, Call};
use crate::rows::{Place, Refused, table_spec};

/// How long table set-up may take.
const TABLE_TIMEOUT: Duration = Duration::from_secs(60);

/// An answer for the machine, and the error behind it if a person must mend it.
pub(crate) struct Answered {
    pub(crate) answer: Answer,
    pub(crate) error: Option<Error>,
}

/// Where the calls of one candidate go.
#[derive(Clone)]
pub(crate) struct Calls {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    place: Place,
    /// The table was seen to be there, with the right key.
    prepared: Arc<AtomicBool>,
}

impl Calls {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, place: Place) -> Self {
        Self { store, clock, place, prepared: Arc::default() }
    }

    /// Makes a call, and answers at `by` at the latest; the first read makes sure of the table before.
    pub(crate) async fn make(self, by: Monotonic, call: Call) -> Answered {
        let Self { store, clock, place, prepared } = self;
        let (store, clock) = (&*store, &*clock);
        let mut by = by;
        match call {
            Call::Read => {
                if !prepared.load(Ordering::Relaxed) {
                    // The table may take a while; the read has its usual time after that.
                    let patience = by.since(clock.monotonic());
                    if let Err(error) = prepare(store, clock, &place.table).await {
                        return failed(error);
                    }
                    prepared.store(true, Ordering::Relaxed);
                    by = clock.deadline(patience);
                }
                let unanswered = |_| Answered { answer: Answer::Failed, error: None };
                within(clock, by, read(store, by, &place)).await.unwrap_or_else(unanswered)
            }
            Call::Write(attempt) => {
                let unanswered = |_| Answered { answer: Answer::Unknown, error: None };
                within(clock, by, write(store, by, &place, &attempt)).await.unwrap_or_else(unanswered)
            }
        }
    }
}

/// Makes sure of the table: it is created if it is not there, and refused if it has another key.
pub(crate) async fn prepare(store: &dyn Store, clock: &dyn Clock, table: &str) -> Result<()> {
    let by = clock.deadline(TABLE_TIMEOUT);
    let spec = table_spec(table);
    let preparing = async {
        match store.describe_table(by, table).await? {
            // Its time to live is the operator's choice: nothing rests on it.
            Some(existing) => spec.check_same_key(&existing),
            None => store.ensure_table(by, &spec).await,
        }
    };
    let late = |_| Err(Error::unavailable(format!("table `{table}` is not ready after {TABLE_TIMEOUT:?}")));
    within(clock, by, preparing).await.unwrap_or_else(late)
}

async fn read(store: &dyn Store, by: Monotonic, place: &Place) -> Answered {
    match read_rows(store, by, place).await {
        Ok(rows) => Answered { answer: Answer::Rows(rows), error: None },
        Err(error) if error.kind() == Kind::Corrupt => foreign(&error),
        Err(error) => failed(error),
    }
}

pub(crate) async fn read_rows(store: &dyn Store, by: Monotonic, place: &Place) -> Result<Rows> {
    let lock = async || {
        let item = store.get(by, &place.table, &place.lock_key()).await?;
        item.map(|item| place.lock(&item)).transpose()
    };
    if let Some(lock) = lock().await? {
        return Ok(Rows { lock: Some(lock), fence: None });
    }
    let item = store.get(by, &place.table, &place.fence_key()).await?;
    let fence = item.map(|item| place.fence(&item)).transpose()?;
    // Looked for once more: a claim between the two reads would show as an absent row under its own
    // epoch, and the watch of that absence (E-7) would begin before the row was there.
    Ok(match lock().await? {
        Some(lock) => Rows { lock: Some(lock), fence: None },
        None => Rows { lock: None, fence },
    })
}

async fn write(store: &dyn Store, by: Monotonic, place: &Place, attempt: &Attempt) -> Answered {
    let writes = place.writes(attempt);
    let written = match writes.as_slice() {
        [write] => store.write(by, write).await,
        writes => store.transact(by, writes, &attempt.nonce().to_string()).await,
    };
    let answer = match written {
        Ok(Written::Applied(item)) => Ok(Answer::Applied { resign: resign_of(place, attempt, &item) }),
        Ok(Written::Refused(refusal)) => place.refusal(&refusal).map(|refused| match refused {
            Refused::ByLock(lock) => Answer::RefusedByLock(lock),
            Refused::ByFence(mark) => Answer::RefusedByFence(mark),
        }),
        Err(error) if error.kind() == Kind::Unknown => Ok(Answer::Unknown),
        Err(error) => return failed(error),
    };
    match answer {
        Ok(answer) => Answered { answer, error: None },
        Err(error) => foreign(&error),
    }
}

/// The request to hand over in a row that was just renewed.
fn resign_of(place: &Place, attempt: &Attempt, item: &Item) -> Option<ResignRequest> {
    match attempt {
        // What was written was conditional on the row being ours, so it can be read.
        Attempt::Renew(_) => place.lock(item).ok()?.resign,
        Attempt::Acquire(_) | Attempt::Release(_) => None,
    }
}

fn foreign(error: &Error) -> Answered {
    Answered { answer: Answer::Foreign(error.chain().into()), error: None }
}

fn failed(error: Error) -> Answered {
    let lasting = matches!(error.kind(), Kind::Denied | Kind::Invalid | Kind::Corrupt | Kind::Fenced);
    Answered { answer: Answer::Failed, error: lasting.then_some(error) }
}
