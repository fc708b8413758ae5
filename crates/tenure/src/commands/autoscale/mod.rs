//! `tenure autoscale`: scales a cluster, and shows the state and the log of that.
//!
//! - `state.rs` shows the item, checks and mends it, and gives it the form of this version.
//! - `log.rs` shows what happened, `explain.rs` why, `trial.rs` what another policy would have done.
//! - `run.rs` decides and acts, on what `edges.rs` connects to; `plan.rs` only says what it would do.
//! - `upkeep.rs` is what a person does by hand.

#[cfg(feature = "autoscaler")]
mod edges;
mod explain;
mod log;
#[cfg(feature = "autoscaler")]
mod plan;
#[cfg(feature = "autoscaler")]
mod run;
mod state;
mod trial;
#[cfg(feature = "autoscaler")]
mod upkeep;
#[cfg(feature = "autoscaler")]
mod write_text;

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_autoscaler::state::{Interrupt, InterruptKind};
use tenure_autoscaler::{Book, Places};
use tenure_store::Store;

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::settings::Flag;

/// Scale a cluster, and look at how that goes.
#[derive(clap::Args)]
#[command(after_help = "\
The item `cluster` in the state table says what is under way; every change of it is an event in the log. Both are
read as the older autoscalers write them, too.

Examples:
  tenure autoscale plan
  tenure autoscale run --loop 15s
  tenure autoscale state check
  tenure autoscale pause
  tenure autoscale log --since 24h")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,

    /// The table of the state item [default: k3s-autoscaler-state]
    #[arg(long, global = true, value_name = "NAME")]
    state_table: Option<String>,

    /// The table of its log [default: k3s-autoscaler-logs]
    #[arg(long, global = true, value_name = "NAME")]
    logs_table: Option<String>,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Decide and act, once or again and again
    #[cfg(feature = "autoscaler")]
    Run(run::Args),
    /// Show what a tick would do, and why; nothing is changed
    #[cfg(feature = "autoscaler")]
    #[command(after_help = "\
The decision, its reasons, what is in the way, the exact writes with their conditions, and the first calls after
them. What follows depends on what those calls answer.

Examples:
  tenure autoscale plan
  tenure autoscale plan --json | jq '.decision, .blockers'")]
    Plan,
    /// Say why a node, a pod or an action is treated as it is
    Explain(explain::Args),
    /// Empty one node and end its instance, or only say what is in the way
    #[cfg(feature = "autoscaler")]
    Drain(upkeep::DrainArgs),
    /// Collect what ended actions left behind
    #[cfg(feature = "autoscaler")]
    Gc(upkeep::GcArgs),
    /// Make an instance one of the cluster, by its tag
    #[cfg(feature = "autoscaler")]
    Adopt(upkeep::AdoptArgs),
    /// What this build cannot do
    #[cfg(not(feature = "autoscaler"))]
    #[command(name = "run", aliases = ["plan", "drain", "gc", "adopt"], hide = true)]
    Absent(Absent),
    /// Look at the state item
    State(state::Args),
    /// Let nothing new begin; what is under way is finished
    #[command(after_help = "\
Executors go on with the action that is under way, and begin no other until `tenure autoscale resume`. An older
autoscaler on the same table does not know of this.

Examples:
  tenure autoscale pause
  tenure autoscale pause --store 'dynamodb:?region=eu-west-1' --state-table my-state")]
    Pause,
    /// Tell that the cloud will take an instance away, so that another is added for it
    #[command(after_help = "\
The Lambda does this for every spot interruption and rebalance recommendation that it hears of. Elsewhere, let
whatever hears of them call it. Telling it twice is telling it once; an instance of another cluster does no harm,
and is forgotten after the next action.

Examples:
  tenure autoscale interrupt i-0123456789abcdef0
  tenure autoscale interrupt i-0123456789abcdef0 --kind rebalance")]
    Interrupt {
        /// The instance's id
        #[arg(value_name = "INSTANCE", value_parser = instance_id)]
        instance: String,

        /// Why
        #[arg(long, value_enum, default_value = "spot")]
        kind: InterruptBy,
    },
    /// Let actions begin again
    #[command(after_help = "\
Examples:
  tenure autoscale resume")]
    Resume,
    /// Show what happened, oldest first
    Log(log::Args),
    /// Try a policy on a trace of demand, on paper
    Simulate(trial::SimulateArgs),
    /// Show the actions of the log, check them, and try a policy on what they met
    Replay(trial::ReplayArgs),
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum InterruptBy {
    /// Its spot capacity is taken back
    Spot,
    /// The cloud advises to move away
    Rebalance,
}

