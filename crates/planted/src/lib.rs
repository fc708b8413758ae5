//! Bugs planted on purpose, so that the tests can be tested.
//!
//! Where a rule matters, the code asks [`is`] whether to break it. In every ordinary build the answer
//! is a constant `false` and the branch is gone. A build with `--cfg planted` (in a target directory of
//! its own, made by `cargo xtask planted`) breaks the one rule that `TENURE_PLANTED` names, and some
//! test, model or simulation must notice.

/// Whether this bug is planted in this process: never, in an ordinary build.
#[cfg(not(planted))]
#[must_use]
#[inline(always)]
pub const fn is(_bug: &str) -> bool {
    false
}

/// Whether this bug is planted in this process.
#[cfg(planted)]
#[must_use]
pub fn is(bug: &str) -> bool {
    static NAME: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    NAME.get_or_init(|| std::env::var("TENURE_PLANTED").ok()).as_deref() == Some(bug)
}

#[cfg(all(planted, not(debug_assertions)))]
compile_error!("planted bugs are for tests: a release build has none");
