#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod client;
mod connect;

mod commands;
mod outcome;

mod follow;
mod reader;
pub mod turn;

pub use self::{client::ClientError, commands::DecisionStream};
pub use client::Client;
pub use connect::ConnectOptions;
pub use follow::{Follow, FollowEvent};
pub use outcome::{AnswerError, AwaitedOutcome, READER_LATE};
pub use planck_bus as bus;
pub use planck_common as protocol;
pub use reader::Retracted;

#[cfg(test)]
mod tests;
