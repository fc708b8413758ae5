//! Nodes, pods and evictions, by the Kubernetes API. The only file of this crate that names its types.
//!
//! ```text
//!   kubernetes.rs            the calls, and what is read from nodes and pods
//!   kubernetes/failure.rs    what a failed call means: may it have had its effect?
//!   kubernetes/quantity.rs   `250m`, `128Mi` and the like
//!   kubernetes/wants.rs      which nodes may take a pod: selectors, affinity, taints, volumes
//! ```
//!
//! The client's own retries are off: a hidden second try of a change would be refused by the version that the
//! first one moved, and look like a lost race.
//!
//! A node changes by one patch that carries the version it was read at, so it changes as a whole or not at all.

mod failure;
mod quantity;
mod wants;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use k8s_openapi::api::core::v1::{
    Container, Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod as ApiPod,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, Preconditions};
use kube::core::Status;
use serde_json::{Value, json};
use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, within};

use self::failure::{Failure, Permission};
use self::quantity::{Rounding, parse_quantity};
use self::wants::{Volumes, claims, taints, wants};
use crate::intent::Intent;
use crate::machine::Manner;
use crate::observation::{CordonMark, Node, Pod, PodOwner, Resources};
use crate::ports::{Cluster, Evicted, Patched};
use crate::state::{ActionId, InstanceId};

/// Who cordoned a node: the action's number, a space, the action's id.
pub const CORDONED_BY: &str = "tenure.dev/cordoned-by";
/// The action that gave a node back last.
pub const RELEASED_BY: &str = "tenure.dev/released-by";
/// The label that user data gives a node whose provider id is not the cloud's.
pub const INSTANCE_ID: &str = "tenure.dev/instance-id";
/// The taint that new nodes register with, unless the settings name another.
pub const STARTUP_TAINT: &str = "tenure.dev/starting";

const LIST_NODES: Permission = Permission { verb: "list", resource: "nodes" };
const PATCH_NODES: Permission = Permission { verb: "patch", resource: "nodes" };
const LIST_PODS: Permission = Permission { verb: "list", resource: "pods" };
const EVICT_PODS: Permission = Permission { verb: "create", resource: "pods/eviction" };
const DELETE_PODS: Permission = Permission { verb: "delete", resource: "pods" };
const LIST_CLAIMS: Permission = Permission { verb: "list", resource: "persistentvolumeclaims" };
const LIST_VOLUMES: Permission = Permission { verb: "list", resource: "persistentvolumes" };

/// All that a ClusterRole must grant, as verb and resource of the core API group. `delete pods` is used by a
/// forced drain alone; claims and volumes are listed where a pod has any, to leave alone what cannot move.
pub const PERMISSIONS: [(&str, &str); 7] = [
    LIST_NODES.as_pair(),
    PATCH_NODES.as_pair(),
    LIST_PODS.as_pair(),
    EVICT_PODS.as_pair(),
    DELETE_PODS.as_pair(),
    LIST_CLAIMS.as_pair(),
    LIST_VOLUMES.as_pair(),
];

/// Objects on one page of a list.
const PAGE_OBJECTS: u32 = 500;
/// Pages that are followed at most: 100,000 pods.
const PAGES_MAX: u32 = 200;
/// How often a list begins anew because the server forgot where it was.
const LISTS_MAX: u32 = 3;
/// Roles of nodes that are never taken away; k3s gives its servers any of them.
const CONTROL_PLANE_ROLES: [&str; 3] = [
    "node-role.kubernetes.io/control-plane",
    "node-role.kubernetes.io/master",
    "node-role.kubernetes.io/etcd",
];
/// The annotation of a pod that its node brings back.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// What to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// A kubeconfig. Without it: `KUBECONFIG`, the home directory, or the pod that this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// A context of that kubeconfig, other than its current one.
    pub context: Option<String>,
    /// The key of the taint that new nodes register with. [`STARTUP_TAINT`] by default.
    pub startup_taint: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self { kubeconfig: None, context: None, startup_taint: STARTUP_TAINT.to_owned() }
    }
}

