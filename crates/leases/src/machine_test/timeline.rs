//! Plays the timelines: a small world of machines, links, clocks and tables, and the words for it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use tenure_clock::WallTime;
use tenure_stream::{HashRange, Shard, ShardId};

use super::super::*;
use crate::settings::Settings;
use crate::testing::LeaseTable;

#[track_caller]
pub(super) fn check(timeline: &str) {
    let mut world = World::new();
    for line in timeline.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Err(problem) = world.play(line) {
            panic!("{line}\n  {problem}\n\nwhat happened:\n{}", world.story);
        }
    }
}

pub(super) type Play<T = ()> = Result<T, String>;

/// More events than any timeline has: a machine that wakes for nothing would never end.
const EVENTS_MAX: u32 = 400_000;

pub(super) struct World {
    pub(super) timing: Timing,
    pub(super) now: Duration,
    pub(super) table: LeaseTable,
    bad: BTreeSet<LeaseKey>,
    pub(super) shards: Vec<Shard>,
    pub(super) nodes: BTreeMap<String, Node>,
    incarnations: u32,
    events: u32,
    pub(super) told: Vec<Told>,
    pub(super) story: String,
    /// LS-2.
    furthest: BTreeMap<LeaseKey, Checkpoint>,
}

pub(super) struct Told {
    at: Duration,
    text: String,
    quiet: bool,
}

pub(super) struct Node {
    pub(super) machine: Machine,
    rate_ppm: i64,
    origin: Duration,
    link: Link,
    paused: bool,
    /// It was started, and not only described.
    pub(super) begun: bool,
    by_hand: bool,
    requests: u64,
    pub(super) writes: u32,
    waiting: Vec<Waiting>,
    hung: Vec<Call>,
}

#[derive(Clone, Copy, PartialEq)]
enum Link {
    Works(Duration),
    Fails,
    LosesReplies,
    Hangs,
}

struct Waiting {
    id: CallId,
    at: Monotonic,
    answer: Answer,
}

impl Node {
    fn new(name: &str, incarnation: u32, cap: usize, timing: Timing, now: Duration) -> Self {
        let me = Me { worker: name.into(), incarnation: format!("{name}{incarnation}").into() };
        Self {
            machine: Machine::new(me, cap, timing),
            rate_ppm: 0,
            origin: now + Duration::from_secs(1000 * u64::from(incarnation)),
            link: Link::Works(Duration::ZERO),
            paused: false,
            begun: false,
            by_hand: false,
            requests: 0,
            writes: 0,
            waiting: Vec::new(),
            hung: Vec::new(),
        }
    }

    pub(super) fn monotonic(&self, now: Duration) -> Monotonic {
        let nanos = i128::try_from(now.as_nanos()).unwrap();
        let scaled = nanos + nanos * i128::from(self.rate_ppm) / 1_000_000;
        Monotonic::from_nanos(u64::try_from(scaled).unwrap()) + self.origin
    }

    /// The true time of one of its readings.
    fn truly(&self, at: Monotonic) -> Duration {
        let nanos = i128::from(at.as_nanos()) - i128::try_from(self.origin.as_nanos()).unwrap();
        let scaled =
            (nanos * 1_000_000 + i128::from(999_999 + self.rate_ppm)) / i128::from(1_000_000 + self.rate_ppm);
        Duration::from_nanos(u64::try_from(scaled.max(0)).unwrap())
    }

    /// When something happens here next.
    fn next(&self) -> Option<Duration> {
        if self.paused {
            return None;
        }
        let answers = self.waiting.iter().map(|waiting| waiting.at).min();
        let wake = Some(self.machine.wake_at()).filter(|at| *at != Monotonic::NEVER);
        answers.into_iter().chain(wake).min().map(|at| self.truly(at))
    }
}

