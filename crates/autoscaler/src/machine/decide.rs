//! Whether to begin something: bounds, demand, stabilisation windows.
//!
//! Unknown is not zero. Pods that wait are seen in the cluster itself, so workers are added without metrics;
//! nothing is taken away unless every number that speaks for it is there and fresh.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tenure_planted as planted;

use super::down::may_be_evicted;
use super::{Effect, Now, Step};
use crate::change::Change;
use crate::observation::{
    Instance, InstanceState, Lag, Load, Matches, Node, Observation, Pod, Resources, tags,
};
use crate::placement::Placement;
use crate::policy::{Policy, seconds};
use crate::state::{ActionId, InstanceId, State};

/// By so much, and the skew, others' clocks may be ahead before nothing is believed any more.
const CLOCK_DOUBT_SECONDS: i64 = 60;

pub(super) fn decide(state: &State, observation: &Observation, policy: &Policy, now: &Now) -> Step {
    let view = View::of(state, observation, policy, now);
    let mut reasons = Vec::new();
    let demand = view.demand(&mut reasons);
    let candidates =
        if demand.pressing() || demand.urgent > 0 { Vec::new() } else { view.candidates(&mut reasons) };

    let window = |holds: bool, since: Option<i64>| match since {
        _ if !holds => 0,
        Some(since) if since > 0 && since <= now.epoch() => since,
        _ => now.epoch(),
    };
    let pending_since = window(demand.pressing(), state.pending_since_epoch);
    let idle_since = window(!candidates.is_empty(), state.idle_since_epoch);
    let waited = |since: i64, window| since > 0 && now.epoch() - since >= seconds(window);

    let room = i64::from(policy.workers_max) - view.count();
    let wanted = if waited(pending_since, policy.pending_window) {
        demand.urgent.max(demand.windowed)
    } else {
        demand.urgent
    };
    let launches = wanted.min(room).min(i64::from(policy.up_max));
    if wanted > 0 && room <= 0 {
        reasons.push(format!("{} workers are the most allowed", policy.workers_max));
    }
    let removals = if waited(idle_since, policy.idle_window) {
        i64::try_from(candidates.len()).unwrap_or(0).min(i64::from(policy.down_max))
    } else {
        0
    };

    let blocked = blocked(state, policy, now);
    if let Some(why) = &blocked
        && (launches > 0 || removals > 0)
    {
        reasons.push(why.clone());
    }
    // Told also while there is nothing to begin: a person has to set it right.
    let doubt = view.doubt();
    reasons.extend(doubt.clone());
    let blocked = blocked.or(doubt);
    let mut effects = Vec::new();
    if blocked.is_none() && launches > 0 {
        effects.push(Effect::Write(begin_up(state, policy, now, launches)));
    } else if blocked.is_none() && removals > 0 {
        let chosen = candidates.into_iter().take(usize::try_from(removals).unwrap_or(0));
        effects.push(Effect::Write(begin_down(state, policy, now, chosen)));
    } else {
        let workers = view.count();
        let same = |stored: Option<i64>, value: i64| stored.unwrap_or(0) == value;
        if !same(state.pending_since_epoch, pending_since)
            || !same(state.idle_since_epoch, idle_since)
            || !same(state.worker_count, workers)
        {
            effects.push(Effect::Write(Change::Windows { pending_since, idle_since, workers }));
        }
    }
    Step { effects, reasons }
}

/// Why nothing may begin now.
fn blocked(state: &State, policy: &Policy, now: &Now) -> Option<String> {
    if state.is_paused() {
        return Some("paused: `tenure autoscale resume` goes on".to_owned());
    }
    // An old writer knows no `nextAllowedEpoch`: what it completed is told by `lastScaleEpoch` alone.
    let last =
        state.last_scale_epoch.filter(|last| *last > 0 && !planted::is("autoscaler_forgets_old_cooldown"));
    let cooled = last.map_or(0, |last| last.saturating_add(seconds(policy.cooldown)));
    let allowed = state.next_allowed_epoch.unwrap_or(0).max(cooled);
    (allowed > now.epoch()).then(|| format!("cooling down for {} s more", allowed - now.epoch()))
}

fn begin_up(state: &State, policy: &Policy, now: &Now, launches: i64) -> Change {
    let place = policy.places.first().cloned();
    let places = place.into_iter().cycle().take(usize::try_from(launches).unwrap_or(0)).collect();
    Change::BeginUp {
        action: action_id("", state, now),
        places,
        deadline: now.epoch() + seconds(policy.join_timeout),
    }
}

