//! Counts what a run sends to each shard that it knows of.

use std::collections::BTreeMap;

use tenure_cdc::publisher::PublisherSettings;
use tenure_cdc::shard_budget::OpenShard;
use tenure_stream::{Record, ShardId};

use crate::calendar::SECOND;
use crate::scenario::Verdict;

/// See the module.
#[derive(Debug, Default)]
pub struct ShardMeter {
    open: Vec<OpenShard>,
    /// Since when it is known, and how many records and bytes were sent to it.
    sent: BTreeMap<ShardId, (u64, u64, u64)>,
}

impl ShardMeter {
    /// From now on the run knows of these shards.
    pub fn learn(&mut self, now: u64, open: Vec<OpenShard>) {
        let mut before = std::mem::take(&mut self.sent);
        for shard in &open {
            let sent = before.remove(&shard.id).unwrap_or((now, 0, 0));
            self.sent.insert(shard.id.clone(), sent);
        }
        self.open = open;
    }

    /// A record is sent: has its shard ever been sent more than it takes?
    pub fn send(&mut self, now: u64, record: &Record, settings: &PublisherSettings) -> Verdict {
        let key = record.hash_key();
        let Some(shard) = self.open.iter().find(|shard| shard.range.contains(key)) else { return Ok(()) };
        let Some((since, records, bytes)) = self.sent.get_mut(&shard.id) else { return Ok(()) };
        *records += 1;
        *bytes += record.size_bytes() as u64;
        // A second in advance, and the last one may go beyond it.
        let allowed = |per_s: Option<u64>, last: u64| match per_s {
            Some(per_s) if per_s > 0 => per_s * (now - *since + SECOND) / SECOND + last + 1,
            _ => u64::MAX,
        };
        let most_records = allowed(settings.shard_records_per_s, 0);
        let most_bytes = allowed(settings.shard_bytes_per_s, record.size_bytes() as u64);
        if *records > most_records || *bytes > most_bytes {
            let millis = (now - *since) / 1_000_000;
            return Err(format!(
                "{} was sent {records} records of {bytes} bytes in {millis} ms, and takes {most_records} of {most_bytes}",
                shard.id
            ));
        }
        Ok(())
    }
}
