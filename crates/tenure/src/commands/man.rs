//! `tenure man`: the manual, made from the same words as `--help`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory;
use serde_json::json;

use crate::arguments::Arguments;
use crate::output::Output;

/// Print the man page, or write all of them to a directory.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure man | man -l -
  tenure man --out ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Write a page per command to this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// Prints the main page, or writes every page.
pub(crate) fn run(args: &Args, out: &Output) -> anyhow::Result<ExitCode> {
    let command = Arguments::command();
    let Some(directory) = &args.out else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page).context("write the man page")?;
        out.bytes(&page)?;
        return Ok(ExitCode::SUCCESS);
    };
    let shown = directory.display().to_string();
    std::fs::create_dir_all(directory).with_context(|| format!("create {shown}"))?;
    clap_mangen::generate_to(command, directory).with_context(|| format!("write man pages to {shown}"))?;
    out.say(|| json!({ "written": shown }), || format!("wrote the man pages to {shown}"))?;
    Ok(ExitCode::SUCCESS)
}
