//! Who takes what nobody has, and what the planner does.

use tenure_stream::Shard;

use super::*;
use crate::lineage::{Deletion, chores, key_of};
use crate::plan::{Load, Plan, Roster, Worker, plan};

/// What should have been taken by somebody else is anybody's, up to a fair share, after so much of a lease.
const GRACE_PER_LEASE: u32 = 4;
/// And up to the cap after twice as much. Contenders come one after another within this part of a lease.
const SPREAD_PER_LEASE: u32 = 8;
/// Without a planner for so many leases, every worker sees to the rows by itself.
const UNPLANNED_LEASES: u32 = 2;
/// A finished lease stays for so many leases.
const LINGERING_LEASES: u32 = 5;
/// Of so few leases, each that is made is planned for at once; of more, all together at the next look, which is soon.
const SOON_PLANNED_MAX: usize = 200;
/// To search for a lease takes as long as to go on by so many.
const SEARCH_PER_STEP: usize = 8;
/// Rows that are made or deleted at a time.
const CHORES_MAX: usize = 128;

impl Machine {
    // === taking ===

    /// When a lease that I do not hold could be taken, or is to be thought about again.
    pub(super) fn claim_at(&self, known: &Known, now: Monotonic) -> Monotonic {
        if !self.is_running() || !self.is_ready(&known.lease, now) {
            return Monotonic::NEVER;
        }
        known.open_at(&self.me, &self.timing)
    }

    /// Looks at everything that is due.
    pub(super) fn attend(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let (mut claims, mut in_doubt) = (Vec::new(), !self.is_running());
        while let Some((at, keys)) = self.due.take_due(now.monotonic) {
            let mut held = Vec::new();
            let runs = self.is_running();
            let Self { known, due, me, timing, .. } = self;
            visit(known, &keys, |key, known| {
                if known.due != at {
                    // It was timed anew since.
                    return;
                }
                known.due = Monotonic::NEVER;
                let open_at = known.open_at(me, timing);
                if known.hold.is_some() {
                    held.push(key.clone());
                } else if runs && known.lease.parents.is_empty() && now.monotonic < open_at {
                    // Its holder has renewed it since: most of a large table, most of the time.
                    known.set_due(open_at, key, due);
                } else {
                    in_doubt |= !known.lease.parents.is_empty();
                    claims.push(key.clone());
                }
            });
            for key in held {
                self.work(now, &key, effects);
            }
        }
        if in_doubt {
            claims.retain(|key| self.is_open(now, key));
        }
        if !claims.is_empty() {
            self.claim(now, &claims, effects);
        }
    }

    /// Whether a lease can be taken now, as far as it is concerned. Otherwise it is timed anew.
    fn is_open(&mut self, now: Now, key: &LeaseKey) -> bool {
        let Some(known) = self.known.get(key) else { return false };
        let is_open = known.doing.is_none() && now.monotonic >= self.claim_at(known, now.monotonic);
        if !is_open {
            self.retime(now, key);
        }
        is_open
    }

    /// Takes of these what it should; the rest is thought about again later.
    fn claim(&mut self, now: Now, keys: &[LeaseKey], effects: &mut Vec<Effect>) {
        let ends = |key: &LeaseKey| self.lease(key).is_some_and(|lease| lease.checkpoint.is_end());
        // How many leases count against the cap.
        let mut held = self.mine.iter().filter(|key| !ends(key)).count();
        let is_promised = |key| self.known.get(key).is_some_and(|known| known.is_promised(&self.me));
        if !keys.iter().all(is_promised) {
            self.work_out_claims(now.monotonic);
        }
        let room = if planted::is("takes_above_cap") { usize::MAX } else { self.cap };
        let mut taken = Vec::new();
        let Self { known, due, me, timing, claims, .. } = self;
        let claims = claims.as_ref();
        let share = claims.map_or(0, |claims| claims.share);
        visit(known, keys, |key, known| {
            if known.is_promised(me) {
                // Promised and given, or mine before.
                held += 1;
                taken.push(key.clone());
                return;
            }
            let since = *known.claimable.get_or_insert(now.monotonic);
            let is_placed_here = known.lease.owner.as_ref() == Some(&me.worker)
                || claims.is_some_and(|claims| claims.mine.contains(key));
            let (soon, later) = graces(me, timing, key);
            let takes = held < room
                && (is_placed_here
                    || (now.monotonic >= since + soon && held < share)
                    || now.monotonic >= since + later);
            if takes {
                held += 1;
                taken.push(key.clone());
                return;
            }
            known.look_at = if now.monotonic < since + soon && held < share {
                since + soon
            } else if now.monotonic < since + later {
                since + later
            } else {
                // Full: the next scan looks again.
                now.monotonic + timing.scan
            };
            known.set_due(known.open_at(me, timing), key, due);
        });
        for key in taken {
            self.take(now, &key, effects);
        }
    }

