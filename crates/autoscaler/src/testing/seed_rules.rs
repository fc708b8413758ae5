//! The old documents' flow, as they describe it: the positive control of the crash matrix.
//!
//! The lock expires by the wall clock, instances are recorded after they are launched, an empty list counts
//! as verified, and a stuck action is cleared and forgotten.
//!
//! The same flow is the old writer that is still at work beside ours while a cluster is taken over.

use tenure_backend::{Env, Kind, Result};
use tenure_clock::Monotonic;
use tenure_store::{Condition, Item, Update, Value, Write, Written};

use crate::change::Change;
use crate::executor::Ports;
use crate::machine::{Effect, Manner, Now, step};
use crate::observation::{CordonMark, LaunchOrder, Observation, tags};
use crate::policy::{Policy, seconds};
use crate::ports::{Evicted, Launch};
use crate::rows::{STATE_TABLE, decode, state_key};
use crate::state::{InstanceId, State};

/// How long the old lock lasts.
const LOCK_SECONDS: i64 = 120;
/// After this, a scale-down is stuck.
const STUCK_SECONDS: i64 = 900;
const BY: Monotonic = Monotonic::NEVER;

/// Which old writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OldWriter {
    /// Both documents' flow, alone: the positive control.
    Control,
    /// The second document's: it goes on with whatever action is there, whoever began it, and begins only
    /// while the flag is off.
    Resumes,
    /// The first document's: it takes a lock that is past, and begins over what is there.
    Steals,
    /// The first document's, which dies as soon as it has the lock.
    Locks,
}

impl OldWriter {
    /// Those that are at work beside ours.
    pub const BESIDE: [Self; 3] = [Self::Resumes, Self::Steals, Self::Locks];
}

/// One invocation after another of the old autoscaler.
#[derive(Debug)]
pub struct SeedExecutor {
    ports: Ports,
    policy: Policy,
    env: Env,
    request: String,
    writer: OldWriter,
}

impl SeedExecutor {
    /// An old autoscaler on these edges.
    #[must_use]
    pub fn new(ports: Ports, policy: Policy, env: Env, writer: OldWriter) -> Self {
        let request = format!("req-{}", env.entropy.below(1_000_000));
        Self { ports, policy, env, request, writer }
    }

    fn epoch(&self) -> i64 {
        self.env.clock.wall().as_seconds()
    }

    /// One invocation.
    ///
    /// # Errors
    /// Of the first call that failed.
    pub async fn tick(&mut self) -> Result<()> {
        let item = self.ports.store.get(BY, STATE_TABLE, &state_key()).await?.unwrap_or_default();
        let state = decode(&item)?;
        match self.writer {
            OldWriter::Locks => {
                self.update(self.lock(Update::new()), self.is_free()).await?;
                return Ok(());
            }
            OldWriter::Steals if !self.began(&state) => return self.decide(&state).await,
            _ => {}
        }
        if state.up_action_id.is_some() {
            return self.verify(&state).await;
        }
        if state.down_action_id.is_some() {
            return self.resume_down(&state).await;
        }
        self.decide(&state).await
    }

    /// Whether what is under way is its own.
    fn began(&self, state: &State) -> bool {
        let ids = [&state.up_action_id, &state.down_action_id];
        ids.into_iter().flatten().any(|id| id.as_str().ends_with(&self.request))
    }

    async fn update(&self, change: Update, when: Condition) -> Result<Option<Item>> {
        let write = Write::Update { table: STATE_TABLE.to_owned(), key: state_key(), change, when };
        Ok(match self.ports.store.write(BY, &write).await? {
            Written::Applied(item) => Some(item),
            Written::Refused(_) => None,
        })
    }

