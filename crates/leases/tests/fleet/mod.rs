//! The same fleets on every store, each worker with a store of its own, by the machine's clock.
//!
//! A worker's consumer reads nothing: it holds its leases, checkpoints when it is asked for them, and notes who
//! held what. LS-1 is checked at every grant, LS-2 by the rows.

mod site;

use std::time::Duration;

use tenure_backend::{FaultRates, Kind};
use tenure_leases::admin::Moved;
use tenure_leases::{Balance, Checkpoint, LeaseKey};
use tenure_store::{Condition, StoreExt};
use tenure_stream::ShardId;

use self::site::{Member, Site, soon};

mod memory {
    super::fleets!(super::Site::memory());
}

/// One file, opened once per worker.
mod sqlite {
    super::fleets!(super::Site::sqlite());
}

/// `cargo xtask test` starts it.
mod postgres {
    super::fleets!(super::Site::postgres());
}

/// Amazon's own emulator.
#[cfg(feature = "dynamodb")]
mod dynamodb_local {
    super::fleets!(super::Site::dynamodb("TENURE_TEST_DYNAMODB_LOCAL"));
}

/// Another's.
#[cfg(feature = "dynamodb")]
mod dynoxide {
    super::fleets!(super::Site::dynamodb("TENURE_TEST_DYNOXIDE"));
}

macro_rules! fleets {
    ($site:expr) => {
        super::fleets! { @cases $site;
            three_workers_share_a_cold_start_and_a_fourth_joins
            a_dead_workers_leases_are_taken
            a_planned_stop_hands_over_what_was_drained
            a_smaller_cap_takes_effect_at_once
            a_deleted_row_comes_back_where_it_was
            a_split_shard_is_read_before_its_children
            lost_replies_lose_nothing
            a_lease_is_moved_by_hand
            one_name_is_one_worker
        }
    };
    (@cases $site:expr; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case($site).await;
            }
        )*
    };
}
use fleets;

fn key(number: u64) -> LeaseKey {
    LeaseKey::of_shard(&ShardId::numbered(number))
}

fn at(number: u64) -> Checkpoint {
    Checkpoint::At { sequence: number.into(), sub: 0 }
}

async fn three_workers_share_a_cold_start_and_a_fourth_joins(site: Site) {
    site.create_shards(8).await;
    let mut members = Vec::new();
    for name in ["a", "b", "c"] {
        members.push(site.member(name).await);
    }
    site.until("everything is shared out", async || {
        let mut counts: Vec<usize> = members.iter().map(Member::count).collect();
        counts.sort_unstable();
        counts == [2, 3, 3]
    })
    .await;
    members.push(site.member("d").await);
    site.until("the fourth has its share", async || members.iter().all(|member| member.count() == 2)).await;
    // Every worker sees the same fleet.
    for member in &members {
        site.until("all are seen", async || member.keeper.view().borrow().fleet.len() == 4).await;
    }
    let planners = members.iter().filter(|member| member.keeper.view().borrow().plans).count();
    assert_eq!(planners, 1);
    for member in members {
        member.keeper.stop().await.unwrap();
    }
    assert!(site.rows().await.iter().all(|row| row.owner.is_none()));
    site.assert_one_at_a_time();
}

async fn a_dead_workers_leases_are_taken(site: Site) {
    site.create_shards(4).await;
    let a = site.member("a").await;
    // A process of its own, nearly: its runtime goes away with every task and connection in it.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let opening = site.clone();
    let b = process.spawn(async move { opening.member("b").await }).await.unwrap();
    site.until("both have two", async || a.count() == 2 && b.count() == 2).await;
    process.shutdown_background();
    site.until("one has all", async || a.count() == 4).await;
    site.assert_one_at_a_time();
    a.keeper.stop().await.unwrap();
}

async fn a_planned_stop_hands_over_what_was_drained(site: Site) {
    site.create_shards(2).await;
    let a = site.member("a").await;
    site.until("one has all", async || a.count() == 2).await;
    let b = site.member("b").await;
    site.until("the join took one", async || a.count() == 1 && b.count() == 1).await;
    let mine = a.keys().remove(0);
    a.keeper.stop().await.unwrap();
    site.until("the other has all", async || b.count() == 2).await;
    // Whoever drains checkpoints, and the next begins there.
    assert_eq!(b.begun_at(&mine), site.drained_at(&mine));
    assert!(site.drained_at(&mine) > Checkpoint::TrimHorizon);
    site.assert_one_at_a_time();
    b.keeper.stop().await.unwrap();
}

async fn a_smaller_cap_takes_effect_at_once(site: Site) {
    site.create_shards(4).await;
    let a = site.member("a").await;
    site.until("one has all", async || a.count() == 4).await;
    a.keeper.set_cap(1).await;
    site.until("it keeps one", async || a.count() == 1).await;
    let view = a.keeper.view();
    site.until("the rest is missed", async || view.borrow().deficit == 3).await;
    assert_eq!(view.borrow().desired_workers, 4);
    let b = site.member("b").await;
    site.until("another takes the rest", async || b.count() == 3).await;
    site.until("nothing is missed", async || view.borrow().deficit == 0).await;
    site.assert_one_at_a_time();
    a.keeper.stop().await.unwrap();
    b.keeper.stop().await.unwrap();
}

