//! The commands, and what is made ready before one runs.

pub(crate) mod autoscale;
#[cfg(feature = "postgres")]
pub(crate) mod cdc;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod consumer;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
pub(crate) mod demo;
pub(crate) mod dlq;
pub(crate) mod doctor;
pub(crate) mod election;
pub(crate) mod init;
pub(crate) mod man;
pub(crate) mod store;
pub(crate) mod stream;

use std::process::ExitCode;

use anyhow::anyhow;
use tenure_backend::Env;

use self::consumer::{capacity, consume, leases, workers};
use self::election::{elect, leaders, resign};
use crate::arguments::{Arguments, Command, Global};
use crate::context::Context;
use crate::failure::misuse;
use crate::output::{Closed, Output};
use crate::settings::{self, Flag, Loaded, Log, Settings};
use crate::{logging, serving};

/// Runs the command and answers the exit status.
///
/// # Errors
/// What `failure::report` makes a line and a status of.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let only_looks = arguments.command.only_looks();
    Box::pin(carry_out(arguments)).await.map_err(|error| match error.downcast_ref::<Closed>() {
        // Whoever closed our output must not take what was refused or given up for done.
        Some(_) if !only_looks => anyhow!("standard output was closed before the outcome could be told"),
        _ => error,
    })
}

