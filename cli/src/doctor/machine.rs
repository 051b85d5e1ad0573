//! Checks the folders, programs and limits of this machine.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use futures_util::future::join_all;
use nix::{
    sys::resource::{Resource, getrlimit},
    unistd::{AccessFlags, access},
};
use tokio::{process::Command, time::timeout};

use super::DoctorFinding;
use planck_host::folder_trial;
use planck_node::config::Config;
use planck_node::node;
use planck_toolbox::{Sandbox, Toolchain, cgroup::Delegated};

/// The number of files that a node with many agents has to open at once.
const FILES: u64 = 4096;

/// The setting of `git`, of which it reads only the user's own, and how long the answer may take.
const BARE_REPOSITORIES: &str = "safe.bareRepository";
const GIT_PATIENCE: Duration = Duration::from_secs(5);

pub fn all(config: &Config) -> Vec<DoctorFinding> {
    vec![groups(), files(), limits(config), nats_cli()]
}

/// Checks the folders that agents write to. They are checked concurrently, so that several on an
/// unreachable network share take no longer than one.
pub async fn folders(config: &Config) -> Vec<DoctorFinding> {
    let workspaces = config.workspaces.0.iter();
    let workspaces = join_all(workspaces.map(|(name, path)| workspace(name, path)));
    let (here, workspaces) = tokio::join!(folder(), workspaces);
    std::iter::once(here).chain(workspaces).collect()
}

/// Checks the sandbox of tool processes, and reports the folders of `PATH` that they cannot use
/// inside it.
pub async fn sandbox(config: &Config) -> Vec<DoctorFinding> {
    let sandbox = node::sandbox(config).await;
    let of_bubblewrap = sandbox.remedy();
    let remedy = format!("for bubblewrap: {of_bubblewrap}; or use Linux 6.12 with Landlock");
    let whole = match (sandbox.refuses(), sandbox.is_off(), sandbox.is_open()) {
        (true, ..) => DoctorFinding::bad("sandbox", sandbox.to_string(), remedy),
        (_, true, _) => DoctorFinding::note("sandbox", sandbox.to_string(), sandbox.remedy()),
        (.., true) => DoctorFinding::note("sandbox", sandbox.to_string(), remedy),
        _ if !sandbox.gaps().is_empty() => {
            let gaps = sandbox.gaps().join(", ");
            DoctorFinding::note(
                "sandbox",
                format!("{sandbox}; this kernel's Landlock is old: {gaps}"),
                remedy,
            )
        }
        _ if of_bubblewrap.is_empty() => DoctorFinding::good("sandbox", sandbox.to_string()),
        _ => DoctorFinding::note(
            "sandbox",
            sandbox.to_string(),
            format!("for bubblewrap, which confines more: {of_bubblewrap}"),
        ),
    };
    let hidden = hidden(&sandbox);
    std::iter::once(whole).chain(hidden).collect()
}

/// Reports the folders of `PATH` whose programs the user can run but a tool cannot.
fn hidden(sandbox: &Sandbox) -> Option<DoctorFinding> {
    let folders: Vec<String> = sandbox
        .hidden()
        .iter()
        .map(|folder| folder.display().to_string())
        .collect();
    let toolchains: BTreeSet<String> = sandbox
        .hidden()
        .iter()
        .filter_map(|folder| Some(format!("{:?}", Toolchain::of_folder(folder)?.name)))
        .collect();
    let others = "name folders that tools need in `tools.readable`";
    let remedy = match toolchains.is_empty() {
        true => others.to_owned(),
        false => {
            let names: Vec<String> = toolchains.into_iter().collect();
            format!("`tools.toolchains = [{}]`; {others}", names.join(", "))
        }
    };
    (!folders.is_empty()).then(|| {
        DoctorFinding::note(
            "programs",
            format!("tools do not see {} of PATH", folders.join(", ")),
            remedy,
        )
    })
}

async fn folder() -> DoctorFinding {
    match folder_trial::try_write(".").await {
        Ok(()) => DoctorFinding::good("folder", "agents can write here"),
        Err(error) => DoctorFinding::note(
            "folder",
            format!("agents cannot write here: {error}"),
            "go to a folder of yours",
        ),
    }
}

