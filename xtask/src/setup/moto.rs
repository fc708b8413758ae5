//! moto, the emulator of EC2, in an environment of Python's own.
//!
//! Only for EC2: as a store or a stream it loses what it acknowledged.

use std::path::PathBuf;

use anyhow::Result;

use super::python::Program;
use crate::cache::Cache;

const MOTO: Program = Program { name: "moto", package: "moto[ec2,server]", version: "5.2.5" };

/// The Python that has it, if it was set up: `python -m moto.server` is how it starts.
pub(crate) fn python(cache: &Cache) -> Option<PathBuf> {
    MOTO.python(cache)
}

pub(super) fn is_there(cache: &Cache) -> bool {
    python(cache).is_some()
}

pub(super) fn install(cache: &Cache) -> Result<()> {
    MOTO.install(cache)
}
