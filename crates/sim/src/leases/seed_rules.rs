//! The seed document's own rules: the positive control.
//!
//! A worker works out once, when it starts, how many leases it may hold: min(80, ceil(open shards / workers)),
//! with open shards alone, and with as many workers as it sees itself. It takes what is free or has run out, and
//! as long as it has fewer than that, it takes from whoever has most. So closed shards that are not read to their
//! end starve while the budget is spent on their children, and workers that see different fleets rob each other.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure_clock::Monotonic;
use tenure_leases::lineage::{StreamShards, key_of};
use tenure_leases::machine::{
    Answer, Call, CallId, Effect, Event, Loss, Me, News, Now, Outcome, RequestId, Scan,
};
use tenure_leases::{Attempt, Checkpoint, Ending, Lease, LeaseKey, Timing};

use super::keeper::Keeper;

/// The seed's limit.
const LIMIT: usize = 80;

/// How many leases a worker may hold by the seed's rules.
#[must_use]
pub fn cap(open_shards: usize, workers_seen: usize) -> usize {
    LIMIT.min(open_shards.div_ceil(workers_seen.max(1)))
}

/// See the module.
#[derive(Debug)]
pub struct SeedKeeper {
    me: Me,
    cap: usize,
    timing: Timing,
    started: bool,
    stopping: bool,
    stopped: bool,
    /// Every lease, and since when its counter is as it is.
    seen: BTreeMap<LeaseKey, (Arc<Lease>, Monotonic)>,
    held: BTreeMap<LeaseKey, Held>,
    calls: u64,
    asked: BTreeMap<CallId, Asked>,
    scan_at: Monotonic,
    list_at: Monotonic,
    scanning: bool,
    listing: bool,
}

#[derive(Debug)]
struct Held {
    counter: u64,
    /// It reads only once its parents have ended, but has it until then.
    reads: bool,
    deadline: Monotonic,
    renew_at: Monotonic,
    /// A write is under way.
    writing: bool,
    wish: Option<Wish>,
}

#[derive(Debug, Clone)]
enum Wish {
    Checkpoint(RequestId, Checkpoint),
    Give(Option<RequestId>),
}

#[derive(Debug)]
enum Asked {
    Scan,
    List,
    Create,
    Take(LeaseKey, Monotonic),
    Write(LeaseKey, Monotonic, Option<Wish>),
}

impl SeedKeeper {
    fn call(&mut self, by: Monotonic, asked: Asked, call: Call, effects: &mut Vec<Effect>) {
        self.calls += 1;
        let id = CallId(self.calls);
        self.asked.insert(id, asked);
        effects.push(Effect::Call { id, by, call });
    }

    fn lose(&mut self, key: &LeaseKey, why: Loss, effects: &mut Vec<Effect>) {
        let Some(held) = self.held.remove(key) else { return };
        if let Some(Wish::Checkpoint(request, _) | Wish::Give(Some(request))) = held.wish {
            effects.push(Effect::Tell(News::Done { request, outcome: Outcome::Fenced }));
        }
        if held.reads {
            effects.push(Effect::Tell(News::Lost { key: key.clone(), why }));
        }
    }

    fn scanned(&mut self, now: Monotonic, scan: Scan) {
        let mut seen = BTreeMap::new();
        for lease in scan.leases {
            let since = match self.seen.get(&lease.key) {
                Some((before, since)) if before.counter == lease.counter => *since,
                _ => now,
            };
            seen.insert(lease.key.clone(), (lease, since));
        }
        self.seen = seen;
    }

    fn ready(&self, lease: &Lease) -> bool {
        lease.parents.iter().all(|parent| {
            self.seen.get(&LeaseKey::of_shard(parent)).is_none_or(|(parent, _)| parent.checkpoint.is_end())
        })
    }

    /// The next lease to take: free ones first, then those that have run out, then from whoever has most.
    fn wants(&self, now: Monotonic) -> Option<&Arc<Lease>> {
        if self.held.len() >= self.cap || self.stopping {
            return None;
        }
        let me = &self.me.worker;
        let open = |lease: &&(Arc<Lease>, Monotonic)| {
            !lease.0.checkpoint.is_end() && !self.held.contains_key(&lease.0.key)
        };
        let has_run_out = |(_, since): &&(Arc<Lease>, Monotonic)| now >= *since + self.timing.lease;
        // Children come after their parents by name, and the newest are taken first.
        let free =
            self.seen.values().rev().filter(open).find(|lease| lease.0.owner.is_none() || has_run_out(lease));
        if let Some((lease, _)) = free {
            return Some(lease);
        }
        let mut loads: BTreeMap<_, usize> = BTreeMap::new();
        for (lease, _) in self.seen.values().filter(open) {
            if let Some(owner) = lease.owner.as_ref().filter(|owner| *owner != me) {
                *loads.entry(owner).or_default() += 1;
            }
        }
        let (most, _) = loads.into_iter().max_by_key(|(_, count)| *count)?;
        self.seen
            .values()
            .filter(open)
            .map(|(lease, _)| lease)
            .find(|lease| lease.owner.as_ref() == Some(most))
    }

