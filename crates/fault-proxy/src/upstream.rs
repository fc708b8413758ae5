//! The way to the emulator.
//!
//! Connections are pooled: at thousands of requests a second, one connection each would run the
//! machine out of ports. Their tasks live in the proxy's own tracker, so that stopping joins them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName};
use hyper::http::request::Parts;
use hyper::http::uri::Scheme;
use hyper::rt::Executor;
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use tenure_clock::{Clock, within};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Loopback answers at once or not at all.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long an emulator may think. The slowest call seen (a table's creation) takes seconds.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Node's servers close an idle connection after 5 s. We give it up well before, so that no request
/// races with that close: it would be a fault that no script asked for.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Headers that speak of one connection and are not passed on (RFC 9110, 7.6.1).
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::EXPECT,
];

#[derive(Debug)]
pub(crate) struct Upstream {
    address: SocketAddr,
    client: Client<HttpConnector, Full<Bytes>>,
    clock: Arc<dyn Clock>,
}

/// The emulator did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpstreamError {
    #[error("upstream {0} did not answer within {REPLY_TIMEOUT:?}")]
    Slow(SocketAddr),
    #[error("upstream {0} failed: {1}")]
    Failed(SocketAddr, String),
}

impl Upstream {
    pub(crate) fn new(
        address: SocketAddr,
        clock: Arc<dyn Clock>,
        tasks: TaskTracker,
        ended: CancellationToken,
    ) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        let client = Client::builder(Tracked { tasks, ended })
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Self { address, client, clock }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends a request with `head` and `body`; done once the head of the reply is here, when the
    /// emulator has applied it.
    pub(crate) async fn send(&self, head: &Parts, body: Bytes) -> Result<Response<Incoming>, UpstreamError> {
        let failed = |error: String| UpstreamError::Failed(self.address, error);
        let mut uri = Uri::builder().scheme(Scheme::HTTP).authority(self.address.to_string());
        uri = uri.path_and_query(head.uri.path_and_query().map_or("/", |path| path.as_str()));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = head.method.clone();
        *request.uri_mut() = uri.build().map_err(|error| failed(error.to_string()))?;
        *request.headers_mut() = head.headers.clone();
        strip_hop_by_hop(request.headers_mut());
        // Written anew: the body may have changed.
        request.headers_mut().remove(header::CONTENT_LENGTH);

        let deadline = self.clock.deadline(REPLY_TIMEOUT);
        let mut response = within(&*self.clock, deadline, self.client.request(request))
            .await
            .map_err(|_| UpstreamError::Slow(self.address))?
            .map_err(|error| failed(chain(&error)))?;
        strip_hop_by_hop(response.headers_mut());
        Ok(response)
    }
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// An error with its sources: the client says only `client error (Connect)` by itself.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Spawns into the proxy's tracker, and ends with the proxy.
#[derive(Debug, Clone)]
struct Tracked {
    tasks: TaskTracker,
    ended: CancellationToken,
}

impl<F> Executor<F> for Tracked
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, future: F) {
        let ended = self.ended.clone();
        self.tasks.spawn(async move {
            let _ = ended.run_until_cancelled(future).await;
        });
    }
}
