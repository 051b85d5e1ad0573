//! Tools from files: `<dir>/<name>/TOOL.json` describes a command, and each call runs it.

mod template;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde_json::{Map, Value, value::to_raw_value};

use planck_agent::model::ToolSpec;
use planck_common::{event::ToolEffect, id::is_id, similar::did_you_mean};

use self::template::CommandTemplate;
use crate::{
    Invocation, Tool, ToolOutcome,
    files::{Files, args},
    process::Launch,
    project::{Admitted, NameClash, NotRead, ProjectSource},
    schema::CompiledSchema,
    shell::Shell,
};

/// The name of the file that describes a tool.
pub const FILE: &str = "TOOL.json";

/// The maximum size of a description in bytes.
const LARGEST: u64 = 1024 * 1024;

/// The reason why a tool cannot be used, with all mistakes in its description.
#[derive(Debug, thiserror::Error)]
pub enum InvalidTool {
    #[error("cannot read {file}: {why}")]
    Unreadable { file: PathBuf, why: NotRead },
    #[error("{file} describes no tool: {}", list_faults(faults))]
    Faulty {
        file: PathBuf,
        faults: Vec<DefinitionFault>,
    },
    #[error("{file}: there is a tool `{name}` already, in {first}; rename one of them")]
    Taken {
        file: PathBuf,
        name: String,
        first: PathBuf,
    },
    #[error("{0}; rename one of them")]
    Clash(NameClash),
}

