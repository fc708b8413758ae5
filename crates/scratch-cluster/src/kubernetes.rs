//! The parts of a cluster that nobody runs here, played on a real API server.
//!
//! | Played | What it does |
//! |---|---|
//! | kubelet, cloud controller | registers a Node for each machine that runs, with the start-up taint; makes it Ready; removes the Node of a machine that has ended, and its pods |
//! | kubelet | runs the pods on its node; removes those that are told to go |
//! | ReplicaSet | as many pods as wished for |
//! | disruption controller | the status of the one budget |
//!
//! The API server and the scheduler are real. One round looks and does what is missing; what fails is done by the
//! next one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};
use tenure_clock::{Clock, Entropy, SystemClock};
use tokio::task::JoinHandle;

use crate::Exporter;
use crate::ec2::{Cloud, Failure, Machine};

/// Between two rounds.
const ROUND_PAUSE: Duration = Duration::from_millis(150);
/// What new nodes register with until the autoscaler removes it.
const STARTUP_TAINT: &str = "tenure.dev/starting";
/// What the API server gives to new nodes until they are Ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";
const CONTROL_PLANE_ROLE: &str = "node-role.kubernetes.io/control-plane";
/// The one budget, and the pods that it protects.
const BUDGET: &str = "budget";

/// What a node has to give.
pub const NODE_CPU_MILLIS: u64 = 2000;
/// See [`NODE_CPU_MILLIS`].
pub const NODE_MEMORY_MIB: u64 = 4096;

/// Pods of one kind.
#[derive(Debug, Clone, Copy)]
pub struct Replicas {
    /// How many.
    pub count: usize,
    /// What each asks for.
    pub cpu_millis: u64,
    /// See `cpu_millis`.
    pub memory_mib: u64,
}

