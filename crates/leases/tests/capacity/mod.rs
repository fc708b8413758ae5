//! How many leases a worker may hold, by the table that Go workers share.

#[cfg(feature = "dynamodb")]
mod emulator;
mod go_worker;
mod holes;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod lines;
mod live;
mod site;
mod walk_through;
mod wrappers;
