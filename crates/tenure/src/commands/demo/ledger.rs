//! The ledger: what had its effect, beside what was committed. Pure.
//!
//! Every change of a row gives it the next version: 1 when it is inserted, one more with each update, and one
//! more when it is deleted. So a row that was changed five times must have had the effects 1 to 5, each once,
//! one after the other.

use std::collections::BTreeMap;

/// A row of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RowKey {
    pub table: String,
    pub id: i64,
}

/// One effect, as the workers wrote it down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effect {
    pub row: RowKey,
    pub version: i64,
    /// How often it was had.
    pub times: i64,
    /// Whether the version before was the last one then.
    pub in_order: bool,
}

/// What the comparison found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Changes that were committed.
    pub committed: u64,
    /// Of them, those that had their effect.
    pub delivered: u64,
    /// Of them, those that had none.
    pub lost: u64,
    /// Effects beyond the first of a change, and effects of no change at all.
    pub duplicates: u64,
    /// Effects that did not follow on the version before.
    pub out_of_order: u64,
}

/// Compares the last committed version of every row with all effects.
pub(super) fn compare(committed: &BTreeMap<RowKey, i64>, effects: &[Effect]) -> Findings {
    let mut findings =
        Findings { committed: committed.values().map(|&last| count(last)).sum(), ..Findings::default() };
    for effect in effects {
        let last = committed.get(&effect.row).copied().unwrap_or(0);
        let is_known = (1..=last).contains(&effect.version);
        findings.delivered += u64::from(is_known);
        findings.duplicates += count(effect.times) - u64::from(is_known);
        findings.out_of_order += u64::from(!effect.in_order);
    }
    findings.lost = findings.committed - findings.delivered;
    findings
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row with three committed changes, and effects given as `version*times`, with `!` if out of order.
    fn check(effects: &str, expected: &str) {
        let row = RowKey { table: "orders".to_owned(), id: 7 };
        let effects: Vec<_> = effects
            .split_whitespace()
            .map(|text| {
                let (text, in_order) = text.strip_suffix('!').map_or((text, true), |text| (text, false));
                let (version, times) = text.split_once('*').unwrap_or((text, "1"));
                let (version, times) = (version.parse().unwrap(), times.parse().unwrap());
                Effect { row: row.clone(), version, times, in_order }
            })
            .collect();
        let found = compare(&BTreeMap::from([(row, 3)]), &effects);
        let shown = format!(
            "{} of {}, lost {}, duplicates {}, out of order {}",
            found.delivered, found.committed, found.lost, found.duplicates, found.out_of_order
        );
        assert_eq!(shown, expected, "{effects:?}");
    }

    #[test]
    fn every_kind_of_damage_is_seen() {
        check("1 2 3", "3 of 3, lost 0, duplicates 0, out of order 0");
        check("1 3!", "2 of 3, lost 1, duplicates 0, out of order 1");
        check("", "0 of 3, lost 3, duplicates 0, out of order 0");
        check("1 2*2 3", "3 of 3, lost 0, duplicates 1, out of order 0");
        check("1 2! 3", "3 of 3, lost 0, duplicates 0, out of order 1");
        check("1 2 3 4", "3 of 3, lost 0, duplicates 1, out of order 0");
    }
}
