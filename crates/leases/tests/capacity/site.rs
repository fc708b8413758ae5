//! Where workers share a table: a store that each opens for itself, counts that the test sets, and a wall clock
//! that shows what the seed says.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, Result};
use tenure_clock::{Clock, Entropy, Monotonic, Sleep, SystemClock, WallTime};
use tenure_election::Elector;
use tenure_leases::WorkerId;
use tenure_leases::capacity::{Builder, CapacityManager, Census, Count, Declared, OpenShards, Settings};
use tenure_store::{Item, Memory, Store, StoreExt};

pub(super) const STREAM: &str = "kds-stream-prod";
pub(super) const APP: &str = "my-app";

/// A moment of 2025-11-19, the day of the seed.
pub(super) fn at(hour: i64, minute: i64, second: i64) -> WallTime {
    const TEN: i64 = 1_763_546_400;
    WallTime::from_millis((TEN + (hour - 10) * 3600 + minute * 60 + second) * 1000)
}

/// A wall clock that is set, on top of the machine's own monotonic one: real stores keep real deadlines.
#[derive(Debug)]
pub(super) struct SetClock {
    wall: Mutex<WallTime>,
}

impl SetClock {
    pub(super) fn new(wall: WallTime) -> Arc<Self> {
        Arc::new(Self { wall: Mutex::new(wall) })
    }

    pub(super) fn set(&self, wall: WallTime) {
        *self.wall.lock().unwrap() = wall;
    }
}

impl Clock for SetClock {
    fn wall(&self) -> WallTime {
        *self.wall.lock().unwrap()
    }

    fn monotonic(&self) -> Monotonic {
        SystemClock.monotonic()
    }

    fn sleep_until(&self, deadline: Monotonic) -> Sleep<'_> {
        // It borrows nothing of a clock that has no state.
        Box::pin(async move { SystemClock.sleep_until(deadline).await })
    }
}

/// A count of shards that the test sets.
#[derive(Debug, Default)]
pub(super) struct Shards(AtomicU64);

impl Shards {
    pub(super) fn new(count: u64) -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(count)))
    }

    pub(super) fn set(&self, count: u64) {
        self.0.store(count, Ordering::SeqCst);
    }
}

#[async_trait]
impl OpenShards for Shards {
    async fn open_shards(&self, _by: Monotonic) -> Result<u64> {
        Ok(self.0.load(Ordering::SeqCst))
    }
}

/// A count of workers that the test sets.
#[derive(Debug)]
pub(super) struct Workers(Mutex<Count>);

impl Workers {
    pub(super) fn new(count: Count) -> Arc<Self> {
        Arc::new(Self(Mutex::new(count)))
    }

    pub(super) fn set(&self, count: Count) {
        *self.0.lock().unwrap() = count;
    }
}

#[async_trait]
impl Census for Workers {
    async fn count(&self, _by: Monotonic) -> Count {
        self.0.lock().unwrap().clone()
    }

    fn source(&self) -> String {
        "the test".to_owned()
    }
}

/// Opens stores of one site.
enum Opener {
    Shared(Arc<dyn Store>),
    At(String),
}

pub(super) struct Site {
    pub(super) clock: Arc<SetClock>,
    pub(super) shards: Arc<Shards>,
    pub(super) settings: Settings,
    /// The table that the workers are expected to use.
    pub(super) table: String,
    /// Where elections are held.
    pub(super) coordination: String,
    opener: Opener,
    /// What goes away with the test.
    _guard: Box<dyn Any + Send + Sync>,
}

impl Site {
    pub(super) fn memory() -> Self {
        let clock = SetClock::new(at(10, 0, 0));
        let store = Arc::new(Memory::new(&env(&clock)));
        Self::new(clock, Opener::Shared(store), None, ())
    }

