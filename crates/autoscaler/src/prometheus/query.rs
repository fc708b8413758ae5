//! The fixed queries. Nothing of the settings gets into them but names of labels that were checked, values of
//! labels in quotes, and whole seconds.

use super::Settings;

/// The label that says which part of a query a series comes from.
pub(super) const MARK: &str = "tenure";

/// Parts of the queries, as they are marked.
pub(super) mod part {
    pub(in super::super) const CPU: &str = "cpu";
    pub(in super::super) const CPU_AT: &str = "cpu_at";
    pub(in super::super) const MEMORY: &str = "memory";
    pub(in super::super) const MEMORY_AT: &str = "memory_at";
    pub(in super::super) const READY: &str = "ready";
    pub(in super::super) const READY_AT: &str = "ready_at";
}

/// CPU and memory in percent, and when the last sample of each was taken. One query, so all is of one moment.
pub(super) fn load_query(settings: &Settings) -> String {
    let by = &settings.load_label;
    let window = settings.window.as_secs();
    let idle = series("node_cpu_seconds_total", &[("mode", "idle")], settings);
    let cpu = series("node_cpu_seconds_total", &[], settings);
    let available = series("node_memory_MemAvailable_bytes", &[], settings);
    let total = series("node_memory_MemTotal_bytes", &[], settings);
    [
        // Of the time that was counted, not of the window: a node that is younger than the window would look busy,
        // because its counters have not run for all of it.
        marked(
            part::CPU,
            &format!(
                "100 * (1 - sum by ({by}) (rate({idle}[{window}s])) / sum by ({by}) (rate({cpu}[{window}s])))"
            ),
        ),
        marked(part::CPU_AT, &format!("min by ({by}) (timestamp({idle}))")),
        marked(part::MEMORY, &format!("100 * (1 - sum by ({by}) ({available}) / sum by ({by}) ({total}))")),
        marked(part::MEMORY_AT, &format!("min by ({by}) (timestamp({available}))")),
    ]
    .join(" or ")
}

/// Whether nodes are Ready, as the old documents ask, and when that was seen. The least that anybody says: two
/// exporters that disagree make no node ready.
pub(super) fn readiness_query(settings: &Settings) -> String {
    let by = &settings.ready_label;
    let ready = series("kube_node_status_condition", &[("condition", "Ready"), ("status", "true")], settings);
    [
        marked(part::READY, &format!("min by ({by}) ({ready})")),
        marked(part::READY_AT, &format!("min by ({by}) (timestamp({ready}))")),
    ]
    .join(" or ")
}

/// Whether it can be the name of a label.
pub(super) fn is_label(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(fits) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

fn marked(part: &str, expression: &str) -> String {
    format!("label_replace({expression}, \"{MARK}\", \"{part}\", \"\", \"\")")
}

fn series(metric: &str, own: &[(&str, &str)], settings: &Settings) -> String {
    let chosen = settings.selector.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let matchers: Vec<_> = own
        .iter()
        .copied()
        .chain(chosen)
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    format!("{metric}{{{}}}", matchers.join(","))
}

fn escaped(value: &str) -> String {
    value.chars().fold(String::with_capacity(value.len()), |mut text, c| {
        match c {
            '\\' => text.push_str(r"\\"),
            '"' => text.push_str("\\\""),
            '\n' => text.push_str(r"\n"),
            c => text.push(c),
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn the_queries_are_these() {
        let mut settings = Settings::new("http://h");
        settings.load_label = "instance".to_owned();
        settings.selector = [("cluster".to_owned(), "prod".to_owned())].into();
        expect![[r#"
            label_replace(100 * (1 - sum by (instance) (rate(node_cpu_seconds_total{mode="idle",cluster="prod"}[120s])) / sum by (instance) (rate(node_cpu_seconds_total{cluster="prod"}[120s]))), "tenure", "cpu", "", "")
            or label_replace(min by (instance) (timestamp(node_cpu_seconds_total{mode="idle",cluster="prod"})), "tenure", "cpu_at", "", "")
            or label_replace(100 * (1 - sum by (instance) (node_memory_MemAvailable_bytes{cluster="prod"}) / sum by (instance) (node_memory_MemTotal_bytes{cluster="prod"})), "tenure", "memory", "", "")
            or label_replace(min by (instance) (timestamp(node_memory_MemAvailable_bytes{cluster="prod"})), "tenure", "memory_at", "", "")
        "#]]
        .assert_eq(&(load_query(&settings).replace(" or ", "\nor ") + "\n"));
        expect![[r#"
            label_replace(min by (node) (kube_node_status_condition{condition="Ready",status="true",cluster="prod"}), "tenure", "ready", "", "")
            or label_replace(min by (node) (timestamp(kube_node_status_condition{condition="Ready",status="true",cluster="prod"})), "tenure", "ready_at", "", "")
        "#]]
        .assert_eq(&(readiness_query(&settings).replace(" or ", "\nor ") + "\n"));
    }

    #[test]
    fn a_value_stays_inside_its_quotes() {
        let mut settings = Settings::new("http://h");
        settings.selector = [("a".to_owned(), "x\"} or vector(1) or {b=\"\\\n".to_owned())].into();
        let query = series("m", &[], &settings);
        assert_eq!(query, r#"m{a="x\"} or vector(1) or {b=\"\\\n"}"#);
    }

    #[test]
    fn names_of_labels() {
        assert!(is_label("node") && is_label("_x9"));
        assert!(!is_label("") && !is_label("9x") && !is_label("a-b") && !is_label("a b") && !is_label("ä"));
    }
}
