//! How the benchmarks measure: closed-loop writers, ours and the limit in turn, the median of runs.
//!
//! Machines here are noisy, so no number stands alone: each embedded backend is measured beside raw
//! SQLite with the same durability, in turn within one run, and the middle one of their ratios is what is
//! claimed.

mod java_peer;
mod raw_sqlite;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Value as Json, json};
use tenure_clock::{Clock, SystemClock};

pub use self::java_peer::JavaPeer;
use self::raw_sqlite::RawSqlite;

/// Bytes of a measured value: about what a lease row or a row change carries besides its key.
pub const VALUE_BYTES: usize = 200;

const WRITERS: [usize; 2] = [1, 16];

/// Where a benchmark writes to.
#[derive(Debug)]
pub struct Backend {
    /// Its name in the result.
    pub name: &'static str,
    /// What answers: a library's or an emulator's name.
    pub server: &'static str,
    /// What opens it.
    pub address: String,
    /// Operations that one call carries.
    pub batch: usize,
    /// Whether raw SQLite is its limit.
    pub beside_raw_sqlite: bool,
}

impl Backend {
    /// One that lives in this process.
    #[must_use]
    pub const fn embedded(name: &'static str, address: String) -> Self {
        Self { name, server: "in-process", address, batch: 1, beside_raw_sqlite: false }
    }

    /// A service, if the environment names its address.
    #[must_use]
    pub fn service(
        name: &'static str,
        server: &'static str,
        variable: &str,
        address: impl FnOnce(&str) -> String,
    ) -> Option<Self> {
        let found = std::env::var(variable).ok()?;
        Some(Self { name, server, address: address(&found), batch: 1, beside_raw_sqlite: false })
    }
}

/// What is measured on each backend.
pub trait Subject: Sized {
    /// The benchmark's name in the result.
    const BENCH: &'static str;
    /// Whether every write is an insert, as a log's are, and not a change of the writer's own row.
    const FRESH_KEYS: bool;

    /// The backends there are, those in files under `dir`.
    fn backends(dir: &Path) -> Vec<Backend>;

    /// Makes the backend ready for that many writers.
    fn open(backend: &Backend, writers: usize) -> impl Future<Output = anyhow::Result<Self>>;

    /// Calls for `stretch`; `run` counts the measurements.
    fn measure(
        &self,
        run: usize,
        writers: usize,
        stretch: Duration,
    ) -> impl Future<Output = anyhow::Result<Sample>>;

    /// Takes away what [`Subject::open`] made, where it would stay.
    fn close(self) -> impl Future<Output = anyhow::Result<()>>;
}

/// A benchmark's `main`: measures every backend that the arguments ask for, and prints a row for each.
///
/// # Errors
/// If the arguments are wrong or an operation fails: what failed was not measured.
pub async fn run<S: Subject>() -> anyhow::Result<()> {
    let plan = Plan::from_args(std::env::args().skip(1))?;
    say_machine(&plan);
    let dir = tempfile::tempdir()?;
    for backend in S::backends(dir.path()).iter().filter(|backend| plan.wants(backend.name)) {
        for writers in WRITERS {
            eprintln!("measuring {} ({}) with {writers} writers …", backend.name, backend.server);
            let (ours, limit) = run_one::<S>(backend, writers, &plan).await.context(backend.name)?;
            let Backend { name, server, .. } = backend;
            Row { bench: S::BENCH, backend: name, server, writers, ours: &ours, limit: &limit }.print(&plan);
        }
    }
    Ok(())
}

async fn run_one<S: Subject>(
    backend: &Backend,
    writers: usize,
    plan: &Plan,
) -> anyhow::Result<(Vec<Sample>, Vec<Sample>)> {
    let subject = S::open(backend, writers).await?;
    let mut raw = RawSqlite::new()?;
    let (mut ours, mut limit) = (Vec::new(), Vec::new());
    for run in 0..plan.runs {
        let mut sample = subject.measure(run, writers, plan.stretch).await?;
        sample.ops_per_s *= backend.batch as f64;
        ours.push(sample);
        if backend.beside_raw_sqlite {
            let measure = || raw.measure(writers, plan.stretch, VALUE_BYTES, S::FRESH_KEYS);
            limit.push(tokio::task::block_in_place(measure)?);
        }
    }
    subject.close().await?;
    Ok((ours, limit))
}

