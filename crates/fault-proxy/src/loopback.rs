//! Which addresses count as this machine.
//!
//! Names other than `localhost` are refused rather than resolved: what a resolver says today it may
//! take back between the check and the connection. `localhost` is read as 127.0.0.1, where every
//! emulator of ours binds.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use hyper::Uri;

use crate::error::Error;

/// The emulator's address, out of `http://HOST:PORT`.
pub(crate) fn upstream(url: &str) -> Result<SocketAddr, Error> {
    let bad = |problem| Error::Upstream { url: url.to_owned(), problem };
    let uri: Uri = url.parse().map_err(|_| bad("is not a URL"))?;
    if uri.scheme_str() != Some("http") {
        return Err(bad("does not start with http://"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(bad("has a path or a query, and requests bring their own"));
    }
    let authority = uri.authority().ok_or_else(|| bad("has no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("carries a user, and emulators ask for none"));
    }
    let port = authority.port_u16().filter(|&port| port != 0).ok_or_else(|| bad("has no port"))?;
    let ip = ip(authority.host())
        .ok_or_else(|| Error::NotLoopback { what: "upstream", address: url.to_owned() })?;
    Ok(SocketAddr::new(ip, port))
}

/// The address to listen on, out of `IP:PORT`.
pub(crate) fn listen(address: &str) -> Result<SocketAddr, Error> {
    let bad = || Error::Listen { address: address.to_owned() };
    let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
    let port = port.parse().map_err(|_| bad())?;
    let ip = ip(host).ok_or_else(|| Error::NotLoopback { what: "listen", address: address.to_owned() })?;
    Ok(SocketAddr::new(ip, port))
}

fn ip(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(Ipv4Addr::LOCALHOST.into());
    }
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    bare.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}
