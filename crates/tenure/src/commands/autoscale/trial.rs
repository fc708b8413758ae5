//! `tenure autoscale simulate` and `replay`: a policy on a trace of demand, on paper; and what a log tells.

use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tenure_autoscaler::Policy;
use tenure_autoscaler::observation::Resources;
use tenure_autoscaler::settings::Settings;
use tenure_autoscaler::trial::{self, Demand, Group, Outcome, Terms};
use tenure_clock::WallTime;

use crate::context::Context;
use crate::duration;
use crate::failure::{FAILED, misuse, misuse_if_invalid};
use crate::output::{Output, aligned, one_line};
use crate::settings;

/// Most lines of a trace, and most bytes of a line.
const LINES_MAX: usize = 200_000;
const LINE_BYTES_MAX: u64 = 100_000;
/// Most events that are read.
const EVENTS_MAX: usize = 100_000;
/// About as many ticks as a long log is tried with.
const TICKS_LONG: u64 = 100_000;

#[derive(clap::Args)]
#[command(after_help = "\
A trace is a file of JSON lines, in the order of `at`, each saying what is wanted from that second on:

  {\"at\": 0, \"pods\": [{\"count\": 8, \"cpu_millis\": 500, \"memory_mib\": 512}]}
  {\"at\": 600, \"pods\": [{\"count\": 40, \"cpu_millis\": 500, \"memory_mib\": 512}], \"lag_seconds\": 90}
  {\"at\": 3600, \"pods\": [], \"interrupt\": 1}

`lag_seconds` is how far the consumers are behind, `interrupt` how many workers get a spot interruption then.
`tenure autoscale replay --trace` prints the trace of what really happened. Decisions are made by the real rules;
nothing fails in this world, and nothing outside is asked or changed.

Examples:
  tenure autoscale simulate day.jsonl
  tenure autoscale simulate day.jsonl --policy careful.toml --join 90s
  tenure autoscale simulate - --json < day.jsonl | jq -s 'last'")]
pub(super) struct SimulateArgs {
    /// The trace, or - for standard input
    trace: PathBuf,

    #[command(flatten)]
    terms: TermArgs,
}

/// The policy, and the world that it is tried in.
#[derive(clap::Args)]
struct TermArgs {
    /// A file like tenure.toml, whose autoscaler section counts in place of the one in force
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,

    /// How long after its launch a worker is Ready
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration::parse_positive)]
    join: Duration,

    /// How often there is a tick
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = duration::parse_positive)]
    every: Duration,

    /// Workers at the beginning [default: the fewest allowed]
    #[arg(long, value_name = "COUNT")]
    workers: Option<u32>,

    /// How long to go on after the last demand
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = duration::parse_positive)]
    tail: Duration,
}

impl TermArgs {
    fn terms(&self) -> anyhow::Result<Terms> {
        if self.every < Duration::from_secs(1) {
            return Err(misuse("--every is below a second: give 1s or more"));
        }
        Ok(Terms { join: self.join, every: self.every, workers: self.workers.unwrap_or(0), tail: self.tail })
    }

    /// Where nothing is launched, subnets and templates do not matter.
    fn policy(&self, context: &Context) -> anyhow::Result<Policy> {
        let mut scaling = match &self.policy {
            None => context.settings.autoscaler.clone(),
            Some(path) => read_policy(path)?,
        };
        scaling.cluster.get_or_insert_with(|| "trial".to_owned());
        scaling.subnets.get_or_insert_with(|| "trial".to_owned());
        let policy = scaling.policy().map_err(|mistake| misuse(mistake.to_string()))?;
        policy.validate().map_err(misuse_if_invalid)?;
        Ok(policy)
    }
}

/// Read as `tenure.toml` is, and by itself: what the environment says is not about this policy.
fn read_policy(path: &Path) -> anyhow::Result<Settings> {
    Ok(settings::load_alone(path, "--policy")?.settings.autoscaler)
}

pub(super) fn simulate(args: &SimulateArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let (policy, terms) = (args.terms.policy(context)?, args.terms.terms()?);
    let trace = read_trace(&args.trace)?;
    if policy.lag_max.is_none() && trace.iter().any(|demand| demand.lag_seconds.is_some()) {
        tracing::warn!("`lag_seconds` of the trace has no effect: the policy has no autoscaler.lag_max");
    }
    let outcome = trial::run(&policy, &trace, &terms).map_err(misuse_if_invalid)?;
    tell_happenings(&outcome, &context.out)?;
    if context.out.is_json() {
        context.out.json_line(&as_json(&outcome))?;
    } else {
        context.out.line(&summary(&outcome))?;
    }
    Ok(ExitCode::SUCCESS)
}

