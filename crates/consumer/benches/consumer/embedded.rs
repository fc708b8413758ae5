//! The embedded stream from end to end, beside the bare reading of the same file.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tenure_backend::Env;
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_stream::{Position, Read, Record, Stream, StreamExt as _, StreamSpec};

use crate::visit::visit;
use crate::{Aim, Plan, median};

const CASE: &str = "embedded_ratio";
const RECORDS: u64 = 200_000;
const RECORD_BYTES: usize = 1024;
const SHARDS: u32 = 4;
const RUNS: usize = 5;
const NEVER: Monotonic = Monotonic::NEVER;

pub(crate) fn measure(plan: &Plan) -> anyhow::Result<()> {
    if !plan.wants(CASE) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare(plan))
}

async fn compare(plan: &Plan) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let env = Env::system();
    let address = format!("sqlite:{}", folder.path().join("bench.db").display());
    let stream = tenure_stream::open(&format!("{address}?name=bench"), &env).await?;
    stream.create(NEVER, &StreamSpec::with_shards(SHARDS)).await?;
    let data = bytes::Bytes::from(vec![b'x'; RECORD_BYTES]);
    for first in (0..RECORDS).step_by(500) {
        let records: Vec<_> =
            (first..first + 500).map(|number| Record::new(format!("key-{number}"), data.clone())).collect();
        stream.put(NEVER, &records).await?;
    }
    let (mut ours, mut bare, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for run in 0..RUNS {
        let (one, two) = (read(&stream).await?, consume(&stream, &address, &env, run).await?);
        bare.push(one);
        ours.push(two);
        ratios.push(two / one);
    }
    plan.say(CASE, "sqlite", median(ratios), "ratio", Aim::AtLeast(0.7));
    plan.say("embedded_records_per_s", "sqlite", median(ours), "records/s", Aim::None);
    plan.say("embedded_raw_read_per_s", "sqlite", median(bare), "records/s", Aim::None);
    Ok(())
}

fn rate(took: Duration) -> f64 {
    RECORDS as f64 / took.as_secs_f64()
}

/// All shards at once, as quickly as they can be read.
async fn read(stream: &Arc<dyn Stream>) -> anyhow::Result<f64> {
    let began = SystemClock.monotonic();
    let mut readers = tokio::task::JoinSet::new();
    for shard in stream.all_shards(NEVER).await? {
        let stream = stream.clone();
        readers.spawn(async move {
            let mut cursor = stream.cursor(NEVER, &shard.id, &Position::TrimHorizon).await?;
            let mut count = 0;
            loop {
                let Read::Records(batch) = stream.read(NEVER, &cursor, 10_000).await? else {
                    bail!("trimmed")
                };
                count += batch.records.len() as u64;
                if batch.records.is_empty() {
                    return anyhow::Ok(count);
                }
                cursor = batch.next.context("the shard ended")?;
            }
        });
    }
    let mut count = 0;
    while let Some(read) = readers.join_next().await {
        count += read??;
    }
    anyhow::ensure!(count == RECORDS, "read {count} records");
    Ok(rate(SystemClock.monotonic().since(began)))
}

/// With leases, checkpoints and a processor.
async fn consume(stream: &Arc<dyn Stream>, address: &str, env: &Env, run: usize) -> anyhow::Result<f64> {
    let store = tenure_store::open(address, env).await?;
    // Each run is another application, and begins anew.
    Ok(rate(visit(stream.clone(), store, format!("bench-{run}"), RECORDS).await?.took))
}
