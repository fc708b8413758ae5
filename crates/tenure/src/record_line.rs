//! One record as one line of JSON: what `stream tail --json` and `consume` print, and commands get.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tenure_clock::WallTime;
use tenure_stream::SequenceNumber;

/// A record, or one of those that it held.
#[derive(Serialize)]
pub(crate) struct RecordLine<'a> {
    shard: &'a str,
    sequence: String,
    arrived: String,
    arrived_ms: i64,
    /// Its place within a record that held several.
    #[serde(skip_serializing_if = "Option::is_none")]
    sub_sequence: Option<u64>,
    partition_key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<String>,
}

impl<'a> RecordLine<'a> {
    /// The line of a record. Content that is no text goes in as base64.
    pub(crate) fn new(
        shard: &'a str,
        sequence: &SequenceNumber,
        sub_sequence: Option<u64>,
        arrived: WallTime,
        partition_key: &'a str,
        data: &'a [u8],
    ) -> Self {
        let text = std::str::from_utf8(data).ok();
        Self {
            shard,
            sequence: sequence.to_string(),
            arrived: arrived.to_string(),
            arrived_ms: arrived.as_millis(),
            sub_sequence,
            partition_key,
            data: text,
            data_base64: text.is_none().then(|| STANDARD.encode(data)),
        }
    }
}
