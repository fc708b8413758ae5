//! `tenure leases`: who has which shard, and moving them.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::json;
use tenure_leases::admin::{Admin, Inventory, Moved};
use tenure_leases::plan::Plan;
use tenure_leases::{Checkpoint, Lease, LeaseKey, WorkerId};

use super::App;
use super::consume::lease_settings;
use super::control::{Controls, LOOK_INTERVAL, Wish, position};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::{aligned, counted, one_line};
use crate::settings::Flag;
use crate::{duration, looking};

/// Who has which shard.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure leases list --app orders
  tenure leases plan
  tenure leases move shardId-000000000002 worker-3
  tenure leases release shardId-000000000002
  tenure leases pause shardId-000000000002
  tenure leases seek shardId-000000000002 latest")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Show every lease: who has it, how far it is, and what it waits for
    #[command(after_help = "\
One line per lease, by name: its owner (and who hands it over at the moment, and whether it is paused), its
checkpoint, its parents.
A checkpoint is a sequence number (with .N for the Nth of those that were put in one record), TRIM_HORIZON,
LATEST or AT_TIMESTAMP if nothing was read yet, or SHARD_END.

Examples:
  tenure leases list
  tenure leases list --app orders --json | jq -r 'select(.owner == null) | .lease'
  tenure leases list --watch")]
    List(ListArgs),
    /// Show what the elected planner would do, if all workers that are known live
    #[command(after_help = "\
Nothing is written.

Examples:
  tenure leases plan
  tenure leases plan --app orders --json")]
    Plan(App),
    /// Have a lease handed over to a worker
    #[command(after_help = "\
Its holder finishes what it has, stores its checkpoint and gives: no record comes twice. If nobody holds it,
or its holder shows no sign of life for a whole lease (which is waited for), the worker has it at once. A worker
that shows none itself is refused: what it is given nobody would read.

Examples:
  tenure leases move shardId-000000000002 worker-3
  tenure leases move shardId-000000000002 worker-9 --force   # it is about to start")]
    Move {
        #[command(flatten)]
        app: App,
        /// The lease, as `tenure leases list` shows it
        lease: String,
        /// The worker that is to have it
        worker: String,
        /// Even if that worker shows no sign of life
        #[arg(long)]
        force: bool,
    },
    /// Take a lease away from a worker that is dead
    #[command(after_help = "\
Its counter is watched for a whole lease first: one that is renewed is not taken away. Then whoever should
have it takes it, from its last checkpoint.

Examples:
  tenure leases release shardId-000000000002")]
    Release(OneLease),
    /// Have a shard left alone: its worker keeps it and reads nothing
    #[command(after_help = "\
Holds until `tenure leases resume`, whoever has the shard, also over restarts. Workers of `tenure consume` follow
within a few seconds, and finish the batch that they have.

Examples:
  tenure leases pause shardId-000000000002 --app orders")]
    Pause(OneLease),
    /// Have a shard read again that was left alone
    #[command(after_help = "\
Examples:
  tenure leases resume shardId-000000000002 --app orders")]
    Resume(OneLease),
    /// Have a shard read from elsewhere
    #[command(after_help = "\
POSITION is trim-horizon (the oldest record), latest (what comes from now on), a sequence number, or a moment.
The worker of `tenure consume` that has the shard, or takes it next, finishes its batch, stores its checkpoint and
begins there, within a few seconds. A checkpoint does not go back: after a step back none is stored until the old
one is passed, and whoever takes the shard before that goes on at the old one.

Examples:
  tenure leases seek shardId-000000000002 latest --app orders
  tenure leases seek shardId-000000000002 2026-11-16T09:30:00Z")]
    Seek {
        #[command(flatten)]
        lease: OneLease,
        /// Where to
        #[arg(value_name = "POSITION")]
        to: String,
    },
}

#[derive(clap::Args)]
struct OneLease {
    #[command(flatten)]
    app: App,
    /// The lease, as `tenure leases list` shows it
    lease: String,
}

