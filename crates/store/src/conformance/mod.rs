//! One suite that every backend and every wrapper runs.
//!
//! A backend's test file is short:
//!
//! ```ignore
//! async fn open() -> Subject { Subject::new(my_store) }
//! tenure_store::store_conformance!(open);
//! ```
//!
//! which makes one test per case, so that they run apart and in parallel. Tables carry a prefix
//! drawn per test, so that tests on one server do not meet.

mod model;
mod races;
mod reads;
mod tables;
mod writes;

use std::any::Any;
use std::sync::Arc;

use tenure_clock::Entropy;

pub use self::model::*;
pub use self::races::*;
pub use self::reads::*;
pub use self::tables::*;
pub use self::writes::*;
use crate::testing::soon;
use crate::{Condition, Item, Key, KeyAttribute, Store, StoreExt, TableSpec, Written};

/// A freshly opened store, and whatever must live as long as it does.
#[derive(Debug)]
pub struct Subject {
    /// The store under test.
    pub store: Arc<dyn Store>,
    prefix: String,
    _guard: Box<dyn Any + Send + Sync>,
}

impl Subject {
    /// A store that needs nothing else.
    pub fn new(store: impl Store + 'static) -> Self {
        Self::guarded(store, ())
    }

    /// A store that lives in something: a directory, a server, a schema.
    pub fn guarded(store: impl Store + 'static, guard: impl Any + Send + Sync) -> Self {
        let prefix = format!("t{}", &Entropy::system().nonce()[..12]);
        Self { store: Arc::new(store), prefix, _guard: Box::new(guard) }
    }

    fn named(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// A table with a text key `pk`.
    async fn table(&self, name: &str) -> String {
        self.create(TableSpec::new(self.named(name), KeyAttribute::text("pk"))).await
    }

    /// A table with the keys `pk` and `sk`, both text.
    async fn sorted_table(&self, name: &str, range: KeyAttribute) -> String {
        self.create(TableSpec::new(self.named(name), KeyAttribute::text("pk")).with_range(range)).await
    }

    async fn create(&self, spec: TableSpec) -> String {
        self.store.ensure_table(soon(), &spec).await.expect("the table is created");
        spec.name
    }

    async fn put(&self, table: &str, item: Item) {
        let written = self.store.put(soon(), table, item, Condition::Always).await.expect("put");
        assert!(written.is_applied(), "a put without a condition applies");
    }

    async fn get(&self, table: &str, pk: &str) -> Option<Item> {
        self.store.get(soon(), table, &Key::new("pk", pk)).await.expect("get")
    }
}

#[track_caller]
fn applied(written: crate::Result<Written>) -> Item {
    match written {
        Ok(Written::Applied(item)) => item,
        other => panic!("expected it to be applied, got {other:?}"),
    }
}

#[track_caller]
fn refused(written: crate::Result<Written>) -> (usize, Option<Item>) {
    match written {
        Ok(Written::Refused(refusal)) => (refusal.index, refusal.current),
        other => panic!("expected it to be refused, got {other:?}"),
    }
}

#[track_caller]
fn invalid<T: std::fmt::Debug>(result: crate::Result<T>) -> String {
    match result {
        Err(error) if error.kind() == crate::Kind::Invalid => error.chain(),
        other => panic!("expected Invalid, got {other:?}"),
    }
}

/// Makes one test per case of the suite, each with a fresh subject from `$open().await`.
#[macro_export]
macro_rules! store_conformance {
    ($open:path) => {
        $crate::store_conformance! { @cases $open:
            a_missing_row_reads_as_none
            every_type_round_trips
            texts_of_all_kinds_round_trip
            a_large_item_round_trips
            a_put_replaces_the_whole_row
            a_put_on_condition
            a_refusal_shows_the_row
            an_update_begins_changes_and_removes
            an_update_on_condition
            an_update_that_does_not_fit_changes_nothing
            an_update_without_changes_begins_the_row
            an_update_that_only_removes_begins_no_row
            a_delete_shows_what_went
            a_transaction_is_all_or_nothing
            a_transaction_checks_rows_it_does_not_write
            a_transaction_says_which_write_was_refused
            a_transaction_appends_once
            bad_transactions_are_invalid
            oversize_items_are_invalid
            wrong_keys_are_invalid
            a_missing_table_is_invalid
            bad_names_are_invalid
            partitions_list_in_order_and_in_pages
            numbers_sort_as_numbers
            bytes_sort_as_bytes
            an_index_finds_rows_by_another_attribute
            an_index_pages_among_equal_rows
            a_scan_shows_every_row_once
            bad_pages_are_invalid
            tables_describe_themselves
            a_table_is_created_once_by_many
            an_index_that_contradicts_another_is_refused
            a_table_of_another_shape_is_refused
            an_index_may_come_later
            an_expired_row_is_still_a_row
            one_of_many_wins_the_race
            counters_lose_no_increment
            appends_lose_no_element
            crossing_transactions_do_not_skew
            random_histories_agree_with_memory
        }
    };
    (@cases $open:path: $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                $crate::conformance::$case($open().await).await;
            }
        )*
    };
}