fn begin_down<'a>(
    state: &State,
    policy: &Policy,
    now: &Now,
    chosen: impl Iterator<Item = (&'a InstanceId, &'a Node)>,
) -> Change {
    Change::BeginDown {
        action: action_id("sd-", state, now),
        nodes: chosen.map(|(id, node)| (id.clone(), (node.name.clone(), node.uid.clone()))).collect(),
        deadline: now.epoch() + seconds(policy.drain_timeout),
    }
}

/// `1730000300-<executor>-7`, as the old documents have it, with the number of the action.
fn action_id(prefix: &str, state: &State, now: &Now) -> ActionId {
    format!("{prefix}{}-{}-{}", now.epoch(), now.owner, state.action_seq() + 1).into()
}

/// How many workers are missing.
struct Demand {
    /// At once: below the minimum, or about to be taken away.
    urgent: i64,
    /// Once it has lasted: pods, lag, load.
    windowed: i64,
}

impl Demand {
    const fn pressing(&self) -> bool {
        self.windowed > 0
    }
}

struct View<'a> {
    state: &'a State,
    observation: &'a Observation,
    policy: &'a Policy,
    now: &'a Now,
    instances: BTreeMap<&'a InstanceId, &'a Instance>,
    matches: Matches<'a>,
    /// Live workers, those that will be taken away apart.
    workers: BTreeSet<&'a InstanceId>,
    leaving: BTreeSet<&'a InstanceId>,
}

impl<'a> View<'a> {
    fn of(state: &'a State, observation: &'a Observation, policy: &'a Policy, now: &'a Now) -> Self {
        let interrupted: BTreeSet<_> = state.interrupted().map(|(id, _)| id).collect();
        let matches = observation.matches();
        let workers = observation.workers_by(&matches).into_iter();
        let (leaving, workers) = workers.partition(|id| interrupted.contains(id));
        let instances = observation.instances.iter().map(|instance| (&instance.id, instance)).collect();
        Self { state, observation, policy, now, instances, matches, workers, leaving }
    }

    fn count(&self) -> i64 {
        i64::try_from(self.workers.len()).unwrap_or(i64::MAX)
    }

    /// Why what was seen is not to be relied on: nothing begins then.
    fn doubt(&self) -> Option<String> {
        self.clock_doubt().or_else(|| {
            // Ready by either account: a worker that nobody counts is a worker too many.
            if planted::is("autoscaler_strangers_ignored") {
                return None;
            }
            let ready = |node: &&&Node| node.ready || self.observation.is_ready(node) == Some(true);
            let mut strangers = self.matches.strangers.iter().filter(ready);
            let first = strangers.next()?;
            let others = strangers.count();
            Some(format!(
                "node {} and {others} others are Ready and belong to no instance that the cloud lists: set \
                 their label `tenure.dev/instance-id`, or remove them; nothing begins until then",
                first.name
            ))
        })
    }

    /// What others dated must not lie ahead: else this clock, or theirs, is wrong. A clock that is ahead
    /// shows by the clock of the metrics alone.
    fn clock_doubt(&self) -> Option<String> {
        let margin = CLOCK_DOUBT_SECONDS + seconds(self.policy.skew);
        if let Some(theirs) = self.observation.metrics_epoch
            && self.now.epoch() - theirs > margin
            && !planted::is("autoscaler_any_clock")
        {
            return Some(format!(
                "this clock is {} s ahead of the clock of the metrics: set it right, or theirs; nothing begins \
                 until then",
                self.now.epoch() - theirs
            ));
        }
        let bound = self.now.epoch() + margin;
        let launched = self.observation.instances.iter().map(|instance| instance.launched_epoch);
        let created = self.observation.nodes.iter().map(|node| node.created_epoch);
        let measured = self.observation.loads.iter().flatten().map(|(_, load)| load.at_epoch);
        let dated = launched.chain(created).chain(measured).chain(self.observation.metrics_epoch);
        let latest = dated.chain(self.state.last_scale_epoch).max()?;
        (latest > bound && !planted::is("autoscaler_any_clock")).then(|| {
            format!(
                "this clock is {} s behind what others dated: set it right, or theirs; nothing begins until \
                 then",
                latest - self.now.epoch()
            )
        })
    }

