//! Conducts the demo: rows are written, faults happen, everything is waited out, and the ledger is drawn up.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use serde_json::json;
use tenure_clock::Monotonic;
use tenure_stream::ShardId;

use super::crew::{Crew, Heard, Name, Role, What};
use super::display::{Display, Live, LiveMember};
use super::faults::{self, Fault, Owned, PAUSE_MAX, PAUSE_MIN, Paused};
use super::ledger::{Effect, RowKey, compare};
use super::site::{SHARDS, Site, WORKERS};
use super::summary::Outcome;
use super::wire::{Line, Report};
use super::workload::Workload;

/// One leads, one stands by.
const PUBLISHERS: u32 = 2;
/// Most workers that are added: the demo may be long.
const WORKERS_MAX: u32 = 6;

/// The other number of shards. Going back and forth takes splits and merges.
const MORE_SHARDS: u32 = 6;

/// How long the processes may take until the first change had its effect, on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long everything may take to have its effect after the workload's time.
const HEALING_MAX: Duration = Duration::from_secs(45);
/// How much of that the writers may go on writing if faults are still due, on a machine so slow that
/// they did not fit into the workload's time.
const OVERTIME_MAX: Duration = Duration::from_secs(10);
/// How long processes may take to end in good order.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// How often time is looked at when nobody says anything.
const TICK: Duration = Duration::from_millis(100);

/// What a process has said of itself.
#[derive(Debug, Clone, Default)]
struct Member {
    /// A publisher's role, in its own word.
    role: String,
    /// Changes that it published or carried out.
    changes: u64,
    /// How many leases a worker may hold.
    cap: Option<u64>,
    /// It was killed, or asked to end.
    ending: bool,
}

/// Conducts processes and faults.
pub(super) struct Conductor<'a> {
    crew: &'a mut Crew,
    site: &'a Site,
    display: &'a mut Display,
    length: Duration,
    members: BTreeMap<Name, Member>,
    publishers_started: u32,
    owned: Owned,
    paused: Option<Paused>,
    /// When the leader was killed, until another leads.
    leaderless: Option<Monotonic>,
    outcome: Outcome,
}

impl<'a> Conductor<'a> {
    pub(super) fn new(
        crew: &'a mut Crew,
        site: &'a Site,
        display: &'a mut Display,
        length: Duration,
    ) -> Self {
        Self {
            crew,
            site,
            display,
            length,
            members: BTreeMap::new(),
            publishers_started: 0,
            owned: Owned::new(),
            paused: None,
            leaderless: None,
            outcome: Outcome { shard_counts: vec![SHARDS], ..Outcome::default() },
        }
    }

    /// Runs to the end: the workload, the healing, the comparison.
    pub(super) async fn run(mut self) -> Result<Outcome> {
        self.crew.call(&self.site.setup()).await.context("set the pipeline up")?;
        self.display.say(&format!(
            "{PUBLISHERS} publishers: one leads, one stands by. {WORKERS} workers share {SHARDS} shards."
        ))?;
        for _ in 0..PUBLISHERS {
            self.start_publisher()?;
        }
        for number in 1..=WORKERS {
            self.start(Name::worker(number))?;
        }
        let mut workload = Workload::start(self.site).await?;
        self.wait_for_work(&workload).await?;
        self.disturb(&workload).await?;
        let committed = workload.end().await?;
        self.heal(&workload).await?;
        self.dismiss_workers().await?;
        self.draw_up(&committed).await?;
        Ok(self.outcome)
    }

    fn now(&self) -> Monotonic {
        self.site.env.clock.monotonic()
    }

    fn start_publisher(&mut self) -> Result<()> {
        self.publishers_started += 1;
        self.start(Name::publisher(self.publishers_started))
    }

    fn start(&mut self, who: Name) -> Result<()> {
        self.crew.start(who, &self.site.command(who))?;
        self.members.insert(who, Member::default());
        Ok(())
    }

    fn workers(&self) -> Vec<Name> {
        self.members.keys().copied().filter(|who| who.role == Role::Worker).collect()
    }

    /// Until the first change has gone all the way.
    async fn wait_for_work(&mut self, workload: &Workload) -> Result<()> {
        let by = self.site.env.clock.deadline(START_TIMEOUT);
        while self.delivered() == 0 {
            self.turn(workload).await?;
            if self.now() > by {
                bail!("no change has come through: the machine or its disk is overloaded");
            }
        }
        Ok(())
    }