impl World {
    pub(super) fn new() -> Self {
        let settings = Settings {
            scan: Some(Duration::from_millis(2500)),
            nudge: Some(Duration::from_millis(250)),
            ..Settings::default()
        };
        Self {
            timing: settings.timing().unwrap(),
            now: Duration::ZERO,
            table: LeaseTable::default(),
            bad: BTreeSet::new(),
            shards: Vec::new(),
            nodes: BTreeMap::new(),
            incarnations: 0,
            events: 0,
            told: Vec::new(),
            story: String::new(),
            furthest: BTreeMap::new(),
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
        let mut subject = words.first().copied().unwrap_or_default().to_owned();
        if let [first, "twin", rest @ ..] = words.as_slice() {
            subject = format!("{first} twin");
            self.act(&subject, rest)?;
        } else if let Some((first, rest)) = words.split_first() {
            self.act(first, rest)?;
        }
        self.run_until(self.now)?;
        self.compare(&subject, expected)
    }

    /// As [`World::play`], whatever is told.
    pub(super) fn play_freely(&mut self, line: &str) -> Play {
        let played = self.play(line);
        match played {
            Err(problem) if problem.starts_with("told besides") && !problem.contains("broken") => Ok(()),
            Err(problem) if problem == "there is no row" => Ok(()),
            played => played,
        }
    }

    /// The end of the story.
    pub(super) fn tail(&self) -> String {
        let lines: Vec<&str> = self.story.lines().rev().take(250).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

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
        let worst = told.iter().position(|told| told.text.contains("broken"));
        let besides = worst.or_else(|| told.iter().position(|told| !told.quiet));
        match besides.map(|at| &told[at]) {
            Some(told) => Err(format!("told besides: {} {}", show(told.at), told.text)),
            None => Ok(()),
        }
    }

    fn tell(&mut self, name: &str, text: &str, quiet: bool) {
        let text = format!("{name} {text} when={}", show(self.now));
        let _ = writeln!(self.story, "  {}", &text);
        self.told.push(Told { at: self.now, text, quiet });
    }

    fn presence(&mut self, worker: &str) -> Play<&mut Presence> {
        Ok(self.table.workers.get_mut(&WorkerId::from(worker)).ok_or("there is no row")?)
    }

    // === what a line can do ===

    fn act(&mut self, subject: &str, words: &[&str]) -> Play {
        match (subject, words) {
            ("shards", words) => self.shards = words.iter().map(|word| shard(word)).collect(),
            ("rows", words) => {
                for word in words {
                    let lease = row(&ShardId::numbered(number(word)?));
                    self.table.leases.insert(lease.key.clone(), Arc::new(lease));
                }
            }
            ("settings", [lease]) => self.table.settings = Some(seconds(lease)?),
            ("presence", ["of", worker, "by", other]) => self.presence(worker)?.incarnation = (*other).into(),
            // As if a write of long ago came only now.
            ("presence", ["of", worker, "is", "old", cap]) => {
                let row = self.presence(worker)?;
                (row.counter, row.cap) = (0, cap_of(cap)?);
            }
            ("presence", ["of", worker, "says", cap]) => {
                let (is, wanted) = (self.presence(worker)?.cap, cap_of(cap)?);
                if is != wanted {
                    return Err(format!("it says {is}, not {wanted}"));
                }
            }
            ("presence", ["of", worker, "gone"]) => drop(self.table.workers.remove(&WorkerId::from(*worker))),
            ("begin", [id, from, to]) => {
                let attempt = Attempt::BeginHandoff { key: key(id)?, from: (*from).into(), to: (*to).into() };
                if !matches!(self.table.write(&attempt), Answer::Applied(_)) {
                    return Err("it was refused".to_owned());
                }
            }
            ("row", [id, "is", facts @ ..]) => self.row_is(id, &facts.join(" "))?,
            ("row", [id, "absent"]) => {
                if self.table.leases.contains_key(&key(id)?) {
                    return Err("it is there".to_owned());
                }
            }
            ("row", [id, "deleted"]) => drop(self.table.leases.remove(&key(id)?)),
            ("row", [id, "bad"]) => drop(self.bad.insert(key(id)?)),
            ("java", ["takes", id]) => {
                let lease = Arc::make_mut(self.table.leases.get_mut(&key(id)?).ok_or("there is no row")?);
                (lease.owner, lease.giver, lease.counter) = (Some("java".into()), None, lease.counter + 1);
            }
            ("java", ["renews", id]) => {
                Arc::make_mut(self.table.leases.get_mut(&key(id)?).ok_or("there is no row")?).counter += 1;
            }
            (name, words) => self.act_as(name, words)?,
        }
        Ok(())
    }

    fn act_as(&mut self, name: &str, words: &[&str]) -> Play {
        let now = self.now;
        if let ["starts" | "restarts", rest @ ..] = words {
            self.incarnations += 1;
            let cap = rest.first().and_then(|word| word.strip_prefix("cap=")).map_or(Ok(80), number)?;
            let worker = name.split_whitespace().next().unwrap_or(name);
            let mut node = Node::new(
                worker,
                self.incarnations,
                usize::try_from(cap).unwrap(),
                self.timing,
                Duration::ZERO,
            );
            if let Some(before) = self.nodes.get(name) {
                node.rate_ppm = before.rate_ppm;
                if !before.begun {
                    node.link = before.link;
                }
            }
            node.begun = true;
            self.nodes.insert(name.to_owned(), node);
            self.step(name, Event::Wake);
            return Ok(());
        }
        if let ["clock", rate] = words {
            let percent =
                rate.strip_prefix("rate=").and_then(|rate| rate.strip_suffix('%')).ok_or("rate=+1%")?;
            let percent: i64 = percent.parse().map_err(|_| "no number")?;
            self.incarnations += 1;
            let mut node = Node::new(name, self.incarnations, 80, self.timing, Duration::ZERO);
            node.rate_ppm = percent * 10_000;
            node.paused = true;
            self.nodes.insert(name.to_owned(), node);
            return Ok(());
        }
        let node =
            self.nodes.get_mut(name).ok_or_else(|| format!("not understood: {name} {}", words.join(" ")))?;
        node.requests += 1;
        let request = RequestId(node.requests);
        let event = match words {
            ["stops"] => Event::Stop,
            ["cap", cap] => Event::Cap(usize::try_from(number(cap)?).unwrap()),
            ["plans"] => Event::Planner(Planning::Me),
            ["plans", "not"] => Event::Planner(Planning::Other),
            ["checkpoints", id, "at", at] => {
                Event::Checkpoint { key: key(id)?, request, at: checkpoint(at)?, marks: None }
            }
            ["gives", id] => Event::Give { key: key(id)?, request: Some(request) },
            ["stuck", "on", id] => Event::Stuck { key: key(id)?, stuck: true },
            ["gets", "on", "with", id] => Event::Stuck { key: key(id)?, stuck: false },
            _ => {
                match words {
                    ["drains", "by", "hand"] => node.by_hand = true,
                    ["pauses"] => node.paused = true,
                    ["resumes"] => node.paused = false,
                    ["crashes"] => {
                        // What it sent may still land.
                        (node.paused, node.begun) = (true, false);
                        node.machine = Machine::new(node.machine.me().clone(), 0, self.timing);
                        node.waiting.clear();
                    }
                    ["calls", "fail"] => node.link = Link::Fails,
                    ["calls", "hang"] => node.link = Link::Hangs,
                    ["calls", "work"] => node.link = Link::Works(Duration::ZERO),
                    ["replies", "take", time] => node.link = Link::Works(seconds(time)?),
                    ["loses", "replies"] => node.link = Link::LosesReplies,
                    ["hung", "calls", "land"] => {
                        for call in std::mem::take(&mut node.hung) {
                            self.serve(&call);
                        }
                    }
                    ["may", "deliver", id] => {
                        if !node.machine.may_deliver(&key(id)?, node.monotonic(now)) {
                            return Err("it may not".to_owned());
                        }
                    }
                    ["may", "not", "deliver", id] => {
                        if node.machine.may_deliver(&key(id)?, node.monotonic(now)) {
                            return Err("it may".to_owned());
                        }
                    }
                    ["wrote", times, "times"] => {
                        let wrote = u64::from(node.writes);
                        if wrote != number(times)? {
                            return Err(format!("it wrote {wrote} times"));
                        }
                    }
                    _ => return Err(format!("not understood: {name} {}", words.join(" "))),
                }
                return self.check_invariants();
            }
        };
        self.step(name, event);
        self.check_invariants()
    }

    fn row_is(&self, id: &str, facts: &str) -> Play {
        let lease = self.table.leases.get(&key(id)?).ok_or("there is no row")?;
        let who = |worker: &Option<WorkerId>| worker.as_ref().map_or("none", WorkerId::as_str).to_owned();
        let text = format!(
            "owner={} giver={} counter={} at={} switches={}",
            who(&lease.owner),
            who(&lease.giver),
            lease.counter,
            place(&lease.checkpoint),
            lease.owner_switches
        );
        if says(&text, facts) { Ok(()) } else { Err(format!("it is {text}")) }
    }

    // === time ===

    pub(super) fn run_until(&mut self, until: Duration) -> Play {
        loop {
            let next = self.nodes.iter().filter_map(|(name, node)| Some((node.next()?, name.clone()))).min();
            match next {
                Some((at, name)) if at <= until => {
                    self.events += 1;
                    if self.events > EVENTS_MAX {
                        return Err(format!("{name} wakes for nothing"));
                    }
                    self.now = self.now.max(at);
                    self.wake(&name);
                    self.check_invariants()?;
                }
                _ => {
                    self.now = self.now.max(until);
                    return Ok(());
                }
            }
        }
    }

    fn wake(&mut self, name: &str) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let now = node.monotonic(self.now);
        let due = node.waiting.iter().position(|waiting| waiting.at <= now);
        let event = match due {
            Some(at) => {
                let waiting = node.waiting.remove(at);
                Event::Answered(waiting.id, waiting.answer)
            }
            None => Event::Wake,
        };
        self.step(name, event);
    }