    fn demand(&self, reasons: &mut Vec<String>) -> Demand {
        let below = i64::from(self.policy.workers_min) - self.count();
        if below > 0 {
            reasons.push(format!("{below} workers below the minimum"));
        }
        let leaving = i64::try_from(self.leaving.len()).unwrap_or(0);
        if leaving > 0 {
            reasons.push(format!("{leaving} workers are about to be taken away"));
        }
        let mut windowed = self.nodes_for_pods(reasons);
        if let (Lag::Seconds(behind), Some(most)) = (self.observation.lag, self.policy.lag_max)
            && behind > seconds(most)
        {
            reasons
                .push(format!("the consumers are {behind} s behind, and {} s are allowed", most.as_secs()));
            windowed = windowed.max(1);
        }
        if self.is_busy() {
            reasons.push(format!("the workers are loaded above {} %", self.policy.busy_percent));
            windowed = windowed.max(1);
        }
        Demand { urgent: below.max(leaving).max(0), windowed }
    }

    /// How many new workers the waiting pods need: the largest first, each into the first that has room.
    fn nodes_for_pods(&self, reasons: &mut Vec<String>) -> i64 {
        let mut waiting: Vec<&Pod> =
            self.observation.pods.iter().filter(|pod| pod.node.is_none() && pod.unschedulable).collect();
        let total = waiting.len();
        waiting.retain(|pod| self.policy.worker.fits(pod.requests));
        if waiting.len() < total {
            reasons.push(format!("{} pods fit no worker, however many", total - waiting.len()));
        }
        let workers: Vec<_> = self.workers.iter().filter_map(|id| self.matches.node_of(id)).collect();
        if !workers.is_empty() && !planted::is("autoscaler_any_node_takes_it") {
            let total = waiting.len();
            waiting.retain(|pod| {
                pod.placement == Placement::default() && workers.iter().any(|node| node.taints.is_empty())
                    || workers.iter().any(|node| pod.placement.admits_another(node.offer()))
            });
            if waiting.len() < total {
                let strange = total - waiting.len();
                reasons.push(format!(
                    "{strange} pods ask for a node unlike every worker: none is added for them"
                ));
            }
        }
        waiting.sort_by_key(|pod| Reverse(pod.requests));
        // No more than could be launched are packed: the rest waits for the next action.
        let bins_max = self.policy.workers_max as usize;
        let mut bins = Bins::default();
        for pod in &waiting {
            if !bins.put(pod.requests) {
                if bins.len() >= bins_max {
                    break;
                }
                bins.open(self.policy.worker.less(pod.requests));
            }
        }
        if bins.len() > 0 {
            reasons.push(format!("{} pods wait for {} workers", waiting.len(), bins.len()));
        }
        i64::try_from(bins.len()).unwrap_or(i64::MAX)
    }

