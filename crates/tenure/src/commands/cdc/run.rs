//! `tenure cdc run`: publishes changes until asked to stop, or stands by for whoever does.

use std::cell::RefCell;
use std::convert::Infallible;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde_json::{Value as Json, json};
use tenure_cdc::assembler::SpillSettings;
use tenure_cdc::framing::Framing;
use tenure_cdc::progress::{Snapshot, ladder};
use tenure_cdc::quarantine::{Quarantine, sha256};
use tenure_cdc::server;
use tenure_cdc::service::{End, LeadershipBy, Service};
use tenure_cdc::settings::PipelineSettings;
use tenure_cdc::transport::Endpoint;
use tenure_clock::Monotonic;
use tenure_election::{AdvisorySettings, Settings as ElectionSettings, table_spec};
use tenure_store::Store;
use tenure_stream::identity::{Lanes, Lsn};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::destination::Place;
use super::fleet::{OwnRow, Word};
use super::retained::{Retained, Watcher};
use super::{Pipeline, flag, sql};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::counted;
use crate::settings::{Destination, Flag, LeadershipKind, Pace};
use crate::{shutdown, size};

/// How often what the pipeline says of itself is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How often `--json` tells progress while nothing else changes.
const TELL_INTERVAL: Duration = Duration::from_secs(5);
/// How often the slot is looked at.
const RETAINED_INTERVAL: Duration = Duration::from_secs(10);
/// With an end in sight, idle progress is written at once: nobody wants to wait for the next round.
const UNTIL_CHECKPOINT_INTERVAL: Duration = Duration::from_millis(100);

#[derive(clap::Args)]
#[command(after_help = "\
Several processes with the same settings are hot standbys: one leads, the others take over when it ends.
SIGTERM or SIGINT hands over: what was read is published and confirmed first, and the next leader
publishes nothing twice. A second signal leaves at once; then what was not confirmed comes again, with
the same identity. State changes are logged on standard error.

With --json, one line for each state change and every few seconds of progress, on standard output
(unless events go there).

Examples:
  tenure cdc run --postgres postgres://ann@localhost/app
  tenure cdc run --to file:changes.jsonl --source files --slot files
  tenure cdc run --leadership store --metrics 127.0.0.1:9464 --log-format json
  tenure cdc run --until-lsn now --json")]
pub(super) struct Args {
    #[command(flatten)]
    pipeline: Pipeline,

    /// How many lanes keep their order; fixed once begun [default: 1024 for a stream, 1 for a file]
    #[arg(long, value_name = "N")]
    lanes: Option<String>,

    /// Who leads: advisory (a lock in Postgres) or store (an election on the store) [default: advisory]
    #[arg(long, value_name = "KIND")]
    leadership: Option<String>,

    /// Most events that are read and not yet safe [default: 100000]
    #[arg(long, value_name = "N")]
    inflight_events: Option<String>,

    /// Most bytes of them [default: 12MiB]
    #[arg(long, value_name = "SIZE")]
    inflight_bytes: Option<String>,

    /// How long an event may wait for others to travel with [default: 3ms]
    #[arg(long, value_name = "DURATION")]
    linger: Option<String>,

    /// Most records that a shard of the stream is sent in a second, 0 for no limit [default: as the stream says]
    #[arg(long, value_name = "N")]
    shard_records_per_s: Option<String>,

    /// Most bytes of them, 0 for no limit [default: as the stream says]
    #[arg(long, value_name = "SIZE")]
    shard_bytes_per_s: Option<String>,

    /// Have large transactions while they run, and keep them on our disk until they commit, not on the server's
    #[arg(long)]
    streaming: bool,

    /// Where those wait for their commit [default: /var/tmp]
    #[arg(long, value_name = "DIR")]
    spill: Option<String>,

    /// Most bytes of them [default: 64GiB]
    #[arg(long, value_name = "SIZE")]
    spill_max: Option<String>,

    /// One event in each record of the stream, for readers that do not know the aggregated format
    #[arg(long)]
    no_aggregation: bool,

    /// Publish what pg_logical_emit_message wrote, too
    #[arg(long)]
    messages: bool,

