//! `tenure resign`: asks the leader of a shard to hand over, and waits until it has.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use serde::Serialize;
use tenure_clock::Monotonic;
use tenure_election::{Epoch, Lock, Nonce, OwnerId, Place, ResignRequest, ShardId};
use tenure_store::{Store, Written};

use super::Table;
use crate::context::Context;
use crate::duration;
use crate::failure::{REFUSED, misuse_if_invalid};
use crate::output::one_line;

/// How long to wait between two looks at the row.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How often a leader that changes under our hands is asked anew.
const ASKED_MAX: u32 = 5;

#[derive(clap::Args)]
#[command(after_help = "\
The leader sees the request with its next renewal, ends its work, and releases the shard. Then this
waits until somebody leads, for little more than a lease: with --to, others hold back for that long.
The same process may be elected again if nobody else stands for the shard.
Exit status 3 if nobody leads, 1 if the leader has not handed over in time (the request stays).

Examples:
  tenure resign batch-processor
  tenure resign batch-processor --to host-2
  tenure resign batch-processor --wait 10s --json")]
pub(crate) struct Args {
    /// What is led
    shard: String,

    /// The name of the candidate that should lead next (the --owner of its `tenure elect`)
    #[arg(long, value_name = "NAME")]
    to: Option<String>,

    /// How long to wait for the handover
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = duration::parse_positive)]
    wait: Duration,

    #[command(flatten)]
    table: Table,
}

#[derive(Serialize)]
struct Outcome<'a> {
    shard: &'a str,
    outcome: &'static str,
    from: Option<Who>,
    to: Option<Who>,
}

#[derive(Serialize, Clone, PartialEq, Eq)]
struct Who {
    name: Option<String>,
    owner: String,
    epoch: u64,
}

impl Who {
    fn of(lock: &Lock, epoch: Epoch) -> Self {
        let name = lock.card.as_ref().map(|card| card.name.to_string());
        Self { name, owner: lock.owner.to_string(), epoch: epoch.0 }
    }

    fn shown(&self) -> String {
        let name = self.name.as_deref().unwrap_or(&self.owner);
        one_line(&format!("{name} (owner {}, epoch {})", self.owner, self.epoch))
    }
}

pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let shard = ShardId::new(&args.shard).map_err(misuse_if_invalid)?;
    if let Some(to) = &args.to {
        // A candidate's name obeys the rules of an id.
        OwnerId::new(to).map_err(misuse_if_invalid).context("--to")?;
    }
    let store = context.store().await?;
    let table = args.table.existing(context, &*store).await?;
    let row = Row { context, store: &*store, place: Place { table, shard } };
    let by = context.env.clock.deadline(args.wait);
    let Some(leader) = row.ask(args.to.as_deref().map(Arc::from)).await? else {
        context.out.say(
            || Outcome { shard: &args.shard, outcome: "unled", from: None, to: None },
            || format!("nobody leads shard `{}`", one_line(&args.shard)),
        )?;
        return Ok(ExitCode::from(REFUSED));
    };
    let next = row.handover(&leader, by, args.wait).await?;
    context.out.say(
        || {
            let outcome = if next.is_some() { "handed_over" } else { "released" };
            Outcome { shard: &args.shard, outcome, from: Some(leader.clone()), to: next.clone() }
        },
        || match &next {
            Some(next) if next.owner == leader.owner => {
                format!("{} resigned, and was elected again: epoch {}", leader.shown(), next.epoch)
            }
            Some(next) => format!("{} handed over to {}", leader.shown(), next.shown()),
            None => format!("{} resigned, and nobody stands for the shard", leader.shown()),
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

/// The row of one shard.
struct Row<'a> {
    context: &'a Context,
    store: &'a dyn Store,
    place: Place,
}

impl Row<'_> {
    async fn read(&self) -> anyhow::Result<Option<Lock>> {
        let key = self.place.lock_key();
        let item = self.context.look(async |by| self.store.get(by, &self.place.table, &key).await).await;
        let item = item.with_context(|| format!("read the row of shard `{}`", self.place.shard))?;
        Ok(item.map(|item| self.place.lock(&item)).transpose()?)
    }

    /// Leaves the request in the row. Answers whom it is for, if anybody.
    async fn ask(&self, to: Option<Arc<str>>) -> anyhow::Result<Option<Who>> {
        let entropy = &self.context.env.entropy;
        let nonce = Nonce(u128::from(entropy.u64()) << 64 | u128::from(entropy.u64()));
        let request = ResignRequest { nonce, to };
        for _ in 0..ASKED_MAX {
            let Some(lock) = self.read().await?.filter(|lock| !lock.is_released()) else { return Ok(None) };
            let Some(epoch) = lock.epoch else {
                return Err(anyhow!(
                    "shard `{}` is led by `{}`, a process with the Go library, which hears no requests: stop that process",
                    self.place.shard,
                    lock.owner
                ));
            };
            let write = self.place.ask_to_resign(&lock.owner, epoch, &request);
            let written = self.store.write(self.context.by(), &write).await;
            match written.with_context(|| format!("ask the leader of shard `{}`", self.place.shard))? {
                Written::Applied(_) => return Ok(Some(Who::of(&lock, epoch))),
                // Another leads by now, or it was released.
                Written::Refused(_) => {}
            }
        }
        Err(anyhow!(
            "the leader of shard `{}` changes faster than it can be asked: try again",
            self.place.shard
        ))
    }

    /// Waits until somebody else leads, or the next term began. None if the shard stays released.
    async fn handover(&self, leader: &Who, by: Monotonic, wait: Duration) -> anyhow::Result<Option<Who>> {
        let clock = &self.context.env.clock;
        let mut released_until = None;
        loop {
            let lock = self.read().await?;
            match &lock {
                Some(lock) if !lock.is_released() => match lock.epoch {
                    Some(epoch) if epoch.0 == leader.epoch => {}
                    epoch => return Ok(Some(Who::of(lock, epoch.unwrap_or(Epoch(0))))),
                },
                _ => {
                    // Time for the others to notice, and for those who must hold back.
                    let lease = lock.as_ref().and_then(|lock| lock.lease).unwrap_or_default();
                    let until = *released_until.get_or_insert_with(|| clock.deadline(lease + lease / 5));
                    if clock.monotonic() >= until.min(by) {
                        return Ok(None);
                    }
                }
            }
            if clock.monotonic() >= by {
                return Err(anyhow!(
                    "{} has not handed over in {}: it sees the request with its next renewal, and then ends its work; \
                     the request stays. `tenure leaders` shows whether its row is past: then it has gone, and others take \
                     over when its lease is over",
                    leader.shown(),
                    duration::shown(wait)
                ));
            }
            clock.sleep(LOOK_INTERVAL).await;
        }
    }
}
