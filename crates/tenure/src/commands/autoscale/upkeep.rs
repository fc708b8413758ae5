//! `tenure autoscale drain`, `gc` and `adopt`: what a person does by hand, with the rules that ticks keep.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use tenure_autoscaler::state::InstanceId;
use tenure_autoscaler::{Adopted, Drain, DrainCheck, Effect, Executor};

use super::edges;
use crate::context::Context;
use crate::failure::{FAILED, REFUSED, misuse_if_invalid};
use crate::output::{Output, aligned, one_line};
use crate::shutdown;

/// How often the drain that this command began is carried on.
const DRAIN_TICK: Duration = Duration::from_secs(2);

#[derive(clap::Args)]
#[command(after_help = "\
With --dry-run, pods are asked whether they may be evicted and the cloud whether the instance may be ended, and
nothing is changed. Without it, a scale-down of that one node begins, if nothing is in the way, and is carried on
until it has ended; SIGINT and SIGTERM leave it to the next executor. A node that cannot be emptied in time is given
back.

Exit status 3 if something is in the way, 1 if the node was given back.

Examples:
  tenure autoscale drain ip-10-0-1-7 --dry-run
  tenure autoscale drain i-0123456789abcdef0")]
pub(super) struct DrainArgs {
    /// The node's name, or its instance's id
    node: String,

    /// Only say what would happen
    #[arg(long)]
    pub(super) dry_run: bool,
}

pub(super) async fn drain(args: &DrainArgs, context: &Context) -> anyhow::Result<ExitCode> {
    if args.dry_run {
        let executor = edges::onlooker(context).await?;
        let check = executor.check_drain(&args.node).await.map_err(misuse_if_invalid)?;
        return tell_check(&check, &context.out);
    }
    let mut executor = edges::executor(context).await?;
    let stop = shutdown::on_signal()?;
    let (action, instance) = match executor.begin_drain(&args.node).await.map_err(misuse_if_invalid)? {
        Drain::Blocked(check) => return tell_check(&check, &context.out),
        Drain::Began { action, instance } => (action, instance),
    };
    let began = || json!({ "action": action.as_str(), "instance": instance.as_str() });
    context.out.say(began, || format!("began {action}: instance {instance} goes"))?;
    context.out.flush()?;
    let mut told = Vec::new();
    while !stop.is_cancelled() {
        match executor.tick().await {
            Ok(tick) => {
                if tick.reasons != told || !tick.writes.is_empty() || !tick.failures.is_empty() {
                    super::run::tell(&tick, &context.out)?;
                    context.out.flush()?;
                }
                if tick.state.action_id() != Some(&action) {
                    return ended(&executor, &instance, context).await;
                }
                told = tick.reasons;
            }
            // The node may be cordoned: whoever began that does not leave it for an answer that was late.
            Err(error) => tracing::error!(error = %error.chain(), "a tick failed; the next one goes on"),
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = context.env.clock.sleep(DRAIN_TICK) => {}
        }
    }
    tracing::warn!(action_id = %action, "left as it is: the next executor goes on with it");
    Ok(ExitCode::from(FAILED))
}

/// Whoever ended it, the instance tells how.
async fn ended(executor: &Executor, instance: &InstanceId, context: &Context) -> anyhow::Result<ExitCode> {
    let gone = executor.is_gone(instance).await.map_err(misuse_if_invalid)?;
    context.out.say(
        || json!({ "instance": instance.as_str(), "gone": gone }),
        || match gone {
            true => format!("instance {instance} is gone"),
            false => format!("instance {instance} stays: its node was given back"),
        },
    )?;
    Ok(if gone { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn tell_check(check: &DrainCheck, out: &Output) -> anyhow::Result<ExitCode> {
    let status = if check.blockers.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(REFUSED) };
    if out.is_json() {
        let pods: Vec<_> =
            check.pods.iter().map(|(name, what)| json!({ "pod": name, "what": what })).collect();
        out.json_line(&json!({
            "node": check.node,
            "instance": check.instance.as_ref().map(InstanceId::as_str),
            "pods": pods,
            "blockers": check.blockers,
        }))?;
        return Ok(status);
    }
    let instance = check.instance.as_ref().map(|id| format!(", instance {id}")).unwrap_or_default();
    out.line(&format!("node {}{instance}", one_line(&check.node)))?;
    let cells: Vec<_> = check.pods.iter().map(|(name, what)| [one_line(name), one_line(what)]).collect();
    for line in aligned(&cells) {
        out.line(&format!("  {line}"))?;
    }
    for blocker in &check.blockers {
        out.line(&format!("in the way: {}", one_line(blocker)))?;
    }
    if check.blockers.is_empty() {
        out.line("nothing is in the way of a drain")?;
    }
    Ok(status)
}

#[derive(clap::Args)]
#[command(after_help = "\
Ticks do the same while nothing is under way. An instance that looks like an orphan is tagged when it is first seen,
and ended when it is seen again later: run it twice, or let ticks do the rest. A cordon that an action left is
lifted.

Examples:
  tenure autoscale gc --dry-run
  tenure autoscale gc --json")]
pub(super) struct GcArgs {
    /// Only say what would be done
    #[arg(long)]
    pub(super) dry_run: bool,
}

pub(super) async fn gc(args: &GcArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let left = if args.dry_run {
        edges::onlooker(context).await?.collect(true).await
    } else {
        edges::executor(context).await?.collect(false).await
    };
    let left = left.map_err(misuse_if_invalid)?;
    let effects: Vec<_> = left.effects.iter().map(Effect::what).collect();
    let out = &context.out;
    if out.is_json() {
        out.json_line(&json!({
            "dryRun": args.dry_run,
            "effects": effects,
            "reasons": left.reasons,
            "failures": left.failures,
        }))?;
    } else {
        for reason in &left.reasons {
            out.line(&one_line(reason))?;
        }
        let verb = if args.dry_run { "would" } else { "did" };
        for effect in &effects {
            out.line(&format!("{verb}: {}", one_line(effect)))?;
        }
        for failure in &left.failures {
            out.line(&format!("failed: {}", one_line(failure)))?;
        }
        if effects.is_empty() && left.reasons.is_empty() {
            out.line("nothing was left behind")?;
        }
    }
    Ok(if left.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

#[derive(clap::Args)]
#[command(after_help = "\
The instance gets the tag `tenure/cluster`, if exactly one worker node of the cluster says that it is its: by its
provider id, or by the node's label `tenure.dev/instance-id`. From then on it is listed, counted and, when it
idles, taken away like any other; it is never taken for an orphan.

Examples:
  tenure autoscale adopt i-0123456789abcdef0")]
pub(super) struct AdoptArgs {
    /// The instance's id
    #[arg(value_name = "INSTANCE")]
    instance: String,
}

pub(super) async fn adopt(args: &AdoptArgs, context: &Context) -> anyhow::Result<ExitCode> {
    let executor = edges::onlooker(context).await?;
    let id = InstanceId::from(args.instance.as_str());
    let adopted = executor.adopt(&id).await.map_err(misuse_if_invalid)?;
    let now = adopted == Adopted::Now;
    context.out.say(
        || json!({ "instance": id.as_str(), "adopted": now }),
        || {
            if now {
                format!("{id} is one of the cluster now")
            } else {
                format!("{id} was one of the cluster")
            }
        },
    )?;
    Ok(ExitCode::SUCCESS)
}
