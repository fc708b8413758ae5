//! The workload: writers write, readers read, faults happen, and everything is waited out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::json;
use tenure_clock::Monotonic;
use tenure_store::StoreExt;
use tenure_stream::ShardId;

use super::crew::{Crew, Heard, Name, Role, What};
use super::display::{Display, Live, LiveReader, LiveWriter};
use super::faults::{self, Fault, PAUSE_MAX, PAUSE_MIN, Paused};
use super::ledger::compare;
use super::rows::{self, DELIVERIES, MARKS, ROWS_MAX};
use super::site::{SHARDS, Site};
use super::summary::Outcome;
use super::wire::Report;
use super::writer::{RECORDS_PER_NUMBER, keys_of};

const WRITERS: u32 = 3;
const READERS: u32 = 3;

/// The other number of shards. Going back and forth takes splits and merges.
const MORE_SHARDS: u32 = 6;

/// How long everything may take to be delivered after the workload's time.
const HEALING_MAX: Duration = Duration::from_secs(45);
/// How much of that the writers may go on writing if faults are still due, on a machine so slow that
/// they did not fit into the workload's time.
const OVERTIME_MAX: Duration = Duration::from_secs(20);
/// How long readers may take to give back their shards at the end.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// How often time is looked at when nobody says anything.
const TICK: Duration = Duration::from_millis(100);

/// Where a writer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Writing,
    /// Killed, and not yet seen to have gone.
    Killed,
    /// Asked to end.
    Ending,
    Ended,
}

struct Writer {
    state: State,
    acknowledged: BTreeSet<u64>,
}

#[derive(Default)]
struct Reader {
    delivered: u64,
    shards: BTreeSet<String>,
}

/// Conducts writers, readers and faults.
pub(super) struct Workload<'a> {
    crew: &'a mut Crew,
    site: &'a Site,
    display: &'a mut Display,
    began: Monotonic,
    ends: Monotonic,
    /// Whether a killed writer is replaced.
    writing: bool,
    calendar: VecDeque<(Duration, Fault)>,
    writers: BTreeMap<u32, Writer>,
    readers: BTreeMap<u32, Reader>,
    paused: Option<Paused>,
    outcome: Outcome,
}

impl<'a> Workload<'a> {
    pub(super) fn new(
        crew: &'a mut Crew,
        site: &'a Site,
        display: &'a mut Display,
        length: Duration,
    ) -> Self {
        let began = site.env.clock.monotonic();
        let writer = || Writer { state: State::Writing, acknowledged: BTreeSet::new() };
        Self {
            crew,
            site,
            display,
            began,
            ends: began + length,
            writing: true,
            calendar: faults::calendar(length),
            writers: (1..=WRITERS).map(|number| (number, writer())).collect(),
            readers: (1..=READERS).map(|number| (number, Reader::default())).collect(),
            paused: None,
            outcome: Outcome { shard_counts: vec![SHARDS], ..Outcome::default() },
        }
    }

    /// Runs to the end: the workload, the healing, the comparison.
    pub(super) async fn run(&mut self) -> Result<Outcome> {
        self.display.say(&format!(
            "{WRITERS} writer processes fill {SHARDS} shards, {READERS} reader processes divide them by rows in the store."
        ))?;
        for number in 1..=READERS {
            self.crew.start(Name::reader(number), 1)?;
        }
        for number in 1..=WRITERS {
            self.crew.start(Name::writer(number), 1)?;
        }
        while self.now() < self.ends || self.is_overtime() {
            self.turn().await?;
            self.disturb().await?;
        }
        self.writing = false;
        self.heal().await?;
        self.dismiss_readers().await?;
        self.draw_up().await
    }

    fn is_overtime(&self) -> bool {
        !self.calendar.is_empty() && self.now() < self.ends + OVERTIME_MAX
    }

    fn now(&self) -> Monotonic {
        self.site.env.clock.monotonic()
    }

