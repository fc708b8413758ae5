//! What an answer says of which node.
//!
//! Ages are taken on Prometheus' own clock, between the moment of the query and that of the sample, and only
//! then brought to ours: a clock that is off, ours or theirs, makes nothing look fresh.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tenure_backend::{Error, Result};
use tracing::warn;

use super::Settings;
use super::query::{MARK, part};
use crate::observation::Load;

/// How far beyond 0 and 100 percent a measurement may be: rates of counters are extrapolated.
const SLACK_PERCENT: f64 = 5.0;
/// Of a server's own words, this much is shown.
const TOLD_CHARS_MAX: usize = 300;

/// One series at one moment.
#[derive(Debug, Deserialize)]
pub(super) struct Series {
    metric: BTreeMap<String, String>,
    /// When the query was evaluated, in seconds, and the value as text.
    value: (f64, String),
}

impl Series {
    /// Prometheus' clock when it answered, in epoch seconds.
    pub(super) fn asked_epoch(&self) -> i64 {
        self.value.0 as i64
    }
}

#[derive(Deserialize)]
struct Answer {
    status: String,
    data: Option<Data>,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: serde_json::Value,
}

/// The series of an answer.
pub(super) fn series(body: &[u8]) -> Result<Vec<Series>> {
    let nonsense = |what: &str| Error::invalid(format!("{what}: is that address Prometheus' own?"));
    let answer: Answer = serde_json::from_slice(body)
        .map_err(|error| nonsense("the answer is not one of Prometheus").because(error))?;
    let data = match answer.data {
        Some(data) if answer.status == "success" => data,
        _ => return Err(nonsense("the answer has no result").because(shortened(&answer.error))),
    };
    if data.result_type != "vector" {
        return Err(nonsense("the result is no vector").because(shortened(&data.result_type)));
    }
    if let Some(warning) = answer.warnings.first() {
        // Of a store behind it that did not answer, for instance. What is missing is unknown.
        warn!(warning = shortened(warning), "prometheus answers with a warning");
    }
    serde_json::from_value(data.result).map_err(|error| nonsense("the result does not read").because(error))
}

/// What a server says beside a status that is no success, if it can be read.
pub(super) fn told(body: &[u8]) -> String {
    match serde_json::from_slice::<Answer>(body) {
        Ok(answer) if !answer.error.is_empty() => format!(": {}", shortened(&answer.error)),
        _ => String::new(),
    }
}

/// Loads by node, and the nodes of which something is not known.
pub(super) fn loads(
    series: &[Series],
    settings: &Settings,
    now_epoch: i64,
) -> Result<(BTreeMap<String, Load>, BTreeSet<String>)> {
    let nodes = by_node(series, &settings.load_label)?;
    let mut loads = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    for (node, parts) in nodes {
        let load = || {
            let age = parts.age(part::CPU_AT)?.max(parts.age(part::MEMORY_AT)?);
            Some(Load {
                cpu_percent: percent(parts.value(part::CPU)?)?,
                memory_percent: percent(parts.value(part::MEMORY)?)?,
                at_epoch: now_epoch.saturating_sub(age),
            })
        };
        match load() {
            Some(load) => drop(loads.insert(node.to_owned(), load)),
            None => drop(unknown.insert(node.to_owned())),
        }
    }
    if loads.is_empty() {
        return Err(Error::unavailable(format!(
            "Prometheus knows no node's CPU and memory (node_cpu_seconds_total, node_memory_MemAvailable_bytes): is \
             node_exporter scraped, with the node's name in label `{}`{}, at least twice in {:?}?",
            settings.load_label,
            shown(settings),
            settings.window
        )));
    }
    Ok((loads, unknown))
}

