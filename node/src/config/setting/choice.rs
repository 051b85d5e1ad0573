//! Values that are one of a few words.

use super::{Setting, Wrong, plain::text};
use crate::config::values::{Raw, World};

/// One of a few words.
pub trait Choice: Sized + Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(_, value)| *value == self)
            .map_or("", |(name, _)| name)
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

        impl Setting for $name {
            fn kind() -> String {
                Self::ALL.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ")
            }

            fn parse(raw: &Raw, _: &World) -> Result<Self, Wrong> {
                let found = text(raw).and_then(|text| Self::ALL.iter().find(|(name, _)| *name == text));
                found.map(|(_, value)| *value).ok_or_else(|| Wrong::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.name().into())
            }
        }
    )+};
}

choices! {
    /// How hard SQLite makes the disk promise.
    Synchronous {
        /// Survives the death of every process.
        Normal = "normal",
        /// Survives the loss of power too.
        Full = "full",
    }
    /// Whether tool processes are confined by the kernel.
    Sandbox {
        /// As far as this machine allows, and the log says how far.
        Auto = "auto",
        /// A node that cannot confine them does not start.
        Required = "required",
        Off = "off",
    }
    /// Whether tool processes may open sockets.
    Network {
        Off = "off",
        /// Sockets of IP, to any address.
        On = "on",
    }
    LogFormat {
        /// Text on a terminal, JSON elsewhere.
        Auto = "auto",
        Text = "text",
        Json = "json",
    }
    /// What keeps the sessions.
    StoreKind {
        Sqlite = "sqlite",
        Postgres = "postgres",
    }
}
