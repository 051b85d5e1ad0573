//! The tools: their names, descriptions, schemas and hints. The list never changes while a server
//! runs, because clients load it once.

use std::sync::{Arc, LazyLock};

use planck_common::similar::nearest;
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::Value;

use super::{
    arguments::{AnswerWait, Cancel, Continue, ListSessions, NoArguments, RunTeam, Status},
    work::{SessionList, TeamList, Work},
};
use crate::key::Role;

/// The instructions of the server, which a client reads before it calls a tool.
pub const INSTRUCTIONS: &str = "\
Planck runs teams of AI agents that work on their own for minutes or hours. `list_teams` names the teams. `run_team` gives \
a team a task and waits for up to 50 seconds; if the work takes longer, the result has the state `working`, and `status` with \
its `session` waits further. The work goes on while nobody waits, also after this connection is lost; `list_sessions` finds it \
again, and only `cancel` ends it. If the state is `input_required`, an agent asks something: show it to the user, and pass the \
user's answer on with `answer`.";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolName {
    ListTeams,
    RunTeam,
    Continue,
    Status,
    ListSessions,
    Answer,
    Cancel,
}

impl ToolName {
    pub const ALL: [Self; 7] = [
        Self::ListTeams,
        Self::RunTeam,
        Self::Continue,
        Self::Status,
        Self::ListSessions,
        Self::Answer,
        Self::Cancel,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::ListTeams => "list_teams",
            Self::RunTeam => "run_team",
            Self::Continue => "continue",
            Self::Status => "status",
            Self::ListSessions => "list_sessions",
            Self::Answer => "answer",
            Self::Cancel => "cancel",
        }
    }

    /// Finds a tool, or returns what there is in its place.
    pub fn find(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|tool| tool.name() == name);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name);
            let shown: String = name.chars().take(80).collect();
            match nearest(name, names) {
                Some(meant) => format!("there is no tool `{shown}`; did you mean `{meant}`?"),
                None => format!("there is no tool `{shown}`; there are {}", names.join(", ")),
            }
        })
    }

    /// Returns the role that a caller of the tool needs.
    pub const fn role(self) -> Role {
        match self {
            Self::ListTeams | Self::Status | Self::ListSessions => Role::Observe,
            Self::RunTeam | Self::Continue | Self::Answer | Self::Cancel => Role::Use,
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::ListTeams => "List teams of agents",
            Self::RunTeam => "Give a team a task",
            Self::Continue => "Continue a session",
            Self::Status => "Wait for work",
            Self::ListSessions => "List sessions",
            Self::Answer => "Answer an agent",
            Self::Cancel => "Cancel work",
        }
    }

    const fn description(self) -> &'static str {
        match self {
            Self::ListTeams => {
                "Lists the teams of AI agents that can be given a task with `run_team`, with what each is for and its members, and \
                 the workspaces (folders) in which teams can work."
            }
            Self::RunTeam => {
                "Starts a session in which a team of AI agents works on a task: it can read and change files of its workspace and \
                 run commands there. Waits for up to 45 seconds. If the result's `state` is `completed`, `answer` is the team's \
                 answer. If it is `working`, the work goes on by itself: call `status` with the result's `session` and \
                 `prompt_id` until it is over. Do not call `run_team` again for the same task, because that starts a second \
                 session; if a call failed or its connection was lost, look at `list_sessions` first, or repeat it with the same \
                 `request_key`."
            }
            Self::Continue => {
                "Sends a further message to a session of `run_team`, whose team remembers what was said and done. While the team is \
                 busy, the message waits for its turn. Waits and answers like `run_team`."
            }
            Self::Status => {
                "Waits until the work of a session is over or an agent asks something, for up to 45 seconds, and tells how far it \
                 is: the state, the answer or the text so far, what each agent does, and what agents ask. Call it again while the \
                 `state` is `working`. It also finds work whose call of `run_team` or `continue` was cut off."
            }
            Self::ListSessions => {
                "Lists the latest sessions, newest first, with their first prompt and whether they work. It finds a session whose id \
                 was lost with a connection. It also lists the sessions of other users of the same Planck."
            }
            Self::Answer => {
                "Answers what an agent asks (`waits` of a result), and then waits for the work like `status`. An `approval` lets an \
                 agent run a tool, and a `change` keeps changes of files that can make other programs run code: show the user the \
                 `request` and let the user decide. The first answer to a wait holds."
            }
            Self::Cancel => {
                "Ends the work of a session: running commands of its agents are stopped, and what they have changed stays. The session \
                 is kept, and `continue` goes on with it."
            }
        }
    }

    /// Returns what the tool does to its surroundings. The agents of a session can change files, run
    /// commands and use the network.
    fn hints(self) -> ToolAnnotations {
        let hints = ToolAnnotations::new();
        match self {
            Self::ListTeams | Self::Status | Self::ListSessions => {
                hints.read_only(true).open_world(false)
            }
            Self::RunTeam | Self::Continue => {
                let hints = hints.read_only(false).destructive(true);
                hints.idempotent(false).open_world(true)
            }
            // The same answer again gets the same reply.
            Self::Answer => {
                let hints = hints.read_only(false).destructive(true);
                hints.idempotent(true).open_world(true)
            }
            // A second call ends what has begun since the first one.
            Self::Cancel => {
                let hints = hints.read_only(false).destructive(true);
                hints.idempotent(false).open_world(false)
            }
        }
    }

    fn input(self) -> JsonObject {
        match self {
            Self::ListTeams => schema::<NoArguments>(),
            Self::RunTeam => schema::<RunTeam>(),
            Self::Continue => schema::<Continue>(),
            Self::Status => schema::<Status>(),
            Self::ListSessions => schema::<ListSessions>(),
            Self::Answer => schema::<AnswerWait>(),
            Self::Cancel => schema::<Cancel>(),
        }
    }

    fn output(self) -> JsonObject {
        match self {
            Self::ListTeams => schema::<TeamList>(),
            Self::ListSessions => schema::<SessionList>(),
            Self::RunTeam | Self::Continue | Self::Status | Self::Answer | Self::Cancel => {
                schema::<Work>()
            }
        }
    }

    fn tool(self) -> Tool {
        Tool::new(self.name(), self.description(), self.input())
            .with_title(self.title())
            .with_raw_output_schema(Arc::new(self.output()))
            .with_annotations(self.hints())
    }
}