    /// Hears one report, or lets a moment pass; resumes a paused reader in time; shows it all.
    async fn turn(&mut self) -> Result<()> {
        let tick = self.site.env.clock.deadline(TICK);
        tokio::select! {
            biased;
            heard = self.crew.next() => self.hear(heard).await?,
            () = self.site.env.clock.sleep_until(tick) => {}
        }
        self.resume_in_time()?;
        let (writers, readers, paused) = (&self.writers, &self.readers, &self.paused);
        let open_shards = self.outcome.shard_counts.last().copied().unwrap_or(SHARDS);
        self.display.live(|| live(writers, readers, paused.as_ref(), open_shards))
    }

    // === what the processes say ===

    async fn hear(&mut self, heard: Heard) -> Result<()> {
        let Heard { who, at, what } = heard;
        match (who.role, what) {
            (Role::Writer, What::Closed) => self.writer_closed(who.number).await,
            (_, What::Closed) => Err(self.crew.failure_of(who).await),
            (_, What::Said(Report::Ready)) => Ok(()),
            (Role::Writer, What::Said(Report::Acknowledged { number })) => {
                self.writer(who.number)?.acknowledged.insert(number);
                Ok(())
            }
            (Role::Reader, What::Said(report)) => self.hear_reader(who, at, report),
            (_, What::Said(report)) => bail!("{who} said {report:?}"),
        }
    }

    fn hear_reader(&mut self, who: Name, at: Monotonic, report: Report) -> Result<()> {
        let reader = self.readers.get_mut(&who.number).with_context(|| format!("{who} is unknown"))?;
        match report {
            Report::Delivered { delivered, .. } => reader.delivered += delivered,
            Report::Took { shard, from } => {
                reader.shards.insert(shard.clone());
                // One that it had before is one that an unknown write made it let go.
                if let Some(from) = from.filter(|from| *from != who.to_string()) {
                    self.taken_over(who, at, &shard, &from)?;
                }
            }
            Report::Released { shard } => {
                reader.shards.remove(&shard);
            }
            Report::Ended { shard } => {
                reader.shards.remove(&shard);
                self.outcome.shards_finished += 1;
            }
            Report::Refused { shard, owner } => {
                reader.shards.remove(&shard);
                self.outcome.writes_refused += 1;
                let now = match &owner {
                    None => "others have finished it".to_owned(),
                    Some(owner) if *owner == who.to_string() => {
                        "its write before had landed after all".to_owned()
                    }
                    Some(owner) => format!("{owner} has it"),
                };
                self.display.event(
                    &format!("{who} wrote for shard {} and was refused: {now}. It lets go.", short(&shard)),
                    json!({"event": "refused", "worker": who.to_string(), "shard": shard, "owner": owner}),
                )?;
            }
            Report::Ready | Report::Raced { .. } | Report::Acknowledged { .. } => {
                bail!("{who} said {report:?}")
            }
        }
        Ok(())
    }

    fn taken_over(&mut self, who: Name, at: Monotonic, shard: &str, from: &str) -> Result<()> {
        let waiting = self.paused.as_mut().filter(|paused| paused.waiting.contains(shard));
        let Some(paused) = waiting else {
            // A slow machine can make a reader miss its renewals without our doing.
            return self.display.event(
                &format!("{who} took shard {} over from {from}, which had gone silent.", short(shard)),
                json!({"event": "took", "worker": who.to_string(), "shard": shard, "from": from}),
            );
        };
        paused.waiting.remove(shard);
        let waited = at.since(paused.since);
        self.outcome.takeovers += 1;
        self.outcome.failover_max = self.outcome.failover_max.max(waited);
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.display.event(
            &format!("{who} took shard {} over from {from}; it had waited {waited_ms} ms.", short(shard)),
            json!({"event": "took", "worker": who.to_string(), "shard": shard, "from": from, "waited_ms": waited_ms}),
        )
    }

    fn writer(&mut self, number: u32) -> Result<&mut Writer> {
        self.writers.get_mut(&number).with_context(|| format!("writer-{number} is unknown"))
    }

