//! Runs agents on this node. An agent with work has a task, a mailbox, and a `JoinSet` of its
//! running model calls, tool calls, compactions and timers. `host` owns all agents of the node.

pub mod activity;
pub mod host;
mod hosting;
pub mod mail;
pub mod parts;
pub mod queues;
pub mod runtimes;
pub mod toolboxes;
pub mod waiters;

mod calling;
mod startup;

mod chunk_batch;
mod encoding;
mod run;

mod saving;
mod spans;
mod work;

/// The maximum number of agents that an operation on many agents handles at once.
///
/// Saves and releases of agents that are handled at once share SQL statements.
pub const AT_ONCE: usize = 128;

pub use host::Host;
pub use hosting::{Hosting, Opening};
pub use mail::{DeliveryOutcome, SpecChange};
pub use parts::ActorContext;
