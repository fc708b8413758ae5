//! The autoscaler as an AWS Lambda.
//!
//! ```text
//!   main.rs            builds a Context once and hands each invocation on        (feature `runtime`)
//!   configuration.rs   what the environment says
//!   context.rs         what is built once and outlives invocations: connections, policy
//!   event.rs           which events there are, and what they say; pure
//!   handler.rs         what an invocation does
//!   logging.rs         lines of JSON to standard error
//! ```
//!
//! # Flow
//! A scheduled event is one tick. A warning that an instance will be taken away is stored in the inbox of the state
//! item if the instance is of this cluster, and a tick follows. Messages of a queue may wrap both.
//!
//! # Guarantees
//! Nothing is left running when an invocation ends. A tick ends between two effects before the invocation's
//! deadline, and may be cut off anywhere: the next one, here or elsewhere, goes on. A message that could not be
//! stored is told to the queue by its id, and comes again; the others do not.
//!
//! # Assumptions
//! The tables are there: a start that describes or makes them costs calls and rights that no tick needs.

pub mod configuration;
pub mod context;
pub mod event;
pub mod handler;
pub mod logging;

pub use configuration::Configuration;
pub use context::Context;
pub use event::Event;
pub use handler::{Request, handle};
