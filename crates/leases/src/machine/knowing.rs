//! What is known of the leases, and when each is to be looked at.

use super::*;

impl Machine {
    /// Takes in the leases of a scan that was sent at `sent`.
    pub(super) fn take_in(
        &mut self,
        now: Now,
        sent: Monotonic,
        first: bool,
        leases: Vec<Arc<Lease>>,
        bad: Vec<(LeaseKey, Arc<str>)>,
        effects: &mut Vec<Effect>,
    ) {
        self.bad = bad.into_iter().collect();
        self.alarms.retain(|alarm| match alarm {
            Alarm::BadRow(key, why) => self.bad.get(key) == Some(why),
            _ => true,
        });
        for (key, why) in self.bad.clone() {
            self.raise(Alarm::BadRow(key, why), effects);
        }
        let (others, absent) = self.go_through(now, sent, leases);
        for lease in others {
            self.observe(now, sent, first, lease, effects);
        }
        for key in absent {
            self.vanished(now, &key);
        }
        // What was read to its end is deleted in the course of things, and need not be remembered for long.
        let lease = self.timing.lease;
        let shard_keys = &self.shard_keys;
        self.gone.retain(|key, gone| {
            !gone.lease.checkpoint.is_end()
                || shard_keys.contains(key)
                || now.monotonic < gone.since + lease * GONE_LEASES
        });
        self.look_again(now);
    }

    /// Goes through all leases and what a scan shows of them, side by side: a large table is not searched row by row.
    /// What takes more thought is left for [`Machine::observe`], and so is who is absent for [`Machine::vanished`].
    fn go_through(
        &mut self,
        now: Now,
        sent: Monotonic,
        mut rows: Vec<Arc<Lease>>,
    ) -> (Vec<Arc<Lease>>, Vec<LeaseKey>) {
        if !rows.is_sorted_by(|one, two| one.key < two.key) {
            rows.sort_by(|one, two| one.key.cmp(&two.key));
        }
        let (mut others, mut absent) = (Vec::new(), Vec::new());
        let runs = self.is_running();
        let Self { known, bad, due, me, timing, relook, review, .. } = self;
        let mut is_absent = |key: &LeaseKey, known: &Known| {
            let unseen = known.shown < sent && known.updated < sent && known.doing.is_none();
            if unseen && !bad.contains_key(key) {
                absent.push(key.clone());
            }
        };
        let mut knowns = known.iter_mut().peekable();
        for row in rows {
            while let Some((key, known)) = knowns.next_if(|(key, _)| **key < row.key) {
                is_absent(key, known);
            }
            let Some((key, known)) = knowns.next_if(|(key, _)| **key == row.key) else {
                others.push(row);
                continue;
            };
            let is_new = sent <= known.updated || !is_same(&known.lease, &row);
            // What is held or written is judged by that, and a child also by its parents.
            let is_plain = known.hold.is_none() && known.doing.is_none();
            if !is_plain || (is_new && !row.parents.is_empty()) {
                others.push(row);
                continue;
            }
            known.shown = known.shown.max(sent);
            if !is_new {
                known.updated = now.monotonic;
            } else if sent > known.updated || row.counter > known.lease.counter {
                let ended = known.becomes(now.monotonic, me, timing, row);
                *relook |= ended;
                *review |= ended;
                let at = if runs { known.open_at(me, timing) } else { Monotonic::NEVER };
                known.set_due(at, key, due);
            }
        }
        for (key, known) in knowns {
            is_absent(key, known);
        }
        (others, absent)
    }

    /// A row is not there any more.
    pub(super) fn vanished(&mut self, now: Now, key: &LeaseKey) {
        if let Some(hold) = self.hold_mut(key) {
            // LE-10: I hold it, so I put it back.
            hold.restore = true;
            self.retime(now, key);
            return;
        }
        let Some(known) = self.known.remove(key) else { return };
        self.due.strike(known.due);
        self.gone.insert(key.clone(), Gone { lease: known.lease, since: now.monotonic });
        self.review = true;
    }

