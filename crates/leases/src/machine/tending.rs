//! What is done about a lease that is held, and what an answer means.

use super::*;

impl Machine {
    // === what the consumer asks ===

    pub(super) fn ask(&mut self, now: Now, key: &LeaseKey, ask: Ask, effects: &mut Vec<Effect>) {
        let outcome = match self.hold_mut(key) {
            None => Outcome::Fenced,
            Some(hold) if hold.queue.len() >= QUEUE_MAX => Outcome::Busy,
            // Whoever said that it is drained has nothing to add.
            Some(hold) if hold.drained => Outcome::Fenced,
            Some(hold) => {
                hold.drained = matches!(ask, Ask::Give { .. }) && !planted::is("delivers_while_giving");
                hold.queue.push_back(ask);
                self.retime(now, key);
                return;
            }
        };
        let request = match ask {
            Ask::Checkpoint { request, .. } => Some(request),
            Ask::Give { request } => request,
        };
        answer(request, outcome, effects);
    }

    pub(super) fn stuck(&mut self, now: Now, key: &LeaseKey, stuck: bool, effects: &mut Vec<Effect>) {
        let Some(hold) = self.hold_mut(key) else { return };
        hold.stuck = stuck;
        if stuck {
            self.raise(Alarm::Stuck(key.clone()), effects);
        } else {
            self.alarms.remove(&Alarm::Stuck(key.clone()));
        }
        self.retime(now, key);
    }

    pub(super) fn ask_to_give(&mut self, now: Now, key: &LeaseKey, how: Ending, effects: &mut Vec<Effect>) {
        let Some(hold) = self.hold_mut(key) else { return };
        if hold.asked != Some(how) && hold.asked != Some(Ending::Stop) {
            hold.asked = Some(how);
            effects.push(Effect::Tell(News::GiveAsked { key: key.clone(), how }));
            self.retime(now, key);
        }
    }

    /// A row names me as the giver.
    pub(super) fn notice_handoff(
        &mut self,
        now: Now,
        key: &LeaseKey,
        to: Option<WorkerId>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(to) = to else { return };
        let Some(known) = self.known.get_mut(key) else { return };
        let Some(hold) = &mut known.hold else { return };
        let row = Arc::make_mut(&mut known.lease);
        (row.owner, row.giver) = (Some(to.clone()), Some(self.me.worker.clone()));
        known.pinned_until = now.monotonic + self.timing.move_interval;
        if hold.handoff.is_none() {
            hold.handoff = Some(Handoff { to, since: now.monotonic });
            self.ask_to_give(now, key, Ending::Handoff, effects);
        }
    }

    /// LE-9: what is above the cap is drained and given back.
    pub(super) fn shed(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.mine.len() <= self.cap {
            return;
        }
        let staying: Vec<LeaseKey> = self
            .mine
            .iter()
            .filter(|key| {
                self.known.get(*key).is_some_and(|known| {
                    let is_leaving = known.hold.as_ref().is_some_and(|hold| hold.asked.is_some());
                    !is_leaving && !known.lease.checkpoint.is_end()
                })
            })
            .cloned()
            .collect();
        let surplus = staying.len().saturating_sub(self.cap);
        // The last by name: what was there before stays.
        let held = staying.into_iter().rev().filter(|key| self.hold(key).is_some());
        for key in held.take(surplus).collect::<Vec<_>>() {
            self.ask_to_give(now, &key, Ending::Handoff, effects);
        }
    }

    /// A worker that stops gives back what was promised to it.
    pub(super) fn decline(&mut self, now: Now, key: &LeaseKey, effects: &mut Vec<Effect>) {
        let Some(known) = self.known.get(key) else { return };
        let me = Some(&self.me.worker);
        let plainly_mine = known.lease.owner.as_ref() == me && known.lease.giver.is_none();
        let idle = known.hold.is_none() && known.doing.is_none();
        if plainly_mine && idle && !known.inherited && !known.lease.checkpoint.is_end() {
            let counter = known.lease.counter;
            let attempt = Attempt::Evict { key: key.clone(), counter, me: self.me.worker.clone() };
            self.send(now, key, What::Evict, counter + 1, attempt, effects);
        }
    }

    // === time ===

