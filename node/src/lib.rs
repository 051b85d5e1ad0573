#![doc = include_str!("../../docs/embedding.md")]
#![deny(missing_docs)]

// The modules are in the order in which they are best read. `docs/architecture.md` describes most
// of them.
mod compact;

#[doc(hidden)]
pub mod sidecar;
mod workspace;

mod actor;
#[doc(hidden)]
pub mod team;

mod lookup;

#[doc(hidden)]
pub mod baselines;
mod handles;
mod peers;
mod placement;
mod services;
mod sessions;
#[cfg(all(test, any(debug_assertions, feature = "simulation")))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a simulation ends at the first surprise"
)]
mod simulation;
mod takeover;
mod team_registry;
mod team_tools;

#[doc(hidden)]
pub mod config;
mod gateway;
#[doc(hidden)]
pub mod node;

mod embed;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;

use planck_agent::{self as agent, model, storable};
use planck_bus as bus;
use planck_client as client;
use planck_common::server_clock;

pub use embed::{Agent, Runtime, RuntimeBuilder, RuntimeError, ScriptedModel, Session};
pub use planck_client::{
    AnswerError, Client, ClientError, Follow, FollowEvent,
    protocol::{self, event::Event},
    turn,
};
pub use planck_sidecar::{Context as ToolContext, Tool};
