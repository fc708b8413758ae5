//! The scenario `cdc`: a few nodes take turns in publishing one database's changes to one stream.
//!
//! Real are the publisher, the frontier, the checkpoint row and the decision where to begin. The world
//! around them is not: a log that grows, a slot that forgets, a lock that is lost, a store, a stream that
//! reshards, throttles and applies calls long after everybody gave up on them, and a consumer that must
//! never notice.

pub mod checkers;
pub mod consumer;
pub mod event;
pub mod fault;
pub mod pipeline;
pub mod plan;
pub mod seed_rules;
pub mod shard_meter;
pub mod source;
pub mod stream;
pub mod tally;
mod world;

use tenure_cdc::publisher::Publisher;

use self::checkers::Rule;
use self::fault::Fault;
use self::plan::Plan;
use self::seed_rules::SeedPublisher;
use self::tally::Tally;
use self::world::World;
use crate::scenario::{OutcomeOf, Scenario, Watch};

/// Whose rules the nodes follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Ours.
    Tenure,
    /// The seed document's: the positive control.
    Seed,
}

/// See the module.
#[derive(Debug)]
pub enum Cdc {}

type Outcome = OutcomeOf<Cdc>;

impl Scenario for Cdc {
    const NAME: &'static str = "cdc";
    type Rules = Rules;
    type Rule = Rule;
    type Fault = Fault;
    type Plan = Plan;
    type Tally = Tally;

    const OURS: Rules = Rules::Tenure;
    const SEED: Rules = Rules::Seed;

    fn run(plan: &Plan, rules: Rules, watch: Watch<Rule>) -> Outcome {
        match rules {
            Rules::Tenure => World::<Publisher>::new(plan, watch).run(),
            Rules::Seed => World::<SeedPublisher>::new(plan, watch).run(),
        }
    }

    fn shows_at_the_end(rule: Rule) -> bool {
        matches!(rule, Rule::Cd1 | Rule::Heals)
    }
}
