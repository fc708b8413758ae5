//! A reader: holds shards by rows, and makes checkpoint and effect one transaction.
//!
//! Flow, per batch of a shard it holds:
//! 1. read from the stream, after the checkpoint;
//! 2. one transaction on the store: the checkpoint and the next version, *if the row still says that
//!    the shard is mine at my version*; and the effect: marks and a delivery per key;
//! 3. only then report it.
//!
//! Guarantee: a record has its effect once, whoever is killed or paused wherever. A reader that was
//! paused and has lost its shard meanwhile writes with an old version; the store refuses all of the
//! transaction, and the reader lets go.
//!
//! Assumption: the effect lives in the same store as the checkpoint. Effects elsewhere need marks of
//! their own there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_clock::Monotonic;
use tenure_store::{Condition, Item, Key, Kind, Store, StoreExt, Update, Write, Written};
use tenure_stream::{Batch, Cursor, Position, Read, ShardId, StreamExt};
use tokio::sync::mpsc;

use super::crew::Name;
use super::division::{Move, TAKEOVER, View, Watch, next_move};
use super::ledger::{KeyDelivery, Mark, settle};
use super::rows::{self, DELIVERIES, MARKS, READERS, SHARDS, ShardRow};
use super::site::Site;
use super::wire::{Report, report};
use super::writer::number_in;

/// How often shards are read from.
const READ_INTERVAL: Duration = Duration::from_millis(100);
/// How often the division is looked at, heartbeats are given and idle shards are renewed.
const LOOK_INTERVAL: Duration = Duration::from_millis(400);
/// Records of one batch. Their keys bound the transaction: 24 keys are 26 writes, of 100 allowed.
const BATCH_RECORDS_MAX: usize = 200;
/// Attempts to find out what became of a write.
const READ_BACKS_MAX: u32 = 10;

/// A shard that this reader believes to hold.
struct Held {
    /// The row's version after our last write.
    version: u64,
    /// When that write was made.
    written: Monotonic,
    cursor: Cursor,
    /// The marks of the keys met so far. Nobody else writes them while the shard is ours.
    marks: BTreeMap<String, Mark>,
}

/// What became of a write on a shard's row.
enum Guarded {
    Applied,
    /// The row has another owner or version: the shard is not ours.
    Refused {
        owner: Option<String>,
    },
    /// It did not happen; try again in the next turn.
    Later,
}

struct Reader<'a> {
    site: &'a Site,
    me: String,
    held: BTreeMap<ShardId, Held>,
    watch: Watch,
    /// Whether a shard was taken or finished since the last look.
    changed: bool,
}

/// Reads until the parent wants no more, then gives its shards back.
pub(super) async fn run(site: &Site, me: Name, mut orders: mpsc::Receiver<String>) -> Result<()> {
    let mut reader =
        Reader { site, me: me.to_string(), held: BTreeMap::new(), watch: Watch::default(), changed: false };
    report(&Report::Ready)?;
    let mut next_look = site.env.clock.monotonic();
    loop {
        // Who has just got or finished a shard looks again soon: there may be more to do.
        if site.env.clock.monotonic() >= next_look || reader.changed {
            reader.changed = false;
            reader.look().await?;
            next_look = site.env.clock.deadline(LOOK_INTERVAL);
        }
        for shard in reader.held_shards() {
            reader.read_on(&shard).await?;
        }
        tokio::select! {
            biased;
            order = orders.recv() => if order.is_none() { break },
            () = site.env.clock.sleep(READ_INTERVAL) => {}
        }
    }
    for shard in reader.held_shards() {
        reader.release(&shard).await?;
    }
    Ok(())
}

