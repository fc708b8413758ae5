//! What pure code and the rest of the workspace may not name.
//!
//! A machine decides and a driver does. So machines and the simulation name no runtime and no SDK,
//! and nothing whose order differs from run to run; an SDK's types stay in the file of its name.

use super::TrackedFile;
use super::source::{blank, code_without_tests};

/// Pure files outside a machine's folder. One that is missing is a finding: after a move, the check
/// would pass by looking at nothing.
const PURE_FILES: [&str; 55] = [
    "crates/autoscaler/src/change.rs",
    "crates/autoscaler/src/check.rs",
    "crates/autoscaler/src/kubernetes/quantity.rs",
    "crates/autoscaler/src/log.rs",
    "crates/autoscaler/src/observation.rs",
    "crates/autoscaler/src/placement.rs",
    "crates/autoscaler/src/policy.rs",
    "crates/autoscaler/src/prometheus/answer.rs",
    "crates/autoscaler/src/prometheus/query.rs",
    "crates/autoscaler/src/repair.rs",
    "crates/autoscaler/src/rows.rs",
    "crates/autoscaler/src/rules.rs",
    "crates/autoscaler/src/state.rs",
    "crates/autoscaler/src/table.rs",
    "crates/autoscaler/src/trial.rs",
    "crates/cdc/src/checkpoint.rs",
    "crates/cdc/src/envelope.rs",
    "crates/cdc/src/framing.rs",
    "crates/cdc/src/frontier.rs",
    "crates/cdc/src/intake.rs",
    "crates/cdc/src/pgoutput.rs",
    "crates/cdc/src/publisher.rs",
    "crates/cdc/src/start.rs",
    "crates/cdc/src/table.rs",
    "crates/cdc/src/transport/evidence.rs",
    "crates/cdc/src/transport/framer.rs",
    "crates/cdc/src/value.rs",
    "crates/election/src/advisory/fence_row.rs",
    "crates/election/src/advisory/key.rs",
    "crates/election/src/advisory/settings.rs",
    "crates/election/src/identity.rs",
    "crates/election/src/lock.rs",
    "crates/election/src/rows.rs",
    "crates/election/src/settings.rs",
    "crates/fault-proxy/src/script.rs",
    "crates/lambda/src/event.rs",
    "crates/leases/src/capacity/formula.rs",
    "crates/leases/src/capacity/rows.rs",
    "crates/leases/src/capacity/settings.rs",
    "crates/store/src/codec.rs",
    "crates/store/src/condition.rs",
    "crates/store/src/dynamodb/expression.rs",
    "crates/store/src/item.rs",
    "crates/store/src/number.rs",
    "crates/store/src/table.rs",
    "crates/store/src/update.rs",
    "crates/store/src/write.rs",
    "crates/stream/src/identity.rs",
    "crates/stream/src/kpl.rs",
    "crates/stream/src/limits.rs",
    "crates/stream/src/lineage.rs",
    "crates/stream/src/record.rs",
    "crates/stream/src/reshaping.rs",
    "crates/stream/src/sequence.rs",
    "crates/stream/src/shard.rs",
];

const FORBIDDEN: [(&str, &str); 6] = [
    (".await", "a machine never waits"),
    ("async fn", "a machine never waits"),
    ("tokio::", "a machine knows no runtime"),
    ("aws_sdk", "a machine knows no SDK"),
    ("HashMap", "its order differs from run to run: use BTreeMap"),
    ("HashSet", "its order differs from run to run: use BTreeSet"),
];

/// The files, or folders, that may name the AWS SDK.
const SDK_ROOMS: [&str; 3] = ["dynamodb", "kinesis", "ec2"];
/// Who may name the types of the Kubernetes API.
const KUBERNETES_ROOMS: [&str; 1] = ["kubernetes"];

pub(super) fn machines(files: &[TrackedFile]) -> Vec<String> {
    let absent = PURE_FILES
        .iter()
        .filter(|pure| !files.iter().any(|file| file.path == **pure))
        .map(|pure| format!("{pure}: listed as pure but not there: correct the list in xtask"));
    let pure = files.iter().filter(|file| is_pure(&file.path));
    absent.chain(pure.flat_map(|file| impurities(&file.path, &file.text))).collect()
}