/// A cluster behind its API server.
pub struct Kubernetes {
    client: Client,
    /// For messages: where the client connects to.
    server: String,
    startup_taint: String,
    clock: Arc<dyn Clock>,
    /// The version of the eviction's API group, once the server was asked.
    eviction_api: Mutex<Option<String>>,
}

/// The client holds credentials.
impl fmt::Debug for Kubernetes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubernetes")
            .field("server", &self.server)
            .field("startup_taint", &self.startup_taint)
            .finish_non_exhaustive()
    }
}

impl Kubernetes {
    /// Reads where the API server is and who we are. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` if there is no configuration, it cannot be used, or the taint has no name.
    pub async fn connect(settings: &Settings, env: &Env) -> Result<Self> {
        check_taint(&settings.startup_taint)?;
        let (kubeconfig, context) = (settings.kubeconfig.as_deref(), settings.context.as_deref());
        let mut config = tenure_backend::kubernetes::config(kubeconfig, context).await?;
        config.default_retry = false;
        // The client takes a proxy of the environment for every cluster, and has no list of exceptions. The API
        // server of one's own cluster is reached directly; a kubeconfig may still name a proxy.
        if ["HTTPS_PROXY", "https_proxy"].iter().any(|name| std::env::var_os(name).is_some()) {
            config.proxy_url = None;
        }
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config)
            .map_err(|error| Error::invalid("the Kubernetes configuration cannot be used").because(error))?;
        Ok(Self {
            client,
            server,
            startup_taint: settings.startup_taint.clone(),
            clock: env.clock.clone(),
            eviction_api: Mutex::default(),
        })
    }

    /// One call, until `by`.
    async fn send<T>(
        &self,
        by: Monotonic,
        intent: Intent,
        call: impl Future<Output = Result<T, kube::Error>> + Send,
    ) -> Result<T, Failure> {
        if self.clock.monotonic() >= by {
            return Err(Failure::Other(Error::unavailable("the deadline passed before anything was sent")));
        }
        // Boxed: the client's futures are large.
        match within(&*self.clock, by, Box::pin(call)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Failure::of(error, intent, &self.server)),
            Err(_) => Err(Failure::unanswered(intent, &self.server)),
        }
    }

    /// All objects, page by page, of one moment. A server forgets that moment after some minutes; then the
    /// list begins anew.
    async fn list<K>(
        &self,
        by: Monotonic,
        api: &Api<K>,
        wanted: &ListParams,
        permission: Permission,
    ) -> Result<Vec<K>>
    where
        K: Clone + fmt::Debug + serde::de::DeserializeOwned + Send + Sync,
    {
        for _ in 0..LISTS_MAX {
            match self.pages(by, api, wanted.clone()).await {
                Ok(Some(objects)) => return Ok(objects),
                Ok(None) => {
                    let (most, what) = (PAGES_MAX * PAGE_OBJECTS, permission.resource);
                    return Err(Error::invalid(format!(
                        "there are more than {most} {what}: Tenure does not scale so large a cluster"
                    )));
                }
                Err(Failure::Answer(status)) if status.code == 410 => {}
                Err(failure) => return Err(failure.into_error(Intent::Read, permission, &self.server)),
            }
        }
        Err(Error::unavailable(format!(
            "the list of {} expired {LISTS_MAX} times before it was read: try again when the API server is less busy",
            permission.resource
        )))
    }

    /// None if there are more pages than are followed.
    async fn pages<K>(
        &self,
        by: Monotonic,
        api: &Api<K>,
        mut page: ListParams,
    ) -> Result<Option<Vec<K>>, Failure>
    where
        K: Clone + fmt::Debug + serde::de::DeserializeOwned + Send + Sync,
    {
        page = page.limit(PAGE_OBJECTS);
        let mut objects = Vec::new();
        for _ in 0..PAGES_MAX {
            let list = self.send(by, Intent::Read, api.list(&page)).await?;
            objects.extend(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(Some(objects)),
            }
        }
        Ok(None)
    }

    /// Changes a node that is still at that version.
    async fn patch(&self, by: Monotonic, node: &str, version: &str, mut change: Value) -> Result<Patched> {
        check_name("node", node)?;
        if version.is_empty() {
            return Err(Error::invalid(format!(
                "node {node} would be changed at no version: list the nodes first"
            )));
        }
        change["metadata"]["resourceVersion"] = json!(version);
        let api: Api<ApiNode> = Api::all(self.client.clone());
        let patch = Patch::Merge(change);
        let params = PatchParams::default();
        match self.send(by, Intent::Write, api.patch(node, &params, &patch)).await {
            Ok(_) => Ok(Patched::Done),
            Err(Failure::Answer(status)) if status.is_conflict() => Ok(Patched::Conflict),
            Err(Failure::Answer(status)) if is_missing(&status, "nodes") => Ok(Patched::Gone),
            Err(failure) => Err(failure.into_error(Intent::Write, PATCH_NODES, &self.server)),
        }
    }

    /// `policy/v1`, or `policy/v1beta1` of a server before 1.22: as it says itself.
    async fn eviction_api(&self, by: Monotonic) -> Result<String> {
        let known = self.eviction_api.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(known) = known {
            return Ok(known);
        }
        let resources = self
            .send(by, Intent::Read, self.client.list_core_api_resources("v1"))
            .await
            .map_err(|failure| failure.into_error(Intent::Read, EVICT_PODS, &self.server))?;
        let eviction = resources.resources.into_iter().find(|resource| resource.name == "pods/eviction");
        let Some(eviction) = eviction else {
            return Err(Error::invalid(format!(
                "the API server at {} has no `pods/eviction`: Tenure drains nodes by it",
                self.server
            )));
        };
        let group = eviction.group.filter(|it| !it.is_empty()).unwrap_or_else(|| "policy".to_owned());
        let version = eviction.version.filter(|it| !it.is_empty()).unwrap_or_else(|| "v1".to_owned());
        let found = format!("{group}/{version}");
        *self.eviction_api.lock().unwrap_or_else(PoisonError::into_inner) = Some(found.clone());
        Ok(found)
    }

    async fn volumes(&self, by: Monotonic) -> Result<Volumes> {
        let api: Api<PersistentVolumeClaim> = Api::all(self.client.clone());
        let claims = self.list(by, &api, &ListParams::default(), LIST_CLAIMS).await?;
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let volumes = self.list(by, &api, &ListParams::default(), LIST_VOLUMES).await?;
        Ok(Volumes::new(claims, volumes))
    }

    fn forget_eviction_api(&self) {
        *self.eviction_api.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn ask_to_go(
        &self,
        by: Monotonic,
        namespace: &str,
        name: &str,
        uid: &str,
        dry_run: bool,
    ) -> Result<Evicted> {
        let api_version = self.eviction_api(by).await?;
        let request = eviction(&api_version, namespace, name, uid, dry_run)?;
        let intent = if dry_run { Intent::Read } else { Intent::Write };
        let status = match self.send(by, intent, self.client.request::<Status>(request)).await {
            Ok(answer) => answer,
            Err(Failure::Answer(status)) => *status,
            Err(failure) => return Err(failure.into_error(intent, EVICT_PODS, &self.server)),
        };
        if let Some(evicted) = meaning(&status) {
            return Ok(evicted);
        }
        // The server may be another one by now.
        self.forget_eviction_api();
        Err(Failure::Answer(Box::new(status)).into_error(intent, EVICT_PODS, &self.server))
    }

    async fn delete(&self, by: Monotonic, namespace: &str, name: &str, uid: &str) -> Result<Evicted> {
        let api: Api<ApiPod> = Api::namespaced(self.client.clone(), namespace);
        let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match self.send(by, Intent::Write, api.delete(name, &params)).await {
            Ok(_) => Ok(Evicted::Accepted),
            Err(Failure::Answer(status)) if status.is_conflict() || is_missing(&status, "pods") => {
                Ok(Evicted::Gone)
            }
            Err(failure) => Err(failure.into_error(Intent::Write, DELETE_PODS, &self.server)),
        }
    }
}

