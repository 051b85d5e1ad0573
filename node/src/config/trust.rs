//! The folders whose own configuration may set keys, addresses, commands and the sandbox.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// A list in the user's folder, a path a line.
#[derive(Debug, Clone)]
pub struct Trusted {
    file: PathBuf,
}

impl Trusted {
    /// The list kept in `~/.planck`.
    pub fn at(user_folder: &Path) -> Self {
        Self { file: user_folder.join("trusted") }
    }

    /// Whether this very folder was trusted.
    pub fn holds(&self, folder: &Path) -> bool {
        let Ok(folder) = folder.canonicalize() else { return false };
        self.list().contains(&folder)
    }

    pub fn list(&self) -> Vec<PathBuf> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().filter(|line| !line.is_empty()).map(PathBuf::from).collect()
    }

    /// Adds a folder; gives its path as it is recorded.
    pub fn add(&self, folder: &Path) -> io::Result<PathBuf> {
        let folder = folder.canonicalize()?;
        if !self.list().contains(&folder) {
            self.append(&folder)?;
        }
        Ok(folder)
    }

    fn append(&self, folder: &Path) -> io::Result<()> {
        let text = folder.to_str().filter(|text| !text.contains('\n'));
        let text = text.ok_or_else(|| io::Error::other("the folder's name is not plain text"))?;
        if let Some(parent) = self.file.parent() {
            fs::create_dir_all(parent)?;
        }
        writeln!(fs::OpenOptions::new().create(true).append(true).open(&self.file)?, "{text}")
    }

    /// Takes a folder out; whether it was in.
    pub fn remove(&self, folder: &Path) -> io::Result<bool> {
        let folder = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let (out, kept): (Vec<_>, Vec<_>) = self.list().into_iter().partition(|known| *known == folder);
        if !out.is_empty() {
            fs::write(&self.file, kept.iter().map(|path| format!("{}\n", path.display())).collect::<String>())?;
        }
        Ok(!out.is_empty())
    }
}
