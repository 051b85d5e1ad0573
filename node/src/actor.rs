//! Runs agents on this node. An agent with work has a task, a mailbox, and a `JoinSet` of its
//! running model calls, tool calls, compactions and timers. `host` owns all agents of the node.

pub mod activity;
pub mod context;
pub mod host;
pub mod runtimes;
pub mod toolboxes;
pub mod waiters;

pub mod saving;

mod model_call;
mod run;
mod startup;

mod spans;
mod work;

/// The maximum number of agents that an operation on many agents handles at once.
///
/// Saves and releases of agents that are handled at once share SQL statements.
pub const AT_ONCE: usize = 128;

pub use context::{ActorContext, Hosting, Opening};
pub use host::{DeliveryOutcome, Host, SpecChange};
