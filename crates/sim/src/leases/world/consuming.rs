//! The consumers: each reads one shard for as long as it may, checkpoints what it has processed, and drains when asked.

use tenure_clock::Monotonic;
use tenure_leases::machine::{Event, Loss, Outcome, RequestId};
use tenure_leases::{Checkpoint, Ending, Lease, LeaseKey, WorkerId};

use super::super::checkers::{LastEnd, Rule, begins_at_checkpoint, deadline_from_send, parents_have_ended};
use super::super::keeper::Keeper;
use super::super::stream::{behind, checkpoint_at};
use super::{Happening, World};
use crate::draws::Draw;
use crate::stage::{narrow, wide};

/// One consumer, of one lease that was granted.
#[derive(Debug)]
pub(super) struct Consumer {
    pub(super) node: u16,
    shard: usize,
    /// It was lost, given or its process died.
    pub(super) over: bool,
    deadline: Monotonic,
    since: u64,
    /// So many records were delivered, and processed, and stored.
    delivered: u64,
    processed: u64,
    stored: u64,
    /// Records are being processed; each time has a number.
    busy: bool,
    batch: u32,
    /// A delivery is in the calendar.
    scheduled: bool,
    /// It is to drain.
    asked: bool,
    /// It is to drain because another waits for it, since then by its worker's clock.
    pub(super) asked_at: Option<Monotonic>,
    /// The end is stored.
    ended: bool,
    gives: bool,
    /// What was asked of the keeper and is not answered yet.
    wish: Option<Wish>,
    wishes: u32,
    stuck: bool,
    /// The keeper was told that it is stuck.
    pub(super) said_stuck: bool,
}

impl Consumer {
    /// Since when it has its lease.
    pub(super) const fn since(&self) -> u64 {
        self.since
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Checkpoint(u64),
    End,
    Give,
}

impl<K: Keeper> World<'_, K> {
    fn consuming_draw(&mut self) -> Draw {
        self.consuming.1 += 1;
        self.consuming.0.at(self.consuming.1)
    }

    fn consumer(&mut self, holding: u32) -> &mut Consumer {
        &mut self.consumers[holding as usize]
    }

    fn holding(&self, index: usize, key: &LeaseKey) -> Option<(usize, u32)> {
        let shard = self.stream.of(key)?;
        Some((shard, *self.nodes[index].holds.get(&shard)?))
    }

    // === what the keeper says ===

    pub(super) fn granted(&mut self, index: usize, lease: &Lease, deadline: Monotonic) {
        let Some(shard) = self.stream.of(&lease.key) else { return };
        let now = self.stage.now;
        let begin = behind(&lease.checkpoint, &self.stream.shards[shard]);
        self.tell(format_args!("worker {index} is granted shard {shard} after {begin} records"));
        self.stage.outcome.tally.grants += 1;
        self.begin_hold(shard, begin);
        if self.nodes[index].holds.contains_key(&shard) {
            self.check(Rule::NewsAgree, Err(format!("worker {index} is granted shard {shard} twice")));
        }
        if lease.checkpoint.is_end() {
            self.check_ours(
                Rule::NewsAgree,
                Err(format!("worker {index} is granted shard {shard}, which has ended")),
            );
        }
        let consumer = Consumer {
            node: narrow(index),
            shard,
            over: false,
            deadline,
            since: now,
            delivered: begin,
            processed: begin,
            stored: begin,
            busy: false,
            batch: 0,
            scheduled: false,
            asked: false,
            asked_at: None,
            ended: false,
            gives: false,
            wish: None,
            wishes: 0,
            stuck: false,
            said_stuck: false,
        };
        self.consumers.push(consumer);
        let holding = wide(self.consumers.len() - 1);
        self.nodes[index].holds.insert(shard, holding);
        self.hold_until(index, shard, deadline);
        self.go_on(holding);
        if self.plan.is_large() {
            self.look_whether_all_is_held();
        }
    }