    /// LE-2: ends what is over before anything else is looked at.
    pub(super) fn expire(&mut self, now: Now, effects: &mut Vec<Effect>) {
        while let Some((at, key)) = self.deadlines.first().cloned() {
            if now.monotonic < at {
                return;
            }
            if planted::is("expired_hold_revives")
                && self.known.get(&key).is_some_and(|known| known.doing.is_some())
            {
                return;
            }
            let loss = match self.hold(&key) {
                Some(hold) if hold.stuck => Loss::Stuck,
                Some(hold) if self.is_overdue(hold, now.monotonic) => Loss::SlowHandoff,
                _ => Loss::Expired,
            };
            self.lose(now, &key, loss, effects);
        }
    }

    fn is_overdue(&self, hold: &Hold, now: Monotonic) -> bool {
        hold.handoff.as_ref().is_some_and(|handoff| now >= handoff.since + self.timing.handoff)
    }

    /// The hold is over, and nothing that is under way for it counts any more.
    pub(super) fn lose(&mut self, now: Now, key: &LeaseKey, why: Loss, effects: &mut Vec<Effect>) {
        self.mine.remove(key);
        let lease = self.timing.lease;
        let Some(known) = self.known.get_mut(key) else { return };
        let Some(hold) = known.hold.take() else { return };
        // A write of a hold that is under way may still land: what came of it, the next scan says.
        known.doing = None;
        known.claimable = None;
        known.look_at = now.monotonic;
        if matches!(why, Loss::Stuck | Loss::SlowHandoff) {
            // Others first: it may go better elsewhere.
            known.shunned_until = now.monotonic + lease * 2;
        }
        self.alarms.remove(&Alarm::Stuck(key.clone()));
        for ask in hold.queue {
            let request = match ask {
                Ask::Checkpoint { request, .. } => Some(request),
                Ask::Give { request } => request,
            };
            answer(request, Outcome::Fenced, effects);
        }
        effects.push(Effect::Tell(News::Lost { key: key.clone(), why }));
        self.retime(now, key);
    }

    /// When a lease that is held needs a write.
    pub(super) fn work_at(&self, hold: &Hold, known: &Known) -> Monotonic {
        if hold.restore {
            return hold.retry_at;
        }
        match hold.queue.front() {
            Some(Ask::Give { .. }) if self.must_say_first() => Monotonic::NEVER,
            Some(_) => hold.retry_at,
            None if known.lease.checkpoint.is_end() => Monotonic::NEVER,
            // LE-11.
            None if hold.stuck && !planted::is("stuck_is_renewed") => Monotonic::NEVER,
            None => {
                let renewal = hold.next_renewal.max(hold.retry_at);
                match &hold.handoff {
                    // LE-6.
                    Some(handoff)
                        if renewal >= handoff.since + self.timing.handoff
                            && !planted::is("handoff_without_end") =>
                    {
                        Monotonic::NEVER
                    }
                    _ => renewal,
                }
            }
        }
    }

    /// LE-13: a worker that stops says so before it gives anything back.
    fn must_say_first(&self) -> bool {
        matches!(self.phase, Phase::Stopping { noted: false, .. }) && !planted::is("gives_before_saying")
    }

