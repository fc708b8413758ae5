//! Plays the timelines: a small world of machines, links, clocks and one table, and the words for it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::super::*;
use crate::identity::OwnerId;
use crate::settings::{Settings, Skew};
use crate::testing::LockTable;

/// Plays a timeline, and fails where it tells something else than what happens.
#[track_caller]
pub(super) fn check(timeline: &str) {
    let mut world = World::new();
    for line in timeline.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Err(problem) = world.play(line) {
            panic!("{line}\n  {problem}\n\nwhat happened:\n{}", world.story);
        }
    }
}

type Play<T = ()> = Result<T, String>;

/// More events than any timeline has: a machine that wakes for nothing would never end.
const EVENTS_MAX: u32 = 200_000;

struct World {
    settings: Settings,
    now: Duration,
    table: LockTable,
    foreign: bool,
    nodes: BTreeMap<String, Node>,
    nonces: u128,
    events: u32,
    /// Told and not yet compared with a line.
    told: Vec<Told>,
    /// Everything that was told, for whoever mends a failing test.
    story: String,
    /// LD-2: the epoch of the last acquisition.
    epoch: u64,
}

struct Told {
    at: Duration,
    text: String,
    /// A call and its answer, which need not be written down.
    quiet: bool,
}

struct Node {
    machine: Machine,
    settings: Settings,
    clock: TestClock,
    link: Link,
    /// The link after the next read.
    link_next: Option<Link>,
    healthy: bool,
    paused: bool,
    /// The call that the machine waits for.
    waiting: Option<Waiting>,
    /// Writes that have not reached the store.
    hung: Vec<(CallId, Attempt)>,
    reads: u32,
    writes: u32,
}

/// Readings of different nodes have nothing in common: each counts from a moment of its own.
#[derive(Clone, Copy)]
struct TestClock {
    origin: Duration,
    rate_ppm: i64,
    wall_millis: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    /// Done at once, answered after so long.
    Works(Duration),
    Fails,
    LosesReplies,
    Hangs,
}

struct Waiting {
    id: CallId,
    by: Monotonic,
    is_write: bool,
    answer: Option<(Duration, Answer)>,
}

impl World {
    fn new() -> Self {
        Self {
            settings: Settings { poll: Some(Duration::from_secs(1)), ..Settings::balanced() },
            now: Duration::ZERO,
            table: LockTable::default(),
            foreign: false,
            nodes: BTreeMap::new(),
            nonces: 0,
            events: 0,
            told: Vec::new(),
            story: String::new(),
            epoch: 0,
        }
    }

