//! `tenure cdc setup`: makes what a pipeline needs, where it is not there, and says what it found.

use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::json;
use tenure_backend::Kind;
use tenure_cdc::checkpoint::{Checkpoint, CheckpointPlace};
use tenure_cdc::server::{self, Lifetime, Slot, SnapshotUse};
use tenure_cdc::service::{check_fitness, read_row, view_server, view_slot};
use tenure_cdc::start::{self, Refusal, ServerView};
use tenure_cdc::transport::{PublicationName, Session, SlotName};
use tenure_election::Epoch;
use tenure_store::{Store, Written};
use tenure_stream::identity::{Era, Lanes, Lsn};

use super::destination::Place;
use super::run::prepare;
use super::sql::TableName;
use super::{Pipeline, flag, sql};
use crate::context::Context;
use crate::failure::{misuse, misuse_if_invalid};
use crate::output::one_line;
use crate::settings::Flag;

#[derive(clap::Args)]
#[command(after_help = "\
Checks the server, and makes what is not there: the publication, the slot, the tables of the store, the
checkpoint. What is there is left as it is, so it may be run again. Changes are captured from the moment
the slot is made; the server keeps its log from then on, so run the pipeline soon.

--accept-gap is for a pipeline that refuses to go on: its slot is gone, lost, or ahead of the checkpoint,
the server is another one, or the number of lanes changed. It begins a new era behind the gap, and says
which part of the log cannot be delivered. A slot in use is never touched.

Examples:
  tenure cdc setup --all-tables
  tenure cdc setup --table public.orders --table public.items --postgres postgres://ann@localhost/app
  tenure cdc setup --accept-gap")]
pub(super) struct Args {
    #[command(flatten)]
    pipeline: Pipeline,

    /// A table to publish, if the publication is to be made; may be repeated
    #[arg(long, value_name = "SCHEMA.TABLE", value_parser = TableName::parse, conflicts_with = "all_tables")]
    table: Vec<TableName>,

    /// Publish all tables, also those to come (needs a superuser)
    #[arg(long)]
    all_tables: bool,

    /// How many lanes keep their order; fixed once begun [default: 1024 for a stream, 1 for a file]
    #[arg(long, value_name = "N")]
    lanes: Option<String>,

    /// Go on behind what cannot be delivered any more
    #[arg(long)]
    accept_gap: bool,
}

impl Args {
    pub(super) fn flags(&self) -> Vec<Flag> {
        let mut flags = self.pipeline.flags();
        flags.extend(flag("--lanes", "cdc.lanes", self.lanes.as_ref()));
        flags
    }
}

