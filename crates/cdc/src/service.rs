//! Keeps a pipeline going: stands by, leads, and stands by again, until it is asked to stop.
//!
//! Flow of a term: connect, get leadership, read the checkpoint row, look at the server and the slot, decide
//! where to begin, stamp the row with the fence, and only then start to stream.
//!
//! Guarantees: what the row says is in the sink; nothing is published before the row carries this leader's
//! fence and era; a gap stops with an error and is never skipped.
//! Assumptions: one slot per pipeline, and nobody else who confirms on it.
//! Caveats: after a crash, what was published after the last row is published again, with the same identity.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, Error, Kind, Result};
use tenure_clock::Monotonic;
use tenure_election::{
    AdvisoryElector, AdvisoryLeadership, AdvisorySettings, Elector, Leadership, LockKey, Settings, Term,
    table_spec,
};
use tenure_store::{Store, Written};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::checkpoint::{Checkpoint, CheckpointPlace};
pub use crate::pipeline::End;
use crate::pipeline::{Pipeline, Stage};
use crate::progress::Progress;
use crate::quarantine::{KEPT_BEYOND_RETENTION, Quarantine};
use crate::server::{self, Slot, System};
use crate::settings::PipelineSettings;
use crate::shapes::{Shapes, shapes_key};
use crate::sink::Sink;
use crate::start::{self, ServerView, SlotView, TimelineEnd};
use crate::transport::{Endpoint, PluginOptions, Session};

/// How long a slot may stay in use after its last leader is gone.
const SLOT_RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often it is looked at meanwhile.
const SLOT_RELEASE_POLL: Duration = Duration::from_millis(20);
/// Sessions, one after another, that get no further before a person must look.
const SESSIONS_MAX: u32 = 3;
/// Waits between terms that failed: the first, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How one of several processes becomes the leader.
#[derive(Debug, Clone)]
pub enum LeadershipBy {
    /// An advisory lock on the replication session itself: it ends with the stream.
    AdvisoryLock(AdvisorySettings),
    /// An election on the store.
    Store(Settings),
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Service {
    env: Env,
    endpoint: Endpoint,
    settings: Arc<PipelineSettings>,
    sink: Arc<dyn Sink>,
    store: Arc<dyn Store>,
    leadership: LeadershipBy,
    /// How long the sink keeps what it has.
    retention: Duration,
    progress: Progress,
}

/// Leadership of either kind.
enum Lead {
    Advisory(AdvisoryLeadership),
    Store(Leadership),
}

impl Lead {
    const fn term(&self) -> &Term {
        match self {
            Self::Advisory(leadership) => leadership.term(),
            Self::Store(leadership) => leadership.term(),
        }
    }

    async fn resign(self) -> Result<()> {
        match self {
            Self::Advisory(leadership) => leadership.resign().await,
            Self::Store(leadership) => leadership.resign(None).await,
        }
    }
}

impl Service {
    /// Checks the settings. Nothing is asked or written yet.
    ///
    /// # Errors
    /// `Invalid`, naming the setting and what to give instead.
    pub fn new(
        env: Env,
        endpoint: Endpoint,
        settings: PipelineSettings,
        sink: Arc<dyn Sink>,
        store: Arc<dyn Store>,
        leadership: LeadershipBy,
    ) -> Result<Self> {
        settings.validate()?;
        let (settings, progress) = (Arc::new(settings), Progress::default());
        let retention = Duration::from_secs(24 * 3600);
        Ok(Self { env, endpoint, settings, sink, store, leadership, retention, progress })
    }

    /// How long the sink keeps what it has; what is parked stays a week longer. A day by default.
    #[must_use]
    pub const fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How far it is.
    #[must_use]
    pub const fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Where its checkpoint row is.
    #[must_use]
    pub fn place(&self) -> CheckpointPlace {
        CheckpointPlace {
            table: self.settings.table.clone(),
            stream: self.sink.name().into(),
            source: self.settings.source.clone(),
        }
    }

