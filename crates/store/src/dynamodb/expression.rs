//! Conditions and updates as DynamoDB's expressions. Pure.
//!
//! ```text
//!   Condition::ne("owner", "a")   attribute_exists(#n0) AND #n0 <> :v0     #n0 = owner, :v0 = a
//!   Update::new().add("n", 1)     ADD #n0 :v0                              #n0 = n,     :v0 = 1
//! ```
//!
//! Names and values always travel as placeholders, so no name is a reserved word and no value is
//! read as a part of the expression. What is true or false of every row is folded away first:
//! DynamoDB has no word for either, and refuses doubled parentheses.
//!
//! Appending to a list what it does not have has no expression of its own. It is rendered as a plain
//! append under a guard of ours, `NOT contains(list, value)`; for a list that was seen to hold the
//! value (`held`), as no change under the opposite guard. Whoever sends it tells a refusal by the guard from
//! one by the condition, and tries again with the other rendering.

use std::collections::{BTreeMap, BTreeSet};

use tenure_backend::{Error, Result};

use crate::{Change, Comparison, Condition, Update, Value};

/// DynamoDB's limit of an expression's text.
const EXPRESSION_BYTES_MAX: usize = 4096;

/// An attribute that no row has. Removing it is a change of nothing, for an update whose only change
/// turned out to be made already: an expression may not be empty.
const NEVER_SET: &str = "tenure/never-set/5bd2c1a0";

/// Expressions that share their placeholders.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Expression {
    pub(super) condition: Option<String>,
    pub(super) update: Option<String>,
    /// Placeholder to name.
    pub(super) names: BTreeMap<String, String>,
    /// Placeholder to value.
    pub(super) values: BTreeMap<String, Value>,
}

impl Expression {
    /// The condition of a put or a delete; none if it is true of every row. `hash` is the name of the
    /// table's hash attribute, which every row has.
    pub(super) fn condition(when: &Condition, hash: &str) -> Result<Self> {
        Writer::default().conditioned(fold(when), hash)
    }

    /// The condition of a check, which must have one: one that is true of every row says so.
    pub(super) fn check(when: &Condition, hash: &str) -> Result<Self> {
        match fold(when) {
            Node::True => {
                let tautology = Node::Any(vec![Node::Exists(hash), Node::Absent(hash)]);
                Writer::default().conditioned(tautology, hash)
            }
            node => Writer::default().conditioned(node, hash),
        }
    }

    /// The condition of an update that has nothing to do while its row is not there.
    pub(super) fn still_absent(when: &Condition, hash: &str) -> Result<Self> {
        Writer::default().conditioned(all_of([fold(when), Node::Absent(hash)].into_iter()), hash)
    }

    /// An update and its condition. `held` names the lists that were seen to hold what is appended.
    pub(super) fn update(
        change: &Update,
        when: &Condition,
        hash: &str,
        held: &BTreeSet<String>,
    ) -> Result<Self> {
        let mut writer = Writer::default();
        writer.change(change, held);
        let guards = change.changes().iter().filter_map(|(name, change)| match change {
            Change::AppendUnique(value) if held.contains(name) => {
                Some(Node::All(vec![Node::IsList(name), Node::Contains(name, value)]))
            }
            Change::AppendUnique(value) => Some(Node::Not(Box::new(Node::Contains(name, value)))),
            _ => None,
        });
        // DynamoDB itself begins no row by removing; emulators do. The guard makes it the same everywhere.
        let exists = change.only_removes().then_some(Node::Exists(hash));
        let all = std::iter::once(fold(when)).chain(guards).chain(exists);
        writer.conditioned(all_of(all), hash)
    }

    /// The partition that a query asks for.
    pub(super) fn partition(name: &str, value: &Value) -> Self {
        let mut writer = Writer::default();
        let condition = writer.compared(name, "=", value);
        Self { condition: Some(condition), ..writer.expression }
    }
}

// === Folding ===

