//! Change data capture as a user runs it, against the server that tests share.

mod bad_input;
mod dead_letters;
mod flow;
mod gaps;
mod private_server;
mod tail;
mod world;
