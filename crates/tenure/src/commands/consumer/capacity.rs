//! `tenure capacity explain`: why a worker may hold as many leases as it may.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_leases::capacity::{Explanation, survey};

use super::{App, capacity_settings};
use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::output::{counted, one_line};
use crate::settings::Flag;

/// How many leases a worker may hold.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure capacity explain")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Say why the cap is what it is
    #[command(after_help = "\
The formula is min(limit, ceil(shards / workers)), raised while closed shards are still being read, and
never above the limit. With a deficit, some shards are not read: it says how many workers would do.

Examples:
  tenure capacity explain
  tenure capacity explain --app orders --json | jq .cap")]
    Explain(App),
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let Verb::Explain(app) = &self.verb;
        app.flags()
    }
}

pub(crate) async fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let (store, stream) = (context.store().await?, context.stream().await?);
    let app = &context.settings.consumer.app;
    let mut settings = capacity_settings(context);
    let found = context.look(async |by| survey(&*store, by, stream.name(), app, &settings).await).await;
    let found = found.map_err(misuse_if_invalid).context("read the workers' table")?;
    // Workers may have been told by a flag that these settings lack: what they agreed on is there to see.
    settings.enable_dynamic_max_leases |= found.coordinator.is_some();
    let told = found.explain(stream.name(), app, &settings);
    let is_dynamic = settings.enable_dynamic_max_leases;
    let unbounded = !is_dynamic && context.settings.consumer.max_leases.is_none();
    context.out.say(|| as_json(&told, is_dynamic), || as_text(&told, unbounded))?;
    Ok(ExitCode::SUCCESS)
}

fn as_json(told: &Explanation, is_dynamic: bool) -> serde_json::Value {
    json!({
        "stream": told.stream,
        "app": told.app,
        "dynamic": is_dynamic,
        "table": told.table,
        "cap": told.cap.map(|cap| cap.value),
        "why": told.cap.map(|cap| cap.why.text()),
        "limit": told.limit,
        "shards": told.coordinator.as_ref().map(|row| row.shard_count),
        "workers": told.coordinator.as_ref().map(|row| row.worker_count),
        "max_leases_per_worker": told.coordinator.as_ref().map(|row| row.max_leases_per_worker),
        "demand": told.demand,
        "lease_capacity_deficit": told.deficit.map(|deficit| deficit.leases),
        "desired_workers": told.deficit.map(|deficit| deficit.desired_workers),
        "alarms": told.alarms.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn as_text(told: &Explanation, unbounded: bool) -> String {
    let mut lines = vec![match told.cap {
        Some(_) if unbounded => format!(
            "A worker of `{}` may hold any number of leases: there is no max_leases, and enable_dynamic_max_leases is off.",
            told.app
        ),
        Some(cap) => {
            format!("A worker of `{}` may hold {}: {}.", told.app, counted(cap.value, "lease"), cap.why)
        }
        None => format!(
            "Nothing can be said of `{}` yet: no worker has run with enable_dynamic_max_leases on stream `{}`.",
            told.app, told.stream
        ),
    }];
    if let Some(row) = &told.coordinator {
        lines.push(format!(
            "  {} for {}: ceil({}/{}) = {}, limit {}, stored {} at {}",
            counted(row.shard_count, "open shard"),
            counted(row.worker_count, "worker"),
            row.shard_count,
            row.worker_count,
            row.shard_count.div_ceil(row.worker_count.max(1)),
            told.limit,
            row.max_leases_per_worker,
            one_line(&row.last_update_time),
        ));
    }
    lines.extend(
        told.demand
            .map(|demand| format!("  {} to be read, closed shards included", counted(demand, "lease"))),
    );
    lines.extend(told.alarms.iter().map(|alarm| format!("  alarm: {}", one_line(&alarm.to_string()))));
    lines.join("\n")
}