    fn step(&mut self, name: &str, event: Event) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let monotonic = node.monotonic(self.now);
        let wall = WallTime::from_millis(1_763_553_900_000) + self.now;
        let effects = node.machine.step(Now { monotonic, wall }, event);
        for effect in effects {
            match effect {
                Effect::Call { id, by, call } => self.make(name, id, by, &call),
                Effect::Tell(news) => self.news(name, news),
            }
        }
    }

    fn make(&mut self, name: &str, id: CallId, by: Monotonic, call: &Call) {
        let Some(node) = self.nodes.get_mut(name) else { return };
        let now = node.monotonic(self.now);
        let is_write = matches!(call, Call::Write(_) | Call::Note(_));
        let link = node.link;
        node.writes += u32::from(is_write);
        let unanswered = if is_write { Answer::Unknown } else { Answer::Failed };
        let (at, answer) = match link {
            Link::Works(delay) => {
                let answer = self.serve(call);
                self.tell_call(name, call, &answer);
                let at = now + delay;
                if at > by { (by, unanswered) } else { (at, answer) }
            }
            Link::LosesReplies => {
                let answer = self.serve(call);
                self.tell_call(name, call, &answer);
                if is_write { (now, Answer::Unknown) } else { (now, answer) }
            }
            // A failure takes a moment.
            Link::Fails => ((now + Duration::from_millis(1)).min(by.max(now)), Answer::Failed),
            Link::Hangs => {
                if let Some(node) = self.nodes.get_mut(name)
                    && is_write
                {
                    node.hung.push(call.clone());
                }
                (by, unanswered)
            }
        };
        if let Some(node) = self.nodes.get_mut(name) {
            node.waiting.push(Waiting { id, at, answer });
        }
    }

    fn serve(&mut self, call: &Call) -> Answer {
        match call {
            Call::Scan => {
                let mut scan = self.table.scan();
                scan.leases.retain(|lease| !self.bad.contains(&lease.key));
                scan.bad = self.bad.iter().map(|key| (key.clone(), "is bad".into())).collect();
                Answer::Scanned(scan)
            }
            Call::Nudge => Answer::Nudge(self.table.nudge),
            Call::Read(key) => Answer::Row(self.table.leases.get(key).cloned()),
            Call::Write(attempt) => self.table.write(attempt),
            Call::Note(note) => self.table.note(note),
            Call::List => Answer::Shards(vec![StreamShards { stream: None, shards: self.shards.clone() }]),
        }
    }

    fn tell_call(&mut self, name: &str, call: &Call, answer: &Answer) {
        let outcome = match answer {
            Answer::Applied(_) => "applied",
            Answer::Refused(_) => "refused",
            _ => "answered",
        };
        let text = match call {
            Call::Write(Attempt::Create(lease)) if lease.owner.is_some() => {
                format!("restore {} {outcome}", short(&lease.key))
            }
            Call::Write(attempt) => format!("{} {} {outcome}", attempt.name(), short(attempt.key())),
            Call::Note(note) => format!("{} {outcome}", note.name()),
            Call::Read(key) => format!("reads {}", short(key)),
            Call::Scan => "scans".to_owned(),
            Call::Nudge => return,
            Call::List => "lists".to_owned(),
        };
        self.tell(name, &text, true);
    }

    fn news(&mut self, name: &str, news: News) {
        let node_now =
            |world: &Self, at: Monotonic| world.nodes.get(name).map_or(Duration::ZERO, |node| node.truly(at));
        let text = match news {
            News::Started => "started".to_owned(),
            News::Granted { lease, parents, deadline } => {
                // LS-4, by what the table says.
                for parent in parents_of(&lease) {
                    let unfinished = |row: &Arc<Lease>| !row.checkpoint.is_end();
                    if self.table.leases.get(&parent).is_some_and(unfinished) {
                        self.tell(name, "LS-4 is broken", false);
                    }
                }
                assert_eq!(
                    parents.len(),
                    parents_of(&lease).filter(|key| self.table.leases.contains_key(key)).count()
                );
                let until = show(node_now(self, deadline));
                format!("got {} until={until} at={}", short(&lease.key), place(&lease.checkpoint))
            }
            News::Extended { key, deadline } => {
                let until = show(node_now(self, deadline));
                return self.tell(name, &format!("extended {} until={until}", short(&key)), true);
            }
            News::GiveAsked { key, how } => {
                let how_text = match how {
                    Ending::Handoff => "handoff",
                    Ending::Stop => "stop",
                    Ending::Lost => "lost",
                };
                self.tell(name, &format!("asked {} {how_text}", short(&key)), false);
                if let Some(node) = self.nodes.get(name)
                    && !node.by_hand
                {
                    self.step(name, Event::Give { key, request: None });
                }
                return;
            }
            News::Lost { key, why: Loss::Superseded { by } } => {
                format!(
                    "lost {} superseded by={}",
                    short(&key),
                    by.map_or("none".to_owned(), |by| by.to_string())
                )
            }
            News::Lost { key, why } => format!("lost {} {}", short(&key), why.name()),
            News::Given { key, to } => {
                format!("gave {} to={}", short(&key), to.map_or("none".to_owned(), |to| to.to_string()))
            }
            News::Done { outcome, .. } => format!("{outcome:?}").to_lowercase(),
            News::Alarm(Alarm::Deficit { leases, desired_workers }) => {
                format!("alarm deficit {leases} desired={desired_workers}")
            }
            News::Alarm(Alarm::Stuck(key)) => format!("alarm stuck {}", short(&key)),
            News::Alarm(Alarm::BadRow(key, _)) => format!("alarm bad_row {}", short(&key)),
            News::Alarm(Alarm::Foreign(worker)) => format!("alarm foreign {worker}"),
            News::Fatal(Fatal::SameWorker) => "fatal same_worker".to_owned(),
            News::Fatal(Fatal::OtherLease { stored }) => format!("fatal other_lease {}", show(stored)),
            News::Stopped => "stopped".to_owned(),
        };
        self.tell(name, &text, false);
    }

    fn check_invariants(&mut self) -> Play {
        let mut holders: BTreeMap<LeaseKey, Vec<&str>> = BTreeMap::new();
        for (name, node) in &self.nodes {
            let now = node.monotonic(self.now);
            for (lease, deadline) in node.machine.held() {
                if now < deadline {
                    holders.entry(lease.key.clone()).or_default().push(name);
                }
            }
        }
        for (key, names) in holders {
            if names.len() > 1 {
                return Err(format!("LS-1 is broken: {} of {}", names.join(" and "), short(&key)));
            }
        }
        for (key, lease) in &self.table.leases {
            let furthest = self.furthest.entry(key.clone()).or_insert_with(|| lease.checkpoint.clone());
            if lease.checkpoint < *furthest {
                return Err(format!(
                    "LS-2 is broken: {} went back to {}",
                    short(key),
                    place(&lease.checkpoint)
                ));
            }
            *furthest = lease.checkpoint.clone();
        }
        Ok(())
    }
}

