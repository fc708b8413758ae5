//! The template that the function is deployed by, as far as it can be judged without AWS.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
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
        "WORKER_CPU_MILLIS" => "4000",
        "WORKER_MEMORY" => "8GiB",
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
    let visible = visible.as_u64().unwrap();
    assert!(visible >= timeout, "Lambda asks for that");
    // Six times the timeout, as Lambda advises against messages that come twice, which do no harm here, would be long
    // after the instance has gone.
    assert!(visible < 120, "a warning comes two minutes ahead, and is tried twice in that time");
    let answers = &function["Events"]["Interruptions"]["Properties"]["FunctionResponseTypes"];
    assert_eq!(answers[0], "ReportBatchItemFailures", "else one bad message repeats the others");
}

#[test]
fn its_defaults_are_those_of_the_settings() {
    let template = template();
    let usual = Settings::default();
    let default = |name: &str| match &template["Parameters"][name]["Default"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    assert_eq!(default("WorkerCpuMillis"), usual.worker_cpu_millis.to_string());
    assert_eq!(default("WorkerMemory"), usual.worker_memory.to_string());
    assert_eq!(default("WorkersMin"), usual.workers_min.to_string());
    assert_eq!(default("LaunchTemplateVersion"), usual.launch_template_version.to_string());
    assert_eq!(default("Markets"), usual.markets);
    assert_eq!((default("StateTable"), default("LogsTable")), (usual.state_table, usual.logs_table));
}

/// The settings refuse one of `lag_max` and `consumers` without the other, and the policy names the tables: better at
/// the deployment than at the first start.
#[test]
fn consumers_lag_and_tables_are_given_together() {
    let template = template();
    let given = |name: &str| json!({ "Fn::Not": [{ "Fn::Equals": [{ "Ref": name }, ""] }] });
    let needs = |rule: &Value| -> Vec<Value> {
        rule["Assertions"].as_array().unwrap().iter().map(|it| it["Assert"].clone()).collect()
    };
    let rules = template["Rules"].as_object().unwrap();
    let of = |name: &str| {
        let rule = rules.values().find(|rule| rule["RuleCondition"] == given(name));
        needs(rule.unwrap_or_else(|| panic!("no rule for {name}")))
    };
    assert_eq!(of("Consumers"), [given("LagMax"), given("ConsumerTables")]);
    assert_eq!(of("LagMax"), [given("Consumers")]);
}

#[test]
fn nothing_is_allowed_on_everything_but_lists() {
    /// Those for which EC2 knows no resources.
    const LISTS: [&str; 1] = ["ec2:DescribeInstances"];
    for (sid, statement) in statements(&template(), "autoscaler") {
        let actions = actions(&statement);
        if statement["Resource"] == "*" {
            let only_lists = actions.iter().all(|action| LISTS.contains(&action.as_str()));
            assert!(only_lists, "{sid}: {statement}");
        }
        assert!(actions.iter().all(|action| !action.contains('*')), "{sid}");
    }
}

#[test]
fn an_instance_is_touched_only_if_it_is_of_the_cluster_or_an_old_worker() {
    let touching = ["ec2:CreateTags", "ec2:DescribeInstanceAttribute", "ec2:TerminateInstances"];
    let tag = |of: &str| format!("aws:{of}Tag/tenure/cluster");
    let name = json!({ "Ref": "ClusterName" });
    let profile = json!({ "Ref": "OldWorkerInstanceProfileArn" });
    for (sid, statement) in statements(&template(), "autoscaler") {
        if actions(&statement).iter().all(|action| !touching.contains(&action.as_str())) {
            continue;
        }
        let condition = &statement["Condition"];
        let of_cluster = condition["StringEquals"][tag("Resource")] == name;
        let at_launch = condition["StringEquals"]["ec2:CreateAction"] == "RunInstances"
            && condition["StringEquals"][tag("Request")] == name;
        let old = condition["Null"][tag("Resource")] == "true"
            && condition["ArnEquals"]["ec2:InstanceProfile"] == profile;
        assert!(of_cluster || at_launch || old, "{sid}: {statement}");
    }
}
