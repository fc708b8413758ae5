//! `tenure stream tail`: records in the order of the stream, parents before children.

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use tenure_backend::{Retry, retry_policy};
use tenure_clock::WallTime;
use tenure_stream::kpl::{Found, UserRecord, deaggregate};
use tenure_stream::{
    Cursor, Error, HashRange, Position, Read, SequenceNumber, Shard, ShardId, Stored, Stream, StreamExt,
};
use tokio_util::sync::CancellationToken;

use super::reading_order::ReadingOrder;
use super::shards::named;
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::one_line;
use crate::record_line::RecordLine;
use crate::{duration, shutdown, timestamp};

/// Records asked for in one read: enough to keep up, few enough to print at once.
const READ_RECORDS: usize = 1000;
/// How long a follower waits before it looks again though nothing woke it.
const WAIT: Duration = Duration::from_secs(1);
/// How long to wait after a read that failed and may be made again.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
#[command(after_help = "\
A closed shard is read to its end before the shards that it was split or merged into.
A record that holds several, in the aggregated format that Amazon's readers know, is taken apart: 17.0, 17.1, ….
Records that were trimmed before they were read end the command with exit status 1, unless --accept-loss is given.
With --follow it ends with exit status 0 on SIGINT or SIGTERM.

Examples:
  tenure stream tail
  tenure stream tail --follow --from latest --json
  tenure stream tail --from 2026-11-15T12:00:00Z --limit 10
  tenure stream tail --shard shardId-000000000003 --from after:1042")]
pub(super) struct Args {
    /// Where to begin: trim-horizon (the oldest), latest, a sequence number, after:SEQUENCE,
    /// a moment like 2026-11-15T12:00:00Z, or ago:10m
    #[arg(long, value_name = "POSITION", default_value = "trim-horizon")]
    from: From,

    /// Only this shard and, with --follow, what becomes of it; may be repeated
    #[arg(long, value_name = "ID")]
    shard: Vec<String>,

    /// Go on when all is read, and wait for more
    #[arg(long, overrides_with = "no_follow")]
    follow: bool,

    /// End when all is read (the default; undoes an earlier --follow)
    #[arg(long, overrides_with = "follow")]
    no_follow: bool,

    /// End after so many records
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// Go on after records that were trimmed before they were read
    #[arg(long)]
    accept_loss: bool,
}

impl Args {
    /// Whether it stays until it is asked to end.
    pub(super) const fn follows(&self) -> bool {
        self.follow && !self.no_follow
    }
}

/// A position as written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum From {
    Position(Position),
    Ago(Duration),
}

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sequence = |text: &str| text.parse::<SequenceNumber>().map_err(|error| error.chain());
        Ok(Self::Position(match text {
            "trim-horizon" => Position::TrimHorizon,
            "latest" => Position::Latest,
            _ => {
                if let Some(ago) = text.strip_prefix("ago:") {
                    return duration::parse(ago).map(Self::Ago);
                } else if let Some(after) = text.strip_prefix("after:") {
                    Position::After(sequence(after)?)
                } else if text.bytes().all(|byte| byte.is_ascii_digit()) {
                    Position::At(sequence(text)?)
                } else if text.starts_with(|first: char| first.is_ascii_digit()) {
                    Position::AtTimestamp(timestamp::parse(text)?)
                } else {
                    return Err(unknown_position(text));
                }
            }
        }))
    }
}

fn unknown_position(text: &str) -> String {
    let hint = tenure_backend::nearest(text, ["trim-horizon", "latest"].into_iter())
        .map(|name| format!(": did you mean `{name}`?"))
        .unwrap_or_default();
    format!(
        "`{text}` is no position{hint} (known: trim-horizon, latest, SEQUENCE, after:SEQUENCE, 2026-11-15T12:00:00Z, ago:10m)"
    )
}

impl From {
    fn position(self, now: WallTime) -> Position {
        match self {
            Self::Position(position) => position,
            Self::Ago(duration) => Position::AtTimestamp(now - duration),
        }
    }
}

