//! The cluster: the membership of nodes, the teams and sessions that the death of a node affects,
//! and the choice of a node for an agent.

pub mod moment;

pub mod membership;

pub mod cascade;
pub mod claiming;
pub mod recovery;

pub mod planted;

#[cfg(any(test, feature = "simulation"))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
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
