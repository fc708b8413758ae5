//! Reads a stream with checkpoints, together with every other process that runs this program.
//!
//!   cargo run --example consume                                        the embedded stream in ./tenure.db
//!   cargo run --example consume kinesis:orders dynamodb:               the same program on AWS (--features aws)

use async_trait::async_trait;
use tenure_consumer::{Batch, Consumer, Drain, Env, Failure, ShardContext, ShardProcessor};

/// Prints what it gets.
struct Printer {
    shard: String,
}

#[async_trait]
impl ShardProcessor for Printer {
    async fn process(&mut self, batch: &Batch) -> Result<(), Failure> {
        for record in batch.records() {
            let text = String::from_utf8_lossy(&record.data);
            println!("{} {} {} {text}", self.shard, record.sequence, record.partition_key);
        }
        Ok(())
    }

    async fn drain(&mut self, why: Drain) -> Result<(), Failure> {
        println!("{} done: {why:?}", self.shard);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut addresses = std::env::args().skip(1);
    let stream = addresses.next().unwrap_or_else(|| "sqlite:./tenure.db".to_owned());
    let store = addresses.next().unwrap_or_else(|| "sqlite:./tenure.db".to_owned());

    let env = Env::system();
    let stream = tenure_stream::open(&stream, &env).await?;
    let store = tenure_store::open(&store, &env).await?;
    let worker = format!("worker-{}", std::process::id());

    let make = |shard: &ShardContext| Printer { shard: shard.shard().to_string() };
    let interrupted = async { _ = tokio::signal::ctrl_c().await };
    Consumer::builder(stream, store, "example-consume", worker).run(make, interrupted).await?;
    Ok(())
}