/// How long and how often to measure, and how to print.
#[derive(Debug, Clone)]
pub struct Plan {
    /// JSON lines on stdout, or a readable line.
    pub json: bool,
    /// Times each thing is measured; the median counts.
    pub runs: usize,
    /// How long one measurement takes.
    pub stretch: Duration,
    /// Only backends whose name contains one of these; all if empty.
    pub only: Vec<String>,
}

impl Plan {
    /// Reads `--json`, `--quick`, `--runs N` and names of backends.
    ///
    /// # Errors
    /// If `--runs` has no number or an option is unknown.
    pub fn from_args(args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        // Short stretches in quick turn: what else the machine does then falls on ours and the limit alike.
        let mut plan = Self { json: false, runs: 21, stretch: Duration::from_millis(500), only: Vec::new() };
        let mut args = args.peekable();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--json" => plan.json = true,
                "--quick" => plan.stretch = Duration::from_millis(200),
                // What `cargo bench` itself adds.
                "--bench" => {}
                "--runs" => {
                    let count = args.next().and_then(|count| count.parse().ok()).filter(|count| *count > 0);
                    plan.runs = count.ok_or_else(|| anyhow::anyhow!("--runs takes a number from 1"))?;
                }
                option if option.starts_with('-') => {
                    anyhow::bail!(
                        "unknown option {option}: known are --json, --quick, --runs N, and backend names"
                    )
                }
                name => plan.only.push(name.to_owned()),
            }
        }
        Ok(plan)
    }

    /// Whether a backend was asked for.
    #[must_use]
    pub fn wants(&self, backend: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| backend.contains(name))
    }
}

/// What one stretch of work came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sample {
    /// Operations acknowledged per second, all writers together.
    pub ops_per_s: f64,
    /// Half of the operations took at most this.
    pub p50_ms: f64,
    /// All but one in a hundred took at most this.
    pub p99_ms: f64,
}

impl Sample {
    /// From the nanoseconds that each operation took, and the nanoseconds that all took together.
    #[must_use]
    pub fn of(mut latencies: Vec<u64>, elapsed: Duration) -> Self {
        latencies.sort_unstable();
        let at = |share: f64| {
            let index = ((latencies.len() as f64 * share) as usize).min(latencies.len().saturating_sub(1));
            latencies.get(index).map_or(0.0, |nanos| *nanos as f64 / 1e6)
        };
        Self { ops_per_s: latencies.len() as f64 / elapsed.as_secs_f64(), p50_ms: at(0.5), p99_ms: at(0.99) }
    }
}

/// Runs `op(writer, turn)` in `writers` closed loops for `stretch`.
///
/// # Errors
/// The first error of an operation: what failed was not measured.
pub async fn measure<F>(
    writers: usize,
    stretch: Duration,
    op: impl Fn(usize, u64) -> F + Send + Sync + 'static,
) -> anyhow::Result<Sample>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    let op = Arc::new(op);
    let began = SystemClock.monotonic();
    let ends = began + stretch;
    let mut tasks = Vec::new();
    for writer in 0..writers {
        let op = op.clone();
        tasks.push(tokio::spawn(async move {
            let mut latencies = Vec::new();
            let mut before = SystemClock.monotonic();
            while before < ends {
                op(writer, latencies.len() as u64).await?;
                let after = SystemClock.monotonic();
                latencies.push(u64::try_from(after.since(before).as_nanos()).unwrap_or(u64::MAX));
                before = after;
            }
            anyhow::Ok(latencies)
        }));
    }
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    Ok(Sample::of(latencies, SystemClock.monotonic().since(began)))
}

/// The middle of some samples, each figure by itself.
fn median(samples: &[Sample]) -> Sample {
    let middle = |figure: fn(&Sample) -> f64| {
        let mut figures: Vec<f64> = samples.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(0.0)
    };
    Sample { ops_per_s: middle(|s| s.ops_per_s), p50_ms: middle(|s| s.p50_ms), p99_ms: middle(|s| s.p99_ms) }
}

/// Of the turns in which ours and the limit were measured one right after the other, the one whose ratio
/// is the middle one. Two medians, each by itself, would set a quiet moment beside a busy one.
fn median_turn(ours: &[Sample], limit: &[Sample]) -> Option<(Sample, Sample)> {
    let mut turns: Vec<_> = ours.iter().zip(limit).collect();
    let ratio = |(ours, limit): &(&Sample, &Sample)| ours.ops_per_s / limit.ops_per_s;
    turns.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    turns.get(turns.len() / 2).map(|(ours, limit)| (**ours, **limit))
}

