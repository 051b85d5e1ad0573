//! The nodes of a cluster: who is there, how each is doing, and which of them an agent is placed on.

pub mod heartbeat;
pub mod liveness;

pub mod introduction;
pub mod peers;
pub mod placement;
