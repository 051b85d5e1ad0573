//! The request of responses.

use axum::http::HeaderMap;
use planck_common::spec::ClientTool;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    openai::{
        ask::{
            Ask, ChatMessage, ClientConversation, Content, ContinuedSession, Format, FunctionTool,
            named_session, origin, read_conversation, without_effect,
        },
        error::OpenAiError,
        ids::ResponseId,
    },
    turn,
};

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseRequest")]
pub struct ResponsesRequest {
    model: String,
    input: Input,
    pub instructions: Option<String>,
    pub stream: Option<bool>,
    pub background: Option<bool>,
    pub previous_response_id: Option<String>,
    conversation: Option<ConversationName>,
    pub tools: Option<Vec<Value>>,
    pub metadata: Option<Map<String, Value>>,
    user: Option<String>,
    text: Option<TextConfig>,
    /// The parameters that have no effect.
    #[serde(flatten)]
    further: Map<String, Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseText")]
struct TextConfig {
    format: Option<Format>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInput")]
#[serde(untagged)]
enum Input {
    Text(String),
    Items(Vec<InputItem>),
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ResponseInputItem")]
struct InputItem {
    r#type: Option<String>,
    role: Option<String>,
    content: Option<Content>,
    call_id: Option<String>,
    output: Option<Content>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
enum ConversationName {
    Id(String),
    Object { id: String },
}

impl ResponsesRequest {
    /// Reads what the client asks for.
    pub fn ask(&self, headers: &HeaderMap) -> Result<Ask, OpenAiError> {
        self.check()?;
        let nothing = Map::new();
        let metadata = self.metadata.as_ref().unwrap_or(&nothing);
        let target = self.target(headers, metadata)?;
        let ClientConversation {
            instructions,
            history,
            latest,
        } = read_conversation(self.messages()?, "input")?;
        if target != ContinuedSession::History && !history.is_empty() {
            return Err(OpenAiError::parameter(
                "input",
                "a session has its history: send only what is new after it",
            ));
        }
        let all = [self.instructions.clone(), instructions];
        let instructions: Vec<String> = all.into_iter().flatten().collect();
        let (tools, mut warnings) = self.functions()?;
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        let output = Format::shape(format, "text.format")?;
        let set = self.further.iter();
        let set = set.filter(|(name, value)| {
            !value.is_null() && !matches!(name.as_str(), "top_logprobs" | "store")
        });
        warnings.extend(without_effect(set.map(|(name, _)| name)));
        if self.further.get("store") == Some(&Value::Bool(false)) {
            warnings.push("`store: false`: every session is stored until it is deleted".to_owned());
        }
        Ok(Ask {
            model: self.model.clone(),
            instructions: (!instructions.is_empty()).then(|| instructions.join("\n\n")),
            instructs_anew: true,
            history,
            latest,
            tools,
            output,
            target,
            until: turn::read_until(headers)?,
            origin: origin(headers, metadata, &self.user),
            warnings,
        })
    }

    /// Returns the tools with all fields that a response has.
    pub fn tools_written(&self) -> Vec<Value> {
        let mut tools = self.tools.clone().unwrap_or_default();
        for tool in tools.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["description", "parameters", "strict"] {
                tool.entry(field).or_insert(Value::Null);
            }
        }
        tools
    }

    fn check(&self) -> Result<(), OpenAiError> {
        let set = |name: &str| self.further.get(name).filter(|value| !value.is_null());
        if set("top_logprobs").is_some_and(|count| count.as_u64() != Some(0)) {
            return Err(OpenAiError::parameter(
                "top_logprobs",
                "an agent's answer has no `logprobs`",
            ));
        }
        if set("prompt").is_some() {
            return Err(OpenAiError::parameter(
                "prompt",
                "there are no stored prompts; send `input` and `instructions`",
            ));
        }
        Ok(())
    }

    fn target(
        &self,
        headers: &HeaderMap,
        metadata: &Map<String, Value>,
    ) -> Result<ContinuedSession, OpenAiError> {
        match (&self.previous_response_id, &self.conversation) {
            (Some(_), Some(_)) => Err(OpenAiError::parameter(
                "conversation",
                "name one of `previous_response_id` and `conversation`",
            )),
            (Some(id), None) => Ok(ContinuedSession::Response(ResponseId::parse(id)?)),
            (None, Some(ConversationName::Id(name) | ConversationName::Object { id: name })) => {
                Ok(ContinuedSession::Session {
                    name: name.clone(),
                    may_start: false,
                })
            }
            (None, None) => Ok(match named_session(headers, metadata) {
                None => ContinuedSession::History,
                Some(name) => ContinuedSession::Session {
                    name,
                    may_start: true,
                },
            }),
        }
    }

    fn messages(&self) -> Result<Vec<ChatMessage>, OpenAiError> {
        match &self.input {
            Input::Text(text) => Ok(vec![ChatMessage {
                role: "user".to_owned(),
                content: Some(Content::Text(text.clone())),
                tool_call_id: None,
            }]),
            Input::Items(items) => items.iter().map(message).collect(),
        }
    }

