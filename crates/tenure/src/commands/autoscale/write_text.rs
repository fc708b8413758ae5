//! A conditional write as people read it: in the words of DynamoDB's expressions, with the values in place.

use serde_json::{Value as Json, json};
use tenure_store::{Change, Comparison, Condition, Value, Write};

use crate::item_text::plain_value_text;
use crate::output::one_line;

/// The condition and the changes of a write, a line each.
pub(super) fn lines(write: &Write) -> Vec<String> {
    let Write::Update { change, when, .. } = write else { return Vec::new() };
    let changes = change.changes().iter().map(|(name, change)| changed(name, change));
    std::iter::once(format!("only if {}", condition(when))).chain(changes).collect()
}

/// The same for machines.
pub(super) fn as_json(write: &Write) -> Json {
    let Write::Update { table, change, when, .. } = write else { return Json::Null };
    let changes: Vec<_> = change.changes().iter().map(|(name, change)| changed(name, change)).collect();
    json!({ "table": table, "condition": condition(when), "update": changes })
}

fn changed(name: &str, change: &Change) -> String {
    match change {
        Change::Set(to) => format!("SET {name} = {}", value(to)),
        Change::SetIfAbsent(to) => format!("SET {name} = if_not_exists({name}, {})", value(to)),
        Change::Add(number) => format!("ADD {name} {number}"),
        Change::AppendUnique(to) => format!("SET {name} = list_append({name}, [{}])", value(to)),
        Change::Remove => format!("REMOVE {name}"),
    }
}

fn condition(of: &Condition) -> String {
    let joined = |parts: &[Condition], word: &str| match parts {
        [one] => condition(one),
        _ => parts.iter().map(inner).collect::<Vec<_>>().join(word),
    };
    match of {
        Condition::Always => "always".to_owned(),
        Condition::Absent(name) => format!("attribute_not_exists({name})"),
        Condition::Exists(name) => format!("attribute_exists({name})"),
        Condition::Compare(name, comparison, with) => format!("{name} {} {}", sign(*comparison), value(with)),
        Condition::Between(name, from, to) => format!("{name} BETWEEN {} AND {}", value(from), value(to)),
        Condition::In(name, values) => {
            let values: Vec<_> = values.iter().map(value).collect();
            format!("{name} IN ({})", values.join(", "))
        }
        Condition::Contains(name, with) => format!("contains({name}, {})", value(with)),
        Condition::BeginsWith(name, with) => format!("begins_with({name}, {})", value(with)),
        Condition::All(parts) => joined(parts, " AND "),
        Condition::Any(parts) => joined(parts, " OR "),
        Condition::Not(part) => format!("NOT {}", inner(part)),
    }
}

/// In brackets if it has parts of its own.
fn inner(of: &Condition) -> String {
    match of {
        Condition::All(parts) | Condition::Any(parts) if parts.len() > 1 => format!("({})", condition(of)),
        _ => condition(of),
    }
}

const fn sign(comparison: Comparison) -> &'static str {
    match comparison {
        Comparison::Eq => "=",
        Comparison::Ne => "<>",
        Comparison::Lt => "<",
        Comparison::Le => "<=",
        Comparison::Gt => ">",
        Comparison::Ge => ">=",
    }
}

fn value(of: &Value) -> String {
    one_line(&plain_value_text(of))
}

#[cfg(test)]
mod tests {
    use tenure_store::{Key, Update};

    use super::*;

    #[test]
    fn a_write_reads_as_its_expressions() {
        let idle = Condition::Any(vec![
            Condition::absent("scalingInProgress"),
            Condition::eq("scalingInProgress", false),
        ]);
        let write = Write::Update {
            table: "state".to_owned(),
            key: Key::new("pk", "cluster"),
            change: Update::new().set("lockOwner", "a").add("rev", 1).remove("lastFailure"),
            when: Condition::All(vec![idle, Condition::le("nextAllowedEpoch", 7)]),
        };
        assert_eq!(
            lines(&write),
            [
                "only if (attribute_not_exists(scalingInProgress) OR scalingInProgress = false) AND nextAllowedEpoch <= 7",
                "SET lockOwner = \"a\"",
                "ADD rev 1",
                "REMOVE lastFailure",
            ]
        );
        assert_eq!(as_json(&write)["update"][1], "ADD rev 1");
    }
}
