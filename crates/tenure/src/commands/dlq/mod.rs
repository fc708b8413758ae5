//! `tenure dlq`: what could not be published as it was, and what could not be processed.
//!
//! `events.rs` is the quarantine of `tenure cdc`, `letters.rs` the dead letters of `tenure consume`.

mod events;
mod letters;

use std::process::ExitCode;

use anyhow::Context as _;
use bytes::Bytes;
use serde_json::{Value as Json, json};
use tenure_quarantine::Manifest;
use tenure_stream::{Put, Record, Stream};

use self::events::Events;
use self::letters::{Letter, Letters, is_letter};
use crate::agreement::agreed;
use crate::context::Context;
use crate::failure::{REFUSED, misuse, misuse_if_invalid};
use crate::output::{counted, one_line};
use crate::settings::Flag;

/// Most of either kind that are listed, and that `--all` means.
const EVENTS_MAX: usize = 100_000;
/// How much of a content is shown, unless all of it is asked for.
const SHOWN_BYTES_MAX: usize = 4096;

/// Look at what was not published, or not processed.
#[derive(clap::Args)]
#[command(after_help = "\
Two things wait here, told apart by their origin:
  cdc       an event that is too large for the stream, that has no JSON form, or that the stream refused. A small
            pointer takes its place in the stream. It stays for the stream's retention and a week.
  consumer  a record that `tenure consume --on-failure dead_letter` tried in vain and went on without. It stays
            for 30 days. Its id is APPLICATION#LEASE#SEQUENCE#PART: quote it for the shell.

Examples:
  tenure dlq list
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0
  tenure dlq replay 1:0/1A2B3C:0/1A2B00:0
  tenure dlq replay --app orders --all --yes --exec ./apply.py
  tenure dlq drop --all --yes")]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(clap::Subcommand)]
enum Verb {
    /// List the events and dead letters
    #[command(after_help = "\
Events of the configured source, and dead letters of every application; with --source or --app, only what these
name.

Examples:
  tenure dlq list
  tenure dlq list --app orders
  tenure dlq list --source shop --json")]
    List {
        #[command(flatten)]
        whose: Whose,
    },
    /// Show one: why it is here, and its content
    #[command(after_help = "\
The first 4 KiB of the content, or all of it as it is with --raw.

Examples:
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0
  tenure dlq show 'orders#shardId-000000000000#42#0'
  tenure dlq show 1:0/1A2B3C:0/1A2B00:0 --raw | jq .after")]
    Show {
        /// Its id, as `tenure dlq list` shows it
        id: String,

        /// Nothing but the content, whole
        #[arg(long, conflicts_with = "json")]
        raw: bool,

        #[command(flatten)]
        whose: Whose,
    },
    /// Put it into the stream again, or give it to a command
    #[command(after_help = "\
Into the stream it comes after what was put since, for all applications that read it. An event has no `tenure`
object then, so that readers do not take it for a copy, and a `replayed` object that says where it comes from; it
goes to its lane. It stays here until it is dropped.

With --exec, dead letters go to the command one by one, as `tenure consume --exec` gives it batches (`arrived` is
when it became a dead letter), and one with which the command ends well is dropped. The first that fails ends it.

Examples:
  tenure dlq replay 1:0/1A2B3C:0/1A2B00:0
  tenure dlq replay --all --yes --stream sqlite:./large.db
  tenure dlq replay --app orders --all --yes --exec ./apply.py")]
    Replay {
        #[command(flatten)]
        chosen: Chosen,

        /// Give dead letters to this command instead, and drop those that it has processed
        #[arg(long, value_name = "CMD")]
        exec: Option<String>,
    },
    /// Forget it
    #[command(after_help = "\
The pointer of an event stays in the stream, and points nowhere then. Asks on a terminal; elsewhere --yes is
needed.

Examples:
  tenure dlq drop 1:0/1A2B3C:0/1A2B00:0
  tenure dlq drop --app orders --all --yes")]
    Drop(Chosen),
}

/// Whose.
#[derive(clap::Args)]
struct Whose {
    /// Only events of this pipeline [default: that of the settings, beside all dead letters]
    #[arg(long, value_name = "NAME")]
    source: Option<String>,

    /// Only dead letters of this application [default: of all, beside events]
    #[arg(long, value_name = "NAME")]
    app: Option<String>,
}

