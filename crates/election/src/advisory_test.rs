//! The task and its handles, on a clock that moves by itself as soon as everybody waits.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tenure_backend::{FaultRates, Faults};
use tenure_clock::{ManualTime, WallTime};
use tenure_store::{Condition, Faulty, Memory, StoreExt};

use super::*;
use crate::Elector;
use crate::pace::{Pace, poll_once};
use crate::rows::table_spec;
use crate::testing::{FakeLocks, FakeSession, Link};

const KEY: LockKey = LockKey::One(42);

/// A world with one server and one store.
struct World {
    time: ManualTime,
    env: Env,
    store: Arc<Memory>,
    locks: FakeLocks,
}

impl World {
    fn new() -> Self {
        let time = ManualTime::starting_at(WallTime::from_millis(1_763_553_900_000));
        let env = Env { clock: Arc::new(time.clock()), entropy: Entropy::seeded(1) };
        Self { store: Arc::new(Memory::new(&env)), time, env, locks: FakeLocks::default() }
    }

    fn session(&self) -> Arc<FakeSession> {
        self.locks.session(self.env.clock.clone())
    }

    fn elector(&self, session: &Arc<FakeSession>) -> AdvisoryElector {
        self.elector_on(session, self.store.clone())
    }

    fn elector_on(&self, session: &Arc<FakeSession>, store: Arc<dyn Store>) -> AdvisoryElector {
        AdvisoryElector::new(session.clone(), KEY, store, "orders", AdvisorySettings::default(), &self.env)
            .unwrap()
    }

    async fn lead(&self, session: &Arc<FakeSession>) -> AdvisoryLeadership {
        self.until(self.elector(session).lead()).await.unwrap()
    }

    /// The store, behind something that fails when told to.
    fn fragile_store(&self) -> (Arc<dyn Store>, Arc<Faults>) {
        let faults = Arc::new(Faults::new(FaultRates::default(), Entropy::seeded(2)).unwrap());
        (Arc::new(Faulty::new(self.store.clone(), faults.clone(), self.env.clock.clone())), faults)
    }

    async fn epoch(&self) -> u64 {
        let place = Place { table: crate::TABLE.to_owned(), shard: ShardId::new("orders").unwrap() };
        let item = self.store.get(Monotonic::NEVER, &place.table, &place.fence_key()).await.unwrap().unwrap();
        place.fence(&item).unwrap().epoch.0
    }
}

impl Pace for World {
    fn time(&self) -> &ManualTime {
        &self.time
    }
}

#[tokio::test]
async fn of_many_that_poll_one_leads_and_each_resignation_is_taken_up_within_a_poll() {
    let world = World::new();
    let sessions: Vec<_> = (0..5).map(|_| world.session()).collect();
    let mut standing: Vec<_> =
        sessions.iter().map(|session| Box::pin(world.elector(session).lead())).collect();
    for epoch in 1..=5 {
        let (waited, leadership) = world
            .timed(poll_fn(|cx| {
                for index in 0..standing.len() {
                    if let Poll::Ready(elected) = standing[index].as_mut().poll(cx) {
                        drop(standing.remove(index));
                        return Poll::Ready(elected.unwrap());
                    }
                }
                Poll::Pending
            }))
            .await;
        assert!(waited <= Duration::from_millis(200), "{waited:?}");
        assert_eq!((leadership.fence().epoch().0, world.epoch().await), (epoch, epoch));
        for candidate in &mut standing {
            assert!(poll_once(candidate).await.is_none(), "two lead");
        }
        let clock = world.time.clock();
        tokio::select! { biased; () = world.pass(Duration::from_secs(60)) => (), () = clock.sleep(Duration::from_secs(600)) => () }
        assert!(leadership.is_valid());
        let term = leadership.term().clone();
        world.until(leadership.resign()).await.unwrap();
        assert_eq!(world.until(term.lost()).await, LossReason::Resigned);
        assert!(!term.is_valid());
    }
    assert!(sessions.iter().all(|session| !session.is_ended()), "sessions stay their owners'");
}

#[tokio::test]
async fn a_terminated_session_is_lost_at_once_and_the_standby_has_a_higher_epoch() {
    let world = World::new();
    let (a, b) = (world.session(), world.session());
    let leader = world.lead(&a).await;
    let mut standby = Box::pin(world.elector(&b).lead());
    tokio::select! { biased; _ = &mut standby => unreachable!(), () = world.pass(Duration::from_secs(7)) => () }
    a.terminate();
    let (took, reason) = world.timed(leader.lost()).await;
    assert_eq!((took, reason.name()), (Duration::ZERO, "leader_lock_lost"));
    assert_eq!(leader.end(), Some(LockEnd::SessionEnded));
    let (took, next) = world.timed(standby).await;
    let next = next.unwrap();
    assert!(took <= Duration::from_millis(200), "{took:?}");
    assert_eq!((leader.fence().epoch(), next.fence().epoch()), (Epoch(1), Epoch(2)));
    let write = leader.fence().transact(&*world.store, Monotonic::NEVER, &[], "nonce").await;
    assert_eq!(write.unwrap_err().kind(), Kind::Fenced);
}

