//! What an attacker tries, with real processes: a stranger's repository, the model, a tool, a
//! client of NATS.

mod input;
mod nats;
mod reap;
mod store;
mod trust;
mod wall;