    /// The write that a lease that is held needs now.
    pub(super) fn work(&mut self, now: Now, key: &LeaseKey, effects: &mut Vec<Effect>) {
        let Some(known) = self.known.get_mut(key) else { return };
        let (Some(hold), None) = (&mut known.hold, &known.doing) else { return };
        let (me, counter) = (self.me.worker.clone(), known.lease.counter);
        if hold.restore {
            let mut lease = (*known.lease).clone();
            (lease.owner, lease.giver) = (Some(me), None);
            lease.counter += crate::lineage::REVIVAL_STEP;
            let to = lease.counter;
            return self.send(now, key, What::Restore, to, Attempt::Create(Box::new(lease)), effects);
        }
        match hold.queue.front().cloned() {
            Some(Ask::Checkpoint { request, at, .. })
                if at < known.lease.checkpoint && !planted::is("checkpoint_goes_back") =>
            {
                // LE-14.
                hold.queue.pop_front();
                answer(Some(request), Outcome::Behind, effects);
                self.retime(now, key);
            }
            Some(Ask::Checkpoint { at, marks, .. }) => {
                let attempt = Attempt::Checkpoint {
                    key: key.clone(),
                    counter,
                    me,
                    at: at.clone(),
                    marks: marks.clone(),
                };
                self.send(now, key, What::Checkpoint { at, marks }, counter + 1, attempt, effects);
            }
            Some(Ask::Give { .. }) => match hold.handoff.clone() {
                Some(Handoff { to, .. }) => {
                    let attempt =
                        Attempt::FinishHandoff { key: key.clone(), counter, from: me, to: to.clone() };
                    self.send(now, key, What::Finish { to }, counter + 1, attempt, effects);
                }
                None => {
                    let attempt = Attempt::Evict { key: key.clone(), counter, me };
                    self.send(now, key, What::Evict, counter + 1, attempt, effects);
                }
            },
            None => {
                let kbps = hold.kbps.take().map(|measured| measured.0);
                let attempt = Attempt::Renew { key: key.clone(), counter, me, kbps };
                self.send(now, key, What::Renew, counter + 1, attempt, effects);
            }
        }
    }

    pub(super) fn send(
        &mut self,
        now: Now,
        key: &LeaseKey,
        what: What,
        to: u64,
        attempt: Attempt,
        effects: &mut Vec<Effect>,
    ) {
        let sent = now.monotonic;
        let by = sent + self.timing.renew;
        let by = self.hold(key).map_or(by, |hold| by.min(hold.deadline));
        let call = self.call(by, Asked::Write(key.clone()), Call::Write(attempt), effects);
        if let Some(known) = self.known.get_mut(key) {
            if let Some(hold) = &mut known.hold
                && matches!(what, What::Renew | What::Checkpoint { .. } | What::Restore)
            {
                hold.first_sent.get_or_insert(sent);
            }
            let counts = !matches!(what, What::Begin { .. } | What::Evict | What::Finish { .. });
            if counts && known.counted.is_none_or(|(counter, _)| counter != to) {
                known.counted = Some((to, sent));
            }
            let from = known.lease.counter;
            known.doing = Some(Box::new(Doing { call, from, to, sent, reading: false, what }));
        }
        self.retime(now, key);
    }

    // === answers ===

    pub(super) fn write_answered(
        &mut self,
        now: Now,
        id: CallId,
        key: &LeaseKey,
        answer: Answer,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.known.get_mut(key) else { return };
        // Otherwise lost meanwhile: the hold that it was for is over.
        let Some(doing) = known.doing.take_if(|doing| doing.call == id) else {
            if let Answer::Applied(Some(row)) | Answer::Refused(Some(row)) = answer {
                self.observe(now, now.monotonic, false, row, effects);
            }
            return;
        };
        let doing = *doing;
        match answer {
            Answer::Applied(row) => self.landed(now, key, doing, row, effects),
            Answer::Refused(row) => self.refused(now, key, doing, row, effects),
            Answer::Unknown if planted::is("unknown_is_landed") => {
                let row = Arc::new(Lease { counter: doing.to, ..(*known.lease).clone() });
                self.landed(now, key, doing, Some(row), effects);
            }
            Answer::Unknown => self.read_back(now, key, doing, effects),
            Answer::Foreign(why) => self.met_bad_row(now, key, why, effects),
            _ => self.failed(now, key),
        }
    }

    fn read_back(&mut self, now: Now, key: &LeaseKey, mut doing: Doing, effects: &mut Vec<Effect>) {
        let by = now.monotonic + self.timing.renew;
        let by = self.hold(key).map_or(by, |hold| by.min(hold.deadline));
        (doing.call, doing.reading) =
            (self.call(by, Asked::Row(key.clone()), Call::Read(key.clone()), effects), true);
        if let Some(known) = self.known.get_mut(key) {
            known.doing = Some(Box::new(doing));
        }
        self.retime(now, key);
    }