    /// Its node, if it has exactly one: of two, pods may be on either.
    fn single_node(&self, id: &InstanceId) -> Option<&'a Node> {
        match self.matches.nodes_of(id) {
            [node] => Some(*node),
            _ => None,
        }
    }

    fn fresh_load(&self, node: &Node) -> Option<&'a Load> {
        let load = self.observation.loads.as_ref()?.get(&node.name)?;
        let age = self.now.epoch() - load.at_epoch;
        // From the future means that some clock is wrong: that is no measure either.
        let bound = seconds(self.policy.metrics_age_max);
        if planted::is("autoscaler_stale_load_counts") {
            return Some(load);
        }
        (age <= bound && age >= -bound).then_some(load)
    }

    fn is_busy(&self) -> bool {
        let loads: Vec<_> =
            self.workers.iter().filter_map(|id| self.fresh_load(self.matches.node_of(id)?)).collect();
        let above = |sum: u32| {
            let count = u32::try_from(loads.len()).unwrap_or(u32::MAX);
            count > 0 && sum / count > self.policy.busy_percent
        };
        above(loads.iter().map(|load| load.cpu_percent).sum())
            || above(loads.iter().map(|load| load.memory_percent).sum())
    }

    /// Nodes that may be taken away together, the emptiest first: idle, and their pods fit elsewhere.
    fn candidates(&self, reasons: &mut Vec<String>) -> Vec<(&'a InstanceId, &'a Node)> {
        if self.observation.loads.is_none() {
            reasons.push("the load is unknown: nothing is taken away".to_owned());
            return Vec::new();
        }
        if !self.leaving.is_empty() || self.lag_keeps(reasons) {
            return Vec::new();
        }
        let loads = self.observation.loads.iter().flatten();
        if let Some(newest) = loads.map(|(_, load)| load.at_epoch).max()
            && self.now.epoch() - newest > seconds(self.policy.metrics_age_max)
            && !planted::is("autoscaler_stale_load_counts")
        {
            reasons.push(format!(
                "the newest load is {} s old: the metrics are stale or this clock is ahead; nothing is taken away",
                self.now.epoch() - newest
            ));
            return Vec::new();
        }
        let usable = |node: &Node| {
            self.observation.is_ready(node) == Some(true) && !node.unschedulable && !node.startup_taint
        };
        let ready: Vec<(&InstanceId, &Node)> = self
            .workers
            .iter()
            .filter_map(|id| Some((*id, self.single_node(id)?)))
            .filter(|(_, node)| usable(node))
            .collect();
        let spare = ready.len().saturating_sub(self.policy.workers_min as usize);
        if spare == 0 {
            return Vec::new();
        }
        let pods = self.pods_on();
        let on = |node: &'a Node| pods.get(&Named::of(&node.name)).map_or(&[][..], Vec::as_slice);
        let used =
            |node: &'a Node| on(node).iter().fold(Resources::default(), |sum, pod| sum.plus(pod.requests));
        let mut free: BTreeMap<&str, Room<'_>> = ready
            .iter()
            .map(|(_, node)| (node.name.as_str(), Room { node, left: node.allocatable.less(used(node)) }))
            .collect();
        let mut idle: Vec<_> = ready.iter().filter(|(id, node)| self.is_idle(id, node, on(node))).collect();
        idle.sort_by_cached_key(|(id, node)| (used(node), *id));
        let mut chosen = Vec::new();
        for (id, node) in idle.into_iter().take(spare.min(self.policy.down_max as usize * 4)) {
            if chosen.len() >= spare.min(self.policy.down_max as usize) {
                break;
            }
            let Some(own) = free.remove(node.name.as_str()) else { continue };
            match moved(&free, on(node)) {
                Ok(after) => {
                    free = after;
                    chosen.push((*id, *node));
                }
                Err(why) => {
                    reasons.push(format!("node {} idles, but {why}", node.name));
                    free.insert(&node.name, own);
                }
            }
        }
        if !chosen.is_empty() {
            reasons.push(format!("{} nodes idle", chosen.len()));
        }
        chosen
    }

    fn pods_on(&self) -> BTreeMap<Named<'a>, Vec<&'a Pod>> {
        let mut found: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for pod in &self.observation.pods {
            if let Some(node) = &pod.node {
                found.entry(Named::of(node)).or_default().push(pod);
            }
        }
        found
    }

    /// Whether the consumers need all workers that there are, or may need them.
    fn lag_keeps(&self, reasons: &mut Vec<String>) -> bool {
        match (self.observation.lag, self.policy.lag_max) {
            (_, None) | (Lag::NotAsked, _) => false,
            (Lag::Unknown, _) if planted::is("autoscaler_unknown_lag_is_none") => false,
            (Lag::Unknown, _) => {
                reasons.push("how far the consumers are behind is unknown: nothing is taken away".to_owned());
                true
            }
            // Half of what is allowed: else one would be taken away and added in turn.
            (Lag::Seconds(behind), Some(most)) => {
                let keeps = behind > seconds(most) / 2;
                if keeps {
                    reasons.push(format!("the consumers are {behind} s behind: nothing is taken away"));
                }
                keeps
            }
        }
    }

    fn is_idle(&self, id: &InstanceId, node: &Node, pods: &[&Pod]) -> bool {
        let left_alone = self
            .state
            .node_backoff
            .as_ref()
            .and_then(|backoff| backoff.get(id))
            .is_some_and(|until| *until > self.now.epoch());
        let running = self.instances.get(id).is_some_and(|instance| {
            let unfinished = instance.origin().is_some() && instance.tag(tags::COMMITTED).is_none();
            instance.state == InstanceState::Running && !unfinished
        });
        let below = |percent: u32| percent < self.policy.idle_percent;
        running
            && !node.control_plane
            && !left_alone
            && self.fresh_load(node).is_some_and(|load| below(load.cpu_percent) && below(load.memory_percent))
            && pods.iter().all(|pod| !pod.is_drained() || may_be_evicted(pod, self.policy))
    }
}

