//! What this machine has: folders, programs, limits.

use std::path::Path;

use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{AccessFlags, access},
};

use super::Finding;
use crate::{
    config::{self, Config},
    node,
};

/// Files a node with many agents has open.
const FILES: u64 = 4096;

pub fn all(config: &Config) -> Vec<Finding> {
    let mut findings = vec![folder()];
    findings.extend(config.workspaces.0.iter().map(|(name, path)| workspace(name, path)));
    findings.extend([files(), limits(config), nats_cli()]);
    findings
}

pub fn is_writable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}

/// What tool processes are confined by.
pub async fn sandbox(config: &Config) -> Finding {
    let sandbox = node::sandbox(config).await;
    let remedy = "install bubblewrap, and allow unprivileged user namespaces";
    match (config.tools.sandbox, sandbox.tier()) {
        (config::Sandbox::Required, "refused") => Finding::bad("sandbox", sandbox.to_string(), remedy),
        (config::Sandbox::Auto, "none") => Finding::note("sandbox", sandbox.to_string(), remedy),
        (config::Sandbox::Auto | config::Sandbox::Required | config::Sandbox::Off, _) => {
            Finding::good("sandbox", sandbox.to_string())
        }
    }
}

fn folder() -> Finding {
    match is_writable(Path::new(".")) {
        true => Finding::good("folder", "agents can write here"),
        false => Finding::note("folder", "agents cannot write here", "go to a folder of yours"),
    }
}

fn workspace(name: &str, path: &Path) -> Finding {
    match is_writable(path) {
        true => Finding::good("workspace", format!("{name} = {}", path.display())),
        false => {
            Finding::bad("workspace", format!("{name} = {} is not a writable folder", path.display()), "correct `workspaces`")
        }
    }
}

fn files() -> Finding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft >= FILES => Finding::good("open files", format!("up to {soft}")),
        Ok((soft, hard)) => Finding::note(
            "open files",
            format!("up to {soft}; many agents need {FILES}"),
            format!("`ulimit -n {}`", hard.min(65_536)),
        ),
        Err(error) => Finding::note("open files", format!("cannot tell: {error}"), "see `ulimit -n`"),
    }
}

/// What bounds each call of a tool. A bound of zero is none.
fn limits(config: &Config) -> Finding {
    let limits = &config.tools.limits;
    let bound = |bound: String| if bound == "0" { "no bound".into() } else { bound };
    let what = format!(
        "a call has processes: {}, memory: {}, size of a file: {}, open files: {}",
        bound(limits.processes.to_string()),
        bound(limits.memory.to_string()),
        bound(limits.file_size.to_string()),
        bound(limits.open_files.to_string()),
    );
    match limits.processes > 0 && limits.memory.0 > 0 {
        true => Finding::good("limits", what),
        false => Finding::note("limits", what, "set `tools.limits.processes` and `tools.limits.memory`"),
    }
}

fn nats_cli() -> Finding {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found =
        std::env::split_paths(&paths).map(|folder| folder.join("nats")).find(|path| access(path, AccessFlags::X_OK).is_ok());
    match found {
        Some(path) => Finding::good("nats cli", path.display().to_string()),
        None => Finding::note("nats cli", "not installed", "handy to look at subjects, not needed"),
    }
}
