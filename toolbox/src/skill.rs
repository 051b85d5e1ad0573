//! Skills are instructions that an agent loads when it needs them. Each is a file
//! `<dir>/<name>/SKILL.md`. An agent finds and reads them with two tools.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::json;

use planck_agent::model::ToolSpec;
use planck_common::{event::ToolEffect, id::is_id};
use planck_host::regular_file::FileRefused;

use crate::{
    Invocation, Tool, ToolOutcome, Unknown, args,
    project::{NameClash, NotRead, ProjectSource},
    spec,
};

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
    let Header { name, description } = parse_header(text, fallback)?;
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
    let header = parse_header(&text, fallback).map_err(|bad| InvalidSkill::Header {
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

// The header of a SKILL.md, which is YAML between two lines of `---`.

const FENCE: &str = "---";

#[derive(Debug, PartialEq, Eq)]
struct Header {
    name: String,
    description: String,
}

/// A mistake in a header, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadHeader {
    #[error(
        "the file does not begin with `---`; begin it with `---`, `name: …`, `description: …`, `---`"
    )]
    NotOpened,
    #[error("the header is not closed; end it with a line of `---`")]
    NotClosed { line: usize },
    #[error(
        "the header cannot be read: {what}; its values are texts, and one with a colon in it needs quotes"
    )]
    NotYaml { line: usize, what: String },
    #[error("the header has no `{field}`; add `{field}: …`")]
    Missing { field: &'static str, line: usize },
    #[error("`{name}` cannot name a skill; use 1 to 64 of A-Z a-z 0-9 _ -")]
    Name { name: String, line: usize },
}

impl BadHeader {
    /// Returns the line of the mistake in the file, counted from 1.
    pub fn line(&self) -> usize {
        match self {
            Self::NotOpened => 1,
            Self::NotClosed { line }
            | Self::NotYaml { line, .. }
            | Self::Missing { line, .. }
            | Self::Name { line, .. } => *line,
        }
    }
}

/// The fields of the header that Planck reads. All others are ignored, because they belong to other
/// programs.
#[derive(Deserialize)]
struct Fields {
    name: Option<String>,
    description: Option<String>,
}

/// Parses the header of a SKILL.md. `fallback` is the name of a skill whose header has none.
fn parse_header(text: &str, fallback: Option<&str>) -> Result<Header, BadHeader> {
    let (yaml, _) = split(text)?;
    let fields: Fields = serde_saphyr::from_str(yaml).map_err(|why| not_yaml(&why))?;
    let missing = |field| BadHeader::Missing { field, line: 1 };
    let name = fields
        .name
        .filter(|name| !name.is_empty())
        .or(fallback.map(Into::into))
        .ok_or(missing("name"))?;
    let description = fields
        .description
        .map(|text| one_line(&text))
        .filter(|text| !text.is_empty())
        .ok_or(missing("description"))?;
    if !is_id(&name) {
        let line = 2 + yaml
            .lines()
            .take_while(|line| !line.trim_start().starts_with("name"))
            .count();
        return Err(BadHeader::Name { name, line });
    }
    Ok(Header { name, description })
}

/// Returns the text of a SKILL.md after its header, or the whole text if the header is not valid.
fn body(text: &str) -> &str {
    split(text)
        .map_or(text, |(_, body)| body)
        .trim_start_matches(['\r', '\n'])
}

fn split(text: &str) -> Result<(&str, &str), BadHeader> {
    let text = text.trim_start_matches('\u{feff}');
    let mut lines = text.split_inclusive('\n');
    let opening = lines
        .next()
        .filter(|line| line.trim_end() == FENCE)
        .ok_or(BadHeader::NotOpened)?;
    let mut end = opening.len();
    for line in lines {
        if line.trim_end() == FENCE {
            let yaml = text.get(opening.len()..end).unwrap_or_default();
            return Ok((yaml, text.get(end + line.len()..).unwrap_or_default()));
        }
        end += line.len();
    }
    Err(BadHeader::NotClosed {
        line: text.lines().count().max(1),
    })
}

fn not_yaml(why: &serde_saphyr::Error) -> BadHeader {
    let within = why
        .location()
        .map_or(1, |location| usize::try_from(location.line()).unwrap_or(1));
    let text = why.to_string();
    let first = text.lines().next().unwrap_or_default();
    // The message contains a position that counts from the first line of the header. The position
    // is removed, because the error has its own.
    let what = first
        .split_once("column ")
        .and_then(|(_, rest)| rest.split_once(": "))
        .map_or(first, |(_, what)| what);
    BadHeader::NotYaml {
        line: within + 1,
        what: what.to_owned(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

// The tools `load_skill` and `list_skills` for the skills of one agent.

/// Returns the two tools for an agent with these skills.
pub fn tools(skills: &Skills) -> [Arc<dyn Tool>; 2] {
    [
        Arc::new(LoadSkill::new(skills.clone())),
        Arc::new(ListSkills::new(skills.clone())),
    ]
}

struct LoadSkill {
    spec: ToolSpec,
    skills: Skills,
}

#[derive(Deserialize)]
struct LoadSkillArgs {
    name: String,
}

impl LoadSkill {
    fn new(skills: Skills) -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {"name": {"type": "string", "minLength": 1}},
            "required": ["name"],
            "additionalProperties": false,
        });
        Self {
            spec: spec(
                "load_skill",
                "Read a skill's instructions.",
                ToolEffect::Pure,
                &parameters,
            ),
            skills,
        }
    }
}

#[async_trait]
impl Tool for LoadSkill {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let LoadSkillArgs { name } = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let Some(skill) = self.skills.find(&name) else {
            return ToolOutcome::error(
                Unknown::of("skill", &name, self.skills.names()).to_string(),
            );
        };
        let wanted = skill.clone();
        match tokio::task::spawn_blocking(move || wanted.read()).await {
            Err(panic) => ToolOutcome::error(format!("failed: {panic}")),
            Ok(Ok(text)) => ToolOutcome::ok(body(&text)),
            Ok(Err(why)) => ToolOutcome::error(format!(
                "cannot read skill `{name}` from {}: {why}",
                skill.file.display()
            )),
        }
    }
}

struct ListSkills {
    spec: ToolSpec,
    skills: Skills,
}

impl ListSkills {
    fn new(skills: Skills) -> Self {
        let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Self {
            spec: spec(
                "list_skills",
                "List your skills with their files.",
                ToolEffect::Pure,
                &parameters,
            ),
            skills,
        }
    }
}

#[async_trait]
impl Tool for ListSkills {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, _: Invocation) -> ToolOutcome {
        let skills: Vec<_> = self.skills.iter().map(|skill| {
            json!({"name": skill.name, "description": skill.description, "file": skill.file, "resources": skill.resources})
        }).collect();
        ToolOutcome::ok(json!(skills).to_string())
    }
}

#[cfg(test)]
mod tests;
