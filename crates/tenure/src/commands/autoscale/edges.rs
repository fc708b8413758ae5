//! The real edges of an executor, as the settings name them.

use std::sync::Arc;

use anyhow::Context as _;
use tenure_autoscaler::{Edges, Executor, ec2, kubernetes, prometheus};
use tenure_store::{Memory, Store};

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// An executor on EC2, Kubernetes and Prometheus, with its tables.
///
/// # Errors
/// A misuse if a setting is missing or wrong.
pub(super) async fn executor(context: &Context) -> anyhow::Result<Executor> {
    let executor = connect(context, context.store().await?).await?;
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
        return connect(context, store).await;
    }
    tracing::warn!(table, "the state table is not there yet; `tenure autoscale run` makes it");
    let executor = connect(context, Arc::new(Memory::new(&context.env))).await?;
    executor.book().ensure_tables().await.map_err(misuse_if_invalid)?;
    Ok(executor)
}

async fn connect(context: &Context, store: Arc<dyn Store>) -> anyhow::Result<Executor> {
    let (settings, env) = (&context.settings.autoscaler, &context.env);
    let missing = |(key, message): (&str, String)| misuse(format!("autoscaler.{key}: {message}"));
    let policy = settings.policy().map_err(missing)?;
    let template = settings.launch_template.as_ref();
    let template = template.ok_or_else(|| {
        missing(("launch_template", "not set: give the id (lt-…) or name of a worker's".to_owned()))
    })?;
    let edges = Edges {
        cloud: ec2::Settings {
            region: settings.region.clone(),
            endpoint: settings.endpoint.clone(),
            ..ec2::Settings::new(&policy.cluster, template)
        },
        cluster: kubernetes::Settings {
            kubeconfig: settings.kubeconfig.clone(),
            ..kubernetes::Settings::default()
        },
        metrics: settings.prometheus.as_ref().map(prometheus::Settings::new),
    };
    let ports = edges.ports(store, env).await.map_err(misuse_if_invalid)?;
    let name = crate::instance::name(env).context("name this executor")?;
    let executor = Executor::builder(ports, policy, env.clone()).name(name).places(super::places(context));
    executor.build().map_err(misuse_if_invalid)
}
