//! Invocations on the memory store and the fakes of the autoscaler: no runtime, no network.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_autoscaler::state::{InterruptKind, Place};
use tenure_autoscaler::testing::{Gate, Measuring, Mode, World, at_once};
use tenure_autoscaler::{Places, Policy};
use tenure_backend::Kind;
use tenure_clock::WallTime;
use tenure_lambda::handler::Failure;
use tenure_lambda::{Context, Request, handle, logging};
use tracing_subscriber::layer::SubscriberExt as _;

const TICK: &str = "Scheduled Event";
const SPOT: &str = "EC2 Spot Instance Interruption Warning";
const REBALANCE: &str = "EC2 Instance Rebalance Recommendation";

fn policy() -> Policy {
    let place = Place { subnet: "subnet-a".to_owned(), market: "spot".to_owned(), template: "7".to_owned() };
    let mut policy = Policy::new("demo", 1, 3, vec![place]);
    policy.pending_window = Duration::ZERO;
    policy.idle_window = Duration::ZERO;
    policy
}

struct Function {
    world: World,
    gate: Gate,
    context: Context,
    invocations: u32,
}

impl Function {
    /// One worker that is busy.
    fn new() -> Self {
        let world = World::new(policy());
        world.add_control_plane();
        world.add_worker(1);
        world.measure(Measuring::Fresh, 60);
        let gate = Gate::open();
        let context = Context {
            ports: world.ports(&gate),
            policy: world.policy(),
            places: Places::default(),
            env: world.env(),
        };
        Self { world, gate, context, invocations: 0 }
    }

    fn within(&mut self, seconds: i64, event: Value) -> Result<Value, Failure> {
        self.invocations += 1;
        let deadline = WallTime::from_millis((self.world.epoch() + seconds) * 1000);
        let request = Request { id: format!("request-{}", self.invocations), event, deadline };
        at_once(handle(&self.context, request)).expect("nothing waits here")
    }

    fn invoke(&mut self, event: Value) -> Result<Value, Failure> {
        self.within(60, event)
    }

    fn ok(&mut self, event: Value) -> Value {
        self.invoke(event).unwrap()
    }

    fn interrupted(&self) -> Vec<(String, InterruptKind)> {
        let state = self.world.state();
        state.interrupted().map(|(id, interrupt)| (id.to_string(), interrupt.kind)).collect()
    }

    /// Times that an edge was called so.
    fn calls(&self, name: &str) -> usize {
        self.gate.calls().iter().filter(|call| call.contains(name)).count()
    }
}

/// The lines of level ERROR that are logged meanwhile.
fn errors(of: impl FnOnce()) -> Vec<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let written = Arc::new(file.reopen().unwrap());
    let logged = tracing_subscriber::registry().with(logging::lines(written));
    tracing::subscriber::with_default(logged, of);
    let written = std::fs::read_to_string(file.path()).unwrap();
    written.lines().filter(|line| line.contains("\"level\":\"ERROR\"")).map(str::to_owned).collect()
}

fn tick() -> Value {
    json!({ "detail-type": TICK, "source": "aws.events", "detail": {} })
}

fn told(kind: &str, id: &str) -> Value {
    json!({ "detail-type": kind, "source": "aws.ec2", "detail": { "instance-id": id } })
}

fn batch(messages: &[(&str, String)]) -> Value {
    let record =
        |(id, body): &(&str, String)| json!({ "messageId": id, "body": body, "eventSource": "aws:sqs" });
    json!({ "Records": messages.iter().map(record).collect::<Vec<_>>() })
}

fn failed(answer: &Value) -> Vec<&str> {
    let items = answer["batchItemFailures"].as_array().unwrap();
    items.iter().map(|item| item["itemIdentifier"].as_str().unwrap()).collect()
}