/// Whether every word of `fact` is in `text`, the first ones at its beginning.
fn says(text: &str, fact: &str) -> bool {
    let words: BTreeSet<&str> = text.split_whitespace().collect();
    let named =
        |fact: &str| fact.split_whitespace().all(|word| words.contains(word) || is_when(word, &words));
    named(fact)
}

/// `at=9.9s` is a moment, `at=40` a checkpoint.
fn is_when(word: &str, words: &BTreeSet<&str>) -> bool {
    word.strip_prefix("at=").is_some_and(|at| words.contains(format!("when={at}").as_str()))
}

pub(super) fn shard(text: &str) -> Shard {
    let (text, closed) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let (id, parents) = text.split_once('<').unwrap_or((text, ""));
    let numbered = |text: &str| ShardId::numbered(text.parse().unwrap());
    let mut parents = parents.split('+').filter(|text| !text.is_empty()).map(numbered);
    Shard {
        id: numbered(id),
        parent: parents.next(),
        adjacent_parent: parents.next(),
        hash_range: HashRange::ALL,
        first_sequence: 1.into(),
        last_sequence: closed.then(|| 9.into()),
    }
}

fn row(shard: &ShardId) -> Lease {
    Lease {
        key: LeaseKey::of_shard(shard),
        stream: None,
        shard: shard.clone(),
        owner: None,
        giver: None,
        counter: 0,
        owner_switches: 0,
        checkpoint: Checkpoint::TrimHorizon,
        parents: BTreeSet::new(),
        children: BTreeSet::new(),
        range: None,
        throughput_kbps: None,
        marks: None,
    }
}