    /// End in good order once everything that committed below is settled: a position like 0/16B3748, or now
    #[arg(long, value_name = "LSN")]
    until_lsn: Option<Until>,

    /// Warn when the server keeps more log than this for the slot [default: 10GiB]
    #[arg(long, value_name = "SIZE")]
    retained_warn: Option<String>,

    /// End when it keeps more than this [default: never]
    #[arg(long, value_name = "SIZE")]
    retained_stop: Option<String>,

    /// How long a planned stop waits for what is under way [default: 20s]
    #[arg(long, value_name = "DURATION")]
    drain_timeout: Option<String>,
}

/// Where to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Until {
    /// At the end of the log as it is at the start.
    Now,
    At(Lsn),
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "now" {
            return Ok(Self::Now);
        }
        let at = text.parse().map(Self::At);
        at.map_err(|_| format!("`{text}` is not a position in the log: write it like 0/16B3748, or now"))
    }
}

impl Args {
    pub(super) fn flags(&self) -> Vec<Flag> {
        let (no, yes) = ("false".to_owned(), "true".to_owned());
        let mut flags = self.pipeline.flags();
        flags.extend(
            [
                flag("--lanes", "cdc.lanes", self.lanes.as_ref()),
                flag("--leadership", "cdc.leadership", self.leadership.as_ref()),
                flag("--inflight-events", "cdc.inflight_events", self.inflight_events.as_ref()),
                flag("--inflight-bytes", "cdc.inflight_bytes", self.inflight_bytes.as_ref()),
                flag("--linger", "cdc.linger", self.linger.as_ref()),
                flag("--shard-records-per-s", "cdc.shard_records_per_s", self.shard_records_per_s.as_ref()),
                flag("--shard-bytes-per-s", "cdc.shard_bytes_per_s", self.shard_bytes_per_s.as_ref()),
                flag("--streaming", "cdc.streaming", self.streaming.then_some(&yes)),
                flag("--spill", "cdc.spill", self.spill.as_ref()),
                flag("--spill-max", "cdc.spill_max", self.spill_max.as_ref()),
                flag("--no-aggregation", "cdc.aggregation", self.no_aggregation.then_some(&no)),
                flag("--messages", "cdc.messages", self.messages.then_some(&yes)),
                flag("--retained-warn", "cdc.retained_warn", self.retained_warn.as_ref()),
                flag("--retained-stop", "cdc.retained_stop", self.retained_stop.as_ref()),
                flag("--drain-timeout", "cdc.drain_timeout", self.drain_timeout.as_ref()),
            ]
            .into_iter()
            .flatten(),
        );
        flags
    }
}

pub(super) async fn run(args: &Args, context: &Context) -> anyhow::Result<ExitCode> {
    let endpoint = super::endpoint(context)?;
    let (stop, asked) = (CancellationToken::new(), shutdown::first_signal()?);
    let place = Place::find(context).await?;
    let retention = match &place {
        Place::Stream(stream) => Some(retention(context, &**stream).await?),
        _ => None,
    };
    let (name, lanes) = (place.name(), place.lanes(context)?);
    let is_stream = matches!(place, Place::Stream(_));
    let store = context.store().await?;
    let source = context.settings.cdc.source.clone();
    prepare(context, &store, &source).await?;
    tokio::spawn(stop_when_asked(asked, stop.clone()));
    let Some(sink) = place.open(context, &stop).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let mut settings = settings(context, lanes)?;
    settings.publisher.framing = match sink.framing() {
        Framing::Aggregated if !context.settings.cdc.aggregation.0 => Framing::Single,
        framing => framing,
    };
    let until = match args.until_lsn {
        None => None,
        Some(Until::At(lsn)) => Some(lsn),
        Some(Until::Now) => Some(end_of_log(context, &endpoint).await?),
    };
    if until.is_some() {
        settings.idle_checkpoint_interval = UNTIL_CHECKPOINT_INTERVAL;
    }
    let slot = settings.slot.clone();
    let leadership = leadership(context);
    let service =
        Service::new(context.env.clone(), endpoint.clone(), settings, sink, store.clone(), leadership)
            .map_err(misuse_if_invalid)?;
    let service = retention.into_iter().fold(service, Service::with_retention);
    let row = OwnRow {
        env: context.env.clone(),
        store,
        table: context.settings.election.table.clone(),
        source,
        instance: crate::instance::name(&context.env)?,
        digest: sha256(serde_json::to_string(&context.settings)?.as_bytes())[..12].to_owned(),
    };
    let run = Run {
        context,
        tells: context.out.is_json() && context.settings.cdc.to.0 != Destination::Stdout,
        to: if is_stream { format!("stream {name}") } else { name },
        service,
        row,
        stop,
        until,
        cost: RefCell::default(),
    };
    run.until_the_end(Watcher::new(context, endpoint, slot)).await
}

