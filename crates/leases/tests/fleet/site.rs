//! Where a fleet lives: a store that each worker opens for itself, a stream, and a ledger of who held what.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tenure_leases::admin::Admin;
use tenure_leases::rows::Place;
use tenure_leases::{Builder, Checkpoint, Ending, Holding, Keeper, KeeperHandle, Lease, LeaseKey, Settings};
use tenure_store::{Faulty, Memory, Store, StoreExt};
use tenure_stream::{HashKey, Memory as MemoryStream, ShardId, Stream, StreamSpec};

/// Short, for quick tests, and yet long beside what a busy machine holds up a write.
const LEASE: Duration = Duration::from_secs(2);
/// A server and its client share the two processors of a small machine.
const LEASE_ON_SERVERS: Duration = Duration::from_secs(3);
/// Only a stuck test waits so long.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(super) struct Site {
    pub(super) app: String,
    pub(super) lease: Duration,
    opener: Opener,
    stream: Arc<dyn Stream>,
    ledger: Arc<Mutex<Ledger>>,
    _guard: Arc<dyn Any + Send + Sync>,
}

/// Opens stores of one site, in any runtime.
#[derive(Clone)]
enum Opener {
    Shared(Arc<dyn Store>),
    At(String),
}

/// Who held what.
#[derive(Default)]
struct Ledger {
    last: BTreeMap<LeaseKey, Holding>,
    drained: BTreeMap<LeaseKey, Checkpoint>,
    clashes: Vec<String>,
}

/// A worker and what it holds.
pub(super) struct Member {
    pub(super) keeper: KeeperHandle,
    held: Arc<Mutex<BTreeMap<LeaseKey, Holding>>>,
}

impl Member {
    fn held(&self) -> MutexGuard<'_, BTreeMap<LeaseKey, Holding>> {
        self.held.lock().unwrap()
    }

    /// How many leases it may deliver now.
    pub(super) fn count(&self) -> usize {
        self.held().values().filter(|holding| holding.is_valid()).count()
    }

    pub(super) fn has(&self, key: &LeaseKey) -> bool {
        self.held().get(key).is_some_and(Holding::is_valid)
    }

    pub(super) fn keys(&self) -> Vec<LeaseKey> {
        self.held().iter().filter(|(_, holding)| holding.is_valid()).map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn holding(&self, key: &LeaseKey) -> Holding {
        self.held()[key].clone()
    }

    pub(super) fn begun_at(&self, key: &LeaseKey) -> Checkpoint {
        self.held()[key].lease().checkpoint.clone()
    }
}

impl Site {
    pub(super) fn memory() -> Self {
        Self::new(Opener::Shared(Arc::new(Memory::new(&Env::system()))), LEASE, ())
    }

