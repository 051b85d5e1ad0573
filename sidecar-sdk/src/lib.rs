//! Write a Planck sidecar in Rust. For now the wire types of its protocol; typed tools, deadlines, cancellation and a test
//! harness are built on them next.

pub use planck_common::sidecar::{CompactModel, CompactReply, CompactRequest, CompactSaid, ToolReply, ToolRequest, ToolSaid};
