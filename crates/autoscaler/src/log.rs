//! The log: one event per write of the state item, under its `rev`, put if absent.
//!
//! | Attribute | Type | |
//! |---|---|---|
//! | `pk` | S | `cluster` |
//! | `sk` | S | the `rev` after the write, twenty digits; and `-` and the epoch, if a lost item had that `rev` before |
//! | `rev`, `epoch` | N | the same as a number; when |
//! | `event` | S | the write's name in the transition table |
//! | `owner` | S | the executor |
//! | `actionId`, `fence` | S, N | the action and its fence, if one was under way |
//! | `reasons` | L(S) | why |
//! | `seen` | M | of a decision, what it was made on: numbers, see [`Snapshot`] |
//! | `expiresEpoch` | N | when the event may be swept away |
//!
//! A gap in `rev` says that an executor died between the write and its event.

use std::collections::BTreeSet;

use tenure_backend::{Error, Kind, Result};
use tenure_store::{Condition, Item, Value, Write};

use crate::change::Change;
use crate::observation::{Lag, Observation, Resources};
use crate::rows::CLUSTER;
use crate::state::{ActionId, State};

/// Most reasons that an event keeps, and most bytes of each.
const REASONS_MAX: usize = 20;
const REASON_BYTES_MAX: usize = 500;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The `rev` after the write.
    pub rev: i64,
    /// When, in epoch seconds.
    pub epoch: i64,
    /// The write's title in the transition table.
    pub event: String,
    /// The executor.
    pub owner: String,
    /// The action, if one was under way before or after.
    pub action: Option<ActionId>,
    /// The fence.
    pub fence: i64,
    /// Why.
    pub reasons: Vec<String>,
    /// Of a decision, what it was made on.
    pub seen: Option<Snapshot>,
}

/// So many pods, and what they ask for together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodSum {
    /// How many.
    pub count: i64,
    /// What they ask for.
    pub requests: Resources,
}

/// What a decision was made on, in numbers. [`trial`](crate::trial) makes a trace of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Workers that are there or are coming.
    pub workers: i64,
    /// Pods on workers that would move to others.
    pub running: PodSum,
    /// Pods that fit nowhere.
    pub waiting: PodSum,
    /// How far the consumers were behind, in seconds, if that was known.
    pub lag_seconds: Option<i64>,
}

impl Snapshot {
    /// What a change was decided on; `None` for one that carries out what was decided before.
    #[must_use]
    pub fn of(change: &Change, observation: &Observation) -> Option<Self> {
        if !matches!(change, Change::BeginUp { .. } | Change::BeginDown { .. } | Change::Windows { .. }) {
            return None;
        }
        let mut seen = Self {
            workers: i64::try_from(observation.workers().len()).unwrap_or(i64::MAX),
            lag_seconds: match observation.lag {
                Lag::Seconds(behind) => Some(behind),
                Lag::NotAsked | Lag::Unknown => None,
            },
            ..Self::default()
        };
        let matches = observation.matches();
        let workers: BTreeSet<&str> = observation
            .workers()
            .into_iter()
            .flat_map(|id| matches.nodes_of(id))
            .map(|node| node.name.as_str())
            .collect();
        for pod in observation.pods.iter().filter(|pod| pod.is_drained()) {
            let sum = match &pod.node {
                Some(node) if workers.contains(node.as_str()) => &mut seen.running,
                // The control plane's own, which no worker has to carry.
                Some(_) => continue,
                None if pod.unschedulable => &mut seen.waiting,
                None => continue,
            };
            sum.count += 1;
            sum.requests = sum.requests.plus(pod.requests);
        }
        Some(seen)
    }

    fn encode(&self) -> Value {
        let mut fields = vec![("workers", self.workers)];
        for (sum, [count, cpu, memory]) in [(self.running, RUNNING), (self.waiting, WAITING)] {
            let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
            fields.extend([
                (count, sum.count),
                (cpu, number(sum.requests.cpu_millis)),
                (memory, number(sum.requests.memory_mib)),
            ]);
        }
        fields.extend(self.lag_seconds.map(|lag| ("lagSeconds", lag)));
        Value::M(fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect())
    }

    /// None if it is not there, or written by somebody else.
    fn decode(value: &Value) -> Option<Self> {
        let Value::M(fields) = value else { return None };
        let number = |name: &str| fields.get(name).and_then(Value::as_i64);
        let sum = |[count, cpu, memory]: [&str; 3]| {
            let amount = |name: &str| number(name).and_then(|value| u64::try_from(value).ok());
            let requests = Resources { cpu_millis: amount(cpu)?, memory_mib: amount(memory)? };
            Some(PodSum { count: number(count)?, requests })
        };
        Some(Self {
            workers: number("workers")?,
            running: sum(RUNNING)?,
            waiting: sum(WAITING)?,
            lag_seconds: number("lagSeconds"),
        })
    }
}

