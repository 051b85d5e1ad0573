//! The Planck runtime. `docs/architecture.md` describes it. The modules are listed in the order in
//! which to read them.

pub mod environment;
mod hardening;
pub mod permit;
pub mod secret;
pub mod terminal;

mod folder_trial;
pub mod project;
pub mod regular_file;
use planck_common::server_clock;

pub use planck_agent::{self as agent, model};

pub mod compact;

pub mod llm;
pub mod skill;
pub mod tools;

use planck_agent::nul;

pub mod store;

pub use planck_bus as bus;
pub mod sidecar;

pub mod workspace;

pub mod actor;
pub mod cluster;
pub mod team;

mod late;
pub mod lookup;

pub mod peers;

pub mod base;
pub mod team_registry;

pub mod placement;

pub mod takeover;

pub mod sessions;

pub mod services;
pub mod team_tools;

pub mod gateway;
pub mod node;

pub mod cli;
pub use planck_client as client;
pub mod config;
pub mod schema;
pub mod telemetry;

#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;

/// Runs the `planck` binary: a command of the command line, or the reaper of a tool.
pub fn main() -> std::process::ExitCode {
    use std::io::Write as _;

    let mut args = std::env::args_os();
    if args.nth(1).is_some_and(|mode| mode == "reap") {
        return tools::reap::main(args);
    }
    if let Err(why) = hardening::harden() {
        let _ = writeln!(
            std::io::stderr(),
            "planck: cannot take the secrets out of this process's environment: {why}"
        );
    }
    cli::main()
}
