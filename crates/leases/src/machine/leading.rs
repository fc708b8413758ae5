//! Who takes what nobody has, and what the planner does.

use tenure_stream::Shard;

use super::*;
use crate::lineage::{Deletion, chores, key_of};
use crate::plan::{Load, Plan, Worker, plan};

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
/// Rows that are made or deleted at a time.
const CHORES_MAX: usize = 128;

impl Machine {
    // === taking ===

    /// When a lease that I do not hold could be taken, or is to be thought about again.
    pub(super) fn claim_at(&self, known: &Known, now: Monotonic) -> Monotonic {
        let lease = &known.lease;
        if !self.is_running() || lease.checkpoint.is_end() || !self.is_ready(lease, now) {
            return Monotonic::NEVER;
        }
        self.claimable_at(known).max(known.look_at).max(known.shunned_until)
    }

    /// LE-3, LE-5 and LE-7: when a lease is nobody's any more, or is mine to begin.
    fn claimable_at(&self, known: &Known) -> Monotonic {
        let lease = &known.lease;
        let expiry = if planted::is("expires_early") {
            known.seen + self.timing.lease / 2
        } else {
            known.seen + self.timing.lease
        };
        match (&lease.owner, &lease.giver) {
            (None, None) => known.updated,
            (Some(owner), None) if *owner == self.me.worker => {
                if known.inherited && !planted::is("inherited_is_mine") { expiry } else { known.updated }
            }
            (Some(owner), Some(_)) if *owner == self.me.worker && planted::is("reads_before_given") => {
                known.updated
            }
            _ => expiry,
        }
    }

    /// Looks at everything that is due.
    pub(super) fn attend(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let mut claims = Vec::new();
        while let Some((at, key)) = self.due.first().cloned() {
            if now.monotonic < at {
                break;
            }
            self.due.remove(&(at, key.clone()));
            if let Some(known) = self.known.get_mut(&key) {
                known.due = Monotonic::NEVER;
                if known.hold.is_some() {
                    self.work(now, &key, effects);
                } else {
                    claims.push(key);
                }
            }
        }
        if claims.is_empty() {
            return;
        }
        let ends = |key: &LeaseKey| self.lease(key).is_some_and(|lease| lease.checkpoint.is_end());
        // How many leases count against the cap.
        let mut held = self.mine.iter().filter(|key| !ends(key)).count();
        for key in claims {
            self.claim(now, &key, &mut held, effects);
        }
    }

    fn claim(&mut self, now: Now, key: &LeaseKey, held: &mut usize, effects: &mut Vec<Effect>) {
        let Some(known) = self.known.get(key) else { return };
        if known.doing.is_some() || now.monotonic < self.claim_at(known, now.monotonic) {
            self.retime(now, key);
            return;
        }
        let me = self.me.worker.clone();
        let (owner, counter) = (known.lease.owner.clone(), known.lease.counter);
        let is_mine = owner.as_ref() == Some(&me);
        if is_mine && known.lease.giver.is_none() {
            // Promised and given, or mine before. The condition is that of a renewal.
            self.mine.insert(key.clone());
            *held += 1;
            let attempt = Attempt::Renew { key: key.clone(), counter, me, kbps: None };
            return self.send(now, key, What::Accept, counter + 1, attempt, effects);
        }
        let since = known.claimable.unwrap_or(now.monotonic);
        if let Some(known) = self.known.get_mut(key) {
            known.claimable = Some(since);
        }
        let (is_placed_here, share) = self.claims(now.monotonic, key);
        let is_placed_here = is_mine || is_placed_here;
        let count = *held;
        let (soon, later) = self.graces(key);
        let room = if planted::is("takes_above_cap") { usize::MAX } else { self.cap };
        let takes = count < room
            && (is_placed_here
                || (now.monotonic >= since + soon && count < share)
                || now.monotonic >= since + later);
        if takes {
            self.mine.insert(key.clone());
            *held += 1;
            let attempt = Attempt::Take { key: key.clone(), counter, me, from: owner };
            return self.send(now, key, What::Take, counter + 1, attempt, effects);
        }
        let next = if now.monotonic < since + soon && count < share {
            since + soon
        } else if now.monotonic < since + later {
            since + later
        } else {
            // Full: the next scan looks again.
            now.monotonic + self.timing.scan
        };
        if let Some(known) = self.known.get_mut(key) {
            known.look_at = next;
        }
        self.retime(now, key);
    }

    /// Whether a lease that nobody has should be mine, and the most that a worker should hold.
    fn claims(&mut self, now: Monotonic, key: &LeaseKey) -> (bool, usize) {
        if self.claims.as_ref().is_none_or(|claims| now >= claims.until) {
            let plan = self.plan(now);
            let mine = plan.placements.into_iter().filter(|(_, worker)| *worker == self.me.worker);
            let mine = mine.map(|(key, _)| key).collect();
            // At least for this moment: many leases may be due at once.
            let until = now + self.breath().max(Duration::from_nanos(1));
            self.claims = Some(Claims { until, mine, share: plan.share });
        }
        self.claims.as_ref().map_or((false, 0), |claims| (claims.mine.contains(key), claims.share))
    }

    /// How long others are given first: different for each, so that they do not all come at once.
    fn graces(&self, key: &LeaseKey) -> (Duration, Duration) {
        let lease = self.timing.lease;
        let spread = lease / SPREAD_PER_LEASE * (spread(&self.me.worker, key) % 64) / 64;
        (lease / GRACE_PER_LEASE + spread, lease / GRACE_PER_LEASE * 2 + spread)
    }

    // === who is there ===

    /// Workers that live: by their rows, and by their renewals.
    pub(super) fn alive(&self, now: Monotonic) -> BTreeSet<WorkerId> {
        let mut alive = self.fleet.fresh(now, self.timing.lease);
        if self.is_running() {
            alive.insert(self.me.worker.clone());
        }
        for known in self.known.values() {
            // During a handoff it is the giver that counts on.
            let renews = known.lease.giver.as_ref().or(known.lease.owner.as_ref());
            if let Some(worker) = renews
                && known.moves
                && now < known.seen + self.timing.lease
                && !known.lease.checkpoint.is_end()
                && !alive.contains(worker)
            {
                alive.insert(worker.clone());
            }
        }
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

/// A number that differs by worker and lease (FNV-1a).
fn spread(worker: &WorkerId, key: &LeaseKey) -> u32 {
    let bytes = worker.as_str().bytes().chain([0]).chain(key.as_str().bytes());
    bytes.fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
