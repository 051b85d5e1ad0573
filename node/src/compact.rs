//! The two compactors: a model call of the agent's own model, and a sidecar. What they are given
//! and whether their answer is used is decided in `planck_agent::compact`.

pub mod local;
pub mod remote;

pub use planck_agent::compact::*;
