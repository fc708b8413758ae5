//! What people ask of an executor: what it would do, what a drain would meet, what is left behind.

use tenure_backend::{Error, Kind, Result};
use tenure_store::Write;

use super::{Executor, Flow};
use crate::change::Change;
use crate::machine::explain::{self, Said, eviction, find_node};
use crate::machine::{self, Effect, Manner, Needs, Step, needs, step};
use crate::observation::{Instance, InstanceState, Matches, Node, Observation, Pod, tags};
use crate::policy::millis;
use crate::ports::Evicted;
use crate::state::{ActionId, InstanceId, State};

/// Writes that a plan follows one after another: begin, or take over and go on.
const PLANNED_ROUNDS_MAX: usize = 8;

/// What a tick would do, without doing it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The state as it is.
    pub state: State,
    /// The writes in their order, then the first calls after them. What follows depends on their answers.
    pub effects: Vec<Planned>,
    /// Why.
    pub reasons: Vec<String>,
    /// Those of the reasons that keep something wanted from being done.
    pub blockers: Vec<String>,
}

/// One thing that a tick would do.
#[derive(Debug, Clone)]
pub enum Planned {
    /// A conditional write of the state item.
    Write(Change, Write),
    /// A call.
    Call(Effect),
}

impl Plan {
    /// What is decided, in a few words.
    #[must_use]
    pub fn decision(&self) -> String {
        let begins = self.effects.iter().find_map(|effect| match effect {
            Planned::Write(Change::BeginUp { places, .. }, _) => {
                Some(format!("add {} workers", places.len()))
            }
            Planned::Write(Change::BeginDown { nodes, .. }, _) => {
                Some(format!("take {} workers away", nodes.len()))
            }
            Planned::Write(Change::AdoptUp { .. } | Change::AdoptDown { .. } | Change::Clear, _) => {
                Some("take over what an old writer left".to_owned())
            }
            _ => None,
        });
        match (begins, self.state.action_id()) {
            (Some(begins), _) => begins,
            (None, Some(id)) if self.effects.is_empty() => format!("wait for {id}"),
            (None, Some(id)) => format!("go on with {id}"),
            (None, None) if self.effects.iter().any(|effect| matches!(effect, Planned::Call(_))) => {
                "collect what was left behind".to_owned()
            }
            (None, None) => "nothing".to_owned(),
        }
    }
}

/// What a drain of one node would meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainCheck {
    /// The node's name.
    pub node: String,
    /// Its instance, if it is known.
    pub instance: Option<InstanceId>,
    /// Its pods, `namespace/name`, and what would happen to each.
    pub pods: Vec<(String, String)>,
    /// Why the node would be given back, or nothing would begin.
    pub blockers: Vec<String>,
}

/// How a drain by hand began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Drain {
    /// As this action.
    Began {
        /// Its id.
        action: ActionId,
        /// The instance that is to be ended.
        instance: InstanceId,
    },
    /// Not at all: something is in the way.
    Blocked(DrainCheck),
}

/// What was left behind by actions that have ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Leftovers {
    /// What was done about it, or would be.
    pub effects: Vec<Effect>,
    /// Why, and why not more.
    pub reasons: Vec<String>,
    /// Calls that failed, each with its reason.
    pub failures: Vec<String>,
}

/// How an instance came to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Adopted {
    /// It has the cluster's tag now.
    Now,
    /// It had it.
    Already,
}

