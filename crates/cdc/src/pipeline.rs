//! Runs one term of a leader: reads the log, publishes it, and confirms what is settled.
//!
//! One task owns the machines and carries out what they say. Feedback to the server has a task of its own,
//! which goes on while reading is paused: a server that hears nothing takes its reader for dead.
//!
//! ```text
//!   Receiver ─► Assembler ─► Intake ─► Publisher ─► sink
//!                                         │ frontier
//!                                     Checkpointer ─► row ─► Sender (its own task)
//! ```

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::{Monotonic, WallTime, within};
use tenure_election::Term;
use tenure_store::{Store, Written};
use tenure_stream::identity::{Lane, Lsn};
use tenure_stream::{Limits, Put};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::assembler::{Assembled, Assembler};
use crate::checkpoint::{Checkpoint, CheckpointPlace, Checkpointer};
use crate::intake::{Intake, Origin};
use crate::progress::Progress;
use crate::publisher::{Answer, Call, CallId, Publisher, Work};
use crate::quarantine::{Quarantine, rows_of};
use crate::settings::PipelineSettings;
use crate::shapes::Shapes;
use crate::shard_budget::OpenShard;
use crate::sink::Sink;
use crate::transport::{Frame, Receiver, Sender};

/// Most frames that are taken in before everybody else has a turn.
const FRAMES_PER_TURN: usize = 2048;
/// How often what others may see is brought up to date.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);
/// The pause before a sink that does not tell its limits is asked again.
const LIMITS_PAUSE: Duration = Duration::from_millis(500);
/// Most transactions whose commit times are remembered, to tell the lag.
const COMMITS_REMEMBERED: usize = 4096;
/// Microseconds from 1970 to 2000, where Postgres begins to count.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// What a term works with.
pub(crate) struct Stage {
    pub(crate) env: Env,
    pub(crate) settings: Arc<PipelineSettings>,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) quarantine: Quarantine,
    pub(crate) place: CheckpointPlace,
    pub(crate) progress: Progress,
    /// Asks for an orderly end.
    pub(crate) stop: CancellationToken,
}

impl Stage {
    /// What fits in the sink. It is asked until it answers: one that fails is waited for, as always.
    async fn limits(&self, term: &Term) -> Result<Limits> {
        loop {
            let by = self.env.clock.deadline(self.settings.call_timeout);
            let error = match self.sink.limits(by).await {
                Ok(limits) => return Ok(limits),
                Err(error) => error,
            };
            warn!(error = %error.chain(), kind = %error.kind(), "the sink does not tell its limits; it is asked again");
            self.progress.trouble(Some(format!("the sink fails: {}", advice(&error))));
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(error.during("ask the sink for its limits")),
                reason = term.lost() => {
                    return Err(Error::new(Kind::Fenced, format!("leadership was lost: {}", reason.name())));
                }
                () = self.env.clock.sleep(LIMITS_PAUSE) => {}
            }
        }
    }
}

/// How a pipeline ended, when it ended as asked.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// As asked, with everything settled, in the row, and confirmed.
    Drained,
    /// As asked, but something was still under way: the next leader publishes it again.
    Abandoned,
}

/// What ended among the things under way.
enum Done {
    Call(CallId, Result<Vec<Put>>),
    Stored(Lane, Result<()>),
    Row(Result<Written>),
    Shards(Result<Vec<OpenShard>>),
}

/// What the server is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Feedback {
    received: Lsn,
    flushed: Lsn,
    /// Counts requests for an answer at once.
    asked: u64,
}

pub(crate) struct Pipeline {
    stage: Stage,
    term: Term,
    checkpoint: Checkpoint,
    assembler: Assembler,
    intake: Intake,
    publisher: Publisher,
    checkpointer: Checkpointer,
    under: JoinSet<Done>,
    feedback: watch::Sender<Feedback>,
    feeding: tokio::task::JoinHandle<Result<()>>,
    /// Commits that were received and may not be settled: where, and when.
    commits: VecDeque<(Lsn, i64)>,
    server: Lsn,
    transactions: u64,
    parked: u64,
    throttled: u64,
    /// The server asked for a sign of life: it may want to shut down.
    hurry: bool,
    /// The store failed last time, and so it was told.
    store_fails: bool,
    /// The row under way has the tables' shapes with it.
    writes_shapes: bool,
    progress_at: Monotonic,
}

