//! The scenario `election`: three nodes, one shard, one store.

pub mod candidate;
pub mod checkers;
pub mod outcome;
pub mod plan;
pub mod seed_rules;
pub mod shrink;
mod story;
pub mod table;
mod world;

use tenure_election::Machine;
use tenure_election::testing::LockTable;

use self::checkers::Rule;
use self::outcome::Outcome;
use self::plan::Plan;
use self::seed_rules::{SeedMachine, SeedTable};
use self::table::StoredTable;
use self::world::World;

/// Whose rules the nodes follow, and on which rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Ours, on typed rows.
    Tenure,
    /// Ours, on the rows of the memory store.
    TenureStored,
    /// The seed document's: the positive control.
    Seed,
}

/// What to keep of a run, and when to end it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Watch {
    /// Keep lines.
    pub lines: bool,
    /// End as soon as this rule is broken.
    pub until: Option<Rule>,
}

/// Runs one schedule.
#[must_use]
pub fn run(plan: &Plan, rules: Rules, watch: Watch) -> Outcome {
    match rules {
        Rules::Tenure => World::<Machine, LockTable>::new(plan, watch).run(),
        Rules::TenureStored => World::<Machine, StoredTable>::new(plan, watch).run(),
        Rules::Seed => World::<SeedMachine, SeedTable>::new(plan, watch).run(),
    }
}
