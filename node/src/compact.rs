//! The two compactors: one calls the agent's own model, the other asks a sidecar.
//! `planck_agent::compact` decides which messages they receive and checks their summaries.

pub mod local;
pub mod remote;

pub use planck_agent::compact::*;
