//! Changing the script of a running proxy by HTTP, for processes that did not start it.
//!
//! `GET /__faults` tells the script, how far its rules have come, and the counts;
//! `PUT /__faults` with a script in JSON replaces the script and tells the same.
//! These requests are neither counted nor broken.

use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};

use crate::exchange::{Exchange, State};
use crate::reply::{Body, respond};
use crate::script::Script;

/// A path that neither DynamoDB nor Kinesis serves.
pub(crate) const PATH: &str = "/__faults";

pub(crate) fn answer(exchange: &Exchange, method: &Method, body: &[u8]) -> Response<Body> {
    match *method {
        Method::GET => {}
        Method::PUT => match Script::from_json(body) {
            Ok(script) => exchange.set_script(script),
            Err(error) => return json_reply(StatusCode::BAD_REQUEST, &json!({ "error": error.to_string() })),
        },
        _ => {
            let error = json!({ "error": format!("{method} is not GET or PUT") });
            let mut response = json_reply(StatusCode::METHOD_NOT_ALLOWED, &error);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, PUT"));
            return response;
        }
    }
    json_reply(StatusCode::OK, &report(&exchange.state()))
}

/// The script, how far its rules have come, and the counts.
pub(crate) fn report(state: &State) -> Value {
    let progress: Vec<_> = state
        .script
        .rules()
        .iter()
        .zip(state.script.progress())
        .map(|(rule, progress)| {
            json!({ "rule": rule.to_string(), "seen": progress.seen, "injected": progress.injected })
        })
        .collect();
    json!({ "script": state.script.to_json(), "progress": progress, "counts": state.counts })
}

fn json_reply(status: StatusCode, value: &Value) -> Response<Body> {
    respond(status, "application/json", format!("{value}\n").into())
}
