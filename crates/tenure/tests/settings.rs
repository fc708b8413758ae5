//! One precedence, and mistakes that are told.

use serde_json::{Value as Json, json};

use crate::site::{Ran, Site, ran};

fn check(site: &Site, line: &str, environment: &[(&str, &str)]) -> Ran {
    let mut command = site.command(line);
    command.envs(environment.iter().copied());
    ran(command)
}

fn key<'a>(lines: &'a [Json], path: &str) -> &'a Json {
    lines.iter().find(|line| line["key"] == path).unwrap()
}

#[test]
fn defaults_file_environment_flag() {
    let site = Site::new();
    let shown = |line: &str, environment: &[(&str, &str)]| {
        let lines = check(&site, &format!("config check --json {line}"), environment).expect(0).json();
        assert_eq!(lines.last().unwrap()["ok"], true);
        let found = key(&lines, "store.url");
        (found["value"].as_str().unwrap().to_owned(), found["source"].as_str().unwrap().to_owned())
    };
    let pair = |value: &str, source: &str| (value.to_owned(), source.to_owned());
    assert_eq!(shown("", &[]), pair("sqlite:./tenure.db", "default"));
    site.write("tenure.toml", "[store]\nurl = 'sqlite:file.db'\n");
    assert_eq!(shown("", &[]), pair("sqlite:file.db", "file"));
    let environment = [("TENURE__STORE__URL", "sqlite:env.db")];
    assert_eq!(shown("", &environment), pair("sqlite:env.db", "environment"));
    assert_eq!(shown("--store sqlite:flag.db", &environment), pair("sqlite:flag.db", "flag"));
    site.write("other.toml", "[store]\nurl = 'sqlite:other.db'\n");
    assert_eq!(shown("--config other.toml", &[]), pair("sqlite:other.db", "file"));
    let text = site.ok("config check");
    assert!(text.contains("(tenure.toml:2)"), "{text}");
}

#[test]
fn log_filters_have_their_places() {
    let site = Site::new();
    site.write("tenure.toml", "[log]\nfilter = 'info'\n");
    let filter = |line: &str, environment: &[(&str, &str)]| {
        let lines = check(&site, &format!("config check --json {line}"), environment).expect(0).json();
        key(&lines, "log.filter")["value"].as_str().unwrap().to_owned()
    };
    let rust = ("RUST_LOG", "debug");
    let tenure = ("TENURE_LOG", "error");
    assert_eq!(filter("", &[]), "info");
    assert_eq!(filter("", &[rust]), "debug");
    assert_eq!(filter("", &[rust, tenure]), "error");
    assert_eq!(filter("", &[rust, tenure, ("TENURE__LOG__FILTER", "trace")]), "trace");
    assert_eq!(filter("--log off", &[rust, tenure]), "off");
}

#[test]
fn logs_go_to_standard_error_as_text_or_json() {
    let site = Site::new();
    site.ok("store create-table locks --hash name");
    let text = site.run("store scan locks --log trace --json").expect(0);
    assert!(text.stderr.contains("store call"), "{text:#?}");
    text.json();
    let json = site.run("store scan locks --log trace --log-format json").expect(0);
    for line in json.stderr.lines() {
        let line: Json = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string(), "{line}");
    }
    assert!(!json.stderr.is_empty());
}

#[test]
fn unknown_keys_name_the_nearest_and_the_place() {
    let site = Site::new();
    site.write("tenure.toml", "# mine\n[store]\nulr = 'sqlite:x.db'\n");
    for line in ["config check", "store scan locks", "stream list"] {
        site.run(line).expect(2).says(&["tenure.toml:3", "`store.ulr`", "did you mean `store.url`"]);
    }
    let doctor = site.run("doctor --json").expect(1).json();
    assert_eq!((&doctor[0]["check"], &doctor[0]["status"]), (&json!("config"), &json!("fail")));
    assert!(doctor[0]["message"].as_str().unwrap().contains("did you mean `store.url`"));
    site.write("tenure.toml", "[lgo]\n");
    site.run("config check").expect(2).says(&["tenure.toml:1", "did you mean `[log]`"]);
    site.write("tenure.toml", "");
    let variable = [("TENURE__STREAM__URLS", "sqlite:x.db")];
    check(&site, "config check", &variable)
        .expect(2)
        .says(&["`TENURE__STREAM__URLS`", "did you mean `TENURE__STREAM__URL`"]);
    site.run("config check --config nowhere.toml").expect(2).says(&["nowhere.toml", "tenure init"]);
    let address = site.run("store scan locks --store sqlite:x.db?swep_seconds=5").expect(2);
    address.says(&["no option `swep_seconds`", "did you mean `sweep_seconds`"]);
}

#[test]
fn metrics_are_for_commands_that_stay() {
    let site = Site::new();
    site.run("store scan locks --metrics 127.0.0.1:0").expect(2).says(&["--metrics", "store watch"]);
    // A file that all commands share does not make the short ones listen.
    site.write("tenure.toml", "[metrics]\nlisten = '127.0.0.1:1'\n");
    site.ok("store create-table locks --hash name");
}
