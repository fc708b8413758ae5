//! `tenure store watch`: what changes in a table, until somebody says stop.
//!
//! It looks again and again and compares. A row that changed twice between two looks shows its last
//! state; a row that came and went between two looks is not seen.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure_clock::WallTime;
use tenure_store::{Item, Key, Store, StoreExt, TableSpec};

use super::rows::{Look, row_line};
use crate::attribute::{self, Attribute};
use crate::context::Context;
use crate::item_text::{self, Shown};
use crate::output::one_line;
use crate::{duration, looking};

/// Most rows that are compared: they are all kept in memory.
const ROWS_MAX: usize = 100_000;

#[derive(clap::Args)]
#[command(after_help = "\
Begins with the rows as they are. Looks again at every interval: of several changes between two looks, the last is
shown. Ends with exit status 0 on SIGINT or SIGTERM.

Examples:
  tenure store watch locks
  tenure store watch locks name=orders --interval 100ms --json
  tenure store watch locks --metrics 127.0.0.1:9464")]
pub(super) struct Args {
    /// The table
    table: String,

    /// Only the row with this key, one word per attribute
    #[arg(value_name = "NAME[:TYPE]=VALUE")]
    key: Vec<Attribute>,

    /// How long to wait between two looks
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = duration::parse_positive)]
    interval: Duration,

    #[command(flatten)]
    look: Look,
}

pub(super) async fn run(args: Args, context: &Context, store: &dyn Store) -> anyhow::Result<ExitCode> {
    let Args { table, key, interval, look } = args;
    let spec = context.table(store, &table).await?;
    let key = if key.is_empty() { None } else { Some(attribute::key(&spec, &key)?) };
    let mut seen: Option<Rows> = None;
    let look_at = async || look_once(context, store, &spec, key.as_ref()).await;
    looking::until_asked_to_end(context, &table, interval, look_at, |found| {
        let at = context.env.clock.wall();
        for change in changes(seen.as_ref(), &found) {
            say(&change, at, &spec, look, context)?;
        }
        seen = Some(found);
        Ok(())
    })
    .await
}

/// Rows by the text of their keys, which no two share.
type Rows = BTreeMap<String, Item>;

async fn look_once(
    context: &Context,
    store: &dyn Store,
    spec: &TableSpec,
    key: Option<&Key>,
) -> tenure_store::Result<Rows> {
    let items = match key {
        Some(key) => store.get(context.by(), &spec.name, key).await?.into_iter().collect(),
        None => store.scan_all(context.by(), &spec.name, ROWS_MAX).await?,
    };
    items.into_iter().map(|item| Ok((item_text::plain_text(spec.key_of(&item)?.as_item()), item))).collect()
}

/// What is different between two looks.
#[derive(Debug, PartialEq, Eq)]
enum Change<'a> {
    /// Was there at the first look.
    Present(&'a Item),
    Added(&'a Item),
    Changed {
        from: &'a Item,
        to: &'a Item,
    },
    Removed(&'a Item),
}

fn changes<'a>(before: Option<&'a Rows>, now: &'a Rows) -> Vec<Change<'a>> {
    let Some(before) = before else { return now.values().map(Change::Present).collect() };
    let gone =
        before.iter().filter(|(key, _)| !now.contains_key(*key)).map(|(_, item)| Change::Removed(item));
    let other = now.iter().filter_map(|(key, to)| match before.get(key) {
        None => Some(Change::Added(to)),
        Some(from) if from != to => Some(Change::Changed { from, to }),
        Some(_) => None,
    });
    gone.chain(other).collect()
}

#[derive(Serialize)]
struct Line {
    at: String,
    event: &'static str,
    item: Shown,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Shown>,
}

fn say(
    change: &Change<'_>,
    at: WallTime,
    spec: &TableSpec,
    look: Look,
    context: &Context,
) -> anyhow::Result<()> {
    let (event, item, before) = match change {
        Change::Present(item) => ("present", item, None),
        Change::Added(item) => ("added", item, None),
        Change::Changed { from, to } => ("changed", to, Some(from)),
        Change::Removed(item) => ("removed", item, None),
    };
    context.out.say(
        || Line {
            at: at.to_string(),
            event,
            item: item_text::shown(item, look.plain),
            before: before.map(|before| item_text::shown(before, look.plain)),
        },
        || match before {
            _ if look.plain => item_text::plain_text(item),
            Some(before) => format!("{at}  {event:7}  {}", difference(spec, before, item)),
            None => format!("{at}  {event:7}  {}", row_line(spec, item)),
        },
    )
}

/// The key, and each attribute that changed: `name=orders  owner: "ann" → "bob"`.
fn difference(spec: &TableSpec, from: &Item, to: &Item) -> String {
    let mut parts = vec![spec.key_of(to).map(|key| key.to_string()).unwrap_or_default()];
    let names: std::collections::BTreeSet<_> = from.iter().chain(to.iter()).map(|(name, _)| name).collect();
    for name in names {
        let shown = |item: &Item| item.get(name).map_or_else(|| "-".to_owned(), item_text::plain_value_text);
        if from.get(name) != to.get(name) {
            parts.push(format!("{name}: {} → {}", shown(from), shown(to)));
        }
    }
    one_line(&parts.join("  "))
}

#[cfg(test)]
mod tests {
    use tenure_store::KeyAttribute;

    use super::*;

    fn rows(items: &[(&str, i32)]) -> Rows {
        items.iter().map(|(pk, n)| ((*pk).to_owned(), Item::new().with("pk", *pk).with("n", *n))).collect()
    }

    #[test]
    fn looks_are_compared() {
        let (before, now) = (rows(&[("a", 1), ("b", 1), ("c", 1)]), rows(&[("b", 1), ("c", 2), ("d", 1)]));
        let found = changes(Some(&before), &now);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0], Change::Removed(&before["a"]));
        assert_eq!(found[1], Change::Changed { from: &before["c"], to: &now["c"] });
        assert_eq!(found[2], Change::Added(&now["d"]));
        assert_eq!(changes(None, &before).len(), 3);
        let spec = TableSpec::new("table", KeyAttribute::text("pk"));
        assert_eq!(difference(&spec, &before["c"], &now["c"]), "pk=c  n: 1 → 2");
    }
}
