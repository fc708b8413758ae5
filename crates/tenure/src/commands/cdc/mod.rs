//! `tenure cdc`: row changes of Postgres, published to a stream.
//!
//! - `run.rs` keeps a pipeline going; `fleet.rs` is the row that tells others how it is, `retained.rs` watches
//!   what the slot costs the server.
//! - `setup.rs` and `teardown.rs` make and remove what it needs; `status.rs` shows it; `tail.rs` needs none of it.
//! - `destination.rs` is where events go, `sql.rs` what is asked of the server in SQL.

mod destination;
mod fleet;
mod retained;
mod run;
mod setup;
mod sql;
mod status;
mod tail;
mod teardown;

use std::process::ExitCode;

use tenure_cdc::transport::{Endpoint, PublicationName, SlotName};
use tenure_stream::identity::Lanes;

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::settings::Flag;

/// Capture row changes of Postgres.
#[derive(clap::Args)]
#[command(after_help = "\
Every committed change reaches the stream at least once, per key in the order of the commits, with an
identity by which copies are recognised. Nothing is dropped: what does not fit goes to the quarantine
(`tenure dlq`), and a gap stops the pipeline until somebody says what to do.

Examples:
  tenure cdc tail postgres://ann@localhost/app
  tenure cdc setup --all-tables
  tenure cdc run
  tenure cdc status --watch
  tenure cdc teardown")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Publish changes until asked to stop, or stand by for whoever does
    Run(Box<run::Args>),
    /// Make what a pipeline needs: publication, slot, tables, checkpoint
    Setup(setup::Args),
    /// Show how far a pipeline is, and who runs it
    Status(status::Args),
    /// Remove the slot and what the store keeps of a pipeline
    Teardown(teardown::Args),
    /// Print changes as they are committed, and leave nothing behind
    Tail(tail::Args),
}

/// Which pipeline.
#[derive(clap::Args)]
struct Pipeline {
    /// The database: postgres://user@host:port/database [default: postgres.url]
    // Read with the other settings: clap would show what it refuses, and a password in it.
    #[arg(long, value_name = "URL")]
    postgres: Option<String>,

    /// The replication slot [default: tenure]
    #[arg(long, value_name = "NAME")]
    slot: Option<String>,

    /// A publication; may be repeated [default: tenure]
    #[arg(long, value_name = "NAME")]
    publication: Vec<String>,

    /// The pipeline's name, distinct for each that feeds a stream [default: tenure]
    #[arg(long, value_name = "NAME")]
    source: Option<String>,

    /// Where events go: stream (the configured one), null, - or file:PATH [default: stream]
    #[arg(long, value_name = "PLACE")]
    to: Option<String>,
}

impl Pipeline {
    fn flags(&self) -> Vec<Flag> {
        let publications = (!self.publication.is_empty()).then(|| self.publication.join(","));
        [
            flag("--postgres", "postgres.url", self.postgres.as_ref()),
            flag("--slot", "cdc.slot", self.slot.as_ref()),
            flag("--publication", "cdc.publications", publications.as_ref()),
            flag("--source", "cdc.source", self.source.as_ref()),
            flag("--to", "cdc.to", self.to.as_ref()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// A flag that was given.
fn flag(name: &'static str, path: &'static str, value: Option<&String>) -> Option<Flag> {
    value.map(|value| Flag { name, path, value: value.clone() })
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        match &self.verb {
            Verb::Run(args) => args.flags(),
            Verb::Setup(args) => args.flags(),
            Verb::Status(args) => args.flags(),
            Verb::Teardown(args) => args.flags(),
            Verb::Tail(args) => args.flags(),
        }
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::Status(_) | Verb::Tail(_))
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        match &self.verb {
            Verb::Run(_) | Verb::Tail(_) => true,
            Verb::Status(args) => args.watches(),
            Verb::Setup(_) | Verb::Teardown(_) => false,
        }
    }

    /// Whether its state changes are logged unless a filter says otherwise.
    pub(crate) const fn tells(&self) -> bool {
        matches!(self.verb, Verb::Run(_))
    }
}

/// Carries out one verb.
pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    match args.verb {
        Verb::Run(args) => Box::pin(run::run(&args, context)).await,
        Verb::Setup(args) => Box::pin(setup::run(args, context)).await,
        Verb::Status(args) => Box::pin(status::run(args, context)).await,
        Verb::Teardown(args) => Box::pin(teardown::run(args, context)).await,
        Verb::Tail(args) => Box::pin(tail::run(args, context)).await,
    }
}

/// A number of lanes that can be had.
///
/// # Errors
/// A message that says what was expected.
pub(crate) fn lanes(count: u32) -> Result<Lanes, String> {
    let lanes = u16::try_from(count).ok().and_then(Lanes::new);
    lanes.ok_or_else(|| format!("{count} lanes cannot be had: give 1 to {}", Lanes::MAX))
}

/// The database.
fn endpoint(context: &Context) -> anyhow::Result<Endpoint> {
    let Some(url) = &context.settings.postgres.url else {
        return Err(misuse(
            "no database is named: give --postgres postgres://user@host:port/database, or set url under [postgres] in \
             tenure.toml",
        ));
    };
    Endpoint::parse(url.reveal()).map_err(misuse_if_invalid)
}

fn slot(context: &Context) -> anyhow::Result<SlotName> {
    SlotName::new(&*context.settings.cdc.slot).map_err(misuse_if_invalid)
}

fn publications(context: &Context) -> anyhow::Result<Vec<PublicationName>> {
    let names = context.settings.cdc.publications.0.0.iter();
    names.map(|name| PublicationName::new(&**name).map_err(misuse_if_invalid)).collect()
}
