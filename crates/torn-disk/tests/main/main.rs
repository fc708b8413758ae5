//! Proves that the disk catches what loses acknowledged writes, and that the engine does not.

mod engine;
mod faults;
mod ledger;
mod sqlite_modes;
