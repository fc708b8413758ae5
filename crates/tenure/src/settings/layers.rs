//! Merges defaults, the file, the environment and flags, and remembers where each value came from.
//!
//! A key that nobody knows is a mistake wherever it stands, and the message names the nearest known
//! one: a typing mistake never silently means "default".

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use tenure_backend::nearest;
use toml::de::{DeTable, DeValue};

use super::{KEYS, Key, Settings};
use crate::failure::misuse;

/// The file that is read if it is there and no other is named.
const FILE: &str = "tenure.toml";
/// What the variables of the environment begin with.
const PREFIX: &str = "TENURE__";

/// A value given by a flag.
#[derive(Debug)]
pub(crate) struct Flag {
    /// The flag, for messages.
    pub(crate) name: &'static str,
    /// What it sets.
    pub(crate) path: &'static str,
    /// To what.
    pub(crate) value: String,
}

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    /// Nobody gave it.
    Default,
    /// The file and line.
    File(PathBuf, usize),
    /// The variable's name.
    Environment(String),
    /// The flag's name.
    Flag(&'static str),
}

impl Source {
    /// One word for it.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::File(..) => "file",
            Self::Environment(_) => "environment",
            Self::Flag(_) => "flag",
        }
    }
}

/// The place to look at, or `default`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// The merged settings.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The settings.
    pub(crate) settings: Settings,
    /// The file that was read.
    pub(crate) file: Option<PathBuf>,
    given: BTreeMap<String, (String, Source)>,
}

impl Loaded {
    /// Where the value of a key came from.
    pub(crate) fn source(&self, key: &Key) -> Source {
        self.given.get(&key.path()).map_or(Source::Default, |(_, source)| source.clone())
    }
}

/// Merges what was given. `file` is read if it is named, and [`FILE`] if it is there.
///
/// # Errors
/// A misuse that names the place, the key and what to do.
pub(crate) fn load(
    file: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
    flags: Vec<Flag>,
) -> anyhow::Result<Loaded> {
    let mut given = BTreeMap::new();
    let file = match file {
        Some(path) => Some(path.to_owned()),
        None => Some(PathBuf::from(FILE)).filter(|path| path.exists()),
    };
    if let Some(path) = &file {
        read_file(path, "--config", &mut given)?;
    }
    read_environment(environment, &mut given)?;
    for Flag { name, path, value } in flags {
        insert(&mut given, path, value, Source::Flag(name))?;
    }
    merged(file, given)
}

/// As [`load`], of one file that a flag of that name gave: what else decides is not about it.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_alone(path: &Path, flag: &'static str) -> anyhow::Result<Loaded> {
    let mut given = BTreeMap::new();
    read_file(path, flag, &mut given)?;
    merged(Some(path.to_owned()), given)
}

fn merged(file: Option<PathBuf>, given: BTreeMap<String, (String, Source)>) -> anyhow::Result<Loaded> {
    let settings = settings_of(given.iter().map(|(path, (value, _))| (path.as_str(), value.as_str())))
        .map_err(|message| misuse(format!("merge the settings: {message}")))?;
    let loaded = Loaded { settings, file, given };
    loaded
        .settings
        .validate()
        .map_err(|(key, message)| misuse(format!("{}: {}: {message}", loaded.source(key), key.path())))?;
    Ok(loaded)
}

fn insert(
    given: &mut BTreeMap<String, (String, Source)>,
    path: &str,
    value: String,
    source: Source,
) -> anyhow::Result<()> {
    // Read alone, so that the message can say where it stands.
    settings_of(std::iter::once((path, value.as_str())))
        .map_err(|message| misuse(format!("{source}: {path}: {message}")))?;
    given.insert(path.to_owned(), (value, source));
    Ok(())
}

fn settings_of<'a>(values: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Settings, String> {
    let mut table = toml::Table::new();
    for (path, value) in values {
        let (section, name) = path.split_once('.').unwrap_or((path, ""));
        let section = table.entry(section).or_insert_with(|| toml::Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.insert(name.to_owned(), value.into());
        }
    }
    table.try_into().map_err(|error: toml::de::Error| error.message().to_owned())
}

// === The file ===

