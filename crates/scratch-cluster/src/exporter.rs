//! What node_exporter would tell of the nodes, for a real Prometheus to scrape.

use std::collections::BTreeMap;
use std::io::Result;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tenure_clock::{Clock, Entropy, Monotonic, SystemClock};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::http1::{Request, page};
use crate::variable;

/// Every node's CPU idles for this share of the time.
const CPU_IDLE: f64 = 0.95;

/// An exporter that Prometheus scrapes until it is dropped.
pub struct Exporter {
    /// The share of its memory that is in use, by node.
    used: Arc<Mutex<BTreeMap<String, f64>>>,
    target: PathBuf,
    task: JoinHandle<()>,
}

impl Exporter {
    /// Starts one, and has the Prometheus of `TENURE_TEST_PROMETHEUS_TARGETS` scrape it.
    ///
    /// # Errors
    /// If there is no port, or the folder of targets cannot be written to.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let used: Arc<Mutex<BTreeMap<String, f64>>> = Arc::default();
        let began = SystemClock.monotonic();
        let task = tokio::spawn({
            let used = used.clone();
            async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let text = exposition(&used.lock().unwrap_or_else(PoisonError::into_inner), began);
                    tokio::spawn(async move { drop(serve(stream, &text).await) });
                }
            }
        });
        let file = format!("{}.json", Entropy::system().nonce());
        let target = PathBuf::from(variable("TENURE_TEST_PROMETHEUS_TARGETS")).join(file);
        announce(&target, address)?;
        Ok(Self { used, target, task })
    }

    /// Sets which nodes there are, and which share of its memory each uses.
    pub fn set(&self, used: BTreeMap<String, f64>) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = used;
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.target);
    }
}

/// By way of another name: Prometheus would read half a file.
fn announce(target: &std::path::Path, address: SocketAddr) -> Result<()> {
    let config = json!([{ "targets": [address.to_string()] }]);
    let unfinished = target.with_extension("unfinished");
    std::fs::write(&unfinished, config.to_string())?;
    std::fs::rename(&unfinished, target)
}

async fn serve(mut stream: TcpStream, text: &str) -> Result<()> {
    if Request::read(&mut stream).await?.is_some() {
        stream.write_all(&page("200 OK", "text/plain", text)).await?;
    }
    stream.shutdown().await
}

fn exposition(used: &BTreeMap<String, f64>, began: Monotonic) -> String {
    let seconds = SystemClock.monotonic().since(began).as_secs_f64();
    let mut text = String::new();
    for (node, used) in used {
        for (mode, share) in [("idle", CPU_IDLE), ("user", 1.0 - CPU_IDLE)] {
            let total = 1000.0 + share * seconds;
            text += &format!("node_cpu_seconds_total{{node=\"{node}\",cpu=\"0\",mode=\"{mode}\"}} {total}\n");
        }
        let available = 1.0 - used;
        text += &format!("node_memory_MemAvailable_bytes{{node=\"{node}\"}} {available}\n");
        text += &format!("node_memory_MemTotal_bytes{{node=\"{node}\"}} 1\n");
    }
    text
}