async fn workspace(name: &str, path: &Path) -> DoctorFinding {
    match folder_trial::try_write(path).await {
        Ok(()) => DoctorFinding::good("workspace", format!("{name} = {}", path.display())),
        Err(error) => DoctorFinding::bad(
            "workspace",
            format!(
                "{name} = {} is not a writable folder: {error}",
                path.display()
            ),
            "correct `workspaces`",
        ),
    }
}

fn files() -> DoctorFinding {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, _)) if soft >= FILES => {
            DoctorFinding::good("open files", format!("up to {soft}"))
        }
        Ok((soft, hard)) => DoctorFinding::note(
            "open files",
            format!("up to {soft}; many agents need {FILES}"),
            format!("`ulimit -n {}`", hard.min(65_536)),
        ),
        Err(error) => DoctorFinding::note(
            "open files",
            format!("cannot tell: {error}"),
            "see `ulimit -n`",
        ),
    }
}

/// Reports the limits of each tool call. A value of 0 means that there is no limit.
fn limits(config: &Config) -> DoctorFinding {
    let limits = &config.tools.limits;
    let bound = |bound: String| {
        if bound == "0" {
            "no bound".into()
        } else {
            bound
        }
    };
    let what = format!(
        "a call has processes: {}, memory: {}, size of a file: {}, open files: {}, space left on the disk: {}",
        bound(limits.processes.to_string()),
        bound(limits.memory.to_string()),
        bound(limits.file_size.to_string()),
        bound(limits.open_files.to_string()),
        bound(limits.disk_free.to_string()),
    );
    match limits.processes > 0 && limits.memory.0 > 0 {
        true => DoctorFinding::good("limits", what),
        false => DoctorFinding::note(
            "limits",
            what,
            "set `tools.limits.processes` and `tools.limits.memory`",
        ),
    }
}

/// Checks whether a node that is started here can run each tool call in its own control group.
fn groups() -> DoctorFinding {
    let remedy = "calls run without; a service has it with `Delegate=yes`, a shell with \
                  `systemd-run --user --scope -p Delegate=yes`, a container of Docker with `security_opt: \
                  [writable-cgroups=true]` where it is root";
    match Delegated::look() {
        Ok(Delegated {
            folder,
            bounds_tasks,
        }) => {
            let tasks = if bounds_tasks {
                "bounds its tasks"
            } else {
                "has no `pids` to bound its tasks"
            };
            DoctorFinding::good(
                "cgroups",
                format!(
                    "a call has a group below {}, which {tasks}",
                    folder.display()
                ),
            )
        }
        Err(why) => DoctorFinding::note("cgroups", why.to_string(), remedy),
    }
}

/// Checks whether the user's own `git` runs programs that the settings of a bare repository name. A
/// tool can create such a repository anywhere below its workspace. Other settings do not help: a
/// repository's own come before those of the user.
pub async fn git() -> Vec<DoctorFinding> {
    let Some(git) = program("git") else {
        return Vec::new();
    };
    let asked = Command::new(git)
        .args([
            "config",
            "--global",
            "--includes",
            "--get",
            BARE_REPOSITORIES,
        ])
        .current_dir("/")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    match timeout(GIT_PATIENCE, asked).await {
        Ok(Ok(told)) if told.stdout.trim_ascii() == b"explicit" => {
            vec![DoctorFinding::good(
                "git",
                "uses no bare repository that it comes upon",
            )]
        }
        _ => vec![DoctorFinding::note(
            "git",
            "your own git uses a bare repository that it comes upon, and a tool can make one in a folder of its workspace",
            format!(
                "`git config --global {BARE_REPOSITORIES} explicit` before you run git in folders that tools write to"
            ),
        )],
    }
}

/// Returns the path of a program in `PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .map(|folder| folder.join(name))
        .find(|path| path.is_absolute() && access(path, AccessFlags::X_OK).is_ok())
}

fn nats_cli() -> DoctorFinding {
    match program("nats") {
        Some(path) => DoctorFinding::good("nats cli", path.display().to_string()),
        None => DoctorFinding::note(
            "nats cli",
            "not installed",
            "handy to look at subjects, not needed",
        ),
    }
}
