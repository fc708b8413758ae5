//! `tenure autoscale`: scales a cluster, and shows the state and the log of that.
//!
//! - `state.rs` shows the item, checks it, and gives it the form of this version.
//! - `log.rs` shows what happened.
//! - `run.rs` decides and acts, on what `edges.rs` connects to.

#[cfg(feature = "autoscaler")]
mod edges;
mod log;
#[cfg(feature = "autoscaler")]
mod run;
mod state;

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_autoscaler::{Book, Places};

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
    /// Show what a tick would do first, and why; nothing is changed
    #[cfg(feature = "autoscaler")]
    #[command(after_help = "\
Examples:
  tenure autoscale plan
  tenure autoscale plan --json | jq .effects")]
    Plan,
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
    /// Let actions begin again
    #[command(after_help = "\
Examples:
  tenure autoscale resume")]
    Resume,
    /// Show what happened, oldest first
    Log(log::Args),
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
            _ => false,
        }
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        match &self.verb {
            Verb::State(args) => args.only_looks(),
            Verb::Log(_) => true,
            #[cfg(feature = "autoscaler")]
            Verb::Plan => true,
            #[cfg(feature = "autoscaler")]
            Verb::Run(_) => false,
            Verb::Pause | Verb::Resume => false,
        }
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    match args.verb {
        // Futures with three SDKs in them are large.
        #[cfg(feature = "autoscaler")]
        Verb::Run(args) => Box::pin(run::run(&args, context)).await,
        #[cfg(feature = "autoscaler")]
        Verb::Plan => Box::pin(run::plan(context)).await,
        Verb::State(args) => state::run(&args, &book(context).await?, context).await,
        Verb::Pause => pause(true, &book(context).await?, context).await,
        Verb::Resume => pause(false, &book(context).await?, context).await,
        Verb::Log(args) => log::run(&args, &book(context).await?, context).await,
    }
}

/// The book that the settings name, if its tables are there.
async fn book(context: &Context) -> anyhow::Result<Book> {
    let store = context.store().await?;
    let tables = &context.settings.autoscaler;
    for (name, key) in [(&tables.state_table, "state"), (&tables.logs_table, "logs")] {
        let found = context.look(async |by| store.describe_table(by, name).await).await;
        let found = found.map_err(misuse_if_invalid).with_context(|| format!("look at table `{name}`"))?;
        if found.is_none() {
            return Err(misuse(format!(
                "table `{name}` does not exist in {}: no autoscaler ran there yet, or --{key}-table or --store is wrong",
                context.settings.store.url
            )));
        }
    }
    Ok(Book::new(store, &context.env, "tenure-cli", places(context)))
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
