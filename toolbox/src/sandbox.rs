//! The sandbox around tool processes limits which files they may read and write, and what they may
//! connect to. The node decides the rules, and finds out by trial which mechanisms this machine
//! supports. The last process before a command applies the rules to itself.

mod admitted;
mod advice;
mod bubblewrap;
mod enter;
mod landlock;
mod policy;
mod probe;
mod seccomp;
mod system;

use std::{
    env,
    ffi::OsString,
    fmt,
    fs::{self, Permissions},
    io,
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use admitted::AdmittedPaths;
use bubblewrap::Bubblewrap;
use tempfile::TempDir;

use crate::{process::Launch, toolchain::Toolchain, workspace::Workspace};

pub(super) use enter::{check, enter};
pub use landlock::Level;
pub use policy::SandboxPolicy;

/// Whether the configuration requires a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Demand {
    /// No sandbox.
    Off,
    /// The best sandbox that this machine supports, which may be no sandbox at all.
    #[default]
    Available,
    /// A complete sandbox. If this machine does not support one, no process is started.
    Required,
}

/// The configuration of the sandbox.
#[derive(Debug, Clone, Default)]
pub struct SandboxSettings {
    pub demand: Demand,
    /// Whether processes may open IP sockets.
    pub network: bool,
    /// Files and folders that processes may read in addition to the system's files and their
    /// workspace.
    pub readable: Vec<PathBuf>,
    /// The toolchains in the home folder that processes may use.
    pub toolchains: Vec<Toolchain>,
    /// The path of `bwrap`, if the user chose one.
    pub bubblewrap: Option<PathBuf>,
    /// The size in bytes of the `/tmp` that bubblewrap creates in memory.
    pub tmp: u64,
    /// The `planck` binary that applies the rules, or `None` for this program.
    pub planck: Option<PathBuf>,
}

impl SandboxSettings {
    fn planck(&self) -> io::Result<PathBuf> {
        self.planck.clone().map_or_else(std::env::current_exe, Ok)
    }
}

#[derive(Debug, Clone)]
enum Tier {
    Open,
    Landlock(Level),
    Bubblewrap(Bubblewrap),
    Refused,
}

/// The sandbox of a node. Clones share one state.
#[derive(Debug, Clone)]
pub struct Sandbox(Arc<SandboxInner>);

#[derive(Debug)]
struct SandboxInner {
    tier: Tier,
    shortfall: Shortfall,
    settings: SandboxSettings,
    /// Folders in the node's `PATH` that processes may not read.
    hidden: Vec<PathBuf>,
    admitted: AdmittedPaths,
    /// The entries of `/proc` and `/sys` that the rules name. They are kept open, because the
    /// kernel replaces an entry that no process uses.
    _pinned: Vec<OwnedFd>,
    /// Whether it has been logged that bubblewrap can no longer be used.
    told_replaced: AtomicBool,
}

/// The reason why a command cannot be put into the sandbox.
#[derive(Debug, thiserror::Error)]
pub enum SandboxRefused {
    #[error("this node may start processes only in a sandbox, and has none: {0}")]
    NoSandbox(String),
    #[error("cannot make a folder for temporary files: {0}")]
    NoScratch(io::Error),
}

/// A command that is ready to start inside its sandbox.
pub struct Sandboxed {
    pub launch: Launch,
    /// The folder for the command's temporary files. It is removed when this field is dropped.
    _scratch: Option<Scratch>,
}

impl Sandbox {
    /// Returns a sandbox that restricts nothing, because the configuration turned it off.
    pub fn off() -> Self {
        Self::new(
            Tier::Open,
            Shortfall::new(
                "`tools.sandbox` is off",
                "tools can do all that you can; take the setting out",
            ),
            SandboxSettings {
                demand: Demand::Off,
                network: true,
                ..SandboxSettings::default()
            },
            AdmittedPaths::default(),
        )
    }