fn read_file(
    path: &Path,
    flag: &'static str,
    given: &mut BTreeMap<String, (String, Source)>,
) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).map_err(|error| {
        misuse(format!("read {}: {error}: write one with `tenure init`, or correct {flag}", path.display()))
    })?;
    let line_at = |offset: usize| text[..offset].matches('\n').count() + 1;
    let at = |offset: usize| format!("{}:{}", path.display(), line_at(offset));
    // The error's own text would show the line, and a password that stands in it.
    let document = DeTable::parse(&text).map_err(|error| {
        let place = error.span().map_or_else(|| path.display().to_string(), |span| at(span.start));
        misuse(format!("{place}: not TOML: {}", error.message()))
    })?;
    for (section, keys) in document.get_ref() {
        let place = at(section.span().start);
        let section = section.get_ref().as_ref();
        if !KEYS.iter().any(|key| key.section == section) {
            return Err(misuse(format!("{place}: {}", unknown_section(section))));
        }
        let DeValue::Table(keys) = keys.get_ref() else {
            return Err(misuse(format!(
                "{place}: `{section}` is a section: write [{section}] on a line of its own"
            )));
        };
        for (name, value) in keys {
            let place = at(name.span().start);
            let key = format!("{section}.{}", name.get_ref());
            let Some(key) = Key::at(&key) else {
                return Err(misuse(format!("{place}: {}", unknown_key(&key))));
            };
            let value = match value.get_ref() {
                DeValue::String(value) => value.to_string(),
                // Numbers and switches need no quotes where they can be meant.
                DeValue::Integer(number) if has_numbers(key) => number.to_string(),
                DeValue::Boolean(switch) if has_numbers(key) => switch.to_string(),
                value => {
                    let found = value.type_str();
                    return Err(misuse(format!("{place}: {} is a text in quotes, not {found}", key.path())));
                }
            };
            let source = Source::File(path.to_owned(), line_at(name.span().start));
            insert(given, &key.path(), value, source)?;
        }
    }
    Ok(())
}

/// Whether numbers and switches are among what a key's section holds.
fn has_numbers(key: &Key) -> bool {
    matches!(key.section, "cdc" | "consumer" | "autoscaler")
}

fn unknown_section(section: &str) -> String {
    let hint = nearest(section, KEYS.iter().map(|key| key.section))
        .map(|name| format!(": did you mean `[{name}]`?"))
        .unwrap_or_default();
    let mut known: Vec<_> = KEYS.iter().map(|key| format!("[{}]", key.section)).collect();
    known.dedup();
    format!("unknown section `{section}`{hint} (known: {})", known.join(", "))
}

fn unknown_key(key: &str) -> String {
    let known: Vec<_> = KEYS.iter().map(Key::path).collect();
    let hint = nearest(key, known.iter().map(String::as_str))
        .map(|name| format!(": did you mean `{name}`?"))
        .unwrap_or_default();
    format!("unknown key `{key}`{hint} (known: {})", known.join(", "))
}

// === The environment ===

/// Where a filter for logs may stand as well, the later winning; other programs read them, too.
const FILTERS: [&str; 2] = ["RUST_LOG", "TENURE_LOG"];

fn read_environment(
    environment: impl Iterator<Item = (OsString, OsString)>,
    given: &mut BTreeMap<String, (String, Source)>,
) -> anyhow::Result<()> {
    let mut variables = BTreeMap::new();
    for (name, value) in environment {
        let Some(name) = name.to_str().map(str::to_owned) else { continue };
        let is_filter = FILTERS.contains(&name.as_str()) && !value.is_empty();
        if !is_filter && !name.starts_with(PREFIX) {
            continue;
        }
        let value = value
            .into_string()
            .map_err(|_| misuse(format!("environment variable {name} is not valid UTF-8")))?;
        variables.insert(name, value);
    }
    for name in FILTERS {
        if let Some(value) = variables.remove(name) {
            insert(given, "log.filter", value, Source::Environment(name.to_owned()))?;
        }
    }
    for (name, value) in variables {
        let Some(key) = KEYS.iter().find(|key| key.variable() == name) else {
            return Err(misuse(unknown_variable(&name)));
        };
        insert(given, &key.path(), value, Source::Environment(name))?;
    }
    Ok(())
}