#[async_trait]
impl Cluster for Kubernetes {
    async fn nodes(&self, by: Monotonic) -> Result<Vec<Node>> {
        let api: Api<ApiNode> = Api::all(self.client.clone());
        let nodes = self.list(by, &api, &ListParams::default(), LIST_NODES).await?;
        nodes.into_iter().map(|node| seen_node(node, &self.startup_taint)).collect()
    }

    async fn pods(&self, by: Monotonic) -> Result<Vec<Pod>> {
        let api: Api<ApiPod> = Api::all(self.client.clone());
        let alive = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
        let pods = self.list(by, &api, &alive, LIST_PODS).await?;
        let has_claims = |pod: &ApiPod| pod.spec.as_ref().is_some_and(|spec| !claims("", spec).is_empty());
        let volumes = if pods.iter().any(has_claims) { self.volumes(by).await? } else { Volumes::default() };
        pods.into_iter().map(|pod| seen_pod(pod, &volumes)).collect()
    }

    async fn cordon(&self, by: Monotonic, node: &str, version: &str, mark: &CordonMark) -> Result<Patched> {
        let annotations = json!({ CORDONED_BY: written_mark(mark) });
        let change = json!({ "metadata": { "annotations": annotations }, "spec": { "unschedulable": true } });
        self.patch(by, node, version, change).await
    }

