//! Faults between the SDK and the emulator: what the caller is told is what is true.

use std::time::Duration;

use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tenure_fault_proxy::{FaultProxy, Script};
use tenure_store::testing::soon;
use tenure_store::{
    Condition, DynamoDb, Item, Key, KeyAttribute, Kind, Store, StoreExt, TableSpec, Update, Write, Written,
};

use super::opened;
use super::tidy::Tidy;

/// A deadline that a test means to reach, and that a busy emulator still meets.
fn shortly() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(1))
}

struct World {
    proxy: FaultProxy,
    /// Through the proxy.
    store: DynamoDb,
    /// Past it.
    direct: Tidy,
    table: String,
}

impl World {
    /// A table and a proxy that begins to misbehave once the table is there and known.
    async fn with(endpoint: &str, rules: &[&str]) -> Self {
        let proxy = FaultProxy::start(endpoint, Script::default()).await.unwrap();
        let table = format!("faults-{}", Entropy::system().nonce());
        let (store, direct) = (opened(&proxy.url()).await, Tidy::new(opened(endpoint).await, endpoint));
        direct.ensure_table(soon(), &TableSpec::new(&table, KeyAttribute::text("pk"))).await.unwrap();
        let world = Self { proxy, store, direct, table };
        assert_eq!(world.store.get(soon(), &world.table, &key()).await.unwrap(), None);
        world.proxy.set_script(Script::parse(1, rules).unwrap());
        world
    }

    async fn put(&self, by: Monotonic) -> tenure_store::Result<Written> {
        self.store.put(by, &self.table, row(), Condition::absent("pk")).await
    }

    async fn landed(&self) -> bool {
        self.direct.get(soon(), &self.table, &key()).await.unwrap().is_some()
    }
}

fn key() -> Key {
    Key::new("pk", "a")
}

fn row() -> Item {
    Item::new().with("pk", "a").with("owner", "me")
}

pub(super) async fn a_lost_reply_is_unknown_and_the_row_is_there(endpoint: &str) {
    let world = World::with(endpoint, &["PutItem=lose_reply#1"]).await;
    let lost = world.put(soon()).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::Unknown, "{lost:?}");
    assert!(world.landed().await);
    // Nothing was tried behind our back: the caller finds its own row.
    assert_eq!(world.proxy.counts().injected("PutItem", "lose_reply"), 1);
    let again = world.put(soon()).await.unwrap();
    assert!(matches!(again, Written::Refused(refusal) if refusal.current == Some(row())));
}

pub(super) async fn a_hang_is_unknown_by_the_deadline(endpoint: &str) {
    let world = World::with(endpoint, &["PutItem=hang_applied#1", "PutItem=hang#1"]).await;
    let begun = SystemClock.monotonic();
    let hung = world.put(shortly()).await.unwrap_err();
    assert_eq!(hung.kind(), Kind::Unknown, "{hung:?}");
    assert!(hung.chain().contains("by the deadline"), "{hung:?}");
    assert!(world.landed().await);
    let hung = world.put(shortly()).await.unwrap_err();
    assert_eq!(hung.kind(), Kind::Unknown, "{hung:?}");
    let took = SystemClock.monotonic().since(begun);
    assert!(took < Duration::from_secs(10), "{took:?}");
}

