//! `tenure cdc tail`: prints changes as they are committed, and leaves nothing behind.
//!
//! A temporary slot goes with its session. A publication does not, so one that is made for a tail has the
//! session in its name (the server's process and when it began), is dropped at the end, and is dropped by the
//! next tail if its session is gone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value as Json;
use tenure_backend::{Error, Kind};
use tenure_cdc::assembler::{Assembler, SpillSettings};
use tenure_cdc::framing::Framing;
use tenure_cdc::intake::{Intake, Origin};
use tenure_cdc::publisher::{Answer, Call, Publisher, PublisherSettings, Work};
use tenure_cdc::server::{self, Lifetime, SnapshotUse};
use tenure_cdc::service::check_fitness;
use tenure_cdc::transport::{
    Endpoint, Frame, PluginOptions, PublicationName, Receiver, Sender, Session, SlotName,
};
use tenure_stream::identity::{Era, Lanes, Lsn};
use tenure_stream::{Limits, Put, SequenceNumber, ShardId};
use tokio_util::sync::CancellationToken;

use super::sql::{self, TableName};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::one_line;
use crate::settings::Flag;
use crate::shutdown;

/// How often the server hears of us.
const FEEDBACK_INTERVAL: Duration = Duration::from_secs(2);
/// What publications of tails begin with.
const PREFIX: &str = "tenure_tail_";

#[derive(clap::Args)]
#[command(after_help = "\
Begins now, and ends with SIGINT or SIGTERM. Nothing is needed beside the database: no store, no stream. The
slot is temporary. Without --publication one is made for the time being, which takes the right to (all tables:
a superuser; --table: their owner); it is dropped at the end, or by the next tail if this one is killed.

With --json the events themselves are printed, as `tenure cdc run` would publish them.

Examples:
  tenure cdc tail postgres://ann@localhost/app
  tenure cdc tail --table public.orders --json
  tenure cdc tail --publication tenure --limit 10")]
pub(super) struct Args {
    /// The database [default: postgres.url]
    // Read with the other settings: clap would show what it refuses, and a password in it.
    #[arg(value_name = "URL")]
    postgres: Option<String>,

    /// Only this table; may be repeated [default: all]
    #[arg(long, value_name = "SCHEMA.TABLE", value_parser = TableName::parse)]
    table: Vec<TableName>,

    /// Use this publication, and make none; may be repeated
    #[arg(long, value_name = "NAME")]
    publication: Vec<PublicationName>,

    /// Print what pg_logical_emit_message wrote, too
    #[arg(long)]
    messages: bool,

    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
}

impl Args {
    pub(super) fn flags(&self) -> Vec<Flag> {
        super::flag("URL", "postgres.url", self.postgres.as_ref()).into_iter().collect()
    }
}

pub(super) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let endpoint = super::endpoint(context)?;
    let stop = shutdown::on_signal()?;
    let mut session = sql::connect_to_replicate(context, &endpoint).await?;
    check_fitness(&mut session, context.by()).await.map_err(misuse_if_invalid)?;
    sql::missing_tables(context, &mut session, &args.table).await?;
    let mut made = None;
    let publications = if args.publication.is_empty() {
        remove_stale(context, &mut session).await?;
        let name = own_name(context, &mut session).await?;
        // Noted first: a lost answer may hide that it is there.
        made = Some(name.clone());
        vec![name]
    } else {
        for name in &args.publication {
            if server::publication(&mut session, context.by(), name).await?.is_none() {
                return Err(misuse(format!(
                    "publication `{name}` does not exist: correct --publication, or leave it"
                )));
            }
        }
        args.publication.clone()
    };
    let tail = Tail { context, args: &args, publications, stop };
    let streamed = tail.stream(session, made.as_ref()).await;
    let cleaned = match &made {
        Some(name) => clean_up(context, &endpoint, name).await,
        None => Ok(()),
    };
    streamed?;
    cleaned?;
    Ok(ExitCode::SUCCESS)
}

