//! What `Faulty` does to calls, and to single records.

use std::sync::Arc;
use std::time::Duration;

use tenure_backend::{Env, FaultRates, Faults};
use tenure_clock::{Clock, Entropy, ManualTime};
use tenure_stream::{Faulty, Kind, Memory, Put, Record, Stream, StreamSpec};

use super::{everything, soon};

async fn behind(rates: FaultRates, clock: Arc<dyn Clock>) -> (Memory, Faulty) {
    let inner = Memory::new("faults", clock.clone()).unwrap();
    inner.create(soon(), &StreamSpec::default()).await.unwrap();
    let faults = Arc::new(Faults::new(rates, Entropy::seeded(7)).unwrap());
    let faulty = Faulty::new(Arc::new(inner.clone()), faults, clock);
    (inner, faulty)
}

fn system() -> Arc<dyn Clock> {
    Env::system().clock
}

#[tokio::test]
async fn a_lost_reply_was_applied() {
    let (inner, faulty) = behind(FaultRates { lost: 1.0, ..FaultRates::default() }, system()).await;
    let lost = faulty.put(soon(), &[Record::new("k", "x")]).await.unwrap_err();
    assert_eq!(lost.kind(), Kind::Unknown);
    assert_eq!(everything(&inner, soon()).await.len(), 1);
    assert_eq!(faulty.counts().lost, 1);
}

#[tokio::test]
async fn a_failed_call_was_not_applied() {
    for (rates, kind) in [
        (FaultRates { failed: 1.0, ..FaultRates::default() }, Kind::Unavailable),
        (FaultRates { throttled: 1.0, ..FaultRates::default() }, Kind::Throttled),
    ] {
        let (inner, faulty) = behind(rates, system()).await;
        assert_eq!(faulty.put(soon(), &[Record::new("k", "x")]).await.unwrap_err().kind(), kind);
        assert_eq!(faulty.describe(soon()).await.unwrap_err().kind(), kind);
        assert_eq!(everything(&inner, soon()).await.len(), 0);
    }
}

#[tokio::test]
async fn a_late_call_lands_later_and_a_duplicate_again() {
    let time = ManualTime::default();
    let late = FaultRates { late: 1.0, late_by_max: Duration::from_secs(9), ..FaultRates::default() };
    let (inner, faulty) = behind(late, Arc::new(time.clock())).await;
    let unknown = faulty.put(time.clock().deadline(Duration::from_secs(1)), &[Record::new("k", "x")]).await;
    assert_eq!(unknown.unwrap_err().kind(), Kind::Unknown);
    assert_eq!(everything(&inner, soon()).await.len(), 0);
    landed(&time).await;
    assert_eq!(everything(&inner, soon()).await.len(), 1);

    let twice = FaultRates { duplicated: 1.0, late_by_max: Duration::from_secs(9), ..FaultRates::default() };
    let (inner, faulty) = behind(twice, Arc::new(time.clock())).await;
    assert!(faulty.put(soon(), &[Record::new("k", "x")]).await.unwrap()[0].stored().is_some());
    landed(&time).await;
    assert_eq!(everything(&inner, soon()).await.len(), 2);
}

async fn landed(time: &ManualTime) {
    tokio::task::yield_now().await;
    time.advance(Duration::from_secs(10));
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Some records of a call are throttled; the others are stored, in order, and answered in their place.
#[tokio::test]
async fn single_records_are_throttled() {
    let (inner, faulty) = behind(FaultRates { throttled: 0.3, ..FaultRates::default() }, system()).await;
    let records: Vec<_> = (0..200).map(|number| Record::new("k", number.to_string())).collect();
    let mut puts = Err(tenure_stream::Error::invalid("not put yet"));
    for _ in 0..50 {
        puts = faulty.put(soon(), &records).await;
        if puts.is_ok() {
            break;
        }
    }
    let puts = puts.unwrap();
    let throttled = puts.iter().filter(|put| **put == Put::Throttled).count();
    assert!((30..90).contains(&throttled), "{throttled} of 200 at a rate of 0.3");
    let expected: Vec<_> =
        records.iter().zip(&puts).filter(|(_, put)| put.stored().is_some()).map(|(r, _)| &r.data).collect();
    let found = everything(&inner, soon()).await;
    assert_eq!(found.iter().map(|record| &record.data).collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn latency_ends_at_the_deadline_before_anything_is_sent() {
    let time = ManualTime::default();
    let rates = FaultRates { latency_max: Duration::from_secs(1000), ..FaultRates::default() };
    let (inner, faulty) = behind(rates, Arc::new(time.clock())).await;
    let by = time.clock().deadline(Duration::from_millis(1));
    let call = tokio::spawn(async move { faulty.put(by, &[Record::new("k", "x")]).await });
    tokio::task::yield_now().await;
    time.advance(Duration::from_millis(1));
    assert_eq!(call.await.unwrap().unwrap_err().kind(), Kind::Unavailable);
    assert_eq!(everything(&inner, soon()).await.len(), 0);
}

/// An address with a seed gives the same faults every time.
#[tokio::test]
async fn a_seed_in_the_address_replays() {
    let mut histories = Vec::new();
    for name in ["one", "two"] {
        let env = Env::system();
        let address = format!("faulty+memory:replay-{name}?seed=11&throttled=0.2&failed=0.2&lost=0.2");
        let plain = tenure_stream::open(&format!("memory:replay-{name}"), &env).await.unwrap();
        plain.create(soon(), &StreamSpec::default()).await.unwrap();
        let faulty = tenure_stream::open(&address, &env).await.unwrap();
        let mut history = Vec::new();
        for number in 0..100 {
            let put = faulty.put(soon(), &[Record::new("k", number.to_string())]).await;
            history.push(put.map_err(|error| error.kind()));
        }
        histories.push(history);
    }
    assert_eq!(histories[0], histories[1]);
    assert!(histories[0].iter().any(|put| put == &Err(Kind::Unknown)));
}
