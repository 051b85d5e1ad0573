//! The sandbox that uses Bubblewrap. A process has a pid namespace of its own, and a file system
//! that contains only what the process may see. The rules of Landlock and seccomp apply inside this
//! sandbox as well.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    SandboxSettings, Shortfall,
    landlock::Level,
    policy::{Mounted, SandboxPolicy},
    system,
};
use crate::{process::Launch, protect};

/// The paths at which the node looks for `bwrap`. `PATH` is not used, because one of its folders
/// may belong to a project.
const PROGRAMS: &[&str] = &[
    "/usr/bin/bwrap",
    "/usr/local/bin/bwrap",
    "/bin/bwrap",
    "/run/wrappers/bin/bwrap",
    "/run/current-system/sw/bin/bwrap",
];

/// The path of this program inside the sandbox.
const PLANCK: &str = "/dev/.planck";

const PROC: &str = "/proc";

/// The path of the private folder for temporary files inside the sandbox.
const TMP: &str = "/tmp";

/// The folder for shared memory inside the sandbox. The rest of `/dev` is read-only, because only a
/// mount of its own can have a limit.
const SHM: &str = "/dev/shm";

/// A `bwrap` program, the `planck` binary that it mounts, and the kernel's level of Landlock.
#[derive(Debug, Clone)]
pub(super) struct Bubblewrap {
    program: PathBuf,
    /// The running program: its path and the identity of its file.
    planck: Mounted,
    level: Level,
    /// Whether each process gets a `/proc` of its own. Otherwise it sees the `/proc` of this machine,
    /// and Landlock lets it open only files there that describe no process.
    own_proc: bool,
}

impl Bubblewrap {
    /// Finds the `bwrap` that the configuration names, or else one that is installed on the machine
    /// and that only root can change.
    pub fn find(settings: &SandboxSettings, level: Level) -> Result<Self, Shortfall> {
        let program = match settings.bubblewrap.as_deref() {
            Some(path) if path.is_absolute() && path.is_file() => path.to_owned(),
            Some(path) => {
                let why = format!(
                    "`tools.bubblewrap` = {} is not the absolute path of a file",
                    path.display()
                );
                return Err(Shortfall::new(why, "correct `tools.bubblewrap`"));
            }
            None => of_machine()?,
        };
        let lost = |why: String| Shortfall::new(why, "start this program from its file again");
        let planck = settings
            .planck()
            .map_err(|why| lost(format!("cannot find this program's own file: {why}")))?;
        let planck = mounted(&planck)
            .ok_or_else(|| lost(format!("{} is not there any more", planck.display())))?;
        Ok(Self {
            program,
            planck,
            level,
            own_proc: true,
        })
    }

