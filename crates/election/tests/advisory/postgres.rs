//! What the server grants, what it takes away, and what it never notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::Env;
use tenure_clock::{Clock, Monotonic, SystemClock, within};
use tenure_election::{
    AdvisoryElector, AdvisoryLeadership, AdvisorySettings, Epoch, Error, Kind, LockEnd, LockKey, LockSession,
    LossReason, PostgresSession, Pulse, Result, Tried, prepare_config,
};
use tenure_store::{Memory, Store};
use tokio_postgres::{Client, Config, NoTls};

use super::relay::{Flow, Relay};

/// The server that tests share.
fn server() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

/// Short enough for a test, long enough for a busy machine.
fn settings() -> AdvisorySettings {
    AdvisorySettings {
        poll: Duration::from_millis(50),
        ping: Duration::from_millis(250),
        deadline: Duration::from_millis(1500),
        server_timeout: Duration::from_secs(3),
        ..AdvisorySettings::default()
    }
}

/// One shard, one lock of its own, and one store.
struct World {
    env: Env,
    store: Arc<dyn Store>,
    key: LockKey,
}

impl World {
    fn new() -> Self {
        let env = Env::system();
        let store = Arc::new(Memory::new(&env));
        let key = LockKey::One(env.entropy.u64().cast_signed());
        Self { store, key, env }
    }

    fn elector(&self, session: Arc<dyn LockSession>) -> AdvisoryElector {
        AdvisoryElector::new(session, self.key, self.store.clone(), "orders", settings(), &self.env).unwrap()
    }

    async fn lead(&self, session: &Arc<PostgresSession>) -> AdvisoryLeadership {
        in_time(self.elector(session.clone()).lead()).await.unwrap()
    }

    /// Whether an outside program gets the lock by itself.
    async fn outsider_gets_it(&self, outsider: &Client) -> bool {
        let sql = format!("SELECT pg_try_advisory_lock({})", self.key.arguments());
        outsider.query_one(&sql, &[]).await.unwrap().get(0)
    }
}

async fn in_time<F: Future>(future: F) -> F::Output {
    let by = SystemClock.deadline(Duration::from_secs(30));
    within(&SystemClock, by, Box::pin(future)).await.expect("done within 30 s")
}

fn config(server: &str) -> Config {
    let mut config: Config = server.parse().unwrap();
    prepare_config(&mut config, &settings());
    config
}

async fn session() -> Arc<PostgresSession> {
    Arc::new(PostgresSession::connect(&config(&server()), NoTls).await.unwrap())
}

/// A session through a relay.
async fn relayed() -> (Relay, Arc<PostgresSession>) {
    let server = server();
    let (user, place) = server.split_once('@').unwrap();
    let (upstream, database) = place.split_once('/').unwrap();
    let relay = Relay::start(upstream.to_owned()).await;
    let config = config(&format!("{user}@{}/{database}", relay.address));
    (relay, Arc::new(PostgresSession::connect(&config, NoTls).await.unwrap()))
}

