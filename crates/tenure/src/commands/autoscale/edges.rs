//! The real edges of an executor, as the settings name them.

use std::sync::Arc;

use anyhow::Context as _;
use tenure_autoscaler::Executor;
use tenure_store::{Memory, Store};

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// An executor on EC2, Kubernetes and Prometheus, with its tables.
///
/// # Errors
/// A misuse if a setting is missing or wrong.
pub(super) async fn executor(context: &Context) -> anyhow::Result<Executor> {
    let executor = connect(context, None).await?;
    executor.book().ensure_tables().await.map_err(misuse_if_invalid).context("make the tables")?;
    Ok(executor)
}

/// One that is only asked, and makes no tables: where there are none, nothing has happened yet.
///
/// # Errors
/// As [`executor`].
pub(super) async fn onlooker(context: &Context) -> anyhow::Result<Executor> {
    let store = context.store().await?;
    let table = &context.settings.autoscaler.state_table;
    let found = context.look(async |by| store.describe_table(by, table).await).await;
    let found = found.map_err(misuse_if_invalid).with_context(|| format!("look at table `{table}`"))?;
    if found.is_some() {
        return connect(context, None).await;
    }
    tracing::warn!(table, "the state table is not there yet; `tenure autoscale run` makes it");
    let executor = connect(context, Some(Arc::new(Memory::new(&context.env)))).await?;
    executor.book().ensure_tables().await.map_err(misuse_if_invalid)?;
    Ok(executor)
}

/// With a book elsewhere than in the store, if one is given.
async fn connect(context: &Context, book: Option<Arc<dyn Store>>) -> anyhow::Result<Executor> {
    let (settings, env) = (&context.settings.autoscaler, &context.env);
    let policy = settings.policy().map_err(|mistake| misuse(mistake.to_string()))?;
    let edges = settings.edges().map_err(|mistake| misuse(mistake.to_string()))?;
    let mut ports = edges.ports(context.store().await?, env).await.map_err(misuse_if_invalid)?;
    ports.store = book.unwrap_or(ports.store);
    let name = crate::instance::name(env).context("name this executor")?;
    let executor = Executor::builder(ports, policy, env.clone()).name(name).places(super::places(context));
    executor.build().map_err(misuse_if_invalid)
}
