//! `tenure cdc teardown`: removes the slot, and what the store keeps of a pipeline.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_cdc::server;
use tenure_cdc::shapes::shapes_key;
use tenure_store::{Condition, StoreExt as _, Written};

use super::destination::Place;
use super::{Pipeline, fleet, setup, sql};
use crate::agreement::agreed;
use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::output::one_line;
use crate::settings::Flag;

#[derive(clap::Args)]
#[command(after_help = "\
Drops the slot, so that the server may remove its log, and the pipeline's rows in the store. What was
committed and not published is gone for the stream. A slot in use is left alone, and so is everything else
then. What is in the stream and in the quarantine stays.

Asks on a terminal; elsewhere --yes is needed. A pipeline that is set up again under the same --source begins
another era, so that readers do not take its events for old ones.

Examples:
  tenure cdc teardown
  tenure cdc teardown --yes --drop-publication")]
pub(super) struct Args {
    #[command(flatten)]
    pipeline: Pipeline,

    /// Drop the publications as well
    #[arg(long)]
    drop_publication: bool,

    /// Yes, without asking
    #[arg(long)]
    yes: bool,
}

impl Args {
    pub(super) fn flags(&self) -> Vec<Flag> {
        self.pipeline.flags()
    }
}

pub(super) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let endpoint = super::endpoint(context)?;
    let (slot, publications) = (super::slot(context)?, super::publications(context)?);
    let place = Place::find(context).await?;
    let source = &context.settings.cdc.source;
    let store = context.store().await?;
    let mut session = sql::connect_to_replicate(context, &endpoint).await?;
    let found = server::slot(&mut session, context.by(), &slot).await?;
    setup::refuse_if_active(context, &mut session, &slot, found.as_ref()).await?;
    let question = format!(
        "drop slot `{slot}` of {} and the checkpoint of source `{source}` to {}",
        endpoint.database(),
        place.shown()
    );
    if !args.yes && !agreed(&question)? {
        context.out.say(|| json!({ "done": false }), || "nothing was changed".to_owned())?;
        return Ok(ExitCode::SUCCESS);
    }
    // The slot first: it is what fills the server's disk.
    match found {
        Some(_) => {
            server::drop_slot(&mut session, context.by(), &slot).await.map_err(misuse_if_invalid)?;
            say(context, "slot", "dropped", slot.as_str())?;
        }
        None => say(context, "slot", "absent", slot.as_str())?,
    }
    if args.drop_publication {
        for name in &publications {
            let found = server::publication(&mut session, context.by(), name).await?.is_some();
            sql::drop_publication(context, &mut session, name.as_str()).await.map_err(misuse_if_invalid)?;
            say(context, "publication", if found { "dropped" } else { "absent" }, name.as_str())?;
        }
    }
    let table = &context.settings.election.table;
    let there = context.look(async |by| store.describe_table(by, table).await).await?.is_some();
    if !there {
        say(context, "checkpoint", "absent", source)?;
        return Ok(ExitCode::SUCCESS);
    }
    for process in fleet::processes(&*store, context.by(), table, source).await? {
        let key = fleet::key(source, &process.instance);
        store.delete(context.by(), table, key, Condition::Always).await.context("remove a status row")?;
        say(context, "status row", "removed", &process.instance)?;
    }
    let checkpoint = place.checkpoint(context);
    let shapes = shapes_key(&checkpoint);
    store
        .delete(context.by(), table, shapes, Condition::Always)
        .await
        .context("remove the tables' shapes")?;
    // Its era stays, so that a pipeline that is set up again under this name does not repeat it.
    let ended = store.write(context.by(), &checkpoint.tear_down()).await;
    let outcome = match ended.context("end the checkpoint row")? {
        Written::Applied(_) => "ended",
        Written::Refused(_) => "absent",
    };
    say(context, "checkpoint", outcome, source)?;
    Ok(ExitCode::SUCCESS)
}

fn say(context: &Context, what: &str, outcome: &str, name: &str) -> anyhow::Result<()> {
    context.out.say(
        || json!({ "what": what, "outcome": outcome, "name": name }),
        || one_line(&format!("{what:11}  {outcome:8}  {name}")),
    )
}
