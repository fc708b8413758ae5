//! One shard, from the lease to its end.
//!
//! ```text
//!   holding ──► rest ──► init ──► read, deliver, checkpoint ──┬──► asked to give, or to stop ──► drain, checkpoint, give
//!              (if it stopped                                 ├──► end of the shard ──► drain, checkpoint SHARD_END, give
//!               here lately)                                  ├──► stopped ──► drain, checkpoint, give, rest
//!                                                             └──► lost
//! ```
//!
//! - CO-1: nothing is delivered while the holding is not valid.
//! - CO-2: a checkpoint never passes a record that is not settled.
//! - CO-3: a lease is given after the checkpoint, and the checkpoint comes after the processor has drained.
//! - CO-4: whatever stops a shard is told, and the shard is not read again at once.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Error, Kind, Result};
use tenure_clock::{Clock, Monotonic, WallTime, within};
use tenure_leases::{Checkpoint, Ending, Holding};
use tenure_stream::HashRange;
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument as _, error, info, warn};

use crate::board::{Control, ShardState};
use crate::checkpointer::Checkpointer;
use crate::claim_checks::ClaimChecks;
use crate::delivery::{Delivery, Shared, Undelivered};
use crate::intake::Intake;
use crate::marks::Begun;
use crate::meters::Meters;
use crate::opening::{Opening, SeekTo, Start};
use crate::processor::{Batch, Drain, Failure, ShardContext, ShardProcessor};
use crate::progress::Fetched;
use crate::recovery::{Answer, Recovery, caught, chain, message};
use crate::shard_reader::{Item, ShardReader};
use crate::stop::Stop;
use crate::worker::Site;
use crate::worker::Source;

/// Throughput is measured over so much time: leases are moved by it, and not often.
const THROUGHPUT_EVERY: Duration = Duration::from_secs(10);

/// The task of one shard.
pub(crate) struct ShardTask {
    pub(crate) site: Arc<Site>,
    pub(crate) source: Source,
    pub(crate) holding: Holding,
    pub(crate) control: watch::Receiver<Control>,
    pub(crate) meters: Meters,
}

/// How a run of a shard ended.
enum Over {
    /// It is to be read from elsewhere.
    Seek(SeekTo),
    /// It is not ours any more, or was given away.
    Gone,
    Stopped(Stop),
}

/// How a run is to end.
enum Leaving {
    Drain(Drain),
    Stop(Stop),
    Seek(SeekTo),
    Fenced,
}

/// One run: a processor, and what belongs to it.
struct Run {
    context: ShardContext,
    processor: Shared,
}

type Work = Pin<Box<dyn Future<Output = Result<(), Undelivered>> + Send>>;
type Storing = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

impl ShardTask {
    /// Runs until the lease is gone.
    ///
    /// # Cancel safety
    /// Dropped, everything under way is dropped: as if the process had been killed.
    pub(crate) async fn run(mut self) {
        self.show(ShardState::Resting);
        if self.rest().await.is_none() {
            return self.show(ShardState::Gone);
        }
        let mut seek = None;
        loop {
            match self.run_once(seek.take()).await {
                Over::Seek(to) if self.holding.ending().is_none() => {
                    info!(?to, "reading from elsewhere");
                    seek = Some(to);
                }
                // It leaves, and is begun elsewhere by whoever has it next.
                Over::Seek(_) => {
                    let _ = self.persist(|| self.holding.give()).await;
                    return self.show(ShardState::Gone);
                }
                Over::Gone => return self.show(ShardState::Gone),
                Over::Stopped(stop) => return self.show(ShardState::Stopped(stop)),
            }
        }
    }

    /// Leaves a shard alone that stopped here lately. `None`: the lease ended meanwhile.
    async fn rest(&self) -> Option<()> {
        let Some(until) = self.site.board.rests_until(&self.holding.lease().key) else { return Some(()) };
        self.holding.progress(false);
        let ends = async {
            match self.holding.ends(None).await {
                Ending::Lost => {}
                Ending::Handoff | Ending::Stop => {
                    let _ = self.persist(|| self.holding.give()).await;
                }
            }
        };
        tokio::select! {
            biased;
            () = ends => None,
            () = self.site.env.clock.sleep_until(until) => Some(()),
        }
    }