    async fn writer_closed(&mut self, number: u32) -> Result<()> {
        let who = Name::writer(number);
        let writing_on = self.writing;
        let writer = self.writer(number)?;
        match writer.state {
            State::Writing | State::Ended => return Err(self.crew.failure_of(who).await),
            State::Killed if writing_on => {
                writer.state = State::Writing;
                // From the last acknowledgement, which is repeated: a writer that crashed knows less of
                // what it was told than we do, and puts again what it is not sure of.
                let from = writer.acknowledged.last().copied().unwrap_or(1);
                self.crew.bury(who).await?;
                self.crew.start(who, from)?;
            }
            State::Killed => {
                writer.state = State::Ended;
                self.crew.bury(who).await?;
            }
            State::Ending => {
                writer.state = State::Ended;
                if !self.crew.bury(who).await?.success() {
                    bail!("{who} did not end well");
                }
            }
        }
        Ok(())
    }

    // === faults ===

    async fn disturb(&mut self) -> Result<()> {
        let passed = self.now().since(self.began);
        let Some((_, fault)) = self.calendar.pop_front_if(|(at, _)| *at <= passed) else { return Ok(()) };
        match fault {
            Fault::KillWriter => self.kill_writer(),
            Fault::PauseReader => self.pause_reader().await,
            Fault::Reshard => self.reshard().await,
        }
    }

    fn kill_writer(&mut self) -> Result<()> {
        let writing = self.writers.iter_mut().filter(|(_, writer)| writer.state == State::Writing);
        let mut writing: Vec<_> = writing.collect();
        let chosen = usize::try_from(self.site.env.entropy.below(writing.len() as u64))?;
        let Some((number, writer)) = writing.get_mut(chosen) else { return Ok(()) };
        let who = Name::writer(**number);
        self.crew.signal(who, Signal::KILL)?;
        writer.state = State::Killed;
        self.outcome.writer_kills += 1;
        self.display.event(
            &format!("{who} is killed; a new one repeats its last round and goes on."),
            json!({"event": "writer_killed", "worker": who.to_string()}),
        )
    }

    async fn pause_reader(&mut self) -> Result<()> {
        let readers: Vec<Name> = self.readers.keys().map(|number| Name::reader(*number)).collect();
        let Some(paused) = faults::pause_reader(self.crew, self.site, &readers).await? else {
            return self.display.say("No reader could be paused: none has a shard.");
        };
        let shards: Vec<_> = paused.waiting.iter().map(|shard| short(shard)).collect();
        self.display.event(
            &format!("{} is paused with shards {}; its rows stop moving.", paused.who, shards.join(" and ")),
            json!({"event": "paused", "worker": paused.who.to_string(), "shards": paused.waiting}),
        )?;
        self.paused = Some(paused);
        Ok(())
    }

    /// Lets a paused reader go on once others have its shards, or after a bounded time.
    fn resume_in_time(&mut self) -> Result<()> {
        let now = self.now();
        let over = |paused: &mut Paused| {
            let length = now.since(paused.since);
            length >= PAUSE_MAX || (length >= PAUSE_MIN && paused.waiting.is_empty())
        };
        let Some(paused) = self.paused.take_if(over) else { return Ok(()) };
        self.crew.signal(paused.who, Signal::CONT)?;
        let length = now.since(paused.since);
        // A pause that nobody answered has shown nothing.
        let taken = paused.shards - paused.waiting.len();
        self.outcome.worker_pauses += u64::from(taken > 0);
        self.display.event(
            &format!(
                "{} goes on after {:.1} s; {taken} of its {} shards have a new reader, and it does not know.",
                paused.who,
                length.as_secs_f64(),
                paused.shards
            ),
            json!({"event": "resumed", "worker": paused.who.to_string(), "taken": taken}),
        )
    }

    async fn reshard(&mut self) -> Result<()> {
        let now = self.outcome.shard_counts.last().copied().unwrap_or(SHARDS);
        let wanted = if now == SHARDS { MORE_SHARDS } else { SHARDS };
        faults::rescale(self.site, wanted).await?;
        self.outcome.reshards += 1;
        self.outcome.shard_counts.push(wanted);
        self.display.event(
            &format!("The stream is resharded from {now} to {wanted}; children wait for their parents."),
            json!({"event": "resharded", "from": now, "to": wanted}),
        )
    }

    // === the end ===

