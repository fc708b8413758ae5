//! Carries out what the machine says: reads, looks, writes, calls, in that order.
//!
//! # Flow
//! A tick reads the state, looks at what [`needs`] names, asks [`step`], and carries out the effects. After a
//! write that was refused it begins again with the row as it is; a call that failed is told, and the others
//! are made all the same. So it goes on until there is nothing to do.
//!
//! # Guarantees
//! Every effect can be repeated, and a plan is stored before its first effect: a tick may die anywhere, and
//! the next one, in any process, goes on. No call of an action is made on a lease that is over by the
//! executor's own monotonic clock.
//!
//! # Assumptions
//! No two executors have the same owner name: [`Book::new`] adds a nonce.

mod asked;

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Clock, Monotonic};
use tenure_planted as planted;
use tenure_store::{Item, Store, Written};
use tracing::warn;

use crate::book::{Book, Places};
use crate::change::Change;
use crate::log::Snapshot;
use crate::machine::{Effect, Manner, Needs, Now, Step, needs, step};
use crate::observation::{Answer, Lag, LaunchOrder, Observation, Readings, tags};
use crate::policy::{Policy, Readiness, millis, seconds};
use crate::ports::{Backlog, Cloud, Cluster, Ended, Evicted, Launch, Metrics, Patched};
use crate::rows::decode;
use crate::rules::Rule;
use crate::state::{ActionId, InstanceId, State};
use crate::table::Name;

pub use asked::{Adopted, Drain, DrainCheck, Leftovers, Plan, Planned};

/// Most rounds of one tick: two actions of fifty targets with every phase written alone stay below.
const ROUNDS_MAX: u32 = 500;
/// After this many refusals in one tick somebody else is at work: the next tick looks again.
const REFUSALS_MAX: u32 = 5;
/// After this many calls of one tick that nobody answered, the next tick tries again: each may have taken its
/// whole time. Calls that were refused are not counted: they are answered at once.
const UNANSWERED_MAX: u32 = 3;

const OUT_OF_TIME: &str = "there is no time for more now: the next tick goes on";

/// The edges of an executor.
#[derive(Debug, Clone)]
pub struct Ports {
    /// Where the state item and the log are.
    pub store: Arc<dyn Store>,
    /// Where instances are.
    pub cloud: Arc<dyn Cloud>,
    /// Where nodes and pods are.
    pub cluster: Arc<dyn Cluster>,
    /// Where loads are measured.
    pub metrics: Arc<dyn Metrics>,
    /// Where consumers tell how far they are behind, if that counts.
    pub backlog: Option<Arc<dyn Backlog>>,
}

/// Builds an [`Executor`].
#[derive(Debug)]
pub struct Builder {
    ports: Ports,
    policy: Policy,
    env: Env,
    name: String,
    places: Places,
}

impl Builder {
    /// The executor's name in `lockOwner`, before its nonce: a request id, a host name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Where state and log are, and how they are kept. A call takes less than half a lease.
    #[must_use]
    pub fn places(mut self, places: Places) -> Self {
        self.places = places;
        self
    }

    /// The executor.
    ///
    /// # Errors
    /// `Invalid` if the policy cannot be carried out, or a call may take half a lease or longer.
    pub fn build(self) -> Result<Executor> {
        self.policy.validate()?;
        let call_timeout = self.places.call_timeout;
        if call_timeout * 2 >= self.policy.lease {
            return Err(Error::invalid(format!(
                "a call may take {:?}, which is half a lease of {:?} or longer: give a shorter one (--timeout), or a longer lease",
                call_timeout, self.policy.lease
            )));
        }
        let book = Book::new(self.ports.store.clone(), &self.env, &self.name, self.places);
        Ok(Executor {
            ports: self.ports,
            policy: self.policy,
            clock: self.env.clock,
            book,
            lease_until: None,
            unanswered_launches: BTreeSet::new(),
        })
    }
}