/// A condition in which nothing is constant, except the whole.
#[derive(Debug)]
enum Node<'a> {
    True,
    False,
    Exists(&'a str),
    Absent(&'a str),
    IsList(&'a str),
    Compare(&'a str, Comparison, &'a Value),
    Between(&'a str, &'a Value, &'a Value),
    In(&'a str, Vec<&'a Value>),
    Contains(&'a str, &'a Value),
    BeginsWith(&'a str, &'a Value),
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
}

fn fold(condition: &Condition) -> Node<'_> {
    match condition {
        Condition::Always => Node::True,
        Condition::Absent(name) => Node::Absent(name),
        Condition::Exists(name) => Node::Exists(name),
        // No row holds such a value, and DynamoDB refuses to be asked for it.
        Condition::Compare(name, Comparison::Ne, value) if !is_storable(value) => Node::Exists(name),
        Condition::Compare(_, _, value) if !is_storable(value) => Node::False,
        Condition::Compare(name, comparison, value) => Node::Compare(name, *comparison, value),
        Condition::Between(name, low, high) => Node::Between(name, low, high),
        Condition::In(name, values) => {
            let values: Vec<_> = values.iter().filter(|value| is_storable(value)).collect();
            if values.is_empty() { Node::False } else { Node::In(name, values) }
        }
        Condition::Contains(name, value) => Node::Contains(name, value),
        Condition::BeginsWith(name, prefix) => Node::BeginsWith(name, prefix),
        Condition::All(parts) => all_of(parts.iter().map(fold)),
        Condition::Any(parts) => any_of(parts.iter().map(fold)),
        Condition::Not(part) => match fold(part) {
            Node::True => Node::False,
            Node::False => Node::True,
            Node::Exists(name) => Node::Absent(name),
            Node::Absent(name) => Node::Exists(name),
            Node::Not(part) => *part,
            part => Node::Not(Box::new(part)),
        },
    }
}

fn all_of<'a>(parts: impl Iterator<Item = Node<'a>>) -> Node<'a> {
    let mut kept = Vec::new();
    for part in parts {
        match part {
            Node::True => {}
            Node::False => return Node::False,
            Node::All(parts) => kept.extend(parts),
            part => kept.push(part),
        }
    }
    match kept.len() {
        0 => Node::True,
        1 => kept.remove(0),
        _ => Node::All(kept),
    }
}

fn any_of<'a>(parts: impl Iterator<Item = Node<'a>>) -> Node<'a> {
    let mut kept = Vec::new();
    for part in parts {
        match part {
            Node::False => {}
            Node::True => return Node::True,
            Node::Any(parts) => kept.extend(parts),
            part => kept.push(part),
        }
    }
    match kept.len() {
        0 => Node::False,
        1 => kept.remove(0),
        _ => Node::Any(kept),
    }
}

/// Whether a row can hold the value: all but empty sets.
fn is_storable(value: &Value) -> bool {
    match value {
        Value::Ss(set) => !set.is_empty(),
        Value::Ns(set) => !set.is_empty(),
        Value::Bs(set) => !set.is_empty(),
        Value::L(values) => values.iter().all(is_storable),
        Value::M(entries) => entries.values().all(is_storable),
        _ => true,
    }
}

// === Writing ===

/// Text that stands by itself between `AND`s and `OR`s, or needs parentheses there.
enum Text {
    Atom(String),
    Joined(String),
}

impl Text {
    fn bare(self) -> String {
        match self {
            Self::Atom(text) | Self::Joined(text) => text,
        }
    }

    fn enclosed(self) -> String {
        match self {
            Self::Atom(text) => text,
            Self::Joined(text) => format!("({text})"),
        }
    }
}

#[derive(Default)]
struct Writer {
    expression: Expression,
    /// Name to placeholder.
    known: BTreeMap<String, String>,
}