    /// Takes in a row that was read or met. Rows that I hold are judged by my own writes, except that they may
    /// say that I am to give.
    pub(super) fn observe(
        &mut self,
        now: Now,
        sent: Monotonic,
        first: bool,
        row: Arc<Lease>,
        effects: &mut Vec<Effect>,
    ) {
        self.gone.remove(&row.key);
        let me = &self.me.worker;
        let plainly_mine = row.owner.as_ref() == Some(me) && row.giver.is_none();
        let at = now.monotonic;
        let Some(known) = self.known.get_mut(&row.key) else {
            let key = row.key.clone();
            // Somebody else's may have moved just now.
            let pinned_until = if row.owner.is_some() { at + self.timing.move_interval } else { at };
            let mut known = Known {
                since: at,
                seen: if planted::is("expiry_from_send") { sent } else { at },
                updated: at,
                shown: sent,
                moves: false,
                pinned_until,
                inherited: plainly_mine && first,
                claimable: None,
                look_at: at,
                shunned_until: at,
                failures: 0,
                counted: None,
                doing: None,
                hold: None,
                due: Monotonic::NEVER,
                deadline: Monotonic::NEVER,
                lease: row,
            };
            if known.lease.parents.is_empty() && self.is_running() {
                known.set_due(known.open_at(&self.me, &self.timing), &key, &mut self.due);
                self.known.insert(key, known);
            } else {
                self.known.insert(key.clone(), known);
                self.retime(now, &key);
            }
            return;
        };
        known.shown = known.shown.max(sent);
        if known.hold.is_none() && sent > known.updated && is_same(&known.lease, &row) {
            // Most rows of a large table, most of the time.
            known.updated = at;
            return;
        }
        // A read that was under way while the row was written may be older than what I know.
        if row.counter < known.lease.counter && sent <= known.updated {
            return;
        }
        if known.hold.is_some() {
            let key = row.key.clone();
            if row.giver.as_ref() == Some(me) && row.counter >= known.lease.counter {
                let to = row.owner.clone();
                self.notice_handoff(now, &key, to, effects);
            } else if row.counter > known.lease.counter && !plainly_mine && known.doing.is_none() {
                // Somebody took it. A write would be refused.
                let by = row.owner.clone();
                self.adopt(now, row);
                self.lose(now, &key, Loss::Superseded { by }, effects);
            }
            return;
        }
        if row.counter == known.lease.counter && sent <= known.updated {
            return;
        }
        self.adopt(now, row);
    }

    /// The row is this now.
    pub(super) fn adopt(&mut self, now: Now, row: Arc<Lease>) {
        let key = row.key.clone();
        self.gone.remove(&key);
        let Some(known) = self.known.get_mut(&key) else { return };
        let ended = known.becomes(now.monotonic, &self.me, &self.timing, row);
        self.retime(now, &key);
        if ended {
            // Its children may be ready now.
            (self.relook, self.review) = (true, true);
        }
    }

    /// Everything that could be taken is looked at again: what was put off, and what had to wait for something else.
    /// The rest is due as soon as it can be taken anyway.
    pub(super) fn look_again(&mut self, now: Now) {
        (self.claims, self.relook) = (None, false);
        let at = now.monotonic;
        let runs = self.is_running();
        let Self { known, due, me, timing, .. } = self;
        let mut children = Vec::new();
        for (key, known) in known {
            let is_idle = known.hold.is_none() && known.doing.is_none() && !known.lease.checkpoint.is_end();
            if !is_idle || (known.due != Monotonic::NEVER && known.look_at <= at) {
                continue;
            }
            known.look_at = known.look_at.min(at);
            if known.lease.parents.is_empty() {
                let at = if runs { known.open_at(me, timing) } else { Monotonic::NEVER };
                known.set_due(at, key, due);
            } else {
                children.push(key.clone());
            }
        }
        for key in children {
            self.retime(now, &key);
        }
    }

