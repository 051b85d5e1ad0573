//! The nodes of a cluster: who is there and how each is doing.

pub mod heartbeat;
pub mod liveness;
pub mod registry;