pub(super) async fn run(args: Args, context: &Context) -> anyhow::Result<ExitCode> {
    let endpoint = super::endpoint(context)?;
    let (slot, publications) = (super::slot(context)?, super::publications(context)?);
    let place = Place::find(context).await?;
    let lanes = place.lanes(context)?;
    let mut session = sql::connect_to_replicate(context, &endpoint).await?;
    let mut setup = Setup { context, session: &mut session, slot, lanes, database: endpoint.database() };
    setup.server().await?;
    for name in &publications {
        setup.publication(name, &args).await?;
    }
    setup.tables(&publications).await?;
    let store = context.store().await?;
    prepare(context, &store, &context.settings.cdc.source).await?;
    let table = &context.settings.election.table;
    setup.say("store", "found", table, &format!("the tables are in {}", context.settings.store.url))?;
    setup.position(&*store, &place.checkpoint(context), args.accept_gap).await?;
    if let Place::Stream(stream) = &place
        && let Err(error) = context.look(async |by| stream.describe(by).await).await
    {
        let advice =
            format!("{}: make it with `tenure stream create` before `tenure cdc run`", error.chain());
        setup.say("stream", "warning", stream.name(), &advice)?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Setup<'a> {
    context: &'a Context,
    session: &'a mut Session,
    slot: SlotName,
    lanes: Lanes,
    database: &'a str,
}

impl Setup<'_> {
    fn say(&self, what: &str, outcome: &str, name: &str, message: &str) -> anyhow::Result<()> {
        self.context.out.say(
            || json!({ "what": what, "outcome": outcome, "name": name, "message": message }),
            || one_line(&format!("{what:11}  {outcome:8}  {name}: {message}")),
        )
    }

    async fn server(&mut self) -> anyhow::Result<()> {
        let by = self.context.by();
        check_fitness(self.session, by).await.map_err(misuse_if_invalid)?;
        let fitness = server::fitness(self.session, by).await?;
        if !fitness.may_replicate {
            return Err(misuse(
                "the user may not replicate: let a superuser run ALTER ROLE … REPLICATION for it (on RDS: GRANT \
                 rds_replication)",
            ));
        }
        let message = format!("Postgres {}, wal_level=logical", self.session.version());
        self.say("server", "found", self.database, &message)
    }

    async fn publication(&mut self, name: &PublicationName, args: &Args) -> anyhow::Result<()> {
        sql::missing_tables(self.context, self.session, &args.table).await?;
        let Some(found) = server::publication(self.session, self.context.by(), name).await? else {
            if args.table.is_empty() && !args.all_tables {
                return Err(misuse(format!(
                    "publication `{name}` does not exist: say what it is to publish, by --table SCHEMA.TABLE (may be \
                     repeated) or --all-tables"
                )));
            }
            sql::create_publication(self.context, self.session, name, &args.table).await?;
            let what = match &*args.table {
                [] => "all tables".to_owned(),
                tables => tables.iter().map(TableName::shown).collect::<Vec<_>>().join(", "),
            };
            return self.say("publication", "created", name.as_str(), &format!("publishes {what}"));
        };
        let published = server::published_tables(self.session, self.context.by(), name).await?;
        let lacks = |table: &&TableName| {
            !published.iter().any(|found| found.schema == table.schema && found.table == table.name)
        };
        let lacking: Vec<_> = args.table.iter().filter(lacks).map(TableName::quoted).collect();
        if !lacking.is_empty() {
            return Err(misuse(format!(
                "publication `{name}` is there and lacks what --table names: add it with ALTER PUBLICATION {} ADD TABLE \
                 {}",
                sql::identifier(name.as_str()),
                lacking.join(", ")
            )));
        }
        if args.all_tables && !found.all_tables {
            return Err(misuse(format!(
                "publication `{name}` is there and does not publish all tables: drop it first, or name another one with \
                 --publication"
            )));
        }
        let what =
            if found.all_tables { "all tables".to_owned() } else { format!("{} tables", published.len()) };
        self.say("publication", "found", name.as_str(), &format!("publishes {what}"))
    }

    /// Warns of tables whose changes would fail or would go round in circles.
    async fn tables(&mut self, publications: &[PublicationName]) -> anyhow::Result<()> {
        let names: Vec<_> = publications.iter().map(|name| sql::literal(name.as_str())).collect();
        let sql = format!(
            "SELECT DISTINCT n.nspname AS schema, c.relname AS name, c.relreplident AS identity, EXISTS (\
             SELECT 1 FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid AND (\
             (c.relreplident = 'd' AND i.indisprimary) OR (c.relreplident = 'i' AND i.indisreplident))) AS keyed \
             FROM pg_catalog.pg_publication p, pg_catalog.pg_publication_tables t, pg_catalog.pg_class c, \
             pg_catalog.pg_namespace n \
             WHERE p.pubname IN ({}) AND t.pubname = p.pubname AND (p.pubupdate OR p.pubdelete) \
             AND n.nspname = t.schemaname AND c.relnamespace = n.oid AND c.relname = t.tablename ORDER BY 1, 2",
            names.join(", ")
        );
        let rows = self.session.query(self.context.by(), &sql).await.context("look at the tables")?;
        for row in rows {
            let part = |name| row.named(name).unwrap_or_default();
            let table = TableName { schema: part("schema").to_owned(), name: part("name").to_owned() };
            let (quoted, shown) = (table.quoted(), table.shown());
            if table.name == self.context.settings.election.table {
                let message = "it is Tenure's own table: publishing it publishes every checkpoint, and so on for ever; \
                               name tables instead of all, or keep the store elsewhere";
                self.say("table", "warning", &shown, message)?;
            }
            match (part("identity"), part("keyed")) {
                ("f", _) => {
                    let message = "replica identity FULL tells no key: all its rows share one lane";
                    self.say("table", "warning", &shown, message)?;
                }
                (_, "t") => {}
                _ => {
                    let message = format!(
                        "it has no usable replica identity, so Postgres will refuse UPDATE and DELETE on it: add a \
                         primary key, or run ALTER TABLE {quoted} REPLICA IDENTITY FULL"
                    );
                    self.say("table", "warning", &shown, &message)?;
                }
            }
        }
        Ok(())
    }

    /// The slot and the checkpoint row.
    async fn position(
        &mut self,
        store: &dyn Store,
        place: &CheckpointPlace,
        accept_gap: bool,
    ) -> anyhow::Result<()> {
        let row = read_row(store, self.context.by(), place).await.map_err(misuse_if_invalid)?;
        let server = view_server(self.session, self.context.by(), row.as_ref()).await?;
        let slot = server::slot(self.session, self.context.by(), &self.slot).await?;
        let view = slot.as_ref().map(|slot| view_slot(slot, self.database));
        match start::begin(row.as_ref(), self.slot.as_str(), view.as_ref(), &server, self.lanes) {
            Ok(lsn) => {
                self.say("slot", "found", self.slot.as_str(), &format!("changes from {lsn} on"))?;
                self.first_row(store, place, row.is_none(), &server, lsn).await
            }
            Err(Refusal::NotSetUp) => {
                let lsn = match view.and_then(|slot| slot.confirmed) {
                    Some(confirmed) => confirmed,
                    None => self.create_slot().await?,
                };
                match row {
                    // It was torn down: what comes now is of another era.
                    Some(row) => self.go_on_behind(store, place, &row, &server, lsn).await,
                    None => self.first_row(store, place, true, &server, lsn).await,
                }
            }
            Err(refusal) if !accept_gap => Err(misuse(refusal.to_string())),
            Err(_) => {
                refuse_if_active(self.context, self.session, &self.slot, slot.as_ref()).await?;
                // What the slot has by itself, whatever the row says: the longer it reaches back, the better.
                let alone = start::begin(None, self.slot.as_str(), view.as_ref(), &server, self.lanes);
                let from = match alone {
                    Ok(confirmed) => confirmed,
                    Err(Refusal::NotSetUp) => self.create_slot().await?,
                    Err(Refusal::SlotLost(_)) => {
                        self.drop_slot().await?;
                        self.create_slot().await?
                    }
                    // Not ours to drop: another one is needed.
                    Err(refusal) => return Err(misuse(refusal.to_string())),
                };
                match row {
                    Some(row) => self.go_on_behind(store, place, &row, &server, from).await,
                    None => self.first_row(store, place, true, &server, from).await,
                }
            }
        }
    }

    async fn create_slot(&mut self) -> anyhow::Result<Lsn> {
        let made = server::create_slot(
            self.session,
            self.context.by(),
            &self.slot,
            Lifetime::Permanent,
            SnapshotUse::Nothing,
        )
        .await;
        let made = made.map_err(|error| match error.kind() {
            Kind::Unknown => anyhow::Error::new(error)
                .context("a slot is made once all transactions under way have ended: run this again"),
            _ => misuse_if_invalid(error),
        })?;
        let lsn = made.consistent_point;
        self.say("slot", "created", self.slot.as_str(), &format!("changes from {lsn} on"))?;
        Ok(lsn)
    }

    async fn drop_slot(&mut self) -> anyhow::Result<()> {
        server::drop_slot(self.session, self.context.by(), &self.slot).await.map_err(misuse_if_invalid)?;
        self.say("slot", "dropped", self.slot.as_str(), "it could not be used any more")
    }

    async fn first_row(
        &self,
        store: &dyn Store,
        place: &CheckpointPlace,
        absent: bool,
        server: &ServerView,
        lsn: Lsn,
    ) -> anyhow::Result<()> {
        let created = if absent {
            let row = self.checkpoint(server, lsn, Era(1), Epoch(0));
            let written = store.write(self.context.by(), &place.create(&row)).await;
            matches!(written.context("write the checkpoint row")?, Written::Applied(_))
        } else {
            false
        };
        let outcome = if created { "created" } else { "found" };
        self.say("checkpoint", outcome, &place.source, &format!("{lsn}, {} lanes", self.lanes.count()))
    }

    fn checkpoint(&self, server: &ServerView, lsn: Lsn, era: Era, fence: Epoch) -> Checkpoint {
        Checkpoint {
            system_id: server.system_id.clone(),
            timeline: server.timeline,
            slot: self.slot.as_str().into(),
            lsn,
            era,
            lanes: self.lanes,
            fence,
            updated: self.context.env.clock.wall(),
        }
    }

    /// Begins a new era, and says what is between it and the old one.
    async fn go_on_behind(
        &self,
        store: &dyn Store,
        place: &CheckpointPlace,
        row: &Checkpoint,
        server: &ServerView,
        from: Lsn,
    ) -> anyhow::Result<()> {
        let Begin { at, message } = begin_of_era(row, server, from);
        let era = Era(row.era.0 + 1);
        let next = self.checkpoint(server, at, era, row.fence);
        let written = store.write(self.context.by(), &place.begin_era(&next)).await;
        match written.context("write the checkpoint row")? {
            Written::Applied(_) => {
                let message = format!("era {} begins at {at}; {message}", era.0);
                self.say("checkpoint", "era", &place.source, &message)?;
                if !row.is_torn_down() && &*row.slot != self.slot.as_str() {
                    let message =
                        "the pipeline read from it before: while it is there, its server keeps its log";
                    self.say("slot", "warning", &row.slot, message)?;
                }
                Ok(())
            }
            Written::Refused(_) => Err(misuse(
                "somebody wrote the checkpoint row meanwhile: stop all processes of the pipeline, and run this again",
            )),
        }
    }
}

