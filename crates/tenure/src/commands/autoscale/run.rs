//! `tenure autoscale run`: ticks of an executor on the real edges.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tenure_autoscaler::Tick;
use tenure_autoscaler::check::FAILURES_ALARM;
use tenure_autoscaler::table::Name;

use crate::context::Context;
use crate::failure::{FAILED, misuse_if_invalid};
use crate::output::{Output, one_line};
use crate::{duration, shutdown};

#[derive(clap::Args)]
#[command(after_help = "\
A tick looks at instances, nodes, pods and loads, decides, records, and acts, until there is nothing to do right
now. Any tick may die anywhere: the next one, in any process, goes on. Several may run at once; one acts.
SIGINT and SIGTERM end it between two ticks; a tick that takes longer than one call may (--timeout) is left where it
is, and the next executor goes on once the lease is over.

Exit status of --once: 1 if a call failed. The next tick makes it again; a launch that was refused, the next scale-up.

Examples:
  tenure autoscale run --once
  tenure autoscale run --loop 15s
  tenure autoscale run --once --json | jq -r '.reasons[]'")]
#[group(required = true, multiple = false)]
pub(super) struct Args {
    /// One tick
    #[arg(long)]
    once: bool,

    /// A tick every so often, until SIGINT or SIGTERM
    #[arg(long = "loop", value_name = "DURATION", value_parser = duration::parse_positive)]
    every: Option<Duration>,
}

impl Args {
    /// Whether the command stays until it is asked to end.
    pub(super) const fn is_long_running(&self) -> bool {
        self.every.is_some()
    }
}

pub(super) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let mut executor = super::edges::executor(context).await?;
    let Some(every) = args.every else {
        let tick = executor.tick().await.map_err(misuse_if_invalid)?;
        tell(&tick, &context.out)?;
        return Ok(if tick.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) });
    };
    let stop = shutdown::on_signal()?;
    tracing::info!(owner = executor.book().owner(), every = duration::shown(every), "scaling");
    let mut before = None;
    while !stop.is_cancelled() {
        let overdue = async {
            stop.cancelled().await;
            context.env.clock.sleep(context.timeout).await;
        };
        let tick = tokio::select! {
            biased;
            tick = executor.tick() => tick,
            // It may be dropped anywhere: as if the process had died there.
            () = overdue => {
                tracing::warn!("the tick takes too long, and is left where it is");
                break;
            }
        };
        match tick {
            Ok(tick) => {
                // An idle tick that says what the last one said is no news.
                if before.as_ref() != Some(&tick.reasons)
                    || !tick.writes.is_empty()
                    || !tick.failures.is_empty()
                {
                    tell(&tick, &context.out)?;
                    context.out.flush()?;
                }
                alarm(&tick);
                before = Some(tick.reasons);
            }
            Err(error) => {
                tracing::error!(error = %error.chain(), "a tick failed; the next one goes on");
                before = None;
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = context.env.clock.sleep(every) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Each tick of an action that fails ends well: nothing else would say so.
fn alarm(tick: &Tick) {
    let fails = tick.writes.iter().any(|name| matches!(name, Name::FailUp | Name::FailDown));
    if let Some(failed_actions @ FAILURES_ALARM..) = tick.state.fail_count.filter(|_| fails) {
        let last = tick.state.last_failure.as_deref().unwrap_or("nothing says why");
        tracing::error!(failed_actions, error = last, "actions fail one after another");
    }
}

pub(super) fn tell(tick: &Tick, out: &Output) -> anyhow::Result<()> {
    let writes: Vec<_> = tick.writes.iter().map(|name| name.row().title).collect();
    if out.is_json() {
        let action = tick.state.action_id().map(|id| id.as_str());
        return out.json_line(&json!({
            "rev": tick.state.rev,
            "action": action,
            "writes": writes,
            "reasons": tick.reasons,
            "failures": tick.failures,
        }));
    }
    for write in writes {
        out.line(&format!("did: {write}"))?;
    }
    for reason in &tick.reasons {
        out.line(&one_line(reason))?;
    }
    for failure in &tick.failures {
        out.line(&format!("failed: {}", one_line(failure)))?;
    }
    Ok(())
}
