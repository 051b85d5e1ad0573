//! Attacks on real processes: by a cloned repository, a model, a tool, and a NATS client.

mod input;
mod nats;
mod reap;
mod store;
mod trust;
mod wall;