    fn play(&mut self, line: &str) -> Play {
        let (left, expected) = line.split_once("->").unwrap_or((line, ""));
        let mut words = left.split_whitespace().peekable();
        let at = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_digit()));
        if let Some(at) = at.map(seconds).transpose()? {
            if at < self.now {
                return Err("time goes forward".to_owned());
            }
            self.run_until(at)?;
        }
        let words = words.collect::<Vec<_>>();
        if let Some((subject, rest)) = words.split_first() {
            self.act(subject, rest)?;
            self.run_until(self.now)?;
        }
        let subject = words.first().copied().unwrap_or_default();
        self.compare(subject, expected)
    }

    /// Holds what was told since the last line against what this line says.
    fn compare(&mut self, subject: &str, expected: &str) -> Play {
        let mut told = std::mem::take(&mut self.told);
        for fact in expected.split(',').map(str::trim).filter(|fact| !fact.is_empty()) {
            let named = fact.split_whitespace().next().is_some_and(|word| self.nodes.contains_key(word));
            let fact = if named { fact.to_owned() } else { format!("{subject} {fact}") };
            let found = told
                .iter()
                .position(|told| (told.at == self.now || fact.contains(" at=")) && says(&told.text, &fact));
            let Some(found) = found else { return Err(format!("not told: {fact}")) };
            told.remove(found);
        }
        match told.into_iter().find(|told| !told.quiet) {
            Some(told) => Err(format!("told besides: {} {}", show(told.at), told.text)),
            None => Ok(()),
        }
    }

    fn tell(&mut self, name: &str, text: &str, quiet: bool) {
        let text = format!("{name} {text} at={}", show(self.now));
        let _ = writeln!(self.story, "  {}", &text);
        self.told.push(Told { at: self.now, text, quiet });
    }

    // === what a line can do ===

    fn act(&mut self, subject: &str, words: &[&str]) -> Play {
        match (subject, words) {
            ("settings", words) => self.settings = settings(self.settings.clone(), words)?,
            ("row", ["is", facts @ ..]) => self.row_is(&facts.join(" "))?,
            ("row", ["reaped"]) | ("go", ["deletes"]) => self.table.delete_lock(),
            ("row", ["foreign"]) => self.foreign = true,
            ("row", ["mended"]) => self.foreign = false,
            ("row", ["stolen", "by", thief, epoch]) => {
                let owner = OwnerId::new(thief).map_err(|error| error.to_string())?;
                let epoch = Epoch(setting(epoch, "epoch")?);
                let rvn = Some(self.nonce());
                let lock = self.table.rows.lock.as_mut().ok_or("there is no row")?;
                (lock.owner, lock.epoch, lock.rvn) = (owner, Some(epoch), rvn);
            }
            ("go", ["puts", ttl]) => self.table.rows.lock = Some(go_row(setting(ttl, "ttl")?)),
            ("fence", ["is", epoch]) => {
                let fence = self.table.rows.fence.map_or("absent".to_owned(), |mark| mark.epoch.to_string());
                expect(fence.as_str(), epoch)?;
            }
            ("fence", ["deleted"]) => self.table.rows.fence = None,
            ("fence", ["set", epoch]) => {
                let mark = self.table.rows.fence.as_mut().ok_or("there is no FENCE row")?;
                mark.epoch = Epoch(number(epoch)?);
            }
            ("operator", ["asks", to @ ..]) => {
                let request = ResignRequest { nonce: self.nonce(), to: to.first().map(|&to| to.into()) };
                self.table.rows.lock.as_mut().ok_or("there is no row")?.resign = Some(request);
            }
            ("a" | "b" | "c", words) => self.act_as(subject, words)?,
            _ => return Err(format!("not understood: {subject} {}", words.join(" "))),
        }
        Ok(())
    }

    fn act_as(&mut self, name: &str, words: &[&str]) -> Play {
        if let ["settings", words @ ..] = words {
            let settings = settings(self.settings.clone(), words)?;
            self.nodes.insert(name.to_owned(), Node::new(name, name, settings)?);
            return Ok(());
        }
        if !self.nodes.contains_key(name) {
            self.nodes.insert(name.to_owned(), Node::new(name, name, self.settings.clone())?);
        }
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return Ok(()) };
        let event = match words {
            ["campaigns"] => Event::Campaign,
            ["tries", "once"] => Event::TryOnce,
            ["watches"] => Event::Watch,
            ["rests"] => Event::Rest,
            ["stops"] => Event::Stop,
            ["resigns"] => Event::Resign { to: None },
            ["resigns", "to", to] => Event::Resign { to: Some((*to).into()) },
            ["resumes"] => {
                node.paused = false;
                return Ok(());
            }
            ["hung", "calls", "land"] => return self.land(name),
            ["is", "leader"] => return expect(node.is_leader(now), true),
            ["is", "no", "leader"] => return expect(node.is_leader(now), false),
            ["wrote", "nothing"] => return expect(node.writes, 0),
            ["read", times, "time" | "times"] => return expect(node.reads, number::<u32>(times)?),
            words => return node.change(name, words),
        };
        self.step(name, event)
    }

    fn row_is(&self, facts: &str) -> Play {
        let row = match &self.table.rows.lock {
            None => "absent".to_owned(),
            Some(lock) => {
                let mut row = format!("{} ttl={}", lock.owner, lock.ttl);
                if lock.is_released() {
                    row.push_str(" released");
                }
                if let (Some(epoch), Some(lease)) = (lock.epoch, lock.lease) {
                    let _ = write!(row, " epoch={epoch} lease={}", show(lease));
                }
                if let Some(name) = &lock.reserved_for {
                    let _ = write!(row, " reserved={name}");
                }
                row
            }
        };
        if says(&row, facts) { Ok(()) } else { Err(format!("the row is {row}")) }
    }

    /// Writes that hung reach the store, and whoever still waits for one gets its answer.
    fn land(&mut self, name: &str) -> Play {
        let Some(node) = self.nodes.get_mut(name) else { return Ok(()) };
        for (id, attempt) in std::mem::take(&mut node.hung) {
            let answer = self.write(name, &attempt);
            if let Some(waiting) = self.nodes.get_mut(name).and_then(|node| node.waiting.as_mut())
                && waiting.id == id
            {
                waiting.answer = Some((self.now, answer));
            }
        }
        Ok(())
    }

    // === running ===

    /// Plays what is due, in the order of time and then of names.
    fn run_until(&mut self, until: Duration) -> Play {
        loop {
            let due = self.nodes.iter().filter_map(|(name, node)| Some((node.due(self.now)?, name.clone())));
            let Some((at, name)) = due.min().filter(|(at, _)| *at <= until) else { break };
            self.now = self.now.max(at);
            self.events += 1;
            if self.events > EVENTS_MAX {
                return Err(format!("{name} wakes again and again at {}", show(self.now)));
            }
            let now = self.now;
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            let event = node.next_event(now);
            self.step(&name, event)?;
        }
        self.now = until;
        self.one_leader()
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        // The low half is what jitter is drawn from: none, so that a timeline's times are round.
        Nonce(self.nonces << 64)
    }

    fn step(&mut self, name: &str, event: Event) -> Play {
        let nonce = self.nonce();
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return Ok(()) };
        let reading = Now {
            monotonic: node.clock.monotonic(now),
            wall: node.clock.wall(now),
            nonce,
            healthy: node.healthy,
        };
        let clock = node.clock;
        for effect in node.machine.step(reading, event) {
            match effect {
                Effect::Call { id, by, call } => self.call(name, id, by, call),
                Effect::Tell(news) => {
                    let text = describe(&news, clock);
                    self.tell(name, &text, matches!(news, News::Renewed { .. }));
                    if let News::Elected { epoch, .. } = news {
                        if epoch.0 <= self.epoch {
                            return Err(format!("LD-2: epoch {epoch} after {}", self.epoch));
                        }
                        self.epoch = epoch.0;
                    }
                }
            }
        }
        self.one_leader()
    }

    fn one_leader(&self) -> Play {
        let leads = |(name, node): (&String, &Node)| node.is_leader(self.now).then(|| name.clone());
        let leaders = self.nodes.iter().filter_map(leads).collect::<Vec<_>>();
        if leaders.len() > 1 {
            return Err(format!("LD-1: {} all lead at {}", leaders.join(" and "), show(self.now)));
        }
        Ok(())
    }

    fn call(&mut self, name: &str, id: CallId, by: Monotonic, call: Call) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(name) else { return };
        let link = node.link;
        let is_write = matches!(call, Call::Write(_));
        match &call {
            Call::Read => {
                node.reads += 1;
                node.link = node.link_next.take().unwrap_or(link);
            }
            Call::Write(_) => node.writes += 1,
        }
        let answer = match (link, call) {
            (Link::Fails, _) => Some((now, Answer::Failed)),
            (Link::Hangs, Call::Read) => None,
            (Link::Hangs, Call::Write(attempt)) => {
                node.hung.push((id, attempt));
                None
            }
            (Link::Works(latency), Call::Read) => Some((now + latency, self.read(name))),
            (Link::Works(latency), Call::Write(attempt)) => Some((now + latency, self.write(name, &attempt))),
            (Link::LosesReplies, Call::Read) => None,
            (Link::LosesReplies, Call::Write(attempt)) => {
                self.write(name, &attempt);
                None
            }
        };
        if let Some(node) = self.nodes.get_mut(name) {
            node.waiting = Some(Waiting { id, by, is_write, answer });
        }
    }

    fn read(&mut self, name: &str) -> Answer {
        self.tell(name, "reads", true);
        if self.foreign { Answer::Foreign("is not ours".into()) } else { Answer::Rows(self.table.read()) }
    }

    fn write(&mut self, name: &str, attempt: &Attempt) -> Answer {
        if self.foreign {
            return Answer::Foreign("is not ours".into());
        }
        let what = match attempt {
            Attempt::Acquire(_) => "claim",
            Attempt::Renew(_) => "renewal",
            Attempt::Release(_) => "release",
        };
        let answer = self.table.write(attempt);
        let outcome = match &answer {
            Answer::Applied { .. } => "applied",
            Answer::RefusedByFence(_) => "refused by fence",
            _ => "refused by lock",
        };
        self.tell(name, &format!("{what} {outcome}"), true);
        answer
    }
}

