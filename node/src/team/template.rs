//! TEAM.json: an array of members, or an object with a name, a description and members.

use std::{
    fs,
    path::{Path, PathBuf},
};

use planck_common::{
    command::{TeamMember, TeamRow},
    spec::Member,
};
use serde_json::{Map, Value};

use super::mistake::{Mistakes, TemplateError, TemplateErrors, did_you_mean};
use super::resolve;

/// A team as it was written, with its prompts loaded.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    pub name: String,
    pub description: String,
    pub members: Vec<Member>,
    pub file: PathBuf,
}

impl Template {
    /// As a list of teams shows it.
    pub fn row(&self) -> TeamRow {
        let members = self.members.iter().map(|member| {
            let tools = resolve::tools(member.tools.iter().flatten().map(String::as_str).collect(), true, false);
            TeamMember {
                name: member.name.clone().unwrap_or_else(|| member.r#type.clone()),
                r#type: member.r#type.clone(),
                description: member.description.clone().unwrap_or_default(),
                role: resolve::role(&tools),
            }
        });
        TeamRow { name: self.name.clone(), description: self.description.clone(), members: members.collect() }
    }
}

/// What a file or a prompt may hold, in bytes.
const LIMIT: u64 = 1024 * 1024;

const MEMBER_FIELDS: [&str; 14] = [
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
    "limits",
    "labels",
];

/// Loads a template from a TEAM.json, or from the folder it is in.
pub fn load(path: &Path) -> Result<Template, TemplateErrors> {
    let (template, found) = inspect(path);
    template.filter(|_| found.is_empty()).ok_or(TemplateErrors(found))
}

/// Everything that is wrong with a template's text, and the template if each of its members could be read.
pub fn inspect(path: &Path) -> (Option<Template>, Vec<TemplateError>) {
    let file = if path.is_dir() { path.join("TEAM.json") } else { path.to_path_buf() };
    let label = file.display().to_string();
    let mut found = Vec::new();
    let template = read(&file)
        .map_err(|what| (what, "name a TEAM.json or its folder"))
        .and_then(|text| serde_json::from_str(&text).map_err(|error| (format!("not JSON: {error}"), "correct the file")));
    let template = match template {
        Ok(value) => parse(&file, &label, value, &mut found),
        Err((what, remedy)) => {
            Mistakes::in_file(&label, &mut found).add(None, what, remedy);
            None
        }
    };
    (template, found)
}

/// The template of a name in the first folder that has it.
pub fn find(dirs: &[PathBuf], name: &str) -> Option<PathBuf> {
    let plain = !name.is_empty() && !name.contains(['/', '\\']) && name != "..";
    dirs.iter().map(|dir| dir.join(name).join("TEAM.json")).find(|file| plain && file.is_file())
}

/// Every template in these folders by name, the broken ones with what is wrong.
pub fn list(dirs: &[PathBuf]) -> Vec<(String, Result<Template, TemplateErrors>)> {
    let names = dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten();
    let names: std::collections::BTreeSet<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let found = names.into_iter().filter_map(|name| find(dirs, &name).map(|file| (name, file)));
    found.map(|(name, file)| (name, load(&file))).collect()
}

fn read(path: &Path) -> Result<String, String> {
    let describe = |error| format!("cannot read it: {error}");
    if fs::metadata(path).map_err(describe)?.len() > LIMIT {
        return Err("it is larger than 1 MiB".into());
    }
    fs::read_to_string(path).map_err(describe)
}

fn parse(file: &Path, label: &str, value: Value, found: &mut Vec<TemplateError>) -> Option<Template> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let folder_name = folder.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let mut head = match value {
        Value::Array(members) => Map::from_iter([("members".to_owned(), Value::Array(members))]),
        Value::Object(head) => head,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            Mistakes::in_file(label, found).add(None, "neither an array nor an object", "write an array of members");
            return None;
        }
    };
    let mut mistakes = Mistakes::in_file(label, found);
    let name = text_field(&mut head, "name", &mut mistakes).or(folder_name).unwrap_or_else(|| "team".into());
    let description = text_field(&mut head, "description", &mut mistakes).unwrap_or_default();
    let members = head.remove("members");
    for unknown in head.keys() {
        let remedy = did_you_mean(unknown, ["name", "description", "members"]);
        mistakes.field(unknown, "unknown field", remedy);
    }
    let Some(Value::Array(members)) = members else {
        mistakes.field("members", "not an array of members", "write `\"members\": [ … ]`");
        return None;
    };
    if members.is_empty() {
        mistakes.field("members", "no member", "write at least one, `[{\"type\": …}]`");
    }
    let members = members.into_iter().enumerate();
    let members: Vec<Option<Member>> = members.map(|(at, value)| member(folder, label, at, value, found)).collect();
    let members = members.into_iter().collect::<Option<Vec<Member>>>()?;
    Some(Template { name, description, members, file: file.to_path_buf() })
}

fn text_field(head: &mut Map<String, Value>, field: &str, mistakes: &mut Mistakes<'_>) -> Option<String> {
    match head.remove(field)? {
        Value::String(text) => Some(text),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            mistakes.field(field, "not a text", "write it in quotes");
            None
        }
    }
}

fn member(folder: &Path, label: &str, at: usize, value: Value, found: &mut Vec<TemplateError>) -> Option<Member> {
    let who = ["name", "type"].iter().find_map(|field| value.get(field)?.as_str()).map(Into::into);
    let mut mistakes = Mistakes::of_member(label, who.unwrap_or_else(|| format!("#{}", at + 1)), found);
    let Value::Object(fields) = value else {
        mistakes.add(None, "not an object", "write `{\"type\": …}`");
        return None;
    };
    for (field, value) in &fields {
        check_field(field, value, &mut mistakes);
    }
    let mut member: Member = serde_json::from_value(Value::Object(fields)).ok()?;
    member.system_prompt = member.system_prompt.and_then(|text| prompt(folder, text, &mut mistakes));
    Some(member)
}

/// A field is read alone, so that each mistake of a member is found.
fn check_field(field: &str, value: &Value, mistakes: &mut Mistakes<'_>) {
    if !MEMBER_FIELDS.contains(&field) {
        return mistakes.field(field, "unknown field", did_you_mean(field, MEMBER_FIELDS));
    }
    let alone = Map::from_iter([(field.to_owned(), value.clone())]);
    if let Err(error) = serde_json::from_value::<Member>(Value::Object(alone)) {
        mistakes.field(field, error.to_string(), "see `planck schema message.member`");
    }
}

fn is_path(text: &str) -> bool {
    let named = [".md", ".txt"].iter().any(|end| text.ends_with(end));
    named && !text.contains(char::is_whitespace)
}

/// The prompt itself, or the text of the file inside the team's folder that it names.
fn prompt(folder: &Path, text: String, mistakes: &mut Mistakes<'_>) -> Option<String> {
    if !is_path(&text) {
        return Some(text);
    }
    match inside(folder, &text).and_then(|path| read(&path)) {
        Ok(prompt) => Some(prompt),
        Err(what) => {
            mistakes.field("system_prompt", format!("`{text}`: {what}"), "name a file inside the team's folder");
            None
        }
    }
}

fn inside(folder: &Path, path: &str) -> Result<PathBuf, String> {
    let describe = |error: std::io::Error| format!("cannot read it: {error}");
    let folder = folder.canonicalize().map_err(describe)?;
    let path = folder.join(path).canonicalize().map_err(describe)?;
    if path.starts_with(&folder) { Ok(path) } else { Err("it is outside the team's folder".into()) }
}
