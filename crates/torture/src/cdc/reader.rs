//! Reads the whole stream: parents before children, records taken apart, pointers followed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value as Json;
use tenure_backend::Env;
use tenure_cdc::quarantine::{KEPT_BEYOND_RETENTION, Quarantine};
use tenure_clock::Monotonic;
use tenure_stream::kpl::{Found, deaggregate};
use tenure_stream::{Position as At, Read, Shard, ShardId, Stream, StreamExt as _};

use super::fleet::Site;
use super::ledger::{Change, Event, Op, ShardEvents};

/// Longer than any single call takes.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const RECORDS_PER_READ: usize = 1000;

pub(crate) struct Reader {
    env: Env,
    stream: Arc<dyn Stream>,
    quarantine: Quarantine,
}

impl Reader {
    pub(crate) async fn open(site: &Site) -> Result<Self> {
        let env = Env::system();
        let stream = tenure_stream::open(&site.stream(), &env).await.context("open the stream")?;
        let store = tenure_store::open(&site.store(), &env).await.context("open the store")?;
        let quarantine = Quarantine::new(store, env.clock.clone(), "torture".into(), KEPT_BEYOND_RETENTION);
        Ok(Self { env, stream, quarantine })
    }

    /// All shards with all their events; each shard after its parents.
    pub(crate) async fn read(&self) -> Result<Vec<ShardEvents>> {
        // Named in the order in which they were made, so a parent is before its children.
        let shards = self.stream.all_shards(self.by()).await.context("list the shards")?;
        let places: BTreeMap<&ShardId, usize> =
            shards.iter().enumerate().map(|(place, shard)| (&shard.id, place)).collect();
        let mut found = Vec::with_capacity(shards.len());
        for (place, shard) in shards.iter().enumerate() {
            let parents: Vec<usize> =
                shard.parents().filter_map(|parent| places.get(parent).copied()).collect();
            ensure!(
                parents.iter().all(|parent| *parent < place),
                "{} is listed before its parents",
                shard.id
            );
            let events = self.events(shard).await.with_context(|| format!("read {}", shard.id))?;
            found.push(ShardEvents { parents, events });
        }
        Ok(found)
    }

    async fn events(&self, shard: &Shard) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        let mut next = Some(self.stream.cursor(self.by(), &shard.id, &At::TrimHorizon).await?);
        while let Some(cursor) = &next {
            let Read::Records(batch) = self.stream.read(self.by(), cursor, RECORDS_PER_READ).await? else {
                bail!("the stream has trimmed what nobody has read");
            };
            let at_end = batch.records.is_empty();
            for record in batch.records {
                let apart = deaggregate(&record.partition_key, &record.data, shard.hash_range);
                ensure!(!matches!(apart.found, Found::Damaged(_) | Found::Elsewhere), "{:?}", apart.found);
                for part in apart.records {
                    events.push(self.event(&part.data).await?);
                }
            }
            next = batch.next;
            if at_end {
                break;
            }
        }
        Ok(events)
    }

    async fn event(&self, data: &[u8]) -> Result<Event> {
        let json: Json = serde_json::from_slice(data).context("an event is no JSON")?;
        let tenure = &json["tenure"];
        let text = |name: &str| tenure[name].as_str().with_context(|| format!("an event without `{name}`"));
        let id = text("id")?.parse()?;
        let lane = tenure["lane"].as_u64().and_then(|lane| u16::try_from(lane).ok());
        let lane = lane.context("an event without a lane")?;
        let parked = json["op"] == "pointer";
        let change = if parked {
            let manifest = self.quarantine.manifest(self.by(), id).await?;
            let manifest = manifest.with_context(|| format!("{id} points to nothing in the quarantine"))?;
            let content = self.quarantine.content(self.by(), &manifest).await?;
            let body: Json = serde_json::from_slice(&content).context("what is parked is no JSON")?;
            change(&body, lane)
        } else {
            change(&json, lane)
        };
        Ok(Event {
            id,
            lane,
            prev: tenure["prev"].as_str().map(str::parse).transpose()?,
            floor: text("floor")?.parse()?,
            leader: tenure["leader"].as_u64().context("an event without a leader")?,
            parked,
            change: change.with_context(|| format!("event {id} cannot be understood"))?,
        })
    }

    fn by(&self) -> Monotonic {
        self.env.clock.deadline(CALL_TIMEOUT)
    }
}

/// What an event says happened.
fn change(json: &Json, lane: u16) -> Option<Change> {
    let op = Op::read(json["op"].as_str()?)?;
    let key = match op {
        Op::Truncate | Op::Schema => lane.into(),
        // A table whose whole rows are its identity has no key of its own in the event.
        _ => ["key", "after", "before"].iter().find_map(|part| json[part]["id"].as_i64()).unwrap_or(0),
    };
    let version = match op {
        Op::Insert | Op::Update => json["after"]["version"].as_i64()?,
        Op::Delete | Op::Truncate | Op::Schema => 0,
    };
    Some(Change { table: json["table"].as_str()?.into(), key, op, version })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_are_recognised() {
        let items = |op, key, version| Change { table: "items".into(), key, op, version };
        let told =
            json!({"op": "update", "table": "items", "key": {"id": 5}, "after": {"id": 5, "version": 9}});
        assert_eq!(change(&told, 3), Some(items(Op::Update, 5, 9)));
        let told = json!({"op": "delete", "table": "items", "key": {"id": 5}});
        assert_eq!(change(&told, 3), Some(items(Op::Delete, 5, 0)));
        let told = json!({"op": "delete", "table": "items", "before": {"id": 5, "version": 9}});
        assert_eq!(change(&told, 3), Some(items(Op::Delete, 5, 0)), "known by its whole row");
        let told = json!({"op": "truncate", "table": "items"});
        assert_eq!(change(&told, 3), Some(items(Op::Truncate, 3, 0)));
        let told = json!({"op": "schema", "table": "items", "columns": []});
        assert_eq!(change(&told, 3), Some(items(Op::Schema, 3, 0)));
        let told = json!({"op": "insert", "table": "items", "after": {"version": 1}});
        assert_eq!(change(&told, 3), Some(items(Op::Insert, 0, 1)), "a table without a key");
        assert_eq!(change(&json!({"op": "update", "table": "items", "key": {"id": 5}}), 3), None);
    }
}
