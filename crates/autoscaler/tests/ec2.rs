//! The cloud's driver, with the real SDK, against moto. `cargo xtask test` starts it.
//!
//! No emulator knows client tokens, so a small shim of ours stands in front: it remembers tokens as EC2 does, and
//! refuses, hangs and loses replies when told to. What it does is ours; everything behind it is moto's.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Region;
use aws_sdk_ec2::types::{AttributeBooleanValue, InstanceType, RequestLaunchTemplateData};
use tenure_autoscaler::ec2::{Ec2, IAM_ACTIONS, Settings};
use tenure_autoscaler::observation::{InstanceState, LaunchOrder, tags};
use tenure_autoscaler::ports::{Cloud, Ended, Launch};
use tenure_autoscaler::state::{InstanceId, Place};
use tenure_backend::{Env, Kind, aws};
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tenure_scratch_cluster::{Fault, NoWatcher, Shim, variable};

const REGION: &str = "us-east-1";
/// One that moto always has.
const IMAGE: &str = "ami-03cf127a";
/// Of the right form, and nobody's.
const NOBODY: &str = "i-0123456789abcdef0";

fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}

fn nonce() -> String {
    Entropy::system().nonce()[..12].to_owned()
}

// === a cluster of its own ===

struct Site {
    /// Past the shim.
    direct: Client,
    shim: Shim,
    cloud: Ec2,
    cluster: String,
    subnet: String,
    settings: Settings,
}

impl Site {
    async fn new() -> Self {
        let moto = variable("TENURE_TEST_MOTO");
        let config = aws::loader().region(Region::new(REGION)).endpoint_url(&moto).load().await;
        let direct = Client::new(&config);
        let vpc =
            direct.create_vpc().cidr_block("10.7.0.0/16").send().await.unwrap().vpc.unwrap().vpc_id.unwrap();
        let subnet = direct.create_subnet().vpc_id(vpc).cidr_block("10.7.0.0/20").send().await.unwrap();
        let cluster = format!("demo-{}", nonce());
        let data = RequestLaunchTemplateData::builder().image_id(IMAGE).instance_type(InstanceType::T3Small);
        direct
            .create_launch_template()
            .launch_template_name(&cluster)
            .launch_template_data(data.build())
            .send()
            .await
            .unwrap();
        let shim = Shim::start(&moto, Arc::new(NoWatcher)).await.unwrap();
        let mut settings = Settings::new(&cluster, &cluster);
        settings.region = Some(REGION.to_owned());
        settings.endpoint = Some(shim.url());
        let cloud = Ec2::connect(&settings, &Env::system()).await.unwrap();
        Self { direct, shim, cloud, cluster, subnet: subnet.subnet.unwrap().subnet_id.unwrap(), settings }
    }

    fn order(&self, slot: u32, attempt: u32) -> LaunchOrder {
        let tags = [
            (tags::CLUSTER, self.cluster.clone()),
            (tags::ACTION, "1730000300-req".to_owned()),
            (tags::SEQ, "7".to_owned()),
            (tags::SLOT, slot.to_string()),
            (tags::ATTEMPT, attempt.to_string()),
        ];
        LaunchOrder {
            slot,
            attempt,
            place: Place { subnet: self.subnet.clone(), market: "on-demand".into(), template: "1".into() },
            token: format!("{}-{slot}-{attempt}", self.cluster),
            tags: tags.map(|(name, value)| (name.to_owned(), value)).into(),
        }
    }

    async fn launched(&self, order: &LaunchOrder) -> InstanceId {
        match self.cloud.launch(soon(), order).await.unwrap() {
            Launch::Started(id) => id,
            Launch::NoCapacity(why) => panic!("{why}"),
        }
    }

    async fn ids(&self) -> BTreeSet<InstanceId> {
        let instances = self.cloud.instances(soon(), &[]).await.unwrap();
        instances.into_iter().map(|instance| instance.id).collect()
    }
}

