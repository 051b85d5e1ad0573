//! A local model server that plays scripts in each provider's wire format and refuses what the real
//! server would refuse. It shares no code with the runtime's providers, because it checks them.

pub mod script;

mod answer;
mod asked;
mod frames;
mod play;
mod record;
mod refusal;
mod server;
mod template;
mod wire;

pub use asked::{Asked, Called, Returned, Said};
pub use record::{Request, Violation};
pub use script::{Call, Fault, Pace, Part, Reply, Rule, Script, Stop, Usage, When};
pub use server::Server;

#[cfg(test)]
mod tests;
