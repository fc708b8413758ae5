//! What is stored: the state item, attribute by attribute, and the events of the log.
//!
//! Names and types of the old documents stay, so that an existing table can be taken over and old
//! readers still understand it.
//!
//! | Attribute | Type | |
//! |---|---|---|
//! | `pk` | S | always `cluster` |
//! | `scalingInProgress` | BOOL | an action is under way |
//! | `lastScaleEpoch` | N | end of the last completed action |
//! | `pendingSinceEpoch`, `idleSinceEpoch` | N | since when pods wait, nodes idle; 0 if not |
//! | `workerCount` | N | workers at the last look |
//! | `lockOwner`, `lockUntilEpoch` | S, N | who carries the action on; its deadline, for old writers |
//! | `scaleUpActionId`, `scaleUpStartedEpoch`, `scaleUpRequested`, `scaleUpInstanceIds` | S, N, N, L(S) | a scale-up |
//! | `scaleDownActionId`, `scaleDownStartedEpoch`, `scaleDownPhase`, `scaleDownTargetInstanceIds`, `scaleDownCompletedInstanceIds` | S, N, S, L(S), L(S) | a scale-down |
//! | `schemaVersion`, `rev`, `fence`, `actionSeq` | N | 2; writes; lease changes; actions |
//! | `leaseUntilMs`, `actionDeadlineEpoch` | N | the executor's lease; when the action is given up |
//! | `planFor` | S | the action that the slots or nodes belong to |
//! | `scaleUpPhase`, `scaleUpSlots` | S, M | `{"0": {p, a, fa, sn, mk, lt, id}}` |
//! | `scaleDownNodes` | M | `{"i-…": {p, n, u}}` |
//! | `failCount`, `nextAllowedEpoch`, `lastFailure` | N, N, S | cooldown, after failures too |
//! | `nodeBackoff` | M | `{"i-…": epoch}`: nodes to leave alone until then |
//! | `interrupts` | M | `{"i-…": {k, at, s}}`: instances that will be taken away |
//! | `paused` | BOOL | nothing new begins |
//!
//! Attributes that are not listed are left as they are.

use std::collections::BTreeMap;

use tenure_backend::{Error, Kind, Result};
use tenure_store::{Item, Key, KeyAttribute, TableSpec, Value};

use crate::state::{
    ActionId, DownNode, DownPhase, InstanceId, Interrupt, InterruptKind, NodePhase, Place, Slot, SlotPhase,
    State, UpPhase,
};

/// The state table unless another is named.
pub const STATE_TABLE: &str = "k3s-autoscaler-state";
/// The log's table unless another is named.
pub const LOGS_TABLE: &str = "k3s-autoscaler-logs";
/// The hash key of the one item, and of all events.
pub const CLUSTER: &str = "cluster";

/// The state table: `pk`.
#[must_use]
pub fn state_table(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("pk"))
}

/// The log's table: `pk`, `sk`, and `expiresEpoch` as its TTL.
#[must_use]
pub fn logs_table(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("pk"))
        .with_range(KeyAttribute::text("sk"))
        .with_ttl("expiresEpoch")
}

/// The key of the state item.
#[must_use]
pub fn state_key() -> Key {
    Key::new("pk", CLUSTER)
}

/// The state that an item holds. A row that is not there is a state without attributes.
///
/// # Errors
/// `Corrupt` if an attribute has another type or a phase another name: nothing is written over it.
pub fn decode(item: &Item) -> Result<State> {
    read(item, "`tenure autoscale state repair` mends what it can; for the rest, ")
}

/// As [`decode`], of an item of which was mended what can be.
pub(crate) fn decode_mended(item: &Item) -> Result<State> {
    read(item, "")
}