    async fn run_once(&mut self, seek: Option<SeekTo>) -> Over {
        let run = self.make(seek.clone());
        self.meters.stopped.set(0.0);
        // A start that hangs loses the lease, as work that hangs does.
        self.holding.progress(true);
        let opening = match self.unless_lost(self.open(&run, seek)).await {
            None => return self.lose(&run).await,
            Some(Err(leaving)) => return self.leave(&run, leaving).await,
            Some(Ok(opening)) => opening,
        };
        self.holding.progress(false);
        let Some(opening) = opening else { return self.leave(&run, Leaving::Drain(Drain::ShardEnd)).await };
        if let Some(doubt) = &opening.doubt {
            self.meters.marks_unknown.increment(1);
            warn!(reason = %doubt, "marks are not known: events may be delivered again, and no gap is judged at first");
        }
        info!(position = ?opening.position, "reading");
        let leaving = match self.follow(&run, &opening).await {
            Some(leaving) => leaving,
            None => return self.lose(&run).await,
        };
        self.leave(&run, leaving).await
    }

    fn make(&self, sought: Option<SeekTo>) -> Run {
        let site = &self.site;
        let recovery = Recovery {
            env: site.env.clone(),
            settings: site.settings.clone(),
            holding: self.holding.clone(),
            dead_letters: site.dead_letters.clone(),
            meters: self.meters.clone(),
        };
        let context = ShardContext {
            app: site.app.clone(),
            stream: self.source.stream.name().into(),
            holding: self.holding.clone(),
            checkpointer: Checkpointer::new(self.holding.clone(), self.meters.clone()),
            sought,
            recovery,
        };
        let made = catch_unwind(AssertUnwindSafe(|| site.factory.make(&context)));
        let processor = made.unwrap_or_else(|panic| Box::new(Unmade(message(&*panic).to_owned())));
        Run { context, processor: Arc::new(Mutex::new(processor)) }
    }

    /// Starts the processor and finds out where to begin. `None`: at the end.
    async fn open(&self, run: &Run, seek: Option<SeekTo>) -> Result<Option<Opening>, Leaving> {
        let recovery = &run.context.recovery;
        let mut failures = 0;
        let start = loop {
            recovery.until_valid().await;
            let init = async { run.processor.lock().await.init(&run.context).await };
            let failure = match caught(init).await {
                Ok(start) => break start,
                Err(failure) => failure,
            };
            failures += 1;
            match recovery.after(&failure, failures).await {
                Answer::Again => {}
                Answer::GaveUp(why) => {
                    let text = format!("the processor could not begin: {why}");
                    return Err(Leaving::Stop(Stop::Processor(text)));
                }
                Answer::Stop(stop) => return Err(Leaving::Stop(stop)),
                Answer::Fenced => return Err(Leaving::Fenced),
            }
        };
        if let Some(to) = seek {
            return Ok(Some(to.opening()));
        }
        let timestamp = self.site.settings.initial_timestamp;
        Opening::new(self.holding.lease(), self.holding.parents(), &start, timestamp)
            .map_err(|error| Leaving::Stop(Stop::Settings(error.chain())))
    }

