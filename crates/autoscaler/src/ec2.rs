//! Instances of EC2, over the AWS SDK. The only place that names the SDK's EC2 types.
//!
//! ```text
//!   ec2.rs            the calls, and what is read from instances
//!   ec2/failure.rs    what its errors mean: may it have had its effect?
//! ```
//!
//! # Guarantees
//! A launch is one call for one instance, whose token EC2 remembers: sent again, it answers with the same
//! instance. Token, subnet, market and the template's version were frozen before the first call, so it is the same
//! request each time. Tags are given with the launch: there is no moment at which an instance of ours has none.
//! The SDK's own retries are off.
//!
//! # Assumptions
//! The launch template names neither a subnet, nor network interfaces, nor a market: a place does. It may name
//! everything else, and its user data registers the node with the start-up taint and the label of its instance.

mod failure;

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use aws_sdk_ec2::Client;
use aws_sdk_ec2::config::http::HttpResponse;
use aws_sdk_ec2::config::retry::RetryConfig;
use aws_sdk_ec2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_ec2::types::{
    Filter, Instance as ApiInstance, InstanceAttributeName, InstanceInterruptionBehavior,
    InstanceMarketOptionsRequest, InstanceStateName, LaunchTemplateSpecification, MarketType, ResourceType,
    SpotInstanceType, SpotMarketOptions, Tag, TagSpecification,
};
use tenure_backend::{Env, Error, Kind, Result, aws};
use tenure_clock::{Clock, Monotonic, within};

use self::failure::{Failure, Meaning};
use crate::intent::Intent;
use crate::observation::{Instance, InstanceState, LaunchOrder, tags};
use crate::ports::{Cloud, Ended, Launch};
use crate::state::{InstanceId, Place};

const RUN_INSTANCES: &str = "ec2:RunInstances";
const CREATE_TAGS: &str = "ec2:CreateTags";
const DESCRIBE_INSTANCES: &str = "ec2:DescribeInstances";
const DESCRIBE_INSTANCE_ATTRIBUTE: &str = "ec2:DescribeInstanceAttribute";
const TERMINATE_INSTANCES: &str = "ec2:TerminateInstances";

/// The actions of IAM that the calls made here need, and no others. Tags at launch are `ec2:CreateTags`, too. A
/// template with an instance profile also needs `iam:PassRole` for its role.
pub const IAM_ACTIONS: [&str; 5] =
    [RUN_INSTANCES, CREATE_TAGS, DESCRIBE_INSTANCES, DESCRIBE_INSTANCE_ATTRIBUTE, TERMINATE_INSTANCES];

const PROTECTED: &str =
    "the instance is protected against termination: lift that, or take it out of the cluster";

/// Instances on one page of a list: the most that EC2 gives.
const PAGE_INSTANCES: i32 = 1000;
/// Pages that are followed at most: 100,000 instances, ended ones of the last hour included.
const PAGES_MAX: u32 = 100;
/// Most values of one filter.
const FILTER_VALUES_MAX: usize = 200;
/// The longest token that EC2 takes.
const TOKEN_BYTES_MAX: usize = 64;

/// What to connect to, and what is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The cluster's name, as the policy has it: instances carry it as tag `tenure/cluster`.
    pub cluster: String,
    /// The launch template, by id (`lt-…`) or name. Its version is part of a place.
    pub launch_template: String,
    /// The region. Without it: AWS's usual environment and files.
    pub region: Option<String>,
    /// A profile of AWS's files; it goes before credentials of the environment.
    pub profile: Option<String>,
    /// Another endpoint than the region's: an emulator, a private one.
    pub endpoint: Option<String>,
}

