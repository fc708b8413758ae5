//! The Java KCL beside ours: the same stream in a Kinesis emulator, the same kind of table, each as one worker.
//!
//! The Java program is ours, `peers/Kcl.java`; `xtask` fetches its jars and starts the emulators.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use tenure_backend::Env;
use tenure_bench::JavaPeer;
use tenure_clock::Monotonic;
use tenure_stream::kpl::Aggregator;
use tenure_stream::{Record, Stream, StreamSpec};

use crate::visit::{Visited, visit};
use crate::{Aim, Plan, median};

const CASE: &str = "kcl_ratio";
const SOURCE: &str = include_str!("peers/Kcl.java");
/// Where `xtask` says that the jars are.
const JARS: &str = "TENURE_BENCH_KCL_JARS";
/// Where `xtask` says that the emulators are. The KCL speaks HTTP/2, and only this one of Kinesis does.
const KINESIS: &str = "TENURE_TEST_KINESIS_LOCAL";
const DYNAMODB: &str = "TENURE_TEST_DYNOXIDE";
const STREAM: &str = "bench";
/// The emulator takes about a megabyte a second.
const RECORDS: u64 = 10_000;
const RECORD_BYTES: usize = 1024;
/// How many are aggregated into one, as producers write them: the emulator holds few large ones better than
/// many small ones.
const TOGETHER: u64 = 40;
const SHARDS: u32 = 4;
const RUNS: usize = 5;
const NEVER: Monotonic = Monotonic::NEVER;

pub(crate) fn measure(plan: &Plan) -> anyhow::Result<()> {
    if !plan.wants(CASE) {
        return Ok(());
    }
    let folder = tempfile::tempdir()?;
    let kcl = match Kcl::prepare(folder.path()) {
        Ok(kcl) => kcl,
        Err(error) => {
            eprintln!("without {CASE}: {error:#}");
            return Ok(());
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(compare(plan, &kcl))
}

async fn compare(plan: &Plan, kcl: &Kcl) -> anyhow::Result<()> {
    let env = Env::system();
    let stream = kcl.fill(&env).await?;
    let (mut ratios, mut rates, mut peer_rates) = (Vec::new(), Vec::new(), Vec::new());
    let (mut costs, mut peer_costs) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let store = tenure_store::open(&kcl.store(), &env).await?;
        let ours = visit(stream.clone(), store, format!("ours-{run}"), RECORDS).await?;
        let peer = kcl.run(&format!("kcl-{run}"))?;
        eprintln!("  KCL: first record after {:.1} s", peer.first_record_seconds);
        let (rate, peer_rate) = (rate(&ours), RECORDS as f64 / peer.seconds);
        ratios.push(rate / peer_rate);
        rates.push(rate);
        peer_rates.push(peer_rate);
        costs.push(micros_each(ours.cpu_seconds));
        peer_costs.push(micros_each(peer.cpu_seconds - peer.cpu_before_seconds));
    }
    plan.say(CASE, "kinesis-local", median(ratios), "ratio", Aim::AtLeast(1.0));
    plan.say("kcl_ours_records_per_s", "kinesis-local", median(rates), "records/s", Aim::None);
    plan.say("kcl_records_per_s", "kinesis-local", median(peer_rates), "records/s", Aim::None);
    plan.say("kcl_ours_cpu_us_per_record", "kinesis-local", median(costs), "us", Aim::None);
    plan.say("kcl_cpu_us_per_record", "kinesis-local", median(peer_costs), "us", Aim::None);
    Ok(())
}

fn rate(visited: &Visited) -> f64 {
    RECORDS as f64 / visited.took.as_secs_f64()
}

fn micros_each(seconds: f64) -> f64 {
    seconds * 1e6 / RECORDS as f64
}

/// The compiled program, and the servers that both speak to.
struct Kcl {
    program: JavaPeer,
    kinesis: String,
    dynamodb: String,
}

/// What it tells.
#[derive(Deserialize)]
struct Told {
    seconds: f64,
    cpu_before_seconds: f64,
    cpu_seconds: f64,
    first_record_seconds: f64,
}

impl Kcl {
    fn prepare(folder: &Path) -> anyhow::Result<Self> {
        let server = |variable: &str| {
            std::env::var(variable).with_context(|| format!("no server: {variable} is not set"))
        };
        let (kinesis, dynamodb) = (server(KINESIS)?, server(DYNAMODB)?);
        let program = JavaPeer::compile("Kcl", SOURCE, JARS, folder)?;
        Ok(Self { program, kinesis, dynamodb })
    }

    fn store(&self) -> String {
        format!("dynamodb:?region=us-east-1&endpoint={}", self.dynamodb)
    }

    async fn fill(&self, env: &Env) -> anyhow::Result<Arc<dyn Stream>> {
        let address = format!("kinesis:{STREAM}?region=us-east-1&endpoint={}", self.kinesis);
        let stream = tenure_stream::open(&address, env).await?;
        stream.create(NEVER, &StreamSpec::with_shards(SHARDS)).await?;
        let data = vec![b'x'; RECORD_BYTES];
        for number in 0..RECORDS / TOGETHER {
            let (key, mut out) = (format!("key-{number}"), Vec::new());
            let mut together = Aggregator::begin(&mut out, None);
            for _ in 0..TOGETHER {
                together.add(&mut out, &key, &data);
            }
            together.finish(&mut out);
            stream.put(NEVER, &[Record::new(key, out)]).await?;
        }
        Ok(stream)
    }

    fn run(&self, application: &str) -> anyhow::Result<Told> {
        let mut java = self.program.command();
        java.args([&self.kinesis, &self.dynamodb, STREAM, application]).arg(RECORDS.to_string());
        let ended = java.output().context("start java")?;
        let output = String::from_utf8_lossy(&ended.stdout);
        ensure!(ended.status.success(), "the KCL failed: {output}{}", String::from_utf8_lossy(&ended.stderr));
        let last = output.lines().last().context("it said nothing")?;
        serde_json::from_str(last).with_context(|| format!("it said {last}"))
    }
}
