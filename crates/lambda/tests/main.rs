//! The handler, on a simulated cloud and cluster; and the program, on servers.

#[cfg(feature = "runtime")]
mod ec2;
mod handler;
#[cfg(feature = "runtime")]
mod recorder;
#[cfg(feature = "runtime")]
mod runtime_api;
mod template;
