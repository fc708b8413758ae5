//! Why the cap is what it is, for a person.
//!
//! [`survey`] reads the table and changes nothing, so that it serves beside workers of any kind: it is what
//! `tenure workers` and `tenure capacity explain` show. A worker that runs adds what only it knows.

use std::fmt;

use tenure_backend::Result;
use tenure_clock::Monotonic;
use tenure_store::{Item, Store, StoreExt};

use super::census::Count;
use super::formula::{Cap, Deficit, Why, effective};
use super::machine::Member;
use super::rows::{COORDINATOR_SUFFIX, Place, Row};
use super::settings::Settings;

/// Most rows of one table: far more workers than share a stream.
const ROWS_MAX: usize = 10_000;

/// Something that a person should look at.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// Nobody could tell how many workers there are meant to be.
    WorkerCountUnknown {
        /// Why, in words.
        why: String,
    },
    /// The limit does not suffice for all leases.
    Deficit {
        /// Leases that nobody may hold.
        leases: u64,
        /// Workers with which all would fit.
        desired_workers: u64,
    },
    /// Another process has the name of this worker.
    DuplicateWorker {
        /// The other process; absent if it does not tell, as a Go worker.
        incarnation: Option<String>,
    },
    /// A row cannot be read.
    BadRow {
        /// Which, and what is wrong with it.
        what: String,
    },
}

impl fmt::Display for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WorkerCountUnknown { why } => write!(f, "the worker count is unknown: {why}"),
            Self::Deficit { leases, desired_workers } => {
                write!(f, "{leases} leases are above the limit of all workers: run {desired_workers} workers")
            }
            Self::DuplicateWorker { incarnation: Some(other) } => {
                write!(f, "another process ({other}) has the name of this worker: give each its own")
            }
            Self::DuplicateWorker { incarnation: None } => {
                write!(f, "a process of another kind has the name of this worker: give each its own")
            }
            Self::BadRow { what } => f.write_str(what),
        }
    }
}

/// What the table says of one application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The table; absent if there is none yet.
    pub table: Option<String>,
    /// The row for all workers.
    pub coordinator: Option<Row>,
    /// The rows of workers, by name. They are not all alive.
    pub workers: Vec<Row>,
    /// Rows that could not be read, in words.
    pub bad_rows: Vec<String>,
}

/// Why the cap of a worker is what it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The stream.
    pub stream: String,
    /// The application.
    pub app: String,
    /// The table; absent if none is looked at, or there is none yet.
    pub table: Option<String>,
    /// The cap in effect; absent if nothing can be said yet.
    pub cap: Option<Cap>,
    /// The row for all workers.
    pub coordinator: Option<Row>,
    /// Most leases of one worker.
    pub limit: u64,
    /// Leases that are not at their end, if somebody counted them.
    pub demand: Option<u64>,
    /// Leases that this worker holds.
    pub held: Option<u64>,
    /// How many workers there are meant to be, and who said so; absent if nobody was asked.
    pub declared: Option<(Count, String)>,
    /// Workers that are alive, as far as this process saw.
    pub fleet: Vec<Member>,
    /// Whether this worker adjusts the row.
    pub leading: bool,
    /// Looks in a row at which the leader wanted more, and less.
    pub pending: (u32, u32),
    /// What does not fit under the limit.
    pub deficit: Option<Deficit>,
    /// What a person should look at.
    pub alarms: Vec<Alarm>,
}

impl Survey {
    /// Why a worker of this application may hold what it may, as far as the table tells.
    #[must_use]
    pub fn explain(&self, stream: &str, app: &str, settings: &Settings) -> Explanation {
        // What the worker counted that was heard of last; the coordinator row may be old.
        let last_heard = self.workers.iter().filter(|row| row.ours.demand.is_some());
        let last_heard = last_heard.max_by_key(|row| row.ours.expires_at);
        let demand = last_heard.or(self.coordinator.as_ref()).and_then(|row| row.ours.demand);
        let mut explanation = Explanation {
            stream: stream.to_owned(),
            app: app.to_owned(),
            table: self.table.clone(),
            cap: None,
            coordinator: self.coordinator.clone(),
            limit: settings.limit,
            demand,
            held: None,
            declared: None,
            fleet: Vec::new(),
            leading: false,
            pending: (0, 0),
            deficit: None,
            alarms: self.bad_rows.iter().map(|what| Alarm::BadRow { what: what.clone() }).collect(),
        };
        if !settings.enable_dynamic_max_leases {
            explanation.cap = Some(Cap { value: settings.max_leases, why: Why::Fixed });
        } else if let Some(row) = &self.coordinator {
            let stored = Cap { value: row.max_leases_per_worker, why: Why::Coordinator };
            let (cap, deficit) = effective(
                stored,
                row.shard_count,
                demand,
                row.worker_count,
                settings.limit,
                settings.on_deficit,
            );
            explanation.cap = Some(cap);
            explanation.deficit = Some(deficit);
            if let Deficit { leases: leases @ 1.., desired_workers } = deficit {
                explanation.alarms.push(Alarm::Deficit { leases, desired_workers });
            }
        }
        explanation
    }
}

