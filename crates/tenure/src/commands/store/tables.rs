//! Tables: made, and described.

use std::process::ExitCode;

use serde_json::{Value as Json, json};
use tenure_store::{IndexSpec, KeyAttribute, Projection, Store, TableSpec};

use crate::attribute;
use crate::context::Context;
use crate::failure::misuse_if_invalid;

#[derive(clap::Args)]
#[command(after_help = "\
A table that is there already with the same key is left as it is; what it lacks of TTL and indexes is added.

Examples:
  tenure store create-table locks --hash name
  tenure store create-table events --hash stream:S --range at:N --ttl expires
  tenure store create-table leases --hash key --index by_owner:owner:expires=N")]
pub(super) struct CreateArgs {
    /// The table's name: 3 to 255 letters, digits, `_`, `-` and `.`
    table: String,

    /// The hash key attribute; TYPE is S (text, the default), N (number) or B (bytes)
    #[arg(long, value_name = "NAME[:TYPE]", value_parser = attribute::key_attribute)]
    hash: KeyAttribute,

    /// The range key attribute
    #[arg(long, value_name = "NAME[:TYPE]", value_parser = attribute::key_attribute)]
    range: Option<KeyAttribute>,

    /// The attribute that holds the epoch second after which a row may be swept away
    #[arg(long, value_name = "NAME")]
    ttl: Option<String>,

    /// An index by another attribute, written NAME:hash or NAME:hash:range; a number is written hash=N
    #[arg(long, value_name = "INDEX", value_parser = attribute::index)]
    index: Vec<IndexSpec>,
}

#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure store describe locks
  tenure store describe locks --json")]
pub(super) struct DescribeArgs {
    /// The table
    table: String,
}

pub(super) async fn create(
    args: CreateArgs,
    context: &Context,
    store: &dyn Store,
) -> anyhow::Result<ExitCode> {
    let CreateArgs { table, hash, range, ttl, index } = args;
    let spec = TableSpec { name: table, hash, range, ttl, indexes: index };
    spec.validate().map_err(misuse_if_invalid)?;
    store.ensure_table(context.by(), &spec).await.map_err(misuse_if_invalid)?;
    let found = context.table(store, &spec.name).await?;
    context.out.say(|| described(&found), || format!("table `{}` is ready", found.name))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn describe(
    args: DescribeArgs,
    context: &Context,
    store: &dyn Store,
) -> anyhow::Result<ExitCode> {
    let spec = context.table(store, &args.table).await?;
    context.out.say(|| described(&spec), || shown(&spec))?;
    Ok(ExitCode::SUCCESS)
}

fn described(spec: &TableSpec) -> Json {
    let key = |attribute: &KeyAttribute| json!({ "name": attribute.name, "type": attribute.kind.name() });
    let index = |index: &IndexSpec| {
        json!({
            "name": index.name,
            "hash": key(&index.hash),
            "range": index.range.as_ref().map(key),
            "projection": projection(index.projection),
        })
    };
    json!({
        "table": spec.name,
        "hash": key(&spec.hash),
        "range": spec.range.as_ref().map(key),
        "ttl": spec.ttl,
        "indexes": spec.indexes.iter().map(index).collect::<Vec<_>>(),
    })
}

fn shown(spec: &TableSpec) -> String {
    let key = |hash: &KeyAttribute, range: &Option<KeyAttribute>| {
        let shown = |attribute: &KeyAttribute| format!("{}:{}", attribute.name, attribute.kind.name());
        std::iter::once(hash).chain(range).map(shown).collect::<Vec<_>>().join(" + ")
    };
    let mut lines = vec![
        format!("table  {}", spec.name),
        format!("key    {}", key(&spec.hash, &spec.range)),
        format!("ttl    {}", spec.ttl.as_deref().unwrap_or("-")),
    ];
    for index in &spec.indexes {
        let (key, projection) = (key(&index.hash, &index.range), projection(index.projection));
        lines.push(format!("index  {}  {key}  ({projection})", index.name));
    }
    lines.join("\n")
}

const fn projection(projection: Projection) -> &'static str {
    match projection {
        Projection::KeysOnly => "keys only",
        Projection::All => "all attributes",
    }
}
