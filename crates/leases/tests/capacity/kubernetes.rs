//! Workers counted by a real Kubernetes API server. `cargo xtask test` builds and starts it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStatus, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{
    Container, Namespace, Pod, PodCondition, PodSpec, PodStatus, PodTemplateSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use tenure_backend::{Env, Kind};
use tenure_clock::{Clock, Entropy, SystemClock};
use tenure_leases::capacity::{Alarm, Census, Count, Kubernetes, Why, Workload};
use tokio::task::JoinSet;

use super::live::World;
use super::site::soon;

/// More than one page of a list.
const MANY_PODS: usize = 510;
/// Requests under way at once.
const AT_ONCE: usize = 16;

/// A namespace of its own.
struct Cluster {
    client: Client,
    kubeconfig: PathBuf,
    namespace: String,
}

impl Cluster {
    async fn new() -> Self {
        let kubeconfig = std::env::var_os("TENURE_TEST_KUBERNETES").unwrap_or_else(|| {
            panic!(
                "TENURE_TEST_KUBERNETES is not set: run `cargo xtask services up` and \
                 `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
            )
        });
        let kubeconfig = PathBuf::from(kubeconfig);
        let config = tenure_backend::kubernetes::config(Some(&kubeconfig), None).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let namespace = format!("capacity-{}", &Entropy::system().nonce()[..12]);
        let object = Namespace { metadata: named(&namespace), ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        Self { client, kubeconfig, namespace }
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn pod(&self, name: &str, app: &str, ready: bool) {
        make_pod(&self.pods(), name, app, ready).await;
    }

    async fn count(&self, workload: Workload) -> Count {
        census(&self.kubeconfig, &self.namespace, workload, &Env::system()).await.count(soon()).await
    }

    /// The configuration, changed.
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
}

async fn census(kubeconfig: &Path, namespace: &str, workload: Workload, env: &Env) -> Kubernetes {
    Kubernetes::connect(Some(kubeconfig), Some(namespace), workload, env).await.unwrap()
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() }
}

fn labelled(name: &str, app: &str) -> ObjectMeta {
    ObjectMeta { labels: Some(labels(app)), ..named(name) }
}

fn labels(app: &str) -> BTreeMap<String, String> {
    BTreeMap::from([("app".to_owned(), app.to_owned())])
}

fn pod_spec() -> PodSpec {
    let container =
        Container { name: "worker".to_owned(), image: Some("worker".to_owned()), ..Container::default() };
    PodSpec { containers: vec![container], ..PodSpec::default() }
}

async fn make_pod(pods: &Api<Pod>, name: &str, app: &str, ready: bool) {
    let pod = Pod { metadata: labelled(name, app), spec: Some(pod_spec()), status: None };
    pods.create(&PostParams::default(), &pod).await.unwrap();
    if ready {
        let condition =
            PodCondition { type_: "Ready".to_owned(), status: "True".to_owned(), ..PodCondition::default() };
        let status = PodStatus {
            phase: Some("Running".to_owned()),
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        };
        let change = Pod { status: Some(status), ..Pod::default() };
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    }
}

fn template(app: &str) -> PodTemplateSpec {
    PodTemplateSpec {
        metadata: Some(ObjectMeta { labels: Some(labels(app)), ..ObjectMeta::default() }),
        spec: Some(pod_spec()),
    }
}

fn deployment(name: &str, replicas: Option<i32>) -> Deployment {
    let selector = LabelSelector { match_labels: Some(labels(name)), ..LabelSelector::default() };
    let spec = DeploymentSpec { replicas, selector, template: template(name), ..DeploymentSpec::default() };
    Deployment { metadata: named(name), spec: Some(spec), status: None::<DeploymentStatus> }
}

#[track_caller]
fn unknown(count: Count, says: &str) {
    let Count::Unknown(why) = count else { panic!("{count:?} is not unknown") };
    assert!(why.contains(says), "`{why}` does not say `{says}`");
}

#[tokio::test]
async fn ready_pods_of_a_selector_are_counted() {
    let cluster = Cluster::new().await;
    let orders = || Workload::ReadyPods("app=orders".to_owned());
    unknown(cluster.count(orders()).await, "ready pods of `app=orders`");
    cluster.pod("orders-1", "orders", true).await;
    cluster.pod("orders-2", "orders", true).await;
    cluster.pod("orders-3", "orders", false).await;
    cluster.pod("other-1", "other", true).await;
    assert_eq!(cluster.count(orders()).await, Count::Known(2));
    // On its way out, and held back so that it can be seen.
    let pods = cluster.pods();
    let metadata =
        ObjectMeta { finalizers: Some(vec!["tenure.test/hold".to_owned()]), ..ObjectMeta::default() };
    let hold = Pod { metadata, ..Pod::default() };
    pods.patch("orders-2", &PatchParams::default(), &Patch::Merge(&hold)).await.unwrap();
    pods.delete("orders-2", &DeleteParams::default()).await.unwrap();
    let leaving = pods.get("orders-2").await.unwrap();
    assert!(leaving.metadata.deletion_timestamp.is_some());
    assert_eq!(cluster.count(orders()).await, Count::Known(1));
}

#[tokio::test]
async fn pods_beyond_the_first_page_are_counted() {
    let cluster = Cluster::new().await;
    let mut making = JoinSet::new();
    for number in 0..MANY_PODS {
        if making.len() == AT_ONCE {
            making.join_next().await.unwrap().unwrap();
        }
        let pods = cluster.pods();
        // Lists are sorted by name: the ready ones are on the second page alone.
        let ready = number + 3 >= MANY_PODS;
        making.spawn(async move { make_pod(&pods, &format!("p-{number:04}"), "many", ready).await });
    }
    while let Some(made) = making.join_next().await {
        made.unwrap();
    }
    assert_eq!(cluster.count(Workload::ReadyPods("app=many".to_owned())).await, Count::Known(3));
}

#[tokio::test]
async fn the_declared_replicas_of_a_deployment_are_believed() {
    let cluster = Cluster::new().await;
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    api.create(&PostParams::default(), &deployment("orders", Some(5))).await.unwrap();
    api.create(&PostParams::default(), &deployment("unsaid", None)).await.unwrap();
    let count = |name: &str| cluster.count(Workload::Deployment(name.to_owned()));
    assert_eq!(count("orders").await, Count::Known(5), "although none of them runs");
    assert_eq!(count("unsaid").await, Count::Known(1), "the API server fills it in");
    api.patch("orders", &PatchParams::default(), &Patch::Merge(&deployment("orders", Some(0))))
        .await
        .unwrap();
    unknown(count("orders").await, "deployment `orders` in namespace");
    unknown(count("missing").await, "not found");
}

#[tokio::test]
async fn the_declared_replicas_of_a_statefulset_are_believed() {
    let cluster = Cluster::new().await;
    let api: Api<StatefulSet> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let selector = LabelSelector { match_labels: Some(labels("orders")), ..LabelSelector::default() };
    let spec = StatefulSetSpec {
        replicas: Some(7),
        selector,
        template: template("orders"),
        service_name: Some("orders".to_owned()),
        ..StatefulSetSpec::default()
    };
    let set = StatefulSet { metadata: named("orders"), spec: Some(spec), status: None::<StatefulSetStatus> };
    api.create(&PostParams::default(), &set).await.unwrap();
    let count = |name: &str| cluster.count(Workload::StatefulSet(name.to_owned()));
    assert_eq!(count("orders").await, Count::Known(7));
    unknown(count("missing").await, "statefulset `missing`");
}

#[tokio::test]
async fn an_api_server_that_is_down_or_silent_is_unknown() {
    let cluster = Cluster::new().await;
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let kubeconfig = cluster.kubeconfig_of_port(dir.path(), port);
    let orders = || Workload::Deployment("orders".to_owned());
    let census = census(&kubeconfig, &cluster.namespace, orders(), &Env::system()).await;
    // It takes connections and says nothing.
    let by = SystemClock.deadline(Duration::from_millis(300));
    unknown(census.count(by).await, "does not answer");
    drop(listener);
    unknown(census.count(soon()).await, "deployment `orders`");
}

#[tokio::test]
async fn a_token_that_is_refused_is_unknown_and_not_shown() {
    let cluster = Cluster::new().await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.kubeconfig_with(dir.path(), |line| match line.split_once("token:") {
        Some((before, _)) => format!("{before}token: somebody-elses-token"),
        None => line.to_owned(),
    });
    let orders = Workload::Deployment("orders".to_owned());
    let census = census(&kubeconfig, &cluster.namespace, orders, &Env::system()).await;
    let count = census.count(soon()).await;
    assert!(!format!("{count:?}{census:?}").contains("somebody-elses-token"));
    unknown(count, "Unauthorized");
}

#[tokio::test]
async fn a_missing_configuration_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("missing");
    let workload = Workload::Deployment("orders".to_owned());
    let error = Kubernetes::connect(Some(&path), None, workload, &Env::system()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains("missing"), "{error:?}");
}

