//! Walls around tool processes: bubblewrap where it works. What a node has is found by trying it.

use std::{
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use super::{process::Launch, workspace::Workspace};

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Demand {
    /// No walls.
    Off,
    /// Bubblewrap where it works.
    #[default]
    Available,
    /// Bubblewrap, else no process is started.
    Required,
}

/// What is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Tier {
    Open,
    Bubblewrap { program: PathBuf },
    Refused,
}

/// The walls of a node.
#[derive(Debug, Clone)]
pub struct Sandbox {
    tier: Tier,
    reason: String,
    network: bool,
}

/// Policy demands walls that this node does not have.
#[derive(Debug, Clone, thiserror::Error)]
#[error("this node may start processes only in a sandbox, and has none: {0}")]
pub struct Refused(String);

/// A no-op in a sandbox is over by then.
const PROBE: Duration = Duration::from_secs(5);

/// What a sandboxed process sees of the system, read-only, where it exists.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/ssl",
    "/etc/ca-certificates",
    "/nix",
    "/opt",
];

impl Sandbox {
    /// No walls, as told.
    pub fn off() -> Self {
        Self { tier: Tier::Open, reason: "not asked for".into(), network: true }
    }

    /// No process at all.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self { tier: Tier::Refused, reason: reason.into(), network: false }
    }

    /// Tries a real no-op. `network`: whether processes may reach it.
    pub async fn probe(demand: Demand, network: bool) -> Self {
        let tried = match demand {
            Demand::Off => return Self::off(),
            Demand::Available | Demand::Required => try_bubblewrap(network).await,
        };
        match (tried, demand) {
            (Ok(program), _) => {
                Self { reason: format!("{} works", program.display()), tier: Tier::Bubblewrap { program }, network }
            }
            (Err(reason), Demand::Required) => Self::refused(reason),
            (Err(reason), Demand::Available | Demand::Off) => Self { tier: Tier::Open, reason, network },
        }
    }

    /// For people: the tier in force.
    pub fn tier(&self) -> &'static str {
        match self.tier {
            Tier::Open => "none",
            Tier::Bubblewrap { .. } => "bwrap",
            Tier::Refused => "refused",
        }
    }

    /// Why it is in force.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Puts the walls around a command, which sees the workspace, and the folders `readable` without writing to them.
    pub fn wrap(&self, launch: Launch, workspace: &Workspace, readable: &[PathBuf]) -> Result<Launch, Refused> {
        match &self.tier {
            Tier::Open => Ok(launch),
            Tier::Refused => Err(Refused(self.reason.clone())),
            Tier::Bubblewrap { program } => Ok(bubblewrapped(program, self.network, launch, workspace.roots(), readable)),
        }
    }
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.tier(), self.reason)
    }
}

/// The environment is set inside: bubblewrap itself gets it too, and the dynamic loader's variables are not in it.
fn bubblewrapped(program: &Path, network: bool, launch: Launch, roots: &[PathBuf], readable: &[PathBuf]) -> Launch {
    // A mount hides what was mounted below it before.
    let (whole, parts): (Vec<_>, Vec<_>) = roots.iter().partition(|root| root.parent().is_none());
    let mut args = isolation(network);
    let whole = whole.into_iter().flat_map(bound).collect::<Vec<_>>();
    let partial = whole.is_empty();
    args.extend(whole);
    args.extend(system());
    args.extend(readable.iter().flat_map(|path| ["--ro-bind".into(), path.into(), path.into()]));
    args.extend(parts.into_iter().flat_map(bound));
    if partial {
        args.extend(["--remount-ro", "/"].map(OsString::from));
    }
    for (name, value) in &launch.env {
        let value = if name == "HOME" || name == "TMPDIR" { "/tmp".into() } else { value.clone() };
        args.extend(["--setenv".into(), name.clone(), value]);
    }
    args.extend(["--chdir".into(), launch.dir.clone().into(), "--".into(), launch.program]);
    args.extend(launch.args);
    Launch { program: program.into(), args, ..launch }
}

fn bound(root: &PathBuf) -> [OsString; 3] {
    ["--bind".into(), root.into(), root.into()]
}

fn isolation(network: bool) -> Vec<OsString> {
    let mut args = vec!["--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"];
    if network {
        args.push("--share-net");
    }
    args.into_iter().map(OsString::from).collect()
}

fn system() -> Vec<OsString> {
    let read_only = SYSTEM.iter().flat_map(|path| ["--ro-bind-try", path, path]);
    let own = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"];
    read_only.chain(own).map(OsString::from).collect()
}

async fn try_bubblewrap(network: bool) -> Result<PathBuf, String> {
    let program = find("bwrap").ok_or("bubblewrap (bwrap) is not installed")?;
    let mut no_op = Command::new(&program);
    no_op.args(isolation(network)).args(system()).args(["--", "true"]).env_clear().env("PATH", "/usr/bin:/bin");
    no_op.stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PROBE, no_op.output()).await.map_err(|_| format!("bwrap does not end within {PROBE:?}"))?;
    let output = output.map_err(|why| format!("cannot start {}: {why}", program.display()))?;
    match output.status.success() {
        true => Ok(program),
        false => Err(format!("bwrap does not work here: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
