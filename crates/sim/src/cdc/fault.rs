//! What can go wrong between a database and a stream.

use crate::fault::named;

named! {
    /// A kind of fault, or of disturbance that an operator causes.
    Fault:
    Pause "pause" "A node stands still; what happens to it meanwhile waits.",
    Crash "crash" "A process dies, and starts again later without memory.",
    CrashAtEffect "crash_at_effect" "A process dies right before or right after something that it does.",
    Handover "handover" "The leader is asked to settle what it has and to give up the lock.",
    CutFromStream "cut_from_stream" "Nothing passes between a node and the stream.",
    CutFromStore "cut_from_store" "Nothing passes between a node and the store.",
    CutFromLock "cut_from_lock" "Nothing passes between a node and the lock.",
    CutFromPostgres "cut_from_postgres" "Nothing passes between a node and the database.",
    LockLost "lock_lost" "The lock is free again, and its holder does not know.",
    StreamOutage "stream_outage" "The stream fails every call.",
    StoreOutage "store_outage" "The store fails every call.",
    ThrottleStorm "throttle_storm" "The stream turns away every second record.",
    LimitLowered "limit_lowered" "The stream refuses records that it used to take.",
    Split "split" "A shard is split.",
    Merge "merge" "Two shards are merged.",
    PostgresCrash "postgres_crash" "The database crashes: the slot is where it was last written down.",
    Promotion "promotion" "A standby takes over with all of the log, on a new timeline.",
    SlotNotPromoted "slot_not_promoted" "A standby takes over that does not have the slot.",
    SlotDropped "slot_dropped" "Somebody drops the slot.",
    SlotRecreated "slot_recreated" "Somebody drops the slot and makes it anew.",
    SlotInvalidated "slot_invalidated" "The server gives up the slot.",
    SlotAdvanced "slot_advanced" "Somebody else reads from the slot.",
    Restored "restored" "The server is restored to before what was published.",
    Throttled "throttled" "Some records of a call are turned away.",
    Failed "failed" "A call fails before it has an effect.",
    RequestLost "request_lost" "A call never arrives, and is never answered.",
    ReplyLost "reply_lost" "A call is carried out, and its reply is lost.",
    Late "late" "A call is carried out long after its caller gave up.",
    Duplicated "duplicated" "A call is carried out, and once more later.",
    Slow "slow" "A call takes seconds.",
}
