//! What an attacker tries, with real processes: a stranger's repository, the model, a tool, a NATS
//! client.

mod input;
mod nats;
mod reap;
mod store;
mod trust;
mod wall;
