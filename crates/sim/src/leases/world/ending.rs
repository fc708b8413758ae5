//! The faults stop, and what must be so some time later.

use tenure_leases::machine::Planning;

use super::super::checkers::{Rule, counts_are_even};
use super::super::keeper::Keeper;
use super::super::plan::CAP_PLENTY;
use super::{Happening, World};
use crate::calendar::nanos;
use crate::stage::narrow;

impl<K: Keeper> World<'_, K> {
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.tell(format_args!("the faults stop"));
        (self.nobody_plans, self.second_planner, self.handover_not_before) = (0, None, 0);
        for index in 0..self.nodes.len() {
            self.nodes[index].slow_until = 0;
            if self.plan.plenty_at_last && K::OURS {
                self.set_cap(index, CAP_PLENTY);
            }
        }
        if self.planner.is_none() {
            self.elect_within(self.plan.handover_max);
        }
        self.tell_planning();
        let at = self.stage.now + self.plan.owned_within();
        self.stage.enter(at, Happening::Converged);
    }

    pub(super) fn set_cap(&mut self, index: usize, cap: usize) {
        let node = &mut self.nodes[index];
        if node.cap != cap {
            node.cap = cap;
            let life = node.life;
            self.stage.enter(self.stage.now, Happening::Cap { node: narrow(index), life });
        }
    }

    /// Shards that can be read for long enough, and are not at their end.
    fn readable(&self, since: u64) -> Vec<usize> {
        let is = |shard: &usize| {
            let record = &self.ledger[*shard];
            record.ended.is_none() && record.ready_at.is_some_and(|at| at <= since)
        };
        (0..self.ledger.len()).filter(is).collect()
    }

    fn is_owned(&self, shard: usize) -> bool {
        self.ledger[shard].holders.iter().any(|holder| holder.1 > self.stage.now)
    }

    /// LS-5 and LS-7: every shard that could be read has an owner and a row, or the deficit is said aloud.
    pub(super) fn judge_converged(&mut self) {
        self.converged = true;
        let since = self.stage.now.saturating_sub(self.plan.owned_within());
        let readable = self.readable(since);
        for shard in &readable {
            if !self.table.leases.contains_key(&self.stream.shards[*shard].key) {
                let what = format!("shard {shard} has no row");
                let rule = if self.ledger[*shard].torn { Rule::Ls7 } else { Rule::Ls5 };
                self.check(rule, Err(what));
            }
        }
        let started = self.nodes.iter().filter(|node| node.started && !node.stopping);
        let capacity: usize = started.map(|node| node.cap).sum();
        let demand = self.readable(self.stage.now).len();
        let free: Vec<usize> = readable.iter().copied().filter(|shard| !self.is_owned(*shard)).collect();
        if free.is_empty() {
            return;
        }
        if K::OURS && demand > capacity {
            let owned = demand - free.len();
            self.stage.outcome.tally.deficits += 1;
            let planner = self.nodes.iter().find(|node| node.told == Planning::Me && node.machine.is_some());
            let said = planner.and_then(|node| {
                let machine = node.machine.as_ref()?;
                Some(machine.deficit(node.clock.monotonic(self.stage.now)))
            });
            if said.is_none_or(|said| said == 0) {
                let what = format!("{demand} leases, places for {capacity}, and the planner says {said:?}");
                self.check(Rule::Ls5, Err(what));
            }
            if owned < capacity {
                self.check(
                    Rule::Ls5,
                    Err(format!("{owned} of {demand} leases owned, and places for {capacity}")),
                );
            }
            return;
        }
        self.check(
            Rule::Ls5,
            Err(format!(
                "nobody owns shards {free:?}, {} ms after they could be read",
                self.plan.owned_within() / 1_000_000
            )),
        );
    }

    /// Everything is owned, read, and shared out evenly.
    pub(super) fn judge_end(&mut self) {
        self.judge_converged();
        let taking_part = |node: &&super::Node<K>| node.started && !node.stopping;
        let unfinished = |node: &super::Node<K>| {
            node.holds.keys().filter(|shard| self.ledger[**shard].ended.is_none()).count()
        };
        let counts: Vec<(usize, usize)> =
            self.nodes.iter().filter(taking_part).map(|node| (unfinished(node), node.cap)).collect();
        let above = counts.iter().find(|(held, cap)| held > cap).copied();
        let capacity: usize = counts.iter().map(|(_, cap)| *cap).sum();
        let demand = self.readable(self.stage.now).len();
        if let Some((held, cap)) = above {
            self.check_ours(Rule::Cap, Err(format!("a worker holds {held} leases and may hold {cap}")));
        }
        if demand > capacity {
            return;
        }
        self.check(Rule::Ls6, counts_are_even(&counts));
        for shard in 0..self.ledger.len() {
            let (processed, count) = (self.ledger[shard].processed, self.stream.shards[shard].count);
            let may_be_read = self.ledger[shard].ready_at.is_some();
            if processed < count || !may_be_read {
                let what = format!("{processed} of {count} records of shard {shard} were processed");
                self.check(Rule::Ls5, Err(what));
            }
            if self.stream.shards[shard].closed && self.ledger[shard].ended.is_none() {
                self.check(Rule::Ls5, Err(format!("shard {shard} is closed, and its end is not stored")));
            }
        }
    }

    pub(super) fn count_up(&mut self) {
        let now = self.stage.now;
        let millis = |from: u64, to: u64| to.saturating_sub(from) / 1_000_000;
        for shard in 0..self.ledger.len() {
            let record = &self.ledger[shard];
            self.stage.outcome.tally.processed += record.processed;
            if let Some(at) = record.ready_at {
                self.stage.outcome.tally.ready_millis += millis(at, record.ended.unwrap_or(now));
            }
        }
        for consumer in self.consumers.iter().filter(|consumer| !consumer.over) {
            self.stage.outcome.tally.held_millis += millis(consumer.since(), now);
        }
    }

    /// A large world ends soon after all is held.
    pub(super) fn look_whether_all_is_held(&mut self) {
        if self.all_held_at.is_some() {
            return;
        }
        let held: usize = self.nodes.iter().map(|node| node.holds.len()).sum();
        if held == self.stream.shards.len() {
            self.all_held_at = Some((self.stage.now, self.stage.outcome.tally.writes));
            // Everything is renewed once more, so that the cost of keeping it shows.
            let at = self.stage.now + nanos(self.plan.timing.renew);
            self.stage.enter(at, Happening::Rest);
        }
    }

    /// How many leases whoever holds the fewest has, and whoever holds the most.
    pub(in super::super) fn fewest_and_most(&self) -> (usize, usize) {
        let counts = || self.nodes.iter().map(|node| node.holds.len());
        (counts().min().unwrap_or(0), counts().max().unwrap_or(0))
    }
}