fn unknown_variable(name: &str) -> String {
    let known: Vec<_> = KEYS.iter().map(Key::variable).collect();
    let hint = nearest(name, known.iter().map(String::as_str))
        .map(|name| format!(": did you mean `{name}`?"))
        .unwrap_or_default();
    format!("environment variable `{name}` is no setting{hint} (known: {})", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loaded(text: &str, environment: &[(&str, &str)], flags: Vec<Flag>) -> Result<Loaded, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.toml");
        std::fs::write(&path, text).unwrap();
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        load(Some(&path), environment, flags)
            .map_err(|error| error.to_string().replace(&path.display().to_string(), "t.toml"))
    }

    fn refused(text: &str, environment: &[(&str, &str)]) -> String {
        loaded(text, environment, Vec::new()).unwrap_err()
    }

    #[test]
    fn the_later_layer_wins() {
        let file = "[store]\nurl = 'memory:'\n[log]\nformat = 'json'\nfilter = 'info'\n";
        let environment = [
            ("TENURE__STORE__URL", "sqlite:env.db"),
            ("RUST_LOG", "debug"),
            ("TENURE_LOG", "trace"),
            ("HOME", "/"),
        ];
        let flag = Flag { name: "--log", path: "log.filter", value: "off".to_owned() };
        let all = loaded(file, &environment, vec![flag]).unwrap();
        assert_eq!(all.settings.store.url.reveal(), "sqlite:env.db");
        assert_eq!(all.settings.log.filter, "off");
        assert_eq!(all.settings.log.format, super::super::LogFormat::Json);
        let source = |path: &str| all.source(Key::at(path).unwrap());
        assert_eq!(source("store.url").to_string(), "TENURE__STORE__URL");
        assert_eq!(source("log.filter"), Source::Flag("--log"));
        assert!(matches!(source("log.format"), Source::File(_, 4)));
        assert_eq!(source("stream.url"), Source::Default);
        let numbers = loaded("[cdc]\nlanes = 64\nmessages = true\nlinger = '5ms'", &[], Vec::new()).unwrap();
        let shown = |path: &str| numbers.settings.shown(Key::at(path).unwrap());
        assert_eq!(shown("cdc.lanes").as_deref(), Some("64"));
        assert_eq!(shown("cdc.messages").as_deref(), Some("true"));
        assert_eq!(shown("cdc.linger").as_deref(), Some("5ms"));
        let filters = loaded("", &environment, Vec::new()).unwrap();
        assert_eq!(filters.settings.log.filter, "trace");
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest() {
        let check = |text: &str, start: &str, hint: &str| {
            let message = refused(text, &[]);
            assert!(message.starts_with(start) && message.contains(hint), "{message}");
        };
        check("[store]\nulr = 'x:'", "t.toml:2: unknown key `store.ulr`", "did you mean `store.url`");
        check("\n[stor]\nurl = 'x:'", "t.toml:2: unknown section `stor`", "did you mean `[store]`");
        check("url = 'x:'", "t.toml:1: unknown section `url`", "known: [store]");
        check("store = 'postgres://a:s3cret@b'", "t.toml:1: `store` is a section", "[store]");
        check("[store]\nurl = 5", "t.toml:2: store.url is a text", "not integer");
        check("[log]\n\nformat = 'xml'", "t.toml:3: log.format: unknown variant `xml`", "text");
        check("[metrics]\nlisten = '9464'", "t.toml:2: metrics.listen", "socket address");
        check("[log]\nfilter = 'a=b=c'", "t.toml:2: log.filter", "does not read");
        check("[store]\nurl = 'nothing'", "t.toml:2: store.url", "has no scheme");
        check("[store\nurl = 'postgres://a:s3cret@b'", "t.toml:1: not TOML", "");
        let variable = refused("", &[("TENURE__STORE__ULR", "x:")]);
        assert!(variable.contains("did you mean `TENURE__STORE__URL`"), "{variable}");
        let value = refused("", &[("TENURE__METRICS__LISTEN", "x")]);
        assert!(value.starts_with("TENURE__METRICS__LISTEN: metrics.listen"), "{value}");
    }

    #[test]
    fn mistakes_do_not_show_passwords() {
        for text in [
            "store = 'postgres://a:s3cret@b'",
            "[store]\nurl = 'postgres://a:s3cret@b",
            "[store]\nurl = ['postgres://a:s3cret@b']",
        ] {
            let message = refused(text, &[]);
            assert!(!message.contains("s3cret"), "{message}");
        }
    }
}