impl Reader<'_> {
    fn held_shards(&self) -> BTreeSet<ShardId> {
        self.held.keys().cloned().collect()
    }

    /// Gives a sign of life, keeps what is held, and makes at most one move.
    async fn look(&mut self) -> Result<()> {
        let site = self.site;
        let beat = Update::new().add("beats", 1);
        let me = Key::new("reader", self.me.as_str());
        passing(site.store.update(site.soon(), READERS, me, beat, Condition::Always).await)?;
        for shard in self.held_shards() {
            self.renew(&shard).await?;
        }
        let Some(shards) = passing(site.stream.all_shards(site.soon()).await)? else { return Ok(()) };
        let Some(rows) = self.rows().await? else { return Ok(()) };
        for shard in shards.iter().filter(|shard| !rows.contains_key(&shard.id)) {
            // Several readers see a new shard; one of them begins its row.
            let item = ShardRow::fresh(shard.id.clone()).to_item();
            passing(site.store.put(site.soon(), SHARDS, item, Condition::absent("shard")).await)?;
        }
        let Some(live) = self.live().await? else { return Ok(()) };
        let now = site.env.clock.monotonic();
        let stale =
            rows.values().filter(|row| self.watch.unmoved(row.shard.as_str(), row.version, now) >= TAKEOVER);
        let stale = stale.map(|row| row.shard.clone()).collect();
        let held = self.held_shards();
        let view =
            View { me: &self.me, live: &live, shards: &shards, rows: &rows, stale: &stale, held: &held };
        match next_move(&view) {
            Some(Move::Take(shard)) => match rows.get(&shard) {
                Some(row) => self.take(row).await,
                None => Ok(()),
            },
            Some(Move::Release(shard)) => self.release(&shard).await,
            None => Ok(()),
        }
    }

    async fn rows(&self) -> Result<Option<BTreeMap<ShardId, ShardRow>>> {
        let listed = self.site.store.scan_all(self.site.soon(), SHARDS, rows::ROWS_MAX).await;
        let Some(items) = passing(listed)? else { return Ok(None) };
        let rows = items.iter().map(|item| ShardRow::from_item(item).map(|row| (row.shard.clone(), row)));
        rows.collect::<Result<_>>().map(Some)
    }

    /// The readers whose heartbeat moves, and this one.
    async fn live(&mut self) -> Result<Option<BTreeSet<String>>> {
        let listed = self.site.store.scan_all(self.site.soon(), READERS, rows::ROWS_MAX).await;
        let Some(items) = passing(listed)? else { return Ok(None) };
        let now = self.site.env.clock.monotonic();
        let mut live = BTreeSet::from([self.me.clone()]);
        for item in &items {
            let (reader, beats) = rows::beats(item)?;
            if self.watch.unmoved(&reader, beats, now) < TAKEOVER {
                live.insert(reader);
            }
        }
        Ok(Some(live))
    }

    /// Makes the shard ours, if its row is still as we saw it.
    async fn take(&mut self, seen: &ShardRow) -> Result<()> {
        let site = self.site;
        let position = match &seen.checkpoint {
            None => Position::TrimHorizon,
            Some(sequence) => Position::After(sequence.clone()),
        };
        let Some(cursor) = passing(site.stream.cursor(site.soon(), &seen.shard, &position).await)? else {
            return Ok(());
        };
        let version = seen.version + 1;
        let change = Update::new().set("owner", self.me.as_str()).set("version", version);
        let when = Condition::eq("version", seen.version);
        let key = ShardRow::key(&seen.shard);
        let written = match site.store.update(site.soon(), SHARDS, key, change, when).await {
            Ok(written) => written.is_applied(),
            Err(error) if error.kind() == Kind::Unknown => {
                let row = self.read_back(&seen.shard).await?;
                row.version == version && row.owner.as_ref() == Some(&self.me)
            }
            Err(error) => passing::<()>(Err(error))?.is_some(),
        };
        if written {
            let held = Held { version, written: site.env.clock.monotonic(), cursor, marks: BTreeMap::new() };
            self.held.insert(seen.shard.clone(), held);
            self.changed = true;
            report(&Report::Took { shard: seen.shard.to_string(), from: seen.owner.clone() })?;
        }
        // Otherwise another reader was quicker.
        Ok(())
    }

    async fn release(&mut self, shard: &ShardId) -> Result<()> {
        match self.guarded(shard, Update::new().remove("owner"), Vec::new()).await? {
            Guarded::Applied => {
                self.held.remove(shard);
                report(&Report::Released { shard: shard.to_string() })
            }
            Guarded::Refused { owner } => self.let_go(shard, owner),
            Guarded::Later => Ok(()),
        }
    }

    /// Moves the version of a shard that had nothing to read for a while.
    async fn renew(&mut self, shard: &ShardId) -> Result<()> {
        let now = self.site.env.clock.monotonic();
        if self.held.get(shard).is_none_or(|held| now.since(held.written) < LOOK_INTERVAL) {
            return Ok(());
        }
        match self.guarded(shard, Update::new(), Vec::new()).await? {
            Guarded::Refused { owner } => self.let_go(shard, owner),
            Guarded::Applied | Guarded::Later => Ok(()),
        }
    }

    /// Reads a batch of the shard and gives it its effect.
    async fn read_on(&mut self, shard: &ShardId) -> Result<()> {
        let site = self.site;
        let Some(held) = self.held.get_mut(shard) else { return Ok(()) };
        let read = site.stream.read(site.soon(), &held.cursor, BATCH_RECORDS_MAX).await;
        let batch = match passing(read)? {
            None => return Ok(()),
            Some(Read::Trimmed { from, to }) => {
                bail!("{shard}: records {from} to {to} went before they were read")
            }
            Some(Read::Records(batch)) => batch,
        };
        match &batch.next {
            Some(next) if batch.records.is_empty() => {
                held.cursor = next.clone();
                Ok(())
            }
            _ => self.deliver(shard, &batch).await,
        }
    }

    async fn deliver(&mut self, shard: &ShardId, batch: &Batch) -> Result<()> {
        let Some(before) = self.marks_for(shard, batch).await? else { return Ok(()) };
        let mut marks = before.clone();
        let mut numbered = Vec::with_capacity(batch.records.len());
        for record in &batch.records {
            numbered.push((&*record.partition_key, number_in(&record.data)?));
        }
        let keys = settle(&mut marks, numbered);

        let Some(version) = self.held.get(shard).map(|held| held.version) else { return Ok(()) };
        let mut change = Update::new();
        if let Some(last) = batch.records.last() {
            change = change.set("checkpoint", last.sequence.to_string());
        }
        if batch.next.is_none() {
            change = change.set("ended", true).remove("owner");
        }
        let mut effect: Vec<Write> = keys.keys().filter_map(|key| mark_write(key, &before, &marks)).collect();
        effect.push(Write::Put {
            table: DELIVERIES.to_owned(),
            item: rows::delivery_to_item(shard, version, &keys),
            when: Condition::absent("shard"),
        });
        match self.guarded(shard, change, effect).await? {
            Guarded::Applied => self.delivered(shard, batch, marks, &keys),
            Guarded::Refused { owner } => self.let_go(shard, owner),
            Guarded::Later => Ok(()),
        }
    }

    /// The marks of the shard so far, with those of all keys of the batch.
    async fn marks_for(&self, shard: &ShardId, batch: &Batch) -> Result<Option<BTreeMap<String, Mark>>> {
        let Some(held) = self.held.get(shard) else { return Ok(None) };
        let mut marks = held.marks.clone();
        for record in &batch.records {
            let key = &*record.partition_key;
            if marks.contains_key(key) {
                continue;
            }
            let found = self.site.store.get(self.site.soon(), MARKS, &rows::mark_key(key)).await;
            let Some(found) = passing(found)? else { return Ok(None) };
            let mark = found.as_ref().map(rows::mark_from_item).transpose()?;
            marks.insert(key.to_owned(), mark.unwrap_or_default());
        }
        Ok(Some(marks))
    }

    fn delivered(
        &mut self,
        shard: &ShardId,
        batch: &Batch,
        marks: BTreeMap<String, Mark>,
        keys: &BTreeMap<String, KeyDelivery>,
    ) -> Result<()> {
        let sum = |count: fn(&KeyDelivery) -> usize| keys.values().map(|part| count(part) as u64).sum();
        let delivered = sum(|part| part.delivered.len());
        let dropped = sum(|part| part.dropped.len());
        report(&Report::Delivered { delivered, dropped })?;
        match (&batch.next, self.held.get_mut(shard)) {
            (Some(next), Some(held)) => {
                held.cursor = next.clone();
                held.marks = marks;
                Ok(())
            }
            _ => {
                self.held.remove(shard);
                self.changed = true;
                report(&Report::Ended { shard: shard.to_string() })
            }
        }
    }

    /// Stops work on a shard that belongs to somebody else now.
    fn let_go(&mut self, shard: &ShardId, owner: Option<String>) -> Result<()> {
        self.held.remove(shard);
        report(&Report::Refused { shard: shard.to_string(), owner })
    }

    /// Changes the shard's row and makes the other writes with it, if the shard is still ours.
    async fn guarded(&mut self, shard: &ShardId, change: Update, others: Vec<Write>) -> Result<Guarded> {
        let site = self.site;
        let Some(held) = self.held.get_mut(shard) else { return Ok(Guarded::Later) };
        let (version, now) = (held.version, site.env.clock.monotonic());
        let mut writes = vec![Write::Update {
            table: SHARDS.to_owned(),
            key: ShardRow::key(shard),
            change: change.set("version", version + 1),
            when: Condition::eq("owner", self.me.as_str()).and(Condition::eq("version", version)),
        }];
        writes.extend(others);
        let outcome = match site.store.transact(site.soon(), &writes, &site.env.entropy.nonce()).await {
            Ok(Written::Applied(_)) => Guarded::Applied,
            Ok(Written::Refused(refusal)) if refusal.index == 0 => Guarded::Refused {
                owner: refusal.current.and_then(|row| row.text("owner").map(str::to_owned)),
            },
            Ok(Written::Refused(refusal)) => {
                // The shard is ours, so its keys are: whoever moved a mark broke the rule.
                bail!("{shard} is ours, yet somebody else wrote {:?}", refusal.current)
            }
            Err(error) if error.kind() == Kind::Unknown => {
                let row = self.read_back(shard).await?;
                // Only the owner writes, so the version alone tells whether ours landed. A row without
                // an owner is one that we released or read to its end.
                let ours = row.owner.as_ref().is_none_or(|owner| *owner == self.me);
                match row.version {
                    landed if landed == version + 1 && ours => Guarded::Applied,
                    same if same == version => Guarded::Later,
                    _ => Guarded::Refused { owner: row.owner },
                }
            }
            Err(error) => {
                passing::<()>(Err(error))?;
                Guarded::Later
            }
        };
        if let (Guarded::Applied, Some(held)) = (&outcome, self.held.get_mut(shard)) {
            (held.version, held.written) = (version + 1, now);
        }
        Ok(outcome)
    }

    /// The row as it is, after a write whose outcome is unknown.
    async fn read_back(&self, shard: &ShardId) -> Result<ShardRow> {
        for _ in 0..READ_BACKS_MAX {
            let found = self.site.store.get(self.site.soon(), SHARDS, &ShardRow::key(shard)).await;
            if let Some(row) = passing(found)? {
                return ShardRow::from_item(&row.with_context(|| format!("the row of {shard} is gone"))?);
            }
        }
        bail!("the row of {shard} could not be read back")
    }
}

/// The write that moves a key's mark, if it moved.
fn mark_write(key: &str, before: &BTreeMap<String, Mark>, after: &BTreeMap<String, Mark>) -> Option<Write> {
    let before = before.get(key).copied().unwrap_or_default();
    let after = after.get(key).copied().unwrap_or_default();
    let when = if before.count == 0 { Condition::absent("last") } else { Condition::eq("last", before.last) };
    let item = Item::new().with("key", key).with("last", after.last).with("count", after.count);
    (before != after).then(|| Write::Put { table: MARKS.to_owned(), item, when })
}

/// The answer, or nothing if it is worth asking again later, or the error if it is not.
///
/// For reads, and for writes that may be made twice.
fn passing<T>(result: tenure_store::Result<T>) -> Result<Option<T>> {
    match result {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.kind(), Kind::Unknown | Kind::Unavailable | Kind::Throttled) => {
            tracing::debug!(error = %error.chain(), "tried again later");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
