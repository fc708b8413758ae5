//! The ledger: what had its effect, beside what was acknowledged. Pure.
//!
//! A writer that does not know whether a record landed puts it again, so the stream may hold it
//! twice. Numbers rise by one within a key, and a reader keeps a mark per key, the highest number
//! that had its effect, so what it meets again it drops. What it dropped is written down too:
//!
//! ```text
//!   stream      1  2  3  4  3  4  5      (the writer was killed after putting 3 and 4)
//!   delivered   1  2  3  4        5
//!   dropped                 3  4         right, because each was delivered before
//! ```
//!
//! A record that is dropped without having been delivered came behind a higher number: out of order.

use std::collections::{BTreeMap, BTreeSet};

/// How far a key has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The highest number that had its effect.
    pub last: u64,
    /// How many had.
    pub count: u64,
}

/// What one batch did to one key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct KeyDelivery {
    /// How many records of the key had their effect before.
    pub position: u64,
    /// The numbers that had their effect, in this order.
    pub delivered: Vec<u64>,
    /// The numbers that were dropped, because they lay at or below the mark.
    pub dropped: Vec<u64>,
}

/// Moves the marks over a batch and says what to deliver and what to drop, by key.
pub(super) fn settle<'a>(
    marks: &mut BTreeMap<String, Mark>,
    records: impl IntoIterator<Item = (&'a str, u64)>,
) -> BTreeMap<String, KeyDelivery> {
    let mut keys: BTreeMap<String, KeyDelivery> = BTreeMap::new();
    for (key, number) in records {
        let mark = marks.entry(key.to_owned()).or_default();
        let part = keys
            .entry(key.to_owned())
            .or_insert_with(|| KeyDelivery { position: mark.count, ..KeyDelivery::default() });
        if number > mark.last {
            *mark = Mark { last: number, count: mark.count + 1 };
            part.delivered.push(number);
        } else {
            part.dropped.push(number);
        }
    }
    keys
}

/// What the comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Distinct records known to be in the stream: acknowledged, or seen there by a reader.
    pub committed: u64,
    /// Distinct records that had their effect.
    pub delivered: u64,
    /// Acknowledged records without effect.
    pub lost: u64,
    /// Effects beyond the first of a record.
    pub duplicates: u64,
    /// Records that came behind a higher number of their key.
    pub out_of_order: u64,
    /// Records that stood in the stream again and were rightly dropped.
    pub repeats_dropped: u64,
}

/// Compares the acknowledged numbers of every key with all that the readers wrote down.
pub(super) fn compare(
    acknowledged: &BTreeMap<String, BTreeSet<u64>>,
    deliveries: impl IntoIterator<Item = (String, KeyDelivery)>,
) -> Findings {
    let mut by_key: BTreeMap<String, Vec<KeyDelivery>> = BTreeMap::new();
    for (key, part) in deliveries {
        by_key.entry(key).or_default().push(part);
    }
    let nothing = BTreeSet::new();
    let keys: BTreeSet<&String> = acknowledged.keys().chain(by_key.keys()).collect();
    let mut findings = Findings::default();
    for key in keys {
        let parts = by_key.get(key).map_or(&[][..], Vec::as_slice);
        findings.add_key(acknowledged.get(key).unwrap_or(&nothing), parts);
    }
    findings
}

