//! What the operator wants: bounds, windows, timeouts and places.

use std::time::Duration;

use tenure_backend::{Error, Result};

use crate::observation::Resources;
use crate::state::{Place, TARGETS_MAX};

/// Fewer leave no room for a call and its answer.
const LEASE_MIN: Duration = Duration::from_secs(5);
/// Places that a slot may be tried at: each is one more attempt.
const PLACES_MAX: usize = 20;
/// The first pause after a failure, and the longest.
const BACKOFF_MIN_SECONDS: i64 = 60;
const BACKOFF_MAX_SECONDS: i64 = 1800;

/// How a joined node is recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Readiness {
    /// The Node's Ready condition.
    #[default]
    NodeCondition,
    /// The readiness query of Prometheus, as the old documents have it.
    Prometheus,
}

/// The policy of one cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The cluster's name: instances carry it as a tag, client tokens contain it.
    pub cluster: String,
    /// Fewest workers.
    pub workers_min: u32,
    /// Most workers.
    pub workers_max: u32,
    /// Most instances that one scale-up launches. 10 by default.
    pub up_max: u32,
    /// Most nodes that one scale-down takes away. 2 by default.
    pub down_max: u32,
    /// Where instances are launched, in order of preference.
    pub places: Vec<Place>,
    /// What one new worker has to give.
    pub worker: Resources,
    /// How a joined node is recognised.
    pub readiness: Readiness,
    /// How long pods must wait before workers are added. 30 s by default.
    pub pending_window: Duration,
    /// How long nodes must idle before they are taken away. 10 min by default.
    pub idle_window: Duration,
    /// A node idles below this share of its CPU and of its memory, in percent. 30 by default.
    pub idle_percent: u32,
    /// Above this share of all workers' CPU or memory, in percent, one worker is added. 85 by default.
    pub busy_percent: u32,
    /// How far the consumers of the streams may be behind before one worker is added, where they tell that; above
    /// half of it none is taken away. Never by default.
    pub lag_max: Option<Duration>,
    /// How old a metric may be. 2 min by default; older ones are no ground to take anything away.
    pub metrics_age_max: Duration,
    /// How long after a completed action nothing new begins. 5 min by default.
    pub cooldown: Duration,
    /// How long a scale-up may take until its nodes are Ready. 10 min by default.
    pub join_timeout: Duration,
    /// How long a scale-down may take until its nodes are empty. 15 min by default.
    pub drain_timeout: Duration,
    /// After how long a drain deletes what cannot be evicted. Never by default.
    pub force_after: Option<Duration>,
    /// Whether pods without a controller may be evicted. No by default: nobody brings them back.
    pub evict_unmanaged: bool,
    /// Whether pods with local storage may be evicted. No by default: what they stored is lost.
    pub evict_local_storage: bool,
    /// How long a node that could not be drained is left alone. 1 h by default.
    pub node_backoff: Duration,
    /// How long an executor may carry an action on without writing. 45 s by default.
    pub lease: Duration,
    /// By how much the clocks of two executors may differ. 5 s by default.
    pub skew: Duration,
    /// How long after it was first seen an orphan is ended. 1 min by default.
    pub orphan_after: Duration,
}

impl Policy {
    /// A policy with the default windows and timeouts.
    #[must_use]
    pub fn new(cluster: impl Into<String>, workers_min: u32, workers_max: u32, places: Vec<Place>) -> Self {
        Self {
            cluster: cluster.into(),
            workers_min,
            workers_max,
            up_max: 10,
            down_max: 2,
            places,
            worker: Resources { cpu_millis: 2000, memory_mib: 4096 },
            readiness: Readiness::default(),
            pending_window: Duration::from_secs(30),
            idle_window: Duration::from_secs(600),
            idle_percent: 30,
            busy_percent: 85,
            lag_max: None,
            metrics_age_max: Duration::from_secs(120),
            cooldown: Duration::from_secs(300),
            join_timeout: Duration::from_secs(600),
            drain_timeout: Duration::from_secs(900),
            force_after: None,
            evict_unmanaged: false,
            evict_local_storage: false,
            node_backoff: Duration::from_secs(3600),
            lease: Duration::from_secs(45),
            skew: Duration::from_secs(5),
            orphan_after: Duration::from_secs(60),
        }
    }

    /// Refuses what could not be carried out.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give.
    pub fn validate(&self) -> Result<()> {
        self.check().map_err(|(name, what)| Error::invalid(format!("{name}: {what}")))
    }

