//! `[cdc]`: which changes are captured, and where they go.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure_textual::{Amount, Count, Size, Text, Textual};

/// `[cdc]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Capture {
    /// The replication slot. Default: `tenure`.
    pub(crate) slot: String,
    /// The publications, separated by commas. Default: `tenure`.
    pub(crate) publications: Text<Names>,
    /// The pipeline's name, in every event. Default: `tenure`.
    pub(crate) source: String,
    /// `stream`, `null`, `-` or `file:PATH`. Default: `stream`.
    pub(crate) to: Text<Destination>,
    /// How many lanes keep their order. Default: 1024 for a stream, 1 for a file.
    pub(crate) lanes: Option<Text<Count>>,
    /// `advisory` or `store`. Default: `advisory`.
    pub(crate) leadership: LeadershipKind,
    /// Most events under way. Default: 100000.
    pub(crate) inflight_events: Text<Count>,
    /// Most bytes of them. Default: `12MiB`.
    pub(crate) inflight_bytes: Text<Size>,
    /// How long an event may wait for others to travel with. Default: `3ms`.
    pub(crate) linger: Text<Duration>,
    /// Most records that a shard of a stream is sent in a second; 0 for no limit. Default: as the stream says.
    pub(crate) shard_records_per_s: Option<Text<Amount>>,
    /// Most bytes of them. Default: as the stream says.
    pub(crate) shard_bytes_per_s: Option<Text<Size>>,
    /// Large transactions come while they run, and wait on our disk for their commit. Default: `false`.
    pub(crate) streaming: Text<bool>,
    /// Where those wait. Default: `/var/tmp`.
    pub(crate) spill: Option<PathBuf>,
    /// Most bytes of them. Default: `64GiB`.
    pub(crate) spill_max: Text<Size>,
    /// Several events in one record of a stream. Default: `true`.
    pub(crate) aggregation: Text<bool>,
    /// Whether `pg_logical_emit_message` is published. Default: `false`.
    pub(crate) messages: Text<bool>,
    /// From here on the slot's retained log is warned of. Default: `10GiB`.
    pub(crate) retained_warn: Text<Size>,
    /// From here on the run ends. Default: none.
    pub(crate) retained_stop: Option<Text<Size>>,
    /// How long a planned stop waits for what is under way. Default: `20s`.
    pub(crate) drain_timeout: Text<Duration>,
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            slot: "tenure".to_owned(),
            publications: Text(Names(vec!["tenure".to_owned()])),
            source: "tenure".to_owned(),
            to: Text(Destination::Stream),
            lanes: None,
            leadership: LeadershipKind::Advisory,
            inflight_events: Text(Count(100_000)),
            inflight_bytes: Text(Size(12 << 20)),
            linger: Text(Duration::from_millis(3)),
            shard_records_per_s: None,
            shard_bytes_per_s: None,
            streaming: Text(false),
            spill: None,
            spill_max: Text(Size(64 << 30)),
            aggregation: Text(true),
            messages: Text(false),
            retained_warn: Text(Size(10 << 30)),
            retained_stop: None,
            drain_timeout: Text(Duration::from_secs(20)),
        }
    }
}

/// How one of several processes becomes the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LeadershipKind {
    /// By an advisory lock on the session that streams.
    Advisory,
    /// By an election on the store.
    Store,
}

/// Names, separated by commas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names(pub(crate) Vec<String>);

impl Textual for Names {
    fn read(text: &str) -> Result<Self, String> {
        let names: Vec<_> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.iter().any(String::is_empty) {
            return Err(format!("`{text}` is not a list of names: write them separated by commas"));
        }
        Ok(Self(names))
    }

    fn shown(&self) -> String {
        self.0.join(",")
    }
}

/// Where events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The configured stream.
    Stream,
    /// Nowhere: they are counted.
    Null,
    /// Lines on standard output.
    Stdout,
    /// Lines at the end of a file.
    File(PathBuf),
}

impl Textual for Destination {
    fn read(text: &str) -> Result<Self, String> {
        match text {
            "stream" => Ok(Self::Stream),
            "null" => Ok(Self::Null),
            "-" => Ok(Self::Stdout),
            _ => match text.strip_prefix("file:") {
                Some(path) if !path.is_empty() => Ok(Self::File(path.into())),
                _ => Err(format!(
                    "`{text}` is no destination: write stream (the configured one), file:PATH, - (standard output) \
                     or null"
                )),
            },
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Stream => "stream".to_owned(),
            Self::Null => "null".to_owned(),
            Self::Stdout => "-".to_owned(),
            Self::File(path) => format!("file:{}", path.display()),
        }
    }
}

impl Capture {
    /// What is wrong, by the name of its key.
    #[cfg(feature = "postgres")]
    pub(crate) fn validate(&self) -> Result<(), (&'static str, String)> {
        use tenure_cdc::transport::{PublicationName, SlotName};
        SlotName::new(&*self.slot).map_err(|error| ("slot", error.chain()))?;
        for name in &self.publications.0.0 {
            PublicationName::new(&**name).map_err(|error| ("publications", error.chain()))?;
        }
        tenure_stream::identity::check_source(&self.source).map_err(|error| ("source", error.chain()))?;
        if let Some(Text(Count(lanes))) = self.lanes {
            crate::commands::cdc::lanes(lanes).map_err(|message| ("lanes", message))?;
        }
        if self.inflight_bytes.0.0 == 0 {
            return Err(("inflight_bytes", "nothing may be under way: 12MiB is usual".to_owned()));
        }
        Ok(())
    }

    /// Nothing is captured by this build.
    #[cfg(not(feature = "postgres"))]
    #[expect(clippy::unnecessary_wraps, reason = "as the other")]
    pub(crate) const fn validate(&self) -> Result<(), (&'static str, String)> {
        Ok(())
    }
}