/// How long the stream keeps records.
///
/// # Errors
/// A misuse if there is no such stream.
async fn retention(context: &Context, stream: &dyn tenure_stream::Stream) -> anyhow::Result<Duration> {
    let found = context.look(async |by| stream.describe(by).await).await;
    Ok(found.map_err(misuse_if_invalid).context("look at the stream")?.retention_age)
}

/// Makes the tables, where they are not there.
pub(super) async fn prepare(context: &Context, store: &Arc<dyn Store>, source: &str) -> anyhow::Result<()> {
    let table = &context.settings.election.table;
    store
        .ensure_table(context.by(), &table_spec(table))
        .await
        .map_err(misuse_if_invalid)
        .with_context(|| format!("make table `{table}`"))?;
    let quarantine = quarantine(context, store, source);
    quarantine.prepare(context.by()).await.map_err(misuse_if_invalid).context("make the quarantine's table")
}

/// For making its table and for reading: what it would keep, it keeps as the service says.
pub(super) fn quarantine(context: &Context, store: &Arc<dyn Store>, source: &str) -> Quarantine {
    let kept = tenure_cdc::quarantine::KEPT_BEYOND_RETENTION;
    Quarantine::new(store.clone(), context.env.clock.clone(), source.into(), kept)
}

fn settings(context: &Context, lanes: Lanes) -> anyhow::Result<PipelineSettings> {
    let cdc = &context.settings.cdc;
    let source = cdc.source.as_str().into();
    let mut settings =
        PipelineSettings::new(source, super::slot(context)?, super::publications(context)?, lanes);
    settings.table = context.settings.election.table.as_str().into();
    settings.messages = cdc.messages.0;
    settings.streaming = cdc.streaming.0;
    settings.publisher.inflight_events_max = cdc.inflight_events.0.0 as usize;
    settings.publisher.inflight_bytes_max = usize::try_from(cdc.inflight_bytes.0.0).unwrap_or(usize::MAX);
    settings.publisher.linger = cdc.linger.0;
    settings.publisher.shard_records_per_s = cdc.shard_records_per_s.map(|amount| amount.0.0.into());
    settings.publisher.shard_bytes_per_s = cdc.shard_bytes_per_s.map(|size| size.0.0);
    let directory = cdc.spill.clone().unwrap_or_else(|| settings.spill.directory.clone());
    if !directory.is_dir() {
        return Err(misuse(format!(
            "{} is not a directory: name one with --spill, where large transactions can wait for their commit",
            directory.display()
        )));
    }
    settings.spill = SpillSettings { directory, bytes_max: cdc.spill_max.0.0 };
    settings.drain_timeout = cdc.drain_timeout.0;
    Ok(settings)
}

fn leadership(context: &Context) -> LeadershipBy {
    let table = context.settings.election.table.clone();
    match context.settings.cdc.leadership {
        LeadershipKind::Advisory => {
            // Asked for often: a standby takes over within a quarter of a second.
            let poll = Duration::from_millis(100);
            LeadershipBy::AdvisoryLock(AdvisorySettings { table, poll, ..AdvisorySettings::default() })
        }
        LeadershipKind::Store => {
            let preset = match context.settings.election.preset {
                Pace::Stable => ElectionSettings::stable(),
                Pace::Balanced => ElectionSettings::balanced(),
                Pace::Fast => ElectionSettings::fast(),
            };
            LeadershipBy::Store(ElectionSettings { table, ..preset })
        }
    }
}