/// Somebody else in the same database.
async fn outsider() -> Client {
    let (client, connection) = tokio_postgres::connect(&server(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn pid(session: &PostgresSession) -> i32 {
    session.client().query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

async fn pause(millis: u64) {
    SystemClock.sleep(Duration::from_millis(millis)).await;
}

#[tokio::test]
async fn of_two_candidates_one_leads_and_the_other_follows_with_a_higher_epoch() {
    for two_ints in [false, true] {
        let mut world = World::new();
        if two_ints {
            let random = world.env.entropy.u64().cast_signed();
            world.key = LockKey::Two((random >> 32) as i32, random as i32);
        }
        let (a, b) = (session().await, session().await);
        let mut first = Box::pin(world.elector(a.clone()).lead());
        let mut second = Box::pin(world.elector(b.clone()).lead());
        let mut epoch = 0;
        for _ in 0..3 {
            let (leader, again) = tokio::select! {
                leader = in_time(&mut first) => (leader.unwrap(), true),
                leader = in_time(&mut second) => (leader.unwrap(), false),
            };
            epoch += 1;
            assert_eq!(leader.fence().epoch(), Epoch(epoch));
            // Longer than the deadline: pings keep it.
            tokio::select! {
                biased;
                _ = async { if again { drop((&mut second).await) } else { drop((&mut first).await) } } => panic!("two lead"),
                () = pause(1800) => (),
            }
            assert!(leader.is_valid());
            in_time(leader.resign()).await.unwrap();
            if again {
                first = Box::pin(world.elector(a.clone()).lead());
            } else {
                second = Box::pin(world.elector(b.clone()).lead());
            }
        }
    }
}

#[tokio::test]
async fn a_terminated_leader_is_lost_at_once_and_the_standby_takes_over() {
    let world = World::new();
    let (a, b) = (session().await, session().await);
    let leader = world.lead(&a).await;
    let standby = tokio::spawn(world.elector(b).lead());
    pause(300).await;
    let began = SystemClock.monotonic();
    outsider().await.execute("SELECT pg_terminate_backend($1)", &[&pid(&a).await]).await.unwrap();
    assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
    let lost_after = SystemClock.monotonic().since(began);
    let next = in_time(standby).await.unwrap().unwrap();
    let taken_after = SystemClock.monotonic().since(began);
    assert_eq!((leader.fence().epoch(), next.fence().epoch()), (Epoch(1), Epoch(2)));
    assert!(lost_after < Duration::from_secs(1), "not by the deadline: {lost_after:?}");
    assert!(taken_after < Duration::from_secs(2), "{taken_after:?}");
    pause(50).await;
    assert_eq!(leader.end(), Some(LockEnd::SessionEnded));
    let late = leader.fence().transact(&*world.store, Monotonic::NEVER, &[], "n").await;
    assert_eq!(late.unwrap_err().kind(), Kind::Fenced);
}

#[tokio::test]
async fn a_terminated_standby_says_why() {
    let world = World::new();
    let (a, b) = (session().await, session().await);
    let leader = world.lead(&a).await;
    let standby = tokio::spawn(world.elector(b.clone()).lead());
    pause(200).await;
    outsider().await.execute("SELECT pg_terminate_backend($1)", &[&pid(&b).await]).await.unwrap();
    let error = in_time(standby).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable);
    assert!(error.chain().contains("terminating connection due to administrator command"), "{error:?}");
    assert!(leader.is_valid());
}

/// The server keeps the lock of a client that it cannot reach until it notices, by its own keepalives at
/// the latest. The leader has stopped long before; a standby waits.
#[tokio::test]
async fn a_hung_connection_is_lost_at_the_deadline_and_the_standby_waits_for_the_server() {
    let world = World::new();
    let (relay, a) = relayed().await;
    let leader = world.lead(&a).await;
    let mut standby = tokio::spawn(world.elector(session().await).lead());
    pause(400).await;
    let began = SystemClock.monotonic();
    relay.set(Flow::Stalls);
    assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
    let lost_after = SystemClock.monotonic().since(began);
    assert!(!leader.is_valid());
    // From the last answered ping: up to an interval and a round trip before the stall.
    assert!(
        lost_after > Duration::from_millis(900) && lost_after < Duration::from_millis(1900),
        "{lost_after:?}"
    );
    let by = SystemClock.deadline(Duration::from_secs(1));
    assert!(
        within(&SystemClock, by, &mut standby).await.is_err(),
        "the server still holds the lock for the old one"
    );
    assert_eq!(leader.end(), Some(LockEnd::Silent));
    relay.set(Flow::ServerNotices);
    let next = in_time(standby).await.unwrap().unwrap();
    assert_eq!(next.fence().epoch(), Epoch(2));
}

#[tokio::test]
async fn a_cut_connection_is_lost_at_once() {
    let world = World::new();
    let (relay, a) = relayed().await;
    let leader = world.lead(&a).await;
    let began = SystemClock.monotonic();
    relay.set(Flow::Cuts);
    assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
    assert!(SystemClock.monotonic().since(began) < Duration::from_millis(900));
}

#[tokio::test]
async fn an_outside_program_with_the_same_key_excludes_ours_and_is_excluded() {
    let mut world = World::new();
    let name = world.env.entropy.nonce();
    world.key = LockKey::named(&name);
    let outsider = outsider().await;
    // As the documentation says that others compute it.
    let sql = format!("SELECT pg_try_advisory_lock(('x' || left(md5('{name}'), 16))::bit(64)::bigint)");
    assert!(outsider.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0));
    let mut standby = tokio::spawn(world.elector(session().await).lead());
    let by = SystemClock.deadline(Duration::from_millis(500));
    assert!(within(&SystemClock, by, &mut standby).await.is_err(), "excluded");
    outsider.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
    let leader = in_time(standby).await.unwrap().unwrap();
    assert!(!world.outsider_gets_it(&outsider).await);
    in_time(leader.resign()).await.unwrap();
    assert!(world.outsider_gets_it(&outsider).await);
}

#[tokio::test]
async fn the_two_forms_of_a_key_are_different_locks() {
    let mut world = World::new();
    world.key = LockKey::Two(0, world.env.entropy.u64() as i32 & i32::MAX);
    let leader = world.lead(&session().await).await;
    let LockKey::Two(_, low) = world.key else { unreachable!() };
    let outsider = outsider().await;
    let other = World { key: LockKey::One(i64::from(low)), ..World::new() };
    assert!(other.outsider_gets_it(&outsider).await);
    assert!(!world.outsider_gets_it(&outsider).await);
    assert!(leader.is_valid());
}

#[tokio::test]
async fn a_standby_never_waits_inside_the_server_and_pins_no_xmin() {
    let world = World::new();
    let leader = world.lead(&session().await).await;
    let waiting = session().await;
    let pid = pid(&waiting).await;
    let standby = tokio::spawn(world.elector(waiting).lead());
    let outsider = outsider().await;
    let sql = "SELECT state = 'idle', backend_xmin IS NULL AND backend_xid IS NULL, wait_event_type IS DISTINCT FROM 'Lock' \
               FROM pg_stat_activity WHERE pid = $1";
    let mut idle_seen = 0;
    for _ in 0..100 {
        let row = outsider.query_one(sql, &[&pid]).await.unwrap();
        let (idle, unpinned, unblocked): (bool, bool, bool) = (row.get(0), row.get(1), row.get(2));
        assert!(unblocked);
        if idle {
            assert!(unpinned, "an idle session pins xmin");
            idle_seen += 1;
        }
        pause(7).await;
    }
    assert!(idle_seen > 50, "{idle_seen} of 100");
    drop(standby);
    assert!(leader.is_valid());
}

#[tokio::test]
async fn a_lock_that_is_taken_away_on_the_session_is_lost() {
    let world = World::new();
    let session = session().await;
    let leader = world.lead(&session).await;
    session.client().batch_execute("DISCARD ALL").await.unwrap();
    assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
    pause(50).await;
    assert_eq!(leader.end(), Some(LockEnd::NotHeld));
}

#[tokio::test]
async fn a_canceled_ping_is_not_a_loss() {
    let world = World::new();
    let session = session().await;
    let leader = world.lead(&session).await;
    let (pid, outsider) = (pid(&session).await, outsider().await);
    for _ in 0..100 {
        outsider.execute("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
        pause(10).await;
    }
    assert!(leader.is_valid());
    in_time(leader.resign()).await.unwrap();
}

#[tokio::test]
async fn a_second_candidate_on_one_session_is_refused() {
    let world = World::new();
    let session = session().await;
    let leader = world.lead(&session).await;
    let error = in_time(world.elector(session.clone()).lead()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(leader.is_valid());
    in_time(leader.resign()).await.unwrap();
    assert_eq!(world.lead(&session).await.fence().epoch(), Epoch(2));
}

#[tokio::test]
async fn a_lock_that_is_being_given_back_is_not_free_yet() {
    let (session, key) = (session().await, World::new().key);
    assert!(session.try_lock(key).await.unwrap().granted);
    let (free, tried) = tokio::join!(session.unlock(key), session.try_lock(key));
    assert!(free.unwrap());
    assert!(!tried.unwrap().granted);
    assert!(session.try_lock(key).await.unwrap().granted);
}

#[tokio::test]
async fn dropping_the_session_or_the_leadership_frees_the_lock() {
    let world = World::new();
    let (a, outsider) = (session().await, outsider().await);
    drop(world.lead(&a).await);
    for turn in ["leadership", "session"] {
        let mut free = false;
        for _ in 0..1000 {
            free = world.outsider_gets_it(&outsider).await;
            if free {
                break;
            }
            pause(20).await;
        }
        assert!(free, "{turn}");
        outsider.execute("SELECT pg_advisory_unlock_all()", &[]).await.unwrap();
        if turn == "leadership" {
            let leader = world.lead(&a).await;
            a.end();
            assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
        }
    }
}

#[tokio::test]
async fn the_server_is_asked_to_notice_a_vanished_client() {
    let session = session().await;
    for (name, value) in
        [("tcp_user_timeout", "3000"), ("tcp_keepalives_idle", "1"), ("tcp_keepalives_interval", "1")]
    {
        let row = session.client().query_one(&format!("SHOW {name}"), &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), value, "{name}");
    }
}

/// What a pooler in transaction mode does: each statement may run on another connection.
#[derive(Debug)]
struct Pooler {
    backends: [Arc<PostgresSession>; 2],
    turn: AtomicBool,
}

impl Pooler {
    fn next(&self) -> &PostgresSession {
        &self.backends[usize::from(self.turn.fetch_xor(true, Ordering::Relaxed))]
    }
}

#[async_trait]
impl LockSession for Pooler {
    async fn try_lock(&self, key: LockKey) -> Result<Tried> {
        self.next().try_lock(key).await
    }

    async fn ping(&self, key: LockKey) -> Result<Pulse> {
        self.next().ping(key).await
    }

    async fn unlock(&self, key: LockKey) -> Result<bool> {
        self.next().unlock(key).await
    }

    async fn ended(&self) -> Error {
        std::future::pending().await
    }

    fn end(&self) {}
}

#[tokio::test]
async fn a_pooler_is_found_out_by_leaders_and_standbys() {
    let world = World::new();
    let pooler =
        || async { Pooler { backends: [session().await, session().await], turn: AtomicBool::new(false) } };
    let pooled = Arc::new(pooler().await);
    let leader = in_time(world.elector(pooled.clone()).lead()).await.unwrap();
    assert_eq!(in_time(leader.lost()).await, LossReason::LeaderLockLost);
    pause(50).await;
    assert!(matches!(leader.end(), Some(LockEnd::Pooler { .. })), "{:?}", leader.end());
    // The first backend of the pooler has the lock still, for nobody: that is why.
    let error = in_time(world.elector(Arc::new(pooler().await)).lead()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains("never through a pooler"), "{error:?}");
}
