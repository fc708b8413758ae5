//! Postgres: the suite, and what the backend promises beyond it.

mod cutting_proxy;
mod lost_connections;
mod shared_tables;
mod strangers;

use std::time::Duration;

use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tenure_store::conformance::Subject;
use tenure_store::testing::env;
use tenure_store::{Address, Condition, Item, Key, KeyAttribute, Postgres, Store, StoreExt, TableSpec};
use tokio_postgres::NoTls;

async fn open() -> Subject {
    let schema = Schema::new();
    Subject::guarded(schema.open("").await, schema)
}

tenure_store::store_conformance!(open);

#[tokio::test]
async fn tables_whose_names_differ_in_case_are_two() {
    tenure_store::conformance::tables_whose_names_differ_in_case_are_two(open().await).await;
}

/// The server that tests share.
fn server() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

/// A schema for one test, dropped after it.
struct Schema {
    name: String,
}

impl Schema {
    fn new() -> Self {
        Self { name: format!("t_{}", &Entropy::system().nonce()[..16]) }
    }

    /// A store with a pool of its own. Its connections are called like the schema.
    async fn open(&self, options: &str) -> Postgres {
        self.open_at(&server(), options).await
    }

    async fn open_at(&self, server: &str, options: &str) -> Postgres {
        let name = &self.name;
        store_at(&format!("{server}?schema={name}&application_name={name}{options}")).await
    }

    /// A store whose table `rows` is there.
    async fn open_with_rows(&self, options: &str) -> Postgres {
        let store = self.open(options).await;
        store.ensure_table(in_seconds(10), &rows()).await.unwrap();
        store
    }

    /// How many of our connections are as `condition` says of `pg_stat_activity`.
    async fn count_connections(&self, condition: &str) -> i64 {
        let sql =
            format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND {condition}");
        stranger().await.query_one(&sql, &[&self.name]).await.unwrap().get(0)
    }

    /// Waits until as many connections are as `condition` says.
    async fn wait_for_connections(&self, condition: &str, count: i64) {
        for _ in 0..1000 {
            if self.count_connections(condition).await == count {
                return;
            }
            SystemClock.sleep(Duration::from_millis(10)).await;
        }
        panic!("never {count} connections for which {condition}");
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.name);
        // Dropping is not async; a thread of its own may wait.
        let dropping = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { stranger().await.batch_execute(&sql).await }).unwrap();
        });
        if let Err(panic) = dropping.join()
            && !std::thread::panicking()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn store_at(address: &str) -> Postgres {
    Postgres::from_address(&mut Address::parse(address).unwrap(), &env(0)).await.unwrap()
}

/// Somebody else in the same database.
async fn stranger() -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&server(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn in_seconds(seconds: u64) -> Monotonic {
    in_millis(seconds * 1000)
}

fn in_millis(millis: u64) -> Monotonic {
    SystemClock.deadline(Duration::from_millis(millis))
}

fn rows() -> TableSpec {
    TableSpec::new("rows", KeyAttribute::text("pk"))
}

fn row(pk: &str) -> Item {
    Item::new().with("pk", pk)
}

async fn read(store: &dyn Store, pk: &str) -> Option<Item> {
    store.get(in_seconds(10), "rows", &Key::new("pk", pk)).await.unwrap()
}

async fn put(store: &dyn Store, item: Item) {
    assert!(store.put(in_seconds(10), "rows", item, Condition::Always).await.unwrap().is_applied());
}
