//! The command `planck schema`.

mod types;

use std::collections::BTreeMap;

use clap::Args;
use serde_json::Value;

use crate::{
    exit::{Exit, NotFound},
    output,
};

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  planck schema\n  planck schema event.tool_end")]
pub struct SchemaArgs {
    /// The name of a schema; by default a list of all names
    name: Option<String>,
    /// All schemas in one object
    #[arg(long, conflicts_with = "name")]
    all: bool,
}

/// Returns all schemas by name: `message.member`, `envelope.event`, `event.tool_end`,
/// `request.sessions.start`, and so on.
pub fn all() -> BTreeMap<String, Value> {
    let named = |(group, schemas): (&str, BTreeMap<&'static str, schemars::Schema>)| {
        let group = group.to_owned();
        schemas
            .into_iter()
            .map(move |(name, schema)| (format!("{group}.{name}"), schema.to_value()))
    };
    types::schemas().into_iter().flat_map(named).collect()
}

impl SchemaArgs {
    pub fn perform(self) -> anyhow::Result<Exit> {
        let schemas = all();
        match self.name {
            Some(name) => {
                let schema = schemas.get(&name);
                output::json(schema.ok_or_else(|| {
                    NotFound(format!("no schema {name}; `planck schema` lists them"))
                })?)?;
            }
            None if self.all => output::json(&schemas)?,
            None => output::say(
                &schemas
                    .keys()
                    .map(|name| format!("{name}\n"))
                    .collect::<String>(),
            )?,
        }
        Ok(Exit::Done)
    }
}