/// Reads what the table says of one application. Nothing is created or changed.
///
/// # Errors
/// What the store says; `Corrupt` or `Invalid` if the coordinator row cannot be used.
pub async fn survey(
    store: &dyn Store,
    by: Monotonic,
    stream: &str,
    app: &str,
    settings: &Settings,
) -> Result<Survey> {
    let mut survey = Survey { table: None, coordinator: None, workers: Vec::new(), bad_rows: Vec::new() };
    let Some(table) = find_table(store, by, stream, app, settings).await? else { return Ok(survey) };
    let place = Place { table: table.clone(), stream: stream.to_owned(), app: app.to_owned() };
    survey.table = Some(table);
    for item in store.scan_all(by, &place.table, ROWS_MAX).await? {
        match Sorted::of(&place, &item) {
            Sorted::Coordinator => survey.coordinator = Some(place.coordinator_row(&item)?),
            Sorted::Worker(row) => survey.workers.push(*row),
            Sorted::Bad(what) => survey.bad_rows.push(what),
            Sorted::Foreign => {}
        }
    }
    survey.workers.sort_by(|one, other| one.worker_id.cmp(&other.worker_id));
    Ok(survey)
}

/// Whose row an item is.
enum Sorted {
    Coordinator,
    Worker(Box<Row>),
    /// Of another application that shares the table.
    Foreign,
    Bad(String),
}

impl Sorted {
    fn of(place: &Place, item: &Item) -> Self {
        let id = item.text("worker_id").unwrap_or_default();
        if id == place.coordinator() {
            return Self::Coordinator;
        }
        let foreign = item.text("app_name").is_some_and(|app| app != place.app);
        if foreign || id.ends_with(COORDINATOR_SUFFIX) {
            return Self::Foreign;
        }
        match Row::of(&place.table, item) {
            Ok(row) => Self::Worker(Box::new(row)),
            Err(error) => Self::Bad(error.chain()),
        }
    }
}

/// The rows of this application's workers, and what could not be read, in words.
pub(super) async fn worker_rows(
    store: &dyn Store,
    by: Monotonic,
    place: &Place,
) -> Result<(Vec<Row>, Vec<String>)> {
    let (mut rows, mut bad) = (Vec::new(), Vec::new());
    for item in store.scan_all(by, &place.table, ROWS_MAX).await? {
        match Sorted::of(place, &item) {
            Sorted::Worker(row) => rows.push(*row),
            Sorted::Bad(what) => bad.push(what),
            Sorted::Coordinator | Sorted::Foreign => {}
        }
    }
    Ok((rows, bad))
}

/// The table that is there: the configured one, or `<stream>_meta`, or `<app>_meta`. Of two, the one with the
/// coordinator row of this application.
pub(super) async fn find_table(
    store: &dyn Store,
    by: Monotonic,
    stream: &str,
    app: &str,
    settings: &Settings,
) -> Result<Option<String>> {
    if let Some(table) = &settings.table {
        return Ok(store.describe_table(by, table).await?.map(|_| table.clone()));
    }
    let mut found = Vec::new();
    for table in [usual_table(stream), format!("{app}_meta")] {
        let spec = store.describe_table(by, &table).await?;
        // A table of that name that serves something else is not ours to take over.
        if spec.is_some_and(|spec| spec.hash == super::rows::table_spec(&table).hash && spec.range.is_none())
            && !found.contains(&table)
        {
            found.push(table);
        }
    }
    if found.len() > 1 {
        for table in &found {
            let place = Place { table: table.clone(), stream: stream.to_owned(), app: app.to_owned() };
            if store.get(by, table, &place.coordinator_key()).await?.is_some() {
                return Ok(Some(table.clone()));
            }
        }
    }
    Ok(found.into_iter().next())
}

/// The table that is created if there is none.
pub(super) fn usual_table(stream: &str) -> String {
    format!("{stream}_meta")
}
