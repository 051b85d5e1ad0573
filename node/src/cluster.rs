//! The nodes of a cluster: who is there and how each is doing.

pub mod moment;

pub mod membership;

pub mod cascade;
pub mod claiming;

#[cfg(test)]
mod simulation;

#[cfg(test)]
mod seeds;

pub mod heartbeat;
pub mod liveness;
