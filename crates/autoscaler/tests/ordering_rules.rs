//! Each of the eight ordering rules: without it, a checker of the crash matrix (or a step) notices.

use std::collections::BTreeSet;

use tenure_autoscaler::change::{Change, Stamp};
use tenure_autoscaler::observation::{Instance, InstanceState, Observation, tags};
use tenure_autoscaler::rules::{Rule, without};
use tenure_autoscaler::state::State;
use tenure_autoscaler::testing::matrix::{Report, Rules, run};
use tenure_autoscaler::testing::{Checker, Scenario};
use tenure_autoscaler::{Effect, Now, step};

use crate::stories::policy;

/// Runs the matrix of one story as if the rule had never been written.
fn matrix_without(rule: Rule, story: &str) -> Report {
    let scenario = Scenario::named(story).unwrap_or_else(|| panic!("no story `{story}`"));
    without(rule, || run(&[scenario], Rules::Tenure, 1))
}

#[track_caller]
fn check(rule: Rule, story: &str, expected: Checker) {
    let report = matrix_without(rule, story);
    assert!(report.by_checker.contains_key(&expected), "without {rule:?}: {:?}", report.by_checker);
}

#[test]
fn rule_1_list_after_reading() {
    check(Rule::ReadThenList, "up: two join", Checker::As3);
}

#[test]
fn rule_2_orphans_are_old() {
    check(Rule::OrphansAreOld, "up: two join", Checker::As4);
}

#[test]
fn rule_3_intent_before_effect() {
    check(Rule::IntentBeforeEffect, "down: two drained", Checker::As4);
    check(Rule::IntentBeforeEffect, "up: one never joins", Checker::As4);
}

#[test]
fn rule_4_cordon_by_version() {
    check(Rule::CordonByVersion, "down: two drained", Checker::As9);
}

#[test]
fn rule_5_uncordon_only_own() {
    check(Rule::UncordonOwn, "down: a person cordons, then it is given back", Checker::As9);
}

#[test]
fn rule_6_taint_until_joined() {
    check(Rule::TaintUntilJoined, "up: Ready just after the deadline", Checker::As4);
}

#[test]
fn rule_7_retarget_only_own_attempts() {
    check(Rule::RetargetOwn, "up: capacity goes while the second runs", Checker::As1);
}

/// A slot that was retargeted, and an instance of its first attempt that came after all: the cloud said that
/// there was no capacity, and launched it. The abort must leave it to the collection of orphans: adopting it
/// would let the instance of the current attempt go unrecorded.
#[test]
fn rule_8_an_abort_adopts_the_current_attempt() {
    let policy = policy();
    let stamp =
        |epoch: i64| Stamp { owner: "me".into(), now_ms: epoch * 1000, lease_ms: 45_000, skew_ms: 5000 };
    let changes = [
        Change::Migrate,
        Change::BeginUp { action: "up".into(), places: policy.places[..1].to_vec(), deadline: 600 },
        Change::Retarget { slot: 0, place: policy.places[1].clone() },
        Change::Abort,
    ];
    let state =
        changes.iter().fold(State::default(), |state, change| change.apply(&state, &stamp(10)).unwrap());
    let first_attempt = Instance {
        id: "i-first".into(),
        state: InstanceState::Running,
        private_ip: None,
        launched_epoch: 10,
        tags: [
            (tags::CLUSTER, "demo"),
            (tags::ACTION, "up"),
            (tags::SEQ, "1"),
            (tags::SLOT, "0"),
            (tags::ATTEMPT, "0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
    };
    let observation = Observation { instances: vec![first_attempt], ..Observation::default() };
    let now = Now { ms: 700_000, owner: "me".into(), lease_left_ms: 45_000 };
    let adopted = || {
        let step = step(&state, &observation, &policy, &now);
        let found = step.effects.iter().find_map(|effect| match effect {
            Effect::Write(Change::Reap { slots }) => slots[&0].clone(),
            _ => None,
        });
        found.map(|id| id.to_string())
    };
    assert_eq!(adopted(), None);
    assert_eq!(without(Rule::AbortCurrentAttempt, adopted).as_deref(), Some("i-first"));
}

#[test]
fn every_rule_has_a_name_of_its_own() {
    let names: BTreeSet<_> = Rule::ALL.iter().map(|rule| rule.name()).collect();
    assert_eq!(names.len(), Rule::ALL.len());
    assert!(Rule::ALL.iter().all(|rule| rule.kept()));
    assert!(!without(Rule::UncordonOwn, || Rule::UncordonOwn.kept()));
    assert!(Rule::UncordonOwn.kept(), "put back");
}
