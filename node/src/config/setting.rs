//! The types of values: how each is written in a file and in the environment, and how it is shown.

mod address;
mod compound;

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use planck_common::permission::PermissionMode;
use planck_providers::WireKind;

use super::values::{KeyDescription, KeyPath, Raw, ValueContext, Values};

pub use address::{ConfiguredUrl, ProjectPlace};
pub use compound::{
    Authorities, HeaderText, KeyChoice, KeyEntry, ModelsFile, ProxyRule, RuleList, ServerVariable,
};
pub use planck_common::quantity::{Period, Size};

/// The reason why a value is not valid, and how to correct it.
#[derive(Debug, PartialEq, Eq)]
pub struct InvalidValue {
    pub what: String,
    pub remedy: String,
}

impl InvalidValue {
    fn kind<T: Setting>(raw: &Raw) -> Self {
        let found = match raw {
            Raw::Toml(toml::Value::String(text)) | Raw::Text(text) => format!("{text:?}"),
            Raw::Toml(value) => format!("`{}`", value.to_string().trim()),
        };
        Self {
            what: format!("{found} is not {}", T::kind()),
            remedy: format!("write {}", T::kind()),
        }
    }
}

/// A type of value that can be configured.
pub trait Setting: Sized + Clone {
    /// Returns a description of valid values that completes the sentence "write …".
    fn kind() -> String;
    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue>;
    /// Returns the value as text for users, or `None` if it is unset. Secrets are never shown.
    fn show(&self) -> Option<String>;
    /// Returns the value adapted to its context. Paths below `~` are expanded, and the address of
    /// the default store gets its place.
    fn at_home(self, _: &ValueContext) -> Self {
        self
    }
}

/// A field of a section: a single value, a nested section, or fields by name.
pub trait Field: Sized + Clone {
    /// Returns the descriptions of the keys at and below `at`, with `self` as their defaults.
    /// `about` is the description of this field in its section.
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription>;
    /// Returns the field with the values that were given. Keys without a valid value keep the value
    /// of `self`, adapted to its context.
    fn read(self, at: &KeyPath, values: &mut Values) -> Self;
    /// Adds each value at and below `at`, as text, to `into`.
    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>);
}

impl<T: Setting> Field for T {
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription> {
        let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
        let default = Setting::show(self).filter(|text| !text.is_empty());
        vec![KeyDescription {
            pattern: at.clone(),
            kind: T::kind(),
            default,
            about,
        }]
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        values.read(at, self)
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        into.push((at.clone(), Setting::show(self)));
    }
}

/// Fields of the same type under names that the user chooses.
#[derive(Clone, PartialEq)]
pub struct NamedSettings<T>(pub BTreeMap<String, T>);

impl<T> Default for NamedSettings<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: fmt::Debug> fmt::Debug for NamedSettings<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Field + Default> Field for NamedSettings<T> {
    fn keys(&self, at: &KeyPath, about: &'static str) -> Vec<KeyDescription> {
        T::default().keys(&at.then("*"), about)
    }

    fn read(self, at: &KeyPath, values: &mut Values) -> Self {
        let names = values.children(at);
        Self(
            names
                .into_iter()
                .map(|name| (name.clone(), T::default().read(&at.then(&name), values)))
                .collect(),
        )
    }

    fn show(&self, at: &KeyPath, into: &mut Vec<(KeyPath, Option<String>)>) {
        self.0
            .iter()
            .for_each(|(name, value)| value.show(&at.then(name), into));
    }
}

/// Returns the text of a value, or `None` if the value is not a text.
fn text(raw: &Raw) -> Option<&str> {
    match raw {
        Raw::Toml(value) => value.as_str(),
        Raw::Text(text) => Some(text),
    }
}

impl Setting for String {
    fn kind() -> String {
        "a text".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        text(raw)
            .map(Into::into)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.clone())
    }
}

