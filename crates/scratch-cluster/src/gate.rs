//! A gate before a server: while it is shut, nothing passes, and nobody is told.

use std::io::Result;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The gate, until it is dropped.
pub struct Gate {
    address: SocketAddr,
    open: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Gate {
    /// An open gate before `server`, `127.0.0.1:6443`.
    ///
    /// # Errors
    /// If there is no port.
    pub async fn start(server: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (open, is_open) = watch::channel(true);
        let server = server.to_owned();
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (server, is_open) = (server.clone(), is_open.clone());
                // Whoever hangs up ends both ways.
                tokio::spawn(async move { drop(serve(client, &server, is_open).await) });
            }
        });
        Ok(Self { address, open, task })
    }

    /// Where clients connect.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets nothing pass any more: connections stay, and are silent.
    pub fn shut(&self) {
        self.open.send_replace(false);
    }

    /// Lets pass what waited, and what comes.
    pub fn open(&self) {
        self.open.send_replace(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(client: TcpStream, server: &str, mut is_open: watch::Receiver<bool>) -> Result<()> {
    if is_open.wait_for(|open| *open).await.is_err() {
        return Ok(());
    }
    let server = TcpStream::connect(server).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let mut other = is_open.clone();
    tokio::select! {
        asked = passed(&mut from_client, &mut to_server, &mut is_open) => asked,
        answered = passed(&mut from_server, &mut to_client, &mut other) => answered,
    }
}

async fn passed(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    is_open: &mut watch::Receiver<bool>,
) -> Result<()> {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let count = from.read(&mut bytes).await?;
        if count == 0 || is_open.wait_for(|open| *open).await.is_err() {
            return Ok(());
        }
        to.write_all(&bytes[..count]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_clock::{Clock, SystemClock, within};

    use super::*;

    #[tokio::test]
    async fn what_waits_at_a_shut_gate_passes_once_it_is_open() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let gate = Gate::start(&server.local_addr().unwrap().to_string()).await.unwrap();
        let mut client = TcpStream::connect(gate.address()).await.unwrap();
        let (mut served, _) = server.accept().await.unwrap();
        gate.shut();
        client.write_all(b"ask").await.unwrap();
        let mut asked = [0; 3];
        let soon = SystemClock.deadline(Duration::from_millis(200));
        assert!(within(&SystemClock, soon, served.read_exact(&mut asked)).await.is_err(), "it was silent");
        gate.open();
        served.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"ask");
    }
}
