//! The metrics' driver against a real Prometheus that scrapes what a test serves. `cargo xtask test` starts it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use tenure_autoscaler::observation::Load;
use tenure_autoscaler::ports::Metrics;
use tenure_autoscaler::prometheus::{Credentials, Prometheus, Settings};
use tenure_backend::{Env, Error, Kind};
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};

use super::canned::{Server, page};

/// Longer than Prometheus needs for two scrapes, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn soon() -> Monotonic {
    SystemClock.deadline(PATIENCE)
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use \
             `cargo xtask test`"
        )
    })
}

/// What one node exports.
#[derive(Clone)]
struct Exported {
    /// Of each CPU, idle seconds per second.
    idle: f64,
    memory_available: f64,
    memory_total: f64,
    /// How many seconds ago the memory was measured, if not now.
    memory_age: Option<i64>,
    ready: Option<u8>,
}

const QUARTER: Exported =
    Exported { idle: 0.75, memory_available: 50.0, memory_total: 100.0, memory_age: None, ready: Some(1) };

type Nodes = BTreeMap<&'static str, Exported>;

/// An exporter that Prometheus scrapes, and a client that sees its series alone.
struct Site {
    nodes: Arc<Mutex<Nodes>>,
    exporter: Option<Server>,
    target: PathBuf,
    settings: Settings,
}

impl Site {
    async fn new(nodes: Nodes) -> Self {
        let name = format!("site \"{}\" \\", &Entropy::system().nonce()[..12]);
        let url = variable("TENURE_TEST_PROMETHEUS");
        let nodes = Arc::new(Mutex::new(nodes));
        let began = SystemClock.monotonic();
        let exported = nodes.clone();
        let exporter = Server::start(move |_| {
            let seconds = SystemClock.monotonic().since(began).as_secs_f64();
            let now_ms = SystemClock.wall().as_millis();
            let nodes = exported.lock().unwrap();
            let text: String =
                nodes.iter().map(|(name, node)| exposition(name, node, seconds, now_ms)).collect();
            page("200 OK", &text)
        })
        .await;
        let file = format!("{}.json", Entropy::system().nonce());
        let target = PathBuf::from(variable("TENURE_TEST_PROMETHEUS_TARGETS")).join(file);
        let config = json!([{ "targets": [exporter.address.to_string()], "labels": { "site": name } }]);
        std::fs::write(&target, config.to_string()).unwrap();
        let mut settings = Settings::new(url);
        settings.selector = [("site".to_owned(), name)].into();
        settings.window = Duration::from_secs(10);
        Self { nodes, exporter: Some(exporter), target, settings }
    }

    fn client(&self) -> Prometheus {
        Prometheus::connect(&self.settings, &Env::system()).unwrap()
    }

    /// The loads once they are as `wanted` says.
    async fn loads(&self, wanted: impl Fn(&BTreeMap<String, Load>) -> bool) -> BTreeMap<String, Load> {
        let (client, by) = (self.client(), soon());
        let mut last = None;
        while SystemClock.monotonic() < by {
            match client.measures(soon()).await {
                Ok(measures) if wanted(&measures.loads) => return measures.loads,
                other => last = Some(other),
            }
            SystemClock.sleep(Duration::from_millis(200)).await;
        }
        panic!("never as wanted; last: {last:?}");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.target);
    }
}

fn exposition(name: &str, node: &Exported, seconds: f64, now_ms: i64) -> String {
    let mut text = String::new();
    for cpu in 0..2 {
        let idle = 1000.0 + node.idle * seconds;
        let busy = 1000.0 + (1.0 - node.idle) * seconds;
        text += &format!("node_cpu_seconds_total{{node=\"{name}\",cpu=\"{cpu}\",mode=\"idle\"}} {idle}\n");
        text += &format!("node_cpu_seconds_total{{node=\"{name}\",cpu=\"{cpu}\",mode=\"user\"}} {busy}\n");
    }
    // To the minute, so that repeated scrapes tell of the same sample.
    let at = node
        .memory_age
        .map(|age| format!(" {}", (now_ms / 60_000) * 60_000 - age * 1000))
        .unwrap_or_default();
    let (available, total) = (node.memory_available, node.memory_total);
    text += &format!("node_memory_MemAvailable_bytes{{node=\"{name}\"}} {available}{at}\n");
    text += &format!("node_memory_MemTotal_bytes{{node=\"{name}\"}} {total}{at}\n");
    if let Some(ready) = node.ready {
        for (status, value) in [("true", ready), ("false", 1 - ready)] {
            text += &format!(
                "kube_node_status_condition{{node=\"{name}\",condition=\"Ready\",status=\"{status}\"}} {value}\n"
            );
        }
    }
    text
}

#[tokio::test]
async fn loads_are_measured_and_what_is_not_known_is_left_out() {
    let nodes = Nodes::from([
        ("quarter", QUARTER),
        // No number.
        ("memoryless", Exported { memory_available: 0.0, memory_total: 0.0, ..QUARTER }),
        // Prometheus would show it for five minutes as if it were of now.
        ("old", Exported { memory_age: Some(120), ..QUARTER }),
    ]);
    let site = Site::new(nodes).await;
    let loads = site.loads(|loads| loads.contains_key("quarter") && loads.contains_key("old")).await;
    assert!(!loads.contains_key("memoryless"), "{loads:?}");
    let load = loads["quarter"];
    // Though the counters have not run for a whole window yet.
    assert!((25..=26).contains(&load.cpu_percent), "{load:?}");
    assert_eq!(load.memory_percent, 50);
    let now = SystemClock.wall().as_millis() / 1000;
    assert!((now - 60..=now).contains(&load.at_epoch), "{load:?} at {now}");
    let age = now - loads["old"].at_epoch;
    assert!((119..=300).contains(&age), "{age}");
}

