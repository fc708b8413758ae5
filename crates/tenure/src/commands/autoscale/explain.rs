//! `tenure autoscale explain`: what the rules say of one node, pod or action.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_autoscaler::Book;
use tenure_autoscaler::log::Event;
use tenure_autoscaler::state::{Action, State};
use tenure_clock::WallTime;

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::one_line;

/// Most events that are read.
const EVENTS_MAX: usize = 100_000;
/// What the writes begin with that end an action.
const ENDS: [&str; 3] = ["complete", "fail", "clear"];

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure autoscale explain node ip-10-0-1-7
  tenure autoscale explain node i-0123456789abcdef0
  tenure autoscale explain pod shop/checkout-5d9c7
  tenure autoscale explain action 1730000300-host-1-7 --json")]
pub(super) struct Args {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(clap::Subcommand)]
enum Subject {
    /// Whose instance a node is, how it is loaded, and why it stays or goes
    #[cfg(feature = "autoscaler")]
    #[command(after_help = "\
Examples:
  tenure autoscale explain node ip-10-0-1-7
  tenure autoscale explain node i-0123456789abcdef0 --json")]
    Node {
        /// The node's name, or its instance's id
        name: String,
    },
    /// Why workers are added for a pod or not, and whether it may be evicted
    #[cfg(feature = "autoscaler")]
    #[command(after_help = "\
Examples:
  tenure autoscale explain pod shop/checkout-5d9c7
  tenure autoscale explain pod checkout-5d9c7 --json")]
    Pod {
        /// NAMESPACE/NAME, or a name that one pod has
        name: String,
    },
    /// What this build cannot do
    #[cfg(not(feature = "autoscaler"))]
    #[command(name = "node", alias = "pod", hide = true)]
    Absent(super::Absent),
    /// What an action did so far, and what it waits for
    #[command(after_help = "\
Examples:
  tenure autoscale explain action
  tenure autoscale explain action 1730000300-host-1-7 --json")]
    Action {
        /// The action's id; the one that is under way if none is given
        id: Option<String>,
    },
}

pub(super) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    match &args.subject {
        #[cfg(feature = "autoscaler")]
        Subject::Node { name } => {
            let executor = super::edges::onlooker(context).await?;
            let told = executor.explain_node(name).await.map_err(misuse_if_invalid)?;
            let told = told.ok_or_else(|| {
                misuse(format!("there is no node and no instance `{name}`: `kubectl get nodes` lists them"))
            })?;
            tell("node", name, &told, context)
        }
        #[cfg(feature = "autoscaler")]
        Subject::Pod { name } => {
            let executor = super::edges::onlooker(context).await?;
            let told = executor.explain_pod(name).await.map_err(misuse_if_invalid)?;
            let told = told.ok_or_else(|| {
                misuse(format!(
                    "there is no pod `{name}` that has not ended, or several have that name: give NAMESPACE/NAME"
                ))
            })?;
            tell("pod", name, &told, context)
        }
        #[cfg(not(feature = "autoscaler"))]
        Subject::Absent(_) => Err(super::absent()),
        Subject::Action { id } => action(id.as_deref(), &super::book_with_log(context).await?, context).await,
    }
}

#[cfg(feature = "autoscaler")]
fn tell(
    kind: &str,
    name: &str,
    told: &[tenure_autoscaler::machine::explain::Said],
    context: &Context,
) -> anyhow::Result<ExitCode> {
    if context.out.is_json() {
        let said: Vec<_> =
            told.iter().map(|said| json!({ "topic": said.topic, "text": said.text })).collect();
        context.out.json_line(&json!({ "kind": kind, "name": name, "said": said }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let cells: Vec<_> = told.iter().map(|said| [said.topic.to_owned(), one_line(&said.text)]).collect();
    for line in crate::output::aligned(&cells) {
        context.out.line(&line)?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn action(id: Option<&str>, book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    let state = context.look(async |_| book.state().await).await.map_err(misuse_if_invalid)?;
    let current = state.action_id().map(ToString::to_string);
    let id = match (id, &current) {
        (Some(id), _) => id,
        (None, Some(current)) => current.as_str(),
        (None, None) => {
            return Err(misuse("nothing is under way: give the id of an action, as `log` shows them"));
        }
    };
    let is_its = |event: &Event| event.action.as_ref().is_some_and(|action| action.as_str() == id);
    let read = context.look(async |_| book.events_if(EVENTS_MAX, is_its).await).await;
    let (of_it, _) = read.map_err(misuse_if_invalid).context("read the log")?;
    let is_current = current.as_deref() == Some(id);
    if of_it.is_empty() && !is_current {
        return Err(misuse(format!(
            "neither the state nor the log knows an action `{id}`: `tenure autoscale log` shows them"
        )));
    }
    let parts = if is_current { parts(&state) } else { Vec::new() };
    if context.out.is_json() {
        let events: Vec<_> = of_it.iter().map(super::log::as_json).collect();
        context.out.json_line(&json!({
            "kind": "action",
            "name": id,
            "underWay": is_current,
            "deadlineEpoch": state.action_deadline_epoch.filter(|_| is_current),
            "parts": parts.iter().map(|(part, phase)| json!({ "part": part, "phase": phase })).collect::<Vec<_>>(),
            "events": events,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let how = match (is_current, of_it.last()) {
        (true, _) => "is under way".to_owned(),
        (false, Some(last)) if ENDS.iter().any(|end| last.event.starts_with(end)) => {
            format!("has ended: `{}`", one_line(&last.event))
        }
        (false, Some(_)) => "is not under way any more; the log does not say how it ended".to_owned(),
        (false, None) => String::new(),
    };
    context.out.line(&format!("{} {how}", one_line(id)))?;
    for (part, phase) in &parts {
        context.out.line(&format!("  {} is {phase}", one_line(part)))?;
    }
    if let Some(deadline) = state.action_deadline_epoch.filter(|_| is_current) {
        context
            .out
            .line(&format!("  it is given up at {}", WallTime::from_millis(deadline.saturating_mul(1000))))?;
    }
    for event in of_it {
        let at = WallTime::from_millis(event.epoch.saturating_mul(1000));
        let why = one_line(&event.reasons.join("; "));
        context.out.line(&format!("{at}  {}  {why}", one_line(&event.event)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Slots or nodes of what is under way, each with its phase.
fn parts(state: &State) -> Vec<(String, &'static str)> {
    match state.action() {
        Some(Action::Up(up)) => up
            .slots
            .iter()
            .map(|(number, slot)| {
                let instance = slot.instance.as_ref().map(|id| format!(", {id}")).unwrap_or_default();
                let place = &slot.place;
                let text = format!(
                    "slot {number}, attempt {} at {} {}{instance}",
                    slot.attempt, place.subnet, place.market
                );
                (text, slot.phase.name())
            })
            .collect(),
        Some(Action::Down(down)) => down
            .nodes
            .iter()
            .map(|(id, node)| (format!("node {} ({id})", node.node), node.phase.name()))
            .collect(),
        Some(Action::Legacy(_)) | None => Vec::new(),
    }
}
