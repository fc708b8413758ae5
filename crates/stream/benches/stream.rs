//! Records per second, per backend, by one writer and by sixteen.
//!
//! An operation is one put of one record, acknowledged; on `sqlite-batch500` it is a record of a put of
//! 500, and the latencies are those of the put. Run it with `cargo xtask bench stream --json`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, ensure};
use tenure_bench::{Plan, RawSqlite, Row, Sample, measure, say_machine};
use tenure_stream::{Env, Put, RECORDS_PER_PUT_MAX, Record, Stream, StreamSpec};

/// About what a row change carries.
const VALUE_BYTES: usize = 200;
const WRITERS: [usize; 2] = [1, 16];
const SHARDS: u32 = 4;

struct Backend {
    name: &'static str,
    server: &'static str,
    address: String,
    batch: usize,
    beside_raw_sqlite: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    say_machine(&plan, &format!("records of {VALUE_BYTES} bytes, {SHARDS} shards"));
    let dir = tempfile::tempdir()?;
    for backend in backends(dir.path()).iter().filter(|backend| plan.wants(backend.name)) {
        for writers in WRITERS {
            eprintln!("measuring {} ({}) with {writers} writers …", backend.name, backend.server);
            let (ours, limit) = run(backend, writers, &plan).await.context(backend.name)?;
            let Backend { name, server, .. } = backend;
            Row { bench: "stream", backend: name, server, writers, ours: &ours, limit: &limit }.print(&plan);
        }
    }
    Ok(())
}

fn backends(dir: &Path) -> Vec<Backend> {
    let embedded = |name, address, batch, beside_raw_sqlite| Backend {
        name,
        server: "in-process",
        address,
        batch,
        beside_raw_sqlite,
    };
    let mut all = vec![embedded("memory", "memory:bench".to_owned(), 1, false)];
    if cfg!(feature = "sqlite") {
        let file = |name: &str| format!("sqlite:{}", dir.join(name).display());
        all.push(embedded("sqlite", file("bench.db"), 1, true));
        all.push(embedded("sqlite-batch500", file("batch.db"), RECORDS_PER_PUT_MAX, false));
    }
    for (variable, server) in
        [("TENURE_TEST_KINESIS_LOCAL", "kinesis-local"), ("TENURE_TEST_KINESALITE", "kinesalite")]
    {
        if cfg!(feature = "kinesis")
            && let Ok(endpoint) = std::env::var(variable)
        {
            let name = format!("bench-{}", Env::system().entropy.nonce());
            let address = format!("kinesis:{name}-WRITERS?endpoint={endpoint}");
            all.push(Backend { name: "kinesis", server, address, batch: 1, beside_raw_sqlite: false });
        }
    }
    all
}

async fn run(backend: &Backend, writers: usize, plan: &Plan) -> anyhow::Result<(Vec<Sample>, Vec<Sample>)> {
    let env = Env::system();
    let stream = tenure_stream::open(&backend.address.replace("WRITERS", &writers.to_string()), &env).await?;
    let by = env.clock.deadline(Duration::from_secs(30));
    stream.create(by, &StreamSpec::with_shards(SHARDS)).await?;
    let mut raw = RawSqlite::new()?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for _ in 0..plan.runs {
        ours.push(measure_stream(&stream, &env, backend.batch, writers, plan.stretch).await?);
        if backend.beside_raw_sqlite {
            limit
                .push(tokio::task::block_in_place(|| raw.measure(writers, plan.stretch, VALUE_BYTES, true))?);
        }
    }
    stream.delete(env.clock.deadline(Duration::from_secs(30))).await?;
    Ok((ours, limit))
}

async fn measure_stream(
    stream: &Arc<dyn Stream>,
    env: &Env,
    batch: usize,
    writers: usize,
    stretch: Duration,
) -> anyhow::Result<Sample> {
    let by = env.clock.deadline(stretch + Duration::from_secs(30));
    let stream = stream.clone();
    let data = vec![b'x'; VALUE_BYTES];
    let mut sample = measure(writers, stretch, move |writer, turn| {
        let records: Vec<_> = (0..batch)
            .map(|index| Record::new(format!("key-{writer}-{}", turn + index as u64), data.clone()))
            .collect();
        let stream = stream.clone();
        async move {
            let puts = stream.put(by, &records).await?;
            ensure!(puts.iter().all(|put| matches!(put, Put::Stored { .. })), "not all records were stored");
            Ok(())
        }
    })
    .await?;
    sample.ops_per_s *= batch as f64;
    Ok(sample)
}
