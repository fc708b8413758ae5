//! The conformance of every backend and wrapper, and what only real processes and files can show.

mod embedded;
mod faults;
mod model;
mod power_loss;
mod processes;
mod retention;

#[cfg(feature = "kinesis")]
mod canned;
#[cfg(feature = "kinesis")]
mod emulator;
#[cfg(feature = "kinesis")]
mod kinesalite;
#[cfg(feature = "kinesis")]
mod kinesis_local;

use std::time::Duration;

use tenure_clock::{Clock, Monotonic, SystemClock};
use tenure_stream::{Position, Read, Stored, Stream, StreamExt};

/// A deadline that a call on a busy machine keeps.
fn soon() -> Monotonic {
    SystemClock.deadline(Duration::from_secs(60))
}

/// Everything that is in the stream now, shard by shard.
async fn everything(stream: &dyn Stream, by: Monotonic) -> Vec<Stored> {
    let mut found = Vec::new();
    for shard in stream.all_shards(by).await.unwrap() {
        let mut next = Some(stream.cursor(by, &shard.id, &Position::TrimHorizon).await.unwrap());
        while let Some(cursor) = next {
            let Read::Records(batch) = stream.read(by, &cursor, 1000).await.unwrap() else {
                panic!("unexpectedly trimmed")
            };
            next = batch.next.filter(|_| !batch.records.is_empty());
            found.extend(batch.records);
        }
    }
    found
}