fn read(item: &Item, advice: &'static str) -> Result<State> {
    let reader = Reader { item, advice };
    let state = State {
        schema_version: reader.number("schemaVersion")?,
        rev: reader.number("rev")?,
        fence: reader.number("fence")?,
        action_seq: reader.number("actionSeq")?,
        scaling_in_progress: reader.flag("scalingInProgress")?,
        last_scale_epoch: reader.number("lastScaleEpoch")?,
        pending_since_epoch: reader.number("pendingSinceEpoch")?,
        idle_since_epoch: reader.number("idleSinceEpoch")?,
        worker_count: reader.number("workerCount")?,
        lock_owner: reader.text("lockOwner")?.map(str::to_owned),
        lock_until_epoch: reader.number("lockUntilEpoch")?,
        lease_until_ms: reader.number("leaseUntilMs")?,
        action_deadline_epoch: reader.number("actionDeadlineEpoch")?,
        plan_for: reader.text("planFor")?.map(ActionId::from),
        up_action_id: reader.text("scaleUpActionId")?.map(ActionId::from),
        up_started_epoch: reader.number("scaleUpStartedEpoch")?,
        up_requested: reader.number("scaleUpRequested")?,
        up_instance_ids: reader.ids("scaleUpInstanceIds")?,
        up_phase: reader.phase("scaleUpPhase", UpPhase::parse)?,
        up_slots: reader.entries("scaleUpSlots", slot_entry)?,
        down_action_id: reader.text("scaleDownActionId")?.map(ActionId::from),
        down_started_epoch: reader.number("scaleDownStartedEpoch")?,
        down_phase: reader.phase("scaleDownPhase", DownPhase::parse)?,
        down_targets: reader.ids("scaleDownTargetInstanceIds")?,
        down_completed: reader.ids("scaleDownCompletedInstanceIds")?,
        down_nodes: reader.entries("scaleDownNodes", node_entry)?,
        fail_count: reader.number("failCount")?,
        next_allowed_epoch: reader.number("nextAllowedEpoch")?,
        last_failure: reader.text("lastFailure")?.map(str::to_owned),
        node_backoff: reader
            .entries("nodeBackoff", |id, value| Some((InstanceId::from(id), value.as_i64()?)))?,
        interrupts: reader.entries("interrupts", interrupt_entry)?,
        paused: reader.flag("paused")?,
    };
    if state.schema_version.is_some_and(|version| version > crate::state::SCHEMA_VERSION) {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "the state item has schemaVersion {}, this version of Tenure knows {}: use the newer one",
                state.schema_version.unwrap_or_default(),
                crate::state::SCHEMA_VERSION
            ),
        ));
    }
    Ok(state)
}

/// The item that holds the state: attributes that are `None` are not in it.
#[must_use]
pub fn encode(state: &State) -> Item {
    let mut item = state_key().as_item().clone();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            item.set(name, value);
        }
    };
    let text = |id: &ActionId| Value::from(id.as_str());
    put("schemaVersion", state.schema_version.map(Value::from));
    put("rev", state.rev.map(Value::from));
    put("fence", state.fence.map(Value::from));
    put("actionSeq", state.action_seq.map(Value::from));
    put("scalingInProgress", state.scaling_in_progress.map(Value::from));
    put("lastScaleEpoch", state.last_scale_epoch.map(Value::from));
    put("pendingSinceEpoch", state.pending_since_epoch.map(Value::from));
    put("idleSinceEpoch", state.idle_since_epoch.map(Value::from));
    put("workerCount", state.worker_count.map(Value::from));
    put("lockOwner", state.lock_owner.as_deref().map(Value::from));
    put("lockUntilEpoch", state.lock_until_epoch.map(Value::from));
    put("leaseUntilMs", state.lease_until_ms.map(Value::from));
    put("actionDeadlineEpoch", state.action_deadline_epoch.map(Value::from));
    put("planFor", state.plan_for.as_ref().map(text));
    put("scaleUpActionId", state.up_action_id.as_ref().map(text));
    put("scaleUpStartedEpoch", state.up_started_epoch.map(Value::from));
    put("scaleUpRequested", state.up_requested.map(Value::from));
    put("scaleUpInstanceIds", state.up_instance_ids.as_deref().map(id_list));
    put("scaleUpPhase", state.up_phase.map(|phase| phase.name().into()));
    put("scaleUpSlots", state.up_slots.as_ref().map(slots_value));
    put("scaleDownActionId", state.down_action_id.as_ref().map(text));
    put("scaleDownStartedEpoch", state.down_started_epoch.map(Value::from));
    put("scaleDownPhase", state.down_phase.map(|phase| phase.name().into()));
    put("scaleDownTargetInstanceIds", state.down_targets.as_deref().map(id_list));
    put("scaleDownCompletedInstanceIds", state.down_completed.as_deref().map(id_list));
    put("scaleDownNodes", state.down_nodes.as_ref().map(nodes_value));
    put("failCount", state.fail_count.map(Value::from));
    put("nextAllowedEpoch", state.next_allowed_epoch.map(Value::from));
    put("lastFailure", state.last_failure.as_deref().map(Value::from));
    put("nodeBackoff", state.node_backoff.as_ref().map(|backoff| map(backoff, |until| (*until).into())));
    put("interrupts", state.interrupts.as_ref().map(|all| map(all, interrupt_value)));
    put("paused", state.paused.map(Value::from));
    item
}

fn id_list(ids: &[InstanceId]) -> Value {
    Value::L(ids.iter().map(|id| id.as_str().into()).collect())
}

