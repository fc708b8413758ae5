//! The task and its handles, on a clock that moves by itself as soon as everybody waits.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tenure_backend::{FaultRates, Faults};
use tenure_clock::ManualTime;
use tenure_store::{
    Condition, Faulty, Item, Key, KeyAttribute, Listing, Memory, Page, Query, StoreExt, TableSpec, Write,
    Written,
};

use super::*;
use crate::calls::read_rows;
use crate::identity::ShardId;
use crate::lock::{Acquire, Attempt, Card, ResignRequest};
use crate::machine::LossReason;
use crate::pace::{Pace, poll_once};
use crate::rows::table_spec;
use crate::settings::OnRenewalError;

const L: Duration = Duration::from_secs(15);

/// A world with one store. Each candidate has its own clock and may be cut off from the store.
struct World {
    time: ManualTime,
    env: Env,
    store: Arc<Memory>,
}

impl World {
    fn new() -> Self {
        let time = ManualTime::starting_at(WallTime::from_millis(1_763_553_900_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        Self { store: Arc::new(Memory::new(&env)), time, env }
    }

    fn candidate(&self, name: &str) -> Builder {
        Elector::builder(self.store.clone(), "orders", &self.env).owner(name)
    }

    /// A candidate, and the switch that cuts it off.
    fn fragile(&self, name: &str) -> (Builder, Arc<Faults>) {
        let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(2)).unwrap());
        let store = Faulty::new(self.store.clone(), faults.clone(), self.env.clock.clone());
        (Elector::builder(Arc::new(store), "orders", &self.env).owner(name), faults)
    }

    fn place(&self) -> Place {
        Place { table: crate::TABLE.to_owned(), shard: ShardId::new("orders").unwrap() }
    }

    async fn lock(&self) -> Option<Item> {
        let place = self.place();
        self.store.get(Monotonic::NEVER, &place.table, &place.lock_key()).await.unwrap()
    }

    async fn put(&self, item: Item) {
        let place = self.place();
        self.store.ensure_table(Monotonic::NEVER, &table_spec(&place.table)).await.unwrap();
        let key = place.lock_key();
        let whole = key.as_item().clone().into_iter().chain(item).collect();
        self.store.put(Monotonic::NEVER, &place.table, whole, Condition::Always).await.unwrap();
    }
}

impl Pace for World {
    fn time(&self) -> &ManualTime {
        &self.time
    }
}

#[tokio::test]
async fn a_leader_stays_until_it_resigns_and_the_next_follows_within_a_poll() {
    let world = World::new();
    let (a, b) = (world.candidate("a").build().unwrap(), world.candidate("b").build().unwrap());
    let leadership = world.until(a.lead()).await.unwrap();
    assert_eq!(leadership.fence().epoch(), Epoch(1));
    let mut second = Box::pin(b.lead());
    world.pass(20 * L).await;
    assert!(leadership.is_valid() && a.is_leader() && !b.is_leader());
    assert!(poll_once(&mut second).await.is_none());
    let lost = leadership.term().clone();
    world.until(leadership.resign(None)).await.unwrap();
    assert_eq!(world.until(lost.lost()).await, LossReason::Resigned);
    let (took, second) = world.timed(second).await;
    assert_eq!(second.unwrap().fence().epoch(), Epoch(2));
    assert!(took <= Duration::from_millis(100), "{took:?}");
    assert!(!lost.is_valid(), "a term that is over stays over");
}

#[tokio::test]
async fn a_leader_that_is_cut_off_stops_before_the_next_begins() {
    let world = World::new();
    let (a, faults) = world.fragile("a");
    let (a, b) = (a.build().unwrap(), world.candidate("b").build().unwrap());
    let leadership = world.until(a.lead()).await.unwrap();
    let mut second = Box::pin(b.lead());
    world.pass(L).await;
    assert!(poll_once(&mut second).await.is_none());
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    assert_eq!(world.until(leadership.lost()).await, LossReason::StoreDown);
    let (waited, second) = world.timed(second).await;
    assert!(second.unwrap().is_valid());
    assert!(waited > L / 2 && waited < L * 11 / 10, "{waited:?}");
}