    /// Ends the writers and waits until all they wrote was delivered.
    async fn heal(&mut self) -> Result<()> {
        for (number, writer) in &mut self.writers {
            if writer.state == State::Writing {
                self.crew.ask_to_end(Name::writer(*number));
                writer.state = State::Ending;
            }
        }
        self.display.say("The writers end; the readers catch up.")?;
        let began = self.now();
        let by = self.ends + HEALING_MAX;
        while self.now() < by {
            self.turn().await?;
            let written = self.writers.values().all(|writer| writer.state == State::Ended);
            if written && self.paused.is_none() && self.caught_up().await? {
                break;
            }
        }
        self.outcome.healing = self.now().since(began);
        Ok(())
    }

    /// Whether every key's mark has reached its last acknowledged number.
    async fn caught_up(&self) -> Result<bool> {
        let Ok(items) = self.site.store.scan_all(self.site.soon(), MARKS, ROWS_MAX).await else {
            return Ok(false);
        };
        let mut marks = BTreeMap::new();
        for item in &items {
            let key = item.text("key").context("a mark without a key")?;
            marks.insert(key, rows::mark_from_item(item)?.last);
        }
        Ok(self.writers.iter().all(|(number, writer)| {
            let last = writer.acknowledged.last().copied().unwrap_or(0);
            keys_of(*number).all(|key| marks.get(key.as_str()).copied().unwrap_or(0) >= last)
        }))
    }

    async fn dismiss_readers(&mut self) -> Result<()> {
        let mut there: BTreeSet<Name> = self.readers.keys().map(|number| Name::reader(*number)).collect();
        for who in &there {
            self.crew.ask_to_end(*who);
        }
        let by = self.site.env.clock.deadline(FAREWELL_MAX);
        while !there.is_empty() {
            let Ok(heard) = self.crew.next_by(by).await else {
                // Killing one loses nothing either.
                self.crew.end_all().await;
                break;
            };
            if !matches!(heard.what, What::Closed) {
                self.hear(heard).await?;
            } else if self.crew.bury(heard.who).await?.success() {
                there.remove(&heard.who);
            } else {
                bail!("{} did not end well", heard.who);
            }
        }
        Ok(())
    }

    /// Compares what was acknowledged with what was delivered.
    async fn draw_up(&mut self) -> Result<Outcome> {
        let mut acknowledged = BTreeMap::new();
        for (number, writer) in &self.writers {
            acknowledged.extend(keys_of(*number).map(|key| (key, writer.acknowledged.clone())));
        }
        // A long demo has many rows, and nobody else works on the file now.
        let by = self.site.env.clock.deadline(HEALING_MAX);
        let mut deliveries = Vec::new();
        for item in self.site.store.scan_all(by, DELIVERIES, ROWS_MAX).await.context("read the deliveries")? {
            deliveries.extend(rows::delivery_from_item(&item)?);
        }
        self.outcome.keys = acknowledged.len() as u64;
        self.outcome.findings = compare(&acknowledged, deliveries);
        Ok(self.outcome.clone())
    }
}

fn live(
    writers: &BTreeMap<u32, Writer>,
    readers: &BTreeMap<u32, Reader>,
    paused: Option<&Paused>,
    open_shards: u32,
) -> Live {
    let writers: Vec<_> = writers
        .iter()
        .map(|(number, writer)| LiveWriter {
            who: Name::writer(*number),
            records: writer.acknowledged.len() as u64 * RECORDS_PER_NUMBER,
            state: match writer.state {
                State::Writing => "writing",
                State::Killed => "killed",
                State::Ending | State::Ended => "done",
            },
        })
        .collect();
    let readers: Vec<_> = readers
        .iter()
        .map(|(number, reader)| LiveReader {
            who: Name::reader(*number),
            records: reader.delivered,
            shards: reader.shards.iter().map(|shard| short(shard)).collect(),
            paused: paused.is_some_and(|paused| paused.who == Name::reader(*number)),
        })
        .collect();
    Live {
        acknowledged: writers.iter().map(|writer| writer.records).sum(),
        delivered: readers.iter().map(|reader| reader.records).sum(),
        writers,
        readers,
        open_shards,
    }
}

/// A shard's number, as the live view shows it.
fn short(shard: &str) -> String {
    ShardId::from(shard).number().map_or_else(|| shard.to_owned(), |number| number.to_string())
}
