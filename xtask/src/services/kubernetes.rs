//! An API server of Kubernetes with an etcd of its own, on loopback, and a kubeconfig for whoever tests. With a
//! scheduler beside it, pods get nodes; nobody runs them.
//!
//! The server makes its own certificate when it starts; the kubeconfig names the file. Its one token is drawn
//! for this instance.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::server::Launch;
use crate::cache::Cache;
use crate::setup;

const SCRIPT: &str = include_str!("kubernetes.sh");

pub(super) fn kubeconfig_path(dir: &Path) -> PathBuf {
    dir.join("kubeconfig")
}

pub(super) fn launch(
    cache: &Cache,
    dir: &Path,
    port: u16,
    etcd_ports: [u16; 2],
    scheduler_port: Option<u16>,
) -> Result<Launch> {
    let programs = setup::kubernetes_programs(cache)
        .context("no Kubernetes API server: run `cargo xtask setup kubernetes`")?;
    let token = token()?;
    write_private(&dir.join("tokens.csv"), &format!("{token},admin,admin,\"system:masters\"\n"))?;
    write_private(&kubeconfig_path(dir), &kubeconfig(dir, port, &token))?;
    make_key(&dir.join("accounts.key"))?;
    let mut arguments: Vec<OsString> = vec!["-c".into(), SCRIPT.into(), "kubernetes".into()];
    arguments
        .extend([programs.join("etcd"), programs.join("kube-apiserver"), dir.to_owned()].map(OsString::from));
    arguments.extend([port, etcd_ports[0], etcd_ports[1]].map(|port| port.to_string().into()));
    if let Some(port) = scheduler_port {
        arguments.extend([programs.join("kube-scheduler").into(), port.to_string().into()]);
    }
    Ok(Launch { program: "sh".into(), arguments, environment: Vec::new(), user: None })
}

/// Whether the server says that it is ready, roles and all. Asked by `openssl`: this program speaks no TLS.
pub(super) fn answers(port: u16) -> bool {
    let probe = || -> Result<bool> {
        // A stranger on the port might never answer.
        let mut openssl = Command::new("timeout")
            .args(["2", "openssl", "s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        if let Some(mut stdin) = openssl.stdin.take() {
            // It reads the answer to its end although nothing more is asked.
            stdin.write_all(b"GET /readyz HTTP/1.0\r\n\r\n")?;
        }
        let output = openssl.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).starts_with("HTTP/1.0 200"))
    };
    probe().unwrap_or(false)
}

fn kubeconfig(dir: &Path, port: u16, token: &str) -> String {
    let certificate = dir.join("certificates/apiserver.crt");
    format!(
        "apiVersion: v1
kind: Config
current-context: tenure
clusters:
- name: tenure
  cluster:
    server: https://127.0.0.1:{port}
    certificate-authority: {}
users:
- name: admin
  user:
    token: {token}
contexts:
- name: tenure
  context:
    cluster: tenure
    user: admin
    namespace: default
",
        certificate.display()
    )
}

fn token() -> Result<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut urandom| urandom.read_exact(&mut bytes))
        .context("draw a token")?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// It may do everything on a server that others on this machine can reach.
fn write_private(path: &Path, text: &str) -> Result<()> {
    fs::write(path, "")
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(0o600)))
        .and_then(|()| fs::write(path, text))
        .with_context(|| format!("write {}", path.display()))
}

/// The server will not start without one, although nobody here uses service accounts.
fn make_key(path: &Path) -> Result<()> {
    let mut openssl = Command::new("openssl");
    openssl.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]).arg(path);
    let output =
        openssl.stdin(Stdio::null()).output().context("run openssl: `cargo xtask setup kubernetes`")?;
    ensure!(output.status.success(), "openssl: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_instances_have_two_tokens() {
        let (one, other) = (token().expect("drawn"), token().expect("drawn"));
        assert_eq!(one.len(), 32);
        assert_ne!(one, other);
    }

    #[test]
    fn a_token_is_for_its_owner_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("tokens.csv");
        write_private(&path, "secret\n").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&path).expect("readable"), "secret\n");
    }

    #[test]
    fn everything_listens_on_loopback_alone() {
        let servers = SCRIPT.matches("--secure-port").count();
        assert_eq!(SCRIPT.matches("--bind-address=127.0.0.1").count(), servers);
        let addresses: Vec<_> = SCRIPT.split("\"http://").skip(1).collect();
        assert!(addresses.len() == 2 && addresses.iter().all(|it| it.starts_with("127.0.0.1:")));
    }
}
