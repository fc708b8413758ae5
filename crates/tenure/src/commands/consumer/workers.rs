//! `tenure workers`: how many leases each worker may hold, as the table says.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tenure_clock::WallTime;
use tenure_leases::capacity::{Row, Survey, survey};

use super::{App, capacity_settings};
use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::output::{aligned, one_line};
use crate::settings::Flag;
use crate::{duration, looking};

#[derive(clap::Args)]
#[command(after_help = "\
One line per row of the table STREAM_meta (or APP_meta): the row that all workers follow first, then the
workers by name. It is there once a worker has run with enable_dynamic_max_leases.
  held     leases that the worker had when it last said so
  behind   how far it was behind its streams then
  state    alive, or gone: its row has expired and goes by itself; unknown of workers of another kind

Examples:
  tenure workers
  tenure workers --app orders --json
  tenure workers --watch")]
pub(crate) struct Args {
    #[command(flatten)]
    app: App,

    /// Print the table again and again until SIGINT or SIGTERM
    #[arg(long)]
    watch: bool,

    /// How long to wait between two looks of --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_positive)]
    interval: Duration,
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        self.app.flags()
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        self.watch
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let (store, stream) = (context.store().await?, context.stream().await?);
    let app = &context.settings.consumer.app;
    let settings = capacity_settings(context);
    let look = async |by| survey(&*store, by, stream.name(), app, &settings).await;
    if args.watch {
        let again = async || look(context.by()).await;
        return looking::until_asked_to_end(context, app, args.interval, again, |found| {
            show(&found, context)
        })
        .await;
    }
    let found = context.look(look).await.map_err(misuse_if_invalid);
    show(&found.context("read the workers' table")?, context)?;
    Ok(ExitCode::SUCCESS)
}

fn show(found: &Survey, context: &Context) -> anyhow::Result<()> {
    let now = context.env.clock.wall();
    let rows: Vec<_> = found.coordinator.iter().chain(&found.workers).map(|row| Line::of(row, now)).collect();
    if context.out.is_json() {
        for line in &rows {
            context.out.json_line(line)?;
        }
        return context.out.json_line(&serde_json::json!({
            "table": found.table, "rows": rows.len(), "bad_rows": found.bad_rows,
        }));
    }
    match &found.table {
        None => context.out.line(
            "there is no table of workers yet: they make it when they run with enable_dynamic_max_leases",
        )?,
        Some(table) if rows.is_empty() => {
            let app = &context.settings.consumer.app;
            context.out.line(&format!("table `{table}` has no rows of application `{app}`"))?;
        }
        Some(_) => {
            let head = HEAD.map(str::to_owned);
            let lines: Vec<_> = std::iter::once(head).chain(rows.iter().map(Line::cells)).collect();
            for line in aligned(&lines) {
                context.out.line(&line)?;
            }
        }
    }
    for bad in &found.bad_rows {
        context.out.line(&format!("bad row: {}", one_line(bad)))?;
    }
    Ok(())
}

/// The columns as they are called in the table, and ours.
const HEAD: [&str; 10] = [
    "worker_id",
    "max_leases_per_worker",
    "stream_name",
    "app_name",
    "shard_count",
    "worker_count",
    "last_update_time",
    "held",
    "behind",
    "state",
];

/// What a row says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Line {
    worker_id: String,
    max_leases_per_worker: u64,
    stream_name: String,
    app_name: String,
    shard_count: u64,
    worker_count: u64,
    last_update_time: String,
    held: Option<u64>,
    behind_ms: Option<u64>,
    demand: Option<u64>,
    epoch: Option<u64>,
    state: Option<&'static str>,
}

impl Line {
    fn of(row: &Row, now: WallTime) -> Self {
        let state = |expires: i64| if expires > now.as_seconds() { "alive" } else { "gone" };
        Self {
            worker_id: row.worker_id.clone(),
            max_leases_per_worker: row.max_leases_per_worker,
            stream_name: row.stream_name.clone(),
            app_name: row.app_name.clone(),
            shard_count: row.shard_count,
            worker_count: row.worker_count,
            last_update_time: row.last_update_time.clone(),
            held: row.ours.held,
            behind_ms: row.ours.behind.map(|behind| behind.ms),
            demand: row.ours.demand,
            epoch: row.ours.epoch,
            state: row.ours.expires_at.map(state),
        }
    }

    fn cells(&self) -> [String; 10] {
        let or_dash =
            |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        [
            one_line(&self.worker_id),
            self.max_leases_per_worker.to_string(),
            one_line(&self.stream_name),
            one_line(&self.app_name),
            self.shard_count.to_string(),
            self.worker_count.to_string(),
            one_line(&self.last_update_time),
            or_dash(self.held),
            self.behind_ms.map_or_else(|| "-".to_owned(), |ms| duration::shown(Duration::from_millis(ms))),
            self.state.unwrap_or("-").to_owned(),
        ]
    }
}
