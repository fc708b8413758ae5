//! The API server and the scheduler of Kubernetes, compiled from Debian's source package, and Debian's etcd.
//!
//! Debian carries the sources and no binary. The machine's own package sources tell where they are: a private
//! list of source packages is derived from them, so the machine's own lists stay as they are, and no file here
//! names a host. etcd is unpacked and not installed: the package would start a server of its own.
//!
//! The folder appears when all programs are in it. It takes ten minutes of one processor, once per machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::cache::Cache;
use crate::child;
use crate::progress::Step;
use crate::setup::debian::unpack_package;

/// What Debian 12 carries.
const VERSION: &str = "1.20.2";
const COMPILED: [&str; 2] = ["kube-apiserver", "kube-scheduler"];
const ETCD: &str = "etcd";

/// The folder with all programs, if it was set up.
pub(crate) fn programs(cache: &Cache) -> Option<PathBuf> {
    let folder = cache.kubernetes(VERSION);
    COMPILED.iter().chain([&ETCD]).all(|program| folder.join(program).is_file()).then_some(folder)
}

pub(super) fn is_there(cache: &Cache) -> bool {
    programs(cache).is_some()
}

pub(super) fn build(cache: &Cache) -> Result<()> {
    for program in ["apt-get", "dpkg-deb", "make", "tar"] {
        ensure!(
            super::on_path(program).is_some(),
            "no `{program}`: the API server is built from Debian's sources, on Debian. Tests without it: \
             `cargo xtask test --embedded`"
        );
    }
    let folder = cache.kubernetes(VERSION);
    let work = folder.with_added_extension("unfinished");
    if work.exists() {
        fs::remove_dir_all(&work).context("remove what an earlier run left")?;
    }
    let bin = work.join("bin");
    fs::create_dir_all(&bin).with_context(|| format!("create {}", bin.display()))?;

    let step = Step::begin("download the sources of Kubernetes");
    let tarball = download_sources(&work, &step)?;
    step.done("downloaded");

    let step = Step::begin("download etcd");
    unpack_etcd(&work, &bin, &step)?;
    step.done("unpacked");

    let step = Step::begin("build kube-apiserver and kube-scheduler (ten minutes of one processor)");
    let tree = unpack(&work, &tarball, &step)?;
    mend(&work, &tree, &step)?;
    compile(&tree, &step)?;
    for program in COMPILED {
        let built = tree.join("_output/bin").join(program);
        fs::copy(&built, bin.join(program)).with_context(|| format!("copy {}", built.display()))?;
    }
    step.done("built");

    // An earlier version of this knew fewer programs.
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("remove {}", folder.display()))?;
    }
    fs::rename(&bin, &folder).with_context(|| format!("move the programs to {}", folder.display()))?;
    // Two gigabytes that nobody needs any more.
    fs::remove_dir_all(&work).with_context(|| format!("remove {}", work.display()))
}

/// Fetches the source package by a private list, and says where its sources are.
fn download_sources(work: &Path, step: &Step) -> Result<PathBuf> {
    let (apt, sources) = (work.join("apt"), work.join("sources"));
    for folder in [apt.join("lists/partial"), apt.join("cache/archives/partial"), sources.clone()] {
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let release = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let codename = codename(&release).context("/etc/os-release names no Debian release")?;
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    let targets = child::run_captured(&mut targets, step)?;
    let list = source_list(&targets.output, codename);
    ensure!(
        !list.is_empty(),
        "apt knows no packages of {codename}: run `apt-get update` as root, and this again"
    );
    fs::write(apt.join("sources.list"), list).context("write a list of sources")?;

    child::run_quietly(&mut private_apt(&apt, &["update"]), step)
        .context("are Debian's sources reachable? Once they are, run this again")?;
    let mut fetch = private_apt(&apt, &["source", "--download-only", "kubernetes"]);
    child::run_quietly(fetch.current_dir(&sources), step)
        .with_context(|| format!("fetch the source package `kubernetes` of {codename}"))?;

    let files = fs::read_dir(&sources).context("list the sources")?.flatten();
    let tarball = files.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains(".orig.tar."));
    let tarball = tarball.context("the source package has no sources")?;
    if !tarball.to_string_lossy().contains(VERSION) {
        bail!("{codename} carries {}, not {VERSION}: tests want Debian 12", tarball.display());
    }
    Ok(tarball)
}