    /// Returns the same sandbox with the `/proc` of this machine. The kernel mounts no new one where
    /// parts of the machine's are hidden, as in containers, because the new one would show them.
    pub fn with_proc_of_machine(self) -> Self {
        Self {
            own_proc: false,
            ..self
        }
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns whether the file of the running program is unchanged. A newer version in its place
    /// may expect other arguments.
    pub fn is_current(&self) -> bool {
        mounted(&self.planck.path).is_some_and(|now| now == self.planck)
    }

    /// Returns the command that starts `launch` inside the sandbox. Bubblewrap itself gets the
    /// environment of the command too, which is safe because that environment contains no variables
    /// of the dynamic linker.
    pub fn wrap(&self, launch: Launch, mut policy: SandboxPolicy, tmp: u64) -> Launch {
        policy.inside = true;
        policy.own_proc = self.own_proc;
        // A mount of `/` must come first, because it would hide earlier mounts.
        let (whole, parts): (Vec<PathBuf>, Vec<PathBuf>) = policy
            .writable
            .iter()
            .cloned()
            .partition(|root| root.parent().is_none());
        let mut args = isolation(policy.network);
        args.extend(whole.iter().flat_map(|root| bind("--bind", root)));
        args.extend(self.system(tmp));
        args.extend(
            policy
                .readable
                .iter()
                .flat_map(|path| bind("--ro-bind-try", path)),
        );
        args.extend(parts.iter().flat_map(|root| bind("--bind", root)));
        policy
            .mounted
            .extend(parts.iter().filter_map(|root| mounted(root)));
        for (option, path) in parts.iter().flat_map(|root| protect::mounts(root)) {
            args.extend(bind(option, &path));
            policy.mounted.extend(mounted(&path));
        }
        if whole.is_empty() {
            args.extend(["--remount-ro", "/"].map(OsString::from));
        }
        for (name, value) in super::with_home(launch.env.clone(), Path::new(TMP)) {
            args.extend(["--setenv".into(), name, value]);
        }
        args.extend([
            "--chdir".into(),
            launch.dir.clone().into(),
            "--".into(),
            PLANCK.into(),
            "reap".into(),
            "--inside".into(),
        ]);
        args.extend(policy.to_option());
        args.extend(["--".into(), launch.program]);
        args.extend(launch.args);
        Launch {
            program: self.program.clone().into(),
            args,
            ..launch
        }
    }

    /// Returns the arguments with which bubblewrap runs a trial: `planck reap` with the arguments
    /// `check`, in a sandbox without a workspace.
    pub fn trial(&self, policy: SandboxPolicy, tmp: u64, check: &[OsString]) -> Vec<OsString> {
        let mut args = isolation(policy.network);
        args.extend(self.system(tmp));
        args.extend(["--remount-ro", "/", "--", PLANCK, "reap"].map(OsString::from));
        args.extend(check.iter().cloned());
        args.extend(
            SandboxPolicy {
                level: self.level,
                inside: true,
                own_proc: self.own_proc,
                ..policy
            }
            .to_option(),
        );
        args
    }

    fn system(&self, tmp: u64) -> Vec<OsString> {
        let known = system::PROGRAMS.iter().chain(system::SETTINGS).copied();
        let mut args: Vec<OsString> = known
            .chain(system::hardware())
            .flat_map(|path| bind("--ro-bind-try", Path::new(path)))
            .collect();
        match self.own_proc {
            true => args.extend(["--proc", PROC].map(OsString::from)),
            false => args.extend(bind("--ro-bind", Path::new(PROC))),
        }
        args.extend(["--dev", "/dev"].map(OsString::from));
        args.extend([
            "--ro-bind".into(),
            (&self.planck.path).into(),
            PLANCK.into(),
        ]);
        for folder in [SHM, TMP] {
            if tmp > 0 {
                args.extend(["--size".into(), tmp.to_string().into()]);
            }
            args.extend(["--tmpfs", folder].map(OsString::from));
        }
        args.extend(["--remount-ro", "/dev"].map(OsString::from));
        args
    }
}

fn bind(option: &str, path: &Path) -> [OsString; 3] {
    [option.into(), path.into(), path.into()]
}

fn isolation(network: bool) -> Vec<OsString> {
    let mut args = vec![
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        "--clearenv",
    ];
    if network {
        args.push("--share-net");
    }
    args.into_iter().map(OsString::from).collect()
}

fn mounted(path: &Path) -> Option<Mounted> {
    let found = fs::symlink_metadata(path).ok()?;
    Some(Mounted {
        path: path.into(),
        device: found.dev(),
        inode: found.ino(),
    })
}

fn of_machine() -> Result<PathBuf, Shortfall> {
    let mut found = PROGRAMS.iter().map(Path::new).filter(|path| path.exists());
    let Some(first) = found.next() else {
        return Err(Shortfall::new(
            "bubblewrap is not installed",
            "install it: `apt-get install bubblewrap`, `dnf install bubblewrap` or the like",
        ));
    };
    let trusted = std::iter::once(first)
        .chain(found)
        .find_map(|path| path.canonicalize().ok().filter(|real| is_of_root(real)));
    trusted.ok_or_else(|| {
        Shortfall::new(
            format!("{} can be changed by others than root", first.display()),
            "have only root write to it and to the folders above it",
        )
    })
}

/// Returns whether only root can change this file and the folders above it.
fn is_of_root(path: &Path) -> bool {
    // In a folder with the sticky bit, only the owner of an entry can replace the entry.
    let safe = |found: fs::Metadata| {
        found.uid() == 0
            && (found.mode() & 0o022 == 0 || found.is_dir() && found.mode() & 0o1000 != 0)
    };
    path.ancestors()
        .all(|part| fs::metadata(part).is_ok_and(safe))
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn a_program_that_others_can_change_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("bwrap");
        fs::write(&program, "").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o777)).unwrap();
        assert!(!is_of_root(&program));
        assert!(is_of_root(
            Path::new("/usr/bin/env").canonicalize().unwrap().as_path()
        ));
    }

    #[test]
    fn a_configured_program_must_be_an_absolute_path() {
        for wrong in ["bwrap", "./bin/bwrap", "/no/such/bwrap", "/usr"] {
            let settings = SandboxSettings {
                bubblewrap: Some(wrong.into()),
                ..SandboxSettings::default()
            };
            assert!(
                Bubblewrap::find(&settings, Level::default()).is_err(),
                "{wrong}"
            );
        }
    }
}
