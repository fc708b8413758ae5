//! Records per second, per backend, by one writer and by sixteen.
//!
//! An operation is one put of one record, acknowledged; on `sqlite-batch500` it is a record of a put of
//! 500, and the latencies are those of the put. Run it with `cargo xtask bench stream --json`.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use tenure_bench::{Backend, Sample, Subject, VALUE_BYTES, measure};
use tenure_stream::{Env, Put, RECORDS_PER_PUT_MAX, Record, Stream, StreamSpec};

const SHARDS: u32 = 4;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tenure_bench::run::<Puts>().await
}

struct Puts {
    stream: Arc<dyn Stream>,
    env: Env,
    batch: usize,
}

impl Subject for Puts {
    const BENCH: &'static str = "stream";
    const FRESH_KEYS: bool = true;

    fn backends(dir: &Path) -> Vec<Backend> {
        let mut all = vec![Backend::embedded("memory", "memory:bench".to_owned())];
        if cfg!(feature = "sqlite") {
            let file = |name: &str| format!("sqlite:{}", dir.join(name).display());
            all.push(Backend { beside_raw_sqlite: true, ..Backend::embedded("sqlite", file("bench.db")) });
            let batch = Backend::embedded("sqlite-batch500", file("batch.db"));
            all.push(Backend { batch: RECORDS_PER_PUT_MAX, ..batch });
        }
        if cfg!(feature = "kinesis") {
            let name = format!("bench-{}", Env::system().entropy.nonce());
            let address = |endpoint: &str| format!("kinesis:{name}-WRITERS?endpoint={endpoint}");
            all.extend(Backend::service("kinesis", "kinesis-local", "TENURE_TEST_KINESIS_LOCAL", address));
            all.extend(Backend::service("kinesis", "kinesalite", "TENURE_TEST_KINESALITE", address));
        }
        all
    }

    async fn open(backend: &Backend, writers: usize) -> anyhow::Result<Self> {
        let env = Env::system();
        let address = backend.address.replace("WRITERS", &writers.to_string());
        let stream = tenure_stream::open(&address, &env).await?;
        let by = env.clock.deadline(Duration::from_secs(30));
        stream.create(by, &StreamSpec::with_shards(SHARDS)).await?;
        Ok(Self { stream, env, batch: backend.batch })
    }

    async fn measure(&self, _run: usize, writers: usize, stretch: Duration) -> anyhow::Result<Sample> {
        let by = self.env.clock.deadline(stretch + Duration::from_secs(30));
        let (stream, batch) = (self.stream.clone(), self.batch);
        let data = vec![b'x'; VALUE_BYTES];
        measure(writers, stretch, move |writer, turn| {
            let records: Vec<_> = (0..batch)
                .map(|index| Record::new(format!("key-{writer}-{}", turn + index as u64), data.clone()))
                .collect();
            let stream = stream.clone();
            async move {
                let puts = stream.put(by, &records).await?;
                let stored = puts.iter().all(|put| matches!(put, Put::Stored { .. }));
                ensure!(stored, "not all records were stored");
                Ok(())
            }
        })
        .await
    }

    async fn close(self) -> anyhow::Result<()> {
        Ok(self.stream.delete(self.env.clock.deadline(Duration::from_secs(30))).await?)
    }
}