/// A node's name as a key. All names of a cluster begin alike: a number made of all of it, looked at first, tells
/// two of them apart in a fraction of the time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Named<'a> {
    number: u64,
    name: &'a str,
}

impl<'a> Named<'a> {
    fn of(name: &'a str) -> Self {
        // FNV-1a.
        let mix = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self { number: name.bytes().fold(0xcbf2_9ce4_8422_2325, mix), name }
    }
}

/// New workers, each with what it still has to give. A pod goes into the first that has room; groups of them in
/// which none can have room are passed over.
#[derive(Default)]
struct Bins {
    free: Vec<Resources>,
    /// Of each group, the most CPU and the most memory that any of it has.
    most: Vec<Resources>,
}

impl Bins {
    const GROUP: usize = 32;

    const fn len(&self) -> usize {
        self.free.len()
    }

    fn open(&mut self, room: Resources) {
        self.free.push(room);
        if self.most.len() * Self::GROUP < self.free.len() {
            self.most.push(room);
        } else {
            self.measure((self.free.len() - 1) / Self::GROUP);
        }
    }

    /// Whether there was room.
    fn put(&mut self, requests: Resources) -> bool {
        for group in 0..self.most.len() {
            if !self.most[group].fits(requests) {
                continue;
            }
            let bins = self.bins(group);
            if let Some(found) = self.free[bins.clone()].iter().position(|room| room.fits(requests)) {
                let room = &mut self.free[bins.start + found];
                *room = room.less(requests);
                self.measure(group);
                return true;
            }
        }
        false
    }

    fn bins(&self, group: usize) -> Range<usize> {
        group * Self::GROUP..self.free.len().min((group + 1) * Self::GROUP)
    }

    fn measure(&mut self, group: usize) {
        let bins = &self.free[self.bins(group)];
        self.most[group] = Resources {
            cpu_millis: bins.iter().map(|room| room.cpu_millis).max().unwrap_or(0),
            memory_mib: bins.iter().map(|room| room.memory_mib).max().unwrap_or(0),
        };
    }
}

/// What a node still has to give.
#[derive(Clone, Copy)]
struct Room<'a> {
    node: &'a Node,
    left: Resources,
}

impl Room<'_> {
    fn takes(&self, pod: &Pod) -> bool {
        let admits = pod.placement.admits(self.node.offer()) || planted::is("autoscaler_any_node_takes_it");
        admits && self.left.fits(pod.requests)
    }
}

/// What is free once these pods have moved; or which of them fits nowhere.
fn moved<'a>(
    free: &BTreeMap<&'a str, Room<'a>>,
    pods: &[&Pod],
) -> Result<BTreeMap<&'a str, Room<'a>>, String> {
    let mut free = free.clone();
    let mut moving: Vec<_> = pods.iter().filter(|pod| pod.is_drained()).collect();
    moving.sort_by_key(|pod| Reverse(pod.requests));
    for pod in moving {
        let Some(room) = free.values_mut().find(|room| room.takes(pod)) else {
            let unclear = pod.placement.unclear.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            return Err(format!("its pod {}/{} fits nowhere else{unclear}", pod.namespace, pod.name));
        };
        room.left = room.left.less(pod.requests);
    }
    Ok(free)
}

#[cfg(test)]
mod tests {
    use tenure_clock::Entropy;

    use super::*;

    /// The plain way: each into the first of all that has room.
    fn first_fit(worker: Resources, pods: &[Resources]) -> Vec<Resources> {
        let mut free: Vec<Resources> = Vec::new();
        for pod in pods {
            match free.iter().position(|room| room.fits(*pod)) {
                Some(found) => free[found] = free[found].less(*pod),
                None => free.push(worker.less(*pod)),
            }
        }
        free
    }

    #[test]
    fn groups_pass_over_nothing_that_has_room() {
        let worker = Resources { cpu_millis: 2000, memory_mib: 4096 };
        for seed in 0..50 {
            let entropy = Entropy::seeded(seed);
            let pod = |_| Resources {
                cpu_millis: entropy.below(2001),
                memory_mib: entropy.below([300, 4097][seed as usize % 2]),
            };
            let pods: Vec<_> = (0..300).map(pod).collect();
            let mut bins = Bins::default();
            for pod in &pods {
                if !bins.put(*pod) {
                    bins.open(worker.less(*pod));
                }
            }
            assert_eq!(bins.free, first_fit(worker, &pods), "seed {seed}");
        }
    }
}
