//! Where events go, found before anything is opened for writing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tenure_cdc::checkpoint::CheckpointPlace;
use tenure_cdc::sink::{LinesSink, NullSink, Sink, StreamSink};
use tenure_stream::Stream;
use tenure_stream::identity::Lanes;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::failure::misuse_if_invalid;
use crate::settings::Destination;

/// How often a file that another process writes to is asked for.
const FILE_POLL: Duration = Duration::from_millis(200);

/// Where events go.
pub(super) enum Place {
    Stream(Arc<dyn Stream>),
    Null,
    Stdout,
    File(PathBuf),
}

impl Place {
    /// What the settings say.
    pub(super) async fn find(context: &Context) -> anyhow::Result<Self> {
        Ok(match &context.settings.cdc.to.0 {
            Destination::Stream => Self::Stream(context.stream().await?),
            Destination::Null => Self::Null,
            Destination::Stdout => Self::Stdout,
            // The checkpoint is kept under this name, wherever the process was started.
            Destination::File(path) => Self::File(std::path::absolute(path).context("find the file")?),
        })
    }

    /// As the sink names itself.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Stream(stream) => stream.name().to_owned(),
            Self::Null => NullSink::new().name().to_owned(),
            Self::Stdout => LinesSink::stdout().name().to_owned(),
            Self::File(path) => path.display().to_string(),
        }
    }

    /// For people.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Stream(stream) => format!("stream {}", stream.name()),
            Self::Null => "nowhere".to_owned(),
            Self::Stdout => "standard output".to_owned(),
            Self::File(path) => format!("file {}", path.display()),
        }
    }

    /// How many lanes: the settings', or what suits the place.
    pub(super) fn lanes(&self, context: &Context) -> anyhow::Result<Lanes> {
        let count = match (&context.settings.cdc.lanes, self) {
            (Some(count), _) => count.0.0,
            (None, Self::Stream(_) | Self::Null) => return Ok(Lanes::default()),
            // One, so that lines come in the order of the commits.
            (None, Self::Stdout | Self::File(_)) => 1,
        };
        super::lanes(count).map_err(crate::failure::misuse)
    }

    /// Where the checkpoint row of a pipeline to here is.
    pub(super) fn checkpoint(&self, context: &Context) -> CheckpointPlace {
        CheckpointPlace {
            table: context.settings.election.table.as_str().into(),
            stream: self.name().into(),
            source: context.settings.cdc.source.as_str().into(),
        }
    }

    /// Opens it for writing; `None` if it was asked to stop while another process writes to the file.
    pub(super) async fn open(
        self,
        context: &Context,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Arc<dyn Sink>>> {
        let sink: Arc<dyn Sink> = match self {
            Self::Stream(stream) => Arc::new(StreamSink::new(stream)),
            Self::Null => Arc::new(NullSink::new()),
            Self::Stdout => Arc::new(LinesSink::stdout()),
            Self::File(path) => {
                let Some(sink) = sole_writer(&path, context, stop).await? else { return Ok(None) };
                Arc::new(sink)
            }
        };
        Ok(Some(sink))
    }
}

/// Waits until nobody else writes to the file.
async fn sole_writer(
    path: &Path,
    context: &Context,
    stop: &CancellationToken,
) -> anyhow::Result<Option<LinesSink>> {
    let mut told = false;
    loop {
        if let Some(sink) = LinesSink::file(path).map_err(misuse_if_invalid)? {
            return Ok(Some(sink));
        }
        if !told {
            told = true;
            tracing::info!(path = %path.display(), "another process writes to the file; standing by");
        }
        tokio::select! {
            () = context.env.clock.sleep(FILE_POLL) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}
