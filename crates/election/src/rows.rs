//! What is stored: the two rows of an election as items, and the machine's writes as conditions.
//!
//! | `pk` | `sk` | attributes |
//! |---|---|---|
//! | `SHARD#<shard>` | `LOCK` | `ownerId` S, `ttl` N (epoch seconds), as the Go library writes them; `rvn` S, `leaseMs` N, `epoch` N, `leader` M, and while they mean something `reservedFor` S and `resign` M |
//! | `SHARD#<shard>` | `FENCE` | `epoch` N, `leaseMs` N, with a skew bound `skewMs` N; no `ttl` |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::WallTime;
use tenure_planted as planted;
use tenure_store::columns::{Problem, integer, map, text, whole};
use tenure_store::{Condition, Item, Key, KeyAttribute, Refusal, TableSpec, Update, Value, Write};

use crate::identity::{Epoch, Nonce, OwnerId, ShardId};
use crate::lock::{Acquire, Attempt, Card, FenceMark, Lock, Release, Renew, ResignRequest, Version};
use crate::settings::LEASE_MAX;

/// Begins the hash key of every row of an election.
const SHARD_PREFIX: &str = "SHARD#";
/// An epoch beyond it was not counted up to, and the next could not be stored.
const EPOCH_MAX: u64 = i64::MAX.unsigned_abs() / 2;

/// The table of an election: `pk`, `sk`, `ttl`.
#[must_use]
pub fn table_spec(table: &str) -> TableSpec {
    TableSpec::new(table, KeyAttribute::text("pk")).with_range(KeyAttribute::text("sk")).with_ttl("ttl")
}

/// Where the rows of one shard are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The table.
    pub table: String,
    /// The shard.
    pub shard: ShardId,
}

impl Place {
    /// The LOCK row.
    #[must_use]
    pub fn lock_key(&self) -> Key {
        self.key("LOCK")
    }

    /// The FENCE row.
    #[must_use]
    pub fn fence_key(&self) -> Key {
        self.key("FENCE")
    }

    fn key(&self, row: &str) -> Key {
        Key::new("pk", format!("{SHARD_PREFIX}{}", self.shard)).and("sk", row)
    }

    /// The writes of an attempt, all or none; a refusal of the second is the FENCE row's.
    #[must_use]
    pub fn writes(&self, attempt: &Attempt) -> Vec<Write> {
        match attempt {
            Attempt::Acquire(acquire) => self.acquire(acquire),
            Attempt::Renew(renew) => vec![self.renew(renew)],
            Attempt::Release(release) => vec![self.release(release)],
        }
    }

    fn acquire(&self, acquire: &Acquire) -> Vec<Write> {
        let mut item = self.lock_key().as_item().clone();
        item_of(&acquire.lock(), &mut item);
        let when = acquire.over.as_ref().map_or_else(|| Condition::absent("pk"), is_at);
        let put = Write::Put { table: self.table.clone(), item, when };
        if planted::is("fence_in_ttl_row") {
            return vec![put];
        }
        let mark = acquire.fence();
        let change = Update::new().set("epoch", mark.epoch.0).set("leaseMs", millis(acquire.lease));
        let fence = Write::Update {
            table: self.table.clone(),
            key: self.fence_key(),
            change: match mark.skew {
                Some(skew) => change.set("skewMs", millis(skew)),
                None => change.remove("skewMs"),
            },
            when: match acquire.fence_was {
                Some(epoch) => Condition::eq("epoch", epoch.0),
                None => Condition::absent("pk"),
            },
        };
        vec![put, fence]
    }

    fn renew(&self, renew: &Renew) -> Write {
        self.change(
            Update::new().set("ttl", renew.ttl).set("rvn", renew.fresh.to_string()),
            self.mine(&renew.owner, renew.epoch, [Some(renew.current), Some(renew.fresh)]),
        )
    }

