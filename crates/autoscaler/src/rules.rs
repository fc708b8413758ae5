//! The eight ordering rules, by name.
//!
//! Model checking found each of them necessary. Where one matters, the code asks [`Rule::kept`]; in an
//! ordinary build the answer is a constant `true` and the other branch is gone. A test removes one rule
//! for the length of a closure (feature `testing`), or plants its removal (`--cfg planted`), and some
//! checker must notice.

use tenure_planted as planted;

/// One ordering rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// 1: read the state, list the instances, then begin with the `rev` that was read.
    ReadThenList,
    /// 2: collect as orphans only what an ended action left uncommitted, and only when it was seen twice.
    OrphansAreOld,
    /// 3: TERMINATING and REAPING are written before the call, and there is no way back from them.
    IntentBeforeEffect,
    /// 4: the node's version is read before the fenced write, and the cordon names it; a rollback always
    /// touches the node.
    CordonByVersion,
    /// 5: uncordon only if the node's owner annotation names this action.
    UncordonOwn,
    /// 6: the start-up taint goes only after JOINED is durable; complete only once it is gone.
    TaintUntilJoined,
    /// 7: retarget only on a definite capacity error of an attempt that this fence authorised.
    RetargetOwn,
    /// 8: an abort adopts only the current attempt.
    AbortCurrentAttempt,
}

impl Rule {
    /// All eight, in order.
    pub const ALL: [Self; 8] = [
        Self::ReadThenList,
        Self::OrphansAreOld,
        Self::IntentBeforeEffect,
        Self::CordonByVersion,
        Self::UncordonOwn,
        Self::TaintUntilJoined,
        Self::RetargetOwn,
        Self::AbortCurrentAttempt,
    ];

    /// As the planted bug that removes it is called.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadThenList => "autoscaler_list_before_read",
            Self::OrphansAreOld => "autoscaler_orphans_at_sight",
            Self::IntentBeforeEffect => "autoscaler_effect_before_intent",
            Self::CordonByVersion => "autoscaler_cordon_any_version",
            Self::UncordonOwn => "autoscaler_uncordon_any",
            Self::TaintUntilJoined => "autoscaler_untaint_before_join",
            Self::RetargetOwn => "autoscaler_retarget_any_attempt",
            Self::AbortCurrentAttempt => "autoscaler_abort_any_attempt",
        }
    }

    /// Whether the rule is kept: always, in an ordinary build.
    #[must_use]
    #[inline]
    pub fn kept(self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        if removed::is(self) {
            return false;
        }
        !planted::is(self.name())
    }
}

#[cfg(any(test, feature = "testing"))]
pub use removed::without;

#[cfg(any(test, feature = "testing"))]
mod removed {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static REMOVED: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    /// Runs `body` on this thread as if the rule had never been written.
    pub fn without<T>(rule: Rule, body: impl FnOnce() -> T) -> T {
        /// Puts the rule back, also when `body` panics.
        struct PutBack(Option<Rule>);
        impl Drop for PutBack {
            fn drop(&mut self) {
                REMOVED.set(self.0);
            }
        }
        let _put_back = PutBack(REMOVED.replace(Some(rule)));
        body()
    }

    pub(super) fn is(rule: Rule) -> bool {
        REMOVED.get() == Some(rule)
    }
}
