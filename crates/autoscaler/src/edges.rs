//! The real edges of an executor: EC2, the Kubernetes API, Prometheus.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tenure_backend::{Env, Error, Result};
use tenure_clock::Monotonic;
use tenure_store::Store;

use crate::ports::{Backlog, Measures, Metrics};
use crate::{Ports, backlog, ec2, kubernetes, prometheus};

/// What to connect to.
#[derive(Debug, Clone)]
pub struct Edges {
    /// Where instances are.
    pub cloud: ec2::Settings,
    /// Where nodes and pods are.
    pub cluster: kubernetes::Settings,
    /// Where loads are measured. Without it they are unknown, and nothing is ever taken away.
    pub metrics: Option<prometheus::Settings>,
    /// Whose lag counts. Without it nobody is asked.
    pub behind: Option<backlog::Behind>,
}

impl Edges {
    /// The edges, with the state in this store. Nothing is sent yet, but what AWS's own files and the metadata
    /// service are asked for the region and credentials.
    ///
    /// # Errors
    /// `Invalid` if a setting cannot be used.
    pub async fn ports(&self, store: Arc<dyn Store>, env: &Env) -> Result<Ports> {
        let cloud = ec2::Ec2::connect(&self.cloud, env).await.map_err(|error| error.during("use EC2"))?;
        let cluster = kubernetes::Kubernetes::connect(&self.cluster, env).await;
        let cluster = cluster.map_err(|error| error.during("use the Kubernetes API"))?;
        let metrics: Arc<dyn Metrics> = match &self.metrics {
            Some(settings) => {
                let asked = prometheus::Prometheus::connect(settings, env);
                Arc::new(asked.map_err(|error| error.during("use Prometheus"))?)
            }
            None => Arc::new(Unmeasured),
        };
        let told = |behind: &backlog::Behind| -> Arc<dyn Backlog> { Arc::new(behind.told(&store, env)) };
        let backlog = self.behind.as_ref().map(told);
        Ok(Ports { store, cloud: Arc::new(cloud), cluster: Arc::new(cluster), metrics, backlog })
    }
}

/// Nobody measures: loads are unknown, and nothing is taken away.
#[derive(Debug)]
struct Unmeasured;

const UNMEASURED: &str = "no Prometheus is named";

#[async_trait]
impl Metrics for Unmeasured {
    async fn measures(&self, _: Monotonic) -> Result<Measures> {
        Err(Error::unavailable(UNMEASURED))
    }

    async fn readiness(&self, _: Monotonic) -> Result<BTreeMap<String, bool>> {
        Err(Error::unavailable(UNMEASURED))
    }
}
