//! A server that is asked to stop does, and nothing of ours holds it up.

use tenure_scratch_postgres::{End, PASSWORD, StrictPostgres};

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

/// Longer than a shutdown takes that nobody holds up, and shorter than the server's patience with its clients.
async fn stop(mut server: StrictPostgres) {
    in_time(server.end(End::Fast)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_stream_does_not_hold_up_a_shutdown() {
    let server = StrictPostgres::start(&[], &["wal_level=logical"]).await.unwrap();
    let world = World::at(&server.url("postgres", PASSWORD)).await;
    let (receiver, sender) = world.stream(world.session_with_slot().await).await;
    let reading = tokio::spawn(confirm_until_the_end(receiver, sender));
    stop(server).await;
    tells(&in_time(reading).await.unwrap(), Kind::Unavailable, "shutting down");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_that_are_confirmed_late_hold_up_a_shutdown_only_until_then() {
    let server = StrictPostgres::start(&[], &["wal_level=logical"]).await.unwrap();
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
        stop(server).await;
        reading
    };
    tells(&in_time(stopping).await.unwrap(), Kind::Unavailable, "shutting down");
}
