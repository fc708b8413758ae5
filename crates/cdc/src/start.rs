//! Decides where a leader begins to read, or why it must not: pure.
//!
//! A slot that is missing, was made anew, was moved on by others, or belongs to another server cannot give
//! what was committed in between. Starting anyway would be a silent gap, so a leader stops and says how to
//! go on (CP-13).

use std::fmt;
use std::sync::Arc;

use tenure_stream::identity::{Era, Lanes, Lsn};

use crate::checkpoint::Checkpoint;

/// What the server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerView {
    /// Its identity.
    pub system_id: Arc<str>,
    /// Its timeline.
    pub timeline: u32,
    /// How far its log goes.
    pub log_end: Lsn,
    /// Where each earlier timeline of this server ended.
    pub history: Vec<TimelineEnd>,
}

/// Where a timeline was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimelineEnd {
    /// The timeline.
    pub timeline: u32,
    /// Its last position that the server shares.
    pub end: Lsn,
}

/// What the server says about the slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotView {
    /// The output plugin.
    pub plugin: Arc<str>,
    /// Whether it is of the captured database.
    pub same_database: bool,
    /// Whether it decodes prepared transactions.
    pub two_phase: bool,
    /// Everything below this was confirmed by somebody.
    pub confirmed: Option<Lsn>,
    /// Why the server gave it up, if it did.
    pub lost: Option<Arc<str>>,
}

/// Why a leader must not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no slot, and there never was one for this pipeline.
    NotSetUp,
    /// There is a row, but no slot.
    SlotMissing,
    /// The server has removed what the slot needs.
    SlotLost(Arc<str>),
    /// The slot is beyond the row.
    SlotBeyondRow {
        /// What the slot says.
        slot: Lsn,
        /// What the row says.
        row: Lsn,
    },
    /// The slot was made with another plugin.
    WrongPlugin(Arc<str>),
    /// The slot is of another database.
    OtherDatabase,
    /// The slot decodes prepared transactions.
    TwoPhase,
    /// Another server.
    OtherServer {
        /// What the row says.
        row: Arc<str>,
        /// What the server says.
        server: Arc<str>,
    },
    /// The server's log does not contain the row's position.
    Diverged {
        /// What the row says.
        row: Lsn,
        /// Up to where they agree.
        shared: Lsn,
    },
    /// The row was written with another number of lanes.
    OtherLanes {
        /// What the row says.
        row: u16,
        /// What the settings say.
        settings: u16,
    },
    /// The row was written for another slot.
    OtherSlot(Arc<str>),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GAP: &str = "What was committed in between cannot be read any more. To go on behind the gap, run \
                           `tenure cdc setup --accept-gap`: it makes what is missing and begins a new era";
        match self {
            Self::NotSetUp => f.write_str("the slot does not exist: run `tenure cdc setup` first"),
            Self::SlotMissing => write!(f, "the slot is gone. {GAP}"),
            Self::SlotLost(why) => write!(f, "the server has given up the slot ({why}). {GAP}"),
            Self::SlotBeyondRow { slot, row } => write!(
                f,
                "the slot is at {slot}, beyond our checkpoint {row}: it was made anew, or somebody else reads \
                 from it. Find out who; then: {GAP}"
            ),
            Self::WrongPlugin(plugin) => write!(
                f,
                "the slot uses the plugin `{plugin}`, Tenure reads `pgoutput`: name another slot with --slot"
            ),
            Self::OtherDatabase => {
                f.write_str("the slot belongs to another database: name another slot with --slot")
            }
            Self::TwoPhase => f.write_str(
                "the slot decodes prepared transactions: make one without two_phase and name it with --slot",
            ),
            Self::OtherServer { row, server } => write!(
                f,
                "the checkpoint is of server {row}, this is server {server}: connect to the right one. If this \
                 one takes its place: {GAP}"
            ),
            Self::Diverged { row, shared } => write!(
                f,
                "the server's log shares ours only up to {shared}, and we have published up to {row}: it was \
                 restored or promoted behind us. {GAP}"
            ),
            Self::OtherLanes { row, settings } => write!(
                f,
                "the pipeline was begun with {row} lanes, the settings say {settings}: give --lanes {row}, or \
                 begin a new era with `tenure cdc setup --accept-gap`"
            ),
            Self::OtherSlot(slot) => write!(
                f,
                "the pipeline reads from slot `{slot}`: give --slot {slot}, or begin a new era with \
                 `tenure cdc setup --accept-gap`"
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// Where to begin: everything that committed below is in the stream, and the server has the rest.
///
/// # Errors
/// A [`Refusal`] if that cannot be had.
pub fn begin(
    row: Option<&Checkpoint>,
    slot_name: &str,
    slot: Option<&SlotView>,
    server: &ServerView,
    lanes: Lanes,
) -> Result<Lsn, Refusal> {
    let torn_down = row.is_some_and(Checkpoint::is_torn_down);
    let row = row.filter(|_| !torn_down);
    if let Some(row) = row {
        if row.system_id != server.system_id {
            let (row, server) = (row.system_id.clone(), server.system_id.clone());
            return Err(Refusal::OtherServer { row, server });
        }
        if &*row.slot != slot_name {
            return Err(Refusal::OtherSlot(row.slot.clone()));
        }
        if row.lanes != lanes {
            return Err(Refusal::OtherLanes { row: row.lanes.count(), settings: lanes.count() });
        }
    }
    let slot = match (slot, row) {
        (Some(slot), _) => slot,
        (None, None) => return Err(Refusal::NotSetUp),
        (None, Some(_)) => return Err(Refusal::SlotMissing),
    };
    if &*slot.plugin != "pgoutput" {
        return Err(Refusal::WrongPlugin(slot.plugin.clone()));
    }
    if !slot.same_database {
        return Err(Refusal::OtherDatabase);
    }
    if slot.two_phase {
        return Err(Refusal::TwoPhase);
    }
    if let Some(why) = &slot.lost
        && !tenure_planted::is("lost_slot_is_read")
    {
        return Err(Refusal::SlotLost(why.clone()));
    }
    let confirmed = slot.confirmed.ok_or_else(|| Refusal::SlotLost("it has no position".into()))?;
    let row = match row {
        Some(row) => row,
        // Its era is over, and a new one is begun by setting up.
        None if torn_down => return Err(Refusal::NotSetUp),
        None => return Ok(confirmed),
    };
    let shared = shared_with(server, row.timeline);
    if row.lsn > shared && !tenure_planted::is("diverged_log_is_read") {
        return Err(Refusal::Diverged { row: row.lsn, shared });
    }
    if confirmed > row.lsn && !tenure_planted::is("trusts_the_slot") {
        return Err(Refusal::SlotBeyondRow { slot: confirmed, row: row.lsn });
    }
    Ok(row.lsn)
}

/// The era under which a leader publishes.
///
/// A server that was promoted shares the log up to the row, but perhaps not up to what was published beyond
/// it: new changes may take the positions of lost ones, and readers would drop them as copies. So another
/// timeline is another era.
#[must_use]
pub fn era(row: Option<&Checkpoint>, server: &ServerView) -> Era {
    match row {
        None => Era(1),
        Some(row) if row.timeline == server.timeline => row.era,
        Some(row) => Era(row.era.0 + 1),
    }
}

/// Up to where the server's log is that of the timeline.
fn shared_with(server: &ServerView, timeline: u32) -> Lsn {
    if timeline == server.timeline {
        return server.log_end;
    }
    let left = server.history.iter().find(|end| end.timeline == timeline);
    left.map_or(Lsn(0), |end| end.end)
}

/// Reads the history that a server keeps of its timelines.
///
/// One line each: the timeline, where it was left, and why.
#[must_use]
pub fn read_history(text: &str) -> Vec<TimelineEnd> {
    let ends = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some(TimelineEnd { timeline: words.next()?.parse().ok()?, end: words.next()?.parse().ok()? })
    });
    ends.collect()
}

