//! A shim before moto that knows client tokens, as EC2 does and no emulator.
//!
//! It remembers tokens, and refuses, hangs, dawdles and loses replies when told to. What it does is ours;
//! everything behind it is moto's. A watcher is told of every call before moto gets it, and of every launch.

use std::collections::{BTreeMap, VecDeque};
use std::io::Result;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tenure_clock::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http1::{Request, body, is_success, page};

/// The parameters of a call, `Action` among them.
pub type Call = BTreeMap<String, String>;

/// What is done to a call.
#[derive(Debug, Clone, Copy)]
pub enum Fault {
    /// Not passed on; this status and code instead.
    Refuse(u16, &'static str),
    /// Passed on, and the connection closed without an answer.
    LoseReply,
    /// Not passed on, and no answer.
    Hang,
}

/// Who is told what happens, in order.
#[async_trait]
pub trait Watcher: Send + Sync {
    /// A call is about to be passed on.
    async fn calls(&self, _call: &Call) {}

    /// An instance was launched: a token that was used before launches nothing.
    async fn launched(&self, _call: &Call, _instance: &str) {}
}

/// Nobody.
#[derive(Debug, Clone, Copy)]
pub struct NoWatcher;

impl Watcher for NoWatcher {}

#[derive(Default)]
struct Behaviour {
    /// What comes next of an action.
    faults: VecDeque<(&'static str, Fault)>,
    /// Instances on a page, whatever was asked for.
    page: Option<u32>,
    /// How long a change takes to arrive, and its answer to come back.
    latency: Duration,
    calls: Vec<Call>,
    /// Parameters and answer by token.
    launches: BTreeMap<String, (Call, Vec<u8>)>,
}

struct Shared {
    moto: String,
    behaviour: Mutex<Behaviour>,
    /// Launches are taken one by one, or the second of a token would not know of the first.
    launching: tokio::sync::Mutex<()>,
    watcher: Arc<dyn Watcher>,
}

/// The shim, until it is dropped.
pub struct Shim {
    address: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Shim {
    /// Starts one before moto at `http://…`.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn start(moto: &str, watcher: Arc<dyn Watcher>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            moto: moto.trim_start_matches("http://").to_owned(),
            behaviour: Mutex::default(),
            launching: tokio::sync::Mutex::default(),
            watcher,
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

    /// What is done to the next call of an action; of several, in turn.
    pub fn next(&self, action: &'static str, fault: Fault) {
        self.shared.behaviour().faults.push_back((action, fault));
    }

    /// So many instances on a page, whatever is asked for.
    pub fn page(&self, instances: u32) {
        self.shared.behaviour().page = Some(instances);
    }

    /// How long a change takes to arrive, and as long again its answer to come back.
    pub fn latency(&self, latency: Duration) {
        self.shared.behaviour().latency = latency;
    }

    /// All calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.shared.behaviour().calls.clone()
    }

    /// The parameters of the last call of an action.
    #[must_use]
    pub fn last(&self, action: &str) -> Option<Call> {
        self.shared.behaviour().calls.iter().rev().find(|call| call["Action"] == action).cloned()
    }

    /// How many calls of an action there were.
    #[must_use]
    pub fn count(&self, action: &str) -> usize {
        self.shared.behaviour().calls.iter().filter(|call| call["Action"] == action).count()
    }
}

impl Drop for Shim {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn behaviour(&self) -> MutexGuard<'_, Behaviour> {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn serve(&self, mut client: TcpStream) -> Result<()> {
        let Some(mut request) = Request::read(&mut client).await? else { return Ok(()) };
        let mut call: Call = form_urlencoded::parse(&request.body).into_owned().collect();
        let action = call.get("Action").cloned().unwrap_or_default();
        let (fault, latency) = {
            let mut behaviour = self.behaviour();
            behaviour.calls.push(call.clone());
            if let (Some(page), Some(asked)) = (behaviour.page, call.get_mut("MaxResults")) {
                *asked = page.to_string();
            }
            let at = behaviour.faults.iter().position(|(of, _)| *of == action);
            let fault = at.and_then(|at| behaviour.faults.remove(at)).map(|(_, fault)| fault);
            let latency = if action.starts_with("Describe") { Duration::ZERO } else { behaviour.latency };
            (fault, latency)
        };
        SystemClock.sleep(latency).await;
        let answer = match fault {
            Some(Fault::Refuse(status, code)) => refusal(status, code),
            Some(Fault::Hang) => {
                // Until the client gives up.
                while client.read_buf(&mut Vec::new()).await? > 0 {}
                return Ok(());
            }
            None | Some(Fault::LoseReply) => {
                let form = form_urlencoded::Serializer::new(String::new()).extend_pairs(&call).finish();
                request.body = form.into_bytes();
                self.carried_out(&call, &request).await?
            }
        };
        if matches!(fault, Some(Fault::LoseReply)) {
            return Ok(());
        }
        SystemClock.sleep(latency).await;
        client.write_all(&answer).await?;
        client.shutdown().await
    }

    /// Goes on though the client may have left meanwhile: what was sent may have its effect.
    async fn carried_out(&self, call: &Call, request: &Request) -> Result<Vec<u8>> {
        let Some(token) = call.get("ClientToken") else {
            self.watcher.calls(call).await;
            return request.pass_on(&self.moto).await;
        };
        let _alone = self.launching.lock().await;
        let known = self.behaviour().launches.get(token).cloned();
        match known {
            Some((before, answer)) if before == *call => return Ok(answer),
            Some(_) => return Ok(refusal(400, "IdempotentParameterMismatch")),
            None => {}
        }
        self.watcher.calls(call).await;
        let answer = request.pass_on(&self.moto).await?;
        if is_success(&answer) {
            self.behaviour().launches.insert(token.clone(), (call.clone(), answer.clone()));
            let text = String::from_utf8_lossy(body(&answer)).into_owned();
            let id = text.split_once("<instanceId>").and_then(|(_, rest)| rest.split_once("</instanceId>"));
            self.watcher.launched(call, id.map_or("", |(id, _)| id)).await;
        }
        Ok(answer)
    }
}

/// As EC2 writes it.
fn refusal(status: u16, code: &str) -> Vec<u8> {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Response><Errors><Error><Code>{code}</Code>\
         <Message>by the shim</Message></Error></Errors><RequestID>r</RequestID></Response>"
    );
    page(&format!("{status} x"), "text/xml", &body)
}
