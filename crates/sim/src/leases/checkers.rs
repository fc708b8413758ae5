//! What must hold, each rule by its name.
//!
//! The checkers see everything, as nobody in the world does: true time, every landing at the store, and what
//! was processed. They judge; they never act.

use std::time::Duration;

use tenure_clock::Monotonic;
use tenure_leases::Checkpoint;

use crate::fault::named;
use crate::scenario::Verdict;

named! {
    /// The rules.
    Rule:
    Ls1 "LS-1" "A shard has at most one owner who may deliver at any true moment, also when a paused one resumes.",
    Ls2 "LS-2" "Checkpoints never go back.",
    Ls3 "LS-3" "No gap; overlap only after the last checkpoint and only after a crash or a loss, never after a planned move.",
    Ls4 "LS-4" "A child starts after all its parents ended.",
    Ls5 "LS-5" "After healing every shard that can be read is owned within a bound, or the deficit is alarmed, and all is read.",
    Ls6 "LS-6" "Counts differ by at most one after balancing, and nothing is moved twice in an interval.",
    Ls7 "LS-7" "A deleted row comes back, not beyond what was processed, nor before what its maker knew.",
    Cap "cap" "Nobody takes a lease above its cap, and nobody holds more for long.",
    DeadlineFromSend "deadline_from_send" "A lease lasts no longer than its validity from when its counter was first sent.",
    ForeignAlone "foreign_left_alone" "Beside workers of another kind nothing is moved.",
    StuckGivesUp "stuck_gives_up" "A lease whose consumer is stuck is not renewed.",
    SlowGivesUp "slow_gives_up" "A giver that does not drain in time does not keep the lease.",
    StopJoins "stop_joins" "A worker that said it stopped holds nothing, and left nothing undrained that it gave back.",
    NewsAgree "news_agree" "What the consumer was told and what the keeper would say are the same.",
    Bounded "bounded" "Nobody spins: a schedule has a bounded number of events.",
}

/// How the last hold of a shard ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastEnd {
    /// There was none, or what is known of it counts no more: the row was deleted since.
    None,
    /// In good order, after so many records.
    Planned(u64),
    /// By a crash or a loss.
    Lost,
}

/// LS-1. `holders` are those who were granted the shard, and until which true moment each may deliver.
pub fn at_most_one_owner(now: u64, who: u16, holders: &[(u16, u64)]) -> Verdict {
    let may = |holder: &&(u16, u64)| holder.1 > now;
    if !holders.iter().any(|holder| holder.0 == who && holder.1 > now) {
        return Ok(());
    }
    match holders.iter().filter(may).find(|holder| holder.0 != who) {
        Some((other, _)) => Err(format!("both worker {who} and worker {other} may deliver")),
        None => Ok(()),
    }
}

/// LS-2, for a checkpoint that landed.
pub fn checkpoint_advances(before: &Checkpoint, at: &Checkpoint) -> Verdict {
    if at < before { Err(format!("the checkpoint went from {before:?} to {at:?}")) } else { Ok(()) }
}

/// LS-3, for a checkpoint that landed: what it is past was processed.
pub fn checkpoint_is_processed(
    at: &Checkpoint,
    behind: u64,
    processed: u64,
    count: u64,
    closed: bool,
) -> Verdict {
    if behind > processed {
        return Err(format!("the checkpoint is past {behind} records, and {processed} were processed"));
    }
    if at.is_end() && (!closed || processed < count) {
        return Err(format!("its end is noted after {processed} of {count} records, closed {closed}"));
    }
    Ok(())
}

/// LS-3, for a lease that was granted: the reader begins after `begin` records, the row is past `stored`.
pub fn begins_at_checkpoint(begin: u64, stored: u64, processed: u64, last: LastEnd) -> Verdict {
    if begin > processed {
        return Err(format!("begins after {begin} records, and {processed} were processed: a gap"));
    }
    if begin != stored {
        return Err(format!("begins after {begin} records, and the checkpoint is past {stored}"));
    }
    match last {
        LastEnd::Planned(at) if at != begin => {
            Err(format!("begins after {begin} records, and was given in good order after {at}"))
        }
        _ => Ok(()),
    }
}

/// LS-4. `parents` are those that have not ended.
pub fn parents_have_ended(parents: &[usize]) -> Verdict {
    match parents.first() {
        Some(parent) => Err(format!("begins before its parent {parent} has ended")),
        None => Ok(()),
    }
}

/// LS-6: a lease that a live worker holds was moved `since` ago.
pub fn moves_once(since: Option<u64>, interval: u64) -> Verdict {
    match since {
        Some(since) if since < interval => Err(format!(
            "moved again after {} ms, within an interval of {} ms",
            since / 1_000_000,
            interval / 1_000_000
        )),
        _ => Ok(()),
    }
}