struct Tail<'a> {
    context: &'a Context,
    args: &'a Args,
    publications: Vec<PublicationName>,
    stop: CancellationToken,
}

impl Tail<'_> {
    async fn stream(&self, mut session: Session, make: Option<&PublicationName>) -> anyhow::Result<()> {
        let context = self.context;
        if let Some(name) = make {
            sql::create_publication(context, &mut session, name, &self.args.table).await?;
        }
        let random = context.env.entropy.u64() & 0xffff_ffff;
        let slot = SlotName::new(format!("{PREFIX}{}_{random:08x}", session.backend()))?;
        let making =
            server::create_slot(&mut session, context.by(), &slot, Lifetime::Temporary, SnapshotUse::Nothing);
        let made = tokio::select! {
            made = making => made.map_err(misuse_if_invalid)?,
            () = self.stop.cancelled() => return Ok(()),
        };
        let start = made.consistent_point;
        let mut options = PluginOptions::new(self.publications.clone());
        options.messages = self.args.messages;
        let (mut receiver, sender) = session
            .start_replication(context.by(), &slot, start, &options)
            .await
            .map_err(misuse_if_invalid)?;
        if !context.out.is_json() {
            eprintln!("changes from {start} on, until SIGINT or SIGTERM:");
        }
        let printed = self.print(&mut receiver, &sender, start).await;
        // In good order, so that the slot is gone when we are.
        if let Ok(session) = receiver.rejoin(context.by(), sender).await {
            let _ = session.close(context.by()).await;
        }
        printed
    }

    async fn print(&self, receiver: &mut Receiver, sender: &Sender, start: Lsn) -> anyhow::Result<()> {
        let clock = &self.context.env.clock;
        let mut machine = Machine::new(self, start);
        let mut feedback_at = clock.monotonic();
        loop {
            if clock.monotonic() >= feedback_at {
                let confirmed = machine.publisher.confirmed();
                sender.status(confirmed, confirmed, confirmed, false).await?;
                feedback_at = clock.deadline(FEEDBACK_INTERVAL);
            }
            let asked = tokio::select! {
                biased;
                () = self.stop.cancelled() => return self.context.out.flush(),
                frame = receiver.next() => machine.take(frame?)?,
                () = clock.sleep_until(feedback_at) => false,
            };
            let mut asked = asked;
            // Whatever has come meanwhile, before anybody waits again.
            while !machine.is_done()
                && let Some(frame) = receiver.try_next_buffered()?
            {
                asked |= machine.take(frame)?;
            }
            self.context.out.flush()?;
            if machine.is_done() {
                return Ok(());
            }
            if asked {
                feedback_at = clock.monotonic();
            }
        }
    }
}

/// From frames to printed events, without a store or a stream.
struct Machine<'a> {
    tail: &'a Tail<'a>,
    assembler: Assembler,
    intake: Intake,
    publisher: Publisher,
    printed: u64,
}

impl<'a> Machine<'a> {
    fn new(tail: &'a Tail<'a>, start: Lsn) -> Self {
        let one = Lanes::new(1).unwrap_or_default();
        let origin = Origin { source: "tail".into(), era: Era(1), lanes: one, leader: 0 };
        // A line may be as long as a row.
        let room = usize::MAX / 4;
        let limits = Limits { bytes_per_put_max: room, bytes_per_record_max: room, ..Limits::default() };
        let settings = PublisherSettings {
            framing: Framing::Lines,
            linger: Duration::ZERO,
            ..PublisherSettings::default()
        };
        let entropy = tail.context.env.entropy.fork();
        Self {
            assembler: Assembler::new(spill(tail)),
            intake: Intake::new(origin),
            publisher: Publisher::new(settings, limits, one, Era(1), start, entropy),
            tail,
            printed: 0,
        }
    }

    fn is_done(&self) -> bool {
        self.tail.args.limit.is_some_and(|limit| self.printed >= limit)
    }

