//! A local model server that plays scripts in each provider's wire format and refuses what the real
//! server would refuse. It shares no code with the runtime's providers, because it checks them.

pub mod script;

mod answer;
mod play;
mod record;
mod request;
mod server;
mod wire;

pub use record::{RecordedRequest, Violation};
pub use request::{ModelRequest, RequestMessage, ToolCall, ToolResult};
pub use script::{
    Pace, Reply, Rule, Script, ScriptedCall, ScriptedFault, ScriptedPart, ScriptedUsage, Stop, When,
};
pub use server::Server;

#[cfg(test)]
mod tests;