    /// LE-4: the row says what came of a write.
    pub(super) fn row_answered(
        &mut self,
        now: Now,
        id: CallId,
        key: &LeaseKey,
        answer: Answer,
        effects: &mut Vec<Effect>,
    ) {
        let Some(known) = self.known.get_mut(key) else { return };
        let Some(doing) = known.doing.take_if(|doing| doing.call == id) else { return };
        let doing = *doing;
        let row = match answer {
            Answer::Row(row) => row,
            Answer::Foreign(why) => return self.met_bad_row(now, key, why, effects),
            // Sent again, it lands once, and a refusal shows the row.
            _ => return self.failed(now, key),
        };
        if self.has_landed(&doing, row.as_deref()) {
            self.landed(now, key, doing, row, effects);
        } else if row.as_ref().is_some_and(|row| row.counter == doing.from) {
            // Not yet, at any rate: sent again, it lands once.
            self.failed(now, key);
        } else {
            self.refused(now, key, doing, row, effects);
        }
    }

    fn has_landed(&self, doing: &Doing, row: Option<&Lease>) -> bool {
        let me = Some(&self.me.worker);
        let Some(row) = row else { return false };
        let plainly_mine = row.owner.as_ref() == me && row.giver.is_none();
        let mine_to_give = row.giver.as_ref() == me;
        let counted = row.counter == doing.to;
        match &doing.what {
            What::Renew | What::Restore => counted && (plainly_mine || mine_to_give),
            What::Checkpoint { at, marks } => {
                counted && (plainly_mine || mine_to_give) && row.checkpoint == *at && row.marks == *marks
            }
            // A handoff to me that was finished meanwhile leaves the same row as my own take, and others may have seen
            // that counter for long. So what may be mine is accepted first, under a counter of my own.
            What::Take => false,
            What::Accept => counted && (plainly_mine || mine_to_give),
            // Whoever has it now got it because it was given.
            What::Evict => row.counter >= doing.to && !plainly_mine && !mine_to_give,
            What::Finish { .. } => row.counter >= doing.to && !mine_to_give,
            What::Begin { from, to } => row.owner.as_ref() == Some(to) && row.giver.as_ref() == Some(from),
        }
    }

    fn landed(
        &mut self,
        now: Now,
        key: &LeaseKey,
        doing: Doing,
        row: Option<Arc<Lease>>,
        effects: &mut Vec<Effect>,
    ) {
        match doing.what {
            What::Renew | What::Checkpoint { .. } | What::Restore => {
                if let Some(row) = row {
                    self.extended(now, key, &doing, row, effects);
                }
            }
            What::Take | What::Accept => {
                if let Some(row) = row {
                    self.taken(now, key, &doing, row, effects);
                }
            }
            What::Evict | What::Finish { .. } => {
                let to = match &doing.what {
                    What::Finish { to } => Some(to.clone()),
                    _ => None,
                };
                self.given(now, key, to, row, effects);
            }
            What::Begin { .. } => {
                if let Some(row) = row {
                    let (to, mine_to_give) = (row.owner.clone(), row.giver.as_ref() == Some(&self.me.worker));
                    self.adopt(now, row);
                    if mine_to_give {
                        self.notice_handoff(now, key, to, effects);
                    }
                }
                self.tell_everybody(now);
            }
        }
    }

    /// A renewal or a checkpoint landed.
    fn extended(
        &mut self,
        now: Now,
        key: &LeaseKey,
        doing: &Doing,
        row: Arc<Lease>,
        effects: &mut Vec<Effect>,
    ) {
        let (validity, renew) = (self.timing.validity, self.timing.renew);
        // LE-6 and LE-11: what a checkpoint counts must not keep what is to run out.
        let runs_out = self.hold(key).is_some_and(|hold| {
            (self.is_overdue(hold, now.monotonic) && !planted::is("handoff_without_end"))
                || (hold.stuck && !planted::is("stuck_is_renewed"))
        });
        let Some(hold) = self.hold_mut(key) else { return };
        let first_sent = hold.first_sent.take().unwrap_or(doing.sent);
        // LE-2.
        let sent = if planted::is("lease_deadline_from_receipt") {
            now.monotonic
        } else if planted::is("lease_retry_stretches_deadline") {
            doing.sent
        } else {
            first_sent
        };
        if !runs_out {
            hold.deadline = hold.deadline.max(sent + validity);
            hold.next_renewal = sent + renew;
        }
        (hold.restore, hold.retry_at) = (false, now.monotonic);
        let deadline = hold.deadline;
        let mut done = None;
        if matches!(doing.what, What::Checkpoint { .. })
            && let Some(Ask::Checkpoint { request, .. }) = hold.queue.pop_front()
        {
            done = Some(request);
        }
        let giver = row.giver.clone();
        let to = row.owner.clone();
        let ended = row.checkpoint.is_end();
        self.adopt(now, row);
        if let Some(known) = self.known.get_mut(key) {
            known.failures = 0;
        }
        if now.monotonic >= deadline {
            // It came too late.
            answer(done, Outcome::Done, effects);
            return self.lose(now, key, Loss::Expired, effects);
        }
        effects.push(Effect::Tell(News::Extended { key: key.clone(), deadline }));
        answer(done, Outcome::Done, effects);
        if giver.as_ref() == Some(&self.me.worker) {
            self.notice_handoff(now, key, to, effects);
        }
        if ended && done.is_some() {
            // Its children may be read, and perhaps are not known yet.
            self.list.next = self.list.next.min(now.monotonic);
            self.tell_everybody(now);
        }
        self.retime(now, key);
    }