    /// Takes a frame, and prints what follows from it. Whether the server wants to hear of us.
    fn take(&mut self, frame: Frame<'_>) -> anyhow::Result<bool> {
        let now = self.tail.context.env.clock.monotonic();
        match frame {
            Frame::Data { wal_start, payload, .. } => {
                let assembled = self.assembler.push(wal_start, payload)?;
                self.intake.take(now, &mut self.publisher, assembled)?;
                self.print()?;
                while self.assembler.is_replaying() && !self.is_done() {
                    let assembled = self.assembler.replay()?;
                    self.intake.take(now, &mut self.publisher, assembled)?;
                    self.print()?;
                }
                Ok(false)
            }
            Frame::Keepalive { wal_end, reply_requested, .. } => {
                self.publisher.idle(wal_end);
                Ok(reply_requested)
            }
            Frame::Done => Err(Error::unavailable("the server ended the stream").into()),
        }
    }

    /// Prints what is ready, which is everything: nothing is ever under way.
    fn print(&mut self) -> anyhow::Result<()> {
        let now = self.tail.context.env.clock.monotonic();
        loop {
            self.intake.go_on(now, &mut self.publisher)?;
            let Some(work) = self.publisher.poll(now, true) else { return Ok(()) };
            match work {
                Work::Call(Call { id, records }) => {
                    for record in &records {
                        for line in record.data.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                            self.event(line)?;
                        }
                    }
                    let stored =
                        Put::Stored { shard: ShardId::numbered(0), sequence: SequenceNumber::from(0u64) };
                    self.publisher.answered(now, id, Answer::Records(vec![stored; records.len()]));
                }
                // Nothing is kept by a tail: the pointer that follows tells of it.
                Work::Store { lane, .. } => self.publisher.stored(now, lane, true),
                Work::Replace(refused) => self.intake.replace(now, &mut self.publisher, refused),
            }
        }
    }

    fn event(&mut self, line: &[u8]) -> anyhow::Result<()> {
        if self.is_done() {
            return Ok(());
        }
        let event: Json = serde_json::from_slice(line)
            .map_err(|error| Error::new(Kind::Corrupt, "an event is not JSON").because(error))?;
        let tables = &self.tail.args.table;
        let is = |table: &TableName| event["schema"] == *table.schema && event["table"] == *table.name;
        // A message of pg_logical_emit_message has no table.
        if !tables.is_empty() && event["table"].is_string() && !tables.iter().any(is) {
            return Ok(());
        }
        self.printed += 1;
        let out = &self.tail.context.out;
        if out.is_json() {
            // As it is: reading it might have changed a number.
            out.bytes(line)?;
            out.bytes(b"\n")
        } else {
            out.line(&shown(&event))
        }
    }
}

fn spill(tail: &Tail<'_>) -> SpillSettings {
    let cdc = &tail.context.settings.cdc;
    // A directory that can hold much, unless one is named.
    let large = PathBuf::from("/var/tmp");
    let usual = if large.is_dir() { large } else { std::env::temp_dir() };
    SpillSettings { directory: cdc.spill.clone().unwrap_or(usual), bytes_max: cdc.spill_max.0.0 }
}

/// An event on one line, for people.
fn shown(event: &Json) -> String {
    let text = |name: &str| event[name].as_str().unwrap_or_default();
    let op = text("op");
    let mut parts = vec![text("committed").to_owned(), format!("{op:8}")];
    if event["table"].is_string() {
        parts.push(format!("{}.{}", text("schema"), text("table")));
    }
    if let Some(key) = event["key"].as_object() {
        let columns: Vec<_> = key.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
        parts.push(columns.join(" "));
    }
    for name in ["before", "after", "unchanged", "columns", "prefix", "content", "content_base64", "pointer"]
    {
        let said_by_the_key = name == "before" && event["before"] == event["key"];
        if !event[name].is_null() && !said_by_the_key {
            let label = if name == "after" { String::new() } else { format!("{name} ") };
            parts.push(format!("{label}{}", plain(&event[name])));
        }
    }
    one_line(parts.join("  ").trim())
}

