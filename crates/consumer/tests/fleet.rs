//! Real leases: several consumers of one application on one store.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tenure_backend::Env;
use tenure_clock::{Clock as _, SystemClock};
use tenure_consumer::{Batch, Consumer, Failure, Settings, ShardContext, ShardProcessor};
use tenure_store::Store;
use tenure_stream::{Record, Stream, StreamExt as _, StreamSpec};

use crate::harness::FOREVER;

/// Who got what, per record.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<BTreeMap<String, Vec<&'static str>>>>);

impl Seen {
    fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

struct Counting(Seen, &'static str);

#[async_trait]
impl ShardProcessor for Counting {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        for record in batch.records() {
            let text = String::from_utf8_lossy(&record.data).into_owned();
            self.0.0.lock().unwrap().entry(text).or_default().push(self.1);
        }
        Ok(())
    }
}

async fn start(
    stream: &Arc<dyn Stream>,
    store: &Arc<dyn Store>,
    seen: &Seen,
    worker: &'static str,
) -> Consumer {
    let seen = seen.clone();
    // Short leases: the test waits for some.
    let leases = tenure_leases::Settings {
        lease: Duration::from_secs(2),
        list_interval: Duration::from_millis(500),
        ..Default::default()
    };
    Consumer::builder(stream.clone(), store.clone(), "fleet", worker)
        .leases(leases)
        .settings(Settings { checkpoint_every: Some(Duration::from_millis(100)), ..Settings::default() })
        .start(move |_: &ShardContext| Counting(seen.clone(), worker))
        .await
        .unwrap()
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if holds() {
            return;
        }
        SystemClock.sleep(Duration::from_millis(10)).await;
    }
    panic!("never: {what}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_come_go_and_shards_split_and_every_record_comes_once() {
    let env = Env::system();
    let store: Arc<dyn Store> = Arc::new(tenure_store::Memory::new(&env));
    let stream: Arc<dyn Stream> = Arc::new(tenure_stream::Memory::new("orders", env.clock.clone()).unwrap());
    stream.create(FOREVER, &StreamSpec::with_shards(4)).await.unwrap();
    let seen = Seen::default();
    let mut count = 0;
    let mut put = async |many: usize| {
        let records: Vec<_> = (count..count + many)
            .map(|index| Record::new(format!("k{}", index % 97), format!("r{index}")))
            .collect();
        count += many;
        stream.put_all(FOREVER, &records).await.unwrap();
        count
    };
    let first = start(&stream, &store, &seen, "a").await;
    let all = put(400).await;
    until("the first batch", || seen.len() == all).await;
    // A second worker takes its part, and nothing comes twice.
    let second = start(&stream, &store, &seen, "b").await;
    until("b holds two", || second.handle().status().len() == 2).await;
    let all = put(400).await;
    until("the second batch", || seen.len() == all).await;
    // The stream grows, and the first worker goes.
    stream.rescale(FOREVER, 8).await.unwrap();
    put(400).await;
    first.stop().await.unwrap();
    let all = put(400).await;
    until("everything", || seen.len() == all).await;
    second.stop().await.unwrap();
    let twice: Vec<_> = seen
        .0
        .lock()
        .unwrap()
        .iter()
        .filter(|(_, by)| by.len() > 1)
        .map(|(text, by)| (text.clone(), by.clone()))
        .collect();
    assert!(twice.is_empty(), "{twice:?}");
    assert_eq!(seen.len(), count);
}
