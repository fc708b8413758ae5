//! What the workers of `tenure consume` could not process, and went on without.

use std::process::Stdio;
use std::sync::Arc;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tenure_quarantine::{DeadLetter, DeadLetters, body_of};
use tenure_store::Store;
use tenure_stream::{Record, Stream};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::events::replayed;
use super::{Content, EVENTS_MAX, put};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::one_line;
use crate::record_line::RecordLine;
use crate::size;

/// What stands between the parts of an id. No application has it in its name.
const SEPARATOR: char = '#';

/// The dead letters of all applications, or of one.
pub(super) struct Letters<'a> {
    context: &'a Context,
    store: Arc<dyn Store>,
    app: Option<String>,
}

/// A dead letter, and whose.
pub(super) struct Letter {
    app: Arc<str>,
    letter: DeadLetter,
}

impl Letter {
    /// By which it is named: `APP#LEASE#SEQUENCE#SUB`.
    pub(super) fn id(&self) -> String {
        format!("{}{SEPARATOR}{}", self.app, self.letter.key)
    }
}

/// Whether it names a dead letter, and not an event.
pub(super) fn is_letter(id: &str) -> bool {
    id.contains(SEPARATOR)
}

impl<'a> Letters<'a> {
    /// Of one application, or of all.
    pub(super) async fn open(context: &'a Context, app: Option<String>) -> anyhow::Result<Self> {
        Ok(Self { context, store: context.store().await?, app })
    }

    fn of(&self, app: &Arc<str>) -> DeadLetters {
        // How long they are kept is the business of who stores them.
        DeadLetters::new(
            self.store.clone(),
            self.context.env.clock.clone(),
            app.clone(),
            tenure_consumer::Settings::default().dead_letters_kept,
        )
    }

    pub(super) async fn all(&self) -> anyhow::Result<Vec<Letter>> {
        let found = self.context.look(async |by| {
            let apps = match &self.app {
                Some(app) => vec![app.as_str().into()],
                None => DeadLetters::applications(&*self.store, by, EVENTS_MAX).await?,
            };
            let mut letters = Vec::new();
            for app in apps {
                let found = self.of(&app).list(by, EVENTS_MAX - letters.len().min(EVENTS_MAX - 1)).await?;
                letters.extend(found.into_iter().map(|letter| Letter { app: app.clone(), letter }));
            }
            Ok(letters)
        });
        found.await.map_err(misuse_if_invalid).context("list the dead letters")
    }

    /// `None`, told: there is no such dead letter.
    pub(super) async fn one(&self, id: &str) -> anyhow::Result<Option<Letter>> {
        let app: Option<Arc<str>> = id.split_once(SEPARATOR).map(|(app, _)| app.into());
        let Some(app) = app.filter(|app| !app.is_empty()) else {
            return Err(misuse(format!(
                "`{id}` is not the id of a dead letter: copy one from `tenure dlq list`"
            )));
        };
        if let Some(asked) = self.app.as_ref().filter(|asked| **asked != *app) {
            return Err(misuse(format!(
                "dead letter {} is of application `{}`, not `{}`: leave out --app, or correct it",
                one_line(id),
                one_line(&app),
                one_line(asked)
            )));
        }
        let listed = self.context.look(async |by| self.of(&app).list(by, EVENTS_MAX).await).await;
        let listed = listed.map_err(misuse_if_invalid).context("list the dead letters")?;
        let letters = listed.into_iter().map(|letter| Letter { app: app.clone(), letter });
        let found = letters.into_iter().find(|letter| letter.id() == id);
        if found.is_none() {
            eprintln!(
                "application `{}` has no dead letter {}: see `tenure dlq list`",
                one_line(&app),
                one_line(id)
            );
        }
        Ok(found)
    }

    async fn content(&self, letter: &Letter) -> anyhow::Result<Bytes> {
        let letters = self.of(&letter.app);
        let found = self.context.look(async |by| letters.content(by, &letter.letter).await).await;
        found.with_context(|| format!("read dead letter {}", letter.id()))
    }