#[tokio::test]
async fn an_instance_is_launched_seen_tagged_and_ended_by_the_named_permissions_alone() {
    let site = Site::new().await;
    assert_eq!(site.ids().await, BTreeSet::new());
    let id = site.launched(&site.order(0, 0)).await;
    let instances = site.cloud.instances(soon(), &[]).await.unwrap();
    let [instance] = &instances[..] else { panic!("{instances:?}") };
    assert_eq!(instance.id, id);
    assert!(matches!(instance.state, InstanceState::Pending | InstanceState::Running));
    assert!(instance.private_ip.as_ref().is_some_and(|ip| ip.starts_with("10.7.")), "{instance:?}");
    let now = SystemClock.wall().as_millis() / 1000;
    assert!((now - 600..=now + 600).contains(&instance.launched_epoch), "{instance:?}");
    let origin = instance.origin().unwrap();
    assert_eq!((origin.action, origin.seq, origin.slot, origin.attempt), ("1730000300-req", 7, 0, 0));
    assert_eq!(instance.tag(tags::CLUSTER), Some(site.cluster.as_str()));

    for _ in 0..2 {
        site.cloud.tag(soon(), &id, tags::COMMITTED, "1730000300-req").await.unwrap();
    }
    let instances = site.cloud.instances(soon(), &[]).await.unwrap();
    assert_eq!(instances[0].tag(tags::COMMITTED), Some("1730000300-req"));
    assert_eq!(instances[0].tag(tags::SLOT), Some("0"), "others stay");

    assert_eq!(site.cloud.why_not_end(soon(), &id).await.unwrap(), None);
    assert!(site.cloud.instances(soon(), &[]).await.unwrap()[0].is_live(), "it was only asked");
    for _ in 0..2 {
        assert_eq!(site.cloud.terminate(soon(), &id).await.unwrap(), Ended::Accepted);
    }
    let instances = site.cloud.instances(soon(), &[]).await.unwrap();
    assert!(instances.iter().all(|instance| instance.state == InstanceState::Gone), "{instances:?}");

    let called: BTreeSet<_> =
        site.shim.calls().iter().map(|call| format!("ec2:{}", call["Action"])).collect();
    assert_eq!(called, IAM_ACTIONS.iter().map(ToString::to_string).collect());
}

#[tokio::test]
async fn a_launch_says_what_was_frozen() {
    let site = Site::new().await;
    let mut order = site.order(3, 1);
    order.place.market = "spot".to_owned();
    site.launched(&order).await;
    let call = site.shim.last("RunInstances").expect("it was called");
    let expected = [
        ("ClientToken", order.token.as_str()),
        ("MinCount", "1"),
        ("MaxCount", "1"),
        ("SubnetId", &site.subnet),
        ("LaunchTemplate.LaunchTemplateName", &site.cluster),
        ("LaunchTemplate.Version", "1"),
        ("InstanceMarketOptions.MarketType", "spot"),
        ("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate"),
        ("TagSpecification.1.ResourceType", "instance"),
    ];
    for (name, value) in expected {
        assert_eq!(call.get(name).map(String::as_str), Some(value), "{name} of {call:?}");
    }
    let mut latest = site.order(4, 0);
    latest.place.template = "$Latest".to_owned();
    assert_eq!(site.cloud.launch(soon(), &latest).await.unwrap_err().kind(), Kind::Invalid);
    assert_eq!(site.shim.count("RunInstances"), 1, "it was not sent");
}

#[tokio::test]
async fn a_launch_that_is_repeated_launches_once() {
    let site = Site::new().await;
    let order = site.order(0, 0);
    site.shim.next("RunInstances", Fault::LoseReply);
    let lost = site.cloud.launch(soon(), &order).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::Unknown, "{lost:?}");
    let id = site.launched(&order).await;
    assert_eq!(site.launched(&order).await, id);
    // The same token for something else: what it launched is found by its tags.
    let mut other = order.clone();
    other.place.market = "spot".to_owned();
    assert_eq!(site.launched(&other).await, id);
    assert_eq!(site.ids().await, [id.clone()].into());
    // Ended, it is still that launch.
    site.cloud.terminate(soon(), &id).await.unwrap();
    assert_eq!(site.launched(&other).await, id);
    // And an attempt that nobody has seen is not made up.
    let mut unseen = site.order(0, 1);
    unseen.token = order.token;
    let error = site.cloud.launch(soon(), &unseen).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown);
    assert!(error.chain().contains("look again"), "{error:?}");
}

