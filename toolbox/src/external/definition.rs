//! Parses a TOOL.json and reports all mistakes in it.

use std::time::Duration;

use planck_common::{event::ToolEffect, id::is_id, similar::did_you_mean};
use serde_json::{Map, Value, value::to_raw_value};

use super::template::CommandTemplate;
use crate::schema::CompiledSchema;
use planck_agent::model::ToolSpec;

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
pub(super) struct Definition {
    pub spec: ToolSpec,
    pub command: CommandTemplate,
    pub timeout: Duration,
    /// The arguments whose values may begin with `-`.
    pub options: Vec<String>,
}

impl Definition {
    pub fn parse(text: &str) -> Result<Self, Vec<DefinitionFault>> {
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