/// Which.
#[derive(clap::Args)]
struct Chosen {
    /// Its id, as `tenure dlq list` shows it
    #[arg(required_unless_present = "all")]
    id: Option<String>,

    /// All that `tenure dlq list` shows with the same --source and --app
    #[arg(long, conflicts_with = "id")]
    all: bool,

    /// Yes, without asking
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    whose: Whose,
}

impl Args {
    /// The settings that flags give.
    pub(crate) fn flags(&self) -> Vec<Flag> {
        let value = self.whose().source.clone();
        value.map(|value| Flag { name: "--source", path: "cdc.source", value }).into_iter().collect()
    }

    const fn whose(&self) -> &Whose {
        let (Verb::List { whose }
        | Verb::Show { whose, .. }
        | Verb::Replay { chosen: Chosen { whose, .. }, .. }
        | Verb::Drop(Chosen { whose, .. })) = &self.verb;
        whose
    }

    /// Whether nothing is changed.
    pub(crate) const fn only_looks(&self) -> bool {
        matches!(self.verb, Verb::List { .. } | Verb::Show { .. })
    }
}

/// Opens both and carries out one verb.
pub(crate) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let Whose { source, app } = args.whose();
    // Who names one kind means that kind.
    let (events, letters) = (source.is_some() || app.is_none(), app.is_some() || source.is_none());
    let desk = Desk {
        context,
        events: Events::open(context).await?,
        letters: Letters::open(context, app.clone()).await?,
        lists: (events, letters),
    };
    match args.verb {
        Verb::List { .. } => desk.list().await,
        Verb::Show { id, raw, .. } => desk.show(&id, raw).await,
        Verb::Replay { chosen, exec } => desk.replay(&chosen, exec.as_deref()).await,
        Verb::Drop(chosen) => desk.drop_chosen(&chosen).await,
    }
}

struct Desk<'a> {
    context: &'a Context,
    events: Events<'a>,
    letters: Letters<'a>,
    /// Which kinds are listed.
    lists: (bool, bool),
}

/// What was chosen.
#[derive(Default)]
struct Found {
    events: Vec<Manifest>,
    letters: Vec<Letter>,
}

impl Found {
    fn counted(&self) -> String {
        match (self.events.len(), self.letters.len()) {
            (events, 0) => counted(events, "event"),
            (0, letters) => counted(letters, "dead letter"),
            (events, letters) => {
                format!("{} and {}", counted(events, "event"), counted(letters, "dead letter"))
            }
        }
    }
}

