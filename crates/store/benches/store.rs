//! Conditional writes per second, per backend, by one writer and by sixteen.
//!
//! An operation is one acknowledged update of the writer's own row on condition of its counter: what
//! renewing a lease is. Run it with `cargo xtask bench store --json`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tenure_bench::{Backend, Sample, Subject, VALUE_BYTES, measure};
use tenure_store::{Condition, Env, Item, Key, KeyAttribute, Store, StoreExt, TableSpec, Update};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tenure_bench::run::<Renewals>().await
}

struct Renewals {
    store: Arc<dyn Store>,
    env: Env,
    table: String,
}

impl Subject for Renewals {
    const BENCH: &'static str = "store";
    const FRESH_KEYS: bool = false;

    fn backends(dir: &Path) -> Vec<Backend> {
        let mut all = vec![Backend::embedded("memory", "memory:".to_owned())];
        if cfg!(feature = "sqlite") {
            let file = format!("sqlite:{}", dir.join("bench.db").display());
            all.push(Backend { beside_raw_sqlite: true, ..Backend::embedded("sqlite", file) });
        }
        if cfg!(feature = "postgres") {
            let address = |url: &str| format!("{url}?schema=tenure_bench");
            all.extend(Backend::service("postgres", "postgres", "TENURE_TEST_POSTGRES", address));
        }
        if cfg!(feature = "dynamodb") {
            let address = |url: &str| format!("dynamodb:?region=us-east-1&endpoint={url}");
            all.extend(Backend::service("dynamodb", "dynamodb-local", "TENURE_TEST_DYNAMODB_LOCAL", address));
            all.extend(Backend::service("dynamodb", "dynoxide", "TENURE_TEST_DYNOXIDE", address));
        }
        all
    }

    async fn open(backend: &Backend, _writers: usize) -> anyhow::Result<Self> {
        let env = Env::system();
        let store = tenure_store::open(&backend.address, &env).await?;
        let by = env.clock.deadline(Duration::from_secs(30));
        let table = format!("bench-{}", env.entropy.nonce());
        store.ensure_table(by, &TableSpec::new(table.clone(), KeyAttribute::text("pk"))).await?;
        Ok(Self { store, env, table })
    }

    async fn measure(&self, run: usize, writers: usize, stretch: Duration) -> anyhow::Result<Sample> {
        let by = self.env.clock.deadline(stretch + Duration::from_secs(30));
        let (store, table) = (self.store.clone(), self.table.clone());
        for writer in 0..writers {
            let key = format!("{run}-{writer}");
            let row = Item::new().with("pk", key).with("n", 0).with("v", "x".repeat(VALUE_BYTES));
            store.put(by, &table, row, Condition::Always).await?;
        }
        measure(writers, stretch, move |writer, turn| {
            let (store, table) = (store.clone(), table.clone());
            async move {
                let key = Key::new("pk", format!("{run}-{writer}"));
                let change = Update::new().set("n", turn + 1);
                let written = store.update(by, &table, key, change, Condition::eq("n", turn)).await?;
                ensure!(written.is_applied(), "the writer's own row refused it");
                Ok(())
            }
        })
        .await
    }

    async fn close(self) -> anyhow::Result<()> {
        // Files go with their directory, emulators with the run.
        Ok(())
    }
}
