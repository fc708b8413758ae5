//! Prints `docs/autoscaler-states.md` from the transition table.

fn main() {
    print!("{}", tenure_autoscaler::table::document());
}
