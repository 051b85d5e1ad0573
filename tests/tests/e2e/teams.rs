//! Agents that work together on one node.

mod asking;
mod belonging;
mod compacting;
mod delegating;
pub mod scene;
mod surviving;