impl Settings {
    /// What AWS's own environment says of everything else.
    #[must_use]
    pub fn new(cluster: impl Into<String>, launch_template: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            launch_template: launch_template.into(),
            region: None,
            profile: None,
            endpoint: None,
        }
    }

    /// Refuses what could not be used.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give.
    pub fn validate(&self) -> Result<()> {
        if self.cluster.is_empty()
            || self.cluster.chars().count() > 256
            || self.cluster.contains(['*', '?', '\\'])
        {
            return Err(Error::invalid(format!(
                "`{}` cannot be a cluster's name: give up to 256 characters, none of them *, ? or \\, which a search \
                 by tag would take for others",
                self.cluster
            )));
        }
        if self.launch_template.is_empty() {
            return Err(Error::invalid("there is no launch template: give its id (lt-…) or its name"));
        }
        if let Some(endpoint) = &self.endpoint {
            let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            if !host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace)) {
                return Err(Error::invalid(format!(
                    "endpoint `{endpoint}` is not a URL: write http://host:port or https://host"
                )));
            }
        }
        Ok(())
    }
}

/// The cluster's instances in one region.
pub struct Ec2 {
    client: Client,
    region: String,
    /// For messages: where the client connects to.
    endpoint: String,
    cluster: String,
    launch_template: String,
    clock: Arc<dyn Clock>,
}

/// The client holds credentials.
impl fmt::Debug for Ec2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ec2")
            .field("region", &self.region)
            .field("endpoint", &self.endpoint)
            .field("cluster", &self.cluster)
            .field("launch_template", &self.launch_template)
            .finish_non_exhaustive()
    }
}

impl Ec2 {
    /// Reads where EC2 is and who we are. Nothing is sent yet.
    ///
    /// # Errors
    /// `Invalid` if a setting is wrong or no region is known.
    pub async fn connect(settings: &Settings, env: &Env) -> Result<Self> {
        settings.validate()?;
        let shared = aws::config(settings.region.as_deref(), settings.profile.as_deref()).await;
        let Some(region) = shared.region().map(ToString::to_string) else {
            return Err(Error::invalid("no AWS region is known: name it, like eu-west-1, or set AWS_REGION"));
        };
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.is_empty() || !region.bytes().all(fits) {
            return Err(Error::invalid(format!(
                "`{region}` is not the name of an AWS region: write it like eu-west-1"
            )));
        }
        let mut config = aws_sdk_ec2::config::Builder::from(&shared).retry_config(RetryConfig::disabled());
        if let Some(endpoint) = &settings.endpoint {
            config = config.endpoint_url(endpoint);
        }
        let named = settings
            .endpoint
            .clone()
            .or_else(|| std::env::var("AWS_ENDPOINT_URL_EC2").ok())
            .or_else(|| shared.endpoint_url().map(str::to_owned));
        Ok(Self {
            client: Client::from_conf(config.build()),
            endpoint: named.unwrap_or_else(|| format!("the endpoint of region {region}")),
            region,
            cluster: settings.cluster.clone(),
            launch_template: settings.launch_template.clone(),
            clock: env.clock.clone(),
        })
    }