    fn take(&mut self, now: Now, key: &LeaseKey, effects: &mut Vec<Effect>) {
        let Some(known) = self.known.get(key) else { return };
        let (me, from, counter) = (self.me.worker.clone(), known.lease.owner.clone(), known.lease.counter);
        let (key, is_promised) = (key.clone(), known.is_promised(&self.me));
        self.mine.insert(key.clone());
        if is_promised {
            // The condition is that of a renewal.
            let attempt = Attempt::Renew { key: key.clone(), counter, me, kbps: None };
            self.send(now, &key, What::Accept, counter + 1, attempt, effects);
        } else {
            let attempt = Attempt::Take { key: key.clone(), counter, me, from };
            self.send(now, &key, What::Take, counter + 1, attempt, effects);
        }
    }

    /// Works out what nobody has and should be mine, and the most that a worker should hold.
    fn work_out_claims(&mut self, now: Monotonic) {
        if self.claims.as_ref().is_some_and(|claims| now < claims.until) {
            return;
        }
        let plan = self.plan(now);
        let mine = plan.placements.into_iter().filter(|(_, worker)| *worker == self.me.worker);
        let mine = mine.map(|(key, _)| key).collect();
        // At least for this moment: many leases may be due at once.
        let until = now + self.breath().max(Duration::from_nanos(1));
        self.claims = Some(Claims { until, mine, share: plan.share });
    }

    // === who is there ===

    /// Workers that live: by their rows, and by their renewals.
    pub(super) fn alive(&self, now: Monotonic) -> BTreeSet<WorkerId> {
        let mut alive = self.fleet.fresh(now, self.timing.lease);
        if self.is_running() {
            alive.insert(self.me.worker.clone());
        }
        let mut without_row = BTreeSet::new();
        let roster = Roster::new(alive.iter());
        for known in self.known.values() {
            // During a handoff it is the giver that counts on.
            let renews = known.lease.giver.as_ref().or(known.lease.owner.as_ref());
            if let Some(worker) = renews
                && known.moves
                && now < known.seen + self.timing.lease
                && !known.lease.checkpoint.is_end()
                && roster.find(worker).is_none()
            {
                without_row.insert(worker.clone());
            }
        }
        alive.extend(without_row);
        alive
    }

    /// Workers of another kind: they renew, and have no row of ours.
    fn foreigners(&self, now: Monotonic) -> BTreeSet<WorkerId> {
        let renews = |known: &&Known| {
            known.moves && now < known.seen + self.timing.lease && !known.lease.checkpoint.is_end()
        };
        self.known
            .values()
            .filter(renews)
            .filter_map(|known| known.lease.giver.as_ref().or(known.lease.owner.as_ref()))
            .filter(|worker| **worker != self.me.worker && self.fleet.row(worker).is_none())
            .cloned()
            .collect()
    }

    fn workers(&self, now: Monotonic) -> Vec<Worker> {
        let cap = |id: &WorkerId| {
            if *id == self.me.worker {
                return self.cap;
            }
            let said = self.fleet.row(id).map_or(u64::MAX, |row| row.cap);
            usize::try_from(said).unwrap_or(usize::MAX)
        };
        self.alive(now).into_iter().map(|id| Worker { cap: cap(&id), id }).collect()
    }