/// What a tick did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tick {
    /// The state at its end.
    pub state: State,
    /// The writes that it made.
    pub writes: Vec<Name>,
    /// Why, and what it waits for.
    pub reasons: Vec<String>,
    /// Calls that failed, each with its reason. The next tick makes them again; a launch that was refused, after
    /// the pause, the next scale-up.
    pub failures: Vec<String>,
}

/// Carries actions on.
#[derive(Debug)]
pub struct Executor {
    ports: Ports,
    policy: Policy,
    clock: Arc<dyn Clock>,
    book: Book,
    /// Until when the own lease lasts, counted from when its last extension was sent.
    lease_until: Option<Monotonic>,
    /// Launches of the action under way whose answer never came, by slot and attempt: each may still land.
    unanswered_launches: BTreeSet<(ActionId, u32, u32)>,
}

/// Whether to go on with a batch.
enum Flow {
    Next,
    /// What is there is not what the batch was planned for.
    Again,
}

impl Executor {
    /// An executor on these edges with this policy.
    #[must_use]
    pub fn builder(ports: Ports, policy: Policy, env: Env) -> Builder {
        Builder { ports, policy, env, name: "tenure".to_owned(), places: Places::default() }
    }

    /// The state item and its log.
    #[must_use]
    pub const fn book(&self) -> &Book {
        &self.book
    }

    /// Goes on with what is under way, or decides whether to begin something, until there is nothing to do
    /// right now.
    ///
    /// # Errors
    /// If the state could not be read or written, or the cluster not be looked at. What was done is recorded;
    /// the next tick goes on. Other calls that failed are in [`Tick::failures`].
    ///
    /// # Cancel safety
    /// May be dropped anywhere; it is then as if the process had died there.
    pub async fn tick(&mut self) -> Result<Tick> {
        self.tick_until(Monotonic::NEVER).await
    }

    /// As [`Executor::tick`], and ends between two effects if the next one might not be answered by `until`. The
    /// last reason says so then, and the next tick goes on.
    ///
    /// # Errors
    /// As [`Executor::tick`].
    ///
    /// # Cancel safety
    /// As [`Executor::tick`].
    pub async fn tick_until(&mut self, until: Monotonic) -> Result<Tick> {
        let mut writes = Vec::new();
        let mut answers = Vec::new();
        let (mut refusals, mut unanswered) = (0, 0);
        let mut failures = Vec::new();
        let (mut state, mut seen) = self.begin_tick().await?;
        for _ in 0..ROUNDS_MAX {
            let mut observation = match seen.take() {
                Some(observation) => observation,
                None => {
                    let wanted = needs(&state, &answers, &self.now(), &self.policy);
                    self.observe(wanted, &state).await?
                }
            };
            observation.answers = answers.clone();
            let Step { effects, mut reasons, .. } = step(&state, &observation, &self.policy, &self.now());
            if effects.is_empty() {
                return Ok(Tick { state, writes, reasons, failures });
            }
            for effect in effects {
                if self.book.by_of_effect() > until {
                    reasons.push(OUT_OF_TIME.to_owned());
                    return Ok(Tick { state, writes, reasons, failures });
                }
                let flow = match effect {
                    Effect::Write(change) => {
                        let decided = Snapshot::of(&change, &observation);
                        self.write(&mut state, &change, &reasons, &mut writes, &mut refusals, decided).await?
                    }
                    call => {
                        let (what, told) = (call.what(), answers.len());
                        match self.call(&state, call, &mut answers).await {
                            Ok(flow) => {
                                if let Some(Answer::LaunchRefused { why, .. }) = answers.get(told) {
                                    failures.push(format!("{what}: {why}"));
                                }
                                flow
                            }
                            Err(error) if planted::is("autoscaler_one_failure_stops_all") => {
                                return Err(error);
                            }
                            Err(error) => {
                                let is_answer = matches!(error.kind(), Kind::Denied | Kind::Invalid);
                                unanswered += u32::from(!is_answer);
                                let why = error.chain();
                                warn!(error = why, call = what, "a call failed; the others go on");
                                failures.push(format!("{what}: {why}"));
                                answers.push(Answer::Failed { what, why });
                                Flow::Next
                            }
                        }
                    }
                };
                if unanswered >= UNANSWERED_MAX {
                    return Ok(Tick { state, writes, reasons, failures });
                }
                if matches!(flow, Flow::Again) {
                    break;
                }
            }
            if refusals >= REFUSALS_MAX {
                let reasons = vec!["another executor is at work".to_owned()];
                return Ok(Tick { state, writes, reasons, failures });
            }
        }
        Err(Error::invalid(format!(
            "a tick did not come to rest in {ROUNDS_MAX} rounds: this is a mistake in Tenure, please report it"
        )))
    }

