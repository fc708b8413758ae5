//! `fault-proxy`: the proxy by hand. All of it is in the library's `cli`.

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use tenure_fault_proxy::cli::{self, Args};
use tracing_subscriber::EnvFilter;

/// Put a proxy that misbehaves by script between an AWS SDK and an emulator.
#[derive(Parser)]
#[command(name = "fault-proxy", version)]
struct Command {
    #[command(flatten)]
    args: Args,
}

#[tokio::main]
async fn main() -> ExitCode {
    let command = Command::parse();
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn")))
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    match cli::run(command.args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fault-proxy: {}", cli::explain(&error));
            ExitCode::FAILURE
        }
    }
}
