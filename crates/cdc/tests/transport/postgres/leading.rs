//! Leadership by a lock on the session that streams.

use tenure_backend::Env;
use tenure_election::{AdvisoryElector, AdvisoryLeadership, AdvisorySettings, LockEnd, LockKey, LockSession};
use tenure_store::{Memory, Store};

use super::*;

pub(super) fn settings() -> AdvisorySettings {
    AdvisorySettings {
        poll: Duration::from_millis(50),
        ping: Duration::from_millis(250),
        deadline: Duration::from_millis(4000),
        server_timeout: Duration::from_secs(8),
        ..AdvisorySettings::default()
    }
}

/// One shard, one lock of its own, and one store.
pub(super) struct Shard {
    env: Env,
    store: Arc<dyn Store>,
    pub(super) key: LockKey,
}

impl Shard {
    pub(super) fn new() -> Self {
        let env = Env::system();
        let key = LockKey::One(env.entropy.u64().cast_signed());
        Self { store: Arc::new(Memory::new(&env)), key, env }
    }

    pub(super) fn elector(&self, session: &Session) -> AdvisoryElector {
        let lock = Arc::new(session.lock());
        AdvisoryElector::new(lock, self.key, self.store.clone(), "orders", settings(), &self.env).unwrap()
    }

    pub(super) async fn lead(&self, session: &Session) -> AdvisoryLeadership {
        in_time(self.elector(session).lead()).await.unwrap()
    }
}

/// Reads and confirms for a while.
pub(super) async fn stream_for(receiver: &mut Receiver, millis: u64) {
    let by = SystemClock.deadline(Duration::from_millis(millis));
    while let Ok(frame) = within(&SystemClock, by, receiver.next()).await {
        frame.unwrap();
    }
}

#[tokio::test]
async fn a_stream_keeps_the_lock_and_the_next_leads_when_it_is_cut() {
    let (world, shard) = (World::new().await, Shard::new());
    let first = world.session_with_slot().await;
    let second = world.session().await;
    let backend = first.backend();
    let leading = shard.lead(&first).await;
    let mut standby = Box::pin(shard.elector(&second).lead());
    let (mut receiver, sender) = world.stream(first).await;
    // Longer than the deadline: by nothing but the stream, idle at first and then busy.
    tokio::select! {
        _ = &mut standby => panic!("two lead"),
        () = stream_for(&mut receiver, 5000) => {}
    }
    assert!(leading.is_valid());
    world.run("INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i").await;
    tokio::select! {
        _ = &mut standby => panic!("two lead"),
        _ = read_inserts(&mut receiver, 20000) => {}
    }
    assert!(leading.is_valid());
    // No second session was needed for it.
    let sql = "SELECT count(*)::text FROM pg_stat_activity WHERE application_name = current_database()";
    until("two sessions suffice", async || {
        stream_for(&mut receiver, 300).await;
        world.text(sql).await == "2"
    })
    .await;

    drop((receiver, sender));
    let next = in_time(standby).await.unwrap();
    assert!(next.fence().epoch() > leading.fence().epoch());
    until("the first one knows", async || leading.end() == Some(LockEnd::SessionEnded)).await;
    assert!(!leading.is_valid());
    // The slot is free too.
    let slot = format!("SELECT count(*)::text FROM pg_replication_slots WHERE active_pid = {backend}");
    until("the slot is free", async || world.text(&slot).await == "0").await;
    let (mut receiver, sender) = world.stream(second).await;
    read_inserts(&mut receiver, 20000).await;
    assert!(next.is_valid());

    // Resigned from while it streams: free when the server has closed.
    let third = world.session().await;
    let waiting = shard.elector(&third).lead();
    let resigned = tokio::join!(in_time(next.resign()), async {
        loop {
            if receiver.next().await.is_err() {
                break;
            }
        }
    });
    resigned.0.unwrap();
    drop(sender);
    in_time(waiting).await.unwrap();
}

#[tokio::test]
async fn a_terminated_stream_loses_the_lock_at_once() {
    let (world, shard) = (World::new().await, Shard::new());
    let session = world.session_with_slot().await;
    let leading = shard.lead(&session).await;
    let (mut receiver, _sender) = world.stream(session).await;
    world.run(&format!("SELECT pg_terminate_backend({})", receiver.backend())).await;
    in_time(async { while receiver.next().await.is_ok() {} }).await;
    until("it is lost", async || leading.end() == Some(LockEnd::SessionEnded)).await;
}

#[tokio::test]
async fn after_the_stream_the_lock_is_given_back_and_the_session_stays() {
    let (world, shard) = (World::new().await, Shard::new());
    let session = world.session_with_slot().await;
    let leading = shard.lead(&session).await;
    let (receiver, sender) = world.stream(session).await;
    // Finished and not rejoined yet: nothing can be asked on it, and nothing is lost.
    sender.finish().await.unwrap();
    pause(5000).await;
    assert!(leading.is_valid(), "{:?}", leading.end());
    let mut session = in_time(receiver.rejoin(soon(), sender)).await.unwrap();
    pause(1000).await;
    assert!(leading.is_valid());
    in_time(leading.resign()).await.unwrap();
    session.query(soon(), "SELECT 1").await.unwrap();
    // Again on the same session, and elsewhere.
    let again = shard.lead(&session).await;
    in_time(again.resign()).await.unwrap();
    let other = world.session().await;
    assert!(other.lock().try_lock(shard.key).await.unwrap().granted);
    assert!(!session.lock().try_lock(shard.key).await.unwrap().granted);
    let twice = other.lock().try_lock(shard.key).await.unwrap_err();
    tells(&twice, Kind::Invalid, "already");
    assert_eq!(other.lock().announced_backend(), Some(other.backend()));
    other.lock().end();
    until("it is free", async || session.lock().try_lock(shard.key).await.unwrap().granted).await;
}
