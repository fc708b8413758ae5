//! `tenure stream`: the sharded log of any backend.

mod put;
mod reading_order;
mod shards;
mod tail;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value as Json, json};
use tenure_stream::{Description, Stream, StreamSpec};

use crate::context::Context;
use crate::duration;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::counted;

/// Read, write and reshape the stream.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure stream create --shards 4
  tenure stream put --key order-7 '{\"total\":12}'
  tenure stream tail --follow
  tenure stream --stream kinesis:orders?region=eu-west-1 list")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Create the stream, and wait until it can be used
    Create(CreateArgs),
    /// Show what the stream is like
    #[command(after_help = "\
Examples:
  tenure stream describe
  tenure stream describe --json")]
    Describe,
    /// List the shards: lineage, hash ranges, open or closed
    #[command(after_help = "\
Examples:
  tenure stream list
  tenure stream list --json")]
    List,
    /// Put records
    Put(put::Args),
    /// Print records, parents before children
    Tail(tail::Args),
    /// Close a shard and open two in its place
    Split(shards::SplitArgs),
    /// Close two neighbouring shards and open one in their place
    Merge(shards::MergeArgs),
    /// Split and merge until there are so many shards of one size
    Rescale(shards::RescaleArgs),
    /// Delete the stream and everything in it
    Delete(DeleteArgs),
}

impl Args {
    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::Describe | Verb::List | Verb::Tail(_))
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        match &self.verb {
            Verb::Put(args) => args.reads_lines(),
            Verb::Tail(args) => args.follows(),
            _ => false,
        }
    }
}

/// Opens the stream and carries out one verb.
pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let stream = context.stream().await?;
    match args.verb {
        Verb::Create(args) => create(args, context, &*stream).await,
        Verb::Describe => describe(context, &*stream).await,
        Verb::List => shards::list(context, &*stream).await,
        Verb::Put(args) => Box::pin(put::run(args, context, &*stream)).await,
        Verb::Tail(args) => Box::pin(tail::run(args, context, &*stream)).await,
        Verb::Split(args) => shards::split(args, context, &*stream).await,
        Verb::Merge(args) => shards::merge(args, context, &*stream).await,
        Verb::Rescale(args) => shards::rescale(args, context, &*stream).await,
        Verb::Delete(args) => delete(&args, context, &*stream).await,
    }
}

#[derive(clap::Args)]
#[command(after_help = "\
A stream that is there already is left as it is.

Examples:
  tenure stream create
  tenure stream create --shards 4 --retention 72h")]
struct CreateArgs {
    /// How many shards of one size to begin with
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: u32,

    /// How long records are kept [default: the address's retention_hours, or 24h]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_positive)]
    retention: Option<Duration>,

    /// Most bytes in one record, key included: 1 MiB to 10 MiB
    #[arg(long, value_name = "BYTES", default_value_t = StreamSpec::default().record_bytes_max)]
    record_bytes_max: usize,
}

async fn create(args: CreateArgs, context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let CreateArgs { shards, retention, record_bytes_max } = args;
    let spec = StreamSpec { shards, retention_age: retention, record_bytes_max, ..StreamSpec::default() };
    // For the message alone: two that create at once both say that they did.
    let existed = context.look(async |by| stream.describe(by).await).await.is_ok();
    let description =
        stream.create(context.by(), &spec).await.map_err(misuse_if_invalid).context("create the stream")?;
    context.out.say(
        || {
            let mut json = described(&description);
            json["created"] = (!existed).into();
            json
        },
        || {
            let (name, open) = (&description.name, counted(description.open_shards, "open shard"));
            match existed {
                true => format!("stream `{name}` is there already with {open}: left as it is"),
                false => format!("stream `{name}` is ready with {open}"),
            }
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

async fn describe(context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let description = context.look(async |by| stream.describe(by).await).await.map_err(misuse_if_invalid)?;
    context.out.say(|| described(&description), || shown(&description))?;
    Ok(ExitCode::SUCCESS)
}

/// What a stream is like, as JSON.
fn described(description: &Description) -> Json {
    let Description { name, open_shards, retention_age, retention_bytes, limits } = description;
    json!({
        "stream": name,
        "open_shards": open_shards,
        "retention_seconds": retention_age.as_secs(),
        "retention_bytes": retention_bytes,
        "record_bytes_max": limits.bytes_per_record_max,
        "put_records_max": limits.records_per_put_max,
        "put_bytes_max": limits.bytes_per_put_max,
    })
}

fn shown(description: &Description) -> String {
    let Description { name, open_shards, retention_age, retention_bytes, limits } = description;
    let bytes = retention_bytes.map(|bytes| format!(", {bytes} bytes")).unwrap_or_default();
    [
        format!("stream     {name}"),
        format!("shards     {open_shards} open"),
        format!("retention  {}{bytes}", duration::shown(*retention_age)),
        format!("record     at most {} bytes", limits.bytes_per_record_max),
        format!(
            "put        at most {} records, {} bytes",
            limits.records_per_put_max, limits.bytes_per_put_max
        ),
    ]
    .join("\n")
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure stream delete --yes
  tenure stream --stream sqlite:./tenure.db?name=old delete --yes")]
struct DeleteArgs {
    /// Yes, everything in it
    #[arg(long)]
    yes: bool,
}

async fn delete(args: &DeleteArgs, context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let name = stream.name();
    if !args.yes {
        return Err(misuse(format!(
            "stream `{name}` in {} and everything in it would be deleted: say so with --yes",
            context.settings.stream.url
        )));
    }
    stream.delete(context.by()).await.context("delete the stream")?;
    context.out.say(|| json!({ "deleted": name }), || format!("stream `{name}` is deleted"))?;
    Ok(ExitCode::SUCCESS)
}