async fn end_of_log(context: &Context, endpoint: &Endpoint) -> anyhow::Result<Lsn> {
    let mut session = sql::connect(context, endpoint).await.map_err(misuse_if_invalid)?;
    server::current_wal(&mut session, context.by()).await.context("read the end of the log")
}

async fn stop_when_asked(mut asked: watch::Receiver<Option<shutdown::Signalled>>, stop: CancellationToken) {
    if let Ok(signal) = asked.wait_for(Option::is_some).await {
        tracing::info!(signal = signal.map(shutdown::Signalled::name), "asked to stop");
        stop.cancel();
    }
}

/// A pipeline that runs.
struct Run<'a> {
    context: &'a Context,
    service: Service,
    row: OwnRow,
    stop: CancellationToken,
    until: Option<Lsn>,
    cost: RefCell<Cost>,
    /// State and progress are told on standard output.
    tells: bool,
    to: String,
}

/// What the watch on the slot found.
#[derive(Default)]
struct Cost {
    retained: Option<Retained>,
    alarm: Option<String>,
    /// Why the run ends, if it was not asked to.
    over: Option<String>,
}

/// What was told last.
struct Told {
    role: String,
    trouble: Option<String>,
    at: Monotonic,
    /// When the row was written.
    row_at: Option<Monotonic>,
}

