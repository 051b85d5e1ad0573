//! A session on one node, from start to removal, as clients see it.

mod agents;
mod crashes;
pub mod events;
mod garbage;
mod images;
mod late;
pub mod nats_cli;
mod outages;
mod parked;
pub mod prompts;
mod pruned;
mod readme;
mod rust_client;
pub mod secured;
mod service;
mod sessions;
mod starts;
mod unloaded;
mod waits;
