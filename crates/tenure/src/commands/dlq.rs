//! `tenure dlq`: what could not be published as it was, and waits in the quarantine.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tenure_cdc::quarantine::{KEPT_BEYOND_RETENTION, Manifest, Quarantine};
use tenure_stream::identity::Position;
use tenure_stream::{Put, Record, Stream};

use crate::commands::cdc;
use crate::context::Context;
use crate::failure::{REFUSED, misuse, misuse_if_invalid};
use crate::output::{counted, one_line};
use crate::settings::Flag;
use crate::size;

/// Most events that are listed, and that `--all` means.
const EVENTS_MAX: usize = 100_000;
/// How much of an event's content is shown, unless all of it is asked for.
const SHOWN_BYTES_MAX: usize = 4096;
/// The longest partition key that a stream takes.
const PARTITION_KEY_CHARACTERS_MAX: usize = 256;

/// Look at events that were not published as they were.
#[derive(clap::Args)]
#[command(after_help = "\
An event that is too large for the stream, that has no JSON form, or that the stream refused is kept in the store
under its identity, and a small pointer takes its place in the stream. It stays for the stream's retention and a
week.

Examples:
  tenure dlq list
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0
  tenure dlq replay 1:0/1A2B3C:0/1A2B00:0
  tenure dlq drop --all --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the events
    #[command(after_help = "\
Examples:
  tenure dlq list
  tenure dlq list --source shop --json")]
    List {
        #[command(flatten)]
        source: Source,
    },
    /// Show an event: why it is here, and its content
    #[command(after_help = "\
The first 4 KiB of the content, or all of it as it is with --raw.

Examples:
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0 --raw | jq .after")]
    Show {
        /// The event's id, as `tenure dlq list` shows it
        id: String,

        /// Nothing but the content, whole
        #[arg(long, conflicts_with = "json")]
        raw: bool,

        #[command(flatten)]
        source: Source,
    },
    /// Put an event into the stream as it is, on its lane
    #[command(after_help = "\
It has no `tenure` object, so that readers do not take it for a copy, and a `replayed` object with its source and
id. It comes after what was published since. It stays in the quarantine until it is dropped.

Examples:
  tenure dlq replay 1:0/1A2B3C:0/1A2B00:0
  tenure dlq replay --all --yes --stream sqlite:./large.db")]
    Replay(Chosen),
    /// Forget an event
    #[command(after_help = "\
Its pointer stays in the stream, and points nowhere then. Asks on a terminal; elsewhere --yes is needed.

Examples:
  tenure dlq drop 1:0/1A2B3C:0/1A2B00:0
  tenure dlq drop --all --yes")]
    Drop(Chosen),
}

/// Whose events.
#[derive(clap::Args)]
struct Source {
    /// The pipeline's name [default: tenure]
    #[arg(long, value_name = "NAME")]
    source: Option<String>,
}

/// Which events.
#[derive(clap::Args)]
struct Chosen {
    /// The event's id, as `tenure dlq list` shows it
    #[arg(required_unless_present = "all")]
    id: Option<String>,

    /// All of them
    #[arg(long, conflicts_with = "id")]
    all: bool,

    /// Yes, without asking
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    source: Source,
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let (Verb::List { source }
        | Verb::Show { source, .. }
        | Verb::Replay(Chosen { source, .. })
        | Verb::Drop(Chosen { source, .. })) = &self.verb;
        let value = source.source.clone();
        value.map(|value| Flag { name: "--source", path: "cdc.source", value }).into_iter().collect()
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::List { .. } | Verb::Show { .. })
    }
}

/// Opens the quarantine and carries out one verb.
pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let store = context.store().await?;
    let source: Arc<str> = context.settings.cdc.source.as_str().into();
    let quarantine = Quarantine::new(store, context.env.clock.clone(), source.clone(), KEPT_BEYOND_RETENTION);
    let desk = Desk { context, quarantine, source };
    match args.verb {
        Verb::List { .. } => desk.list().await,
        Verb::Show { id, raw, .. } => desk.show(&id, raw).await,
        Verb::Replay(chosen) => desk.replay(chosen).await,
        Verb::Drop(chosen) => desk.drop_events(chosen).await,
    }
}

struct Desk<'a> {
    context: &'a Context,
    quarantine: Quarantine,
    source: Arc<str>,
}

