//! No file names the host of a package registry: packages come by name, through whatever registry
//! or mirror the machine is set up with.

use super::TrackedFile;

/// Without their last label, or this file would find itself.
const HOSTS: [(&str, &str); 10] = [
    ("index.crates", "io"),
    ("static.crates", "io"),
    ("//crates", "io"),
    ("registry.npmjs", "org"),
    ("pypi", "org"),
    ("pythonhosted", "org"),
    ("deb.debian", "org"),
    ("security.debian", "org"),
    ("proxy.golang", "org"),
    ("maven.apache", "org"),
];

/// The one name Cargo knows its registry by, whatever mirror serves it.
const CARGO_SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

pub(super) fn named(files: &[TrackedFile]) -> Vec<String> {
    files.iter().flat_map(|file| findings(&file.path, &file.text)).collect()
}

fn findings(path: &str, text: &str) -> Vec<String> {
    let hosts = HOSTS.map(|(front, end)| format!("{front}.{end}"));
    let is_lock = path.ends_with("Cargo.lock");
    text.lines()
        .zip(1..)
        .filter_map(|(line, number)| {
            let host = hosts.iter().find(|host| line.contains(host.as_str()));
            let foreign_source = is_lock
                && line.strip_prefix("source = ").is_some_and(|it| it.trim_matches('"') != CARGO_SOURCE);
            match host {
                Some(host) => Some(format!("{path}:{number}: names the host {host}")),
                None if foreign_source => Some(format!("{path}:{number}: another registry: {line}")),
                None => None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_and_cargos_own_name_is_not() {
        let standard = format!("source = \"{CARGO_SOURCE}\"");
        assert_eq!(findings("Cargo.lock", &standard), [""; 0]);
        assert_eq!(findings("README.md", "published on crates.io"), [""; 0]);
        let (front, end) = HOSTS[3];
        assert_eq!(findings("x.md", &format!("a\nhttps://{front}.{end}/b")).len(), 1);
        assert_eq!(findings("Cargo.lock", "source = \"registry+https://mirror.local/i\"").len(), 1);
    }
}
