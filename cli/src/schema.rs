//! The command `planck schema`. It generates JSON Schemas from the types of the protocol's messages
//! and of the registry's records. A test compares the schemas with the files in `docs/schema/`.

use std::collections::BTreeMap;

use clap::Args;
use planck_common::{
    command, decision, envelope, event, message, node, registry, reply, spec, usage,
};
use schemars::{
    Schema, schema_for,
    transform::{RecursiveTransform, Transform as _},
};
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
    schemas().into_iter().flat_map(named).collect()
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

macro_rules! schemas {
    ($($group:literal { $($name:literal: $type:ty,)+ })+) => {
        [$(($group, vec![$(($name, schema_for!($type)),)+]),)+]
    };
}

type Schemas = Vec<(&'static str, Vec<(&'static str, Schema)>)>;

/// Returns the schemas of published messages and of the registry's records.
fn published() -> Schemas {
    schemas! {
        "envelope" { "event": envelope::Envelope, "head": envelope::SessionHead, "refusal": reply::Refusal, }
        "message" { "message": message::Message, "part": message::Part, "usage": usage::Usage, "member": spec::Member, }
        "cluster" {
            "heartbeat": node::Heartbeat,
            "decision": decision::Decision,
            "record.store": registry::StoreRecord,
            "record.node": registry::NodeRecord,
            "record.team": registry::TeamRecord,
            "record.member": registry::MemberRecord,
        }
    }
    .into()
}

/// Returns the schemas by group and name. The groups are `envelope`, `message`, `cluster`, `event`
/// (the `data` of each type), `request` (the body of each verb that has one) and `reply` (the `ok`
/// of each verb).
fn schemas() -> BTreeMap<&'static str, BTreeMap<&'static str, Schema>> {
    let events = ("event", event::schemas());
    published()
        .into_iter()
        .chain(requests())
        .chain(replies())
        .chain([events])
        .map(|(group, schemas)| (group, schemas.into_iter().map(unwrapped).collect()))
        .collect()
}

fn requests() -> Schemas {
    schemas! {
        "request" {
            "sessions.start": command::Start,
            "sessions.list": command::ListSessions,
            "sessions.waits": command::ListWaits,
            "session.prompt": command::Prompt,
            "session.events": command::ReadEvents,
            "session.messages": command::ReadMessages,
            "session.answer": command::Answer,
            "session.outcome": command::ReadOutcome,
            "session.abort": command::AbortSession,
            "session.rewind": command::Rewind,
            "session.rename": command::Rename,
            "session.resume": command::Because,
            "session.close": command::Because,
            "session.delete": command::Because,
            "agent.prompt": command::Prompt,
            "agent.abort": command::Because,
            "agent.stop": command::Because,
            "agent.nudge": command::Because,
            "agent.checkpoint": command::SetCheckpoint,
            "agent.add_tool": command::ToolName,
            "agent.remove_tool": command::ToolName,
            "agent.change_model": command::ChangeModel,
            "node.drain": command::Drain,
        }
    }
    .into()
}

fn replies() -> Schemas {
    schemas! {
        "reply" {
            "sessions.start": command::Started,
            "sessions.list": command::Sessions,
            "sessions.waits": command::Waits,
            "session.prompt": command::Accepted,
            "session.events": command::Events,
            "session.messages": command::Messages,
            "session.info": command::SessionInfo,
            "session.abort": command::Aborted,
            "session.rewind": command::HeadAt,
            "session.rename": command::Renamed,
            "session.resume": command::Started,
            "session.close": command::SessionStateNow,
            "session.delete": command::Removed,
            "session.answer": command::Answered,
            "session.outcome": command::Outcome,
            "agent.prompt": command::Accepted,
            "agent.info": command::AgentInfo,
            "agent.snapshot": command::Snapshot,
            "agent.abort": command::AgentStateNow,
            "agent.stop": command::AgentStateNow,
            "agent.nudge": command::AgentStateNow,
            "agent.checkpoint": command::SavedAt,
            "agent.add_tool": command::Tools,
            "agent.remove_tool": command::Tools,
            "agent.change_model": command::Model,
            "nodes.list": command::Nodes,
            "node.info": command::NodeInfo,
            "node.drain": command::Draining,
            "teams.list": command::Teams,
            "models.list": command::Models,
            "sidecars.list": command::Sidecars,
        }
    }
    .into()
}

/// Joins the lines of each description, so that a schema does not depend on the line breaks of
/// comments in the source.
fn unwrapped((name, mut schema): (&'static str, Schema)) -> (&'static str, Schema) {
    RecursiveTransform(|schema: &mut Schema| {
        if let Some(Value::String(description)) = schema.get_mut("description") {
            *description = description
                .split("\n\n")
                .map(|paragraph| paragraph.replace('\n', " "))
                .collect::<Vec<_>>()
                .join("\n\n");
        }
    })
    .transform(&mut schema);
    (name, schema)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, path::Path};

    use planck_common::{
        command::{AgentVerb, SessionVerb, SessionsVerb},
        event::EventKind,
    };

    use super::*;

    #[test]
    fn the_committed_schemas_match_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
        for (group, schemas) in schemas() {
            let file = folder.join(format!("{group}.json"));
            let text = serde_json::to_string_pretty(&schemas).unwrap() + "\n";
            if env::var_os("UPDATE_SCHEMAS").is_some() {
                fs::create_dir_all(&folder).unwrap();
                fs::write(&file, &text).unwrap();
            }
            let committed = fs::read_to_string(&file).unwrap_or_default();
            assert!(
                committed == text,
                "{} is out of date: run the tests with UPDATE_SCHEMAS=1",
                file.display()
            );
        }
    }

    #[test]
    fn no_verb_and_no_event_is_missing() {
        let all = schemas();
        let verbs = SessionVerb::ALL
            .iter()
            .map(|verb| format!("session.{}", verb.name()));
        let verbs = verbs.chain(
            AgentVerb::ALL
                .iter()
                .map(|verb| format!("agent.{}", verb.name())),
        );
        let verbs = verbs.chain(
            SessionsVerb::ALL
                .iter()
                .map(|verb| format!("sessions.{}", verb.name())),
        );
        for verb in verbs {
            assert!(
                all["reply"].contains_key(verb.as_str()),
                "no reply of {verb}"
            );
        }
        for kind in EventKind::ALL {
            assert!(
                all["event"].contains_key(kind.name()),
                "no event {}",
                kind.name()
            );
        }
    }
}