/// The whole way: a count by the API, then an API server that is away and a row that stays as it is.
#[tokio::test]
async fn a_worker_beside_an_api_server_that_went_away_writes_nothing() {
    let cluster = Cluster::new().await;
    let api: Api<Deployment> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    api.create(&PostParams::default(), &deployment("orders", Some(5))).await.unwrap();
    let mut world = World::new();
    world.settings.live = false;
    let orders = || Workload::Deployment("orders".to_owned());
    let there = census(&cluster.kubeconfig, &cluster.namespace, orders(), &world.env()).await;
    let first = world.worker("a").census(Arc::new(there)).build().unwrap();
    assert_eq!(first.initialize().await.unwrap().value, 6, "30 shards, 5 workers");

    let dir = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let kubeconfig = cluster.kubeconfig_of_port(dir.path(), port);
    let away = census(&kubeconfig, &cluster.namespace, orders(), &world.env()).await;
    world.shards.set(60);
    let second = world.worker("b").census(Arc::new(away)).build().unwrap().start().await.unwrap();
    assert_eq!(world.coordinator().await, (30, 5, 6));
    let cap = *second.cap().borrow();
    assert_eq!((cap.value, cap.why), (6, Why::Coordinator));
    assert!(matches!(&second.alarms()[..], [Alarm::WorkerCountUnknown { .. }]), "{:?}", second.alarms());
}
