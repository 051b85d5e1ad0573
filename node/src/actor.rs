//! Performs what agents decide: one task per agent, one mailbox, a `JoinSet` of model and tool
//! work. `host` owns them all.

pub mod activity;
pub mod host;
pub mod mail;
pub mod parts;
pub mod queues;
pub mod runtimes;
pub mod waiters;

mod beginning;
mod calling;

mod deltas;
mod encoding;
mod run;

mod saving;
mod spans;
mod work;

/// How many agents are commanded at once where many are.
pub const AT_ONCE: usize = 32;

pub use host::{Host, Hosting, Opening};
pub use mail::{Change, Verdict};
pub use parts::{Parts, Toolsmith};
