//! One call of a tool: the request to the server, its progress, and its answer, or the reason why
//! there is none.

use planck_sidecar::{Context, ToolEffect};
use planck_toolbox::schema::CompiledSchema;
use std::{sync::Arc, time::Duration};

use rmcp::{
    model::{CallToolResult, JsonObject, ServerResult},
    service::ServiceError,
};
use tokio::{sync::watch, time::timeout};

use crate::{
    connection::LiveServer,
    elicitation::{Asked, Inputs},
    http::HttpFailure,
    outcome,
    pending::{PendingCall, PendingEnd},
    supervisor::Link,
};

const MAY_HAVE: &str = "the call may or may not have taken effect";

/// Why a call cannot go on after a person has answered.
const NOT_HELD: &str = "the MCP server that asked has ended, or runs on another node";

/// How long a call without an answer waits for the reason why its server is gone.
const REASON: Duration = Duration::from_secs(2);

/// The tool that is called.
#[derive(Clone)]
pub struct CalledTool {
    /// The name that the server knows.
    pub server_name: String,
    pub effect: ToolEffect,
    /// The schema of the structured content of a result.
    pub output: Option<Arc<CompiledSchema>>,
}

/// The maximum number of times that a server may want a call again without asking a person.
const MOST_ROUNDS: usize = 10;

/// Calls a tool, and returns the text for the model.
pub async fn call(
    link: watch::Receiver<Link>,
    tool: CalledTool,
    context: Context,
    args: JsonObject,
) -> Result<String, String> {
    let server = tokio::select! {
        server = up(link) => server.map_err(|why| match context.answer() {
            None => format!("nobody is there: {why}; nothing was done"),
            // The call has run up to its question.
            Some(_) => lost(&why, tool.effect),
        })?,
        () = context.cancelled() => return Err("cancelled before the MCP server had started".into()),
    };
    tokio::select! {
        biased;
        said = converse(&server, &tool, &context, args) => said,
        why = server.gone() => Err(lost(why, tool.effect)),
        () = context.cancelled() => Err("cancelled; the MCP server was told".into()),
    }
}

/// Sends the call, or goes on with it if it has asked a person, until the server has a result or asks.
async fn converse(
    server: &LiveServer,
    tool: &CalledTool,
    context: &Context,
    args: JsonObject,
) -> Result<String, String> {
    let mut inputs = Inputs::default();
    let mut held = None;
    if let Some(answer) = context.answer() {
        match Asked::of(answer)? {
            Asked::Held(form) => {
                let call = server.held.answer(context, form.result(answer));
                held = Some(call.ok_or_else(|| lost(NOT_HELD, tool.effect))?);
            }
            Asked::Again(form, asked) => {
                inputs = asked;
                inputs.answered(&form.result(answer));
            }
        }
    }
    for _ in 0..MOST_ROUNDS {
        let wants = |why: String| format!("the MCP server {why}; {MAY_HAVE}");
        if let Some(form) = inputs.next_form(context.may_ask()).map_err(wants)? {
            return context.ask(Asked::Again(form, inputs).question()).await;
        }
        let call = match held.take() {
            Some(call) => Ok(call),
            None => PendingCall::send(server, tool, context, args.clone(), inputs).await,
        };
        let ended = match call {
            Ok(call) => call.ended(context).await,
            Err(error) => PendingEnd::Answered(Err(error)),
        };
        match ended {
            PendingEnd::Asks(call, question) => {
                let asked = server.held.hold(context, call, question)?;
                return context.ask(asked.question()).await;
            }
            PendingEnd::Answered(Ok(result)) => {
                if let ServerResult::InputRequiredResult(wanted) = *result {
                    inputs = Inputs::of(wanted);
                } else {
                    return said(*result, tool).await;
                }
            }
            PendingEnd::Answered(Err(
                error @ (ServiceError::TransportClosed | ServiceError::TransportSend(_)),
            )) => return Err(unanswered(server, &error, tool.effect).await),
            PendingEnd::Answered(Err(error)) => return Err(refused(&error)),
        }
    }
    Err(format!(
        "the MCP server wanted the call again {MOST_ROUNDS} times; {MAY_HAVE}"
    ))
}

/// Returns the server. Waits for a server that is being started.
async fn up(mut link: watch::Receiver<Link>) -> Result<Arc<LiveServer>, String> {
    let is_settled = |link: &Link| !matches!(link, Link::Starting);
    let why = match link.wait_for(is_settled).await.as_deref() {
        Ok(Link::Up(server)) => return Ok(server.clone()),
        Ok(Link::Away { why, .. }) => format!("and is tried again; {why}"),
        Ok(Link::Starting) | Err(_) => "because it is being stopped".into(),
    };
    Err(format!("the MCP server is away, {why}"))
}

async fn said(result: ServerResult, tool: &CalledTool) -> Result<String, String> {
    let what = if let ServerResult::CallToolResult(result) = result {
        let mistakes = mistakes(&result, tool).await;
        return outcome::said(result).map(|text| text + &mistakes);
    } else if matches!(
        result,
        ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_)
    ) {
        return outcome::said(CallToolResult::default());
    } else if matches!(result, ServerResult::CreateTaskResult(_)) {
        "made a task of the call, which is not supported"
    } else {
        "answers with something else than the result of a call"
    };
    Err(format!("the MCP server {what}; {MAY_HAVE}"))
}

/// Returns what is wrong with the structured content of a result, as a line for the model, or nothing.
async fn mistakes(result: &CallToolResult, tool: &CalledTool) -> String {
    let (Some(schema), Some(content)) = (&tool.output, &result.structured_content) else {
        return String::new();
    };
    let mistakes = schema.mistakes(&content.to_string()).await;
    match mistakes.is_empty() {
        true => String::new(),
        false => format!(
            "\n[the structured content does not fit the schema that the MCP server announced: {}]",
            mistakes.join("; ")
        ),
    }
}

fn refused(error: &ServiceError) -> String {
    let ServiceError::McpError(error) = error else {
        return format!("the MCP server gives no answer: {error}");
    };
    match &error.data {
        Some(data) => format!("{} ({data})", error.message),
        None => error.message.to_string(),
    }
}

/// Returns the error of a call whose request or answer was lost. The server may be gone, or only this
/// request of a server at an address has failed.
async fn unanswered(server: &LiveServer, error: &ServiceError, effect: ToolEffect) -> String {
    server.look_again.notify_one();
    let failure = HttpFailure::find(error);
    if let Some(failure) = &failure
        && failure.was_refused
    {
        return format!("nothing was done: {}", failure.why);
    }
    match (timeout(REASON, server.gone()).await, failure) {
        (Ok(why), _) => lost(why, effect),
        (Err(_), Some(failure)) => lost(&failure.why, effect),
        (Err(_), None) => lost(&error.to_string(), effect),
    }
}

/// Returns the error of a call whose server went away during the call.
fn lost(why: &str, effect: ToolEffect) -> String {
    let effect = match effect {
        ToolEffect::Pure => "nothing was changed, and you can call it again",
        ToolEffect::Idempotent => "you can call it again with the same arguments",
        ToolEffect::Mutating => "it may or may not have taken effect",
    };
    format!("it went away: the MCP server gave no answer; {effect}; {why}")
}
