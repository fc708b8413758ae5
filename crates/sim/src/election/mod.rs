//! The scenario `election`: three nodes, one shard, one store.

pub mod candidate;
pub mod checkers;
pub mod fault;
pub mod plan;
pub mod seed_rules;
mod story;
pub mod table;
pub mod tally;
mod world;

use tenure_election::Machine;
use tenure_election::testing::LockTable;

use self::checkers::Rule;
use self::fault::Fault;
use self::plan::Plan;
use self::seed_rules::{SeedMachine, SeedTable};
use self::table::StoredTable;
use self::tally::Tally;
use self::world::World;
use crate::scenario::{OutcomeOf, Scenario, Watch};

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

/// See the module.
#[derive(Debug)]
pub enum Election {}

impl Scenario for Election {
    const NAME: &'static str = "election";
    type Rules = Rules;
    type Rule = Rule;
    type Fault = Fault;
    type Plan = Plan;
    type Tally = Tally;

    const OURS: Rules = Rules::Tenure;
    const SEED: Rules = Rules::Seed;

    fn run(plan: &Plan, rules: Rules, watch: Watch<Rule>) -> Outcome {
        match rules {
            Rules::Tenure => World::<Machine, LockTable>::new(plan, watch).run(),
            Rules::TenureStored => World::<Machine, StoredTable>::new(plan, watch).run(),
            Rules::Seed => World::<SeedMachine, SeedTable>::new(plan, watch).run(),
        }
    }

    fn shows_at_the_end(rule: Rule) -> bool {
        rule == Rule::Ld4
    }
}

type Outcome = OutcomeOf<Election>;