impl Writer {
    fn conditioned(mut self, node: Node<'_>, hash: &str) -> Result<Expression> {
        self.expression.condition = match node {
            Node::True => None,
            Node::False => {
                let contradiction = Node::All(vec![Node::Exists(hash), Node::Absent(hash)]);
                Some(self.node(contradiction).bare())
            }
            node => Some(self.node(node).bare()),
        };
        let Expression { condition, update, .. } = &self.expression;
        for (what, text) in [("condition", condition), ("update", update)] {
            let bytes = text.as_ref().map_or(0, String::len);
            if bytes > EXPRESSION_BYTES_MAX {
                return Err(Error::invalid(format!(
                    "{what} has {bytes} bytes as a DynamoDB expression: at most {EXPRESSION_BYTES_MAX} are \
                     allowed; give it fewer parts"
                )));
            }
        }
        Ok(self.expression)
    }

    fn node(&mut self, node: Node<'_>) -> Text {
        Text::Atom(match node {
            Node::Exists(name) => format!("attribute_exists({})", self.name(name)),
            Node::Absent(name) => format!("attribute_not_exists({})", self.name(name)),
            Node::IsList(name) => {
                format!("attribute_type({}, {})", self.name(name), self.value(&Value::S("L".to_owned())))
            }
            Node::Compare(name, comparison, value) => {
                let operator = match comparison {
                    Comparison::Eq => "=",
                    Comparison::Lt => "<",
                    Comparison::Le => "<=",
                    Comparison::Gt => ">",
                    Comparison::Ge => ">=",
                    // DynamoDB's own is true of a missing attribute; ours is not.
                    Comparison::Ne => {
                        let exists = format!("attribute_exists({})", self.name(name));
                        return Text::Joined(format!("{exists} AND {}", self.compared(name, "<>", value)));
                    }
                };
                self.compared(name, operator, value)
            }
            Node::Between(name, low, high) => {
                format!("{} BETWEEN {} AND {}", self.name(name), self.value(low), self.value(high))
            }
            Node::In(name, values) => {
                let name = self.name(name);
                let values: Vec<_> = values.into_iter().map(|value| self.value(value)).collect();
                format!("{name} IN ({})", values.join(", "))
            }
            Node::Contains(name, value) => format!("contains({}, {})", self.name(name), self.value(value)),
            Node::BeginsWith(name, prefix) => {
                format!("begins_with({}, {})", self.name(name), self.value(prefix))
            }
            Node::Not(part) => format!("NOT ({})", self.node(*part).bare()),
            Node::All(parts) => return self.joined(parts, " AND "),
            Node::Any(parts) => return self.joined(parts, " OR "),
            Node::True | Node::False => unreachable!("folded away, except as the whole"),
        })
    }

    fn joined(&mut self, parts: Vec<Node<'_>>, operator: &str) -> Text {
        let parts: Vec<_> = parts.into_iter().map(|part| self.node(part).enclosed()).collect();
        Text::Joined(parts.join(operator))
    }

    fn compared(&mut self, name: &str, operator: &str, value: &Value) -> String {
        format!("{} {operator} {}", self.name(name), self.value(value))
    }

    fn change(&mut self, change: &Update, held: &BTreeSet<String>) {
        let (mut set, mut remove, mut add) = (Vec::new(), Vec::new(), Vec::new());
        for (name, change) in change.changes() {
            match change {
                Change::Set(value) => set.push(self.compared(name, "=", value)),
                Change::SetIfAbsent(value) => {
                    let (name, value) = (self.name(name), self.value(value));
                    set.push(format!("{name} = if_not_exists({name}, {value})"));
                }
                Change::Add(number) => {
                    add.push(format!("{} {}", self.name(name), self.value(&(*number).into())))
                }
                Change::AppendUnique(_) if held.contains(name) => {}
                Change::AppendUnique(value) => {
                    let name = self.name(name);
                    let (none, one) =
                        (self.value(&Value::L(vec![])), self.value(&Value::L(vec![value.clone()])));
                    set.push(format!("{name} = list_append(if_not_exists({name}, {none}), {one})"));
                }
                Change::Remove => remove.push(self.name(name)),
            }
        }
        if change.changes().is_empty() {
            // Without an expression, a row that is not there is begun and one that is stays.
            return;
        }
        if set.is_empty() && remove.is_empty() && add.is_empty() {
            remove.push(self.name(NEVER_SET));
        }
        let clauses = [("SET", set), ("REMOVE", remove), ("ADD", add)];
        let clauses = clauses.into_iter().filter(|(_, parts)| !parts.is_empty());
        let clauses: Vec<_> = clauses.map(|(word, parts)| format!("{word} {}", parts.join(", "))).collect();
        self.expression.update = Some(clauses.join(" "));
    }