/// What a test wishes for.
#[derive(Debug, Clone, Default)]
pub struct Wishes {
    /// Pods by the name of their app.
    pub apps: BTreeMap<&'static str, Replicas>,
    /// The app that the budget protects, and how many of its pods must be there.
    pub budget: Option<(&'static str, usize)>,
    /// Rounds that see fewer of them Ready are counted.
    pub budget_is_kept: bool,
    /// Machines that run do not register.
    pub machines_wait: bool,
    /// Pods that start do not become Ready.
    pub pods_wait: bool,
}

/// What was seen in the last round.
#[derive(Debug, Clone, Default)]
pub struct Sight {
    /// Which round it was, from 1.
    pub round: u64,
    /// Pods that are Ready and stay, by app; each with its node.
    pub ready: BTreeMap<String, Vec<String>>,
    /// Pods that have no node, by app.
    pub waiting: BTreeMap<String, usize>,
    /// Those of them for which the scheduler found none.
    pub refused: usize,
    /// Pods that are there, whatever they do, by app.
    pub all: BTreeMap<String, usize>,
    /// Nodes of workers.
    pub workers: BTreeSet<String>,
    /// Nodes that are cordoned.
    pub cordoned: BTreeSet<String>,
    /// How often fewer pods were Ready than the budget says.
    pub shortfalls: usize,
    /// What the last round that failed was told.
    pub failure: Option<String>,
}

/// The parts, played until this is dropped.
pub struct Cluster {
    client: Client,
    namespace: String,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    wishes: Mutex<Wishes>,
    sight: Mutex<Sight>,
}

impl Shared {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sight(&self) -> MutexGuard<'_, Sight> {
        self.sight.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cluster {
    /// Empties the cluster behind the kubeconfig, and plays.
    ///
    /// # Errors
    /// If the API server cannot be used.
    pub async fn start(kubeconfig: &Path, cloud: Cloud, exporter: Exporter) -> Result<Self, Failure> {
        let mut config = tenure_backend::kubernetes::config(Some(kubeconfig), None).await?;
        config.proxy_url = None;
        let client = Client::try_from(config)?;
        let namespace = format!("cluster-{}", &Entropy::system().nonce()[..12]);
        let shared = Arc::<Shared>::default();
        let players = Players {
            client: client.clone(),
            namespace: namespace.clone(),
            cloud,
            exporter,
            shared: shared.clone(),
        };
        players.make_room().await?;
        let task = tokio::spawn(async move { players.play().await });
        Ok(Self { client, namespace, shared, task })
    }

    /// Changes what is wished for.
    pub fn wish(&self, change: impl FnOnce(&mut Wishes)) {
        change(&mut self.shared.wishes());
    }

    /// What was seen last.
    #[must_use]
    pub fn sight(&self) -> Sight {
        self.shared.sight().clone()
    }

    /// Deletes all pods of an app; others come in their place.
    ///
    /// # Errors
    /// As the API server's.
    pub async fn replace(&self, app: &str) -> Result<(), Failure> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let wanted = ListParams::default().labels(&format!("app={app}"));
        api.delete_collection(&DeleteParams::default(), &wanted).await?;
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Players {
    client: Client,
    namespace: String,
    cloud: Cloud,
    exporter: Exporter,
    shared: Arc<Shared>,
}

impl Players {
    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The server is for one test after another.
    async fn make_room(&self) -> Result<(), Failure> {
        let pods: Api<Pod> = Api::all(self.client.clone());
        for pod in pods.list(&ListParams::default()).await? {
            let metadata = pod.metadata;
            let api: Api<Pod> =
                Api::namespaced(self.client.clone(), metadata.namespace.as_deref().unwrap_or_default());
            missing_is_fine(
                api.delete(
                    metadata.name.as_deref().unwrap_or_default(),
                    &DeleteParams::default().grace_period(0),
                )
                .await,
            )?;
        }
        self.nodes().delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
        let namespace: Namespace = serde_json::from_value(json!({ "metadata": { "name": self.namespace } }))?;
        Api::all(self.client.clone()).create(&PostParams::default(), &namespace).await?;
        let budget = json!({
            "apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget",
            "metadata": { "name": BUDGET },
            "spec": { "minAvailable": 0, "selector": { "matchLabels": { "app": "none" } } },
        });
        self.request("POST", &self.budgets(), "application/json", Some(&budget)).await?;
        Ok(())
    }

    async fn play(&self) {
        loop {
            if let Err(error) = self.round().await {
                self.shared.sight().failure = Some(format!("{error:?}"));
            }
            SystemClock.sleep(ROUND_PAUSE).await;
        }
    }

    async fn round(&self) -> Result<(), Failure> {
        let wishes = self.shared.wishes().clone();
        let machines = self.cloud.machines().await?;
        let nodes = self.nodes().list(&ListParams::default()).await?.items;
        let pods = self.pods().list(&ListParams::default()).await?.items;
        self.tell(&nodes, &pods, &wishes);
        for machine in &machines {
            let node = nodes.iter().find(|node| name(node) == node_name(machine));
            match node {
                None if machine.runs && (!wishes.machines_wait || self.is_control_plane(machine)) => {
                    self.register(machine).await?;
                }
                Some(node) if machine.ended => self.remove(node, &pods).await?,
                Some(node) => self.make_ready(machine, node).await?,
                None => {}
            }
        }
        for pod in &pods {
            self.run(pod, &nodes, &wishes).await?;
        }
        for (app, wanted) in &wishes.apps {
            self.replicate(app, wanted, &pods).await?;
        }
        self.judge_budget(&wishes, &pods).await
    }

    /// What tests and Prometheus are told.
    fn tell(&self, nodes: &[Node], pods: &[Pod], wishes: &Wishes) {
        let mut sight = Sight::default();
        let mut used: BTreeMap<String, f64> = BTreeMap::new();
        for node in nodes {
            let is_control_plane = labels(node).is_some_and(|all| all.contains_key(CONTROL_PLANE_ROLE));
            let spec = node.spec.clone().unwrap_or_default();
            if spec.unschedulable == Some(true) {
                sight.cordoned.insert(name(node).to_owned());
            }
            if !is_control_plane {
                sight.workers.insert(name(node).to_owned());
            }
            used.insert(name(node).to_owned(), 0.01);
        }
        for pod in pods {
            let node = node_of(pod);
            *sight.all.entry(app(pod)).or_default() += 1;
            sight.refused += usize::from(is_refused(pod));
            if let Some(used) = node.and_then(|node| used.get_mut(node)) {
                *used += memory_mib(pod) / NODE_MEMORY_MIB as f64;
            }
            match node {
                None if stays(pod) => *sight.waiting.entry(app(pod)).or_default() += 1,
                Some(node) if stays(pod) && is_ready(pod) => {
                    sight.ready.entry(app(pod)).or_default().push(node.to_owned());
                }
                _ => {}
            }
        }
        self.exporter.set(used);
        let least = wishes.budget.filter(|_| wishes.budget_is_kept);
        let short = least.is_some_and(|(app, least)| sight.ready.get(app).map_or(0, Vec::len) < least);
        let mut before = self.shared.sight();
        sight.round = before.round + 1;
        sight.shortfalls = before.shortfalls + usize::from(short);
        sight.failure = before.failure.take();
        *before = sight;
    }

    // === kubelets ===

    fn is_control_plane(&self, machine: &Machine) -> bool {
        machine.id == self.cloud.control_plane
    }

    async fn register(&self, machine: &Machine) -> Result<(), Failure> {
        let (labels, key) = match self.is_control_plane(machine) {
            true => (json!({ CONTROL_PLANE_ROLE: "" }), CONTROL_PLANE_ROLE),
            false => (json!({}), STARTUP_TAINT),
        };
        let node: Node = serde_json::from_value(json!({
            "metadata": { "name": node_name(machine), "labels": labels },
            "spec": {
                "providerID": format!("aws:///{}/{}", machine.zone, machine.id),
                "taints": [{ "key": key, "effect": "NoSchedule" }],
            },
        }))?;
        self.nodes().create(&PostParams::default(), &node).await?;
        Ok(())
    }

    async fn make_ready(&self, machine: &Machine, node: &Node) -> Result<(), Failure> {
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        if !conditions.into_iter().any(|condition| condition.type_ == "Ready") {
            let give = json!({
                "cpu": format!("{NODE_CPU_MILLIS}m"), "memory": format!("{NODE_MEMORY_MIB}Mi"), "pods": "110",
            });
            let status = json!({ "status": {
                "conditions": [{ "type": "Ready", "status": "True" }],
                "addresses": [{ "type": "InternalIP", "address": machine.ip }],
                "capacity": give, "allocatable": give,
            }});
            self.nodes().patch_status(name(node), &PatchParams::default(), &Patch::Merge(&status)).await?;
            return Ok(());
        }
        let mut taints = node.spec.clone().unwrap_or_default().taints.unwrap_or_default();
        if !taints.iter().any(|taint| taint.key == NOT_READY) {
            return Ok(());
        }
        taints.retain(|taint| taint.key != NOT_READY);
        // At the version that was seen: the autoscaler changes them, too.
        let version = node.metadata.resource_version.clone().unwrap_or_default();
        let change = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": taints } });
        missing_is_fine(self.nodes().patch(name(node), &PatchParams::default(), &Patch::Merge(&change)).await)
    }

    async fn remove(&self, node: &Node, pods: &[Pod]) -> Result<(), Failure> {
        for pod in pods.iter().filter(|pod| node_of(pod) == Some(name(node))) {
            self.forget(pod).await?;
        }
        missing_is_fine(self.nodes().delete(name(node), &DeleteParams::default()).await)
    }

    async fn run(&self, pod: &Pod, nodes: &[Node], wishes: &Wishes) -> Result<(), Failure> {
        let Some(node) = node_of(pod) else { return Ok(()) };
        if !stays(pod) || !nodes.iter().any(|other| name(other) == node) {
            return self.forget(pod).await;
        }
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if is_ready(pod) || (wishes.pods_wait && phase == Some("Running")) {
            return Ok(());
        }
        let ready = if wishes.pods_wait { "False" } else { "True" };
        let status = json!({ "status": {
            "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }],
        }});
        let patched =
            self.pods().patch_status(pod_name(pod), &PatchParams::default(), &Patch::Merge(&status)).await;
        missing_is_fine(patched)
    }

    /// What a kubelet does last to a pod that was told to go.
    async fn forget(&self, pod: &Pod) -> Result<(), Failure> {
        let preconditions = Preconditions { uid: pod.metadata.uid.clone(), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        missing_is_fine(self.pods().delete(pod_name(pod), &params).await)
    }

    // === controllers ===

    async fn replicate(&self, of: &str, wanted: &Replicas, pods: &[Pod]) -> Result<(), Failure> {
        let there: Vec<_> = pods.iter().filter(|pod| app(pod) == of && stays(pod)).collect();
        for _ in there.len()..wanted.count {
            let pod: Pod = serde_json::from_value(json!({
                "metadata": {
                    "generateName": format!("{of}-"),
                    "labels": { "app": of },
                    "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": of, "uid": of, "controller": true,
                    }],
                },
                "spec": { "containers": [{
                    "name": "c", "image": "c",
                    "resources": { "requests": {
                        "cpu": format!("{}m", wanted.cpu_millis), "memory": format!("{}Mi", wanted.memory_mib),
                    }},
                }]},
            }))?;
            self.pods().create(&PostParams::default(), &pod).await?;
        }
        for pod in there.iter().skip(wanted.count) {
            missing_is_fine(self.pods().delete(pod_name(pod), &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    fn budgets(&self) -> String {
        format!("/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets", self.namespace)
    }

    /// As the disruption controller: a pod whose eviction was granted and that is still there counts no more.
    async fn judge_budget(&self, wishes: &Wishes, pods: &[Pod]) -> Result<(), Failure> {
        let Some((of, least)) = wishes.budget else { return Ok(()) };
        let path = format!("{}/{BUDGET}", self.budgets());
        let mut budget = self.request("GET", &path, "application/json", None).await?;
        let spec = json!({ "minAvailable": least, "selector": { "matchLabels": { "app": of } } });
        if budget["spec"] != spec {
            // Nothing is granted by the old number while the new one is not judged.
            budget["spec"] = spec;
            budget = match self.request("PUT", &path, "application/json", Some(&budget)).await {
                Ok(budget) => budget,
                Err(error) if is_conflict(&error) => return Ok(()),
                Err(error) => return Err(error),
            };
        }
        let protected: Vec<_> = pods.iter().filter(|pod| app(pod) == of).collect();
        let going = |pod: &&&Pod| budget["status"]["disruptedPods"].get(pod_name(pod)).is_some();
        let disrupted: BTreeMap<_, _> = protected
            .iter()
            .filter(|pod| stays(pod))
            .filter(going)
            .map(|pod| (pod_name(pod).to_owned(), budget["status"]["disruptedPods"][pod_name(pod)].clone()))
            .collect();
        let healthy = protected
            .iter()
            .filter(|pod| stays(pod) && is_ready(pod) && !disrupted.contains_key(pod_name(pod)))
            .count();
        let mut status = json!({
            "observedGeneration": budget["metadata"]["generation"],
            "disruptionsAllowed": healthy.saturating_sub(least),
            "currentHealthy": healthy,
            "desiredHealthy": least,
            "expectedPods": wishes.apps.get(of).map_or(0, |app| app.count),
        });
        if !disrupted.is_empty() {
            status["disruptedPods"] = json!(disrupted);
        }
        if budget["status"] == status {
            return Ok(());
        }
        budget["status"] = status;
        match self.request("PUT", &format!("{path}/status"), "application/json", Some(&budget)).await {
            // An eviction came between: the next round judges again.
            Err(error) if is_conflict(&error) => Ok(()),
            other => other.map(drop),
        }
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        let request = http::Request::builder().method(method).uri(path).header("content-type", content);
        Ok(self.client.request(request.body(body)?).await?)
    }
}

// === reading ===

fn node_name(machine: &Machine) -> String {
    format!("node-{}", machine.id)
}

fn name(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

fn labels(node: &Node) -> Option<&BTreeMap<String, String>> {
    node.metadata.labels.as_ref()
}

fn pod_name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

fn app(pod: &Pod) -> String {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get("app")).cloned().unwrap_or_default()
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

fn stays(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none()
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn is_refused(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let refused = |reason: Option<&str>| reason == Some("Unschedulable");
    conditions.into_iter().flatten().any(|it| it.type_ == "PodScheduled" && refused(it.reason.as_deref()))
}

fn memory_mib(pod: &Pod) -> f64 {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice()).unwrap_or_default();
    let asked = containers.iter().filter_map(|container| container.resources.as_ref()?.requests.as_ref());
    let memory =
        asked.filter_map(|requests| requests.get("memory")?.0.strip_suffix("Mi")?.parse::<f64>().ok());
    memory.sum()
}

/// What is gone, or has changed meanwhile, is for the next round.
fn missing_is_fine<T>(result: Result<T, kube::Error>) -> Result<(), Failure> {
    match result {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

fn is_conflict(error: &Failure) -> bool {
    matches!(error.downcast_ref::<kube::Error>(), Some(kube::Error::Api(status)) if status.code == 409)
}
