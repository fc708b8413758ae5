//! The cluster's driver against a real Kubernetes API server. `cargo xtask test` builds and starts it.
//!
//! There is no controller and no kubelet: what they would do, the tests do. A pod on a node that is told to go
//! stays, marked as going, and a budget's status is written here.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    Namespace, Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod as ApiPod, ServiceAccount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tenure_autoscaler::kubernetes::{
    CORDONED_BY, INSTANCE_ID, Kubernetes, PERMISSIONS, RELEASED_BY, STARTUP_TAINT, Settings,
};
use tenure_autoscaler::machine::Manner;
use tenure_autoscaler::observation::{CordonMark, Node, Pod, PodOwner, Resources};
use tenure_autoscaler::ports::{Cluster, Evicted, Patched};
use tenure_backend::{Env, Kind};
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tokio::task::JoinSet;

use super::canned::{Server, page};

/// More than one page of a list.
const MANY_PODS: usize = 510;
/// Requests under way at once.
const AT_ONCE: usize = 16;

/// A namespace of its own, and nodes whose names begin with it: nodes have no namespace.
struct Site {
    client: Client,
    kubeconfig: PathBuf,
    namespace: String,
    cluster: Kubernetes,
}

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}

async fn connected(kubeconfig: &Path) -> Kubernetes {
    let settings = Settings { kubeconfig: Some(kubeconfig.to_owned()), ..Settings::default() };
    Kubernetes::connect(&settings, &Env::system()).await.unwrap()
}