pub(super) async fn run(args: Args, context: &Context, stream: &dyn Stream) -> anyhow::Result<ExitCode> {
    let asked_to_end = shutdown::on_signal()?;
    let follow = args.follows();
    let from = args.from.position(context.env.clock.wall());
    let shards = context.shards(stream).await?;
    let only = chosen(&shards, &args.shard, &from)?;
    let tail = Tail {
        context,
        stream,
        order: ReadingOrder::new(&shards, &only, &from),
        reading: Vec::new(),
        left: args.limit.unwrap_or(u64::MAX),
        follow,
        accept_loss: args.accept_loss,
        asked_to_end,
    };
    tail.run().await?;
    Ok(ExitCode::SUCCESS)
}

fn chosen(shards: &[Shard], names: &[String], from: &Position) -> anyhow::Result<Vec<ShardId>> {
    let mut chosen = Vec::new();
    for name in names {
        chosen.push(named(shards, name)?.id.clone());
    }
    if matches!(from, Position::At(_) | Position::After(_)) {
        match (chosen.len(), shards) {
            (1, _) => {}
            (0, [only]) => chosen.push(only.id.clone()),
            _ => return Err(misuse("a sequence number stands in one shard: name it with --shard")),
        }
    }
    Ok(chosen)
}

struct Tail<'a> {
    context: &'a Context,
    stream: &'a dyn Stream,
    order: ReadingOrder,
    /// The shards being read, and from where.
    reading: Vec<(ShardId, Cursor)>,
    /// Records that may still be printed.
    left: u64,
    follow: bool,
    accept_loss: bool,
    asked_to_end: CancellationToken,
}

/// How it is with a shard after one read.
enum Step {
    /// There may be more at once.
    GoOn(Cursor),
    /// Nothing more for now.
    CaughtUp(Cursor),
    /// The shard is closed, and this was its end.
    End,
}

impl Tail<'_> {
    async fn run(mut self) -> anyhow::Result<()> {
        let asked_to_end = self.asked_to_end.clone();
        let ended = tokio::select! {
            ended = self.read_all() => ended,
            // A read changes nothing: it may be dropped at any point.
            () = asked_to_end.cancelled() => Ok(()),
        };
        self.context.out.flush()?;
        ended
    }

    async fn read_all(&mut self) -> anyhow::Result<()> {
        loop {
            for (shard, from) in self.order.begin() {
                let cursor = self.cursor(&shard, &from).await?;
                self.reading.push((shard, cursor));
            }
            if self.reading.is_empty() {
                return Ok(());
            }
            let (mut progress, mut ended) = (false, false);
            for (shard, cursor) in std::mem::take(&mut self.reading) {
                match self.step(&shard, cursor).await? {
                    Step::GoOn(next) => {
                        progress = true;
                        self.reading.push((shard, next));
                    }
                    Step::CaughtUp(next) if self.follow => self.reading.push((shard, next)),
                    Step::CaughtUp(_) => self.order.finish(&shard),
                    Step::End => {
                        ended = true;
                        self.order.finish(&shard);
                    }
                }
                if self.left == 0 {
                    return Ok(());
                }
            }
            self.context.out.flush()?;
            if ended && self.follow {
                let shards = self.patiently(|tail| tail.stream.all_shards(tail.context.by())).await?;
                self.order.discover(&shards);
            } else if !progress && self.follow {
                self.stream.wait(self.context.env.clock.deadline(WAIT)).await;
            }
        }
    }

    async fn cursor(&self, shard: &ShardId, from: &Position) -> anyhow::Result<Cursor> {
        let found = self.patiently(|tail| tail.stream.cursor(tail.context.by(), shard, from)).await;
        found.with_context(|| format!("read {shard}"))
    }

    /// Reads once and prints what there is.
    async fn step(&mut self, shard: &ShardId, cursor: Cursor) -> anyhow::Result<Step> {
        let limit = usize::try_from(self.left).unwrap_or(usize::MAX).min(READ_RECORDS);
        let read = self.patiently(|tail| tail.stream.read(tail.context.by(), &cursor, limit)).await;
        match read.with_context(|| format!("read {shard}"))? {
            Read::Records(batch) => {
                for record in &batch.records {
                    self.say(record)?;
                }
                Ok(match batch.next {
                    None => Step::End,
                    Some(next) if batch.behind.is_zero() => Step::CaughtUp(next),
                    Some(next) => Step::GoOn(next),
                })
            }
            Read::Trimmed { from, to } => {
                let loss =
                    format!("{shard}: records from {from} to before {to} were trimmed before they were read");
                if !self.accept_loss {
                    return Err(anyhow!("{loss}: go on without them with --accept-loss"));
                }
                eprintln!("warning: {loss}: going on without them");
                if self.context.out.is_json() {
                    let trimmed =
                        json!({ "shard": shard.as_str(), "from": from.to_string(), "to": to.to_string() });
                    self.context.out.json_line(&json!({ "trimmed": trimmed }))?;
                }
                Ok(Step::GoOn(self.cursor(shard, &Position::At(to)).await?))
            }
        }
    }

    /// Prints a record; one that holds several, in the format that Amazon's readers know, is taken apart.
    fn say(&mut self, record: &Stored) -> anyhow::Result<()> {
        let apart = deaggregate(&record.partition_key, &record.data, HashRange::ALL);
        let several = apart.found == Found::Aggregated;
        for part in &apart.records {
            if self.left == 0 {
                break;
            }
            say(record, part, several.then_some(part.sub_sequence), self.context)?;
            self.left -= 1;
        }
        Ok(())
    }

    /// Makes a call that only looks until it succeeds, as long as it may: for the time of one call,
    /// and as a follower until it is asked to end.
    async fn patiently<'t, T, F>(&'t self, call: impl Fn(&'t Self) -> F) -> anyhow::Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let by = self.context.by();
        loop {
            let error = match call(self).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let again = matches!(retry_policy(error.kind()), Retry::Soon | Retry::AfterBackoff);
            let in_time = self.follow || self.context.env.clock.monotonic() < by;
            if !again || !in_time {
                return Err(misuse_if_invalid(error));
            }
            tracing::warn!(error = %error.chain(), "the stream could not be read; trying again");
            self.context.out.flush()?;
            self.context.env.clock.sleep(PAUSE).await;
        }
    }
}