pub(super) async fn a_throttled_write_did_not_land(endpoint: &str) {
    let codes = ["", "(ThrottlingException)", "(RequestLimitExceeded)"];
    let rules: Vec<_> = codes.iter().map(|code| format!("PutItem=throttle{code}#1")).collect();
    let world = World::with(endpoint, &rules.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for code in codes {
        let throttled = world.put(soon()).await.unwrap_err();
        assert_eq!(throttled.kind(), Kind::Throttled, "{code} {throttled:?}");
        assert!(!world.landed().await);
    }
    assert!(world.put(soon()).await.unwrap().is_applied());
}

pub(super) async fn a_server_error_is_unknown_whether_it_landed_or_not(endpoint: &str) {
    let rules = ["PutItem=server_error#1", "PutItem=server_error(503)#1", "PutItem=server_error_applied#1"];
    let world = World::with(endpoint, &rules).await;
    for landed in [false, false, true] {
        let failed = world.put(soon()).await.unwrap_err();
        assert_eq!(failed.kind(), Kind::Unknown, "{failed:?}");
        assert_eq!(world.landed().await, landed);
    }
}

pub(super) async fn a_reset_is_unknown(endpoint: &str) {
    let world = World::with(endpoint, &["PutItem=reset#1"]).await;
    // The request went out and the connection broke: the client cannot know that nothing was applied.
    let reset = world.put(soon()).await.unwrap_err();
    assert_eq!(reset.kind(), Kind::Unknown, "{reset:?}");
    assert!(!world.landed().await);
}

pub(super) async fn a_read_is_tried_again(endpoint: &str) {
    let rules = ["GetItem=server_error#1", "GetItem=throttle#1", "GetItem=lose_reply#1", "GetItem=reset#1"];
    let world = World::with(endpoint, &rules).await;
    assert!(world.put(soon()).await.unwrap().is_applied());
    assert_eq!(world.store.get(soon(), &world.table, &key()).await.unwrap(), Some(row()));
    world.proxy.set_script(Script::parse(1, ["GetItem=throttle"]).unwrap());
    let throttled = world.store.get(soon(), &world.table, &key()).await.unwrap_err();
    assert_eq!(throttled.kind(), Kind::Throttled, "{throttled:?}");
    assert_eq!(world.proxy.counts().injected("GetItem", "throttle"), 1 + 6, "tried, but not for ever");
}

pub(super) async fn a_read_that_hangs_is_unavailable(endpoint: &str) {
    let world = World::with(endpoint, &["GetItem=hang", "Query=hang", "Scan=hang"]).await;
    let hung = world.store.get(shortly(), &world.table, &key()).await.unwrap_err();
    assert_eq!(hung.kind(), Kind::Unavailable, "{hung:?}");
    let hung = world.store.scan(shortly(), &world.table, &tenure_store::Page::default()).await.unwrap_err();
    assert_eq!(hung.kind(), Kind::Unavailable, "{hung:?}");
}

pub(super) async fn a_transaction_resent_with_its_nonce_happens_once(endpoint: &str) {
    let world = World::with(endpoint, &["TransactWriteItems=lose_reply#1"]).await;
    let writes = [
        Write::Update {
            table: world.table.clone(),
            key: key(),
            change: Update::new().add("n", 1).append_unique("done", "x"),
            when: Condition::absent("pk"),
        },
        Write::Put {
            table: world.table.clone(),
            item: Item::new().with("pk", "b"),
            when: Condition::absent("pk"),
        },
    ];
    let nonce = Entropy::system().nonce();
    let lost = world.store.transact(soon(), &writes, &nonce).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::Unknown, "{lost:?}");
    // The conditions do not hold any more, but it is the same transaction.
    let again = world.store.transact(soon(), &writes, &nonce).await.unwrap();
    assert!(again.is_applied(), "{again:?}");
    let found = world.direct.get(soon(), &world.table, &key()).await.unwrap().unwrap();
    assert_eq!(found.integer("n"), Some(1));
    let another = world.store.transact(soon(), &writes, &Entropy::system().nonce()).await.unwrap();
    assert!(!another.is_applied());
}

pub(super) async fn a_table_is_made_in_spite_of_faults(endpoint: &str) {
    let rules = [
        "CreateTable=throttle(LimitExceededException)#1",
        "CreateTable=lose_reply#1",
        "DescribeTable=server_error#1",
        "UpdateTimeToLive=lose_reply#1",
        "DescribeTimeToLive=reset#1",
    ];
    let world = World::with(endpoint, &rules).await;
    let name = format!("faults-{}", Entropy::system().nonce());
    let spec = TableSpec::new(&name, KeyAttribute::text("pk")).with_ttl("ttl");
    world.store.ensure_table(soon(), &spec).await.unwrap();
    assert_eq!(world.store.describe_table(soon(), &name).await.unwrap().as_ref(), Some(&spec));
    // It is there already; this way it is taken away again.
    world.direct.ensure_table(soon(), &spec).await.unwrap();
    assert_eq!(world.proxy.counts().injected("CreateTable", "lose_reply"), 1);
}
