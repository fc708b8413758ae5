//! What is stored: leases as items in the KCL's table, and our own rows beside it.
//!
//! The lease table has one row per shard, hash key `leaseKey` S, with the attributes of KCL 2.x and 3.x. Rows
//! of other kinds (`entityType` other than `LEASE`) are not ours to look at. One attribute is ours:
//! `tenureMarks` B, which the KCL's updates leave alone. Our rows are in `tenure_coordination`, because an
//! extra row would break the KCL's scans:
//!
//! | `pk` | `sk` | attributes |
//! |---|---|---|
//! | `LEASES#<app>` | `settings` | `leaseMs` N |
//! | `LEASES#<app>` | `nudge` | `counter` N |
//! | `LEASES#<app>` | `worker#<id>` | `incarnation` S, `cap` N, `holding` BOOL, `counter` N, `ttl` N (epoch seconds) |

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tenure_backend::{Error, Kind, Result};
use tenure_planted as planted;
use tenure_store::columns::{Problem, integer, mistyped, text, whole};
use tenure_store::{
    Condition, IndexSpec, Item, Key, KeyAttribute, Number, Projection, TableSpec, Update, Value, Write,
};
use tenure_stream::{HashRange, ShardId};

use crate::attempt::{Attempt, Note, Presence};
use crate::{Checkpoint, Lease, LeaseKey, WorkerId};

/// Finds the leases of a worker, for programs that do not read the whole table. The KCL 3.x has it.
pub const OWNER_INDEX: &str = "LeaseOwnerToLeaseKeyIndex";
/// Begins the hash key of our own rows.
const APP_PREFIX: &str = "LEASES#";
/// Begins the range key of a worker's row.
const WORKER_PREFIX: &str = "worker#";
/// A counter beyond it was not counted up to, and the next could not be stored.
const COUNTER_MAX: u64 = i64::MAX.unsigned_abs() / 2;
/// What the KCL stores before a checkpoint is made; removed by each of ours.
const PENDING: [&str; 3] =
    ["pendingCheckpoint", "pendingCheckpointSubSequenceNumber", "pendingCheckpointState"];

/// The lease table, as a new one is made.
#[must_use]
pub fn lease_table_spec(table: &str) -> TableSpec {
    bare_lease_table_spec(table).with_index(IndexSpec {
        name: OWNER_INDEX.to_owned(),
        hash: KeyAttribute::text("leaseOwner"),
        range: Some(KeyAttribute::text("leaseKey")),
        projection: Projection::KeysOnly,
    })
}

/// What an existing table must have: a KCL 2.x's has no index, and we need none.
#[must_use]
pub fn bare_lease_table_spec(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("leaseKey"))
}

/// Where the rows of an application are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The application: also the name of its lease table.
    pub app: String,
    /// The lease table.
    pub leases: String,
    /// The table of our own rows.
    pub coordination: String,
}

impl Place {
    /// The tables of an application.
    #[must_use]
    pub fn new(app: &str, coordination: &str) -> Self {
        Self { app: app.to_owned(), leases: app.to_owned(), coordination: coordination.to_owned() }
    }

    /// The partition of our own rows.
    #[must_use]
    pub fn partition(&self) -> String {
        format!("{APP_PREFIX}{}", self.app)
    }

    fn own_key(&self, row: &str) -> Key {
        Key::new("pk", self.partition()).and("sk", row)
    }

    /// The row that says that something changed.
    #[must_use]
    pub fn nudge_key(&self) -> Key {
        self.own_key("nudge")
    }

    /// The row that says for how long leases last.
    #[must_use]
    pub fn settings_key(&self) -> Key {
        self.own_key("settings")
    }

    /// The row of a worker.
    #[must_use]
    pub fn worker_key(&self, worker: &WorkerId) -> Key {
        self.own_key(&format!("{WORKER_PREFIX}{worker}"))
    }

