//! Conditional writes per second, per backend, by one writer and by sixteen.
//!
//! An operation is one acknowledged update of the writer's own row on condition of its counter: what
//! renewing a lease is. Run it with `cargo xtask bench store --json`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tenure_bench::{Plan, RawSqlite, Row, Sample, measure, say_machine};
use tenure_store::{Condition, Env, Item, Key, KeyAttribute, Store, StoreExt, TableSpec, Update};

/// About what a lease row carries besides its key.
const VALUE_BYTES: usize = 200;
const WRITERS: [usize; 2] = [1, 16];

struct Backend {
    name: &'static str,
    server: &'static str,
    address: String,
    beside_raw_sqlite: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    say_machine(&plan, &format!("rows of about {VALUE_BYTES} bytes"));
    let dir = tempfile::tempdir()?;
    for backend in backends(dir.path()).iter().filter(|backend| plan.wants(backend.name)) {
        for writers in WRITERS {
            eprintln!("measuring {} ({}) with {writers} writers …", backend.name, backend.server);
            let (ours, limit) = run(backend, writers, &plan).await.context(backend.name)?;
            let Backend { name, server, .. } = backend;
            Row { bench: "store", backend: name, server, writers, ours: &ours, limit: &limit }.print(&plan);
        }
    }
    Ok(())
}

fn backends(dir: &Path) -> Vec<Backend> {
    let backend =
        |name, server, address, beside_raw_sqlite| Backend { name, server, address, beside_raw_sqlite };
    let mut all = vec![backend("memory", "in-process", "memory:".to_owned(), false)];
    if cfg!(feature = "sqlite") {
        all.push(backend("sqlite", "in-process", format!("sqlite:{}", dir.join("bench.db").display()), true));
    }
    let service = |name: &str| std::env::var(name).ok();
    if cfg!(feature = "postgres")
        && let Some(url) = service("TENURE_TEST_POSTGRES")
    {
        all.push(backend("postgres", "postgres", format!("{url}?schema=tenure_bench"), false));
    }
    for (variable, server) in
        [("TENURE_TEST_DYNAMODB_LOCAL", "dynamodb-local"), ("TENURE_TEST_DYNOXIDE", "dynoxide")]
    {
        if cfg!(feature = "dynamodb")
            && let Some(url) = service(variable)
        {
            all.push(backend(
                "dynamodb",
                server,
                format!("dynamodb:?region=us-east-1&endpoint={url}"),
                false,
            ));
        }
    }
    all
}

async fn run(backend: &Backend, writers: usize, plan: &Plan) -> anyhow::Result<(Vec<Sample>, Vec<Sample>)> {
    let env = Env::system();
    let store = tenure_store::open(&backend.address, &env).await?;
    let by = env.clock.deadline(Duration::from_secs(30));
    let table = format!("bench-{}", env.entropy.nonce());
    store.ensure_table(by, &TableSpec::new(table.clone(), KeyAttribute::text("pk"))).await?;
    let mut raw = RawSqlite::new()?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for run in 0..plan.runs {
        ours.push(measure_store(&store, &env, &table, run, writers, plan.stretch).await?);
        if backend.beside_raw_sqlite {
            limit.push(tokio::task::block_in_place(|| {
                raw.measure(writers, plan.stretch, VALUE_BYTES, false)
            })?);
        }
    }
    Ok((ours, limit))
}

async fn measure_store(
    store: &Arc<dyn Store>,
    env: &Env,
    table: &str,
    run: usize,
    writers: usize,
    stretch: Duration,
) -> anyhow::Result<Sample> {
    let by = env.clock.deadline(stretch + Duration::from_secs(30));
    for writer in 0..writers {
        let row =
            Item::new().with("pk", format!("{run}-{writer}")).with("n", 0).with("v", "x".repeat(VALUE_BYTES));
        store.put(by, table, row, Condition::Always).await?;
    }
    let (store, table) = (store.clone(), table.to_owned());
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
