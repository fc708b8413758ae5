//! `tenure autoscale state show | check | migrate | repair`.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value as Json, json};
use tenure_autoscaler::Book;
use tenure_autoscaler::check::{Finding, findings};
use tenure_autoscaler::rows::decode;
use tenure_autoscaler::state::{Action, Legacy, NodePhase, State};
use tenure_clock::WallTime;
use tenure_store::Item;

use crate::context::Context;
use crate::failure::{FAILED, misuse_if_invalid};
use crate::item_text;
use crate::output::{aligned, counted, one_line};

/// Look at the state item.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure autoscale state show
  tenure autoscale state check --json")]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Show what is under way, and every attribute
    #[command(after_help = "\
Examples:
  tenure autoscale state show
  tenure autoscale state show --json | jq .item.workerCount")]
    Show,
    /// Say what is wrong with it; exit status 1 if anything is
    #[command(after_help = "\
Judged by this machine's clock: `tenure doctor` tells whether that is right.

Examples:
  tenure autoscale state check
  tenure autoscale state check --state-table my-state --json")]
    Check,
    /// Give it the form of this version; everything that is there stays
    #[command(after_help = "\
The first tick of an executor does the same. Older autoscalers on the same table go on as before.

Examples:
  tenure autoscale state migrate")]
    Migrate,
    /// Mend what is wrong with it and has one meaning; say what is left to do
    #[command(after_help = "\
A number that was stored as text, a flag that an action contradicts, what is left of a plan that nobody carries on, an
epoch that lies ahead: such things are mended in one write, on the condition that the item is as it was read. What
has no plain meaning is told and left. Exit status 1 if something is left to do.

Examples:
  tenure autoscale state repair --dry-run
  tenure autoscale state repair")]
    Repair {
        /// Only say what would be mended
        #[arg(long)]
        dry_run: bool,
    },
}

impl Args {
    /// Whether nothing is changed.
    pub(super) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::Show | Verb::Check | Verb::Repair { dry_run: true })
    }
}

