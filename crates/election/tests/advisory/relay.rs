//! A relay in front of a server that stops forwarding when it is told to.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What becomes of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    Forwards,
    /// Nothing gets through, and neither side is told.
    Stalls,
    /// The server is told that its client is gone; the client is not.
    ServerNotices,
    /// Both connections are closed.
    Cuts,
}

pub(super) struct Relay {
    pub(super) address: SocketAddr,
    flow: watch::Sender<Flow>,
}

impl Relay {
    pub(super) async fn start(upstream: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let flow = watch::Sender::new(Flow::Forwards);
        let flows = flow.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&upstream).await.unwrap();
                tokio::spawn(carry(client, server, flows.subscribe()));
            }
        });
        Self { address, flow }
    }

    pub(super) fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

async fn carry(mut client: TcpStream, server: TcpStream, mut flow: watch::Receiver<Flow>) {
    let mut server = Some(server);
    let (mut asked, mut answered) = (vec![0; 65536], vec![0; 65536]);
    loop {
        let forwards = match *flow.borrow_and_update() {
            Flow::Forwards => true,
            Flow::Stalls => false,
            Flow::ServerNotices => {
                server = None;
                false
            }
            Flow::Cuts => return,
        };
        let Some(upstream) = server.as_mut().filter(|_| forwards) else {
            if flow.changed().await.is_err() {
                return;
            }
            continue;
        };
        tokio::select! {
            changed = flow.changed() => if changed.is_err() { return },
            read = client.read(&mut asked) => match read {
                Ok(length @ 1..) => upstream.write_all(&asked[..length]).await.unwrap(),
                _ => return,
            },
            read = upstream.read(&mut answered) => match read {
                Ok(length @ 1..) => client.write_all(&answered[..length]).await.unwrap(),
                _ => return,
            },
        }
    }
}
