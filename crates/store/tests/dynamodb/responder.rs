//! A server that answers DynamoDB calls as a test says, for answers that no emulator gives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Status and JSON body.
pub(super) type Answer = (u16, String);

/// Told the operation and how often it was called before.
type Answers = dyn Fn(&str, usize) -> Answer + Send + Sync;

/// A running responder; it ends with the test's runtime, or when it is stopped.
pub(super) struct Responder {
    url: String,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
    task: JoinHandle<()>,
}

impl Responder {
    pub(super) async fn start(answers: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let calls = Arc::new(Mutex::new(BTreeMap::new()));
        let (shared, answers): (_, Arc<Answers>) = (calls.clone(), Arc::new(answers));
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, shared.clone(), answers.clone()));
            }
        });
        Self { url, calls, task }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Closes the port and every connection.
    pub(super) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    /// How often an operation was called.
    pub(super) fn calls(&self, operation: &str) -> usize {
        self.calls.lock().unwrap().get(operation).copied().unwrap_or(0)
    }
}

/// An error as DynamoDB writes it.
pub(super) fn error(code: &str) -> Answer {
    (400, format!(r#"{{"__type":"com.amazonaws.dynamodb.v20120810#{code}","message":"as the test says"}}"#))
}

/// One request after another on one connection.
async fn serve(mut stream: TcpStream, calls: Arc<Mutex<BTreeMap<String, usize>>>, answers: Arc<Answers>) {
    let mut bytes = Vec::new();
    loop {
        let Some((head, body_start)) = head(&bytes) else {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
            continue;
        };
        let header = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim().to_owned())
        };
        let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        while bytes.len() < body_start + length {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let target = header("x-amz-target").unwrap_or_default();
        let operation = target.rsplit('.').next().unwrap_or_default().to_owned();
        bytes.drain(..body_start + length);
        let earlier = {
            let mut calls = calls.lock().unwrap();
            let count = calls.entry(operation.clone()).or_default();
            *count += 1;
            *count - 1
        };
        let (status, body) = answers(&operation, earlier);
        let answer = format!(
            "HTTP/1.1 {status} Scripted\r\ncontent-type: application/x-amz-json-1.0\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// The head of a request that is there as a whole, and where its body begins.
fn head(bytes: &[u8]) -> Option<(String, usize)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((String::from_utf8_lossy(&bytes[..end]).into_owned(), end + 4))
}
