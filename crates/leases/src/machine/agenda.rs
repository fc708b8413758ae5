//! When each lease is to be looked at.
//!
//! A scan of a large table times thousands of leases for one moment, and thousands of them anew. So they are kept by
//! moment, and what is timed anew is not searched for: it is passed over when its old moment comes.

use std::collections::BTreeMap;

use tenure_clock::Monotonic;

use crate::LeaseKey;

/// Fewer entries of one moment are not worth tidying.
const TIDY_MIN: usize = 64;

/// Leases by the moment at which each is due.
#[derive(Debug, Clone, PartialEq, Hash, Default)]
pub(super) struct Agenda {
    moments: BTreeMap<Monotonic, Moment>,
}

#[derive(Debug, Clone, PartialEq, Hash, Default)]
struct Moment {
    /// How many of these are still due then.
    live: usize,
    keys: Vec<LeaseKey>,
}

impl Agenda {
    /// A lease is due at `at`. Whoever enters it remembers that.
    pub(super) fn enter(&mut self, at: Monotonic, key: LeaseKey) {
        if at == Monotonic::NEVER {
            return;
        }
        let moment = self.moments.entry(at).or_default();
        if moment.keys.len() == moment.keys.capacity() && moment.keys.len() >= TIDY_MIN {
            // One that comes and goes must not fill it.
            moment.tidy();
        }
        moment.keys.push(key);
        moment.live += 1;
    }

    /// A lease that was entered for `at` is not due then any more.
    pub(super) fn strike(&mut self, at: Monotonic) {
        let Some(moment) = self.moments.get_mut(&at) else { return };
        moment.live -= 1;
        if moment.live == 0 {
            self.moments.remove(&at);
        }
    }

    /// The first moment at which anything is due.
    pub(super) fn first(&self) -> Monotonic {
        self.moments.first_key_value().map_or(Monotonic::NEVER, |(at, _)| *at)
    }

    /// Takes out what is due first, unless that is after `now`: in order of names, and with what was struck.
    pub(super) fn take_due(&mut self, now: Monotonic) -> Option<(Monotonic, Vec<LeaseKey>)> {
        let first = self.moments.first_entry().filter(|moment| *moment.key() <= now)?;
        let (at, mut moment) = first.remove_entry();
        moment.tidy();
        Some((at, moment.keys))
    }
}

impl Moment {
    fn tidy(&mut self) {
        self.keys.sort_unstable();
        self.keys.dedup();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(nanos: u64) -> Monotonic {
        Monotonic::from_nanos(nanos)
    }

    fn due(agenda: &mut Agenda, now: u64) -> Option<(u64, Vec<String>)> {
        let (at, keys) = agenda.take_due(moment(now))?;
        Some((at.as_nanos(), keys.iter().map(ToString::to_string).collect()))
    }

    #[test]
    fn what_is_due_comes_by_moment_and_then_by_name() {
        let mut agenda = Agenda::default();
        for (at, key) in [(5, "b"), (5, "a"), (3, "c"), (9, "d")] {
            agenda.enter(moment(at), key.into());
        }
        assert_eq!(agenda.first(), moment(3));
        assert_eq!(due(&mut agenda, 2), None);
        assert_eq!(due(&mut agenda, 5), Some((3, vec!["c".to_owned()])));
        assert_eq!(due(&mut agenda, 5), Some((5, vec!["a".to_owned(), "b".to_owned()])));
        assert_eq!(due(&mut agenda, 5), None);
        assert_eq!(agenda.first(), moment(9));
    }

    #[test]
    fn a_moment_at_which_nothing_is_due_any_more_is_gone() {
        let mut agenda = Agenda::default();
        agenda.enter(moment(1), "a".into());
        agenda.enter(moment(1), "b".into());
        agenda.strike(moment(1));
        assert_eq!(agenda.first(), moment(1));
        agenda.strike(moment(1));
        assert_eq!(agenda.first(), Monotonic::NEVER);
        // Of a moment that was taken out.
        agenda.strike(moment(1));
    }

    #[test]
    fn one_that_comes_and_goes_does_not_fill_a_moment() {
        let mut agenda = Agenda::default();
        agenda.enter(moment(7), "stays".into());
        for _ in 0..10_000 {
            agenda.enter(moment(7), "comes and goes".into());
            agenda.strike(moment(7));
        }
        assert!(agenda.moments[&moment(7)].keys.len() <= 2 * TIDY_MIN);
    }
}
