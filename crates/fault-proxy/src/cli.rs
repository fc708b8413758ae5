//! The command: parse, start, print where, wait for a signal, print the counts.
//!
//! A module of the library, so that another command can carry it as a subcommand.

use std::fmt::Write as _;
use std::io::{self, Read, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

use clap::builder::StyledStr;
use serde_json::json;
use tenure_clock::SystemClock;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::Error;
use crate::exchange::BODY_BYTES_MAX;
use crate::fault::{FORMS, ThrottleCode};
use crate::proxy::FaultProxy;
use crate::rule;
use crate::script::Script;

/// The arguments of `fault-proxy`.
#[derive(Debug, Clone, clap::Args)]
#[command(after_long_help = after_long_help())]
pub struct Args {
    /// The emulator's URL, on loopback
    #[arg(long, value_name = "URL")]
    pub upstream: String,

    /// Where to listen, on loopback; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    pub listen: String,

    /// A rule such as `PutItem=throttle@0.1`; may be given many times, asked in order after the
    /// script's own
    #[arg(long = "rule", value_name = "RULE")]
    pub rules: Vec<String>,

    /// A script in JSON, as `PUT /__faults` takes it
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,

    /// The seed of all draws, before the script's own; 0 if neither says
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Print JSON lines
    #[arg(long)]
    pub json: bool,
}

/// Runs the proxy until SIGINT or SIGTERM. A second signal leaves at once.
///
/// # Errors
/// As [`FaultProxy::start_with`], or a rule, the script, stdout or the signals are not usable.
pub async fn run(args: Args) -> Result<(), Error> {
    let script = script(&args)?;
    let mut signals = Signals::new()?;
    let seed = script.seed();
    let proxy = FaultProxy::start_with(&args.listen, &args.upstream, script, Arc::new(SystemClock)).await?;
    if args.json {
        print(&json!({ "url": proxy.url(), "upstream": proxy.upstream_url(), "seed": seed }).to_string())?;
    } else {
        print(&proxy.url())?;
    }

    signals.next().await;
    let report = proxy.report();
    let text = if args.json { report.to_string() } else { summary(&proxy) };
    tokio::select! {
        biased;
        () = proxy.stop() => {}
        () = signals.next() => {}
    }
    print(&text)
}

/// An error with what caused it, for a person.
#[must_use]
pub fn explain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        let _ = write!(text, ": {error}");
        source = error.source();
    }
    text
}

/// The file's rules, then the command line's.
fn script(args: &Args) -> Result<Script, Error> {
    let file = match &args.script {
        None => Script::default(),
        Some(path) => {
            let mut json = Vec::new();
            std::fs::File::open(path)
                .and_then(|file| file.take(BODY_BYTES_MAX as u64).read_to_end(&mut json))
                .map_err(|source| Error::ScriptFile { path: path.clone(), source })?;
            Script::from_json(&json).map_err(|source| Error::ScriptJson { path: path.clone(), source })?
        }
    };
    let mut rules = file.rules().to_vec();
    for text in &args.rules {
        rules.push(text.parse()?);
    }
    Ok(Script::new(args.seed.unwrap_or(file.seed()), rules))
}

/// What came by, one line per kind, and one per rule: a rule that saw nothing is likely a slip.
fn summary(proxy: &FaultProxy) -> String {
    let (counts, script) = (proxy.counts(), proxy.script());
    let mut text = String::new();
    for (kind, count) in counts.kinds() {
        let _ = write!(text, "{kind}: {} seen", count.seen);
        for (fault, injected) in &count.injected {
            let _ = write!(text, ", {injected} {fault}");
        }
        text.push('\n');
    }
    for (rule, progress) in script.rules().iter().zip(script.progress()) {
        let _ = writeln!(text, "rule {rule}: {} seen, {} injected", progress.seen, progress.injected);
    }
    text.truncate(text.trim_end().len());
    if text.is_empty() { "no requests".to_owned() } else { text }
}

fn print(text: &str) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{text}")
        .and_then(|()| stdout.flush())
        .map_err(|source| Error::Process { action: "print to stdout", source })
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Error> {
        let open =
            |kind| signal(kind).map_err(|source| Error::Process { action: "listen for signals", source });
        Ok(Self { interrupt: open(SignalKind::interrupt())?, terminate: open(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

fn after_long_help() -> StyledStr {
    let mut text = format!("Rules: {}\n\n", rule::FORM);
    text.push_str(
        "  KIND is an operation (PutItem, PutRecords, …) or * for any request. Rules are asked in order and\n  \
         the first that fires decides. +SKIP lets that many matching requests pass first, #TIMES bounds the\n  \
         hits, @CHANCE is the chance of each request.\n\nFaults:\n",
    );
    for (_, form, meaning) in FORMS {
        let _ = writeln!(text, "  {form:<32} {meaning}");
    }
    let codes = ThrottleCode::ALL.map(ThrottleCode::as_str).join(",\n        ");
    let _ = write!(
        text,
        "\n  CODE: {codes}\n\n\
         Examples:\n  \
         --rule PutItem=throttle                every PutItem is throttled\n  \
         --rule UpdateItem=lose_reply#1         the first one is applied and its reply lost\n  \
         --rule 'GetItem=server_error(503)+2#3' two pass, then three get a 503\n  \
         --rule 'PutRecords=partial(0.3)@0.5'   half of the calls lose 30 % of their records\n  \
         --rule '*=delay(20ms)@0.1'             one request in ten is late\n\n\
         A script in JSON (--script, PUT /__faults; GET /__faults tells script and counts):\n  \
         {{\"seed\": 42, \"rules\": [\"PutItem=throttle#1\",\n    \
         {{\"on\": \"PutRecords\", \"fault\": \"partial(0.3)\", \"chance\": 0.5, \"skip\": 2, \"times\": 3}}]}}"
    );
    text.into()
}
