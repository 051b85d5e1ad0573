//! The nodes of a cluster: who is there and how each is doing.

pub mod moment;

pub mod membership;

pub mod registry;

mod clock;
pub mod heartbeat;

pub mod census;
pub mod liveness;
pub mod thread;