// === the trace ===

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    at: i64,
    #[serde(default)]
    pods: Vec<PodsLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lag_seconds: Option<i64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    interrupt: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PodsLine {
    count: u64,
    cpu_millis: u64,
    memory_mib: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl From<&Demand> for Line {
    fn from(demand: &Demand) -> Self {
        let pods = demand.pods.iter().map(|group| PodsLine {
            count: group.count,
            cpu_millis: group.requests.cpu_millis,
            memory_mib: group.requests.memory_mib,
        });
        Self {
            at: demand.at,
            pods: pods.collect(),
            lag_seconds: demand.lag_seconds,
            interrupt: demand.interrupts,
        }
    }
}

impl From<Line> for Demand {
    fn from(line: Line) -> Self {
        let pods = line.pods.into_iter().map(|pods| Group {
            count: pods.count,
            requests: Resources { cpu_millis: pods.cpu_millis, memory_mib: pods.memory_mib },
        });
        Self { at: line.at, pods: pods.collect(), lag_seconds: line.lag_seconds, interrupts: line.interrupt }
    }
}

fn read_trace(path: &Path) -> anyhow::Result<Vec<Demand>> {
    let named = path.display();
    let mut reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        let file =
            std::fs::File::open(path).map_err(|error| misuse(format!("open the trace {named}: {error}")))?;
        Box::new(BufReader::new(file))
    };
    let (mut trace, mut number) = (Vec::new(), 0);
    loop {
        number += 1;
        let mut line = String::new();
        // No more is read than a line may have: a file without lines may never end.
        let mut part = reader.by_ref().take(LINE_BYTES_MAX + 1);
        let read = part.read_line(&mut line);
        let read = read.map_err(|error| misuse(format!("read line {number} of {named}: {error}")))?;
        if read == 0 {
            return Ok(trace);
        }
        if number > LINES_MAX || read as u64 > LINE_BYTES_MAX {
            return Err(misuse(format!(
                "line {number} of {named}: at most {LINES_MAX} lines of {LINE_BYTES_MAX} bytes are read"
            )));
        }
        if line.trim().is_empty() {
            continue;
        }
        let line: Line = serde_json::from_str(&line)
            .map_err(|error| misuse(format!("line {number} of {named}: {error}; see `simulate --help`")))?;
        trace.push(line.into());
    }
}

// === the outcome ===

fn tell_happenings(outcome: &Outcome, out: &Output) -> anyhow::Result<()> {
    if out.is_json() {
        for it in &outcome.happenings {
            out.json_line(&json!({
                "at": it.at,
                "event": it.event,
                "workers": it.workers,
                "waiting": it.waiting,
                "reasons": it.reasons,
            }))?;
        }
        return Ok(());
    }
    let cells: Vec<_> = outcome
        .happenings
        .iter()
        .map(|it| {
            [
                format!("{} s", it.at),
                it.event.to_owned(),
                format!("{} workers", it.workers),
                format!("{} pods wait", it.waiting),
                one_line(&it.reasons.join("; ")),
            ]
        })
        .collect();
    for line in aligned(&cells) {
        out.line(&line)?;
    }
    Ok(())
}

fn as_json(outcome: &Outcome) -> Json {
    json!({
        "seconds": outcome.seconds,
        "scale_ups": outcome.ups,
        "scale_downs": outcome.downs,
        "workers_max": outcome.workers_max,
        "workers_end": outcome.workers_end,
        "worker_hours": hours(outcome.worker_seconds),
        "pod_waiting_hours": hours(outcome.waiting_seconds),
        "waiting_longest_seconds": outcome.waiting_longest,
        "waiting_end": outcome.waiting_end,
    })
}

fn summary(outcome: &Outcome) -> String {
    format!(
        "{} scale-ups and {} scale-downs in {:.1} h; {:.1} worker hours, at most {} workers, {} at the end; \
         pods waited {:.1} h together, {} s without a pause at most; {} wait at the end",
        outcome.ups,
        outcome.downs,
        hours(outcome.seconds),
        hours(outcome.worker_seconds),
        outcome.workers_max,
        outcome.workers_end,
        hours(outcome.waiting_seconds),
        outcome.waiting_longest,
        outcome.waiting_end,
    )
}

#[allow(clippy::cast_precision_loss, reason = "shown to people")]
fn hours(seconds: i64) -> f64 {
    // Two digits are enough, and are the same on every machine.
    (seconds as f64 / 36.0).round() / 100.0
}

