//! Each fault shows its promised effect on both sides: what the emulator was asked to apply, and
//! what the client saw.

mod client;
mod emulator;

use std::future::poll_fn;
use std::pin::pin;
use std::process::Stdio;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use client::{Saw, call, control};
use emulator::Emulator;
use expect_test::expect;
use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_clock::{Clock, ManualTime, SystemClock};
use tenure_fault_proxy::{FaultProxy, Script};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;

const PUT_ITEM: &str = "DynamoDB_20120810.PutItem";
const PUT_RECORDS: &str = "Kinesis_20131202.PutRecords";

/// An emulator and a proxy in front of it.
async fn start(rules: &[&str]) -> (Emulator, FaultProxy) {
    let emulator = Emulator::start().await;
    let proxy = FaultProxy::start(emulator.url(), Script::parse(1, rules).unwrap()).await.unwrap();
    (emulator, proxy)
}

/// Waits for something that other tasks bring about. The bound is for a test that fails.
async fn until(what: &str, reached: impl Fn() -> bool) {
    let deadline = SystemClock.deadline(Duration::from_secs(10));
    while !reached() {
        assert!(SystemClock.monotonic() < deadline, "not reached: {what}");
        tokio::task::yield_now().await;
    }
}

/// Whether a future is still pending when polled once.
async fn pending<F: Future + Unpin>(future: &mut F) -> bool {
    poll_fn(|cx| Poll::Ready(std::pin::Pin::new(&mut *future).poll(cx).is_pending())).await
}

// === One fault each ===