impl Findings {
    fn add_key(&mut self, acknowledged: &BTreeSet<u64>, parts: &[KeyDelivery]) {
        // The batches of a key may come from several shards; positions put them in a row.
        let mut parts: Vec<&KeyDelivery> = parts.iter().collect();
        parts.sort_by_key(|part| part.position);
        let mut seen = BTreeSet::new();
        let mut highest = 0;
        for part in parts {
            for number in &part.delivered {
                if !seen.insert(*number) {
                    self.duplicates += 1;
                } else if *number < highest {
                    self.out_of_order += 1;
                }
                highest = highest.max(*number);
            }
            for number in &part.dropped {
                if seen.contains(number) {
                    self.repeats_dropped += 1;
                } else {
                    self.out_of_order += 1;
                }
            }
        }
        self.delivered += seen.len() as u64;
        self.committed += seen.union(acknowledged).count() as u64;
        self.lost += acknowledged.difference(&seen).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acknowledges 1 to 5 of one key and compares with batches given as "position: delivered | dropped".
    fn check(batches: &str, expected: &str) {
        let numbers = |text: &str| text.split_whitespace().map(|n| n.parse().unwrap()).collect::<Vec<u64>>();
        let deliveries = batches.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
            let (position, rest) = line.split_once(':').unwrap();
            let (delivered, dropped) = rest.split_once('|').unwrap_or((rest, ""));
            let (delivered, dropped) = (numbers(delivered), numbers(dropped));
            ("key".to_owned(), KeyDelivery { position: position.parse().unwrap(), delivered, dropped })
        });
        let found = compare(&BTreeMap::from([("key".to_owned(), (1..=5).collect())]), deliveries);
        let shown = format!(
            "committed {} delivered {} lost {} duplicates {} out_of_order {} dropped {}",
            found.committed,
            found.delivered,
            found.lost,
            found.duplicates,
            found.out_of_order,
            found.repeats_dropped
        );
        assert_eq!(shown, expected, "{batches}");
    }

    #[test]
    fn what_went_well_is_clean_in_any_order_of_rows() {
        check("0: 1 2 3\n 3: 4 5", "committed 5 delivered 5 lost 0 duplicates 0 out_of_order 0 dropped 0");
        check(
            "3: 4 5 | 3\n 0: 1 2 3",
            "committed 5 delivered 5 lost 0 duplicates 0 out_of_order 0 dropped 1",
        );
    }

    #[test]
    fn a_missing_record_is_lost() {
        check("0: 1 2 4 5", "committed 5 delivered 4 lost 1 duplicates 0 out_of_order 0 dropped 0");
        check("", "committed 5 delivered 0 lost 5 duplicates 0 out_of_order 0 dropped 0");
    }

    #[test]
    fn a_second_effect_is_a_duplicate() {
        check("0: 1 2 3 3 4 5", "committed 5 delivered 5 lost 0 duplicates 1 out_of_order 0 dropped 0");
        // Two readers that both believed the shard was theirs.
        check(
            "0: 1 2 3\n 0: 1 2 3\n 3: 4 5",
            "committed 5 delivered 5 lost 0 duplicates 3 out_of_order 0 dropped 0",
        );
    }

    #[test]
    fn a_late_record_is_out_of_order_whether_delivered_or_dropped() {
        check("0: 1 3 2 4 5", "committed 5 delivered 5 lost 0 duplicates 0 out_of_order 1 dropped 0");
        check("0: 1 3 4 5 | 2", "committed 5 delivered 4 lost 1 duplicates 0 out_of_order 1 dropped 0");
    }

    #[test]
    fn what_landed_without_an_acknowledgement_is_no_fault() {
        check("0: 1 2 3 4 5 6", "committed 6 delivered 6 lost 0 duplicates 0 out_of_order 0 dropped 0");
    }

    #[test]
    fn settling_drops_what_the_mark_has_passed() {
        let mut marks = BTreeMap::from([("a".to_owned(), Mark { last: 4, count: 4 })]);
        let settled = settle(&mut marks, [("a", 3), ("a", 4), ("b", 1), ("a", 5), ("b", 1)]);
        let part = |position, delivered: &[u64], dropped: &[u64]| KeyDelivery {
            position,
            delivered: delivered.into(),
            dropped: dropped.into(),
        };
        assert_eq!(settled["a"], part(4, &[5], &[3, 4]));
        assert_eq!(settled["b"], part(0, &[1], &[1]));
        assert_eq!(marks["a"], Mark { last: 5, count: 5 });
    }
}