/// Whether nodes are ready, by what was measured lately. One that was not is not among them.
pub(super) fn readiness(series: &[Series], settings: &Settings) -> Result<BTreeMap<String, bool>> {
    let nodes = by_node(series, &settings.ready_label)?;
    let age_max = i64::try_from(settings.age_max.as_secs()).unwrap_or(i64::MAX);
    let mut known = BTreeMap::new();
    for (node, parts) in nodes {
        match (parts.value(part::READY), parts.age(part::READY_AT)) {
            (Some(value), Some(age)) if age <= age_max => {
                known.insert(node.to_owned(), value >= 1.0);
            }
            _ => warn!(node, "whether a node is ready is not known lately"),
        }
    }
    if known.is_empty() {
        return Err(Error::unavailable(format!(
            "Prometheus does not know of any node whether it is Ready (kube_node_status_condition, not older than \
             {:?}): is kube-state-metrics scraped, with the node's name in label `{}`{}?",
            settings.age_max,
            settings.ready_label,
            shown(settings)
        )));
    }
    Ok(known)
}

/// What was said of one node, by part, with the moment it was said at.
#[derive(Default)]
struct Parts<'a>(BTreeMap<&'a str, (f64, f64)>);

impl Parts<'_> {
    fn value(&self, part: &str) -> Option<f64> {
        self.0.get(part).map(|(_, value)| *value).filter(|value| value.is_finite())
    }

    /// How many seconds ago the sample was taken; a part of a second counts as one.
    fn age(&self, part: &str) -> Option<i64> {
        let (now, at) = self.0.get(part).copied()?;
        let age = now - at;
        // A moment far from the query's is no moment; and then the conversion loses nothing.
        (at > 0.0 && age.abs() < 1e9).then(|| age.max(0.0).ceil() as i64)
    }
}

fn by_node<'a>(series: &'a [Series], label: &str) -> Result<BTreeMap<&'a str, Parts<'a>>> {
    let mut nodes: BTreeMap<&str, Parts<'_>> = BTreeMap::new();
    let mut nameless = 0;
    for Series { metric, value: (now, text) } in series {
        let Some(part) = metric.get(MARK) else { continue };
        let Some(node) = metric.get(label).filter(|node| !node.is_empty()) else {
            nameless += 1;
            continue;
        };
        // Prometheus writes NaN, +Inf and -Inf, too.
        let value: f64 = text.parse().map_err(|_| {
            Error::invalid(format!(
                "the value `{}` is no number: is that address Prometheus' own?",
                shortened(text)
            ))
        })?;
        nodes.entry(node).or_default().0.insert(part, (*now, value));
    }
    if nodes.is_empty() && nameless > 0 {
        return Err(Error::invalid(format!(
            "no series has a label `{label}`: name the label that holds the node's name"
        )));
    }
    Ok(nodes)
}

/// Rounded up: a node that is just below a limit is not called idle.
fn percent(value: f64) -> Option<u32> {
    let plausible = (-SLACK_PERCENT..=100.0 + SLACK_PERCENT).contains(&value);
    plausible.then(|| value.clamp(0.0, 100.0).ceil() as u32)
}

fn shown(settings: &Settings) -> String {
    if settings.selector.is_empty() {
        return String::new();
    }
    let labels: Vec<_> =
        settings.selector.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
    format!(" and {}", labels.join(", "))
}