    fn json(letter: &Letter) -> Json {
        let DeadLetter { key, partition_key, reason, bytes, stored, .. } = &letter.letter;
        json!({
            "origin": "consumer",
            "id": letter.id(),
            "app": &*letter.app,
            "lease": key.lease,
            "sequence": key.sequence.to_string(),
            "sub_sequence": key.sub,
            "partition_key": partition_key,
            "reason": reason,
            "bytes": bytes,
            "stored": stored.to_string(),
        })
    }

    pub(super) fn line(&self, letter: &Letter) -> anyhow::Result<()> {
        let DeadLetter { reason, bytes, stored, .. } = &letter.letter;
        let bytes = size::rounded(*bytes);
        self.context.out.say(
            || Self::json(letter),
            || one_line(&format!("consumer  {}  {bytes:>10}  {stored}  {reason}", letter.id())),
        )
    }

    pub(super) async fn show(&self, letter: &Letter, raw: bool) -> anyhow::Result<()> {
        let content = Content(self.content(letter).await?);
        if raw {
            return self.context.out.bytes(&content.0);
        }
        self.context.out.say(
            || content.beside(Self::json(letter)),
            || {
                let DeadLetter { key, partition_key, reason, bytes, stored, .. } = &letter.letter;
                let part = if key.sub == 0 { String::new() } else { format!(", part {}", key.sub) };
                [
                    format!("id             {}", one_line(&letter.id())),
                    format!("origin         consumer, application {}", one_line(&letter.app)),
                    format!("reason         {}", one_line(reason)),
                    format!("lease          {}", one_line(&key.lease)),
                    format!("sequence       {}{part}", key.sequence),
                    format!("partition key  {}", one_line(partition_key)),
                    format!("size           {bytes} bytes"),
                    format!("stored         {stored}"),
                    format!("content        {}", content.shown()),
                ]
                .join("\n")
            },
        )
    }

    /// Puts it into the stream again.
    pub(super) async fn replay(&self, stream: &dyn Stream, letter: &Letter) -> anyhow::Result<()> {
        let (id, content) = (letter.id(), self.content(letter).await?);
        let body = body_of(&content);
        // With its `tenure` object, readers would take an event for a copy of what they have seen, and drop it.
        let data = match body == content {
            true => content.to_vec(),
            false => replayed(&json!({ "app": &*letter.app, "id": id }), &body)?,
        };
        put(self.context, stream, &id, Record::new(letter.letter.partition_key.clone(), data)).await
    }

    /// Gives it to a command, and forgets it once that has ended well.
    pub(super) async fn process(&self, stream: &str, letter: &Letter, command: &str) -> anyhow::Result<()> {
        let (id, content) = (letter.id(), self.content(letter).await?);
        let DeadLetter { key, partition_key, stored, .. } = &letter.letter;
        let (stream, shard) = key.lease.split_once(':').unwrap_or((stream, &key.lease));
        let sub = Some(key.sub).filter(|sub| *sub > 0);
        let line = RecordLine::new(shard, &key.sequence, sub, *stored, partition_key, &content);
        let mut line = serde_json::to_vec(&line)?;
        line.push(b'\n');
        let mut child = Command::new("sh")
            .args(["-c", command])
            .env("TENURE_APP", &*letter.app)
            .env("TENURE_STREAM", stream)
            .env("TENURE_SHARD", shard)
            .stdin(Stdio::piped())
            // Standard output is ours, and JSON if that was asked for.
            .stdout(std::io::stderr())
            .spawn()
            .context("start the command")?;
        let input = child.stdin.take();
        let feeding = async move {
            if let Some(mut input) = input {
                // It hears no more when it has ended or closed its input: its status says what that means.
                let _ = input.write_all(&line).await;
            }
        };
        let ((), ended) = tokio::join!(feeding, child.wait());
        let status = ended.context("run the command")?;
        if !status.success() {
            return Err(anyhow::anyhow!(
                "the command ended with {status} on dead letter {id}: it stays, and so do those after it"
            ));
        }
        self.drop_one(letter).await?;
        self.context
            .out
            .say(|| json!({ "processed": id }), || format!("{}  processed and dropped", one_line(&id)))
    }

    pub(super) async fn drop_one(&self, letter: &Letter) -> anyhow::Result<()> {
        let dropped = self.of(&letter.app).forget(self.context.by(), &letter.letter).await;
        dropped.with_context(|| format!("drop dead letter {}", letter.id()))
    }
}
