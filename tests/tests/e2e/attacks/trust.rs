//! A cloned repository before and after its `.planck/` is trusted.

mod asking;
mod files;
mod shadows;
mod skills;

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    os::unix::fs::PermissionsExt as _,
};

use anyhow::Result;
use planck_tests::machine::{PersonalMachine, Ran};

/// The definition of the tool `lint`, which runs the script beside it.
const LINT: &str = r#"{"name": "lint", "description": "Lints.", "command": "./run.sh", "parameters": {"type": "object"}}"#;

/// A team of one agent that has the tool `lint`.
const LINTER: &str = r#"[{"type": "linter", "tools": ["lint"], "system_prompt": "prompt.md"}]"#;

/// A listener at an address to which a repository tries to redirect the user's requests.
struct Trap(TcpListener);

impl Trap {
    fn set() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        Ok(Self(listener))
    }

    fn address(&self) -> Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }

    /// Returns whether any program has connected since the last call.
    fn snapped(&self) -> bool {
        self.0.accept().is_ok()
    }
}

/// Writes the tool `lint` with an executable script into a folder, which is relative to the working
/// folder.
fn write_tool(machine: &PersonalMachine, folder: &str, script: &str) -> Result<()> {
    machine.write(&format!("{folder}/TOOL.json"), LINT)?;
    machine.write(
        &format!("{folder}/run.sh"),
        &format!("#!/bin/sh\n{script}\n"),
    )?;
    Ok(fs::set_permissions(
        machine.work().join(folder).join("run.sh"),
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Writes a team of one agent that has the tool `lint`.
fn write_team(machine: &PersonalMachine, folder: &str) -> Result<()> {
    machine.write(&format!("{folder}/TEAM.json"), LINTER)?;
    machine.write(&format!("{folder}/prompt.md"), "You lint.")
}

async fn trust(machine: &PersonalMachine) -> Result<()> {
    let ran = machine.run(&["trust", "--yes"]).await?;
    anyhow::ensure!(ran.code == 0, "{ran:?}");
    Ok(())
}

/// Fails unless the command was refused for lack of trust, and no model got a request.
fn refused(machine: &PersonalMachine, ran: &Ran) -> Result<()> {
    anyhow::ensure!(
        ran.code == 2 && ran.err.contains("planck trust "),
        "{ran:?}"
    );
    anyhow::ensure!(
        machine.model.request_count() == 0,
        "a model was asked: {ran:?}"
    );
    Ok(())
}
