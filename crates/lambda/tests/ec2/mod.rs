//! The handler with the real SDK, against moto and an emulator of DynamoDB; `cargo xtask test` starts both.
//!
//! The calls that are made are the calls that the template allows. Nodes and loads are played: their rights are
//! Kubernetes' and Prometheus' matter.

mod program;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tenure_autoscaler::backlog::Behind;
use tenure_autoscaler::ec2::{Ec2, IAM_ACTIONS, Settings};
use tenure_autoscaler::machine::Manner;
use tenure_autoscaler::observation::{CordonMark, Load, Node, Pod, PodOwner, Resources, tags};
use tenure_autoscaler::placement::Placement;
use tenure_autoscaler::ports::{Cluster, Evicted, Measures, Metrics, Patched};
use tenure_autoscaler::state::{ActionId, Place};
use tenure_autoscaler::{Places, Policy, Ports, rows};
use tenure_backend::{Env, Result};
use tenure_clock::{Clock, Entropy, ManualTime, Monotonic, SystemClock};
use tenure_lambda::{Context, Request, handle};
use tenure_leases::capacity;
use tenure_store::{Condition, Item, Store, StoreExt, Value as Stored};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::recorder::Recorder;
use crate::template::{actions, statements, template};

const REGION: &str = "us-east-1";
/// One that moto always has.
const IMAGE: &str = "ami-03cf127a";

fn emulator(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use \
             `cargo xtask test`"
        )
    })
}

// === somebody else's calls ===

/// A call to moto of one who is not the function. It checks no signatures.
async fn called(parameters: &[(&str, &str)]) -> String {
    let moto = emulator("TENURE_TEST_MOTO");
    let host = moto.trim_start_matches("http://").trim_end_matches('/');
    let mut form = form_urlencoded::Serializer::new(String::new());
    let body = form.append_pair("Version", "2016-11-15").extend_pairs(parameters).finish();
    let head = [
        "POST / HTTP/1.1".to_owned(),
        format!("Host: {host}"),
        format!(
            "Authorization: AWS4-HMAC-SHA256 Credential=test/20260101/{REGION}/ec2/aws4_request, SignedHeaders=host, \
             Signature=none"
        ),
        "Content-Type: application/x-www-form-urlencoded".to_owned(),
        format!("Content-Length: {}", body.len()),
        "Connection: close".to_owned(),
    ];
    let mut server = TcpStream::connect(host).await.unwrap();
    server.write_all(format!("{}\r\n\r\n{body}", head.join("\r\n")).as_bytes()).await.unwrap();
    let mut answer = String::new();
    server.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{parameters:?}: {answer}");
    answer
}

/// What stands in an element of XML.
fn element(answer: &str, name: &str) -> String {
    let (_, rest) =
        answer.split_once(&format!("<{name}>")).unwrap_or_else(|| panic!("no {name} in {answer}"));
    rest.split('<').next().unwrap().to_owned()
}

// === a cluster that is played ===

#[derive(Debug, Default)]
struct Played {
    nodes: BTreeMap<String, Node>,
    pods: BTreeMap<String, Pod>,
    versions: u64,
    load_percent: u32,
}

#[derive(Debug, Clone)]
struct Stage {
    played: Arc<Mutex<Played>>,
    clock: Arc<dyn Clock>,
}

impl Stage {
    fn node(&self, name: &str, node: impl FnOnce(&mut Node)) -> Patched {
        let mut played = self.played.lock().unwrap();
        played.versions += 1;
        let version = played.versions.to_string();
        let Some(found) = played.nodes.get_mut(name) else { return Patched::Gone };
        found.version = version;
        node(found);
        Patched::Done
    }

