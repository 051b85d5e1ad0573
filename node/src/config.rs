//! Configuration: defaults, three files, the environment, flags and the embedding program. Each
//! source overrides the ones before it. Every value is stored with its origin, and all mistakes are
//! reported at once.

pub mod key;
pub mod origin;
pub mod setting;

mod document;
mod environment;
mod values;

mod section;

pub mod load;
pub mod project;
mod rules;

mod written;

pub mod show;

#[cfg(test)]
mod page;

pub use environment::may_be_secret;
pub use load::{Loaded, Sources, keys};
pub use origin::{Problems, ValueOrigin};
pub use planck_providers::secret::Secret;
pub use project::ProjectPlace;
pub use section::{
    AnswerLimits, Cluster, Config, InboxLimits, ModelEntry, PlainTool, Prices, Provider, Telemetry,
};
pub use setting::{
    ConfiguredUrl, KeyChoice, KeyEntry, LogFormat, Network, Period, Sandbox, Size, StoreKind,
    Synchronous, Unsandboxed,
};
pub use written::{WrittenKeys, written};

#[cfg(test)]
mod tests;
