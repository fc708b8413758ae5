//! The same elections on every store, each candidate with a store of its own, by the machine's clock.

mod site;

use std::time::Duration;

use tenure_backend::{FaultRates, Kind};
use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_election::{Elector, Epoch, Leadership, LossReason, OnRenewalError};
use tenure_store::{Condition, Item, KeyAttribute, Store, StoreExt, TableSpec, Write};
use tokio::task::JoinHandle;

use self::site::Site;

mod memory {
    super::elections!(super::Site::memory());
}

/// One file, opened once per candidate.
mod sqlite {
    super::elections!(super::Site::sqlite());
}

/// `cargo xtask test` starts it.
mod postgres {
    super::elections!(super::Site::postgres());
}

/// Amazon's own emulator.
#[cfg(feature = "dynamodb")]
mod dynamodb_local {
    super::elections!(super::Site::dynamodb("TENURE_TEST_DYNAMODB_LOCAL"));
}

/// Another's.
#[cfg(feature = "dynamodb")]
mod dynoxide {
    super::elections!(super::Site::dynamodb("TENURE_TEST_DYNOXIDE"));
}

macro_rules! elections {
    ($site:expr) => {
        super::elections! { @cases $site;
            one_leads_and_the_others_follow
            a_leader_that_is_cut_off_stops_before_the_next_begins
            lost_replies_do_not_end_a_term
            a_resignation_hands_over_at_once
            a_crash_is_survived_after_the_lease
            a_superseded_leader_cannot_write
            a_reaped_row_ends_the_term_and_not_the_count
            racing_candidates_make_the_table_and_one_leads
            a_table_with_another_key_is_refused
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
use elections;

/// Stands from now on, whether or not somebody looks.
fn stand(elector: &Elector) -> JoinHandle<Leadership> {
    let elector = elector.clone();
    tokio::spawn(async move { elector.lead().await.unwrap() })
}

async fn one_leads_and_the_others_follow(site: Site) {
    let (a, b) = (site.candidate("a").await, site.candidate("b").await);
    let leadership = a.lead().await.unwrap();
    let waiting = stand(&b);
    let mut view = b.watch().await.unwrap();
    let first = site.lock().await.unwrap();
    assert_eq!(first.text("ownerId"), Some(a.owner().as_str()));
    SystemClock.sleep(site.lease * 3).await;
    assert!(leadership.is_valid() && a.is_leader());
    assert!(!waiting.is_finished() && !b.is_leader());
    assert_ne!(site.lock().await.unwrap().text("rvn"), first.text("rvn"), "it was renewed");
    let seen = view.wait_for(|view| view.leader.is_some()).await.unwrap().leader.clone().unwrap();
    assert_eq!((seen.name.as_deref(), seen.epoch), (Some("a"), Some(Epoch(1))));
}

async fn a_leader_that_is_cut_off_stops_before_the_next_begins(site: Site) {
    let (a, faults) = site.fragile("a", OnRenewalError::StepDown).await;
    let b = site.candidate("b").await;
    let leadership = a.lead().await.unwrap();
    let next = stand(&b);
    SystemClock.sleep(site.lease).await;
    faults.set_rates(FaultRates { failed: 1.0, ..FaultRates::default() }).unwrap();
    assert_eq!(leadership.lost().await, LossReason::StoreDown);
    assert!(!leadership.is_valid() && !next.is_finished());
    let next = next.await.unwrap();
    assert_eq!(next.fence().epoch(), Epoch(2));
    // Back again, it follows.
    faults.set_rates(FaultRates::default()).unwrap();
    assert!(a.try_lead().await.unwrap().is_none());
}

async fn lost_replies_do_not_end_a_term(site: Site) {
    let (a, faults) = site.fragile("a", OnRenewalError::RetryUntilDeadline).await;
    faults.set_rates(FaultRates { lost: 0.3, ..FaultRates::default() }).unwrap();
    let leadership = a.lead().await.unwrap();
    assert_eq!(leadership.fence().epoch(), Epoch(1));
    SystemClock.sleep(site.lease * 3).await;
    assert!(leadership.is_valid());
    // Every write lands and none is answered: what came of it is read back.
    faults.set_rates(FaultRates { lost: 1.0, ..FaultRates::default() }).unwrap();
    let resigning = tokio::spawn(leadership.resign(None));
    SystemClock.sleep(site.lease / 4).await;
    faults.set_rates(FaultRates::default()).unwrap();
    resigning.await.unwrap().unwrap();
    assert_eq!(site.lock().await.unwrap().integer("ttl"), Some(0));
    assert!(faults.counts().lost > 0);
}

async fn a_resignation_hands_over_at_once(site: Site) {
    let (a, b) = (site.candidate("a").await, site.candidate("b").await);
    let leadership = a.lead().await.unwrap();
    let next = stand(&b);
    SystemClock.sleep(site.lease).await;
    let term = leadership.term().clone();
    let began = SystemClock.monotonic();
    leadership.resign(Some("b")).await.unwrap();
    assert_eq!(term.lost().await, LossReason::Resigned);
    let next = next.await.unwrap();
    let took = SystemClock.monotonic().since(began);
    assert!(took < site.lease / 2, "{took:?}: not by waiting for the lease");
    assert_eq!(next.fence().epoch(), Epoch(2));
    assert!(!term.is_valid());
}

async fn a_crash_is_survived_after_the_lease(site: Site) {
    let b = site.candidate("b").await;
    // A process of its own, nearly: its runtime goes away with every task and connection in it.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let opening = site.opening();
    let leadership =
        process.spawn(async move { opening.candidate("a").await.lead().await.unwrap() }).await.unwrap();
    let next = stand(&b);
    SystemClock.sleep(site.lease).await;
    assert!(leadership.is_valid());
    process.shutdown_background();
    let began = SystemClock.monotonic();
    let next = next.await.unwrap();
    let took = SystemClock.monotonic().since(began);
    assert!(!leadership.is_valid(), "two at once");
    assert_eq!(next.fence().epoch(), Epoch(2));
    // Of the lease, up to a renewal period had passed; and nobody was in a hurry.
    assert!(took > site.lease / 2 && took < site.lease * 3, "{took:?}");
}

async fn a_superseded_leader_cannot_write(site: Site) {
    let (a, b) = (site.candidate("a").await, site.candidate("b").await);
    let first = a.lead().await.unwrap();
    let store = site.open().await;
    let job = |id: &str| Write::Put {
        table: site.table.clone(),
        item: Item::new().with("pk", format!("JOB#{id}")).with("sk", "JOB"),
        when: Condition::Always,
    };
    let fence = first.fence().clone();
    assert!(fence.transact(&*store, soon(), &[job("1")], "job-1").await.unwrap().is_applied());
    first.resign(None).await.unwrap();
    let second = b.lead().await.unwrap();
    let refused = fence.transact(&*store, soon(), &[job("2")], "job-2").await.unwrap_err();
    assert_eq!(refused.kind(), Kind::Fenced, "{refused:?}");
    assert!(second.fence().transact(&*store, soon(), &[job("3")], "job-3").await.unwrap().is_applied());
    let rows = store.scan_all(soon(), &site.table, 10).await.unwrap();
    let jobs = rows.iter().filter_map(|row| row.text("pk")?.strip_prefix("JOB#")).collect::<Vec<_>>();
    assert!(jobs.len() == 2 && !jobs.contains(&"2"), "{jobs:?}");
}

async fn a_reaped_row_ends_the_term_and_not_the_count(site: Site) {
    let (a, b) = (site.candidate("a").await, site.candidate("b").await);
    let leadership = a.lead().await.unwrap();
    let next = stand(&b);
    SystemClock.sleep(site.lease / 2).await;
    // As a TTL does to a row whose writer's clock was wrong.
    let began = SystemClock.monotonic();
    let key = site.place().lock_key();
    site.open().await.delete(soon(), &site.table, key, Condition::Always).await.unwrap();
    assert_eq!(leadership.lost().await, LossReason::Superseded { by: None, epoch: None });
    let next = next.await.unwrap();
    let took = SystemClock.monotonic().since(began);
    assert!(took > site.lease, "{took:?}: an absent row says nothing about who still leads");
    assert_eq!(next.fence().epoch(), Epoch(2), "the fence was not reaped");
}

async fn racing_candidates_make_the_table_and_one_leads(site: Site) {
    let mut racers = Vec::new();
    for number in 0..6 {
        let elector = site.candidate(&format!("racer-{number}")).await;
        racers.push(stand(&elector));
    }
    for expected in 1..=3 {
        let elected = loop {
            if let Some(at) = racers.iter().position(JoinHandle::is_finished) {
                break racers.remove(at).await.unwrap();
            }
            SystemClock.sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(elected.fence().epoch(), Epoch(expected));
        SystemClock.sleep(site.lease / 2).await;
        assert!(elected.is_valid() && !racers.iter().any(JoinHandle::is_finished), "one leads");
        elected.resign(None).await.unwrap();
    }
}

async fn a_table_with_another_key_is_refused(site: Site) {
    let other = TableSpec::new(&site.table, KeyAttribute::text("id"));
    let store = site.open().await;
    store.ensure_table(soon(), &other).await.unwrap();
    let error = site.candidate("a").await.lead().await.unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error:?}");
    assert!(error.chain().contains(&site.table), "{error:?}");
    assert!(store.scan_all(soon(), &site.table, 10).await.unwrap().is_empty());
}

/// A deadline that only a stuck test reaches.
fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(30))
}