impl Desk<'_> {
    async fn all(&self) -> anyhow::Result<Found> {
        let (events, letters) = self.lists;
        Ok(Found {
            events: if events { self.events.all().await? } else { Vec::new() },
            letters: if letters { self.letters.all().await? } else { Vec::new() },
        })
    }

    /// `None`, told: there is none of that id.
    async fn one(&self, id: &str) -> anyhow::Result<Option<Found>> {
        let mut found = Found::default();
        if is_letter(id) {
            found.letters.extend(self.letters.one(id).await?);
        } else {
            found.events.extend(self.events.one(id).await?);
        }
        Ok(Some(found).filter(|found| !found.events.is_empty() || !found.letters.is_empty()))
    }

    async fn chosen(&self, chosen: &Chosen) -> anyhow::Result<Option<Found>> {
        match &chosen.id {
            Some(id) => self.one(id).await,
            None => self.all().await.map(Some),
        }
    }

    async fn list(&self) -> anyhow::Result<ExitCode> {
        let found = self.all().await?;
        found.events.iter().try_for_each(|event| self.events.line(event))?;
        found.letters.iter().try_for_each(|letter| self.letters.line(letter))?;
        self.context.out.say(
            || json!({ "events": found.events.len(), "dead_letters": found.letters.len() }),
            || {
                let source = one_line(self.events.source());
                let events = format!("{} of source `{source}`", counted(found.events.len(), "event"));
                let letters = counted(found.letters.len(), "dead letter");
                match self.lists {
                    (true, false) => events,
                    (false, _) => letters,
                    (true, true) => format!("{events}, {letters}"),
                }
            },
        )?;
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, id: &str, raw: bool) -> anyhow::Result<ExitCode> {
        let Some(found) = self.one(id).await? else { return Ok(ExitCode::from(REFUSED)) };
        for event in &found.events {
            self.events.show(event, raw).await?;
        }
        for letter in &found.letters {
            self.letters.show(letter, raw).await?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn replay(&self, chosen: &Chosen, exec: Option<&str>) -> anyhow::Result<ExitCode> {
        let Some(found) = self.chosen(chosen).await? else { return Ok(ExitCode::from(REFUSED)) };
        let (stream, many) = (self.context.stream().await?, found.counted());
        if exec.is_some() && !found.events.is_empty() {
            return Err(misuse(
                "--exec is for dead letters of the consumer: leave out --source and name --app, or replay events into \
                 the stream",
            ));
        }
        let question = match exec {
            Some(_) => format!("give {many} to the command"),
            None => format!("put {many} into stream `{}` again", stream.name()),
        };
        if chosen.all && !chosen.yes && !agreed(&question)? {
            return self.nothing();
        }
        for event in &found.events {
            self.events.replay(&*stream, event).await?;
        }
        for letter in &found.letters {
            match exec {
                Some(command) => self.letters.process(stream.name(), letter, command).await?,
                None => self.letters.replay(&*stream, letter).await?,
            }
            // Each is told before the next is begun.
            self.context.out.flush()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn drop_chosen(&self, chosen: &Chosen) -> anyhow::Result<ExitCode> {
        let Some(found) = self.chosen(chosen).await? else { return Ok(ExitCode::from(REFUSED)) };
        if !chosen.yes && !agreed(&format!("drop {} for good", found.counted()))? {
            return self.nothing();
        }
        let dropped = |id: &str| {
            self.context.out.say(|| json!({ "dropped": id }), || format!("{}  dropped", one_line(id)))
        };
        for event in &found.events {
            self.events.drop_one(event).await?;
            dropped(&event.id.to_string())?;
        }
        for letter in &found.letters {
            self.letters.drop_one(letter).await?;
            dropped(&letter.id())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn nothing(&self) -> anyhow::Result<ExitCode> {
        self.context.out.say(|| json!({ "done": false }), || "nothing was changed".to_owned())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What was kept.
struct Content(Bytes);

impl Content {
    fn beginning(&self) -> (std::borrow::Cow<'_, str>, bool) {
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES_MAX)];
        (String::from_utf8_lossy(shown), self.0.len() > shown.len())
    }

    fn shown(&self) -> String {
        let (text, cut) = self.beginning();
        format!("{}{}", one_line(&text), if cut { "… (all of it with --raw)" } else { "" })
    }

    fn beside(&self, mut json: Json) -> Json {
        let (text, cut) = self.beginning();
        json["content"] = text.into_owned().into();
        json["cut"] = cut.into();
        json
    }
}

/// Puts a record, and tells where it is.
async fn put(context: &Context, stream: &dyn Stream, id: &str, record: Record) -> anyhow::Result<()> {
    let limits = context.look(async |by| stream.limits(by).await).await.map_err(misuse_if_invalid)?;
    let (has, most) = (record.size_bytes(), limits.bytes_per_record_max);
    if has > most {
        return Err(misuse(format!(
            "event {id} has {has} bytes, and stream `{}` takes at most {most} in a record: put it into one that takes \
             more (`tenure stream create --record-bytes-max`, at most 10 MiB, and --stream), or read it with `tenure \
             dlq show '{id}' --raw` and deliver it by hand",
            stream.name()
        )));
    }
    let puts = stream.put(context.by(), std::slice::from_ref(&record)).await;
    let puts = puts.map_err(misuse_if_invalid).with_context(|| format!("replay {id}"))?;
    match puts.into_iter().next() {
        Some(Put::Stored { shard, sequence }) => context.out.say(
            || json!({ "replayed": id, "shard": shard.as_str(), "sequence": sequence.to_string() }),
            || format!("{}  replayed to {shard} at {sequence}", one_line(id)),
        ),
        Some(Put::Refused { reason }) => {
            Err(anyhow::anyhow!("the stream refused {id}: {reason}; it stays here"))
        }
        Some(Put::Throttled) | None => {
            Err(anyhow::anyhow!("the stream is throttled, and {id} was not put: try again later"))
        }
    }
}
