//! What reading costs per record. `bare` is a loop over the same batches without a consumer.
//!
//! Everything runs on one thread, and the time is what that thread had a processor for: what else the machine does
//! makes no difference.

use std::collections::BTreeSet;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, bail};
use async_trait::async_trait;
use tenure_backend::Env;
use tenure_clock::{Clock as _, Monotonic, SystemClock};
use tenure_consumer::{Batch, Failure, Settings, ShardContext, ShardProcessor, Worker};
use tenure_leases::holding::{KeeperSide, Request};
use tenure_leases::{Checkpoint, Ending, Lease, LeaseKey};
use tenure_stream::identity::{Era, Floor, Header, Lane, Lanes, Lsn, Position as Id};
use tenure_stream::kpl::{self, Aggregator};
use tenure_stream::{HashRange, Memory, Position, Read, Record, ShardId, Stream, StreamSpec};
use tokio::sync::{Notify, mpsc};

use crate::{Aim, Plan, median};

const RECORDS: u64 = 200_000;
const RECORD_BYTES: usize = 1024;
const EVENTS_PER_RECORD: u64 = 50;
const RUNS: usize = 7;
const NEVER: Monotonic = Monotonic::NEVER;

/// What is in the stream.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    /// Records of 1 KiB.
    Plain,
    /// Events of 1 KiB with an identity, several in one record.
    Events,
}

/// Both cases.
pub(crate) fn measure(plan: &Plan) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (case, content, target) in [
        ("memory_ns_per_record", Content::Plain, 100.0),
        ("memory_dedup_ns_per_record", Content::Events, 500.0),
    ] {
        if !plan.wants(case) {
            continue;
        }
        let stream = runtime.block_on(filled(content))?;
        let (mut ours, mut bare) = (Vec::new(), Vec::new());
        // In turn, so that what else the machine does spoils both alike.
        for _ in 0..RUNS {
            bare.push(runtime.block_on(bare_loop(&stream, content))?);
            ours.push(runtime.block_on(consumed(&stream))?);
        }
        plan.say(case, "memory", median(ours), "ns", Aim::AtMost(target));
        plan.say(&format!("{case}_bare"), "memory", median(bare), "ns", Aim::None);
    }
    Ok(())
}

async fn filled(content: Content) -> anyhow::Result<Arc<Memory>> {
    let stream = Memory::new("bench", Arc::new(SystemClock))?.with_retention(None, Some(1 << 30))?;
    stream.create(NEVER, &StreamSpec::with_shards(1)).await?;
    let lanes = Lanes::default();
    let mut lasts = vec![None; usize::from(lanes.count())];
    let mut records = Vec::new();
    match content {
        Content::Plain => {
            let data = bytes::Bytes::from(vec![b'x'; RECORD_BYTES]);
            records.extend((0..RECORDS).map(|_| Record::new("key", data.clone())));
        }
        Content::Events => {
            for number in 0..RECORDS / EVENTS_PER_RECORD {
                let lane = Lane((number % u64::from(lanes.count())) as u16);
                let mut out = Vec::new();
                let mut one = Aggregator::begin(&mut out, Some(lanes.hash_key(lane)));
                for index in 0..EVENTS_PER_RECORD {
                    let at = 1_000_000 + 100 * (number * EVENTS_PER_RECORD + index);
                    let id = Id { era: Era(1), commit: Lsn(at), change: Lsn(at - 40), k: 0 };
                    let floor = Floor { era: Era(1), below: Lsn(at - 1_000_000) };
                    let prev = lasts[usize::from(lane.0)].replace(id);
                    let header = Header { source: "shop", id, lane, lanes, prev, floor, leader: 1 };
                    let mut event = br#"{"tenure":"#.to_vec();
                    header.write_json(&mut event);
                    event.extend_from_slice(
                        br#","op":"insert","schema":"public","table":"orders","after":{"text":""#,
                    );
                    event.resize(RECORD_BYTES - 3, b'x');
                    event.extend_from_slice(b"\"}}");
                    one.add(&mut out, "public.orders/7", &event);
                }
                one.finish(&mut out);
                records.push(Record::new("public.orders/7", out).at_hash_key(lanes.hash_key(lane)));
            }
        }
    }
    for chunk in records.chunks(100) {
        let limit = if content == Content::Events { 50 } else { 100 };
        for chunk in chunk.chunks(limit) {
            stream.put(NEVER, chunk).await?;
        }
    }
    Ok(Arc::new(stream))
}

