//! What can go wrong while a cluster is scaled.

use crate::fault::named;

named! {
    /// A kind of fault, or of disturbance that somebody else causes.
    Fault:
    CrashBefore "crash_before" "An executor dies before a call is sent, and starts again later.",
    CrashAfter "crash_after" "An executor dies after a call had its effect.",
    ReplyLost "reply_lost" "A call has its effect, and its reply is lost.",
    Stalled "stalled" "An executor stands still inside a call, while another works.",
    OldResumes "old_resumes" "An old writer goes on with what is under way.",
    OldSteals "old_steals" "An old writer takes the lock if it is past, and begins over what is there.",
    OldLocks "old_locks" "An old writer takes the lock if it is past, and dies.",
    Killed "killed" "Somebody else ends an instance.",
    Purged "purged" "Somebody else ends an instance, and the cloud forgets it.",
    Interrupted "interrupted" "The cloud says that it takes an instance away, and does.",
    Vanished "vanished" "A node object is deleted, its machine goes on.",
    Renamed "renamed" "A machine registers again under another name.",
    Unmatched "unmatched" "Nothing says which instance a node is, for a while.",
    NotReady "not_ready" "A node is not Ready for a while.",
    Denied "denied" "Calls on one instance or node are denied for a while.",
    LaunchesDenied "launches_denied" "Every launch is denied for a while.",
    Shortage "shortage" "A subnet has no capacity for a while.",
    NeverJoins "never_joins" "The next instance never joins.",
    BudgetBlocks "budget_blocks" "No pod may be evicted for a while.",
    MetricsFail "metrics_fail" "The metrics are missing, stale or empty for a while.",
    PersonCordons "person_cordons" "A person cordons a node for a while.",
}
