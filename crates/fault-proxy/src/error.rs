//! Why a proxy does not start. What goes wrong later is answered to the client instead.

use std::io;
use std::path::PathBuf;

use crate::rule::RuleError;

/// Why the proxy did not start, or could not be run by hand.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address outside this machine. There is no override: use an emulator on loopback.
    #[error(
        "{what} address `{address}` is not loopback: the fault proxy breaks requests on purpose and serves \
         only 127.0.0.0/8, [::1] and localhost"
    )]
    NotLoopback {
        /// `upstream` or `listen`.
        what: &'static str,
        /// The address as it was given.
        address: String,
    },

    /// The upstream is not of the form `http://HOST:PORT`. Give the emulator's own URL.
    #[error("upstream `{url}` {problem}; expected http://127.0.0.1:PORT")]
    Upstream {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it.
        problem: &'static str,
    },

    /// The listen address is not of the form `IP:PORT`.
    #[error("listen address `{address}` is not IP:PORT; expected 127.0.0.1:PORT, with port 0 for a free one")]
    Listen {
        /// The address as it was given.
        address: String,
    },

    /// The port could not be had. Port 0 asks for a free one.
    #[error("listen on {address}")]
    Bind {
        /// The address that was asked for.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// A rule's text is wrong; the message shows the valid forms.
    #[error(transparent)]
    Rule(#[from] RuleError),

    /// The script file could not be read.
    #[error("read script {path}", path = path.display())]
    ScriptFile {
        /// The file that was asked for.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },

    /// The script file is not a script; the source names the field and the line.
    #[error("parse script {path}", path = path.display())]
    ScriptJson {
        /// The file that was read.
        path: PathBuf,
        /// What is wrong, and where.
        #[source]
        source: serde_json::Error,
    },

    /// The process could not listen for signals or print to stdout.
    #[error("{action}")]
    Process {
        /// What was being done.
        action: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}
