//! Processes in the sandbox see more than the system and their workspace: the files and toolchains
//! that the configuration names, and the user's name for commits.

use std::{
    ffi::OsString,
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use tokio::{process::Command, time::timeout};

use planck_host::environment;

use super::{SandboxSettings, Scratch, system};

#[derive(Debug, Default)]
pub(super) struct AdmittedPaths {
    pub readable: Vec<PathBuf>,
    variables: Vec<(OsString, OsString)>,
    _identity: Option<GitIdentity>,
}

impl AdmittedPaths {
    pub async fn of(settings: &SandboxSettings) -> Self {
        let identity = GitIdentity::of_user().await;
        let file = identity.as_ref().map(GitIdentity::file);
        let toolchains = || settings.toolchains.iter();
        let readable = settings.readable.iter().cloned();
        let of_toolchains = toolchains().flat_map(|toolchain| toolchain.readable());
        let variables = toolchains().flat_map(|toolchain| toolchain.variables());
        let of_git = file.map(|file| (VARIABLE.into(), file.into()));
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

// The name and the address under which the user commits. In the sandbox `git` does not find the
// user's own configuration, which may hold credentials and name programs, so it gets these two
// values alone.

/// The variable that names a file in place of `/etc/gitconfig`. Of all configuration, this file
/// counts least: a repository's own name and address hold, and `git config --global` works.
pub const VARIABLE: &str = "GIT_CONFIG_SYSTEM";

/// The paths at which the node looks for `git`. `PATH` is not used, because one of its folders may
/// belong to a project.
const PROGRAMS: &[&str] = &[
    "/usr/bin/git",
    "/usr/local/bin/git",
    "/bin/git",
    "/run/current-system/sw/bin/git",
];

/// The variables with which `git` finds the user's configuration.
const PASSED_ON: &[&str] = &["HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL"];

/// How long `git` may take to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A file with the user's name and address, which processes in the sandbox read.
#[derive(Debug)]
pub struct GitIdentity {
    file: PathBuf,
    _folder: Scratch,
}

impl GitIdentity {
    /// Asks the user's `git`. Returns `None` if there is none, or if it knows neither a name nor an
    /// address.
    pub async fn of_user() -> Option<Self> {
        let settings = settings().await?;
        let value = |key: &str| {
            let line = settings.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim()).filter(|value| !value.is_empty())
        };
        let text = text(value("user.name "), value("user.email "))?;
        Self::keep(&text)
            .inspect_err(|why| tracing::warn!(%why, "tools commit without the user's name"))
            .ok()
    }

    fn keep(text: &str) -> io::Result<Self> {
        let folder = Scratch::create()?;
        let file = folder.path().join("gitconfig");
        fs::write(&file, text)?;
        Ok(Self {
            file,
            _folder: folder,
        })
    }

    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// Reads the two settings of the user's own configuration. `/` is no repository, so no other
/// configuration has a part in it.
async fn settings() -> Option<String> {
    let git = PROGRAMS.iter().find(|path| Path::new(path).is_file())?;
    let passed = PASSED_ON
        .iter()
        .filter_map(|name| Some((name, environment::variable(name)?)));
    let asked = Command::new(git)
        .args(["config", "--global", "--includes", "--get-regexp"])
        .arg(r"^user\.(name|email)$")
        .current_dir("/")
        .env_clear()
        .envs(passed)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let told = timeout(PATIENCE, asked).await.ok()?.ok()?;
    String::from_utf8(told.stdout).ok()
}

fn text(name: Option<&str>, email: Option<&str>) -> Option<String> {
    let line = |key: &str, value: Option<&str>| {
        let value = value?.replace('\\', "\\\\").replace('"', "\\\"");
        Some(format!("\t{key} = \"{value}\"\n"))
    };
    let lines: String = [line("name", name), line("email", email)]
        .into_iter()
        .flatten()
        .collect();
    (!lines.is_empty()).then(|| format!("[include]\n\tpath = /etc/gitconfig\n[user]\n{lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn git_reads_what_is_written() {
        assert_eq!(text(None, None), None);
        let name = r#"O"Neil \ the [x]; #y"#;
        let identity = GitIdentity::keep(&text(Some(name), None).unwrap()).unwrap();
        let asked = std::process::Command::new("git")
            .args(["config", "--file"])
            .arg(identity.file())
            .args(["--get", "user.name"])
            .output();
        let Ok(told) = asked else {
            return;
        };
        assert_eq!(String::from_utf8_lossy(&told.stdout).trim_end(), name);
    }
}
