//! The cluster's side of EC2, straight in moto: a subnet, a launch template, a control plane, and somebody else's
//! hand.

use std::error::Error;

use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::Region;
use aws_sdk_ec2::types::{
    Filter, InstanceStateName, InstanceType, RequestLaunchTemplateData, ResourceType, Tag, TagSpecification,
};

/// The region that everything is in.
pub const REGION: &str = "us-east-1";
/// One that moto always has.
const IMAGE: &str = "ami-03cf127a";
/// The tag that instances of a cluster carry.
const CLUSTER_TAG: &str = "tenure/cluster";

/// What went wrong with a call that a test needs.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A cluster's instances.
#[derive(Debug, Clone)]
pub struct Cloud {
    client: Client,
    /// The cluster's name, and its launch template's.
    pub cluster: String,
    /// Where its instances are launched.
    pub subnet: String,
    /// The instance that runs the control plane.
    pub control_plane: String,
}

/// An instance, as its machine knows itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Its id.
    pub id: String,
    /// Whether it runs.
    pub runs: bool,
    /// Whether it is ending, or has ended.
    pub ended: bool,
    /// Where it is.
    pub zone: String,
    /// Its address.
    pub ip: String,
}

impl Cloud {
    /// Makes subnet, template and control plane of a new cluster in moto.
    ///
    /// # Errors
    /// As moto's.
    pub async fn create(moto: &str, cluster: &str) -> Result<Self, Failure> {
        let config = tenure_backend::aws::loader().region(Region::new(REGION));
        let client = Client::new(&config.endpoint_url(moto).load().await);
        let vpc = client.create_vpc().cidr_block("10.7.0.0/16").send().await?.vpc;
        let vpc = vpc.and_then(|vpc| vpc.vpc_id).ok_or("no network")?;
        let subnet = client.create_subnet().vpc_id(vpc).cidr_block("10.7.0.0/20").send().await?.subnet;
        let subnet = subnet.and_then(|subnet| subnet.subnet_id).ok_or("no subnet")?;
        let data = RequestLaunchTemplateData::builder().image_id(IMAGE).instance_type(InstanceType::T3Small);
        let template = client.create_launch_template().launch_template_name(cluster);
        template.launch_template_data(data.build()).send().await?;
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::Instance)
            .tags(Tag::builder().key(CLUSTER_TAG).value(cluster).build());
        let launched = client
            .run_instances()
            .image_id(IMAGE)
            .min_count(1)
            .max_count(1)
            .subnet_id(&subnet)
            .tag_specifications(tags.build())
            .send()
            .await?;
        let first = launched.instances.unwrap_or_default().into_iter().next();
        let control_plane = first.and_then(|instance| instance.instance_id).ok_or("no control plane")?;
        Ok(Self { client, cluster: cluster.to_owned(), subnet, control_plane })
    }

    /// The cluster's machines, those that have ended too.
    ///
    /// # Errors
    /// As moto's.
    pub async fn machines(&self) -> Result<Vec<Machine>, Failure> {
        let ours = Filter::builder().name(format!("tag:{CLUSTER_TAG}")).values(&self.cluster).build();
        let found = self.client.describe_instances().filters(ours).send().await?;
        let instances = found.reservations.unwrap_or_default().into_iter();
        let machine = |instance: aws_sdk_ec2::types::Instance| {
            let state = instance.state.and_then(|state| state.name);
            Machine {
                id: instance.instance_id.unwrap_or_default(),
                runs: state == Some(InstanceStateName::Running),
                ended: matches!(state, Some(InstanceStateName::ShuttingDown | InstanceStateName::Terminated)),
                zone: instance.placement.and_then(|place| place.availability_zone).unwrap_or_default(),
                ip: instance.private_ip_address.unwrap_or_default(),
            }
        };
        Ok(instances.flat_map(|it| it.instances.unwrap_or_default()).map(machine).collect())
    }

    /// Ends an instance, as somebody else would.
    ///
    /// # Errors
    /// As moto's.
    pub async fn end(&self, id: &str) -> Result<(), Failure> {
        self.client.terminate_instances().instance_ids(id).send().await?;
        Ok(())
    }
}