    fn loads(&self, now: Monotonic) -> Vec<Load> {
        let held = |known: &Known| {
            let runs = now < known.seen + self.timing.lease || known.hold.is_some();
            known.lease.owner.clone().filter(|_| runs)
        };
        self.known
            .values()
            .filter(|known| !known.lease.checkpoint.is_end() && self.is_ready(&known.lease, now))
            .map(|known| Load {
                key: known.lease.key.clone(),
                holder: held(known),
                kbps: known.lease.throughput_kbps,
                pinned: now < known.pinned_until || known.lease.giver.is_some() || known.doing.is_some(),
            })
            .collect()
    }

    fn plan(&self, now: Monotonic) -> Plan {
        plan(&self.workers(now), &self.loads(now), self.timing.balance)
    }

    // === planning ===

    pub(super) fn planner_is(&mut self, now: Now, planning: Planning) {
        if planning == self.planning {
            return;
        }
        self.planning = planning;
        if planning == Planning::Nobody {
            self.unplanned_since = now.monotonic;
        }
        // Whoever begins to plan lists first.
        self.list.next = self.list.next.min(now.monotonic);
        self.review = true;
        if planning != Planning::Me {
            (self.deficit, self.desired_workers) = (0, 0);
            self.alarms.retain(|alarm| !matches!(alarm, Alarm::Deficit { .. } | Alarm::Foreign(_)));
        }
    }

    /// From when on this worker sees to it that there is a lease for every shard.
    pub(super) fn acts_at(&self) -> Monotonic {
        match self.planning {
            Planning::Me => Monotonic::default(),
            Planning::Other => Monotonic::NEVER,
            Planning::Nobody => self.unplanned_since + self.timing.lease * UNPLANNED_LEASES,
        }
    }

    pub(super) fn lead(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if !std::mem::take(&mut self.review) || now.monotonic < self.acts_at() {
            return;
        }
        self.do_chores(now, effects);
        self.notice_ends(now);
        if self.planning == Planning::Me {
            self.share_out(now, effects);
        }
    }

    /// A shard that was read to its end has children, which may not be listed yet.
    fn notice_ends(&mut self, now: Now) {
        let mut parents = BTreeSet::new();
        for known in self.known.values() {
            parents.extend(parents_of(&known.lease));
        }
        let childless =
            |known: &Known| known.lease.checkpoint.is_end() && !parents.contains(&known.lease.key);
        if self.known.values().any(childless) {
            self.list.next = self.list.next.min(now.monotonic + self.timing.scan);
        }
    }

    fn do_chores(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let Some(streams) = &self.shards else { return };
        let leases: BTreeMap<LeaseKey, Arc<Lease>> =
            self.known.iter().map(|(key, known)| (key.clone(), known.lease.clone())).collect();
        let remembered: BTreeMap<LeaseKey, Arc<Lease>> =
            self.gone.iter().map(|(key, gone)| (key.clone(), gone.lease.clone())).collect();
        let (mut creations, mut deletions) = (Vec::new(), Vec::new());
        for stream in streams {
            let found = chores(stream, &leases, &remembered, self.timing.initial);
            creations.extend(found.create);
            deletions.extend(found.delete);
        }
        let began = self.began.unwrap_or(now.monotonic);
        // What was never seen may have been made, taken and deleted while this worker did not look.
        let looks = now.monotonic < self.scanned + self.timing.lease;
        let settled = looks && (now.monotonic >= began + self.timing.lease || self.fresh_table);
        for mut lease in creations {
            let key = lease.key.clone();
            if !self.fresh_table && !self.gone.contains_key(&key) {
                // There may have been one before, and somebody may remember its counter, which only rises.
                lease.counter = u64::try_from(now.wall.as_seconds()).unwrap_or(0);
            }
            // LE-10: its holder may live, and would put it back. It may have one although none was known.
            let waits = match self.gone.get(&key) {
                // Whoever did not look for a lease does not know whether it is back.
                Some(gone) => !looks || now.monotonic < gone.since + self.timing.lease,
                None => !settled,
            };
            // What is absent may have been read to its end and cleaned away since the shards were listed.
            let outdated = match self.gone.get(&key) {
                Some(gone) => self.listed < gone.since,
                None => self.listed + self.timing.lease < now.monotonic,
            };
            let outdated = outdated && !planted::is("any_list_will_do");
            if outdated {
                self.list.next = self.list.next.min(now.monotonic);
            }
            let waits = (waits && !planted::is("vanished_is_free")) || outdated;
            if waits || self.bad.contains_key(&key) || self.chores.len() >= CHORES_MAX {
                continue;
            }
            if self.chores.insert(key.clone()) {
                let call = Call::Write(Attempt::Create(Box::new(lease)));
                self.call(now.monotonic + self.timing.lease, Asked::Create(key), call, effects);
            }
        }
        for Deletion { key, finished } in deletions {
            let Some(known) = self.known.get(&key) else { continue };
            if known.doing.is_some() || known.hold.is_some() || self.chores.len() >= CHORES_MAX {
                continue;
            }
            // A request to make this row, which its sender gave up, may still be under way, and would land.
            if finished && now.monotonic < known.since + self.timing.lease * LINGERING_LEASES {
                continue;
            }
            // A shard that is missing from a list, or its children, may be newer than it.
            if self.listed <= known.since && !planted::is("unlisted_is_gone") {
                continue;
            }
            let counter = known.lease.counter;
            if self.chores.insert(key.clone()) {
                let call = Call::Write(Attempt::Delete { key: key.clone(), counter, finished });
                self.call(now.monotonic + self.timing.lease, Asked::Delete(key), call, effects);
            }
        }
    }