    /// Reads, delivers and checkpoints until the run is to end. `None`: the lease is lost.
    async fn follow(&mut self, run: &Run, opening: &Opening) -> Option<Leaving> {
        let (site, checkpointer) = (self.site.clone(), &run.context.checkpointer);
        let clock = &*site.env.clock;
        checkpointer.begin(opening.dedup.clone(), opening.stored.clone());
        let (_reader, mut items) = self.read(run, opening);
        let mut work: Option<Work> = None;
        let mut storing: Option<Storing> = None;
        let mut leaving: Option<Leaving> = None;
        let mut known = None;
        let mut full = false;
        // Where a word such as "latest" is, is stored also while nothing is read: later it would be elsewhere.
        let mut is_found = opening.undecided.is_none();
        let mut throughput = Throughput { since: clock.monotonic(), bytes: 0 };
        let every = site.settings.checkpoint_every;
        let mut next_checkpoint = every.map(|every| clock.deadline(every));
        loop {
            if work.is_none()
                && let Some(leaving) = leaving.take()
            {
                return Some(leaving);
            }
            let control = self.control.borrow_and_update().clone();
            if let Some(to) = control.seek.filter(|_| leaving.is_none()) {
                self.site.board.seek_taken(&self.holding.lease().key, &to);
                leaving = Some(Leaving::Seek(to));
                continue;
            }
            let (records, bytes) = checkpointer.outstanding();
            let room =
                records < site.settings.unsettled_records_max && bytes < site.settings.unsettled_bytes_max;
            if !room && !full && work.is_none() {
                warn!(
                    records,
                    bytes, "the processor has taken much and settled none of it: nothing more is read"
                );
            }
            full = !room;
            self.show(match (&leaving, control.paused) {
                (Some(_), _) => ShardState::Draining,
                (None, true) => ShardState::Paused,
                (None, false) => ShardState::Reading,
            });
            let takes = work.is_none() && leaving.is_none() && room && (!control.paused || !is_found);
            tokio::select! {
                biased;
                ending = self.holding.ends(known) => {
                    known = Some(ending);
                    let drain = match ending {
                        Ending::Lost => return None,
                        Ending::Handoff => Drain::Handoff,
                        Ending::Stop => Drain::Shutdown,
                    };
                    info!(?ending, "asked to let go of the shard");
                    leaving = match leaving {
                        // Whoever has the shard next begins it elsewhere.
                        None | Some(Leaving::Seek(_)) => Some(Leaving::Drain(drain)),
                        other => other,
                    };
                }
                () = checkpointer.failed() => {
                    work = None;
                    leaving = Some(self.failed(run));
                }
                done = maybe(&mut work) => {
                    work = None;
                    match done {
                        Ok(()) => {}
                        Err(Undelivered::Fenced) => leaving = Some(Leaving::Fenced),
                        // What went wrong in the background says more.
                        Err(Undelivered::Stop(stop)) => leaving = Some(match checkpointer.take_failure() {
                            Some(failure) => leaving_after(failure),
                            None => Leaving::Stop(stop),
                        }),
                    }
                }
                stored = maybe(&mut storing) => {
                    storing = None;
                    match stored {
                        Ok(()) => {}
                        Err(error) if error.kind() == Kind::Fenced => return None,
                        Err(error) => warn!(error = %error.chain(), "a checkpoint could not be stored; the next will do"),
                    }
                }
                () = until(clock, next_checkpoint), if storing.is_none() => {
                    next_checkpoint = every.map(|every| clock.deadline(every));
                    throughput.tell(&self.holding, clock.monotonic());
                    let checkpointer = checkpointer.clone();
                    storing = Some(Box::pin(async move { checkpointer.checkpoint().await }));
                }
                () = checkpointer.settled(), if !room => {}
                changed = self.control.changed() => {
                    // The worker is gone, and with it who could change anything.
                    if changed.is_err() {
                        return None;
                    }
                }
                item = items.recv(), if takes => match item {
                    Some(Item::Begun(begun, through)) => {
                        is_found = true;
                        work = opening.undecided.clone().map(|word| keep_beginning(run, word, begun, through));
                    }
                    Some(Item::Batch(fetched, behind)) => {
                        throughput.bytes += fetched.bytes as u64;
                        work = self.begin(run, fetched, behind);
                    }
                    Some(Item::End) => leaving = Some(Leaving::Drain(Drain::ShardEnd)),
                    Some(Item::Stop(stop)) => leaving = Some(Leaving::Stop(stop)),
                    None => leaving = Some(Leaving::Stop(Stop::Processor("the reader of the shard has ended".to_owned()))),
                },
            }
        }
    }

    fn read(&self, run: &Run, opening: &Opening) -> (AbortOnDropHandle<()>, mpsc::Receiver<Item>) {
        let site = &self.site;
        let range = self.holding.lease().range.unwrap_or(HashRange::ALL);
        let settings = &site.settings;
        let claim_checks =
            site.store.as_ref().map(|store| ClaimChecks { store: store.clone(), env: site.env.clone() });
        let reader = ShardReader {
            source: self.source.clone(),
            intake: Intake::new(opening, range, settings.on_damaged, settings.accept_loss),
            recovery: run.context.recovery.clone(),
            claim_checks,
            budget: site.budget.clone(),
            start: opening.position.clone(),
            undecided: opening.undecided.is_some(),
            through: opening.through,
            site: site.clone(),
            lease: self.holding.lease().key.clone(),
        };
        let (out, items) = mpsc::channel(settings.prefetch_batches);
        let task = tokio::spawn(reader.run(out).instrument(tracing::Span::current()));
        (AbortOnDropHandle::new(task), items)
    }

