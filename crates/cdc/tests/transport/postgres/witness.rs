//! A stream that nobody reads cannot answer; a second session looks instead.

use super::leading::{Shard, stream_for};
use super::*;

#[tokio::test]
async fn a_reader_that_is_held_up_does_not_lose_the_lock() {
    let (world, shard) = (World::new().await, Shard::new());
    let session = world.session_with_slot().await;
    let leading = shard.lead(&session).await;
    let (mut receiver, sender) = world.stream(session).await;
    // Far more than sockets keep.
    world.run("INSERT INTO t SELECT i, repeat(md5(i::text), 100) FROM generate_series(1, 20000) i").await;
    let feeding = tokio::spawn(async move {
        loop {
            let _ = sender.status(Lsn(0), Lsn(0), Lsn(0), false).await;
            pause(500).await;
        }
    });
    // Longer than the deadline.
    pause(8000).await;
    assert!(leading.is_valid(), "{:?}", leading.end());
    let others = format!(
        "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = current_database() AND pid <> {}",
        receiver.backend()
    );
    assert_eq!(world.text(&others).await, "1");
    // It goes when the stream answers again.
    read_inserts(&mut receiver, 20000).await;
    until("the witness goes", async || {
        stream_for(&mut receiver, 300).await;
        world.text(&others).await == "0"
    })
    .await;
    assert!(leading.is_valid());

    // Held up again, and terminated: the server cannot say so, nor free the lock, before it is read.
    world.run("UPDATE t SET body = body || 'x'").await;
    pause(2000).await;
    world.run(&format!("SELECT pg_terminate_backend({})", receiver.backend())).await;
    in_time(async { while receiver.next().await.is_ok() {} }).await;
    until("it is lost", async || leading.end().is_some()).await;
    feeding.abort();
}
