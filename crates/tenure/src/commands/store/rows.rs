//! Single rows, and all of them.

use std::io::Read;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Serialize;
use tenure_store::{ITEM_BYTES_MAX, Item, Page, Refusal, Store, StoreExt, Written};

use crate::attribute::{self, Attribute};
use crate::context::Context;
use crate::failure::{REFUSED, misuse, misuse_if_invalid};
use crate::item_text::{self, Form, Shown};
use crate::output::{counted, one_line};

/// Most bytes of a row's text that are read: every escape and every type name around the largest row.
const TEXT_BYTES_MAX: u64 = 8 * ITEM_BYTES_MAX as u64;

// === get ===

#[derive(clap::Args)]
#[command(after_help = "\
Exit status 3 if there is no such row.

Examples:
  tenure store get locks name=orders
  tenure store get events stream=orders at=17 --json
  tenure store get events stream:S=orders at:N=17 --plain")]
pub(super) struct GetArgs {
    /// The table
    table: String,

    /// The key, one word per attribute; types are the table's, or given as in at:N=17
    #[arg(required = true, value_name = "NAME[:TYPE]=VALUE")]
    key: Vec<Attribute>,

    #[command(flatten)]
    look: Look,
}

/// How rows are shown.
#[derive(clap::Args, Clone, Copy)]
pub(super) struct Look {
    /// Show rows as plain JSON objects in place of DynamoDB's JSON (with --json) or a list (without)
    #[arg(long)]
    pub(super) plain: bool,
}

#[derive(Serialize)]
struct Found {
    found: bool,
    item: Option<Shown>,
}

pub(super) async fn get(args: GetArgs, context: &Context, store: &dyn Store) -> anyhow::Result<ExitCode> {
    let GetArgs { table, key, look } = args;
    let spec = context.table(store, &table).await?;
    let key = attribute::key(&spec, &key)?;
    let found = context.look(async |by| store.get(by, &table, &key).await).await.context("get the row")?;
    match found {
        Some(item) => {
            context.out.say(
                || Found { found: true, item: Some(item_text::shown(&item, look.plain)) },
                || look.text(&item),
            )?;
            Ok(ExitCode::SUCCESS)
        }
        None => {
            context.out.say(
                || Found { found: false, item: None },
                || format!("no row {} in table `{table}`", one_line(&key.to_string())),
            )?;
            Ok(ExitCode::from(REFUSED))
        }
    }
}