#[tokio::test]
async fn a_silent_session_is_lost_at_its_deadline_and_the_standby_waits_for_the_server() {
    let world = World::new();
    let (a, b) = (world.session(), world.session());
    let leader = world.lead(&a).await;
    let mut standby = Box::pin(world.elector(&b).lead());
    tokio::select! { biased; _ = &mut standby => unreachable!(), () = world.pass(Duration::from_millis(2500)) => () }
    a.set_link(Link::Hangs);
    // The last ping was answered at 2 s.
    let (took, reason) = world.timed(leader.lost()).await;
    assert_eq!((took, reason), (Duration::from_millis(4500), LossReason::LeaderLockLost));
    assert!(!leader.is_valid() && leader.remaining().is_zero());
    tokio::select! { biased; _ = &mut standby => unreachable!(), () = world.pass(Duration::from_secs(60)) => () }
    assert_eq!(leader.end(), Some(LockEnd::Silent));
    assert!(a.is_ended(), "the session is ended, so that the server can notice");
    assert_eq!(world.locks.holder(KEY), Some(a.id()), "but it has not yet");
    world.locks.notice_end_of(&a);
    assert_eq!(world.until(standby).await.unwrap().fence().epoch(), Epoch(2));
}

#[tokio::test]
async fn a_suspended_process_knows_at_once() {
    let world = World::new();
    let leader = world.lead(&world.session()).await;
    world.time.advance(Duration::from_secs(3600));
    assert!(!leader.is_valid(), "before anything else ran");
    assert_eq!(world.until(leader.lost()).await, LossReason::LeaderLockLost);
}

#[tokio::test]
async fn slow_answers_shorten_what_is_left_and_never_stretch_it() {
    let world = World::new();
    let session = world.session();
    session.set_delay(Duration::from_millis(1500));
    let leader = world.lead(&session).await;
    assert_eq!(leader.remaining(), Duration::from_millis(3500));
    world.pass(Duration::from_secs(60)).await;
    assert!(leader.is_valid() && leader.remaining() <= Duration::from_millis(3500));
}

#[tokio::test]
async fn a_pooler_is_found_out() {
    let world = World::new();
    let session = world.session();
    let leader = world.lead(&session).await;
    session.set_backend(99);
    let (took, reason) = world.timed(leader.lost()).await;
    assert_eq!((took, reason), (Duration::from_secs(1), LossReason::LeaderLockLost));
    assert_eq!(leader.end(), Some(LockEnd::Pooler { was: 1, is: 99 }));
    let (blocker, standby) = (world.session(), world.session());
    blocker.try_lock(KEY).await.unwrap();
    let mut standing = Box::pin(world.elector(&standby).lead());
    tokio::select! { biased; _ = &mut standing => unreachable!(), () = world.pass(Duration::from_secs(1)) => () }
    standby.set_backend(98);
    let error = world.until(standing).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.chain().contains("never through a pooler"), "{error:?}");
}

#[tokio::test]
async fn a_lock_taken_away_is_lost_by_the_next_ping() {
    let world = World::new();
    let leader = world.lead(&world.session()).await;
    world.locks.take_away(KEY);
    let (took, reason) = world.timed(leader.lost()).await;
    assert_eq!((took, reason), (Duration::from_secs(1), LossReason::LeaderLockLost));
    assert_eq!(leader.end(), Some(LockEnd::NotHeld));
}

#[tokio::test]
async fn who_stops_waiting_leaves_no_lock_behind() {
    let world = World::new();
    let session = world.session();
    session.set_delay(Duration::from_millis(300));
    let mut standing = Box::pin(world.elector(&session).lead());
    assert!(poll_once(&mut standing).await.is_none());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(world.locks.holder(KEY), Some(session.id()), "granted, and not yet answered");
    drop(standing);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.locks.holder(KEY), None);
    assert!(!session.is_ended());
    // Dropping the leadership is as good as resigning.
    drop(world.lead(&session).await);
    world.pass(Duration::from_secs(1)).await;
    assert_eq!(world.locks.holder(KEY), None);
}

#[tokio::test]
async fn guarded_work_is_dropped_when_the_lock_is_lost() {
    let world = World::new();
    let session = world.session();
    let leader = world.lead(&session).await;
    assert_eq!(world.until(leader.guard(async { 7 })).await, Ok(7));
    session.terminate();
    assert_eq!(world.until(leader.guard(pending::<()>())).await, Err(LossReason::LeaderLockLost));
}

