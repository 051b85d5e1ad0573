//! The two compactors: a call of the agent's own model, and a sidecar. `planck_agent::compact`
//! decides what they receive and whether their answer is used.

pub mod local;
pub mod remote;

pub use planck_agent::compact::*;
