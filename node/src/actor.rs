//! Runs agents on this node. Each agent has one task, one mailbox, and a `JoinSet` of running model
//! and tool calls. `host` keeps track of all agents.

pub mod activity;
pub mod host;
mod hosting;
pub mod mail;
pub mod parts;
pub mod queues;
pub mod runtimes;
pub mod waiters;

mod calling;
mod startup;

mod deltas;
mod encoding;
mod run;

mod saving;
mod spans;
mod work;

/// The maximum number of agents to which a command for many agents is sent at once.
pub const AT_ONCE: usize = 32;

pub use host::Host;
pub use hosting::{Hosting, Opening};
pub use mail::{ArrivalOutcome, SpecChange};
pub use parts::{ActorContext, ToolboxFactory};
