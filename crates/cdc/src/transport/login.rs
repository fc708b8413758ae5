//! Getting in: the startup message, and whatever the server wants as proof.
//!
//! SCRAM-SHA-256 proves the password without showing it, and makes the server prove that it knows it too.
//! With TLS it is tied to the connection (SCRAM-SHA-256-PLUS): nobody in between can pass it on. MD5 is
//! spoken for old roles. A password in clear goes only over TLS or within this machine.

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{
    ChannelBinding, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256,
};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use tenure_backend::{Error, Kind, Result};

use super::endpoint::{Binding, Endpoint, Password};
use super::failure::{ServerError, garbled};
use super::session::{Purpose, message};
use super::shared::Pulse;
use super::wire::{Inbox, Outbox};

/// Nobody has vouched for the server yet: nothing long is taken from it.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// Seconds between two probes by the server of a silent client.
const PROBE_SECONDS: u64 = 1;

/// What the connection offers to tie a login to.
pub(super) struct Ties {
    pub(super) end_point: Option<Vec<u8>>,
    pub(super) encrypted: bool,
}

/// What the server said when it let us in.
pub(super) struct LoggedIn {
    pub(super) backend: i32,
    pub(super) server_version: String,
}

pub(super) async fn log_in(
    purpose: Purpose,
    endpoint: &Endpoint,
    ties: Ties,
    outbox: &mut Outbox,
    inbox: &mut Inbox,
    pulse: &Pulse,
) -> Result<LoggedIn> {
    let place = endpoint.place();
    let parameters = parameters(purpose, endpoint);
    let parameters = parameters.iter().map(|(name, value)| (*name, value.as_str()));
    outbox.send(place, |out| frontend::startup_message(parameters, out)).await?;

    let mut proof = Proof { endpoint, ties, scram: None, bound: false, proven: true };
    let mut found = LoggedIn { backend: 0, server_version: String::new() };
    loop {
        let next = inbox.next(place, pulse).await?;
        // The server speaks a newer protocol too, which we did not ask for.
        if next.tag == b'v' {
            continue;
        }
        match message(place, inbox, &next)? {
            Message::AuthenticationOk => proof.accepted()?,
            Message::ParameterStatus(body) => {
                let read =
                    |text: std::io::Result<&str>| text.map(str::to_owned).map_err(|e| garbled(place, e));
                if read(body.name())? == "server_version" {
                    found.server_version = read(body.value())?;
                }
            }
            Message::BackendKeyData(body) => found.backend = body.process_id(),
            Message::ErrorResponse(body) => {
                let answer = ServerError::read(body.fields()).map_err(|error| garbled(place, error))?;
                return Err(answer.told(place));
            }
            Message::NoticeResponse(_) => {}
            Message::ReadyForQuery(_) => return Ok(found),
            request => {
                let answer = proof.answer(request)?;
                if !answer.is_empty() {
                    let write = |out: &mut BytesMut| {
                        out.extend_from_slice(&answer);
                        Ok(())
                    };
                    outbox.send(place, write).await?;
                }
            }
        }
    }
}

fn parameters(purpose: Purpose, endpoint: &Endpoint) -> Vec<(&'static str, String)> {
    let timeout = endpoint.server_timeout;
    let idle_seconds = (timeout / 2).as_secs().max(1);
    // For servers on systems without a user timeout: as many probes as fill the rest of the time.
    let probes = timeout.as_secs().saturating_sub(idle_seconds).max(1).div_ceil(PROBE_SECONDS) + 1;
    let mut parameters = vec![
        ("user", endpoint.user.clone()),
        ("database", endpoint.database.clone()),
        ("application_name", endpoint.application_name.clone()),
        // So that values read the same whatever the role or the server are set to.
        ("client_encoding", "UTF8".to_owned()),
        ("DateStyle", "ISO, YMD".to_owned()),
        ("TimeZone", "UTC".to_owned()),
        ("IntervalStyle", "postgres".to_owned()),
        ("extra_float_digits", "3".to_owned()),
        ("bytea_output", "hex".to_owned()),
        // The server lets go of a client that has vanished, and with it of the lock and the slot.
        ("tcp_keepalives_idle", idle_seconds.to_string()),
        ("tcp_keepalives_interval", PROBE_SECONDS.to_string()),
        ("tcp_keepalives_count", probes.to_string()),
        ("tcp_user_timeout", timeout.as_millis().to_string()),
    ];
    if purpose == Purpose::Replication {
        parameters.push(("replication", "database".to_owned()));
        parameters.push(("wal_sender_timeout", endpoint.wal_sender_timeout.as_millis().to_string()));
    }
    if let Some(options) = &endpoint.options {
        parameters.push(("options", options.clone()));
    }
    parameters
}

