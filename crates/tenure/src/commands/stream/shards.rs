//! Shards: listed, split, merged, rescaled.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Value as Json, json};
use tenure_stream::{HashKey, HashRange, Shard, ShardId, Stream};

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::counted;

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure stream split shardId-000000000000
  tenure stream split shardId-000000000000 --at 42535295865117307932921825928971026432")]
pub(super) struct SplitArgs {
    /// The open shard
    shard: String,

    /// The first hash key of the upper part [default: the middle]
    #[arg(long, value_name = "HASH", value_parser = hash_key)]
    at: Option<HashKey>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure stream merge shardId-000000000001 shardId-000000000002")]
pub(super) struct MergeArgs {
    /// One open shard
    shard: String,

    /// The open shard whose hash range touches its own
    adjacent: String,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure stream rescale 8
  tenure stream rescale 8 --timeout 5m")]
pub(super) struct RescaleArgs {
    /// How many open shards there are to be
    shards: u32,
}

/// Reads a decimal hash key.
///
/// # Errors
/// A message that says what was expected.
pub(super) fn hash_key(text: &str) -> Result<HashKey, String> {
    text.parse().map_err(|error: tenure_stream::Error| error.chain())
}

pub(super) async fn list(context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let shards = context.shards(stream).await?;
    say_shards(&shards, context)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn split(
    args: SplitArgs,
    context: &Context,
    stream: &dyn Stream,
) -> anyhow::Result<ExitCode> {
    let before = context.shards(stream).await?;
    let shard = named(&before, &args.shard)?;
    let at = match args.at {
        Some(at) => at,
        None => middle(shard.hash_range)
            .ok_or_else(|| misuse(format!("{} owns a single hash key and cannot be split", shard.id)))?,
    };
    stream.split(context.by(), &shard.id, at).await.map_err(misuse_if_invalid).context("split the shard")?;
    say_new(&before, context, stream).await
}

/// Where the upper half begins.
fn middle(range: HashRange) -> Option<HashKey> {
    let half = (range.end.0 - range.start.0) / 2;
    (range.start < range.end).then(|| HashKey(range.start.0 + half + 1))
}

pub(super) async fn merge(
    args: MergeArgs,
    context: &Context,
    stream: &dyn Stream,
) -> anyhow::Result<ExitCode> {
    let before = context.shards(stream).await?;
    let (shard, adjacent) = (named(&before, &args.shard)?, named(&before, &args.adjacent)?);
    stream
        .merge(context.by(), &shard.id, &adjacent.id)
        .await
        .map_err(misuse_if_invalid)
        .context("merge the shards")?;
    say_new(&before, context, stream).await
}

pub(super) async fn rescale(
    args: RescaleArgs,
    context: &Context,
    stream: &dyn Stream,
) -> anyhow::Result<ExitCode> {
    let before = context.shards(stream).await?;
    stream
        .rescale(context.by(), args.shards)
        .await
        .map_err(misuse_if_invalid)
        .context("rescale the stream")?;
    say_new(&before, context, stream).await
}

/// The shard with this name.
///
/// # Errors
/// A misuse that names the nearest open one.
pub(super) fn named<'a>(shards: &'a [Shard], name: &str) -> anyhow::Result<&'a Shard> {
    shards.iter().find(|shard| shard.id.as_str() == name).ok_or_else(|| {
        let open = shards.iter().filter(|shard| shard.is_open()).map(|shard| shard.id.as_str());
        let hint = tenure_backend::nearest(name, open)
            .map(|name| format!(" did you mean `{name}`?"))
            .unwrap_or_default();
        misuse(format!("no shard `{name}`:{hint} see `tenure stream list`"))
    })
}

/// Shows the shards that were not there before.
async fn say_new(before: &[Shard], context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let known: BTreeSet<&ShardId> = before.iter().map(|shard| &shard.id).collect();
    let mut shards = context.shards(stream).await?;
    let open = shards.iter().filter(|shard| shard.is_open()).count();
    shards.retain(|shard| !known.contains(&shard.id));
    for shard in &shards {
        say_shard(shard, context)?;
    }
    context.out.say(
        || json!({ "opened": shards.len(), "open": open }),
        || format!("{} opened, {open} open now", counted(shards.len(), "shard")),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn say_shards(shards: &[Shard], context: &Context) -> anyhow::Result<()> {
    for shard in shards {
        say_shard(shard, context)?;
    }
    let open = shards.iter().filter(|shard| shard.is_open()).count();
    context.out.say(
        || json!({ "shards": shards.len(), "open": open }),
        || format!("{}, {open} open", counted(shards.len(), "shard")),
    )
}

fn say_shard(shard: &Shard, context: &Context) -> anyhow::Result<()> {
    context.out.say(|| described(shard), || shown(shard))
}

fn described(shard: &Shard) -> Json {
    json!({
        "shard": shard.id.as_str(),
        "open": shard.is_open(),
        "parent": shard.parent.as_ref().map(ShardId::as_str),
        "adjacent_parent": shard.adjacent_parent.as_ref().map(ShardId::as_str),
        "start_hash": shard.hash_range.start.to_string(),
        "end_hash": shard.hash_range.end.to_string(),
        "first_sequence": shard.first_sequence.to_string(),
        "last_sequence": shard.last_sequence.as_ref().map(ToString::to_string),
    })
}

fn shown(shard: &Shard) -> String {
    let state = if shard.is_open() { "open" } else { "closed" };
    let parents: Vec<_> = shard.parents().map(ShardId::as_str).collect();
    let lineage =
        if parents.is_empty() { String::new() } else { format!("  from {}", parents.join(" and ")) };
    format!("{}  {state:6}  {}{lineage}", shard.id, shard.hash_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_leaves_two_halves() {
        let range = |start, end| HashRange { start: HashKey(start), end: HashKey(end) };
        assert_eq!(middle(HashRange::ALL), Some(HashKey(1 << 127)));
        for (range, at) in [(range(0, 1), Some(1)), (range(10, 12), Some(12)), (range(5, 5), None)] {
            assert_eq!(middle(range), at.map(HashKey));
        }
    }
}
