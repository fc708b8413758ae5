//! `tenure init`: writes a commented `tenure.toml`.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;

use crate::failure::misuse;
use crate::output::Output;
use crate::settings::{Preset, template};

/// Write a commented tenure.toml.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure init
  tenure init --preset aws
  tenure init --preset mixed --path /etc/tenure.toml --force")]
pub(crate) struct Args {
    /// Where rows and records are to live
    #[arg(long, default_value = "embedded")]
    preset: Preset,

    /// The file to write
    #[arg(long, value_name = "FILE", default_value = "tenure.toml")]
    path: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    force: bool,
}

/// Writes the file, whole or not at all.
pub(crate) fn run(args: Args, out: &Output) -> anyhow::Result<ExitCode> {
    let Args { preset, path, force } = args;
    let shown = path.display().to_string();
    let text = template(preset);
    if force {
        // Beside it first, so that nobody finds half a file.
        let beside = PathBuf::from(format!("{shown}.new"));
        std::fs::write(&beside, text).with_context(|| format!("write {}", beside.display()))?;
        std::fs::rename(&beside, &path).with_context(|| format!("write {shown}"))?;
    } else {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(|error| {
            match error.kind() {
                ErrorKind::AlreadyExists => misuse(format!(
                    "{shown} is there already: replace it with --force, or choose another --path"
                )),
                _ => anyhow::Error::new(error).context(format!("write {shown}")),
            }
        })?;
        file.write_all(text.as_bytes()).with_context(|| format!("write {shown}"))?;
    }
    out.say(
        || json!({ "written": shown }),
        || format!("wrote {shown}: look it over, then try it with `tenure doctor`"),
    )?;
    Ok(ExitCode::SUCCESS)
}
