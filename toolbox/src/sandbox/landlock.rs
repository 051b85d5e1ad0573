//! Landlock limits which files a process may open, which TCP ports it may use, and which processes
//! it may signal.

use std::{fmt, fs::File, io, os::fd::OwnedFd, path::Path};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset,
    RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2},
    libc::{S_IFDIR, S_IFMT},
    sys::stat::fstat,
};

use super::{policy::SandboxPolicy, system};

/// The version of a kernel's Landlock interface, or 0 for a kernel without Landlock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Level(i32);

impl Level {
    /// The level with all features that Planck uses. Higher levels add nothing that Planck needs.
    pub const FULL: Self = Self(6);
    /// The lowest level that restricts access to files.
    pub const LEAST: Self = Self(1);

    /// Returns the highest level up to [`FULL`](Self::FULL) that this kernel supports. Finds it by
    /// creating rules without applying them.
    pub fn of_kernel() -> Self {
        (1..=Self::FULL.0)
            .rev()
            .map(Self)
            .find(|level| unconnected(*level, false).is_ok())
            .unwrap_or_default()
    }

    pub fn of(number: i32) -> Result<Self, String> {
        let level = Self(number);
        if (Self::default()..=Self::FULL).contains(&level) {
            Ok(level)
        } else {
            Err(format!("no Landlock level {number}"))
        }
    }

    pub fn number(self) -> i32 {
        self.0
    }

    pub fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns descriptions of what a process can do on a kernel of this level but not with the
    /// full level.
    pub fn gaps(self) -> Vec<&'static str> {
        let all = [
            (3, "files outside can be truncated"),
            (5, "devices that it can open take any command"),
            (6, "processes outside can be signalled"),
        ];
        all.into_iter()
            .filter(|(since, _)| self.0 < *since)
            .map(|(_, gap)| gap)
            .collect()
    }

    fn abi(self) -> ABI {
        ABI::from(self.0)
    }
}

/// The reason why the rules could not be applied completely.
#[derive(Debug, thiserror::Error)]
pub enum LandlockFailure {
    #[error("this kernel's Landlock refuses the rules: {0}")]
    Rules(#[from] RulesetError),
    #[error("cannot open {path} for a Landlock rule: {why}")]
    Path { path: String, why: io::Error },
    #[error("Landlock is in force only {0}")]
    Incomplete(PartlyEnforced),
}

#[derive(Debug)]
pub struct PartlyEnforced(RulesetStatus);

impl fmt::Display for PartlyEnforced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            RulesetStatus::FullyEnforced => "without `no_new_privs`",
            RulesetStatus::PartiallyEnforced => "in part",
            RulesetStatus::NotEnforced => "in name",
        })
    }
}

/// Applies the policy's rules to this thread and to everything that it starts, and prevents them
/// from gaining privileges.
pub(super) fn restrict(policy: &SandboxPolicy) -> Result<(), LandlockFailure> {
    let mut rules = unconnected(policy.level, policy.network)?;
    let read = reading(policy.level);
    let own_readable = match policy.own_proc {
        true => system::hardware()
            .chain(system::OWN_READABLE.iter().copied())
            .collect(),
        // The machine's `/proc` shows the node's processes too.
        false => system::MACHINE.to_vec(),
    };
    let (own_writable, own) = match policy.inside {
        true => (system::OWN_WRITABLE, read | writing(policy.level)),
        false => (system::DEVICES, AccessFs::ReadFile | AccessFs::WriteFile),
    };
    for path in [system::PROGRAMS, system::SETTINGS, &own_readable].concat() {
        rules = allow_known(rules, Path::new(path), read)?;
    }
    for path in own_writable {
        rules = allow_known(rules, Path::new(path), own)?;
    }
    for path in &policy.readable {
        rules = allow_known(rules, path, read)?;
    }
    let change = read
        | (writing(policy.level)
            & !(AccessFs::MakeChar | AccessFs::MakeBlock | AccessFs::IoctlDev));
    for path in &policy.writable {
        let folder = open_without_links(path).map_err(|why| LandlockFailure::Path {
            path: path.display().to_string(),
            why: why.into(),
        })?;
        rules = rules.add_rule(PathBeneath::new(folder, change))?;
    }
    let status = rules.restrict_self()?;
    match status.ruleset {
        RulesetStatus::FullyEnforced if status.no_new_privs => Ok(()),
        RulesetStatus::FullyEnforced
        | RulesetStatus::PartiallyEnforced
        | RulesetStatus::NotEnforced => {
            Err(LandlockFailure::Incomplete(PartlyEnforced(status.ruleset)))
        }
    }
}

/// Creates rules that allow no access to files yet, and none to TCP ports unless `network` is set
/// or the level is below 4. Fails if the kernel lacks one of the features of the level.
fn unconnected(level: Level, network: bool) -> Result<RulesetCreated, RulesetError> {
    let abi = level.abi();
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?;
    if abi >= ABI::V4 && !network {
        rules = rules.handle_access(AccessNet::from_all(ABI::V4))?;
    }
    if abi >= ABI::V6 {
        rules = rules.scope(Scope::from_all(ABI::V6))?;
    }
    rules.create()
}

fn reading(level: Level) -> BitFlags<AccessFs> {
    AccessFs::from_read(level.abi())
}

fn writing(level: Level) -> BitFlags<AccessFs> {
    AccessFs::from_write(level.abi())
}

/// Adds a rule that allows access to a path of the system or the configuration. The path may be a
/// link, and a path that cannot be opened is skipped.
fn allow_known(
    rules: RulesetCreated,
    path: &Path,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(file) = open(path, ResolveFlag::empty()) else {
        return Ok(rules);
    };
    let is_folder = fstat(&file).is_ok_and(|found| found.st_mode & S_IFMT == S_IFDIR);
    rules.add_rule(PathBeneath::new(
        file,
        if is_folder {
            access
        } else {
            access & AccessFs::from_file(ABI::V6)
        },
    ))
}

/// Opens a path whose links the node has resolved. Fails if the path contains a link now, because
/// that link was created later and may lead elsewhere.
fn open_without_links(path: &Path) -> nix::Result<File> {
    open(path, ResolveFlag::RESOLVE_NO_SYMLINKS)
}

/// Opens a path, without access to its content. Returns `None` if it cannot be opened.
pub(super) fn pin(path: &Path) -> Option<OwnedFd> {
    open(path, ResolveFlag::empty()).ok().map(OwnedFd::from)
}

fn open(path: &Path, resolve: ResolveFlag) -> nix::Result<File> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(resolve);
    loop {
        match openat2(AT_FDCWD, path, how) {
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            other => return other.map(File::from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_level_names_what_it_does_not_confine() {
        assert_eq!(Level::FULL.gaps(), Vec::<&str>::new());
        assert_eq!(Level(4).gaps().len(), 2);
        assert_eq!(Level(1).gaps().len(), 3);
        assert!(Level::of(7).is_err() && Level::of(-1).is_err());
    }

    #[test]
    fn rules_can_be_made_for_the_paths_of_the_machine() {
        let level = Level::of_kernel();
        if level.is_none() {
            eprintln!("skipped: this kernel has no Landlock");
            return;
        }
        let mut rules = unconnected(level, false).unwrap();
        for path in system::PROGRAMS
            .iter()
            .chain(system::SETTINGS)
            .chain(system::MACHINE)
            .chain(system::DEVICES)
        {
            rules = allow_known(rules, Path::new(path), reading(level))
                .unwrap_or_else(|why| panic!("{path}: {why}"));
        }
    }
}