/// Anything else would stay in the inbox for nothing.
fn instance_id(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("i-").unwrap_or_default();
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_id = matches!(digits.len(), 8 | 17) && digits.bytes().all(is_digit);
    is_id
        .then(|| text.to_owned())
        .ok_or_else(|| "write it like i-0123456789abcdef0, in lower case".to_owned())
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let given = [
            ("--state-table", "autoscaler.state_table", &self.state_table),
            ("--logs-table", "autoscaler.logs_table", &self.logs_table),
        ];
        let flag = |(name, path, value): (&'static str, &'static str, &Option<String>)| {
            value.clone().map(|value| Flag { name, path, value })
        };
        given.into_iter().filter_map(flag).collect()
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        match &self.verb {
            #[cfg(feature = "autoscaler")]
            Verb::Run(args) => args.is_long_running(),
            #[cfg(feature = "autoscaler")]
            Verb::Drain(args) => !args.dry_run,
            _ => false,
        }
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        match &self.verb {
            Verb::State(args) => args.only_looks(),
            Verb::Log(_) | Verb::Explain(_) | Verb::Simulate(_) | Verb::Replay(_) => true,
            #[cfg(feature = "autoscaler")]
            Verb::Plan => true,
            #[cfg(feature = "autoscaler")]
            Verb::Drain(args) => args.dry_run,
            #[cfg(feature = "autoscaler")]
            Verb::Gc(args) => args.dry_run,
            #[cfg(feature = "autoscaler")]
            Verb::Run(_) | Verb::Adopt(_) => false,
            #[cfg(not(feature = "autoscaler"))]
            Verb::Absent(_) => true,
            Verb::Pause | Verb::Resume | Verb::Interrupt { .. } => false,
        }
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let only_looks = args.only_looks();
    let book = async || book(context, only_looks).await;
    match args.verb {
        // Futures with three SDKs in them are large.
        #[cfg(feature = "autoscaler")]
        Verb::Run(args) => Box::pin(run::run(&args, context)).await,
        #[cfg(feature = "autoscaler")]
        Verb::Plan => Box::pin(plan::run(context)).await,
        Verb::Explain(args) => Box::pin(explain::run(&args, context)).await,
        #[cfg(feature = "autoscaler")]
        Verb::Drain(args) => Box::pin(upkeep::drain(&args, context)).await,
        #[cfg(feature = "autoscaler")]
        Verb::Gc(args) => Box::pin(upkeep::gc(&args, context)).await,
        #[cfg(feature = "autoscaler")]
        Verb::Adopt(args) => Box::pin(upkeep::adopt(&args, context)).await,
        #[cfg(not(feature = "autoscaler"))]
        Verb::Absent(_) => Err(absent()),
        Verb::Simulate(args) => trial::simulate(&args, context),
        Verb::Replay(args) => trial::replay(&args, context).await,
        Verb::State(args) => state::run(&args, &book().await?, context).await,
        Verb::Interrupt { instance, kind } => interrupt(&instance, kind, &book().await?, context).await,
        Verb::Pause => pause(true, &book().await?, context).await,
        Verb::Resume => pause(false, &book().await?, context).await,
        Verb::Log(args) => log::run(&args, &book_with_log(context).await?, context).await,
    }
}

/// Whatever was asked of a command that this build lacks.
#[cfg(not(feature = "autoscaler"))]
#[derive(clap::Args)]
struct Absent {
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

#[cfg(not(feature = "autoscaler"))]
fn absent() -> anyhow::Error {
    misuse(
        "this build knows neither EC2, nor Kubernetes, nor Prometheus: install one that does with `cargo install --path \
         crates/tenure --features full`",
    )
}

/// The book that the settings name, if the table of its state is there. An autoscaler that keeps no log has no other.
async fn book(context: &Context, only_looks: bool) -> anyhow::Result<Book> {
    let store = context.store().await?;
    let tables = &context.settings.autoscaler;
    require(&tables.state_table, "state", &*store, context).await?;
    let mut places = places(context);
    // What is only looked at logs nothing. A table that cannot be described may still take the event.
    if !only_looks && matches!(is_there(&tables.logs_table, &*store, context).await, Ok(false)) {
        tracing::warn!(
            table = tables.logs_table,
            "there is no table of a log: what is changed is not logged"
        );
        places.logs_table = None;
    }
    Ok(Book::new(store, &context.env, "tenure-cli", places))
}

/// The book that the settings name, if both of its tables are there.
async fn book_with_log(context: &Context) -> anyhow::Result<Book> {
    let store = context.store().await?;
    let tables = &context.settings.autoscaler;
    require(&tables.state_table, "state", &*store, context).await?;
    require(&tables.logs_table, "logs", &*store, context).await?;
    Ok(Book::new(store, &context.env, "tenure-cli", places(context)))
}

async fn require(table: &str, key: &str, store: &dyn Store, context: &Context) -> anyhow::Result<()> {
    if is_there(table, store, context).await? {
        return Ok(());
    }
    Err(misuse(format!(
        "table `{table}` does not exist in {}: no autoscaler ran there yet, or --{key}-table or --store is wrong",
        context.settings.store.url
    )))
}

async fn is_there(table: &str, store: &dyn Store, context: &Context) -> anyhow::Result<bool> {
    let found = context.look(async |by| store.describe_table(by, table).await).await;
    let found = found.map_err(misuse_if_invalid).with_context(|| format!("look at table `{table}`"))?;
    Ok(found.is_some())
}

fn places(context: &Context) -> Places {
    context.settings.autoscaler.places(context.timeout)
}

async fn pause(paused: bool, book: &Book, context: &Context) -> anyhow::Result<ExitCode> {
    book.pause(paused).await.map_err(misuse_if_invalid).context("write the state item")?;
    let said = match paused {
        true => "paused: what is under way is finished, and nothing new begins",
        false => "resumed: actions may begin again",
    };
    context.out.say(|| json!({ "paused": paused }), || said.to_owned())?;
    Ok(ExitCode::SUCCESS)
}

async fn interrupt(
    instance: &str,
    kind: InterruptBy,
    book: &Book,
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let kind = match kind {
        InterruptBy::Spot => InterruptKind::Spot,
        InterruptBy::Rebalance => InterruptKind::Rebalance,
    };
    let interrupt = Interrupt::told(kind, context.env.clock.wall().as_seconds());
    book.interrupt(&instance.into(), interrupt)
        .await
        .map_err(misuse_if_invalid)
        .context("write the state item")?;
    context.out.say(
        || json!({ "instance": instance, "kind": kind.name() }),
        || format!("{instance} will be taken away: the next tick adds another"),
    )?;
    Ok(ExitCode::SUCCESS)
}