    /// The state is read before anything is listed: what began since then is refused by its `rev`.
    async fn begin_tick(&self) -> Result<(State, Option<Observation>)> {
        if Rule::ReadThenList.kept() {
            return Ok((self.book.state().await?, None));
        }
        let observation = self.observe(Needs::ALL, &State::default()).await?;
        Ok((self.book.state().await?, Some(observation)))
    }

    // === looking ===

    async fn observe(&self, wanted: Needs, state: &State) -> Result<Observation> {
        let mut seen = Observation::default();
        if wanted.machines {
            let also = named(state);
            seen.instances = self
                .ports
                .cloud
                .instances(self.by(), &also)
                .await
                .map_err(|error| error.during("list the instances"))?;
            seen.nodes =
                self.ports.cluster.nodes(self.by()).await.map_err(|error| error.during("list the nodes"))?;
            self.ask_for_unlisted(&mut seen).await?;
            if self.policy.readiness == Readiness::Prometheus {
                seen.readings = self.readings(&seen).await;
            }
        }
        if wanted.pods {
            seen.pods =
                self.ports.cluster.pods(self.by()).await.map_err(|error| error.during("list the pods"))?;
        }
        if wanted.metrics {
            match self.ports.metrics.measures(self.by()).await {
                Ok(measures) => {
                    seen.loads = Some(measures.loads);
                    seen.metrics_epoch = measures.asked_epoch;
                }
                // Unknown is not zero: nothing is taken away, and pods that wait are seen all the same.
                Err(error) => warn!(error = %error.chain(), "metrics are missing; nothing is taken away"),
            }
            seen.lag = self.lag().await;
        }
        Ok(seen)
    }

    async fn lag(&self) -> Lag {
        let Some(backlog) = &self.ports.backlog else { return Lag::NotAsked };
        match backlog.behind(self.by()).await {
            Ok(Some(behind)) => Lag::Seconds(seconds(behind)),
            Ok(None) => Lag::Unknown,
            Err(error) => {
                warn!(error = %error.chain(), "how far the consumers are behind is unknown; nothing is taken away");
                Lag::Unknown
            }
        }
    }

    /// Workers that an old writer launched lack the cluster's tag: their nodes name them.
    async fn ask_for_unlisted(&self, seen: &mut Observation) -> Result<()> {
        let unlisted = seen.unlisted();
        if unlisted.is_empty() || planted::is("autoscaler_untagged_not_counted") {
            return Ok(());
        }
        let found = self.ports.cloud.instances(self.by(), &unlisted).await;
        let found = found.map_err(|error| error.during("list the instances that nodes name"))?;
        for instance in found.into_iter().filter(|instance| unlisted.contains(&instance.id)) {
            match instance.tag(tags::CLUSTER) {
                // Its node stays a stranger, and nothing begins: settings or labels are of another cluster.
                Some(other) if other != self.policy.cluster && !planted::is("autoscaler_takes_anothers") => {
                    warn!(
                        instance = %instance.id, cluster = other,
                        "a node names an instance of another cluster: check `cluster`, the kubeconfig and the node's label"
                    );
                }
                _ => seen.instances.push(instance),
            }
        }
        Ok(())
    }