/// LS-6: how many leases each worker holds, and may.
pub fn counts_are_even(workers: &[(usize, usize)]) -> Verdict {
    let most = workers.iter().map(|(held, _)| *held).max().unwrap_or(0);
    match workers.iter().find(|(held, cap)| held + 1 < most && held < cap) {
        Some((held, cap)) => {
            Err(format!("one holds {most} leases, and another {held} of the {cap} that it may"))
        }
        None => Ok(()),
    }
}

/// LS-7: the row of a shard was made. `known` is what its maker had seen of it.
pub fn made_where_it_was(made: u64, processed: u64, known: Option<u64>) -> Verdict {
    if made > processed {
        return Err(format!("the row is made past {made} records, and {processed} were processed"));
    }
    match known {
        Some(known) if made < known => {
            Err(format!("the row is made past {made} records, and its maker had seen it past {known}"))
        }
        _ => Ok(()),
    }
}

/// A lease was granted or renewed, and its counter was first sent at `sent`, by the worker's own clock.
pub fn deadline_from_send(deadline: Monotonic, sent: Monotonic, validity: Duration) -> Verdict {
    if deadline > sent + validity {
        let beyond = deadline.since(sent + validity);
        return Err(format!("holds for {beyond:?} longer than since its counter was first sent"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leases::stream::checkpoint_at;

    #[test]
    fn two_owners_are_noticed_until_the_first_ends() {
        assert!(at_most_one_owner(10, 1, &[(0, 11), (1, 20)]).is_err());
        assert!(at_most_one_owner(11, 1, &[(0, 11), (1, 20)]).is_ok());
        assert!(at_most_one_owner(10, 2, &[(0, 11), (1, 20)]).is_ok(), "only the asked worker is judged");
    }

    #[test]
    fn checkpoints_rise_and_stay_behind_what_was_processed() {
        assert!(checkpoint_advances(&Checkpoint::TrimHorizon, &checkpoint_at(1)).is_ok());
        assert!(checkpoint_advances(&checkpoint_at(2), &checkpoint_at(1)).is_err());
        assert!(checkpoint_advances(&Checkpoint::ShardEnd, &checkpoint_at(1)).is_err());
        assert!(checkpoint_is_processed(&checkpoint_at(3), 3, 3, 9, false).is_ok());
        assert!(checkpoint_is_processed(&checkpoint_at(4), 4, 3, 9, false).is_err());
        assert!(checkpoint_is_processed(&Checkpoint::ShardEnd, 9, 9, 9, true).is_ok());
        assert!(checkpoint_is_processed(&Checkpoint::ShardEnd, 9, 9, 9, false).is_err(), "it is open");
    }

    #[test]
    fn a_planned_move_repeats_nothing() {
        assert!(begins_at_checkpoint(5, 5, 9, LastEnd::Lost).is_ok());
        assert!(begins_at_checkpoint(5, 5, 9, LastEnd::Planned(5)).is_ok());
        assert!(begins_at_checkpoint(5, 5, 9, LastEnd::Planned(9)).is_err());
        assert!(begins_at_checkpoint(4, 5, 9, LastEnd::Lost).is_err(), "before the last checkpoint");
        assert!(begins_at_checkpoint(10, 10, 9, LastEnd::Lost).is_err(), "a gap");
    }

    #[test]
    fn counts_differ_by_one_as_far_as_caps_allow() {
        assert!(counts_are_even(&[(3, 9), (2, 9), (2, 9)]).is_ok());
        assert!(counts_are_even(&[(3, 9), (1, 9)]).is_err());
        assert!(counts_are_even(&[(3, 9), (1, 1)]).is_ok());
    }

    #[test]
    fn a_second_move_must_wait() {
        assert!(moves_once(None, 10).is_ok() && moves_once(Some(10), 10).is_ok());
        assert!(moves_once(Some(9), 10).is_err());
    }

    #[test]
    fn a_row_comes_back_where_it_was() {
        assert!(made_where_it_was(3, 5, Some(3)).is_ok() && made_where_it_was(0, 0, None).is_ok());
        assert!(made_where_it_was(6, 5, None).is_err(), "beyond what was processed");
        assert!(made_where_it_was(2, 5, Some(3)).is_err(), "its maker knew better");
    }

    #[test]
    fn the_others_say_what_they_mean() {
        assert!(parents_have_ended(&[]).is_ok() && parents_have_ended(&[4]).is_err());
        let (sent, validity) = (Monotonic::from_nanos(5), Duration::from_nanos(10));
        assert!(deadline_from_send(Monotonic::from_nanos(15), sent, validity).is_ok());
        assert!(deadline_from_send(Monotonic::from_nanos(16), sent, validity).is_err());
    }
}