impl Site {
    async fn new() -> Self {
        let kubeconfig = std::env::var_os("TENURE_TEST_KUBERNETES").unwrap_or_else(|| {
            panic!(
                "TENURE_TEST_KUBERNETES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        let kubeconfig = PathBuf::from(kubeconfig);
        let cluster = connected(&kubeconfig).await;
        let config = tenure_backend::kubernetes::config(Some(&kubeconfig), None).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("autoscaler-{}", &Entropy::system().nonce()[..12]);
        let object: Namespace = from(json!({ "metadata": { "name": namespace } }));
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        Self { client, kubeconfig, namespace, cluster }
    }

    fn nodes(&self) -> Api<ApiNode> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<ApiPod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A node that is Ready and has the start-up taint beside another.
    async fn make_node(&self, name: &str) -> String {
        let name = format!("{}-{name}", self.namespace);
        let node: ApiNode = from(json!({
            "metadata": {
                "name": name,
                "labels": { INSTANCE_ID: "i-0labelled" },
            },
            "spec": {
                "providerID": "aws:///eu-west-1a/i-0abc",
                "taints": [
                    { "key": STARTUP_TAINT, "effect": "NoSchedule" },
                    { "key": "team", "value": "blue", "effect": "NoExecute" },
                ],
            },
        }));
        self.nodes().create(&PostParams::default(), &node).await.unwrap();
        let status = json!({ "status": {
            "conditions": [
                { "type": "MemoryPressure", "status": "False" },
                { "type": "Ready", "status": "True" },
            ],
            "addresses": [
                { "type": "Hostname", "address": name },
                { "type": "InternalIP", "address": "10.1.2.3" },
            ],
            "allocatable": { "cpu": "1930m", "memory": "7822Mi", "pods": "110" },
        }});
        self.nodes().patch_status(&name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
        name
    }

    async fn node(&self, name: &str) -> Node {
        let nodes = self.cluster.nodes(soon()).await.unwrap();
        nodes.into_iter().find(|node| node.name == name).expect("the node is listed")
    }

    /// A pod that runs, as its status says, on a node that does not exist: nobody will delete it for good.
    async fn make_pod(&self, name: &str, labels: Value) -> String {
        let uid = self
            .make(json!({
                "metadata": { "name": name, "labels": labels },
                "spec": { "nodeName": "nowhere", "containers": [{ "name": "c", "image": "c" }] },
            }))
            .await;
        // No budget protects what does not run yet.
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [{ "type": "Ready", "status": "True" }],
        }});
        self.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
        uid
    }

    /// A pod with a claim that got such a volume.
    async fn make_claiming_pod(&self, name: &str, source: Value) {
        let volume = format!("{}-{name}", self.namespace);
        let mut spec = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"] });
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let object: PersistentVolume = from(json!({ "metadata": { "name": volume }, "spec": spec }));
        Api::all(self.client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let claim: PersistentVolumeClaim = from(json!({
            "metadata": { "name": name },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeName": volume,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }));
        let api = Api::namespaced(self.client.clone(), &self.namespace);
        api.create(&PostParams::default(), &claim).await.unwrap();
        self.make(json!({
            "metadata": { "name": name },
            "spec": {
                "containers": [{ "name": "c", "image": "c" }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": name } }],
            },
        }))
        .await;
    }

    async fn make(&self, pod: Value) -> String {
        let made = self.pods().create(&PostParams::default(), &from(pod)).await.unwrap();
        made.metadata.uid.unwrap()
    }

    async fn listed(&self) -> BTreeMap<String, Pod> {
        let pods = self.cluster.pods(soon()).await.unwrap();
        let ours = pods.into_iter().filter(|pod| pod.namespace == self.namespace);
        ours.map(|pod| (pod.name.clone(), pod)).collect()
    }

    async fn is_going(&self, pod: &str) -> bool {
        self.pods().get(pod).await.unwrap().metadata.deletion_timestamp.is_some()
    }

    async fn evict(&self, pod: &str, uid: &str, manner: Manner) -> Evicted {
        self.cluster.evict(soon(), &self.namespace, pod, uid, manner).await.unwrap()
    }

    /// A budget for `app=APP` that allows so many evictions. The API group is that of an old server.
    async fn make_budget(&self, name: &str, app: &str, allowed: u32) {
        let budgets = format!("/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets", self.namespace);
        let budget = json!({
            "apiVersion": "policy/v1beta1",
            "kind": "PodDisruptionBudget",
            "metadata": { "name": name },
            "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": app } } },
        });
        self.request("POST", &budgets, "application/json", &budget).await;
        self.allow(name, allowed).await;
    }

    async fn allow(&self, budget: &str, allowed: u32) {
        let path =
            format!("/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets/{budget}", self.namespace);
        let status = json!({ "status": {
            "observedGeneration": 1,
            "disruptionsAllowed": allowed,
            "currentHealthy": 1 + allowed,
            "desiredHealthy": 1,
            "expectedPods": 2,
        }});
        self.request("PATCH", &format!("{path}/status"), "application/merge-patch+json", &status).await;
    }

    async fn allowed(&self, budget: &str) -> Value {
        let path =
            format!("/apis/policy/v1beta1/namespaces/{}/poddisruptionbudgets/{budget}", self.namespace);
        self.request("GET", &path, "application/json", &Value::Null).await["status"]["disruptionsAllowed"]
            .clone()
    }

    async fn request(&self, method: &str, path: &str, content: &str, body: &Value) -> Value {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = http::Request::builder().method(method).uri(path).header("content-type", content);
        self.client.request(request.body(body).unwrap()).await.unwrap()
    }

    /// The configuration, changed line by line.
    fn kubeconfig_with(&self, dir: &Path, change: impl Fn(&str) -> String) -> PathBuf {
        let text = std::fs::read_to_string(&self.kubeconfig).unwrap();
        let path = dir.join("kubeconfig");
        let lines = text.lines().map(|line| change(line) + "\n").collect::<String>();
        assert_ne!(lines.trim(), text.trim(), "nothing was changed");
        std::fs::write(&path, lines).unwrap();
        path
    }

    fn kubeconfig_of_port(&self, dir: &Path, port: u16) -> PathBuf {
        self.kubeconfig_with(dir, |line| match line.split_once("server:") {
            Some((before, _)) => format!("{before}server: https://127.0.0.1:{port}"),
            None => line.to_owned(),
        })
    }

    /// A cluster as a service account sees it, and its token.
    async fn as_account(&self, dir: &Path, account: &str) -> (Kubernetes, String) {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), &self.namespace);
        let object = from(json!({ "metadata": { "name": account } }));
        accounts.create(&PostParams::default(), &object).await.unwrap();
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..TokenRequestSpec::default() };
        let wanted = TokenRequest { spec, ..TokenRequest::default() };
        let granted = accounts.create_token_request(account, &PostParams::default(), &wanted).await.unwrap();
        let token = granted.status.unwrap().token;
        let kubeconfig = self.kubeconfig_with(dir, |line| match line.split_once("token:") {
            Some((before, _)) => format!("{before}token: {token}"),
            None => line.to_owned(),
        });
        (connected(&kubeconfig).await, token)
    }
}

