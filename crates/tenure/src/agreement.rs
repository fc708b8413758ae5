//! Asking a person before something is gone for good.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use anyhow::Context as _;

use crate::failure::misuse;
use crate::output::one_line;

/// Asks a person.
///
/// # Errors
/// A misuse if there is none.
pub(crate) fn agreed(question: &str) -> anyhow::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        return Err(misuse(format!("this would {question}: say so with --yes")));
    }
    let mut told = std::io::stderr();
    write!(told, "This will {}. Type yes to go on: ", one_line(question)).and_then(|()| told.flush())?;
    let mut answer = String::new();
    input.lock().read_line(&mut answer).context("read the answer")?;
    Ok(answer.trim() == "yes")
}