    /// The demand is judged as ours is: only the flow is the old one.
    async fn decide(&mut self, state: &State) -> Result<()> {
        let measures = self.ports.metrics.measures(BY).await.ok();
        let mut observation = Observation {
            instances: self.ports.cloud.instances(BY, &[]).await?,
            nodes: self.ports.cluster.nodes(BY).await?,
            pods: self.ports.cluster.pods(BY).await?,
            loads: measures.map(|measures| measures.loads),
            ..Observation::default()
        };
        let unlisted = observation.unlisted();
        if !unlisted.is_empty() {
            let found = self.ports.cloud.instances(BY, &unlisted).await?;
            observation
                .instances
                .extend(found.into_iter().filter(|instance| unlisted.contains(&instance.id)));
        }
        let epoch = self.epoch();
        let idle = State {
            schema_version: Some(2),
            // Whatever ours left is none of its business.
            action_seq: Some(1 << 50),
            pending_since_epoch: state.pending_since_epoch,
            idle_since_epoch: state.idle_since_epoch,
            worker_count: state.worker_count,
            next_allowed_epoch: state.last_scale_epoch.map(|last| last + seconds(self.policy.cooldown)),
            ..State::default()
        };
        let now = Now { ms: epoch * 1000, owner: self.request.clone(), lease_left_ms: 0 };
        for effect in step(&idle, &observation, &self.policy, &now).effects {
            match effect {
                Effect::Write(Change::BeginUp { places, .. }) => {
                    return self.begin_up(i64::try_from(places.len()).unwrap_or(0)).await;
                }
                Effect::Write(Change::BeginDown { nodes, .. }) => {
                    return self.begin_down(nodes.into_keys().collect()).await;
                }
                // Beside ours it is ours that keeps them.
                Effect::Write(Change::Windows { pending_since, idle_since, workers })
                    if self.writer == OldWriter::Control =>
                {
                    let change = Update::new()
                        .set("pendingSinceEpoch", pending_since)
                        .set("idleSinceEpoch", idle_since)
                        .set("workerCount", workers);
                    self.update(change, Condition::Always).await?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_free(&self) -> Condition {
        let free = Condition::absent("scalingInProgress").or(Condition::eq("scalingInProgress", false));
        if self.writer == OldWriter::Resumes {
            return free;
        }
        free.or(Condition::lt("lockUntilEpoch", self.epoch()))
    }

    fn lock(&self, change: Update) -> Update {
        if self.writer == OldWriter::Resumes {
            return change.set("scalingInProgress", true);
        }
        change
            .set("scalingInProgress", true)
            .set("lockOwner", self.request.as_str())
            .set("lockUntilEpoch", self.epoch() + LOCK_SECONDS)
    }

    async fn begin_up(&self, count: i64) -> Result<()> {
        let action = format!("{}-{}", self.epoch(), self.request);
        let change = self
            .lock(Update::new())
            .set("scaleUpActionId", action.as_str())
            .set("scaleUpStartedEpoch", self.epoch())
            .set("scaleUpRequested", count)
            .set("scaleUpInstanceIds", Value::L(Vec::new()));
        if self.update(change, self.is_free()).await?.is_none() {
            return Ok(());
        }
        let mut launched = Vec::new();
        for slot in 0..count {
            if let Launch::Started(id) = self.launch(&action, slot).await? {
                launched.push(Value::from(id.as_str()));
            }
        }
        let change = Update::new().set("scaleUpInstanceIds", Value::L(launched));
        self.update(change, Condition::eq("scaleUpActionId", action.as_str())).await?;
        Ok(())
    }

    /// Without a client token, and tried again when no answer came, as an SDK does.
    async fn launch(&self, action: &str, slot: i64) -> Result<Launch> {
        let order = LaunchOrder {
            slot: u32::try_from(slot).unwrap_or(0),
            attempt: 0,
            place: self.policy.places[0].clone(),
            token: String::new(),
            tags: [
                (tags::CLUSTER.to_owned(), self.policy.cluster.clone()),
                (tags::ACTION.to_owned(), action.to_owned()),
            ]
            .into(),
        };
        match self.ports.cloud.launch(BY, &order).await {
            Err(error) if error.kind() == Kind::Unknown => self.ports.cloud.launch(BY, &order).await,
            answer => answer,
        }
    }

    async fn verify(&self, state: &State) -> Result<()> {
        let ids = state.up_instance_ids.clone().unwrap_or_default();
        let nodes = self.ports.cluster.nodes(BY).await?;
        let joined = |id: &InstanceId| {
            nodes.iter().any(|node| {
                node.ready && node.provider_id.as_ref().is_some_and(|found| found.ends_with(id.as_str()))
            })
        };
        let own = Condition::eq(
            "scaleUpActionId",
            state.up_action_id.as_ref().map_or("", |action| action.as_str()),
        );
        if ids.iter().all(joined) {
            // Recorded, so that it is told apart from an orphan; and the taint, which the old nodes lack.
            for id in &ids {
                let action = state.up_action_id.as_ref().map_or("", |action| action.as_str());
                self.ports.cloud.tag(BY, id, tags::COMMITTED, action).await?;
                let node = nodes
                    .iter()
                    .find(|node| node.provider_id.as_ref().is_some_and(|found| found.ends_with(id.as_str())));
                if let Some(node) = node.filter(|node| node.startup_taint) {
                    self.ports.cluster.untaint(BY, &node.name, "").await?;
                }
            }
            let change = cleared("scaleUp").set("lastScaleEpoch", self.epoch());
            self.update(change, own).await?;
        } else if self.epoch() - state.up_started_epoch.unwrap_or(0) > seconds(self.policy.join_timeout) {
            self.update(cleared("scaleUp"), own).await?;
        }
        Ok(())
    }

    async fn begin_down(&self, targets: Vec<InstanceId>) -> Result<()> {
        let list = Value::L(targets.iter().map(|id| id.as_str().into()).collect());
        let change = self
            .lock(Update::new())
            .set("scaleDownActionId", format!("sd-{}-{}", self.epoch(), self.request))
            .set("scaleDownStartedEpoch", self.epoch())
            .set("scaleDownPhase", "DRAINING")
            .set("scaleDownTargetInstanceIds", list)
            .set("scaleDownCompletedInstanceIds", Value::L(Vec::new()));
        match self.update(change, self.is_free()).await? {
            Some(item) => self.resume_down(&decode(&item)?).await,
            None => Ok(()),
        }
    }

    async fn resume_down(&self, state: &State) -> Result<()> {
        let Some(action) = &state.down_action_id else { return Ok(()) };
        let own = || Condition::eq("scaleDownActionId", action.as_str());
        if self.epoch() - state.down_started_epoch.unwrap_or(0) > STUCK_SECONDS {
            self.update(cleared("scaleDown"), own()).await?;
            return Ok(());
        }
        let completed = state.down_completed.clone().unwrap_or_default();
        for id in state.down_targets.iter().flatten().filter(|id| !completed.contains(id)) {
            let nodes = self.ports.cluster.nodes(BY).await?;
            let node = nodes
                .iter()
                .find(|node| node.provider_id.as_ref().is_some_and(|found| found.ends_with(id.as_str())));
            if let Some(node) = node {
                let mark = CordonMark { action: action.clone(), seq: 0 };
                self.ports.cluster.cordon(BY, &node.name, "", &mark).await?;
                for pod in self.ports.cluster.pods(BY).await? {
                    if pod.node.as_deref() != Some(&node.name) || !pod.is_drained() {
                        continue;
                    }
                    let evicted = self
                        .ports
                        .cluster
                        .evict(BY, &pod.namespace, &pod.name, &pod.uid, Manner::Evict)
                        .await?;
                    if matches!(evicted, Evicted::Blocked(_)) {
                        return Ok(());
                    }
                }
            }
            self.ports.cloud.terminate(BY, id).await?;
            let change = Update::new().append_unique("scaleDownCompletedInstanceIds", id.as_str());
            self.update(change, own()).await?;
        }
        let change = cleared("scaleDown").set("lastScaleEpoch", self.epoch());
        self.update(change, own()).await?;
        Ok(())
    }
}

fn cleared(prefix: &str) -> Update {
    let names: &[&str] = if prefix == "scaleUp" {
        &["ActionId", "StartedEpoch", "Requested", "InstanceIds"]
    } else {
        &["ActionId", "StartedEpoch", "Phase", "TargetInstanceIds", "CompletedInstanceIds"]
    };
    let change = Update::new().set("scalingInProgress", false).remove("lockOwner").remove("lockUntilEpoch");
    names.iter().fold(change, |change, name| change.remove(format!("{prefix}{name}")))
}