    fn create(&mut self, now: Monotonic, streams: &[StreamShards], effects: &mut Vec<Effect>) {
        for shard in streams.iter().flat_map(|stream| &stream.shards) {
            let key = key_of(None, &shard.id);
            let known = self.seen.contains_key(&key);
            let parents: std::collections::BTreeSet<_> = shard.parents().cloned().collect();
            let ended = !shard.is_open()
                && streams.iter().flat_map(|stream| &stream.shards).any(|child| {
                    child.parents().any(|parent| *parent == shard.id)
                        && self.seen.contains_key(&key_of(None, &child.id))
                });
            if known || ended {
                continue;
            }
            let lease = Lease {
                key,
                stream: None,
                shard: shard.id.clone(),
                owner: None,
                giver: None,
                counter: 0,
                owner_switches: 0,
                checkpoint: Checkpoint::TrimHorizon,
                parents,
                children: std::collections::BTreeSet::new(),
                range: Some(shard.hash_range),
                throughput_kbps: None,
                marks: None,
            };
            let call = Call::Write(Attempt::Create(Box::new(lease)));
            self.call(now + self.timing.renew, Asked::Create, call, effects);
        }
    }

    fn tend(&mut self, now: Monotonic, effects: &mut Vec<Effect>) {
        let me = self.me.worker.clone();
        for key in self.held.keys().cloned().collect::<Vec<_>>() {
            let Some(held) = self.held.get_mut(&key) else { continue };
            if held.writing {
                continue;
            }
            let counter = held.counter;
            let wish = held.wish.clone();
            let attempt = match &wish {
                Some(Wish::Checkpoint(_, at)) => Attempt::Checkpoint {
                    key: key.clone(),
                    counter,
                    me: me.clone(),
                    at: at.clone(),
                    marks: None,
                },
                Some(Wish::Give(_)) => Attempt::Evict { key: key.clone(), counter, me: me.clone() },
                None if now >= held.renew_at => {
                    Attempt::Renew { key: key.clone(), counter, me: me.clone(), kbps: None }
                }
                None => continue,
            };
            held.writing = true;
            let call = Call::Write(attempt);
            self.call(now + self.timing.renew, Asked::Write(key, now, wish), call, effects);
        }
    }

    fn begin_reading(&mut self, effects: &mut Vec<Effect>) {
        for key in self.held.keys().cloned().collect::<Vec<_>>() {
            let Some((lease, _)) = self.seen.get(&key) else { continue };
            let ready = self.ready(lease) && !lease.checkpoint.is_end();
            let lease = lease.clone();
            if let Some(held) = self.held.get_mut(&key)
                && !held.reads
                && ready
            {
                held.reads = true;
                let deadline = held.deadline;
                effects.push(Effect::Tell(News::Granted {
                    lease: Box::new((*lease).clone()),
                    parents: Vec::new(),
                    deadline,
                }));
            }
        }
    }

    fn answered(&mut self, now: Monotonic, asked: Asked, answer: Answer, effects: &mut Vec<Effect>) {
        match (asked, answer) {
            (Asked::Scan, Answer::Scanned(scan)) => {
                self.scanning = false;
                self.scan_at = now + self.timing.scan;
                self.scanned(now, scan);
                if !self.started {
                    self.started = true;
                    effects.push(Effect::Tell(News::Started));
                }
                let me = self.me.worker.clone();
                if let Some(lease) = self.wants(now).cloned() {
                    let key = lease.key.clone();
                    let attempt = Attempt::Take {
                        key: key.clone(),
                        counter: lease.counter,
                        me,
                        from: lease.owner.clone(),
                    };
                    self.call(now + self.timing.renew, Asked::Take(key, now), Call::Write(attempt), effects);
                    self.scan_at = now + self.timing.nudge;
                }
            }
            (Asked::Scan, _) => {
                self.scanning = false;
                self.scan_at = now + self.timing.nudge;
            }
            (Asked::List, answer) => {
                self.listing = false;
                self.list_at = now + self.timing.list;
                if let Answer::Shards(streams) = answer {
                    self.create(now, &streams, effects);
                }
            }
            (Asked::Take(key, sent), Answer::Applied(Some(lease))) => {
                self.seen.insert(key.clone(), (lease.clone(), now));
                let (validity, renew) = (self.timing.validity, self.timing.renew);
                let held = Held {
                    counter: lease.counter,
                    reads: false,
                    deadline: sent + validity,
                    renew_at: sent + renew,
                    writing: false,
                    wish: None,
                };
                self.held.insert(key, held);
            }
            (Asked::Write(key, sent, wish), Answer::Applied(Some(lease))) => {
                let Some(held) = self.held.get_mut(&key) else { return };
                (held.writing, held.counter) = (false, lease.counter);
                (held.deadline, held.renew_at) = (sent + self.timing.validity, sent + self.timing.renew);
                let (deadline, reads) = (held.deadline, held.reads);
                self.seen.insert(key.clone(), (lease, now));
                match wish {
                    Some(Wish::Give(request)) => {
                        self.held.remove(&key);
                        if let Some(request) = request {
                            effects.push(Effect::Tell(News::Done { request, outcome: Outcome::Done }));
                        }
                        effects.push(Effect::Tell(News::Given { key, to: None }));
                    }
                    Some(Wish::Checkpoint(request, _)) => {
                        held.wish = None;
                        effects.push(Effect::Tell(News::Extended { key, deadline }));
                        effects.push(Effect::Tell(News::Done { request, outcome: Outcome::Done }));
                    }
                    None if reads => effects.push(Effect::Tell(News::Extended { key, deadline })),
                    None => {}
                }
            }
            (Asked::Write(key, ..), Answer::Refused(_)) => {
                self.lose(&key, Loss::Superseded { by: None }, effects);
            }
            (Asked::Write(key, ..), _) => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.writing = false;
                    held.renew_at = now + self.timing.nudge;
                }
            }
            (Asked::Take(..) | Asked::Create, _) => {}
        }
    }
}