    /// Returns a sandbox that refuses every command, for this reason.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::new(
            Tier::Refused,
            Shortfall::new(reason, ""),
            SandboxSettings::default(),
            AdmittedPaths::default(),
        )
    }

    /// Finds the best sandbox that works on this machine, unless the settings turn the sandbox off.
    /// A trial process tries what the sandbox must refuse: first in bubblewrap, and under Landlock
    /// alone if bubblewrap does not work.
    pub async fn probe(settings: SandboxSettings) -> Self {
        if settings.demand == Demand::Off {
            return Self::off();
        }
        let chosen = probe::choose(&settings);
        let ((tier, shortfall), admitted) = tokio::join!(chosen, AdmittedPaths::of(&settings));
        Self::new(tier, shortfall, settings, admitted)
    }

    fn new(
        tier: Tier,
        shortfall: Shortfall,
        settings: SandboxSettings,
        admitted: AdmittedPaths,
    ) -> Self {
        let hidden = match tier {
            Tier::Open | Tier::Refused => Vec::new(),
            Tier::Landlock(_) | Tier::Bubblewrap(_) => admitted.hidden(),
        };
        let pinned = system::MACHINE
            .iter()
            .filter_map(|path| landlock::pin(Path::new(path)))
            .collect();
        Self(Arc::new(SandboxInner {
            tier,
            shortfall,
            settings,
            hidden,
            admitted,
            _pinned: pinned,
            told_replaced: AtomicBool::new(false),
        }))
    }

    /// Returns the name of the mechanism that the node uses, as users see it.
    pub fn tier(&self) -> &'static str {
        match self.0.tier {
            Tier::Open => "none",
            Tier::Landlock(_) => "landlock",
            Tier::Bubblewrap(_) => "bubblewrap",
            Tier::Refused => "refused",
        }
    }

    /// Returns why the node does not use a better sandbox, or an empty text if it uses the best
    /// one.
    pub fn reason(&self) -> &str {
        &self.0.shortfall.why
    }

    /// Returns what a user can do for a better sandbox, or an empty text.
    pub fn remedy(&self) -> &str {
        &self.0.shortfall.remedy
    }

    /// Returns whether the node refuses to start processes.
    pub fn refuses(&self) -> bool {
        matches!(self.0.tier, Tier::Refused)
    }

    /// Returns whether processes run without a sandbox.
    pub fn is_open(&self) -> bool {
        matches!(self.0.tier, Tier::Open)
    }

    /// Returns whether the configuration turned the sandbox off.
    pub fn is_off(&self) -> bool {
        self.0.settings.demand == Demand::Off
    }

    /// Returns whether processes have the network.
    pub fn has_network(&self) -> bool {
        self.0.settings.network || self.is_open()
    }

    /// Returns descriptions of what processes can do because this kernel is too old to prevent it.
    pub fn gaps(&self) -> Vec<&'static str> {
        match self.0.tier {
            Tier::Landlock(level) => level.gaps(),
            Tier::Open | Tier::Bubblewrap(_) | Tier::Refused => Vec::new(),
        }
    }

    /// Returns the folders in `PATH` that processes may not read.
    pub fn hidden(&self) -> &[PathBuf] {
        &self.0.hidden
    }

    /// Returns why a command that failed with this output may have failed, if the sandbox is the
    /// cause, and the setting that admits what was refused.
    pub(super) fn advice(&self, output: &str) -> Option<String> {
        let is_confined = matches!(self.0.tier, Tier::Landlock(_) | Tier::Bubblewrap(_));
        is_confined
            .then(|| advice::of(output, &self.0.hidden, self.0.settings.network))
            .flatten()
    }

    /// Prepares a command to run in the sandbox. The command may read `readable` in addition to the
    /// files that every command may read.
    pub fn wrap(
        &self,
        launch: Launch,
        workspace: &Workspace,
        readable: &[PathBuf],
    ) -> Result<Sandboxed, SandboxRefused> {
        let SandboxInner {
            settings,
            shortfall,
            ..
        } = self.0.as_ref();
        let level = match &self.0.tier {
            Tier::Open => {
                return Ok(Sandboxed {
                    launch,
                    _scratch: None,
                });
            }
            Tier::Refused => return Err(SandboxRefused::NoSandbox(shortfall.why.clone())),
            Tier::Landlock(level) => *level,
            Tier::Bubblewrap(bubblewrap) => bubblewrap.level(),
        };
        let admitted = &self.0.admitted;
        let readable = admitted
            .readable
            .iter()
            .chain(workspace.readable())
            .chain(readable)
            .cloned()
            .collect();
        let policy = SandboxPolicy {
            level,
            network: settings.network,
            writable: workspace.roots().to_vec(),
            readable,
            ..SandboxPolicy::default()
        };
        let mut launch = self.without_hidden_programs(launch, workspace);
        admitted.add_to(&mut launch.env);
        match &self.0.tier {
            Tier::Bubblewrap(bubblewrap) if bubblewrap.is_current() => Ok(Sandboxed {
                launch: bubblewrap.wrap(launch, policy, settings.tmp),
                _scratch: None,
            }),
            Tier::Bubblewrap(_) => self.without_bubblewrap(launch, policy),
            Tier::Open | Tier::Refused | Tier::Landlock(_) => confined(launch, policy),
        }
    }

    /// Prepares a command to run under Landlock instead of bubblewrap. This is needed after an
    /// upgrade replaced this program's file, because bubblewrap can no longer mount the running
    /// program. Refuses the command if the kernel's Landlock is not enough.
    fn without_bubblewrap(
        &self,
        launch: Launch,
        policy: SandboxPolicy,
    ) -> Result<Sandboxed, SandboxRefused> {
        let enough = if self.0.settings.demand == Demand::Required {
            Level::FULL
        } else {
            Level::LEAST
        };
        if policy.level < enough {
            return Err(SandboxRefused::NoSandbox(
                "this program's file was replaced, and bubblewrap needs it; restart the node"
                    .into(),
            ));
        }
        if !self.0.told_replaced.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "this program's file was replaced: tools run behind Landlock instead of bubblewrap until a restart"
            );
        }
        confined(launch, policy)
    }

    /// Removes from `PATH` the folders that processes may not read. A shell that finds a program in
    /// such a folder would fail to run it instead of searching further.
    fn without_hidden_programs(&self, mut launch: Launch, workspace: &Workspace) -> Launch {
        let is_hidden = |folder: &PathBuf| {
            self.0.hidden.contains(folder)
                && !workspace
                    .roots()
                    .iter()
                    .any(|root| folder.starts_with(root))
        };
        for (_, value) in launch.env.iter_mut().filter(|(name, _)| name == "PATH") {
            let seen = std::env::split_paths(value)
                .filter(|folder| !is_hidden(folder))
                .collect::<Vec<_>>();
            if let Ok(seen) = std::env::join_paths(seen) {
                *value = seen;
            }
        }
        launch
    }
}