    pub(super) fn create_answered(
        &mut self,
        now: Now,
        key: &LeaseKey,
        answer: Answer,
        effects: &mut Vec<Effect>,
    ) {
        self.chores.remove(key);
        let known = matches!(answer, Answer::Applied(_) | Answer::Refused(_));
        match answer {
            Answer::Applied(Some(row)) => {
                self.observe(now, now.monotonic, false, row, effects);
                if self.known.len() <= SOON_PLANNED_MAX {
                    self.claims = None;
                }
                self.tell_everybody(now);
            }
            Answer::Refused(Some(row)) => self.observe(now, now.monotonic, false, row, effects),
            Answer::Foreign(why) => self.raise(Alarm::BadRow(key.clone(), why), effects),
            // Whether it is there, the next scan says.
            _ => {}
        }
        // Looked at anew once per batch: with thousands of shards, a look is long.
        self.review |= known && self.chores.is_empty();
    }

    pub(super) fn delete_answered(
        &mut self,
        now: Now,
        key: &LeaseKey,
        answer: Answer,
        effects: &mut Vec<Effect>,
    ) {
        self.chores.remove(key);
        let known = matches!(answer, Answer::Applied(_) | Answer::Refused(_));
        match answer {
            Answer::Applied(_) | Answer::Refused(None) => {
                if let Some(known) = self.known.get(key) {
                    let gone = Gone { lease: known.lease.clone(), since: now.monotonic };
                    self.gone.insert(key.clone(), gone);
                }
                self.forget(key);
            }
            Answer::Refused(Some(row)) => self.observe(now, now.monotonic, false, row, effects),
            _ => {}
        }
        self.review |= known && self.chores.is_empty();
    }

    /// The shards were listed. What was read to its end is remembered for as long as it is: an older list wants it.
    pub(super) fn take_in_shards(&mut self, sent: Monotonic, streams: Vec<StreamShards>) {
        let key = |stream: &StreamShards, shard: &Shard| key_of(stream.stream.as_deref(), &shard.id);
        let keys =
            streams.iter().flat_map(|stream| stream.shards.iter().map(move |shard| key(stream, shard)));
        let keys: BTreeSet<LeaseKey> = keys.collect();
        self.gone.retain(|key, gone| !gone.lease.checkpoint.is_end() || keys.contains(key));
        (self.shards, self.shard_keys, self.listed) = (Some(streams), keys, sent);
    }

