//! Finds and parses TEAM.json files. A TEAM.json is an array of members, or an object with a name,
//! a description and members. Each mistake in it names the file and how to correct it, and the
//! member and the field if it concerns one.

use std::{
    fmt,
    path::{Component, Path, PathBuf},
};

use planck_common::{
    command::{TeamMember, TeamRow},
    similar,
    spec::Member,
};
use planck_toolbox::project::{NameClash, ProjectSource};
use serde_json::{Map, Value};

use super::resolve;

/// The name of the file that describes a team.
const FILE: &str = "TEAM.json";

/// A team as its template describes it, with the texts of its prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct TeamTemplate {
    pub name: String,
    pub description: String,
    pub members: Vec<Member>,
    pub file: PathBuf,
}

impl TeamTemplate {
    /// Returns the row of this team in a list of teams.
    pub fn row(&self) -> TeamRow {
        let members = self.members.iter().map(|member| {
            let tools = resolve::tools(
                member.tools.iter().flatten().map(String::as_str).collect(),
                true,
                false,
            );
            TeamMember {
                name: member.name.clone().unwrap_or_else(|| member.r#type.clone()),
                r#type: member.r#type.clone(),
                description: member.description.clone().unwrap_or_default(),
                role: resolve::role(&tools),
            }
        });
        TeamRow {
            name: self.name.clone(),
            description: self.description.clone(),
            members: members.collect(),
        }
    }
}

/// The maximum size in bytes of a TEAM.json or a prompt file.
const LIMIT: u64 = 1024 * 1024;

const MEMBER_FIELDS: [&str; 18] = [
    "type",
    "name",
    "description",
    "provider",
    "model_id",
    "base_url",
    "system_prompt",
    "opts",
    "tools",
    "skills",
    "grant",
    "compactor",
    "listed_tools",
    "limits",
    "labels",
    "permissions",
    "permission_mode",
    "output",
];

/// The location of a TEAM.json: the source, which also contains the team's prompts, and the path in
/// the source.
#[derive(Debug, Clone)]
pub struct TemplateFile {
    source: ProjectSource,
    /// The path relative to the source.
    below: PathBuf,
}

impl TemplateFile {
    /// Returns the template at a path that a user typed. The path is that of a TEAM.json or of the
    /// folder that contains one.
    pub fn typed(path: &Path) -> Self {
        match (path.is_dir(), path.parent(), path.file_name()) {
            (false, Some(folder), Some(name)) => {
                let folder = if folder.as_os_str().is_empty() {
                    Path::new(".")
                } else {
                    folder
                };
                Self {
                    source: ProjectSource::named(folder),
                    below: name.into(),
                }
            }
            _ => Self {
                source: ProjectSource::named(path),
                below: FILE.into(),
            },
        }
    }

    pub fn path(&self) -> PathBuf {
        self.source.path(&self.below)
    }

    fn read(&self, below: &Path) -> Result<String, String> {
        match self.source.read(below, LIMIT) {
            Ok(Some(text)) => Ok(text),
            Ok(None) => Err("cannot read it: there is no such file".into()),
            Err(why) => Err(format!("cannot read it: {why}")),
        }
    }

