//! The whole runtime through its public interfaces: real node processes, a real nats-server, real
//! stores, a model over HTTP.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by a panic"
)]
#![allow(
    clippy::wildcard_enum_match_arm,
    reason = "a test looks at the events it is about"
)]

mod acp;
mod attacks;
mod cascade;
mod cli;
mod cluster;
mod deployment;
mod files;
mod flows;
mod http;
mod judges;
mod models;
mod processes;
mod providers;
mod sidecars;
mod teams;
mod telemetry;
mod upgrade;