    /// Somebody begins to read a shard: LS-3 and LS-4.
    pub(super) fn begin_hold(&mut self, shard: usize, begin: u64) {
        let about = |what: String| format!("shard {shard} {what}");
        let record = &self.ledger[shard];
        let stored = record.stored.as_ref().map_or(0, |at| behind(at, &self.stream.shards[shard]));
        let verdict = begins_at_checkpoint(begin, stored, record.processed, record.last);
        let parents = self.stream.shards[shard].parents.iter().copied();
        let waits: Vec<usize> = parents.filter(|parent| self.ledger[*parent].ended.is_none()).collect();
        let planned = matches!(record.last, LastEnd::Planned(_));
        self.stage.outcome.tally.planned += u64::from(planned);
        self.check(Rule::Ls3, verdict.map_err(about));
        self.check(Rule::Ls4, parents_have_ended(&waits).map_err(about));
        // Until it is given in good order.
        self.ledger[shard].last = LastEnd::Lost;
    }

    fn hold_until(&mut self, index: usize, shard: usize, deadline: Monotonic) {
        let node = &self.nodes[index];
        if let Some((_, sent)) = node.sent.get(&shard) {
            let verdict = deadline_from_send(deadline, *sent, self.plan.timing.validity);
            let who = |what| format!("worker {index} on shard {shard} {what}");
            self.check_ours(Rule::DeadlineFromSend, verdict.map_err(who));
        }
        let until = self.nodes[index].clock.moment(deadline);
        self.set_until(shard, narrow(index), until);
    }

    pub(super) fn extended(&mut self, index: usize, key: &LeaseKey, deadline: Monotonic) {
        let Some((shard, holding)) = self.holding(index, key) else { return };
        let consumer = self.consumer(holding);
        consumer.deadline = deadline;
        if !consumer.gives {
            self.hold_until(index, shard, deadline);
        }
    }

    pub(super) fn give_asked(&mut self, index: usize, key: &LeaseKey, how: Ending) {
        let Some((shard, holding)) = self.holding(index, key) else { return };
        self.tell(format_args!("worker {index} is asked to give shard {shard}: {how:?}"));
        let row = self.table.leases.get(key);
        let waited_for = row.is_some_and(|row| row.giver.as_ref() == Some(&self.nodes[index].name));
        let monotonic = self.nodes[index].clock.monotonic(self.stage.now);
        let consumer = self.consumer(holding);
        consumer.asked = true;
        if waited_for && how == Ending::Handoff {
            consumer.asked_at.get_or_insert(monotonic);
        }
        self.go_on(holding);
    }

    pub(super) fn lost(&mut self, index: usize, key: &LeaseKey, why: &Loss) {
        let Some((shard, holding)) = self.holding(index, key) else { return };
        self.stage.outcome.tally.losses += 1;
        self.nodes[index].holds.remove(&shard);
        self.end_of_hold(shard, holding);
        if self.converged && self.ledger[shard].ended.is_none() {
            let what = format!("worker {index} lost shard {shard} after all had healed: {}", why.name());
            self.check_ours(Rule::Ls5, Err(what));
        }
    }

    pub(super) fn given(&mut self, index: usize, key: &LeaseKey, to: Option<&WorkerId>) {
        let Some((shard, holding)) = self.holding(index, key) else { return };
        let to = to.map_or("nobody", |to| to.as_str());
        self.tell(format_args!("worker {index} has given shard {shard} to {to}"));
        self.nodes[index].holds.remove(&shard);
        let Consumer { gives, delivered, stored, ended, .. } = *self.consumer(holding);
        if !gives || (delivered != stored && !ended) {
            let what =
                format!("worker {index} gave shard {shard} after {delivered} records, with {stored} stored");
            self.check(Rule::StopJoins, Err(what));
        }
        self.end_of_hold(shard, holding);
    }

    /// The consumer is no more.
    pub(super) fn end_of_hold(&mut self, shard: usize, holding: u32) {
        let now = self.stage.now;
        let consumer = self.consumer(holding);
        consumer.over = true;
        let (node, since) = (consumer.node, consumer.since);
        self.stage.outcome.tally.held_millis += (now - since) / 1_000_000;
        self.set_until(shard, node, 0);
    }