    async fn release(
        &self,
        by: Monotonic,
        node: &str,
        version: &str,
        action: &ActionId,
        uncordon: bool,
    ) -> Result<Patched> {
        let change = if uncordon {
            let annotations = json!({ RELEASED_BY: action.as_str(), CORDONED_BY: null });
            json!({ "metadata": { "annotations": annotations }, "spec": { "unschedulable": null } })
        } else {
            json!({ "metadata": { "annotations": { RELEASED_BY: action.as_str() } } })
        };
        self.patch(by, node, version, change).await
    }

    async fn untaint(&self, by: Monotonic, node: &str, version: &str) -> Result<Patched> {
        check_name("node", node)?;
        // Taints are replaced as a whole, so all others must be known. By a list: that is granted already.
        let api: Api<ApiNode> = Api::all(self.client.clone());
        let wanted = ListParams::default().fields(&format!("metadata.name={node}"));
        let found = self.list(by, &api, &wanted, LIST_NODES).await?.into_iter().next();
        let Some(found) = found else { return Ok(Patched::Gone) };
        if found.metadata.resource_version.as_deref() != Some(version) {
            return Ok(Patched::Conflict);
        }
        let mut taints = found.spec.and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.key != self.startup_taint);
        let taints = serde_json::to_value(taints)
            .map_err(|error| Error::invalid("the node's taints could not be written").because(error))?;
        self.patch(by, node, version, json!({ "spec": { "taints": taints } })).await
    }

    async fn evict(
        &self,
        by: Monotonic,
        namespace: &str,
        name: &str,
        uid: &str,
        manner: Manner,
    ) -> Result<Evicted> {
        check_name("namespace", namespace)?;
        check_name("pod", name)?;
        if uid.is_empty() {
            return Err(Error::invalid(format!(
                "pod {namespace}/{name} has no uid, so another of its name could be evicted: list the pods first"
            )));
        }
        match manner {
            Manner::DryRun => self.ask_to_go(by, namespace, name, uid, true).await,
            Manner::Evict => self.ask_to_go(by, namespace, name, uid, false).await,
            Manner::Force => self.delete(by, namespace, name, uid).await,
        }
    }
}

// === evictions ===

