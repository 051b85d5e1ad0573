//! The cluster: the membership of nodes, the teams and sessions that the death of a node affects,
//! and the choice of a node for an agent.
//!
//! The decisions are pure, so that a simulation can play them with any order of faults. The
//! membership of a node runs on a [`thread`] of its own, and gives the node its [`permit`] to begin
//! work. The rest of the node reads the [`view`], and performs what [`cascade`], [`claiming`],
//! [`recovery`] and [`placement`] decide.

// The modules are in the order in which they are best read.
pub mod moment;
pub mod times;

pub mod watchers;

mod membership;

pub mod cascade;
pub mod claiming;
pub mod recovery;

#[doc(hidden)]
pub mod planted;

pub mod registry;

pub mod clock;

pub mod heartbeat;

pub mod census;
pub mod liveness;
pub mod permit;
pub mod placement;
pub mod view;

pub mod decisions;
pub mod thread;

pub use membership::Revision;
pub use times::ClusterTimes;
