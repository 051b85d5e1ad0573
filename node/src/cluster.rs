//! The nodes of a cluster: who is there, how each is doing, and which of them an agent is placed
//! on.

pub mod moment;

pub mod membership;

pub mod cascade;
pub mod claiming;

#[cfg(any(test, feature = "simulation"))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a simulation ends at the first surprise"
)]
pub mod simulation;

#[cfg(test)]
mod seeds;

pub mod registry;

pub mod clock;

pub mod heartbeat;

pub mod census;
pub mod liveness;
pub mod placement;
pub mod view;

pub mod decisions;
pub mod thread;