/// Prepares a command that Landlock and seccomp restrict without bubblewrap. A private folder
/// becomes the command's home folder and its folder for temporary files.
fn confined(launch: Launch, mut policy: SandboxPolicy) -> Result<Sandboxed, SandboxRefused> {
    let scratch = Scratch::create().map_err(SandboxRefused::NoScratch)?;
    policy.writable.push(scratch.path().to_owned());
    policy.scratch = Some(scratch.path().to_owned());
    let env = with_home(launch.env, scratch.path());
    Ok(Sandboxed {
        launch: Launch {
            env,
            sandbox: Some(policy),
            ..launch
        },
        _scratch: Some(scratch),
    })
}

fn with_home(env: Vec<(OsString, OsString)>, folder: &Path) -> Vec<(OsString, OsString)> {
    let own = ["HOME", "TMPDIR"].map(|name| (name.into(), folder.into()));
    env.into_iter()
        .filter(|(name, _)| name != "HOME" && name != "TMPDIR")
        .chain(own)
        .collect()
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = if self.0.settings.network {
            "and have the network"
        } else {
            "and have no network"
        };
        let sees = format!("processes see the system and their workspace, {network}");
        match (&self.0.tier, self.reason()) {
            (Tier::Open | Tier::Refused, why) => write!(f, "{}: {why}", self.tier()),
            (Tier::Landlock(_), why) => write!(f, "landlock with seccomp: {sees} ({why})"),
            (Tier::Bubblewrap(found), why) => {
                let path = found.program().display();
                write!(f, "bubblewrap ({path}) with seccomp: {sees}")?;
                match why {
                    "" => Ok(()),
                    why => write!(f, " ({why})"),
                }
            }
        }
    }
}

// The private folder for the temporary files of a call. It is used if bubblewrap does not provide
// a `/tmp`.

/// The prefix of the folder's name.
const PREFIX: &str = "planck-tool-";

/// A private folder. Dropping this value removes the folder with its contents.
#[derive(Debug)]
struct Scratch {
    folder: TempDir,
    /// The path of the folder. It contains no links.
    path: PathBuf,
}

impl Scratch {
    fn create() -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir()?;
        let path = folder.path().canonicalize()?;
        Ok(Self { folder, path })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        remove(self.folder.path());
        self.folder.disable_cleanup(true);
    }
}

/// Removes the folder, including subfolders that were made read-only. Links are removed and not
/// followed.
fn remove(folder: &Path) {
    if fs::remove_dir_all(folder).is_err() && folder.is_dir() {
        open_up(folder, 64);
        if let Err(why) = fs::remove_dir_all(folder) {
            tracing::warn!(folder = %folder.display(), %why, "cannot remove a call's temporary files");
        }
    }
}

fn open_up(folder: &Path, depth: usize) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_up(&entry.path(), depth);
        }
    }
}

// Why a node has no better sandbox, and what its user can do about it.