#[cfg(test)]
mod tests {
    use tenure_clock::WallTime;
    use tenure_election::Epoch;

    use super::*;

    fn row() -> Checkpoint {
        Checkpoint {
            system_id: "7301".into(),
            timeline: 2,
            slot: "tenure".into(),
            lsn: Lsn(500),
            era: Era(1),
            lanes: Lanes::default(),
            fence: Epoch(1),
            updated: WallTime::from_millis(0),
        }
    }

    fn slot() -> SlotView {
        SlotView {
            plugin: "pgoutput".into(),
            same_database: true,
            two_phase: false,
            confirmed: Some(Lsn(400)),
            lost: None,
        }
    }

    fn server() -> ServerView {
        ServerView { system_id: "7301".into(), timeline: 2, log_end: Lsn(900), history: vec![] }
    }

    fn decide(
        row: Option<&Checkpoint>,
        slot: Option<&SlotView>,
        server: &ServerView,
    ) -> Result<Lsn, Refusal> {
        begin(row, "tenure", slot, server, Lanes::default())
    }

    #[test]
    fn begins_at_its_own_checkpoint_even_if_the_slot_has_forgotten() {
        assert_eq!(decide(Some(&row()), Some(&slot()), &server()), Ok(Lsn(500)));
        let same = SlotView { confirmed: Some(Lsn(500)), ..slot() };
        assert_eq!(decide(Some(&row()), Some(&same), &server()), Ok(Lsn(500)));
    }

    #[test]
    fn begins_where_the_slot_is_if_the_pipeline_is_new() {
        assert_eq!(decide(None, Some(&slot()), &server()), Ok(Lsn(400)));
        assert_eq!(decide(None, None, &server()), Err(Refusal::NotSetUp));
    }

