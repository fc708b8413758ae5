//! A DynamoDB emulator, spoken to by hand: requests as they go over the wire, and no SDK between.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value as Json, json};
use tenure_clock::Entropy;

/// DynamoDB Local keeps the tables of each region apart, so all must name one.
const REGION: &str = "eu-west-1";
/// Long enough for an emulator on a busy machine; only a stuck one reaches it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The address of one emulator.
#[derive(Debug, Clone)]
pub(crate) struct Emulator {
    endpoint: Arc<str>,
}

/// The name of the exception that was answered.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exception(pub(crate) String);

impl Emulator {
    pub(crate) fn of(variable: &str) -> Self {
        let how = "run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`";
        let endpoint = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {how}"));
        // Without them the SDK would look for a machine's role, slowly.
        assert!(std::env::var_os("AWS_ACCESS_KEY_ID").is_some(), "AWS_ACCESS_KEY_ID is not set: {how}");
        Self { endpoint: endpoint.into() }
    }

    /// For `tenure_store::open`.
    pub(crate) fn address(&self) -> String {
        format!("dynamodb:?region={REGION}&endpoint={}", self.endpoint)
    }

    /// One request. It is sent by a thread that may block, so that it can cross others under way.
    pub(crate) async fn call(&self, operation: &'static str, body: Json) -> Result<Json, Exception> {
        let emulator = self.clone();
        tokio::task::spawn_blocking(move || emulator.call_blocking(operation, &body)).await.unwrap()
    }

    fn call_blocking(&self, operation: &str, body: &Json) -> Result<Json, Exception> {
        let host = self.endpoint.trim_start_matches("http://");
        let body = body.to_string();
        // Emulators read the signature's form, not its truth.
        let request = format!(
            "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-amz-target: DynamoDB_20120810.{operation}\r\n\
             content-type: application/x-amz-json-1.0\r\nx-amz-date: 20250101T000000Z\r\n\
             authorization: AWS4-HMAC-SHA256 Credential=test/20250101/{REGION}/dynamodb/aws4_request, \
             SignedHeaders=host, Signature=00\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(host).expect("the emulator runs");
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer has a head");
        let json: Json = serde_json::from_str(body).unwrap_or(Json::Null);
        if head.starts_with("HTTP/1.1 200") {
            return Ok(json);
        }
        let name = json["__type"].as_str().unwrap_or(head);
        Err(Exception(name.rsplit('#').next().unwrap_or(name).to_owned()))
    }
}

/// The name of a table that nobody else uses; the table is deleted with it.
///
/// Not for neatness: DynamoDB Local gives each table with a TTL one of few threads, and with seven such
/// tables about it gets stuck.
#[derive(Debug)]
pub(crate) struct OwnTable {
    pub(crate) name: String,
    pub(crate) emulator: Emulator,
}

impl OwnTable {
    pub(crate) fn on(emulator: Emulator) -> Self {
        Self { name: format!("election-{}", &Entropy::system().nonce()[..16]), emulator }
    }
}

impl Drop for OwnTable {
    fn drop(&mut self) {
        // It may never have been made.
        let _ = self.emulator.call_blocking("DeleteTable", &json!({ "TableName": self.name }));
    }
}
