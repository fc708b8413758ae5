//! `tenure store`: rows of any backend.

mod rows;
mod tables;
mod watch;

use std::process::ExitCode;

use crate::context::Context;

/// Read and write rows.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure store create-table locks --hash name
  tenure store put locks '{\"name\":\"orders\",\"owner\":\"ann\"}' --if-absent
  tenure store get locks name=orders
  tenure store --store postgres://tenure@localhost/tenure describe locks")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Show a row
    Get(rows::GetArgs),
    /// Write a whole row, perhaps on a condition
    Put(rows::PutArgs),
    /// Remove a row, perhaps on a condition
    Delete(rows::DeleteArgs),
    /// Show the rows of a table
    Scan(rows::ScanArgs),
    /// Print changes of rows until SIGINT or SIGTERM
    Watch(watch::Args),
    /// Create a table, and wait until it can be used
    CreateTable(tables::CreateArgs),
    /// Show a table's key, TTL and indexes
    Describe(tables::DescribeArgs),
}

impl Args {
    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::Get(_) | Verb::Scan(_) | Verb::Watch(_) | Verb::Describe(_))
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        matches!(self.verb, Verb::Watch(_))
    }
}

/// Opens the store and carries out one verb.
pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let store = context.store().await?;
    match args.verb {
        Verb::Get(args) => rows::get(args, context, &*store).await,
        Verb::Put(args) => rows::put(args, context, &*store).await,
        Verb::Delete(args) => rows::delete(args, context, &*store).await,
        Verb::Scan(args) => rows::scan(args, context, &*store).await,
        Verb::Watch(args) => watch::run(args, context, &*store).await,
        Verb::CreateTable(args) => tables::create(args, context, &*store).await,
        Verb::Describe(args) => tables::describe(args, context, &*store).await,
    }
}
