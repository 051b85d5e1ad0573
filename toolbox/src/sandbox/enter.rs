//! Applies the rules in the last process before a command, and checks that they take effect.

use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::unix::{fs::MetadataExt, process::ExitStatusExt},
    path::Path,
    process::ExitStatus,
    time::Duration,
};

use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::{
    landlock,
    policy::{Mounted, SandboxPolicy},
    remove, seccomp,
};

/// The text that a successful trial prints. The exit status 0 is not enough, because a program that
/// tried nothing could return it too.
pub(super) const HOLDS: &str = "the wall holds";

/// The maximum time that a trial waits for a connection that the sandbox must refuse.
const CONNECTING: Duration = Duration::from_secs(1);

/// The reason why the rules could not be applied. The command is then not started.
#[derive(Debug, thiserror::Error)]
pub enum EnterFailure {
    #[error(
        "{0} is not the file that was chosen: another call has changed it meanwhile; call again"
    )]
    Replaced(String),
    #[error("cannot drop capabilities: {0}")]
    Capabilities(#[from] rustix::io::Errno),
    #[error(transparent)]
    Landlock(#[from] landlock::LandlockFailure),
    #[error(transparent)]
    Seccomp(#[from] seccomp::SeccompFailure),
}

/// Applies the rules to this thread and to everything that it starts. The process must have no
/// other thread.
pub(crate) fn enter(policy: &SandboxPolicy) -> Result<(), EnterFailure> {
    if let Some(replaced) = policy.mounted.iter().find(|mounted| !is_there(mounted)) {
        return Err(EnterFailure::Replaced(replaced.path.display().to_string()));
    }
    // Bubblewrap has dropped all capabilities.
    if !policy.inside {
        drop_capabilities()?;
    }
    if !policy.level.is_none() {
        landlock::restrict(policy)?;
    }
    Ok(seccomp::restrict(policy)?)
}

/// The only capability that a process of root keeps. The files of a workspace may belong to another
/// user than root, and Landlock decides which files those are.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE;

/// Drops all other capabilities, with which a process of root could change the whole machine, or
/// create files that grant privileges to other users. Without `CAP_FSETID`, for example, the first
/// write to a file clears the setuid and setgid bits that `open` created the file with. Seccomp
/// refuses those bits in `chmod` only, because it cannot read the arguments of `openat2`.
fn drop_capabilities() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    // A process without `CAP_SETPCAP` cannot change the bounding set. Then `no_new_privs`, which is
    // set later, keeps the capabilities from returning when a program is executed.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in sets.permitted.difference(KEPT).iter() {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    sets.effective &= KEPT;
    sets.permitted &= KEPT;
    sets.inheritable &= KEPT;
    set_capabilities(None, sets)
}

fn is_there(mounted: &Mounted) -> bool {
    let found = fs::symlink_metadata(&mounted.path);
    found.is_ok_and(|found| found.dev() == mounted.device && found.ino() == mounted.inode)
}

impl SandboxPolicy {
    /// Returns the folder for the call's temporary files, unless bubblewrap provides one.
    pub(crate) fn scratch(&self) -> Option<&Path> {
        self.scratch.as_deref()
    }

    /// Removes the temporary files of the call. The reaper calls this function when it was stopped,
    /// because the node, which normally removes them, may be dead.
    pub(crate) fn clean(&self) {
        if let Some(folder) = &self.scratch {
            remove(folder);
        }
    }
}

/// Enters the sandbox and tries to break out of it. Reads `file`, writes next to `file` unless this
/// process runs inside bubblewrap, and connects to `port` if the network is closed. Prints
/// [`HOLDS`] if the sandbox refuses all of these and programs of the system can be read, and
/// otherwise returns an error.
pub(crate) fn check(
    policy: Option<&SandboxPolicy>,
    file: &Path,
    port: u16,
) -> Result<ExitStatus, String> {
    let policy = policy.ok_or("there is no sandbox to check")?;
    enter(policy).map_err(|why| why.to_string())?;
    match File::open(file) {
        Ok(_) => return Err("a file outside can be read".into()),
        Err(why)
            if matches!(
                why.kind(),
                ErrorKind::PermissionDenied | ErrorKind::NotFound
            ) => {}
        Err(why) => {
            return Err(format!(
                "a file outside is not refused as it should be: {why}"
            ));
        }
    }
    if !policy.inside && File::create(file.with_extension("written")).is_ok() {
        return Err("a file outside can be written".into());
    }
    let node = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    if !policy.network && TcpStream::connect_timeout(&node, CONNECTING).is_ok() {
        return Err("a port of the node can be connected to".into());
    }
    File::open("/bin/sh").map_err(|why| format!("programs of the system cannot be read: {why}"))?;
    writeln!(std::io::stdout(), "{HOLDS}").map_err(|why| why.to_string())?;
    Ok(ExitStatus::from_raw(0))
}
