//! An upstream that applies everything and remembers what it was asked to.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{AbortHandle, JoinSet};

/// A request that was applied.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Applied {
    pub(crate) target: String,
    pub(crate) body: String,
}

pub(crate) struct Emulator {
    url: String,
    applied: Arc<Mutex<Vec<Applied>>>,
    task: AbortHandle,
}

impl Emulator {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let applied = Arc::new(Mutex::new(Vec::new()));
        let shared = applied.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                let service = service_fn(move |request| apply(request, shared.clone()));
                connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { url, applied, task: task.abort_handle() }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn applied(&self) -> Vec<Applied> {
        self.applied.lock().unwrap().clone()
    }

    pub(crate) fn applied_count(&self) -> usize {
        self.applied.lock().unwrap().len()
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn apply(
    request: Request<Incoming>,
    applied: Arc<Mutex<Vec<Applied>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let target = head.headers.get("x-amz-target").map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    let (status, reply) = answer(&target, &body);
    applied.lock().unwrap().push(Applied { target, body });
    let mut response = Response::new(Full::new(reply.to_string().into()));
    *response.status_mut() = status;
    response.headers_mut().insert("x-emulator", "yes".parse().unwrap());
    Ok(response)
}

/// PutRecords is answered record by record, with a sequence number that names the record; the
/// record `refuse` is refused, and a call on the stream `missing` fails as a whole.
fn answer(target: &str, body: &str) -> (StatusCode, Value) {
    if !target.ends_with(".PutRecords") {
        return (StatusCode::OK, json!({ "applied": true }));
    }
    let call: Value = serde_json::from_str(body).unwrap();
    if call["StreamName"] == "missing" {
        return (StatusCode::BAD_REQUEST, json!({ "__type": "ResourceNotFoundException" }));
    }
    let mut failed = 0;
    let records: Vec<_> = call["Records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| {
            let data = record["Data"].as_str().unwrap();
            if data == "refuse" {
                failed += 1;
                return json!({ "ErrorCode": "InternalFailure", "ErrorMessage": "refused" });
            }
            json!({ "SequenceNumber": format!("seq-{data}"), "ShardId": "shardId-000000000000" })
        })
        .collect();
    (StatusCode::OK, json!({ "FailedRecordCount": failed, "Records": records, "EncryptionType": "NONE" }))
}