    /// The node of an instance, as user data registers it.
    fn joins(&self, id: &str, startup_taint: bool) {
        let node = Node {
            name: format!("node-{id}"),
            uid: format!("uid-{id}"),
            version: "0".to_owned(),
            provider_id: Some(format!("aws:///us-east-1a/{id}")),
            instance_label: None,
            internal_ip: None,
            created_epoch: self.clock.wall().as_seconds(),
            ready: true,
            unschedulable: false,
            control_plane: false,
            startup_taint,
            cordoned_by: None,
            released_by: None,
            allocatable: Resources { cpu_millis: 2000, memory_mib: 4096 },
            labels: BTreeMap::new(),
            taints: Vec::new(),
        };
        self.played.lock().unwrap().nodes.insert(node.name.clone(), node);
    }

    fn leaves(&self, id: &str) {
        self.played.lock().unwrap().nodes.remove(&format!("node-{id}"));
    }

    fn pod(&self, name: &str, node: Option<&str>) {
        let pod = Pod {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            node: node.map(str::to_owned),
            unschedulable: node.is_none(),
            requests: Resources { cpu_millis: 1500, memory_mib: 1024 },
            owner: PodOwner::Controller,
            local_storage: false,
            placement: Placement::default(),
        };
        self.played.lock().unwrap().pods.insert(name.to_owned(), pod);
    }

    fn no_pods(&self) {
        self.played.lock().unwrap().pods.clear();
    }
}

#[async_trait]
impl Cluster for Stage {
    async fn nodes(&self, _: Monotonic) -> Result<Vec<Node>> {
        Ok(self.played.lock().unwrap().nodes.values().cloned().collect())
    }

    async fn pods(&self, _: Monotonic) -> Result<Vec<Pod>> {
        Ok(self.played.lock().unwrap().pods.values().cloned().collect())
    }

    async fn cordon(&self, _: Monotonic, node: &str, _: &str, mark: &CordonMark) -> Result<Patched> {
        Ok(self.node(node, |node| {
            node.unschedulable = true;
            node.cordoned_by = Some(mark.clone());
        }))
    }

    async fn release(
        &self,
        _: Monotonic,
        node: &str,
        _: &str,
        action: &ActionId,
        uncordon: bool,
    ) -> Result<Patched> {
        Ok(self.node(node, |node| {
            node.released_by = Some(action.clone());
            if uncordon {
                node.unschedulable = false;
                node.cordoned_by = None;
            }
        }))
    }

    async fn untaint(&self, _: Monotonic, node: &str, _: &str) -> Result<Patched> {
        Ok(self.node(node, |node| node.startup_taint = false))
    }

    async fn evict(&self, _: Monotonic, _: &str, name: &str, _: &str, manner: Manner) -> Result<Evicted> {
        let mut played = self.played.lock().unwrap();
        if !matches!(manner, Manner::DryRun) {
            played.pods.remove(name);
        }
        Ok(Evicted::Accepted)
    }
}

#[async_trait]
impl Metrics for Stage {
    async fn measures(&self, _: Monotonic) -> Result<Measures> {
        let now = self.clock.wall().as_seconds();
        let played = self.played.lock().unwrap();
        let load =
            Load { cpu_percent: played.load_percent, memory_percent: played.load_percent, at_epoch: now };
        let loads = played.nodes.keys().map(|name| (name.clone(), load)).collect();
        Ok(Measures { loads, asked_epoch: Some(now) })
    }

    async fn readiness(&self, _: Monotonic) -> Result<BTreeMap<String, bool>> {
        Ok(BTreeMap::new())
    }
}

// === the function ===

struct Site {
    ec2: Recorder,
    dynamodb: Recorder,
    store: Arc<dyn Store>,
    stage: Stage,
    time: ManualTime,
    context: Context,
    cluster: String,
    subnet: String,
    consumer: capacity::Place,
}

