//! Carries out what the script decided about one request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Either, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::ACCEPT_ENCODING;
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use tenure_clock::{Clock, Entropy, within};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::control;
use crate::counts::Counts;
use crate::fault::Fault;
use crate::kind::{Kind, Target};
use crate::put_records::PutRecords;
use crate::reply::{Body, Dialect};
use crate::script::{Decision, Script};
use crate::upstream::{Upstream, UpstreamError};

/// DynamoDB takes 16 MB in a call at most, Kinesis 10 MiB in base64.
pub(crate) const BODY_BYTES_MAX: usize = 16 << 20;

/// A body arrives over loopback; one that takes this long belongs to a client that is stuck.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// What every connection shares.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) upstream: Upstream,
    pub(crate) clock: Arc<dyn Clock>,
    /// Cancelled when the proxy begins to stop: requests that are being held let go.
    pub(crate) stopping: CancellationToken,
    state: Mutex<State>,
}

/// What deciding reads and writes.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) script: Script,
    pub(crate) counts: Counts,
    entropy: Entropy,
    requests: u64,
}

/// The connection ends without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Hangup {
    #[error("closed without an answer")]
    Close,
    #[error("reset without an answer")]
    Reset,
}

type Answer = Result<Response<Body>, Hangup>;

impl Exchange {
    pub(crate) fn new(
        upstream: Upstream,
        script: Script,
        clock: Arc<dyn Clock>,
        stopping: CancellationToken,
    ) -> Self {
        let entropy = Entropy::seeded(script.seed());
        let state = State { script, counts: Counts::default(), entropy, requests: 0 };
        Self { upstream, clock, stopping, state: Mutex::new(state) }
    }

    pub(crate) fn set_script(&self, script: Script) {
        let mut state = self.state();
        state.entropy = Entropy::seeded(script.seed());
        state.script = script;
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers one request, or breaks it as the script says.
    ///
    /// # Cancel safety
    /// Dropped when the client leaves. A request that was being forwarded may or may not have been
    /// applied, as with any server.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Answer {
        let (head, body) = request.into_parts();
        let target = Target::of(&head.headers, head.uri.path());
        let unread = Dialect { service: target.service, request: 0 };
        let body = match self.read(body).await {
            Ok(body) => body,
            Err(Unread::TooLong) => {
                let message = format!("the body is longer than {BODY_BYTES_MAX} bytes");
                return Ok(unread.own_failure(StatusCode::PAYLOAD_TOO_LARGE, &message));
            }
            Err(Unread::TooSlow) => {
                let message = format!("the body did not arrive within {BODY_TIMEOUT:?}");
                return Ok(unread.own_failure(StatusCode::REQUEST_TIMEOUT, &message));
            }
            Err(Unread::Broken) => return Err(Hangup::Close),
        };
        if head.uri.path() == control::PATH {
            return Ok(control::answer(self, &head.method, &body));
        }

        let (decision, put_records, request) = self.decide(target.kind.as_ref(), &body);
        let dialect = Dialect { service: target.service, request };
        let Decision::Inject { fault, failing } = decision else {
            return self.forward(dialect, &head, body).await;
        };
        debug!(kind = target.kind.as_ref().map(Kind::as_str), fault = fault.name(), "fault injected");
        match (fault, put_records) {
            (Fault::Partial { .. }, Some(call)) => self.partial(dialect, head, &call, &failing).await,
            (fault, _) => self.inject(dialect, &head, body, fault).await,
        }
    }

    /// Asks the script, and counts. PutRecords calls are read only for scripts that ask for it.
    fn decide(&self, kind: Option<&Kind>, body: &[u8]) -> (Decision, Option<PutRecords>, u64) {
        let asked = self.state().script.asks_for_records(kind);
        let put_records = if asked { PutRecords::read(body) } else { None };
        let mut state = self.state();
        let State { script, counts, entropy, requests } = &mut *state;
        let decision = script.decide(kind, put_records.as_ref().map_or(0, PutRecords::count), entropy);
        let fault = match &decision {
            Decision::Inject { fault, .. } => Some(fault),
            Decision::Forward => None,
        };
        counts.add(kind, fault);
        *requests += 1;
        (decision, put_records, *requests)
    }