fn key(id: &str) -> Play<LeaseKey> {
    Ok(LeaseKey::of_shard(&ShardId::numbered(number(id)?)))
}

pub(super) fn short(key: &LeaseKey) -> String {
    ShardId::from(key.as_str()).number().map_or_else(|| key.to_string(), |number| number.to_string())
}

fn checkpoint(text: &str) -> Play<Checkpoint> {
    Ok(match text {
        "end" => Checkpoint::ShardEnd,
        text => Checkpoint::At { sequence: number(text)?.into(), sub: 0 },
    })
}

fn place(checkpoint: &Checkpoint) -> String {
    match checkpoint {
        Checkpoint::TrimHorizon => "th".to_owned(),
        Checkpoint::Latest => "latest".to_owned(),
        Checkpoint::AtTimestamp => "time".to_owned(),
        Checkpoint::At { sequence, .. } => sequence.to_string(),
        Checkpoint::ShardEnd => "end".to_owned(),
    }
}

fn cap_of(word: &str) -> Play<u64> {
    number(word.strip_prefix("cap=").ok_or_else(|| format!("wanted cap=…, not {word}"))?)
}

fn number(text: &str) -> Play<u64> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn seconds(text: &str) -> Play<Duration> {
    let number = text.strip_suffix('s').ok_or_else(|| format!("`{text}` is no time"))?;
    number.parse().map(Duration::from_secs_f64).map_err(|_| format!("`{text}` is no time"))
}

/// Milliseconds, rounded up.
fn show(time: Duration) -> String {
    let millis = time.as_nanos().div_ceil(1_000_000);
    format!("{}s", millis as f64 / 1000.0)
}