impl Node {
    fn new(name: &str, owner: &str, settings: Settings) -> Play<Self> {
        let owner = OwnerId::new(owner).map_err(|error| error.to_string())?;
        let me = Me { owner, name: name.into(), about: Arc::default() };
        let timing = settings.timing(false).map_err(|error| error.to_string())?;
        let origin = Duration::from_secs(1000 * u64::from(name.as_bytes()[0]));
        Ok(Self {
            machine: Machine::new(me, timing),
            settings,
            clock: TestClock { origin, rate_ppm: 0, wall_millis: 0 },
            link: Link::Works(Duration::ZERO),
            link_next: None,
            healthy: true,
            paused: false,
            waiting: None,
            hung: Vec::new(),
            reads: 0,
            writes: 0,
        })
    }

    fn change(&mut self, name: &str, words: &[&str]) -> Play {
        let soon = matches!(words, [.., "after", "reading"]);
        let words = if soon { &words[..words.len() - 2] } else { words };
        let link = match words {
            ["calls", "work"] => Link::Works(Duration::ZERO),
            ["replies", "take", latency] => Link::Works(seconds(latency)?),
            ["calls", "fail"] => Link::Fails,
            ["calls", "hang"] => Link::Hangs,
            ["loses", "replies"] => Link::LosesReplies,
            ["is", health @ ("healthy" | "unhealthy")] => {
                self.healthy = *health == "healthy";
                return Ok(());
            }
            ["pauses"] => {
                self.paused = true;
                return Ok(());
            }
            // A pause without end. What hangs may land all the same.
            ["crashes"] => {
                self.paused = true;
                self.machine = Self::new(name, name, self.settings.clone())?.machine;
                self.waiting = None;
                return Ok(());
            }
            ["restarts"] => {
                self.paused = false;
                return Ok(());
            }
            ["clock", changes @ ..] => {
                for change in changes {
                    if let Some(rate) = change.strip_prefix("rate=") {
                        self.clock.rate_ppm = number::<i64>(rate.trim_end_matches('%'))? * 10_000;
                    } else {
                        let wall = change.strip_prefix("wall=").ok_or("rate= or wall=")?;
                        self.clock.wall_millis = number::<i64>(wall.trim_end_matches('s'))? * 1000;
                    }
                }
                return Ok(());
            }
            [owner] if owner.starts_with("owner=") => {
                let fresh = Self::new(name, &owner["owner=".len()..], self.settings.clone())?;
                *self = fresh;
                return Ok(());
            }
            _ => return Err(format!("not understood: {}", words.join(" "))),
        };
        if soon {
            self.link_next = Some(link);
        } else {
            self.link = link;
        }
        Ok(())
    }

