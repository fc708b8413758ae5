//! Which faults, how many of each, and in which order: by the seed.

use tenure_clock::Entropy;

/// What is done to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// SIGKILL to a leader with records in flight.
    Kill,
    /// The same while a large transaction waits on its disk.
    KillInSpill,
    /// SIGTERM, and SIGKILL a moment later.
    KillInHandover,
    /// SIGKILL to a leader, and a table gets other columns before the next one leads.
    KillInAlter,
    /// A table gets other columns.
    Alter,
    /// SIGTERM: a planned handover.
    Handover,
    /// SIGSTOP to the leader until another leads, then SIGCONT.
    Pause,
    /// Postgres ends at once and recovers.
    PostgresCrash,
    /// Other shards.
    Reshard,
    /// SIGKILL to one that does not lead.
    KillStandby,
}

impl Fault {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::KillInSpill => "kill in spill",
            Self::KillInHandover => "kill in handover",
            Self::KillInAlter => "kill in alter",
            Self::Alter => "alter",
            Self::Handover => "handover",
            Self::Pause => "pause",
            Self::PostgresCrash => "postgres crash",
            Self::Reshard => "reshard",
            Self::KillStandby => "kill of a standby",
        }
    }

    /// Whether a leader is killed.
    #[cfg(test)]
    const fn is_kill(self) -> bool {
        matches!(self, Self::Kill | Self::KillInSpill | Self::KillInHandover | Self::KillInAlter)
    }
}

/// A plan with so many kills of leaders, and at least one of everything else.
pub(crate) fn plan(kills: usize, entropy: &Entropy) -> Vec<Fault> {
    let share = |of: usize| (kills / of).max(1);
    let mut faults = Vec::new();
    let mut add = |fault, count| faults.extend(std::iter::repeat_n(fault, count));
    // One of each at least, as far as there are kills to give.
    let in_spill = share(8).min(kills.saturating_sub(1));
    let in_handover = share(10).min(kills.saturating_sub(1 + in_spill));
    let in_alter = share(8).min(kills.saturating_sub(1 + in_spill + in_handover));
    add(Fault::KillInSpill, in_spill);
    add(Fault::KillInAlter, in_alter);
    add(Fault::KillInHandover, in_handover);
    add(Fault::Kill, kills - in_spill - in_handover - in_alter);
    add(Fault::Alter, share(10));
    add(Fault::Handover, share(8));
    add(Fault::Pause, share(25));
    add(Fault::PostgresCrash, share(10));
    add(Fault::Reshard, share(8));
    add(Fault::KillStandby, share(20));
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
        for kills in [1, 2, 3, 10, 100, 357] {
            let faults = plan(kills, &Entropy::seeded(1));
            assert_eq!(faults.iter().filter(|fault| fault.is_kill()).count(), kills);
            let others = [
                Fault::Alter,
                Fault::Handover,
                Fault::Pause,
                Fault::PostgresCrash,
                Fault::Reshard,
                Fault::KillStandby,
            ];
            assert!(others.iter().all(|fault| faults.contains(fault)), "{kills}");
        }
    }

    #[test]
    fn a_seed_is_a_plan() {
        assert_eq!(plan(50, &Entropy::seeded(7)), plan(50, &Entropy::seeded(7)));
        assert_ne!(plan(50, &Entropy::seeded(7)), plan(50, &Entropy::seeded(8)));
    }
}