    /// Lets everything run for the workload's time, and makes things go wrong.
    async fn disturb(&mut self, workload: &Workload) -> Result<()> {
        let began = self.now();
        let mut calendar: VecDeque<_> = faults::calendar(self.length);
        loop {
            let passed = self.now().since(began);
            let is_over = passed >= self.length;
            if is_over && (calendar.is_empty() || passed >= self.length + OVERTIME_MAX) {
                return Ok(());
            }
            self.turn(workload).await?;
            // A leader can be killed only while one leads.
            let is_possible = |fault: Fault| {
                fault != Fault::KillLeader || self.leaderless.is_none() && self.leader().is_some()
            };
            let due = calendar.pop_front_if(|(at, fault)| *at <= passed && is_possible(*fault));
            match due {
                None => {}
                Some((_, Fault::KillLeader)) => self.kill_leader()?,
                Some((_, Fault::PauseWorker)) => self.pause_worker().await?,
                Some((_, Fault::AddWorker)) => self.add_worker()?,
                Some((_, Fault::Reshard)) => self.reshard().await?,
            }
        }
    }

    /// Hears one line, or lets a moment pass; resumes a paused worker in time; shows it all.
    async fn turn(&mut self, workload: &Workload) -> Result<()> {
        let tick = self.site.env.clock.deadline(TICK);
        tokio::select! {
            biased;
            heard = self.crew.next() => self.hear(heard).await?,
            () = self.site.env.clock.sleep_until(tick) => self.look().await?,
        }
        self.resume_in_time()?;
        let live = || Live {
            members: self.members.iter().map(|(who, member)| self.show(*who, member)).collect(),
            open_shards: self.open_shards(),
            committed: workload.committed(),
            delivered: self.delivered(),
        };
        let live = live();
        self.display.live(|| live)
    }

    fn show(&self, who: Name, member: &Member) -> LiveMember {
        let shards = self.owned.get(&who.to_string());
        let is_paused = self.paused.as_ref().is_some_and(|paused| paused.who == who);
        let of_cap = member.cap.map_or_else(String::new, |cap| format!(" (at most {cap})"));
        let doing = match (who.role, shards) {
            (Role::Publisher, _) if member.role == "leader" => "leads".to_owned(),
            (Role::Publisher, _) if member.role.is_empty() => "starts".to_owned(),
            (Role::Publisher, _) => "stands by".to_owned(),
            (Role::Worker, _) if is_paused => "paused".to_owned(),
            (Role::Worker, None) => format!("reads nothing{of_cap}"),
            (Role::Worker, Some(shards)) => {
                let shards: Vec<_> = shards.iter().map(|shard| short(shard)).collect();
                format!("reads {}{of_cap}", shards.join("+"))
            }
        };
        let counts = who.role == Role::Worker || member.role == "leader";
        LiveMember { who, changes: counts.then_some(member.changes), doing }
    }

    /// How many changes had their effect, as the workers say.
    fn delivered(&self) -> u64 {
        let workers = self.members.iter().filter(|(who, _)| who.role == Role::Worker);
        workers.map(|(_, worker)| worker.changes).sum()
    }

    fn open_shards(&self) -> u32 {
        self.outcome.shard_counts.last().copied().unwrap_or(SHARDS)
    }

    fn leader(&self) -> Option<Name> {
        let leads = |(_, member): &(&Name, &Member)| member.role == "leader" && !member.ending;
        self.members.iter().find(leads).map(|(who, _)| *who)
    }

    // === what the processes say, and what the rows say ===

    async fn hear(&mut self, heard: Heard) -> Result<()> {
        let Heard { who, at, what } = heard;
        let Some(member) = self.members.get_mut(&who) else { return Ok(()) };
        match what {
            What::Closed if member.ending => {
                self.members.remove(&who);
                self.crew.bury(who).await?;
            }
            What::Closed => return Err(self.crew.failure_of(who).await),
            What::Said(Line::Worker(Report::Applied { changes })) => member.changes += changes,
            What::Said(Line::Worker(Report::Cap { leases })) => member.cap = Some(leases),
            What::Said(Line::Publisher { role, events }) => {
                (member.role, member.changes) = (role, events);
                if member.role == "leader"
                    && let Some(since) = self.leaderless.take()
                {
                    self.led_again(who, at.since(since))?;
                }
            }
        }
        Ok(())
    }

    fn led_again(&mut self, who: Name, after: Duration) -> Result<()> {
        self.outcome.failover_max = self.outcome.failover_max.max(after);
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        self.display.event(
            &format!("{who} leads, {after_ms} ms after the other was killed."),
            json!({"event": "leads", "process": who.to_string(), "after_ms": after_ms}),
        )
    }

    /// Looks at who has which shard.
    async fn look(&mut self) -> Result<()> {
        // A store that is busy for a moment is looked at again in the next.
        let Ok(owned) = self.site.owned_shards().await else { return Ok(()) };
        self.owned = owned;
        let now = self.now();
        let Some(paused) = &mut self.paused else { return Ok(()) };
        let kept = self.owned.get(&paused.who.to_string()).cloned().unwrap_or_default();
        let taken: Vec<_> = paused.waiting.extract_if(.., |shard| !kept.contains(shard)).collect();
        let waited = now.since(paused.since);
        for shard in taken {
            self.outcome.takeovers += 1;
            self.outcome.takeover_max = self.outcome.takeover_max.max(waited);
            let new =
                self.owned.iter().find(|(_, shards)| shards.contains(&shard)).map(|(who, _)| who.as_str());
            let new = new.unwrap_or("another worker");
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            self.display.event(
                &format!("{new} has shard {}, which had waited {waited_ms} ms.", short(&shard)),
                json!({"event": "took", "process": new, "shard": shard, "waited_ms": waited_ms}),
            )?;
        }
        Ok(())
    }