static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| ToolName::ALL.map(ToolName::tool).to_vec());

/// Returns the tool with this name.
pub fn find(name: &str) -> Option<Tool> {
    TOOLS.iter().find(|tool| tool.name == name).cloned()
}

/// Returns all tools, in an order that never changes.
pub fn all() -> Vec<Tool> {
    TOOLS.clone()
}

/// Returns the schema of a type. An optional field is one that may be absent: it is not null, which
/// some clients and models do not understand.
fn schema<T: JsonSchema>() -> JsonObject {
    let schema = SchemaSettings::draft2020_12().into_generator();
    let mut schema = schema.into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    let Value::Object(mut schema) = schema else {
        return JsonObject::new();
    };
    for name in ["$schema", "title", "description"] {
        schema.remove(name);
    }
    // Some clients expect an object to have it.
    let properties = schema.entry("properties");
    properties.or_insert_with(|| Value::Object(JsonObject::new()));
    schema
}

/// Removes null from the types of a schema, and the formats of numbers, which validators do not know.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("format");
            if let Some(Value::Array(types)) = fields.get_mut("type") {
                types.retain(|one| one != "null");
                if let [only] = types.as_slice() {
                    let only = only.clone();
                    fields.insert("type".into(), only);
                }
            }
            if let Some(Value::Array(choices)) = fields.get_mut("anyOf") {
                choices.retain(|choice| choice.get("type").is_none_or(|one| one != "null"));
                if let [Value::Object(only)] = choices.as_slice() {
                    let only = only.clone();
                    fields.remove("anyOf");
                    fields.extend(only);
                }
            }
            fields.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_says_what_it_is_takes_and_gives() {
        for tool in all() {
            let hints = tool.annotations.unwrap();
            assert!(hints.read_only_hint.is_some() && hints.open_world_hint.is_some());
            assert!(tool.title.is_some_and(|title| title.len() < 40));
            assert!(tool.description.is_some_and(|text| text.len() > 100));
            for schema in [&*tool.input_schema, &*tool.output_schema.unwrap()] {
                assert_eq!(schema.get("type").unwrap(), "object", "{}", tool.name);
                let text = serde_json::to_string(schema).unwrap();
                assert!(
                    !text.contains(r#""null""#) && !text.contains("uint"),
                    "{text}"
                );
            }
            let closed = tool.input_schema.get("additionalProperties");
            assert_eq!(closed, Some(&Value::Bool(false)), "{}", tool.name);
            let fields = tool.input_schema.get("properties").unwrap();
            for (name, field) in fields.as_object().unwrap() {
                assert!(field.get("description").is_some(), "{} {name}", tool.name);
            }
        }
    }

    #[test]
    fn readers_need_no_more_than_to_observe() {
        for tool in ToolName::ALL {
            let is_reader = tool.hints().read_only_hint == Some(true);
            assert_eq!(is_reader, tool.role() == Role::Observe, "{tool:?}");
        }
    }

    #[test]
    fn unknown_tool_is_refused_with_a_known_one() {
        assert_eq!(ToolName::find("status"), Ok(ToolName::Status));
        let why = ToolName::find("run_teams").unwrap_err();
        assert!(why.contains("did you mean `run_team`"), "{why}");
        let why = ToolName::find("zzz").unwrap_err();
        assert!(why.contains("list_teams"), "{why}");
    }
}