impl Executor {
    /// What a tick would do, without doing it.
    ///
    /// # Errors
    /// As [`Executor::tick`].
    pub async fn plan(&self) -> Result<Plan> {
        let mut state = self.book.state().await?;
        let mut plan =
            Plan { state: state.clone(), effects: Vec::new(), reasons: Vec::new(), blockers: Vec::new() };
        let mut now = self.now();
        let mut seen: Option<(Needs, Observation)> = None;
        for _ in 0..PLANNED_ROUNDS_MAX {
            let wanted = needs(&state, &[], &now, &self.policy);
            let observation = match seen.take() {
                Some((had, observation)) if had.cover(wanted) => observation,
                _ => self.observe(wanted, &state).await?,
            };
            let Step { effects, reasons, blockers } = step(&state, &observation, &self.policy, &now);
            for (kept, new) in [(&mut plan.reasons, reasons), (&mut plan.blockers, blockers)] {
                kept.extend(new.into_iter().filter(|reason| !reason.is_empty()));
                kept.dedup();
            }
            let rests =
                effects.is_empty() || effects.iter().any(|effect| !matches!(effect, Effect::Write(_)));
            for effect in effects {
                plan.effects.push(match effect {
                    Effect::Write(change) => {
                        let stamp = now.stamp(&self.policy);
                        let write = self.book.write_of(&state, &change, &stamp)?;
                        state = change.apply(&state, &stamp)?;
                        // Every write adds one.
                        state.rev = Some(state.rev.unwrap_or(0) + 1);
                        Planned::Write(change, write)
                    }
                    call => Planned::Call(call),
                });
            }
            if rests {
                break;
            }
            // As the writes would leave it.
            if state.lock_owner.as_deref() == Some(self.book.owner()) {
                now.lease_left_ms = millis(self.policy.lease.saturating_sub(self.policy.skew));
            }
            seen = Some((wanted, observation));
        }
        Ok(plan)
    }

    /// What the rules say of a node or an instance; `None` if there is none of that name.
    ///
    /// # Errors
    /// As [`Executor::tick`].
    pub async fn explain_node(&self, name: &str) -> Result<Option<Vec<Said>>> {
        let (state, seen) = self.look(Needs::ALL, &[name.into()]).await?;
        Ok(explain::node(&state, &seen, &self.policy, &self.now(), name))
    }

    /// What the rules say of a pod, by `namespace/name` or by a name that one pod has; `None` if there is none.
    ///
    /// # Errors
    /// As [`Executor::tick`].
    pub async fn explain_pod(&self, name: &str) -> Result<Option<Vec<Said>>> {
        let (state, seen) = self.look(Needs::ALL, &[]).await?;
        Ok(explain::pod(&state, &seen, &self.policy, &self.now(), name))
    }

    /// What a drain of a node, by its name or its instance's id, would meet. Pods and cloud are asked, and
    /// nothing is changed.
    ///
    /// # Errors
    /// `Invalid` if there is no such node; else as [`Executor::tick`].
    pub async fn check_drain(&self, name: &str) -> Result<DrainCheck> {
        let (state, seen) = self.look(Needs::ALL, &[name.into()]).await?;
        self.drain_check(&state, &seen, name).await
    }

    /// Begins a scale-down of one node, if nothing is in the way of it. Ticks carry it on.
    ///
    /// # Errors
    /// `Invalid` if there is no such node; `Unavailable` if another was quicker; else as [`Executor::tick`].
    pub async fn begin_drain(&mut self, name: &str) -> Result<Drain> {
        self.book.migrate().await?;
        let (mut state, seen) = self.look(Needs::ALL, &[name.into()]).await?;
        let check = self.drain_check(&state, &seen, name).await?;
        let (Some(id), true) = (&check.instance, check.blockers.is_empty()) else {
            return Ok(Drain::Blocked(check));
        };
        let node = find_node(&seen, name).ok_or_else(|| no_node(name))?;
        let change = machine::begin_down(&state, &self.policy, &self.now(), (id, node));
        let reasons = vec![format!("a person asked that node {} goes", node.name)];
        let (mut writes, mut refusals) = (Vec::new(), 0);
        match self.write(&mut state, &change, &reasons, &mut writes, &mut refusals, None).await? {
            Flow::Next => {}
            // Refused, or not known to have landed: the state is as it was read back.
            Flow::Again if state.lock_owner.as_deref() == Some(self.book.owner()) => {}
            Flow::Again => {
                return Err(changed());
            }
        }
        let action = state.action_id().cloned();
        let action =
            action.ok_or_else(|| Error::new(Kind::Corrupt, "an action was begun and none is under way"))?;
        Ok(Drain::Began { action, instance: id.clone() })
    }