/// Made here and not by the client, which spells the options so that the server passes over them: without the
/// uid another pod of the same name could be evicted.
fn eviction(
    api_version: &str,
    namespace: &str,
    name: &str,
    uid: &str,
    dry_run: bool,
) -> Result<http::Request<Vec<u8>>> {
    let mut options = json!({ "preconditions": { "uid": uid } });
    let mut path = format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction");
    if dry_run {
        options["dryRun"] = json!(["All"]);
        path.push_str("?dryRun=All");
    }
    let body = json!({
        "apiVersion": api_version,
        "kind": "Eviction",
        "metadata": { "namespace": namespace, "name": name },
        "deleteOptions": options,
    });
    http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body.to_string().into_bytes())
        .map_err(|error| Error::invalid("an eviction could not be written").because(error))
}

/// What the server says of an eviction; None if that is an error.
fn meaning(status: &Status) -> Option<Evicted> {
    let causes = || status.details.iter().flat_map(|details| &details.causes);
    let has_cause = |reason: &str| causes().any(|cause| cause.reason == reason);
    if status.is_conflict() || is_missing(status, "pods") {
        return Some(Evicted::Gone);
    }
    // Its namespace is being deleted, and it with it: nothing may be created there, evictions neither.
    if status.code == 403 && has_cause("NamespaceTerminating") {
        return Some(Evicted::Accepted);
    }
    // Without that cause it is the server that has too much to do, and no budget.
    if status.code == 429 && has_cause("DisruptionBudget") {
        let said = causes().map(|cause| cause.message.as_str()).filter(|text| !text.is_empty());
        let said: Vec<_> = std::iter::once(status.message.as_str()).chain(said).collect();
        return Some(Evicted::Blocked(said.join(" ")));
    }
    // All other errors of the server's own have a reason. This one is told inside of a success, too.
    if status.code == 500 && status.reason.is_empty() && status.is_failure() {
        let advice = "leave one disruption budget that covers it";
        return Some(Evicted::Blocked(format!("{} To mend: {advice}.", status.message)));
    }
    (!status.is_failure() && status.code < 400).then_some(Evicted::Accepted)
}

/// Whether the server says that this very object is not there; a stranger's 404 says nothing.
fn is_missing(status: &Status, kind: &str) -> bool {
    let named = status.details.as_ref().is_none_or(|details| details.kind.is_empty() || details.kind == kind);
    status.code == 404 && status.reason == "NotFound" && named
}

// === reading nodes and pods ===

fn seen_node(node: ApiNode, startup_taint: &str) -> Result<Node> {
    let metadata = node.metadata;
    let spec = node.spec.unwrap_or_default();
    let status = node.status.unwrap_or_default();
    let annotation = |name: &str| metadata.annotations.as_ref().and_then(|all| all.get(name));
    let label = |name: &str| metadata.labels.as_ref().and_then(|all| all.get(name));
    let name = metadata.name.clone().unwrap_or_default();
    let ready = status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
    let internal_ip = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
    let allocatable = status.allocatable.unwrap_or_default();
    let allocatable = resources(&allocatable, Rounding::Down)
        .map_err(|error| error.during(format!("read what node {name} has to give")))?;
    Ok(Node {
        taints: taints(&spec, startup_taint),
        uid: metadata.uid.clone().unwrap_or_default(),
        version: metadata.resource_version.clone().unwrap_or_default(),
        provider_id: spec.provider_id.filter(|id| !id.is_empty()),
        instance_label: label(INSTANCE_ID).filter(|id| !id.is_empty()).map(|id| InstanceId::from(id.clone())),
        internal_ip: internal_ip.map(|address| address.address.clone()),
        created_epoch: created_epoch(&metadata),
        ready,
        unschedulable: spec.unschedulable.unwrap_or(false),
        control_plane: CONTROL_PLANE_ROLES.iter().any(|role| label(role).is_some()),
        startup_taint: spec.taints.iter().flatten().any(|taint| taint.key == startup_taint),
        cordoned_by: annotation(CORDONED_BY).and_then(|text| read_mark(text)),
        released_by: annotation(RELEASED_BY).map(|action| ActionId::from(action.clone())),
        allocatable,
        name,
        labels: metadata.labels.unwrap_or_default(),
    })
}

