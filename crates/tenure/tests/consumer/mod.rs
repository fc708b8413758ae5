//! Workers that share a stream, run as a user runs them.

mod bad_input;
mod commands;
mod dead_letters;
mod operating;
mod sharing;
mod standard_output;
mod world;
