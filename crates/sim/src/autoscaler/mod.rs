//! The scenario `autoscaler`: a few executors keep one cluster at its size, on the real executor's code.
//!
//! The cloud, the cluster, the checkers and the old writers are those of the crash matrix
//! (`tenure_autoscaler::testing`). The matrix tries every call of short stories; here long stories are drawn:
//! demand that comes and goes, executors that die, stall and take turns, and everything else at once.

pub mod fault;
pub mod plan;
pub mod tally;
mod world;

use tenure_autoscaler::testing::Checker;

use self::fault::Fault;
use self::plan::Plan;
use self::tally::Tally;
use crate::scenario::{Named, OutcomeOf, Scenario, Watch};

/// Whose rules the executors follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rules {
    /// Ours.
    Tenure,
    /// The seed document's: the positive control.
    Seed,
}

/// See the module.
#[derive(Debug)]
pub enum Autoscaler {}

type Outcome = OutcomeOf<Autoscaler>;

impl Named for Checker {
    const ALL: &'static [Self] = &Self::ALL;

    fn name(self) -> &'static str {
        Self::name(self)
    }

    fn index(self) -> usize {
        self as usize
    }
}

impl Scenario for Autoscaler {
    const NAME: &'static str = "autoscaler";
    type Rules = Rules;
    type Rule = Checker;
    type Fault = Fault;
    type Plan = Plan;
    type Tally = Tally;

    const OURS: Rules = Rules::Tenure;
    const SEED: Rules = Rules::Seed;

    fn run(plan: &Plan, rules: Rules, watch: Watch<Checker>) -> Outcome {
        world::run(plan, rules, watch)
    }

    fn shows_at_the_end(rule: Checker) -> bool {
        matches!(rule, Checker::As2 | Checker::As9 | Checker::Heals)
    }
}
