//! Skills: instructions that an agent loads when it needs them, from `<dir>/<name>/SKILL.md`.

mod header;
mod tools;

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use header::BadHeader;
pub use tools::tools;

use crate::tools::{Unknown, external::subfolders};

/// The file that is a skill.
pub const FILE: &str = "SKILL.md";

/// The folder of what a skill brings along.
const RESOURCES: &str = "resources";

/// A larger one is not read.
const LARGEST: u64 = 1024 * 1024;

/// A skill by its header; its text is read when it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    pub name: String,
    pub description: String,
    pub file: PathBuf,
    pub resources: Option<PathBuf>,
}

/// A folder that holds no skill.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{folder} holds no {FILE}; add one, or move the folder out of the skills folder")]
    Missing { folder: PathBuf },
    #[error("cannot read {file}: {why}")]
    Unreadable { file: PathBuf, why: io::Error },
    #[error("{file}, line {line}: {bad}", line = .bad.line())]
    Header { file: PathBuf, bad: BadHeader },
    #[error("{file}: there is a skill `{name}` already, in {first}; rename one of them")]
    Taken { file: PathBuf, name: String, first: PathBuf },
}

/// Skills by name. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Skills(Arc<BTreeMap<String, Skill>>);

impl Skills {
    /// Every skill below the folders, and every problem; of two of one name the first is kept.
    pub fn load(dirs: &[PathBuf]) -> (Self, Vec<Problem>) {
        let (mut skills, mut problems) = (BTreeMap::<String, Skill>::new(), Vec::new());
        for folder in dirs.iter().flat_map(|dir| subfolders(dir)) {
            match load_one(&folder) {
                Err(problem) => problems.push(problem),
                Ok(skill) => match skills.get(&skill.name) {
                    Some(first) => {
                        problems.push(Problem::Taken { file: skill.file, name: skill.name, first: first.file.clone() })
                    }
                    None => drop(skills.insert(skill.name.clone(), skill)),
                },
            }
        }
        (Self(skills.into()), problems)
    }

    /// Those of that names, and the names that no skill has.
    pub fn only<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> (Self, Vec<Unknown>) {
        let (mut found, mut unknown) = (BTreeMap::new(), Vec::new());
        for name in names {
            match self.find(name) {
                Some(skill) => drop(found.insert(name.to_owned(), skill.clone())),
                None => unknown.push(Unknown::of("skill", name, self.names())),
            }
        }
        (Self(found.into()), unknown)
    }

    pub fn find(&self, name: &str) -> Option<&Skill> {
        self.0.get(name)
    }

    /// Sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &Skill> {
        self.0.values()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Skill {
    /// What a system prompt says of it.
    pub fn entry(&self) -> String {
        let resources = self.resources.as_ref().map(|path| format!("\n  resources: {}", path.display())).unwrap_or_default();
        format!("- {}: {}\n  file: {}{resources}", self.name, self.description, self.file.display())
    }
}

fn load_one(folder: &Path) -> Result<Skill, Problem> {
    let file = folder.join(FILE);
    let text = match read(&file) {
        Ok(text) => text,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Err(Problem::Missing { folder: folder.into() }),
        Err(why) => return Err(Problem::Unreadable { file, why }),
    };
    let header = header::parse(&text).map_err(|bad| Problem::Header { file: file.clone(), bad })?;
    let resources = Some(folder.join(RESOURCES)).filter(|path| path.is_dir());
    Ok(Skill { name: header.name, description: header.description, file, resources })
}

fn read(file: &Path) -> io::Result<String> {
    if fs::metadata(file)?.len() > LARGEST {
        return Err(io::Error::other(format!("it is larger than {LARGEST} bytes")));
    }
    fs::read_to_string(file)
}

#[cfg(test)]
mod tests;
