//! MCP servers as sidecars. An [`McpServer`] is kept in use, and its tools are tools of the sidecar
//! SDK: a node gives them to its own agents, and a [`Bridge`] serves them to all agents of a cluster.
//! Agents and the console treat the server as every other sidecar.

mod bridge;

mod server;
mod supervisor;

mod connection;
mod lines;
mod server_requests;
mod session;

mod http;
mod process;
mod stdio;

mod offer;
mod pins;

mod call;
mod elicitation;
mod outcome;
mod pending;

#[doc(hidden)]
pub mod fuzz;

pub use bridge::{Bridge, BridgeError};
pub use connection::ServerTransport;
pub use http::{HeaderSource, ServerUrl};
pub use lines::{BoundedLines, LONGEST_LINE};
pub use offer::{Offer, OfferedTool};
pub use pins::{PinnedTools, Pins};
pub use process::ServerCommand;
pub use server::{Looked, McpServer, Report, ServerOptions, ToolRules};

#[cfg(test)]
mod tests;