    /// Returns the text of a prompt. `text` is the prompt itself, or the path of a file in the
    /// team's folder that contains the prompt. If the file cannot be read, adds a mistake and
    /// returns `None`.
    fn prompt(&self, text: String, mistakes: &mut Mistakes<'_>) -> Option<String> {
        if !is_path(&text) {
            return Some(text);
        }
        let prompt = match stays_inside(Path::new(&text)) {
            true => self.read(&self.below.parent().unwrap_or(Path::new("")).join(&text)),
            false => Err("it is outside the team's folder".into()),
        };
        match prompt {
            Ok(prompt) => Some(prompt),
            Err(what) => {
                mistakes.field(
                    "system_prompt",
                    format!("`{text}`: {what}"),
                    "name a file inside the team's folder",
                );
                None
            }
        }
    }
}

/// Returns whether a relative path never leaves the folder at which it starts.
fn stays_inside(path: &Path) -> bool {
    let mut depth = 0_i32;
    path.components().all(|component| {
        match component {
            Component::Normal(_) => depth += 1,
            Component::CurDir => {}
            Component::ParentDir => depth -= 1,
            Component::RootDir | Component::Prefix(_) => return false,
        }
        depth >= 0
    })
}

/// Loads a template. If the template has mistakes, returns all of them as the error.
pub fn load(file: &TemplateFile) -> Result<TeamTemplate, TemplateErrors> {
    let (template, found) = inspect(file);
    template
        .filter(|_| found.is_empty())
        .ok_or(TemplateErrors(found))
}

/// Parses a template. Returns the template without the fields that have mistakes, and all mistakes.
/// The template is `None` if the file or one of its members cannot be read.
pub fn inspect(file: &TemplateFile) -> (Option<TeamTemplate>, Vec<TemplateError>) {
    let label = file.path().display().to_string();
    let mut found = Vec::new();
    let template = file
        .read(&file.below)
        .map_err(|what| (what, "name a TEAM.json or its folder"))
        .and_then(|text| {
            serde_json::from_str(&text)
                .map_err(|error| (format!("not JSON: {error}"), "correct the file"))
        });
    let template = match template {
        Ok(value) => parse(file, &label, value, &mut found),
        Err((what, remedy)) => {
            Mistakes::in_file(&label, &mut found).add(None, what, remedy);
            None
        }
    };
    (template, found)
}

/// Returns the location of the template with this name, in the first folder that has one. Fails if
/// a user's folder and the project both have one.
pub fn find(sources: &[ProjectSource], name: &str) -> Result<Option<TemplateFile>, NameClash> {
    let plain = !name.is_empty() && !name.contains(['/', '\\']) && name != "." && name != "..";
    let below = Path::new(name).join(FILE);
    let found = sources.iter().filter(|source| plain && source.has(&below));
    let (projects, own): (Vec<&ProjectSource>, Vec<&ProjectSource>) =
        found.partition(|source| source.project().is_some());
    match (own.first(), projects.first()) {
        (Some(own), Some(project)) => Err(NameClash {
            kind: "team",
            name: name.into(),
            own: own.path(&below),
            project: project.path(&below),
        }),
        (Some(source), None) | (None, Some(source)) => Ok(Some(TemplateFile {
            source: (*source).clone(),
            below,
        })),
        (None, None) => Ok(None),
    }
}

/// Returns every template in these folders by name. A template with mistakes is represented by its
/// mistakes.
pub fn list(sources: &[ProjectSource]) -> Vec<(String, Result<TeamTemplate, TemplateErrors>)> {
    let folders = sources
        .iter()
        .filter_map(|source| source.folders().ok())
        .flatten();
    let names: std::collections::BTreeSet<String> = folders.map(|(name, _)| name).collect();
    let template = |name: &String| match find(sources, name) {
        Ok(file) => file.map(|file| load(&file)),
        Err(clash) => Some(Err(clash.into())),
    };
    names
        .into_iter()
        .filter_map(|name| template(&name).map(|template| (name, template)))
        .collect()
}

impl From<NameClash> for TemplateErrors {
    fn from(clash: NameClash) -> Self {
        let mut found = Vec::new();
        let (file, remedy) = (clash.project.display().to_string(), "rename one of them");
        let what = format!(
            "there is a team `{}` already, in {}",
            clash.name,
            clash.own.display()
        );
        Mistakes::in_file(&file, &mut found).add(None, what, remedy);
        Self(found)
    }
}

fn parse(
    file: &TemplateFile,
    label: &str,
    value: Value,
    found: &mut Vec<TemplateError>,
) -> Option<TeamTemplate> {
    let folder_name = file
        .path()
        .parent()
        .and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut head = match value {
        Value::Array(members) => Map::from_iter([("members".to_owned(), Value::Array(members))]),
        Value::Object(head) => head,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Mistakes::in_file(label, found).add(
                None,
                "neither an array nor an object",
                "write an array of members",
            );
            return None;
        }
    };
    let mut mistakes = Mistakes::in_file(label, found);
    let name = text_field(&mut head, "name", &mut mistakes)
        .or(folder_name)
        .unwrap_or_else(|| "team".into());
    let description = text_field(&mut head, "description", &mut mistakes).unwrap_or_default();
    let members = head.remove("members");
    for unknown in head.keys() {
        let remedy = did_you_mean(unknown, ["name", "description", "members"]);
        mistakes.field(unknown, "unknown field", remedy);
    }
    let Some(Value::Array(members)) = members else {
        mistakes.field(
            "members",
            "not an array of members",
            "write `\"members\": [ … ]`",
        );
        return None;
    };
    if members.is_empty() {
        mistakes.field(
            "members",
            "no member",
            "write at least one, `[{\"type\": …}]`",
        );
    }
    let members = members.into_iter().enumerate();
    let members: Vec<Option<Member>> = members
        .map(|(at, value)| member(file, label, at, value, found))
        .collect();
    let members = members.into_iter().collect::<Option<Vec<Member>>>()?;
    Some(TeamTemplate {
        name,
        description,
        members,
        file: file.path(),
    })
}

