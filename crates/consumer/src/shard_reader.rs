//! Reads one shard ahead of its processor, within the budget of all shards.
//!
//! ```text
//!   cursor ──► read ──► taken apart, duplicates dropped, claim checks fetched ──► channel ──► shard task
//!      ▲        │ nothing new: wait
//!      └────────┘ the place was forgotten: a new cursor
//! ```

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Retry, retry_policy};
use tenure_clock::{Monotonic, WallTime};
use tenure_leases::LeaseKey;
use tenure_stream::{BYTES_PER_READ, Cursor, Position, Read, SequenceNumber, Stored};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{error, info, warn};

use crate::claim_checks::ClaimChecks;
use crate::intake::{Intake, Sorted};
use crate::marks::Begun;
use crate::progress::Fetched;
use crate::record::{Delivered, Place, PointerKind};
use crate::recovery::Recovery;
use crate::retention::{ANSWER_AGE_MAX, ASK_AGAIN_AFTER, CLOCKS_APART_MAX, Kept};
use crate::stop::Stop;
use crate::worker::{Site, Source};

/// One permit of the budget.
pub(crate) const PERMIT_BYTES: usize = 1024;
/// What a shard that had little lately is given for its next read.
const RESERVE_MIN: usize = 64 << 10;
/// What a record takes beside its content.
const RECORD_BYTES: usize = size_of::<Delivered>() + 32;
/// A shard that was idle for so long is looked at again after an eighth of it.
const IDLE_SHARE: u32 = 8;
/// That nothing has come is noted so many times in the time for which the stream keeps records.
const NOTES_PER_RETENTION: u32 = 8;
/// So often it is asked for its retention though it denies an answer.
const DENIALS_MAX: u32 = 5;
/// So much of the stream's retention behind, records are about to be lost.
const BEHIND_ALARM_PERCENT: u32 = 80;
/// How often that is said.
const BEHIND_ALARM_EVERY: Duration = Duration::from_secs(60);

/// What a shard task gets.
#[derive(Debug)]
pub(crate) enum Item {
    /// Where LATEST or AT_TIMESTAMP is, and up to when nothing can have been missed: to be stored before anything
    /// is delivered.
    Begun(Begun, Option<WallTime>),
    /// Records, and how far they are behind.
    Batch(Arc<Fetched>, Duration),
    /// The shard is closed, and this was its end.
    End,
    /// It cannot be read on.
    Stop(Stop),
}

/// Reads one shard.
pub(crate) struct ShardReader {
    pub(crate) source: Source,
    pub(crate) intake: Intake,
    pub(crate) recovery: Recovery,
    pub(crate) claim_checks: Option<ClaimChecks>,
    pub(crate) budget: Arc<Semaphore>,
    /// Where reading begins.
    pub(crate) start: Position,
    /// The lease begins there by a word that would mean another place later.
    pub(crate) undecided: bool,
    /// All that arrived before this was read by whoever read before.
    pub(crate) through: Option<WallTime>,
    /// Who is told how far reading is behind, and of what.
    pub(crate) site: Arc<Site>,
    pub(crate) lease: LeaseKey,
}