impl Site {
    async fn new() -> Self {
        let nonce = Entropy::system().nonce()[..12].to_owned();
        let vpc = called(&[("Action", "CreateVpc"), ("CidrBlock", "10.8.0.0/16")]).await;
        let vpc = element(&vpc, "vpcId");
        let made = called(&[("Action", "CreateSubnet"), ("VpcId", &vpc), ("CidrBlock", "10.8.0.0/20")]).await;
        let subnet = element(&made, "subnetId");
        let cluster = format!("lambda-{nonce}");
        called(&[
            ("Action", "CreateLaunchTemplate"),
            ("LaunchTemplateName", &cluster),
            ("LaunchTemplateData.ImageId", IMAGE),
            ("LaunchTemplateData.InstanceType", "t3.small"),
        ])
        .await;

        let (ec2, dynamodb) = (
            Recorder::start(&emulator("TENURE_TEST_MOTO")).await,
            Recorder::start(&emulator("TENURE_TEST_DYNOXIDE")).await,
        );
        // Windows and leases pass at will; the servers keep their own time.
        let time = ManualTime::starting_at(SystemClock.wall());
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::system() };
        // Tables are made past the recorder, as the template makes them; and by a clock that goes on, because a store
        // waits until they are there.
        let plain = format!("dynamodb:?region={REGION}&endpoint={}", emulator("TENURE_TEST_DYNOXIDE"));
        let setup = tenure_store::open(&plain, &Env::system()).await.unwrap();
        let (state, logs, stream) =
            (format!("state-{nonce}"), format!("logs-{nonce}"), format!("orders-{nonce}"));
        let app = format!("billing-{nonce}");
        for spec in [
            rows::state_table(&state),
            rows::logs_table(&logs),
            capacity::table_spec(&format!("{stream}_meta")),
            capacity::table_spec(&format!("{app}_meta")),
        ] {
            setup.ensure_table(Monotonic::NEVER, &spec).await.unwrap();
        }

