//! Configuration: defaults, three files, the environment and flags, each laid over the one before.
//! Every value has its origin, and all mistakes are reported at once.

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

pub use crate::secret::Secret;
pub use environment::may_be_secret;
pub use load::{Loaded, Sources, keys};
pub use origin::{Origin, Problem, Problems};
pub use project::ProjectPlace;
pub use section::{
    AnswerLimits, Cluster, Compaction, Config, Dirs, InboxLimits, Limits, ModelEntry, Models, Nats,
    Node, PlainTool, Prices, ProjectPart, Provider, Providers, SessionLimits, Sidecars, Store,
    Telemetry, ToolLimits, Tools,
};
pub use setting::{
    Address, Choice, LogFormat, Named, Network, Period, Sandbox, Size, StoreKind, Synchronous,
};
pub use written::{Written, written};

#[cfg(test)]
mod tests;