    /// Without an answer, or with one that knows no node, it is unknown which are ready.
    async fn readings(&self, seen: &Observation) -> Readings {
        match self.ports.metrics.readiness(self.by()).await {
            _ if planted::is("autoscaler_unknown_is_not_ready") => {
                Readings::Known(seen.nodes.iter().map(|node| (node.name.clone(), false)).collect())
            }
            Ok(ready) if ready.is_empty() && !seen.nodes.is_empty() => Readings::Unknown,
            Ok(ready) => Readings::Known(ready),
            Err(error) => {
                warn!(error = %error.chain(), "which nodes are ready is unknown");
                Readings::Unknown
            }
        }
    }

    // === writing ===

    async fn write(
        &mut self,
        state: &mut State,
        change: &Change,
        reasons: &[String],
        writes: &mut Vec<Name>,
        refusals: &mut u32,
        decided: Option<Snapshot>,
    ) -> Result<Flow> {
        let stamp = self.now().stamp(&self.policy);
        let write = match self.book.write_of(state, change, &stamp) {
            Ok(write) => write,
            // It was planned for a state that is not there any more.
            Err(error) if error.kind() == Kind::Invalid => {
                warn!(error = %error.chain(), "a write does not fit what is there");
                *refusals += 1;
                *state = self.book.state().await?;
                return Ok(Flow::Again);
            }
            Err(error) => return Err(error),
        };
        let sent = self.clock.monotonic();
        match self.book.send(&write).await {
            Ok(Written::Applied(item)) => {
                let after = decode(&item)?;
                if after.lock_owner.as_deref() != Some(self.book.owner()) {
                    self.lease_until = None;
                } else if change.name().row().extends_lease() {
                    // Counted from the send, and shorter by the skew than others believe.
                    self.lease_until = Some(sent + self.policy.lease.saturating_sub(self.policy.skew));
                }
                writes.push(change.name());
                self.book.log(state, &after, change, reasons, decided).await;
                *state = after;
                Ok(Flow::Next)
            }
            Ok(Written::Refused(refusal)) => {
                *refusals += 1;
                *state = decode(&refusal.current.unwrap_or_else(Item::new))?;
                Ok(Flow::Again)
            }
            // It may have landed. What is there says so, by our owner name and our action's id.
            Err(error) if error.kind() == Kind::Unknown => {
                *refusals += 1;
                *state = self.book.state().await?;
                Ok(Flow::Again)
            }
            Err(error) => Err(error),
        }
    }

    // === calling ===

    async fn call(&mut self, state: &State, call: Effect, answers: &mut Vec<Answer>) -> Result<Flow> {
        // What is collected while nothing is under way needs no lease.
        let guarded = state.action_id().is_some();
        if guarded && self.lease_left_ms() <= 0 {
            return Ok(Flow::Again);
        }
        let by = self.by();
        let (cloud, cluster) = (&self.ports.cloud, &self.ports.cluster);
        match call {
            Effect::Write(_) => {}
            Effect::Launch(order) => answers.push(self.launch(state, &order).await?),
            Effect::AskEnd(id) => match self.why_not_end(&id).await? {
                None => answers.push(Answer::Endable(id)),
                Some(why) => answers.push(Answer::Unendable { instance: id, why }),
            },
            Effect::Terminate(id) => match cloud.terminate(by, &id).await {
                Ok(Ended::Accepted) => answers.push(Answer::Terminated(id)),
                Ok(Ended::NotFound) => answers.push(Answer::NotFound(id)),
                Err(error) => {
                    if matches!(error.kind(), Kind::Denied | Kind::Invalid) {
                        answers.push(Answer::Unendable { instance: id, why: error.chain() });
                    }
                    return Err(error);
                }
            },
            Effect::Enlist(instance) => {
                cloud.tag(by, &instance, tags::CLUSTER, &self.policy.cluster).await?;
                answers.push(Answer::Enlisted(instance));
            }
            Effect::Commit { instance, action } => {
                cloud.tag(by, &instance, tags::COMMITTED, action.as_str()).await?;
                answers.push(Answer::Committed(instance));
            }
            Effect::Suspect { instance, epoch } => {
                cloud.tag(by, &instance, tags::SUSPECT, &epoch.to_string()).await?;
                answers.push(Answer::Suspected(instance));
            }
            Effect::Untaint { node, version } => {
                if cluster.untaint(by, &node, &version).await? == Patched::Done {
                    answers.push(Answer::Untainted(node));
                }
            }
            Effect::Cordon { node, version, mark } => {
                let version = self.version_to_change(&node, version).await?;
                cluster.cordon(by, &node, &version, &mark).await?;
            }
            Effect::Release { node, version, action, uncordon } => {
                cluster.release(by, &node, &version, &action, uncordon).await?;
            }
            Effect::Evict { namespace, name, uid, manner } => {
                let evicted = cluster.evict(by, &namespace, &name, &uid, manner).await?;
                answers.push(match (evicted, manner) {
                    (Evicted::Blocked(why), _) => Answer::Blocked { uid, why },
                    (_, Manner::DryRun) => Answer::Evictable(uid),
                    (_, Manner::Evict | Manner::Force) => Answer::Evicted(uid),
                });
            }
        }
        Ok(Flow::Next)
    }

