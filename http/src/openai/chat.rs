//! `POST /openai/v1/chat/completions`. The client sends the whole conversation each time.

mod wire;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse as _, Response},
};
use planck_client::Client;
use planck_common::{InputId, SessionId, event::json};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use wire::{ChunkWriter, Completion};

use super::{
    OpenAiRequest,
    ask::{
        Ask, ChatMessage, ContinuedSession, Format, FunctionTool, Origin, aborts_on_disconnect,
        named_session, origin, read_conversation, task, without_effect,
    },
    error::OpenAiError,
    now,
    opening::{self, OpenedResponse},
    segment::{EndKind, Segment, SegmentEvent},
    tell,
};
use crate::{
    front::Front,
    sse::{self, EventFrame, EventSender, StreamCut},
    turn,
};

pub use wire::ChatCompletion;

/// The last frame of a stream.
const DONE: &str = "[DONE]";

pub async fn create(
    State(front): State<Arc<Front>>,
    OpenAiRequest {
        caller,
        headers,
        body,
    }: OpenAiRequest<ChatRequest>,
) -> Result<Response, OpenAiError> {
    let (streams, wants_usage) = (body.stream == Some(true), body.wants_usage());
    let aborts = aborts_on_disconnect(&headers)?;
    let ask = body.ask(&headers)?;
    let (opened, segment) = opening::open(&front, &caller, ask).await?;
    let ending = Ending::of(&opened, front.client(), aborts);
    let mut response = match streams {
        true => stream(&front, &opened, segment, wants_usage, ending),
        false => {
            let response = collect(&opened, segment).await;
            ending.answered().await;
            response?
        }
    };
    tell(&mut response, &opened.id.session, &opened.warnings);
    Ok(response)
}

async fn collect(opened: &OpenedResponse, mut segment: Segment) -> Result<Response, OpenAiError> {
    let mut completion = Completion::new(opened, now());
    while let Some(event) = segment.next().await? {
        if let Some(refusal) = event.refusal() {
            return Err(refusal);
        }
        if let Some(end) = completion.take(event) {
            if let EndKind::Failed { code, reason } = &end.how {
                return Err(OpenAiError::turn(code, reason));
            }
            return Ok(Json(completion.finish(&end)).into_response());
        }
    }
    Err(OpenAiError::turn(
        "incomplete",
        "the turn ended without an answer",
    ))
}

fn stream(
    front: &Front,
    opened: &OpenedResponse,
    segment: Segment,
    wants_usage: bool,
    ending: Ending,
) -> Response {
    let writer = ChunkWriter::new(opened, now(), wants_usage);
    sse::stream(front, |events| async move {
        let passed = tokio::select! {
            passed = pass_on(segment, writer, &events) => passed,
            () = events.gone() => Err(StreamCut::Gone),
        };
        match passed {
            Err(StreamCut::TooSlow) => events.end(error(&OpenAiError::slow())),
            Ok(()) => events.end(EventFrame::data(None, DONE)),
            Err(StreamCut::Gone) => ending.gone().await,
        }
        ending.answered().await;
    })
}

fn error(error: &OpenAiError) -> EventFrame {
    EventFrame::data(None, &json(&error.reply()))
}

async fn pass_on(
    mut segment: Segment,
    mut writer: ChunkWriter,
    events: &EventSender,
) -> Result<(), StreamCut> {
    events
        .send(EventFrame::data(None, &json(&writer.first())))
        .await?;
    loop {
        let event = match events.wait_for(segment.next()).await? {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(()),
            Err(problem) => return events.send(error(&problem.into())).await,
        };
        if let Some(refusal) = event.refusal() {
            return events.send(error(&refusal)).await;
        }
        if let SegmentEvent::End(end) = &event
            && let EndKind::Failed { code, reason } = &end.how
        {
            return events.send(error(&OpenAiError::turn(code, reason))).await;
        }
        for chunk in writer.write(event) {
            events.send(EventFrame::data(None, &json(&chunk))).await?;
        }
    }
}

#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "ChatCompletionRequest")]
pub struct ChatRequest {
    model: String,
    messages: Vec<ChatMessage>,
    #[serde(default)]
    pub stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    tools: Option<Vec<ChatTool>>,
    response_format: Option<Format>,
    user: Option<String>,
    metadata: Option<Map<String, Value>>,
    /// The session to continue, by id or name. OpenAI's own wire does not have it here.
    conversation: Option<String>,
    /// The parameters that have no effect, and those that are refused.
    #[serde(flatten)]
    further: Map<String, Value>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize, JsonSchema)]
struct ChatTool {
    #[serde(default)]
    r#type: String,
    function: Option<FunctionTool>,
}

impl ChatRequest {
    pub fn wants_usage(&self) -> bool {
        let options = self.stream_options.as_ref();
        options.is_some_and(|options| options.include_usage == Some(true))
    }