impl Setting for bool {
    fn kind() -> String {
        "true or false".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(value) => value.as_bool(),
            Raw::Text(text) => match text.as_str() {
                "true" | "1" | "yes" => Some(true),
                "false" | "0" | "no" => Some(false),
                _ => None,
            },
        };
        found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

macro_rules! whole {
    ($($type:ty),+) => {$(
        impl Setting for $type {
            fn kind() -> String {
                "a whole number".into()
            }

            fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
                let found = match raw {
                    Raw::Toml(value) => value.as_integer().and_then(|number| number.try_into().ok()),
                    Raw::Text(text) => text.replace('_', "").parse().ok(),
                };
                found.ok_or_else(|| InvalidValue::kind::<Self>(raw))
            }

            fn show(&self) -> Option<String> {
                Some(self.to_string())
            }
        }
    )+};
}

whole!(u32, u64, usize);

impl Setting for f64 {
    fn kind() -> String {
        "a number".into()
    }

    fn parse(raw: &Raw, _: &ValueContext) -> Result<Self, InvalidValue> {
        let found = match raw {
            Raw::Toml(toml::Value::Integer(number)) => number.to_string().parse().ok(),
            Raw::Toml(value) => value.as_float(),
            Raw::Text(text) => text.parse().ok(),
        };
        found
            .filter(|number: &f64| number.is_finite() && *number >= 0.0)
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))
    }

    fn show(&self) -> Option<String> {
        Some(self.to_string())
    }
}

impl Setting for PathBuf {
    fn kind() -> String {
        "a path".into()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        let text = text(raw)
            .filter(|text| !text.is_empty())
            .ok_or_else(|| InvalidValue::kind::<Self>(raw))?;
        Ok(Self::from(text).at_home(world))
    }

    fn show(&self) -> Option<String> {
        Some(self.display().to_string())
    }

    fn at_home(self, world: &ValueContext) -> Self {
        match (self.strip_prefix("~"), &world.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            (Ok(_), None) | (Err(_), _) => self,
        }
    }
}

impl<T: Setting> Setting for Option<T> {
    fn kind() -> String {
        T::kind()
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        T::parse(raw, world).map(Some)
    }

    fn show(&self) -> Option<String> {
        self.as_ref().and_then(Setting::show)
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.map(|value| value.at_home(world))
    }
}

/// In an environment variable, a flag or a setting of the embedding program, commas separate the
/// items of a list.
impl<T: Setting> Setting for Vec<T> {
    fn kind() -> String {
        format!("a list, each {}", T::kind())
    }

    fn parse(raw: &Raw, world: &ValueContext) -> Result<Self, InvalidValue> {
        match raw {
            Raw::Toml(toml::Value::Array(items)) => items
                .iter()
                .map(|item| T::parse(&Raw::Toml(item.clone()), world))
                .collect(),
            Raw::Toml(_) => Err(InvalidValue::kind::<Self>(raw)),
            Raw::Text(text) => {
                let words = text
                    .split(',')
                    .map(str::trim)
                    .filter(|word| !word.is_empty());
                words
                    .map(|word| T::parse(&Raw::Text(word.into()), world))
                    .collect()
            }
        }
    }

    fn show(&self) -> Option<String> {
        Some(
            self.iter()
                .filter_map(Setting::show)
                .collect::<Vec<_>>()
                .join(", "),
        )
    }

    fn at_home(self, world: &ValueContext) -> Self {
        self.into_iter().map(|value| value.at_home(world)).collect()
    }
}

/// A type whose values are words of a fixed set.
pub trait Choice: Sized + Copy + PartialEq + 'static {
    const ALL: &'static [(&'static str, Self)];

    /// Returns the value with this name.
    fn find(text: &str) -> Option<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value)
    }
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
        text(raw)
            .and_then(Self::find)
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
    /// Whether the process of an MCP server is confined to its folder.
    ServerSandbox {
        /// It is confined like the process of a tool that has no network.
        On = "on",
        /// It is confined, and may open IP sockets to any address.
        Network = "network",
        /// It may do everything that the node's user may do.
        Off = "off",
    }
    /// What shares a process of an MCP server.
    ServerScope {
        /// All agents of the node.
        Node = "node",
        /// The agents of one session on the node.
        Session = "session",
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
        assert_eq!(
            Setting::show(&read("[::]:9464").unwrap()).unwrap(),
            "[::]:9464"
        );
        assert_eq!(read("127.0.0.1:0"), Some(Listen::OFF));
        assert_eq!(Listen::OFF.address(), None);
        for wrong in ["9464", ":9464", "127.0.0.1", "node:9464"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
