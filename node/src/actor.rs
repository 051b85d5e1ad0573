//! Performs what agents decide: one task and one mailbox per agent, and a `JoinSet` of model and
//! tool work. `host` owns all of them.

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

/// The number of agents that are commanded concurrently if there are many.
pub const AT_ONCE: usize = 32;

pub use host::Host;
pub use hosting::{Hosting, Opening};
pub use mail::{ArrivalOutcome, SpecChange};
pub use parts::{ActorContext, ToolboxFactory};
