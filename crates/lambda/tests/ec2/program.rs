//! The program as Lambda starts it: the real binary on the runtime API, EC2 and DynamoDB emulated, an API server of
//! Kubernetes that knows no nodes.

use std::fs::File;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tenure_clock::{Clock as _, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::block_in_place;

use super::{REGION, Site, emulator};
use crate::runtime_api::{Done, RuntimeApi};

/// Stands in no line of ours.
const SECRET: &str = "Xq7hunter2";

/// Ends with its value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An API server without nodes or pods; the address.
async fn empty_cluster() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = Vec::new();
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    if client.read_buf(&mut request).await.unwrap_or(0) == 0 {
                        return;
                    }
                }
                let kind = if request.starts_with(b"GET /api/v1/nodes") { "NodeList" } else { "PodList" };
                let body =
                    json!({ "kind": kind, "apiVersion": "v1", "metadata": {}, "items": [] }).to_string();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                // A client that hangs up is its own business.
                let _ = client.write_all(answer.as_bytes()).await;
            });
        }
    });
    format!("http://{address}")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_program_serves_lambdas_runtime_api() {
    let site = Site::new().await;
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let server = empty_cluster().await;
    std::fs::write(
        &kubeconfig,
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{ name: c, cluster: {{ server: '{server}' }} }}]\n\
             users: [{{ name: u, user: {{ token: {SECRET} }} }}]\ncontexts: [{{ name: c, context: {{ cluster: c, user: u }} }}]\n"
        ),
    )
    .unwrap();
    let api = RuntimeApi::start().unwrap();
    let lines = folder.path().join("lines");
    let mut command = Command::new(env!("CARGO_BIN_EXE_bootstrap"));
    command
        .env_clear()
        .env("AWS_LAMBDA_RUNTIME_API", api.address.to_string())
        .env("AWS_LAMBDA_FUNCTION_NAME", "autoscaler")
        .env("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "512")
        .env("AWS_LAMBDA_FUNCTION_VERSION", "1")
        .env("AWS_REGION", REGION)
        .env("AWS_ACCESS_KEY_ID", "test")
        .env("AWS_SECRET_ACCESS_KEY", SECRET)
        .env("TENURE__STORE__URL", format!("dynamodb:?endpoint={}", emulator("TENURE_TEST_DYNOXIDE")))
        .env("STATE_TABLE", &site.context.places.state_table)
        .env("LOGS_TABLE", site.context.places.logs_table.as_ref().unwrap())
        .env("TENURE__AUTOSCALER__ENDPOINT", emulator("TENURE_TEST_MOTO"))
        .env("TENURE__AUTOSCALER__CLUSTER", &site.cluster)
        .env("TENURE__AUTOSCALER__LAUNCH_TEMPLATE", &site.cluster)
        .env("TENURE__AUTOSCALER__SUBNETS", &site.subnet)
        .env("TENURE__AUTOSCALER__WORKERS_MAX", "3")
        .env("TENURE__AUTOSCALER__PROMETHEUS_TOKEN", SECRET)
        .env("TENURE__AUTOSCALER__PROMETHEUS", "http://127.0.0.1:1")
        .env("TENURE__AUTOSCALER__KUBECONFIG", &kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&lines).unwrap());
    let running = Running(command.spawn().unwrap());
    let invoke = |id: &str, event: Value| {
        api.send(id, event, SystemClock.wall().as_millis() + 60_000);
        match block_in_place(|| api.done()) {
            Done::Answer(text) => Ok(serde_json::from_str::<Value>(&text).unwrap()),
            Done::Error(text) => Err(serde_json::from_str::<Value>(&text).unwrap()),
        }
    };

    let told = invoke("request-1", json!({ "detail-type": "Scheduled Event" })).unwrap();
    assert!(told["writes"].to_string().contains("begin up"), "{told}");
    assert_eq!(site.instances().await.len(), 1, "it launched");
    let item = site.item().await;
    assert!(item.text("lockOwner").unwrap().starts_with("request-1-"), "{item:?}");

    let failed = invoke("request-2", json!({ "detail-type": "Object Created" })).unwrap_err();
    assert_eq!(failed["errorType"], "UnexpectedEvent");
    assert!(failed["errorMessage"].as_str().unwrap().contains("`Scheduled Event`"), "{failed}");

    let ours = site.instances().await.into_keys().next().unwrap();
    let warning =
        json!({ "detail-type": "EC2 Instance Rebalance Recommendation", "detail": { "instance-id": ours } });
    let record = |id: &str, body: String| json!({ "messageId": id, "body": body, "eventSource": "aws:sqs" });
    let records = [record("good", warning.to_string()), record("bad", "?".to_owned())];
    let told = invoke("request-3", json!({ "Records": records })).unwrap();
    assert_eq!(told, json!({ "batchItemFailures": [{ "itemIdentifier": "bad" }] }));

    drop(running);
    let lines = std::fs::read_to_string(&lines).unwrap();
    assert!(!lines.contains(SECRET), "{lines}");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let failures = lines.iter().filter(|line| line.to_string().contains("UnexpectedEvent")).count();
    assert_eq!(failures, 1, "a failure is told once: {lines:#?}");
    for request in ["request-1", "request-2", "request-3"] {
        assert!(lines.iter().any(|line| line["span"]["request_id"] == request), "{lines:#?}");
    }
}

#[test]
fn a_function_that_cannot_start_says_which_variable_is_wrong() {
    for (variable, value, says) in [
        ("TENURE__AUTOSCALER__CLUSTER", "c", "autoscaler.workers_max: not set: give"),
        ("TENURE__AUTOSCALER__CLUSTR", "c", "did you mean `TENURE__AUTOSCALER__CLUSTER`"),
        // A filter that leaves this out does not leave out why it ends.
        ("TENURE__LOG__FILTER", "off", "autoscaler.cluster: not set: give"),
        ("TENURE__LOG__FILTER", "tenure=loud", "write a level"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bootstrap"));
        command.env_clear().env("AWS_REGION", REGION).env(variable, value);
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(1));
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        let line: Value = serde_json::from_str(&said).expect(&said);
        assert_eq!((&line["level"], said.lines().count()), (&"ERROR".into(), 1), "told once: {said}");
        assert!(line["error"].as_str().unwrap().contains(says), "{said}");
    }
}