/// `apt-get` with lists and a cache of its own. It needs no root.
fn private_apt(apt: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("apt-get");
    let mut set = |name: &str, value: &Path| {
        command.arg("-o").arg(format!("{name}={}", value.display()));
    };
    set("Dir::Etc::sourcelist", &apt.join("sources.list"));
    set("Dir::Etc::sourceparts", Path::new("/dev/null"));
    set("Dir::State::lists", &apt.join("lists"));
    set("Dir::Cache", &apt.join("cache"));
    if rustix::process::geteuid().is_root() {
        // Otherwise a helper user is tried first, who may not enter a home directory.
        command.args(["-o", "APT::Sandbox::User=root"]);
    }
    command.arg("-q").args(arguments);
    command
}

/// Lines of `address release component` become entries for source packages of this release.
fn source_list(targets: &str, codename: &str) -> String {
    let mut entries: Vec<_> = targets
        .lines()
        .filter(|line| {
            let release = line.split_whitespace().nth(1).unwrap_or_default();
            release == codename || release.strip_prefix(codename).is_some_and(|rest| rest.starts_with('-'))
        })
        .map(|line| format!("deb-src {line}\n"))
        .collect();
    entries.sort();
    entries.dedup();
    entries.concat()
}

fn codename(release: &str) -> Option<&str> {
    release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME=")).map(|name| name.trim_matches('"'))
}

fn unpack_etcd(work: &Path, bin: &Path, step: &Step) -> Result<()> {
    let etcd = unpack_package("etcd-server", work, step)?.join("usr/bin/etcd");
    fs::copy(&etcd, bin.join(ETCD)).with_context(|| format!("copy {}", etcd.display()))?;
    Ok(())
}

fn unpack(work: &Path, tarball: &Path, step: &Step) -> Result<PathBuf> {
    let tree = work.join("tree");
    // Its makefiles want to be at this place below a Go path.
    let place = tree.join(".go/src/k8s.io");
    for folder in [&place, &tree.join("home")] {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(tarball).arg("-C").arg(&tree).arg("--strip-components=1");
    child::run_quietly(&mut tar, step)?;
    std::os::unix::fs::symlink("../../..", place.join("kubernetes")).context("link the sources")?;
    Ok(tree)
}

/// The sources carry a library that reads Go's own data structures, and Debian's Go has others since: every JSON
/// map would end in a crash. Debian carries the library's next version too.
fn mend(work: &Path, tree: &Path, step: &Step) -> Result<()> {
    let library = "github.com/modern-go/reflect2";
    let package = unpack_package("golang-github-modern-go-reflect2-dev", work, step)?;
    let (new, old) = (package.join("usr/share/gocode/src").join(library), tree.join("vendor").join(library));
    fs::remove_dir_all(&old).with_context(|| format!("remove {}", old.display()))?;
    fs::create_dir(&old).with_context(|| format!("create {}", old.display()))?;
    for file in fs::read_dir(&new).with_context(|| format!("list {}", new.display()))?.flatten() {
        fs::copy(file.path(), old.join(file.file_name()))
            .with_context(|| format!("copy {}", new.display()))?;
    }
    Ok(())
}

fn compile(tree: &Path, step: &Step) -> Result<()> {
    // Behind everything else on this machine: it is in nobody's way.
    let mut make = Command::new("nice");
    let what = COMPILED.map(|program| format!("cmd/{program}")).join(" ");
    make.args(["-n", "19", "make", &format!("WHAT={what}")]).current_dir(tree);
    make.env("GOPATH", tree.join(".go")).env("HOME", tree.join("home"));
    // Everything that it needs is in the sources.
    make.env("GOPROXY", "off").env("CGO_ENABLED", "0");
    // A developer's own would change what is built.
    make.env_remove("GOFLAGS").env_remove("MAKEFLAGS");
    child::run_quietly(&mut make, step).context("compile kube-apiserver and kube-scheduler")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_packages_come_from_where_packages_come_from() {
        let targets = "mirror:/a/ bookworm main\n\
                       mirror:/a/ bookworm-updates main\n\
                       mirror:/b/ nodistro main\n\
                       mirror:/c/ bookwormish main\n\
                       mirror:/a/ bookworm main\n";
        assert_eq!(
            source_list(targets, "bookworm"),
            "deb-src mirror:/a/ bookworm main\ndeb-src mirror:/a/ bookworm-updates main\n"
        );
        assert_eq!(source_list("", "bookworm"), "");
    }

    #[test]
    fn a_release_has_a_name() {
        assert_eq!(codename("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(codename("ID=other\n"), None);
    }
}