#[tokio::test]
async fn want_of_capacity_is_told_from_other_refusals() {
    let site = Site::new().await;
    let no_capacity = [
        (500, "InsufficientInstanceCapacity"),
        (400, "InsufficientFreeAddressesInSubnet"),
        (400, "SpotMaxPriceTooLow"),
        (400, "MaxSpotInstanceCountExceeded"),
        (400, "VcpuLimitExceeded"),
        (400, "Unsupported"),
    ];
    for (status, code) in no_capacity {
        site.shim.next("RunInstances", Fault::Refuse(status, code));
        let launch = site.cloud.launch(soon(), &site.order(0, 0)).await.unwrap();
        assert_eq!(launch, Launch::NoCapacity(format!("{code}: by the shim")));
    }
    for (status, code, kind) in [
        (500, "InternalError", Kind::Unknown),
        (503, "Unavailable", Kind::Unknown),
        (503, "RequestLimitExceeded", Kind::Throttled),
        (400, "InvalidParameterValue", Kind::Invalid),
        (403, "UnauthorizedOperation", Kind::Denied),
        (400, "OptInRequired", Kind::Denied),
    ] {
        site.shim.next("RunInstances", Fault::Refuse(status, code));
        let error = site.cloud.launch(soon(), &site.order(0, 0)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.chain().contains(code), "{error:?}");
    }
    assert_eq!(site.ids().await, BTreeSet::new());
    // By moto itself.
    let mut nowhere = site.order(0, 0);
    nowhere.place.subnet = "subnet-0123456789abcdef0".to_owned();
    let error = site.cloud.launch(soon(), &nowhere).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.chain().contains("InvalidSubnetID.NotFound"), "{error:?}");
}

#[tokio::test]
async fn whether_an_instance_may_be_ended_is_known_before() {
    let site = Site::new().await;
    let id = site.launched(&site.order(0, 0)).await;
    site.shim.next("TerminateInstances", Fault::Refuse(403, "UnauthorizedOperation"));
    let why = site.cloud.why_not_end(soon(), &id).await.unwrap().unwrap();
    assert!(why.contains("EC2 denies ec2:TerminateInstances"), "{why}");
    site.shim.next("TerminateInstances", Fault::Refuse(503, "RequestLimitExceeded"));
    assert_eq!(site.cloud.why_not_end(soon(), &id).await.unwrap_err().kind(), Kind::Throttled);

    let protects = AttributeBooleanValue::builder().value(true).build();
    let request = site.direct.modify_instance_attribute().instance_id(id.as_str());
    request.disable_api_termination(protects).send().await.unwrap();
    let why = site.cloud.why_not_end(soon(), &id).await.unwrap().unwrap();
    assert!(why.contains("protected against termination"), "{why}");
    assert!(site.cloud.instances(soon(), &[]).await.unwrap()[0].is_live(), "it was only asked");
    assert_eq!(site.cloud.why_not_end(soon(), &NOBODY.into()).await.unwrap(), None);
}

#[tokio::test]
async fn a_denied_call_names_its_action() {
    let site = Site::new().await;
    let id = InstanceId::from(NOBODY);
    let order = site.order(0, 0);
    for action in ["RunInstances", "DescribeInstances", "TerminateInstances", "CreateTags"] {
        site.shim.next(action, Fault::Refuse(403, "UnauthorizedOperation"));
        let error = match action {
            "RunInstances" => site.cloud.launch(soon(), &order).await.map(drop).unwrap_err(),
            "DescribeInstances" => site.cloud.instances(soon(), &[]).await.map(drop).unwrap_err(),
            "TerminateInstances" => site.cloud.terminate(soon(), &id).await.map(drop).unwrap_err(),
            _ => site.cloud.tag(soon(), &id, "a", "b").await.unwrap_err(),
        };
        assert_eq!(error.kind(), Kind::Denied);
        assert!(error.chain().contains(&format!("EC2 denies ec2:{action}")), "{error:?}");
    }
    site.shim.next("TerminateInstances", Fault::Refuse(400, "OperationNotPermitted"));
    let error = site.cloud.terminate(soon(), &id).await.unwrap_err();
    assert!(error.chain().contains("protected against termination"), "{error:?}");
}