fn seen_pod(pod: ApiPod, volumes: &Volumes) -> Result<Pod> {
    let metadata = pod.metadata;
    let spec = pod.spec.unwrap_or_default();
    let status = pod.status.unwrap_or_default();
    let node = spec.node_name.clone().filter(|name| !name.is_empty());
    let refused_by_scheduler = status.conditions.iter().flatten().any(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some("Unschedulable")
    });
    // What is on its way out needs no node any more.
    let unschedulable = node.is_none() && refused_by_scheduler && metadata.deletion_timestamp.is_none();
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let name = metadata.name.clone().unwrap_or_default();
    let (placement, local_storage) = wants(&namespace, &name, &spec, volumes);
    let requests = {
        let containers = asked(&spec.containers);
        let init = asked(spec.init_containers.as_deref().unwrap_or_default());
        let overhead = resources(&spec.overhead.unwrap_or_default(), Rounding::Up);
        containers.and_then(|containers| Ok(requests(&containers, &init?).plus(overhead?)))
    };
    Ok(Pod {
        owner: owner(&metadata),
        uid: metadata.uid.unwrap_or_default(),
        requests: requests
            .map_err(|error| error.during(format!("read what pod {namespace}/{name} asks for")))?,
        namespace,
        name,
        node,
        unschedulable,
        local_storage,
        placement,
    })
}

fn owner(metadata: &ObjectMeta) -> PodOwner {
    let is_mirror = metadata.annotations.as_ref().is_some_and(|all| all.contains_key(MIRROR));
    let controller =
        metadata.owner_references.iter().flatten().find(|reference| reference.controller == Some(true));
    match controller.map(|reference| reference.kind.as_str()) {
        _ if is_mirror => PodOwner::Mirror,
        Some("Node") => PodOwner::Mirror,
        Some("DaemonSet") => PodOwner::DaemonSet,
        Some(_) => PodOwner::Controller,
        None => PodOwner::Nobody,
    }
}

/// What one container asks for, and whether it stays beside those that come after it.
struct Asked {
    resources: Resources,
    stays: bool,
}

fn asked(containers: &[Container]) -> Result<Vec<Asked>> {
    let asked = |container: &Container| {
        let requests = container.resources.as_ref().and_then(|it| it.requests.as_ref());
        let resources = requests.map_or(Ok(Resources::default()), |all| resources(all, Rounding::Up));
        Ok(Asked { resources: resources?, stays: container.restart_policy.as_deref() == Some("Always") })
    };
    containers.iter().map(asked).collect()
}

/// As the scheduler counts: those that run together are added up, and those that run one after the other
/// before them ask for the most that one of them needs beside what stays.
fn requests(containers: &[Asked], init: &[Asked]) -> Resources {
    let mut staying = Resources::default();
    let mut most = Resources::default();
    for container in init {
        let now = staying.plus(container.resources);
        if container.stays {
            staying = now;
        }
        most = most_of(most, now);
    }
    let running = containers.iter().fold(staying, |sum, container| sum.plus(container.resources));
    most_of(most, running)
}

fn most_of(one: Resources, other: Resources) -> Resources {
    Resources {
        cpu_millis: one.cpu_millis.max(other.cpu_millis),
        memory_mib: one.memory_mib.max(other.memory_mib),
    }
}

fn resources(quantities: &BTreeMap<String, Quantity>, rounding: Rounding) -> Result<Resources> {
    let amount = |name: &str, unit: u128| match quantities.get(name) {
        Some(quantity) => parse_quantity(&quantity.0, unit, rounding)
            .ok_or_else(|| Error::new(Kind::Corrupt, format!("{name} `{}` is no quantity", quantity.0))),
        None => Ok(0),
    };
    // In thousandths of the unit: of a core, of a byte.
    Ok(Resources { cpu_millis: amount("cpu", 1)?, memory_mib: amount("memory", 1000 << 20)? })
}

fn created_epoch(metadata: &ObjectMeta) -> i64 {
    metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second())
}

// === marks and names ===

fn written_mark(mark: &CordonMark) -> String {
    format!("{} {}", mark.seq, mark.action)
}

