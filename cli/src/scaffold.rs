//! Writes the starter projects of `planck sidecar new` and `planck team new` from templates in this
//! binary.
//!
//! The files of a template are stored under `cli/src/scaffold/` in the form in which they are
//! written, except for placeholders. A placeholder in source code is a valid identifier, so that
//! the templates themselves compile and can be tested.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::{exit::UsageError, output::say};

/// A file of a template: its path in the project, and its text.
pub type ScaffoldFile = (&'static str, &'static str);

/// A project to write: its files and its folder.
pub struct Scaffold {
    pub folder: PathBuf,
    pub files: &'static [ScaffoldFile],
    /// The placeholders, each with the text that replaces it.
    pub replacements: Vec<(&'static str, String)>,
    /// Files that are written as they are, each with its path.
    pub copied: Vec<(String, String)>,
}

impl Scaffold {
    /// Writes all files, and prints their names. Fails if the folder is not empty, so no file is
    /// overwritten.
    pub fn write(&self) -> anyhow::Result<()> {
        self.claim_folder()?;
        for (path, _) in self.files {
            let file = self.folder.join(path);
            write_new(&file, &self.text(path))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        for (path, text) in &self.copied {
            let file = self.folder.join(path);
            write_new(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        let names: Vec<&str> = self.files.iter().map(|(path, _)| *path).collect();
        Ok(say(&format!(
            "wrote {}: {}\n",
            self.folder.display(),
            names.join(", ")
        ))?)
    }

    /// Returns the text of a file, with its placeholders replaced.
    pub fn text(&self, path: &str) -> String {
        let template = self
            .files
            .iter()
            .find(|(name, _)| *name == path)
            .map_or("", |(_, text)| *text);
        self.replacements
            .iter()
            .fold(template.to_owned(), |text, (placeholder, value)| {
                text.replace(placeholder, value)
            })
    }

    fn claim_folder(&self) -> anyhow::Result<()> {
        let shown = self.folder.display();
        match fs::read_dir(&self.folder) {
            Ok(mut entries) => match entries.next() {
                None => Ok(()),
                Some(_) => Err(UsageError(format!(
                    "{shown} exists and is not empty; name another folder with --dir"
                ))
                .into()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => Err(UsageError(format!(
                "{shown} exists and is no folder; name another one with --dir"
            ))
            .into()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {shown}"))
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {shown}")),
        }
    }
}

fn write_new(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file)?
        .write_all(text.as_bytes())
}