    /// Takes note of a batch, and delivers it if there is anything to deliver.
    fn begin(&self, run: &Run, fetched: Arc<Fetched>, behind: Duration) -> Option<Work> {
        let first = run.context.checkpointer.register(fetched.clone()).start;
        self.site.board.note_progress(&self.holding.lease().key, &run.context.checkpointer);
        if fetched.records.is_empty() {
            return None;
        }
        self.meters.records.increment(fetched.records.len() as u64);
        self.meters.bytes.increment(fetched.bytes as u64);
        let (processor, context) = (run.processor.clone(), run.context.clone());
        Some(Box::pin(Delivery { processor, context, fetched, behind, first }.run()))
    }

    fn failed(&self, run: &Run) -> Leaving {
        match run.context.checkpointer.take_failure() {
            Some(failure) => leaving_after(failure),
            None => Leaving::Stop(Stop::Processor("the processor failed".to_owned())),
        }
    }

    // === the ends of a run ===

    /// Lets go in good order: drain, checkpoint, give.
    async fn leave(&self, run: &Run, leaving: Leaving) -> Over {
        self.show(ShardState::Draining);
        self.holding.progress(true);
        match self.unless_lost(self.leave_in_order(run, leaving)).await {
            Some(Some(over)) => over,
            Some(None) | None => self.lose(run).await,
        }
    }

    /// `None`: somebody else has the shard.
    async fn leave_in_order(&self, run: &Run, leaving: Leaving) -> Option<Over> {
        let checkpointer = &run.context.checkpointer;
        let why = match &leaving {
            Leaving::Fenced => {
                // Another has what this shard writes to, and yet the lease may be ours: who takes it next claims both.
                self.tell_lost(run).await;
                checkpointer.close();
                self.persist(|| self.holding.give()).await?;
                return Some(Over::Gone);
            }
            Leaving::Drain(why) => *why,
            Leaving::Stop(_) | Leaving::Seek(_) => Drain::Shutdown,
        };
        let drained = caught(async { run.processor.lock().await.drain(why).await }).await;
        let failure = checkpointer.take_failure().or(drained.err());
        let failed = failure.map(leaving_after);
        let leaving = match (leaving, failed) {
            (_, Some(Leaving::Fenced)) => return None,
            // What stopped it first says more.
            (Leaving::Stop(stop), _) | (_, Some(Leaving::Stop(stop))) => Leaving::Stop(stop),
            (leaving, _) => leaving,
        };
        let outstanding = checkpointer.outstanding().0;
        let leaving = match leaving {
            Leaving::Drain(Drain::ShardEnd) if outstanding > 0 => {
                let text = format!(
                    "the processor has drained at the end of the shard and left {outstanding} records unsettled"
                );
                Leaving::Stop(Stop::Processor(text))
            }
            other => other,
        };
        // Before the lease is given: once it is, this worker hears that it is not its own any more, and is done.
        if let Leaving::Stop(stop) = &leaving {
            error!(reason = stop.name(), detail = %stop, "shard stopped");
            self.meters.stop(stop.name());
            self.site.board.note_stop(&self.holding.lease().key, &self.site);
        }
        if tenure_planted::is("gives_before_checkpoint") {
            self.persist(|| self.holding.give()).await?;
        }
        match &leaving {
            Leaving::Drain(Drain::ShardEnd) => self.persist(|| checkpointer.checkpoint_end()).await?,
            _ => self.persist(|| checkpointer.checkpoint()).await?,
        }
        checkpointer.close();
        match leaving {
            Leaving::Seek(to) => Some(Over::Seek(to)),
            Leaving::Stop(stop) => {
                self.persist(|| self.holding.give()).await?;
                Some(Over::Stopped(stop))
            }
            Leaving::Drain(why) => {
                self.persist(|| self.holding.give()).await?;
                info!(?why, at = ?checkpointer.at(), "let go of the shard");
                Some(Over::Gone)
            }
            Leaving::Fenced => None,
        }
    }

    async fn lose(&self, run: &Run) -> Over {
        info!("the lease is lost");
        run.context.checkpointer.close();
        self.tell_lost(run).await;
        Over::Gone
    }