impl Keeper for SeedKeeper {
    const OURS: bool = false;

    fn new(me: Me, cap: usize, timing: Timing) -> Self {
        Self {
            me,
            cap,
            timing,
            started: false,
            stopping: false,
            stopped: false,
            seen: BTreeMap::new(),
            held: BTreeMap::new(),
            calls: 0,
            asked: BTreeMap::new(),
            scan_at: Monotonic::default(),
            list_at: Monotonic::default(),
            scanning: false,
            listing: false,
        }
    }

    fn step(&mut self, now: Now, event: Event) -> Vec<Effect> {
        let now = now.monotonic;
        let mut effects = Vec::new();
        if self.stopped {
            return effects;
        }
        let over: Vec<LeaseKey> =
            self.held.iter().filter(|(_, held)| now >= held.deadline).map(|(key, _)| key.clone()).collect();
        for key in over {
            self.lose(&key, Loss::Expired, &mut effects);
        }
        match event {
            Event::Answered(id, answer) => {
                if let Some(asked) = self.asked.remove(&id) {
                    self.answered(now, asked, answer, &mut effects);
                }
            }
            Event::Checkpoint { key, request, at, .. } => match self.held.get_mut(&key) {
                Some(held) => held.wish = Some(Wish::Checkpoint(request, at)),
                None => effects.push(Effect::Tell(News::Done { request, outcome: Outcome::Fenced })),
            },
            Event::Give { key, request } => {
                if let Some(held) = self.held.get_mut(&key) {
                    held.wish = Some(Wish::Give(request));
                }
            }
            Event::Stop => {
                self.stopping = true;
                for (key, held) in &mut self.held {
                    if held.reads {
                        let how = Ending::Stop;
                        effects.push(Effect::Tell(News::GiveAsked { key: key.clone(), how }));
                    } else {
                        held.wish = Some(Wish::Give(None));
                    }
                }
            }
            Event::Wake
            | Event::Cap(_)
            | Event::Planner(_)
            | Event::Stuck { .. }
            | Event::Measured { .. } => {}
        }
        self.begin_reading(&mut effects);
        self.tend(now, &mut effects);
        if self.stopping && self.held.is_empty() {
            self.stopped = true;
            effects.push(Effect::Tell(News::Stopped));
            return effects;
        }
        if !self.scanning && now >= self.scan_at {
            self.scanning = true;
            self.call(now + self.timing.lease, Asked::Scan, Call::Scan, &mut effects);
        }
        if self.started && !self.listing && now >= self.list_at {
            self.listing = true;
            self.call(now + self.timing.lease, Asked::List, Call::List, &mut effects);
        }
        effects
    }

    fn wake_at(&self) -> Monotonic {
        if self.stopped {
            return Monotonic::NEVER;
        }
        let scan = if self.scanning { Monotonic::NEVER } else { self.scan_at };
        let list = if self.listing || !self.started { Monotonic::NEVER } else { self.list_at };
        let held = self
            .held
            .values()
            .map(|held| if held.writing { held.deadline } else { held.renew_at.min(held.deadline) });
        held.min().unwrap_or(Monotonic::NEVER).min(scan).min(list)
    }

    fn may_deliver(&self, key: &LeaseKey, now: Monotonic) -> bool {
        self.held.get(key).is_some_and(|held| held.reads && now < held.deadline)
    }

    fn deficit(&self, _now: Monotonic) -> usize {
        0
    }
}