    pub(super) fn done(&mut self, request: RequestId, outcome: Outcome) {
        let holding = u32::try_from(request.0 >> 32).unwrap_or(u32::MAX);
        let number = request.0 & 0xffff_ffff;
        let Some(consumer) = self.consumers.get_mut(holding as usize) else { return };
        if consumer.over || u64::from(consumer.wishes) != number {
            return;
        }
        let Some(wish) = consumer.wish.take() else { return };
        match (outcome, wish) {
            (Outcome::Done, Wish::Checkpoint(count)) => consumer.stored = count,
            (Outcome::Done, Wish::End) => consumer.ended = true,
            // Fenced is followed by its loss, and what was stored is further already.
            (Outcome::Done, Wish::Give) | (Outcome::Fenced, _) => return,
            (Outcome::Behind, wish) => {
                let (node, shard) = (consumer.node, consumer.shard);
                let what = format!("worker {node} is told that {wish:?} of shard {shard} is behind");
                self.check_ours(Rule::Ls2, Err(what));
                return;
            }
            (Outcome::Busy, wish) => {
                consumer.wish = Some(wish);
                let at = self.stage.now + self.lease_nanos() / 20;
                return self.stage.enter(at, Happening::Ask { holding });
            }
        }
        self.go_on(holding);
    }

    // === what the consumer does ===

    /// Does what is next: deliver, store, note the end, or give.
    fn go_on(&mut self, holding: u32) {
        let every = self.plan.workload.checkpoint_every;
        let soon = 1 + self.consuming_draw().below(self.plan.workload.processing_max.max(1) / 4 + 1);
        let Some(consumer) = self.consumers.get_mut(holding as usize) else { return };
        if consumer.over || consumer.busy || consumer.wish.is_some() || consumer.gives {
            return;
        }
        let shard = &self.stream.shards[consumer.shard];
        let at_end = shard.closed && consumer.processed == shard.count;
        let processed = consumer.processed;
        let unstored = processed - consumer.stored;
        if consumer.ended {
            self.wish(holding, Wish::Give);
        } else if consumer.asked {
            let wish = if unstored > 0 { Wish::Checkpoint(processed) } else { Wish::Give };
            self.wish(holding, wish);
        } else if at_end {
            self.wish(holding, Wish::End);
        } else if unstored >= every {
            self.wish(holding, Wish::Checkpoint(processed));
        } else if shard.count > consumer.delivered && !consumer.scheduled {
            consumer.scheduled = true;
            self.stage.enter(self.stage.now + soon, Happening::Deliver { holding });
        }
    }

    fn wish(&mut self, holding: u32, wish: Wish) {
        let consumer = self.consumer(holding);
        consumer.wish = Some(wish);
        consumer.wishes += 1;
        if wish == Wish::Give {
            // From now on it does not deliver, and another may.
            consumer.gives = true;
            let (shard, node, delivered) = (consumer.shard, consumer.node, consumer.delivered);
            self.set_until(shard, node, 0);
            self.ledger[shard].last = LastEnd::Planned(delivered);
        }
        self.stage.enter(self.stage.now, Happening::Ask { holding });
    }

    /// What a consumer asks for reaches its keeper.
    pub(super) fn ask(&mut self, holding: u32) {
        let Consumer { node, shard, wish, wishes, over, .. } = *self.consumer(holding);
        let (Some(wish), false) = (wish, over) else { return };
        let key = self.stream.shards[shard].key.clone();
        let request = RequestId(u64::from(holding) << 32 | u64::from(wishes));
        let event = match wish {
            Wish::Checkpoint(count) => {
                Event::Checkpoint { key, request, at: checkpoint_at(count), marks: None }
            }
            Wish::End => Event::Checkpoint { key, request, at: Checkpoint::ShardEnd, marks: None },
            Wish::Give => Event::Give { key, request: Some(request) },
        };
        self.step(usize::from(node), event);
    }

    pub(super) fn reach_consumer(&mut self, holding: u32, happening: Happening) {
        let Consumer { node, over, .. } = *self.consumer(holding);
        let node = usize::from(node);
        if over {
            return;
        }
        if self.nodes[node].paused > 0 {
            self.nodes[node].waiting.push(happening);
            return;
        }
        match happening {
            Happening::Deliver { .. } => self.deliver(holding),
            Happening::Settle { batch, .. } => self.settle(holding, batch),
            Happening::Overdue { batch, .. } => self.overdue(holding, batch),
            _ => {}
        }
    }

