//! A session's life on one node, told by what clients see of it.

mod agents;
mod crashes;
pub mod events;
mod garbage;
pub mod late;
mod nats_cli;
mod outages;
mod prompts;
mod sessions;
mod starts;
