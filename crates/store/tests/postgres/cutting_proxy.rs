//! A proxy between the store and the server that counts round trips, and does something to the next
//! COMMIT.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What happens to the next COMMIT that comes by.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fate {
    /// Nothing.
    Pass = 0,
    /// It does not reach the server, and the connection ends.
    LoseRequest = 1,
    /// It reaches the server, and the connection ends before the answer.
    LoseReply = 2,
    /// It reaches the server, and the answer never comes.
    Hang = 3,
}

pub(super) struct CuttingProxy {
    /// Where it listens.
    pub(super) address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    fate: AtomicU8,
    round_trips: AtomicUsize,
}

impl CuttingProxy {
    /// Listens in front of a server's `host:port`.
    pub(super) async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared::default());
        let ours = shared.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (upstream, shared) = (upstream.clone(), ours.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(upstream).await.unwrap();
                    carry(client, server, &shared).await;
                });
            }
        });
        Self { address, shared }
    }

    pub(super) fn next_commit(&self, fate: Fate) {
        self.shared.fate.store(fate as u8, Ordering::SeqCst);
    }

    /// How often the client spoke after the server had, or first.
    pub(super) fn round_trips(&self) -> usize {
        self.shared.round_trips.load(Ordering::SeqCst)
    }
}

/// Carries bytes both ways until either side ends or a COMMIT meets its fate.
async fn carry(mut client: TcpStream, mut server: TcpStream, shared: &Shared) {
    let mut server_spoke = true;
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        tokio::select! {
            read = client.read(&mut asked) => {
                let Ok(length @ 1..) = read else { return };
                let commits = asked[..length].windows(7).any(|bytes| bytes == b"COMMIT\0");
                shared.round_trips.fetch_add(usize::from(server_spoke), Ordering::SeqCst);
                server_spoke = false;
                let due = if commits { shared.fate.swap(0, Ordering::SeqCst) } else { 0 };
                if due == Fate::LoseRequest as u8 {
                    return;
                }
                server.write_all(&asked[..length]).await.unwrap();
                if due == Fate::LoseReply as u8 {
                    // The answer is there, so the server is done.
                    let _ = server.read(&mut answered).await;
                    return;
                }
                if due == Fate::Hang as u8 {
                    std::future::pending::<()>().await;
                }
            }
            read = server.read(&mut answered) => {
                let Ok(length @ 1..) = read else { return };
                server_spoke = true;
                if client.write_all(&answered[..length]).await.is_err() {
                    return;
                }
            }
        }
    }
}