    pub(super) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("sqlite:{}", dir.path().join("tenure.db").display());
        Self::new(Opener::At(address), LEASE, dir)
    }

    pub(super) fn postgres() -> Self {
        let server = std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!(
                "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        Self::new(Opener::At(format!("{server}?schema=leases")), LEASE_ON_SERVERS, ())
    }

    #[cfg(feature = "dynamodb")]
    pub(super) fn dynamodb(variable: &str) -> Self {
        let endpoint = std::env::var(variable)
            .unwrap_or_else(|_| panic!("{variable} is not set: use `cargo xtask test`"));
        let address = format!("dynamodb:?region=eu-west-1&endpoint={endpoint}");
        Self::new(Opener::At(address), LEASE_ON_SERVERS, ())
    }

    fn new(opener: Opener, lease: Duration, guard: impl Any + Send + Sync) -> Self {
        let random = Entropy::system().nonce();
        let stream = MemoryStream::new("orders", Arc::new(SystemClock)).unwrap();
        Self {
            app: format!("app-{}", &random[..16]),
            lease,
            opener,
            stream: Arc::new(stream),
            ledger: Arc::default(),
            _guard: Arc::new(guard),
        }
    }

    pub(super) async fn create_shards(&self, shards: u32) {
        self.stream.create(soon(), &StreamSpec::with_shards(shards)).await.unwrap();
        // Without a time to live: DynamoDB Local gives each table with one of few threads.
        let table =
            tenure_store::TableSpec { ttl: None, ..tenure_election::table_spec(&self.coordination()) };
        self.open().await.ensure_table(soon(), &table).await.unwrap();
    }

    pub(super) async fn split(&self, shard: u64) {
        self.stream.split(soon(), &ShardId::numbered(shard), HashKey(u128::MAX / 2)).await.unwrap();
    }

    fn coordination(&self) -> String {
        format!("{}-own", self.app)
    }

    fn settings(&self) -> Settings {
        Settings {
            lease: self.lease,
            list_interval: Duration::from_millis(500),
            move_interval: Some(self.lease),
            coordination_table: self.coordination(),
            ..Settings::default()
        }
    }

    /// A store of one's own.
    pub(super) async fn open(&self) -> Arc<dyn Store> {
        match &self.opener {
            Opener::Shared(store) => store.clone(),
            Opener::At(address) => tenure_store::open(address, &Env::system()).await.unwrap(),
        }
    }

    pub(super) async fn builder(&self, name: &str) -> Builder {
        self.build(self.open().await, name)
    }

    fn build(&self, store: Arc<dyn Store>, name: &str) -> Builder {
        Keeper::builder(store, &Env::system(), &self.app, name)
            .stream(self.stream.clone())
            .settings(self.settings())
            .cap(80)
    }

    pub(super) async fn member(&self, name: &str) -> Member {
        self.start(self.builder(name).await).await
    }

    /// A worker, and the switch that cuts it off.
    pub(super) async fn fragile(&self, name: &str) -> (Member, Arc<Faults>) {
        let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(3)).unwrap());
        let store = Faulty::new(self.open().await, faults.clone(), Arc::new(SystemClock));
        (self.start(self.build(Arc::new(store), name)).await, faults)
    }

    async fn start(&self, builder: Builder) -> Member {
        let (keeper, mut holdings) = builder.start().await.unwrap();
        let held = Arc::new(Mutex::new(BTreeMap::new()));
        let (ledger, mine) = (self.ledger.clone(), held.clone());
        tokio::spawn(async move {
            while let Some(holding) = holdings.recv().await {
                let key = holding.lease().key.clone();
                ledger.lock().unwrap().granted(&holding);
                mine.lock().unwrap().insert(key, holding.clone());
                tokio::spawn(consume(holding, ledger.clone()));
            }
        });
        Member { keeper, held }
    }

    pub(super) fn admin<'a>(&self, store: &'a dyn Store) -> Admin<'a> {
        static ENV: std::sync::LazyLock<Env> = std::sync::LazyLock::new(Env::system);
        Admin::new(store, &ENV, &self.app, &self.settings())
    }

    pub(super) async fn rows(&self) -> Vec<Lease> {
        let place = Place::new(&self.app, &self.coordination());
        let items = self.open().await.scan_all(soon(), &self.app, 100).await.unwrap();
        items.iter().filter_map(|item| place.lease(item).unwrap()).collect()
    }

    pub(super) async fn row(&self, key: &LeaseKey) -> Option<Lease> {
        self.rows().await.into_iter().find(|row| row.key == *key)
    }

    /// Waits until it is so.
    pub(super) async fn until(&self, what: &str, so: impl AsyncFn() -> bool) {
        let by = SystemClock.deadline(PATIENCE);
        while !so().await {
            assert!(
                SystemClock.monotonic() < by,
                "not within {PATIENCE:?}: {what}; {:#?}",
                self.rows().await
            );
            SystemClock.sleep(super::POLL).await;
        }
    }

    /// Lets so many leases pass.
    pub(super) async fn pass(&self, leases: u32) {
        SystemClock.sleep(self.lease * leases).await;
    }

    pub(super) fn drained_at(&self, key: &LeaseKey) -> Checkpoint {
        self.ledger.lock().unwrap().drained[key].clone()
    }

    /// LS-1.
    pub(super) fn assert_one_at_a_time(&self) {
        let clashes = self.ledger.lock().unwrap().clashes.clone();
        assert!(clashes.is_empty(), "{clashes:?}");
    }
}

impl Ledger {
    fn granted(&mut self, holding: &Holding) {
        let key = holding.lease().key.clone();
        if let Some(before) = self.last.insert(key.clone(), holding.clone())
            && before.is_valid()
        {
            self.clashes.push(format!("{key} has two holders"));
        }
    }
}

/// Drains at once: checkpoints a little further, and gives.
async fn consume(holding: Holding, ledger: Arc<Mutex<Ledger>>) {
    let key = holding.lease().key.clone();
    match holding.ends(None).await {
        Ending::Handoff | Ending::Stop => {
            let next = match &holding.lease().checkpoint {
                Checkpoint::At { sequence, .. } => sequence.as_u64().unwrap() + 1,
                _ => 1,
            };
            let at = Checkpoint::At { sequence: next.into(), sub: 0 };
            if holding.checkpoint(at.clone(), None).await.is_ok() {
                ledger.lock().unwrap().drained.insert(key, at);
            }
            // Lost meanwhile, otherwise.
            let _ = holding.give().await;
        }
        Ending::Lost => {}
    }
}

/// A deadline that only a stuck test reaches.
pub(super) fn soon() -> Monotonic {
    SystemClock.deadline(PATIENCE)
}
