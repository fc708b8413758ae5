//! Beside the Go library: each respects the other's rows and takes them over by its own rules.
//!
//! The peer sends that library's requests; both sides read one clock, which the test holds.

mod coordinator;
mod world;

use std::time::Duration;

use tenure_clock::Entropy;
use tenure_election::{Epoch, LossReason};

use self::coordinator::RENEWALS;
use self::world::{L, SKEW, World};

/// How often the lock changes hands on the quick emulator, and anywhere with TENURE_LONG=1.
const HANDOVERS: usize = 1000;
/// On the slow one.
const HANDOVERS_SHORT: usize = 100;
/// Of a follower's poll: every 1/20 of the lease.
const POLL: Duration = Duration::from_millis(750);

/// Amazon's own emulator.
mod dynamodb_local {
    super::beside_go_peers!("TENURE_TEST_DYNAMODB_LOCAL", super::HANDOVERS_SHORT);
}

/// Another's.
mod dynoxide {
    super::beside_go_peers!("TENURE_TEST_DYNOXIDE", super::HANDOVERS);
}

macro_rules! beside_go_peers {
    ($variable:literal, $handovers:expr) => {
        super::beside_go_peers! { @cases $variable:
            its_row_is_respected_until_well_after_its_ttl
            our_row_is_refused_to_it_until_its_ttl_is_past
            a_row_that_we_released_is_its_at_once
            its_deletion_is_a_release
            a_row_that_it_took_from_us_is_lost_and_left_alone
            of_two_who_claim_a_free_row_one_has_it
        }

        #[tokio::test]
        async fn the_lock_changes_hands_and_never_sticks() {
            let long = std::env::var_os("TENURE_LONG").is_some();
            let handovers = if long { super::HANDOVERS } else { $handovers };
            let emulator = crate::emulator::Emulator::of($variable);
            super::the_lock_changes_hands_and_never_sticks(super::World::on(emulator).await, handovers).await;
        }
    };
    (@cases $variable:literal: $($case:ident)*) => {
        $(
            #[tokio::test]
            async fn $case() {
                super::$case(super::World::on(crate::emulator::Emulator::of($variable)).await).await;
            }
        )*
    };
}
use beside_go_peers;

async fn its_row_is_respected_until_well_after_its_ttl(world: World) {
    let (go, ours) = (world.go_peer("go-1", 0, RENEWALS[0]), world.candidate("a"));
    assert!(go.try_acquire().await);
    let elected = ours.stand();
    for _ in 0..12 {
        world.pass(L / 3).await;
        assert!(go.renew().await, "it is not disturbed");
    }
    let ttl = world.lock().await.unwrap().integer("ttl").unwrap();
    let last_renewal = world.elapsed();
    let leadership = world.until(elected).await.unwrap();
    let waited = world.elapsed() - last_renewal;
    assert!(waited >= L * 102 / 100, "{waited:?}: watched for less than our own lease");
    let over = (ttl + 1) * 1000 + i64::try_from(SKEW.as_millis()).unwrap();
    assert!(world.wall().as_millis() >= over, "taken before its ttl was past on every clock");
    assert!(waited <= L + Duration::from_secs(1) + SKEW + 2 * POLL, "{waited:?}");
    // From now on it is ours: the extras that its write had erased are back.
    let lock = world.lock().await.unwrap();
    assert_eq!(lock.text("ownerId"), Some(ours.elector.owner().as_str()));
    assert_eq!(lock.integer("epoch"), Some(1));
    assert!(!go.renew().await && !go.try_acquire().await && !go.release().await);
    assert!(leadership.is_valid());
}

async fn our_row_is_refused_to_it_until_its_ttl_is_past(world: World) {
    // As far ahead of ours as the bound allows.
    let ahead = i64::try_from(SKEW.as_millis()).unwrap();
    let (go, ours) = (world.go_peer("go-1", ahead, RENEWALS[0]), world.candidate("a"));
    let leadership = world.until(ours.stand()).await.unwrap();
    for _ in 0..20 {
        world.pass(L / 6).await;
        assert!(!go.try_acquire().await, "a live row");
    }
    ours.cut_off();
    assert_eq!(world.until(leadership.lost()).await, LossReason::StoreDown);
    let ttl = world.lock().await.unwrap().integer("ttl").unwrap();
    let since = world.elapsed();
    while !go.try_acquire().await {
        assert!(world.elapsed() - since < 2 * L, "stuck");
        world.pass(Duration::from_millis(50)).await;
    }
    assert!(world.wall().as_seconds() >= ttl, "taken before its ttl");
    assert!(!leadership.is_valid());
    let lock = world.lock().await.unwrap();
    assert_eq!(lock.text("ownerId"), Some("go-1"));
    assert_eq!((lock.get("rvn"), lock.get("epoch")), (None, None), "its write erases our extras");
    assert_eq!(world.fence().await, Some(Epoch(1)), "the fence stands");
}

async fn a_row_that_we_released_is_its_at_once(world: World) {
    let (go, ours) = (world.go_peer("go-1", 0, RENEWALS[1]), world.candidate("a"));
    let leadership = world.until(ours.stand()).await.unwrap();
    assert!(!go.try_acquire().await);
    world.until(leadership.resign(None)).await.unwrap();
    assert_eq!(world.lock().await.unwrap().integer("ttl"), Some(0));
    assert!(go.try_acquire().await);
    assert_eq!(world.fence().await, Some(Epoch(1)));
}