    pub(super) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("sqlite:{}", dir.path().join("tenure.db").display());
        Self::new(SetClock::new(at(10, 0, 0)), Opener::At(address), None, dir)
    }

    pub(super) fn postgres() -> Self {
        let server = std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!(
                "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        let address = format!("{server}?schema=capacity");
        Self::new(SetClock::new(at(10, 0, 0)), Opener::At(address), Some(unique("meta")), ())
    }

    #[cfg(feature = "dynamodb")]
    pub(super) fn dynamodb(variable: &str) -> Self {
        let emulator = super::emulator::Emulator::of(variable);
        let opener = Opener::At(emulator.address());
        let mut site = Self::new(SetClock::new(at(10, 0, 0)), opener, Some(unique("meta")), ());
        site._guard = Box::new(emulator.deleting([site.table.clone(), site.coordination.clone()]));
        site
    }

    fn new(
        clock: Arc<SetClock>,
        opener: Opener,
        table: Option<String>,
        guard: impl Any + Send + Sync,
    ) -> Self {
        let settings = Settings {
            table: table.clone(),
            // An emulator sweeps by the real clock, for which the seed's day is long past.
            keep_rows: Duration::from_secs(5 * 366 * 86_400),
            live: false,
            ..Settings::default()
        };
        Self {
            clock,
            shards: Shards::new(30),
            settings,
            table: table.unwrap_or_else(|| format!("{STREAM}_meta")),
            coordination: unique("coordination"),
            opener,
            _guard: Box::new(guard),
        }
    }

    pub(super) fn env(&self) -> Env {
        env(&self.clock)
    }

    pub(super) async fn open(&self) -> Arc<dyn Store> {
        match &self.opener {
            Opener::Shared(store) => store.clone(),
            Opener::At(address) => tenure_store::open(address, &self.env()).await.unwrap(),
        }
    }

    /// A worker of three, with a store of its own.
    pub(super) async fn worker(&self, name: &str) -> Builder {
        self.worker_on(self.open().await, name)
    }

    pub(super) fn worker_on(&self, store: Arc<dyn Store>, name: &str) -> Builder {
        CapacityManager::builder(store, self.shards.clone(), STREAM, APP, WorkerId::from(name), &self.env())
            .settings(self.settings.clone())
            .census(Arc::new(Declared::new(3).unwrap()))
    }

    /// A candidate of an election of this site.
    pub(super) async fn elector(&self, name: &str) -> Elector {
        let settings = tenure_election::Settings {
            table: self.coordination.clone(),
            lease: Duration::from_secs(3),
            renew: Duration::from_secs(1),
            ..tenure_election::Settings::default()
        };
        Elector::builder(self.open().await, APP, &self.env()).owner(name).settings(settings).build().unwrap()
    }

    pub(super) async fn rows(&self) -> Vec<Item> {
        let mut rows = self.open().await.scan_all(soon(), &self.table, 100).await.unwrap();
        rows.sort_by(|one, other| one.text("worker_id").cmp(&other.text("worker_id")));
        rows
    }

    pub(super) async fn row(&self, worker: &str) -> Option<Item> {
        self.rows().await.into_iter().find(|row| row.text("worker_id") == Some(worker))
    }

    /// Compares the columns of the seed with a table of the seed, emphasis and all.
    #[track_caller]
    pub(super) fn shows<'a>(&'a self, expected: &'a str) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let plain = expected.replace(['`', '*'], "");
            let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
            let mut lines = plain.lines().map(str::trim).filter(|line| !line.is_empty());
            let columns = cells(lines.next().unwrap());
            let expected = lines.filter(|line| !line.starts_with("|-")).map(cells).collect::<Vec<_>>();
            let found = self
                .rows()
                .await
                .into_iter()
                .map(|row| columns.iter().map(|column| cell(&row, column)).collect::<Vec<_>>());
            assert_eq!(found.collect::<Vec<_>>(), expected, "at {caller}");
        }
    }
}

fn cell(row: &Item, column: &str) -> String {
    match row.get(column) {
        Some(tenure_store::Value::S(text)) => text.clone(),
        Some(tenure_store::Value::N(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn env(clock: &Arc<SetClock>) -> Env {
    Env { clock: clock.clone(), entropy: Entropy::system() }
}

fn unique(what: &str) -> String {
    format!("capacity-{what}-{}", &Entropy::system().nonce()[..16])
}

/// A deadline that only a stuck test reaches.
pub(super) fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}