/// The reason why the sandbox is not a better one, and what makes it better. Both are empty for the
/// best sandbox.
#[derive(Debug, Clone, Default)]
struct Shortfall {
    why: String,
    remedy: String,
}

/// A call that bubblewrap makes and that machines or container engines refuse.
struct RefusedCall {
    /// Parts of the messages of `bwrap` when the call fails.
    said: &'static [&'static str],
    call: &'static str,
    /// The advice for a user whose node runs in a container, and for one whose node does not.
    in_container: &'static str,
    on_machine: &'static str,
}

const REFUSED_CALLS: &[RefusedCall] = &[
    RefusedCall {
        said: &["new namespace"],
        call: "`clone` with `CLONE_NEWUSER`",
        in_container: "run the container with deploy/seccomp.json: `security_opt` in docker-compose.yml, \
                       `sandbox.seccompProfile` of the Helm chart",
        on_machine: "allow unprivileged user namespaces: `sysctl kernel.unprivileged_userns_clone=1`, and \
                     `user.max_user_namespaces` above 0",
    },
    RefusedCall {
        said: &["uid map", "gid map", "loopback"],
        call: "the use of a new user namespace",
        in_container: "AppArmor of the host restricts user namespaces: `sysctl \
                       kernel.apparmor_restrict_unprivileged_userns=0` there",
        on_machine: "AppArmor restricts user namespaces: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or \
                     a profile for bwrap with `userns`",
    },
    RefusedCall {
        said: &["make / slave", "mount tmpfs", "pivot_root"],
        call: "`mount`",
        in_container: "run the container without the AppArmor profile of its engine: `apparmor` in `security_opt` of \
                       docker-compose.yml, `sandbox.appArmorProfile` of the Helm chart; with SELinux `label=disable`",
        on_machine: "AppArmor or SELinux refuses mounts: `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or \
                     a profile for bwrap",
    },
];

impl Shortfall {
    fn new(why: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            remedy: remedy.into(),
        }
    }

    /// Returns what keeps an installed bubblewrap from working, by the message of a trial that
    /// failed.
    fn of_trial(said: &str) -> Self {
        Self::of_trial_in(said, is_container())
    }

    fn of_trial_in(said: &str, is_container: bool) -> Self {
        let refused = REFUSED_CALLS
            .iter()
            .find(|refused| refused.said.iter().any(|part| said.contains(part)));
        // What `bwrap` then advises concerns machines only.
        let failed = said.split(", likely").next().unwrap_or(said);
        match refused {
            Some(refused) => Self::new(
                format!(
                    "bubblewrap does not work here, because {} is refused: {failed}",
                    refused.call
                ),
                match is_container {
                    true => refused.in_container,
                    false => refused.on_machine,
                },
            ),
            None => Self::new(
                format!("bubblewrap does not work here: {said}"),
                "`bwrap --unshare-all --ro-bind / / true` shows what is refused here",
            ),
        }
    }
}

/// Returns whether this process runs in a container of Docker, Podman or Kubernetes.
fn is_container() -> bool {
    let marks = ["/.dockerenv", "/run/.containerenv"];
    marks.iter().any(|mark| Path::new(mark).exists())
        || env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scratch_folder_is_private_and_removed_completely() {
        let scratch = Scratch::create().unwrap();
        let path = scratch.path().to_owned();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o700
        );
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/c"), "x").unwrap();
        fs::set_permissions(path.join("a"), Permissions::from_mode(0o000)).unwrap();
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn refused_call_is_named_with_what_allows_it() {
        for (said, call, container, machine) in [
            (
                "bwrap: No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
                "CLONE_NEWUSER",
                "deploy/seccomp.json",
                "unprivileged_userns_clone",
            ),
            (
                "bwrap: Failed to make / slave: Permission denied",
                "`mount`",
                "appArmorProfile",
                "AppArmor",
            ),
            (
                "bwrap: setting up uid map: Permission denied",
                "user namespace",
                "apparmor_restrict",
                "apparmor_restrict",
            ),
        ] {
            for (is_container, wanted) in [(true, container), (false, machine)] {
                let told = Shortfall::of_trial_in(said, is_container);
                assert!(
                    told.why.contains(call) && told.why.contains("bwrap: "),
                    "{told:?}"
                );
                assert!(
                    told.remedy.contains(wanted) && !told.why.contains("likely"),
                    "{told:?}"
                );
            }
        }
        let told = Shortfall::of_trial_in("a trial does not end within 5s", false);
        assert!(
            told.why.ends_with("a trial does not end within 5s") && told.remedy.contains("bwrap")
        );
    }
}
