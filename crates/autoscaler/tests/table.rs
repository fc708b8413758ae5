//! The one transition table, and what is printed of it.

use std::collections::BTreeSet;

use tenure_autoscaler::rows::{decode, encode};
use tenure_autoscaler::table::{TABLE, document};

use crate::seed_items::item;

#[test]
fn the_page_is_up_to_date() {
    let page =
        std::fs::read_to_string("../../docs/autoscaler-states.md").expect("run it in the crate's folder");
    assert!(
        page == document(),
        "docs/autoscaler-states.md is not what the table says: run \
         `cargo run -p tenure-autoscaler --example autoscaler_states > docs/autoscaler-states.md`"
    );
}

#[test]
fn the_entries_on_the_page_are_read() {
    let page = document();
    let (_, from) = page.split_once("```json\n").unwrap();
    let (json, _) = from.split_once("```").unwrap();
    let shown = item(json);
    let state = decode(&shown).unwrap();
    assert_eq!(encode(&state), shown);
    assert!(
        state.up_slots.is_some()
            && state.down_nodes.is_some()
            && state.node_backoff.is_some()
            && state.interrupts.is_some()
    );
}

#[test]
fn a_name_finds_its_row() {
    let mut titles = BTreeSet::new();
    for row in &TABLE {
        assert_eq!(row.name.row().title, row.title);
        assert!(titles.insert(row.title), "{} is there twice", row.title);
    }
}

#[test]
fn there_is_no_way_back_from_what_was_meant() {
    for row in &TABLE {
        for (from, to) in row.edges {
            match *from {
                "REAPING" => assert_eq!(*to, "REAPED"),
                "TERMINATING" => assert_eq!(*to, "DONE"),
                "DONE" | "REAPED" | "ROLLED_BACK" | "JOINED" => panic!("{from} is an end"),
                _ => {}
            }
        }
    }
}