fn list_faults(faults: &[impl fmt::Display]) -> String {
    faults
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// A tool that runs a command.
pub struct ExternalTool {
    definition: Definition,
    /// The folder that contains the tool's file. The command may name programs in it.
    home: PathBuf,
    /// The project files that the user trusted and the name of the tool's folder among them, or
    /// `None` for a tool that does not come from a project.
    trusted: Option<(Admitted, String)>,
    files: Files,
    shell: Shell,
}

/// The description of a tool, and where it was found.
struct Described {
    definition: Definition,
    home: PathBuf,
    trusted: Option<(Admitted, String)>,
}

/// Loads the tools of the sources. Returns those that can be used, and all problems. A folder that
/// does not exist contains no tools.
pub fn load(
    sources: &[ProjectSource],
    files: &Files,
    shell: &Shell,
) -> (Vec<Arc<dyn Tool>>, Vec<InvalidTool>) {
    let (described, problems) = describe(sources);
    let tool = |Described {
                    definition,
                    home,
                    trusted,
                }|
     -> Arc<dyn Tool> {
        Arc::new(ExternalTool {
            definition,
            home,
            trusted,
            files: files.clone(),
            shell: shell.clone(),
        })
    };
    (described.into_values().map(tool).collect(), problems)
}

/// Returns the names of the tools that [`load`] would load, with the paths of their files, and all
/// problems.
pub fn names(sources: &[ProjectSource]) -> (Vec<(String, PathBuf)>, Vec<InvalidTool>) {
    let (described, problems) = describe(sources);
    (
        described
            .into_iter()
            .map(|(name, tool)| (name, tool.home.join(FILE)))
            .collect(),
        problems,
    )
}

/// Returns the name clashes: tools that exist both in a user's folder and in the project.
pub fn clashes(problems: &[InvalidTool]) -> impl Iterator<Item = &NameClash> {
    problems.iter().filter_map(|problem| match problem {
        InvalidTool::Clash(clash) => Some(clash),
        InvalidTool::Unreadable { .. } | InvalidTool::Faulty { .. } | InvalidTool::Taken { .. } => {
            None
        }
    })
}

/// Returns the tools by name, and all problems. Of two tools with the same name, the first is kept.
/// If exactly one of the two is a tool of the project, neither is kept.
fn describe(sources: &[ProjectSource]) -> (BTreeMap<String, Described>, Vec<InvalidTool>) {
    let (mut tools, mut problems) = (BTreeMap::<String, Described>::new(), Vec::new());
    let mut clashing = Vec::new();
    for found in sources.iter().flat_map(found) {
        let tool = match found {
            Ok(tool) => tool,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        let (name, file) = (tool.definition.spec.name.clone(), tool.home.join(FILE));
        match tools.get(&name) {
            None => drop(tools.insert(name, tool)),
            Some(first) if first.trusted.is_some() == tool.trusted.is_some() => {
                problems.push(InvalidTool::Taken {
                    file,
                    name,
                    first: first.home.join(FILE),
                });
            }
            Some(first) => clashing.push(NameClash {
                kind: "tool",
                name,
                own: first.home.join(FILE),
                project: file,
            }),
        }
    }
    for clash in clashing {
        tools.remove(&clash.name);
        problems.push(InvalidTool::Clash(clash));
    }
    (tools, problems)
}

fn found(source: &ProjectSource) -> Vec<Result<Described, InvalidTool>> {
    let unreadable = |below: &Path, why| InvalidTool::Unreadable {
        file: source.path(below),
        why,
    };
    let folders = match source.folders() {
        Ok(folders) => folders,
        Err(why) => return vec![Err(unreadable(Path::new(""), why.into()))],
    };
    let tools = folders
        .into_iter()
        .filter_map(|(name, refused)| match refused {
            Some(why) => Some(Err(unreadable(name.as_ref(), why.into()))),
            None => load_one(source, &name).transpose(),
        });
    tools.collect()
}

fn load_one(source: &ProjectSource, name: &str) -> Result<Option<Described>, InvalidTool> {
    let below = Path::new(name).join(FILE);
    let file = source.path(&below);
    let text = match source.read(&below, LARGEST) {
        Ok(Some(text)) => text,
        Ok(None) => return Ok(None),
        Err(why) => return Err(InvalidTool::Unreadable { file, why }),
    };
    let definition =
        Definition::parse(&text).map_err(|faults| InvalidTool::Faulty { file, faults })?;
    let trusted = source
        .project()
        .map(|admitted| (admitted.clone(), name.to_owned()));
    Ok(Some(Described {
        definition,
        home: source.path(name.as_ref()),
        trusted,
    }))
}

#[async_trait]
impl Tool for ExternalTool {
    fn spec(&self) -> &ToolSpec {
        &self.definition.spec
    }

    /// Returns `None`, because each tool has a limit of its own, which the tool enforces.
    fn timeout(&self, _usual: Duration) -> Option<Duration> {
        None
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        let args: Map<String, Value> = match args(&call) {
            Ok(args) => args,
            Err(refused) => return refused,
        };
        let workspace = match self.files.workspace(&call.dir) {
            Ok(workspace) => workspace,
            Err(why) => return ToolOutcome::error(why.to_string()),
        };
        if let Err(why) = self.check().await {
            return ToolOutcome::error(why);
        }
        let mut words = match self
            .definition
            .command
            .fill(&args, &self.definition.options)
        {
            Ok(words) => words.into_iter(),
            Err(refused) => return ToolOutcome::error(refused),
        };
        let launch = Launch {
            program: self.program(words.next().unwrap_or_default()),
            args: words.map(Into::into).collect(),
            dir: workspace.dir().to_owned(),
            env: self.shell.env(),
            sandbox: None,
            input: call.args.get().as_bytes().to_vec(),
            keep: self.shell.caps().bytes,
        };
        let readable = std::slice::from_ref(&self.home);
        self.shell
            .run(launch, &workspace, readable, self.definition.timeout, &call)
            .await
    }
}

impl ExternalTool {
    /// Checks that a project's tool, including its programs, has not changed since the user trusted
    /// it.
    async fn check(&self) -> Result<(), String> {
        let Some((admitted, tool)) = self.trusted.clone() else {
            return Ok(());
        };
        let checked = tokio::task::spawn_blocking(move || admitted.check_tool(&tool)).await;
        checked
            .map_err(|panic| format!("failed: {panic}"))?
            .map_err(|why| format!("the tool was not run: {why}"))
    }

    /// Returns the program that a word names. A word with a slash, such as `./run.sh`, is a path
    /// relative to the folder of the tool's file, not to the working directory.
    fn program(&self, word: String) -> std::ffi::OsString {
        match word.contains('/') {
            true => self.home.join(word).into(),
            false => word.into(),
        }
    }
}

// Parses a TOOL.json and reports all mistakes in it.

const FIELDS: &[&str] = &[
    "name",
    "description",
    "command",
    "parameters",
    "effect",
    "timeout_ms",
    "options",
];

/// The default time limit of a call in milliseconds, for files that state none.
const TIMEOUT_MS: u64 = 60_000;

/// One mistake in a description: where it is, what is wrong, and how to correct it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionFault {
    #[error("line {line}, column {column}: {what}; it must be one JSON object")]
    NotJson {
        line: usize,
        column: usize,
        what: String,
    },
    #[error("`{field}` is missing; add {remedy}")]
    Missing {
        field: &'static str,
        remedy: &'static str,
    },
    #[error("`{field}` is wrong: {what}")]
    Wrong { field: &'static str, what: String },
    #[error("`{field}` is no field of a tool; {remedy}")]
    Unknown { field: String, remedy: String },
}

#[derive(Debug)]
struct Definition {
    spec: ToolSpec,
    command: CommandTemplate,
    timeout: Duration,
    /// The arguments whose values may begin with `-`.
    options: Vec<String>,
}

impl Definition {
    fn parse(text: &str) -> Result<Self, Vec<DefinitionFault>> {
        let fields: Map<String, Value> = serde_json::from_str(text).map_err(|why| {
            vec![DefinitionFault::NotJson {
                line: why.line(),
                column: why.column(),
                what: plain(&why),
            }]
        })?;
        let mut faults: Vec<DefinitionFault> =
            fields.keys().filter_map(|field| unknown(field)).collect();
        let definition = FieldReader {
            fields: &fields,
            faults: &mut faults,
        }
        .definition();
        match (definition, faults.is_empty()) {
            (Some(definition), true) => Ok(definition),
            _ => Err(faults),
        }
    }
}

/// Returns the message of a JSON error without the position, which is reported separately.
fn plain(why: &serde_json::Error) -> String {
    let text = why.to_string();
    text.rsplit_once(" at line")
        .map_or(text.clone(), |(what, _)| what.to_owned())
}

fn unknown(field: &str) -> Option<DefinitionFault> {
    if FIELDS.contains(&field) {
        return None;
    }
    let remedy = did_you_mean(field, FIELDS.iter().copied())
        .unwrap_or_else(|| format!("there are: {}", FIELDS.join(", ")));
    Some(DefinitionFault::Unknown {
        field: field.into(),
        remedy,
    })
}

/// A reader of the fields, which collects all mistakes instead of stopping at the first.
struct FieldReader<'a> {
    fields: &'a Map<String, Value>,
    faults: &'a mut Vec<DefinitionFault>,
}

impl FieldReader<'_> {
    fn definition(mut self) -> Option<Definition> {
        let name = self
            .text("name", "a name of 1 to 64 of A-Z a-z 0-9 _ -")
            .filter(|name| self.is_name(name));
        let description = self.text("description", "what the tool does and when to use it");
        let parameters = self.parameters();
        let command = self.command(parameters.as_ref().map(|(_, schema)| schema.properties()));
        let options = self.options(command.as_ref());
        let effect = self.effect();
        let timeout = self.timeout();
        let (parameters, _) = parameters?;
        let parameters = to_raw_value(&parameters).ok()?.into();
        let spec = ToolSpec {
            name: name?,
            description: description?,
            parameters,
            effect: effect?,
            sidecar: None,
            wait: None,
            is_searched: true,
        };
        Some(Definition {
            spec,
            command: command?,
            timeout: timeout?,
            options: options?,
        })
    }

    fn wrong<T>(&mut self, field: &'static str, what: impl Into<String>) -> Option<T> {
        self.faults.push(DefinitionFault::Wrong {
            field,
            what: what.into(),
        });
        None
    }

    fn text(&mut self, field: &'static str, remedy: &'static str) -> Option<String> {
        match self.fields.get(field) {
            None => {
                self.faults.push(DefinitionFault::Missing { field, remedy });
                None
            }
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text.clone()),
            Some(other) => self.wrong(
                field,
                format!("it must be a text that is not empty, but is {other}"),
            ),
        }
    }

    fn is_name(&mut self, name: &str) -> bool {
        is_id(name)
            || self
                .wrong::<()>(
                    "name",
                    format!("`{name}` is not 1 to 64 of A-Z a-z 0-9 _ -"),
                )
                .is_some()
    }

    fn parameters(&mut self) -> Option<(Value, CompiledSchema)> {
        let Some(parameters) = self.fields.get("parameters") else {
            self.faults.push(DefinitionFault::Missing {
                field: "parameters",
                remedy: "a JSON Schema of the arguments, an object schema",
            });
            return None;
        };
        match CompiledSchema::compile(&parameters.to_string()) {
            Ok(schema) => Some((parameters.clone(), schema)),
            Err(why) => self.wrong("parameters", why),
        }
    }

    fn command(&mut self, properties: Option<&[String]>) -> Option<CommandTemplate> {
        let text = self.text(
            "command",
            "the command line, with `{{argument}}` for an argument",
        )?;
        match CommandTemplate::parse(&text, properties) {
            Ok(template) => Some(template),
            Err(what) => self.wrong("command", what),
        }
    }

    fn effect(&mut self) -> Option<ToolEffect> {
        match self.fields.get("effect") {
            None => Some(ToolEffect::default()),
            Some(effect) => match serde_json::from_value(effect.clone()) {
                Ok(effect) => Some(effect),
                Err(_) => self.wrong(
                    "effect",
                    format!("it must be \"pure\", \"idempotent\" or \"mutating\", but is {effect}"),
                ),
            },
        }
    }

    /// Reads the list of arguments that may be options. The list names each of them, so that a
    /// reader of the file sees which arguments can change what the program does.
    fn options(&mut self, command: Option<&CommandTemplate>) -> Option<Vec<String>> {
        let Some(value) = self.fields.get("options") else {
            return Some(Vec::new());
        };
        let Ok(names) = serde_json::from_value::<Vec<String>>(value.clone()) else {
            return self
                .wrong("options", format!("it must be a list of names of arguments that may begin with `-`, but is {value}"));
        };
        match names.iter().find(|name| {
            command.is_some_and(|command| !command.arguments().any(|known| known == *name))
        }) {
            Some(stray) => self.wrong(
                "options",
                format!("`{stray}` is not an argument of `command`"),
            ),
            None => Some(names),
        }
    }

    fn timeout(&mut self) -> Option<Duration> {
        match self
            .fields
            .get("timeout_ms")
            .map(|value| (value, value.as_u64()))
        {
            None => Some(Duration::from_millis(TIMEOUT_MS)),
            Some((_, Some(millis @ 1..=3_600_000))) => Some(Duration::from_millis(millis)),
            Some((value, _)) => self.wrong(
                "timeout_ms",
                format!("it must be 1 to 3600000, but is {value}"),
            ),
        }
    }
}

#[cfg(test)]
mod tests;
