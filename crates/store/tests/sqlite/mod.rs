//! The embedded default: the suite, several processes, kills, power loss, and bad files.

mod bad_files;
mod kills;
mod power_loss;
mod processes;
mod sweeping;

use std::path::Path;

use tenure_store::conformance::Subject;
use tenure_store::testing::env;
use tenure_store::{Item, KeyAttribute, Sqlite, TableSpec};

async fn open() -> Subject {
    let dir = tempfile::tempdir().unwrap();
    let store = Sqlite::open(&dir.path().join("tenure.db"), &env(0)).unwrap();
    Subject::guarded(store, dir)
}

tenure_store::store_conformance!(open);

#[tokio::test]
async fn tables_whose_names_differ_in_case_are_two() {
    tenure_store::conformance::tables_whose_names_differ_in_case_are_two(open().await).await;
}

fn open_at(path: &Path) -> Sqlite {
    Sqlite::open(path, &env(0)).unwrap()
}

fn spec() -> TableSpec {
    TableSpec::new("rows", KeyAttribute::text("pk"))
}

fn row(pk: impl std::fmt::Display) -> Item {
    Item::new().with("pk", pk.to_string())
}
