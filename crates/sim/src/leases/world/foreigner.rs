//! What the worker of another kind does.

use tenure_leases::machine::Answer;
use tenure_leases::{Attempt, Checkpoint, Lease, WorkerId};

use super::super::checkers::LastEnd;
use super::super::keeper::Keeper;
use super::super::stream::{behind, checkpoint_at};
use super::{FOREIGNER, Happening, World};
use crate::calendar::nanos;

/// Its name.
const NAME: &str = "java";
/// Most leases that it takes.
const HOLDS_MAX: usize = 3;
/// It looks so often in a lease.
const TICKS_PER_LEASE: u64 = 4;

impl<K: Keeper> World<'_, K> {
    pub(super) fn foreigner_comes(&mut self) -> bool {
        if self.foreign.alive {
            return false;
        }
        self.foreign.alive = true;
        self.foreign.turn += 1;
        let turn = self.foreign.turn;
        self.stage.enter(self.stage.now, Happening::Tick { turn });
        true
    }

    pub(super) fn foreigner_dies(&mut self) {
        self.foreign.alive = false;
        for node in &mut self.nodes {
            node.scans.clear();
        }
        self.foreign.seen.clear();
        for (shard, _) in std::mem::take(&mut self.foreign.holds) {
            self.set_until(shard, FOREIGNER, 0);
        }
    }

    pub(super) fn tick(&mut self, turn: u32) {
        if !self.foreign.alive || self.foreign.turn != turn {
            return;
        }
        let me = WorkerId::from(NAME);
        let rows: Vec<std::sync::Arc<Lease>> = self.table.leases.values().cloned().collect();
        for row in rows {
            let Some(shard) = self.stream.of(&row.key) else { continue };
            if self.foreign.holds.contains_key(&shard) {
                self.tend(shard, &row, &me);
            } else {
                self.consider(shard, &row, &me);
            }
        }
        // A row that was deleted is lost to it.
        let held: Vec<usize> = self.foreign.holds.keys().copied().collect();
        for shard in held {
            if !self.table.leases.contains_key(&self.stream.shards[shard].key) {
                self.drop_it(shard);
            }
        }
        let at = self.stage.now + self.lease_nanos() / TICKS_PER_LEASE;
        self.stage.enter(at, Happening::Tick { turn });
    }

    /// Whether a worker has seen it renew: in two scans, half a lease apart, of a lease that it has all the time.
    pub(super) fn has_seen_the_foreigner(&self, index: usize) -> bool {
        let (scans, half) = (&self.nodes[index].scans, self.lease_nanos() / 2);
        let last = scans.last().copied().unwrap_or(0);
        let seen =
            |since: u64| scans.iter().find(|at| **at > since).is_some_and(|first| last >= first + half);
        let is_there = |shard: &usize| self.table.leases.contains_key(&self.stream.shards[*shard].key);
        let mut holds = self.foreign.holds.iter().filter(|(shard, _)| is_there(shard));
        last + half > self.stage.now && holds.any(|(_, (_, since))| seen(*since))
    }

    fn drop_it(&mut self, shard: usize) {
        self.foreign.holds.remove(&shard);
        self.set_until(shard, FOREIGNER, 0);
    }

    /// Renews, delivers what there is, and stores how far it came.
    fn tend(&mut self, shard: usize, row: &Lease, me: &WorkerId) {
        if row.owner.as_ref() != Some(me) || row.giver.is_some() {
            return self.drop_it(shard);
        }
        let listed = &self.stream.shards[shard];
        let (count, closed) = (listed.count, listed.closed);
        let (before, since) = self.foreign.holds.get(&shard).copied().unwrap_or((0, self.stage.now));
        let record = &mut self.ledger[shard];
        let again = record.delivered.saturating_sub(before).min(count - before);
        record.delivered = record.delivered.max(count);
        record.processed = record.processed.max(count);
        self.stage.outcome.tally.duplicates += again;
        self.foreign.holds.insert(shard, (count, since));
        let (key, counter, me) = (row.key.clone(), row.counter, me.clone());
        let attempt = if closed {
            Attempt::Checkpoint { key, counter, me, at: Checkpoint::ShardEnd, marks: None }
        } else if count > before {
            Attempt::Checkpoint { key, counter, me, at: checkpoint_at(count), marks: None }
        } else {
            Attempt::Renew { key, counter, me, kbps: None }
        };
        let applied = matches!(self.apply(None, &attempt), Answer::Applied(_));
        if !applied || closed {
            self.ledger[shard].last = if applied { LastEnd::Planned(count) } else { LastEnd::Lost };
            return self.drop_it(shard);
        }
        let until = self.stage.now + nanos(self.plan.timing.validity);
        self.set_until(shard, FOREIGNER, until);
    }

    /// Takes what nobody has, or what has run out.
    fn consider(&mut self, shard: usize, row: &Lease, me: &WorkerId) {
        let now = self.stage.now;
        let (counter, since) = *self.foreign.seen.entry(shard).or_insert((row.counter, now));
        if counter != row.counter {
            self.foreign.seen.insert(shard, (row.counter, now));
        }
        let has_run_out = counter == row.counter && now >= since + self.lease_nanos();
        let is_free = row.owner.is_none() && row.giver.is_none();
        let parents = &self.stream.shards[shard].parents;
        let ready = parents.iter().all(|parent| self.ledger[*parent].ended.is_some());
        let wants = self.foreign.holds.len() < HOLDS_MAX && !row.checkpoint.is_end() && ready;
        if !wants || !(is_free || has_run_out) {
            return;
        }
        let attempt = Attempt::Take {
            key: row.key.clone(),
            counter: row.counter,
            me: me.clone(),
            from: row.owner.clone(),
        };
        if !matches!(self.apply(None, &attempt), Answer::Applied(_)) {
            return;
        }
        let begin = behind(&row.checkpoint, &self.stream.shards[shard]);
        self.tell(format_args!("the worker of another kind takes shard {shard} after {begin} records"));
        self.begin_hold(shard, begin);
        self.foreign.holds.insert(shard, (begin, now));
        let until = now + nanos(self.plan.timing.validity);
        self.set_until(shard, FOREIGNER, until);
    }
}