/// One line of a benchmark's result.
#[derive(Debug)]
struct Row<'a> {
    /// Which benchmark.
    bench: &'a str,
    /// Which backend.
    backend: &'a str,
    /// What answered: a library's or an emulator's name.
    server: &'a str,
    /// Closed loops at once.
    writers: usize,
    /// Ours.
    ours: &'a [Sample],
    /// The limit measured in turn with ours, where there is one.
    limit: &'a [Sample],
}

impl Row<'_> {
    /// Prints the row as the plan says.
    fn print(&self, plan: &Plan) {
        let (ours, limit) = match median_turn(self.ours, self.limit) {
            Some((ours, limit)) => (ours, Some(limit.ops_per_s)),
            None => (median(self.ours), None),
        };
        let ratio = limit.map(|limit| ours.ops_per_s / limit);
        if plan.json {
            println!("{}", self.as_json(&ours, limit, ratio));
            return;
        }
        let beside = match (limit, ratio) {
            (Some(limit), Some(ratio)) => format!("  limit {limit:>9.0}/s  ratio {ratio:.2}"),
            _ => String::new(),
        };
        println!(
            "{:<14} {:<16} writers {:>2}  {:>9.0} ops/s  p50 {:>8.3} ms  p99 {:>8.3} ms{beside}",
            self.backend, self.server, self.writers, ours.ops_per_s, ours.p50_ms, ours.p99_ms
        );
    }

    fn as_json(&self, ours: &Sample, limit: Option<f64>, ratio: Option<f64>) -> Json {
        let rounded = |figure: f64, places: i32| {
            let scale = 10f64.powi(places);
            (figure * scale).round() / scale
        };
        json!({
            "bench": self.bench,
            "backend": self.backend,
            "server": self.server,
            "writers": self.writers,
            "ops_per_s": rounded(ours.ops_per_s, 0),
            "p50_ms": rounded(ours.p50_ms, 4),
            "p99_ms": rounded(ours.p99_ms, 4),
            "limit_ops_per_s": limit.map(|limit| rounded(limit, 0)),
            "ratio": ratio.map(|ratio| rounded(ratio, 3)),
            "runs": self.ours.len(),
        })
    }
}

/// Says on stderr what the figures were measured on.
fn say_machine(plan: &Plan) {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or("")
        .trim_matches([':', ' ', '\t']);
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    eprintln!("machine: {cores} cores, {model}, Linux {}", kernel.trim());
    eprintln!(
        "SQLite {}, WAL, {}",
        tenure_backend::sqlite::rusqlite::version(),
        tenure_backend::sqlite::PRAGMAS
    );
    eprintln!(
        "{} runs of {:?} each, ours and the limit in turn, median; values of {VALUE_BYTES} bytes",
        plan.runs, plan.stretch
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_moment_falls_on_both_of_a_turn() {
        let sample = |ops_per_s| Sample { ops_per_s, ..Sample::default() };
        // Quiet, busy, quiet, very busy, and one turn that was hit in between.
        let ours = [800.0, 400.0, 820.0, 80.0, 100.0].map(sample);
        let limit = [1000.0, 500.0, 1000.0, 100.0, 1000.0].map(sample);
        let (ours, limit) = median_turn(&ours, &limit).unwrap();
        assert!((ours.ops_per_s / limit.ops_per_s - 0.8).abs() < 1e-9);
        assert!(median_turn(&[], &[]).is_none());
    }

    #[test]
    fn percentiles_and_medians() {
        let sample = Sample::of((1..=100).map(|n| n * 1_000_000).collect(), Duration::from_secs(2));
        assert!((sample.ops_per_s - 50.0).abs() < 1e-9);
        assert!((sample.p50_ms - 51.0).abs() < 1e-9 && (sample.p99_ms - 100.0).abs() < 1e-9);
        let rate = |ops_per_s| Sample { ops_per_s, ..Sample::default() };
        assert!((median(&[rate(3.0), rate(1.0), rate(2.0)]).ops_per_s - 2.0).abs() < 1e-9);
    }

    #[test]
    fn arguments() {
        let plan = |args: &[&str]| Plan::from_args(args.iter().map(ToString::to_string));
        let given = plan(&["--bench", "--json", "--runs", "3", "sqlite"]).unwrap();
        assert!(given.json && given.runs == 3 && given.wants("sqlite") && !given.wants("memory"));
        assert!(plan(&["--runs"]).is_err() && plan(&["--jsn"]).is_err());
    }
}