fn shortened(text: &str) -> String {
    text.chars().take(TOLD_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tenure_backend::Kind;

    use super::*;

    const NOW: f64 = 1_730_000_000.5;

    fn sample(node: &str, part: &str, value: &str) -> Series {
        let metric = [("node", node), (MARK, part)].map(|(name, value)| (name.to_owned(), value.to_owned()));
        Series { metric: metric.into(), value: (NOW, value.to_owned()) }
    }

    fn node(name: &str, cpu: &str, memory: &str, at: &str) -> [Series; 4] {
        [
            sample(name, part::CPU, cpu),
            sample(name, part::CPU_AT, at),
            sample(name, part::MEMORY, memory),
            sample(name, part::MEMORY_AT, "1730000000"),
        ]
    }

    #[test]
    fn a_load_is_rounded_up_and_as_old_as_its_oldest_part() {
        let settings = Settings::new("http://h");
        let series: Vec<_> = node("a", "12.1", "-0.3", "1729999990").into_iter().collect();
        // Our clock is an hour behind theirs, and the age is the same.
        let (loads, _) = loads(&series, &settings, 1_729_996_400).unwrap();
        let load = Load { cpu_percent: 13, memory_percent: 0, at_epoch: 1_729_996_400 - 11 };
        assert_eq!(loads, [("a".to_owned(), load)].into());
    }

    #[test]
    fn what_is_not_known_is_left_out_and_nothing_at_all_is_an_error() {
        let settings = Settings::new("http://h");
        let mut all: Vec<Series> = Vec::new();
        all.extend(node("nan", "NaN", "10", "1730000000"));
        all.extend(node("infinite", "10", "+Inf", "1730000000"));
        all.extend(node("absurd", "412", "10", "1730000000"));
        all.extend(node("timeless", "10", "10", "NaN"));
        all.extend(node("ancient", "10", "10", "0"));
        all.extend(node("halved", "10", "10", "1730000000").into_iter().take(3));
        let error = loads(&all, &settings, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable);
        assert!(error.chain().contains("is node_exporter scraped"), "{error:?}");
        assert_eq!(loads(&[], &settings, 0).unwrap_err().kind(), Kind::Unavailable);
        all.extend(node("good", "10", "10", "1730000000"));
        let (loads, unknown) = loads(&all, &settings, 0).unwrap();
        assert_eq!(loads.into_keys().collect::<Vec<_>>(), ["good"]);
        assert!(!unknown.is_empty() && !unknown.contains("good"), "{unknown:?}");
    }

    #[test]
    fn ready_is_who_was_ready_lately() {
        let mut settings = Settings::new("http://h");
        settings.age_max = Duration::from_secs(60);
        let node = |name: &str, ready: &str, at: &str| {
            [sample(name, part::READY, ready), sample(name, part::READY_AT, at)]
        };
        let mut all: Vec<_> = node("old", "1", "1729999900").into_iter().collect();
        let error = readiness(&all, &settings).unwrap_err();
        assert_eq!(error.kind(), Kind::Unavailable, "old news is no news");
        assert!(error.chain().contains("kube-state-metrics"), "{error:?}");
        all.extend(node("not", "0", "1730000000"));
        assert_eq!(readiness(&all, &settings).unwrap(), [("not".to_owned(), false)].into());
        all.extend(node("ready", "1", "1729999950"));
        let known = [("not".to_owned(), false), ("ready".to_owned(), true)];
        assert_eq!(readiness(&all, &settings).unwrap(), known.into(), "of the old one nothing is known");
    }

    #[test]
    fn a_label_that_no_series_has_is_named() {
        let mut settings = Settings::new("http://h");
        settings.load_label = "nodename".to_owned();
        let all: Vec<_> = node("a", "1", "1", "1730000000").into_iter().collect();
        let error = loads(&all, &settings, 0).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.chain().contains("no series has a label `nodename`"), "{error:?}");
    }

    #[test]
    fn nonsense_is_refused_with_advice() {
        let refused = |body: &str| {
            let error = series(body.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid);
            assert!(error.chain().contains("is that address Prometheus' own?"), "{error:?}");
            error.chain()
        };
        refused("<html>");
        refused("");
        refused("[]");
        refused(r#"{"status":"success"}"#);
        assert!(refused(r#"{"status":"error","error":"why"}"#).contains("why"));
        assert!(
            refused(r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#).contains("matrix")
        );
        let vector = |result: &str| {
            format!(r#"{{"status":"success","data":{{"resultType":"vector","result":{result}}}}}"#)
        };
        refused(&vector("{}"));
        refused(&vector(r#"[{"metric":{},"value":["x","1"]}]"#));
        refused(&vector(r#"[{"metric":{"node":7},"value":[1,"1"]}]"#));
        assert_eq!(series(vector("[]").as_bytes()).unwrap().len(), 0);
        let all = [sample("a", part::CPU, "many")];
        assert!(
            loads(&all, &Settings::new("http://h"), 0).unwrap_err().chain().contains("`many` is no number")
        );
    }
}
