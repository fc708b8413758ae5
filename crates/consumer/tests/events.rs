//! Events as a publisher of changes writes them.

use std::time::Duration;

use bytes::Bytes;
use tenure_stream::Record;
use tenure_stream::identity::{Era, Floor, Header, Lane, Lanes, Lsn, Position};
use tenure_stream::kpl::Aggregator;

pub(crate) fn lanes() -> Lanes {
    Lanes::new(4).unwrap()
}

pub(crate) fn position(commit: u64) -> Position {
    Position { era: Era(1), commit: Lsn(commit), change: Lsn(commit), k: 0 }
}

/// The event `commit` of a lane; `prev` 0 is none.
pub(crate) fn event(lane: u16, commit: u64, prev: u64, below: u64) -> Vec<u8> {
    event_of(lane, commit, prev, below, &format!(r#""op":"insert","after":{{"n":{commit}}}"#))
}

pub(crate) fn event_of(lane: u16, commit: u64, prev: u64, below: u64, rest: &str) -> Vec<u8> {
    let floor = Floor { era: Era(1), below: Lsn(below) };
    let prev = (prev > 0).then(|| position(prev));
    let header = Header {
        source: "shop",
        id: position(commit),
        lane: Lane(lane),
        lanes: lanes(),
        prev,
        floor,
        leader: 1,
    };
    let mut out = br#"{"tenure":"#.to_vec();
    header.write_json(&mut out);
    out.push(b',');
    out.extend_from_slice(rest.as_bytes());
    out.push(b'}');
    out
}

/// On its lane.
pub(crate) fn record(lane: u16, data: impl Into<Bytes>) -> Record {
    Record::new(format!("lane-{lane}"), data).at_hash_key(lanes().hash_key(Lane(lane)))
}

/// Several in one, on their lane.
pub(crate) fn aggregated(lane: u16, events: &[Vec<u8>]) -> Record {
    let mut out = Vec::new();
    let key = lanes().hash_key(Lane(lane));
    let mut one = Aggregator::begin(&mut out, Some(key));
    for event in events {
        one.add(&mut out, "inner", event);
    }
    one.finish(&mut out);
    record(lane, out)
}

/// The number in an event.
pub(crate) fn number(text: &str) -> Option<u64> {
    let json: serde_json::Value = serde_json::from_str(text).ok()?;
    json["after"]["n"].as_u64()
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);
