//! `tenure cdc status`: how far a pipeline is, as the store and the server tell it.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tenure_cdc::checkpoint::Checkpoint;
use tenure_cdc::progress::ladder;
use tenure_cdc::server::{self, Slot};
use tenure_cdc::service::read_row;
use tenure_cdc::transport::{Endpoint, Session};
use tenure_clock::WallTime;
use tenure_stream::identity::Lsn;

use super::destination::Place;
use super::fleet::{self, Process};
use super::retained::Retained;
use super::run::told;
use super::{Pipeline, sql};
use crate::context::Context;
use crate::failure::FAILED;
use crate::output::one_line;
use crate::settings::Flag;
use crate::{duration, looking, size};

#[derive(clap::Args)]
#[command(after_help = "\
The checkpoint and the processes come from the store, the slot and the end of the log from the server. If one
of the two cannot be asked, the other is shown, and what is missing is told; exit status 1 if neither can.
A process whose row was not renewed for three of its intervals is marked as stale.

Examples:
  tenure cdc status
  tenure cdc status --json | jq .lag_bytes
  tenure cdc status --watch --interval 1s")]
pub(super) struct Args {
    #[command(flatten)]
    pipeline: Pipeline,

    /// Look again and again, until SIGINT or SIGTERM
    #[arg(long)]
    watch: bool,

    /// How long to wait between two looks of --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_positive)]
    interval: Duration,
}

impl Args {
    pub(super) fn flags(&self) -> Vec<Flag> {
        self.pipeline.flags()
    }

    /// Whether it stays until it is asked to end.
    pub(super) const fn watches(&self) -> bool {
        self.watch
    }
}

