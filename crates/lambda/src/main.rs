//! `bootstrap`: the program that Lambda starts. It builds a [`Context`] once and hands each invocation on.

use std::process::ExitCode;

use anyhow::Context as _;
use lambda_runtime::{Diagnostic, LambdaEvent, Runtime, service_fn};
use serde_json::Value;
use tenure_backend::Env;
use tenure_clock::WallTime;
use tenure_lambda::{Configuration, Context, Request, handle, logging};

fn main() -> ExitCode {
    // One thread: an invocation is one chain of calls, and fewer threads start sooner.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.context("start the runtime").and_then(|runtime| runtime.block_on(serve()));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::cannot_run(&error);
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> anyhow::Result<()> {
    // What is not text is no setting of ours.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let configuration = Configuration::read(environment).context("read the environment")?;
    logging::begin(configuration.filter.clone())?;
    let context = &Box::pin(Context::connect(&configuration, Env::system())).await?;
    let invocation = async |event: LambdaEvent<Value>| {
        let deadline_ms = i64::try_from(event.context.deadline).unwrap_or(i64::MAX);
        let deadline = WallTime::from_millis(deadline_ms);
        let request = Request { id: event.context.request_id, event: event.payload, deadline };
        handle(context, request).await.map_err(|failure| Diagnostic {
            error_type: failure.kind().to_owned(),
            error_message: failure.to_string(),
        })
    };
    let served = Runtime::new(service_fn(invocation)).run().await;
    served.map_err(|error| anyhow::anyhow!("serve invocations: {error}"))
}
