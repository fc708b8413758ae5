//! The binary as whoever runs it meets it. The torture itself is a step of `cargo xtask test`.

use std::process::{Command, Output};

fn torture(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tenure-torture")).args(arguments).output().expect("it starts")
}

#[test]
fn mistakes_are_refused_before_anything_starts() {
    for (arguments, complaint) in
        [(&["cdc", "--kills", "0"][..], "--kills"), (&["cdc", "--seed", "x"], "--seed"), (&["cdd"], "cdd")]
    {
        let output = torture(arguments);
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(complaint), "{arguments:?}");
    }
}

#[test]
fn without_its_binary_it_says_so_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-torture"));
    command.args(["cdc", "--tenure", "/nowhere/tenure"]).env("TMPDIR", folder.path());
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("/nowhere/tenure"), "{told}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "{told}");
}
