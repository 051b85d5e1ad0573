//! The handler of MCP's requests, the same for HTTP and for a pair of streams. For HTTP there is one
//! for each request, so it remembers nothing.

use std::sync::Arc;

use axum::http::request::Parts;
use planck_common::reply::{Code, Refusal};
use rmcp::{
    ErrorData, RoleServer, ServerHandler,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
        CreateTaskResult, ErrorCode, GetTaskParams, GetTaskResult, Implementation, ListToolsResult,
        PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool, UpdateTaskParams,
    },
    service::RequestContext,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    call::{Call, Performed},
    progress::Progress,
    tasks,
    tools::{self, INSTRUCTIONS, ToolName},
};
use crate::{
    front::Front,
    key::{Caller, Role},
    problem::Problem,
};

/// How many requests one handler answers at once. A connection over HTTP has one.
const MOST_CALLS: usize = 64;

pub struct McpServer {
    front: Arc<Front>,
    /// The caller of all requests, or `None` if each request has its own.
    caller: Option<Caller>,
    calls: Arc<Semaphore>,
}

impl McpServer {
    /// Creates the handler of a request whose caller the guard of the front has found.
    pub fn of_request(front: Arc<Front>) -> Self {
        Self::new(front, None)
    }

    /// Creates the handler of all requests of one caller.
    pub fn of_caller(front: Arc<Front>, caller: Caller) -> Self {
        Self::new(front, Some(caller))
    }

    fn new(front: Arc<Front>, caller: Option<Caller>) -> Self {
        Self {
            front,
            caller,
            calls: Arc::new(Semaphore::new(MOST_CALLS)),
        }
    }

    /// Creates the call of a request, with its place among the calls.
    fn call(
        &self,
        context: &RequestContext<RoleServer>,
    ) -> Result<(Call, OwnedSemaphorePermit), Problem> {
        let caller = match &self.caller {
            Some(caller) => caller,
            None => {
                let parts = context.extensions.get::<Parts>();
                let parts = parts.ok_or_else(|| Problem::unauthorized("this request has no head"));
                Caller::of(&parts?.extensions)?
            }
        };
        let place = Arc::clone(&self.calls).try_acquire_owned().map_err(|_| {
            let why = format!("{MOST_CALLS} calls are open already; wait until one of them ends");
            Problem::from(Refusal::new(Code::Limit, why))
        })?;
        let token = context.meta.get_progress_token();
        let progress = Progress::new(token.map(|token| (context.peer.clone(), token)));
        let (front, gone) = (Arc::clone(&self.front), context.ct.clone());
        Ok((Call::new(front, caller.clone(), gone, progress), place))
    }
}

/// Returns a problem as an error of the protocol, which a program reads.
fn error_of(problem: &Problem) -> ErrorData {
    let code = match problem.status().as_u16() {
        400 | 404 => ErrorCode::INVALID_PARAMS,
        500.. => ErrorCode::INTERNAL_ERROR,
        _ => ErrorCode::INVALID_REQUEST,
    };
    let data = serde_json::to_value(problem).ok();
    ErrorData::new(code, problem.detail().to_owned(), data)
}

/// Returns a problem as the result of a tool, which a model reads and can act upon.
fn failure(problem: &Problem) -> CallToolResult {
    let retry = match problem.is_retryable() {
        true => " (the same call may succeed later)",
        false => "",
    };
    CallToolResult::error(vec![ContentBlock::text(format!(
        "{}: {}{retry}",
        problem.code(),
        problem.detail()
    ))])
}

impl ServerHandler for McpServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder();
        let capabilities = capabilities.enable_tools().enable_tasks().build();
        let name = Implementation::new("planck", env!("CARGO_PKG_VERSION")).with_title("Planck");
        ServerConfig::new(capabilities)
            .with_server_info(name)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let tool = ToolName::find(&request.name);
        let tool = tool.map_err(|why| ErrorData::invalid_params(why, None))?;
        let given = request.arguments.unwrap_or_default();
        // Only a request says that its client has tasks. A client of `initialize` would take a task
        // for a result without content.
        let has_tasks = context.meta.client_capabilities();
        let has_tasks = has_tasks.is_some_and(|client| client.supports_tasks());
        let performed = async {
            let (mut call, _place) = self.call(&context)?;
            Ok(match call.perform(tool, given, has_tasks).await? {
                Performed::Done(result) => result.into(),
                Performed::Begun(begun) => CreateTaskResult::new(tasks::begun(&begun)).into(),
            })
        };
        let performed: Result<_, Problem> = Box::pin(performed).await;
        Ok(performed.unwrap_or_else(|problem| failure(&problem).into()))
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let can_ask = context.client_capabilities();
        let can_ask = can_ask.is_some_and(|client| client.elicitation.is_some());
        let found = async {
            let (call, _place) = self.call(&context)?;
            call.caller.needs(Role::Observe, "a task")?;
            tasks::get(&call, &request.task_id, can_ask).await
        };
        let found: Result<_, Problem> = Box::pin(found).await;
        found.map_err(|problem| error_of(&problem))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let updated = async {
            let (call, _place) = self.call(&context)?;
            call.caller.needs(Role::Use, "an answer to a task")?;
            tasks::update(&call, &request.task_id, request.input_responses).await
        };
        let updated: Result<_, Problem> = Box::pin(updated).await;
        updated.map_err(|problem| error_of(&problem))
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let cancelled = async {
            let (call, _place) = self.call(&context)?;
            call.caller.needs(Role::Use, "the end of a task")?;
            tasks::cancel(&call, &request.task_id).await
        };
        let cancelled: Result<_, Problem> = Box::pin(cancelled).await;
        cancelled.map_err(|problem| error_of(&problem))
    }
}
