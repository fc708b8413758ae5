//! The arithmetic of capacity.
//!
//! ```text
//!   stored for all    max    = min(limit, ceil(shards / workers))
//!   in effect here    cap    = min(limit, max(stored, ceil(demand / workers)))
//!   what is missing   deficit = max(shards, demand) − limit × workers
//! ```
//!
//! Demand is every lease that is not at its end. It is more than the open shards while parents of a split or a
//! merge are still being read: a budget that is spent on children alone would never read their parents.

use std::fmt;

use super::settings::OnDeficit;

/// Most leases of one worker, unless another limit is set: more would overload it.
pub const LIMIT: u64 = 80;

/// What every worker may hold: the number in the shared row. No workers count as one.
#[must_use]
pub fn max_leases(limit: u64, shards: u64, workers: u64) -> u64 {
    limit.min(per_worker(shards, workers))
}

pub(super) fn per_worker(leases: u64, workers: u64) -> u64 {
    leases.div_ceil(workers.max(1))
}

/// How many leases this worker may hold now, and why not more or less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cap {
    /// The number.
    pub value: u64,
    /// Where it comes from.
    pub why: Why,
}

/// Where a cap comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// `max_leases` is configured; the table is not looked at.
    Fixed,
    /// The coordinator row says so.
    Coordinator,
    /// There is no coordinator row and the worker count is unknown: by the rows of workers that live.
    Heartbeats,
    /// More leases are to be read than shards are open: the row's number is not enough for all of them.
    Demand,
    /// More is needed, and the limit holds.
    Limit,
    /// More is needed, and the limit was exceeded because that is configured.
    Exceeded,
}

impl Why {
    /// In words, for a person.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Fixed => "max_leases is configured and enable_dynamic_max_leases is off",
            Self::Coordinator => "the coordinator row says so",
            Self::Heartbeats => {
                "there is no coordinator row and the worker count is unknown: counted by the workers that live"
            }
            Self::Demand => "closed shards are still being read, so there are more leases than open shards",
            Self::Limit => "more is needed, and the limit holds: add workers",
            Self::Exceeded => "more is needed, and on_deficit = exceed allows more than the limit",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// What the fleet cannot hold under the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deficit {
    /// Leases that nobody may hold; 0 if all fit.
    pub leases: u64,
    /// Workers with which all would fit.
    pub desired_workers: u64,
}

/// The cap in effect: what is stored for all, raised to what is to be read, under the limit.
///
/// `stored` is where the number comes from if nothing raises or lowers it.
#[must_use]
pub fn effective(
    stored: Cap,
    shards: u64,
    demand: Option<u64>,
    workers: u64,
    limit: u64,
    on_deficit: OnDeficit,
) -> (Cap, Deficit) {
    let demand = demand.unwrap_or(0);
    let wanted = shards.max(demand);
    let deficit = Deficit {
        leases: wanted.saturating_sub(limit.saturating_mul(workers.max(1))),
        desired_workers: per_worker(wanted, limit).max(1),
    };
    let by_demand = per_worker(demand, workers);
    let raised = if by_demand > stored.value { Cap { value: by_demand, why: Why::Demand } } else { stored };
    let cap = match on_deficit {
        OnDeficit::Exceed if deficit.leases > 0 => {
            Cap { value: per_worker(wanted, workers).max(raised.value), why: Why::Exceeded }
        }
        // Also where the row holds more than our own limit: its writer has another.
        _ if raised.value > limit || deficit.leases > 0 => Cap { value: limit, why: Why::Limit },
        _ => raised,
    };
    // A worker that may hold nothing would starve a stream of no demand of its first lease.
    (Cap { value: cap.value.max(1), ..cap }, deficit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn stored(value: u64) -> Cap {
        Cap { value, why: Why::Coordinator }
    }

    #[test]
    fn the_summary_of_the_walk_through() {
        assert_eq!(max_leases(LIMIT, 30, 3), 10);
        assert_eq!(max_leases(LIMIT, 60, 3), 20);
        assert_eq!(max_leases(LIMIT, 61, 3), 21);
        assert_eq!(max_leases(LIMIT, 1000, 3), 80);
        assert_eq!(max_leases(LIMIT, 1, 100), 1);
    }

    #[test]
    fn demand_raises_the_cap_and_the_limit_holds_it() {
        let at = |shards, demand, workers, on_deficit| {
            let max = max_leases(LIMIT, shards, workers);
            effective(stored(max), shards, demand, workers, LIMIT, on_deficit)
        };
        let (cap, deficit) = at(60, Some(90), 3, OnDeficit::Strict);
        assert_eq!(cap, Cap { value: 30, why: Why::Demand });
        assert_eq!(deficit, Deficit { leases: 0, desired_workers: 2 });

        let (cap, deficit) = at(200, Some(250), 3, OnDeficit::Strict);
        assert_eq!(cap, Cap { value: 80, why: Why::Limit });
        assert_eq!(deficit, Deficit { leases: 10, desired_workers: 4 });

        let (cap, deficit) = at(200, Some(250), 3, OnDeficit::Exceed);
        assert_eq!(cap, Cap { value: 84, why: Why::Exceeded });
        assert_eq!(deficit.leases, 10, "what is exceeded is told all the same");

        let (cap, _) = at(30, None, 3, OnDeficit::Exceed);
        assert_eq!(cap, stored(10), "nothing to exceed");
    }

    #[test]
    fn another_workers_limit_is_not_ours() {
        let (cap, _) = effective(stored(120), 30, None, 3, LIMIT, OnDeficit::Strict);
        assert_eq!(cap, Cap { value: 80, why: Why::Limit });
    }

    proptest! {
        #[test]
        fn a_cap_is_enough_or_a_deficit_is_told(
            limit in 1u64..200, shards in 1u64..10_000, extra in 0u64..10_000, workers in 1u64..200,
        ) {
            let demand = shards + extra;
            let max = max_leases(limit, shards, workers);
            let (cap, deficit) =
                effective(stored(max), shards, Some(demand), workers, limit, OnDeficit::Strict);
            prop_assert!((1..=limit).contains(&cap.value));
            prop_assert!(cap.value >= max);
            prop_assert_eq!(cap.value * workers >= demand, deficit.leases == 0);
            prop_assert!(deficit.desired_workers * limit >= demand);
            let (cap, _) =
                effective(stored(max), shards, Some(demand), workers, limit, OnDeficit::Exceed);
            prop_assert!(cap.value * workers >= demand);
        }
    }
}