    /// One call, until `by`.
    async fn send<T, E>(
        &self,
        by: Monotonic,
        intent: Intent,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
    ) -> Result<T, Failure>
    where
        E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        if self.clock.monotonic() >= by {
            return Err(Failure::Other(Error::unavailable("the deadline passed before anything was sent")));
        }
        // Boxed: the SDK's futures are many kilobytes.
        match within(&*self.clock, by, Box::pin(call)).await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => Err(Failure::of(error, intent, &self.endpoint)),
            Err(_) => {
                let message = format!("no answer from EC2 at {} by the deadline", self.endpoint);
                Err(Failure::Other(Error::new(intent.unanswered(), message)))
            }
        }
    }

    /// All instances that fit the filters, page by page.
    async fn described(&self, by: Monotonic, filters: Vec<Filter>) -> Result<Vec<Instance>> {
        let mut instances = Vec::new();
        let mut next = None;
        for _ in 0..PAGES_MAX {
            let request = self
                .client
                .describe_instances()
                .set_filters(Some(filters.clone()))
                .max_results(PAGE_INSTANCES)
                .set_next_token(next);
            let page = self
                .send(by, Intent::Read, request.send())
                .await
                .map_err(|failure| failure.into_error(Intent::Read, DESCRIBE_INSTANCES))?;
            let found = page.reservations.unwrap_or_default().into_iter();
            instances.extend(found.flat_map(|it| it.instances.unwrap_or_default()).filter_map(seen));
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(instances);
            }
        }
        Err(Error::invalid(format!(
            "there are more than {PAGES_MAX} pages of instances of cluster `{}`: is its tag on others' instances?",
            self.cluster
        )))
    }

    fn of_cluster(&self) -> Filter {
        by_tag(tags::CLUSTER, &self.cluster)
    }

    /// The instance that an earlier call launched for this attempt, found by its tags.
    async fn launched_before(&self, by: Monotonic, order: &LaunchOrder) -> Result<Option<InstanceId>> {
        let mut filters = vec![self.of_cluster()];
        for name in [tags::ACTION, tags::SLOT, tags::ATTEMPT] {
            let Some(value) = order.tags.get(name) else {
                return Err(Error::invalid(format!("a launch without tag `{name}` cannot be found again")));
            };
            filters.push(by_tag(name, value));
        }
        let mut found = self.described(by, filters).await?;
        // One that lives goes before one that has ended.
        found.sort_by(|one, other| other.is_live().cmp(&one.is_live()).then_with(|| one.id.cmp(&other.id)));
        Ok(found.into_iter().next().map(|instance| instance.id))
    }
}

#[async_trait]
impl Cloud for Ec2 {
    async fn instances(&self, by: Monotonic, also: &[InstanceId]) -> Result<Vec<Instance>> {
        let mut instances = self.described(by, vec![self.of_cluster()]).await?;
        let missing: Vec<_> =
            also.iter().filter(|id| !instances.iter().any(|instance| instance.id == **id)).collect();
        // By a filter, not by ids: an id that EC2 does not know would fail the whole call.
        for ids in missing.chunks(FILTER_VALUES_MAX) {
            let values = ids.iter().map(|id| literal(id.as_str())).collect();
            let filter = Filter::builder().name("instance-id").set_values(Some(values)).build();
            instances.extend(self.described(by, vec![filter]).await?);
        }
        Ok(instances)
    }

    async fn launch(&self, by: Monotonic, order: &LaunchOrder) -> Result<Launch> {
        let market = market(&order.place)?;
        check(order)?;
        let mut tags = order.tags.clone();
        tags.insert(tags::CLUSTER.to_owned(), self.cluster.clone());
        let tags = tags.into_iter().map(|(name, value)| Tag::builder().key(name).value(value).build());
        let tags = TagSpecification::builder()
            .resource_type(ResourceType::Instance)
            .set_tags(Some(tags.collect()))
            .build();
        let template = LaunchTemplateSpecification::builder().version(&order.place.template);
        let template = if self.launch_template.starts_with("lt-") {
            template.launch_template_id(&self.launch_template)
        } else {
            template.launch_template_name(&self.launch_template)
        };
        let request = self
            .client
            .run_instances()
            .client_token(&order.token)
            .min_count(1)
            .max_count(1)
            .launch_template(template.build())
            .subnet_id(&order.place.subnet)
            .set_instance_market_options(market)
            .tag_specifications(tags);
        let failure = match self.send(by, Intent::Write, request.send()).await {
            Ok(launched) => {
                let first = launched.instances.unwrap_or_default().into_iter().next();
                return match first.and_then(|instance| instance.instance_id) {
                    Some(id) => Ok(Launch::Started(id.into())),
                    None => Err(Error::new(Kind::Unknown, "EC2 says that it launched and names no instance")),
                };
            }
            Err(failure) => failure,
        };
        match failure.meaning() {
            Some(Meaning::NoCapacity) => Ok(Launch::NoCapacity(failure.said())),
            // The token was used by another request: an earlier version of ours may have frozen less.
            Some(Meaning::TokenUsed) => match self.launched_before(by, order).await {
                Ok(Some(id)) => Ok(Launch::Started(id)),
                // Whatever kept us from looking: something was launched.
                Err(error) => {
                    Err(Error::new(Kind::Unknown, "the token of this launch was used before").because(error))
                }
                Ok(None) => Err(Error::new(
                    Kind::Unknown,
                    "the token of this launch was used by another, whose instance is not seen yet: look again",
                )),
            },
            _ => Err(failure.into_error(Intent::Write, RUN_INSTANCES)),
        }
    }