#[tokio::test]
async fn who_retries_rides_out_an_outage_shorter_than_lease_less_renew() {
    let world = World::new();
    let (a, faults) = world.fragile("a");
    let a = a.on_renewal_error(OnRenewalError::RetryUntilDeadline).build().unwrap();
    let leadership = world.until(a.lead()).await.unwrap();
    world.pass(Duration::from_secs(4)).await;
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    world.pass(Duration::from_secs(9)).await;
    faults.set_rates(FaultRates::default()).unwrap();
    world.pass(2 * L).await;
    assert!(leadership.is_valid());
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    assert_eq!(world.until(leadership.lost()).await, LossReason::StoreDown);
}

#[tokio::test]
async fn trying_once_takes_a_free_shard_and_leaves_a_led_one() {
    let world = World::new();
    let (a, b) = (world.candidate("a").build().unwrap(), world.candidate("b").build().unwrap());
    let leadership = world.until(a.try_lead()).await.unwrap().expect("the shard is free");
    assert!(world.until(b.try_lead()).await.unwrap().is_none());
    world.until(leadership.resign(None)).await.unwrap();
    assert!(world.until(b.try_lead()).await.unwrap().is_some());
}

#[tokio::test]
async fn work_runs_only_while_leading_and_again_after_a_loss() {
    let world = World::new();
    let (a, faults) = world.fragile("a");
    let a = a.build().unwrap();
    let terms = Arc::new(Mutex::new(Vec::new()));
    let (seen, stop) = (terms.clone(), Arc::new(AtomicBool::new(false)));
    let (clock, ended) = (world.time.clock(), stop.clone());
    let mut running = Box::pin(a.run(move |term| {
        seen.lock().unwrap().push(term.fence().epoch().0);
        let (clock, ended) = (clock.clone(), ended.clone());
        async move {
            while !ended.load(Ordering::Relaxed) {
                clock.sleep(Duration::from_secs(1)).await;
                assert!(term.is_valid(), "work goes on without leadership");
            }
            "done"
        }
    }));
    tokio::select! { biased; _ = &mut running => unreachable!(), () = world.pass(L) => () }
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    tokio::select! { biased; _ = &mut running => unreachable!(), () = world.pass(L) => () }
    faults.set_rates(FaultRates::default()).unwrap();
    tokio::select! { biased; _ = &mut running => unreachable!(), () = world.pass(2 * L) => () }
    stop.store(true, Ordering::Relaxed);
    assert_eq!(world.until(running).await.unwrap(), "done");
    assert_eq!(*terms.lock().unwrap(), [1, 2]);
    assert_eq!(world.lock().await.unwrap().integer("ttl"), Some(0), "released at the end");
}

#[tokio::test]
async fn guarded_work_is_dropped_at_the_deadline() {
    let world = World::new();
    let healthy = Arc::new(AtomicBool::new(true));
    let check = healthy.clone();
    let a = world.candidate("a").health(move || check.load(Ordering::Relaxed)).build().unwrap();
    let leadership = world.until(a.lead()).await.unwrap();
    assert_eq!(world.until(leadership.guard(async { 7 })).await, Ok(7));
    world.pass(3 * L).await;
    healthy.store(false, Ordering::Relaxed);
    let (took, ended) = world.timed(leadership.guard(pending::<()>())).await;
    assert_eq!(ended, Err(LossReason::Unhealthy));
    assert!(took <= L, "{took:?}");
    assert_eq!(leadership.remaining(), Duration::ZERO);
}

