//! `tenure config check`: the merged settings, and where each value came from.

use std::process::ExitCode;

use serde_json::json;

use crate::output::Output;
use crate::settings::{KEYS, Key, Loaded};

/// Look at the settings.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure config check
  tenure config check --config /etc/tenure.toml --json")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// Check the settings and show the merged result, passwords masked
    #[command(after_help = "\
Nothing is opened or connected to; `tenure doctor` does that.

Examples:
  tenure config check
  TENURE__STORE__URL=memory: tenure config check --json")]
    Check,
}

/// Shows what [`crate::settings::load`] found.
pub(crate) fn run(args: &Args, loaded: anyhow::Result<Loaded>, out: &Output) -> anyhow::Result<ExitCode> {
    let Verb::Check = args.verb;
    let loaded = loaded?;
    let file = loaded.file.as_ref().map(|path| path.display().to_string());
    let wide = KEYS.iter().map(|key| key.path().len()).max().unwrap_or_default();
    for key in &KEYS {
        say_key(key, &loaded, wide, out)?;
    }
    out.say(
        || json!({ "ok": true, "file": file }),
        || match &file {
            Some(file) => format!("ok: {file} and its surroundings are valid"),
            None => "ok: there is no tenure.toml; write one with `tenure init`".to_owned(),
        },
    )?;
    Ok(ExitCode::SUCCESS)
}

fn say_key(key: &Key, loaded: &Loaded, wide: usize, out: &Output) -> anyhow::Result<()> {
    let (path, value, source) = (key.path(), loaded.settings.shown(key), loaded.source(key));
    out.say(
        || json!({ "key": path, "value": value, "source": source.word(), "where": source.to_string() }),
        || format!("{path:wide$}  {}  ({source})", value.as_deref().unwrap_or("-")),
    )
}