    /// A dry run knows of rights alone, and the attribute of protection alone: both are asked.
    async fn why_not_end(&self, by: Monotonic, id: &InstanceId) -> Result<Option<String>> {
        let attribute = InstanceAttributeName::DisableApiTermination;
        let request = self.client.describe_instance_attribute().instance_id(id.as_str()).attribute(attribute);
        match self.send(by, Intent::Read, request.send()).await {
            Ok(answer) if answer.disable_api_termination.as_ref().and_then(|it| it.value) == Some(true) => {
                return Ok(Some(PROTECTED.to_owned()));
            }
            Ok(_) => {}
            // Ending what is not there does no harm.
            Err(failure) if failure.meaning() == Some(Meaning::NoSuchInstance) => return Ok(None),
            Err(failure) => return Err(failure.into_error(Intent::Read, DESCRIBE_INSTANCE_ATTRIBUTE)),
        }
        let request = self.client.terminate_instances().instance_ids(id.as_str()).dry_run(true);
        let failure = match self.send(by, Intent::Read, request.send()).await {
            // A dry run that succeeds is none.
            Ok(_) => return Err(Error::new(Kind::Unknown, "EC2 did what it was asked about")),
            Err(failure) => failure,
        };
        match failure.meaning() {
            Some(Meaning::WouldDo | Meaning::NoSuchInstance) => Ok(None),
            Some(Meaning::Denied | Meaning::Protected) => {
                Ok(Some(failure.into_error(Intent::Read, TERMINATE_INSTANCES).chain()))
            }
            _ => Err(failure.into_error(Intent::Read, TERMINATE_INSTANCES)),
        }
    }

    async fn terminate(&self, by: Monotonic, id: &InstanceId) -> Result<Ended> {
        let request = self.client.terminate_instances().instance_ids(id.as_str());
        match self.send(by, Intent::Write, request.send()).await {
            Ok(_) => Ok(Ended::Accepted),
            Err(failure) if failure.meaning() == Some(Meaning::NoSuchInstance) => Ok(Ended::NotFound),
            Err(failure) => Err(failure.into_error(Intent::Write, TERMINATE_INSTANCES)),
        }
    }

    async fn tag(&self, by: Monotonic, id: &InstanceId, name: &str, value: &str) -> Result<()> {
        let tag = Tag::builder().key(name).value(value).build();
        let request = self.client.create_tags().resources(id.as_str()).tags(tag);
        match self.send(by, Intent::Write, request.send()).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.into_error(Intent::Write, CREATE_TAGS)),
        }
    }
}

fn by_tag(name: &str, value: &str) -> Filter {
    Filter::builder().name(format!("tag:{name}")).values(literal(value)).build()
}

/// A value of a filter that means itself.
fn literal(value: &str) -> String {
    value.chars().fold(String::with_capacity(value.len()), |mut text, c| {
        if matches!(c, '*' | '?' | '\\') {
            text.push('\\');
        }
        text.push(c);
        text
    })
}

fn seen(instance: ApiInstance) -> Option<Instance> {
    let state = match instance.state.and_then(|state| state.name) {
        Some(InstanceStateName::Pending) => InstanceState::Pending,
        Some(InstanceStateName::Running) => InstanceState::Running,
        Some(InstanceStateName::ShuttingDown | InstanceStateName::Terminated) => InstanceState::Gone,
        // And whatever is new: it may come back.
        _ => InstanceState::Stopped,
    };
    let tags: BTreeMap<_, _> = instance
        .tags
        .unwrap_or_default()
        .into_iter()
        .filter_map(|tag| Some((tag.key?, tag.value.unwrap_or_default())))
        .collect();
    Some(Instance {
        id: instance.instance_id?.into(),
        state,
        private_ip: instance.private_ip_address.filter(|ip| !ip.is_empty()),
        launched_epoch: instance.launch_time.map_or(0, |time| time.secs()),
        tags,
    })
}