        let mut settings = Settings::new(&cluster, &cluster);
        settings.region = Some(REGION.to_owned());
        settings.endpoint = Some(ec2.url());
        let cloud = Ec2::connect(&settings, &env).await.unwrap();
        let recorded = format!("dynamodb:?region={REGION}&endpoint={}", dynamodb.url());
        let store = tenure_store::open(&recorded, &env).await.unwrap();
        let stage = Stage { played: Arc::default(), clock: env.clock.clone() };
        let place = Place { subnet: subnet.clone(), market: "on-demand".into(), template: "1".into() };
        let policy = Policy {
            pending_window: Duration::ZERO,
            idle_window: Duration::ZERO,
            cooldown: Duration::ZERO,
            lag_max: Some(Duration::from_secs(60)),
            ..Policy::new(&cluster, 1, 3, vec![place])
        };
        let consumer = capacity::Place { table: format!("{stream}_meta"), stream, app };
        let of = vec![(consumer.stream.clone(), consumer.app.clone())];
        let behind = Behind { of, enough: Duration::from_secs(60) };
        let ports = Ports {
            store: store.clone(),
            cloud: Arc::new(cloud),
            cluster: Arc::new(stage.clone()),
            metrics: Arc::new(stage.clone()),
            backlog: Some(Arc::new(behind.told(&store, &env))),
        };
        let places = Places { state_table: state, logs_table: Some(logs), ..Places::default() };
        let context = Context { ports, policy, places, env };
        Self { ec2, dynamodb, store: setup, stage, time, context, cluster, subnet, consumer }
    }

    async fn invoke(&self, event: Value) -> Value {
        let deadline = self.context.env.clock.wall() + Duration::from_secs(60);
        let request = Request { id: "4f3c9a52-request".to_owned(), event, deadline };
        handle(&self.context, request).await.unwrap()
    }

    /// A minute later.
    async fn tick(&self) -> Value {
        self.time.advance(Duration::from_secs(60));
        let now = self.context.env.clock.wall();
        let behind = Some(capacity::Behind { ms: 0, at: now.as_seconds() });
        let ours = capacity::Ours { incarnation: Some("i".into()), behind, ..capacity::Ours::default() };
        let row = self.consumer.row("worker".into(), capacity::Target::of(4, 2, 80), now, ours);
        self.store.write(Monotonic::NEVER, &self.consumer.save(row)).await.unwrap();
        let told = self.invoke(json!({ "detail-type": "Scheduled Event" })).await;
        assert_eq!(told["failures"], json!([]), "{told}");
        told
    }

    async fn instances(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let listed = self.context.ports.cloud.instances(Monotonic::NEVER, &[]).await.unwrap();
        let live = listed.into_iter().filter(|instance| instance.is_live());
        live.map(|instance| (instance.id.to_string(), instance.tags)).collect()
    }

    /// Launched by somebody else, with these tags.
    async fn launched(&self, given: &[(&str, &str)]) -> String {
        let mut parameters = vec![
            ("Action".to_owned(), "RunInstances".to_owned()),
            ("ImageId".to_owned(), IMAGE.to_owned()),
            ("InstanceType".to_owned(), "t3.small".to_owned()),
            ("SubnetId".to_owned(), self.subnet.clone()),
            ("MinCount".to_owned(), "1".to_owned()),
            ("MaxCount".to_owned(), "1".to_owned()),
        ];
        if !given.is_empty() {
            parameters.push(("TagSpecification.1.ResourceType".to_owned(), "instance".to_owned()));
        }
        for (number, (name, value)) in (1..).zip(given) {
            parameters.push((format!("TagSpecification.1.Tag.{number}.Key"), (*name).to_owned()));
            parameters.push((format!("TagSpecification.1.Tag.{number}.Value"), (*value).to_owned()));
        }
        let parameters: Vec<_> =
            parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        element(&called(&parameters).await, "instanceId")
    }

    async fn item(&self) -> Item {
        let table = &self.context.places.state_table;
        self.store.get(Monotonic::NEVER, table, &rows::state_key()).await.unwrap().unwrap()
    }

    /// The ids of statements and the actions that were called under them.
    fn called(&self) -> BTreeSet<(String, String)> {
        let places = &self.context.places;
        let sid = |table: &str| match table {
            table if table == places.state_table => "State",
            table if Some(table) == places.logs_table.as_deref() => "Log",
            table if table.ends_with("_meta") => "Lag",
            table => panic!("a table of nobody's: {table}"),
        };
        let of_tables = self.dynamodb.calls().into_iter().map(|call| {
            (sid(call.table.as_deref().expect("every call names its table")).to_owned(), call.action)
        });
        of_tables.collect()
    }
}

