#![doc = include_str!("../../docs/embedding.md")]
#![deny(missing_docs)]
// Code that only the `planck` command uses is unused in a program that embeds the runtime.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

// The modules are in the order in which they are best read. `docs/architecture.md` describes most
// of them.
mod compact;
#[cfg(feature = "cli")]
mod hardening;
mod permit;

mod sidecar;
mod workspace;

mod actor;
mod cluster;
mod team;

mod late;
mod lookup;

mod base;
mod peers;
mod placement;
mod services;
mod sessions;
mod takeover;
mod team_registry;
mod team_tools;

#[allow(missing_docs, reason = "reachable through `internals` only")]
mod config;
mod gateway;
#[allow(missing_docs, reason = "reachable through `internals` only")]
mod node;

mod embed;

#[cfg(feature = "cli")]
mod cli;
#[cfg(feature = "cli")]
mod schema;

#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
#[doc(hidden)]
pub mod internals;

use planck_agent::{self as agent, model, nul};
use planck_bus as bus;
use planck_client as client;
use planck_common::server_clock;

pub use embed::{Agent, Runtime, RuntimeBuilder, RuntimeError, ScriptedModel, Session};
pub use planck_client::{
    Client, ClientError, Follow, FollowEvent, protocol, protocol::event::Event,
};
pub use planck_sidecar::{Context as ToolContext, Tool};

/// Runs the `planck` command with the arguments of this process. Programs that embed the runtime do
/// not need it.
#[cfg(feature = "cli")]
pub fn main() -> std::process::ExitCode {
    use std::io::Write as _;

    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return planck_toolbox::reap::main(args);
    }
    if let Err(why) = hardening::harden() {
        let _ = writeln!(
            std::io::stderr(),
            "planck: cannot take the secrets out of this process's environment: {why}"
        );
    }
    cli::main()
}
