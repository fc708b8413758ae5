//! Every backend and every wrapper, held to one suite; and what each promises beyond it.

#[cfg(feature = "dynamodb")]
mod dynamodb;
mod faulty;
mod instrumented;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "sqlite")]
mod sqlite;