/// Stops the feedback task with its owner.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pipeline {
    pub(crate) async fn new(
        stage: Stage,
        term: Term,
        checkpoint: Checkpoint,
        shapes: Shapes,
        sender: Sender,
    ) -> Result<Self> {
        let limits = stage.limits(&term).await?;
        let Stage { env, settings, .. } = &stage;
        let now = env.clock.monotonic();
        let (start, era, lanes) = (checkpoint.lsn, checkpoint.era, checkpoint.lanes);
        let leader = term.fence().epoch().0;
        let origin = Origin { source: settings.source.clone(), era, lanes, leader };
        let publisher =
            Publisher::new(settings.publisher.clone(), limits, lanes, era, start, env.entropy.fork());
        let feedback = watch::Sender::new(Feedback { received: start, flushed: start, asked: 0 });
        let feeding =
            tokio::spawn(feed(env.clone(), settings.feedback_interval, sender, feedback.subscribe()));
        let checkpointer =
            Checkpointer::new(start, settings.checkpoint_interval, settings.idle_checkpoint_interval, now);
        Ok(Self {
            assembler: Assembler::new(settings.spill.clone()),
            intake: Intake::new(origin).with_shapes(shapes),
            publisher,
            checkpointer,
            under: JoinSet::new(),
            feedback,
            feeding,
            commits: VecDeque::new(),
            server: start,
            transactions: 0,
            parked: 0,
            throttled: 0,
            hurry: false,
            store_fails: false,
            writes_shapes: false,
            progress_at: now,
            stage,
            term,
            checkpoint,
        })
    }

    /// Publishes until asked to stop, or until it cannot go on.
    ///
    /// # Errors
    /// `Fenced` if leadership was lost, `Unavailable` if the connection was, otherwise what a person must
    /// mend. What was not confirmed is sent again to the next leader.
    pub(crate) async fn run(mut self, receiver: &mut Receiver) -> Result<End> {
        let _feeding = AbortOnDrop(self.feeding.abort_handle());
        let (clock, stop) = (self.stage.env.clock.clone(), self.stage.stop.clone());
        let term = self.term.clone();
        let mut lost = pin!(async move { term.lost().await });
        let mut give_up: Option<Monotonic> = None;
        loop {
            let now = clock.monotonic();
            let stopping = give_up.is_some();
            self.take_in(now, receiver, stopping)?;
            self.send_out(now);
            self.keep_checkpoint(now, stopping);
            self.show(now);
            if let Some(by) = give_up {
                if self.is_settled() {
                    return self.say_goodbye().await;
                }
                if now >= by {
                    warn!(inflight = ?self.publisher.inflight(), "stopping with work under way");
                    return Ok(End::Abandoned);
                }
            }
            let reads = self.may_read(stopping);
            let wake = self.wake(now, give_up);
            tokio::select! {
                biased;
                reason = &mut lost => {
                    return Err(Error::new(Kind::Fenced, format!("leadership was lost: {}", reason.name())));
                }
                () = stop.cancelled(), if !stopping => {
                    info!("stopping: finishing what is under way");
                    self.stage.progress.update(|progress| progress.role = "stopping".to_owned());
                    give_up = Some(now + self.stage.settings.drain_timeout);
                }
                Some(done) = self.under.join_next(), if !self.under.is_empty() => {
                    let done = done.map_err(|_| Error::unavailable("a task was ended"))?;
                    self.done(done)?;
                    // Whatever else has ended meanwhile, before anybody waits again.
                    while let Some(Ok(done)) = self.under.try_join_next() {
                        self.done(done)?;
                    }
                }
                frame = receiver.next(), if reads => {
                    let frame = frame.map_err(|error| error.during("read the log"))?;
                    self.frame(clock.monotonic(), frame)?;
                }
                fed = &mut self.feeding => {
                    return match fed {
                        Ok(Err(error)) => Err(error.during("send feedback")),
                        _ => Err(Error::unavailable("the feedback task was ended")),
                    };
                }
                () = clock.sleep_until(wake) => {}
            }
        }
    }

    // === What comes in ===

    /// Takes in what is there, as long as there is room.
    fn take_in(&mut self, now: Monotonic, receiver: &mut Receiver, stopping: bool) -> Result<()> {
        for _ in 0..FRAMES_PER_TURN {
            self.intake.go_on(now, &mut self.publisher)?;
            if !self.publisher.wants_more() {
                break;
            }
            if self.assembler.is_replaying() {
                let assembled = self.assembler.replay()?;
                note(&mut self.commits, &mut self.transactions, &assembled);
                self.intake.take(now, &mut self.publisher, assembled)?;
                continue;
            }
            if !self.may_read(stopping) {
                break;
            }
            match receiver.try_next_buffered().map_err(|error| error.during("read the log"))? {
                Some(frame) => self.frame(now, frame)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Whether another frame is wanted. Who stops reads only to the end of the open transaction.
    fn may_read(&self, stopping: bool) -> bool {
        self.publisher.wants_more()
            && !self.assembler.is_replaying()
            && (!stopping || self.publisher.in_transaction())
    }

    fn frame(&mut self, now: Monotonic, frame: Frame<'_>) -> Result<()> {
        match frame {
            Frame::Data { wal_start, wal_end, payload, .. } => {
                self.server = self.server.max(wal_end);
                let assembled = self.assembler.push(wal_start, payload)?;
                note(&mut self.commits, &mut self.transactions, &assembled);
                self.intake.take(now, &mut self.publisher, assembled)
            }
            Frame::Keepalive { wal_end, reply_requested, .. } => {
                self.server = self.server.max(wal_end);
                self.publisher.idle(wal_end);
                if reply_requested {
                    self.hurry = true;
                    self.feedback.send_modify(|feedback| feedback.asked += 1);
                }
                Ok(())
            }
            Frame::Done => Err(Error::unavailable("the server ended the stream")),
        }
    }

    // === What goes out ===

    fn send_out(&mut self, now: Monotonic) {
        if self.publisher.asks_for_shards(now) {
            self.ask_for_shards();
        }
        while let Some(work) = self.publisher.poll(now, self.term.is_valid()) {
            match work {
                Work::Call(Call { id, records }) => {
                    let sink = self.stage.sink.clone();
                    let (clock, by) = self.deadline();
                    self.under.spawn(async move {
                        let put = within(&*clock, by, Box::pin(sink.put(by, records))).await;
                        let late = || Error::new(Kind::Unknown, "the sink did not answer in time");
                        Done::Call(id, put.unwrap_or_else(|_| Err(late())))
                    });
                }
                Work::Store { lane, id, parked } => {
                    let quarantine = self.stage.quarantine.clone();
                    let key = self.checkpoint.lanes.hash_key(lane);
                    let clock = self.stage.env.clock.clone();
                    // Each row has the time of a call: else what is large would never be stored in time.
                    let by = clock.deadline(self.stage.settings.call_timeout * rows_of(&parked));
                    self.parked += 1;
                    info!(%id, bytes = parked.content.len(), reason = parked.reason.as_deref(), "parking an event");
                    self.under.spawn(async move {
                        let stored =
                            within(&*clock, by, Box::pin(quarantine.store(by, id, key, &parked))).await;
                        let late = || Error::new(Kind::Unknown, "the store did not answer in time");
                        Done::Stored(lane, stored.unwrap_or_else(|_| Err(late())))
                    });
                }
                Work::Replace(refused) => {
                    warn!(
                        reason = &*refused.reason,
                        events = refused.events.len(),
                        "the sink refused a record for good"
                    );
                    self.intake.replace(now, &mut self.publisher, refused);
                }
            }
        }
    }

    fn ask_for_shards(&mut self) {
        let sink = self.stage.sink.clone();
        let (clock, by) = self.deadline();
        self.under.spawn(async move {
            let shards = within(&*clock, by, Box::pin(sink.open_shards(by))).await;
            let late = || Error::unavailable("the sink did not answer in time");
            Done::Shards(shards.unwrap_or_else(|_| Err(late())))
        });
    }

    fn done(&mut self, done: Done) -> Result<()> {
        let now = self.stage.env.clock.monotonic();
        match done {
            Done::Call(id, Ok(results)) => {
                let throttled = results.iter().filter(|put| matches!(put, Put::Throttled)).count();
                self.throttled += throttled as u64;
                if throttled > 0 {
                    debug!(throttled, of = results.len(), "the sink throttles");
                }
                if let Some(reason) = results.iter().find_map(|put| match put {
                    Put::Refused { reason } => Some(reason),
                    _ => None,
                }) {
                    warn!(reason, "the sink refused a record");
                }
                if self.publisher.failures() > 0 {
                    info!("the sink takes records again");
                    self.stage.progress.trouble(None);
                }
                self.publisher.answered(now, id, Answer::Records(results));
            }
            Done::Call(id, Err(error)) => {
                if let Some(gone) = self.stage.sink.gone() {
                    return Err(gone.because(error.chain()));
                }
                self.publisher.answered(now, id, Answer::Failed(error.kind()));
                let failures = self.publisher.failures();
                warn!(error = %error.chain(), kind = %error.kind(), failures, "the sink failed; nothing is dropped, it is tried again");
                self.stage.progress.trouble(Some(format!("the sink fails: {}", advice(&error))));
            }
            Done::Shards(Ok(open)) => {
                debug!(shards = open.len(), "the sink's shards");
                self.publisher.shards(&open);
            }
            Done::Shards(Err(error)) => {
                warn!(error = %error.chain(), "the sink does not tell its shards; they are asked for again");
                self.publisher.shards(&[]);
            }
            Done::Stored(lane, Ok(())) => {
                self.store_works();
                self.publisher.stored(now, lane, true);
            }
            Done::Stored(lane, Err(error)) => {
                self.store_fails = true;
                warn!(error = %error.chain(), "an event could not be parked; it is tried again");
                self.stage.progress.trouble(Some(format!("the quarantine fails: {}", advice(&error))));
                self.publisher.stored(now, lane, false);
            }
            Done::Row(Ok(Written::Applied(_))) => {
                self.store_works();
                self.checkpointer.written(now, true);
                if std::mem::take(&mut self.writes_shapes) {
                    self.intake.shapes().written();
                }
                let flushed = self.checkpointer.feedback();
                self.checkpoint.lsn = flushed;
                self.feedback.send_modify(|feedback| feedback.flushed = flushed);
            }
            Done::Row(Ok(Written::Refused(refusal))) => {
                let fence = refusal.current.as_ref().and_then(|row| row.integer("fence"));
                return Err(Error::new(
                    Kind::Fenced,
                    format!(
                        "the checkpoint row is no longer ours: fence {fence:?}, we are {}",
                        self.checkpoint.fence
                    ),
                ));
            }
            Done::Row(Err(error)) => {
                self.checkpointer.written(now, false);
                self.store_fails = true;
                warn!(error = %error.chain(), "the checkpoint row could not be written; it is tried again");
                self.stage.progress.trouble(Some(format!("the store fails: {}", advice(&error))));
            }
        }
        Ok(())
    }

    /// Takes back that the store fails. What the sink has to tell stays.
    fn store_works(&mut self) {
        if std::mem::take(&mut self.store_fails) && self.publisher.failures() == 0 {
            info!("the store takes rows again");
            self.stage.progress.trouble(None);
        }
    }

    /// Writes the row if it is time to.
    fn keep_checkpoint(&mut self, now: Monotonic, stopping: bool) {
        let (confirmed, events) = (self.publisher.confirmed(), self.publisher.settled_events());
        while self.commits.front().is_some_and(|(commit, _)| *commit < confirmed) {
            self.commits.pop_front();
        }
        let hurry = stopping || std::mem::take(&mut self.hurry);
        let Some(lsn) = self.checkpointer.poll(now, confirmed, events, hurry) else { return };
        let updated = self.stage.env.clock.wall();
        let write = self.stage.place.advance(&Checkpoint { lsn, updated, ..self.checkpoint.clone() });
        self.writes_shapes = self.intake.shapes().advance(lsn);
        let shapes = self.writes_shapes.then(|| self.intake.shapes().write(&self.stage.place));
        let store = self.stage.store.clone();
        let nonce = self.stage.env.entropy.nonce();
        let (clock, by) = self.deadline();
        self.under.spawn(async move {
            let writing = async {
                match shapes {
                    None => store.write(by, &write).await,
                    Some(shapes) => store.transact(by, &[write, shapes], &nonce).await,
                }
            };
            let written = within(&*clock, by, Box::pin(writing)).await;
            let late = || Error::new(Kind::Unknown, "the store did not answer in time");
            Done::Row(written.unwrap_or_else(|_| Err(late())))
        });
    }

    // === The end ===

    /// Whether everything that was taken in is in the sink and in the row.
    fn is_settled(&self) -> bool {
        !self.publisher.in_transaction()
            && !self.assembler.is_replaying()
            && self.publisher.is_drained()
            && self.checkpointer.feedback() >= self.publisher.confirmed()
    }

    /// Confirms the last position. The sender's owner ends the stream.
    async fn say_goodbye(&mut self) -> Result<End> {
        self.feedback.send_modify(|feedback| feedback.asked += 1);
        // A moment for the last word to leave; if it does not, the row holds it anyway.
        let clock = &self.stage.env.clock;
        clock.sleep(Duration::from_millis(20)).await;
        self.show_now();
        Ok(End::Drained)
    }

    // === Small things ===

    fn deadline(&self) -> (Arc<dyn tenure_clock::Clock>, Monotonic) {
        let clock = self.stage.env.clock.clone();
        let by = clock.deadline(self.stage.settings.call_timeout);
        (clock, by)
    }

    fn wake(&self, now: Monotonic, give_up: Option<Monotonic>) -> Monotonic {
        let checkpoint = self.checkpointer.wake(self.publisher.confirmed(), self.publisher.settled_events());
        let shown = now + Duration::from_secs(1);
        [self.publisher.wake(), checkpoint, give_up].into_iter().flatten().fold(shown, Monotonic::min)
    }

    fn show(&mut self, now: Monotonic) {
        if now >= self.progress_at {
            self.progress_at = now + PROGRESS_INTERVAL;
            self.show_now();
        }
    }

    fn show_now(&self) {
        let (events, bytes) = self.publisher.inflight();
        let received = self.server;
        // Told with the next word to the server; no reason for one by itself.
        self.feedback.send_if_modified(|feedback| {
            feedback.received = received;
            false
        });
        self.stage.progress.update(|progress| {
            progress.epoch = self.checkpoint.fence.0;
            // Others may know more: the server tells only how far it has sent.
            progress.server = progress.server.max(self.server.0);
            progress.received = received.0;
            progress.published = self.publisher.confirmed().0;
            progress.acknowledged = self.checkpointer.feedback().0;
            progress.last_commit_millis =
                self.commits.back().map(|(_, millis)| *millis).or(progress.last_commit_millis);
            progress.oldest_unsettled_millis = self.commits.front().map(|(_, millis)| *millis);
            progress.events = self.publisher.settled_events();
            progress.transactions = self.transactions;
            progress.inflight_events = events as u64;
            progress.inflight_bytes = bytes as u64;
            progress.spilled_bytes = self.assembler.spilled_bytes();
            progress.parked = self.parked;
            progress.throttled = self.throttled;
            progress.failures = self.publisher.failures();
        });
        self.stage.progress.measure(&self.stage.settings.source, self.stage.env.clock.wall());
    }
}

/// Remembers when a transaction committed.
fn note(commits: &mut VecDeque<(Lsn, i64)>, transactions: &mut u64, assembled: &Assembled<'_>) {
    if let Assembled::Begin(transaction) = assembled {
        *transactions += 1;
        if commits.len() == COMMITS_REMEMBERED {
            // The oldest stays: it tells the lag. The newest is told by the next.
            commits.pop_back();
        }
        commits.push_back((transaction.commit_lsn, millis_of(transaction.committed_micros)));
    }
}

fn millis_of(postgres_micros: i64) -> i64 {
    WallTime::from_millis(postgres_micros.saturating_add(POSTGRES_EPOCH_MICROS) / 1000).as_millis()
}

/// Tells the server how far we are, whatever else goes on.
async fn feed(
    env: Env,
    interval: Duration,
    sender: Sender,
    mut news: watch::Receiver<Feedback>,
) -> Result<()> {
    loop {
        let Feedback { received, flushed, .. } = *news.borrow_and_update();
        sender.status(received.max(flushed), flushed, flushed, false).await?;
        tokio::select! {
            biased;
            changed = news.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
            }
            () = env.clock.sleep(interval) => {}
        }
    }
}

/// What went wrong, and what a person can do about it.
fn advice(error: &Error) -> String {
    let what = match error.kind() {
        Kind::Denied => "check credentials and permissions; records wait until it works",
        Kind::Invalid => "check the name and settings; records wait until it works",
        Kind::Throttled => "add shards, or wait",
        Kind::Corrupt => "it needs a person; records wait until it works",
        Kind::Fenced => "somebody else leads",
        Kind::Unknown | Kind::Unavailable => "it is tried again until it works",
    };
    format!("{} ({what})", error.chain())
}