pub(super) fn sdk_types(files: &[TrackedFile]) -> Vec<String> {
    let sources = || files.iter().filter(|file| file.path.ends_with(".rs"));
    let reason = "SDK types stay in dynamodb.rs, kinesis.rs and ec2.rs";
    let aws = sources()
        .filter(|file| !is_room(&SDK_ROOMS, &file.path))
        .flat_map(|file| occurrences(&file.path, &blank(&file.text), "aws_sdk_", reason));
    let reason = "types of the Kubernetes API stay in kubernetes.rs";
    let kubernetes = sources()
        .filter(|file| !is_room(&KUBERNETES_ROOMS, &file.path))
        .flat_map(|file| occurrences(&file.path, &blank(&file.text), "k8s_openapi", reason));
    aws.chain(kubernetes).collect()
}

fn is_pure(path: &str) -> bool {
    let mut parts = path.split('/');
    path.ends_with(".rs")
        && !path.ends_with("_test.rs")
        && (PURE_FILES.contains(&path)
            || path.starts_with("crates/sim/")
            || parts.any(|part| part == "machine" || part == "machine.rs"))
}

/// A file of one of these names, or one in a folder of such a name.
fn is_room(rooms: &[&str], path: &str) -> bool {
    path.split('/').any(|part| rooms.contains(&part.strip_suffix(".rs").unwrap_or(part)))
}

fn impurities(path: &str, text: &str) -> Vec<String> {
    let code = code_without_tests(text);
    let named = FORBIDDEN.iter().flat_map(|(word, reason)| occurrences(path, &code, word, reason));
    named.chain(unordered_selects(path, &code)).collect()
}

/// `select!` polls its branches in random order unless it begins with `biased;`.
fn unordered_selects(path: &str, code: &str) -> Vec<String> {
    code.match_indices("select!")
        .filter(|(at, word)| {
            let body = code[at + word.len()..].trim_start();
            !body.trim_start_matches(['{', '(']).trim_start().starts_with("biased;")
        })
        .map(|(at, word)| finding(path, code, at, word, "begin it with `biased;`"))
        .collect()
}

fn occurrences(path: &str, code: &str, word: &str, reason: &str) -> Vec<String> {
    code.match_indices(word).map(|(at, _)| finding(path, code, at, word, reason)).collect()
}

fn finding(path: &str, code: &str, at: usize, word: &str, reason: &str) -> String {
    let line = code[..at].matches('\n').count() + 1;
    format!("{path}:{line}: names `{word}`: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_are_known_by_their_path() {
        for pure in [
            "crates/election/src/machine.rs",
            "crates/leases/src/machine/capacity.rs",
            "crates/sim/src/world.rs",
            "crates/store/src/condition.rs",
        ] {
            assert!(is_pure(pure), "{pure}");
        }
        for other in [
            "crates/store/src/sqlite.rs",
            "crates/election/src/state_machine.rs",
            "crates/leases/src/machine/capacity_test.rs",
            "docs/machine/notes.md",
        ] {
            assert!(!is_pure(other), "{other}");
        }
    }

    #[test]
    fn each_forbidden_word_is_found_with_its_line() {
        let text = "use std::collections::HashMap;\n\nasync fn f() {\n    tokio::spawn(x).await\n}\n";
        let findings = impurities("m.rs", text);
        let places = findings.iter().map(|it| it.split(':').nth(1).unwrap_or_default());
        let mut places = places.collect::<Vec<_>>();
        places.sort_unstable();
        assert_eq!(places, ["1", "3", "4", "4"]);
    }

    #[test]
    fn prose_and_tests_may_name_anything() {
        let text = "//! Never an `.await`.\nfn f() {}\n#[cfg(test)]\nmod tests {\n HashMap\n}\n";
        assert_eq!(impurities("m.rs", text), [""; 0]);
    }

    #[test]
    fn a_biased_select_passes() {
        assert!(unordered_selects("m.rs", "select! {\n    biased;\n    a = b => c,\n}").is_empty());
        assert_eq!(unordered_selects("m.rs", "select! { a = b => c }").len(), 1);
    }

    #[test]
    fn the_sdk_stays_in_its_rooms() {
        assert!(is_room(&SDK_ROOMS, "crates/store/src/dynamodb.rs"));
        assert!(is_room(&SDK_ROOMS, "crates/stream/src/kinesis/reader.rs"));
        assert!(!is_room(&SDK_ROOMS, "crates/store/src/open.rs"));
        let file = |path: &str, text: &str| TrackedFile { path: path.into(), text: text.into() };
        let files = [file("a/open.rs", "use aws_sdk_dynamodb::Client;"), file("a/b.rs", "// aws_sdk_x")];
        assert_eq!(sdk_types(&files).len(), 1);
        let kubernetes = |path: &str| file(path, "use k8s_openapi::api;");
        assert_eq!(sdk_types(&[kubernetes("a/kubernetes.rs"), kubernetes("a/census.rs")]).len(), 1);
    }
}