#[tokio::test]
async fn an_unconfirmed_release_says_so_and_ends_the_session() {
    let world = World::new();
    let session = world.session();
    let leader = world.lead(&session).await;
    session.set_link(Link::LosesReplies);
    let error = world.until(leader.resign()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Unknown);
    assert!(error.chain().contains("free when the server notices"), "{error:?}");
    assert!(session.is_ended());
}

#[tokio::test]
async fn one_session_carries_one_candidate() {
    let world = World::new();
    let session = world.session();
    let leader = world.lead(&session).await;
    let error = world.until(world.elector(&session).lead()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    world.pass(Duration::from_secs(60)).await;
    assert!(leader.is_valid(), "the first is not disturbed");
}

#[tokio::test]
async fn who_cannot_reach_the_store_lets_others_lead() {
    let world = World::new();
    let (a, b) = (world.session(), world.session());
    let (store, faults) = world.fragile_store();
    let mut cut_off = Box::pin(world.elector_on(&a, store).lead());
    world.store.ensure_table(Monotonic::NEVER, &table_spec(crate::TABLE)).await.unwrap();
    assert!(poll_once(&mut cut_off).await.is_none());
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    for _ in 0..20 {
        tokio::task::yield_now().await;
        assert!(poll_once(&mut cut_off).await.is_none());
    }
    assert_eq!(world.locks.holder(KEY), Some(a.id()));
    let (took, leader) = world.timed(world.elector(&b).lead()).await;
    let leader = leader.unwrap();
    assert!(took <= Duration::from_millis(5400), "{took:?}");
    faults.set_rates(FaultRates::default()).unwrap();
    world.until(leader.resign()).await.unwrap();
    assert!(world.until(cut_off).await.unwrap().fence().epoch() > Epoch(1));
}

#[tokio::test]
async fn lost_replies_of_the_store_raise_the_epoch_and_never_share_it() {
    let world = World::new();
    let (store, faults) = world.fragile_store();
    world.store.ensure_table(Monotonic::NEVER, &table_spec(crate::TABLE)).await.unwrap();
    let mut last = Epoch(0);
    for round in 0..50 {
        faults.set_rates(FaultRates { failed: 0.2, lost: 0.3, ..FaultRates::default() }).unwrap();
        let session = world.session();
        // Set-up happens before the lock is asked for, and says what went wrong.
        let leader = loop {
            match world.until(world.elector_on(&session, store.clone()).lead()).await {
                Ok(leader) => break leader,
                Err(error) => assert!(!session.is_ended(), "{error:?}"),
            }
        };
        assert!(leader.fence().epoch() > last, "round {round}");
        assert_eq!(leader.fence().epoch().0, world.epoch().await, "round {round}");
        last = leader.fence().epoch();
        world.until(leader.resign()).await.unwrap();
    }
}

#[tokio::test]
async fn a_leader_by_rows_on_the_same_shard_fences_and_is_fenced() {
    let world = World::new();
    let by_rows = Elector::builder(world.store.clone(), "orders", &world.env).owner("rows").build().unwrap();
    let first = world.until(by_rows.lead()).await.unwrap();
    let session = world.session();
    let second = world.lead(&session).await;
    assert_eq!((first.fence().epoch(), second.fence().epoch()), (Epoch(1), Epoch(2)));
    let write = |fence: Fence| {
        let store = world.store.clone();
        async move {
            fence.transact(&*store, Monotonic::NEVER, &[], "n").await.map_err(|error| error.kind()).err()
        }
    };
    assert_eq!(write(first.fence().clone()).await, Some(Kind::Fenced));
    assert_eq!(write(second.fence().clone()).await, None);
    world.until(first.resign(None)).await.unwrap();
    let third = world.until(by_rows.lead()).await.unwrap();
    assert!(third.fence().epoch() > second.fence().epoch());
    assert_eq!(write(second.fence().clone()).await, Some(Kind::Fenced));
    world.until(second.resign()).await.unwrap();
    let fourth = world.lead(&session).await;
    assert!(fourth.fence().epoch() > third.fence().epoch());
}

#[tokio::test]
async fn a_foreign_fence_row_is_left_alone_and_the_lock_given_back() {
    let world = World::new();
    let place = Place { table: crate::TABLE.to_owned(), shard: ShardId::new("orders").unwrap() };
    world.store.ensure_table(Monotonic::NEVER, &table_spec(&place.table)).await.unwrap();
    let item = place.fence_key().as_item().clone().with("epoch", "x");
    world.store.put(Monotonic::NEVER, &place.table, item, Condition::Always).await.unwrap();
    let session = world.session();
    let error = world.until(world.elector(&session).lead()).await.unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error:?}");
    assert_eq!(world.locks.holder(KEY), None);
    assert!(!session.is_ended());
}