pub(super) async fn run(args: &Args, book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Show => show(&read(book, context).await?, context),
        Verb::Check => check(book, context).await,
        Verb::Repair { dry_run } => repair(dry_run, book, context).await,
        Verb::Migrate => {
            book.migrate().await.map_err(misuse_if_invalid).context("write the state item")?;
            let state = book.state().await.map_err(misuse_if_invalid)?;
            let version = state.schema_version.unwrap_or_default();
            context.out.say(
                || json!({ "schemaVersion": version }),
                || format!("the item has schemaVersion {version}"),
            )?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn repair(dry_run: bool, book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    let repaired = book.repair(dry_run).await.map_err(misuse_if_invalid).context("repair the state item")?;
    let Some(repair) = repaired else {
        context.out.say(
            || json!({ "mended": [], "left": [] }),
            || "there is no state item yet; the first tick makes it".to_owned(),
        )?;
        return Ok(ExitCode::SUCCESS);
    };
    if context.out.is_json() {
        context.out.json_line(&json!({ "dryRun": dry_run, "mended": repair.mended, "left": repair.left }))?;
    } else {
        let verb = if dry_run { "would mend" } else { "mended" };
        for what in &repair.mended {
            context.out.line(&format!("{verb}: {}", one_line(what)))?;
        }
        for what in &repair.left {
            context.out.line(&format!("left to do: {}", one_line(what)))?;
        }
        if repair.mended.is_empty() && repair.left.is_empty() {
            context.out.line("nothing to mend")?;
        }
    }
    Ok(if repair.left.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

async fn read(book: &Book, context: &Context) -> anyhow::Result<Option<Item>> {
    context.look(async |_| book.item().await).await.map_err(misuse_if_invalid).context("read the state item")
}

fn show(item: &Option<Item>, context: &Context) -> anyhow::Result<ExitCode> {
    let Some(item) = item else {
        context.out.say(|| json!({ "item": Json::Null }), || "there is no state item yet".to_owned())?;
        return Ok(ExitCode::SUCCESS);
    };
    let state = match decode(item) {
        Ok(state) => state,
        // Whoever is to correct it must see it.
        Err(error) => {
            let raw = || json!({ "unreadable": error.chain(), "item": item_text::shown(item, true) });
            context.out.say(raw, || format!("unreadable  {}", one_line(&item_text::plain_text(item))))?;
            context.out.flush()?;
            return Err(misuse_if_invalid(error));
        }
    };
    if context.out.is_json() {
        let action = state.action().map(|action| {
            let (kind, is_ours) = kind(&action);
            json!({ "id": state.action_id().map(ToString::to_string), "kind": kind, "ours": is_ours })
        });
        context.out.json_line(&Line {
            action,
            paused: state.is_paused(),
            item: item_text::shown(item, true),
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    context.out.line(&summary(&state))?;
    let cells: Vec<_> = item
        .iter()
        .map(|(name, value)| {
            [one_line(name), one_line(&item_text::plain_value_text(value)), moment(name, value.as_i64())]
        })
        .collect();
    for line in aligned(&cells) {
        context.out.line(&format!("  {line}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(serde::Serialize)]
struct Line {
    action: Option<Json>,
    paused: bool,
    item: item_text::Shown,
}

/// What an action is, and whether an executor of ours carries it on.
const fn kind(action: &Action<'_>) -> (&'static str, bool) {
    match action {
        Action::Up(_) => ("scale-up", true),
        Action::Down(_) => ("scale-down", true),
        Action::Legacy(Legacy::Up(_)) => ("scale-up", false),
        Action::Legacy(Legacy::Down(_)) => ("scale-down", false),
        Action::Legacy(Legacy::Nameless) => ("unnamed", false),
    }
}

fn summary(state: &State) -> String {
    let workers =
        state.worker_count.map(|workers| format!("; {}", counted(workers, "worker"))).unwrap_or_default();
    let paused = if state.is_paused() { "; paused" } else { "" };
    let Some(action) = state.action() else { return format!("nothing is under way{workers}{paused}") };
    let id = state.action_id().map(|id| format!(" {}", one_line(id.as_str()))).unwrap_or_default();
    let far = match &action {
        Action::Up(up) => {
            let done = up.slots.values().filter(|slot| slot.phase.is_end()).count();
            format!(", {}, {done} of {} slots done", up.phase.name(), up.slots.len())
        }
        Action::Down(down) => {
            let is_done = |phase| matches!(phase, NodePhase::Done | NodePhase::RolledBack);
            let done = down.nodes.values().filter(|node| is_done(node.phase)).count();
            format!(", {done} of {} nodes done", down.nodes.len())
        }
        Action::Legacy(_) => ", of an older autoscaler".to_owned(),
    };
    format!("{}{id}{far}{workers}{paused}", kind(&action).0)
}

/// Epochs as people read them.
fn moment(name: &str, value: Option<i64>) -> String {
    match value {
        Some(epoch) if name.ends_with("Epoch") => {
            WallTime::from_millis(epoch.saturating_mul(1000)).to_string()
        }
        Some(ms) if name.ends_with("Ms") => WallTime::from_millis(ms).to_string(),
        _ => String::new(),
    }
}

/// Most other items of the table that are named.
const STRANGERS_MAX: usize = 5;

async fn check(book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    let item = read(book, context).await?;
    let strangers = context.look(async |_| book.strangers(STRANGERS_MAX).await).await;
    // Executors do not need that right, and whoever only looks may not have it.
    let strangers = strangers.unwrap_or_else(|error| {
        tracing::warn!(error = %error.chain(), "whether the table holds other items is unknown");
        Vec::new()
    });
    let mut found = match &item {
        Some(item) => {
            let state = decode(item).map_err(misuse_if_invalid)?;
            findings(&state, item.size_bytes(), context.env.clock.wall().as_seconds())
        }
        None => {
            vec![Finding {
                is_wrong: false,
                text: "there is no state item yet; the first tick makes it".to_owned(),
            }]
        }
    };
    if !strangers.is_empty() {
        // Without an item of that name, one of these is probably meant to be it.
        found.push(Finding {
            is_wrong: item.is_none(),
            text: format!(
                "the table holds other items ({}), and only the item `cluster` is read: one table for each cluster",
                strangers.join(", ")
            ),
        });
    }
    for finding in &found {
        let level = if finding.is_wrong { "wrong" } else { "note" };
        context.out.say(
            || json!({ "level": level, "text": finding.text }),
            || format!("{level}: {}", one_line(&finding.text)),
        )?;
    }
    let wrong = found.iter().filter(|finding| finding.is_wrong).count();
    let notes = found.len() - wrong;
    context.out.say(
        || json!({ "wrong": wrong, "notes": notes }),
        || {
            if wrong == 0 && item.is_some() {
                "the item is in order".to_owned()
            } else if wrong == 0 {
                "nothing is wrong".to_owned()
            } else {
                format!("{} wrong", counted(wrong, "thing"))
            }
        },
    )?;
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}
