//! What `tenure cdc` could not publish as it was, and waits in the quarantine.

use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tenure_quarantine::{KEPT_BEYOND_RETENTION, Manifest, Quarantine};
use tenure_stream::identity::Position;
use tenure_stream::{Record, Stream};

use super::{Content, EVENTS_MAX, put};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::{counted, one_line};
use crate::size;

/// The longest partition key that a stream takes.
const PARTITION_KEY_CHARACTERS_MAX: usize = 256;

/// The events of one source.
pub(super) struct Events<'a> {
    context: &'a Context,
    quarantine: Quarantine,
    source: Arc<str>,
}

impl<'a> Events<'a> {
    /// Of the configured source.
    pub(super) async fn open(context: &'a Context) -> anyhow::Result<Self> {
        let store = context.store().await?;
        let source: Arc<str> = context.settings.cdc.source.as_str().into();
        let quarantine =
            Quarantine::new(store, context.env.clock.clone(), source.clone(), KEPT_BEYOND_RETENTION);
        Ok(Self { context, quarantine, source })
    }

    pub(super) fn source(&self) -> &str {
        &self.source
    }

    pub(super) async fn all(&self) -> anyhow::Result<Vec<Manifest>> {
        let found = self.context.look(async |by| self.quarantine.list(by, EVENTS_MAX).await).await;
        found.map_err(misuse_if_invalid).context("list the quarantine")
    }

    /// `None`, told: there is no such event.
    pub(super) async fn one(&self, id: &str) -> anyhow::Result<Option<Manifest>> {
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

    async fn content(&self, manifest: &Manifest) -> anyhow::Result<Bytes> {
        let found = self.context.look(async |by| self.quarantine.content(by, manifest).await).await;
        found.with_context(|| format!("read event {}", manifest.id))
    }

    fn json(&self, manifest: &Manifest) -> Json {
        let Manifest { id, reason, bytes, chunks, sha256, stored, hash_key } = manifest;
        json!({
            "origin": "cdc",
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

    pub(super) fn line(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let Manifest { id, reason, bytes, stored, .. } = manifest;
        self.context.out.say(
            || self.json(manifest),
            || {
                let reason = reason_of(reason.as_deref());
                one_line(&format!("cdc       {id}  {:>10}  {stored}  {reason}", size::rounded(*bytes)))
            },
        )
    }

    pub(super) async fn show(&self, manifest: &Manifest, raw: bool) -> anyhow::Result<()> {
        let content = Content(self.content(manifest).await?);
        if raw {
            return self.context.out.bytes(&content.0);
        }
        self.context.out.say(
            || content.beside(self.json(manifest)),
            || {
                let Manifest { id, reason, bytes, chunks, sha256, stored, hash_key } = manifest;
                let reason = reason_of(reason.as_deref());
                [
                    format!("id        {id}"),
                    one_line(&format!("origin    cdc, source {}", self.source)),
                    one_line(&format!("reason    {reason}")),
                    format!("size      {bytes} bytes in {}", counted(*chunks, "row")),
                    format!("sha256    {sha256}"),
                    format!("stored    {stored}"),
                    format!("hash key  {hash_key}"),
                    format!("content   {}", content.shown()),
                ]
                .join("\n")
            },
        )
    }

    /// Puts it into the stream as it is, on its lane.
    pub(super) async fn replay(&self, stream: &dyn Stream, manifest: &Manifest) -> anyhow::Result<()> {
        let (id, content) = (manifest.id, self.content(manifest).await?);
        let data = replayed(&json!({ "source": &*self.source, "id": id.to_string() }), &content)
            .with_context(|| {
                format!("event {id} cannot be replayed: read it with `tenure dlq show {id} --raw`")
            })?;
        let record = Record::new(partition_key(&content), data).at_hash_key(manifest.hash_key);
        put(self.context, stream, &id.to_string(), record).await
    }

    pub(super) async fn drop_one(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let dropped = self.quarantine.drop_event(self.context.by(), manifest).await;
        dropped.with_context(|| format!("drop event {}", manifest.id))
    }
}

fn reason_of(reason: Option<&str>) -> &str {
    reason.unwrap_or("too large for the stream")
}

/// The event as it is put again: without a `tenure` object, and telling where it comes from.
pub(super) fn replayed(origin: &Json, content: &[u8]) -> anyhow::Result<Vec<u8>> {
    let rest = content.trim_ascii_start().strip_prefix(b"{").context("it is not a JSON object")?;
    let mut data = format!("{{\"replayed\":{origin}").into_bytes();
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
        let origin = json!({ "source": "shop", "id": "1:0/20:0/10:0" });
        let event = replayed(&origin, br#"{"op":"insert","after":{}}"#).unwrap();
        let event: Json = serde_json::from_slice(&event).unwrap();
        assert_eq!(event["replayed"], origin);
        assert_eq!((&event["op"], event.get("tenure")), (&json!("insert"), None));
        assert!(serde_json::from_slice::<Json>(&replayed(&origin, b"{}").unwrap()).is_ok());
        assert!(replayed(&origin, b"[1]").is_err());
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