    /// Reads what the client asks for.
    pub fn ask(self, headers: &HeaderMap) -> Result<Ask, OpenAiError> {
        self.check()?;
        let metadata = self.metadata.unwrap_or_default();
        let target = match self
            .conversation
            .or_else(|| named_session(headers, &metadata))
        {
            None => ContinuedSession::History,
            Some(name) => ContinuedSession::Session {
                name,
                may_start: true,
            },
        };
        let conversation = read_conversation(self.messages, "messages")?;
        let harmless = ["n", "logprobs", "top_logprobs", "modalities"];
        let set = self.further.iter();
        let set =
            set.filter(|(name, value)| !value.is_null() && !harmless.contains(&name.as_str()));
        Ok(Ask {
            model: self.model,
            instructions: conversation.instructions,
            instructs_anew: false,
            history: conversation.history,
            latest: conversation.latest,
            tools: tools(self.tools.unwrap_or_default())?,
            output: Format::shape(self.response_format, "response_format")?,
            target,
            until: turn::read_until(headers)?,
            origin: Origin {
                task: task(headers),
                ..origin(headers, &metadata, &self.user)
            },
            warnings: without_effect(set.map(|(name, _)| name))
                .into_iter()
                .collect(),
        })
    }

    /// Refuses what no agent can do. Other parameters are accepted, because clients send them
    /// without being asked.
    fn check(&self) -> Result<(), OpenAiError> {
        let refused = |param, text: &str| Err(OpenAiError::parameter(param, text));
        let set = |name: &str| self.further.get(name).filter(|value| !value.is_null());
        if set("n").is_some_and(|n| n.as_u64() != Some(1)) {
            return refused("n", "`n` must be 1: an agent gives one answer");
        }
        let without = [Value::Bool(false), Value::from(0)];
        let mut logprobs = ["logprobs", "top_logprobs"].into_iter().filter_map(set);
        if logprobs.any(|value| !without.contains(value)) {
            return refused("logprobs", "an agent's answer has no `logprobs`");
        }
        if set("functions").is_some() {
            return refused("functions", "`functions` is replaced by `tools`");
        }
        let kinds = set("modalities").and_then(Value::as_array);
        if kinds.into_iter().flatten().any(|kind| kind != "text") {
            return refused("modalities", "an agent answers with text only");
        }
        Ok(())
    }
}

fn tools(tools: Vec<ChatTool>) -> Result<Vec<planck_common::spec::ClientTool>, OpenAiError> {
    let one = |tool: ChatTool| match (tool.r#type.as_str(), tool.function) {
        ("function", Some(function)) => Ok(function.into()),
        _ => Err(OpenAiError::parameter(
            "tools",
            "a tool must have the type `function` and a `function`",
        )),
    };
    tools.into_iter().map(one).collect()
}

struct Ending {
    client: Client,
    session: SessionId,
    prompt: InputId,
    /// Whether the session was started only for this answer.
    is_task: bool,
    /// Whether the work ends with the connection.
    aborts: bool,
}

impl Ending {
    fn of(opened: &OpenedResponse, client: &Client, aborts: bool) -> Self {
        Self {
            client: client.clone(),
            session: opened.id.session.clone(),
            prompt: opened.input.clone(),
            is_task: opened.is_task,
            aborts,
        }
    }

    /// Deletes the session of a task, whose answer has been sent.
    async fn answered(&self) {
        if !self.is_task {
            return;
        }
        let (session, reason) = (&self.session, "the task of a client is answered");
        if let Err(error) = self.client.delete(session, Some(reason.into())).await {
            tracing::warn!(%session, %error, "cannot delete the session of a client's task");
        }
    }

