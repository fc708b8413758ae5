//! A writer: numbers its records within each key and puts the next only after the last is durable.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_stream::{Kind, Put, Record};
use tokio::sync::mpsc;

use super::site::Site;
use super::wire::{Report, report};

/// Keys of one writer. A round puts one record of each, so records of one key are never under way
/// together and a round can be put again as a whole without disturbing their order.
const KEYS: u32 = 8;

/// Pause between rounds: some 150 records per second and writer, which leaves a small machine room.
const PAUSE: Duration = Duration::from_millis(40);
const PAUSE_JITTER: Duration = Duration::from_millis(20);

/// Attempts to put a round, with a pause in between.
const ATTEMPTS_MAX: u32 = 20;
const BACKOFF: Duration = Duration::from_millis(100);

/// The keys that a writer writes.
pub(super) fn keys_of(writer: u32) -> impl Iterator<Item = String> {
    (1..=KEYS).map(move |key| format!("w{writer}-k{key}"))
}

/// How many records one acknowledged number stands for.
pub(super) const RECORDS_PER_NUMBER: u64 = KEYS as u64;

/// The number in a record.
pub(super) fn number_in(data: &[u8]) -> Result<u64> {
    std::str::from_utf8(data)?.parse().context("a record without a number")
}

/// Writes numbers from `from` on until the parent wants no more.
///
/// A writer that replaces a killed one begins with a number that may stand in the stream already:
/// what it cannot be sure of it puts again.
pub(super) async fn run(
    site: &Site,
    writer: u32,
    from: u64,
    mut orders: mpsc::Receiver<String>,
) -> Result<()> {
    report(&Report::Ready)?;
    for number in from.. {
        put_round(site, writer, number).await?;
        report(&Report::Acknowledged { number })?;
        tokio::select! {
            biased;
            order = orders.recv() => if order.is_none() { break },
            () = site.env.clock.sleep(PAUSE + site.env.entropy.up_to(PAUSE_JITTER)) => {}
        }
    }
    Ok(())
}

async fn put_round(site: &Site, writer: u32, number: u64) -> Result<()> {
    let records: Vec<Record> = keys_of(writer).map(|key| Record::new(key, number.to_string())).collect();
    for _ in 0..ATTEMPTS_MAX {
        match site.stream.put(site.soon(), &records).await {
            Ok(puts) => {
                if let Some(reason) = puts.iter().find_map(refused) {
                    bail!("the stream refused a record: {reason}");
                }
                if puts.iter().all(|put| put.stored().is_some()) {
                    return Ok(());
                }
            }
            // Unknown is put again like the others: readers drop what they have had.
            Err(error) if matches!(error.kind(), Kind::Unknown | Kind::Unavailable | Kind::Throttled) => {}
            Err(error) => return Err(error).context("put records"),
        }
        site.env.clock.sleep(BACKOFF).await;
    }
    bail!("records were not stored after {ATTEMPTS_MAX} attempts")
}

fn refused(put: &Put) -> Option<&str> {
    match put {
        Put::Refused { reason } => Some(reason),
        Put::Stored { .. } | Put::Throttled => None,
    }
}
