//! Reads one shard ahead of its processor, within the budget of all shards.
//!
//! ```text
//!   cursor ──► read ──► taken apart, duplicates dropped, claim checks fetched ──► channel ──► shard task
//!      ▲        │ nothing new: wait
//!      └────────┘ the place was forgotten: a new cursor
//! ```

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind};
use tenure_clock::{Monotonic, WallTime};
use tenure_stream::{BYTES_PER_READ, Cursor, Position, Read, SequenceNumber, Stored, Stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{error, info, warn};

use crate::claim_checks::ClaimChecks;
use crate::intake::{Intake, Sorted};
use crate::progress::Fetched;
use crate::record::{Delivered, PointerKind};
use crate::recovery::Recovery;
use crate::stop::Stop;

/// One permit of the budget.
pub(crate) const PERMIT_BYTES: usize = 1024;
/// What a shard that had little lately is given for its next read.
const RESERVE_MIN: usize = 64 << 10;
/// What a record takes beside its content.
const RECORD_BYTES: usize = size_of::<Delivered>() + 32;
/// A shard that was idle for so long is looked at again after an eighth of it.
const IDLE_SHARE: u32 = 8;
/// So much of the stream's retention behind, records are about to be lost.
const BEHIND_ALARM_PERCENT: u32 = 80;
/// How often that is said.
const BEHIND_ALARM_EVERY: Duration = Duration::from_secs(60);

/// What a shard task gets.
#[derive(Debug)]
pub(crate) enum Item {
    /// Records, and how far they are behind.
    Batch(Arc<Fetched>, Duration),
    /// The shard is closed, and this was its end.
    End,
    /// It cannot be read on.
    Stop(Stop),
}

/// Reads one shard.
pub(crate) struct ShardReader {
    pub(crate) stream: Arc<dyn Stream>,
    pub(crate) intake: Intake,
    pub(crate) recovery: Recovery,
    pub(crate) claim_checks: Option<ClaimChecks>,
    pub(crate) budget: Arc<Semaphore>,
    /// Where reading begins.
    pub(crate) start: Position,
}

/// What is known while reading.
struct Reading {
    cursor: Cursor,
    /// The last record that was read, and when it had arrived.
    last: Option<(SequenceNumber, WallTime)>,
    /// When reading began, for a cursor at the end that was forgotten before anything came.
    began: WallTime,
    /// What the next read is expected to take.
    reserve: usize,
    idle_since: Option<Monotonic>,
    /// How long the stream keeps records, if it says so.
    retention: Option<Duration>,
    alarmed: Option<Monotonic>,
}

impl ShardReader {
    /// Reads until the shard ends, something stops it, or nobody listens any more.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    pub(crate) async fn run(mut self, out: mpsc::Sender<Item>) {
        let end = match self.read_all(&out).await {
            Ok(()) => return,
            Err(item) => item,
        };
        let _ = out.send(end).await;
    }

    /// Ends with `Ok` when nobody listens any more.
    async fn read_all(&mut self, out: &mpsc::Sender<Item>) -> Result<(), Item> {
        let began = self.recovery.env.clock.wall();
        let cursor = self.cursor(&self.start).await?;
        let described = self.stream.describe(self.recovery.by()).await;
        let mut reading = Reading {
            cursor,
            last: None,
            began,
            // Nothing is known of this shard: as much as a read may take.
            reserve: BYTES_PER_READ,
            idle_since: None,
            retention: described.ok().map(|described| described.retention_age),
            alarmed: None,
        };
        loop {
            let Some(permit) = self.reserve(reading.reserve).await else { return Ok(()) };
            let read = self.read(&mut reading).await?;
            let (records, next, behind) = match read {
                Read::Records(batch) => (batch.records, batch.next, batch.behind),
                Read::Trimmed { from, to } => {
                    self.trimmed(&mut reading, from, to).await?;
                    continue;
                }
            };
            self.watch_behind(&mut reading, behind);
            let is_empty = records.is_empty();
            if !is_empty {
                reading.idle_since = None;
                if let Some(last) = records.last() {
                    reading.last = Some((last.sequence.clone(), last.arrived));
                }
                let sent = self.hand_on(&mut reading, records, permit, behind, out).await?;
                if !sent {
                    return Ok(());
                }
            } else {
                reading.reserve = RESERVE_MIN;
                drop(permit);
            }
            match next {
                Some(next) => reading.cursor = next,
                None => return Err(Item::End),
            }
            if is_empty && behind.is_zero() {
                self.wait(&mut reading).await;
            }
        }
    }

    /// `false` if nobody listens any more.
    async fn hand_on(
        &mut self,
        reading: &mut Reading,
        records: Vec<Stored>,
        permit: OwnedSemaphorePermit,
        behind: Duration,
        out: &mpsc::Sender<Item>,
    ) -> Result<bool, Item> {
        let bytes: usize =
            records.iter().map(|record| record.data.len() + record.partition_key.len() + RECORD_BYTES).sum();
        let mut sorted = self.intake.take(records);
        self.tell(&sorted);
        let stop = sorted.stop.take();
        let mut bytes = bytes;
        for (record, why) in std::mem::take(&mut sorted.dead) {
            self.recovery.bury(&record, &why).await.map_err(Item::Stop)?;
        }
        let mut broken = None;
        for index in std::mem::take(&mut sorted.pointers) {
            let Some(record) = sorted.records.get_mut(index) else { continue };
            match self.resolve(record).await {
                Ok(more) => bytes += more,
                Err(stop) => {
                    broken = Some((index, stop));
                    break;
                }
            }
        }
        if let Some((index, stop)) = broken {
            // What comes before it is delivered; it is not.
            sorted.cut(index);
            self.send(sorted, bytes, Some(permit), behind, out).await;
            return Err(Item::Stop(stop));
        }
        reading.reserve = (2 * bytes).clamp(RESERVE_MIN, BYTES_PER_READ);
        let permit = self.settle_reserve(permit, bytes);
        let sent = self.send(sorted, bytes, Some(permit), behind, out).await;
        match stop {
            Some(stop) => Err(Item::Stop(stop)),
            None => Ok(sent),
        }
    }

    async fn send(
        &self,
        sorted: Sorted,
        bytes: usize,
        permit: Option<OwnedSemaphorePermit>,
        behind: Duration,
        out: &mpsc::Sender<Item>,
    ) -> bool {
        let Sorted { records, steps, end, .. } = sorted;
        let Some(end) = end else { return true };
        let fetched = Fetched { records, steps, end, bytes, _permit: permit };
        out.send(Item::Batch(Arc::new(fetched), behind)).await.is_ok()
    }

    fn tell(&self, sorted: &Sorted) {
        let meters = &self.recovery.meters;
        meters.count(&sorted.counts);
        if sorted.counts.damaged > 0 {
            error!(records = sorted.counts.damaged, "aggregated records are damaged");
        }
        for loss in &sorted.losses {
            meters.losses.increment(1);
            error!(reason = loss.name(), detail = %loss, "going on after a loss, as accept_loss says");
        }
    }

    /// Puts the whole event in the place of its pointer, if it is to be fetched. Answers how many bytes came.
    async fn resolve(&self, record: &mut Delivered) -> Result<usize, Stop> {
        let Some(pointer) = &record.pointer else { return Ok(0) };
        let settings = &self.recovery.settings;
        let wanted =
            pointer.kind == PointerKind::ClaimCheck && pointer.bytes <= settings.claim_check_bytes_max;
        let Some(claim_checks) = self.claim_checks.as_ref().filter(|_| wanted) else { return Ok(0) };
        let mut failures: u32 = 0;
        loop {
            match claim_checks.fetch(self.recovery.by(), &record.data, pointer).await {
                Ok(whole) => {
                    let bytes = whole.len();
                    record.data = whole;
                    record.pointer = None;
                    return Ok(bytes);
                }
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Invalid) => {
                    let stop = Stop::ClaimCheck(error.chain());
                    if !settings.accept_loss {
                        return Err(stop);
                    }
                    self.recovery.meters.losses.increment(1);
                    error!(reason = stop.name(), detail = %stop, "going on after a loss, as accept_loss says");
                    return Ok(0);
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    warn!(error = %error.chain(), failures, "a claim check could not be fetched; it is tried again");
                    self.recovery.env.clock.sleep(self.recovery.pause(failures)).await;
                }
            }
        }
    }

    async fn cursor(&self, position: &Position) -> Result<Cursor, Item> {
        let shard = &self.recovery.holding.lease().shard;
        let mut failures: u32 = 0;
        loop {
            match self.stream.cursor(self.recovery.by(), shard, position).await {
                Ok(cursor) => return Ok(cursor),
                Err(error) => self.pause_after(&error, &mut failures).await?,
            }
        }
    }

    async fn read(&self, reading: &mut Reading) -> Result<Read, Item> {
        let mut failures: u32 = 0;
        let mut renewed = false;
        loop {
            let limit = self.recovery.settings.records_per_read_max;
            match self.stream.read(self.recovery.by(), &reading.cursor, limit).await {
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == Kind::Invalid && !renewed => {
                    // Its place was forgotten, or the stream is another: a new cursor tells.
                    renewed = true;
                    info!(error = %error.chain(), "the cursor is not valid any more: taking a new one");
                    reading.cursor = self.cursor(&self.resume(reading)).await?;
                }
                Err(error) => self.pause_after(&error, &mut failures).await?,
            }
        }
    }

    /// Where to go on without the cursor.
    fn resume(&self, reading: &Reading) -> Position {
        match (&reading.last, &self.start) {
            (Some((sequence, _)), _) => Position::After(sequence.clone()),
            // Asked for again, "latest" would be later.
            (None, Position::Latest) => Position::AtTimestamp(reading.began),
            (None, start) => start.clone(),
        }
    }

    /// Pauses if trying again may help.
    async fn pause_after(&self, error: &Error, failures: &mut u32) -> Result<(), Item> {
        match error.kind() {
            Kind::Invalid => return Err(Item::Stop(Stop::Recreated(error.chain()))),
            Kind::Corrupt => return Err(Item::Stop(Stop::Damaged(error.chain()))),
            Kind::Denied => error!(error = %error.chain(), "the stream may not be read; it is tried again"),
            Kind::Throttled | Kind::Unavailable | Kind::Unknown | Kind::Fenced => {
                warn!(error = %error.chain(), failures, "the stream could not be read; it is tried again");
            }
        }
        *failures = failures.saturating_add(1);
        self.recovery.env.clock.sleep(self.recovery.pause(*failures)).await;
        Ok(())
    }

    async fn trimmed(
        &mut self,
        reading: &mut Reading,
        from: SequenceNumber,
        to: SequenceNumber,
    ) -> Result<(), Item> {
        let since = reading.last.as_ref().map(|(_, arrived)| *arrived);
        let stop = Stop::Trimmed { from, to: to.clone(), since };
        if !self.recovery.settings.accept_loss {
            return Err(Item::Stop(stop));
        }
        self.recovery.meters.losses.increment(1);
        error!(reason = stop.name(), detail = %stop, "going on after a loss, as accept_loss says");
        self.intake.forget();
        reading.cursor = self.cursor(&Position::At(to)).await?;
        Ok(())
    }

    fn watch_behind(&self, reading: &mut Reading, behind: Duration) {
        self.recovery.meters.behind.set(behind.as_secs_f64());
        let Some(retention) = reading.retention.filter(|kept| behind > *kept * BEHIND_ALARM_PERCENT / 100)
        else {
            return;
        };
        let now = self.recovery.env.clock.monotonic();
        if reading.alarmed.is_none_or(|last| now.since(last) >= BEHIND_ALARM_EVERY) {
            reading.alarmed = Some(now);
            error!(
                ?behind,
                ?retention,
                "reading is so far behind that records are about to be lost: add workers, or lengthen the retention"
            );
        }
    }

    /// A shard that has been idle for long is looked at less often.
    async fn wait(&self, reading: &mut Reading) {
        let clock = &self.recovery.env.clock;
        let now = clock.monotonic();
        let idle = now.since(*reading.idle_since.get_or_insert(now));
        let pause = (idle / IDLE_SHARE).min(self.recovery.settings.idle_pause_max);
        if pause > Duration::from_millis(20) {
            clock.sleep(pause).await;
        } else {
            self.stream.wait(self.recovery.by()).await;
        }
    }

    // === the budget ===

    /// Takes a part of the budget. `None`: the worker has ended.
    async fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.budget.clone().acquire_many_owned(permits(bytes)).await.ok()
    }

    /// Makes the part as large as it needs to be. What is missing and cannot be had at once is not waited for:
    /// if everybody did, nobody would go on.
    fn settle_reserve(&self, mut permit: OwnedSemaphorePermit, bytes: usize) -> OwnedSemaphorePermit {
        let (has, wants) = (permit.num_permits(), permits(bytes) as usize);
        if wants < has {
            drop(permit.split(has - wants));
        } else if wants > has {
            match self.budget.clone().try_acquire_many_owned((wants - has) as u32) {
                Ok(more) => permit.merge(more),
                Err(_) => self.recovery.meters.overdrafts.increment(1),
            }
        }
        permit
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}