#[test]
fn a_scheduled_event_is_a_tick_and_the_next_invocation_carries_its_action_on() {
    let mut function = Function::new();
    function.world.add_pods(6);
    let first = function.ok(tick());
    assert!(first["writes"].to_string().contains("begin up"), "{first}");
    let state = function.world.state();
    let owner = state.lock_owner.unwrap();
    assert!(owner.starts_with("request-1-"), "the lock is held by the request: {owner}");
    let launched = function.world.launches();
    assert_eq!(launched, 2);

    function.world.advance(Duration::from_secs(10));
    let early = function.ok(tick());
    assert!(early["reasons"].to_string().contains("carries the action on"), "{early}");
    function.world.advance(Duration::from_secs(60));
    let later = function.ok(tick());
    assert!(later["writes"].to_string().contains("take over"), "{later}");
    assert_eq!(later["action"], Value::Null, "done: {later}");
    assert_eq!((function.world.launches(), function.world.live().len()), (launched, 4));
    assert_eq!(function.world.violations(), []);
    assert_eq!(function.ok(tick())["writes"], json!([]));
}

#[test]
fn an_interruption_of_this_cluster_goes_to_the_inbox_and_a_tick_replaces_it() {
    let mut function = Function::new();
    let id = function.world.add_worker(2).to_string();
    let answer = function.ok(told(SPOT, &id));
    assert_eq!(function.interrupted(), [(id.clone(), InterruptKind::Spot)]);
    assert!(answer["writes"].to_string().contains("begin up"), "{answer}");
    let rev = function.world.state().rev;
    function.ok(told(SPOT, &id));
    assert_eq!(function.interrupted().len(), 1, "told twice is told once");
    assert_eq!(function.world.state().rev, rev);
}

#[test]
fn what_a_node_names_is_ours_without_a_tag_and_strangers_are_left_alone() {
    let mut function = Function::new();
    let untagged = function.world.add_untagged_worker(3).to_string();
    function.ok(told(REBALANCE, &untagged));
    assert_eq!(function.interrupted(), [(untagged, InterruptKind::Rebalance)]);

    function.world.add_untagged_instance("i-stranger");
    let gone = function.world.add_worker(4);
    function.world.kill(&gone);
    let before = (function.world.state().rev, function.calls("measures"));
    for id in ["i-stranger", "i-nobody", gone.as_str()] {
        let answer = function.ok(told(SPOT, id));
        assert_eq!(answer, json!({ "ignored": format!("{id} is no instance of this cluster") }));
    }
    assert_eq!((function.world.state().rev, function.calls("measures")), before, "no write, no tick");
}

#[test]
fn of_a_batch_only_what_failed_comes_again() {
    let mut function = Function::new();
    let ours = function.world.add_worker(2).to_string();
    let messages = [
        ("good", told(SPOT, &ours).to_string()),
        ("bad", "not json".to_owned()),
        ("stranger", told(SPOT, "i-nobody").to_string()),
        ("unknown", json!({ "detail-type": "EC2 Instance State-change Notification" }).to_string()),
        ("tick", tick().to_string()),
    ];
    let answer = function.ok(batch(&messages));
    assert_eq!(failed(&answer), ["bad", "unknown"]);
    assert_eq!(answer.as_object().unwrap().len(), 1, "Lambda reads nothing else");
    assert_eq!(function.interrupted().len(), 1);
    // The same again, as a queue may: nothing is stored twice.
    let rev = function.world.state().rev;
    assert_eq!(failed(&function.ok(batch(&messages[..1]))), [""; 0]);
    assert_eq!(function.world.state().rev, rev);
}

#[test]
fn a_cloud_that_does_not_answer_loses_no_message() {
    let mut function = Function::new();
    function.ok(tick());
    let id = function.world.add_worker(2).to_string();
    let messages = [("a", told(SPOT, &id).to_string()), ("b", told(SPOT, "i-nobody").to_string())];
    function.gate.arm(0, Mode::ReplyLost);
    let answer = function.ok(batch(&messages));
    assert_eq!(failed(&answer), ["a", "b"], "whose they are is unknown");
    assert_eq!(function.interrupted(), []);
    assert_eq!(failed(&function.ok(batch(&messages))), [""; 0]);
    assert_eq!(function.interrupted().len(), 1);
}

