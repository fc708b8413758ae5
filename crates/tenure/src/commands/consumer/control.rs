//! What an operator wants of a shard: that it is not read for a while, or read from elsewhere.
//!
//! A wish is a row beside the leases, so that it reaches the worker that has the shard, wherever that runs, and
//! the next one if the shard moves:
//!
//! | key | row |
//! |---|---|
//! | pk `CONTROL#<app>`, sk `<lease>` | `paused` (1), `seekTo` and `seekId` (what is wanted, and which wish), `seekDone` (the wish that was carried out) |
//!
//! Workers of `tenure consume` look at the rows every two seconds, and at that of a shard before they begin it, so
//! that one that is paused is not read at all by its next worker. A seek is marked as done by whoever begins it: if
//! the worker dies or the shard moves before that, it is begun by the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::{Env, Result};
use tenure_clock::Monotonic;
use tenure_consumer::{
    Batch, Drain, Failure, ProcessorFactory, SeekTo, Settlement, ShardContext, ShardProcessor, ShardState,
    ShardStatus, Start, WorkerHandle,
};
use tenure_leases::LeaseKey;
use tenure_store::{Condition, Item, Key, Query, Store, StoreExt as _, Update};
use tenure_stream::SequenceNumber;
use tokio::sync::SetOnce;

use crate::timestamp;

/// How often workers look.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How long one look may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Far more shards than an application has.
const ROWS_MAX: usize = 10_000;

/// The wishes of one application.
pub(super) struct Controls {
    store: Arc<dyn Store>,
    env: Env,
    table: String,
    app: String,
    /// The seeks that this worker was told of.
    told: Mutex<BTreeMap<LeaseKey, Told>>,
}

/// A seek that the worker was told of.
struct Told {
    id: String,
    place: SeekTo,
    /// The hold of the shard in which it was told: another knows nothing of it.
    hold: u64,
    /// It was begun, and that remains to be written down.
    is_begun: bool,
}

/// What is wanted of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wish {
    /// It is not to be read.
    pub(super) paused: bool,
    /// It is to be read from elsewhere, and that was not begun yet: the wish, and where.
    pub(super) seek: Option<(String, String)>,
}

impl Wish {
    fn read(item: &Item) -> Self {
        let text = |name: &str| item.text(name).map(str::to_owned);
        let seek = text("seekId").zip(text("seekTo"));
        Self {
            paused: item.integer("paused") == Some(1),
            seek: seek.filter(|(id, _)| item.text("seekDone") != Some(id)),
        }
    }
}

impl Controls {
    /// Beside the leases of an application, in the table of the elections.
    pub(super) fn new(store: Arc<dyn Store>, env: &Env, table: &str, app: &str) -> Self {
        let told = Mutex::default();
        Self { store, env: env.clone(), table: table.to_owned(), app: app.to_owned(), told }
    }

    fn pk(&self) -> String {
        format!("CONTROL#{}", self.app)
    }

    fn key(&self, lease: &LeaseKey) -> Key {
        Key::new("pk", self.pk()).and("sk", lease.as_str())
    }

    /// All of them.
    pub(super) async fn wishes(&self, by: Monotonic) -> Result<BTreeMap<LeaseKey, Wish>> {
        let query = Query::partition("pk", self.pk());
        let items = self.store.query_all(by, &self.table, query, ROWS_MAX).await?;
        let wish = |item: &Item| Some((LeaseKey::from(item.text("sk")?), Wish::read(item)));
        Ok(items.iter().filter_map(wish).collect())
    }

    /// Wants it read, or not.
    pub(super) async fn pause(&self, by: Monotonic, lease: &LeaseKey, paused: bool) -> Result<()> {
        let update = match paused {
            true => Update::new().set("paused", 1),
            false => Update::new().remove("paused"),
        };
        self.store.update(by, &self.table, self.key(lease), update, Condition::Always).await.map(drop)
    }

    /// Wants it read from elsewhere.
    pub(super) async fn seek(&self, by: Monotonic, lease: &LeaseKey, to: &str) -> Result<()> {
        let update = Update::new().set("seekTo", to).set("seekId", self.env.entropy.nonce());
        self.store.update(by, &self.table, self.key(lease), update, Condition::Always).await.map(drop)
    }

    async fn is_paused(&self, lease: &LeaseKey) -> Result<bool> {
        let by = self.env.clock.deadline(CALL_TIMEOUT);
        let found = self.store.get(by, &self.table, &self.key(lease)).await?;
        Ok(found.is_some_and(|item| Wish::read(&item).paused))
    }