    fn name(&mut self, name: &str) -> String {
        if let Some(placeholder) = self.known.get(name) {
            return placeholder.clone();
        }
        let placeholder = format!("#n{}", self.known.len());
        self.known.insert(name.to_owned(), placeholder.clone());
        self.expression.names.insert(placeholder.clone(), name.to_owned());
        placeholder
    }

    fn value(&mut self, value: &Value) -> String {
        let placeholder = format!(":v{}", self.expression.values.len());
        self.expression.values.insert(placeholder.clone(), value.clone());
        placeholder
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn shown(expression: &Expression) -> String {
        let mut lines: Vec<String> = Vec::new();
        lines.extend(expression.condition.iter().map(|text| format!("if {text}")));
        lines.extend(expression.update.clone());
        lines.extend(expression.names.iter().map(|(placeholder, name)| format!("  {placeholder} {name}")));
        lines.extend(
            expression.values.iter().map(|(placeholder, value)| format!("  {placeholder} {value:?}")),
        );
        lines.join("\n")
    }

    fn check(when: Condition, expected: Expect) {
        expected.assert_eq(&shown(&Expression::condition(&when, "pk").unwrap()));
    }

    fn check_update(change: Update, when: Condition, held: &[&str], expected: Expect) {
        let held = held.iter().map(|name| (*name).to_owned()).collect();
        expected.assert_eq(&shown(&Expression::update(&change, &when, "pk", &held).unwrap()));
    }

    #[test]
    fn each_condition() {
        check(
            Condition::absent("pk"),
            expect![[r#"
            if attribute_not_exists(#n0)
              #n0 pk"#]],
        );
        check(
            Condition::ne("owner", "a"),
            expect![[r#"
            if attribute_exists(#n0) AND #n0 <> :v0
              #n0 owner
              :v0 S("a")"#]],
        );
        check(
            Condition::le("size", 3),
            expect![[r#"
            if #n0 <= :v0
              #n0 size
              :v0 N(3)"#]],
        );
        check(
            Condition::Between("n".into(), 1.into(), 2.into()),
            expect![[r#"
            if #n0 BETWEEN :v0 AND :v1
              #n0 n
              :v0 N(1)
              :v1 N(2)"#]],
        );
        check(
            Condition::In("n".into(), vec![1.into(), "x".into()]),
            expect![[r#"
            if #n0 IN (:v0, :v1)
              #n0 n
              :v0 N(1)
              :v1 S("x")"#]],
        );
        check(
            Condition::BeginsWith("n".into(), "x".into()),
            expect![[r#"
            if begins_with(#n0, :v0)
              #n0 n
              :v0 S("x")"#]],
        );
    }

    #[test]
    fn connectives_have_just_the_parentheses_they_need() {
        let (a, b) = (Condition::eq("a", 1), Condition::ne("b", 2));
        check(
            a.clone().and(b.clone()).or(Condition::exists("a")),
            expect![[r#"
            if (#n0 = :v0 AND (attribute_exists(#n1) AND #n1 <> :v1)) OR attribute_exists(#n0)
              #n0 a
              #n1 b
              :v0 N(1)
              :v1 N(2)"#]],
        );
        check(
            !(a.clone().and(!b.clone())),
            expect![[r#"
            if NOT (#n0 = :v0 AND NOT (attribute_exists(#n1) AND #n1 <> :v1))
              #n0 a
              #n1 b
              :v0 N(1)
              :v1 N(2)"#]],
        );
        check(
            Condition::All(vec![Condition::Any(vec![a])]),
            expect![[r#"
            if #n0 = :v0
              #n0 a
              :v0 N(1)"#]],
        );
        check(
            !!b,
            expect![[r#"
            if attribute_exists(#n0) AND #n0 <> :v0
              #n0 b
              :v0 N(2)"#]],
        );
    }

    #[test]
    fn constants_are_folded_away() {
        check(Condition::Always, expect![""]);
        check(Condition::All(vec![]), expect![""]);
        check(Condition::eq("a", 1).or(!Condition::Any(vec![])), expect![""]);
        check(
            Condition::Any(vec![]),
            expect![[r#"
            if attribute_exists(#n0) AND attribute_not_exists(#n0)
              #n0 pk"#]],
        );
        let empty = Value::Ss(BTreeSet::new());
        check(
            Condition::eq("a", empty.clone()),
            expect![[r#"
            if attribute_exists(#n0) AND attribute_not_exists(#n0)
              #n0 pk"#]],
        );
        check(
            Condition::ne("a", empty),
            expect![[r#"
            if attribute_exists(#n0)
              #n0 a"#]],
        );
        let tautology = Expression::check(&Condition::Always, "pk").unwrap();
        expect![[r#"
            if attribute_exists(#n0) OR attribute_not_exists(#n0)
              #n0 pk"#]]
        .assert_eq(&shown(&tautology));
    }

    #[test]
    fn each_change() {
        let change = Update::new()
            .set("a", "x")
            .set_if_absent("b", 1)
            .remove("c")
            .add("d", -2)
            .remove("e")
            .add("f", 1);
        check_update(
            change,
            Condition::eq("a", "y"),
            &[],
            expect![[r#"
            if #n0 = :v4
            SET #n0 = :v0, #n1 = if_not_exists(#n1, :v1) REMOVE #n2, #n4 ADD #n3 :v2, #n5 :v3
              #n0 a
              #n1 b
              #n2 c
              #n3 d
              #n4 e
              #n5 f
              :v0 S("x")
              :v1 N(1)
              :v2 N(-2)
              :v3 N(1)
              :v4 S("y")"#]],
        );
        check_update(Update::new(), Condition::Always, &[], expect![""]);
    }

    #[test]
    fn an_append_is_guarded_and_turns_around_once_the_list_holds_it() {
        let change = || Update::new().append_unique("done", "i-1");
        check_update(
            change(),
            Condition::exists("pk"),
            &[],
            expect![[r#"
            if attribute_exists(#n1) AND NOT (contains(#n0, :v2))
            SET #n0 = list_append(if_not_exists(#n0, :v0), :v1)
              #n0 done
              #n1 pk
              :v0 L([])
              :v1 L([S("i-1")])
              :v2 S("i-1")"#]],
        );
        check_update(
            change(),
            Condition::exists("pk"),
            &["done"],
            expect![[r#"
            if attribute_exists(#n1) AND attribute_type(#n2, :v0) AND contains(#n2, :v1)
            REMOVE #n0
              #n0 tenure/never-set/5bd2c1a0
              #n1 pk
              #n2 done
              :v0 S("L")
              :v1 S("i-1")"#]],
        );
    }

    #[test]
    fn an_expression_that_is_too_long_is_refused_before_it_is_sent() {
        let long = Condition::Any((0..150).map(|n| Condition::ne(format!("attribute{n}"), n)).collect());
        let refused = Expression::condition(&long, "pk").unwrap_err().chain();
        assert!(refused.contains("at most 4096 are allowed"), "{refused}");
    }
}