/// What is known while reading.
struct Reading {
    cursor: Cursor,
    /// The last record that was read, and when it had arrived.
    last: Option<(SequenceNumber, WallTime)>,
    /// All that arrived before this was read, as far as that is known.
    through: Option<WallTime>,
    /// The record that was looked for again before the last read.
    verified: Option<SequenceNumber>,
    /// When reading began, for a cursor at the end that was forgotten before anything came.
    began: WallTime,
    /// What the next read is expected to take.
    reserve: usize,
    idle_since: Option<Monotonic>,
    /// What the stream keeps, if it says so, and when it was asked.
    kept: Option<Kept>,
    asked: Monotonic,
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
        if self.undecided {
            let item = self.begun(&cursor, began);
            if out.send(item).await.is_err() {
                return Ok(());
            }
        }
        let kept = self.kept().await;
        let mut reading = Reading {
            cursor,
            last: None,
            through: self.through,
            verified: None,
            began,
            // Nothing is known of this shard: as much as a read may take.
            reserve: BYTES_PER_READ,
            idle_since: None,
            kept,
            asked: self.recovery.env.clock.monotonic(),
            alarmed: None,
        };
        loop {
            self.ask_again(&mut reading).await;
            let Some(permit) = self.reserve(reading.reserve).await else { return Ok(()) };
            self.verify(&mut reading).await?;
            let (read, sent) = self.read(&mut reading).await?;
            // Judged by when the read was made that found what there is.
            if self.intake.is_in_doubt()
                && reading.last.is_none()
                && is_kept(self.through, sent, reading.kept)
            {
                self.intake.nothing_missed();
            }
            let (records, next, behind) = match read {
                Read::Records(batch) => (batch.records, batch.next, batch.behind),
                Read::Trimmed { from, to } => {
                    if !self.trimmed(&mut reading, from, to, out).await? {
                        return Ok(());
                    }
                    continue;
                }
            };
            self.watch_behind(&mut reading, behind);
            let is_empty = records.is_empty();
            if !is_empty {
                reading.idle_since = None;
                if let Some(last) = records.last() {
                    reading.last = Some((last.sequence.clone(), last.arrived));
                    reading.through = reading.through.max(Some(last.arrived));
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
                if !self.note_idle(&mut reading, out).await {
                    return Ok(());
                }
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
        let through = records.last().map(|last| last.arrived);
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
            self.send(sorted, None, bytes, Some(permit), behind, out).await;
            return Err(Item::Stop(stop));
        }
        reading.reserve = (2 * bytes).clamp(RESERVE_MIN, BYTES_PER_READ);
        let permit = self.settle_reserve(permit, bytes);
        let through = through.filter(|_| stop.is_none());
        let sent = self.send(sorted, through, bytes, Some(permit), behind, out).await;
        match stop {
            Some(stop) => Err(Item::Stop(stop)),
            None => Ok(sent),
        }
    }

    async fn send(
        &self,
        sorted: Sorted,
        through: Option<WallTime>,
        bytes: usize,
        permit: Option<OwnedSemaphorePermit>,
        behind: Duration,
        out: &mpsc::Sender<Item>,
    ) -> bool {
        let Sorted { records, steps, end, .. } = sorted;
        if end.is_none() {
            return true;
        }
        let fetched = Fetched { records, steps, end, through, bytes, _permit: permit };
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
            match self.source.stream.cursor(self.recovery.by(), shard, position).await {
                Ok(cursor) => return Ok(cursor),
                Err(error) => self.pause_after(&error, &mut failures).await?,
            }
        }
    }