    /// Returns the client's functions, and a warning about tools of other kinds.
    fn functions(&self) -> Result<(Vec<ClientTool>, Vec<String>), OpenAiError> {
        let mut functions = Vec::new();
        let mut others = Vec::new();
        for tool in self.tools.iter().flatten() {
            match tool.get("type").and_then(Value::as_str) {
                Some("function") => {
                    let read = FunctionTool::deserialize(tool);
                    let tool = read.map_err(|error| {
                        OpenAiError::parameter("tools", format!("a tool cannot be read: {error}"))
                    })?;
                    functions.push(tool.into());
                }
                Some(other) => others.push(format!("tools:{other}")),
                None => return Err(OpenAiError::parameter("tools", "a tool has no `type`")),
            }
        }
        Ok((functions, without_effect(&others).into_iter().collect()))
    }
}

/// Returns an item as a message. Items that only repeat what the agent did are answers without
/// text.
fn message(item: &InputItem) -> Result<ChatMessage, OpenAiError> {
    let (role, content, tool_call_id) = match (item.r#type.as_deref(), &item.role) {
        (None | Some("message"), Some(role)) => (role.clone(), item.content.clone(), None),
        (Some("function_call_output"), _) => {
            ("tool".to_owned(), item.output.clone(), item.call_id.clone())
        }
        (Some("function_call" | "reasoning"), _) => ("assistant".to_owned(), None, None),
        (kind, _) => {
            let kind: String = kind.unwrap_or("message").chars().take(40).collect();
            return Err(OpenAiError::parameter(
                "input",
                format!(
                    "an item of type `{kind}` cannot be read; send messages and function_call_output"
                ),
            ));
        }
    };
    Ok(ChatMessage {
        role,
        content,
        tool_call_id,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::ask::Latest;

    fn ask(json: &str) -> Result<Ask, String> {
        let request: ResponsesRequest =
            serde_json::from_str(json).map_err(|error| error.to_string())?;
        let asked = request.ask(&HeaderMap::new());
        asked.map_err(|error| error.body().message.clone())
    }

    #[test]
    fn input_is_a_text_or_items() {
        let text = ask(r#"{"model":"m","input":"a","instructions":"b","store":false}"#).unwrap();
        assert!(
            matches!(&text.latest, Latest { results, prompt } if results.is_empty() && prompt.len() == 1)
        );
        assert_eq!(text.instructions.as_deref(), Some("b"));
        assert!(text.warnings[0].contains("store"));
        let items = ask(
            r#"{"model":"m","temperature":1,"tools":[{"type":"web_search"},{"type":"function","name":"f"}],
            "input":[{"role":"user","content":"a"},{"type":"reasoning","id":"r","summary":[]},
            {"type":"message","role":"assistant","content":[{"type":"output_text","text":"b"}]},
            {"role":"user","content":[{"type":"input_text","text":"c"}]}]}"#,
        )
        .unwrap();
        assert_eq!(items.history.len(), 1);
        assert_eq!(items.history[0].assistant, "b");
        assert_eq!(items.tools[0].name, "f");
        assert_eq!(
            items.warnings,
            [
                "without effect: `tools:web_search`",
                "without effect: `temperature`"
            ]
        );
    }

    #[test]
    fn format_is_the_shape_of_the_answer() {
        let ask = ask(r#"{"model":"m","input":"a","text":{"verbosity":"low",
            "format":{"type":"json_schema","name":"b","schema":{"type":"object"},"strict":true}}}"#)
        .unwrap();
        let output = ask.output.unwrap();
        assert_eq!(output.schema, serde_json::json!({"type": "object"}));
        assert_eq!(output.name.as_deref(), Some("b"));
    }

    #[test]
    fn results_continue_a_response() {
        let ask = ask(r#"{"model":"m","previous_response_id":"resp_s_3",
            "input":[{"type":"function_call_output","call_id":"call_s_3_c-1","output":"7"}]}"#)
        .unwrap();
        assert!(matches!(ask.target, ContinuedSession::Response(id) if id.place == 3));
        assert!(
            matches!(&ask.latest, Latest { results, prompt } if results.len() == 1 && prompt.is_empty())
        );
    }

    #[test]
    fn requests_that_no_agent_can_serve_are_refused() {
        for (fields, needle) in [
            (r#""input":"a","top_logprobs":3"#, "logprobs"),
            (r#""input":"a","prompt":{"id":"p"}"#, "stored prompts"),
            (r#""input":[]"#, "last message"),
            (
                r#""input":[{"type":"item_reference","id":"x"}]"#,
                "item_reference",
            ),
            (
                r#""input":"a","previous_response_id":"x""#,
                "no response `x`",
            ),
            (
                r#""input":"a","previous_response_id":"resp_s_1","conversation":"s""#,
                "name one of",
            ),
            (
                r#""input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}],"conversation":"s""#,
                "send only what is new",
            ),
            (r#""input":"a","tools":[{}]"#, "no `type`"),
            (
                r#""input":"a","tools":[{"type":"function"}]"#,
                "cannot be read",
            ),
        ] {
            let json = format!(r#"{{"model":"m",{fields}}}"#);
            let error = ask(&json).unwrap_err();
            assert!(error.contains(needle), "{json}: {error}");
        }
    }
}