impl Desk<'_> {
    async fn all(&self) -> anyhow::Result<Vec<Manifest>> {
        let found = self.context.look(async |by| self.quarantine.list(by, EVENTS_MAX).await).await;
        found.map_err(misuse_if_invalid).context("list the quarantine")
    }

    async fn one(&self, id: &str) -> anyhow::Result<Option<Manifest>> {
        let id: Position = id.parse().map_err(|_| {
            misuse(format!("`{id}` is not the id of an event: copy one from `tenure dlq list`"))
        })?;
        let found = self.context.look(async |by| self.quarantine.manifest(by, id).await).await;
        let found = found.map_err(misuse_if_invalid).context("look at the quarantine")?;
        if found.is_none() {
            eprintln!("source `{}` has no event {id} in the quarantine: see `tenure dlq list`", self.source);
        }
        Ok(found)
    }

    async fn chosen(&self, chosen: &Chosen) -> anyhow::Result<Option<Vec<Manifest>>> {
        match &chosen.id {
            Some(id) => Ok(self.one(id).await?.map(|manifest| vec![manifest])),
            None => self.all().await.map(Some),
        }
    }

    async fn content(&self, manifest: &Manifest) -> anyhow::Result<Bytes> {
        let found = self.context.look(async |by| self.quarantine.content(by, manifest).await).await;
        found.with_context(|| format!("read event {}", manifest.id))
    }

    fn json(&self, manifest: &Manifest) -> Json {
        let Manifest { id, reason, bytes, chunks, sha256, stored, hash_key } = manifest;
        json!({
            "id": id.to_string(),
            "source": &*self.source,
            "reason": reason_of(reason.as_deref()),
            "bytes": bytes,
            "chunks": chunks,
            "sha256": sha256,
            "stored": stored.to_string(),
            "hash_key": hash_key.to_string(),
        })
    }

    async fn list(&self) -> anyhow::Result<ExitCode> {
        let found = self.all().await?;
        for manifest in &found {
            let Manifest { id, reason, bytes, stored, .. } = manifest;
            self.context.out.say(
                || self.json(manifest),
                || {
                    let reason = reason_of(reason.as_deref());
                    one_line(&format!("{id}  {:>10}  {stored}  {reason}", size::rounded(*bytes)))
                },
            )?;
        }
        self.context.out.say(
            || json!({ "events": found.len() }),
            || {
                format!(
                    "{} of source `{}` in the quarantine",
                    counted(found.len() as u64, "event"),
                    self.source
                )
            },
        )?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, id: &str, raw: bool) -> anyhow::Result<ExitCode> {
        let Some(manifest) = self.one(id).await? else { return Ok(ExitCode::from(REFUSED)) };
        let content = self.content(&manifest).await?;
        if raw {
            self.context.out.bytes(&content)?;
            return Ok(ExitCode::SUCCESS);
        }
        let shown = &content[..content.len().min(SHOWN_BYTES_MAX)];
        let (text, cut) = (String::from_utf8_lossy(shown), content.len() > shown.len());
        self.context.out.say(
            || {
                let mut json = self.json(&manifest);
                json["content"] = text.as_ref().into();
                json["cut"] = cut.into();
                json
            },
            || {
                let Manifest { id, reason, bytes, chunks, sha256, stored, hash_key } = &manifest;
                let more = if cut { "… (all of it with --raw)" } else { "" };
                let reason = reason_of(reason.as_deref());
                [
                    format!("id        {id}"),
                    one_line(&format!("reason    {reason}")),
                    format!("size      {bytes} bytes in {}", counted(*chunks, "row")),
                    format!("sha256    {sha256}"),
                    format!("stored    {stored}"),
                    format!("hash key  {hash_key}"),
                    format!("content   {}{more}", one_line(&text)),
                ]
                .join("\n")
            },
        )?;
        Ok(ExitCode::SUCCESS)
    }

    async fn replay(&self, chosen: Chosen) -> anyhow::Result<ExitCode> {
        let Some(manifests) = self.chosen(&chosen).await? else { return Ok(ExitCode::from(REFUSED)) };
        let stream = self.context.stream().await?;
        let many = counted(manifests.len() as u64, "event");
        let question = format!("put {many} into stream `{}` again", stream.name());
        if chosen.all && !chosen.yes && !cdc::agreed(&question)? {
            return self.nothing();
        }
        let limits =
            self.context.look(async |by| stream.limits(by).await).await.map_err(misuse_if_invalid)?;
        for manifest in &manifests {
            let content = self.content(manifest).await?;
            let record = self.record(manifest, &content)?;
            let (has, most) = (record.size_bytes(), limits.bytes_per_record_max);
            if has > most {
                return Err(misuse(format!(
                    "event {} has {has} bytes, and stream `{}` takes at most {most} in a record: put it into one that \
                     takes more (`tenure stream create --record-bytes-max`, at most 10 MiB, and --stream), or read it \
                     with `tenure dlq show {} --raw` and deliver it by hand",
                    manifest.id,
                    stream.name(),
                    manifest.id
                )));
            }
            self.put(&*stream, manifest, record).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn record(&self, manifest: &Manifest, content: &Bytes) -> anyhow::Result<Record> {
        let data = replayed(&self.source, manifest.id, content).with_context(|| {
            let id = manifest.id;
            format!("event {id} cannot be replayed: read it with `tenure dlq show {id} --raw`")
        })?;
        Ok(Record::new(partition_key(content), data).at_hash_key(manifest.hash_key))
    }

    async fn put(&self, stream: &dyn Stream, manifest: &Manifest, record: Record) -> anyhow::Result<()> {
        let id = manifest.id;
        let puts = stream.put(self.context.by(), std::slice::from_ref(&record)).await;
        let puts = puts.map_err(misuse_if_invalid).with_context(|| format!("replay event {id}"))?;
        match puts.into_iter().next() {
            Some(Put::Stored { shard, sequence }) => self.context.out.say(
                || json!({ "replayed": id.to_string(), "shard": shard.as_str(), "sequence": sequence.to_string() }),
                || format!("{id}  replayed to {shard} at {sequence}"),
            ),
            Some(Put::Refused { reason }) => {
                Err(anyhow::anyhow!("the stream refused event {id}: {reason}; it stays in the quarantine"))
            }
            Some(Put::Throttled) | None => {
                Err(anyhow::anyhow!("the stream is throttled, and event {id} was not put: try again later"))
            }
        }
    }

    async fn drop_events(&self, chosen: Chosen) -> anyhow::Result<ExitCode> {
        let Some(manifests) = self.chosen(&chosen).await? else { return Ok(ExitCode::from(REFUSED)) };
        let many = counted(manifests.len() as u64, "event");
        let question = format!("drop {many} of source `{}` from the quarantine", self.source);
        if !chosen.yes && !cdc::agreed(&question)? {
            return self.nothing();
        }
        for manifest in &manifests {
            let dropped = self.quarantine.drop_event(self.context.by(), manifest).await;
            dropped.with_context(|| format!("drop event {}", manifest.id))?;
            let id = manifest.id.to_string();
            self.context.out.say(|| json!({ "dropped": id }), || format!("{id}  dropped"))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn nothing(&self) -> anyhow::Result<ExitCode> {
        self.context.out.say(|| json!({ "done": false }), || "nothing was changed".to_owned())?;
        Ok(ExitCode::SUCCESS)
    }
}

fn reason_of(reason: Option<&str>) -> &str {
    reason.unwrap_or("too large for the stream")
}

/// The event as it is put again: without a `tenure` object, and telling where it comes from.
fn replayed(source: &str, id: Position, content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let rest = content.trim_ascii_start().strip_prefix(b"{").context("it is not a JSON object")?;
    let mut data =
        format!("{{\"replayed\":{}", json!({ "source": source, "id": id.to_string() })).into_bytes();
    if !rest.trim_ascii_start().starts_with(b"}") {
        data.push(b',');
    }
    data.extend_from_slice(rest);
    Ok(data)
}

/// The partition key that the event would have had: for people, and for readers that go by it.
fn partition_key(content: &[u8]) -> String {
    let event: Json = serde_json::from_slice(content).unwrap_or_default();
    let (Some(schema), Some(table)) = (event["schema"].as_str(), event["table"].as_str()) else {
        return "replayed".to_owned();
    };
    let mut key = format!("{schema}.{table}");
    for value in event["key"].as_object().into_iter().flat_map(|key| key.values()) {
        key.push('/');
        match value {
            Json::String(text) => key.push_str(text),
            Json::Null => {}
            other => key.push_str(&other.to_string()),
        }
    }
    if key.chars().count() > PARTITION_KEY_CHARACTERS_MAX {
        key = format!("{schema}.{table}").chars().take(PARTITION_KEY_CHARACTERS_MAX).collect();
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replayed_event_tells_where_it_comes_from() {
        let id: Position = "1:0/20:0/10:0".parse().unwrap();
        let event = replayed("shop", id, br#"{"op":"insert","after":{}}"#).unwrap();
        let event: Json = serde_json::from_slice(&event).unwrap();
        assert_eq!(event["replayed"], json!({ "source": "shop", "id": "1:0/20:0/10:0" }));
        assert_eq!((&event["op"], event.get("tenure")), (&json!("insert"), None));
        assert!(serde_json::from_slice::<Json>(&replayed("s", id, b"{}").unwrap()).is_ok());
        assert!(replayed("s", id, b"[1]").is_err());
    }

    #[test]
    fn a_partition_key_is_the_table_and_the_key() {
        let key = |text: &str| partition_key(text.as_bytes());
        assert_eq!(key(r#"{"schema":"public","table":"t","key":{"a":7,"b":"x"}}"#), "public.t/7/x");
        assert_eq!(key(r#"{"schema":"public","table":"t"}"#), "public.t");
        assert_eq!(key("?"), "replayed");
        let long = format!(r#"{{"schema":"public","table":"t","key":{{"a":"{}"}}}}"#, "x".repeat(300));
        assert_eq!(key(&long), "public.t");
    }
}
