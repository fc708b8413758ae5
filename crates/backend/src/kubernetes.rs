//! Where a Kubernetes API server is and who we are, as files and environment say.

use std::path::Path;

use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

use crate::{Error, Result};

/// The configuration of a client: a kubeconfig and a context of it, if named; else the usual kubeconfig; else a pod's
/// service account.
///
/// # Errors
/// `Invalid` if there is none, or it cannot be used. Nothing that is in a file is shown.
pub async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config> {
    // The client takes the process's choice. An error means that somebody has chosen.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    if let Some(path) = kubeconfig {
        let unusable = |error: KubeconfigError| {
            Error::invalid(format!(
                "kubeconfig {} cannot be used: {}; check the file and its contexts",
                path.display(),
                told(&error)
            ))
        };
        let file = Kubeconfig::read_from(path).map_err(unusable)?;
        return Config::from_custom_kubeconfig(file, &options).await.map_err(unusable);
    }
    match (Config::from_kubeconfig(&options).await, context) {
        (Ok(config), _) => Ok(config),
        (Err(error), Some(context)) => Err(Error::invalid(format!(
            "context `{context}` cannot be used: {}; name a kubeconfig that has it, or set KUBECONFIG",
            told(&error)
        ))),
        // The client's own way from one to the other would log what is in the file.
        (Err(error), None) => Config::incluster().map_err(|missing| {
            Error::invalid(format!(
                "no Kubernetes configuration: run in a pod with a service account ({missing}), or name a kubeconfig ({})",
                told(&error)
            ))
        }),
    }
}

/// Without the lines around a mistake: they may hold a token or a key.
fn told(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::Parse(error) => match error.location() {
            Some(place) => {
                format!("it is not understood from line {}, column {} on", place.line(), place.column())
            }
            None => "it is not understood".to_owned(),
        },
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn nothing_of_a_file_that_is_not_understood_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let texts = [
            "users:\n- name: a\n  user:\n    token: hunter2\ncontexts2: [\n",
            "users: [{ name: a, user: { token: [hunter2] } }]",
            "users:\n- name: a\n  user: hunter2\n",
            "hunter2",
        ];
        for text in texts {
            std::fs::write(&path, text).unwrap();
            let error = config(Some(&path), None).await.unwrap_err();
            let told = format!("{} {error:?}", error.chain());
            assert!(told.contains("kubeconfig") && !told.contains("hunter2"), "{told}");
        }
        let missing = config(Some(&folder.path().join("none")), None).await.unwrap_err();
        assert!(missing.chain().contains("none"), "{}", missing.chain());
    }
}