    async fn inject(&self, dialect: Dialect, head: &Parts, body: Bytes, fault: Fault) -> Answer {
        match fault {
            Fault::Throttle(code) => Ok(dialect.throttle(code)),
            Fault::ServerError(status) => Ok(dialect.server_error(status, fault.name())),
            Fault::ServerErrorApplied(status) => match self.upstream.send(head, body).await {
                Ok(_) => Ok(dialect.server_error(status, fault.name())),
                Err(error) => Ok(unreachable(dialect, &error)),
            },
            Fault::Hang => self.hold_forever().await,
            // An emulator that is down has applied nothing, and saying so beats pretending it had.
            Fault::HangApplied => match self.upstream.send(head, body).await {
                Ok(_) => self.hold_forever().await,
                Err(error) => Ok(unreachable(dialect, &error)),
            },
            Fault::LoseReply => match self.upstream.send(head, body).await {
                Ok(_) => Err(Hangup::Close),
                Err(error) => Ok(unreachable(dialect, &error)),
            },
            Fault::Reset => Err(Hangup::Reset),
            Fault::DelayRequest { ms } => {
                self.hold(ms).await?;
                self.forward(dialect, head, body).await
            }
            Fault::DelayReply { ms } => {
                let response = self.forward(dialect, head, body).await?;
                self.hold(ms).await?;
                Ok(response)
            }
            // Decided only for a call whose records were read, which `answer` sends to `partial`.
            Fault::Partial { .. } => self.forward(dialect, head, body).await,
        }
    }

    async fn forward(&self, dialect: Dialect, head: &Parts, body: Bytes) -> Answer {
        match self.upstream.send(head, body).await {
            Ok(response) => Ok(response.map(Either::Right)),
            Err(error) => Ok(unreachable(dialect, &error)),
        }
    }

    async fn partial(
        &self,
        dialect: Dialect,
        mut head: Parts,
        call: &PutRecords,
        failing: &[usize],
    ) -> Answer {
        let reply = match call.without(failing) {
            None => None,
            Some(smaller) => {
                // The reply is read here, so it has to come in the clear.
                head.headers.remove(ACCEPT_ENCODING);
                let response = match self.upstream.send(&head, smaller.into()).await {
                    Ok(response) => response,
                    Err(error) => return Ok(unreachable(dialect, &error)),
                };
                if response.status() != StatusCode::OK {
                    // The emulator refused the call as a whole, and that is the truth about each record.
                    return Ok(response.map(Either::Right));
                }
                match self.read(response.into_body()).await {
                    Ok(reply) => Some(reply),
                    Err(_) => return Ok(unmergeable(dialect)),
                }
            }
        };
        let merged = call.merge(failing, reply.as_deref());
        Ok(merged.map_or_else(|| unmergeable(dialect), |merged| dialect.success(merged, "partial")))
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, Unread> {
        let collected = Limited::new(body, BODY_BYTES_MAX).collect();
        match within(&*self.clock, self.clock.deadline(BODY_TIMEOUT), collected).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(Unread::TooLong),
            Ok(Err(_)) => Err(Unread::Broken),
            Err(_) => Err(Unread::TooSlow),
        }
    }

    /// Holds a request back; a proxy that stops lets go of it at once.
    async fn hold(&self, ms: u32) -> Result<(), Hangup> {
        let sleep = self.clock.sleep(Duration::from_millis(ms.into()));
        self.stopping.run_until_cancelled(sleep).await.ok_or(Hangup::Close)
    }

    /// Never answers. Ends by being dropped when the client leaves, or when the proxy stops.
    async fn hold_forever(&self) -> Answer {
        self.stopping.cancelled().await;
        Err(Hangup::Close)
    }
}

/// Why a body was not read to its end.
enum Unread {
    TooLong,
    TooSlow,
    Broken,
}

fn unreachable(dialect: Dialect, error: &UpstreamError) -> Response<Body> {
    let status = match error {
        UpstreamError::Slow(_) => StatusCode::GATEWAY_TIMEOUT,
        UpstreamError::Failed(..) => StatusCode::BAD_GATEWAY,
    };
    dialect.own_failure(status, &error.to_string())
}

fn unmergeable(dialect: Dialect) -> Response<Body> {
    let message = "upstream's reply to PutRecords does not answer each record";
    dialect.own_failure(StatusCode::BAD_GATEWAY, message)
}