    /// What was read, and when that was asked for.
    async fn read(&self, reading: &mut Reading) -> Result<(Read, WallTime), Item> {
        let mut failures: u32 = 0;
        let mut renewed = false;
        loop {
            let limit = self.recovery.settings.records_per_read_max;
            let sent = self.recovery.env.clock.wall();
            match self.source.stream.read(self.recovery.by(), &reading.cursor, limit).await {
                Ok(read) => return Ok((read, sent)),
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

    /// `false` if nobody listens any more.
    async fn trimmed(
        &mut self,
        reading: &mut Reading,
        from: SequenceNumber,
        to: SequenceNumber,
        out: &mpsc::Sender<Item>,
    ) -> Result<bool, Item> {
        let stop = Stop::Trimmed { from, to: to.clone(), since: reading.through };
        if !self.recovery.settings.accept_loss {
            return Err(Item::Stop(stop));
        }
        self.recovery.meters.losses.increment(1);
        error!(reason = stop.name(), detail = %stop, "going on after a loss, as accept_loss says");
        // Stored with the next checkpoint, also if nothing comes any more: it was accepted once and for all.
        let steps = vec![(0, self.intake.forget())];
        let before = to.as_u64().and_then(|to| to.checked_sub(1));
        let end = before.map(|before| Place { sequence: before.into(), sub: 0, whole: true });
        let passed = Fetched { records: Vec::new(), steps, end, through: None, bytes: 0, _permit: None };
        reading.cursor = self.cursor(&Position::At(to)).await?;
        Ok(out.send(Item::Batch(Arc::new(passed), Duration::ZERO)).await.is_ok())
    }

    // === streams that do not say what they trimmed ===

    /// Where reading begins, for whoever takes over before anything is processed.
    fn begun(&self, cursor: &Cursor, began: WallTime) -> Item {
        // Asked for again, "latest" would be later.
        let begun = Begun::of(cursor.position()).unwrap_or(Begun::Since(began - CLOCKS_APART_MAX));
        let through = match (&self.start, &begun) {
            (Position::Latest, Begun::Since(moment)) => Some(*moment),
            // What a moment in the past leaves out is nobody's loss, and an embedded stream tells.
            _ => None,
        };
        Item::Begun(begun, through)
    }

    /// What the stream keeps, if it says so.
    async fn kept(&self) -> Option<Kept> {
        let (clock, retention) = (&*self.recovery.env.clock, &self.source.retention);
        let timeout = self.recovery.settings.call_timeout;
        if !self.intake.is_in_doubt() {
            return retention.ask_unless_busy(clock, timeout).await;
        }
        // Here it decides whether the shard stops, and is waited for. An earlier answer may be out of date.
        let since = clock.monotonic();
        let mut failures: u32 = 0;
        loop {
            let error = match retention.ask(clock, timeout, since).await {
                Ok(kept) => return Some(kept),
                Err(error) => error,
            };
            failures = failures.saturating_add(1);
            // Credentials may come back; a right that is missing does not.
            let is_final = match error.kind() {
                Kind::Denied => failures >= DENIALS_MAX,
                kind => retry_policy(kind) == Retry::Never,
            };
            if is_final {
                warn!(error = %error.chain(), "the stream does not say how long it keeps records");
                return None;
            }
            warn!(error = %error.chain(), failures, "the stream did not say how long it keeps records; it is asked again");
            clock.sleep(self.recovery.pause(failures)).await;
        }
    }

    /// Asks again now and then: it may be another, or nobody could tell at first.
    async fn ask_again(&self, reading: &mut Reading) {
        let clock = &*self.recovery.env.clock;
        let wait = if reading.kept.is_some() { ANSWER_AGE_MAX } else { ASK_AGAIN_AFTER };
        let now = clock.monotonic();
        if now.since(reading.asked) >= wait {
            reading.asked = now;
            let timeout = self.recovery.settings.call_timeout;
            reading.kept = self.source.retention.ask_unless_busy(clock, timeout).await.or(reading.kept);
        }
    }

    /// Whoever stood still for as long as records are kept looks for the record that it read last: if that is gone,
    /// so may be others.
    async fn verify(&mut self, reading: &mut Reading) -> Result<(), Item> {
        let Some((last, _)) = reading.last.as_ref().filter(|(last, _)| last.as_u64().is_none()) else {
            return Ok(());
        };
        let now = self.recovery.env.clock.wall();
        // Not twice for one record: a read may answer with that alone.
        let is_new = reading.verified.as_ref() != Some(last);
        if is_new && reading.kept.is_some() && !is_kept(reading.through, now, reading.kept) {
            let last = last.clone();
            reading.cursor = self.cursor(&Position::At(last.clone())).await?;
            self.intake.expect_again(&last, reading.through);
            reading.verified = Some(last);
        }
        Ok(())
    }

    /// Notes now and then that nothing has come, so that the next owner of a shard that is idle for longer than
    /// records are kept does not take the missing record for a loss. `false` if nobody listens any more.
    async fn note_idle(&self, reading: &mut Reading, out: &mpsc::Sender<Item>) -> bool {
        let Some(kept) = reading.kept.filter(|_| self.is_silent(reading)) else { return true };
        let now = self.recovery.env.clock.wall();
        let is_due =
            reading.through.is_none_or(|through| through + kept.retention / NOTES_PER_RETENTION <= now);
        // As long as it is open whether something is missing, this would hide it.
        if !is_due || self.intake.is_in_doubt() {
            return true;
        }
        reading.through = Some(now);
        let (records, steps) = (Vec::new(), Vec::new());
        let note = Fetched { records, steps, end: None, through: Some(now), bytes: 0, _permit: None };
        out.send(Item::Batch(Arc::new(note), Duration::ZERO)).await.is_ok()
    }

    /// Whether the stream does not say what it trimmed, as far as that can be told by its numbers.
    fn is_silent(&self, reading: &Reading) -> bool {
        match (&reading.last, &self.start) {
            (Some((last, _)), _) => last.as_u64().is_none(),
            (None, Position::At(sequence) | Position::After(sequence)) => sequence.as_u64().is_none(),
            (None, Position::AtTimestamp(_)) => true,
            // Where the end was found out to be; a stream with numbers tells one.
            (None, Position::TrimHorizon | Position::Latest) => {
                matches!(reading.cursor.position(), Position::AtTimestamp(_))
            }
        }
    }

    fn watch_behind(&self, reading: &mut Reading, behind: Duration) {
        self.recovery.meters.behind.set(behind.as_secs_f64());
        self.site.board.note_behind(&self.lease, behind, self.recovery.env.clock.monotonic());
        let retention = reading.kept.map(|kept| kept.retention);
        let Some(retention) = retention.filter(|kept| behind > *kept * BEHIND_ALARM_PERCENT / 100) else {
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
            self.source.stream.wait(self.recovery.by()).await;
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

/// Whether it is certain that everything that arrived since `through` is still there.
fn is_kept(through: Option<WallTime>, now: WallTime, kept: Option<Kept>) -> bool {
    through.zip(kept).is_some_and(|(through, kept)| kept.all_since(through, now))
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX)
}