    fn is_leader(&self, now: Duration) -> bool {
        self.machine.is_leader(self.clock.monotonic(now))
    }

    /// When this node has something to do, in true time.
    fn due(&self, now: Duration) -> Option<Duration> {
        if self.paused {
            return None;
        }
        let wake = self.clock.when(self.machine.wake_at());
        let answered = self.waiting.as_ref().and_then(|waiting| {
            let given_up = self.clock.when(waiting.by);
            let answer = waiting.answer.as_ref().map(|(at, _)| *at);
            [given_up, answer].into_iter().flatten().min()
        });
        Some([wake, answered].into_iter().flatten().min()?.max(now))
    }

    /// An answer that has come goes before its time limit, and both before a wake.
    fn next_event(&mut self, now: Duration) -> Event {
        let here = self.clock.monotonic(now);
        match self.waiting.take() {
            Some(Waiting { id, answer: Some((at, answer)), .. }) if at <= now => Event::Answered(id, answer),
            Some(Waiting { id, by, is_write, .. }) if by <= here => {
                Event::Answered(id, if is_write { Answer::Unknown } else { Answer::Failed })
            }
            waiting => {
                self.waiting = waiting;
                Event::Wake
            }
        }
    }
}

impl TestClock {
    fn monotonic(self, now: Duration) -> Monotonic {
        let nanos = i128::try_from(now.as_nanos()).unwrap_or(0);
        let local = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Monotonic::from_nanos(u64::try_from(local).unwrap_or(0)) + self.origin
    }