    /// Tells the processor that the shard is lost. One that panics or hangs is left behind: nothing waits for it.
    async fn tell_lost(&self, run: &Run) {
        let lost = caught(async {
            run.processor.lock().await.lost().await;
            Ok(())
        });
        let clock = &*self.site.env.clock;
        match within(clock, clock.deadline(self.site.settings.call_timeout), lost).await {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => {
                warn!(error = chain(&*failure), "the processor failed to let go of a lost shard");
            }
            Err(_) => error!("the processor did not let go of a lost shard: it is cut off"),
        }
    }

    /// Does something until it is done. `None`: somebody else has the shard.
    async fn persist<F: Future<Output = Result<()>>>(&self, mut attempt: impl FnMut() -> F) -> Option<()> {
        let mut failures: u32 = 0;
        loop {
            match attempt().await {
                Ok(()) => return Some(()),
                Err(error) if error.kind() == Kind::Fenced => return None,
                // After a step back: the stored checkpoint is further, and stays.
                Err(error) if error.kind() == Kind::Invalid => {
                    warn!(error = %error.chain(), "the lease is left as it is");
                    return Some(());
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    warn!(error = %error.chain(), failures, "the lease could not be written; it is tried again");
                    let doubled = self.site.settings.retry_pause_min.saturating_mul(1 << failures.min(10));
                    let pause = doubled.min(self.site.settings.retry_pause_max);
                    self.site.env.clock.sleep(pause / 2 + self.site.env.entropy.up_to(pause / 2)).await;
                }
            }
        }
    }

    /// `None`: the lease is lost.
    async fn unless_lost<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let lost = async {
            let mut known = None;
            loop {
                match self.holding.ends(known).await {
                    Ending::Lost => break,
                    other => known = Some(other),
                }
            }
        };
        tokio::select! {
            biased;
            // First: whoever has just given the lease has it no more, and did not lose it. What needs a lease that
            // is lost says so itself.
            done = future => Some(done),
            () = lost => None,
        }
    }

    fn show(&self, state: ShardState) {
        self.site.board.show(&self.holding.lease().key, state);
    }
}

/// Stores where the shard begins, before anything of it is delivered.
fn keep_beginning(run: &Run, word: Checkpoint, begun: Begun, through: Option<WallTime>) -> Work {
    let (checkpointer, recovery) = (run.context.checkpointer.clone(), run.context.recovery.clone());
    Box::pin(async move {
        let mut failures: u32 = 0;
        loop {
            match checkpointer.checkpoint_begun(word.clone(), begun.clone(), through).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == Kind::Fenced => return Err(Undelivered::Fenced),
                Err(error) if error.kind() == Kind::Invalid => {
                    warn!(error = %error.chain(), "where the shard begins is not stored");
                    return Ok(());
                }
                Err(error) => {
                    failures = failures.saturating_add(1);
                    warn!(error = %error.chain(), failures, "where the shard begins could not be stored; it is tried again");
                    recovery.env.clock.sleep(recovery.pause(failures)).await;
                }
            }
        }
    })
}

fn leaving_after(failure: Failure) -> Leaving {
    if failure.downcast_ref::<Error>().is_some_and(|error| error.kind() == Kind::Fenced) {
        return Leaving::Fenced;
    }
    Leaving::Stop(match failure.downcast_ref::<Stop>() {
        Some(stop) => stop.clone(),
        None => Stop::Processor(chain(&*failure)),
    })
}

/// Stands for a processor whose factory panicked.
struct Unmade(String);

#[async_trait::async_trait]
impl ShardProcessor for Unmade {
    async fn init(&mut self, _: &ShardContext) -> Result<Start, Failure> {
        Err(Stop::Processor(format!("the factory of processors panicked: {}", self.0)).into())
    }

    async fn process(&mut self, _: &Batch) -> Result<(), Failure> {
        Err("there is no processor".into())
    }
}

/// How much is read of a shard.
struct Throughput {
    since: Monotonic,
    bytes: u64,
}

impl Throughput {
    fn tell(&mut self, holding: &Holding, now: Monotonic) {
        let took = now.since(self.since);
        if took >= THROUGHPUT_EVERY {
            holding.measured(self.bytes as f64 / 1024.0 / took.as_secs_f64());
            *self = Self { since: now, bytes: 0 };
        }
    }
}

/// What is done, if anything is being done.
async fn maybe<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => pending().await,
    }
}

async fn until(clock: &dyn Clock, moment: Option<Monotonic>) {
    match moment {
        Some(moment) => clock.sleep_until(moment).await,
        None => pending().await,
    }
}