    #[test]
    fn a_pipeline_that_was_torn_down_is_set_up_again_first() {
        let gone = Checkpoint { slot: "".into(), system_id: "1".into(), ..row() };
        assert_eq!(decide(Some(&gone), Some(&slot()), &server()), Err(Refusal::NotSetUp));
        assert_eq!(decide(Some(&gone), None, &server()), Err(Refusal::NotSetUp));
    }

    #[test]
    fn a_wrong_name_is_not_taken_for_a_gap() {
        let other = Checkpoint { slot: "other".into(), ..row() };
        assert_eq!(decide(Some(&other), None, &server()), Err(Refusal::OtherSlot("other".into())));
    }

    #[test]
    fn refuses_every_gap() {
        assert_eq!(decide(Some(&row()), None, &server()), Err(Refusal::SlotMissing));
        let beyond = SlotView { confirmed: Some(Lsn(501)), ..slot() };
        assert_eq!(
            decide(Some(&row()), Some(&beyond), &server()),
            Err(Refusal::SlotBeyondRow { slot: Lsn(501), row: Lsn(500) })
        );
        let lost = SlotView { lost: Some("wal_removed".into()), ..slot() };
        assert_eq!(
            decide(Some(&row()), Some(&lost), &server()),
            Err(Refusal::SlotLost("wal_removed".into()))
        );
        assert_eq!(decide(None, Some(&lost), &server()), Err(Refusal::SlotLost("wal_removed".into())));
        let other = ServerView { system_id: "1".into(), ..server() };
        assert!(matches!(decide(Some(&row()), Some(&slot()), &other), Err(Refusal::OtherServer { .. })));
        let behind = ServerView { log_end: Lsn(499), ..server() };
        assert_eq!(
            decide(Some(&row()), Some(&slot()), &behind),
            Err(Refusal::Diverged { row: Lsn(500), shared: Lsn(499) })
        );
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        for (slot, refusal) in [
            (SlotView { plugin: "wal2json".into(), ..slot() }, Refusal::WrongPlugin("wal2json".into())),
            (SlotView { same_database: false, ..slot() }, Refusal::OtherDatabase),
            (SlotView { two_phase: true, ..slot() }, Refusal::TwoPhase),
        ] {
            assert_eq!(decide(Some(&row()), Some(&slot), &server()), Err(refusal));
        }
        let lanes = Checkpoint { lanes: Lanes::new(8).unwrap(), ..row() };
        let refusal = Refusal::OtherLanes { row: 8, settings: 1024 };
        assert_eq!(decide(Some(&lanes), Some(&slot()), &server()), Err(refusal));
        let other = Checkpoint { slot: "other".into(), ..row() };
        assert_eq!(decide(Some(&other), Some(&slot()), &server()), Err(Refusal::OtherSlot("other".into())));
    }

    #[test]
    fn follows_a_promotion_that_kept_our_log_and_no_other() {
        let history = read_history("1\t0/64\tno recovery target\n\n2\t0/1F4\tafter x\n");
        assert_eq!(history.len(), 2);
        let promoted = ServerView { timeline: 3, history, ..server() };
        assert_eq!(decide(Some(&row()), Some(&slot()), &promoted), Ok(Lsn(500)));
        let ahead = Checkpoint { lsn: Lsn(501), ..row() };
        assert!(matches!(decide(Some(&ahead), Some(&slot()), &promoted), Err(Refusal::Diverged { .. })));
        let from_the_future = ServerView { timeline: 1, history: vec![], ..server() };
        assert!(matches!(
            decide(Some(&row()), Some(&slot()), &from_the_future),
            Err(Refusal::Diverged { .. })
        ));
    }

    #[test]
    fn another_timeline_is_another_era() {
        assert_eq!(era(None, &server()), Era(1));
        assert_eq!(era(Some(&row()), &server()), Era(1));
        let promoted = ServerView { timeline: 3, ..server() };
        assert_eq!(era(Some(&row()), &promoted), Era(2), "what was published beyond the row may be gone");
    }

    #[test]
    fn every_refusal_says_what_to_do() {
        for refusal in [
            Refusal::NotSetUp,
            Refusal::SlotMissing,
            Refusal::SlotLost("x".into()),
            Refusal::SlotBeyondRow { slot: Lsn(2), row: Lsn(1) },
            Refusal::WrongPlugin("x".into()),
            Refusal::OtherDatabase,
            Refusal::TwoPhase,
            Refusal::OtherServer { row: "1".into(), server: "2".into() },
            Refusal::Diverged { row: Lsn(2), shared: Lsn(1) },
            Refusal::OtherLanes { row: 1, settings: 2 },
            Refusal::OtherSlot("x".into()),
        ] {
            let text = refusal.to_string();
            assert!(text.contains("tenure cdc setup") || text.contains("--slot"), "{text}");
        }
    }
}