const RUNNING: [&str; 3] = ["running", "runningCpuMillis", "runningMemoryMib"];
const WAITING: [&str; 3] = ["waiting", "waitingCpuMillis", "waitingMemoryMib"];

impl Event {
    /// The event of a write from one state to another.
    #[must_use]
    pub fn of(
        before: &State,
        after: &State,
        event: &str,
        owner: &str,
        epoch: i64,
        reasons: &[String],
    ) -> Self {
        let shortened = |reason: &String| {
            let end = (0..=REASON_BYTES_MAX.min(reason.len())).rev().find(|at| reason.is_char_boundary(*at));
            reason[..end.unwrap_or(0)].to_owned()
        };
        Self {
            rev: after.rev.unwrap_or(0),
            epoch,
            event: event.to_owned(),
            owner: owner.to_owned(),
            action: after.action_id().or_else(|| before.action_id()).cloned(),
            fence: after.fence(),
            reasons: reasons.iter().take(REASONS_MAX).map(shortened).collect(),
            seen: None,
        }
    }

    /// The write that stores it, unless there is an event of that number.
    #[must_use]
    pub fn write(&self, table: &str, expires_epoch: i64) -> Write {
        self.write_as(format!("{:020}", self.rev), table, expires_epoch)
    }

    /// The write that stores it beside one of that number: numbers begin again once the item was lost.
    #[must_use]
    pub fn write_beside(&self, table: &str, expires_epoch: i64) -> Write {
        self.write_as(format!("{:020}-{}", self.rev, self.epoch), table, expires_epoch)
    }

    /// Whether an item was stored beside another of its number.
    #[must_use]
    pub fn is_beside(item: &Item) -> bool {
        item.text("sk").is_some_and(|key| key.contains('-'))
    }

    fn write_as(&self, key: String, table: &str, expires_epoch: i64) -> Write {
        let mut item = Item::new()
            .with("pk", CLUSTER)
            .with("sk", key)
            .with("rev", self.rev)
            .with("epoch", self.epoch)
            .with("event", self.event.as_str())
            .with("owner", self.owner.as_str())
            .with("fence", self.fence)
            .with("reasons", Value::L(self.reasons.iter().map(|reason| reason.as_str().into()).collect()))
            .with("expiresEpoch", expires_epoch);
        if let Some(action) = &self.action {
            item.set("actionId", action.as_str());
        }
        if let Some(seen) = &self.seen {
            item.set("seen", seen.encode());
        }
        Write::Put { table: table.to_owned(), item, when: Condition::absent("pk") }
    }

    /// The event that an item holds.
    ///
    /// # Errors
    /// `Corrupt` if an attribute is missing or of another type.
    pub fn read(item: &Item) -> Result<Self> {
        let damaged = |name: &str| {
            Error::new(
                Kind::Corrupt,
                format!("an event of the log has no usable `{name}`: it is not one of ours"),
            )
        };
        let number = |name: &str| item.integer(name).ok_or_else(|| damaged(name));
        let text = |name: &str| item.text(name).map(str::to_owned).ok_or_else(|| damaged(name));
        let reasons = match item.get("reasons") {
            Some(Value::L(list)) => list.iter().filter_map(Value::as_text).map(str::to_owned).collect(),
            _ => return Err(damaged("reasons")),
        };
        Ok(Self {
            rev: number("rev")?,
            epoch: number("epoch")?,
            event: text("event")?,
            owner: text("owner")?,
            action: item.text("actionId").map(ActionId::from),
            fence: number("fence")?,
            reasons,
            seen: item.get("seen").and_then(Snapshot::decode),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_comes_back_as_it_was_stored() {
        let sum = |count| PodSum { count, requests: Resources { cpu_millis: 1500, memory_mib: 64 } };
        let seen = Snapshot { workers: 3, running: sum(7), waiting: sum(2), lag_seconds: Some(4) };
        let event = |seen| Event {
            seen,
            ..Event::of(&State::default(), &State::default(), "windows", "a", 9, &["why".to_owned()])
        };
        for event in [event(Some(seen)), event(Some(Snapshot { lag_seconds: None, ..seen })), event(None)] {
            let Write::Put { item, .. } = event.write("logs", 99) else { panic!("it is put") };
            assert_eq!(Event::read(&item).unwrap(), event);
        }
    }
}
