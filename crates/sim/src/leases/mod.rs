//! The scenario `leases`: a few workers share the shards of one stream, which is written to and resharded.
//!
//! Real is the keeper of each worker. The world around it is not: a lease table that answers late, twice or
//! never, a stream, consumers that are slow or stuck, an election that is late or has two winners, and
//! workers of another kind.

pub mod checkers;
pub mod fault;
mod foreign;
pub mod keeper;
pub mod plan;
pub mod scale;
pub mod seed_rules;
pub mod stream;
pub mod tally;
mod world;

use tenure_leases::machine::Machine;

use self::checkers::Rule;
use self::fault::Fault;
use self::plan::Plan;
use self::seed_rules::SeedKeeper;
use self::tally::Tally;
use self::world::World;
use crate::scenario::{OutcomeOf, Scenario, Watch};

/// Whose rules the workers follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Ours.
    Tenure,
    /// The seed document's: the positive control.
    Seed,
}

/// See the module.
#[derive(Debug)]
pub enum Leases {}

type Outcome = OutcomeOf<Leases>;

impl Scenario for Leases {
    const NAME: &'static str = "leases";
    type Rules = Rules;
    type Rule = Rule;
    type Fault = Fault;
    type Plan = Plan;
    type Tally = Tally;

    const OURS: Rules = Rules::Tenure;
    const SEED: Rules = Rules::Seed;

    fn run(plan: &Plan, rules: Rules, watch: Watch<Rule>) -> Outcome {
        match rules {
            Rules::Tenure => World::<Machine>::new(plan, watch).run(),
            Rules::Seed => World::<SeedKeeper>::new(plan, watch).run(),
        }
    }

    fn shows_at_the_end(rule: Rule) -> bool {
        matches!(rule, Rule::Ls5 | Rule::Ls6 | Rule::Ls7 | Rule::Cap)
    }
}