    /// A lease that was taken is mine.
    fn taken(&mut self, now: Now, key: &LeaseKey, doing: &Doing, row: Arc<Lease>, effects: &mut Vec<Effect>) {
        // LE-2: a renewal of the last hold may have had this counter already, and may be what landed.
        let counted = self.known.get(key).and_then(|known| known.counted).filter(|(to, _)| *to == doing.to);
        let sent = if planted::is("lease_deadline_from_receipt") {
            now.monotonic
        } else if planted::is("taken_again_counts_anew") {
            doing.sent
        } else {
            counted.map_or(doing.sent, |(_, first)| first)
        };
        let deadline = sent + self.timing.validity;
        let giver = row.giver.clone();
        let to = row.owner.clone();
        self.adopt(now, row);
        self.mine.remove(key);
        if now.monotonic >= deadline || self.lease(key).is_some_and(|lease| lease.checkpoint.is_end()) {
            // It came too late to be of use, whether anybody has it since, the next scan says; or a checkpoint of
            // the last hold had landed unheard, and there is nothing more to read.
            return;
        }
        if !self.is_running() {
            // Stopped meanwhile: given back as it is.
            let counter = self.known.get(key).map_or(0, |known| known.lease.counter);
            let attempt = Attempt::Evict { key: key.clone(), counter, me: self.me.worker.clone() };
            return self.send(now, key, What::Evict, counter + 1, attempt, effects);
        }
        let next_renewal = doing.sent + self.timing.renew;
        let Some(known) = self.known.get_mut(key) else { return };
        known.inherited = false;
        known.claimable = None;
        known.hold = Some(Box::new(Hold {
            deadline,
            next_renewal,
            first_sent: None,
            retry_at: now.monotonic,
            asked: None,
            handoff: None,
            queue: VecDeque::new(),
            stuck: false,
            drained: false,
            restore: false,
            kbps: None,
        }));
        let lease = known.lease.clone();
        self.mine.insert(key.clone());
        let parents = parents_of(&lease)
            .filter_map(|key| self.known.get(&key))
            .map(|known| (*known.lease).clone())
            .collect();
        effects.push(Effect::Tell(News::Granted { lease: Box::new((*lease).clone()), parents, deadline }));
        self.retime(now, key);
        if giver.as_ref() == Some(&self.me.worker) {
            self.notice_handoff(now, key, to, effects);
        }
    }

    /// A lease was given away in good order.
    fn given(
        &mut self,
        now: Now,
        key: &LeaseKey,
        to: Option<WorkerId>,
        row: Option<Arc<Lease>>,
        effects: &mut Vec<Effect>,
    ) {
        self.mine.remove(key);
        let lease = self.timing.lease;
        if let Some(known) = self.known.get_mut(key)
            && let Some(mut hold) = known.hold.take()
        {
            // Whoever gives a lease back unasked does not want it again at once.
            let unasked = hold.asked.is_none() && !known.lease.checkpoint.is_end();
            if unasked {
                known.shunned_until = now.monotonic + lease * 2;
            }
            known.claimable = None;
            if let Some(Ask::Give { request }) = hold.queue.pop_front() {
                answer(request, Outcome::Done, effects);
            }
            for ask in hold.queue {
                let request = match ask {
                    Ask::Checkpoint { request, .. } => Some(request),
                    Ask::Give { request } => request,
                };
                answer(request, Outcome::Fenced, effects);
            }
            effects.push(Effect::Tell(News::Given { key: key.clone(), to }));
        }
        self.alarms.remove(&Alarm::Stuck(key.clone()));
        match row {
            Some(row) => self.adopt(now, row),
            None => self.retime(now, key),
        }
        self.tell_everybody(now);
    }