    /// Moves what somebody holds to whoever should have it, and says aloud what fits nowhere.
    fn share_out(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let foreigners = self.foreigners(now.monotonic);
        self.alarms.retain(|alarm| match alarm {
            Alarm::Foreign(worker) => foreigners.contains(worker),
            _ => true,
        });
        let plan = self.plan(now.monotonic);
        (self.deficit, self.desired_workers) = (plan.deficit, plan.desired_workers);
        let deficit = Alarm::Deficit { leases: plan.deficit, desired_workers: plan.desired_workers };
        self.alarms.retain(|alarm| !matches!(alarm, Alarm::Deficit { .. }) || *alarm == deficit);
        if plan.deficit > 0 {
            self.raise(deficit, effects);
        } else {
            self.alarms.retain(|alarm| !matches!(alarm, Alarm::Deficit { .. }));
        }
        // LE-12.
        if !foreigners.is_empty() && !planted::is("moves_beside_foreigners") {
            for worker in foreigners {
                self.raise(Alarm::Foreign(worker), effects);
            }
            return;
        }
        for step in plan.moves {
            let Some(known) = self.known.get(&step.key) else { continue };
            let idle = known.doing.is_none() && known.hold.as_ref().is_none_or(|hold| hold.asked.is_none());
            if idle && known.lease.owner.as_ref() == Some(&step.from) && known.lease.giver.is_none() {
                self.begin_handoff(now, &step.key, step.from, step.to, effects);
            }
        }
    }

    fn begin_handoff(
        &mut self,
        now: Now,
        key: &LeaseKey,
        from: WorkerId,
        to: WorkerId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.known.get(key) else { return };
        let counter = known.lease.counter;
        let attempt = Attempt::BeginHandoff { key: key.clone(), from: from.clone(), to: to.clone() };
        self.send(now, key, What::Begin { from, to }, counter, attempt, effects);
    }
}

/// Goes through leases by name. Many are gone through side by side with all that is known, few are searched for.
fn visit(all: &mut BTreeMap<LeaseKey, Known>, keys: &[LeaseKey], mut see: impl FnMut(&LeaseKey, &mut Known)) {
    if keys.len() * SEARCH_PER_STEP < all.len() || !keys.is_sorted() {
        for key in keys {
            if let Some(known) = all.get_mut(key) {
                see(key, known);
            }
        }
        return;
    }
    let mut all = all.iter_mut().peekable();
    for key in keys {
        while all.next_if(|(other, _)| *other < key).is_some() {}
        if let Some((key, known)) = all.next_if(|(other, _)| *other == key) {
            see(key, known);
        }
    }
}

/// How long others are given first: different for each, so that they do not all come at once.
fn graces(me: &Me, timing: &Timing, key: &LeaseKey) -> (Duration, Duration) {
    let lease = timing.lease;
    let spread = lease / SPREAD_PER_LEASE * (spread(&me.worker, key) % 64) / 64;
    (lease / GRACE_PER_LEASE + spread, lease / GRACE_PER_LEASE * 2 + spread)
}

impl Known {
    /// Whether it is plainly mine, although I do not hold it.
    fn is_promised(&self, me: &Me) -> bool {
        self.lease.owner.as_ref() == Some(&me.worker) && self.lease.giver.is_none()
    }

    /// When a lease that is ready could be taken, or is to be thought about again.
    pub(super) fn open_at(&self, me: &Me, timing: &Timing) -> Monotonic {
        if self.lease.checkpoint.is_end() || self.doing.is_some() {
            return Monotonic::NEVER;
        }
        self.claimable_at(me, timing).max(self.look_at).max(self.shunned_until)
    }

    /// LE-3, LE-5 and LE-7: when a lease is nobody's any more, or is mine to begin.
    fn claimable_at(&self, me: &Me, timing: &Timing) -> Monotonic {
        let expiry = if planted::is("expires_early") {
            self.seen + timing.lease / 2
        } else {
            self.seen + timing.lease
        };
        match (&self.lease.owner, &self.lease.giver) {
            (None, None) => self.updated,
            (Some(owner), None) if *owner == me.worker => {
                if self.inherited && !planted::is("inherited_is_mine") { expiry } else { self.updated }
            }
            (Some(owner), Some(_)) if *owner == me.worker && planted::is("reads_before_given") => {
                self.updated
            }
            _ => expiry,
        }
    }
}

/// A number that differs by worker and lease (FNV-1a).
fn spread(worker: &WorkerId, key: &LeaseKey) -> u32 {
    let bytes = worker.as_str().bytes().chain([0]).chain(key.as_str().bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
