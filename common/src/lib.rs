//! The types of the wire protocol: ids, subjects, messages, events, commands, specifications and
//! error codes. The crate has no I/O and no tasks.

pub mod id;
pub mod timestamp;

pub mod message;
pub mod usage;

pub mod envelope;
pub mod event;

pub mod allowed_hosts;
pub mod command;
pub mod decision;
pub mod inbox;
pub mod json_schema;
pub mod json_text;
pub mod node;
pub mod period;
pub mod permission;
pub mod registry;
pub mod reply;
pub mod server_clock;
pub mod service;
pub mod sidecar;
pub mod similar;
pub mod spec;
pub mod subject;
pub mod wait;

pub use id::{AgentId, CallId, InputId, NodeId, Seq, SessionId, SessionName, SidecarId, TeamId};
pub use timestamp::Timestamp;

/// The version of the wire protocol, which is `v` in every body.
pub const PROTOCOL_VERSION: u32 = 1;
