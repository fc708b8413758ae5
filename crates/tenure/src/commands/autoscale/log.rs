//! `tenure autoscale log`: what happened, event by event.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::json;
use tenure_autoscaler::Book;
use tenure_autoscaler::log::{Event, PodSum};
use tenure_clock::WallTime;

use crate::context::Context;
use crate::duration;
use crate::failure::misuse_if_invalid;
use crate::output::{aligned, one_line};

/// Most events that are read: they are all kept in memory.
const EVENTS_MAX: usize = 100_000;

/// Show what happened, oldest first.
#[derive(clap::Args)]
#[command(after_help = "\
One line per change of the state item: when, its revision, what, of which action, by whom, and why. A revision that
is missing was written by an executor that died before it logged, or by an older autoscaler.

Examples:
  tenure autoscale log
  tenure autoscale log --since 24h --json | jq -r 'select(.event) | .event'")]
pub(super) struct Args {
    /// Only what is younger
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    since: Option<Duration>,
}

pub(super) async fn run(args: &Args, book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    let now = context.env.clock.wall();
    let since = args.since.map_or(i64::MIN, |since| (now - since).as_seconds());
    let read = context.look(async |_| book.events(since, EVENTS_MAX).await).await;
    let (events, strange) = read.map_err(misuse_if_invalid).context("read the log")?;
    for error in &strange {
        tracing::warn!(error = %error.chain(), "an item of the log cannot be read");
    }
    if context.out.is_json() {
        for event in &events {
            context.out.json_line(&as_json(event))?;
        }
        context.out.json_line(&json!({ "events": events.len(), "unreadable": strange.len() }))?;
    } else if events.is_empty() {
        context.out.line("nothing happened")?;
    } else {
        let cells: Vec<_> = events.iter().map(cells).collect();
        for line in aligned(&cells) {
            context.out.line(&line)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn as_json(event: &Event) -> serde_json::Value {
    json!({
        "rev": event.rev,
        "epoch": event.epoch,
        "event": event.event,
        "owner": event.owner,
        "action": event.action.as_ref().map(|action| action.as_str()),
        "fence": event.fence,
        "reasons": event.reasons,
        "seen": event.seen.map(|seen| {
            let sum = |pods: PodSum| {
                json!({
                    "count": pods.count,
                    "cpuMillis": pods.requests.cpu_millis,
                    "memoryMib": pods.requests.memory_mib,
                })
            };
            json!({
                "workers": seen.workers,
                "running": sum(seen.running),
                "waiting": sum(seen.waiting),
                "lagSeconds": seen.lag_seconds,
            })
        }),
    })
}

fn cells(event: &Event) -> [String; 6] {
    [
        WallTime::from_millis(event.epoch.saturating_mul(1000)).to_string(),
        event.rev.to_string(),
        one_line(&event.event),
        event.action.as_ref().map(|action| one_line(action.as_str())).unwrap_or_default(),
        one_line(&event.owner),
        one_line(&event.reasons.join("; ")),
    ]
}
