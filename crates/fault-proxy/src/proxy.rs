//! The running proxy: one task that accepts, one per connection, and a handle.
//!
//! Stopping has an order: no new connections, requests that are held let go, answers on their way
//! finish, connections to the emulator close, everything is joined.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tenure_clock::{Clock, SystemClock, within};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::control;
use crate::counts::Counts;
use crate::error::Error;
use crate::exchange::{Exchange, Hangup};
use crate::loopback;
use crate::script::Script;
use crate::upstream::Upstream;

/// Connections served at once: more than the fleets of our tests open together. The next one waits.
const CONNECTIONS_MAX: u32 = 1024;

/// How long answers on their way may take once the proxy stops, before they are cut off.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait when accepting fails, which on loopback means that open files ran out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running proxy. Dropping it cuts everything off; [`FaultProxy::stop`] ends it in order.
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    exchange: Arc<Exchange>,
    places: Arc<Semaphore>,
    stopping: CancellationToken,
    ended: CancellationToken,
    tasks: TaskTracker,
}

impl FaultProxy {
    /// Starts a proxy on a free port of 127.0.0.1, in front of the emulator at `upstream`
    /// (`http://127.0.0.1:8000`).
    ///
    /// # Errors
    /// `upstream` is not a loopback URL, or no port can be had.
    pub async fn start(upstream: &str, script: Script) -> Result<Self, Error> {
        Self::start_with("127.0.0.1:0", upstream, script, Arc::new(SystemClock)).await
    }

    /// As [`FaultProxy::start`], on `listen` (`127.0.0.1:8001`, port 0 for a free one), with delays
    /// and time-outs measured by `clock`.
    ///
    /// # Errors
    /// Either address is not loopback, or the port cannot be had.
    pub async fn start_with(
        listen: &str,
        upstream: &str,
        script: Script,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let upstream = loopback::upstream(upstream)?;
        let bind_error = |source| Error::Bind { address: listen.to_owned(), source };
        let listener = TcpListener::bind(loopback::listen(listen)?).await.map_err(bind_error)?;
        let address = listener.local_addr().map_err(bind_error)?;

        let (stopping, ended) = (CancellationToken::new(), CancellationToken::new());
        let tasks = TaskTracker::new();
        let upstream = Upstream::new(upstream, clock.clone(), tasks.clone(), ended.clone());
        let exchange = Arc::new(Exchange::new(upstream, script, clock, stopping.clone()));
        let places = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
        let proxy = Self { address, exchange, places, stopping, ended, tasks };
        proxy.tasks.spawn(proxy.accept(listener));
        Ok(proxy)
    }

    /// Where clients connect: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Where requests go: `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn upstream_url(&self) -> String {
        format!("http://{}", self.exchange.upstream.address())
    }

    /// Replaces the script for requests that have not been decided yet. Its rules begin anew, the
    /// counts go on.
    pub fn set_script(&self, script: Script) {
        self.exchange.set_script(script);
    }

    /// The script in force, with how far its rules have come.
    #[must_use]
    pub fn script(&self) -> Script {
        self.exchange.state().script.clone()
    }

    /// What came by and what was done to it, since the proxy started.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.exchange.state().counts.clone()
    }

    /// Connections from clients that are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        CONNECTIONS_MAX as usize - self.places.available_permits()
    }

    /// Stops accepting, closes what is being held, lets answers on their way finish (for five
    /// seconds at most), and returns when every task has ended.
    pub async fn stop(self) {
        self.stopping.cancel();
        self.tasks.close();
        // Connections to the emulator end last: an answer on its way still needs one. They share
        // the tracker, so it is the places that tell when the clients' connections are gone.
        let all_places = self.places.acquire_many(CONNECTIONS_MAX);
        let deadline = self.exchange.clock.deadline(DRAIN_TIMEOUT);
        let _ = within(&*self.exchange.clock, deadline, all_places).await;
        self.ended.cancel();
        self.tasks.wait().await;
    }

    /// The script, its rules' progress and the counts, as `GET /__faults` tells them.
    pub(crate) fn report(&self) -> serde_json::Value {
        control::report(&self.exchange.state())
    }

    fn accept(&self, listener: TcpListener) -> impl Future<Output = ()> + Send + use<> {
        let (exchange, places) = (self.exchange.clone(), self.places.clone());
        let (tasks, stopping, ended) = (self.tasks.clone(), self.stopping.clone(), self.ended.clone());
        async move {
            let accepting = async {
                loop {
                    let stream = match listener.accept().await {
                        Ok((stream, _)) => stream,
                        Err(error) => {
                            warn!(%error, "accept failed");
                            exchange.clock.sleep(ACCEPT_PAUSE).await;
                            continue;
                        }
                    };
                    // Nobody closes the semaphore.
                    let Ok(place) = places.clone().acquire_owned().await else { return };
                    let served = serve(stream, exchange.clone(), ended.clone());
                    tasks.spawn(async move {
                        served.await;
                        drop(place);
                    });
                }
            };
            let _ = stopping.run_until_cancelled(accepting).await;
        }
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.stopping.cancel();
        self.ended.cancel();
    }
}

/// Serves one connection until the client leaves, a fault ends it, or the proxy stops.
async fn serve(stream: TcpStream, exchange: Arc<Exchange>, ended: CancellationToken) {
    // Replies are small and awaited: none should wait for the next.
    let _ = stream.set_nodelay(true);
    let stopping = exchange.stopping.clone();
    let service = service_fn(move |request| {
        let exchange = exchange.clone();
        async move { exchange.answer(request).await }
    });
    // No time-out for heads: it would also close idle connections, and a request racing with that
    // close is a fault that no script asked for.
    let mut connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let served = tokio::select! {
        biased;
        () = ended.cancelled() => return,
        served = &mut connection => Some(served),
        () = stopping.cancelled() => None,
    };
    let served = match served {
        Some(served) => served,
        None => {
            Pin::new(&mut connection).graceful_shutdown();
            match ended.run_until_cancelled(&mut connection).await {
                Some(served) => served,
                None => return,
            }
        }
    };
    let Err(error) = served else { return };
    let hangup = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<Hangup>());
    match hangup {
        Some(Hangup::Reset) => {
            // Without lingering, closing sends RST and discards what is unsent.
            let stream = connection.into_parts().io.into_inner();
            if let Err(error) = stream.set_zero_linger() {
                warn!(%error, "reset became a plain close");
            }
        }
        Some(Hangup::Close) => {}
        None => debug!(%error, "connection ended"),
    }
}