#[tokio::test]
async fn everybody_sees_who_leads_and_what_it_says_of_itself() {
    let world = World::new();
    let a = world.candidate("a").about("address", "10.0.0.1:80").build().unwrap();
    let b = world.candidate("b").build().unwrap();
    let mut view = world.until(b.watch()).await.unwrap();
    let leadership = world.until(a.lead()).await.unwrap();
    let seen =
        world.until(view.wait_for(|view| view.leader.is_some())).await.unwrap().leader.clone().unwrap();
    assert_eq!((seen.name.as_deref(), seen.epoch), (Some("a"), Some(Epoch(1))));
    assert_eq!(seen.about.get("address").map(String::as_str), Some("10.0.0.1:80"));
    assert_eq!(seen.owner, *a.owner());
    drop(leadership);
    world.until(view.wait_for(|view| view.leader.is_none())).await.unwrap();
}

#[tokio::test]
async fn start_is_leader_stop_as_the_go_library_has_them() {
    let world = World::new();
    let (a, b) = (world.candidate("a").build().unwrap(), world.candidate("b").build().unwrap());
    a.start().await.unwrap();
    world.pass(Duration::from_secs(1)).await;
    b.start().await.unwrap();
    world.pass(3 * L).await;
    assert!(a.is_leader() && !b.is_leader());
    assert_eq!(a.term().unwrap().fence().epoch(), Epoch(1));
    world.until(a.stop()).await;
    assert!(!a.is_leader() && a.term().is_none());
    world.pass(Duration::from_millis(200)).await;
    assert!(b.is_leader());
    // And it may begin anew.
    a.start().await.unwrap();
    world.until(b.stop()).await;
    world.pass(Duration::from_millis(200)).await;
    assert!(a.is_leader());
}

#[tokio::test]
async fn dropping_the_leadership_or_all_handles_gives_the_shard_up() {
    let world = World::new();
    let (a, b) = (world.candidate("a").build().unwrap(), world.candidate("b").build().unwrap());
    drop(world.until(a.lead()).await.unwrap());
    let leadership = world.until(b.lead()).await.unwrap();
    assert_eq!(leadership.fence().epoch(), Epoch(2));
    // Withdrawn before it was elected: it does not take the shard when it becomes free.
    let mut waiting = Box::pin(a.lead());
    assert!(poll_once(&mut waiting).await.is_none());
    world.pass(L).await;
    drop(waiting);
    drop((leadership, b));
    world.pass(L).await;
    assert_eq!(world.lock().await.unwrap().integer("ttl"), Some(0));
    assert_eq!(world.lock().await.unwrap().integer("epoch"), Some(2));
}

#[tokio::test]
async fn an_operator_can_ask_for_a_handover_to_a_named_candidate() {
    let world = World::new();
    let names = ["a", "b", "c"];
    let [a, b, c] = names.map(|name| world.candidate(name).build().unwrap());
    a.start().await.unwrap();
    world.pass(Duration::from_secs(1)).await;
    b.start().await.unwrap();
    c.start().await.unwrap();
    let request = ResignRequest { nonce: Nonce(7), to: Some("c".into()) };
    let write = world.place().ask_to_resign(a.owner(), Epoch(1), &request);
    assert!(world.store.write(Monotonic::NEVER, &write).await.unwrap().is_applied());
    // The leader reads it with its next renewal.
    world.pass(Duration::from_secs(6)).await;
    assert!(c.is_leader() && !a.is_leader() && !b.is_leader());
}