/// All that an executor does in its life: it launches, commits, takes away, collects an orphan, adopts an old worker,
/// and hears of an interruption.
async fn life(site: &Site) {
    // The first worker.
    let told = site.tick().await;
    assert!(told["writes"].to_string().contains("begin up"), "{told}");
    let first = site.instances().await.into_keys().next().unwrap();
    site.stage.joins(&first, true);
    site.tick().await;
    assert!(site.instances().await[&first].contains_key(tags::COMMITTED));

    // A second, for a pod that waits; then none is needed.
    site.stage.pod("resident", Some(&format!("node-{first}")));
    site.stage.pod("waiting", None);
    site.tick().await;
    let instances = site.instances().await;
    let second = instances.keys().find(|id| **id != first).expect("one was added").clone();
    site.stage.joins(&second, true);
    site.stage.no_pods();
    for _ in 0..6 {
        site.tick().await;
    }
    let left = site.instances().await;
    assert_eq!(left.len(), 1, "one was taken away: {left:?}");
    let (worker, gone) = if left.contains_key(&first) { (first, second) } else { (second, first) };
    site.stage.leaves(&gone);

    // An orphan: of an action that is over, and not committed.
    let orphan = site
        .launched(&[
            (tags::CLUSTER, &site.cluster),
            (tags::ACTION, "1730000300-req"),
            (tags::SEQ, "1"),
            (tags::SLOT, "7"),
            (tags::ATTEMPT, "0"),
        ])
        .await;
    site.tick().await;
    assert!(site.instances().await[&orphan].contains_key(tags::SUSPECT));
    for _ in 0..3 {
        site.tick().await;
    }
    assert!(!site.instances().await.contains_key(&orphan), "it was collected");

    // What an old writer launched without a tag, and left half-done. All are busy from here on.
    site.stage.played.lock().unwrap().load_percent = 60;
    let old = site.launched(&[]).await;
    site.stage.joins(&old, false);
    let begun = site.context.env.clock.wall().as_seconds() - 1000;
    let item = site
        .item()
        .await
        .with("scalingInProgress", true)
        .with("scaleUpActionId", "1730000900-old")
        .with("scaleUpStartedEpoch", begun)
        .with("scaleUpRequested", 1)
        .with("scaleUpInstanceIds", Stored::L(vec![old.as_str().into()]))
        .with("lockOwner", "old")
        .with("lockUntilEpoch", begun + 60);
    let table = &site.context.places.state_table;
    assert!(site.store.put(Monotonic::NEVER, table, item, Condition::Always).await.unwrap().is_applied());
    for _ in 0..2 {
        site.tick().await;
    }
    assert_eq!(site.instances().await[&old][tags::CLUSTER], site.cluster, "it was enlisted");

    // And a warning, of ours and of another's.
    let stranger = site.launched(&[]).await;
    let warning = |id: &str| {
        let detail = json!({ "instance-id": id });
        json!({ "detail-type": "EC2 Spot Instance Interruption Warning", "detail": detail })
    };
    site.invoke(warning(&worker)).await;
    assert!(site.invoke(warning(&stranger)).await["ignored"].is_string());
    let item = site.item().await;
    let Some(Stored::M(inbox)) = item.get("interrupts") else { panic!("{item:?}") };
    assert_eq!(inbox.keys().collect::<Vec<_>>(), [&worker]);
}

/// Actions that are allowed and that no request names.
const NOT_CALLED: [(&str, &str); 1] = [
    // EC2 asks for it when a launch template names an instance profile.
    ("LaunchWithRole", "iam:PassRole"),
];

#[tokio::test]
async fn the_calls_made_are_the_calls_allowed() {
    let site = Site::new().await;
    life(&site).await;
    let allowed = statements(&template(), "autoscaler");
    let pairs = |wanted: &str| -> BTreeSet<(String, String)> {
        let each = allowed.iter().flat_map(|(sid, statement)| {
            actions(statement).into_iter().map(move |action| (sid.clone(), action))
        });
        each.filter(|(_, action)| action.starts_with(wanted)).collect()
    };

    assert_eq!(site.called(), pairs("dynamodb:"), "left: called, right: allowed");

    let called: BTreeSet<_> = site.ec2.calls().into_iter().map(|call| call.action).collect();
    let granted: BTreeSet<_> = pairs("ec2:").into_iter().map(|(_, action)| action).collect();
    assert_eq!(called, granted, "left: called, right: allowed");
    assert_eq!(granted, IAM_ACTIONS.iter().map(ToString::to_string).collect(), "and what the driver says");
    let is_other =
        |(_, action): &(String, String)| !action.starts_with("ec2:") && !action.starts_with("dynamodb:");
    let others: BTreeSet<_> = pairs("").into_iter().filter(is_other).collect();
    let named = NOT_CALLED.map(|(sid, action)| (sid.to_owned(), action.to_owned()));
    assert_eq!(others, named.into());
}

/// As EC2 lists tags in a request.
fn tags_of(call: &BTreeMap<String, String>, prefix: &str) -> BTreeMap<String, String> {
    let keys = call.iter().filter_map(|(name, key)| {
        let number = name.strip_prefix(prefix)?.strip_suffix(".Key")?;
        Some((key.clone(), call.get(&format!("{prefix}{number}.Value")).cloned().unwrap_or_default()))
    });
    keys.collect()
}