    /// The setting that cannot be carried out, by its name, and what to give.
    pub(crate) fn check(&self) -> Result<(), (&'static str, String)> {
        if self.cluster.is_empty() {
            return Err(("cluster", "no name: give the one that its instances are tagged with".to_owned()));
        }
        if self.workers_min > self.workers_max {
            let (least, most) = (self.workers_min, self.workers_max);
            return Err((
                "workers_max",
                format!("{most} is less than workers_min, {least}: lower the one or raise the other"),
            ));
        }
        for (name, count) in [("up_max", self.up_max), ("down_max", self.down_max)] {
            if count == 0 || count as usize > TARGETS_MAX {
                return Err((name, format!("{count}: give 1 to {TARGETS_MAX}")));
            }
        }
        if self.places.is_empty() || self.places.len() > PLACES_MAX {
            return Err((
                "subnets",
                format!(
                    "{} places to launch at, each subnet counted for each market: give 1 to {PLACES_MAX}",
                    self.places.len()
                ),
            ));
        }
        for (name, has) in
            [("worker_cpu_millis", self.worker.cpu_millis), ("worker_memory", self.worker.memory_mib)]
        {
            if has == 0 {
                return Err((
                    name,
                    "a worker without it takes no pod: give what the instance type has".to_owned(),
                ));
            }
        }
        for (name, percent) in [("idle_percent", self.idle_percent), ("busy_percent", self.busy_percent)] {
            if percent == 0 || percent > 100 {
                return Err((name, format!("{percent}: give 1 to 100")));
            }
        }
        if self.idle_percent >= self.busy_percent {
            return Err((
                "idle_percent",
                format!(
                    "a node that idles below {} % and is busy above {} % would be added and taken away in turn: \
                     leave room below busy_percent",
                    self.idle_percent, self.busy_percent
                ),
            ));
        }
        if self.lease < LEASE_MIN || self.skew * 2 > self.lease {
            return Err((
                "lease",
                format!(
                    "{:?} with a skew of {:?}: give at least {LEASE_MIN:?} and two skews",
                    self.lease, self.skew
                ),
            ));
        }
        for (name, timeout) in [("join_timeout", self.join_timeout), ("drain_timeout", self.drain_timeout)] {
            if timeout < self.lease * 2 || timeout > Duration::from_secs(86_400) {
                return Err((name, format!("{timeout:?}: give two leases to one day")));
            }
        }
        if self.lag_max.is_some_and(|lag| lag < Duration::from_secs(2)) {
            return Err((
                "lag_max",
                "below 2 s, which every consumer is behind at times: give more".to_owned(),
            ));
        }
        if self.force_after.is_some_and(|force| force >= self.drain_timeout) {
            return Err((
                "force_after",
                "not before drain_timeout, so nothing would ever be forced: give less".to_owned(),
            ));
        }
        Ok(())
    }

    /// How long nothing begins after the failure that makes it `failures` in a row.
    #[must_use]
    pub fn backoff_seconds(failures: i64) -> i64 {
        let doublings = u32::try_from(failures.clamp(0, 16)).unwrap_or(0);
        (BACKOFF_MIN_SECONDS << doublings).min(BACKOFF_MAX_SECONDS)
    }
}

pub(crate) fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX / 4)
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> Policy {
        let place = Place { subnet: "subnet-a".into(), market: "on-demand".into(), template: "1".into() };
        Policy::new("demo", 1, 5, vec![place])
    }

    #[test]
    fn what_cannot_be_is_refused_with_advice() {
        policy().validate().unwrap();
        let refused = |change: &dyn Fn(&mut Policy)| {
            let mut policy = policy();
            change(&mut policy);
            policy.validate().unwrap_err().chain()
        };
        assert!(refused(&|policy| policy.workers_min = 6).contains("lower the one"));
        assert!(refused(&|policy| policy.up_max = 51).contains("1 to 50"));
        assert!(refused(&|policy| policy.places.clear()).contains("places"));
        assert!(refused(&|policy| policy.idle_percent = 90).contains("in turn"));
        assert!(refused(&|policy| policy.skew = Duration::from_secs(40)).contains("two skews"));
        assert!(refused(&|policy| policy.worker.cpu_millis = 0).contains("takes no pod"));
        assert!(refused(&|policy| policy.drain_timeout = Duration::from_secs(1)).contains("two leases"));
        assert!(refused(&|policy| policy.force_after = Some(policy.drain_timeout)).contains("ever"));
        assert!(refused(&|policy| policy.cluster.clear()).contains("no name"));
    }

    #[test]
    fn the_pause_after_failures_doubles_up_to_half_an_hour() {
        let pauses: Vec<_> = (0..8).map(Policy::backoff_seconds).collect();
        assert_eq!(pauses, [60, 120, 240, 480, 960, 1800, 1800, 1800]);
        assert_eq!(Policy::backoff_seconds(i64::MAX), 1800);
    }
}