#[tokio::test]
async fn lists_are_of_this_cluster_and_of_those_named_page_by_page() {
    let (site, other) = (Site::new().await, Site::new().await);
    let theirs = other.launched(&other.order(0, 0)).await;
    let mut ours = BTreeSet::new();
    for slot in 0..12 {
        ours.insert(site.launched(&site.order(slot, 0)).await);
    }
    site.shim.page(5);
    let before = site.shim.count("DescribeInstances");
    assert_eq!(site.ids().await, ours);
    assert!(site.shim.count("DescribeInstances") - before >= 3, "three pages of five");
    let one = ours.first().unwrap().clone();
    let also = [theirs.clone(), one, NOBODY.into(), "i-aaa".into(), "i-*".into()];
    let listed = site.cloud.instances(soon(), &also).await.unwrap();
    assert_eq!(listed.len(), 13, "nobody twice");
    assert!(listed.iter().any(|instance| instance.id == theirs));
}

#[tokio::test]
async fn an_instance_that_is_not_known() {
    let site = Site::new().await;
    assert_eq!(site.cloud.terminate(soon(), &NOBODY.into()).await.unwrap(), Ended::NotFound);
    assert_eq!(site.cloud.terminate(soon(), &"i-aaa".into()).await.unwrap(), Ended::NotFound);
    // moto tags what is not there; EC2 says that it does not know it.
    site.shim.next("CreateTags", Fault::Refuse(400, "InvalidInstanceID.NotFound"));
    let error = site.cloud.tag(soon(), &NOBODY.into(), tags::SUSPECT, "1").await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.chain().contains("look again"), "{error:?}");
}

#[tokio::test]
async fn an_endpoint_that_is_silent_may_have_done_it_and_one_that_is_down_has_not() {
    let site = Site::new().await;
    let shortly = || SystemClock.deadline(Duration::from_millis(500));
    site.shim.next("DescribeInstances", Fault::Hang);
    let error = site.cloud.instances(shortly(), &[]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    site.shim.next("TerminateInstances", Fault::Hang);
    let error = site.cloud.terminate(shortly(), &NOBODY.into()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown, "{error:?}");
    assert!(error.chain().contains("by the deadline"), "{error:?}");

    let late = site.cloud.terminate(SystemClock.monotonic(), &NOBODY.into()).await.unwrap_err();
    assert_eq!(late.kind(), Kind::Unavailable, "nothing was sent");

    let mut settings = site.settings.clone();
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    settings.endpoint = Some(format!("http://{closed}"));
    let cloud = Ec2::connect(&settings, &Env::system()).await.unwrap();
    let error = cloud.launch(soon(), &site.order(0, 0)).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error:?}");
    assert!(error.chain().contains("cannot reach EC2"), "{error:?}");
}

#[tokio::test]
async fn missing_credentials_are_named_and_none_are_shown() {
    let site = Site::new().await;
    let mut settings = site.settings.clone();
    settings.profile = Some(format!("nobody-{}", nonce()));
    let cloud = Ec2::connect(&settings, &Env::system()).await.unwrap();
    let error = cloud.instances(soon(), &[]).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Denied, "{error:?}");
    assert!(error.chain().contains("no AWS credentials"), "{error:?}");
    let secret = std::env::var("AWS_SECRET_ACCESS_KEY").unwrap();
    assert!(!format!("{:?}", site.cloud).contains(&format!("\"{secret}\"")));
}