    // === faults ===

    fn kill_leader(&mut self) -> Result<()> {
        let Some(who) = self.leader() else { return Ok(()) };
        self.leaderless = Some(self.now());
        self.crew.signal(who, Signal::KILL)?;
        if let Some(member) = self.members.get_mut(&who) {
            member.ending = true;
        }
        self.outcome.leader_kills += 1;
        self.start_publisher()?;
        self.display.event(
            &format!("{who}, which leads, is killed; a new process stands by."),
            json!({"event": "leader_killed", "process": who.to_string()}),
        )
    }

    async fn pause_worker(&mut self) -> Result<()> {
        if self.paused.is_some() {
            return Ok(());
        }
        let Some(paused) = faults::pause_worker(self.crew, self.site, &self.workers()).await? else {
            return self.display.say("No worker could be paused: none has a shard.");
        };
        let shards: Vec<_> = paused.waiting.iter().map(|shard| short(shard)).collect();
        self.display.event(
            &format!(
                "{} is paused with shards {}; its leases stop moving.",
                paused.who,
                shards.join(" and ")
            ),
            json!({"event": "paused", "process": paused.who.to_string(), "shards": paused.waiting}),
        )?;
        self.paused = Some(paused);
        Ok(())
    }

    /// Lets a paused worker go on once others have its shards, or after a bounded time.
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
                "{} goes on after {:.1} s; {taken} of its {} shards have a new worker, and it does not know.",
                paused.who,
                length.as_secs_f64(),
                paused.shards
            ),
            json!({"event": "resumed", "process": paused.who.to_string(), "taken": taken}),
        )
    }

    fn add_worker(&mut self) -> Result<()> {
        let number = self.workers().len() as u32 + 1;
        if number > WORKERS_MAX {
            return Ok(());
        }
        let who = Name::worker(number);
        self.start(who)?;
        self.outcome.worker_joins += 1;
        self.display.event(
            &format!("{who} joins; the others hand it its share."),
            json!({"event": "joined", "process": who.to_string()}),
        )
    }

    async fn reshard(&mut self) -> Result<()> {
        let now = self.open_shards();
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

    /// Waits until all that was committed had its effect.
    async fn heal(&mut self, workload: &Workload) -> Result<()> {
        self.display.say("The writers end; the others catch up.")?;
        let began = self.now();
        let by = began + HEALING_MAX;
        let sql = self.site.connect("healing").await?;
        while self.now() < by {
            self.turn(workload).await?;
            // A worker that loses a shard after a commit has no time to tell of it: the database decides.
            let carried_out = sql.query_one("SELECT count(*) FROM effects.changes", &[]).await;
            let carried_out: i64 = carried_out.context("count the effects")?.get(0);
            if self.paused.is_none() && carried_out.cast_unsigned() >= workload.committed() {
                break;
            }
        }
        self.outcome.healing = self.now().since(began);
        Ok(())
    }

    /// Asks the workers to end, so that nothing is under way when the ledger is drawn up.
    async fn dismiss_workers(&mut self) -> Result<()> {
        for who in self.workers() {
            self.crew.signal(who, Signal::TERM)?;
            if let Some(member) = self.members.get_mut(&who) {
                member.ending = true;
            }
        }
        let by = self.site.env.clock.deadline(FAREWELL_MAX);
        while !self.workers().is_empty() {
            match self.crew.next_by(by).await {
                Some(heard) => self.hear(heard).await?,
                None => bail!("{} did not end when asked to", self.workers()[0]),
            }
        }
        Ok(())
    }

    /// Compares what was committed with what was carried out.
    async fn draw_up(&mut self, committed: &BTreeMap<RowKey, i64>) -> Result<()> {
        let sql = self.site.connect("ledger").await?;
        let rows = sql.query("SELECT tab, id, version, times, in_order FROM effects.changes", &[]).await;
        let effects: Vec<_> = rows
            .context("read the effects")?
            .iter()
            .map(|row| Effect {
                row: RowKey { table: row.get(0), id: row.get(1) },
                version: row.get(2),
                times: row.get(3),
                in_order: row.get(4),
            })
            .collect();
        self.outcome.rows = committed.len() as u64;
        self.outcome.findings = compare(committed, &effects);
        Ok(())
    }
}

/// A shard's number, as the live view shows it.
fn short(shard: &str) -> String {
    ShardId::from(shard).number().map_or_else(|| shard.to_owned(), |number| number.to_string())
}