fn text_field(
    head: &mut Map<String, Value>,
    field: &str,
    mistakes: &mut Mistakes<'_>,
) -> Option<String> {
    match head.remove(field)? {
        Value::String(text) => Some(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            mistakes.field(field, "not a text", "write it in quotes");
            None
        }
    }
}

fn member(
    file: &TemplateFile,
    label: &str,
    at: usize,
    value: Value,
    found: &mut Vec<TemplateError>,
) -> Option<Member> {
    let who = ["name", "type"]
        .iter()
        .find_map(|field| value.get(field)?.as_str())
        .map(Into::into);
    let mut mistakes =
        Mistakes::of_member(label, who.unwrap_or_else(|| format!("#{}", at + 1)), found);
    let Value::Object(fields) = value else {
        mistakes.add(None, "not an object", "write `{\"type\": …}`");
        return None;
    };
    // Fields with mistakes are left out, so that parsing continues and finds the mistakes of the
    // other fields.
    let readable: Map<String, Value> = fields
        .into_iter()
        .filter(|(field, value)| check_field(field, value, &mut mistakes))
        .collect();
    let mut member: Member = serde_json::from_value(Value::Object(readable)).ok()?;
    member.system_prompt = member
        .system_prompt
        .and_then(|text| file.prompt(text, &mut mistakes));
    Some(member)
}

/// Returns whether a field is valid, and adds a mistake if it is not. Each field is checked on its
/// own, so that all mistakes of a member are found.
fn check_field(field: &str, value: &Value, mistakes: &mut Mistakes<'_>) -> bool {
    if !MEMBER_FIELDS.contains(&field) {
        mistakes.field(field, "unknown field", did_you_mean(field, MEMBER_FIELDS));
        return false;
    }
    let alone = Map::from_iter([(field.to_owned(), value.clone())]);
    match serde_json::from_value::<Member>(Value::Object(alone)) {
        Ok(_) => true,
        Err(error) => {
            mistakes.field(
                field,
                error.to_string(),
                "see `planck schema message.member`",
            );
            false
        }
    }
}

fn is_path(text: &str) -> bool {
    let named = [".md", ".txt"].iter().any(|end| text.ends_with(end));
    named && !text.contains(char::is_whitespace)
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateError {
    pub file: String,
    /// The member's name, or else its type, or else its position, such as `#2`.
    pub member: Option<String>,
    pub field: Option<String>,
    pub what: String,
    pub remedy: String,
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(member) = &self.member {
            write!(f, ", member \"{member}\"")?;
        }
        if let Some(field) = &self.field {
            write!(f, ", `{field}`")?;
        }
        write!(f, ": {}; {}", self.what, self.remedy)
    }
}

/// All mistakes in a template. `Display` writes one mistake per line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateErrors(pub Vec<TemplateError>);

impl fmt::Display for TemplateErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            write!(f, "{}{error}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for TemplateErrors {}

/// Collects the mistakes in one part of a template.
#[derive(Debug)]
pub struct Mistakes<'a> {
    file: &'a str,
    member: Option<String>,
    found: &'a mut Vec<TemplateError>,
}

impl<'a> Mistakes<'a> {
    pub fn in_file(file: &'a str, found: &'a mut Vec<TemplateError>) -> Self {
        Self {
            file,
            member: None,
            found,
        }
    }

    pub fn of_member(file: &'a str, member: String, found: &'a mut Vec<TemplateError>) -> Self {
        Self {
            file,
            member: Some(member),
            found,
        }
    }

    pub fn add(&mut self, field: Option<&str>, what: impl Into<String>, remedy: impl Into<String>) {
        self.found.push(TemplateError {
            file: self.file.into(),
            member: self.member.clone(),
            field: field.map(Into::into),
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    pub fn field(&mut self, field: &str, what: impl Into<String>, remedy: impl Into<String>) {
        self.add(Some(field), what, remedy);
    }
}

/// Returns advice for an unknown name: the most similar known name, or the list of known names if
/// none is similar enough.
pub fn did_you_mean<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    similar::did_you_mean(wanted, known.clone()).unwrap_or_else(|| {
        format!(
            "known are {}",
            known.into_iter().collect::<Vec<_>>().join(", ")
        )
    })
}
