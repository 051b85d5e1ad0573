//! Settings whose value is one of a fixed set of words.

use super::{InvalidValue, Setting, plain::text};
use crate::config::values::{Raw, ValueContext};

/// A type whose values are words of a fixed set.
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

            fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
                let found = text(raw).and_then(|text| Self::ALL.iter().find(|(name, _)| *name == text));
                found.map(|(_, value)| *value).ok_or_else(|| InvalidValue::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.name().into())
            }
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
