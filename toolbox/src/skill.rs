//! Skills are instructions that an agent loads when it needs them. Each is a file
//! `<dir>/<name>/SKILL.md`.

mod header;
mod tools;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use header::BadHeader;
pub use tools::tools;

use crate::Unknown;
use crate::project::{NameClash, NotRead, ProjectSource};
use planck_host::regular_file::FileRefused;

/// The name of the file that describes a skill.
pub const FILE: &str = "SKILL.md";

/// The name of the folder with a skill's resources.
const RESOURCES: &str = "resources";

/// The maximum size of a skill's file in bytes.
pub(crate) const LARGEST: u64 = 1024 * 1024;

/// A skill, as the header of its file describes it. The rest of the file is read when an agent
/// loads the skill.
#[derive(Debug, Clone)]
pub struct Skill {
    pub name: String,
    pub description: String,
    pub file: PathBuf,
    pub resources: Option<PathBuf>,
    source: ProjectSource,
    /// The path of the skill's file, relative to the source.
    below: PathBuf,
}

/// The reason why a skill cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSkill {
    #[error("{folder} holds no {FILE}; add one, or move the folder out of the skills folder")]
    Missing { folder: PathBuf },
    #[error("cannot read {file}: {why}")]
    Unreadable { file: PathBuf, why: NotRead },
    #[error("{file}, line {line}: {bad}", line = .bad.line())]
    Header { file: PathBuf, bad: BadHeader },
    #[error("{file}: there is a skill `{name}` already, in {first}; rename one of them")]
    Taken {
        file: PathBuf,
        name: String,
        first: PathBuf,
    },
    #[error("{0}; rename one of them")]
    Clash(NameClash),
}

/// Returns the name clashes: skills that exist both in a user's folder and in the project.
pub fn clashes(problems: &[InvalidSkill]) -> impl Iterator<Item = &NameClash> {
    problems.iter().filter_map(|problem| match problem {
        InvalidSkill::Clash(clash) => Some(clash),
        InvalidSkill::Missing { .. }
        | InvalidSkill::Unreadable { .. }
        | InvalidSkill::Header { .. }
        | InvalidSkill::Taken { .. } => None,
    })
}

/// Skills by name. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Skills(Arc<BTreeMap<String, Skill>>);

impl Skills {
    /// Loads every skill of the sources. Returns the skills and all problems. Of two skills with
    /// the same name, the first is kept. If exactly one of the two is in the project, neither is
    /// kept. A project's skills for other programs come last.
    pub fn load(sources: &[ProjectSource]) -> (Self, Vec<InvalidSkill>) {
        let (mut skills, mut problems) = (BTreeMap::<String, Skill>::new(), Vec::new());
        let mut clashing = Vec::new();
        let (offered, own): (Vec<_>, Vec<_>) =
            sources.iter().partition(|source| source.is_offered());
        for found in own.into_iter().flat_map(found) {
            let skill = match found {
                Ok(skill) => skill,
                Err(problem) => {
                    problems.push(problem);
                    continue;
                }
            };
            match skills.get(&skill.name) {
                None => drop(skills.insert(skill.name.clone(), skill)),
                Some(first)
                    if first.source.project().is_some() == skill.source.project().is_some() =>
                {
                    problems.push(InvalidSkill::Taken {
                        file: skill.file,
                        name: skill.name,
                        first: first.file.clone(),
                    });
                }
                Some(first) => {
                    clashing.push(NameClash {
                        kind: "skill",
                        own: first.file.clone(),
                        project: skill.file,
                        name: skill.name,
                    });
                }
            }
        }
        for found in offered.into_iter().flat_map(found) {
            match found {
                Ok(skill) => add_offered(skill, &mut skills, &mut problems),
                Err(problem) => problems.push(problem),
            }
        }
        for clash in clashing {
            skills.remove(&clash.name);
            problems.push(InvalidSkill::Clash(clash));
        }
        (Self(skills.into()), problems)
    }

    /// Returns the skills with these names, and an error for each name that belongs to no skill.
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

    /// Iterates over the skills in the order of their names.
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
    /// Returns the lines that describe this skill in a system prompt.
    pub fn entry(&self) -> String {
        let resources = self
            .resources
            .as_ref()
            .map(|path| format!("\n  resources: {}", path.display()))
            .unwrap_or_default();
        format!(
            "- {}: {}\n  file: {}{resources}",
            self.name,
            self.description,
            self.file.display()
        )
    }
}

/// Adds a project's skill for other programs, unless there is a skill with this name. Repositories
/// have the same skill for several programs, so only a skill of the user is reported.
fn add_offered(
    skill: Skill,
    skills: &mut BTreeMap<String, Skill>,
    problems: &mut Vec<InvalidSkill>,
) {
    match skills.get(&skill.name) {
        None => drop(skills.insert(skill.name.clone(), skill)),
        Some(first) if first.source.project().is_some() => {}
        Some(first) => problems.push(InvalidSkill::Taken {
            first: first.file.clone(),
            file: skill.file,
            name: skill.name,
        }),
    }
}

/// Returns the name and the description of a skill. `fallback` is the name if the header has none.
pub(crate) fn described(text: &str, fallback: Option<&str>) -> Result<(String, String), BadHeader> {
    let header::Header { name, description } = header::parse(text, fallback)?;
    Ok((name, description))
}

fn found(source: &ProjectSource) -> Vec<Result<Skill, InvalidSkill>> {
    let unreadable = |below: &Path, why: FileRefused| InvalidSkill::Unreadable {
        file: source.path(below),
        why: why.into(),
    };
    let folders = match source.folders() {
        Ok(folders) => folders,
        Err(why) => return vec![Err(unreadable(Path::new(""), why))],
    };
    let skills = folders.into_iter().map(|(name, refused)| match refused {
        Some(why) => Err(unreadable(name.as_ref(), why)),
        None => load_one(source, name.as_ref()),
    });
    skills.collect()
}

fn load_one(source: &ProjectSource, folder: &Path) -> Result<Skill, InvalidSkill> {
    let below = folder.join(FILE);
    let file = source.path(&below);
    let text = match source.read(&below, LARGEST) {
        Ok(Some(text)) => text,
        Ok(None) => {
            return Err(InvalidSkill::Missing {
                folder: source.path(folder),
            });
        }
        Err(why) => return Err(InvalidSkill::Unreadable { file, why }),
    };
    // Other programs name a skill after its folder if the header has no name.
    let fallback = source.is_offered().then(|| folder.to_str()).flatten();
    let header = header::parse(&text, fallback).map_err(|bad| InvalidSkill::Header {
        file: file.clone(),
        bad,
    })?;
    let resources = folder.join(RESOURCES);
    let resources = source
        .has_folder(&resources)
        .then(|| source.path(&resources));
    Ok(Skill {
        name: header.name,
        description: header.description,
        file,
        resources,
        source: source.clone(),
        below,
    })
}

impl Skill {
    /// Reads the current text of the skill.
    fn read(&self) -> Result<String, NotRead> {
        let text = self.source.read(&self.below, LARGEST)?;
        text.ok_or_else(|| NotRead::Refused(FileRefused::Io(std::io::ErrorKind::NotFound.into())))
    }
}

#[cfg(test)]
mod tests;