// === replay ===

#[derive(clap::Args)]
#[command(after_help = "\
What the log tells of the actions since then: when each began and how it ended, what in the log is against the rules
(two actions at once, a fence that fell), and what the policy in force, or --policy, would have done with the demand
that the decisions of that time were made on. A log holds numbers at its decisions, so a quiet time is a gap.

Exit status 1 if something is against the rules.

Examples:
  tenure autoscale replay --since 24h
  tenure autoscale replay --since 24h --policy careful.toml
  tenure autoscale replay --since 7d --trace > week.jsonl")]
pub(super) struct ReplayArgs {
    /// Only what is younger
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    since: Option<Duration>,

    /// Print the trace for `simulate`, and nothing else
    #[arg(long, conflicts_with_all = ["policy", "join", "every", "workers", "tail"])]
    trace: bool,

    #[command(flatten)]
    terms: TermArgs,
}

pub(super) async fn replay(args: &ReplayArgs, context: &Context) -> anyhow::Result<ExitCode> {
    // A mistake in what was given is told before the log is read.
    let tried = tried(args, context)?;
    let book = super::book_with_log(context).await?;
    let since = args.since.map_or(i64::MIN, |since| (context.env.clock.wall() - since).as_seconds());
    let read = context.look(async |_| book.events(since, EVENTS_MAX).await).await;
    let (events, strange) = read.map_err(misuse_if_invalid).context("read the log")?;
    for error in &strange {
        tracing::warn!(error = %error.chain(), "an item of the log cannot be read");
    }
    let trace = trial::trace_of(&events);
    let out = &context.out;
    if args.trace {
        for demand in &trace {
            out.json_line(&Line::from(demand))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (actions, wrong) = trial::audit(&events);
    let moment = |epoch: Option<i64>| {
        epoch.map(|epoch| WallTime::from_millis(epoch.saturating_mul(1000)).to_string()).unwrap_or_default()
    };
    let mut cells = Vec::new();
    for it in &actions {
        if out.is_json() {
            out.json_line(&json!({
                "action": it.action,
                "began": it.began,
                "ended": it.ended,
                "how": it.how,
                "owners": it.owners,
                "writes": it.writes,
            }))?;
            continue;
        }
        let took = it.began.zip(it.ended).map(|(began, ended)| format!("{} s", ended.saturating_sub(began)));
        cells.push([
            moment(it.began.or(it.ended)),
            one_line(&it.action),
            it.how.as_deref().map_or_else(|| "under way".to_owned(), one_line),
            took.unwrap_or_default(),
            format!("{} writes by {} executors", it.writes, it.owners.len()),
        ]);
    }
    for line in aligned(&cells) {
        out.line(&line)?;
    }
    for what in &wrong {
        out.say(|| json!({ "wrong": what }), || format!("wrong: {}", one_line(what)))?;
    }
    // What cannot be tried does not hide what was found.
    let tried = tried.filter(|_| !trace.is_empty()).and_then(|(policy, terms)| {
        retry(&policy, terms, &trace)
            .inspect_err(
                |error| tracing::warn!(error = %error.chain(), "the policy cannot be tried on this log"),
            )
            .ok()
    });
    if out.is_json() {
        out.json_line(&json!({
            "events": events.len(),
            "actions": actions.len(),
            "wrong": wrong.len(),
            "unreadable": strange.len(),
            "trial": tried.as_ref().map(as_json),
        }))?;
    } else {
        out.line(&format!("{} actions in {} events; {} wrong", actions.len(), events.len(), wrong.len()))?;
        match &tried {
            Some(outcome) => out.line(&format!("with this policy, on paper: {}", summary(outcome)))?,
            None => out.line("the log has no numbers of decisions, or no policy is given: nothing to try")?,
        }
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// The policy that is tried, and where; none if nobody set one.
fn tried(args: &ReplayArgs, context: &Context) -> anyhow::Result<Option<(Policy, Terms)>> {
    let terms = args.terms.terms()?;
    let is_set = args.terms.policy.is_some() || context.settings.autoscaler.workers_max.is_some();
    Ok(if is_set { Some((args.terms.policy(context)?, terms)) } else { None })
}

/// What the policy would have done.
fn retry(policy: &Policy, mut terms: Terms, trace: &[Demand]) -> tenure_backend::Result<Outcome> {
    // A long log is tried in larger steps.
    let span = trace.last().map_or(0, |last| u64::try_from(last.at).unwrap_or(0));
    terms.every = terms.every.max(Duration::from_secs(span / TICKS_LONG));
    trial::run(policy, trace, &terms)
}
