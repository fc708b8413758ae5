//! The rows of the demo and their tables.
//!
//! ```text
//!   demo_races       race                       owner
//!   demo_readers     reader                     beats
//!   demo_shards      shard                      owner, version, checkpoint, ended
//!   demo_marks       key                        last, count
//!   demo_deliveries  shard + version            keys: per key what was delivered and what was dropped
//!   demo_probes      probe
//! ```
//!
//! A shard's row is its lease: who owns it, and a version that every write raises. The version is
//! the fence: a write that names an old one is refused.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tenure_store::{Item, Key, KeyAttribute, TableSpec, Value};
use tenure_stream::{SequenceNumber, ShardId};

use super::ledger::{KeyDelivery, Mark};

pub(super) const RACES: &str = "demo_races";
pub(super) const READERS: &str = "demo_readers";
pub(super) const SHARDS: &str = "demo_shards";
pub(super) const MARKS: &str = "demo_marks";
pub(super) const DELIVERIES: &str = "demo_deliveries";
pub(super) const PROBES: &str = "demo_probes";

/// Rows of any one table. An hour of the demo makes about a quarter of that.
pub(super) const ROWS_MAX: usize = 1_000_000;

/// All tables.
pub(super) fn tables() -> [TableSpec; 6] {
    let named = |table: &str, key: &str| TableSpec::new(table, KeyAttribute::text(key));
    [
        named(RACES, "race"),
        named(READERS, "reader"),
        named(SHARDS, "shard"),
        named(MARKS, "key"),
        named(DELIVERIES, "shard").with_range(KeyAttribute::number("version")),
        named(PROBES, "probe"),
    ]
}

/// Who reads a shard, and how far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShardRow {
    pub shard: ShardId,
    pub owner: Option<String>,
    pub version: u64,
    pub checkpoint: Option<SequenceNumber>,
    pub ended: bool,
}

impl ShardRow {
    /// A shard that nobody has begun.
    pub(super) const fn fresh(shard: ShardId) -> Self {
        Self { shard, owner: None, version: 1, checkpoint: None, ended: false }
    }

    pub(super) fn key(shard: &ShardId) -> Key {
        Key::new("shard", shard.as_str())
    }

    pub(super) fn to_item(&self) -> Item {
        let mut item = Item::new().with("shard", self.shard.as_str()).with("version", self.version);
        item.set("ended", self.ended);
        if let Some(owner) = &self.owner {
            item.set("owner", owner.as_str());
        }
        if let Some(checkpoint) = &self.checkpoint {
            item.set("checkpoint", checkpoint.to_string());
        }
        item
    }

    pub(super) fn from_item(item: &Item) -> Result<Self> {
        let checkpoint = item.text("checkpoint").map(str::parse).transpose().context("checkpoint")?;
        Ok(Self {
            shard: item.text("shard").context("a shard's row without its name")?.into(),
            owner: item.text("owner").map(str::to_owned),
            version: whole(item, "version")?,
            checkpoint,
            ended: item.get("ended") == Some(&Value::Bool(true)),
        })
    }
}

/// What a reader's heartbeat says.
pub(super) fn beats(item: &Item) -> Result<(String, u64)> {
    let reader = item.text("reader").context("a heartbeat without its reader")?;
    Ok((reader.to_owned(), whole(item, "beats")?))
}

pub(super) fn mark_key(key: &str) -> Key {
    Key::new("key", key)
}

pub(super) fn mark_from_item(item: &Item) -> Result<Mark> {
    Ok(Mark { last: whole(item, "last")?, count: whole(item, "count")? })
}

/// The row that records one delivered batch.
pub(super) fn delivery_to_item(shard: &ShardId, version: u64, keys: &BTreeMap<String, KeyDelivery>) -> Item {
    let list = |numbers: &[u64]| Value::L(numbers.iter().map(|number| Value::from(*number)).collect());
    let keys = keys.iter().map(|(key, part)| {
        let fields = [
            ("position", Value::from(part.position)),
            ("delivered", list(&part.delivered)),
            ("dropped", list(&part.dropped)),
        ];
        (key.clone(), Value::M(fields.map(|(name, value)| (name.to_owned(), value)).into()))
    });
    Item::new().with("shard", shard.as_str()).with("version", version).with("keys", Value::M(keys.collect()))
}

/// The parts of a delivered batch, by key.
pub(super) fn delivery_from_item(item: &Item) -> Result<Vec<(String, KeyDelivery)>> {
    let Some(Value::M(keys)) = item.get("keys") else { anyhow::bail!("a delivery without keys") };
    keys.iter()
        .map(|(key, part)| {
            let Value::M(part) = part else { anyhow::bail!("key {key} of a delivery is no map") };
            let part: Item = part.clone().into_iter().collect();
            let list = |name: &str| match part.get(name) {
                Some(Value::L(numbers)) => numbers.iter().map(number).collect::<Result<Vec<_>>>(),
                _ => anyhow::bail!("key {key} of a delivery has no list `{name}`"),
            };
            let position = whole(&part, "position")?;
            Ok((
                key.clone(),
                KeyDelivery { position, delivered: list("delivered")?, dropped: list("dropped")? },
            ))
        })
        .collect()
}

fn whole(item: &Item, name: &str) -> Result<u64> {
    item.get(name).with_context(|| format!("a row without `{name}`")).and_then(number)
}

fn number(value: &Value) -> Result<u64> {
    value.as_i64().and_then(|number| u64::try_from(number).ok()).context("not a whole number from 0 on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_as_they_went() {
        let fresh = ShardRow::fresh(ShardId::numbered(3));
        assert_eq!(ShardRow::from_item(&fresh.to_item()).unwrap(), fresh);
        let held = ShardRow {
            owner: Some("reader-1".into()),
            version: 9,
            checkpoint: Some(SequenceNumber::from(77)),
            ended: true,
            ..fresh
        };
        assert_eq!(ShardRow::from_item(&held.to_item()).unwrap(), held);

        let part = KeyDelivery { position: 4, delivered: vec![5, 6], dropped: vec![4] };
        let keys = BTreeMap::from([("w1-k1".to_owned(), part)]);
        let item = delivery_to_item(&ShardId::numbered(3), 10, &keys);
        assert_eq!(delivery_from_item(&item).unwrap(), keys.into_iter().collect::<Vec<_>>());
    }
}
