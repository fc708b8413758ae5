//! How many workers there are meant to be, by the Kubernetes API. The only file that names its types.
//!
//! Whatever goes wrong is [`Count::Unknown`]: an API server that is away, a missing permission, a name that is
//! not there, nothing that is ready. None of it is a number of workers.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams};
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};

use super::census::{Census, Count};

/// Pods on one page of a list.
const PAGE_PODS: u32 = 500;
/// Pages that are followed at most: far more pods than one application has.
const PAGES_MAX: u32 = 100;

/// What is counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// Pods of a label selector (`app=orders,tier=worker`) that are ready and not on their way out.
    ReadyPods(String),
    /// The declared replicas of a Deployment.
    Deployment(String),
    /// The declared replicas of a StatefulSet.
    StatefulSet(String),
}

impl Workload {
    fn shown(&self) -> String {
        match self {
            Self::ReadyPods(selector) => format!("ready pods of `{selector}`"),
            Self::Deployment(name) => format!("deployment `{name}`"),
            Self::StatefulSet(name) => format!("statefulset `{name}`"),
        }
    }
}

/// Asks a Kubernetes API server.
#[derive(Clone)]
pub struct Kubernetes {
    client: Client,
    namespace: String,
    workload: Workload,
    clock: Arc<dyn Clock>,
}

impl Kubernetes {
    /// Reads where the API server is and who we are: from `kubeconfig`, or else from `KUBECONFIG`, the home
    /// directory, or the pod that we run in. Nothing is asked yet. Without a namespace, that of the
    /// configuration is used.
    ///
    /// # Errors
    /// `Invalid` if there is no configuration, or it cannot be used.
    pub async fn connect(
        kubeconfig: Option<&Path>,
        namespace: Option<&str>,
        workload: Workload,
        env: &Env,
    ) -> Result<Self> {
        let config = tenure_backend::kubernetes::config(kubeconfig, None).await?;
        let namespace = namespace.map_or_else(|| config.default_namespace.clone(), str::to_owned);
        let client = Client::try_from(config)
            .map_err(|error| Error::invalid("the Kubernetes configuration cannot be used").because(error))?;
        Ok(Self { client, namespace, workload, clock: env.clock.clone() })
    }

    async fn ask(&self) -> Result<u64> {
        match &self.workload {
            Workload::ReadyPods(selector) => self.ready_pods(selector).await,
            Workload::Deployment(name) => {
                let api: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
                let found = api.get(name).await.map_err(failed)?;
                Ok(replicas(found.spec.and_then(|spec| spec.replicas)))
            }
            Workload::StatefulSet(name) => {
                let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &self.namespace);
                let found = api.get(name).await.map_err(failed)?;
                Ok(replicas(found.spec.and_then(|spec| spec.replicas)))
            }
        }
    }

    async fn ready_pods(&self, selector: &str) -> Result<u64> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut page = ListParams::default().labels(selector).limit(PAGE_PODS);
        let mut ready = 0;
        for _ in 0..PAGES_MAX {
            let list = api.list(&page).await.map_err(failed)?;
            ready += list.items.iter().filter(|pod| is_ready(pod)).count() as u64;
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(ready),
            }
        }
        Err(Error::invalid(format!("more than {PAGES_MAX} pages of pods: narrow the selector")))
    }
}

#[async_trait]
impl Census for Kubernetes {
    async fn count(&self, by: Monotonic) -> Count {
        let what = self.source();
        match within(&*self.clock, by, self.ask()).await {
            Ok(Ok(0)) => Count::Unknown(format!("{what}: there are none, although this worker runs")),
            Ok(Ok(workers)) => Count::Known(workers),
            Ok(Err(error)) => Count::Unknown(format!("{what}: {}", error.chain())),
            Err(_) => Count::Unknown(format!("{what}: the Kubernetes API does not answer")),
        }
    }

    fn source(&self) -> String {
        format!("{} in namespace `{}`", self.workload.shown(), self.namespace)
    }
}

/// The client holds credentials.
impl std::fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kubernetes({})", self.source())
    }
}

/// Ready to work, and not told to end.
fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let ready =
        conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    ready && pod.metadata.deletion_timestamp.is_none()
}

/// The API server fills in 1 where nothing is said.
fn replicas(declared: Option<i32>) -> u64 {
    u64::try_from(declared.unwrap_or(1)).unwrap_or(0)
}

fn failed(error: kube::Error) -> Error {
    let kind = match &error {
        kube::Error::Api(status) if status.code == 401 || status.code == 403 => Kind::Denied,
        kube::Error::Api(status) if (400..500).contains(&status.code) => Kind::Invalid,
        _ => Kind::Unavailable,
    };
    Error::new(kind, "ask the Kubernetes API").because(error)
}