    fn deliver(&mut self, holding: u32) {
        let now = self.stage.now;
        let mut draw = self.consuming_draw();
        let Consumer { node, shard, deadline, delivered, asked, busy, gives, .. } = *self.consumer(holding);
        self.consumer(holding).scheduled = false;
        if gives {
            return;
        }
        let index = usize::from(node);
        let monotonic = self.nodes[index].clock.monotonic(now);
        let may = monotonic < deadline;
        self.judge_news(index, shard, may);
        if !may || asked || busy {
            return;
        }
        let workload = &self.plan.workload;
        let count = (1 + draw.below(workload.batch_max)).min(self.stream.shards[shard].count - delivered);
        let takes = 1 + draw.below(workload.processing_max);
        let settles = (now + takes).max(self.nodes[index].slow_until);
        let record = &mut self.ledger[shard];
        let again = record.delivered.saturating_sub(delivered).min(count);
        record.delivered = record.delivered.max(delivered + count);
        self.stage.outcome.tally.duplicates += again;
        self.stage.trace.mix(((shard as u64) << 32) | (delivered + count));
        self.note(format_args!("worker {index} delivers {count} records of shard {shard} after {delivered}"));
        // LS-1, as it matters: two that deliver at once.
        let verdict = super::at_most_one_owner(now, node, &self.ledger[shard].holders);
        self.check(Rule::Ls1, verdict.map_err(|what| format!("shard {shard} is delivered, and {what}")));
        let consumer = self.consumer(holding);
        consumer.delivered += count;
        consumer.busy = true;
        consumer.batch += 1;
        let batch = consumer.batch;
        self.stage.enter(settles, Happening::Settle { holding, batch });
        if settles > now + self.plan.stuck_after {
            self.stage.enter(now + self.plan.stuck_after, Happening::Overdue { holding, batch });
        }
    }

    /// What the consumer was told, and what its keeper would say.
    pub(super) fn judge_news(&mut self, index: usize, shard: usize, may: bool) {
        let monotonic = self.nodes[index].clock.monotonic(self.stage.now);
        let key = &self.stream.shards[shard].key;
        let says =
            self.nodes[index].machine.as_ref().is_some_and(|machine| machine.may_deliver(key, monotonic));
        if says != may {
            let what = format!("worker {index} may deliver shard {shard}: {may}; its keeper says {says}");
            self.check(Rule::NewsAgree, Err(what));
        }
    }

    fn settle(&mut self, holding: u32, batch: u32) {
        let consumer = self.consumer(holding);
        if !consumer.busy || consumer.batch != batch {
            return;
        }
        consumer.busy = false;
        consumer.processed = consumer.delivered;
        let (shard, processed, was_stuck) = (consumer.shard, consumer.processed, consumer.stuck);
        let record = &mut self.ledger[shard];
        record.processed = record.processed.max(processed);
        if was_stuck {
            self.consumer(holding).stuck = false;
            self.stage.enter(self.stage.now, Happening::Stuck { holding });
        }
        self.go_on(holding);
    }

    fn overdue(&mut self, holding: u32, batch: u32) {
        let consumer = self.consumer(holding);
        if consumer.busy && consumer.batch == batch {
            consumer.stuck = true;
            self.stage.enter(self.stage.now, Happening::Stuck { holding });
        }
    }

    /// The keeper hears whether a consumer is stuck.
    pub(super) fn say_stuck(&mut self, holding: u32) {
        let Consumer { node, shard, stuck, .. } = *self.consumer(holding);
        self.consumer(holding).said_stuck = stuck;
        self.tell(format_args!("worker {node} hears of shard {shard}: stuck {stuck}"));
        let key = self.stream.shards[shard].key.clone();
        self.step(usize::from(node), Event::Stuck { key, stuck });
    }

    // === what is written ===

    pub(super) fn put(&mut self) {
        self.work.1 += 1;
        let mut draw = self.work.0.at(self.work.1);
        let open = self.stream.open();
        let shard = open[usize::try_from(draw.below(open.len() as u64)).unwrap_or(0)];
        let count = 1 + draw.below(self.plan.workload.burst_max);
        self.stream.shards[shard].count += count;
        self.stage.outcome.tally.written += count;
        self.wake_readers(shard);
        if !self.healed {
            let at = self.stage.now + 1 + draw.below(self.plan.workload.every_max);
            self.stage.enter(at, Happening::Put);
        }
    }

    /// Whoever reads the shard notices that something is there, or that it is closed.
    pub(super) fn wake_readers(&mut self, shard: usize) {
        let holdings: Vec<u32> =
            self.nodes.iter().filter_map(|node| node.holds.get(&shard).copied()).collect();
        for holding in holdings {
            self.go_on(holding);
        }
    }
}