fn from<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn mark(action: &str, seq: i64) -> CordonMark {
    CordonMark { action: action.into(), seq }
}

#[tokio::test]
async fn a_node_is_seen_as_it_is() {
    let site = Site::new().await;
    let name = site.make_node("worker").await;
    let node = site.node(&name).await;
    let there = site.nodes().get(&name).await.unwrap().metadata;
    assert_eq!(node.uid, there.uid.unwrap());
    assert_eq!(node.version, there.resource_version.unwrap());
    assert_eq!(node.created_epoch, there.creation_timestamp.unwrap().0.as_second());
    assert_eq!(node.provider_id.as_deref(), Some("aws:///eu-west-1a/i-0abc"));
    assert_eq!(node.instance_label, Some("i-0labelled".into()));
    assert_eq!(node.internal_ip.as_deref(), Some("10.1.2.3"));
    assert_eq!(node.allocatable, Resources { cpu_millis: 1930, memory_mib: 7822 });
    assert!(node.ready && node.startup_taint && !node.unschedulable && !node.control_plane);
    assert_eq!((node.cordoned_by, node.released_by), (None, None));

    // A server of k3s whose kubelet has gone silent.
    let labels = json!({ "metadata": { "labels": { "node-role.kubernetes.io/master": "true" } } });
    site.nodes().patch(&name, &PatchParams::default(), &Patch::Merge(&labels)).await.unwrap();
    let status = json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } });
    site.nodes().patch_status(&name, &PatchParams::default(), &Patch::Strategic(&status)).await.unwrap();
    let node = site.node(&name).await;
    assert!(!node.ready && node.control_plane);
}

#[tokio::test]
async fn a_node_is_cordoned_and_given_back_at_the_version_it_was_read() {
    let site = Site::new().await;
    let name = site.make_node("worker").await;
    let before = site.node(&name).await;
    let cordon = |version: String, action: &'static str| {
        let (cluster, name) = (&site.cluster, &name);
        async move { cluster.cordon(soon(), name, &version, &mark(action, 7)).await.unwrap() }
    };
    assert_eq!(cordon(before.version.clone(), "sd-1").await, Patched::Done);
    let cordoned = site.node(&name).await;
    assert!(cordoned.unschedulable);
    assert_eq!(cordoned.cordoned_by, Some(mark("sd-1", 7)));
    assert_eq!(cordoned.uid, before.uid);

    // Somebody who read it before that.
    assert_eq!(cordon(before.version.clone(), "sd-2").await, Patched::Conflict);
    let released = |version: String, uncordon: bool| {
        let (cluster, name) = (&site.cluster, &name);
        async move { cluster.release(soon(), name, &version, &"sd-1".into(), uncordon).await.unwrap() }
    };
    assert_eq!(released(before.version, true).await, Patched::Conflict);
    assert_eq!(site.node(&name).await, cordoned, "nothing has changed");

    assert_eq!(released(cordoned.version, false).await, Patched::Done);
    let kept = site.node(&name).await;
    assert!(kept.unschedulable, "only noted");
    assert_eq!(
        (kept.cordoned_by.clone(), kept.released_by.clone()),
        (Some(mark("sd-1", 7)), Some("sd-1".into()))
    );
    assert_eq!(released(kept.version, true).await, Patched::Done);
    let back = site.node(&name).await;
    assert!(!back.unschedulable && back.startup_taint && back.ready);
    assert_eq!((back.cordoned_by, back.released_by), (None, Some("sd-1".into())));
    let annotations = site.nodes().get(&name).await.unwrap().metadata.annotations.unwrap();
    assert!(!annotations.contains_key(CORDONED_BY) && annotations.contains_key(RELEASED_BY));

    let gone = site.cluster.cordon(soon(), &format!("{name}-gone"), "1", &mark("sd-1", 7)).await.unwrap();
    assert_eq!(gone, Patched::Gone);
}

