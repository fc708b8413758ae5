//! A server whose answers a test writes.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Answers every request by what `answer` says of it, until dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let answer = Arc::new(answer);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer = answer.clone();
                // A client that hangs up is its own business.
                tokio::spawn(async move { drop(serve(stream, &*answer).await) });
            }
        });
        Self { address, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One request per connection, read to its end: what is left unread would reset the connection.
async fn serve(
    mut stream: TcpStream,
    answer: &(dyn Fn(&str) -> String + Send + Sync),
) -> std::io::Result<()> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
        let Some(head) = request.windows(4).position(|end| end == b"\r\n\r\n") else { continue };
        let length = String::from_utf8_lossy(&request[..head])
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok())
            .unwrap_or(0);
        if request.len() >= head + 4 + length {
            break;
        }
    }
    stream.write_all(answer(&String::from_utf8_lossy(&request)).as_bytes()).await?;
    stream.shutdown().await
}

pub(crate) fn page(status: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