    /// The write of an attempt, with its exact condition.
    #[must_use]
    pub fn write(&self, attempt: &Attempt) -> Write {
        match attempt {
            Attempt::Create(lease) => Write::Put {
                table: self.leases.clone(),
                item: item_of(lease),
                when: Condition::absent("leaseKey"),
            },
            Attempt::Renew { key, counter, me, kbps } => {
                let change = Update::new().set("leaseCounter", counter + 1);
                let change = match kbps.and_then(number_of) {
                    Some(rate) => change.set("throughputKBps", Value::N(rate)),
                    None => change,
                };
                self.change(key, change, mine_to_renew(me, *counter))
            }
            Attempt::Take { key, counter, me, from } => {
                let change = Update::new()
                    .set("leaseOwner", me.as_str())
                    .set("leaseCounter", counter + 1)
                    .remove("checkpointOwner");
                let change = match from {
                    Some(from) if from == me => change,
                    _ => change.add("ownerSwitchesSinceCheckpoint", 1),
                };
                let when = if planted::is("take_without_counter") {
                    Condition::exists("leaseKey")
                } else {
                    Condition::eq("leaseCounter", *counter)
                };
                self.change(key, change, when)
            }
            Attempt::Checkpoint { key, counter, me, at, marks } => {
                let mut change = checkpoint_change(at)
                    .set("ownerSwitchesSinceCheckpoint", 0)
                    .set("leaseCounter", counter + 1);
                for name in PENDING {
                    change = change.remove(name);
                }
                let change = match marks {
                    Some(marks) => change.set("tenureMarks", Value::B(marks.to_vec())),
                    None => change.remove("tenureMarks"),
                };
                let when = if planted::is("lease_checkpoint_without_fence") {
                    Condition::exists("leaseKey")
                } else {
                    mine_to_renew(me, *counter)
                };
                self.change(key, change, when)
            }
            Attempt::BeginHandoff { key, from, to } => self.change(
                key,
                Update::new().set("leaseOwner", to.as_str()).set("checkpointOwner", from.as_str()),
                Condition::eq("leaseOwner", from.as_str()).and(Condition::absent("checkpointOwner")),
            ),
            Attempt::FinishHandoff { key, counter, from, to } => {
                let owners = Condition::eq("leaseOwner", to.as_str())
                    .and(Condition::eq("checkpointOwner", from.as_str()));
                let when = if planted::is("finish_without_counter") {
                    owners
                } else {
                    // An old request that lands late must not end a later handoff between the same two.
                    owners.and(Condition::eq("leaseCounter", *counter))
                };
                self.change(
                    key,
                    Update::new()
                        .remove("checkpointOwner")
                        .set("leaseCounter", counter + 1)
                        .add("ownerSwitchesSinceCheckpoint", 1),
                    when,
                )
            }
            Attempt::Evict { key, counter, me } => {
                let owner =
                    Condition::eq("leaseOwner", me.as_str()).and(Condition::absent("checkpointOwner"));
                let when = if planted::is("evict_without_counter") {
                    owner
                } else {
                    // An old request that lands late must not take away a lease that was taken again.
                    owner.and(Condition::eq("leaseCounter", *counter))
                };
                self.change(key, Update::new().remove("leaseOwner").set("leaseCounter", counter + 1), when)
            }
            Attempt::Delete { key, counter, finished } => Write::Delete {
                table: self.leases.clone(),
                key: lease_row(key),
                when: Condition::eq("leaseCounter", *counter).and(if *finished {
                    Condition::eq("checkpoint", "SHARD_END")
                } else {
                    Condition::absent("leaseOwner")
                }),
            },
        }
    }

    /// The write of a note, with its exact condition.
    #[must_use]
    pub fn note(&self, note: &Note) -> Write {
        let table = self.coordination.clone();
        match note {
            Note::Settings { lease } => {
                let mut item = self.settings_key().as_item().clone();
                item.set("leaseMs", millis(*lease));
                Write::Put { table, item, when: Condition::absent("pk") }
            }
            Note::Presence { me, over } => {
                let mut item = self.worker_key(&me.worker).as_item().clone();
                item.set("incarnation", &*me.incarnation);
                item.set("cap", me.cap);
                item.set("holding", me.holding);
                item.set("counter", me.counter);
                item.set("ttl", me.expires);
                let when = match over {
                    Some((incarnation, counter)) => {
                        Condition::eq("incarnation", &**incarnation).and(Condition::eq("counter", *counter))
                    }
                    // An older one of mine that comes late finds a higher counter.
                    None => Condition::absent("pk").or(Condition::eq("incarnation", &*me.incarnation)
                        .and(Condition::lt("counter", me.counter))),
                };
                Write::Put { table, item, when }
            }
            Note::Leave { worker, incarnation } => Write::Delete {
                table,
                key: self.worker_key(worker),
                when: Condition::eq("incarnation", &**incarnation),
            },
            Note::Nudge => Write::Update {
                table,
                key: self.nudge_key(),
                change: Update::new().add("counter", 1),
                when: Condition::Always,
            },
        }
    }

    fn change(&self, key: &LeaseKey, change: Update, when: Condition) -> Write {
        Write::Update { table: self.leases.clone(), key: lease_row(key), change, when }
    }