    /// Runs until asked to stop; then everything that was taken in is settled, and the next leader publishes
    /// nothing twice. Says if that could not be had in time.
    ///
    /// # Errors
    /// What a person must mend: a gap, missing permissions, a slot or publication that is not there. Whatever
    /// may pass by itself is tried again for as long as it takes.
    pub async fn run(&self, stop: CancellationToken) -> Result<End> {
        let (mut pause, mut patience) = (PAUSE_MIN, Patience::default());
        while !stop.is_cancelled() {
            self.progress.update(|progress| progress.role = "standby".to_owned());
            let began = self.env.clock.monotonic();
            let mut streamed = false;
            match Box::pin(self.term(&stop, &mut streamed)).await {
                Ok(ended) => {
                    self.progress.update(|progress| progress.role = "stopped".to_owned());
                    return Ok(ended);
                }
                Err(error)
                    if is_final(error.kind())
                        && !(streamed
                            && patience.lasts(error.kind(), self.progress.snapshot().acknowledged)) =>
                {
                    self.progress.trouble(Some(error.chain()));
                    return Err(error);
                }
                Err(error) => {
                    warn!(error = %error.chain(), kind = %error.kind(), "the term ended; standing by again");
                    self.progress.trouble(Some(error.chain()));
                    if self.env.clock.monotonic().since(began) > PAUSE_MAX {
                        pause = PAUSE_MIN;
                    }
                    let wait = pause / 2 + self.env.entropy.up_to(pause / 2);
                    pause = (pause * 2).min(PAUSE_MAX);
                    tokio::select! {
                        biased;
                        () = stop.cancelled() => {}
                        () = self.env.clock.sleep(wait) => {}
                    }
                }
            }
        }
        self.progress.update(|progress| progress.role = "stopped".to_owned());
        Ok(End::Drained)
    }

    /// One term, from connecting to its end. `Ok` if it was asked to stop.
    async fn term(&self, stop: &CancellationToken, streamed: &mut bool) -> Result<End> {
        let mut session = self.connect().await?;
        self.check_server(&mut session).await?;
        let campaign = self.campaign(&session);
        let lead = tokio::select! {
            biased;
            () = stop.cancelled() => return Ok(End::Drained),
            lead = campaign => lead?,
        };
        self.progress.update(|progress| {
            progress.role = "starting".to_owned();
            progress.trouble = None;
        });
        let epoch = lead.term().fence().epoch();
        info!(%epoch, slot = %self.settings.slot, sink = self.sink.name(), "leading");
        let (session, led) = self.lead(session, lead.term(), stop, streamed).await;
        match &led {
            Ok(End::Drained) => info!("everything is settled and confirmed"),
            Ok(End::Abandoned) => {
                warn!("stopped before everything was settled: the next leader publishes it again")
            }
            // Whatever ends a term, the lock goes with the session, so that another may lead.
            Err(_) => drop(session),
        }
        let resigned = lead.resign().await;
        let end = led?;
        if let Err(error) = resigned {
            warn!(error = %error.chain(), "leadership could not be given back; it ends with the session");
        }
        Ok(end)
    }

    async fn connect(&self) -> Result<Session> {
        let session = Session::connect(&self.endpoint, self.env.clock.clone(), self.by()).await;
        session.map_err(|error| error.during("connect to Postgres"))
    }

    async fn check_server(&self, session: &mut Session) -> Result<()> {
        check_fitness(session, self.by()).await?;
        for name in &self.settings.publications {
            if server::publication(session, self.by(), name).await?.is_none() {
                return Err(Error::invalid(format!(
                    "publication `{name}` does not exist: run `tenure cdc setup`, or CREATE PUBLICATION it"
                )));
            }
        }
        Ok(())
    }

    async fn campaign(&self, session: &Session) -> Result<Lead> {
        let source = &self.settings.source;
        let shard = format!("cdc-{source}");
        match &self.leadership {
            LeadershipBy::AdvisoryLock(settings) => {
                let key = lock_key(&self.settings);
                let lock = Arc::new(session.lock());
                let store = self.store.clone();
                let elector = AdvisoryElector::new(lock, key, store, &shard, settings.clone(), &self.env)?;
                elector.lead().await.map(Lead::Advisory)
            }
            LeadershipBy::Store(settings) => {
                let builder = Elector::builder(self.store.clone(), shard, &self.env);
                let elector = builder.settings(settings.clone()).build()?;
                elector.lead().await.map(Lead::Store)
            }
        }
    }

