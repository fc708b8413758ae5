//! `tenure-sim`: runs schedules and says what broke.

use std::process::ExitCode;

use clap::Parser;
use tenure_sim::command::Arguments;

fn main() -> ExitCode {
    tenure_sim::command::run(&Arguments::parse())
}