#[tokio::test]
async fn a_node_that_is_scraped_no_more_is_unknown_and_so_are_all() {
    let mut site = Site::new([("one", QUARTER), ("two", QUARTER)].into()).await;
    site.loads(|loads| loads.len() == 2).await;
    site.nodes.lock().unwrap().remove("two");
    site.loads(|loads| loads.keys().eq(["one"])).await;

    // The exporter is gone: not zero, but an error.
    site.exporter = None;
    let (client, by) = (site.client(), soon());
    let error = loop {
        match client.measures(soon()).await {
            Err(error) => break error,
            Ok(measures) => assert!(SystemClock.monotonic() < by, "{measures:?}"),
        }
        SystemClock.sleep(Duration::from_millis(200)).await;
    };
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("is node_exporter scraped"), "{error:?}");
    let error = client.readiness(soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
}

#[tokio::test]
async fn readiness_is_asked_as_the_old_documents_do() {
    let nodes = Nodes::from([
        ("ready", QUARTER),
        ("not-ready", Exported { ready: Some(0), ..QUARTER }),
        ("unheard", Exported { ready: None, ..QUARTER }),
    ]);
    let site = Site::new(nodes).await;
    site.loads(|loads| loads.len() == 3).await;
    let known = site.client().readiness(soon()).await.unwrap();
    let expected = [("ready".to_owned(), true), ("not-ready".to_owned(), false)];
    assert_eq!(known, expected.into(), "of the third nothing is known");
    site.nodes.lock().unwrap().get_mut("not-ready").unwrap().ready = Some(1);
    let by = soon();
    while !site.client().readiness(soon()).await.unwrap()["not-ready"] {
        assert!(SystemClock.monotonic() < by, "it never became ready");
        SystemClock.sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn a_label_that_is_not_there_is_named() {
    let mut site = Site::new([("one", QUARTER)].into()).await;
    site.loads(|loads| loads.len() == 1).await;
    site.settings.load_label = "nodename".to_owned();
    let error = site.client().measures(soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains("no series has a label `nodename`"), "{error:?}");
}

// === answers that are none ===

async fn failing(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Error {
    let server = Server::start(answer).await;
    let mut settings = Settings::new(server.url());
    settings.credentials = Credentials::Bearer("hunter2".to_owned());
    let client = Prometheus::connect(&settings, &Env::system()).unwrap();
    let error = client.measures(soon()).await.unwrap_err();
    assert!(!format!("{error:?}").contains("hunter2"));
    error
}

#[tokio::test]
async fn nonsense_says_what_to_do() {
    let check = |error: Error, kind: Kind, says: &str| {
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.chain().contains(says), "{error:?}");
    };
    check(failing(|_| page("200 OK", "<html>")).await, Kind::Invalid, "is that address Prometheus' own?");
    let redirect = |_: &str| page("302 Found", "");
    check(failing(redirect).await, Kind::Invalid, "leads elsewhere");
    check(failing(|_| page("401 Unauthorized", "")).await, Kind::Denied, "set a token");
    check(failing(|_| page("404 Not Found", "")).await, Kind::Invalid, "the prefix that it is served under");
    check(failing(|_| page("503 Service Unavailable", "")).await, Kind::Unavailable, "status 503");
    // Not read to its end.
    let endless =
        |_: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{}", " ".repeat(17 << 20));
    check(failing(endless).await, Kind::Invalid, "narrow the selector");
    let broken = |_: &str| "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{".to_owned();
    check(failing(broken).await, Kind::Unavailable, "broke off");
    let stranger = |_: &str| "220 mail ready\r\n".to_owned();
    check(failing(stranger).await, Kind::Unavailable, "no answer");
}

#[tokio::test]
async fn credentials_and_the_query_are_sent() {
    let seen = Arc::new(Mutex::new(String::new()));
    let kept = seen.clone();
    failing(move |request| {
        *kept.lock().unwrap() = request.to_owned();
        page("200 OK", r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#)
    })
    .await;
    let request = seen.lock().unwrap().clone();
    assert!(request.starts_with("POST /api/v1/query HTTP/1.1\r\n"), "{request}");
    assert!(request.contains("authorization: Bearer hunter2\r\n"), "{request}");
    assert!(request.contains("query=label_replace%28100+*+%281+-+sum+by+%28node%29"), "{request}");
}

#[tokio::test]
async fn a_server_that_is_silent_or_down_is_unavailable() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = Settings::new(format!("http://{}", listener.local_addr().unwrap()));
    let client = Prometheus::connect(&settings, &Env::system()).unwrap();
    let error = client.measures(SystemClock.deadline(Duration::from_millis(300))).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("by the deadline"), "{error:?}");
    drop(listener);
    let error = client.readiness(soon()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("cannot reach"), "{error:?}");
    let error = client.measures(SystemClock.monotonic()).await.unwrap_err();
    assert!(error.chain().contains("before anything was sent"), "{error:?}");
}
