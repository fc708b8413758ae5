//! Leadership by advisory lock, on a real server.

mod postgres;
mod relay;
