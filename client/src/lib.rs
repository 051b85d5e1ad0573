//! A client of the command protocol: a typed call for each verb, and a session's events followed
//! without gaps.

pub mod ask;
pub mod error;

pub mod agents;
pub mod cluster;
pub mod sessions;

pub mod reader;

pub mod follow;

pub use ask::Client;
pub use error::ClientError;
pub use follow::{Follow, Told};
pub use reader::Retracted;

#[cfg(test)]
mod tests;