fn plain(value: &Json) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

// === the publication ===

/// A session, as names of publications tell it: its process, and when it began in microseconds.
fn session_of(name: &str) -> Option<(i32, i64)> {
    let (pid, began) = name.strip_prefix(PREFIX)?.split_once('_')?;
    Some((pid.parse().ok()?, began.parse().ok()?))
}

const BEGAN: &str = "(EXTRACT(epoch FROM backend_start) * 1000000)::pg_catalog.int8 AS began";

async fn own_name(context: &Context, session: &mut Session) -> anyhow::Result<PublicationName> {
    let pid = session.backend();
    let sql = format!("SELECT {BEGAN} FROM pg_catalog.pg_stat_activity WHERE pid = {pid}");
    let rows = session.query(context.by(), &sql).await.context("look at our own session")?;
    let began = rows.first().and_then(|row| row.named("began")).unwrap_or("0");
    PublicationName::new(format!("{PREFIX}{pid}_{began}")).map_err(misuse_if_invalid)
}

/// Drops publications of tails whose session is gone.
async fn remove_stale(context: &Context, session: &mut Session) -> anyhow::Result<()> {
    let sql = "SELECT pubname FROM pg_catalog.pg_publication WHERE pubname ~ '^tenure_tail_[0-9]+_[0-9]+$'";
    let rows = session.query(context.by(), sql).await.context("look for publications of earlier tails")?;
    let names: Vec<_> = rows.iter().filter_map(|row| row.named("pubname").map(str::to_owned)).collect();
    if names.is_empty() {
        return Ok(());
    }
    let sql = format!("SELECT pid, {BEGAN} FROM pg_catalog.pg_stat_activity");
    let rows = session.query(context.by(), &sql).await.context("look at the server's sessions")?;
    let live = |name: &str| {
        let Some((pid, began)) = session_of(name) else { return true };
        rows.iter().any(|row| {
            // When a session of somebody else began is not told to everybody: then it counts as the same.
            row.named("pid") == Some(&*pid.to_string())
                && row.named("began").is_none_or(|found| found == began.to_string())
        })
    };
    for name in names.iter().filter(|name| !live(name)) {
        match sql::drop_publication(context, session, name).await {
            Ok(()) => tracing::info!(name, "dropped the publication of a tail that was killed"),
            Err(error) => tracing::debug!(name, error = %error.chain(), "not ours to drop"),
        }
    }
    Ok(())
}

async fn clean_up(context: &Context, endpoint: &Endpoint, name: &PublicationName) -> anyhow::Result<()> {
    let dropped = async {
        let mut session = sql::connect(context, endpoint).await?;
        sql::drop_publication(context, &mut session, name.as_str()).await
    };
    dropped.await.with_context(|| {
        format!(
            "publication `{name}` may be left: the next `tenure cdc tail` drops it, or DROP PUBLICATION does"
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_name_tells_its_session() {
        assert_eq!(session_of("tenure_tail_12_34"), Some((12, 34)));
        for other in ["tenure_tail_", "tenure_tail_x_1", "tenure_12_34", "tenure_tail_1"] {
            assert_eq!(session_of(other), None, "{other}");
        }
    }

    #[test]
    fn an_event_is_one_line() {
        let event = json!({
            "op": "update", "schema": "public", "table": "items", "key": { "id": 7 }, "before": { "id": 7 },
            "after": { "id": 7, "note": "a\nb" }, "committed": "2026-11-15T12:00:00.000000Z",
        });
        assert_eq!(
            shown(&event),
            "2026-11-15T12:00:00.000000Z  update    public.items  id=7  {\"id\":7,\"note\":\"a\\nb\"}"
        );
        let message = json!({ "op": "message", "prefix": "audit\u{1b}", "content": "x" });
        assert_eq!(shown(&message), "message   prefix audit\\u{1b}  content x");
    }
}
