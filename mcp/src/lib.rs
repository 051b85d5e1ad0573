//! MCP servers as sidecars. A [`Bridge`] starts an MCP server, keeps it running, and offers its
//! tools to the agents of a cluster as the tools of one sidecar. Agents, nodes and the console then
//! treat the server as every other sidecar.

pub mod bridge;
mod supervisor;

mod connection;
mod lines;
mod server_requests;
mod session;
mod transport;

mod offer;

mod call;
mod outcome;

pub use bridge::{Bridge, BridgeError, BridgeOptions, Report};
pub use connection::ServerCommand;

#[cfg(test)]
mod tests;