#[tokio::test]
async fn of_two_that_cordon_the_same_version_one_does() {
    let site = Site::new().await;
    let name = site.make_node("worker").await;
    let version = site.node(&name).await.version;
    let other = connected(&site.kubeconfig).await;
    let (one, two) = (mark("sd-1", 1), mark("sd-2", 2));
    let (first, second) = tokio::join!(
        site.cluster.cordon(soon(), &name, &version, &one),
        other.cordon(soon(), &name, &version, &two),
    );
    let (first, second) = (first.unwrap(), second.unwrap());
    let owner = site.node(&name).await.cordoned_by;
    match (first, second) {
        (Patched::Done, Patched::Conflict) => assert_eq!(owner, Some(one)),
        (Patched::Conflict, Patched::Done) => assert_eq!(owner, Some(two)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_the_start_up_taint_is_removed() {
    let site = Site::new().await;
    let name = site.make_node("worker").await;
    let keys = || async {
        let taints = site.nodes().get(&name).await.unwrap().spec.unwrap().taints.unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect::<Vec<_>>()
    };
    let before = keys().await;
    assert!(before.len() >= 2 && before.contains(&STARTUP_TAINT.to_owned()), "{before:?}");
    let version = site.node(&name).await.version;
    assert_eq!(site.cluster.untaint(soon(), &name, &version).await.unwrap(), Patched::Done);
    let node = site.node(&name).await;
    assert!(!node.startup_taint);
    let left: Vec<_> = before.into_iter().filter(|key| key != STARTUP_TAINT).collect();
    assert_eq!(keys().await, left);
    assert_eq!(site.cluster.untaint(soon(), &name, &version).await.unwrap(), Patched::Conflict);
    assert_eq!(
        site.cluster.untaint(soon(), &name, &node.version).await.unwrap(),
        Patched::Done,
        "none is left"
    );
    let gone = site.cluster.untaint(soon(), &format!("{name}-gone"), "1").await.unwrap();
    assert_eq!(gone, Patched::Gone);
}

#[tokio::test]
async fn a_pod_whose_volume_is_its_nodes_own_is_known_by_it() {
    let site = Site::new().await;
    site.make_claiming_pod("local", json!({ "hostPath": { "path": "/data" } })).await;
    site.make_claiming_pod("network", json!({ "nfs": { "server": "s", "path": "/" } })).await;
    site.make(json!({
        "metadata": { "name": "doubtful" },
        "spec": {
            "containers": [{ "name": "c", "image": "c" }],
            "nodeSelector": { "disk": "ssd" },
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "nobodys" } }],
        },
    }))
    .await;
    let pods = site.listed().await;
    assert!(pods["local"].local_storage && !pods["network"].local_storage && pods["doubtful"].local_storage);
    assert_eq!(
        (pods["local"].placement.unclear.as_ref(), pods["network"].placement.unclear.as_ref()),
        (None, None)
    );
    assert!(pods["doubtful"].placement.unclear.as_ref().is_some_and(|why| why.contains("nobodys")));
    assert_eq!(pods["doubtful"].placement.terms.len(), 1);
}