async fn carry_out(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { global, command } = arguments;
    if global.metrics.is_some() && !command.is_long_running() {
        return Err(misuse(
            "--metrics is for commands that stay: elect, cdc run, consume, autoscale run --loop, leaders --watch, store watch, stream tail --follow, \
             stream put --lines",
        ));
    }
    if global.json && matches!(&command, Command::Completions(_) | Command::Man(man::Args { out: None })) {
        return Err(misuse("--json does not fit here: a script or a page is printed as it is"));
    }
    // These need no settings, and help to mend them.
    let out = Output::new(global.json);
    let done = match command {
        Command::Init(args) => init::run(args, &out),
        Command::Completions(args) => completions::run(&args, &out),
        Command::Man(args) => man::run(&args, &out),
        Command::Config(args) => config::run(&args, load(&global), &out),
        #[cfg(all(feature = "sqlite", feature = "postgres"))]
        Command::Demo(args) => {
            begin_to_log(&global)?;
            return demo::run(args, global.json).await;
        }
        #[cfg(all(feature = "sqlite", feature = "postgres"))]
        Command::DemoMember(args) => return demo::run_member(&args),
        #[cfg(all(feature = "sqlite", feature = "postgres"))]
        Command::DemoWorker(args) => {
            let context = begin_to_tell(load(&global)?, &global, out)?;
            return demo::run_worker(args, &context).await;
        }
        Command::Doctor(args) => {
            begin_to_log(&global)?;
            let doctor = doctor::Doctor { env: Env::system(), timeout: global.timeout, out: &out };
            Box::pin(doctor.run(&args, load(&global))).await
        }
        Command::Store(args) => {
            let context = open(&global, out, args.is_long_running())?;
            let code = store::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Stream(args) => {
            let context = open(&global, out, args.is_long_running())?;
            let code = stream::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        #[cfg(feature = "postgres")]
        Command::Cdc(args) => {
            let loaded = load_with(&global, args.flags())?;
            let context = match args.tells() {
                true => begin_to_tell(loaded, &global, out)?,
                false => begin(loaded.settings, &global, out, args.is_long_running())?,
            };
            let code = cdc::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Dlq(args) => {
            let context = begin(load_with(&global, args.flags())?.settings, &global, out, false)?;
            let code = dlq::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Consume(args) => {
            let context = begin_to_tell(load_with(&global, args.flags())?, &global, out)?;
            return consume::run(*args, &context).await;
        }
        Command::Leases(args) => {
            let context =
                begin(load_with(&global, args.flags())?.settings, &global, out, args.is_long_running())?;
            let code = leases::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Workers(args) => {
            let context =
                begin(load_with(&global, args.flags())?.settings, &global, out, args.is_long_running())?;
            let code = workers::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Capacity(args) => {
            let context = begin(load_with(&global, args.flags())?.settings, &global, out, false)?;
            let code = capacity::run(&context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Autoscale(args) => {
            let loaded = load_with(&global, args.flags())?;
            let context = match args.is_long_running() {
                true => begin_to_tell(loaded, &global, out)?,
                false => begin(loaded.settings, &global, out, false)?,
            };
            let code = autoscale::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Elect(args) => {
            let context = begin_to_tell(load(&global)?, &global, out)?;
            return elect::run(args, &context).await;
        }
        Command::Leaders(args) => {
            let context = open(&global, out, args.is_long_running())?;
            let code = leaders::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        Command::Resign(args) => {
            let context = open(&global, out, false)?;
            let code = resign::run(args, &context).await?;
            return context.out.flush().map(|()| code);
        }
        // `main` has carried them out.
        Command::ElectGuard(_) | Command::ElectExec(_) => return Ok(ExitCode::SUCCESS),
    };
    let code = done?;
    out.flush()?;
    Ok(code)
}

impl Command {
    /// Whether the command shows things and changes nothing, so that its output may be cut short.
    const fn only_looks(&self) -> bool {
        match self {
            Self::Store(args) => args.only_looks(),
            Self::Stream(args) => args.only_looks(),
            #[cfg(feature = "postgres")]
            Self::Cdc(args) => args.only_looks(),
            Self::Dlq(args) => args.only_looks(),
            Self::Leases(args) => args.only_looks(),
            Self::Autoscale(args) => args.only_looks(),
            Self::Leaders(_) | Self::Workers(_) | Self::Capacity(_) | Self::Completions(_) | Self::Man(_) => {
                true
            }
            _ => false,
        }
    }

    /// Whether the command stays until it is asked to end.
    const fn is_long_running(&self) -> bool {
        match self {
            Self::Store(args) => args.is_long_running(),
            Self::Stream(args) => args.is_long_running(),
            Self::Leaders(args) => args.is_long_running(),
            Self::Leases(args) => args.is_long_running(),
            Self::Workers(args) => args.is_long_running(),
            #[cfg(feature = "postgres")]
            Self::Cdc(args) => args.is_long_running(),
            Self::Autoscale(args) => args.is_long_running(),
            Self::Elect(_) | Self::Consume(_) => true,
            _ => false,
        }
    }
}

fn load(global: &Global) -> anyhow::Result<Loaded> {
    load_with(global, Vec::new())
}

/// As [`load`], with flags of the command's own.
fn load_with(global: &Global, own: Vec<Flag>) -> anyhow::Result<Loaded> {
    let flags = global.flags().into_iter().chain(own).collect();
    settings::load(global.config.as_deref(), std::env::vars_os(), flags)
}

/// Logs as the settings say, or, while they cannot be read, as the flags say.
fn begin_to_log(global: &Global) -> anyhow::Result<()> {
    let settings = match load(global) {
        Ok(loaded) => loaded.settings,
        Err(_) => {
            let mut settings = Settings::default();
            settings.log.format = global.log_format.unwrap_or_default();
            if let Some(filter) = &global.log {
                settings.log.filter.clone_from(filter);
            }
            settings
        }
    };
    logging::begin(&settings.log)
}

fn open(global: &Global, out: Output, long_running: bool) -> anyhow::Result<Context> {
    begin(load(global)?.settings, global, out, long_running)
}

/// As [`begin`], for a long-running command whose state changes are logged unless a filter says otherwise.
fn begin_to_tell(loaded: Loaded, global: &Global, out: Output) -> anyhow::Result<Context> {
    // The default, though a file repeats it, is nobody's choice to be told nothing.
    let chosen = settings::Key::at("log.filter").is_some_and(|key| {
        let source = loaded.source(key);
        !matches!(source.word(), "default" | "file") || loaded.settings.log.filter != Log::default().filter
    });
    let mut settings = loaded.settings;
    if !chosen {
        settings.log.filter.push_str(",tenure=info");
    }
    begin(settings, global, out, true)
}

fn begin(settings: Settings, global: &Global, out: Output, long_running: bool) -> anyhow::Result<Context> {
    logging::begin(&settings.log)?;
    if long_running && let Some(listen) = settings.metrics.listen {
        serving::begin(listen)?;
    }
    Ok(Context { settings, env: Env::system(), timeout: global.timeout, out })
}