    /// Tells a worker what is wanted of its shards, for ever.
    pub(super) async fn pass_on(&self, worker: &WorkerHandle) {
        loop {
            if let Err(error) = self.look(worker).await {
                tracing::warn!(error = %error.chain(), "what is wanted of the shards could not be read; looking again");
            }
            self.env.clock.sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look(&self, worker: &WorkerHandle) -> Result<()> {
        let by = self.env.clock.deadline(CALL_TIMEOUT);
        let wishes = self.wishes(by).await?;
        for shard in worker.status() {
            let wish = wishes.get(&shard.lease).cloned().unwrap_or_default();
            let is_paused = shard.state == ShardState::Paused;
            // It may have gone elsewhere meanwhile: whoever has it then looks, too.
            let _ = match (is_paused, wish.paused) {
                (false, true) => worker.pause(&shard.lease),
                (true, false) => worker.resume(&shard.lease),
                _ => Ok(()),
            };
            match &wish.seek {
                Some((id, to)) => self.tell_seek(by, worker, &shard, id, to).await?,
                None => drop(self.told().remove(&shard.lease)),
            }
        }
        Ok(())
    }

    fn told(&self) -> MutexGuard<'_, BTreeMap<LeaseKey, Told>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the worker of a seek, once in each hold of the shard; or writes down that it was begun.
    async fn tell_seek(
        &self,
        by: Monotonic,
        worker: &WorkerHandle,
        shard: &ShardStatus,
        id: &str,
        to: &str,
    ) -> Result<()> {
        let lease = &shard.lease;
        let place = match position(to) {
            Ok(place) => place,
            Err(error) => {
                tracing::warn!(%lease, error, "a seek cannot be understood, and is left out");
                return self.seek_is_done(by, lease, id).await;
            }
        };
        let before =
            self.told().get(lease).filter(|told| told.id == id).map(|told| (told.is_begun, told.hold));
        match before {
            Some((true, _)) => return self.seek_is_done(by, lease, id).await,
            Some((false, hold)) if hold == shard.hold => return Ok(()),
            _ => {}
        }
        // Before the worker hears of it, and may begin it.
        let told = Told { id: id.to_owned(), place: place.clone(), hold: shard.hold, is_begun: false };
        self.told().insert(lease.clone(), told);
        match worker.seek(lease, place) {
            Ok(()) => tracing::info!(%lease, to, "asked to read from elsewhere"),
            // It is not this worker's any more.
            Err(_) => drop(self.told().remove(lease)),
        }
        Ok(())
    }

    /// A shard is begun, maybe by a seek. That it is done is written down now, or by the next look.
    async fn begun(&self, shard: &ShardContext) {
        let lease = &shard.lease().key;
        let Some(id) = self.is_begun(lease, shard.sought()) else { return };
        let by = self.env.clock.deadline(CALL_TIMEOUT);
        if let Err(error) = self.seek_is_done(by, lease, &id).await {
            tracing::warn!(%lease, error = %error.chain(), "that a seek is done could not be written yet");
        }
    }

    /// The seek that is begun, if it is the one that was told of last.
    fn is_begun(&self, lease: &LeaseKey, sought: Option<&SeekTo>) -> Option<String> {
        let mut told = self.told();
        let told = told.get_mut(lease).filter(|told| Some(&told.place) == sought)?;
        told.is_begun = true;
        Some(told.id.clone())
    }

    async fn seek_is_done(&self, by: Monotonic, lease: &LeaseKey, id: &str) -> Result<()> {
        let (done, wanted) = (Update::new().set("seekDone", id), Condition::eq("seekId", id));
        self.store.update(by, &self.table, self.key(lease), done, wanted).await.map(drop)
    }
}

/// Makes processors that ask before they begin whether their shard is paused.
pub(super) struct Gated {
    pub(super) inner: Box<dyn ProcessorFactory>,
    pub(super) controls: Arc<Controls>,
    /// The worker, once it has started.
    pub(super) worker: Arc<SetOnce<WorkerHandle>>,
}

impl ProcessorFactory for Gated {
    fn make(&self, shard: &ShardContext) -> Box<dyn ShardProcessor> {
        let (controls, worker) = (self.controls.clone(), self.worker.clone());
        Box::new(Gate { inner: self.inner.make(shard), controls, worker })
    }
}

struct Gate {
    inner: Box<dyn ShardProcessor>,
    controls: Arc<Controls>,
    worker: Arc<SetOnce<WorkerHandle>>,
}

#[async_trait]
impl ShardProcessor for Gate {
    async fn init(&mut self, shard: &ShardContext) -> Result<Start, Failure> {
        let lease = &shard.lease().key;
        if self.controls.is_paused(lease).await? {
            // If it is gone already, nothing is read either.
            let _ = self.worker.wait().await.pause(lease);
        }
        let start = self.inner.init(shard).await?;
        self.controls.begun(shard).await;
        Ok(start)
    }

    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        self.inner.process(batch).await
    }

    async fn drain(&mut self, why: Drain) -> Result<(), Failure> {
        self.inner.drain(why).await
    }

    async fn lost(&mut self) {
        self.inner.lost().await;
    }

    fn settlement(&self) -> Settlement {
        self.inner.settlement()
    }
}

/// Where a seek goes.
///
/// # Errors
/// What to write instead.
pub(super) fn position(text: &str) -> Result<SeekTo, String> {
    if let Ok(sequence) = text.parse::<SequenceNumber>() {
        return Ok(SeekTo::Sequence(sequence));
    }
    match text {
        "trim-horizon" | "trim_horizon" => Ok(SeekTo::TrimHorizon),
        "latest" => Ok(SeekTo::Latest),
        _ => timestamp::parse(text).map(SeekTo::Timestamp).map_err(|_| {
            format!(
                "`{text}` is no place in a shard: write trim-horizon (the oldest record), latest (what comes from now \
                 on), a sequence number, or a moment like 2026-11-16T09:30:00Z"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use tenure_store::Memory;

    use super::*;

    #[tokio::test]
    async fn a_wish_stands_until_it_is_done_or_taken_back() {
        let env = Env::system();
        let store = Arc::new(Memory::new(&env));
        let never = Monotonic::NEVER;
        store.ensure_table(never, &tenure_election::table_spec("elections")).await.unwrap();
        let controls = Controls::new(store.clone(), &env, "elections", "orders");
        let lease = LeaseKey::from("shardId-000000000001");
        let wish = async || controls.wishes(never).await.unwrap().remove(&lease).unwrap_or_default();
        assert_eq!(wish().await, Wish::default());
        controls.pause(never, &lease, true).await.unwrap();
        controls.seek(never, &lease, "latest").await.unwrap();
        let wanted = wish().await;
        let (id, to) = wanted.seek.clone().unwrap();
        assert_eq!((wanted.paused, to.as_str()), (true, "latest"));
        controls.pause(never, &lease, false).await.unwrap();
        let done = Update::new().set("seekDone", id);
        store.update(never, "elections", controls.key(&lease), done, Condition::Always).await.unwrap();
        assert_eq!(wish().await, Wish::default());
        // Another is another, though it goes to the same place.
        controls.seek(never, &lease, "latest").await.unwrap();
        assert!(wish().await.seek.is_some());
        let other = Controls::new(store, &env, "elections", "other");
        assert!(other.wishes(never).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_seek_is_done_when_it_is_begun_and_not_by_another() {
        let env = Env::system();
        let store = Arc::new(Memory::new(&env));
        let never = Monotonic::NEVER;
        store.ensure_table(never, &tenure_election::table_spec("elections")).await.unwrap();
        let controls = Controls::new(store, &env, "elections", "orders");
        let lease = LeaseKey::from("shardId-000000000001");
        let told = |place| Told { id: "x".to_owned(), place, hold: 1, is_begun: false };
        controls.told().insert(lease.clone(), told(SeekTo::Latest));
        assert_eq!(controls.is_begun(&lease, None), None, "begun as it is: the seek is still to come");
        assert_eq!(controls.is_begun(&lease, Some(&SeekTo::TrimHorizon)), None, "an earlier seek");
        assert_eq!(controls.is_begun(&lease, Some(&SeekTo::Latest)), Some("x".to_owned()));
        assert!(controls.told()[&lease].is_begun, "and is not told again, though it cannot be written down");
    }

    #[test]
    fn places_in_a_shard() {
        assert_eq!(position("42"), Ok(SeekTo::Sequence(42.into())));
        assert_eq!(position("trim-horizon"), Ok(SeekTo::TrimHorizon));
        assert_eq!(position("latest"), Ok(SeekTo::Latest));
        assert!(matches!(position("2026-11-16T09:30:00Z"), Ok(SeekTo::Timestamp(_))));
        assert!(position("yesterday").unwrap_err().contains("trim-horizon"));
    }
}
