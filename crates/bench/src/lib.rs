//! How the benchmarks measure: closed-loop writers, ours and the limit in turn, the median of runs.
//!
//! Machines here are noisy, so no number stands alone: each embedded backend is measured beside raw
//! SQLite with the same durability, in turn within one run, and the ratio of the medians is what is
//! claimed.

mod raw_sqlite;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tenure_clock::{Clock, SystemClock};

pub use self::raw_sqlite::RawSqlite;

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
        let mut plan = Self { json: false, runs: 5, stretch: Duration::from_secs(2), only: Vec::new() };
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
#[must_use]
pub fn median(samples: &[Sample]) -> Sample {
    let middle = |figure: fn(&Sample) -> f64| {
        let mut figures: Vec<f64> = samples.iter().map(figure).collect();
        figures.sort_by(f64::total_cmp);
        figures.get(figures.len() / 2).copied().unwrap_or(0.0)
    };
    Sample { ops_per_s: middle(|s| s.ops_per_s), p50_ms: middle(|s| s.p50_ms), p99_ms: middle(|s| s.p99_ms) }
}

/// One line of a benchmark's result.
#[derive(Debug)]
pub struct Row<'a> {
    /// Which benchmark.
    pub bench: &'a str,
    /// Which backend.
    pub backend: &'a str,
    /// What answered: a library's or an emulator's name.
    pub server: &'a str,
    /// Closed loops at once.
    pub writers: usize,
    /// Ours.
    pub ours: &'a [Sample],
    /// The limit measured in turn with ours, where there is one.
    pub limit: &'a [Sample],
}

impl Row<'_> {
    /// Prints the row as the plan says.
    pub fn print(&self, plan: &Plan) {
        let ours = median(self.ours);
        let limit = (!self.limit.is_empty()).then(|| median(self.limit).ops_per_s);
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
pub fn say_machine(plan: &Plan, details: &str) {
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
    eprintln!("{} runs of {:?} each, ours and the limit in turn, median; {details}", plan.runs, plan.stretch);
}

#[cfg(test)]
mod tests {
    use super::*;

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