    fn release(&self, release: &Release) -> Write {
        let when = if planted::is("release_without_version") {
            Condition::exists("pk")
        } else {
            self.mine(&release.owner, release.epoch, [Some(release.current), release.pending])
        };
        let change = Update::new().set("ttl", 0).set("rvn", release.fresh.to_string()).remove("resign");
        let change = match &release.reserved_for {
            Some(name) => change.set("reservedFor", &**name),
            None => change,
        };
        self.change(change, when)
    }

    /// The write that asks the leader of `epoch` to hand over. It leaves the row's version alone.
    #[must_use]
    pub fn ask_to_resign(&self, owner: &OwnerId, epoch: Epoch, request: &ResignRequest) -> Write {
        let mut map = BTreeMap::from([("nonce".to_owned(), Value::from(request.nonce.to_string()))]);
        if let Some(to) = &request.to {
            map.insert("to".to_owned(), Value::from(&**to));
        }
        self.change(
            Update::new().set("resign", Value::M(map)),
            Condition::eq("ownerId", owner.as_str())
                .and(Condition::eq("epoch", epoch.0))
                .and(Condition::gt("ttl", 0)),
        )
    }

    fn change(&self, change: Update, when: Condition) -> Write {
        Write::Update { table: self.table.clone(), key: self.lock_key(), change, when }
    }

    fn mine(&self, owner: &OwnerId, epoch: Epoch, rvns: [Option<Nonce>; 2]) -> Condition {
        let rvns = rvns.into_iter().flatten().map(|rvn| Value::from(rvn.to_string())).collect();
        Condition::eq("ownerId", owner.as_str())
            .and(Condition::eq("epoch", epoch.0))
            .and(Condition::In("rvn".to_owned(), rvns))
    }

    /// The LOCK row that an item holds.
    ///
    /// # Errors
    /// `Corrupt` if an attribute is missing or of another type: the row is not ours to overwrite.
    pub fn lock(&self, item: &Item) -> Result<Lock> {
        lock_of(item).map_err(|problem| self.foreign("LOCK", &problem))
    }

    /// The FENCE row that an item holds.
    ///
    /// # Errors
    /// As [`Place::lock`].
    pub fn fence(&self, item: &Item) -> Result<FenceMark> {
        fence_of(item).map_err(|problem| self.foreign("FENCE", &problem))
    }

    fn foreign(&self, row: &str, problem: &str) -> Error {
        Error::new(
            Kind::Corrupt,
            format!(
                "row `{SHARD_PREFIX}{}` / `{row}` of table `{}` {problem}: it is left alone; if nothing else uses it, \
                 delete it",
                self.shard, self.table
            ),
        )
    }

    /// What a refused attempt found: the row, in the terms of the machine.
    ///
    /// # Errors
    /// As [`Place::lock`].
    pub fn refusal(&self, refusal: &Refusal) -> Result<Refused> {
        let current = refusal.current.as_ref();
        Ok(if refusal.index == 0 {
            Refused::ByLock(current.map(|item| self.lock(item)).transpose()?)
        } else {
            Refused::ByFence(current.map(|item| self.fence(item)).transpose()?)
        })
    }
}

/// Which row refused an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The LOCK row, as it is.
    ByLock(Option<Lock>),
    /// The FENCE row, as it is.
    ByFence(Option<FenceMark>),
}

/// The shard that a row belongs to, if it is the LOCK row of one.
#[must_use]
pub fn shard_of(item: &Item) -> Option<ShardId> {
    let shard = item.text("pk")?.strip_prefix(SHARD_PREFIX)?;
    (item.text("sk") == Some("LOCK")).then(|| ShardId::new(shard).ok())?
}