/// What a processor does with a record.
fn visit(data: &[u8]) -> u64 {
    u64::from(data[0]) + data.len() as u64
}

async fn bare_loop(stream: &Memory, content: Content) -> anyhow::Result<f64> {
    let began = spent();
    let mut cursor = stream.cursor(NEVER, &ShardId::numbered(0), &Position::TrimHorizon).await?;
    let (mut count, mut sum) = (0, 0);
    while count < RECORDS {
        let Read::Records(batch) = stream.read(NEVER, &cursor, 10_000).await? else { bail!("trimmed") };
        for record in &batch.records {
            if content == Content::Plain {
                sum += visit(&record.data);
                count += 1;
            } else {
                for part in kpl::deaggregate(&record.partition_key, &record.data, HashRange::ALL).records {
                    sum += visit(&part.data);
                    count += 1;
                }
            }
        }
        cursor = batch.next.context("the shard ended")?;
    }
    black_box(sum);
    Ok(per_record(spent() - began))
}

fn per_record(took_nanos: u64) -> f64 {
    took_nanos as f64 / RECORDS as f64
}

/// Nanoseconds for which this thread had a processor; on the clock, where the kernel does not say.
fn spent() -> u64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let spent = told.split_whitespace().next().and_then(|nanos| nanos.parse().ok());
    spent.unwrap_or_else(|| SystemClock.monotonic().as_nanos())
}

/// Visits every record.
struct Visitor(Arc<Shared>);

#[derive(Default)]
struct Shared {
    count: AtomicU64,
    sum: AtomicU64,
    done: Notify,
}

#[async_trait]
impl ShardProcessor for Visitor {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        let sum: u64 = batch.records().iter().map(|record| visit(&record.data)).sum();
        self.0.sum.fetch_add(sum, Ordering::Relaxed);
        let count = batch.records().len() as u64;
        if self.0.count.fetch_add(count, Ordering::Relaxed) + count == RECORDS {
            self.0.done.notify_one();
        }
        Ok(())
    }
}

async fn consumed(stream: &Arc<Memory>) -> anyhow::Result<f64> {
    let env = Env::system();
    let shared = Arc::new(Shared::default());
    let made = shared.clone();
    let factory = Arc::new(move |_: &ShardContext| Visitor(made.clone()));
    let worker = Worker::new(
        "bench",
        vec![stream.clone() as Arc<dyn Stream>],
        None,
        env.clone(),
        Settings::default(),
        factory,
    )?;
    let (holdings, granted) = mpsc::channel(1);
    let running = tokio::spawn(worker.run(granted));
    let shard = ShardId::numbered(0);
    let lease = Lease {
        key: LeaseKey::of_shard(&shard),
        stream: None,
        shard,
        owner: None,
        giver: None,
        counter: 1,
        owner_switches: 0,
        checkpoint: Checkpoint::TrimHorizon,
        parents: BTreeSet::new(),
        children: BTreeSet::new(),
        range: Some(HashRange::ALL),
        throughput_kbps: None,
        marks: None,
    };
    let (mut side, holding) = KeeperSide::grant(env.clock.clone(), lease, Vec::new(), NEVER);
    let began = spent();
    holdings.send(holding).await?;
    shared.done.notified().await;
    let took = spent() - began;
    black_box(shared.sum.load(Ordering::Relaxed));
    side.end(Ending::Stop);
    while let Some(request) = side.requests.recv().await {
        match request {
            Request::Checkpoint { reply, .. } => _ = reply.send(Ok(())),
            Request::Give { reply } => {
                let _ = reply.send(Ok(()));
                break;
            }
        }
    }
    drop(holdings);
    running.await??;
    Ok(per_record(took))
}
