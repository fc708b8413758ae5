//! A server that is asked to stop does, and nothing of ours holds it up.

use super::super::scratch_server::{PASSWORD, ScratchServer};
use super::*;

/// Answers the server until it goes: confirms what it sent.
async fn confirm_until_the_end(mut receiver: Receiver, sender: Sender) -> Error {
    loop {
        match receiver.next().await {
            Ok(Frame::Keepalive { wal_end, reply_requested, .. }) => {
                if reply_requested && let Err(error) = sender.status(wal_end, wal_end, wal_end, false).await {
                    return error;
                }
            }
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

async fn stop(server: &ScratchServer) -> bool {
    tokio::task::block_in_place(|| server.stop_fast())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_stream_does_not_hold_up_a_shutdown() {
    let server = ScratchServer::start(&[], "").await;
    let world = World::at(&server.url("postgres", PASSWORD)).await;
    let (receiver, sender) = world.stream(world.session_with_slot().await).await;
    let reading = tokio::spawn(confirm_until_the_end(receiver, sender));
    assert!(stop(&server).await);
    tells(&in_time(reading).await.unwrap(), Kind::Unavailable, "shutting down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_confirmed_late_hold_up_a_shutdown_only_until_then() {
    let server = ScratchServer::start(&[], "").await;
    let world = World::at(&server.url("postgres", PASSWORD)).await;
    let (mut receiver, sender) = world.stream(world.session_with_slot().await).await;
    world.insert(1).await;
    let end = read_inserts(&mut receiver, 1).await;
    // Received and not confirmed: the server must ask for it.
    let stopping = {
        let reading = tokio::spawn(async move {
            let asked = loop {
                if let Frame::Keepalive { wal_end, reply_requested: true, .. } =
                    receiver.next().await.unwrap()
                {
                    break wal_end;
                }
            };
            assert!(asked >= end);
            sender.status(asked, asked, asked, false).await.unwrap();
            confirm_until_the_end(receiver, sender).await
        });
        assert!(stop(&server).await);
        reading
    };
    tells(&in_time(stopping).await.unwrap(), Kind::Unavailable, "shutting down");
}
