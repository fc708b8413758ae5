//! A database of its own, a directory, and our processes between them.

use std::fs::File;
use std::process::{Child, ExitStatus};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tenure_backend::Env;
use tenure_cdc::transport::{Endpoint, Session};
use tenure_clock::{Clock as _, SystemClock, pause_thread};

use crate::site::{Ran, Site};

/// Longer than anything should take, also on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server that tests share.
pub(crate) fn server() -> String {
    std::env::var("TENURE_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!(
            "TENURE_TEST_POSTGRES is not set: run `cargo xtask services up` and \
             `eval \"$(cargo xtask services env)\"`, or use `cargo xtask test`"
        )
    })
}

/// Waits until `found` answers, at most a minute.
#[track_caller]
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let by = SystemClock.deadline(PATIENCE);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(SystemClock.monotonic() < by, "not within a minute: {what}");
        pause_thread(Duration::from_millis(50));
    }
}

/// Rows as the server sends them, as text.
pub(crate) type Rows = Vec<Vec<Option<String>>>;

/// Runs statements. Names need their schema.
pub(crate) fn try_sql(url: &str, text: &str) -> tenure_backend::Result<Rows> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (clock, by) = (Arc::new(SystemClock), SystemClock.deadline(PATIENCE));
        let mut session = Session::connect_for_sql(&Endpoint::parse(url)?, clock, by).await?;
        let rows = session.query(by, text).await?;
        let rows = rows
            .iter()
            .map(|row| (0..row.columns().len()).map(|index| row.get(index).map(str::to_owned)).collect());
        let rows = rows.collect();
        session.close(by).await?;
        Ok(rows)
    })
}

pub(crate) struct World {
    pub(crate) site: Site,
    pub(crate) database: String,
    pub(crate) url: String,
}

impl World {
    /// With a table `public.items`, a stream of two shards, and a file of settings.
    pub(crate) fn new() -> Self {
        let database = format!("cdc_cli_{:016x}", Env::system().entropy.u64());
        let server = server();
        try_sql(&server, &format!("CREATE DATABASE {database}")).unwrap();
        let (place, _) = server.rsplit_once('/').unwrap();
        let world = Self { site: Site::new(), url: format!("{place}/{database}"), database };
        world.sql("CREATE TABLE public.items (id bigint PRIMARY KEY, note text)");
        world.site.write(
            "tenure.toml",
            format!("[postgres]\nurl = '{}'\n[cdc]\nslot = '{}'\n", world.url, world.database),
        );
        world.site.ok("stream create --shards 2");
        world
    }

    /// As [`World::new`], with everything that `tenure cdc setup` makes.
    pub(crate) fn set_up() -> Self {
        let world = Self::new();
        world.site.ok("cdc setup --table public.items");
        world
    }

    #[track_caller]
    pub(crate) fn sql(&self, text: &str) -> Rows {
        try_sql(&self.url, text).unwrap_or_else(|error| panic!("{text}: {}", error.chain()))
    }

    pub(crate) fn slots(&self) -> Vec<String> {
        let sql = format!("SELECT slot_name FROM pg_replication_slots WHERE database = '{}'", self.database);
        self.sql(&sql).into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    }

    pub(crate) fn publications(&self) -> Vec<String> {
        let rows = self.sql("SELECT pubname FROM pg_publication ORDER BY 1");
        rows.into_iter().filter_map(|row| row.into_iter().next().flatten()).collect()
    }

    /// The events in the stream, in the order of its shards.
    pub(crate) fn events(&self) -> Vec<Json> {
        let records = self.site.json("stream tail");
        let data = records.iter().map(|record| record["data"].as_str().expect("text"));
        data.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Waits until so many events are in the stream.
    #[track_caller]
    pub(crate) fn events_when(&self, count: usize) -> Vec<Json> {
        until(&format!("{count} events"), || {
            let events = self.events();
            (events.len() >= count).then_some(events)
        })
    }

    pub(crate) fn status(&self) -> Json {
        self.site.json("cdc status").remove(0)
    }

    /// Starts a command that stays.
    pub(crate) fn start(&self, name: &str, line: &str) -> Stayer<'_> {
        let file = |end: &str| File::create(self.site.path(&format!("{name}.{end}"))).unwrap();
        let child = self.site.command(line).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Stayer { site: &self.site, name: name.to_owned(), child }
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, line: &str) -> Ran {
        self.site.run(line)
    }
}

/// Whether the test passed or not, nothing stays on the shared server.
impl Drop for World {
    fn drop(&mut self) {
        let sql = format!(
            "SELECT pg_catalog.pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots \
             WHERE database = '{0}' AND active",
            self.database
        );
        let drop_all = format!(
            "SELECT pg_catalog.pg_drop_replication_slot(slot_name) FROM pg_catalog.pg_replication_slots \
             WHERE database = '{0}'",
            self.database
        );
        for _ in 0..100 {
            let _ = try_sql(&server(), &sql);
            if try_sql(&server(), &drop_all).is_ok() {
                break;
            }
            pause_thread(Duration::from_millis(100));
        }
        let _ = try_sql(&server(), &format!("DROP DATABASE {} WITH (FORCE)", self.database));
    }
}

/// A command that stays, its output in files. It is killed when it is dropped.
pub(crate) struct Stayer<'a> {
    site: &'a Site,
    name: String,
    child: Child,
}

impl Stayer<'_> {
    fn read(&self, end: &str) -> String {
        std::fs::read_to_string(self.site.path(&format!("{}.{end}", self.name))).unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        self.read("err")
    }

    /// The complete lines of its output so far.
    pub(crate) fn lines(&self) -> Vec<String> {
        let text = self.read("out");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(str::to_owned).collect()
    }

    pub(crate) fn json(&self) -> Vec<Json> {
        self.lines().iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[track_caller]
    pub(crate) fn wait_for(&mut self, what: &str, mut found: impl FnMut(&Self) -> bool) {
        until(what, || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() || found(self), "{what}: ended before: {ended:?}: {}", self.stderr());
            found(self).then_some(())
        });
    }

    /// Waits until it leads.
    #[track_caller]
    pub(crate) fn leads(&mut self) {
        self.wait_for("it leads", |stayer| {
            stayer.json().iter().any(|line| line["event"] == "state" && line["role"] == "leader")
        });
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        until("it ends", || self.child.try_wait().unwrap())
    }

    /// Asks it to end, and it must end well.
    #[track_caller]
    pub(crate) fn end(&mut self) {
        self.signal(Signal::TERM);
        let status = self.ended();
        assert!(status.success(), "{status}: {}", self.stderr());
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.ended();
    }
}

impl Drop for Stayer<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
