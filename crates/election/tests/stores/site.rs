//! Where an election is held: a store that each candidate opens for itself, and a table of its own.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_election::{Builder, Elector, OnRenewalError, Place, Settings, ShardId};
use tenure_store::{Faulty, Item, Memory, Store};

const SHARD: &str = "batch-processor";
/// Short, for quick tests, and yet long beside what a busy machine holds up a write.
const LEASE: Duration = Duration::from_secs(2);
/// A server and its client share the two processors of a small machine.
const LEASE_ON_SERVERS: Duration = Duration::from_secs(3);

pub(super) struct Site {
    pub(super) table: String,
    pub(super) lease: Duration,
    place: Place,
    opener: Opener,
    /// What goes away with the test.
    _guard: Box<dyn Any + Send + Sync>,
}

/// Opens stores of one site, in any runtime.
#[derive(Clone)]
enum Opener {
    Shared(Arc<dyn Store>),
    At(String),
}

impl Opener {
    async fn open(&self) -> Arc<dyn Store> {
        match self {
            Self::Shared(store) => store.clone(),
            Self::At(address) => tenure_store::open(address, &Env::system()).await.unwrap(),
        }
    }
}

/// What a candidate elsewhere needs.
pub(super) struct Opening {
    opener: Opener,
    settings: Settings,
}

impl Opening {
    pub(super) async fn candidate(&self, name: &str) -> Elector {
        builder(self.opener.open().await, name, self.settings.clone()).build().unwrap()
    }
}

impl Site {
    pub(super) fn memory() -> Self {
        let store = Arc::new(Memory::new(&Env::system()));
        Self::new(Opener::Shared(store), LEASE, unique(), ())
    }

    pub(super) fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("sqlite:{}", dir.path().join("tenure.db").display());
        Self::new(Opener::At(address), LEASE, unique(), dir)
    }

    pub(super) fn postgres() -> Self {
        let server = std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
            panic!(
                "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        Self::new(Opener::At(format!("{server}?schema=elections")), LEASE_ON_SERVERS, unique(), ())
    }

    #[cfg(feature = "dynamodb")]
    pub(super) fn dynamodb(variable: &str) -> Self {
        let table = crate::emulator::OwnTable::on(crate::emulator::Emulator::of(variable));
        let (name, address) = (table.name.clone(), table.emulator.address());
        Self::new(Opener::At(address), LEASE_ON_SERVERS, name, table)
    }

    fn new(opener: Opener, lease: Duration, table: String, guard: impl Any + Send + Sync) -> Self {
        let place = Place { table: table.clone(), shard: ShardId::new(SHARD).unwrap() };
        Self { table, lease, place, opener, _guard: Box::new(guard) }
    }

    /// A store of one's own.
    pub(super) async fn open(&self) -> Arc<dyn Store> {
        self.opener.open().await
    }

    pub(super) fn opening(&self) -> Opening {
        Opening { opener: self.opener.clone(), settings: self.settings(OnRenewalError::StepDown) }
    }

    pub(super) async fn candidate(&self, name: &str) -> Elector {
        self.opening().candidate(name).await
    }

    /// A candidate, and the switch that cuts it off.
    pub(super) async fn fragile(&self, name: &str, policy: OnRenewalError) -> (Elector, Arc<Faults>) {
        let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(3)).unwrap());
        let store = Faulty::new(self.open().await, faults.clone(), Arc::new(SystemClock));
        let elector = builder(Arc::new(store), name, self.settings(policy)).build();
        (elector.unwrap(), faults)
    }

    fn settings(&self, on_renewal_error: OnRenewalError) -> Settings {
        Settings {
            table: self.table.clone(),
            lease: self.lease,
            renew: self.lease * 3 / 10,
            on_renewal_error,
            ..Settings::default()
        }
    }

    pub(super) const fn place(&self) -> &Place {
        &self.place
    }

    /// The LOCK row.
    pub(super) async fn lock(&self) -> Option<Item> {
        let by = SystemClock.deadline(Duration::from_secs(30));
        self.open().await.get(by, &self.table, &self.place.lock_key()).await.unwrap()
    }
}

fn builder(store: Arc<dyn Store>, name: &str, settings: Settings) -> Builder {
    Elector::builder(store, SHARD, &Env::system()).owner(name).settings(settings)
}

fn unique() -> String {
    format!("election-{}", &Entropy::system().nonce()[..16])
}
