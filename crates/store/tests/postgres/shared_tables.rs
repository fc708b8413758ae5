//! Several processes, each with a pool of its own, on the same tables.

use std::sync::Arc;
use std::time::Duration;

use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_store::{
    Condition, IndexSpec, Item, Key, KeyAttribute, Postgres, Projection, Query, Store, StoreExt, TableSpec,
    Update, Value, Write,
};

use super::{Schema, in_seconds, put, read, row, rows, stranger};

fn by_owner() -> IndexSpec {
    IndexSpec {
        name: "by-owner".into(),
        hash: KeyAttribute::text("owner"),
        range: None,
        projection: Projection::KeysOnly,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_pools_race_and_one_wins() {
    let schema = Schema::new();
    let stores = [Arc::new(schema.open_with_rows("").await), Arc::new(schema.open_with_rows("").await)];
    for round in 0..10 {
        let mut racers = Vec::new();
        for racer in 0..16 {
            let (store, item) =
                (stores[racer % 2].clone(), row(&format!("lock{round}")).with("n", racer as u64));
            racers.push(tokio::spawn(async move {
                store.put(in_seconds(20), "rows", item, Condition::absent("pk")).await.unwrap().is_applied()
            }));
        }
        let mut winners = 0;
        for racer in racers {
            winners += usize::from(racer.await.unwrap());
        }
        assert_eq!(winners, 1, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crossing_transactions_neither_deadlock_nor_lose() {
    const ACCOUNTS: u64 = 5;
    let schema = Schema::new();
    let stores = [Arc::new(schema.open_with_rows("").await), Arc::new(schema.open_with_rows("").await)];
    for account in 0..ACCOUNTS {
        put(&*stores[0], row(&format!("a{account}")).with("n", 10)).await;
    }
    let mut tasks = Vec::new();
    for task in 0..8 {
        let store: Arc<Postgres> = stores[task % 2].clone();
        tasks.push(tokio::spawn(async move {
            let entropy = Entropy::seeded(task as u64);
            let mut moved = 0;
            for _ in 0..25 {
                let from = entropy.below(ACCOUNTS);
                let to = (from + 1 + entropy.below(ACCOUNTS - 1)) % ACCOUNTS;
                let add = |account: u64, n: i64, when: Condition| Write::Update {
                    table: "rows".into(),
                    key: Key::new("pk", format!("a{account}")),
                    change: Update::new().add("n", n),
                    when,
                };
                let enough = Condition::ge("n", 1);
                let writes = [add(from, -1, enough), add(to, 1, Condition::exists("n"))];
                moved +=
                    usize::from(store.transact(in_seconds(30), &writes, "nonce").await.unwrap().is_applied());
            }
            moved
        }));
    }
    let mut moved = 0;
    for task in tasks {
        moved += task.await.unwrap();
    }
    assert!(moved > 50, "hardly anything moved: {moved}");
    let all = stores[0].scan_all(in_seconds(10), "rows", 100).await.unwrap();
    assert_eq!(all.iter().filter_map(|row| row.integer("n")).sum::<i64>(), 50);
    assert!(all.iter().all(|row| row.integer("n").is_some_and(|n| n >= 0)), "{all:?}");
}

#[tokio::test]
async fn an_index_that_another_process_adds_is_noticed() {
    let schema = Schema::new();
    let (old, new) = (schema.open_with_rows("").await, schema.open("").await);
    put(&old, row("before").with("owner", "me")).await;
    new.ensure_table(in_seconds(10), &rows().with_index(by_owner()).with_ttl("ttl")).await.unwrap();
    put(&old, row("after").with("owner", "me")).await;
    for store in [&new, &old] {
        let query = Query::index("by-owner", "owner", "me");
        let found = store.query_all(in_seconds(10), "rows", query, 10).await.unwrap();
        assert_eq!(found.iter().filter_map(|row| row.text("pk")).collect::<Vec<_>>(), ["after", "before"]);
    }
}

/// Writers go on while indexes come, and no row is left out of any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_that_come_while_rows_are_written_miss_none() {
    let schema = Schema::new();
    let (writer, other) = (Arc::new(schema.open_with_rows("").await), schema.open("").await);
    let mut tasks = Vec::new();
    for task in 0..4 {
        let store = writer.clone();
        tasks.push(tokio::spawn(async move {
            for number in 0..40 {
                put(&*store, row(&format!("{task}-{number}")).with("owner", "me")).await;
            }
        }));
    }
    let mut spec = rows();
    for number in 0..4 {
        SystemClock.sleep(Duration::from_millis(20)).await;
        spec = spec.with_index(IndexSpec { name: format!("by-owner-{number}"), ..by_owner() });
        other.ensure_table(in_seconds(20), &spec).await.unwrap();
    }
    for task in tasks {
        task.await.unwrap();
    }
    for number in 0..4 {
        let query = Query::index(format!("by-owner-{number}"), "owner", "me");
        assert_eq!(other.query_all(in_seconds(10), "rows", query, 1000).await.unwrap().len(), 160);
    }
}

/// More rows than are filled in at once.
#[tokio::test]
async fn an_index_comes_to_a_table_of_many_rows() {
    let schema = Schema::new();
    let store = schema.open_with_rows("").await;
    for first in (0..1100).step_by(100) {
        let write = |number: i32| Write::Put {
            table: "rows".into(),
            item: row(&format!("{number:04}")).with("owner", "me").with("ttl", 7),
            when: Condition::Always,
        };
        let writes: Vec<_> = (first..first + 100).map(write).collect();
        assert!(store.transact(in_seconds(30), &writes, "nonce").await.unwrap().is_applied());
    }
    store.ensure_table(in_seconds(60), &rows().with_index(by_owner()).with_ttl("ttl")).await.unwrap();
    let query = Query::index("by-owner", "owner", "me");
    let found = store.query_all(in_seconds(10), "rows", query, 2000).await.unwrap();
    assert_eq!(found.len(), 1100);
    assert!(found.is_sorted_by_key(|row| row.text("pk").map(str::to_owned)));
    let sql = format!("SELECT count(*) FROM {}.rows WHERE ttl = 7", schema.name);
    assert_eq!(stranger().await.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 1100);
}

#[tokio::test]
async fn a_table_that_was_dropped_and_made_again_is_not_taken_for_the_old_one() {
    let schema = Schema::new();
    let (one, other) = (schema.open_with_rows("").await, schema.open_with_rows("").await);
    put(&one, row("a")).await;
    stranger().await.batch_execute(&format!("DROP SCHEMA {} CASCADE", schema.name)).await.unwrap();
    let error = one.put(in_seconds(10), "rows", row("b"), Condition::Always).await.unwrap_err();
    assert!(error.chain().contains("table `rows` does not exist"), "{error:?}");
    let error = other.get(in_seconds(10), "rows", &Key::new("pk", "a")).await.unwrap_err();
    assert!(error.chain().contains("table `rows` does not exist"), "{error:?}");
    one.ensure_table(in_seconds(10), &rows().with_index(by_owner())).await.unwrap();
    put(&other, row("c").with("owner", "me")).await;
    let query = Query::index("by-owner", "owner", "me");
    assert_eq!(one.query_all(in_seconds(10), "rows", query, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn names_and_keys_may_be_as_long_as_allowed() {
    let schema = Schema::new();
    let store = schema.open("").await;
    let long = |last: char| format!("{}{last}", "Long.name-".repeat(25));
    let names =
        ["catalog".into(), "catalog_pkey".into(), "rows_pkey".into(), "rows".into(), long('a'), long('b')];
    let entropy = Entropy::seeded(3);
    let noise = |bytes: usize| Value::B((0..bytes).map(|_| entropy.u64().to_be_bytes()[0]).collect());
    for name in &names {
        let spec = TableSpec::new(name.clone(), KeyAttribute::bytes("pk"))
            .with_range(KeyAttribute::bytes("sk"))
            .with_ttl("ttl")
            .with_index(IndexSpec {
                name: "other".into(),
                hash: KeyAttribute::bytes("xh"),
                range: Some(KeyAttribute::bytes("xr")),
                projection: Projection::All,
            });
        store.ensure_table(in_seconds(10), &spec).await.unwrap();
        let (pk, xh) = (noise(2048), noise(2048));
        let item = |sk: Value| Item::new().with("pk", pk.clone()).with("sk", sk).with("xh", xh.clone());
        for _ in 0..3 {
            let item = item(noise(1024)).with("xr", noise(1024)).with("name", name.as_str());
            store.put(in_seconds(10), name, item.clone(), Condition::absent("pk")).await.unwrap();
            let key = Key::new("pk", pk.clone()).and("sk", item.get("sk").unwrap().clone());
            assert_eq!(store.get(in_seconds(10), name, &key).await.unwrap(), Some(item));
        }
        for query in [Query::partition("pk", pk.clone()), Query::index("other", "xh", xh.clone())] {
            let found = store.query_all(in_seconds(10), name, query, 10).await.unwrap();
            assert_eq!(found.len(), 3, "{name}");
            assert!(found.iter().all(|row| row.text("name") == Some(name)));
        }
    }
    for name in &names {
        assert_eq!(store.scan_all(in_seconds(10), name, 10).await.unwrap().len(), 3, "{name}");
    }
}

#[tokio::test]
async fn expired_rows_go_away_in_time_and_only_those() {
    let schema = Schema::new();
    let store = schema.open("&sweep_seconds=0").await;
    store.ensure_table(in_seconds(10), &rows().with_ttl("ttl")).await.unwrap();
    let now = SystemClock.wall().as_seconds();
    let released = row("released").with("ttl", 0);
    for item in [
        row("expired").with("ttl", now - 100),
        released,
        row("to come").with("ttl", now + 1_000_000),
        row("endless"),
        row("text").with("ttl", "x"),
    ] {
        put(&store, item).await;
    }
    for _ in 0..500 {
        put(&store, row("another")).await;
        if read(&store, "expired").await.is_none() {
            break;
        }
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
    let left = store.scan_all(in_seconds(10), "rows", 10).await.unwrap();
    let left: Vec<_> = left.iter().filter_map(|row| row.text("pk")).collect();
    assert_eq!(left, ["another", "endless", "released", "text", "to come"]);
}

#[tokio::test]
async fn operators_can_read_rows_as_json() {
    let schema = Schema::new();
    let store = schema.open_with_rows("").await;
    put(&store, row("a").with("n", 7)).await;
    let sql = format!("SELECT item->'pk'->>'S', item->'n'->>'N' FROM {}.rows", schema.name);
    let found = stranger().await.query_one(&sql, &[]).await.unwrap();
    assert_eq!((found.get::<_, &str>(0), found.get::<_, &str>(1)), ("a", "7"));
}
