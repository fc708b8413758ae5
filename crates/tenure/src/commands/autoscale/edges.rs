//! The real edges of an executor, as the settings name them.

use anyhow::Context as _;
use tenure_autoscaler::{Edges, Executor, ec2, kubernetes, prometheus};

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// An executor on EC2, Kubernetes and Prometheus.
///
/// # Errors
/// A misuse if a setting is missing or wrong.
pub(super) async fn executor(context: &Context) -> anyhow::Result<Executor> {
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
    let store = context.store().await?;
    let ports = edges.ports(store, env).await.map_err(misuse_if_invalid)?;
    let name = crate::instance::name(env).context("name this executor")?;
    let executor = Executor::builder(ports, policy, env.clone()).name(name).places(super::places(context));
    let executor = executor.build().map_err(misuse_if_invalid)?;
    executor.book().ensure_tables().await.map_err(misuse_if_invalid).context("make the tables")?;
    Ok(executor)
}
