//! An HTTP proxy between a real AWS SDK and an emulator, which misbehaves on purpose.
//!
//! No emulator throttles, loses a reply or refuses single records of a call, and those are the
//! moments in which a publisher loses or doubles data. This proxy stands between the two on loopback
//! and does it by [`Script`]: which request kind, which [`Fault`], how often.
//!
//! ```text
//!   AWS SDK ──HTTP/1.1──▶ fault proxy ──HTTP/1.1──▶ emulator
//!                           │ kind = what follows the dot of X-Amz-Target
//!                           │ Script::decide(kind) = forward, or a fault
//! ```
//!
//! Deciding is pure ([`Script::decide`], [`Rule`]) and carrying out is not ([`FaultProxy`]); the
//! first is tested without a socket.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tenure_fault_proxy::Error> {
//! use tenure_fault_proxy::{FaultProxy, Script};
//!
//! let script = Script::parse(42, ["PutItem=throttle#1", "PutRecords=partial(0.3)@0.5"])?;
//! let proxy = FaultProxy::start("http://127.0.0.1:8000", script).await?;
//! // Point the SDK's endpoint at proxy.url(), work, then:
//! assert_eq!(proxy.counts().injected("PutItem", "throttle"), 0);
//! proxy.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! It speaks HTTP/1.1 alone, which is what the Rust SDK uses without TLS. It refuses every address
//! that is not loopback, with no way around it: a proxy that drops writes has no business on a network.

pub mod cli;
mod control;
mod counts;
mod error;
mod exchange;
mod fault;
mod kind;
mod loopback;
mod proxy;
mod put_records;
mod reply;
mod rule;
mod script;
mod script_json;
mod upstream;

pub use counts::{Counts, KindCount};
pub use error::Error;
pub use fault::{Fault, ServerStatus, ThrottleCode};
pub use kind::Kind;
pub use proxy::FaultProxy;
pub use rule::{Chance, On, Rule, RuleError};
pub use script::{Decision, Progress, Script};
