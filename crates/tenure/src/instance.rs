//! A name for this process that no other has.

use anyhow::Context as _;
use tenure_backend::Env;

/// The host, the process and a random number.
pub(crate) fn name(env: &Env) -> anyhow::Result<String> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("read the host's name")?;
    let random = env.entropy.u64() & 0xffff;
    Ok(format!("{}-{}-{random:04x}", host.trim(), std::process::id()))
}
