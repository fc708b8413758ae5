//! Tracks which part of the log is settled, and so may be confirmed to Postgres.
//!
//! Events finish out of order, but the slot understands one number. Transactions stand in a ring in the
//! order of their commits, each with a count of what is still outstanding, and the frontier is the end of
//! the last one before which, itself included, nothing is.
//!
//! ```text
//!   commits       ─ 10 ─────── 20 ─────── 30 ─────── 40 ──►
//!   outstanding     0          0          2          0         frontier = end of 20
//! ```
//!
//! - CP-1: the frontier never passes a transaction of which an event is outstanding, nor one whose end has
//!   not come.
//! - CP-2: it is always the end of a commit record, or a place that the server named while nothing was
//!   open; never the place of a change.

use std::collections::VecDeque;

use tenure_stream::identity::Lsn;

/// The settled part of the log.
#[derive(Debug, Clone)]
pub struct Frontier {
    ring: VecDeque<Transaction>,
    /// The number of the transaction at the front of the ring.
    first: u64,
    confirmed: Lsn,
}

/// Counts transactions in the order of their commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ordinal(u64);

#[derive(Debug, Clone)]
struct Transaction {
    outstanding: u64,
    /// Where its commit record ends, once that has come.
    end: Option<Lsn>,
}

impl Frontier {
    /// Everything that committed below `confirmed` is settled.
    #[must_use]
    pub const fn new(confirmed: Lsn) -> Self {
        Self { ring: VecDeque::new(), first: 0, confirmed }
    }

    /// The end of the settled part.
    #[must_use]
    pub const fn confirmed(&self) -> Lsn {
        self.confirmed
    }

    /// Whether a transaction has begun and not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.ring.back().is_some_and(|last| last.end.is_none())
    }

    /// How many transactions are not settled.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.ring.len()
    }

    /// A transaction begins, after all others.
    pub fn begin(&mut self) -> Ordinal {
        debug_assert!(!self.is_open(), "one transaction at a time");
        self.ring.push_back(Transaction { outstanding: 0, end: None });
        Ordinal(self.first + self.ring.len() as u64 - 1)
    }

    /// An event of the transaction has been taken in.
    pub fn add(&mut self, ordinal: Ordinal) {
        if let Some(transaction) = self.at(ordinal) {
            transaction.outstanding += 1;
        }
    }

    /// An event of the transaction is in the stream, as itself or as a pointer.
    pub fn settle(&mut self, ordinal: Ordinal) {
        if let Some(transaction) = self.at(ordinal) {
            debug_assert!(transaction.outstanding > 0, "settled more than there was");
            transaction.outstanding = transaction.outstanding.saturating_sub(1);
        }
        self.advance();
    }

    /// The open transaction has ended: its commit record ends at `end`.
    pub fn close(&mut self, end: Lsn) {
        let others = self.ring.len() > 1;
        let Some(last) = self.ring.back_mut() else { return };
        if last.outstanding == 0 && others {
            // It held nothing: settled as soon as the one before it. So the ring holds only what has events.
            self.ring.pop_back();
            self.stretch(end);
        } else {
            last.end = Some(end);
        }
        self.advance();
    }

    /// The server has sent everything that committed below `sent`, and nothing is open.
    pub fn idle(&mut self, sent: Lsn) {
        if self.is_open() && !tenure_planted::is("idle_inside_transaction") {
            return;
        }
        self.stretch(sent);
        self.advance();
    }

    /// Nothing follows the last transaction up to `end`: both are settled together.
    fn stretch(&mut self, end: Lsn) {
        match self.ring.back_mut() {
            Some(last) => last.end = last.end.max(Some(end)),
            None => self.confirmed = self.confirmed.max(end),
        }
    }

    fn advance(&mut self) {
        while let Some(Transaction { outstanding, end: Some(end) }) = self.ring.front() {
            if *outstanding > 0 && !tenure_planted::is("frontier_skips_outstanding") {
                break;
            }
            self.confirmed = self.confirmed.max(*end);
            self.ring.pop_front();
            self.first += 1;
        }
    }

    fn at(&mut self, ordinal: Ordinal) -> Option<&mut Transaction> {
        let index = ordinal.0.checked_sub(self.first)?;
        self.ring.get_mut(usize::try_from(index).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passes_only_what_is_settled_and_ended() {
        let mut frontier = Frontier::new(Lsn(5));
        let a = frontier.begin();
        frontier.add(a);
        frontier.add(a);
        frontier.settle(a);
        frontier.settle(a);
        assert_eq!(frontier.confirmed(), Lsn(5), "its end has not come, and more may follow");
        frontier.close(Lsn(10));
        assert_eq!(frontier.confirmed(), Lsn(10));

        let b = frontier.begin();
        frontier.add(b);
        frontier.close(Lsn(20));
        let c = frontier.begin();
        frontier.add(c);
        frontier.close(Lsn(30));
        frontier.settle(c);
        assert_eq!(frontier.confirmed(), Lsn(10), "b is before c");
        frontier.settle(b);
        assert_eq!(frontier.confirmed(), Lsn(30));
        assert_eq!(frontier.pending(), 0);
    }

    #[test]
    fn empty_transactions_take_no_room() {
        let mut frontier = Frontier::new(Lsn(0));
        let held = frontier.begin();
        frontier.add(held);
        frontier.close(Lsn(10));
        for end in 11..1000 {
            frontier.begin();
            frontier.close(Lsn(end));
        }
        assert_eq!((frontier.pending(), frontier.confirmed()), (1, Lsn(0)));
        frontier.settle(held);
        assert_eq!((frontier.pending(), frontier.confirmed()), (0, Lsn(999)));
    }

    #[test]
    fn idle_advances_between_transactions_and_never_within_one() {
        let mut frontier = Frontier::new(Lsn(5));
        frontier.idle(Lsn(7));
        assert_eq!(frontier.confirmed(), Lsn(7));
        frontier.idle(Lsn(6));
        assert_eq!(frontier.confirmed(), Lsn(7), "never back");
        let a = frontier.begin();
        frontier.idle(Lsn(9));
        assert_eq!(frontier.confirmed(), Lsn(7));
        frontier.add(a);
        frontier.close(Lsn(12));
        frontier.idle(Lsn(15));
        assert_eq!(frontier.confirmed(), Lsn(7), "a is outstanding");
        frontier.settle(a);
        assert_eq!(frontier.confirmed(), Lsn(15), "what was idle after a goes with it");
    }

    proptest! {
        /// Against the plain meaning: the end of the longest prefix that is settled.
        #[test]
        fn is_the_end_of_the_longest_settled_prefix(
            events in prop::collection::vec(0u8..4, 1..40),
            order in prop::collection::vec(any::<prop::sample::Index>(), 0..200),
        ) {
            let mut frontier = Frontier::new(Lsn(0));
            let mut left: Vec<u8> = Vec::new();
            let mut ordinals = Vec::new();
            for (index, count) in events.iter().enumerate() {
                let ordinal = frontier.begin();
                (0..*count).for_each(|_| frontier.add(ordinal));
                frontier.close(Lsn(10 * (index as u64 + 1)));
                ordinals.push(ordinal);
                left.push(*count);
            }
            for pick in order {
                let index = pick.index(left.len());
                if left[index] > 0 {
                    left[index] -= 1;
                    frontier.settle(ordinals[index]);
                }
                let settled = left.iter().take_while(|count| **count == 0).count() as u64;
                prop_assert_eq!(frontier.confirmed(), Lsn(10 * settled));
            }
        }
    }
}
