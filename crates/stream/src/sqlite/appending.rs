//! Putting records.

use std::sync::PoisonError;

use tenure_backend::Result;
use tenure_backend::sqlite::rusqlite::params;

use super::tables::{Newest, signed};
use super::{Work, trimming};
use crate::{HashKey, Put, Record, ShardId};

/// Appends the records, each with the point of the hash space that it belongs to.
///
/// Runs inside a write transaction: the newest record it sees is the newest there is.
pub(super) fn put(work: &Work<'_>, records: &[(HashKey, Record)]) -> Result<Vec<Put>> {
    let head = work.head()?;
    head.limits.check_call(records.iter().map(|(_, record)| record))?;
    let seen = work.seen(&head)?;
    let last = work.newest(&head, &seen.tables)?;
    let arrived = last.arrived.max(work.now());
    let mut newest = Newest { arrived, ..last };
    let mut insert = work.sql(work.connection.prepare_cached(&seen.tables.insert))?;
    let mut results = Vec::with_capacity(records.len());
    for (key, record) in records {
        if let Some(refused) = head.limits.refusal(record) {
            results.push(refused);
            continue;
        }
        newest.sequence += 1;
        newest.bytes_through += record.size_bytes() as u64;
        let shard = seen.lineage.route(*key).number;
        work.sql(insert.execute(params![
            signed(newest.sequence),
            signed(shard),
            newest.arrived.as_millis(),
            signed(newest.bytes_through),
            &*record.partition_key,
            &*record.data,
        ]))?;
        results.push(Put::Stored { shard: ShardId::numbered(shard), sequence: newest.sequence.into() });
    }
    let bytes = newest.bytes_through - last.bytes_through;
    let due = work.shared.pace.lock().unwrap_or_else(PoisonError::into_inner).due(
        work.shared.clock.monotonic(),
        bytes,
        head.retention.bytes,
    );
    if due {
        trimming::trim(work, &head, &seen, newest)?;
    }
    Ok(results)
}