    fn refused(
        &mut self,
        now: Now,
        key: &LeaseKey,
        doing: Doing,
        row: Option<Arc<Lease>>,
        effects: &mut Vec<Effect>,
    ) {
        let holds = self.hold(key).is_some();
        let Some(row) = row else {
            if !holds {
                self.mine.remove(key);
            }
            // What was asked for waits until the row is back.
            self.vanished(now, key);
            return;
        };
        if !holds {
            self.mine.remove(key);
            let unchanged = row.counter == doing.from && !matches!(doing.what, What::Begin { .. });
            self.adopt(now, row);
            if unchanged {
                // Refused for no reason that the row shows: it would be again, at once and for ever.
                self.failed(now, key);
            } else {
                self.retime(now, key);
            }
            return;
        }
        if self.has_landed(&doing, Some(&row)) {
            // An earlier one landed unheard.
            return self.landed(now, key, doing, Some(row), effects);
        }
        let me = Some(&self.me.worker);
        let plainly_mine = row.owner.as_ref() == me && row.giver.is_none();
        let mine_to_give = row.giver.as_ref() == me;
        if mine_to_give {
            // Somebody asks for it, and may have counted on. The deadline stays until the next write lands.
            let to = row.owner.clone();
            if let Some(known) = self.known.get_mut(key) {
                if known.lease.counter != row.counter
                    && let Some(hold) = &mut known.hold
                {
                    hold.first_sent = None;
                }
                known.lease = row;
                known.updated = now.monotonic;
            }
            self.notice_handoff(now, key, to, effects);
            self.retime(now, key);
        } else if plainly_mine && row.counter == doing.from {
            // Nothing happened to it, nor had it vanished: only what was to happen was not to be, and not at once again.
            if let Some(hold) = self.hold_mut(key) {
                hold.restore = false;
            }
            self.failed(now, key);
        } else if plainly_mine && row.counter == doing.to && matches!(doing.what, What::Checkpoint { .. }) {
            // An earlier renewal landed unheard, and the checkpoint did not: it follows.
            let renewed = Doing { what: What::Renew, ..doing };
            self.extended(now, key, &renewed, row, effects);
        } else {
            let by = row.owner.clone();
            self.adopt(now, row);
            self.lose(now, key, Loss::Superseded { by }, effects);
        }
    }

    /// It did not happen: again after a pause.
    fn failed(&mut self, now: Now, key: &LeaseKey) {
        let Some(known) = self.known.get_mut(key) else { return };
        known.failures = known.failures.saturating_add(1);
        let failures = known.failures;
        let again = now.monotonic + self.pause(failures);
        let Some(known) = self.known.get_mut(key) else { return };
        match &mut known.hold {
            Some(hold) => hold.retry_at = again,
            None => {
                known.look_at = again;
                self.mine.remove(key);
            }
        }
        self.retime(now, key);
    }

    fn met_bad_row(&mut self, now: Now, key: &LeaseKey, why: Arc<str>, effects: &mut Vec<Effect>) {
        self.bad.insert(key.clone(), why.clone());
        self.raise(Alarm::BadRow(key.clone(), why), effects);
        self.lose(now, key, Loss::BadRow, effects);
        self.mine.remove(key);
        self.forget(key);
    }

    pub(super) fn forget(&mut self, key: &LeaseKey) {
        if let Some(known) = self.known.remove(key) {
            self.due.strike(known.due);
            self.deadlines.remove(&(known.deadline, key.clone()));
        }
        self.mine.remove(key);
    }
}

fn answer(request: Option<RequestId>, outcome: Outcome, effects: &mut Vec<Effect>) {
    if let Some(request) = request {
        effects.push(Effect::Tell(News::Done { request, outcome }));
    }
}
