//! Real sidecars at real nodes: sidecars on the SDK in this process and in their own, and bare
//! services that break the protocol.

mod calls;
mod coming;
mod compacting;
mod dying;
mod mcp;
mod programs;
mod searching;
pub mod serving;