    /// Whether the cloud says that an instance is ending or has ended, or does not know it any more.
    ///
    /// # Errors
    /// As the cloud's.
    pub async fn is_gone(&self, id: &InstanceId) -> Result<bool> {
        let found = self.ports.cloud.instances(self.by(), std::slice::from_ref(id)).await?;
        Ok(!found.iter().any(|instance| instance.id == *id && instance.is_live()))
    }

    async fn drain_check(&self, state: &State, seen: &Observation, name: &str) -> Result<DrainCheck> {
        let node = find_node(seen, name).ok_or_else(|| no_node(name))?;
        let matches = seen.matches();
        let instance = instance_of(seen, &matches, node);
        let mut blockers = machine::begin_blockers(state, seen, &self.policy, &self.now(), node);
        match instance {
            // Said already, and its instance is not asked for.
            None if node.control_plane => {}
            None => blockers.push("it belongs to no instance that the cloud lists".to_owned()),
            Some(instance) if instance.tag(tags::CLUSTER).is_some_and(|name| name != self.policy.cluster) => {
                blockers.push(format!("instance {} is another cluster's, by its tag", instance.id));
            }
            Some(instance) if matches.nodes_of(&instance.id).len() > 1 => {
                blockers.push(format!("several nodes say that they are {}'s", instance.id));
            }
            Some(instance) => {
                let asked = self.why_not_end(&instance.id).await;
                let why = asked.map_err(|error| error.during("ask whether the instance may be ended"))?;
                blockers.extend(why.map(|why| format!("instance {} may not be ended: {why}", instance.id)));
            }
        }
        let mut pods = Vec::new();
        for pod in seen.pods.iter().filter(|pod| pod.node.as_deref() == Some(&node.name)) {
            let name = format!("{}/{}", pod.namespace, pod.name);
            let (verdict, blocks) = self.ask_pod(pod).await?;
            if blocks {
                blockers.push(format!("pod {name} {verdict}"));
            }
            pods.push((name, verdict));
        }
        Ok(DrainCheck {
            node: node.name.clone(),
            instance: instance.map(|instance| instance.id.clone()),
            pods,
            blockers,
        })
    }

    /// What a drain would do to a pod, and whether that keeps the node.
    async fn ask_pod(&self, pod: &Pod) -> Result<(String, bool)> {
        let verdict = eviction(pod, &self.policy);
        if !pod.is_drained() {
            return Ok((verdict, false));
        }
        if !machine::may_be_evicted(pod, &self.policy) {
            return Ok((verdict, true));
        }
        let asked = self.ports.cluster.evict(self.by(), &pod.namespace, &pod.name, &pod.uid, Manner::DryRun);
        Ok(match asked.await.map_err(|error| error.during("ask for an eviction"))? {
            Evicted::Accepted => ("would be evicted".to_owned(), false),
            Evicted::Gone => ("is gone by now".to_owned(), false),
            Evicted::Blocked(why) => (format!("may not be evicted now: {why}"), true),
        })
    }

    /// What ended actions left behind. With `dry_run` nothing is done about it.
    ///
    /// An orphan is tagged when it is first seen, and ended when it is seen again after a while.
    ///
    /// # Errors
    /// As [`Executor::tick`].
    pub async fn collect(&mut self, dry_run: bool) -> Result<Leftovers> {
        // Read before anything is listed: what began since then is left alone.
        let mut state = self.book.state().await?;
        if state.action().is_some() {
            let id =
                state.action_id().map_or_else(|| "an old writer's action".to_owned(), ToString::to_string);
            let reason = format!("{id} is under way: nothing is collected until it has ended");
            return Ok(Leftovers { reasons: vec![reason], ..Leftovers::default() });
        }
        let seen = self.observe(Needs { machines: true, ..Needs::default() }, &state).await?;
        if let Some((change, reason)) = machine::recount(&state, &seen) {
            if dry_run {
                state = change.apply(&state, &self.now().stamp(&self.policy))?;
            } else {
                let (mut writes, mut refusals) = (Vec::new(), 0);
                let flow =
                    self.write(&mut state, &change, &[reason], &mut writes, &mut refusals, None).await?;
                // What was listed is older than the state is now: what began since then would look like garbage.
                if matches!(flow, Flow::Again) {
                    return Err(changed());
                }
            }
        }
        let Step { effects, reasons, .. } = machine::garbage(&state, &seen, &self.policy, &self.now());
        let mut left = Leftovers { reasons, ..Leftovers::default() };
        for call in effects {
            let done = match dry_run {
                true => Ok(Flow::Next),
                false => self.call(&state, call.clone(), &mut Vec::new()).await,
            };
            match done {
                Ok(_) => left.effects.push(call),
                Err(error) => left.failures.push(format!("{}: {}", call.what(), error.chain())),
            }
        }
        Ok(left)
    }