fn market(place: &Place) -> Result<Option<InstanceMarketOptionsRequest>> {
    match place.market.as_str() {
        "on-demand" => Ok(None),
        "spot" => {
            let options = SpotMarketOptions::builder()
                .spot_instance_type(SpotInstanceType::OneTime)
                .instance_interruption_behavior(InstanceInterruptionBehavior::Terminate);
            let request = InstanceMarketOptionsRequest::builder()
                .market_type(MarketType::Spot)
                .spot_options(options.build());
            Ok(Some(request.build()))
        }
        other => Err(Error::invalid(format!("there is no market `{other}`: write spot or on-demand"))),
    }
}

/// What would make the same call mean something else another time.
fn check(order: &LaunchOrder) -> Result<()> {
    let Place { subnet, template, .. } = &order.place;
    if subnet.is_empty() {
        return Err(Error::invalid("a launch names no subnet: give each place one"));
    }
    if template.is_empty() || !template.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::invalid(format!(
            "`{template}` is not the number of a launch template's version: what $Latest and $Default mean changes, \
             and a launch that is repeated must not"
        )));
    }
    if order.token.is_empty() || order.token.len() > TOKEN_BYTES_MAX || !order.token.is_ascii() {
        return Err(Error::invalid(format!("a launch's token has 1 to {TOKEN_BYTES_MAX} ASCII characters")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(place: Place) -> LaunchOrder {
        LaunchOrder { slot: 0, attempt: 0, place, token: "t".to_owned(), tags: BTreeMap::new() }
    }

    fn place(market: &str, template: &str) -> Place {
        Place { subnet: "subnet-a".into(), market: market.into(), template: template.into() }
    }

    #[test]
    fn only_what_is_frozen_is_launched() {
        check(&order(place("spot", "7"))).unwrap();
        for template in ["", "$Latest", "$Default", "7x"] {
            let error = check(&order(place("spot", template))).unwrap_err();
            assert!(error.chain().contains("number of a launch template's version"), "{error:?}");
        }
        let nowhere = Place { subnet: String::new(), ..place("spot", "1") };
        assert_eq!(check(&order(nowhere)).unwrap_err().kind(), Kind::Invalid);
        let mut long = order(place("spot", "1"));
        long.token = "x".repeat(65);
        assert_eq!(check(&long).unwrap_err().kind(), Kind::Invalid);
        assert!(market(&place("reserved", "1")).unwrap_err().chain().contains("write spot or on-demand"));
        assert!(market(&place("on-demand", "1")).unwrap().is_none());
        assert_eq!(market(&place("spot", "1")).unwrap().unwrap().market_type, Some(MarketType::Spot));
    }

    #[test]
    fn a_filters_value_means_itself() {
        assert_eq!(literal(r"a*b?c\d"), r"a\*b\?c\\d");
    }

    #[tokio::test]
    async fn wrong_settings_say_what_to_give() {
        async fn refused(change: impl Fn(&mut Settings)) -> String {
            let mut settings = Settings::new("demo", "lt-1");
            settings.region = Some("eu-west-1".to_owned());
            change(&mut settings);
            let error = Ec2::connect(&settings, &Env::system()).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            error.chain()
        }
        assert!(refused(|settings| settings.cluster.clear()).await.contains("cluster's name"));
        assert!(refused(|settings| settings.cluster = "prod*".into()).await.contains("search by tag"));
        assert!(refused(|settings| settings.launch_template.clear()).await.contains("launch template"));
        assert!(
            refused(|settings| settings.endpoint = Some("host:1".into())).await.contains("write http://")
        );
        assert!(
            refused(|settings| settings.region = Some("EU west".into())).await.contains("like eu-west-1")
        );
    }
}
