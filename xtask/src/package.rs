//! `xtask package lambda`: the zip that Lambda runs.
//!
//! Lambda's `provided.al2023` has glibc 2.34, so the program may need no newer one: the versions that it names are
//! read from it, and a build on too new a machine fails here and not at its first start.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::child;
use crate::workspace::{self, cargo};

/// The glibc of `provided.al2023`.
const GLIBC_MAX: (u32, u32) = (2, 34);
const PROFILE: &str = "lambda";
/// Without tables for unwinding: the profile aborts.
const LINK: [&str; 2] = ["link-arg=-Wl,-T,packaging/lambda/no-unwind.ld", "link-arg=-Wl,--no-eh-frame-hdr"];

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Subject {
    /// The autoscaler as an AWS Lambda, for `provided.al2023`.
    Lambda,
}

pub(crate) struct Selection {
    pub(crate) subject: Subject,
    pub(crate) out: Option<PathBuf>,
    pub(crate) json: bool,
}

pub(crate) fn run(selection: &Selection) -> Result<ExitCode> {
    let Subject::Lambda = selection.subject;
    let target = workspace::metadata()?.target_directory;
    let mut build = cargo(["rustc", "--locked", "--package", "tenure-lambda", "--bin", "bootstrap"]);
    build.args(["--features", "runtime", "--profile", PROFILE, "--"]);
    build.args(LINK.iter().flat_map(|argument| ["-C", argument]));
    eprintln!("building (the SDK of EC2 takes many minutes, once): {}", child::describe(&build));
    let built = child::run(&mut build)?;
    ensure!(built.success(), "the build failed: cargo's messages are above");

    let program = target.join(PROFILE).join("bootstrap");
    let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
    let needed = glibc(&bytes);
    ensure!(
        needed <= GLIBC_MAX,
        "{} needs glibc {}.{}, and Lambda's provided.al2023 has {}.{}: build on an older machine (Debian 12 or Amazon \
         Linux 2023 will do), or against an older glibc with `cargo-lambda lambda build` (from the Python package \
         index), and zip what it makes",
        program.display(),
        needed.0,
        needed.1,
        GLIBC_MAX.0,
        GLIBC_MAX.1
    );
    let zip = match &selection.out {
        Some(out) => std::path::absolute(out).context("resolve --out")?,
        None => target.join(PROFILE).join("tenure-lambda.zip"),
    };
    compress(&program, &zip)?;
    let packed = fs::metadata(&zip).with_context(|| format!("look at {}", zip.display()))?.len();
    match selection.json {
        true => println!(
            "{}",
            json!({
                "zip": zip, "bytes": packed, "program_bytes": bytes.len(), "architecture": std::env::consts::ARCH,
                "glibc": format!("{}.{}", needed.0, needed.1),
            })
        ),
        false => println!(
            "{}\n{:.2} MB ({:.2} MB unpacked), {}, needs glibc {}.{}",
            zip.display(),
            megabytes(packed),
            megabytes(bytes.len() as u64),
            std::env::consts::ARCH,
            needed.0,
            needed.1
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// The newest version of glibc that a program names: `GLIBC_2.34` and the like stand in its table of versions.
fn glibc(program: &[u8]) -> (u32, u32) {
    const NAME: &[u8] = b"GLIBC_";
    let mut newest = (0, 0);
    for at in (0..program.len().saturating_sub(NAME.len())).filter(|at| program[*at..].starts_with(NAME)) {
        let version = &program[at + NAME.len()..];
        let end = version.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.').unwrap_or(0);
        let text = String::from_utf8_lossy(&version[..end]);
        let mut numbers = text.split('.').map(|number| number.parse::<u32>().ok());
        if let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) {
            newest = newest.max((major, minor));
        }
    }
    newest
}

/// By Python, which machines that test have. The same program makes the same zip: it holds no times.
fn compress(program: &Path, zip: &Path) -> Result<()> {
    const SCRIPT: &str = "\
import sys, zipfile
info = zipfile.ZipInfo('bootstrap', (1980, 1, 1, 0, 0, 0))
info.compress_type = zipfile.ZIP_DEFLATED
info.create_system = 3
info.external_attr = 0o100755 << 16
with open(sys.argv[1], 'rb') as program, zipfile.ZipFile(sys.argv[2], 'w') as out:
    out.writestr(info, program.read(), compresslevel=9)
";
    if let Some(folder) = zip.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(program).arg(zip);
    let zipped = child::run(&mut python).context("zip it with python3: install it, and run this again")?;
    ensure!(zipped.success(), "python3 could not write {}: its message is above", zip.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_glibc_that_a_program_names_is_found() {
        assert_eq!(glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.9\0libc.so.6\0"), (2, 34));
        assert_eq!(glibc(b"GLIBC_PRIVATE\0GLIBC_"), (0, 0), "what is no version");
        assert!(glibc(b"\0GLIBC_2.38\0") > GLIBC_MAX);
    }

    #[test]
    fn a_zip_holds_a_program_that_may_be_run() {
        let folder = tempfile::tempdir().expect("a folder");
        let (program, zip) = (folder.path().join("program"), folder.path().join("out/x.zip"));
        fs::write(&program, "x".repeat(10_000)).expect("a file");
        compress(&program, &zip).expect("a zip");
        let bytes = fs::read(&zip).expect("it is there");
        assert!(bytes.len() < 1000, "compressed");
        let mode = (0o100_755_u32 << 16).to_le_bytes();
        assert!(bytes.windows(4).any(|window| window == mode), "executable");
        compress(&program, &zip).expect("again");
        assert_eq!(fs::read(&zip).expect("still"), bytes, "the same program, the same zip");
    }
}