/// Fails if somebody uses the slot.
pub(super) async fn refuse_if_active(
    context: &Context,
    session: &mut Session,
    name: &SlotName,
    slot: Option<&Slot>,
) -> anyhow::Result<()> {
    let Some(Slot { active: true, active_pid, .. }) = slot else { return Ok(()) };
    let who = match active_pid {
        Some(pid) => sql::who_is(context, session, *pid).await,
        None => "somebody".to_owned(),
    };
    Err(misuse(format!("slot `{name}` is in use by {who}: stop it first; nothing was changed")))
}

/// Where a new era begins.
#[derive(Debug, PartialEq, Eq)]
struct Begin {
    at: Lsn,
    message: String,
}

/// Decides where a new era begins, and what cannot be delivered. `from` is where the slot begins.
fn begin_of_era(row: &Checkpoint, server: &ServerView, from: Lsn) -> Begin {
    if row.system_id != server.system_id {
        let message = format!(
            "what server {} committed after {}, and what this one committed before {from}, cannot be delivered",
            row.system_id, row.lsn
        );
        return Begin { at: from, message };
    }
    let shared = if row.timeline == server.timeline {
        server.log_end
    } else {
        let left = server.history.iter().find(|end| end.timeline == row.timeline);
        left.map_or(Lsn(0), |end| end.end)
    };
    let delivered = row.lsn.min(shared);
    let mut message = if from > delivered {
        format!("what committed from {delivered} to {from} cannot be delivered")
    } else {
        "nothing is missing".to_owned()
    };
    if row.lsn > shared {
        message.push_str(&format!(
            "; what was published from {shared} to {} is not in this server's history",
            row.lsn
        ));
    }
    Begin { at: delivered.max(from), message }
}

