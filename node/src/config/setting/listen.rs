//! An address at which a node listens.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{InvalidValue, Setting, plain::text};
use crate::config::values::{Raw, ValueContext};

/// An address of this machine with a port. Port 0 turns listening off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listen(SocketAddr);

impl Listen {
    pub const OFF: Self = Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));

    /// Returns an address that only programs on this machine reach.
    pub const fn local(port: u16) -> Self {
        Self(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    pub fn address(self) -> Option<SocketAddr> {
        (self.0.port() != 0).then_some(self.0)
    }
}

impl Setting for Listen {
    fn kind() -> String {
        "an IP address with a port, like 127.0.0.1:9464".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let address = text(raw).map(|address| match address.strip_prefix("localhost:") {
            Some(port) => format!("{}:{port}", Ipv4Addr::LOCALHOST),
            None => address.to_owned(),
        });
        address
            .and_then(|address| address.parse().ok())
            .map(Self)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.0.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Listen> {
        Listen::parse(&Raw::Text(text.into()), &ValueContext::default()).ok()
    }

    #[test]
    fn a_port_is_required_and_0_turns_listening_off() {
        assert_eq!(read("localhost:9464"), read("127.0.0.1:9464"));
        assert_eq!(read("[::]:9464").unwrap().show().unwrap(), "[::]:9464");
        assert_eq!(read("127.0.0.1:0"), Some(Listen::OFF));
        assert_eq!(Listen::OFF.address(), None);
        for wrong in ["9464", ":9464", "127.0.0.1", "node:9464"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
