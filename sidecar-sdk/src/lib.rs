//! The SDK for Planck sidecars. A sidecar is a program that offers tools and compactors to the
//! agents of a cluster over NATS.
//!
//! A tool is an async function whose argument type derives its JSON Schema:
//!
//! ```no_run
//! use planck_sidecar::{Context, Sidecar, Tool};
//!
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! struct Add {
//!     /// What to add
//!     numbers: Vec<f64>,
//! }
//!
//! async fn add(_: Context, args: Add) -> Result<String, std::convert::Infallible> {
//!     Ok(args.numbers.iter().sum::<f64>().to_string())
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), planck_sidecar::Error> {
//!     Sidecar::new("calculator", "1.0.0")?.tool(Tool::new("add", "Adds numbers.", add).pure()).run().await
//! }
//! ```
//!
//! The program connects to `NATS_URL` and serves until SIGTERM or ctrl-c. Then it waits for the
//! running calls to end, for at most 25 s by default. Without a node and without NATS, a
//! [`Harness`] calls the same tools in a test:
//!
//! ```
//! # use planck_sidecar::{Context, Harness, Sidecar, Tool};
//! # #[derive(serde::Deserialize, schemars::JsonSchema)]
//! # struct Add { numbers: Vec<f64> }
//! # async fn add(_: Context, args: Add) -> Result<String, std::convert::Infallible> {
//! #     Ok(args.numbers.iter().sum::<f64>().to_string())
//! # }
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let calculator = Sidecar::new("calculator", "1.0.0").unwrap().tool(Tool::new("add", "Adds numbers.", add).pure());
//! let harness = Harness::of(calculator);
//! assert_eq!(harness.call("add", r#"{"numbers":[1,2,3.5]}"#).await, Ok("6.5".into()));
//! assert!(harness.call("add", r#"{"numbers":"many"}"#).await.is_err());
//! # });
//! ```

pub mod sidecar;
pub mod tool;

pub mod compactor;
pub mod context;

mod request_handler;

pub mod connection;
mod serve;

pub mod harness;
pub mod local;

#[cfg(feature = "conform")]
pub mod conform;

pub use compactor::{Compactor, Conversation, Decision};
pub use connection::Connection;
pub use context::Context;
pub use harness::Harness;
pub use planck_common::{
    event::ToolEffect,
    inbox::InboxPrefix,
    message,
    sidecar::{
        Cancel, CompactMessage, CompactModel, CompactReply, CompactRequest, Presence, PresenceKind,
        ToolAnswer, ToolMessage, ToolQuestion, ToolReply, ToolRequest,
    },
    wait::WaitDecision,
};
pub use sidecar::{Error, Sidecar};
pub use tool::Tool;