    /// The lease that an item holds; `None` if it is a row of another kind.
    ///
    /// # Errors
    /// `Corrupt`, naming the row and the attribute: the row is left alone.
    pub fn lease(&self, item: &Item) -> Result<Option<Lease>> {
        lease_of(item).map_err(|problem| {
            let key = item.text("leaseKey").unwrap_or("?");
            Error::new(
                Kind::Corrupt,
                format!(
                    "lease `{key}` of table `{}` {problem}: it is left alone; mend the attribute, or delete the row \
                     and it is made anew",
                    self.leases
                ),
            )
        })
    }

    /// What an item of our own partition holds; `None` if it is of a kind that we do not know.
    ///
    /// # Errors
    /// `Corrupt`, naming the row and the attribute.
    pub fn own(&self, item: &Item) -> Result<Option<OwnRow>> {
        own_of(item).map_err(|problem| {
            let row = item.text("sk").unwrap_or("?");
            Error::new(
                Kind::Corrupt,
                format!(
                    "row `{}` / `{row}` of table `{}` {problem}: if no worker of `{}` runs, delete it",
                    self.partition(),
                    self.coordination,
                    self.app
                ),
            )
        })
    }
}

/// A row of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnRow {
    /// For how long leases last.
    Settings(Duration),
    /// How often something changed.
    Nudge(u64),
    /// A worker.
    Worker(Presence),
}

/// The key of a lease's row.
#[must_use]
pub fn lease_row(key: &LeaseKey) -> Key {
    Key::new("leaseKey", key.as_str())
}

/// LE-1: the counter is the one I know, and the lease is mine, or mine to give.
fn mine_to_renew(me: &WorkerId, counter: u64) -> Condition {
    let owner = Condition::eq("leaseOwner", me.as_str()).and(Condition::absent("checkpointOwner"));
    let giver = Condition::eq("checkpointOwner", me.as_str());
    Condition::eq("leaseCounter", counter).and(owner.or(giver))
}

fn checkpoint_change(at: &Checkpoint) -> Update {
    let (text, sub) = stored(at);
    Update::new().set("checkpoint", text).set("checkpointSubSequenceNumber", sub)
}

fn stored(at: &Checkpoint) -> (String, u64) {
    match at {
        Checkpoint::TrimHorizon => ("TRIM_HORIZON".to_owned(), 0),
        Checkpoint::Latest => ("LATEST".to_owned(), 0),
        Checkpoint::AtTimestamp => ("AT_TIMESTAMP".to_owned(), 0),
        Checkpoint::At { sequence, sub } => (sequence.to_string(), *sub),
        Checkpoint::ShardEnd => ("SHARD_END".to_owned(), 0),
    }
}

/// The whole row of a lease.
#[must_use]
pub fn item_of(lease: &Lease) -> Item {
    let (checkpoint, sub) = stored(&lease.checkpoint);
    let mut item = Item::new()
        .with("leaseKey", lease.key.as_str())
        .with("leaseCounter", lease.counter)
        .with("ownerSwitchesSinceCheckpoint", lease.owner_switches)
        .with("checkpoint", checkpoint)
        .with("checkpointSubSequenceNumber", sub);
    if let Some(stream) = &lease.stream {
        item.set("streamName", &**stream);
        item.set("shardId", lease.shard.as_str());
    }
    if let Some(owner) = &lease.owner {
        item.set("leaseOwner", owner.as_str());
    }
    if let Some(giver) = &lease.giver {
        item.set("checkpointOwner", giver.as_str());
    }
    let names =
        |shards: &BTreeSet<ShardId>| Value::Ss(shards.iter().map(|id| id.as_str().to_owned()).collect());
    // DynamoDB has no empty set.
    if !lease.parents.is_empty() {
        item.set("parentShardId", names(&lease.parents));
    }
    if !lease.children.is_empty() {
        item.set("childShardIds", names(&lease.children));
    }
    if let Some(range) = &lease.range {
        item.set("startingHashKey", range.start.to_string());
        item.set("endingHashKey", range.end.to_string());
    }
    if let Some(rate) = lease.throughput_kbps.and_then(number_of) {
        item.set("throughputKBps", Value::N(rate));
    }
    if let Some(marks) = &lease.marks {
        item.set("tenureMarks", Value::B(marks.to_vec()));
    }
    item
}

/// What was measured, if it is a number at all.
fn number_of(rate: f64) -> Option<Number> {
    (rate.is_finite() && rate >= 0.0).then(|| format!("{rate}").parse().ok())?
}

// === reading ===

