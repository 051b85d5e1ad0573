//! One call of a tool: the request to the server, its progress, and its answer, or the reason why
//! there is none.

use planck_sidecar::{Context, ToolEffect};
use planck_toolbox::schema::CompiledSchema;
use std::{sync::Arc, time::Duration};

use rmcp::{
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, ClientRequest, JsonObject,
        ServerResult,
    },
    service::{PeerRequestOptions, RequestHandle, RoleClient, ServiceError},
};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{connection::LiveServer, http::HttpFailure, outcome, supervisor::Link};

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

/// Calls a tool, and returns the text for the model.
pub async fn call(
    link: watch::Receiver<Link>,
    tool: CalledTool,
    context: Context,
    args: JsonObject,
) -> Result<String, String> {
    let server = tokio::select! {
        server = up(link) => server?,
        () = context.cancelled() => return Err("cancelled before the MCP server had started".into()),
    };
    tokio::select! {
        biased;
        answer = answer(&server, &tool, &context, args) => match answer {
            Ok(result) => said(result, &tool).await,
            Err(
                error @ (ServiceError::TransportClosed | ServiceError::TransportSend(_)),
            ) => Err(unanswered(&server, &error, tool.effect).await),
            Err(error) => Err(refused(&error)),
        },
        why = server.gone() => Err(lost(why, tool.effect)),
        () = context.cancelled() => Err("cancelled; the MCP server was told".into()),
    }
}

/// Returns the server. Waits for a server that is being started.
async fn up(mut link: watch::Receiver<Link>) -> Result<Arc<LiveServer>, String> {
    let is_settled = |link: &Link| !matches!(link, Link::Starting);
    let why = match link.wait_for(is_settled).await.as_deref() {
        Ok(Link::Up(server)) => return Ok(server.clone()),
        Ok(Link::Away { why, .. }) => format!("and is tried again; {why}"),
        Ok(Link::Starting) | Err(_) => "because it is being stopped".into(),
    };
    Err(format!(
        "nobody is there: the MCP server is away, {why}; nothing was done"
    ))
}

/// Sends the request and waits for the answer. If the future is dropped, because nothing waits for
/// the answer any more, the server is told to cancel the call.
async fn answer(
    server: &LiveServer,
    tool: &CalledTool,
    context: &Context,
    args: JsonObject,
) -> Result<ServerResult, ServiceError> {
    let params = CallToolRequestParams::new(tool.server_name.clone()).with_arguments(args);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let options = PeerRequestOptions::no_options();
    let handle = server
        .peer
        .send_cancellable_request(request, options)
        .await?;
    let _waiting = server.calls.clone();
    let _route = server
        .progress
        .add(handle.progress_token.clone(), context.clone());
    let unwanted = CancellationToken::new();
    let _dropped = unwanted.clone().drop_guard();
    // The task outlives this future by the time that it takes to send the cancellation.
    let answered = tokio::spawn(wait(handle, unwanted, server.look_again.clone()));
    answered.await.unwrap_or(Err(ServiceError::TransportClosed))
}

async fn wait(
    mut handle: RequestHandle<RoleClient>,
    unwanted: CancellationToken,
    look_again: Arc<Notify>,
) -> Result<ServerResult, ServiceError> {
    tokio::select! {
        answer = &mut handle.rx => answer.unwrap_or(Err(ServiceError::TransportClosed)),
        () = unwanted.cancelled() => {
            // The call may have passed its deadline because the server hangs.
            look_again.notify_one();
            let reason = "the answer is no longer wanted".to_owned();
            handle.cancel(Some(reason.clone())).await?;
            Err(ServiceError::Cancelled { reason: Some(reason) })
        }
    }
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
    } else if matches!(result, ServerResult::InputRequiredResult(_)) {
        "asks for input, which is not supported"
    } else if matches!(result, ServerResult::CreateTaskResult(_)) {
        "made a task of the call, which is not supported"
    } else {
        "answers with something else than the result of a call"
    };
    Err(format!(
        "the MCP server {what}; the call may or may not have taken effect"
    ))
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