fn is_at(version: &Version) -> Condition {
    let rvn = match version.rvn {
        Some(rvn) => Condition::eq("rvn", rvn.to_string()),
        None => Condition::absent("rvn"),
    };
    Condition::eq("ownerId", version.owner.as_str()).and(Condition::eq("ttl", version.ttl)).and(rvn)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn item_of(lock: &Lock, item: &mut Item) {
    item.set("ownerId", lock.owner.as_str());
    item.set("ttl", lock.ttl);
    if let Some(rvn) = lock.rvn {
        item.set("rvn", rvn.to_string());
    }
    if let Some(lease) = lock.lease {
        item.set("leaseMs", millis(lease));
    }
    if let Some(epoch) = lock.epoch {
        item.set("epoch", epoch.0);
    }
    if let Some(card) = &lock.card {
        let about = card.about.iter().map(|(name, value)| (name.clone(), Value::from(&**value)));
        item.set(
            "leader",
            Value::M(BTreeMap::from([
                ("name".to_owned(), Value::from(&*card.name)),
                ("since".to_owned(), Value::from(card.since.as_millis())),
                ("about".to_owned(), Value::M(about.collect())),
            ])),
        );
    }
}

// === reading ===

fn lock_of(item: &Item) -> Result<Lock, Problem> {
    let owner = text(item, "ownerId")?.ok_or("has no `ownerId`")?;
    let owner = OwnerId::new(owner).map_err(|error| format!("has a bad `ownerId`: {error}"))?;
    let ttl = integer(item, "ttl")?.ok_or("has no `ttl`")?;
    let rvn = text(item, "rvn")?.map(nonce).transpose()?;
    let lease = lease(item)?;
    let epoch = epoch(item)?;
    let reserved_for = text(item, "reservedFor")?.map(Arc::from);
    // A claim replaces the row whole, so these three come and go together.
    if rvn.is_some() != lease.is_some() || rvn.is_some() != epoch.is_some() {
        return Err("has some of `rvn`, `leaseMs` and `epoch`, but not all".to_owned());
    }
    let resign = map(item, "resign")?.map(resign_of).transpose()?;
    let card = map(item, "leader")?.map(card_of).transpose()?.map(Arc::new);
    Ok(Lock { owner, ttl, rvn, lease, epoch, reserved_for, resign, card })
}

fn fence_of(item: &Item) -> Result<FenceMark, Problem> {
    let epoch = epoch(item)?.ok_or("has no `epoch`")?;
    Ok(FenceMark { epoch, lease: lease(item)?, skew: whole(item, "skewMs")?.map(Duration::from_millis) })
}

fn resign_of(map: &BTreeMap<String, Value>) -> Result<ResignRequest, Problem> {
    let text = |name: &str| map.get(name).and_then(Value::as_text);
    let nonce = nonce(text("nonce").ok_or("has a `resign` without `nonce`")?)?;
    Ok(ResignRequest { nonce, to: text("to").map(Arc::from) })
}

fn card_of(map: &BTreeMap<String, Value>) -> Result<Card, Problem> {
    let name = map.get("name").and_then(Value::as_text).ok_or("has a `leader` without `name`")?;
    let since = map.get("since").and_then(Value::as_i64).ok_or("has a `leader` without `since`")?;
    let about = match map.get("about") {
        Some(Value::M(about)) => about
            .iter()
            .filter_map(|(name, value)| Some((name.clone(), value.as_text()?.to_owned())))
            .collect(),
        _ => BTreeMap::new(),
    };
    Ok(Card { name: name.into(), since: WallTime::from_millis(since), about: Arc::new(about) })
}

fn epoch(item: &Item) -> Result<Option<Epoch>, Problem> {
    match whole(item, "epoch")? {
        Some(epoch) if epoch > EPOCH_MAX => Err(format!("has `epoch` {epoch}, above {EPOCH_MAX}")),
        epoch => Ok(epoch.map(Epoch)),
    }
}

fn lease(item: &Item) -> Result<Option<Duration>, Problem> {
    let lease = whole(item, "leaseMs")?.map(Duration::from_millis);
    match lease {
        Some(lease) if lease.is_zero() || lease > LEASE_MAX => {
            Err(format!("has `leaseMs` {}, not from 1 to {}", lease.as_millis(), LEASE_MAX.as_millis()))
        }
        lease => Ok(lease),
    }
}

fn nonce(text: &str) -> Result<Nonce, Problem> {
    text.parse().map_err(|error| format!("has a bad nonce: {error}"))
}

#[cfg(test)]
#[path = "rows_test.rs"]
mod tests;
