//! What came by and what was done to it, so that a test can tell a fault that never fired from one
//! that was survived.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fault::Fault;
use crate::kind::Kind;

/// The name under which requests without an operation are counted.
const NO_KIND: &str = "(none)";

/// The name under which kinds are lumped together once there are too many.
const OTHER_KINDS: &str = "(other)";

/// More kinds than DynamoDB and Kinesis have together; a client that invents names stops here.
const KINDS_MAX: usize = 256;

/// Requests by kind since the proxy started. A new script does not reset them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Counts {
    kinds: BTreeMap<String, KindCount>,
}

/// The requests of one kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KindCount {
    /// All that were read to their end.
    pub seen: u64,
    /// Those that were broken, by the fault's name.
    pub injected: BTreeMap<&'static str, u64>,
}

impl Counts {
    /// Requests of the operation `kind`, broken or not.
    #[must_use]
    pub fn seen(&self, kind: &str) -> u64 {
        self.kinds.get(kind).map_or(0, |count| count.seen)
    }

    /// Requests of the operation `kind` that were broken by the fault called `fault`.
    #[must_use]
    pub fn injected(&self, kind: &str, fault: &str) -> u64 {
        self.kinds.get(kind).and_then(|count| count.injected.get(fault)).copied().unwrap_or(0)
    }

    /// All broken requests.
    #[must_use]
    pub fn injected_total(&self) -> u64 {
        self.kinds.values().flat_map(|count| count.injected.values()).sum()
    }

    /// The counts of each kind, by name. Requests that name no operation stand under `(none)`.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &KindCount)> {
        self.kinds.iter().map(|(kind, count)| (kind.as_str(), count))
    }

    pub(crate) fn add(&mut self, kind: Option<&Kind>, fault: Option<&Fault>) {
        let name = kind.map_or(NO_KIND, Kind::as_str);
        let full = self.kinds.len() >= KINDS_MAX && !self.kinds.contains_key(name);
        let count = self.kinds.entry(if full { OTHER_KINDS } else { name }.to_owned()).or_default();
        count.seen += 1;
        if let Some(fault) = fault {
            *count.injected.entry(fault.name()).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_bounded() {
        let mut counts = Counts::default();
        for number in 0..1000 {
            counts.add(Kind::new(&format!("Invented{number}")).as_ref(), None);
        }
        counts.add(None, Some(&Fault::Hang));
        assert_eq!(counts.kinds().count(), KINDS_MAX + 1);
        assert_eq!(counts.seen(OTHER_KINDS), 745);
        assert_eq!(counts.injected(OTHER_KINDS, "hang"), 1);
        assert_eq!(counts.injected_total(), 1);
    }
}