/// Prints a record, or one that it held.
fn say(
    record: &Stored,
    part: &UserRecord,
    sub_sequence: Option<usize>,
    context: &Context,
) -> anyhow::Result<()> {
    let text = std::str::from_utf8(&part.data).ok();
    context.out.say(
        || {
            let sub_sequence = sub_sequence.map(|number| number as u64);
            let (shard, key) = (record.shard.as_str(), &part.partition_key);
            RecordLine::new(shard, &record.sequence, sub_sequence, record.arrived, key, &part.data)
        },
        || {
            let data = text.map_or_else(|| format!("base64:{}", STANDARD.encode(&part.data)), one_line);
            let (arrived, shard, sequence) = (record.arrived, &record.shard, &record.sequence);
            let within = sub_sequence.map(|number| format!(".{number}")).unwrap_or_default();
            format!("{arrived}  {shard}  {sequence}{within}  {}  {data}", one_line(&part.partition_key))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_read() {
        let position = |text: &str| match text.parse::<From>().unwrap() {
            From::Position(position) => position,
            From::Ago(duration) => Position::AtTimestamp(WallTime::from_millis(1000) - duration),
        };
        assert_eq!(position("trim-horizon"), Position::TrimHorizon);
        assert_eq!(position("latest"), Position::Latest);
        assert_eq!(position("42"), Position::At(42.into()));
        assert_eq!(position("after:42"), Position::After(42.into()));
        assert_eq!(position("1970-01-01T00:00:01Z"), Position::AtTimestamp(WallTime::from_millis(1000)));
        assert_eq!(position("ago:1s"), Position::AtTimestamp(WallTime::from_millis(0)));
        let refused = |text: &str| text.parse::<From>().unwrap_err();
        assert!(refused("lates").contains("did you mean `latest`"));
        assert!(refused("after:x").contains("`x`"));
        assert!(refused("2026-11-15").contains("is not a moment"));
    }
}