pub(super) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let endpoint = super::endpoint(context)?;
    let look = async || Ok(Picture::look(context, &endpoint).await);
    if args.watch {
        let mut first = true;
        let table = context.settings.election.table.clone();
        return looking::until_asked_to_end(context, &table, args.interval, look, |picture| {
            let gap = if first || context.out.is_json() { "" } else { "\n" };
            first = false;
            context.out.say(|| picture.json(context), || format!("{gap}{}", picture.text(context)))
        })
        .await;
    }
    let picture = Picture::look(context, &endpoint).await;
    context.out.say(|| picture.json(context), || picture.text(context))?;
    let blind = picture.store.is_err() && picture.server.is_err();
    Ok(if blind { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// What the store tells.
struct FromStore {
    to: String,
    checkpoint: Option<Checkpoint>,
    processes: Vec<Process>,
}

/// What the server tells.
struct FromServer {
    version: String,
    end: Lsn,
    slot: Option<Slot>,
    user: Option<String>,
}

/// One look at both; what cannot be asked is told.
struct Picture {
    at: WallTime,
    store: Result<FromStore, String>,
    server: Result<FromServer, String>,
}

impl Picture {
    async fn look(context: &Context, endpoint: &Endpoint) -> Self {
        let (store, server) = tokio::join!(from_store(context), from_server(context, endpoint));
        let line = |error: &anyhow::Error| crate::failure::line(error);
        Self {
            at: context.env.clock.wall(),
            store: store.map_err(|error| line(&error)),
            server: server.map_err(|error| line(&error)),
        }
    }

    /// The process that leads, as far as anybody heard.
    fn leader(&self) -> Option<&Process> {
        let processes = &self.store.as_ref().ok()?.processes;
        // Whoever leads streams from the slot, whatever a row says that was left by a crash.
        if let Ok(server) = &self.server
            && !server.slot.as_ref().is_some_and(|slot| slot.active)
        {
            return None;
        }
        let leads = |process: &&Process| {
            matches!(&*process.word.progress.role, "leader" | "stopping") && !process.is_stale(self.at)
        };
        processes.iter().filter(leads).max_by_key(|process| process.word.progress.epoch)
    }

    /// How far it is, from the server's end of the log down to what is confirmed.
    fn rungs(&self) -> Vec<(&'static str, Lsn)> {
        let end = self.server.as_ref().ok().map(|server| server.end);
        let row = self.store.as_ref().ok().and_then(|store| store.checkpoint.as_ref()).map(|row| row.lsn);
        let confirmed = self.server.as_ref().ok().and_then(|server| server.slot.as_ref()?.confirmed_flush);
        match self.leader() {
            // Its row is written now and then; what was said elsewhere meanwhile counts as well.
            Some(leader) => ladder(&leader.word.progress)
                .into_iter()
                .map(|(name, lsn)| (name, row.into_iter().fold(lsn, Lsn::max)))
                .map(|(name, lsn)| match (name, end) {
                    ("server", Some(end)) => (name, end.max(lsn)),
                    _ => (name, lsn),
                })
                .collect(),
            None => [("server", end), ("acknowledged", row.or(confirmed))]
                .into_iter()
                .filter_map(|(name, lsn)| lsn.map(|lsn| (name, lsn)))
                .collect(),
        }
    }

    /// How much of the log is not published, if both ends are known.
    fn lag_bytes(&self) -> Option<u64> {
        let rungs = self.rungs();
        let rung = |name| rungs.iter().find(|(rung, _)| *rung == name).map(|(_, lsn)| lsn.0);
        Some(rung("server")?.saturating_sub(rung("published").or_else(|| rung("acknowledged"))?))
    }

    fn lag_seconds(&self) -> Option<f64> {
        // As it was when it was written: what was under way then may be settled since.
        self.leader().map(|leader| leader.word.progress.lag_millis(leader.updated) as f64 / 1000.0)
    }

    fn retained(&self) -> Option<Retained> {
        self.server.as_ref().ok()?.slot.as_ref().map(Retained::of)
    }

    fn alarm(&self, context: &Context) -> Option<String> {
        let warn = context.settings.cdc.retained_warn.0.0;
        let seen = self.leader().and_then(|leader| leader.word.alarm.clone());
        self.retained().and_then(|retained| retained.alarm(warn)).or(seen)
    }

    fn json(&self, context: &Context) -> Json {
        let cdc = &context.settings.cdc;
        let rungs = self.rungs().into_iter();
        let lsn: serde_json::Map<_, _> =
            rungs.map(|(name, lsn)| (name.to_owned(), lsn.to_string().into())).collect();
        let retained = self.retained();
        json!({
            "at": self.at.to_string(),
            "source": cdc.source,
            "slot_name": cdc.slot,
            "to": self.store.as_ref().ok().map(|store| store.to.clone()),
            "lsn": lsn,
            "lag_bytes": self.lag_bytes(),
            "lag_seconds": self.lag_seconds(),
            "leader": self.leader().map(|leader| leader.instance.clone()),
            "checkpoint": self.store.as_ref().ok().and_then(|store| store.checkpoint.as_ref()).map(|row| json!({
                "lsn": row.lsn.to_string(),
                "era": row.era.0,
                "fence": row.fence.0,
                "slot": &*row.slot,
                "lanes": row.lanes.count(),
                "system_id": &*row.system_id,
                "timeline": row.timeline,
                "updated": row.updated.to_string(),
            })),
            "processes": self.store.as_ref().map(|store| store.processes.iter().map(|process| {
                let word = &process.word;
                let mut line = told(&word.progress, word.retained.as_ref(), word.alarm.as_deref(), process.updated);
                line["instance"] = process.instance.as_str().into();
                line["version"] = process.version.as_str().into();
                line["settings"] = process.digest.as_str().into();
                line["updated"] = process.updated.to_string().into();
                line["stale"] = process.is_stale(self.at).into();
                line
            }).collect::<Vec<_>>()).unwrap_or_default(),
            "slot": self.server.as_ref().ok().and_then(|server| server.slot.as_ref()).map(|slot| json!({
                "active": slot.active,
                "active_pid": slot.active_pid,
                "confirmed": slot.confirmed_flush.map(|lsn| lsn.to_string()),
                "lost": slot.is_lost(),
            })),
            "server_version": self.server.as_ref().ok().map(|server| server.version.clone()),
            "retained_wal_bytes": retained.as_ref().and_then(|retained| retained.bytes),
            "wal_status": retained.as_ref().and_then(|retained| retained.wal_status.clone()),
            "safe_wal_bytes": retained.as_ref().and_then(|retained| retained.safe_bytes),
            "alarm": self.alarm(context),
            "store_error": self.store.as_ref().err(),
            "server_error": self.server.as_ref().err(),
        })
    }

    fn text(&self, context: &Context) -> String {
        let cdc = &context.settings.cdc;
        let mut lines = Vec::new();
        let mut line = |name: &str, text: String| lines.push(format!("{name:11}  {}", one_line(&text)));
        let to = self.store.as_ref().map_or("?", |store| &*store.to);
        line("pipeline", format!("{} from slot {} to {to}", cdc.source, cdc.slot));
        match &self.store {
            Err(error) => line("store", format!("cannot be asked: {error}")),
            Ok(store) => line(
                "checkpoint",
                store.checkpoint.as_ref().map_or_else(
                    || "none: run `tenure cdc setup`".to_owned(),
                    |row| {
                        format!(
                            "{} in era {}, fence {}, slot {}, {} lanes, written {} ago",
                            row.lsn,
                            row.era.0,
                            row.fence.0,
                            row.slot,
                            row.lanes.count(),
                            self.ago(row.updated)
                        )
                    },
                ),
            ),
        }
        match &self.server {
            Err(error) => line("server", format!("cannot be asked: {error}")),
            Ok(server) => {
                line("server", format!("Postgres {}, log ends at {}", server.version, server.end));
                line(
                    "slot",
                    server.slot.as_ref().map_or_else(
                        || "none: run `tenure cdc setup`".to_owned(),
                        |slot| shown_slot(slot, server.user.as_deref()),
                    ),
                );
            }
        }
        let rungs: Vec<_> = self.rungs().iter().map(|(name, lsn)| format!("{name} {lsn}")).collect();
        if !rungs.is_empty() {
            line("positions", rungs.join("  >  "));
        }
        if let Some(bytes) = self.lag_bytes() {
            let seconds = self.lag_seconds().map(|seconds| format!(", {seconds:.1} s")).unwrap_or_default();
            line("lag", format!("{}{seconds}", size::rounded(bytes)));
        }
        if let Some(alarm) = self.alarm(context) {
            line("ALARM", alarm);
        }
        if let Ok(store) = &self.store {
            if store.processes.is_empty() {
                line("processes", "none: start one with `tenure cdc run`".to_owned());
            }
            for process in &store.processes {
                line("process", self.shown_process(process));
            }
        }
        lines.join("\n")
    }

    fn ago(&self, moment: WallTime) -> String {
        let millis = (self.at.as_millis() - moment.as_millis()).max(0);
        format!("{} s", millis / 1000)
    }

    fn shown_process(&self, process: &Process) -> String {
        let progress = &process.word.progress;
        let mut text = format!("{}  {}", process.instance, progress.role);
        if progress.epoch > 0 {
            text.push_str(&format!("  epoch {}  {} events", progress.epoch, progress.events));
        }
        if progress.parked > 0 {
            text.push_str(&format!("  {} parked", progress.parked));
        }
        if process.is_stale(self.at) {
            text.push_str(&format!("  STALE: last heard of {} ago", self.ago(process.updated)));
        }
        if let Some(trouble) = &progress.trouble {
            text.push_str(&format!("  trouble: {trouble}"));
        }
        text
    }
}

fn shown_slot(slot: &Slot, user: Option<&str>) -> String {
    let used = match (slot.active, user) {
        (true, Some(user)) => format!("in use by {user}"),
        (true, None) => "in use".to_owned(),
        (false, _) => "not in use".to_owned(),
    };
    let mut parts = vec![used];
    parts.extend(slot.confirmed_flush.map(|lsn| format!("confirmed {lsn}")));
    let retained = Retained::of(slot);
    parts.extend(retained.bytes.map(|bytes| format!("{} of log kept", size::rounded(bytes))));
    parts.extend(retained.wal_status.map(|status| format!("log {status}")));
    let safe = retained.safe_bytes.and_then(|bytes| u64::try_from(bytes).ok());
    parts.extend(safe.map(|bytes| format!("{} until it may be lost", size::rounded(bytes))));
    if slot.is_lost() {
        parts.push("LOST".to_owned());
    }
    parts.join(", ")
}

async fn from_store(context: &Context) -> anyhow::Result<FromStore> {
    let place = Place::find(context).await?;
    let store = context.store().await?;
    let table = &context.settings.election.table;
    let to = place.shown();
    let there = context.look(async |by| store.describe_table(by, table).await).await?.is_some();
    if !there {
        return Ok(FromStore { to, checkpoint: None, processes: Vec::new() });
    }
    let row = place.checkpoint(context);
    let found = context.look(async |by| read_row(&*store, by, &row).await).await?;
    let checkpoint = found.filter(|row| !row.is_torn_down());
    let source = &context.settings.cdc.source;
    let processes = context.look(async |by| fleet::processes(&*store, by, table, source).await).await?;
    Ok(FromStore { to, checkpoint, processes })
}

async fn from_server(context: &Context, endpoint: &Endpoint) -> anyhow::Result<FromServer> {
    let mut session: Session = sql::connect(context, endpoint).await?;
    let end = server::current_wal(&mut session, context.by()).await?;
    let slot = server::slot(&mut session, context.by(), &super::slot(context)?).await?;
    let pid = slot.as_ref().and_then(|slot| slot.active_pid);
    let user = match pid {
        Some(pid) => Some(sql::who_is(context, &mut session, pid).await),
        None => None,
    };
    Ok(FromServer { version: session.version().to_string(), end, slot, user })
}
