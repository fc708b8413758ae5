//! A tap before an emulator of DynamoDB: every applied write of one table is read, in the order it was applied.
//!
//! Writes of that table pass one by one, so the order is the emulator's. The reader is told before the writer has
//! its answer: who is killed there dies after the write and before it knows.

use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use serde_json::Value;
use tenure_clock::{Clock, SystemClock};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http1::{Request, body, is_success};

/// A write that was applied.
#[derive(Debug, Clone)]
pub struct Wrote {
    /// The item after it, as DynamoDB writes attributes: `{"rev": {"N": "1"}}`.
    pub after: Value,
    /// When it came, in epoch milliseconds.
    pub received_ms: i64,
}

/// Who reads the writes.
#[async_trait]
pub trait Reader: Send + Sync {
    /// A write was applied, and whoever sent it has no answer yet.
    async fn wrote(&self, _wrote: &Wrote) {}
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct NoReader;

impl Reader for NoReader {}

struct Shared {
    emulator: String,
    table: String,
    writing: tokio::sync::Mutex<()>,
    /// Calls by operation.
    counts: Mutex<BTreeMap<String, u64>>,
    reader: Arc<dyn Reader>,
}

/// The tap, until it is dropped.
pub struct Tap {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Tap {
    /// Starts one before the emulator at `http://…`, which reads the writes of that table.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn start(emulator: &str, table: &str, reader: Arc<dyn Reader>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            emulator: emulator.trim_start_matches("http://").to_owned(),
            table: table.to_owned(),
            writing: tokio::sync::Mutex::default(),
            counts: Mutex::default(),
            reader,
        });
        let task = tokio::spawn({
            let shared = shared.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let shared = shared.clone();
                    // A client that hangs up is its own business.
                    tokio::spawn(async move { drop(shared.serve(stream).await) });
                }
            }
        });
        Ok(Self { address, shared, task })
    }

    /// Where clients connect.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many calls there were so far, by operation.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    async fn serve(&self, mut client: TcpStream) -> Result<()> {
        let Some(request) = Request::read(&mut client).await? else { return Ok(()) };
        let operation = request.header("x-amz-target").and_then(|it| it.split_once('.')).map(|(_, it)| it);
        let operation = operation.unwrap_or_default().to_owned();
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry(operation.clone()).or_default() +=
            1;
        let is_write = matches!(operation.as_str(), "PutItem" | "UpdateItem" | "DeleteItem");
        let asked: Value = serde_json::from_slice(&request.body).unwrap_or(Value::Null);
        let answer = if is_write && asked["TableName"] == self.table.as_str() {
            let received_ms = SystemClock.wall().as_millis();
            let _alone = self.writing.lock().await;
            let answer = request.pass_on(&self.emulator).await?;
            if is_success(&answer) {
                let told: Value = serde_json::from_slice(body(&answer)).unwrap_or(Value::Null);
                let after = if operation == "PutItem" { &asked["Item"] } else { &told["Attributes"] };
                self.reader.wrote(&Wrote { after: after.clone(), received_ms }).await;
            }
            answer
        } else {
            request.pass_on(&self.emulator).await?
        };
        client.write_all(&answer).await?;
        client.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::http1::page;

    #[derive(Default)]
    struct Kept(Mutex<Vec<Value>>);

    #[async_trait]
    impl Reader for Kept {
        async fn wrote(&self, wrote: &Wrote) {
            self.0.lock().unwrap().push(wrote.after.clone());
        }
    }

    /// Refuses what asks for it, and else answers with an item.
    async fn emulator() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let Ok(Some(request)) = Request::read(&mut client).await else { continue };
                let refused = request.body.windows(6).any(|part| part == b"refuse");
                let status = if refused { "400 Bad Request" } else { "200 OK" };
                let answer = page(status, "application/json", r#"{"Attributes":{"rev":{"N":"7"}}}"#);
                client.write_all(&answer).await.unwrap();
            }
        });
        address
    }

    async fn ask(tap: &Tap, operation: &str, body: &str) -> String {
        let mut client = TcpStream::connect(tap.address).await.unwrap();
        let head = format!("POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.{operation}\r\n");
        let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn applied_writes_of_the_table_are_read_and_no_others() {
        let kept = Arc::new(Kept::default());
        let tap = Tap::start(&emulator().await, "state", kept.clone()).await.unwrap();
        assert!(ask(&tap, "UpdateItem", r#"{"TableName":"state"}"#).await.contains("\"rev\""));
        ask(&tap, "UpdateItem", r#"{"TableName":"state","x":"refuse"}"#).await;
        ask(&tap, "UpdateItem", r#"{"TableName":"logs"}"#).await;
        ask(&tap, "GetItem", r#"{"TableName":"state"}"#).await;
        ask(&tap, "PutItem", r#"{"TableName":"state","Item":{"rev":{"N":"1"}}}"#).await;
        let read: Vec<_> = kept.0.lock().unwrap().iter().map(|item| item["rev"]["N"].clone()).collect();
        assert_eq!(read, ["7", "1"]);
        assert_eq!(
            tap.counts(),
            [("GetItem", 1), ("PutItem", 1), ("UpdateItem", 3)].map(|(op, n)| (op.to_owned(), n)).into()
        );
    }
}