#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    app: App,

    /// Print the list again and again until SIGINT or SIGTERM
    #[arg(long)]
    watch: bool,

    /// How long to wait between two looks of --watch
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_positive)]
    interval: Duration,
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        match &self.verb {
            Verb::List(args) => args.app.flags(),
            Verb::Plan(app) | Verb::Move { app, .. } => app.flags(),
            Verb::Release(lease) | Verb::Pause(lease) | Verb::Resume(lease) | Verb::Seek { lease, .. } => {
                lease.app.flags()
            }
        }
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::List(_) | Verb::Plan(_))
    }

    /// Whether the command stays until it is asked to end.
    pub(crate) const fn is_long_running(&self) -> bool {
        matches!(self.verb, Verb::List(ListArgs { watch: true, .. }))
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let store = context.store().await?;
    let app = &context.settings.consumer.app;
    let admin = Admin::new(&*store, &context.env, app, &lease_settings(context));
    let controls = Controls::new(store.clone(), &context.env, &context.settings.election.table, app);
    let look = async || -> tenure_backend::Result<_> {
        Ok((admin.inventory().await?, controls.wishes(context.by()).await?))
    };
    let there = async |by| {
        let coordination = &context.settings.election.table;
        let described =
            store.describe_table(by, app).await?.zip(store.describe_table(by, coordination).await?);
        Ok(described.is_some())
    };
    let begun = context.look(there).await.map_err(misuse_if_invalid).context("look for the lease table")?;
    match args.verb {
        Verb::List(args) if args.watch => {
            let again = async || match there(context.by()).await? {
                true => look().await,
                false => Ok(Default::default()),
            };
            return looking::until_asked_to_end(context, app, args.interval, again, |(found, wishes)| {
                list(&found, &wishes, context)
            })
            .await;
        }
        Verb::List(_) if !begun => list(&Inventory::default(), &BTreeMap::new(), context)?,
        Verb::List(_) => {
            let found = context.look(async |_| look().await).await.map_err(misuse_if_invalid);
            let (found, wishes) = found.context("read the leases")?;
            list(&found, &wishes, context)?;
        }
        Verb::Plan(_) if !begun => show_plan(&Plan::default(), context)?,
        Verb::Plan(_) => {
            let balance = lease_settings(context).balance;
            let planned = context.look(async |_| admin.plan(balance).await).await.map_err(misuse_if_invalid);
            show_plan(&planned.context("read the leases")?, context)?;
        }
        _ if !begun => {
            return Err(misuse(format!(
                "application `{app}` has no leases yet: a worker makes them when it starts (`tenure consume --app \
                 {app}`); or correct --app"
            )));
        }
        Verb::Move { lease, worker, force, .. } => {
            let (lease, worker) = (LeaseKey::from(lease.as_str()), WorkerId::from(worker.as_str()));
            let moved = admin.forced(force).move_lease(&lease, &worker).await.map_err(misuse_if_invalid)?;
            tell(
                context,
                &lease,
                moved,
                &match moved {
                    Moved::Already => format!("{worker} has it already"),
                    Moved::Asked => format!("its holder was asked to hand it over to {worker}"),
                    Moved::Done => format!("nobody held it: it is {worker}'s"),
                },
            )?;
        }
        Verb::Release(OneLease { lease, .. }) => {
            let lease = LeaseKey::from(lease.as_str());
            let moved = admin.release(&lease).await.map_err(misuse_if_invalid)?;
            tell(
                context,
                &lease,
                moved,
                match moved {
                    Moved::Already => "nobody held it",
                    Moved::Asked | Moved::Done => {
                        "it was taken from its holder, which showed no sign of life"
                    }
                },
            )?;
        }
        Verb::Pause(OneLease { lease, .. }) => {
            let (lease, follows) = one(&admin, &lease, context).await?;
            controls.pause(context.by(), &lease, true).await.map_err(misuse_if_invalid)?;
            wished(context, &lease, "paused", &format!("{follows} leaves it alone until it is resumed"))?;
        }
        Verb::Resume(OneLease { lease, .. }) => {
            let (lease, follows) = one(&admin, &lease, context).await?;
            controls.pause(context.by(), &lease, false).await.map_err(misuse_if_invalid)?;
            wished(context, &lease, "resumed", &format!("{follows} reads it"))?;
        }
        Verb::Seek { lease: OneLease { lease, .. }, to } => {
            position(&to).map_err(misuse)?;
            let (lease, follows) = one(&admin, &lease, context).await?;
            controls.seek(context.by(), &lease, &to).await.map_err(misuse_if_invalid)?;
            wished(context, &lease, "asked", &format!("{follows} reads on from {to}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A lease that is there and not at its end, and who follows what is wanted of it.
async fn one(admin: &Admin<'_>, lease: &str, context: &Context) -> anyhow::Result<(LeaseKey, String)> {
    let found = context.look(async |_| admin.inventory().await).await.map_err(misuse_if_invalid);
    let found = found.context("read the leases")?;
    let Some(row) = found.leases.iter().find(|row| row.key.as_str() == lease) else {
        let app = &context.settings.consumer.app;
        return Err(misuse(format!(
            "application `{app}` has no lease `{lease}`: see `tenure leases list --app {app}`"
        )));
    };
    if row.checkpoint.is_end() {
        return Err(misuse(format!("lease {lease} was read to its end: there is nothing left to read")));
    }
    let follows = match &row.owner {
        Some(owner) => {
            let (owner, seconds) = (one_line(owner.as_str()), 2 * LOOK_INTERVAL.as_secs());
            format!("{owner}, if it is a worker of `tenure consume`, follows within {seconds}s and")
        }
        None => "nobody has it: whoever takes it".to_owned(),
    };
    Ok((row.key.clone(), follows))
}

fn wished(context: &Context, lease: &LeaseKey, outcome: &str, what: &str) -> anyhow::Result<()> {
    context.out.say(|| json!({ "lease": lease.as_str(), "outcome": outcome }), || format!("{lease}: {what}"))
}

fn tell(context: &Context, lease: &LeaseKey, moved: Moved, what: &str) -> anyhow::Result<()> {
    let outcome = match moved {
        Moved::Already => "already",
        Moved::Asked => "asked",
        Moved::Done => "done",
    };
    context.out.say(|| json!({ "lease": lease.as_str(), "outcome": outcome }), || format!("{lease}: {what}"))
}

// === list ===

#[derive(Debug, Clone, PartialEq, Serialize)]
struct Line {
    lease: String,
    stream: Option<String>,
    shard: String,
    owner: Option<String>,
    /// Who hands it over at the moment.
    giver: Option<String>,
    /// Whether it is to be left alone.
    paused: bool,
    counter: u64,
    checkpoint: String,
    parents: Vec<String>,
    owner_switches: u64,
    throughput_kbps: Option<f64>,
}

impl Line {
    fn of(lease: &Lease, paused: bool) -> Self {
        Self {
            paused,
            lease: lease.key.to_string(),
            stream: lease.stream.as_deref().map(str::to_owned),
            shard: lease.shard.to_string(),
            owner: lease.owner.as_ref().map(ToString::to_string),
            giver: lease.giver.as_ref().map(ToString::to_string),
            counter: lease.counter,
            checkpoint: shown(&lease.checkpoint),
            parents: lease.parents.iter().map(ToString::to_string).collect(),
            owner_switches: lease.owner_switches,
            throughput_kbps: lease.throughput_kbps,
        }
    }

    fn cells(&self) -> [String; 5] {
        let owner = match (&self.owner, &self.giver) {
            (Some(owner), Some(giver)) => format!("{giver} -> {owner}"),
            (owner, giver) => owner.as_ref().or(giver.as_ref()).map_or_else(|| "-".to_owned(), Clone::clone),
        };
        let owner = if self.paused { format!("{owner} (paused)") } else { owner };
        let parents = if self.parents.is_empty() { "-".to_owned() } else { self.parents.join(",") };
        [
            one_line(&self.lease),
            one_line(&owner),
            one_line(&self.checkpoint),
            self.counter.to_string(),
            one_line(&parents),
        ]
    }
}

/// A checkpoint as the table has it.
fn shown(checkpoint: &Checkpoint) -> String {
    match checkpoint {
        Checkpoint::TrimHorizon => "TRIM_HORIZON".to_owned(),
        Checkpoint::Latest => "LATEST".to_owned(),
        Checkpoint::AtTimestamp => "AT_TIMESTAMP".to_owned(),
        Checkpoint::At { sequence, sub: 0 } => sequence.to_string(),
        Checkpoint::At { sequence, sub } => format!("{sequence}.{sub}"),
        Checkpoint::ShardEnd => "SHARD_END".to_owned(),
    }
}

fn list(found: &Inventory, wishes: &BTreeMap<LeaseKey, Wish>, context: &Context) -> anyhow::Result<()> {
    let is_paused = |lease: &Lease| wishes.get(&lease.key).is_some_and(|wish| wish.paused);
    let lines: Vec<_> = found.leases.iter().map(|lease| Line::of(lease, is_paused(lease))).collect();
    if context.out.is_json() {
        for line in &lines {
            context.out.json_line(line)?;
        }
        let workers: Vec<_> = found.workers.iter().map(|worker| worker.worker.as_str()).collect();
        let bad: Vec<_> =
            found.bad.iter().map(|(lease, why)| json!({"lease": lease.as_str(), "why": why})).collect();
        return context.out.json_line(&json!({"leases": lines.len(), "workers": workers, "bad_rows": bad}));
    }
    if lines.is_empty() {
        context.out.line("there are no leases yet: a worker makes them when it starts")?;
    } else {
        let head = ["lease", "owner", "checkpoint", "counter", "parents"].map(str::to_owned);
        let cells: Vec<_> = std::iter::once(head).chain(lines.iter().map(Line::cells)).collect();
        for line in aligned(&cells) {
            context.out.line(&line)?;
        }
    }
    for (lease, why) in &found.bad {
        context.out.line(&format!("bad row {}: {}", one_line(lease.as_str()), one_line(why)))?;
    }
    Ok(())
}

// === plan ===

fn show_plan(plan: &Plan, context: &Context) -> anyhow::Result<()> {
    if context.out.is_json() {
        let moves: Vec<_> = plan
            .moves
            .iter()
            .map(|one| json!({"lease": one.key.as_str(), "from": one.from.as_str(), "to": one.to.as_str()}))
            .collect();
        let placements: Vec<_> = plan
            .placements
            .iter()
            .map(|(lease, worker)| json!({"lease": lease.as_str(), "to": worker.as_str()}))
            .collect();
        return context.out.json_line(&json!({
            "placements": placements,
            "moves": moves,
            "share": plan.share,
            "lease_capacity_deficit": plan.deficit,
            "desired_workers": plan.desired_workers,
        }));
    }
    for (lease, worker) in &plan.placements {
        context.out.line(&format!("{lease}: nobody has it, {worker} should take it"))?;
    }
    for one in &plan.moves {
        context.out.line(&format!("{}: from {} to {}", one.key, one.from, one.to))?;
    }
    if plan.share == 0 && plan.placements.is_empty() && plan.moves.is_empty() {
        context.out.line("nothing to do: there are no leases to share out, or no workers")?;
    } else if plan.placements.is_empty() && plan.moves.is_empty() {
        context.out.line(&format!("nothing to do: a worker's share is {}", counted(plan.share, "lease")))?;
    }
    if plan.deficit > 0 {
        context.out.line(&format!(
            "{} above what all workers may hold: run {}",
            counted(plan.deficit, "lease"),
            counted(plan.desired_workers, "worker")
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_shown_as_the_table_has_them() {
        assert_eq!(shown(&Checkpoint::At { sequence: 42.into(), sub: 0 }), "42");
        assert_eq!(shown(&Checkpoint::At { sequence: 42.into(), sub: 3 }), "42.3");
        assert_eq!(shown(&Checkpoint::ShardEnd), "SHARD_END");
    }
}