/// Under `rule`, a call of `target` is answered with `saw`, and the emulator has applied `applied`.
async fn check(rule: &str, target: &str, saw: &str, applied: usize) {
    let (emulator, proxy) = start(&[rule]).await;
    let seen = call(&proxy.url(), target, r#"{"TableName":"t"}"#).await;
    assert_eq!((seen.to_string().as_str(), emulator.applied_count()), (saw, applied), "{rule}");

    let (kind, fault) = (target.rsplit_once('.').unwrap().1, proxy.script().rules()[0].fault);
    assert_eq!((proxy.counts().seen(kind), proxy.counts().injected(kind, fault.name())), (1, 1), "{rule}");
    if !matches!(seen, Saw::Reply { .. }) {
        return;
    }
    if seen.header("x-emulator").is_empty() {
        assert_eq!(seen.header("x-fault-proxy"), fault.name());
        assert_eq!(seen.header("x-amzn-requestid"), "fault-proxy-00000001");
        let json = if target.starts_with("DynamoDB") { "1.0" } else { "1.1" };
        assert_eq!(seen.header("content-type"), format!("application/x-amz-json-{json}"));
    }
}

#[tokio::test]
async fn throttle_is_refused_in_the_services_own_words() {
    let dynamodb = "400 com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException";
    check("PutItem=throttle", PUT_ITEM, dynamodb, 0).await;
    check("PutRecords=throttle", PUT_RECORDS, "400 ProvisionedThroughputExceededException", 0).await;
    let split = "Kinesis_20131202.SplitShard";
    check("SplitShard=throttle(LimitExceededException)", split, "400 LimitExceededException", 0).await;
    let throttling = "400 com.amazon.coral.availability#ThrottlingException";
    check("PutItem=throttle(ThrottlingException)", PUT_ITEM, throttling, 0).await;
}

#[tokio::test]
async fn a_server_error_is_not_applied_unless_asked() {
    let dynamodb = "500 com.amazonaws.dynamodb.v20120810#InternalServerError";
    check("PutItem=server_error", PUT_ITEM, dynamodb, 0).await;
    check("PutItem=server_error_applied", PUT_ITEM, dynamodb, 1).await;
    check("PutRecords=server_error", PUT_RECORDS, "500 InternalFailure", 0).await;
    check("PutRecords=server_error(503)", PUT_RECORDS, "503 ServiceUnavailable", 0).await;
}

#[tokio::test]
async fn a_reset_is_not_applied_and_a_lost_reply_is() {
    check("PutItem=reset", PUT_ITEM, "reset", 0).await;
    check("PutItem=lose_reply", PUT_ITEM, "closed", 1).await;
}

#[tokio::test]
async fn a_hang_ends_with_the_client_or_the_proxy() {
    for (rule, applied) in [("PutItem=hang", 0), ("PutItem=hang_applied", 1)] {
        let (emulator, proxy) = start(&[rule]).await;
        let url = proxy.url();
        let mut leaves = Box::pin(call(&url, PUT_ITEM, "{}"));
        let mut stays = Box::pin(call(&url, PUT_ITEM, "{}"));
        let deadline = SystemClock.deadline(Duration::from_secs(10));
        while proxy.counts().injected_total() < 2 || emulator.applied_count() < 2 * applied {
            assert!(SystemClock.monotonic() < deadline, "{rule} did not hold two calls");
            assert!(pending(&mut leaves).await && pending(&mut stays).await, "{rule} was answered");
            tokio::task::yield_now().await;
        }
        drop(leaves);
        until("the client's leaving is noticed", || proxy.connections() == 1).await;
        assert!(pending(&mut stays).await, "{rule} was answered");
        let (seen, ()) = tokio::join!(stays, proxy.stop());
        assert_eq!((seen.to_string().as_str(), emulator.applied_count()), ("closed", 2 * applied), "{rule}");
    }
}

#[tokio::test]
async fn a_delay_holds_back_the_request_or_the_reply() {
    for (rule, applied_early) in [("*=delay_request(20ms)", 0), ("*=delay_reply(20ms)", 1)] {
        let emulator = Emulator::start().await;
        let time = ManualTime::default();
        let script = Script::parse(1, [rule]).unwrap();
        let clock = Arc::new(time.clock());
        let proxy = FaultProxy::start_with("127.0.0.1:0", emulator.url(), script, clock).await.unwrap();
        let reply = tokio::spawn({
            let url = proxy.url();
            async move { call(&url, PUT_ITEM, "{}").await.to_string() }
        });
        until("the delay begins", || {
            proxy.counts().injected_total() == 1 && emulator.applied_count() == applied_early
        })
        .await;
        time.advance(Duration::from_millis(19));
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert!(!reply.is_finished() && emulator.applied_count() == applied_early, "{rule}");
        // A reply's delay begins when the reply comes, which may be after the clock has moved.
        until("the delay ends", || {
            time.advance(Duration::from_millis(1));
            reply.is_finished()
        })
        .await;
        assert_eq!((reply.await.unwrap().as_str(), emulator.applied_count()), ("200", 1), "{rule}");
    }
}

// === Partial failure ===

fn records(letters: &str) -> String {
    let records: Vec<_> =
        letters.chars().map(|letter| json!({ "Data": letter.to_string(), "PartitionKey": "k" })).collect();
    json!({ "StreamName": "orders", "Records": records }).to_string()
}

/// The letters of the records of a call.
fn letters(body: &str) -> String {
    let call: Value = serde_json::from_str(body).unwrap();
    assert_eq!(call["StreamName"], "orders");
    call["Records"].as_array().unwrap().iter().map(|record| record["Data"].as_str().unwrap()).collect()
}

/// The letters of the records that a reply confirms, with `✗` where one failed.
fn confirmed(reply: &Value) -> String {
    let records = reply["Records"].as_array().unwrap();
    let failed = records.iter().filter(|record| record["ErrorCode"].is_string()).count();
    assert_eq!(reply["FailedRecordCount"], failed);
    let confirmed = |record: &Value| match record["SequenceNumber"].as_str() {
        Some(sequence_number) => sequence_number.trim_start_matches("seq-").to_owned(),
        None => {
            assert_eq!(record["ErrorCode"], "ProvisionedThroughputExceededException");
            "✗".to_owned()
        }
    };
    records.iter().map(confirmed).collect()
}

#[tokio::test]
async fn partial_applies_some_and_answers_all_in_order() {
    let (emulator, proxy) = start(&["PutRecords=partial(0.5)"]).await;
    let asked = "abcdefgh";
    let mut broken = 0;
    for call_number in 0..20 {
        let reply = call(&proxy.url(), PUT_RECORDS, records(asked)).await;
        let answered = confirmed(reply.body());
        // Each record is either confirmed in its own place or failed there; never a neighbour's answer.
        assert!(asked.chars().zip(answered.chars()).all(|(a, b)| a == b || b == '✗'), "{answered}");
        assert_eq!(answered.chars().count(), asked.len());
        let forwarded = letters(&emulator.applied()[call_number].body);
        assert_eq!(forwarded, answered.replace('✗', ""));
        broken += u64::from(answered.contains('✗'));
    }
    // A call that drew no record passed untouched and is not counted as broken.
    assert_eq!(proxy.counts().injected("PutRecords", "partial"), broken);
    assert!((15..=20).contains(&broken), "{broken} of 20 calls failed in part");
}

#[tokio::test]
async fn partial_forwards_nothing_when_all_fail_and_all_untouched_when_none_does() {
    let (emulator, proxy) = start(&["PutRecords=partial(1)#1", "PutRecords=partial(0)"]).await;
    let reply = call(&proxy.url(), PUT_RECORDS, records("abc")).await;
    assert_eq!((confirmed(reply.body()).as_str(), emulator.applied_count()), ("✗✗✗", 0));

    // Spaces survive only if the body was passed on as it was.
    let untouched = records("abc").replace(':', " : ");
    let reply = call(&proxy.url(), PUT_RECORDS, untouched.clone()).await;
    assert_eq!((confirmed(reply.body()).as_str(), reply.header("x-fault-proxy")), ("abc", ""));
    assert_eq!(emulator.applied()[0].body, untouched);
    assert_eq!(proxy.counts().injected("PutRecords", "partial"), 1);
}

#[tokio::test]
async fn partial_fails_one_where_the_rule_says_so() {
    let (_emulator, proxy) = start(&["PutRecords=partial(0, at_least_one)"]).await;
    let reply = call(&proxy.url(), PUT_RECORDS, records("abcd")).await;
    assert_eq!(reply.body()["FailedRecordCount"], 1);
}

#[tokio::test]
async fn partial_keeps_the_emulators_own_refusals() {
    let (emulator, proxy) = start(&["PutRecords=partial(0, at_least_one)"]).await;
    let body = records("ab").replace(r#""a""#, r#""refuse""#).replace(r#""b""#, r#""refuse""#);
    let reply = call(&proxy.url(), PUT_RECORDS, body).await;
    let mut codes: Vec<_> = reply.body()["Records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["ErrorCode"].clone())
        .collect();
    codes.sort_by_key(Value::to_string);
    assert_eq!(reply.body()["FailedRecordCount"], 2);
    assert_eq!(codes, ["InternalFailure", "ProvisionedThroughputExceededException"]);
    assert_eq!(emulator.applied_count(), 1);

    // A call that the emulator refuses as a whole stays refused as a whole.
    let missing = records("abc").replace("orders", "missing");
    assert_eq!(call(&proxy.url(), PUT_RECORDS, missing).await.to_string(), "400 ResourceNotFoundException");
}

// === Scripts over time ===

async fn play(proxy: &FaultProxy, calls: usize) -> String {
    let mut seen = Vec::new();
    for _ in 0..calls {
        let saw = call(&proxy.url(), PUT_RECORDS, records("a")).await.to_string();
        seen.push(saw.split(' ').next().unwrap().to_owned());
    }
    seen.join(" ")
}

#[tokio::test]
async fn skip_times_and_chance_are_kept_and_replayed() {
    let (emulator, proxy) = start(&["PutRecords=server_error(503)+2#3"]).await;
    assert_eq!(play(&proxy, 7).await, "200 200 503 503 503 200 200");
    assert_eq!(emulator.applied_count(), 4);

    let half = || Script::parse(7, ["PutRecords=throttle@0.5"]).unwrap();
    proxy.set_script(half());
    let first = play(&proxy, 12).await;
    assert!(first.contains("200") && first.contains("400"), "{first}");
    proxy.set_script(half());
    assert_eq!(play(&proxy, 12).await, first);
    assert_eq!(proxy.counts().seen("PutRecords"), 31);
}

#[tokio::test]
async fn the_script_is_replaced_by_http() {
    let (_emulator, proxy) = start(&[]).await;
    let url = proxy.url();
    assert_eq!(play(&proxy, 1).await, "200");
    let put = control(&url, Method::PUT, r#"{"seed": 9, "rules": ["PutRecords=reset#1"]}"#).await;
    assert_eq!(put.to_string(), "200");
    assert_eq!(play(&proxy, 2).await, "reset 200");

    let bad = control(&url, Method::PUT, r#"{"rules": ["PutRecords=rest"]}"#).await;
    assert_eq!(bad.to_string(), "400");
    assert!(bad.body()["error"].as_str().unwrap().contains("did you mean `reset`?"));
    assert_eq!(control(&url, Method::POST, "").await.to_string(), "405");

    // The bad script changed nothing, and control requests are not counted.
    expect![[r#"
        {
          "counts": {
            "PutRecords": {
              "injected": {
                "reset": 1
              },
              "seen": 3
            }
          },
          "progress": [
            {
              "injected": 1,
              "rule": "PutRecords=reset#1",
              "seen": 2
            }
          ],
          "script": {
            "rules": [
              {
                "chance": 1.0,
                "fault": "reset",
                "on": "PutRecords",
                "skip": 0,
                "times": 1
              }
            ],
            "seed": 9
          }
        }"#]]
    .assert_eq(&format!("{:#}", control(&url, Method::GET, "").await.body()));
}

// === The proxy itself ===

#[tokio::test]
async fn requests_pass_as_they_are() {
    let (emulator, proxy) = start(&["GetItem=hang"]).await;
    let reply = call(&proxy.url(), PUT_ITEM, r#"{"TableName" : "t"}"#).await;
    assert_eq!((reply.to_string().as_str(), reply.header("x-emulator")), ("200", "yes"));
    let applied = &emulator.applied()[0];
    assert_eq!((applied.target.as_str(), applied.body.as_str()), (PUT_ITEM, r#"{"TableName" : "t"}"#));
}

#[tokio::test]
async fn a_reply_is_passed_on_as_it_comes() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let proxy = FaultProxy::start(&upstream, Script::default()).await.unwrap();

    let mut client = TcpStream::connect(proxy.url().strip_prefix("http://").unwrap()).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n";
    let target = "x-amz-target: Kinesis_20131202.SubscribeToShard\r\n\r\n";
    client.write_all(format!("{head}{target}").as_bytes()).await.unwrap();
    let (mut emulator, _) = listener.accept().await.unwrap();
    read_past(&mut emulator, b"\r\n\r\n").await;
    emulator.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n").await.unwrap();
    // The second event is sent only once the first has reached the client.
    read_past(&mut client, b"first\r\n").await;
    emulator.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
    read_past(&mut client, b"second\r\n0\r\n\r\n").await;
}

async fn read_past(stream: &mut TcpStream, end: &[u8]) {
    let mut read = Vec::new();
    while !read.ends_with(end) {
        read.push(stream.read_u8().await.unwrap());
    }
}

#[tokio::test]
async fn too_long_a_body_is_refused() {
    let (emulator, proxy) = start(&[]).await;
    let limit = 16 << 20;
    assert_eq!(call(&proxy.url(), PUT_ITEM, vec![b'x'; limit]).await.to_string(), "200");
    let too_long = call(&proxy.url(), PUT_ITEM, vec![b'x'; limit + 1]).await;
    assert_eq!(too_long.to_string(), "413 FaultProxyFailure");
    assert_eq!(emulator.applied_count(), 1);
}

#[tokio::test]
async fn an_upstream_that_is_down_is_told_apart_from_a_fault() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let script = Script::parse(1, ["PutItem=lose_reply"]).unwrap();
    let proxy = FaultProxy::start(&upstream, script).await.unwrap();
    let seen = call(&proxy.url(), PUT_ITEM, "{}").await;
    assert_eq!(
        (seen.to_string().as_str(), seen.header("x-fault-proxy")),
        ("502 FaultProxyFailure", "own-failure")
    );
    assert!(seen.body()["message"].as_str().unwrap().contains("refused"), "{}", seen.body());
}

#[tokio::test]
async fn stop_closes_idle_connections_and_frees_the_port() {
    let (_emulator, proxy) = start(&[]).await;
    let url = proxy.url();
    assert_eq!(call(&url, PUT_ITEM, "{}").await.to_string(), "200");
    let mut idle = TcpStream::connect(url.strip_prefix("http://").unwrap()).await.unwrap();
    until("the idle connection is served", || proxy.connections() == 1).await;
    proxy.stop().await;
    assert_eq!(idle.read(&mut [0; 1]).await.unwrap(), 0);
    TcpListener::bind(url.strip_prefix("http://").unwrap()).await.unwrap();
}

#[tokio::test]
async fn stop_lets_an_answer_on_its_way_finish_and_joins() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = format!("http://{}", listener.local_addr().unwrap());
    let proxy = FaultProxy::start(&upstream, Script::default()).await.unwrap();
    let url = proxy.url();
    let emulator = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        read_past(&mut stream, b"\r\n\r\n{}").await;
        stream
    };
    let mut reply = pin!(call(&url, PUT_ITEM, "{}"));
    let mut stream = tokio::select! {
        biased;
        seen = &mut reply => panic!("answered early: {seen}"),
        stream = emulator => stream,
    };
    let mut stop = Box::pin(proxy.stop());
    assert!(pending(&mut stop).await);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
    let (seen, ()) = tokio::join!(reply, stop);
    assert_eq!(seen.to_string(), "200");
    // Joined: the connection that was kept for the emulator is gone too.
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

#[tokio::test]
async fn addresses_outside_this_machine_are_refused() {
    let mut errors = Vec::new();
    for upstream in [
        "http://10.0.0.1:8000",
        "http://0.0.0.0:8000",
        "http://dynamodb.us-east-1.amazonaws.com:80",
        "https://127.0.0.1:8000",
        "http://127.0.0.1",
        "http://127.0.0.1:8000/shell",
        "http://user@127.0.0.1:8000",
        "127.0.0.1:8000",
    ] {
        errors.push(FaultProxy::start(upstream, Script::default()).await.unwrap_err().to_string());
    }
    for listen in ["0.0.0.0:0", "[::]:0", "192.168.0.1:80", "127.0.0.1", "example.com:1"] {
        let clock = Arc::new(SystemClock);
        let started = FaultProxy::start_with(listen, "http://localhost:1", Script::default(), clock).await;
        errors.push(started.unwrap_err().to_string());
    }
    expect![[r#"
        upstream address `http://10.0.0.1:8000` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        upstream address `http://0.0.0.0:8000` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        upstream address `http://dynamodb.us-east-1.amazonaws.com:80` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        upstream `https://127.0.0.1:8000` does not start with http://; expected http://127.0.0.1:PORT
        upstream `http://127.0.0.1` has no port; expected http://127.0.0.1:PORT
        upstream `http://127.0.0.1:8000/shell` has a path or a query, and requests bring their own; expected http://127.0.0.1:PORT
        upstream `http://user@127.0.0.1:8000` carries a user, and emulators ask for none; expected http://127.0.0.1:PORT
        upstream `127.0.0.1:8000` does not start with http://; expected http://127.0.0.1:PORT
        listen address `0.0.0.0:0` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        listen address `[::]:0` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        listen address `192.168.0.1:80` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        listen address `127.0.0.1` is not IP:PORT; expected 127.0.0.1:PORT, with port 0 for a free one
        listen address `example.com:1` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost"#]].assert_eq(&errors.join("\n"));
}

// === The command ===

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fault-proxy"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn the_command_serves_until_a_signal_and_prints_counts() {
    let emulator = Emulator::start().await;
    let script = std::env::temp_dir().join(format!("fault-proxy-{}.json", std::process::id()));
    std::fs::write(&script, r#"{"seed": 3, "rules": ["PutItem=throttle#1"]}"#).unwrap();
    let script_path = script.to_str().unwrap();
    let args =
        ["--upstream", emulator.url(), "--script", script_path, "--rule", "PutItem=lose_reply#1", "--json"];
    let mut child = command(&args).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let started: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    std::fs::remove_file(&script).unwrap();
    assert_eq!((&started["upstream"], &started["seed"]), (&json!(emulator.url()), &json!(3)));

    let url = started["url"].as_str().unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(call(url, PUT_ITEM, "{}").await.to_string());
    }
    assert_eq!(seen[1..], ["closed", "200"]);
    assert!(seen[0].starts_with("400"), "{seen:?}");

    let pid = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let report: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    assert!(child.wait().await.unwrap().success());
    let injected = json!({ "PutItem": { "seen": 3, "injected": { "throttle": 1, "lose_reply": 1 } } });
    assert_eq!(report["counts"], injected);
    assert_eq!(report["progress"][1]["rule"], "PutItem=lose_reply#1");
}

#[tokio::test]
async fn the_command_refuses_bad_input() {
    let mut errors = Vec::new();
    for args in [
        &["--upstream", "http://127.0.0.1:1", "--rule", "PutItem=thrott"][..],
        &["--upstream", "http://8.8.8.8:80"],
        &["--upstream", "http://127.0.0.1:1", "--script", "/nowhere.json"],
    ] {
        let output = command(args).output().await.unwrap();
        assert!(!output.status.success() && output.stdout.is_empty());
        errors.push(String::from_utf8(output.stderr).unwrap());
    }
    expect![[r#"
        fault-proxy: rule `PutItem=thrott`: fault `thrott` is not known, did you mean `throttle`?
          valid: throttle[(CODE)], server_error[(500|503)], server_error_applied[(500|503)], hang, hang_applied, lose_reply, reset, delay_request(20ms), delay_reply(2s), partial(SHARE[, at_least_one])
        fault-proxy: upstream address `http://8.8.8.8:80` is not loopback: the fault proxy breaks requests on purpose and serves only 127.0.0.0/8, [::1] and localhost
        fault-proxy: read script /nowhere.json: No such file or directory (os error 2)
    "#]].assert_eq(&errors.concat());
}
