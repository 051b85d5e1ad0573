//! Configuration: defaults, three files, the environment, flags and the embedding program. Each
//! source overrides the ones before it. Every value is stored with its origin, and all mistakes are
//! reported at once.

pub mod load;

mod document;
mod environment;
mod rules;
mod section;
mod setting;
mod values;

#[cfg(test)]
mod tests;

pub use document::{WrittenKeys, written};
pub use environment::may_be_secret;
pub use load::{Loaded, ShownValue, Sources, keys};
pub use planck_providers::secret::Secret;
pub use section::{
    AnswerLimits, Cluster, Config, InboxLimits, ModelEntry, PlainTool, Prices, Provider, Telemetry,
};
pub use setting::{
    ConfiguredUrl, KeyChoice, KeyEntry, LogFormat, Network, Period, ProjectPlace, Sandbox, Size,
    StoreKind, Synchronous, Unsandboxed,
};
pub use values::{Problems, ValueOrigin};
