//! Fails some records of a PutRecords call and puts the answers back in the caller's order.
//!
//! Kinesis answers a call record by record, each in its place. To refuse some, the others are
//! forwarded as one smaller call, and its answers are dealt out around the gaps:
//!
//! ```text
//!   asked      a   b   c   d        failing = {1, 3}
//!   forwarded  a       c            one call of two records
//!   answered   a ✓ b ✗ c ✓ d ✗      FailedRecordCount = 2, plus what the emulator refused
//! ```

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::fault::ThrottleCode;

/// A PutRecords call in JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PutRecords {
    #[serde(rename = "Records")]
    records: Vec<Value>,
    /// `StreamName`, `StreamARN` and whatever comes.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A PutRecords reply in JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PutRecordsReply {
    #[serde(rename = "FailedRecordCount", default)]
    failed_record_count: usize,
    #[serde(rename = "Records")]
    records: Vec<Value>,
    /// `EncryptionType` and whatever comes.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl PutRecords {
    /// Reads a call's body; `None` if it is not one in JSON, which is then left alone.
    pub(crate) fn read(body: &[u8]) -> Option<Self> {
        serde_json::from_slice(body).ok()
    }

    pub(crate) fn count(&self) -> usize {
        self.records.len()
    }

    /// The call without the records at `failing`, or `None` if no record is left.
    pub(crate) fn without(&self, failing: &[usize]) -> Option<Vec<u8>> {
        let records: Vec<_> = self
            .records
            .iter()
            .enumerate()
            .filter(|(place, _)| failing.binary_search(place).is_err())
            .map(|(_, record)| record.clone())
            .collect();
        let call = Self { records, rest: self.rest.clone() };
        (!call.records.is_empty()).then(|| json!(call).to_string().into_bytes())
    }

    /// The reply to the whole call: `reply` holds the emulator's answers to the forwarded records
    /// (`None` if none was forwarded), and the records at `failing` are refused in their place.
    /// `None` if `reply` does not answer each forwarded record.
    pub(crate) fn merge(&self, failing: &[usize], reply: Option<&[u8]>) -> Option<Vec<u8>> {
        let reply = match reply {
            Some(reply) => serde_json::from_slice(reply).ok()?,
            None => PutRecordsReply::default(),
        };
        if reply.records.len() + failing.len() != self.count() {
            return None;
        }
        let stream = self.rest.get("StreamName").or_else(|| self.rest.get("StreamARN"));
        let stream = stream.and_then(Value::as_str).unwrap_or("unknown");
        let refusal = json!({
            "ErrorCode": ThrottleCode::ProvisionedThroughputExceededException.as_str(),
            "ErrorMessage": format!("Rate exceeded for stream {stream} (injected by fault-proxy)."),
        });
        let mut answered = reply.records.into_iter();
        let merged = PutRecordsReply {
            failed_record_count: reply.failed_record_count + failing.len(),
            records: (0..self.count())
                .map(|place| match failing.binary_search(&place) {
                    Ok(_) => Some(refusal.clone()),
                    Err(_) => answered.next(),
                })
                .collect::<Option<_>>()?,
            rest: reply.rest,
        };
        Some(json!(merged).to_string().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call of the records `asked`, of which those in upper case fail; the emulator answers each
    /// forwarded record with its own letter, and refuses `x`.
    fn check(asked: &str, forwarded: Option<&str>, answered: &str, failed_record_count: usize) {
        let records: Vec<_> = asked.chars().map(|letter| json!(letter.to_string())).collect();
        let body = json!({ "StreamName": "orders", "Records": records }).to_string();
        let call = PutRecords::read(body.as_bytes()).unwrap();
        let failing: Vec<_> = asked
            .char_indices()
            .filter(|(_, letter)| letter.is_uppercase())
            .map(|(place, _)| place)
            .collect();

        let smaller = call.without(&failing).map(|body| PutRecords::read(&body).unwrap());
        let letters = |records: &[Value]| -> String {
            records.iter().map(|record| record.as_str().unwrap_or("✗")).collect()
        };
        assert_eq!(smaller.as_ref().map(|call| letters(&call.records)).as_deref(), forwarded);
        assert!(smaller.as_ref().is_none_or(|call| call.rest["StreamName"] == "orders"));

        let reply = smaller.map(|call| {
            let refused = call.records.iter().filter(|record| **record == "x").count();
            json!({ "FailedRecordCount": refused, "Records": call.records, "EncryptionType": "NONE" })
                .to_string()
        });
        let merged = call.merge(&failing, reply.as_deref().map(str::as_bytes)).unwrap();
        let merged: PutRecordsReply = serde_json::from_slice(&merged).unwrap();
        assert_eq!(letters(&merged.records), answered);
        assert_eq!(merged.failed_record_count, failed_record_count);
    }

    #[test]
    fn answers_return_to_their_places() {
        check("aBcD", Some("ac"), "a✗c✗", 2);
        check("Abc", Some("bc"), "✗bc", 1);
        check("abC", Some("ab"), "ab✗", 1);
    }

    #[test]
    fn the_emulators_own_refusals_count_too() {
        check("axBc", Some("axc"), "ax✗c", 2);
    }

    #[test]
    fn nothing_is_forwarded_when_all_fail() {
        check("ABC", None, "✗✗✗", 3);
    }

    #[test]
    fn a_reply_with_other_records_is_not_merged() {
        let call = PutRecords::read(br#"{"StreamName":"s","Records":["a","b","c"]}"#).unwrap();
        assert_eq!(call.merge(&[1], Some(br#"{"FailedRecordCount":0,"Records":["a"]}"#)), None);
        assert_eq!(call.merge(&[1], Some(b"not JSON")), None);
    }

    #[test]
    fn other_bodies_are_left_alone() {
        assert!(PutRecords::read(b"\xbf\x67Records").is_none());
        assert!(PutRecords::read(br#"{"StreamName":"s"}"#).is_none());
    }
}