/// How far we are with proving who we are.
struct Proof<'a> {
    endpoint: &'a Endpoint,
    ties: Ties,
    scram: Option<ScramSha256>,
    /// The login is tied to the connection.
    bound: bool,
    /// Nothing is open: in SCRAM the server proves itself last.
    proven: bool,
}

impl Proof<'_> {
    fn answer(&mut self, request: Message) -> Result<BytesMut> {
        let endpoint = self.endpoint;
        let mut out = BytesMut::new();
        let said = match request {
            Message::AuthenticationCleartextPassword => {
                if !self.ties.encrypted && !endpoint.host.is_local() {
                    return Err(self.refused(
                        "the server wants the password in clear over a network: use sslmode=verify-full",
                    ));
                }
                frontend::password_message(self.password()?.reveal(), &mut out)
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(endpoint.user.as_bytes(), self.password()?.reveal(), body.salt());
                frontend::password_message(hash.as_bytes(), &mut out)
            }
            Message::AuthenticationSasl(body) => self.begin(&body, &mut out)?,
            Message::AuthenticationSaslContinue(body) => {
                let scram =
                    self.scram.as_mut().ok_or_else(|| garbled(endpoint.place(), "no SCRAM was begun"))?;
                scram.update(body.data()).map_err(|error| garbled(endpoint.place(), error))?;
                frontend::sasl_response(scram.message(), &mut out)
            }
            Message::AuthenticationSaslFinal(body) => {
                let mut scram =
                    self.scram.take().ok_or_else(|| garbled(endpoint.place(), "no SCRAM was begun"))?;
                scram.finish(body.data()).map_err(|error| {
                    self.refused("the server does not know our password itself: is it the right server?")
                        .because(error)
                })?;
                self.proven = true;
                Ok(())
            }
            Message::AuthenticationGss | Message::AuthenticationSspi | Message::AuthenticationKerberosV5 => {
                return Err(
                    self.refused("the server wants Kerberos: give this user scram-sha-256 in pg_hba.conf")
                );
            }
            _ => return Err(garbled(endpoint.place(), "an unknown request for a proof of who we are")),
        };
        said.map_err(|error| {
            self.refused("the password cannot be sent: it holds a zero byte").because(error)
        })?;
        Ok(out)
    }

    fn begin(&mut self, body: &AuthenticationSaslBody, out: &mut BytesMut) -> Result<std::io::Result<()>> {
        let (mut plain, mut plus) = (false, false);
        let mut mechanisms = body.mechanisms();
        while let Some(name) = mechanisms.next().map_err(|error| garbled(self.endpoint.place(), error))? {
            plain |= name == SCRAM_SHA_256;
            plus |= name == SCRAM_SHA_256_PLUS;
        }
        let wanted = self.endpoint.channel_binding != Binding::Disable;
        let end_point = self.ties.end_point.take().filter(|_| wanted);
        let (mechanism, binding) = match end_point {
            Some(hash) if plus => {
                self.bound = true;
                (SCRAM_SHA_256_PLUS, ChannelBinding::tls_server_end_point(hash))
            }
            // We could, and say so: somebody who took the offer out in between is found out.
            Some(_) if plain => (SCRAM_SHA_256, ChannelBinding::unrequested()),
            None if plain => (SCRAM_SHA_256, ChannelBinding::unsupported()),
            _ => {
                return Err(self.refused("the server and we know no common way to log in: use scram-sha-256"));
            }
        };
        self.check_bound()?;
        let scram = ScramSha256::new(self.password()?.reveal(), binding);
        let said = frontend::sasl_initial_response(mechanism, scram.message(), out);
        (self.scram, self.proven) = (Some(scram), false);
        Ok(said)
    }

    fn accepted(&self) -> Result<()> {
        if !self.proven {
            return Err(self.refused("the server lets us in without proving itself: is it the right server?"));
        }
        self.check_bound()
    }

    fn check_bound(&self) -> Result<()> {
        if self.endpoint.channel_binding == Binding::Require && !self.bound {
            return Err(self.refused(
                "channel_binding=require, but the login cannot be tied to the connection: use TLS and scram-sha-256",
            ));
        }
        Ok(())
    }

    fn password(&self) -> Result<&Password> {
        self.endpoint.password.as_ref().ok_or_else(|| {
            self.refused("the server asks for a password: give it in the address or by PGPASSWORD")
        })
    }

    fn refused(&self, why: &str) -> Error {
        Error::new(Kind::Denied, format!("{}: {why}", self.endpoint.place()))
    }
}
