//! Toolchains in the user's home folder, which tool processes do not see unless the configuration
//! admits them: for each, the folders to read and the variables that lead to them. In the sandbox
//! `HOME` is another folder, so a toolchain finds its files by its variables alone.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use planck_host::environment;

/// A toolchain that is installed in a home folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Toolchain {
    pub name: &'static str,
    folders: &'static [ToolchainFolder],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ToolchainFolder {
    /// The variable that names the folder.
    variable: Option<&'static str>,
    /// The folder below the home folder, if the variable is not set.
    usual: &'static str,
    /// The entries that may be read, or none if the whole folder may be. The others of the folder
    /// hold credentials, caches or settings.
    parts: &'static [&'static str],
}

const fn folder(
    variable: Option<&'static str>,
    usual: &'static str,
    parts: &'static [&'static str],
) -> ToolchainFolder {
    ToolchainFolder {
        variable,
        usual,
        parts,
    }
}

/// The toolchains that are known. Each has its name in its own documentation, which also names its
/// variables.
pub const TOOLCHAINS: &[Toolchain] = &[
    Toolchain {
        name: "rustup",
        folders: &[
            folder(Some("RUSTUP_HOME"), ".rustup", &[]),
            folder(Some("CARGO_HOME"), ".cargo", &["bin", "registry", "git"]),
        ],
    },
    Toolchain {
        name: "go",
        folders: &[folder(Some("GOPATH"), "go", &["bin", "pkg"])],
    },
    Toolchain {
        name: "nvm",
        folders: &[folder(
            Some("NVM_DIR"),
            ".nvm",
            &["versions", "alias", "nvm.sh"],
        )],
    },
    Toolchain {
        name: "fnm",
        folders: &[folder(Some("FNM_DIR"), ".local/share/fnm", &[])],
    },
    Toolchain {
        name: "volta",
        folders: &[folder(Some("VOLTA_HOME"), ".volta", &["bin", "tools"])],
    },
    Toolchain {
        name: "bun",
        folders: &[folder(Some("BUN_INSTALL"), ".bun", &["bin"])],
    },
    Toolchain {
        name: "deno",
        folders: &[folder(Some("DENO_INSTALL"), ".deno", &["bin"])],
    },
    Toolchain {
        name: "pyenv",
        folders: &[folder(
            Some("PYENV_ROOT"),
            ".pyenv",
            &["bin", "shims", "libexec", "versions", "version"],
        )],
    },
    Toolchain {
        name: "uv",
        folders: &[
            folder(Some("UV_PYTHON_INSTALL_DIR"), ".local/share/uv/python", &[]),
            folder(Some("UV_TOOL_DIR"), ".local/share/uv/tools", &[]),
            folder(None, ".local/bin", &[]),
        ],
    },
    Toolchain {
        name: "rbenv",
        folders: &[folder(Some("RBENV_ROOT"), ".rbenv", &[])],
    },
    Toolchain {
        name: "asdf",
        folders: &[folder(Some("ASDF_DATA_DIR"), ".asdf", &[])],
    },
    Toolchain {
        name: "mise",
        folders: &[folder(Some("MISE_DATA_DIR"), ".local/share/mise", &[])],
    },
    Toolchain {
        name: "sdkman",
        folders: &[folder(
            Some("SDKMAN_DIR"),
            ".sdkman",
            &["bin", "candidates"],
        )],
    },
];

impl Toolchain {
    pub fn find(name: &str) -> Option<Self> {
        TOOLCHAINS
            .iter()
            .find(|toolchain| toolchain.name == name)
            .copied()
    }

    /// Returns the toolchains whose folders exist.
    pub fn installed() -> Vec<Self> {
        let exists = |toolchain: &&Self| toolchain.readable().iter().any(|path| path.exists());
        TOOLCHAINS.iter().filter(exists).copied().collect()
    }

    /// Returns the toolchain that has a folder, such as one of `PATH`.
    pub fn of_folder(folder: &Path) -> Option<Self> {
        let has = |toolchain: &&Self| {
            let readable = toolchain.readable();
            readable.iter().any(|path| folder.starts_with(path))
        };
        TOOLCHAINS.iter().find(has).copied()
    }

    /// Returns the files and folders that processes have to read.
    pub fn readable(self) -> Vec<PathBuf> {
        let readable = self
            .folders()
            .flat_map(|(folder, place)| match folder.parts {
                [] => vec![place],
                parts => parts.iter().map(|part| place.join(part)).collect(),
            });
        readable.collect()
    }

    /// Returns the variables that processes need, each with its value.
    pub fn variables(self) -> Vec<(OsString, OsString)> {
        let named = self
            .folders()
            .filter_map(|(folder, place)| Some((folder.variable?.into(), place.into_os_string())));
        named.collect()
    }

    /// Returns the folders with their places. Without a home folder there are none.
    fn folders(self) -> impl Iterator<Item = (&'static ToolchainFolder, PathBuf)> {
        let home = environment::variable("HOME").map(PathBuf::from);
        self.folders.iter().filter_map(move |folder| {
            let named = folder.variable.and_then(environment::variable);
            let named = named.map(PathBuf::from);
            let usual = || Some(home.as_ref()?.join(folder.usual));
            let place = named.or_else(usual).filter(|place| place.is_absolute())?;
            Some((folder, place))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_variables_are_unique() {
        let mut names: Vec<&str> = TOOLCHAINS.iter().map(|toolchain| toolchain.name).collect();
        let variables = TOOLCHAINS.iter().flat_map(|toolchain| toolchain.folders);
        names.extend(variables.filter_map(|folder| folder.variable));
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        let of_name = Toolchain::find("rustup").unwrap();
        assert_eq!(of_name, TOOLCHAINS[0]);
        assert_eq!(Toolchain::find("cobol"), None);
    }

    #[test]
    fn toolchain_admits_its_programs_and_no_credentials() {
        let rustup = Toolchain::find("rustup").unwrap();
        let readable = rustup.readable();
        assert!(readable.iter().any(|path| path.ends_with("bin")));
        let home = readable.iter().find(|path| path.ends_with("bin")).unwrap();
        let credentials = home.with_file_name("credentials.toml");
        assert!(readable.iter().all(|path| !credentials.starts_with(path)));
        assert_eq!(Toolchain::of_folder(home), Some(rustup));
        assert_eq!(Toolchain::of_folder(Path::new("/usr/bin")), None);
    }
}
