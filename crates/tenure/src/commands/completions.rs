//! `tenure completions`: a script that completes our commands in a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::arguments::Arguments;
use crate::output::Output;

/// Print a completion script for a shell.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions zsh > ~/.zfunc/_tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Arguments::command(), "tenure", &mut script);
    out.bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
