//! A DynamoDB emulator: where it is, and how a test's tables are deleted when it is over.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const REGION: &str = "eu-west-1";
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Emulator {
    endpoint: String,
}

/// Deletes tables when it is dropped. Not for neatness: DynamoDB Local gives each table with a TTL one of few
/// threads, and with seven such tables about it gets stuck.
pub(super) struct Deleting {
    endpoint: String,
    tables: [String; 2],
}

impl Emulator {
    pub(super) fn of(variable: &str) -> Self {
        let how = "run `cargo xtask services up` and `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`";
        let endpoint = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} is not set: {how}"));
        // Without them the SDK would look for a machine's role, slowly.
        assert!(std::env::var_os("AWS_ACCESS_KEY_ID").is_some(), "AWS_ACCESS_KEY_ID is not set: {how}");
        Self { endpoint }
    }

    pub(super) fn address(&self) -> String {
        format!("dynamodb:?region={REGION}&endpoint={}", self.endpoint)
    }

    pub(super) fn deleting(self, tables: [String; 2]) -> Deleting {
        Deleting { endpoint: self.endpoint, tables }
    }
}

impl Drop for Deleting {
    fn drop(&mut self) {
        for table in &self.tables {
            // It may never have been made.
            let _ = delete(self.endpoint.trim_start_matches("http://"), table);
        }
    }
}

fn delete(host: &str, table: &str) -> std::io::Result<()> {
    let body = format!("{{\"TableName\":\"{table}\"}}");
    let mut stream = TcpStream::connect(host)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    // Emulators read the signature's form, not its truth.
    write!(
        stream,
        "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\nx-amz-target: DynamoDB_20120810.DeleteTable\r\n\
         content-type: application/x-amz-json-1.0\r\nx-amz-date: 20250101T000000Z\r\n\
         authorization: AWS4-HMAC-SHA256 Credential=test/20250101/{REGION}/dynamodb/aws4_request, \
         SignedHeaders=host, Signature=00\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )?;
    stream.read_to_end(&mut Vec::new()).map(drop)
}