    /// LE-8: whether a lease may be read, as far as is known.
    pub(super) fn is_ready(&self, lease: &Lease, now: Monotonic) -> bool {
        // Whoever has it knew of its parents, or had it from somebody who did.
        let is_taken = lease.owner.is_some();
        let lookup = |key: &LeaseKey| {
            let known = self.known.get(key).map(|known| &*known.lease);
            known.or_else(|| {
                let gone = self.gone.get(key).filter(|_| !is_taken)?;
                let patience = self.timing.lease * PARENT_PATIENCE_LEASES;
                (self.is_wanted(key) && now < gone.since + patience).then_some(&*gone.lease)
            })
        };
        if parents_of(lease).any(|key| self.bad.contains_key(&key)) || !is_ready(lease, lookup) {
            return false;
        }
        // A parent's row is cleaned away only after its children have begun (LI-4). Absent before, it is lost, and is
        // made again if its shard is there still: that is known to whoever has listed, and others wait a while.
        let begun = matches!(lease.checkpoint, Checkpoint::At { .. } | Checkpoint::Latest);
        if is_taken || begun || self.fresh_table {
            return true;
        }
        let settled =
            self.began.is_some_and(|began| now >= began + self.timing.lease * STRANGER_PATIENCE_LEASES);
        parents_of(lease).all(|key| {
            let is_seen = self.known.contains_key(&key) || self.gone.contains_key(&key);
            let is_lost = || self.shard_keys.contains(&key) && !self.has_begun_child(&key);
            is_seen || if self.shards.is_some() { !is_lost() } else { settled }
        })
    }

    /// Whether a child of a shard has begun: then the shard has been read. Seldom asked, of a row that was lost.
    pub(super) fn has_begun_child(&self, parent: &LeaseKey) -> bool {
        let begun = |lease: &Lease| matches!(lease.checkpoint, Checkpoint::At { .. } | Checkpoint::ShardEnd);
        let mut leases = self.known.values().map(|known| &*known.lease);
        leases.any(|lease| begun(lease) && parents_of(lease).any(|key| key == *parent))
    }

    /// Whether a shard is there still, as far as is known.
    pub(super) fn is_wanted(&self, key: &LeaseKey) -> bool {
        self.shards.is_none() || self.shard_keys.contains(key)
    }

    /// Works out anew when a lease is to be looked at.
    pub(super) fn retime(&mut self, now: Now, key: &LeaseKey) {
        let due = self.due_at(now, key);
        let Some(known) = self.known.get_mut(key) else { return };
        let deadline = known.hold.as_ref().map_or(Monotonic::NEVER, |hold| hold.deadline);
        known.set_due(due, key, &mut self.due);
        if deadline != known.deadline {
            self.deadlines.remove(&(known.deadline, key.clone()));
            if deadline != Monotonic::NEVER {
                self.deadlines.insert((deadline, key.clone()));
            }
            known.deadline = deadline;
        }
    }

    pub(super) fn due_at(&self, now: Now, key: &LeaseKey) -> Monotonic {
        let Some(known) = self.known.get(key) else { return Monotonic::NEVER };
        if known.doing.is_some() {
            return Monotonic::NEVER;
        }
        match &known.hold {
            Some(hold) => self.work_at(hold, known),
            None => self.claim_at(known, now.monotonic),
        }
    }
}

impl Known {
    /// The row is this now. Whether it has come to its end by that.
    fn becomes(&mut self, now: Monotonic, me: &Me, timing: &Timing, row: Arc<Lease>) -> bool {
        if row.counter != self.lease.counter && !planted::is("watch_ignores_counter") {
            // Whoever gives counts for whoever receives: only an owner that was plainly so before has renewed.
            let same = self.lease.owner == row.owner && self.lease.giver == row.giver;
            self.moves = row.owner.is_some() && same;
            self.seen = now;
            self.claimable = None;
            self.failures = 0;
        }
        if row.owner != self.lease.owner {
            self.claimable = None;
            if row.owner.is_some() && self.lease.owner.is_some() {
                self.pinned_until = now + timing.move_interval;
            }
        }
        if row.owner.as_ref() != Some(&me.worker) || row.giver.is_some() {
            self.inherited = false;
        }
        self.updated = now;
        let ended = row.checkpoint.is_end() && !self.lease.checkpoint.is_end();
        self.lease = row;
        ended
    }

    /// Is to be looked at then.
    pub(super) fn set_due(&mut self, at: Monotonic, key: &LeaseKey, agenda: &mut Agenda) {
        // What others hold is put off with every renewal: it is enough to find that out when it is looked at.
        let is_put_off = self.hold.is_none() && self.doing.is_none() && at > self.due;
        if at == self.due || is_put_off {
            return;
        }
        if self.due != Monotonic::NEVER {
            agenda.strike(self.due);
        }
        agenda.enter(at, key.clone());
        self.due = at;
    }
}

/// Whether nothing happened to a row. In a simulated world rows are shared, and there is nothing to compare.
fn is_same(one: &Arc<Lease>, two: &Arc<Lease>) -> bool {
    Arc::ptr_eq(one, two) || one == two
}