    /// Aborts the work for a client that is gone, if the client wants that.
    async fn gone(&self) {
        if !self.aborts {
            return;
        }
        let (session, reason) = (&self.session, "the client closed the connection");
        let aborted = self
            .client
            .abort_session(session, &self.prompt, Some(reason.into()));
        if let Err(error) = aborted.await {
            tracing::warn!(%session, %error, "cannot abort the work for a client that is gone");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::ask::{Latest, Said, marked};

    fn ask(json: &str) -> Result<Ask, String> {
        let request: ChatRequest = serde_json::from_str(json).map_err(|error| error.to_string())?;
        let asked = request.ask(&HeaderMap::new());
        asked.map_err(|error| error.body().message.clone())
    }

    #[test]
    fn messages_are_a_history_and_what_is_new() {
        let ask = ask(r#"{"model":"m","temperature":0.1,"seed":null,"messages":[
            {"role":"system","content":"Be brief."},
            {"role":"user","content":"a"},
            {"role":"assistant","content":null,"tool_calls":[]},
            {"role":"tool","tool_call_id":"anything","content":"1"},
            {"role":"assistant","content":"b"},
            {"role":"assistant","content":"c"},
            {"role":"user","content":[{"type":"text","text":"d"}]}]}"#)
        .unwrap();
        assert_eq!(ask.instructions.as_deref(), Some("Be brief."));
        let said = Said {
            user: "a".into(),
            assistant: "b\n\nc".into(),
        };
        assert_eq!(ask.history, [said]);
        assert!(
            matches!(&ask.latest, Latest { results, prompt } if results.is_empty() && prompt.len() == 1)
        );
        assert_eq!(ask.warnings, ["without effect: `temperature`"]);
    }

    #[test]
    fn system_message_after_an_answer_is_a_prompt_if_nothing_else_is_one() {
        let said = |user: &str, assistant: &str| Said {
            user: user.into(),
            assistant: assistant.into(),
        };
        let system = |text: &str| format!(r#"{{"role":"system","content":"{text}"}}"#);
        let begun = format!(
            r#"{},{{"role":"user","content":"a"}},{{"role":"assistant","content":"b"}},{}"#,
            system("Be brief."),
            system("Again.")
        );
        let read = |rest: &str| {
            let ask = ask(&format!(r#"{{"model":"m","messages":[{begun}{rest}]}}"#)).unwrap();
            let prompt = marked(&ask.latest.prompt);
            (ask.instructions.unwrap(), ask.history, prompt)
        };
        let brief = || "Be brief.".to_owned();
        let first = vec![said("a", "b")];
        assert_eq!(read(""), (brief(), first.clone(), "Again.".into()));
        let asked = read(r#",{"role":"user","content":"c"}"#);
        let both = "Be brief.\n\nAgain.".to_owned();
        assert_eq!(asked, (both, first.clone(), "c".into()));
        let later = r#",{"role":"assistant","content":"c"},{"role":"user","content":"d"}"#;
        let history = [first, vec![said("Again.", "c")]].concat();
        assert_eq!(read(later), (brief(), history, "d".into()));
    }

    #[test]
    fn format_is_the_shape_of_the_answer() {
        let shape = |format: &str| {
            let json = format!(
                r#"{{"model":"m","response_format":{format},"messages":[{{"role":"user","content":"a"}}]}}"#
            );
            ask(&json).map(|ask| {
                assert!(ask.warnings.is_empty());
                ask.output
                    .map(|output| (output.schema.to_string(), output.name))
            })
        };
        let object = r#"{"type":"object"}"#.to_owned();
        let named = r#"{"type":"json_schema","json_schema":{"name":"a","strict":true,"schema":{"type":"object"}}}"#;
        assert_eq!(shape(r#"{"type":"text"}"#), Ok(None));
        assert_eq!(
            shape(r#"{"type":"json_object"}"#),
            Ok(Some((object.clone(), None)))
        );
        assert_eq!(shape(named), Ok(Some((object, Some("a".into())))));
        for (format, said) in [
            (r#"{"type":"grammar"}"#, "no format `grammar`"),
            (r#"{"type":"json_schema"}"#, "has a `schema`"),
        ] {
            assert!(shape(format).unwrap_err().contains(said));
        }
    }

    #[test]
    fn results_of_tools_name_their_session() {
        let ask = ask(r#"{"model":"m","messages":[{"role":"user","content":"a"},
            {"role":"assistant","content":null},
            {"role":"tool","tool_call_id":"call_s_3_c-1","content":"7"},
            {"role":"user","content":"b"}]}"#)
        .unwrap();
        let Latest { results, prompt } = ask.latest;
        assert_eq!((results[0].id.place, results[0].text.as_str()), (3, "7"));
        assert_eq!(marked(&prompt), "b");
    }

    #[test]
    fn requests_that_no_agent_can_serve_are_refused() {
        let user = r#"{"role":"user","content":"a"}"#;
        for (fields, messages, needle) in [
            (r#""n":2,"#, user, "`n` must be 1"),
            (r#""logprobs":true,"#, user, "logprobs"),
            (r#""top_logprobs":3,"#, user, "logprobs"),
            (r#""functions":[],"#, user, "replaced by `tools`"),
            (r#""modalities":["text","audio"],"#, user, "text only"),
            (r#""tools":[{"type":"custom"}],"#, user, "type `function`"),
            ("", "", "last message"),
            ("", r#"{"role":"assistant","content":"a"}"#, "last message"),
            ("", r#"{"role":"boss","content":"a"}"#, "no role `boss`"),
            (
                "",
                r#"{"role":"tool","tool_call_id":"x","content":"a"}"#,
                "no tool call",
            ),
            ("", r#"{"role":"user"}"#, "no content"),
            ("", r#"{"role":"user","content":7}"#, "Content"),
        ] {
            let json = format!(r#"{{{fields}"model":"m","messages":[{messages}]}}"#);
            let error = ask(&json).unwrap_err();
            assert!(error.contains(needle), "{json}: {error}");
        }
    }
}
