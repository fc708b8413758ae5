//! The stream in this process's memory: the reference that the others are compared with.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::Result;
use tenure_clock::{Clock, Monotonic, WallTime, within};
use tokio::sync::watch;

use crate::embedded::{self, Horizon, READ_POLL, Retention, Spot};
use crate::limits::{BYTES_PER_READ, check_name, check_read_limit};
use crate::lineage::{Change, Lineage};
use crate::stream::{Description, Page, PageToken, ShardPage, Stream, StreamSpec};
use crate::{Cursor, HashKey, Limits, Position, Put, Read, Record, ShardId, Stored};

/// How many bytes a stream in memory keeps unless told otherwise.
const RETENTION_BYTES: u64 = 256 << 20;

/// Most records that one call trims, so that none is held up for long.
const TRIM_STEP: usize = 4096;

/// A stream in memory. Clones, and handles of one name from [`Memory::shared`], see the same records.
#[derive(Debug, Clone)]
pub struct Memory {
    name: Arc<str>,
    place: Arc<Place>,
    clock: Arc<dyn Clock>,
    retention: Retention,
}

/// Where the records are, if the stream has been created.
#[derive(Debug)]
struct Place {
    log: Mutex<Option<Log>>,
    changes: watch::Sender<u64>,
}

impl Default for Place {
    fn default() -> Self {
        Self { log: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

/// The streams of this process that have been opened by name.
static SHARED: Mutex<BTreeMap<String, Arc<Place>>> = Mutex::new(BTreeMap::new());

impl Memory {
    /// A stream that nobody else sees, not created yet.
    ///
    /// # Errors
    /// `Invalid` if the name is.
    pub fn new(name: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        check_name(name)?;
        let retention = Retention { age: embedded::RETENTION_AGE, bytes: RETENTION_BYTES };
        Ok(Self { name: name.into(), place: Arc::default(), clock, retention })
    }

    /// The stream of this name in this process: the same one at every call.
    ///
    /// # Errors
    /// `Invalid` if the name is.
    pub fn shared(name: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let mut stream = Self::new(name, clock)?;
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        stream.place = shared.entry(name.to_owned()).or_default().clone();
        Ok(stream)
    }

    /// Sets what a stream created through this handle keeps if its specification does not say.
    ///
    /// # Errors
    /// `Invalid` if nothing would be kept.
    pub fn with_retention(mut self, age: Option<Duration>, bytes: Option<u64>) -> Result<Self> {
        self.retention = self.retention.changed(age, bytes)?;
        Ok(self)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Log>> {
        self.place.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look<T>(&self, look: impl FnOnce(&mut Log) -> Result<T>) -> Result<T> {
        look(self.lock().as_mut().ok_or_else(|| embedded::no_stream(&self.name, "this process's memory"))?)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Log, WallTime) -> Result<T>) -> Result<T> {
        let now = self.clock.wall();
        let changed = self.look(|log| {
            let done = change(log, now)?;
            log.trim(now);
            Ok(done)
        })?;
        self.place.changes.send_modify(|changes| *changes += 1);
        Ok(changed)
    }
}

#[async_trait]
impl Stream for Memory {
    fn name(&self) -> &str {
        &self.name
    }

    async fn create(&self, _by: Monotonic, spec: &StreamSpec) -> Result<Description> {
        embedded::check_spec(spec)?;
        let mut log = self.lock();
        Ok(log.get_or_insert_with(|| Log::new(spec, self.retention)).description(&self.name))
    }

    async fn describe(&self, _by: Monotonic) -> Result<Description> {
        self.look(|log| Ok(log.description(&self.name)))
    }

    async fn limits(&self, _by: Monotonic) -> Result<Limits> {
        self.look(|log| Ok(log.limits))
    }

    async fn shards(&self, _by: Monotonic, page: &Page) -> Result<ShardPage> {
        let after = embedded::page_start(page)?;
        self.look(|log| {
            let mut rest = log.lineage.after(after).peekable();
            let shards: Vec<_> = rest.by_ref().take(page.size_within_bounds()).collect();
            let next = rest.peek().and(shards.last()).map(|last| PageToken(last.number.to_string()));
            Ok(ShardPage { shards: shards.into_iter().map(|entry| entry.shard()).collect(), next })
        })
    }

    async fn put(&self, _by: Monotonic, records: &[Record]) -> Result<Vec<Put>> {
        self.change(|log, now| log.put(records, now))
    }

    async fn cursor(&self, _by: Monotonic, shard: &ShardId, position: &Position) -> Result<Cursor> {
        let now = self.clock.wall();
        self.look(|log| log.cursor(shard, position, now))
    }

    async fn read(&self, _by: Monotonic, cursor: &Cursor, limit: usize) -> Result<Read> {
        check_read_limit(limit)?;
        let now = self.clock.wall();
        self.look(|log| {
            log.trim(now);
            log.read(cursor, limit, now)
        })
    }

    async fn split(&self, _by: Monotonic, shard: &ShardId, at: HashKey) -> Result<()> {
        self.change(|log, now| log.lineage.split(shard, at, Change { counter: &mut log.counter, now }))
    }

    async fn merge(&self, _by: Monotonic, shard: &ShardId, adjacent: &ShardId) -> Result<()> {
        self.change(|log, now| log.lineage.merge(shard, adjacent, Change { counter: &mut log.counter, now }))
    }

    async fn rescale(&self, _by: Monotonic, shards: u32) -> Result<()> {
        self.change(|log, now| log.lineage.rescale(shards, Change { counter: &mut log.counter, now }))
    }

    async fn delete(&self, _by: Monotonic) -> Result<()> {
        *self.lock() = None;
        self.place.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    async fn wait(&self, by: Monotonic) {
        let mut changes = self.place.changes.subscribe();
        // Also looks again by itself: something may have come between the caller's read and this call.
        let poll = self.clock.deadline(READ_POLL).min(by);
        let _ = within(&*self.clock, poll, changes.changed()).await;
    }
}

/// The records and shards of one stream.
#[derive(Debug)]
struct Log {
    lineage: Lineage,
    shards: BTreeMap<u64, ShardLog>,
    /// Every record's number and shard, oldest first: the order in which they are trimmed.
    ages: VecDeque<(u64, u64)>,
    counter: u64,
    newest: WallTime,
    kept_bytes: u64,
    retention: Retention,
    limits: Limits,
}

/// The records of one shard.
#[derive(Debug, Default)]
struct ShardLog {
    id: Option<ShardId>,
    records: VecDeque<Entry>,
    /// The highest number that was trimmed.
    trimmed: u64,
}

#[derive(Debug)]
struct Entry {
    sequence: u64,
    stored: Stored,
}

impl Log {
    fn new(spec: &StreamSpec, retention: Retention) -> Self {
        Self {
            lineage: Lineage::uniform(spec.shards, embedded::FIRST_SEQUENCE),
            shards: BTreeMap::new(),
            ages: VecDeque::new(),
            counter: embedded::FIRST_SEQUENCE,
            newest: WallTime::from_millis(i64::MIN),
            kept_bytes: 0,
            retention: retention.for_spec(spec),
            limits: Limits::for_record_bytes(spec.record_bytes_max),
        }
    }

    fn description(&self, name: &str) -> Description {
        Description {
            name: name.to_owned(),
            open_shards: u32::try_from(self.lineage.open_count()).unwrap_or(u32::MAX),
            retention_age: self.retention.age,
            retention_bytes: Some(self.retention.bytes),
            limits: self.limits,
        }
    }

    fn put(&mut self, records: &[Record], now: WallTime) -> Result<Vec<Put>> {
        self.limits.check_call(records.iter())?;
        self.newest = self.newest.max(now);
        let mut results = Vec::with_capacity(records.len());
        for record in records {
            if let Some(refused) = self.limits.refusal(record) {
                results.push(refused);
                continue;
            }
            self.counter += 1;
            self.kept_bytes += record.size_bytes() as u64;
            let number = self.lineage.route(record.hash_key()).number;
            let log = self.shards.entry(number).or_default();
            let shard = log.id.get_or_insert_with(|| ShardId::numbered(number)).clone();
            let stored = Stored {
                shard: shard.clone(),
                sequence: self.counter.into(),
                arrived: self.newest,
                partition_key: record.partition_key.clone(),
                data: record.data.clone(),
            };
            log.records.push_back(Entry { sequence: self.counter, stored });
            self.ages.push_back((self.counter, number));
            results.push(Put::Stored { shard, sequence: self.counter.into() });
        }
        Ok(results)
    }

    fn cursor(&self, shard: &ShardId, position: &Position, now: WallTime) -> Result<Cursor> {
        let number = self.lineage.named(shard)?.number;
        let log = self.shards.get(&number);
        let next = match embedded::spot(position, self.counter, self.newest, now)? {
            Spot::From(next) => next,
            Spot::Oldest => log.map_or(0, |log| log.trimmed) + 1,
            Spot::ArrivedAt(time) => {
                let records = log.map(|log| &log.records);
                let first = records.and_then(|records| {
                    let earlier = records.partition_point(|entry| entry.stored.arrived < time);
                    records.get(earlier).map(|entry| entry.sequence)
                });
                first.unwrap_or(self.counter + 1)
            }
        };
        Ok(embedded::at_number(shard.clone(), next))
    }

    fn read(&self, cursor: &Cursor, limit: usize, now: WallTime) -> Result<Read> {
        let entry = self.lineage.named(&cursor.shard)?;
        let from = embedded::cursor_start(cursor)?;
        let log = self.shards.get(&entry.number);
        let horizon = Horizon { trimmed: log.map_or(0, |log| log.trimmed) };
        if let Some(trimmed) = horizon.missed(from) {
            return Ok(trimmed);
        }
        let mut records = Vec::new();
        let mut more = false;
        if let Some(log) = log {
            let first = log.records.partition_point(|entry| entry.sequence < from);
            let mut bytes = 0;
            for entry in log.records.range(first..) {
                more = records.len() == limit || bytes >= BYTES_PER_READ;
                if more {
                    break;
                }
                bytes += entry.stored.data.len() + entry.stored.partition_key.len();
                records.push(entry.stored.clone());
            }
        }
        if records.is_empty() {
            embedded::check_within(from, self.counter)?;
        }
        Ok(Read::Records(embedded::batch(cursor, records, more, entry.closed.is_some(), now)))
    }

    fn trim(&mut self, now: WallTime) {
        let oldest_kept = now - self.retention.age;
        for _ in 0..TRIM_STEP {
            let Some(&(sequence, number)) = self.ages.front() else { break };
            let Some(log) = self.shards.get_mut(&number) else { break };
            let Some(entry) = log.records.front() else { break };
            if entry.stored.arrived >= oldest_kept && self.kept_bytes <= self.retention.bytes {
                break;
            }
            self.kept_bytes -= (entry.stored.data.len() + entry.stored.partition_key.len()) as u64;
            log.records.pop_front();
            log.trimmed = sequence;
            self.ages.pop_front();
        }
        // A shard that closed empty (in the middle of a rescale, say) stays as long as a record would,
        // so that readers can follow the lineage across it.
        let gone: Vec<u64> = self
            .lineage
            .closed_before(oldest_kept)
            .take(TRIM_STEP)
            .filter(|number| self.shards.get(number).is_none_or(|log| log.records.is_empty()))
            .collect();
        for number in gone {
            self.lineage.forget(number);
            self.shards.remove(&number);
        }
    }
}