#[cfg(test)]
mod tests {
    use tenure_cdc::start::TimelineEnd;
    use tenure_clock::WallTime;

    use super::*;

    fn row(lsn: u64) -> Checkpoint {
        Checkpoint {
            system_id: "7301".into(),
            timeline: 1,
            slot: "tenure".into(),
            lsn: Lsn(lsn),
            era: Era(1),
            lanes: Lanes::default(),
            fence: Epoch(3),
            updated: WallTime::from_millis(0),
        }
    }

    fn server() -> ServerView {
        ServerView { system_id: "7301".into(), timeline: 1, log_end: Lsn(0x900), history: Vec::new() }
    }

    #[test]
    fn a_new_era_begins_where_the_old_one_ended_if_it_can() {
        let begin = begin_of_era(&row(0x500), &server(), Lsn(0x400));
        assert_eq!(begin, Begin { at: Lsn(0x500), message: "nothing is missing".to_owned() });
        let begin = begin_of_era(&row(0x500), &server(), Lsn(0x700));
        assert_eq!(begin.at, Lsn(0x700));
        assert!(begin.message.contains("from 0/500 to 0/700"), "{}", begin.message);
    }

    #[test]
    fn what_another_history_holds_is_told() {
        let history = vec![TimelineEnd { timeline: 1, end: Lsn(0x300) }];
        let promoted = ServerView { timeline: 2, history, ..server() };
        let begin = begin_of_era(&row(0x500), &promoted, Lsn(0x200));
        assert_eq!(begin.at, Lsn(0x300), "what both share was delivered");
        assert!(begin.message.contains("from 0/300 to 0/500"), "{}", begin.message);
        let other = ServerView { system_id: "1".into(), ..server() };
        let begin = begin_of_era(&row(0x500), &other, Lsn(0x200));
        assert_eq!(begin.at, Lsn(0x200));
        assert!(begin.message.contains("7301") && begin.message.contains("0/200"), "{}", begin.message);
    }
}
