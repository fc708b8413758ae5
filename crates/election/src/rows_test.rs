//! What is stored stays readable: exact rows, round trips, and a second opinion on every condition.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use expect_test::{Expect, expect};
use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use tenure_backend::Env;
use tenure_clock::{Entropy, ManualTime, Monotonic};
use tenure_store::{Memory, Store, Written};

use super::*;
use crate::machine::Answer;
use crate::testing::LockTable;

const TABLE: &str = "elections";

// === exact rows ===

#[test]
fn a_claim_stores_what_the_go_library_reads_and_our_own_attributes() {
    let table = StoredTable::new();
    table.apply(&claim());
    table.shows(expect![[r#"
        LOCK
          epoch: N(7)
          leader: M({"about": M({"address": S("10.0.0.1")}), "name": S("host-1"), "since": N(1763553900000)})
          leaseMs: N(15000)
          ownerId: S("host-1-4711")
          pk: S("SHARD#orders")
          rvn: S("00000000000000000000000000000abc")
          sk: S("LOCK")
          ttl: N(1763553915)
        FENCE
          epoch: N(7)
          leaseMs: N(15000)
          pk: S("SHARD#orders")
          sk: S("FENCE")
    "#]]);
}

#[test]
fn a_renewal_changes_ttl_and_nonce_alone() {
    let table = StoredTable::new();
    table.apply(&claim());
    table.apply(&Attempt::Renew(Renew {
        owner: owner("host-1-4711"),
        epoch: Epoch(7),
        current: Nonce(0xabc),
        fresh: Nonce(0xdef),
        ttl: 1_763_553_920,
    }));
    table.shows(expect![[r#"
        LOCK
          epoch: N(7)
          leader: M({"about": M({"address": S("10.0.0.1")}), "name": S("host-1"), "since": N(1763553900000)})
          leaseMs: N(15000)
          ownerId: S("host-1-4711")
          pk: S("SHARD#orders")
          rvn: S("00000000000000000000000000000def")
          sk: S("LOCK")
          ttl: N(1763553920)
        FENCE
          epoch: N(7)
          leaseMs: N(15000)
          pk: S("SHARD#orders")
          sk: S("FENCE")
    "#]]);
}

#[test]
fn a_release_keeps_the_row_with_ttl_0_and_says_who_is_next() {
    let table = StoredTable::new();
    table.apply(&claim());
    let request = ResignRequest { nonce: Nonce(1), to: Some("host-2".into()) };
    table.write(&[table.place.ask_to_resign(&owner("host-1-4711"), Epoch(7), &request)]);
    table.shows_of_lock(
        "resign",
        expect![[r#"M({"nonce": S("00000000000000000000000000000001"), "to": S("host-2")})"#]],
    );
    table.apply(&Attempt::Release(Release {
        owner: owner("host-1-4711"),
        epoch: Epoch(7),
        current: Nonce(0xabc),
        pending: None,
        fresh: Nonce(0xfff),
        reserved_for: Some("host-2".into()),
    }));
    table.shows(expect![[r#"
        LOCK
          epoch: N(7)
          leader: M({"about": M({"address": S("10.0.0.1")}), "name": S("host-1"), "since": N(1763553900000)})
          leaseMs: N(15000)
          ownerId: S("host-1-4711")
          pk: S("SHARD#orders")
          reservedFor: S("host-2")
          rvn: S("00000000000000000000000000000fff")
          sk: S("LOCK")
          ttl: N(0)
        FENCE
          epoch: N(7)
          leaseMs: N(15000)
          pk: S("SHARD#orders")
          sk: S("FENCE")
    "#]]);
}

#[test]
fn the_table_is_the_documented_one() {
    let spec = table_spec("tenure_coordination");
    let wanted = TableSpec::new("tenure_coordination", KeyAttribute::text("pk"))
        .with_range(KeyAttribute::text("sk"))
        .with_ttl("ttl");
    assert_eq!(spec, wanted);
}

#[test]
fn a_shard_is_found_by_its_lock_row_alone() {
    let shard = |pk: &str, sk: &str| shard_of(&Item::new().with("pk", pk).with("sk", sk));
    assert_eq!(shard("SHARD#orders", "LOCK"), Some(ShardId::new("orders").unwrap()));
    assert_eq!(shard("SHARD#orders", "FENCE"), None);
    assert_eq!(shard("SHARD#", "LOCK"), None);
    assert_eq!(shard("LEASE#orders", "LOCK"), None);
}

// === rows that are not ours ===

#[test]
fn what_the_go_library_wrote_is_read() {
    let item = Item::new().with("pk", "SHARD#orders").with("sk", "LOCK").with("ownerId", "go").with("ttl", 5);
    let lock = place().lock(&item).unwrap();
    assert_eq!(
        (lock.owner.as_str(), lock.ttl, lock.rvn, lock.lease, lock.epoch),
        ("go", 5, None, None, None)
    );
}

#[test]
fn a_missing_or_mistyped_attribute_is_named_and_the_row_left_alone() {
    let lock = |name: &str, value: Option<Value>| place().lock(&changed(lock_item(), name, value)).err();
    corrupt(lock("ownerId", None), "`LOCK` of table `elections` has no `ownerId`");
    corrupt(lock("ownerId", Some(5.into())), "`ownerId` of type N, not S");
    corrupt(lock("ownerId", Some("".into())), "bad `ownerId`");
    corrupt(lock("ttl", None), "has no `ttl`");
    corrupt(lock("ttl", Some("1763553915".into())), "`ttl` of type S, not N");
    corrupt(lock("ttl", Some(Value::N("0.5".parse().unwrap()))), "`ttl` 0.5, which is not a whole number");
    corrupt(lock("rvn", None), "some of `rvn`, `leaseMs` and `epoch`, but not all");
    corrupt(lock("rvn", Some(5.into())), "`rvn` of type N, not S");
    corrupt(lock("rvn", Some("abc".into())), "bad nonce");
    corrupt(lock("leaseMs", None), "some of `rvn`, `leaseMs` and `epoch`, but not all");
    corrupt(lock("leaseMs", Some("x".into())), "`leaseMs` of type S, not N");
    corrupt(lock("leaseMs", Some((-1).into())), "`leaseMs` -1, below zero");
    corrupt(lock("leaseMs", Some(0.into())), "`leaseMs` 0, not from 1 to 86400000");
    corrupt(lock("leaseMs", Some(i64::MAX.into())), "not from 1 to 86400000");
    corrupt(lock("epoch", Some(i64::MAX.into())), "above 4611686018427387903");
    corrupt(lock("epoch", None), "some of `rvn`, `leaseMs` and `epoch`, but not all");
    corrupt(lock("epoch", Some(Value::Null)), "`epoch` of type NULL, not N");
    corrupt(lock("epoch", Some((-1).into())), "`epoch` -1, below zero");
    corrupt(lock("reservedFor", Some(true_value())), "`reservedFor` of type BOOL, not S");
    corrupt(lock("resign", Some("now".into())), "`resign` of type S, not M");
    corrupt(lock("resign", Some(Value::M(BTreeMap::new()))), "`resign` without `nonce`");
    corrupt(lock("leader", Some("host-1".into())), "`leader` of type S, not M");
    corrupt(lock("leader", Some(Value::M(BTreeMap::new()))), "`leader` without `name`");
    let name = BTreeMap::from([("name".to_owned(), Value::from("host-1"))]);
    corrupt(lock("leader", Some(Value::M(name))), "`leader` without `since`");

    let fence = |name: &str, value: Option<Value>| place().fence(&changed(fence_item(), name, value)).err();
    corrupt(fence("epoch", None), "`FENCE` of table `elections` has no `epoch`");
    corrupt(fence("epoch", Some("7".into())), "`epoch` of type S, not N");
    corrupt(fence("leaseMs", Some("x".into())), "`leaseMs` of type S, not N");
    assert!(fence("leaseMs", None).is_none());
}

#[test]
fn a_refusal_by_a_row_that_is_not_ours_is_corrupt() {
    let foreign = Item::new().with("pk", "SHARD#orders").with("sk", "LOCK").with("colour", "red");
    let refusal = |index| Refusal { index, current: Some(foreign.clone()) };
    corrupt(place().refusal(&refusal(0)).err(), "has no `ownerId`");
    corrupt(place().refusal(&refusal(1)).err(), "has no `epoch`");
    let none = Refusal { index: 1, current: None };
    assert_eq!(place().refusal(&none).unwrap(), Refused::ByFence(None));
}

// === properties ===

proptest! {
    #[test]
    fn a_lock_reads_as_it_was_written(acquire in any_claim()) {
        let mut item = place().lock_key().as_item().clone();
        item_of(&acquire.lock(), &mut item);
        prop_assert_eq!(place().lock(&item).unwrap(), acquire.lock());
    }

    /// The simulation and the model run on [`LockTable`]: it must be what the stores are.
    #[test]
    fn plain_comparisons_and_stored_conditions_agree(ops in vec(any_op(), 1..40)) {
        let (mut table, stored) = (LockTable::default(), StoredTable::new());
        for op in ops {
            match op {
                Op::Attempt(mut attempt, aim) => {
                    aim_at(&table, &mut attempt, aim);
                    prop_assert_eq!(table.write(&attempt), stored.apply(&attempt), "{:?}", attempt);
                }
                Op::Reap => {
                    table.delete_lock();
                    stored.write(&[Write::Delete { table: TABLE.into(), key: place().lock_key(), when: Condition::Always }]);
                }
                Op::GoPuts(ttl) => {
                    let item = changed(Item::new(), "ttl", Some(ttl.into()));
                    let item = changed(item, "ownerId", Some("go".into()));
                    table.rows.lock = Some(place().lock(&item).unwrap());
                    let mut put = place().lock_key().as_item().clone();
                    item.iter().for_each(|(name, value)| put.set(name, value.clone()));
                    stored.write(&[Write::Put { table: TABLE.into(), item: put, when: Condition::Always }]);
                }
                Op::Ask(owner, epoch, request) => {
                    let asked = |lock: &&mut Lock| lock.owner == owner && lock.epoch == Some(epoch) && lock.ttl > 0;
                    if let Some(lock) = table.rows.lock.as_mut().filter(asked) {
                        lock.resign = Some(request.clone());
                    }
                    stored.write(&[place().ask_to_resign(&owner, epoch, &request)]);
                }
            }
            prop_assert_eq!(&table.rows.lock, &stored.lock());
            prop_assert_eq!(table.rows.fence, stored.fence());
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Attempt(Attempt, Aim),
    Reap,
    GoPuts(i64),
    Ask(OwnerId, Epoch, ResignRequest),
}

/// How much of an attempt is drawn, and how much taken from the rows so that it may succeed.
#[derive(Debug, Clone, Copy)]
struct Aim {
    lock: bool,
    fence: bool,
}

fn aim_at(table: &LockTable, attempt: &mut Attempt, aim: Aim) {
    let lock = table.rows.lock.as_ref();
    match attempt {
        Attempt::Acquire(acquire) => {
            if aim.lock {
                acquire.over = lock.map(Lock::version);
            }
            if aim.fence {
                acquire.fence_was = table.rows.fence.map(|mark| mark.epoch);
            }
        }
        Attempt::Renew(Renew { owner, epoch, .. }) | Attempt::Release(Release { owner, epoch, .. }) => {
            if let Some(lock) = lock.filter(|_| aim.lock) {
                owner.clone_from(&lock.owner);
                *epoch = lock.epoch.unwrap_or(*epoch);
            }
        }
    }
}

/// Few values of each, so that what is drawn often fits what is there.
fn any_op() -> impl Strategy<Value = Op> {
    let owners = || prop::sample::select(&["a", "b"][..]).prop_map(owner);
    let nonces = || (0u128..4).prop_map(Nonce);
    let epochs = || (1u64..4).prop_map(Epoch);
    let ttls = || prop::sample::select(&[0i64, 10, 20][..]);
    let names = || option::of(prop::sample::select(&["x", "y"][..]).prop_map(Arc::from));
    let versions = (owners(), ttls(), option::of(nonces()));
    let acquire = (option::of(versions), option::of(epochs()), nonces(), epochs(), owners(), ttls())
        .prop_map(|(over, fence_was, rvn, epoch, owner, ttl)| {
            // One in two, by what was drawn anyway.
            let skew = (rvn.0 % 2 == 0).then_some(Duration::from_secs(2));
            let over = over.map(|(owner, ttl, rvn)| Version { owner, ttl, rvn });
            let card = Card { name: "n".into(), since: WallTime::from_millis(5), about: Arc::default() };
            let (lease, card) = (Duration::from_secs(15), Arc::new(card));
            Attempt::Acquire(Box::new(Acquire { over, fence_was, rvn, epoch, owner, ttl, lease, skew, card }))
        });
    let renew =
        (owners(), epochs(), nonces(), nonces(), ttls()).prop_map(|(owner, epoch, current, fresh, ttl)| {
            Attempt::Renew(Renew { owner, epoch, current, fresh, ttl })
        });
    let release = (owners(), epochs(), nonces(), option::of(nonces()), nonces(), names()).prop_map(
        |(owner, epoch, current, pending, fresh, reserved_for)| {
            Attempt::Release(Release { owner, epoch, current, pending, fresh, reserved_for })
        },
    );
    let attempt = prop_oneof![3 => acquire, 4 => renew, 3 => release];
    let aim =
        (prop::bool::weighted(0.8), prop::bool::weighted(0.8)).prop_map(|(lock, fence)| Aim { lock, fence });
    let request = (nonces(), names()).prop_map(|(nonce, to)| ResignRequest { nonce, to });
    prop_oneof![
        20 => (attempt, aim).prop_map(|(attempt, aim)| Op::Attempt(attempt, aim)),
        1 => Just(Op::Reap),
        1 => ttls().prop_map(Op::GoPuts),
        3 => (owners(), epochs(), request).prop_map(|(owner, epoch, request)| Op::Ask(owner, epoch, request)),
    ]
}

fn any_claim() -> impl Strategy<Value = Acquire> {
    let about = btree_map("\\PC{0,8}", "\\PC{0,8}", 0..4);
    let card = ("\\PC{1,8}", any::<i64>(), about).prop_map(|(name, since, about)| Card {
        name: name.into(),
        since: WallTime::from_millis(since),
        about: Arc::new(about),
    });
    (any::<u128>(), 0..u64::MAX / 4, "[a-z#ü]{1,20}", any::<i64>(), 1..86_400_000u64, card).prop_map(
        |(rvn, epoch, owner_id, ttl, lease, card)| Acquire {
            over: None,
            fence_was: None,
            rvn: Nonce(rvn),
            epoch: Epoch(epoch),
            owner: owner(&owner_id),
            ttl,
            lease: Duration::from_millis(lease),
            skew: Some(Duration::from_millis(lease / 10)),
            card: Arc::new(card),
        },
    )
}

// === rows at hand ===

fn place() -> Place {
    Place { table: TABLE.to_owned(), shard: ShardId::new("orders").unwrap() }
}

fn owner(id: &str) -> OwnerId {
    OwnerId::new(id).unwrap()
}

fn true_value() -> Value {
    Value::Bool(true)
}

fn claim() -> Attempt {
    let since = WallTime::from_millis(1_763_553_900_000);
    let about = BTreeMap::from([("address".to_owned(), "10.0.0.1".to_owned())]);
    Attempt::Acquire(Box::new(Acquire {
        over: None,
        fence_was: None,
        rvn: Nonce(0xabc),
        epoch: Epoch(7),
        owner: owner("host-1-4711"),
        ttl: 1_763_553_915,
        lease: Duration::from_secs(15),
        skew: None,
        card: Arc::new(Card { name: "host-1".into(), since, about: Arc::new(about) }),
    }))
}

fn lock_item() -> Item {
    let table = StoredTable::new();
    table.apply(&claim());
    table.get(&place().lock_key()).unwrap()
}

fn fence_item() -> Item {
    Item::new().with("epoch", 7).with("leaseMs", 15_000)
}

fn changed(mut item: Item, name: &str, value: Option<Value>) -> Item {
    match value {
        Some(value) => item.set(name, value),
        None => drop(item.remove(name)),
    }
    item
}

#[track_caller]
fn corrupt(error: Option<Error>, says: &str) {
    let error = error.unwrap_or_else(|| panic!("accepted: {says}"));
    assert_eq!(error.kind(), Kind::Corrupt);
    assert!(error.chain().contains(says), "{}", error.chain());
}

/// The rows in the memory store, which never waits.
struct StoredTable {
    store: Memory,
    place: Place,
}

impl StoredTable {
    fn new() -> Self {
        let env = Env { clock: Arc::new(ManualTime::default().clock()), entropy: Entropy::seeded(0) };
        let table = Self { store: Memory::new(&env), place: place() };
        ready(table.store.ensure_table(Monotonic::NEVER, &table_spec(TABLE))).unwrap();
        table
    }

    fn get(&self, key: &Key) -> Option<Item> {
        ready(self.store.get(Monotonic::NEVER, TABLE, key)).unwrap()
    }

    fn lock(&self) -> Option<Lock> {
        self.get(&self.place.lock_key()).map(|item| self.place.lock(&item).unwrap())
    }

    fn fence(&self) -> Option<FenceMark> {
        self.get(&self.place.fence_key()).map(|item| self.place.fence(&item).unwrap())
    }

    fn write(&self, writes: &[Write]) -> Written {
        match writes {
            [write] => ready(self.store.write(Monotonic::NEVER, write)).unwrap(),
            writes => ready(self.store.transact(Monotonic::NEVER, writes, "nonce")).unwrap(),
        }
    }

    fn apply(&self, attempt: &Attempt) -> Answer {
        match self.write(&self.place.writes(attempt)) {
            Written::Applied(item) => {
                let renewed = matches!(attempt, Attempt::Renew(_));
                Answer::Applied { resign: renewed.then(|| self.place.lock(&item).unwrap().resign).flatten() }
            }
            Written::Refused(refusal) => match self.place.refusal(&refusal).unwrap() {
                Refused::ByLock(lock) => Answer::RefusedByLock(lock),
                Refused::ByFence(mark) => Answer::RefusedByFence(mark),
            },
        }
    }

    #[track_caller]
    fn shows(&self, expected: Expect) {
        let rows = [("LOCK", self.place.lock_key()), ("FENCE", self.place.fence_key())];
        let text = |(name, key): &(&str, Key)| {
            let item = self.get(key).unwrap_or_default();
            let attributes = item.iter().map(|(name, value)| format!("  {name}: {value:?}\n"));
            format!("{name}\n{}", attributes.collect::<String>())
        };
        expected.assert_eq(&rows.iter().map(text).collect::<String>());
    }

    #[track_caller]
    fn shows_of_lock(&self, attribute: &str, expected: Expect) {
        let item = self.get(&self.place.lock_key()).unwrap();
        expected.assert_eq(&format!("{:?}", item.get(attribute).unwrap()));
    }
}

fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("the memory store never waits"),
    }
}