    fn wall(self, now: Duration) -> WallTime {
        let millis = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
        WallTime::from_millis(millis + self.wall_millis)
    }

    /// The first true moment at which this clock shows `reading`.
    fn when(self, reading: Monotonic) -> Option<Duration> {
        if reading == Monotonic::NEVER {
            return None;
        }
        let local = reading.since(Monotonic::default() + self.origin).as_nanos();
        let rate = u128::from((1_000_000 + self.rate_ppm).unsigned_abs());
        u64::try_from((local * 1_000_000).div_ceil(rate)).ok().map(Duration::from_nanos)
    }
}

// === words ===

fn describe(news: &News, clock: TestClock) -> String {
    let until = |deadline: Monotonic| show(deadline.since(Monotonic::default() + clock.origin));
    match news {
        News::Elected { epoch, deadline } => format!("elected epoch={epoch} until={}", until(*deadline)),
        News::Renewed { deadline } => format!("renewed until={}", until(*deadline)),
        News::Lost(LossReason::Superseded { by, epoch }) => {
            let by = by.as_ref().map_or(String::new(), |by| format!(" by={by}"));
            let epoch = epoch.map_or(String::new(), |epoch| format!(" epoch={epoch}"));
            format!("lost superseded{by}{epoch}")
        }
        News::Lost(reason) => format!("lost {}", reason.name()),
        News::Declined => "declined".to_owned(),
        News::Released { confirmed: true } => "released".to_owned(),
        News::Released { confirmed: false } => "could not release".to_owned(),
        News::ResignAsked(request) => {
            let to = request.to.as_ref().map_or(String::new(), |to| format!(" to={to}"));
            format!("asked to resign{to}")
        }
        News::Trouble(Trouble::ForeignRow(_)) => "trouble foreign row".to_owned(),
        News::Trouble(Trouble::GoRow) => "trouble go row".to_owned(),
        News::Trouble(Trouble::SameOwner) => "trouble same owner".to_owned(),
        News::Stopped => "stopped".to_owned(),
    }
}

/// Whether a text has all the words of a fact.
fn says(text: &str, fact: &str) -> bool {
    let words = text.split_whitespace().collect::<Vec<_>>();
    fact.split_whitespace().all(|word| words.contains(&word))
}

fn expect<T: PartialEq + std::fmt::Display>(is: T, wanted: T) -> Play {
    if is == wanted { Ok(()) } else { Err(format!("it is {is}, not {wanted}")) }
}

fn go_row(ttl: i64) -> Lock {
    Lock {
        owner: OwnerId::new("go").unwrap(),
        ttl,
        rvn: None,
        lease: None,
        epoch: None,
        reserved_for: None,
        resign: None,
        card: None,
    }
}

fn settings(mut settings: Settings, words: &[&str]) -> Play<Settings> {
    for word in words {
        match word.split_once('=') {
            Some(("lease", value)) => settings.lease = seconds(value)?,
            Some(("renew", value)) => settings.renew = seconds(value)?,
            Some(("skew", value)) => settings.skew = Skew::Bounded(seconds(value)?),
            None if *word == "retry" => settings.on_renewal_error = OnRenewalError::RetryUntilDeadline,
            None if *word == "go_peers" => settings.go_peers = true,
            _ => return Err(format!("no such setting: {word}")),
        }
    }
    Ok(settings)
}

fn setting<T: std::str::FromStr>(word: &str, name: &str) -> Play<T> {
    let value = word.strip_prefix(name).and_then(|rest| rest.strip_prefix('='));
    number(value.ok_or_else(|| format!("wanted {name}=…"))?)
}

fn number<T: std::str::FromStr>(word: &str) -> Play<T> {
    word.parse().map_err(|_| format!("not a number: {word}"))
}

fn seconds(word: &str) -> Play<Duration> {
    let value = word.strip_suffix('s').ok_or_else(|| format!("seconds end in s: {word}"))?;
    // Through milliseconds, so that 14.7 is what it says.
    let millis = (number::<f64>(value)? * 1000.0).round();
    Ok(Duration::from_millis(millis as u64))
}

fn show(duration: Duration) -> String {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}