fn lease_of(item: &Item) -> Result<Option<Lease>, Problem> {
    if text(item, "entityType")?.is_some_and(|kind| kind != "LEASE") {
        return Ok(None);
    }
    let key = text(item, "leaseKey")?.ok_or("has no `leaseKey`")?;
    let counter = whole(item, "leaseCounter")?.ok_or("has no `leaseCounter`")?;
    if counter > COUNTER_MAX {
        return Err(format!("has `leaseCounter` {counter}, above {COUNTER_MAX}"));
    }
    let (stream, shard) = match (text(item, "streamName")?, text(item, "shardId")?) {
        (Some(stream), Some(shard)) => (Some(Arc::from(stream)), ShardId::from(shard)),
        // The stream identifier may have colons of its own; a shard id has none.
        _ => match key.rsplit_once(':') {
            Some((stream, shard)) => (Some(Arc::from(stream)), ShardId::from(shard)),
            None => (None, ShardId::from(key)),
        },
    };
    let range = match (text(item, "startingHashKey")?, text(item, "endingHashKey")?) {
        (Some(start), Some(end)) => {
            let parsed = |name: &str, text: &str| {
                text.parse().map_err(|error: Error| format!("has a bad `{name}`: {error}"))
            };
            Some(HashRange { start: parsed("startingHashKey", start)?, end: parsed("endingHashKey", end)? })
        }
        _ => None,
    };
    Ok(Some(Lease {
        key: key.into(),
        stream,
        shard,
        owner: text(item, "leaseOwner")?.map(WorkerId::from),
        giver: text(item, "checkpointOwner")?.map(WorkerId::from),
        counter,
        owner_switches: whole(item, "ownerSwitchesSinceCheckpoint")?.unwrap_or(0),
        checkpoint: checkpoint_of(item)?,
        parents: shards(item, "parentShardId")?,
        children: shards(item, "childShardIds")?,
        range,
        throughput_kbps: rate(item)?,
        marks: match item.get("tenureMarks") {
            None => None,
            Some(Value::B(bytes)) => Some(Bytes::from(bytes.clone())),
            Some(other) => return Err(mistyped("tenureMarks", "B", other)),
        },
    }))
}

fn checkpoint_of(item: &Item) -> Result<Checkpoint, Problem> {
    let sub = whole(item, "checkpointSubSequenceNumber")?.unwrap_or(0);
    Ok(match text(item, "checkpoint")?.ok_or("has no `checkpoint`")? {
        "TRIM_HORIZON" => Checkpoint::TrimHorizon,
        "LATEST" => Checkpoint::Latest,
        "AT_TIMESTAMP" => Checkpoint::AtTimestamp,
        "SHARD_END" => Checkpoint::ShardEnd,
        number => Checkpoint::At {
            sequence: number.parse().map_err(|error: Error| format!("has a bad `checkpoint`: {error}"))?,
            sub,
        },
    })
}

fn own_of(item: &Item) -> Result<Option<OwnRow>, Problem> {
    let row = text(item, "sk")?.ok_or("has no `sk`")?;
    Ok(match row {
        "settings" => {
            let lease = whole(item, "leaseMs")?.ok_or("has no `leaseMs`")?;
            Some(OwnRow::Settings(Duration::from_millis(lease)))
        }
        "nudge" => Some(OwnRow::Nudge(whole(item, "counter")?.unwrap_or(0))),
        _ => match row.strip_prefix(WORKER_PREFIX) {
            None => None,
            Some(worker) => Some(OwnRow::Worker(Presence {
                worker: worker.into(),
                incarnation: text(item, "incarnation")?.ok_or("has no `incarnation`")?.into(),
                cap: whole(item, "cap")?.ok_or("has no `cap`")?,
                holding: matches!(item.get("holding"), Some(Value::Bool(true))),
                counter: whole(item, "counter")?.ok_or("has no `counter`")?,
                expires: integer(item, "ttl")?.unwrap_or(0),
            })),
        },
    })
}

fn rate(item: &Item) -> Result<Option<f64>, Problem> {
    match item.get("throughputKBps") {
        None => Ok(None),
        Some(Value::N(number)) => match number.to_string().parse::<f64>() {
            Ok(rate) if rate >= 0.0 => Ok(Some(rate)),
            _ => Err(format!("has `throughputKBps` {number}, below zero")),
        },
        Some(other) => Err(mistyped("throughputKBps", "N", other)),
    }
}

fn shards(item: &Item, name: &str) -> Result<BTreeSet<ShardId>, Problem> {
    match item.get(name) {
        None => Ok(BTreeSet::new()),
        Some(Value::Ss(names)) => Ok(names.iter().map(|name| ShardId::from(name.as_str())).collect()),
        Some(other) => Err(mistyped(name, "SS", other)),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[path = "rows_test.rs"]
mod tests;
