//! Settings of one word: one of a fixed set, a quantity with a unit, or an address with a port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use planck_common::{
    permission::PermissionMode,
    quantity::{Period, Size},
};

use super::{InvalidValue, Setting, text};
use crate::config::values::{Raw, ValueContext};
use planck_providers::WireKind;

/// A type whose values are words of a fixed set.
pub trait Choice: Sized + Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];
}

impl<T: Choice> Setting for T {
    fn kind() -> String {
        let mut names = String::new();
        for (at, (name, _)) in Self::ALL.iter().enumerate() {
            names.push_str(match at {
                0 => "",
                _ if at + 1 == Self::ALL.len() => " or ",
                _ => ", ",
            });
            names.push_str(name);
        }
        names
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = text(raw).and_then(|text| Self::ALL.iter().find(|(name, _)| *name == text));
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        let found = Self::ALL.iter().find(|(_, value)| value == self);
        found.map(|(name, _)| (*name).to_owned())
    }
}

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_doc])* $variant,)+ }

        impl Choice for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($text, Self::$variant),)+];
        }
    )+};
}

choices! {
    /// How durable SQLite's commits are.
    Synchronous {
        /// Commits survive the death of every process.
        Normal = "normal",
        /// Commits survive the loss of power, too.
        Full = "full",
    }
    /// What happens when an agent reaches a limit.
    LimitReaction {
        End = "end",
        Ask = "ask",
    }
    /// Whether the kernel confines tool processes.
    Sandbox {
        /// The kernel confines tool processes as far as this machine allows, and the log shows how
        /// far.
        Auto = "auto",
        /// A node that cannot confine tool processes does not start.
        Required = "required",
        Off = "off",
    }
    /// Whether tool processes may open IP sockets.
    Network {
        Off = "off",
        /// Tool processes may open IP sockets to any address.
        On = "on",
    }
    /// Whether a model can ask a person to let one command run outside of the sandbox.
    Unsandboxed {
        Off = "off",
        /// A person at the terminal is asked about each such command.
        Ask = "ask",
    }
    LogFormat {
        /// Text on a terminal, JSON elsewhere.
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
    /// The kind of store that holds the sessions.
    StoreKind {
        Sqlite = "sqlite",
        Postgres = "postgres",
    }
}

impl Choice for PermissionMode {
    const ALL: &'static [(&'static str, Self)] = &[
        (Self::Auto.name(), Self::Auto),
        (Self::Careful.name(), Self::Careful),
        (Self::ReadOnly.name(), Self::ReadOnly),
    ];
}

impl Choice for WireKind {
    const ALL: &'static [(&'static str, Self)] = &[
        ("chat", Self::Chat),
        ("responses", Self::Responses),
        ("anthropic", Self::Anthropic),
        ("google", Self::Google),
        ("ollama", Self::Ollama),
    ];
}

macro_rules! quantities {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            fn kind() -> String {
                Self::KIND.into()
            }

            /// Parses a number with a unit. A number alone is a size in bytes, and no length of time.
            fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
                let number = match raw {
                    Raw::Toml(value) => value.as_integer().map(|number| number.to_string()),
                    Raw::Text(_) => None,
                };
                let quantity = number.as_deref().or_else(|| text(raw));
                quantity
                    .and_then(|quantity| quantity.parse().ok())
                    .ok_or_else(|| InvalidValue::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}

quantities!(Period, Size);

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