/// moto knows no policies: what the conditions of the template ask for is compared with what was sent.
#[tokio::test]
async fn what_is_sent_fits_the_conditions() {
    let site = Site::new().await;
    life(&site).await;
    let allowed = statements(&template(), "autoscaler");
    let keys = |sid: &str| -> BTreeSet<String> {
        let keys = &allowed[sid]["Condition"]["ForAllValues:StringEquals"]["aws:TagKeys"];
        keys.as_array().unwrap().iter().map(|key| key.as_str().unwrap().to_owned()).collect()
    };
    for (sid, key) in [
        ("LaunchOfThisCluster", "aws:RequestTag/tenure/cluster"),
        ("TagAtLaunch", "aws:RequestTag/tenure/cluster"),
        ("TagOfThisCluster", "aws:ResourceTag/tenure/cluster"),
        ("Enlist", "aws:RequestTag/tenure/cluster"),
        ("AskEnd", "aws:ResourceTag/tenure/cluster"),
        ("End", "aws:ResourceTag/tenure/cluster"),
    ] {
        assert_eq!(allowed[sid]["Condition"]["StringEquals"][key], json!({ "Ref": "ClusterName" }), "{sid}");
        assert!(key.ends_with(tags::CLUSTER));
    }

    let mut of_cluster: BTreeSet<String> = BTreeSet::new();
    let (mut launches, mut ends, mut committed, mut enlisted) = (0, 0, 0, 0);
    // Launched by this test, with the tag.
    let launched: BTreeSet<_> = site.all_with_tag().await;
    of_cluster.extend(launched);
    for call in site.ec2.calls() {
        let sent = &call.parameters;
        match call.action.as_str() {
            "ec2:RunInstances" => {
                launches += 1;
                assert!(sent.contains_key("LaunchTemplate.LaunchTemplateName"), "{sent:?}");
                assert_eq!(sent["SubnetId"], site.subnet);
                let tags = tags_of(sent, "TagSpecification.1.Tag.");
                assert_eq!(tags.get(tags::CLUSTER), Some(&site.cluster), "{sent:?}");
                // Else they would not be what the template names.
                for given in ["ImageId", "KeyName", "SecurityGroupId.1", "IamInstanceProfile.Arn"] {
                    assert!(!sent.contains_key(given), "{sent:?}");
                }
            }
            "ec2:CreateTags" => {
                let given: BTreeSet<_> = tags_of(sent, "Tag.").into_keys().collect();
                if given.is_subset(&keys("TagOfThisCluster")) {
                    assert!(of_cluster.contains(&sent["ResourceId.1"]), "{sent:?}");
                    committed += 1;
                } else {
                    assert_eq!(given, keys("Enlist"), "{sent:?}");
                    assert_eq!(tags_of(sent, "Tag.")[tags::CLUSTER], site.cluster);
                    enlisted += 1;
                }
            }
            "ec2:TerminateInstances" => {
                assert!(of_cluster.contains(&sent["InstanceId.1"]), "{sent:?}");
                ends += 1;
            }
            "ec2:DescribeInstanceAttribute" => {
                assert_eq!(sent["Attribute"], "disableApiTermination");
                assert!(of_cluster.contains(&sent["InstanceId"]), "{sent:?}");
            }
            _ => {}
        }
    }
    assert!(launches >= 2 && ends >= 3 && committed >= 3 && enlisted == 1);
}

impl Site {
    /// Every instance that has the cluster's tag, ended ones included.
    async fn all_with_tag(&self) -> BTreeSet<String> {
        let listed = self.context.ports.cloud.instances(Monotonic::NEVER, &[]).await.unwrap();
        listed.into_iter().map(|instance| instance.id.to_string()).collect()
    }
}