    /// Leads with this session, and gives it back if the stream ended in good order.
    async fn lead(
        &self,
        mut session: Session,
        term: &Term,
        stop: &CancellationToken,
        streamed: &mut bool,
    ) -> (Option<Session>, Result<End>) {
        let begun = self.begin(&mut session, term).await;
        let checkpoint = match begun {
            Ok(checkpoint) => checkpoint,
            Err(error) => return (Some(session), Err(error)),
        };
        // After the row is ours: nobody else writes them from here on.
        let shapes = match self.shapes(&checkpoint).await {
            Ok(shapes) => shapes,
            Err(error) => return (Some(session), Err(error)),
        };
        info!(start = %checkpoint.lsn, era = checkpoint.era.0, "starting to stream");
        let mut options = PluginOptions::new(self.settings.publications.clone());
        options.messages = self.settings.messages;
        // Of a message in a streamed transaction the server does not tell whether it was rolled back.
        options.streaming = self.settings.streaming && !self.settings.messages;
        let slot = &self.settings.slot;
        let started = session.start_replication(self.by(), slot, checkpoint.lsn, &options).await;
        let (mut receiver, sender) = match started {
            Ok(halves) => halves,
            Err(error) => return (None, Err(error)),
        };
        self.progress.update(|progress| {
            progress.role = "leader".to_owned();
            progress.started_at = checkpoint.lsn.0;
        });
        let stage = self.stage(stop.clone());
        let ended = match Pipeline::new(stage, term.clone(), checkpoint, shapes, sender.clone()).await {
            Ok(pipeline) => {
                *streamed = true;
                Box::pin(pipeline.run(&mut receiver)).await
            }
            Err(error) => Err(error),
        };
        match ended {
            Ok(end) => match receiver.rejoin(self.by(), sender).await {
                Ok(session) => (Some(session), Ok(end)),
                Err(error) => {
                    warn!(error = %error.chain(), "the stream could not be ended in good order");
                    (None, Ok(end))
                }
            },
            Err(error) => (None, Err(error)),
        }
    }

    /// Finds out where to begin, and makes the row this leader's.
    async fn begin(&self, session: &mut Session, term: &Term) -> Result<Checkpoint> {
        let place = self.place();
        self.store.ensure_table(self.by(), &table_spec(&place.table)).await?;
        self.quarantine().prepare(self.by()).await?;
        // In this order: a leader before us that still runs writes the row first and tells the slot then. A
        // row that is read after the slot is never behind it.
        let slot = self.released_slot(session).await?;
        let row = read_row(&*self.store, self.by(), &place).await?;
        let server = view_server(session, self.by(), row.as_ref()).await?;
        let view = slot.as_ref().map(|slot| view_slot(slot, self.endpoint.database()));
        let settings = &self.settings;
        let lsn = start::begin(row.as_ref(), settings.slot.as_str(), view.as_ref(), &server, settings.lanes)
            .map_err(|refusal| Error::invalid(refusal.to_string()))?;
        let checkpoint = Checkpoint {
            system_id: server.system_id.clone(),
            timeline: server.timeline,
            slot: settings.slot.as_str().into(),
            lsn,
            era: start::era(row.as_ref(), &server),
            lanes: settings.lanes,
            fence: term.fence().epoch(),
            updated: self.env.clock.wall(),
        };
        let write = match row {
            Some(row) if row.era == checkpoint.era => place.advance(&checkpoint),
            Some(_) => place.begin_era(&checkpoint),
            None => place.create(&checkpoint),
        };
        let written = self.store.write(self.by(), &write).await;
        match written.map_err(|error| error.during("stamp the checkpoint row"))? {
            Written::Applied(_) => Ok(checkpoint),
            Written::Refused(_) => Err(Error::new(
                Kind::Fenced,
                "somebody newer has written the checkpoint row while this leader began",
            )),
        }
    }

    /// How the tables looked at the checkpoint.
    async fn shapes(&self, checkpoint: &Checkpoint) -> Result<Shapes> {
        let place = self.place();
        let row = self.store.get(self.by(), &place.table, &shapes_key(&place)).await;
        let row = row.map_err(|error| error.during("read the tables' shapes"))?;
        Ok(Shapes::read(row.as_ref(), checkpoint.system_id.clone()))
    }

    /// The slot, once nobody uses it.
    async fn released_slot(&self, session: &mut Session) -> Result<Option<Slot>> {
        let by = self.env.clock.deadline(SLOT_RELEASE_TIMEOUT);
        loop {
            let slot = server::slot(session, self.by(), &self.settings.slot).await?;
            match slot {
                Some(Slot { active: true, active_pid, .. }) => {
                    if self.env.clock.monotonic() >= by {
                        let who =
                            active_pid.map_or_else(|| "somebody".to_owned(), |pid| format!("process {pid}"));
                        return Err(Error::unavailable(format!(
                            "slot `{}` is in use by {who} (see pg_stat_replication): stop it, or name another slot \
                             with --slot",
                            self.settings.slot
                        )));
                    }
                    self.env.clock.sleep(SLOT_RELEASE_POLL).await;
                }
                slot => return Ok(slot),
            }
        }
    }

    fn quarantine(&self) -> Quarantine {
        let (source, kept) = (self.settings.source.clone(), self.retention + KEPT_BEYOND_RETENTION);
        Quarantine::new(self.store.clone(), self.env.clock.clone(), source, kept)
    }

    fn stage(&self, stop: CancellationToken) -> Stage {
        Stage {
            env: self.env.clone(),
            settings: self.settings.clone(),
            sink: self.sink.clone(),
            store: self.store.clone(),
            quarantine: self.quarantine(),
            place: self.place(),
            progress: self.progress.clone(),
            stop,
        }
    }