    /// Gives an instance the cluster's tag, so that it is one of its workers by its own account: an old writer's,
    /// or one that a person launched.
    ///
    /// # Errors
    /// `Invalid` if it is not known, has ended, is another cluster's, or no single worker node says that it is its;
    /// else as [`Executor::tick`].
    pub async fn adopt(&self, id: &InstanceId) -> Result<Adopted> {
        let (_, seen) =
            self.look(Needs { machines: true, ..Needs::default() }, std::slice::from_ref(id)).await?;
        let refuse = |what: String| Err(Error::invalid(what));
        let Some(instance) = seen.instance(id) else {
            return refuse(format!("the cloud knows no instance {id} in this region and account"));
        };
        if instance.state == InstanceState::Gone {
            return refuse(format!("instance {id} is ending or has ended"));
        }
        match instance.tag(tags::CLUSTER) {
            Some(cluster) if cluster == self.policy.cluster => return Ok(Adopted::Already),
            Some(cluster) => {
                return refuse(format!(
                    "instance {id} is one of the cluster {cluster}, by its tag `{}`: remove it there first",
                    tags::CLUSTER
                ));
            }
            None => {}
        }
        match seen.matches().nodes_of(id) {
            [node] if node.control_plane => {
                refuse(format!("node {} runs the control plane: it is no worker", node.name))
            }
            [_] => {
                self.ports.cloud.tag(self.by(), id, tags::CLUSTER, &self.policy.cluster).await?;
                Ok(Adopted::Now)
            }
            [] => refuse(format!(
                "no node says that it is instance {id}: set the node's label `tenure.dev/instance-id`, and try again"
            )),
            [one, other, ..] => refuse(format!(
                "nodes {} and {} both say that they are instance {id}: remove the one that is not",
                one.name, other.name
            )),
        }
    }

    /// The state, then what is wanted, with these instances too if the cloud knows them.
    async fn look(&self, wanted: Needs, also: &[InstanceId]) -> Result<(State, Observation)> {
        let state = self.book.state().await?;
        let mut seen = self.observe(wanted, &state).await?;
        let is_instance = |id: &&InstanceId| id.as_str().starts_with("i-") && seen.instance(id).is_none();
        let missing: Vec<_> = also.iter().filter(is_instance).cloned().collect();
        if !missing.is_empty() {
            let found = self.ports.cloud.instances(self.by(), &missing).await;
            let found = found.map_err(|error| error.during("list the instances"))?;
            let asked = found.into_iter().filter(|instance| missing.contains(&instance.id));
            // Not one of the cluster's by its tag: it may be in another network, where addresses are the same. Only
            // what a node says of itself counts.
            seen.instances.extend(asked.map(|instance| Instance { private_ip: None, ..instance }));
        }
        Ok((state, seen))
    }
}

fn instance_of<'a>(seen: &'a Observation, matches: &Matches<'a>, node: &Node) -> Option<&'a Instance> {
    seen.instances
        .iter()
        .find(|instance| matches.nodes_of(&instance.id).iter().any(|other| other.name == node.name))
}

fn changed() -> Error {
    Error::unavailable("the state item changed under this write: look, and try again")
}

fn no_node(name: &str) -> Error {
    Error::invalid(format!("the cluster has no node `{name}`, and no node of an instance of that id"))
}
