#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod client;
mod connect;
mod error;

mod agents;
mod cluster;
mod outcome;
mod sessions;
mod waits;

mod follow;
mod reader;
pub mod turn;

pub use client::Client;
pub use cluster::Decisions;
pub use connect::ConnectOptions;
pub use error::ClientError;
pub use follow::{Follow, FollowEvent};
pub use outcome::{AwaitedOutcome, READER_LATE};
pub use reader::Retracted;

pub use planck_bus as bus;
pub use planck_common as protocol;

#[cfg(test)]
mod tests;
