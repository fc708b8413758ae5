//! What is asked of the server in SQL, beside what the library asks.

use anyhow::Context as _;
use tenure_cdc::transport::{Endpoint, PublicationName, Row, Session};

use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};

/// A name as SQL takes it, whatever is in it.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A text as SQL takes it, whatever `standard_conforming_strings` is.
pub(super) fn literal(text: &str) -> String {
    format!("E'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"))
}

/// A table by its schema and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TableName {
    pub(super) schema: String,
    pub(super) name: String,
}

impl TableName {
    /// Reads `SCHEMA.TABLE`, or `TABLE` in `public`. Letters mean themselves: `Orders` is not `orders`.
    ///
    /// # Errors
    /// A message that says what was expected.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let (schema, name) = text.split_once('.').unwrap_or(("public", text));
        if schema.is_empty() || name.is_empty() || text.contains('\0') {
            return Err(format!("`{text}` is not a table: write SCHEMA.TABLE, like public.orders"));
        }
        Ok(Self { schema: schema.to_owned(), name: name.to_owned() })
    }

    pub(super) fn quoted(&self) -> String {
        format!("{}.{}", identifier(&self.schema), identifier(&self.name))
    }

    pub(super) fn shown(&self) -> String {
        format!("{}.{}", self.schema, self.name)
    }
}

/// A session for SQL alone.
pub(super) async fn connect(context: &Context, endpoint: &Endpoint) -> tenure_backend::Result<Session> {
    Session::connect_for_sql(endpoint, context.env.clock.clone(), context.by()).await
}

/// A session that can make slots and stream.
pub(super) async fn connect_to_replicate(context: &Context, endpoint: &Endpoint) -> anyhow::Result<Session> {
    let session = Session::connect(endpoint, context.env.clock.clone(), context.by()).await;
    session.map_err(misuse_if_invalid).context("connect to Postgres")
}

/// Those of the tables that are not there.
pub(super) async fn missing_tables(
    context: &Context,
    session: &mut Session,
    tables: &[TableName],
) -> anyhow::Result<()> {
    for table in tables {
        let sql = format!("SELECT pg_catalog.to_regclass({}) AS found", literal(&table.quoted()));
        let rows = session.query(context.by(), &sql).await.context("look for a table")?;
        if rows.first().and_then(|row| row.named("found")).is_none() {
            return Err(misuse(format!(
                "table {} does not exist in the database: correct --table, or create it first",
                table.shown()
            )));
        }
    }
    Ok(())
}

/// Makes a publication of these tables, or of all.
pub(super) async fn create_publication(
    context: &Context,
    session: &mut Session,
    name: &PublicationName,
    tables: &[TableName],
) -> anyhow::Result<()> {
    let what = match tables {
        [] => "FOR ALL TABLES".to_owned(),
        tables => {
            format!("FOR TABLE {}", tables.iter().map(TableName::quoted).collect::<Vec<_>>().join(", "))
        }
    };
    let sql = format!("CREATE PUBLICATION {} {what}", identifier(name.as_str()));
    session.query(context.by(), &sql).await.map(drop).map_err(|error| {
        let advice = match tables {
            [] => "a publication of all tables needs a superuser: name tables, or let one run this",
            _ => "its maker must own the tables and have CREATE on the database",
        };
        match error.kind() {
            tenure_backend::Kind::Denied => {
                anyhow::Error::new(error).context(format!("create publication `{name}` ({advice})"))
            }
            _ => misuse_if_invalid(error).context(format!("create publication `{name}`")),
        }
    })
}

/// Drops a publication, if it is there.
pub(super) async fn drop_publication(
    context: &Context,
    session: &mut Session,
    name: &str,
) -> tenure_backend::Result<()> {
    let sql = format!("DROP PUBLICATION IF EXISTS {}", identifier(name));
    let dropped = session.query(context.by(), &sql).await.map(drop);
    dropped.map_err(|error| error.during(format!("drop publication `{name}`")))
}

/// Who uses a slot, as the server knows them: the process, its application and address.
pub(super) async fn who_is(context: &Context, session: &mut Session, pid: i32) -> String {
    let sql = format!(
        "SELECT usename, application_name, COALESCE(pg_catalog.host(client_addr), 'this machine') AS address \
         FROM pg_catalog.pg_stat_activity WHERE pid = {pid}"
    );
    let known = session.query(context.by(), &sql).await.ok();
    let known = known.as_ref().and_then(|rows| rows.first()).map(|row: &Row| {
        let part = |name| row.named(name).filter(|part| !part.is_empty()).unwrap_or("?");
        format!(
            " (user {}, application {}, from {})",
            part("usename"),
            part("application_name"),
            part("address")
        )
    });
    format!("the server's process {pid}{}", known.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_mean_themselves() {
        let table = TableName::parse("shop.Odd \"name\"").unwrap();
        assert_eq!(table.quoted(), r#""shop"."Odd ""name""""#);
        assert_eq!(TableName::parse("orders").unwrap().shown(), "public.orders");
        for bad in ["", ".x", "x.", "a\0b"] {
            assert!(TableName::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(literal(r"O'Neil\"), r"E'O\'Neil\\'");
    }
}