/// What cannot be read is not ours, so such a cordon is left alone.
fn read_mark(text: &str) -> Option<CordonMark> {
    let (seq, action) = text.split_once(' ')?;
    (!action.is_empty()).then_some(())?;
    Some(CordonMark { action: ActionId::from(action), seq: seq.parse().ok()? })
}

/// Names become part of a path.
fn check_name(what: &str, name: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let is_name = (1..=253).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('.');
    if is_name {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "`{name}` is not the name of a {what}: it has lowercase letters, digits, dashes and dots"
    )))
}

fn check_taint(key: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte);
    if (1..=317).contains(&key.len()) && key.bytes().all(fits) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "start-up taint `{key}` is not the key of a taint: write it like {STARTUP_TAINT}"
    )))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        EmptyDirVolumeSource, HostPathVolumeSource, ResourceRequirements, Volume,
    };
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
    use kube::core::response::{StatusCause, StatusDetails};

    use super::*;

    fn quantities(cpu: &str, memory: &str) -> BTreeMap<String, Quantity> {
        [("cpu", cpu), ("memory", memory)].map(|(name, it)| (name.to_owned(), Quantity(it.to_owned()))).into()
    }

    fn container(cpu: &str, memory: &str, restart: Option<&str>) -> Container {
        let resources = ResourceRequirements {
            requests: Some(quantities(cpu, memory)),
            ..ResourceRequirements::default()
        };
        let restart_policy = restart.map(str::to_owned);
        Container { resources: Some(resources), restart_policy, ..Container::default() }
    }

    #[test]
    fn a_pod_asks_for_what_the_scheduler_counts() {
        let mut pod = ApiPod::default();
        let spec = pod.spec.get_or_insert_default();
        spec.containers =
            vec![container("100m", "64Mi", None), container("200m", "64Mi", None), Container::default()];
        assert_eq!(
            seen_pod(pod.clone(), &Volumes::default()).unwrap().requests,
            Resources { cpu_millis: 300, memory_mib: 128 }
        );
        // One that runs first and alone asks for more CPU; one that stays is added to what comes after it.
        let spec = pod.spec.get_or_insert_default();
        spec.init_containers = Some(vec![
            container("1", "16Mi", None),
            container("50m", "32Mi", Some("Always")),
            container("100m", "1Mi", None),
        ]);
        spec.overhead = Some(quantities("10m", "1Mi"));
        assert_eq!(
            seen_pod(pod.clone(), &Volumes::default()).unwrap().requests,
            Resources { cpu_millis: 1010, memory_mib: 161 }
        );
        pod.spec.get_or_insert_default().containers[0] = container("lots", "1", None);
        let error = seen_pod(pod, &Volumes::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.chain().contains("cpu `lots` is no quantity"), "{error:?}");
    }

    #[test]
    fn who_brings_a_pod_back() {
        let owned = |kind: &str, controller: bool| {
            let reference = OwnerReference {
                kind: kind.to_owned(),
                controller: Some(controller),
                ..OwnerReference::default()
            };
            owner(&ObjectMeta { owner_references: Some(vec![reference]), ..ObjectMeta::default() })
        };
        assert_eq!(owned("ReplicaSet", true), PodOwner::Controller);
        assert_eq!(owned("DaemonSet", true), PodOwner::DaemonSet);
        assert_eq!(owned("Node", true), PodOwner::Mirror);
        assert_eq!(owned("ReplicaSet", false), PodOwner::Nobody, "it only goes when its owner goes");
        let mirror = BTreeMap::from([(MIRROR.to_owned(), "hash".to_owned())]);
        assert_eq!(
            owner(&ObjectMeta { annotations: Some(mirror), ..ObjectMeta::default() }),
            PodOwner::Mirror
        );
        assert_eq!(owner(&ObjectMeta::default()), PodOwner::Nobody);
    }

    #[test]
    fn what_is_stored_on_the_node() {
        let stores = |volume: Volume| {
            let mut pod = ApiPod::default();
            pod.spec.get_or_insert_default().volumes = Some(vec![Volume::default(), volume]);
            seen_pod(pod, &Volumes::default()).unwrap().local_storage
        };
        let empty_dir = |medium: Option<&str>| {
            let source =
                EmptyDirVolumeSource { medium: medium.map(str::to_owned), ..EmptyDirVolumeSource::default() };
            Volume { empty_dir: Some(source), ..Volume::default() }
        };
        assert!(stores(empty_dir(None)));
        assert!(stores(empty_dir(Some(""))));
        assert!(!stores(empty_dir(Some("Memory"))));
        assert!(stores(Volume { host_path: Some(HostPathVolumeSource::default()), ..Volume::default() }));
        assert!(!stores(Volume::default()));
    }

    #[test]
    fn a_mark_comes_back_as_it_was_written_and_a_strangers_does_not() {
        let mark = CordonMark { action: "sd-1730000900-req x".into(), seq: 17 };
        assert_eq!(read_mark(&written_mark(&mark)), Some(mark));
        for text in ["", "17", "17 ", "x 17", "cordoned by hand"] {
            assert_eq!(read_mark(text), None, "{text}");
        }
    }

    #[test]
    fn what_an_eviction_is_told() {
        let told = |code: u16, reason: &str, kind: &str, cause: &str| {
            let cause =
                StatusCause { reason: cause.into(), message: "it needs 2.".into(), field: String::new() };
            let details = StatusDetails {
                name: String::new(),
                group: String::new(),
                kind: kind.into(),
                uid: String::new(),
                causes: vec![cause],
                retry_after_seconds: 0,
            };
            meaning(&Status::failure("Cannot evict.", reason).with_code(code).with_details(details))
        };
        assert_eq!(meaning(&Status::success()), Some(Evicted::Accepted));
        assert_eq!(meaning(&Status::success().with_code(201)), Some(Evicted::Accepted));
        assert_eq!(told(404, "NotFound", "pods", ""), Some(Evicted::Gone));
        assert_eq!(told(404, "NotFound", "services", ""), None);
        assert_eq!(told(404, "Failed to parse error data", "", ""), None, "a stranger's page");
        assert_eq!(told(409, "Conflict", "pods", ""), Some(Evicted::Gone));
        let blocked = Evicted::Blocked("Cannot evict. it needs 2.".into());
        assert_eq!(told(429, "TooManyRequests", "", "DisruptionBudget"), Some(blocked));
        assert_eq!(told(429, "TooManyRequests", "", ""), None, "the server is busy; no budget says no");
        assert_eq!(told(403, "Forbidden", "pods", "NamespaceTerminating"), Some(Evicted::Accepted));
        assert_eq!(told(403, "Forbidden", "pods", ""), None);
        assert_eq!(told(500, "InternalError", "", ""), None);
        let Some(Evicted::Blocked(why)) = told(500, "", "", "") else { panic!("several budgets block") };
        assert!(why.contains("leave one disruption budget"), "{why}");
    }

    #[test]
    fn names_cannot_leave_their_path() {
        for name in ["", "a/b", "..", "a?x=y", "A", &"a".repeat(254)] {
            assert!(check_name("node", name).is_err(), "{name}");
        }
        check_name("node", "ip-10-0-0-1.eu-west-1.compute.internal").unwrap();
        assert!(check_taint("").is_err() && check_taint("a b").is_err());
        check_taint(STARTUP_TAINT).unwrap();
    }

    #[tokio::test]
    async fn a_configuration_that_cannot_be_used_says_what_to_do() {
        async fn refused(settings: Settings) -> String {
            let error = Kubernetes::connect(&settings, &Env::system()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            error.chain()
        }
        let kubeconfig = Some(PathBuf::from("/nowhere/kubeconfig"));
        assert!(refused(Settings { kubeconfig, ..Settings::default() }).await.contains("check the file"));
        let startup_taint = "not a key".to_owned();
        assert!(refused(Settings { startup_taint, ..Settings::default() }).await.contains("write it like"));
    }
}
