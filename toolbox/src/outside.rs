//! Tools that the node does not run: a call waits for an answer from outside. They are
//! `ask_user`, with which a model asks a person, and the tools of the client that started the
//! session.

use std::fmt::Display;

use async_trait::async_trait;
use planck_common::{
    event::ToolEffect, json_schema, sidecar::ToolQuestion, spec::ClientTool, wait::WaitKind,
};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{Invocation, Tool, ToolOutcome, files};
use planck_agent::{model::ToolSpec, storable};

/// The name of the tool with which a model asks a person.
pub const ASK_USER: &str = "ask_user";

pub struct OutsideTool(ToolSpec);

impl OutsideTool {
    /// Returns the tool with which a model asks a person.
    pub fn ask_user() -> Self {
        let parameters = json!({
            "type": "object",
            "properties": {
                "question": {"type": "string", "minLength": 1},
                "options": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Answers to choose from; the person may also give another one",
                },
                "schema": {
                    "type": "object",
                    "description": "A JSON Schema, if the answer must be JSON of a certain shape",
                },
            },
            "required": ["question"],
            "additionalProperties": false,
        });
        let description = "Ask the user a question and wait for the answer, which may take long. Ask only what you cannot find out yourself.";
        let spec = files::spec(ASK_USER, description, ToolEffect::Pure, &parameters);
        Self(ToolSpec {
            wait: Some(WaitKind::Question),
            ..spec
        })
    }

    /// Returns a tool of the client that started the session.
    pub fn of_client(tool: &ClientTool) -> Self {
        let spec = files::spec(
            &tool.name,
            &tool.description,
            ToolEffect::Idempotent,
            &tool.parameters,
        );
        Self(ToolSpec {
            wait: Some(WaitKind::ClientTool),
            ..spec
        })
    }
}

/// Returns the result of a call that asks a person for an answer with a schema beyond the limits of
/// schemas, or `None` if the person may be asked.
pub(super) fn refused_question(args: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        schema: Option<&'a RawValue>,
    }
    let asked: Asked<'_> = serde_json::from_str(args).ok()?;
    let fault = json_schema::parse(asked.schema?.get()).err()?;
    Some(format!(
        "`{ASK_USER}` was not run: its argument `schema`: {fault}"
    ))
}

/// The maximum size of a question of a tool in bytes, with its schema and state.
const MOST_QUESTION_BYTES: usize = 128 * 1024;

/// Returns a question of a tool as it can be stored, or why no person is asked.
pub(super) fn checked_question(question: &ToolQuestion) -> Result<ToolQuestion, String> {
    let not_asked = |why: &dyn Display| {
        format!(
            "the tool asked a question that cannot be put: {why}; the call may or may not have taken effect"
        )
    };
    let text = serde_json::to_vec(question).map_err(|why| not_asked(&why))?;
    if text.len() > MOST_QUESTION_BYTES {
        let why = format!("it has more than {MOST_QUESTION_BYTES} bytes");
        return Err(not_asked(&why));
    }
    if let Some(schema) = &question.schema {
        json_schema::parse(&schema.to_string()).map_err(|why| not_asked(&why))?;
    }
    serde_json::from_slice(&storable::json(&text)).map_err(|why| not_asked(&why))
}

#[async_trait]
impl Tool for OutsideTool {
    fn spec(&self) -> &ToolSpec {
        &self.0
    }

    /// Returns an error, because the agent waits for an answer instead of running the call.
    async fn run(&self, _: Invocation) -> ToolOutcome {
        ToolOutcome::error("this call is answered from outside, and was not run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_whose_answer_no_machine_can_compare_is_refused() {
        let mut parts = serde_json::Map::new();
        for at in 0..22 {
            let next = json!({ "$ref": format!("#/$defs/{}", at + 1) });
            parts.insert(at.to_string(), json!({ "allOf": [next.clone(), next] }));
        }
        parts.insert("22".into(), json!({"type": "integer"}));
        let doubling = json!({"$ref": "#/$defs/0", "$defs": parts});
        let ask = |schema: serde_json::Value| {
            refused_question(&json!({"question": "How many?", "schema": schema}).to_string())
        };
        let told = ask(doubling).unwrap();
        assert!(
            told.starts_with("`ask_user` was not run: its argument `schema`: it has more than"),
            "{told}"
        );
        assert_eq!(ask(json!({"type": "integer"})), None);
        assert_eq!(refused_question(r#"{"question": "How many?"}"#), None);
    }
}