    /// Whoever may not even ask may not end it either.
    async fn why_not_end(&self, id: &InstanceId) -> Result<Option<String>> {
        match self.ports.cloud.why_not_end(self.by(), id).await {
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid) => Ok(Some(error.chain())),
            answer => answer,
        }
    }

    async fn launch(&mut self, state: &State, order: &LaunchOrder) -> Result<Answer> {
        let (slot, attempt) = (order.slot, order.attempt);
        let action = state.action_id().cloned();
        self.unanswered_launches.retain(|(of, ..)| Some(of) == action.as_ref());
        let known = action.map(|action| (action, slot, attempt));
        let may_land = known.as_ref().is_some_and(|launch| self.unanswered_launches.contains(launch));
        match self.ports.cloud.launch(self.by(), order).await {
            Ok(Launch::Started(instance)) => Ok(Answer::Launched { slot, attempt, instance }),
            // It would be sent elsewhere, and then both be there.
            Ok(Launch::NoCapacity(why)) if may_land && !planted::is("autoscaler_forgets_unanswered") => {
                Err(Error::unavailable(format!(
                    "{why}; but an earlier call of this attempt was not answered, and may still land"
                )))
            }
            Ok(Launch::NoCapacity(why)) => Ok(Answer::NoCapacity { slot, attempt, why }),
            Err(error) if matches!(error.kind(), Kind::Denied | Kind::Invalid) => {
                warn!(error = %error.chain(), slot, "a launch was refused");
                Ok(Answer::LaunchRefused { slot, attempt, why: error.chain() })
            }
            Err(error) => {
                if error.kind() == Kind::Unknown {
                    self.unanswered_launches.extend(known);
                }
                Err(error)
            }
        }
    }

    /// The version that was read before the fenced write.
    async fn version_to_change(&self, node: &str, version: String) -> Result<String> {
        if Rule::CordonByVersion.kept() {
            return Ok(version);
        }
        let nodes = self.ports.cluster.nodes(self.by()).await?;
        Ok(nodes.into_iter().find(|other| other.name == node).map_or(version, |node| node.version))
    }

    // === time ===

    fn by(&self) -> Monotonic {
        self.book.by()
    }

    fn now(&self) -> Now {
        Now {
            ms: self.clock.wall().as_millis(),
            owner: self.book.owner().to_owned(),
            lease_left_ms: self.lease_left_ms(),
        }
    }

    fn lease_left_ms(&self) -> i64 {
        self.lease_until.map_or(0, |until| millis(until.since(self.clock.monotonic())))
    }
}

/// The instances that the state names: old writers' ones may lack the cluster's tag.
fn named(state: &State) -> Vec<InstanceId> {
    let mut ids: Vec<InstanceId> = state
        .up_instance_ids
        .iter()
        .chain(&state.down_targets)
        .flatten()
        .chain(state.up_slots.iter().flatten().filter_map(|(_, slot)| slot.instance.as_ref()))
        .cloned()
        .collect();
    ids.sort();
    ids.dedup();
    ids
}
