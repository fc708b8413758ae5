//! `tenure`, the binary: each command parses, opens a store or a stream, calls the library, and prints.
//!
//! - `arguments.rs` is the command line; `settings/` is `tenure.toml`, environment and flags, merged.
//! - `context.rs` is what every command gets; `output.rs` prints text or JSON lines.
//! - `failure.rs` is the one place that knows exit statuses.
//! - `commands/` has a file per command.

mod agreement;
mod arguments;
mod attribute;
mod commands;
mod context;
mod failure;
mod instance;
mod item_text;
mod logging;
mod looking;
mod output;
mod record_line;
mod serving;
mod settings;
mod shutdown;
mod timestamp;

use std::process::ExitCode;

use clap::Parser;
use tenure_textual::{duration, size};

use crate::arguments::{Arguments, Command};
use crate::commands::election::guard;

fn main() -> ExitCode {
    let Arguments { global, command } = Arguments::parse();
    let command = match command {
        // Processes of their own kind: no threads, no settings.
        Command::ElectGuard(args) => return guard::run(args),
        Command::ElectExec(args) => return guard::exec(&args),
        command => command,
    };
    let arguments = Arguments { global, command };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failure::report(&anyhow::Error::new(error).context("start the runtime")),
    };
    let code = runtime.block_on(commands::run(arguments)).unwrap_or_else(|error| failure::report(&error));
    // A thread may be waiting for a line of standard input that never comes.
    runtime.shutdown_background();
    code
}
