//! The real edges of an executor, as the settings name them.

use anyhow::Context as _;
use tenure_autoscaler::Executor;

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// An executor on EC2, Kubernetes and Prometheus.
///
/// # Errors
/// A misuse if a setting is missing or wrong.
pub(super) async fn executor(context: &Context) -> anyhow::Result<Executor> {
    let (settings, env) = (&context.settings.autoscaler, &context.env);
    let policy = settings.policy().map_err(|mistake| misuse(mistake.to_string()))?;
    let edges = settings.edges().map_err(|mistake| misuse(mistake.to_string()))?;
    let store = context.store().await?;
    let ports = edges.ports(store, env).await.map_err(misuse_if_invalid)?;
    let name = crate::instance::name(env).context("name this executor")?;
    let executor = Executor::builder(ports, policy, env.clone()).name(name).places(super::places(context));
    let executor = executor.build().map_err(misuse_if_invalid)?;
    executor.book().ensure_tables().await.map_err(misuse_if_invalid).context("make the tables")?;
    Ok(executor)
}