impl Run<'_> {
    async fn until_the_end(&self, watcher: Watcher<'_>) -> anyhow::Result<ExitCode> {
        let (service, stop) = (self.service.clone(), self.stop.clone());
        let mut running = tokio::spawn(async move { service.run(stop).await });
        // Whatever hangs beside it, the pipeline's own end is seen.
        let (ended, looked) = tokio::select! {
            biased;
            ended = &mut running => (ended, Ok(())),
            looked = self.keep_looking() => {
                // Nobody hears us any more.
                self.stop.cancel();
                (running.await, looked)
            }
            never = self.watch_the_slot(watcher) => match never {},
        };
        if let Err(error) = self.row.remove(self.context.by()).await {
            tracing::warn!(error = %error.chain(), "the status row could not be removed; it goes by itself");
        }
        looked?;
        let snapshot = self.service.progress().snapshot();
        self.tell("end", &snapshot)?;
        let ended = ended.map_err(|_| anyhow!("the pipeline broke down"))?;
        let ended = ended.map_err(misuse_if_invalid).context("capture changes")?;
        if let Some(why) = self.cost.borrow_mut().over.take() {
            return Err(anyhow!(why));
        }
        if ended == End::Abandoned {
            return Err(anyhow!(
                "stopped with {} under way: the next leader publishes them again, with the same identity (give a \
                 longer --drain-timeout to wait for them)",
                counted(snapshot.inflight_events, "event")
            ));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Tells what changes, until there is nobody to tell.
    async fn keep_looking(&self) -> anyhow::Result<()> {
        let clock = &self.context.env.clock;
        let mut told = Told { role: String::new(), trouble: None, at: clock.monotonic(), row_at: None };
        loop {
            clock.sleep(LOOK_INTERVAL).await;
            self.look(&mut told).await?;
        }
    }

    async fn look(&self, told: &mut Told) -> anyhow::Result<()> {
        let now = self.context.env.clock.monotonic();
        let snapshot = self.service.progress().snapshot();
        let changed = told.role != snapshot.role || told.trouble != snapshot.trouble;
        if told.role != snapshot.role {
            tracing::info!(
                role = snapshot.role,
                epoch = snapshot.epoch,
                instance = self.row.instance,
                "state"
            );
        }
        if changed || now >= told.at + TELL_INTERVAL {
            self.tell(if changed { "state" } else { "progress" }, &snapshot)?;
            told.at = now;
        }
        told.role.clone_from(&snapshot.role);
        told.trouble.clone_from(&snapshot.trouble);
        if let Some(until) = self.until
            && !self.stop.is_cancelled()
            && snapshot.role == "leader"
            && snapshot.acknowledged >= until.0
        {
            tracing::info!(%until, "everything that committed below is settled");
            self.stop.cancel();
        }
        if changed || told.row_at.is_none_or(|at| now >= at + self.row.interval()) {
            told.row_at = Some(now);
            let word = {
                let cost = self.cost.borrow();
                Word { progress: snapshot, retained: cost.retained.clone(), alarm: cost.alarm.clone() }
            };
            if let Err(error) = self.row.write(self.context.by(), &word).await {
                tracing::debug!(error = %error.chain(), "the status row could not be written");
            }
        }
        Ok(())
    }

    /// Looks at the slot again and again, until it costs too much or the run is to end anyway.
    async fn watch_the_slot(&self, mut watcher: Watcher<'_>) -> Infallible {
        let cdc = &self.context.settings.cdc;
        while !self.stop.is_cancelled() {
            if let Some(retained) = watcher.look().await {
                retained.measure(&cdc.source);
                let alarm = retained.alarm(cdc.retained_warn.0.0);
                let mut cost = self.cost.borrow_mut();
                if let Some(alarm) = &alarm {
                    tracing::warn!("{alarm}");
                } else if cost.alarm.is_some() {
                    tracing::info!("the server keeps less log for the slot again");
                }
                cost.alarm = alarm;
                let most = cdc.retained_stop.map(|most| most.0.0);
                if let (Some(bytes), Some(most)) = (retained.bytes, most)
                    && bytes > most
                {
                    cost.over = Some(format!(
                        "the server keeps {} of log for slot `{}`, more than --retained-stop {} allows: make the sink \
                         faster, raise the limit, or free the disk and accept a gap by `tenure cdc teardown`",
                        size::rounded(bytes),
                        cdc.slot,
                        size::rounded(most)
                    ));
                    self.stop.cancel();
                }
                cost.retained = Some(retained);
            }
            tokio::select! {
                () = self.context.env.clock.sleep(RETAINED_INTERVAL) => {}
                () = self.stop.cancelled() => {}
            }
        }
        // What is left of the run is told by the others.
        std::future::pending().await
    }

    fn tell(&self, event: &str, snapshot: &Snapshot) -> anyhow::Result<()> {
        if !self.tells {
            return Ok(());
        }
        let cost = self.cost.borrow();
        let now = self.context.env.clock.wall();
        let mut line = json!({
            "at": now.to_string(),
            "event": event,
            "source": self.row.source,
            "slot": self.context.settings.cdc.slot,
            "to": self.to,
            "instance": self.row.instance,
        });
        let told = told(snapshot, cost.retained.as_ref(), cost.alarm.as_deref(), now);
        if let (Some(line), Json::Object(told)) = (line.as_object_mut(), told) {
            line.extend(told);
        }
        self.context.out.json_line(&line)?;
        self.context.out.flush()
    }
}

/// What a process says of itself, as JSON.
pub(super) fn told(
    snapshot: &Snapshot,
    retained: Option<&Retained>,
    alarm: Option<&str>,
    now: tenure_clock::WallTime,
) -> Json {
    let rungs = ladder(snapshot).into_iter();
    let lsn: serde_json::Map<_, _> =
        rungs.map(|(name, lsn)| (name.to_owned(), lsn.to_string().into())).collect();
    json!({
        "role": snapshot.role,
        "epoch": snapshot.epoch,
        "lsn": lsn,
        "lag_bytes": snapshot.lag_bytes(),
        "lag_seconds": snapshot.lag_millis(now) as f64 / 1000.0,
        "events": snapshot.events,
        "transactions": snapshot.transactions,
        "inflight_events": snapshot.inflight_events,
        "inflight_bytes": snapshot.inflight_bytes,
        "spilled_bytes": snapshot.spilled_bytes,
        "parked": snapshot.parked,
        "throttled": snapshot.throttled,
        "failures": snapshot.failures,
        "retained_wal_bytes": retained.and_then(|retained| retained.bytes),
        "wal_status": retained.and_then(|retained| retained.wal_status.as_deref()),
        "alarm": alarm,
        "trouble": snapshot.trouble,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_a_position_or_now() {
        assert_eq!("now".parse(), Ok(Until::Now));
        assert_eq!("0/16B3748".parse(), Ok(Until::At(Lsn(0x16B_3748))));
        for bad in ["", "16B3748", "0/xyz", "tomorrow"] {
            assert!(bad.parse::<Until>().unwrap_err().contains("0/16B3748"), "{bad}");
        }
    }
}