fn map<T>(entries: &BTreeMap<InstanceId, T>, value: impl Fn(&T) -> Value) -> Value {
    Value::M(entries.iter().map(|(id, entry)| (id.to_string(), value(entry))).collect())
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> BTreeMap<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn slots_value(slots: &BTreeMap<u32, Slot>) -> Value {
    let entry = |slot: &Slot| {
        let mut entry = fields([
            ("p", slot.phase.name().into()),
            ("a", slot.attempt.into()),
            ("fa", slot.authorised.into()),
            ("sn", slot.place.subnet.as_str().into()),
            ("mk", slot.place.market.as_str().into()),
            ("lt", slot.place.template.as_str().into()),
        ]);
        if let Some(instance) = &slot.instance {
            entry.insert("id".to_owned(), instance.as_str().into());
        }
        Value::M(entry)
    };
    Value::M(slots.iter().map(|(number, slot)| (number.to_string(), entry(slot))).collect())
}

fn nodes_value(nodes: &BTreeMap<InstanceId, DownNode>) -> Value {
    map(nodes, |node| {
        Value::M(fields([
            ("p", node.phase.name().into()),
            ("n", node.node.as_str().into()),
            ("u", node.uid.as_str().into()),
        ]))
    })
}

fn interrupt_value(interrupt: &Interrupt) -> Value {
    Value::M(fields([
        ("k", interrupt.kind.name().into()),
        ("at", interrupt.at.into()),
        ("s", interrupt.seq.into()),
    ]))
}

fn slot_entry(number: &str, value: &Value) -> Option<(u32, Slot)> {
    let Value::M(entry) = value else { return None };
    let text = |name: &str| entry.get(name).and_then(Value::as_text).map(str::to_owned);
    let slot = Slot {
        phase: SlotPhase::parse(entry.get("p")?.as_text()?)?,
        attempt: u32::try_from(entry.get("a")?.as_i64()?).ok()?,
        authorised: entry.get("fa")?.as_i64()?,
        place: Place { subnet: text("sn")?, market: text("mk")?, template: text("lt")? },
        instance: match entry.get("id") {
            None => None,
            Some(id) => Some(InstanceId::from(id.as_text()?)),
        },
    };
    Some((number.parse().ok()?, slot))
}

fn node_entry(id: &str, value: &Value) -> Option<(InstanceId, DownNode)> {
    let Value::M(entry) = value else { return None };
    let text = |name: &str| entry.get(name).and_then(Value::as_text);
    let node = DownNode {
        phase: NodePhase::parse(text("p")?)?,
        node: text("n")?.to_owned(),
        uid: text("u")?.to_owned(),
    };
    Some((InstanceId::from(id), node))
}

fn interrupt_entry(id: &str, value: &Value) -> Option<(InstanceId, Interrupt)> {
    let Value::M(entry) = value else { return None };
    let kind = InterruptKind::parse(entry.get("k")?.as_text()?)?;
    // Without a number it is of an earlier version, and was answered by any action since.
    let seq = match entry.get("s") {
        Some(seq) => seq.as_i64()?,
        None => 0,
    };
    Some((InstanceId::from(id), Interrupt { kind, at: entry.get("at")?.as_i64()?, seq }))
}

struct Reader<'a> {
    item: &'a Item,
    /// How a value of another type is put right.
    advice: &'static str,
}

impl<'a> Reader<'a> {
    fn read<T>(&self, name: &str, wanted: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.item.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            Error::new(
                Kind::Corrupt,
                format!(
                    "attribute `{name}` of the state item is {} and should be {wanted}: {}`tenure store get` shows \
                     the row and `tenure store put` writes all of it; nothing scales until then",
                    shown(value),
                    self.advice
                ),
            )
        })
    }

    fn number(&self, name: &str) -> Result<Option<i64>> {
        self.read(name, "a whole N", Value::as_i64)
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "an S", Value::as_text)
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "a BOOL", |value| match value {
            Value::Bool(flag) => Some(*flag),
            _ => None,
        })
    }

    fn phase<P>(&self, name: &str, parse: impl Fn(&str) -> Option<P>) -> Result<Option<P>> {
        self.read(name, "a phase that this version knows", |value| parse(value.as_text()?))
    }

    fn ids(&self, name: &str) -> Result<Option<Vec<InstanceId>>> {
        self.read(name, "an L of S", |value| match value {
            Value::L(list) => list.iter().map(|id| Some(InstanceId::from(id.as_text()?))).collect(),
            _ => None,
        })
    }

    fn entries<K: Ord, V>(
        &self,
        name: &str,
        entry: impl Fn(&str, &Value) -> Option<(K, V)>,
    ) -> Result<Option<BTreeMap<K, V>>> {
        self.read(name, "an M of entries as `docs/autoscaler-states.md` shows them", |value| match value {
            Value::M(map) => map.iter().map(|(key, value)| entry(key, value)).collect(),
            _ => None,
        })
    }
}

/// A value in a message: its type, and if it is short what it says.
fn shown(value: &Value) -> String {
    /// Longer values say nothing more.
    const SHOWN_BYTES_MAX: usize = 40;
    match value {
        Value::S(text) if text.len() <= SHOWN_BYTES_MAX => format!("S `{text}`"),
        Value::N(number) => format!("N `{number}`"),
        Value::Bool(flag) => format!("BOOL `{flag}`"),
        other => format!("of type {}", other.type_name()),
    }
}
