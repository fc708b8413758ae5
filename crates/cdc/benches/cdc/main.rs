//! What publishing costs, side by side with the server's own reader of its log.
//!
//! Run it with `cargo xtask bench cdc --json`; names of cases after it select those alone.
//! Each row says its aim and whether it was met.
//!
//! The server, its log and the plugin's options are the same for ours and the peer, which read it in turn:
//! machines are noisy, and what else one does then falls on both alike. Ours is a process of its own, so that
//! its CPU time and its memory are those of a whole publisher.

mod cases;
mod cluster;
mod debezium;
mod process;
mod publisher;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use serde_json::{Map, Value as Json};
use tenure_clock::{Clock as _, Monotonic, SystemClock};

use crate::publisher::Job;

/// The first argument of the process that is measured.
pub(crate) const PUBLISHER: &str = "publish";

pub(crate) struct Plan {
    json: bool,
    pub(crate) runs: usize,
    /// Events of a workload.
    pub(crate) events: u64,
    /// Rows of the large transaction.
    pub(crate) large: u64,
    /// Where the server's programs are.
    pub(crate) postgres: Option<PathBuf>,
    only: Vec<String>,
    began: Monotonic,
    rows: Cell<usize>,
    /// The cases whose aim was not met.
    missed: RefCell<Vec<String>>,
}

/// From here on each case is run fewer times, so that a slow machine is done within a quarter of an hour too.
const HURRY_AFTER: Duration = Duration::from_secs(8 * 60);
/// And from here on once.
const RUSH_AFTER: Duration = Duration::from_secs(11 * 60);

impl Plan {
    fn from_args(mut args: impl Iterator<Item = String>) -> anyhow::Result<Self> {
        let mut plan = Self {
            json: false,
            runs: 5,
            events: 300_000,
            large: 1_000_000,
            postgres: None,
            only: Vec::new(),
            began: SystemClock.monotonic(),
            rows: Cell::new(0),
            missed: RefCell::default(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--json" => plan.json = true,
                "--quick" => (plan.runs, plan.events, plan.large) = (1, 30_000, 100_000),
                "--runs" => plan.runs = value()?.parse().context("--runs takes a number")?,
                "--events" => plan.events = value()?.parse().context("--events takes a number")?,
                "--postgres" => plan.postgres = Some(value()?.into()),
                // What `cargo bench` itself adds.
                "--bench" => {}
                option if option.starts_with('-') => anyhow::bail!(
                    "unknown option {option}: known are --json, --quick, --runs N, --events N, --postgres FOLDER, and \
                     names of cases"
                ),
                name => plan.only.push(name.to_owned()),
            }
        }
        Ok(plan)
    }

    /// Whether a case was asked for: by its name, or by the beginning of it up to an underscore.
    pub(crate) fn wants(&self, case: &str) -> bool {
        let is =
            |name: &str| case.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'));
        self.only.is_empty() || self.only.iter().any(|name| is(name))
    }

    /// Whether a case that was run so many times is run again, of so many times at most.
    pub(crate) fn again(&self, done: usize, most: usize) -> bool {
        let most = most.min(self.runs);
        let late = SystemClock.monotonic().since(self.began);
        let now = match late {
            _ if late > RUSH_AFTER => 1,
            _ if late > HURRY_AFTER => most.min(3),
            _ => most,
        };
        if done < most && done >= now {
            eprintln!("it is late: {done} runs instead of {most}");
        }
        done < now
    }

    /// The last line: how many aims were met.
    fn sum_up(&self) {
        let (rows, missed) = (self.rows.get(), self.missed.take());
        let seconds = SystemClock.monotonic().since(self.began).as_secs_f64().round();
        self.print(&[
            ("case", "summary".into()),
            ("rows", rows.into()),
            ("met", (rows - missed.len()).into()),
            ("ok", missed.is_empty().into()),
            ("missed", missed.into()),
            ("seconds", seconds.into()),
        ]);
    }

    /// Prints a row: fields in order, those without a value left out.
    pub(crate) fn print(&self, fields: &[(&str, Json)]) {
        let of = |wanted: &str| fields.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value);
        self.rows.set(self.rows.get() + 1);
        if of("ok") == Some(&Json::Bool(false)) {
            let parts = ["case", "sink", "peer", "tx_rows"].into_iter().filter_map(of);
            let parts: Vec<_> = parts.map(|part| part.to_string().replace('"', "")).collect();
            self.missed.borrow_mut().push(parts.join(" "));
        }
        let fields = || fields.iter().filter(|(_, value)| !value.is_null());
        if self.json {
            let all = [("bench", Json::from("cdc"))];
            let row: Map<_, _> =
                all.iter().chain(fields()).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
            println!("{}", Json::Object(row));
        } else {
            let words: Vec<_> = fields().map(|(name, value)| format!("{name} {value}")).collect();
            println!("{}", words.join(", "));
        }
    }
}

/// As many digits as mean something.
pub(crate) fn rounded(value: f64) -> Json {
    Json::from(if value >= 1000.0 { value.round() } else { (value * 1000.0).round() / 1000.0 })
}

/// The value that all but the given share of the samples are below or at.
pub(crate) fn percentile(samples: &mut [f64], share: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let index = ((samples.len() as f64 * share).ceil() as usize).clamp(1, samples.len().max(1));
    samples.get(index - 1).copied().unwrap_or(f64::NAN)
}

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1).peekable();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    if args.next_if(|first| first == PUBLISHER).is_some() {
        let job: Job = serde_json::from_str(&args.next().context("no job")?)?;
        return runtime.block_on(publisher::run(job));
    }
    let plan = Plan::from_args(args)?;
    runtime.block_on(cases::run(&plan))?;
    plan.sum_up();
    Ok(())
}
