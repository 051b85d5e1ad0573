//! Tools that the node does not run: a call waits for an answer from outside. They are
//! `ask_user`, with which a model asks a person, and the tools of the client that started the
//! session.

use async_trait::async_trait;
use planck_common::{event::ToolEffect, spec::ClientTool, wait::WaitKind};
use serde_json::json;

use super::{Invocation, Tool, ToolOutcome, files};
use crate::model::ToolSpec;

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