impl Look {
    /// A row for people: an attribute a line, or plain JSON.
    fn text(self, item: &Item) -> String {
        if self.plain {
            return item_text::plain_text(item);
        }
        let wide = item.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
        let line = |(name, value): (&String, &tenure_store::Value)| {
            let shown = item_text::plain_value_text(value);
            format!("{:wide$}  {:4}  {}", one_line(name), value.type_name(), one_line(&shown))
        };
        item.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

// === put and delete ===

/// When a write may happen.
#[derive(clap::Args)]
struct When {
    /// Only if this attribute has this value; may be repeated, and all must hold
    #[arg(long = "if", value_name = "NAME[:TYPE]=VALUE")]
    equal: Vec<Attribute>,
}

#[derive(clap::Args)]
#[command(after_help = "\
The row is a JSON object, plain or DynamoDB's own; numbers keep their digits. `-` reads it from standard input.
In --if a value is a number, true, false or null if it looks so, and text otherwise; a type settles it: --if n:S=5.
Exit status 3 if the condition did not hold: the row as it is is shown. Exit status 4 if the write may have happened.

Examples:
  tenure store put locks '{\"name\":\"orders\",\"owner\":\"ann\",\"epoch\":1}' --if-absent
  tenure store put locks '{\"name\":\"orders\",\"owner\":\"bob\",\"epoch\":2}' --if owner=ann --if epoch=1
  echo '{\"name\":{\"S\":\"orders\"}}' | tenure store put locks -")]
pub(super) struct PutArgs {
    /// The table
    table: String,

    /// The whole row, key included; `-` for standard input
    #[arg(value_name = "JSON")]
    row: String,

    /// Only if there is no such row
    #[arg(long, conflicts_with = "equal")]
    if_absent: bool,

    #[command(flatten)]
    when: When,

    /// How the row is written
    #[arg(long, default_value = "auto")]
    format: Form,
}

#[derive(clap::Args)]
#[command(after_help = "\
Exit status 3 if the condition did not hold: the row as it is is shown. Exit status 4 if the write may have happened.

Examples:
  tenure store delete locks name=orders
  tenure store delete locks name=orders --if owner=ann")]
pub(super) struct DeleteArgs {
    /// The table
    table: String,

    /// The key, one word per attribute
    #[arg(required = true, value_name = "NAME[:TYPE]=VALUE")]
    key: Vec<Attribute>,

    #[command(flatten)]
    when: When,
}

pub(super) async fn put(args: PutArgs, context: &Context, store: &dyn Store) -> anyhow::Result<ExitCode> {
    let PutArgs { table, row, if_absent, when, format } = args;
    let text = if row == "-" { standard_input()? } else { row };
    let item = item_text::parse(text.trim(), format)?;
    let spec = context.table(store, &table).await?;
    let when = attribute::condition(&spec, if_absent, &when.equal)?;
    let written = store
        .put(context.by(), &table, item, when)
        .await
        .map_err(misuse_if_invalid)
        .with_context(|| format!("put a row of table `{table}`"))?;
    say_written(&written, "written", context)
}

pub(super) async fn delete(
    args: DeleteArgs,
    context: &Context,
    store: &dyn Store,
) -> anyhow::Result<ExitCode> {
    let DeleteArgs { table, key, when } = args;
    let spec = context.table(store, &table).await?;
    let key = attribute::key(&spec, &key)?;
    let when = attribute::condition(&spec, false, &when.equal)?;
    let written = store
        .delete(context.by(), &table, key, when)
        .await
        .map_err(misuse_if_invalid)
        .with_context(|| format!("delete a row of table `{table}`"))?;
    let gone = matches!(&written, Written::Applied(item) if !item.is_empty());
    say_written(&written, if gone { "deleted" } else { "there was no such row" }, context)
}

fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin()
        .take(TEXT_BYTES_MAX + 1)
        .read_to_string(&mut text)
        .context("read the row from standard input")?;
    if text.len() as u64 > TEXT_BYTES_MAX {
        return Err(misuse(format!(
            "standard input has more than {TEXT_BYTES_MAX} bytes: a row holds at most {ITEM_BYTES_MAX}"
        )));
    }
    Ok(text)
}

#[derive(Serialize)]
struct Outcome {
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current: Option<Option<Shown>>,
}

/// Shows how a write ended. A refusal shows the row that refused it.
fn say_written(written: &Written, done: &str, context: &Context) -> anyhow::Result<ExitCode> {
    match written {
        Written::Applied(item) => {
            let item = (!item.is_empty()).then(|| item_text::shown(item, false));
            context.out.say(|| Outcome { outcome: "applied", item, current: None }, || done.to_owned())?;
            Ok(ExitCode::SUCCESS)
        }
        Written::Refused(Refusal { current, .. }) => {
            context.out.say(
                || {
                    let current = current.as_ref().map(|item| item_text::shown(item, false));
                    Outcome { outcome: "refused", item: None, current: Some(current) }
                },
                || match current {
                    Some(item) => {
                        format!(
                            "refused: the condition does not hold of the row as it is\n{}",
                            Look { plain: false }.text(item)
                        )
                    }
                    None => "refused: there is no such row".to_owned(),
                },
            )?;
            Ok(ExitCode::from(REFUSED))
        }
    }
}

// === scan ===

#[derive(clap::Args)]
#[command(after_help = "\
Rows come in an order of the backend's own.

Examples:
  tenure store scan locks
  tenure store scan locks --limit 10 --json
  tenure store scan locks --plain | jq .owner")]
pub(super) struct ScanArgs {
    /// The table
    table: String,

    /// Most rows to show
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    #[command(flatten)]
    look: Look,
}

#[derive(Serialize)]
struct Row {
    item: Shown,
}

#[derive(Serialize)]
struct Scanned {
    rows: u64,
    complete: bool,
}

pub(super) async fn scan(args: ScanArgs, context: &Context, store: &dyn Store) -> anyhow::Result<ExitCode> {
    let ScanArgs { table, limit, look } = args;
    let limit = limit.unwrap_or(u64::MAX);
    let spec = context.table(store, &table).await?;
    let mut page = Page { limit: Page::LIMIT_MAX, after: None };
    let mut rows = 0;
    // Every page ends at a later row, and a table is finite.
    let complete = loop {
        page.limit = usize::try_from(limit - rows).unwrap_or(usize::MAX).min(Page::LIMIT_MAX);
        let listing = context.look(async |by| store.scan(by, &table, &page).await).await;
        let listing = listing.with_context(|| format!("scan table `{table}`"))?;
        for item in &listing.items {
            rows += 1;
            context.out.say(
                || Row { item: item_text::shown(item, look.plain) },
                || if look.plain { item_text::plain_text(item) } else { row_line(&spec, item) },
            )?;
        }
        context.out.flush()?;
        page.after = listing.next;
        if page.after.is_none() {
            break true;
        }
        if rows >= limit {
            break false;
        }
    };
    if context.out.is_json() {
        context.out.json_line(&Scanned { rows, complete })?;
    } else if !complete {
        eprintln!("{} shown, more follow: raise --limit", counted(rows, "row"));
    }
    Ok(ExitCode::SUCCESS)
}

/// A row on one line: its key, then the rest.
pub(super) fn row_line(spec: &tenure_store::TableSpec, item: &Item) -> String {
    let Ok(key) = spec.key_of(item) else { return one_line(&item_text::plain_text(item)) };
    let rest: Item = item
        .iter()
        .filter(|(name, _)| key.as_item().get(name).is_none())
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    one_line(&format!("{key}  {}", item_text::plain_text(&rest)))
}
