//! A server of ours that passes requests on to an emulator and remembers what they asked for.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What a request asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// As IAM names it.
    pub(crate) action: String,
    /// The table of a call to DynamoDB.
    pub(crate) table: Option<String>,
    /// The parameters of a call to EC2.
    pub(crate) parameters: BTreeMap<String, String>,
}

pub(crate) struct Recorder {
    address: SocketAddr,
    calls: Arc<Mutex<Vec<Call>>>,
    task: JoinHandle<()>,
}

impl Recorder {
    /// In front of an emulator, `http://host:port`.
    pub(crate) async fn start(upstream: &str) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let calls = Arc::new(Mutex::new(Vec::new()));
        let shared = calls.clone();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, shared) = (upstream.clone(), shared.clone());
                // A client that hangs up is its own business.
                tokio::spawn(async move { drop(serve(client, &upstream, &shared).await) });
            }
        });
        Self { address, calls, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn calls(&self) -> Vec<Call> {
        self.calls.lock().unwrap().clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request per connection.
async fn serve(mut client: TcpStream, upstream: &str, calls: &Mutex<Vec<Call>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    let head_end = loop {
        if let Some(at) = request.windows(4).position(|end| end == b"\r\n\r\n") {
            break at + 4;
        }
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    };
    let head = String::from_utf8_lossy(&request[..head_end]).into_owned();
    let header = |name: &str| {
        let is_it =
            |line: &&str| line.split(':').next().is_some_and(|found| found.eq_ignore_ascii_case(name));
        head.lines().find(is_it).and_then(|line| Some(line.split_once(':')?.1.trim().to_owned()))
    };
    let length: usize = header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while request.len() < head_end + length {
        if client.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let body = &request[head_end..];
    let call = match header("x-amz-target") {
        Some(target) => {
            let body: Value = serde_json::from_slice(body).unwrap_or_default();
            let name = target.rsplit('.').next().unwrap_or_default();
            Call {
                action: format!("dynamodb:{name}"),
                table: body["TableName"].as_str().map(str::to_owned),
                parameters: BTreeMap::new(),
            }
        }
        None => {
            let parameters: BTreeMap<String, String> = form_urlencoded::parse(body).into_owned().collect();
            Call { action: format!("ec2:{}", parameters["Action"]), table: None, parameters }
        }
    };
    calls.lock().unwrap().push(call);

    let kept = head
        .trim_end()
        .lines()
        .filter(|line| !line.split(':').next().unwrap_or_default().eq_ignore_ascii_case("connection"));
    let head = kept.collect::<Vec<_>>().join("\r\n") + "\r\nConnection: close\r\n\r\n";
    let mut server = TcpStream::connect(upstream).await?;
    server.write_all(head.as_bytes()).await?;
    server.write_all(body).await?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer).await?;
    // The answer ends with the connection, whatever its head says of others to come.
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(answer.len());
    let kept = String::from_utf8_lossy(&answer[..end]).into_owned();
    let kept = kept
        .lines()
        .filter(|line| !line.split(':').next().unwrap_or_default().eq_ignore_ascii_case("connection"));
    let head = kept.collect::<Vec<_>>().join("\r\n") + "\r\nConnection: close";
    client.write_all(head.as_bytes()).await?;
    client.write_all(&answer[end..]).await?;
    client.shutdown().await
}
