//! A client that tells apart the ways in which an answer can fail to come.

use std::error::Error;
use std::fmt;
use std::io;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper::header::HeaderMap;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// What the client saw.
pub(crate) enum Saw {
    Reply { status: StatusCode, headers: HeaderMap, body: Value },
    Closed,
    Reset,
}

/// `200`, `400 SomeException`, `closed` or `reset`.
impl fmt::Display for Saw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reply { status, body, .. } => {
                write!(f, "{}", status.as_u16())?;
                body["__type"].as_str().map_or(Ok(()), |code| write!(f, " {code}"))
            }
            Self::Closed => f.write_str("closed"),
            Self::Reset => f.write_str("reset"),
        }
    }
}

impl Saw {
    pub(crate) fn body(&self) -> &Value {
        match self {
            Self::Reply { body, .. } => body,
            _ => &Value::Null,
        }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        match self {
            Self::Reply { headers, .. } => headers.get(name).map_or("", |value| value.to_str().unwrap()),
            _ => "",
        }
    }
}

/// Sends one call to `url` over a connection of its own. `target` is the whole `X-Amz-Target`.
pub(crate) async fn call(url: &str, target: &str, body: impl Into<Bytes>) -> Saw {
    let request = Request::post("/").header("x-amz-target", target);
    send(url, request.body(Full::new(body.into())).unwrap()).await
}

/// Sends a control request.
pub(crate) async fn control(url: &str, method: Method, body: &str) -> Saw {
    let request = Request::builder().method(method).uri("/__faults");
    send(url, request.body(Full::new(body.to_owned().into())).unwrap()).await
}

async fn send(url: &str, mut request: Request<Full<Bytes>>) -> Saw {
    let address = url.strip_prefix("http://").unwrap();
    request.headers_mut().insert("host", address.parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    // Driven in this very future, so that dropping the call leaves the connection.
    let exchange = async {
        let response = sender.send_request(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok::<_, hyper::Error>((head, body))
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    let mut connected = true;
    let result = loop {
        tokio::select! {
            biased;
            result = &mut exchange => break result,
            ended = &mut connection, if connected => match ended {
                Ok(()) => connected = false,
                Err(error) => break Err(error),
            },
        }
    };
    match result {
        Ok((head, body)) => {
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            Saw::Reply { status: head.status, headers: head.headers, body }
        }
        Err(error) if is_reset(&error) => Saw::Reset,
        Err(_) => Saw::Closed,
    }
}

fn is_reset(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
}
