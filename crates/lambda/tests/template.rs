//! The template that the function is deployed by, as far as it can be judged without AWS.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tenure_autoscaler::settings::{Settings, VARIABLES};
use tenure_lambda::Configuration;

/// The template.
pub(crate) fn template() -> Value {
    let text = std::fs::read_to_string("../../packaging/lambda/template.yaml").unwrap();
    serde_saphyr::from_str(&text).unwrap()
}

/// The statements of a policy of the function's role by their ids, conditional ones included.
pub(crate) fn statements(template: &Value, policy: &str) -> BTreeMap<String, Value> {
    let policies = template["Resources"]["Role"]["Properties"]["Policies"].as_array().unwrap();
    let policy = policies.iter().find(|found| found["PolicyName"] == policy).unwrap();
    let statements = policy["PolicyDocument"]["Statement"].as_array().unwrap().iter();
    let statement = |statement: &Value| match statement.get("Fn::If") {
        Some(choice) => choice[1].clone(),
        None => statement.clone(),
    };
    statements.map(statement).map(|it| (it["Sid"].as_str().unwrap().to_owned(), it)).collect()
}

/// The actions of a statement.
pub(crate) fn actions(statement: &Value) -> BTreeSet<String> {
    match &statement["Action"] {
        Value::Array(actions) => actions.iter().map(|action| action.as_str().unwrap().to_owned()).collect(),
        action => [action.as_str().unwrap().to_owned()].into(),
    }
}

fn variables(template: &Value) -> BTreeMap<String, Value> {
    let variables = &template["Resources"]["Function"]["Properties"]["Environment"]["Variables"];
    variables.as_object().unwrap().clone().into_iter().collect()
}

#[test]
fn its_variables_are_settings() {
    let template = template();
    let known = Settings::keys();
    for name in variables(&template).keys() {
        let key = name.strip_prefix(VARIABLES).unwrap_or(name).to_lowercase();
        assert!(known.contains(&key), "{name}");
    }
    // What a person might give for what is a reference there.
    let example = |name: &str| match name {
        "WORKERS_MIN" | "LAUNCH_TEMPLATE_VERSION" => "1",
        "WORKERS_MAX" => "5",
        "LAUNCH_TEMPLATE" => "lt-0abc",
        "MARKETS" => "spot,on-demand",
        "PROMETHEUS" => "http://10.0.0.5:9090",
        "CONSUMERS" => "orders/billing",
        "LAG_MAX" => "2m",
        _ => "something",
    };
    let given = variables(&template).into_iter().map(|(name, value)| {
        let key = name.strip_prefix(VARIABLES).unwrap_or(&name).to_owned();
        (name, value.as_str().map_or_else(|| example(&key).to_owned(), str::to_owned))
    });
    let configuration =
        Configuration::read(given.filter(|(name, _)| name != "LOGS_TABLE")).expect("they are read");
    configuration.settings.policy().expect("they are a policy");
    assert_eq!(configuration.settings.state_table, "something");
}

#[test]
fn a_lease_has_passed_before_the_next_tick() {
    let template = template();
    let function = &template["Resources"]["Function"]["Properties"];
    assert_eq!(function["Events"]["Tick"]["Properties"]["Schedule"], "rate(1 minute)");
    let lease = variables(&template)["TENURE__AUTOSCALER__LEASE"].as_str().unwrap().to_owned();
    let settings = Settings::from_variables([("TENURE__AUTOSCALER__LEASE".to_owned(), lease)]).unwrap();
    assert!((settings.lease.0 + settings.skew.0).as_secs() < 60);
    let configuration = Configuration::read([("TENURE__AUTOSCALER__LEASE".into(), "25s".into())]).unwrap();
    let timeout = function["Timeout"].as_u64().unwrap();
    assert!(timeout > configuration.call_timeout().as_secs() * 3, "there is time for a few calls");
    let visible = &template["Resources"]["Interruptions"]["Properties"]["VisibilityTimeout"];
    assert!(visible.as_u64().unwrap() >= timeout * 6);
    let answers = &function["Events"]["Interruptions"]["Properties"]["FunctionResponseTypes"];
    assert_eq!(answers[0], "ReportBatchItemFailures", "else one bad message repeats the others");
}

#[test]
fn nothing_is_allowed_on_everything_but_lists() {
    for (sid, statement) in statements(&template(), "autoscaler") {
        if statement["Resource"] == "*" {
            let only_looks = actions(&statement).iter().all(|action| action.contains(":Describe"));
            assert!(only_looks, "{sid}: {statement}");
        }
        assert!(actions(&statement).iter().all(|action| !action.contains('*')), "{sid}");
    }
}
