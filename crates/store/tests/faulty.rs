//! The faulty wrapper: nothing but the store at zero rates, and exactly its promised faults otherwise.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Entropy, ManualTime, Monotonic, SystemClock};
use tenure_store::conformance::Subject;
use tenure_store::testing::env;
use tenure_store::{
    Condition, Env, FaultRates, Faults, Faulty, Item, Key, KeyAttribute, Kind, Memory, Store, StoreExt,
    TableSpec, Update, Written,
};

async fn open() -> Subject {
    let faults = Faults::new(FaultRates::default(), Entropy::seeded(1)).unwrap();
    Subject::new(Faulty::new(Memory::new(&env(0)), Arc::new(faults), Arc::new(SystemClock)))
}

tenure_store::store_conformance!(open);

const BY: Monotonic = Monotonic::NEVER;

struct World {
    time: ManualTime,
    memory: Arc<Memory>,
    faulty: Faulty<Arc<Memory>>,
}

impl World {
    async fn with(rates: FaultRates) -> Self {
        let time = ManualTime::default();
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        let memory = Arc::new(Memory::new(&env));
        memory.ensure_table(BY, &TableSpec::new("rows", KeyAttribute::text("pk"))).await.unwrap();
        let faults = Arc::new(Faults::new(rates, env.entropy.fork()).unwrap());
        let faulty = Faulty::new(memory.clone(), faults, env.clock.clone());
        Self { time, memory, faulty }
    }

    async fn add_one(&self) -> Result<Written, Kind> {
        let change = Update::new().add("n", 1);
        let added = self.faulty.update(BY, "rows", Key::new("pk", "a"), change, Condition::Always).await;
        added.map_err(|error| error.kind())
    }

    async fn count(&self) -> i64 {
        let row = self.memory.get(BY, "rows", &Key::new("pk", "a")).await.unwrap();
        row.and_then(|row| row.integer("n")).unwrap_or(0)
    }
}

#[tokio::test]
async fn a_lost_reply_was_applied() {
    let world = World::with(FaultRates { lost: 1.0, ..FaultRates::default() }).await;
    assert_eq!(world.add_one().await, Err(Kind::Unknown));
    assert_eq!(world.count().await, 1);
    assert_eq!(world.faulty.faults().counts().lost, 1);
}

#[tokio::test]
async fn a_throttled_or_failed_call_was_not_applied() {
    let world = World::with(FaultRates { throttled: 1.0, ..FaultRates::default() }).await;
    assert_eq!(world.add_one().await, Err(Kind::Throttled));
    let failing = FaultRates { failed: 1.0, ..FaultRates::default() };
    world.faulty.faults().set_rates(failing).unwrap();
    assert_eq!(world.add_one().await, Err(Kind::Unavailable));
    assert_eq!(world.count().await, 0);
}

#[tokio::test]
async fn a_late_write_lands_when_its_time_has_come() {
    let late = FaultRates { late: 1.0, late_by_max: Duration::from_secs(10), ..FaultRates::default() };
    let world = World::with(late).await;
    assert_eq!(world.add_one().await, Err(Kind::Unknown));
    world.faulty.faults().set_rates(FaultRates::default()).unwrap();
    let look = async || world.faulty.get(BY, "rows", &Key::new("pk", "other")).await;
    look().await.unwrap();
    assert_eq!(world.count().await, 0, "still under way");
    world.time.advance(Duration::from_secs(10));
    look().await.unwrap();
    assert_eq!(world.count().await, 1);
}

#[tokio::test]
async fn a_duplicated_write_lands_twice_but_a_conditional_one_counts_once() {
    let twice = FaultRates { duplicated: 1.0, late_by_max: Duration::from_secs(1), ..FaultRates::default() };
    let world = World::with(twice).await;
    world.add_one().await.unwrap();
    let guarded = Item::new().with("pk", "guarded").with("n", 1);
    let put = world.faulty.put(BY, "rows", guarded.clone(), Condition::absent("pk")).await;
    assert!(put.unwrap().is_applied());
    world.faulty.faults().set_rates(FaultRates::default()).unwrap();
    world.time.advance(Duration::from_secs(2));
    world.faulty.get(BY, "rows", &Key::new("pk", "x")).await.unwrap();
    assert_eq!(world.count().await, 2);
    assert_eq!(world.memory.get(BY, "rows", &Key::new("pk", "guarded")).await.unwrap(), Some(guarded));
}

#[tokio::test]
async fn latency_beyond_the_deadline_is_known_not_to_have_landed() {
    let slow = FaultRates { latency_max: Duration::from_secs(100), ..FaultRates::default() };
    let world = World::with(slow).await;
    let by = Monotonic::from_nanos(1);
    let change = Update::new().add("n", 1);
    let call = world.faulty.update(by, "rows", Key::new("pk", "a"), change, Condition::Always);
    let (answer, ()) = tokio::join!(call, async { world.time.advance(Duration::from_secs(1)) });
    assert_eq!(answer.unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(world.count().await, 0);
}

#[tokio::test]
async fn faults_can_be_named_by_address() {
    let env = env(0);
    let store = tenure_store::open("faulty+memory:?seed=7&lost=1", &env).await.unwrap();
    let by = env.clock.deadline(Duration::from_secs(5));
    // Creating a table fails definitely where a write's reply would be lost.
    let spec = TableSpec::new("rows", KeyAttribute::text("pk"));
    assert_eq!(store.ensure_table(by, &spec).await.unwrap_err().kind(), Kind::Unavailable);
    for (address, message) in [
        ("faulty+memory:?sede=7", "did you mean `seed`"),
        ("faulty+memory:?lost=2", "is not from 0 to 1"),
        ("faulty+nothing:", "unknown scheme `nothing:` for a store"),
        ("memory:?seed=7", "addresses take no option"),
    ] {
        let error = tenure_store::open(address, &env).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains(message), "{address}: {}", error.chain());
    }
}

/// An error that says "it did not happen" stays true: only what was applied is sent twice.
#[tokio::test]
async fn what_failed_is_not_duplicated_later() {
    let twice = FaultRates { duplicated: 1.0, late_by_max: Duration::from_secs(1), ..FaultRates::default() };
    let world = World::with(FaultRates { failed: 1.0, ..FaultRates::default() }).await;
    let clock: Arc<dyn tenure_clock::Clock> = Arc::new(world.time.clock());
    let faults = Arc::new(Faults::new(twice, Entropy::seeded(1)).unwrap());
    let outer = Faulty::new(world.faulty, faults, clock);
    let put = outer.put(BY, "rows", Item::new().with("pk", "a"), Condition::Always).await;
    assert_eq!(put.unwrap_err().kind(), Kind::Unavailable);
    world.time.advance(Duration::from_secs(2));
    outer.faults().set_rates(FaultRates::default()).unwrap();
    let _ = outer.get(BY, "rows", &Key::new("pk", "x")).await;
    assert_eq!(world.memory.get(BY, "rows", &Key::new("pk", "a")).await.unwrap(), None);
}