async fn a_deleted_row_comes_back_where_it_was(site: Site) {
    site.create_shards(1).await;
    let a = site.member("a").await;
    site.until("it is held", async || a.count() == 1).await;
    let holding = a.holding(&key(0));
    holding.checkpoint(at(41), None).await.unwrap();
    let before = site.row(&key(0)).await.unwrap();
    let store = site.open().await;
    let row = tenure_leases::rows::lease_row(&key(0));
    store.delete(soon(), &site.app, row, Condition::Always).await.unwrap();
    site.until("it is back", async || site.row(&key(0)).await.is_some()).await;
    let back = site.row(&key(0)).await.unwrap();
    assert_eq!((&back.checkpoint, &back.owner), (&at(41), &before.owner));
    assert!(back.counter > before.counter);
    assert!(holding.is_valid());
    holding.checkpoint(at(42), None).await.unwrap();
    a.keeper.stop().await.unwrap();
}

async fn a_split_shard_is_read_before_its_children(site: Site) {
    site.create_shards(1).await;
    let a = site.member("a").await;
    site.until("it is held", async || a.count() == 1).await;
    let parent = a.holding(&key(0));
    site.split(0).await;
    site.until("children are known", async || site.rows().await.len() == 3).await;
    assert_eq!(a.count(), 1, "and not taken");
    parent.checkpoint(Checkpoint::ShardEnd, Some("the end".into())).await.unwrap();
    parent.give().await.unwrap();
    site.until("children are held", async || a.has(&key(1)) && a.has(&key(2))).await;
    let child = a.holding(&key(1));
    assert_eq!(child.lease().checkpoint, Checkpoint::TrimHorizon);
    assert_eq!(child.parents()[0].marks.as_deref(), Some(&b"the end"[..]));
    child.checkpoint(at(7), None).await.unwrap();
    assert!(site.row(&key(0)).await.is_some(), "one child has not begun");
    a.holding(&key(2)).checkpoint(at(8), None).await.unwrap();
    site.until("the parent's lease is gone", async || site.row(&key(0)).await.is_none()).await;
    a.keeper.stop().await.unwrap();
}

async fn lost_replies_lose_nothing(site: Site) {
    site.create_shards(3).await;
    let (a, faults) = site.fragile("a").await;
    let b = site.member("b").await;
    faults.set_rates(FaultRates { lost: 0.3, failed: 0.1, ..FaultRates::default() }).unwrap();
    site.pass(4).await;
    faults.set_rates(FaultRates::default()).unwrap();
    site.until("everything is held", async || a.count() + b.count() == 3 && b.count() > 0).await;
    assert!(faults.counts().lost > 0);
    site.assert_one_at_a_time();
    a.keeper.stop().await.unwrap();
    b.keeper.stop().await.unwrap();
}

async fn a_lease_is_moved_by_hand(site: Site) {
    site.create_shards(1).await;
    let a = site.member("a").await;
    site.until("it is held", async || a.count() == 1).await;
    let b = site.member("b").await;
    let store = site.open().await;
    let admin = site.admin(&*store);
    let refused = admin.move_lease(&key(0), &"nobody".into()).await.unwrap_err();
    assert!(refused.kind() == Kind::Invalid && refused.chain().contains("no worker `nobody`"), "{refused:?}");
    assert!(refused.chain().contains("(a, b)"), "whoever lives is named: {refused:?}");
    let refused = admin.release(&key(0)).await.unwrap_err();
    assert!(refused.chain().contains("is renewed by `a`"), "{refused:?}");
    assert_eq!(admin.move_lease(&key(0), &"a".into()).await.unwrap(), Moved::Already);
    assert_eq!(admin.move_lease(&key(0), &"b".into()).await.unwrap(), Moved::Asked);
    site.until("it has moved", async || b.count() == 1 && a.count() == 0).await;
    let found = admin.inventory().await.unwrap();
    assert_eq!((found.leases.len(), found.workers.len(), found.lease), (1, 2, Some(site.lease)));
    assert!(admin.plan(Balance::Count).await.unwrap().moves.is_empty());
    a.keeper.stop().await.unwrap();
    b.keeper.stop().await.unwrap();
    assert_eq!(admin.release(&key(0)).await.unwrap(), Moved::Already);
    let refused = admin.move_lease(&key(0), &"a".into()).await.unwrap_err();
    assert!(refused.chain().contains("nobody else lives"), "{refused:?}");
    let forced = admin.clone().forced(true);
    assert_eq!(forced.move_lease(&key(0), &"a".into()).await.unwrap(), Moved::Done);
    site.assert_one_at_a_time();
}

async fn one_name_is_one_worker(site: Site) {
    site.create_shards(1).await;
    let a = site.member("a").await;
    site.until("it is held", async || a.count() == 1).await;
    let refused = site.builder("a").await.start().await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Invalid, "{refused:?}");
    assert!(a.holding(&key(0)).is_valid());
    a.keeper.stop().await.unwrap();
    // A name that was given up is free at once.
    let again = site.member("a").await;
    site.until("it is held again", async || again.count() == 1).await;
    again.keeper.stop().await.unwrap();
}

/// How often something is looked at while it is waited for.
const POLL: Duration = Duration::from_millis(20);
