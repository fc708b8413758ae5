//! Free loopback ports that stay free until the server binds them.
//!
//! They come from below the kernel's range for outgoing connections, or a busy neighbour could take
//! one in the second a Java server needs to start. Two runs begin at different places.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;
/// Prime, so that runs with neighbouring pids begin far apart.
const STRIDE: u32 = 137;

pub(crate) struct Ports {
    next: u16,
}

impl Ports {
    pub(crate) fn of_this_run() -> Ports {
        let offset = std::process::id().wrapping_mul(STRIDE) % u32::from(COUNT);
        Ports { next: u16::try_from(offset).unwrap_or(0) }
    }

    pub(crate) fn take(&mut self) -> Result<u16> {
        for _ in 0..COUNT {
            let port = FIRST + self.next;
            self.next = (self.next + 1) % COUNT;
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
        None.with_context(|| format!("no free port from {FIRST} to {}", FIRST + COUNT - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_passed_over_and_none_is_given_twice() {
        let mut ports = Ports::of_this_run();
        let first = ports.take().expect("a port");
        let _held = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).expect("it is free");
        let mut again = Ports { next: first - FIRST };
        assert_ne!(again.take().expect("a port"), first);
        assert_ne!(ports.take().expect("a port"), first);
    }
}
