//! Commands that stay: what they show, how they end, and what they serve.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value as Json;
use tenure_clock::{Clock, SystemClock};

use crate::site::{Site, eventually, has_content};

/// A command that stays, its output in a file.
struct Stayer<'a> {
    site: &'a Site,
    child: Child,
}

impl<'a> Stayer<'a> {
    fn start(site: &'a Site, line: &str) -> Self {
        let out = File::create(site.path("out")).unwrap();
        let child = site.command(line).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        Self { site, child }
    }

    /// The complete lines so far.
    fn lines(&self) -> Vec<Json> {
        let text = std::fs::read_to_string(self.site.path("out")).unwrap();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn wait_for(&self, what: &str, found: impl Fn(&[Json]) -> bool) {
        eventually(what, || found(&self.lines()).then_some(()));
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Must end by itself within five seconds, and with success.
    fn ends_well(mut self) {
        let begun = SystemClock.monotonic();
        let status = eventually("the command ends", || self.child.try_wait().unwrap());
        let took = SystemClock.monotonic().since(begun);
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(status.success() && took < Duration::from_secs(5), "{status} after {took:?}: {stderr}");
    }
}

impl Drop for Stayer<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_watch_shows_changes_and_ends_when_asked() {
    let site = Site::new();
    site.ok("store create-table locks --hash name");
    site.run_with("store put locks", r#"{"name":"a","n":1}"#).expect(0);
    let watch = Stayer::start(&site, "store watch locks --interval 20ms --json");
    let event = |lines: &[Json], event: &str, name: &str| {
        lines.iter().any(|line| line["event"] == event && line["item"]["name"]["S"] == name)
    };
    watch.wait_for("the row as it is", |lines| event(lines, "present", "a"));
    site.run_with("store put locks", r#"{"name":"b","n":1}"#).expect(0);
    watch.wait_for("a new row", |lines| event(lines, "added", "b"));
    site.run_with("store put locks", r#"{"name":"a","n":2}"#).expect(0);
    watch.wait_for("a changed row", |lines| {
        lines.iter().any(|line| line["event"] == "changed" && line["before"]["n"]["N"] == "1")
    });
    site.ok("store delete locks name=b");
    watch.wait_for("a row that went", |lines| event(lines, "removed", "b"));
    watch.signal(Signal::TERM);
    watch.ends_well();

    let one = Stayer::start(&site, "store watch locks name=a --interval 20ms --json");
    one.wait_for("the one row", |lines| event(lines, "present", "a"));
    one.signal(Signal::INT);
    one.ends_well();
}

#[test]
fn a_follower_goes_on_into_new_shards_and_ends_when_asked() {
    let site = Site::new();
    site.ok("stream create");
    let tail = Stayer::start(&site, "stream tail --follow --json");
    let has = |data: &str| {
        let data = data.to_owned();
        move |lines: &[Json]| lines.iter().any(|line| line["data"] == data.as_str())
    };
    site.ok("stream put --key a one");
    tail.wait_for("the first record", has("one"));
    site.ok("stream split shardId-000000000000");
    site.ok("stream put --key a two");
    tail.wait_for("a record of a child", has("two"));
    site.ok("stream rescale 3");
    site.ok("stream put --key a three");
    tail.wait_for("a record of a grandchild", has("three"));
    assert_eq!(tail.lines().len(), 3);
    tail.signal(Signal::TERM);
    tail.ends_well();

    let limited = Stayer::start(&site, "stream tail --follow --limit 2 --json");
    limited.ends_well();
    let latest = Stayer::start(&site, "stream tail --follow --from latest --json");
    // It has begun once it sees something; until then records go by.
    eventually("a record after the beginning", || {
        site.ok("stream put --key b late");
        (!latest.lines().is_empty()).then_some(())
    });
    assert!(latest.lines().iter().all(|line| line["data"] == "late"));
    latest.signal(Signal::INT);
    latest.ends_well();
}

#[test]
fn lines_are_put_as_they_come() {
    let site = Site::new();
    site.ok("stream create");
    let out = File::create(site.path("out")).unwrap();
    let child = site
        .command("stream put --lines --json")
        .stdin(Stdio::piped())
        .stdout(out)
        .stderr(Stdio::piped())
        .spawn();
    let mut put = Stayer { site: &site, child: child.unwrap() };
    let mut input = put.child.stdin.take().unwrap();
    writeln!(input, "one").unwrap();
    put.wait_for("the first is stored while the input stays open", |lines| !lines.is_empty());
    put.signal(Signal::TERM);
    let status = eventually("it ends though the input stays open", || put.child.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    assert_eq!(put.lines().last().unwrap()["interrupted"], true);
    drop(input);
}

#[test]
fn metrics_are_served() {
    let site = Site::new();
    site.ok("store create-table locks --hash name");
    // Free when asked; nobody else is likely to take it within the moment.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let watch = Stayer::start(&site, &format!("store watch locks --interval 20ms --metrics {free}"));
    let page = eventually("the page has the calls", || {
        let page = get(&free.to_string())?;
        // The table is described before its rows are first looked at.
        page.contains("tenure_store_calls_total{op=\"scan\"").then_some(page)
    });
    assert!(page.contains("tenure_store_call_seconds_bucket"), "{page}");
    let second = site.run(&format!("store watch locks --metrics {free}")).expect(1);
    second.says(&[&free.to_string(), "--metrics"]);
    watch.signal(Signal::TERM);
    watch.ends_well();

    site.ok("stream create");
    let tail = Stayer::start(&site, &format!("stream tail --follow --metrics {free}"));
    site.ok("stream put --key a one");
    eventually("something is printed", || has_content(&site.path("out")).then_some(()));
    let page = eventually("the page has the reads", || {
        get(&free.to_string()).filter(|page| page.contains("tenure_stream_records_total"))
    });
    assert!(page.contains("tenure_stream_calls_total"), "{page}");
    tail.signal(Signal::TERM);
    tail.ends_well();
}

pub(crate) fn get(address: &str) -> Option<String> {
    let mut connection = TcpStream::connect(address).ok()?;
    connection.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(connection, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut page = String::new();
    connection.read_to_string(&mut page).ok()?;
    Some(page)
}
