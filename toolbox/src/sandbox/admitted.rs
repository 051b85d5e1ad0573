//! Processes in the sandbox see more than the system and their workspace: the files and toolchains
//! that the configuration names, and the user's name for commits.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use super::{
    SandboxSettings,
    git_identity::{self, GitIdentity},
    system,
};

#[derive(Debug, Default)]
pub(super) struct Admitted {
    pub readable: Vec<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    _identity: Option<GitIdentity>,
}

impl Admitted {
    pub async fn of(settings: &SandboxSettings) -> Self {
        let identity = GitIdentity::of_user().await;
        let file = identity.as_ref().map(GitIdentity::file);
        let toolchains = || settings.toolchains.iter();
        let readable = settings.readable.iter().cloned();
        let of_toolchains = toolchains().flat_map(|toolchain| toolchain.readable());
        let variables = toolchains().flat_map(|toolchain| toolchain.variables());
        let of_git = file.map(|file| (git_identity::VARIABLE.into(), file.into()));
        Self {
            readable: readable
                .chain(of_toolchains)
                .chain(file.map(Into::into))
                .collect(),
            variables: variables.chain(of_git).collect(),
            _identity: identity,
        }
    }

    /// Returns the folders of the node's `PATH` that processes may not read.
    pub fn hidden(&self) -> Vec<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .filter(|folder| !self.shows(folder))
            .collect()
    }

    fn shows(&self, folder: &Path) -> bool {
        let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
        let is_below = |known: &Path| folder.starts_with(known) || real.starts_with(known);
        let mut known = self
            .readable
            .iter()
            .map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()));
        folder.is_absolute()
            && (system::PROGRAMS
                .iter()
                .any(|path| is_below(Path::new(path)))
                || known.any(|path| is_below(&path)))
    }

    /// Adds the variables to an environment. A variable that the configuration passes on stays as it
    /// is.
    pub fn add_to(&self, env: &mut Vec<(OsString, OsString)>) {
        for (name, value) in &self.variables {
            if env.iter().all(|(known, _)| known != name) {
                env.push((name.clone(), value.clone()));
            }
        }
    }
}