async fn its_deletion_is_a_release(world: World) {
    let (go, ours) = (world.go_peer("go-1", 0, RENEWALS[1]), world.candidate("a"));
    drop(world.until(ours.stand()).await.unwrap());
    world.pass(Duration::from_secs(1)).await;
    assert!(go.try_acquire().await);
    let elected = ours.stand();
    world.pass(L / 3).await;
    assert!(go.renew().await && !elected.is_finished());
    assert!(go.release().await);
    assert_eq!((world.lock().await, world.fence().await), (None, Some(Epoch(1))));
    let since = world.elapsed();
    let leadership = world.until(elected).await.unwrap();
    assert!(world.elapsed() - since <= POLL, "within a poll");
    assert_eq!(leadership.fence().epoch(), Epoch(2));
}

async fn a_row_that_it_took_from_us_is_lost_and_left_alone(world: World) {
    // A minute ahead, which is more than the bound: it takes a row that is live.
    let (go, ours) = (world.go_peer("go-1", 60_000, RENEWALS[0]), world.candidate("a"));
    let leadership = world.until(ours.stand()).await.unwrap();
    let term = leadership.term().clone();
    world.pass(Duration::from_secs(1)).await;
    assert!(go.try_acquire().await);
    let taken = world.lock().await;
    match world.until(term.lost()).await {
        LossReason::Superseded { by: Some(owner), epoch: None } => assert_eq!(owner.as_str(), "go-1"),
        other => panic!("{other:?}"),
    }
    assert!(!term.is_valid() && !ours.elector.is_leader());
    assert!(world.until(leadership.resign(None)).await.is_err(), "there is nothing left to release");
    world.pass(L / 3).await;
    assert_eq!(world.lock().await, taken, "its row is as it wrote it");
    assert!(go.renew().await);
}

async fn of_two_who_claim_a_free_row_one_has_it(world: World) {
    let (go, ours) = (world.go_peer("go-1", 0, RENEWALS[0]), world.candidate("a"));
    let mut epoch = Epoch(0);
    for _ in 0..20 {
        // Both are sent in the same moment of the world, and cross on the way.
        let elected = ours.stand();
        let its = go.try_acquire().await;
        world.pass(L / 4).await;
        let owner = world.lock().await.unwrap().text("ownerId").map(str::to_owned).unwrap();
        if its {
            assert!(!elected.is_finished() && !ours.elector.is_leader());
            assert_eq!(owner, "go-1");
            assert!(go.release().await);
        } else {
            assert_eq!(owner, ours.elector.owner().as_str());
        }
        let leadership = world.until(elected).await.unwrap();
        assert!(leadership.fence().epoch() > epoch);
        epoch = leadership.fence().epoch();
        world.until(leadership.resign(None)).await.unwrap();
        // It does not take its own released row at once: others come first.
        world.pass(L).await;
    }
}

async fn the_lock_changes_hands_and_never_sticks(world: World, handovers: usize) {
    let peers = [world.go_peer("go-1", 0, RENEWALS[0]), world.go_peer("go-2", 200, RENEWALS[1])];
    let ours = [world.candidate("a"), world.candidate("b")];
    let draws = Entropy::seeded(7);
    let mut epoch = Epoch(0);
    let mut elected = ours[0].stand();
    let mut crashes = 0;
    let mut left_by = "nobody";
    // The first is no handover, so one more.
    for turn in 0..=handovers / 2 {
        // To us: from nobody, from a peer that stopped, or from one that died.
        let candidate = &ours[turn % 2];
        let since = world.elapsed();
        let leadership = world.until(elected).await.unwrap();
        let took = world.elapsed() - since;
        assert!(
            took <= L + Duration::from_secs(1) + SKEW + 2 * POLL,
            "turn {turn}: we have it {took:?} after {left_by}; our last calls:\n{}",
            world.last_calls()
        );
        assert!(leadership.is_valid() && leadership.fence().epoch() > epoch, "turn {turn}");
        epoch = leadership.fence().epoch();
        assert_eq!(world.fence().await, Some(epoch));
        if turn == handovers / 2 {
            break;
        }

        // To a peer.
        let peer = &peers[turn % 2];
        assert!(!peer.try_acquire().await, "turn {turn}: our live row is refused to it");
        if draws.chance(0.2) {
            crashes += 1;
            world.pass(draws.up_to(L / 2)).await;
            candidate.cut_off();
            let since = world.elapsed();
            while !peer.try_acquire().await {
                let waits = world.elapsed() - since;
                assert!(
                    waits < 2 * L,
                    "turn {turn}: a peer waits {waits:?} after a death of ours; our last calls:\n{}",
                    world.last_calls()
                );
                world.pass(Duration::from_secs(1)).await;
            }
            assert!(!leadership.is_valid(), "turn {turn}: two at once");
            drop(leadership);
            candidate.reconnect();
        } else {
            world.until(leadership.resign(None)).await.unwrap();
            assert!(peer.try_acquire().await, "turn {turn}: a released row is refused to it");
        }
        assert_eq!(world.fence().await, Some(epoch));

        // And away from it.
        elected = ours[(turn + 1) % 2].stand();
        world.pass(draws.up_to(L / 2)).await;
        assert!(peer.renew().await && !elected.is_finished(), "turn {turn}");
        if draws.chance(0.2) {
            crashes += 1;
            left_by = "a death";
        } else {
            left_by = "a release";
            assert!(peer.release().await);
        }
        assert_eq!(world.fence().await, Some(epoch), "its deletion leaves the fence");
    }
    assert!(crashes > handovers / 10, "{crashes} of {handovers} by a death");
}
