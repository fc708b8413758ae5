//! As much HTTP/1.1 as an SDK and an emulator need: one request per connection, bodies of a known length.

use std::io::{Error, ErrorKind, Result};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// No request of a test is longer.
const REQUEST_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// None if the client left before it asked for anything.
    pub(crate) async fn read(client: &mut TcpStream) -> Result<Option<Self>> {
        let mut bytes = Vec::new();
        let head_end = loop {
            if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break at + 4;
            }
            if client.read_buf(&mut bytes).await? == 0 || bytes.len() > REQUEST_BYTES_MAX {
                return Ok(None);
            }
        };
        let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
        let length: usize = header(&head, "content-length").and_then(|it| it.parse().ok()).unwrap_or(0);
        if length > REQUEST_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidData, "the request is too long"));
        }
        while bytes.len() < head_end + length {
            if client.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        }
        let body = bytes[head_end..head_end + length].to_vec();
        Ok(Some(Self { head, body }))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }

    /// Sends it to a server, and reads the whole answer.
    pub(crate) async fn pass_on(&self, server: &str) -> Result<Vec<u8>> {
        let dropped = ["content-length", "connection", "accept-encoding"];
        let kept = self.head.trim_end().lines().filter(|line| {
            let name = line.split(':').next().unwrap_or_default();
            !dropped.iter().any(|other| name.eq_ignore_ascii_case(other))
        });
        let head = kept.collect::<Vec<_>>().join("\r\n");
        let head = format!("{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", self.body.len());
        let mut upstream = TcpStream::connect(server).await?;
        upstream.write_all(head.as_bytes()).await?;
        upstream.write_all(&self.body).await?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer).await?;
        Ok(answer)
    }
}

pub(crate) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

pub(crate) fn is_success(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 200")
}

/// What follows the head.
pub(crate) fn body(answer: &[u8]) -> &[u8] {
    let head_end = answer.windows(4).position(|end| end == b"\r\n\r\n");
    head_end.map_or(&[], |at| &answer[at + 4..])
}

/// An answer with this body, after which the connection ends.
pub(crate) fn page(status: &str, content: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}