#[test]
fn a_bad_message_is_told_by_its_id_in_a_field_of_its_own() {
    let mut function = Function::new();
    let id = function.world.add_worker(2).to_string();
    function.gate.arm(0, Mode::ReplyLost);
    let messages = [("m-1", "not json".to_owned()), ("m-2", told(SPOT, &id).to_string())];
    let errors = errors(|| drop(function.ok(batch(&messages))));
    assert_eq!(errors.len(), 2, "{errors:#?}");
    for (line, id) in errors.iter().zip(["m-1", "m-2"]) {
        assert_eq!(line.matches("\"message\":").count(), 1, "a key twice is no JSON for most: {line}");
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["message_id"], &line["span"]["request_id"]), (&id.into(), &"request-1".into()));
    }
}

#[test]
fn actions_that_fail_one_after_another_want_a_person() {
    let mut function = Function::new();
    function.world.add_pods(6);
    function.world.refuse_launches(Some((Kind::Denied, "ec2:RunInstances is not allowed")));
    let an_hour_later = |function: &mut Function| {
        let errors = errors(|| drop(function.ok(tick())));
        function.world.advance(Duration::from_secs(3600));
        errors
    };
    for _ in 0..2 {
        assert_eq!(an_hour_later(&mut function), [""; 0], "it may pass by itself");
    }
    for failed in 3..5 {
        let errors = an_hour_later(&mut function);
        assert_eq!(errors.len(), 1, "once per tick: {errors:#?}");
        let line: Value = serde_json::from_str(&errors[0]).unwrap();
        assert_eq!(line["message"], "actions fail one after another");
        assert_eq!(line["failed_actions"], failed);
        assert!(line["error"].as_str().unwrap().contains("ec2:RunInstances is not allowed"), "{line}");
    }
    function.world.refuse_launches(None);
    an_hour_later(&mut function);
    assert_eq!(an_hour_later(&mut function), [""; 0], "one that succeeded ends it");
}

#[test]
fn a_connection_that_died_while_the_function_was_frozen_costs_no_tick() {
    let mut function = Function::new();
    function.world.add_pods(6);
    function.gate.arm(0, Mode::ReplyLost);
    let answer = function.ok(tick());
    assert!(function.gate.met_fault());
    assert!(answer["writes"].to_string().contains("begin up"), "{answer}");
}

#[test]
fn an_event_of_nobody_says_what_is_expected() {
    let mut function = Function::new();
    let before = function.gate.calls().len();
    let failure = function.invoke(json!({ "detail-type": "AWS API Call via CloudTrail" })).unwrap_err();
    assert_eq!(failure.kind(), "UnexpectedEvent");
    assert!(failure.to_string().contains("`Scheduled Event`"), "{failure}");
    assert_eq!(function.gate.calls().len(), before, "nothing was done");
}

#[test]
fn a_tick_ends_between_two_effects_when_its_time_is_over() {
    let mut function = Function::new();
    function.world.add_pods(6);
    let failure = function.within(21, tick()).unwrap_err();
    assert!(matches!(failure, Failure::TooShort { .. }), "{failure}");
    assert!(failure.to_string().contains("raise the function's timeout"), "{failure}");
    assert_eq!(function.gate.calls(), [""; 0], "nothing was begun");

    // The first launch takes long: there is no time for the second.
    let unhurried = function.ok(tick());
    let launch = function.gate.calls().iter().position(|call| *call == "launch").unwrap();
    assert_eq!(function.world.launches(), 2, "{unhurried}");
    let mut function = Function::new();
    function.world.add_pods(6);
    let world = function.world.clone();
    function.gate.stall(u32::try_from(launch).unwrap(), move || {
        world.advance(Duration::from_secs(40));
        Box::pin(std::future::ready(()))
    });
    let answer = function.ok(tick());
    assert!(function.gate.met_stall());
    assert!(answer["reasons"].to_string().contains("the next tick goes on"), "{answer}");
    assert_eq!(function.world.launches(), 1, "{answer}");
    function.world.advance(Duration::from_secs(60));
    function.ok(tick());
    assert_eq!(function.world.launches(), 2);
    assert_eq!(function.world.violations(), []);
}