    fn by(&self) -> Monotonic {
        self.env.clock.deadline(self.settings.call_timeout)
    }
}

/// How often a stream that cannot be understood is begun anew: what was damaged on its way, or mixed up in one
/// session, is whole in the next. What the server's log itself holds is not.
#[derive(Debug, Default)]
struct Patience {
    failures: u32,
    /// How far it was then.
    acknowledged: u64,
}

impl Patience {
    /// Whether another session may help.
    const fn lasts(&mut self, kind: Kind, acknowledged: u64) -> bool {
        if !matches!(kind, Kind::Corrupt) {
            return false;
        }
        if acknowledged > self.acknowledged {
            (self.failures, self.acknowledged) = (0, acknowledged);
        }
        self.failures += 1;
        self.failures <= SESSIONS_MAX
    }
}

/// Whether a person must mend it.
const fn is_final(kind: Kind) -> bool {
    match kind {
        Kind::Denied | Kind::Invalid | Kind::Corrupt => true,
        Kind::Fenced | Kind::Unknown | Kind::Throttled | Kind::Unavailable => false,
    }
}

/// The lock that candidates of a pipeline compete for.
#[must_use]
pub fn lock_key(settings: &PipelineSettings) -> LockKey {
    LockKey::named(&format!("tenure-cdc/{}/{}", settings.source, settings.slot))
}

/// Reads the checkpoint row.
///
/// # Errors
/// As the store's, `Corrupt` if the row is not one.
pub async fn read_row(
    store: &dyn Store,
    by: Monotonic,
    place: &CheckpointPlace,
) -> Result<Option<Checkpoint>> {
    let found = store.get(by, &place.table, &place.key()).await;
    let found = found.map_err(|error| error.during("read the checkpoint row"))?;
    found.as_ref().map(Checkpoint::read).transpose()
}

/// Checks that the server can stream changes at all.
///
/// # Errors
/// `Invalid` with what to set, `Unavailable` if it is a standby.
pub async fn check_fitness(session: &mut Session, by: Monotonic) -> Result<()> {
    let fitness = server::fitness(session, by).await?;
    if fitness.wal_level != "logical" {
        return Err(Error::invalid(format!(
            "wal_level is `{}`: set `wal_level = logical` in postgresql.conf (or rds.logical_replication = 1) and \
             restart the server",
            fitness.wal_level
        )));
    }
    if fitness.in_recovery {
        return Err(Error::unavailable("the server is a standby: connect to the primary"));
    }
    Ok(())
}

/// What the server says about itself, as far as a start needs it.
///
/// # Errors
/// As [`Session::query`].
pub async fn view_server(
    session: &mut Session,
    by: Monotonic,
    row: Option<&Checkpoint>,
) -> Result<ServerView> {
    let System { system_id, timeline, flushed, .. } = server::identify(session, by).await?;
    let history = match row {
        Some(row) if row.timeline != timeline => read_history(session, by, timeline).await?,
        _ => Vec::new(),
    };
    Ok(ServerView { system_id: system_id.to_string().into(), timeline, log_end: flushed, history })
}

async fn read_history(session: &mut Session, by: Monotonic, timeline: u32) -> Result<Vec<TimelineEnd>> {
    if timeline == 1 {
        // Nothing was before it, and the server has no file that says so.
        return Ok(Vec::new());
    }
    let rows = session.query(by, &format!("TIMELINE_HISTORY {timeline}")).await?;
    let text = rows.first().and_then(|row| row.named("content")).unwrap_or_default();
    Ok(start::read_history(text))
}

/// What a start needs to know of a slot.
#[must_use]
pub fn view_slot(slot: &Slot, database: &str) -> SlotView {
    let lost =
        slot.is_lost().then(|| slot.invalidated.clone().unwrap_or_else(|| "its WAL was removed".to_owned()));
    SlotView {
        plugin: slot.plugin.as_deref().unwrap_or("none, it is a physical slot").into(),
        same_database: slot.database.as_deref() == Some(database),
        two_phase: slot.two_phase,
        confirmed: slot.confirmed_flush,
        lost: lost.map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_understood_is_read_again_a_few_times_and_no_more_while_it_gets_no_further() {
        let mut patience = Patience::default();
        assert!(!patience.lasts(Kind::Invalid, 5), "that is for a person at once");
        for _ in 0..SESSIONS_MAX {
            assert!(patience.lasts(Kind::Corrupt, 5));
        }
        assert!(!patience.lasts(Kind::Corrupt, 5));
        assert!(patience.lasts(Kind::Corrupt, 6), "it got further");
    }
}
