//! Which faults, how many of each, and in which order: by the seed.

use tenure_clock::Entropy;

/// What is done to the workers and their stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL to a worker with leases; a new one takes its place.
    Kill,
    /// SIGSTOP to a worker until others have its leases, then SIGCONT.
    Pause,
    /// One more worker.
    Join,
    /// SIGTERM: a planned stop.
    Leave,
    /// Other shards.
    Reshard,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Join => "join",
            Self::Leave => "leave",
            Self::Reshard => "reshard",
        }
    }
}

/// A plan with so many kills and some of everything else.
pub(crate) fn plan(kills: usize, entropy: &Entropy) -> Vec<Fault> {
    let share = |of: usize| (kills / of).max(1);
    let mut faults = Vec::new();
    let mut add = |fault, count| faults.extend(std::iter::repeat_n(fault, count));
    add(Fault::Kill, kills);
    add(Fault::Pause, share(10));
    // As many as leave, so that the fleet stays as large as it is.
    add(Fault::Join, share(4));
    add(Fault::Leave, share(4));
    add(Fault::Reshard, share(5));
    for last in (1..faults.len()).rev() {
        faults.swap(last, entropy.below(last as u64 + 1) as usize);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_its_kills_and_one_of_everything() {
        for kills in [1, 5, 20, 100] {
            let faults = plan(kills, &Entropy::seeded(1));
            let count = |wanted| faults.iter().filter(|fault| **fault == wanted).count();
            assert_eq!(count(Fault::Kill), kills);
            assert_eq!(count(Fault::Join), count(Fault::Leave));
            assert!([Fault::Pause, Fault::Join, Fault::Reshard].into_iter().all(|fault| count(fault) > 0));
        }
    }

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(plan(20, &Entropy::seeded(7)), plan(20, &Entropy::seeded(7)));
        assert_ne!(plan(20, &Entropy::seeded(7)), plan(20, &Entropy::seeded(8)));
    }
}
