//! What each captured table looked like, for the next leader: pure.
//!
//! A leader tells readers when a table's shape changes. It sees the change because it knew the table before;
//! a leader that has just begun knows none. So the shapes are a row of their own, beside the checkpoint.
//!
//! - CP-18: the row holds the shapes as they were at the checkpoint: both are written in one transaction, and
//!   a shape is not in it before the checkpoint has passed the transaction that showed it. Whoever begins at
//!   the checkpoint sees every later change, and tells it at the same place under the same identity.
//!
//! A table is known by its number, so that another name is a change, and a table that was dropped and made
//! anew is another table. Numbers mean something on one server only: those of another are forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tenure_store::{Condition, Item, Key, Value, Write};
use tenure_stream::identity::Lsn;

use crate::checkpoint::CheckpointPlace;

/// Most tables that are remembered: their row stays far below what a store takes.
const TABLES_MAX: usize = 4096;

/// See the module.
#[derive(Debug, Clone, Default)]
pub struct Shapes {
    system_id: Arc<str>,
    /// The digest of each table's shape at the checkpoint, by the table's number.
    known: BTreeMap<u32, u64>,
    /// What was seen since, in the order of commits.
    seen: VecDeque<(Lsn, u32, u64)>,
    /// The row says something else.
    dirty: bool,
}

impl Shapes {
    /// What the row says, if there is one, and it is of this server. What it does not say in the usual way
    /// is not known.
    #[must_use]
    pub fn read(row: Option<&Item>, system_id: Arc<str>) -> Self {
        let row = row.filter(|row| row.text("system_id") == Some(&*system_id));
        let known = match row.and_then(|row| row.get("shapes")) {
            Some(Value::M(shapes)) => shapes.iter().filter_map(read_shape).take(TABLES_MAX).collect(),
            _ => BTreeMap::new(),
        };
        Self { system_id, known, ..Self::default() }
    }

    /// Whether the table is remembered, and looked otherwise.
    #[must_use]
    pub fn differs(&self, table: u32, digest: u64) -> bool {
        self.known.get(&table).is_some_and(|known| *known != digest)
            && !tenure_planted::is("shapes_are_forgotten")
    }

    /// The transaction that commits here showed a table as it was not known.
    pub fn saw(&mut self, commit: Lsn, table: u32, digest: u64) {
        self.seen.push_back((commit, table, digest));
    }

    /// Brings them to where the checkpoint is about to be. Whether the row must be written with it.
    pub fn advance(&mut self, below: Lsn) -> bool {
        let early = tenure_planted::is("shapes_run_ahead");
        while let Some((_, table, digest)) = self.seen.pop_front_if(|(commit, ..)| *commit < below || early) {
            if self.known.get(&table) == Some(&digest) {
                continue;
            }
            if self.known.len() >= TABLES_MAX && !self.known.contains_key(&table) {
                // As a rule the table that was made first: of what comes and goes, it is long gone.
                self.known.pop_first();
            }
            self.known.insert(table, digest);
            self.dirty = true;
        }
        self.dirty
    }

    /// The row holds them.
    pub const fn written(&mut self) {
        self.dirty = false;
    }

    /// Writes the row, in the checkpoint's transaction.
    #[must_use]
    pub fn write(&self, place: &CheckpointPlace) -> Write {
        let shape = |(table, digest): (&u32, &u64)| (table.to_string(), Value::S(format!("{digest:016x}")));
        let item = shapes_key(place)
            .as_item()
            .clone()
            .with("system_id", &*self.system_id)
            .with("shapes", Value::M(self.known.iter().map(shape).collect()));
        Write::Put { table: place.table.to_string(), item, when: Condition::Always }
    }
}

/// Where the row is.
#[must_use]
pub fn shapes_key(place: &CheckpointPlace) -> Key {
    // A source has no `#` in its name.
    Key::new("pk", format!("CDC#{}", place.stream)).and("sk", format!("{}#shapes", place.source))
}

fn read_shape((table, digest): (&String, &Value)) -> Option<(u32, u64)> {
    Some((table.parse().ok()?, u64::from_str_radix(digest.as_text()?, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> CheckpointPlace {
        CheckpointPlace { table: "t".into(), stream: "orders".into(), source: "shop".into() }
    }

    fn row(shapes: &Shapes) -> Item {
        match shapes.write(&place()) {
            Write::Put { item, .. } => item,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_row_holds_what_the_checkpoint_has_passed_and_nothing_later() {
        let mut shapes = Shapes::read(None, "7301".into());
        assert!(!shapes.differs(1, 10), "nothing is known of it");
        shapes.saw(Lsn(100), 1, 10);
        shapes.saw(Lsn(200), 1, 11);
        assert!(!shapes.advance(Lsn(100)), "not passed yet");
        assert!(shapes.advance(Lsn(108)));
        let next = Shapes::read(Some(&row(&shapes)), "7301".into());
        assert!(next.differs(1, 11) && !next.differs(1, 10), "whoever begins here will see the change");
        assert!(shapes.advance(Lsn(109)), "until it is written");
        shapes.written();
        assert!(!shapes.advance(Lsn(200)));
        assert!(shapes.advance(Lsn(208)));
        let next = Shapes::read(Some(&row(&shapes)), "7301".into());
        assert!(next.differs(1, 10) && !next.differs(1, 11));
    }

    #[test]
    fn the_row_reads_as_documented() {
        let mut shapes = Shapes::read(None, "7301".into());
        shapes.saw(Lsn(1), 16390, 0xab);
        shapes.advance(Lsn(2));
        let row = row(&shapes);
        expect_test::expect![[r#"
            pk: S("CDC#orders")
            sk: S("shop#shapes")
            system_id: S("7301")
            shapes: M({"16390": S("00000000000000ab")})
        "#]]
        .assert_eq(
            &["pk", "sk", "system_id", "shapes"]
                .map(|name| format!("{name}: {:?}\n", row.get(name).unwrap()))
                .concat(),
        );
    }

    #[test]
    fn another_server_and_another_hand_are_not_taken_for_knowledge() {
        let mut shapes = Shapes::read(None, "7301".into());
        shapes.saw(Lsn(1), 1, 10);
        shapes.advance(Lsn(2));
        let mut row = row(&shapes);
        assert!(!Shapes::read(Some(&row), "7302".into()).differs(1, 11));
        for broken in [
            Value::S("x".to_owned()),
            Value::M(BTreeMap::from([("1".to_owned(), Value::Null), ("x".to_owned(), Value::S("1".into()))])),
        ] {
            row.set("shapes", broken);
            assert!(!Shapes::read(Some(&row), "7301".into()).differs(1, 11));
        }
    }

    #[test]
    fn however_many_tables_there_are_the_row_stays_small() {
        let mut shapes = Shapes::read(None, "7301".into());
        for table in 1..=10_000 {
            shapes.saw(Lsn(1), table, u64::MAX);
        }
        assert!(shapes.advance(Lsn(2)));
        assert!(shapes.differs(10_000, 1) && !shapes.differs(1, 1), "the oldest is forgotten");
        let Some(Value::M(written)) = row(&shapes).get("shapes").cloned() else { panic!() };
        assert_eq!(written.len(), TABLES_MAX);
        let bytes: usize = written.keys().map(|table| table.len() + 16).sum();
        assert!(bytes < 128 << 10, "{bytes}");
    }
}