#[tokio::test]
async fn pods_are_seen_as_they_are() {
    let site = Site::new().await;
    let owner = |kind: &str| json!([{ "apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "o", "controller": true }]);
    let waiting = site
        .make(json!({
            "metadata": { "name": "waiting", "ownerReferences": owner("ReplicaSet") },
            "spec": { "containers": [{
                "name": "c", "image": "c", "resources": { "requests": { "cpu": "250m", "memory": "100M" } },
            }] },
        }))
        .await;
    let scheduled = json!({ "status": {
        "phase": "Pending",
        "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" }],
    }});
    site.pods().patch_status("waiting", &PatchParams::default(), &Patch::Merge(&scheduled)).await.unwrap();
    site.make(json!({
        "metadata": { "name": "daemon", "ownerReferences": owner("DaemonSet") },
        "spec": {
            "nodeName": "nowhere",
            "containers": [{ "name": "c", "image": "c" }],
            "volumes": [{ "name": "scratch", "emptyDir": {} }],
        },
    }))
    .await;
    site.make_pod("alone", json!({})).await;
    for (name, phase) in [("ended", "Succeeded"), ("failed", "Failed")] {
        site.make_pod(name, json!({})).await;
        let status = json!({ "status": { "phase": phase } });
        site.pods().patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    }

    let pods = site.listed().await;
    assert_eq!(pods.keys().collect::<Vec<_>>(), ["alone", "daemon", "waiting"]);
    let pod = &pods["waiting"];
    assert!(pod.unschedulable && pod.node.is_none() && !pod.local_storage);
    assert_eq!((&pod.uid, pod.owner), (&waiting, PodOwner::Controller));
    assert_eq!(pod.requests, Resources { cpu_millis: 250, memory_mib: 96 });
    let pod = &pods["daemon"];
    assert!(pod.local_storage && !pod.unschedulable);
    assert_eq!((pod.owner, pod.node.as_deref()), (PodOwner::DaemonSet, Some("nowhere")));
    assert_eq!(pods["alone"].owner, PodOwner::Nobody);
}

#[tokio::test]
async fn pods_beyond_the_first_page_are_seen() {
    let site = Site::new().await;
    let mut making = JoinSet::new();
    for number in 0..MANY_PODS {
        if making.len() == AT_ONCE {
            making.join_next().await.unwrap().unwrap();
        }
        let pods = site.pods();
        let pod: ApiPod = from(json!({
            "metadata": { "name": format!("p-{number:04}") },
            "spec": { "containers": [{ "name": "c", "image": "c" }] },
        }));
        making.spawn(async move { pods.create(&PostParams::default(), &pod).await.map(drop).unwrap() });
    }
    while let Some(made) = making.join_next().await {
        made.unwrap();
    }
    let listed = site.listed().await;
    assert_eq!(listed.len(), MANY_PODS);
    // Not on a node, so they go at once: other tests list what is left here.
    site.pods().delete_collection(&DeleteParams::default(), &kube::api::ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_budget_blocks_and_then_yields() {
    let site = Site::new().await;
    let uid = site.make_pod("web-1", json!({ "app": "web" })).await;
    site.make_budget("web", "web", 0).await;
    for manner in [Manner::DryRun, Manner::Evict] {
        let Evicted::Blocked(why) = site.evict("web-1", &uid, manner).await else {
            panic!("{manner:?} is not blocked")
        };
        assert!(why.contains("disruption budget web"), "{why}");
        assert!(!site.is_going("web-1").await);
    }

    site.allow("web", 1).await;
    assert_eq!(site.evict("web-1", &uid, Manner::DryRun).await, Evicted::Accepted);
    assert!(!site.is_going("web-1").await, "a dry run changes nothing");
    assert_eq!(site.allowed("web").await, json!(1), "and uses nothing up");

    assert_eq!(site.evict("web-1", &uid, Manner::Evict).await, Evicted::Accepted);
    assert!(site.is_going("web-1").await);
    assert_eq!(site.allowed("web").await, json!(0), "the budget counted it");
    let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    site.pods().delete("web-1", &now).await.unwrap();
    assert_eq!(site.evict("web-1", &uid, Manner::Evict).await, Evicted::Gone);
    assert_eq!(site.evict("web-1", &uid, Manner::Force).await, Evicted::Gone);
}

#[tokio::test]
async fn another_pod_of_the_same_name_is_spared() {
    let site = Site::new().await;
    let uid = site.make_pod("set-0", json!({})).await;
    for manner in [Manner::DryRun, Manner::Evict, Manner::Force] {
        assert_eq!(site.evict("set-0", "5f6a9c1e-0000-4000-8000-000000000000", manner).await, Evicted::Gone);
        assert!(!site.is_going("set-0").await, "{manner:?}");
    }
    assert_eq!(site.evict("set-0", &uid, Manner::Evict).await, Evicted::Accepted);
    assert!(site.is_going("set-0").await);
}

#[tokio::test]
async fn several_budgets_block_and_force_passes_them() {
    let site = Site::new().await;
    let uid = site.make_pod("web-1", json!({ "app": "web" })).await;
    site.make_budget("one", "web", 1).await;
    site.make_budget("two", "web", 1).await;
    for manner in [Manner::DryRun, Manner::Evict] {
        let Evicted::Blocked(why) = site.evict("web-1", &uid, manner).await else {
            panic!("{manner:?} is not blocked")
        };
        assert!(why.contains("more than one") && why.contains("leave one disruption budget"), "{why}");
    }
    assert!(!site.is_going("web-1").await);
    assert_eq!(site.evict("web-1", &uid, Manner::Force).await, Evicted::Accepted);
    assert!(site.is_going("web-1").await);
}

#[tokio::test]
async fn a_pod_of_a_namespace_that_goes_is_going() {
    let site = Site::new().await;
    let uid = site.make_pod("web-1", json!({})).await;
    let namespaces: Api<Namespace> = Api::all(site.client.clone());
    namespaces.delete(&site.namespace, &DeleteParams::default()).await.unwrap();
    assert_eq!(site.evict("web-1", &uid, Manner::Evict).await, Evicted::Accepted);
}

#[tokio::test]
async fn what_is_denied_says_what_to_grant_and_the_named_permissions_suffice() {
    let site = Site::new().await;
    let name = site.make_node("worker").await;
    let uid = site.make_pod("web-1", json!({})).await;
    let forced = site.make_pod("web-2", json!({})).await;
    site.make_claiming_pod("web-3", json!({ "hostPath": { "path": "/data" } })).await;
    let version = site.node(&name).await.version;
    let dir = tempfile::tempdir().unwrap();
    let (cluster, token) = site.as_account(dir.path(), "scaler").await;
    let namespace = site.namespace.as_str();

    let denied = [
        (cluster.nodes(soon()).await.unwrap_err(), "grant `list` on `nodes`"),
        (cluster.pods(soon()).await.unwrap_err(), "grant `list` on `pods`"),
        (
            cluster.cordon(soon(), &name, &version, &mark("sd-1", 1)).await.unwrap_err(),
            "grant `patch` on `nodes`",
        ),
        (
            cluster.evict(soon(), namespace, "web-1", &uid, Manner::Evict).await.unwrap_err(),
            "grant `create` on `pods/eviction`",
        ),
        (
            cluster.evict(soon(), namespace, "web-2", &forced, Manner::Force).await.unwrap_err(),
            "grant `delete` on `pods`",
        ),
    ];
    for (error, advice) in denied {
        assert_eq!(error.kind(), Kind::Denied, "{error:?}");
        assert!(error.chain().contains(advice), "{error:?}");
        assert!(!format!("{error:?}{cluster:?}").contains(&token));
    }

    let rules: Vec<_> = PERMISSIONS
        .iter()
        .map(|(verb, resource)| json!({ "apiGroups": [""], "verbs": [verb], "resources": [resource] }))
        .collect();
    let role: ClusterRole = from(json!({ "metadata": { "name": namespace }, "rules": rules }));
    Api::all(site.client.clone()).create(&PostParams::default(), &role).await.unwrap();
    let binding: ClusterRoleBinding = from(json!({
        "metadata": { "name": namespace },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace },
        "subjects": [{ "kind": "ServiceAccount", "name": "scaler", "namespace": namespace }],
    }));
    Api::all(site.client.clone()).create(&PostParams::default(), &binding).await.unwrap();
    // The server learns of roles by watching.
    let mut granted = cluster.untaint(soon(), &name, &version).await;
    let by = soon();
    while granted.as_ref().is_err_and(|error| error.kind() == Kind::Denied) && SystemClock.monotonic() < by {
        SystemClock.sleep(Duration::from_millis(50)).await;
        granted = cluster.untaint(soon(), &name, &version).await;
    }
    assert_eq!(granted.unwrap(), Patched::Done);
    assert!(cluster.nodes(soon()).await.unwrap().iter().any(|node| node.name == name));
    assert!(cluster.pods(soon()).await.unwrap().iter().any(|pod| pod.uid == uid));
    let evicted = cluster.evict(soon(), namespace, "web-1", &uid, Manner::Evict).await.unwrap();
    assert_eq!(evicted, Evicted::Accepted);
    let deleted = cluster.evict(soon(), namespace, "web-2", &forced, Manner::Force).await.unwrap();
    assert_eq!(deleted, Evicted::Accepted);
}

#[tokio::test]
async fn credentials_that_are_refused_are_denied_and_not_shown() {
    let site = Site::new().await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = site.kubeconfig_with(dir.path(), |line| match line.split_once("token:") {
        Some((before, _)) => format!("{before}token: somebody-elses-token"),
        None => line.to_owned(),
    });
    let cluster = connected(&kubeconfig).await;
    let error = cluster.nodes(soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.chain().contains("renew"), "{error:?}");
    assert!(!format!("{error:?}{cluster:?}").contains("somebody-elses-token"));
}

#[tokio::test]
async fn an_api_server_that_is_silent_may_have_done_it_and_one_that_is_down_has_not() {
    let site = Site::new().await;
    let dir = tempfile::tempdir().unwrap();
    // It takes connections and says nothing: TLS is never made, so nothing can have been done. Whether
    // that is known depends on who waits longer; a change is not called undone.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let cluster = connected(&site.kubeconfig_of_port(dir.path(), port)).await;
    let shortly = || SystemClock.deadline(Duration::from_millis(300));
    let kinds = |read: Kind, write: Kind| (read, write);
    let nodes = cluster.nodes(shortly()).await.unwrap_err();
    let cordon = cluster.cordon(shortly(), "worker", "1", &mark("sd-1", 1)).await.unwrap_err();
    assert_eq!(kinds(nodes.kind(), cordon.kind()), (Kind::Unavailable, Kind::Unknown));
    assert!(nodes.chain().contains("no answer") && nodes.chain().contains("by the deadline"), "{nodes:?}");

    drop(listener);
    let nodes = cluster.nodes(soon()).await.unwrap_err();
    let cordon = cluster.cordon(soon(), "worker", "1", &mark("sd-1", 1)).await.unwrap_err();
    assert_eq!(kinds(nodes.kind(), cordon.kind()), (Kind::Unavailable, Kind::Unavailable), "{cordon:?}");
    assert!(cordon.chain().contains("cannot reach"), "{cordon:?}");

    // A deadline that is over before anything was sent.
    let late = site.cluster.cordon(SystemClock.monotonic(), "worker", "1", &mark("sd-1", 1)).await;
    assert_eq!(late.unwrap_err().kind(), Kind::Unavailable);
}

// === what a real server seldom says ===

/// A cluster whose server gives these answers, one after the other, and the requests it got.
async fn told(answers: &[(&str, Value)]) -> (Kubernetes, Arc<Mutex<Vec<String>>>, Server) {
    let mut answers: Vec<_> =
        answers.iter().rev().map(|(status, body)| page(status, &body.to_string())).collect();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (kept, answers) = (requests.clone(), Mutex::new(std::mem::take(&mut answers)));
    let server = Server::start(move |request| {
        kept.lock().unwrap().push(request.lines().next().unwrap_or_default().to_owned());
        answers.lock().unwrap().pop().unwrap_or_else(|| page("418 I am a teapot", "asked too often"))
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": server.url() } }],
        "users": [{ "name": "u", "user": {} }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    (connected(&kubeconfig).await, requests, server)
}

fn nodes(name: &str, next: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "NodeList",
        "metadata": { "resourceVersion": "1", "continue": next },
        "items": [{ "metadata": { "name": name } }],
    })
}

fn failure(code: u16, reason: &str) -> Value {
    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "m", "reason": reason, "code": code })
}

#[tokio::test]
async fn a_list_that_expires_begins_anew_and_not_for_ever() {
    let expired = || ("410 Gone", failure(410, "Expired"));
    let (cluster, requests, _server) = told(&[
        ("200 OK", nodes("old", Some("token"))),
        expired(),
        ("200 OK", nodes("a", Some("token"))),
        ("200 OK", nodes("b", None)),
    ])
    .await;
    let seen: Vec<_> = cluster.nodes(soon()).await.unwrap().into_iter().map(|node| node.name).collect();
    assert_eq!(seen, ["a", "b"], "of one moment, and nobody twice");
    let lines = requests.lock().unwrap().clone();
    let continued: Vec<_> = lines.iter().map(|line| line.contains("continue=token")).collect();
    assert_eq!(continued, [false, true, false, true], "{lines:?}");

    let (cluster, requests, _server) = told(&[expired(), expired(), expired()]).await;
    let error = cluster.nodes(soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("expired 3 times"), "{error:?}");
    assert_eq!(requests.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn a_change_is_sent_once_and_told_as_what_it_is() {
    let check = async |status: &'static str, code: u16, reason: &str, kind: Kind| {
        let (cluster, requests, _server) = told(&[(status, failure(code, reason))]).await;
        let error = cluster.cordon(soon(), "worker", "1", &mark("sd-1", 1)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert_eq!(requests.lock().unwrap().len(), 1, "the client must not try again by itself");
    };
    check("503 Service Unavailable", 503, "ServiceUnavailable", Kind::Unknown).await;
    check("504 Gateway Timeout", 504, "Timeout", Kind::Unknown).await;
    check("500 Internal Server Error", 500, "InternalError", Kind::Unknown).await;
    check("429 Too Many Requests", 429, "TooManyRequests", Kind::Throttled).await;
    check("422 Unprocessable Entity", 422, "Invalid", Kind::Invalid).await;
    // Not the API server's own.
    check("404 Not Found", 404, "", Kind::Invalid).await;

    let (cluster, _, _server) = told(&[("200 OK", json!("what?"))]).await;
    let error = cluster.cordon(soon(), "worker", "1", &mark("sd-1", 1)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown, "{error:?}");
    assert!(error.chain().contains("does not speak the Kubernetes API"), "{error:?}");
}

#[tokio::test]
async fn the_version_of_evictions_is_the_servers_and_a_busy_server_is_no_budget() {
    let resources = |version: &str| {
        let eviction = json!({ "name": "pods/eviction", "singularName": "", "namespaced": true, "kind": "Eviction",
                    "group": "policy", "version": version, "verbs": ["create"] });
        json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [eviction] })
    };
    let (cluster, requests, _server) = told(&[
        ("200 OK", resources("v1")),
        ("201 Created", json!({ "kind": "Status", "status": "Success" })),
        ("429 Too Many Requests", failure(429, "TooManyRequests")),
        ("200 OK", resources("v1")),
        ("201 Created", json!({ "kind": "Status", "status": "Success" })),
    ])
    .await;
    let evict = || cluster.evict(soon(), "ns", "web-1", "uid", Manner::Evict);
    assert_eq!(evict().await.unwrap(), Evicted::Accepted);
    assert_eq!(evict().await.unwrap_err().kind(), Kind::Throttled);
    assert_eq!(evict().await.unwrap(), Evicted::Accepted);
    let lines = requests.lock().unwrap().clone();
    let paths: Vec<_> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    let (api, eviction) = ("/api/v1", "/api/v1/namespaces/ns/pods/web-1/eviction");
    assert_eq!(paths, [api, eviction, eviction, api, eviction]);

    let without = json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [] });
    let (cluster, _, _server) = told(&[("200 OK", without)]).await;
    let error = cluster.evict(soon(), "ns", "web-1", "uid", Manner::Evict).await.unwrap_err();
    assert!(error.chain().contains("has no `pods/eviction`"), "{error:?}");
}
