//! What a worker says of itself: its own row.

use super::*;

impl Machine {
    /// LE-15: a row that another process left is watched for a lease, and so is what it holds.
    pub(super) fn watch_rival(&mut self, now: Now, row: &Presence, effects: &mut Vec<Effect>) {
        let me = &self.me.worker;
        let is_its = |lease: &Lease| {
            lease.giver.as_ref() == Some(me) || (lease.owner.as_ref() == Some(me) && lease.giver.is_none())
        };
        let leases: BTreeMap<LeaseKey, u64> = self
            .known
            .values()
            .filter(|known| is_its(&known.lease))
            .map(|known| (known.lease.key.clone(), known.lease.counter))
            .collect();
        let Phase::Starting { rival } = &mut self.phase else { return };
        let before = rival.get_or_insert_with(|| Rival {
            incarnation: row.incarnation.clone(),
            counter: row.counter,
            leases: leases.clone(),
            since: now.monotonic,
        });
        let moved =
            leases.iter().any(|(key, counter)| before.leases.get(key).is_some_and(|old| old != counter));
        let lives = moved || before.incarnation != row.incarnation || before.counter != row.counter;
        let since = before.since;
        if lives && !planted::is("name_taken_twice") {
            self.fail(now, Fatal::SameWorker, effects);
        } else if now.monotonic >= since + self.timing.lease || planted::is("name_taken_twice") {
            self.write_presence(now, Some((row.incarnation.clone(), row.counter)), effects);
        } else {
            self.scan.next = (now.monotonic + self.timing.scan).min(since + self.timing.lease);
        }
    }

    pub(super) fn holds_any(&self) -> bool {
        self.mine.iter().any(|key| self.hold(key).is_some())
    }

    pub(super) fn cap_to_say(&self) -> u64 {
        match self.phase {
            Phase::Stopping { .. } => 0,
            _ => u64::try_from(self.cap).unwrap_or(u64::MAX).min(i64::MAX.unsigned_abs()),
        }
    }

    /// When my row is to be written next. A worker that holds leases is seen by its renewals.
    pub(super) fn presence_at(&self) -> Monotonic {
        let leaving = matches!(self.phase, Phase::Stopping { leaving: true, .. });
        if self.own.writing || self.fatal.is_some() || leaving {
            return Monotonic::NEVER;
        }
        let Some(written) = self.own.written else { return self.own.retry_at };
        let changed =
            self.own.cap != self.cap_to_say() || (self.is_running() && self.own.holding != self.holds_any());
        let period = if self.holds_any() { self.timing.presence_ttl / 3 } else { self.timing.renew };
        if changed { self.own.retry_at } else { (written + period).max(self.own.retry_at) }
    }

    pub(super) fn keep_presence(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if now.monotonic >= self.presence_at() {
            self.write_presence(now, None, effects);
        }
    }

    pub(super) fn write_presence(
        &mut self,
        now: Now,
        over: Option<(Arc<str>, u64)>,
        effects: &mut Vec<Effect>,
    ) {
        if self.own.writing {
            return;
        }
        let row = Presence {
            worker: self.me.worker.clone(),
            incarnation: self.me.incarnation.clone(),
            cap: self.cap_to_say(),
            holding: self.holds_any(),
            counter: self.own.counter + 1,
            expires: (now.wall + self.timing.presence_ttl).as_seconds(),
        };
        let first = matches!(self.phase, Phase::Starting { .. });
        self.own.is_news = self.own.written.is_none() || self.own.cap != row.cap;
        self.own.counter = row.counter;
        (self.own.cap, self.own.holding, self.own.writing) = (row.cap, row.holding, true);
        let call = Call::Note(Note::Presence { me: row, over });
        self.call(now.monotonic + self.timing.renew, Asked::Presence { first }, call, effects);
    }

    pub(super) fn presence_answered(
        &mut self,
        now: Now,
        first: bool,
        answer: &Answer,
        effects: &mut Vec<Effect>,
    ) {
        self.own.writing = false;
        if let Phase::Stopping { noted, .. } = &mut self.phase
            && self.own.cap == 0
            && !*noted
        {
            // LE-13: said, or it cannot be said. What is drained need not wait for more.
            *noted = true;
            for key in self.mine.clone() {
                self.retime(now, &key);
            }
        }
        if matches!(answer, Answer::Applied(_)) {
            self.own.written = Some(now.monotonic);
            if first && matches!(self.phase, Phase::Starting { .. }) {
                self.phase = Phase::Running;
                effects.push(Effect::Tell(News::Started));
                self.scan.next = now.monotonic;
                self.look_again(now);
            }
            if self.own.is_news {
                self.tell_everybody(now);
            }
            return;
        }
        self.own.retry_at = now.monotonic + self.pause(1);
        // Nothing of it is said: it is said anew as soon as it can be.
        self.own.cap = u64::MAX;
        if matches!(answer, Answer::Refused(_)) || first {
            self.scan.next = self.own.retry_at;
        }
    }
}