#[tokio::test]
async fn a_write_behind_the_fence_is_refused_after_a_claim() {
    let world = World::new();
    let (a, b) = (world.candidate("a").build().unwrap(), world.candidate("b").build().unwrap());
    let leadership = world.until(a.lead()).await.unwrap();
    let fence = leadership.fence().clone();
    world
        .store
        .ensure_table(Monotonic::NEVER, &TableSpec::new("jobs", KeyAttribute::text("id")))
        .await
        .unwrap();
    let job = |id: &str| Write::Put {
        table: "jobs".into(),
        item: Item::new().with("id", id),
        when: Condition::Always,
    };
    let store = &*world.store;
    assert!(fence.transact(store, Monotonic::NEVER, &[job("1")], "n1").await.unwrap().is_applied());
    drop(leadership);
    let _second = world.until(b.lead()).await.unwrap();
    let refused = fence.transact(store, Monotonic::NEVER, &[job("2")], "n2").await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced);
    assert_eq!(store.scan_all(Monotonic::NEVER, "jobs", 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_a_person_must_mend_is_said_and_nothing_is_overwritten() {
    let go_row = Item::new().with("ownerId", "go-1").with("ttl", 1_763_553_000);
    let cases = [
        (Item::new().with("ownerId", 7).with("ttl", 1), Kind::Corrupt, "`ownerId` of type N, not S"),
        (Item::new().with("ownerId", "x"), Kind::Corrupt, "has no `ttl`"),
        (Item::new().with("ownerId", "x").with("ttl", "soon"), Kind::Corrupt, "`ttl` of type S, not N"),
        (go_row, Kind::Invalid, "written by the Go library"),
    ];
    for (item, kind, says) in cases {
        let world = World::new();
        world.put(item).await;
        let before = world.lock().await;
        let error = world.until(world.candidate("a").build().unwrap().lead()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.chain().contains(says), "{error:?}");
        world.pass(3 * L).await;
        assert_eq!(world.lock().await, before);
    }
}

#[tokio::test]
async fn a_table_of_another_shape_is_refused() {
    let world = World::new();
    let other = TableSpec::new(crate::TABLE, KeyAttribute::text("id"));
    world.store.ensure_table(Monotonic::NEVER, &other).await.unwrap();
    let error = world.until(world.candidate("a").build().unwrap().lead()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.chain().contains(crate::TABLE), "{error:?}");
}

#[tokio::test]
async fn two_live_processes_with_one_owner_id_are_told_so() {
    let world = World::new();
    let twin =
        || Elector::builder(world.store.clone(), "orders", &world.env).owner_id("host-1").build().unwrap();
    let (one, other) = (twin(), twin());
    let leadership = world.until(one.lead()).await.unwrap();
    let error = world.until(other.lead()).await.unwrap_err();
    assert!(error.chain().contains("another live process"), "{error:?}");
    assert!(leadership.is_valid(), "the one that leads is not disturbed");
}

#[test]
fn bad_settings_are_refused_before_anything_is_read() {
    let world = World::new();
    let refused = |builder: Builder, says: &str| {
        let error = builder.build().unwrap_err();
        assert!(error.kind() == Kind::Invalid && error.chain().contains(says), "{error:?}");
    };
    refused(world.candidate("a").lease(L).renew(L), "less than the lease");
    refused(world.candidate(""), "owner id is empty");
    refused(world.candidate(&"x".repeat(600)), "at most 512");
    refused(Elector::builder(world.store.clone(), "", &world.env), "shard id is empty");
}

#[tokio::test]
async fn who_does_not_get_on_gives_way() {
    let world = World::new();
    let healthy = Arc::new(AtomicBool::new(true));
    let check = healthy.clone();
    let a = world.candidate("a").health(move || check.load(Ordering::Relaxed)).build().unwrap();
    let b = world.candidate("b").build().unwrap();
    a.start().await.unwrap();
    world.pass(Duration::from_secs(1)).await;
    b.start().await.unwrap();
    world.pass(L).await;
    assert!(a.is_leader());
    healthy.store(false, Ordering::Relaxed);
    world.pass(3 * L).await;
    assert!(b.is_leader(), "the unhealthy one still leads: {:?}", a.term());
}

#[tokio::test]
async fn resigning_after_the_task_ended_returns() {
    let world = World::new();
    let a = world.candidate("a").build().unwrap();
    let leadership = world.until(a.lead()).await.unwrap();
    world.until(a.stop()).await;
    assert_eq!(world.until(leadership.resign(None)).await.unwrap_err().kind(), Kind::Unknown);
}

/// As a process that was stopped for longer than its lease does when it goes on.
#[tokio::test]
async fn resigning_at_the_very_moment_at_which_the_term_is_over_returns() {
    let world = World::new();
    let a = world.candidate("a").build().unwrap();
    let leadership = world.until(a.lead()).await.unwrap();
    // Nobody has had the time to notice.
    world.time.advance(2 * L);
    let error = world.until(leadership.resign(None)).await.unwrap_err();
    assert!(error.kind() == Kind::Fenced && error.chain().contains("expired"), "{error:?}");
}

#[tokio::test]
async fn resigning_from_a_term_that_was_lost_says_so() {
    let world = World::new();
    let (a, faults) = world.fragile("a");
    let leadership = world.until(a.build().unwrap().lead()).await.unwrap();
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    world.until(leadership.lost()).await;
    let error = world.until(leadership.resign(None)).await.unwrap_err();
    assert!(error.kind() == Kind::Fenced && error.chain().contains("store_down"), "{error:?}");
}

#[tokio::test]
async fn of_two_who_try_at_once_the_second_is_told_no() {
    let world = World::new();
    let a = world.candidate("a").build().unwrap();
    let (first, second) = world.until(async { tokio::join!(a.try_lead(), a.try_lead()) }).await;
    assert!(first.unwrap().is_some() && second.unwrap().is_none());
}

#[tokio::test]
async fn a_stop_ends_run_too() {
    let world = World::new();
    let a = world.candidate("a").build().unwrap();
    let running = a.clone();
    let running = tokio::spawn(async move { running.run(|_| pending::<()>()).await });
    world.pass(Duration::from_secs(1)).await;
    assert!(a.is_leader());
    world.until(async { tokio::join!(a.stop(), a.stop()) }).await;
    assert!(!a.is_leader());
    assert_eq!(world.until(running).await.unwrap().unwrap_err().kind(), Kind::Unavailable);
    assert!(!a.is_leader());
}

#[tokio::test]
async fn who_leads_by_start_can_be_held() {
    let world = World::new();
    let a = world.candidate("a").build().unwrap();
    a.start().await.unwrap();
    world.pass(Duration::from_secs(1)).await;
    let leadership = world.until(a.lead()).await.unwrap();
    assert_eq!(leadership.fence().epoch(), Epoch(1));
    drop(leadership);
    world.pass(L).await;
    assert_eq!(a.term().map(|term| term.fence().epoch()), Some(Epoch(2)), "stands again");
}

#[tokio::test]
async fn what_must_be_mended_is_said_to_everyone_who_asks() {
    let world = World::new();
    world.put(Item::new().with("ownerId", "go").with("ttl", 5)).await;
    let a = world.candidate("a").build().unwrap();
    for _ in 0..2 {
        assert_eq!(world.until(a.lead()).await.unwrap_err().kind(), Kind::Invalid);
        assert_eq!(world.until(a.try_lead()).await.unwrap_err().kind(), Kind::Invalid);
    }
}

/// A store that behaves oddly.
#[derive(Debug)]
struct Odd {
    store: Arc<Memory>,
    clock: Arc<dyn Clock>,
    /// Somebody claims the shard just before its FENCE row is read.
    meddling: Vec<Write>,
    /// Transactions are lost on the way, and nobody knows.
    unknown: bool,
    describe_takes: Duration,
    gets: AtomicU64,
    claims: AtomicU64,
}

impl Odd {
    fn new(world: &World) -> Self {
        Self {
            store: world.store.clone(),
            clock: world.env.clock.clone(),
            meddling: Vec::new(),
            unknown: false,
            describe_takes: Duration::ZERO,
            gets: AtomicU64::new(0),
            claims: AtomicU64::new(0),
        }
    }
}

#[async_trait::async_trait]
impl Store for Odd {
    async fn get(&self, by: Monotonic, table: &str, key: &Key) -> Result<Option<Item>> {
        self.gets.fetch_add(1, Ordering::Relaxed);
        if self.clock.monotonic() >= by {
            return Err(Error::unavailable("too late"));
        }
        if key.as_item().text("sk") == Some("FENCE") && !self.meddling.is_empty() {
            assert!(self.store.transact(by, &self.meddling, "n").await?.is_applied());
        }
        self.store.get(by, table, key).await
    }
    async fn describe_table(&self, by: Monotonic, table: &str) -> Result<Option<TableSpec>> {
        self.clock.sleep(self.describe_takes).await;
        self.store.describe_table(by, table).await
    }
    async fn transact(&self, by: Monotonic, writes: &[Write], nonce: &str) -> Result<Written> {
        self.claims.fetch_add(1, Ordering::Relaxed);
        if self.unknown {
            return Err(Error::new(Kind::Unknown, "the server failed"));
        }
        self.store.transact(by, writes, nonce).await
    }
    async fn ensure_table(&self, by: Monotonic, spec: &TableSpec) -> Result<()> {
        self.store.ensure_table(by, spec).await
    }
    async fn write(&self, by: Monotonic, write: &Write) -> Result<Written> {
        self.store.write(by, write).await
    }
    async fn query(&self, by: Monotonic, table: &str, query: &Query) -> Result<Listing> {
        self.store.query(by, table, query).await
    }
    async fn scan(&self, by: Monotonic, table: &str, page: &Page) -> Result<Listing> {
        self.store.scan(by, table, page).await
    }
}

#[tokio::test]
async fn claims_that_are_lost_are_not_sent_again_at_the_pace_of_the_errors() {
    let world = World::new();
    let odd = Arc::new(Odd { unknown: true, ..Odd::new(&world) });
    let a = Elector::builder(odd.clone(), "orders", &world.env).build().unwrap();
    a.start().await.unwrap();
    world.pass(L).await;
    let claims = odd.claims.load(Ordering::Relaxed);
    assert!((2..=30).contains(&claims), "{claims} claims in a lease");
}

#[tokio::test]
async fn a_table_that_is_slow_to_describe_is_waited_for() {
    let world = World::new();
    let describe_takes = 2 * L;
    let odd = Arc::new(Odd { describe_takes, ..Odd::new(&world) });
    let a = Elector::builder(odd, "orders", &world.env).build().unwrap();
    assert!(world.until(a.lead()).await.unwrap().is_valid());
}

#[tokio::test]
async fn nothing_is_read_for_nobody() {
    let world = World::new();
    let odd = Arc::new(Odd::new(&world));
    let a = Elector::builder(odd.clone(), "orders", &world.env).build().unwrap();
    let view = world.until(a.watch()).await.unwrap();
    world.pass(L).await;
    drop(view);
    world.pass(L / 10).await;
    let before = odd.gets.load(Ordering::Relaxed);
    world.pass(L).await;
    assert_eq!(odd.gets.load(Ordering::Relaxed), before);
}

#[tokio::test]
async fn a_claim_between_two_reads_does_not_show_as_an_absent_row() {
    let world = World::new();
    let place = world.place();
    world.store.ensure_table(Monotonic::NEVER, &table_spec(&place.table)).await.unwrap();
    let card = Card { name: "b".into(), since: WallTime::default(), about: Arc::default() };
    let claim = Acquire {
        over: None,
        fence_was: None,
        rvn: Nonce(1),
        epoch: Epoch(1),
        owner: OwnerId::new("b").unwrap(),
        ttl: 15,
        lease: L,
        skew: None,
        card: Arc::new(card),
    };
    let claim = place.writes(&Attempt::Acquire(Box::new(claim)));
    let odd = Odd { meddling: claim, ..Odd::new(&world) };
    let rows = read_rows(&odd, Monotonic::NEVER, &place).await.unwrap();
    assert_eq!(rows.lock.map(|lock| lock.owner), Some(OwnerId::new("b").unwrap()), "the claim is seen");
}
