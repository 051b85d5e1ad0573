//! Agents that work together on one node.

mod asking;
mod belonging;
mod compacting;
mod delegating;
mod outcomes;
pub mod scene;
mod shapes;
mod surviving;
