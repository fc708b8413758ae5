//! Whom we talk to, and whether others can listen: `sslmode` as libpq means it.
//!
//! | `sslmode` | encrypted | certificate checked | host name checked |
//! |---|---|---|---|
//! | `disable` (default on this machine) | no | | |
//! | `prefer` | if the server can | no | no |
//! | `require` | yes | only with `sslrootcert` | no |
//! | `verify-ca` | yes | yes | no |
//! | `verify-full` (default elsewhere) | yes | yes | yes |
//!
//! Nothing falls back to plain text but `prefer`, and that must be asked for.
//!
//! Everything that speaks to Postgres shares this, whichever driver it uses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::Decode;

use crate::{Error, Result};

/// libpq's `sslmode`, without `allow`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// Plain text.
    Disable,
    /// Encrypted if the server can, and by whomever.
    Prefer,
    /// Encrypted; checked only against an authority that is given.
    Require,
    /// Encrypted, by somebody whom an authority vouches for.
    VerifyCa,
    /// Encrypted, by the host that was asked for.
    VerifyFull,
}

impl SslMode {
    /// The words that are understood, for messages.
    pub const WORDS: &str = "disable, prefer, require, verify-ca or verify-full";

    const fn word(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }

    /// What holds where nothing is said: plain text never leaves this machine.
    #[must_use]
    pub const fn default_for(local: bool) -> Self {
        if local { Self::Disable } else { Self::VerifyFull }
    }

    /// Whether anybody in between could pose as the server although TLS is used.
    #[must_use]
    pub fn verifies_nothing(self, sslrootcert: Option<&str>) -> bool {
        self == Self::Prefer || (self == Self::Require && sslrootcert.is_none())
    }
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for SslMode {
    type Err = ();
    fn from_str(word: &str) -> Result<Self, ()> {
        let modes = [Self::Disable, Self::Prefer, Self::Require, Self::VerifyCa, Self::VerifyFull];
        modes.into_iter().find(|mode| mode.word() == word).ok_or(())
    }
}

/// Whether what is said to this host stays on this machine: `localhost`, a loopback address, or the
/// folder of a socket.
#[must_use]
pub fn is_local_host(host: &str) -> bool {
    host == "localhost"
        || host.starts_with('/')
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Makes what a mode asks for; `None` for plain text. `sslrootcert` is a file of certificates in PEM, or
/// `system`. `direct`: TLS is spoken from the first byte (Postgres 17).
///
/// # Errors
/// `Invalid` if the authorities to trust cannot be read.
pub fn client_config(
    mode: SslMode,
    sslrootcert: Option<&str>,
    direct: bool,
) -> Result<Option<Arc<ClientConfig>>> {
    let provider = Arc::new(ring::default_provider());
    let checking = match mode {
        SslMode::Disable => return Ok(None),
        SslMode::Prefer => None,
        SslMode::Require => sslrootcert.map(|path| (Some(path), false)),
        SslMode::VerifyCa => Some((sslrootcert, false)),
        SslMode::VerifyFull => Some((sslrootcert, true)),
    };
    let verifier = match checking {
        None => Verifier { chain: None, name: false, provider: provider.clone() },
        Some((path, name)) => {
            let roots = Arc::new(roots(path)?);
            let chain =
                WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build().map_err(
                    |error| Error::invalid("no certificate authority to trust").because(error.to_string()),
                )?;
            Verifier { chain: Some(chain), name, provider: provider.clone() }
        }
    };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("set up TLS").because(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    if direct {
        // A server that is greeted with TLS at once wants to be told the protocol.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(Some(Arc::new(config)))
}

/// The hash of a server's certificate that ties a login to the connection it is made on (RFC 5929,
/// `tls-server-end-point`). `None` if the certificate is signed in a way that the RFC names no hash for.
#[must_use]
pub fn end_point_hash(certificate: &[u8]) -> Option<Vec<u8>> {
    let signed_by = Certificate::from_der(certificate).ok()?.signature_algorithm.oid;
    // MD5 and SHA-1 are replaced by SHA-256, as the RFC says.
    Some(match signed_by.to_string().as_str() {
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Sha256::digest(certificate).to_vec(),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Sha384::digest(certificate).to_vec(),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Sha512::digest(certificate).to_vec(),
        _ => return None,
    })
}

fn roots(path: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match path {
        None | Some("system") => {
            let found = rustls_native_certs::load_native_certs();
            roots.add_parsable_certificates(found.certs);
            if roots.is_empty() {
                let why = found.errors.first().map_or_else(|| "none found".to_owned(), ToString::to_string);
                return Err(Error::invalid(
                    "this machine has no certificate authorities to verify the Postgres server with: \
                     install ca-certificates, or give the server's authority by sslrootcert=PATH",
                )
                .because(why));
            }
        }
        Some(path) => {
            let unusable = || {
                Error::invalid(format!(
                    "sslrootcert `{path}` is not a file of certificates in PEM: check the path"
                ))
            };
            let certificates = CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| unusable().because(error.to_string()))?;
            if certificates.is_empty() {
                return Err(unusable());
            }
            for certificate in certificates {
                roots.add(certificate).map_err(|error| unusable().because(error.to_string()))?;
            }
        }
    }
    Ok(roots)
}

/// Checks as much of a certificate as the mode says. Without a chain, whoever holds the key of
/// the shown certificate is believed.
#[derive(Debug)]
struct Verifier {
    chain: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is looked at last: everything else was right.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            checked => checked,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_empty_file_of_certificates_is_named() {
        let refused = |path: &str| match client_config(SslMode::VerifyFull, Some(path), false) {
            Ok(_) => panic!("{path} was taken"),
            Err(error) => error.chain(),
        };
        assert!(refused("/no/such/ca.pem").contains("/no/such/ca.pem"));
        assert!(refused("/dev/null").contains("/dev/null"));
        assert!(client_config(SslMode::Disable, Some("/no/such/ca.pem"), false).unwrap().is_none());
    }

    #[test]
    fn only_this_machine_is_local() {
        for local in ["localhost", "127.8.0.1", "::1", "/run/postgresql"] {
            assert!(is_local_host(local), "{local}");
        }
        for remote in ["db.example.com", "10.0.0.1", "localhost.example.com", ""] {
            assert!(!is_local_host(remote), "{remote}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_hash() {
        assert_eq!(end_point_hash(b""), None);
        assert_eq!(end_point_hash(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
