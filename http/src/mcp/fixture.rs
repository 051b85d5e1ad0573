//! A server with the tools, prompts and resources that the conformance suite of MCP asks for by name. It is
//! behind the same HTTP as the teams, which have none of them, so the suite judges that HTTP and `rmcp`.
#![expect(
    deprecated,
    reason = "the older revision logs, and subscribes to resources"
)]

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use axum::{Router, middleware::from_fn_with_state, routing::post};
use planck_client::{
    Client,
    bus::{MemoryBus, MemoryHub},
};
use planck_tests::sdk::judge_mcp_server;
use rmcp::{model::*, service::*, task_manager::*, *};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::{
    net::TcpListener,
    sync::{Mutex, broadcast},
};
use tokio_util::sync::CancellationToken;

use super::{McpRequest, answer};
use crate::{
    FrontOptions,
    front::Front,
    guard::guard,
    key::{self, KeyHash},
    route::require,
    server::{self, ConnectionLimits},
};

/// The pause between two messages of a call.
const PAUSE: Duration = Duration::from_millis(50);

/// What the server has, by name. A tool or a prompt asks for the inputs of its `rounds` and then says its
/// `content`, in which its arguments are filled in.
static FIXTURE: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../tests/judges/mcp-conformance/fixture.json");
    serde_json::from_str(text).unwrap()
});

/// What the server tells its subscribers.
#[derive(Clone, Copy)]
enum Change {
    Tools,
    Prompts,
}

/// The handler of one request.
struct Fixture {
    tasks: TaskManager,
    changes: broadcast::Sender<Change>,
    /// The changes since the request arrived.
    changed: Mutex<broadcast::Receiver<Change>>,
}

/// Reads what the protocol defines from its JSON.
fn read<T: DeserializeOwned>(value: &Value) -> T {
    T::deserialize(value).unwrap()
}

/// Reads what the protocol defines from JSON in which arguments are filled in.
fn fill<T: DeserializeOwned>(value: &Value, arguments: &JsonObject) -> T {
    let fill = |text: String, (name, value): (&String, &Value)| {
        text.replace(&format!("{{{name}}}"), value.as_str().unwrap_or_default())
    };
    let text = arguments.iter().fold(value.to_string(), fill);
    serde_json::from_str(&text).unwrap()
}

fn said(text: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn failed(text: &str) -> CallToolResult {
    CallToolResult::error(vec![ContentBlock::text(text)])
}

fn tools() -> &'static Map<String, Value> {
    FIXTURE["tools"].as_object().unwrap()
}

fn tool(name: &str, known: &Value) -> Tool {
    let schema = known.get("schema").map(read);
    let schema: JsonObject = schema.unwrap_or_else(|| object(json!({"type": "object"})));
    Tool::new(name.to_owned(), "For the conformance suite", schema)
}

fn can_give(client: &ClientCapabilities, input: &str) -> bool {
    match FIXTURE["inputs"][input]["method"].as_str() {
        Some("sampling/createMessage") => client.sampling.is_some(),
        Some("roots/list") => client.roots.is_some(),
        _ => client.elicitation.is_some(),
    }
}

/// Returns the state of a client that is asked for the inputs of a round. Only this server can make it.
fn state(name: &str, round: usize) -> String {
    KeyHash::of(&format!("only this server knows it {name} {round}")).to_string()
}

/// Returns the request for the inputs that a tool or a prompt lacks, or `None` if it has all that the
/// client can give.
fn missing(
    (name, known): (&str, &Value),
    given: Option<&InputResponses>,
    given_state: Option<&str>,
    client: &ClientCapabilities,
) -> Result<Option<InputRequiredResult>, ErrorData> {
    let rounds: Vec<Vec<String>> = known.get("rounds").map(read).unwrap_or_default();
    let begun = match given_state {
        None => Some(0),
        Some(given) => (0..rounds.len()).find(|round| state(name, *round) == given),
    };
    let begun = begun.ok_or_else(|| ErrorData::invalid_params("the state is another one", None))?;
    let is_given = |input: &String| {
        let input = given.and_then(|given| given.get(input));
        input.is_some_and(Value::is_object)
    };
    for (round, inputs) in rounds.into_iter().enumerate().skip(begun) {
        let inputs = inputs.into_iter().filter(|input| can_give(client, input));
        if !inputs.clone().all(|input| is_given(&input)) {
            let asked = inputs.map(|input| (input.clone(), read(&FIXTURE["inputs"][&input])));
            let asked = Some(asked.collect());
            return Ok(Some(InputRequiredResult::new(
                asked,
                Some(state(name, round)),
            )));
        }
    }
    Ok(None)
}

async fn log(context: &RequestContext<RoleServer>, level: LoggingLevel, messages: &[&str]) {
    for message in messages {
        let message = LoggingMessageNotificationParam::new(level, json!(message));
        context.peer.notify_logging_message(message).await.unwrap();
        tokio::time::sleep(PAUSE).await;
    }
}

async fn progress(context: &RequestContext<RoleServer>) {
    for done in [0.0, 50.0, 100.0] {
        if let Some(token) = context.meta.get_progress_token() {
            let progress = ProgressNotificationParam::new(token, done).with_total(100.0);
            context.peer.notify_progress(progress).await.unwrap();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does the work of a task.
async fn work(
    request: CallToolRequestParams,
    task: TaskContext,
) -> Result<CallToolResult, TaskExit> {
    let ask = |name| task.request_input(name, read(&FIXTURE["inputs"][name]));
    match &*request.name {
        "confirm_delete" => Ok(said(ask("confirm").await?.to_string())),
        "failing_job" => Ok(failed("It fails.")),
        "multi_input" => {
            let (name, color) = tokio::try_join!(ask("step1"), ask("step2"))?;
            Ok(said(format!("{name} {color}")))
        }
        "protocol_error_job" => Err(ErrorData::internal_error("It breaks.", None).into()),
        "slow_compute" => {
            let arguments = request.arguments.unwrap_or_default();
            let seconds = arguments.get("seconds").and_then(Value::as_f64);
            let pause = Duration::from_secs_f64(seconds.unwrap_or(1.0));
            tokio::select! {
                () = task.cancelled() => Err(TaskExit::Cancelled),
                () = tokio::time::sleep(pause) => Ok(said("It is computed.")),
            }
        }
        _ => Ok(said(json!(request.input_responses).to_string())),
    }
}

impl Fixture {
    /// Begins a task. One tool can also do without.
    fn begin(
        &self,
        request: CallToolRequestParams,
        client: &ClientCapabilities,
    ) -> Result<CallToolResponse, ErrorData> {
        if client.supports_tasks() {
            let options = TaskOptions::default();
            let task = self
                .tasks
                .spawn(options, |task| Box::pin(work(request, task)));
            return Ok(CreateTaskResult::new(task).into());
        }
        if request.name == "slow_compute" {
            return Ok(said("It is computed.").into());
        }
        let needed = ClientCapabilities::builder().enable_tasks().build();
        Err(ErrorData::missing_required_client_capability(needed))
    }

    /// Does what a tool without content does.
    async fn perform(
        &self,
        request: CallToolRequestParams,
        client: &ClientCapabilities,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        match &*request.name {
            "test_error_handling" => {
                return Ok(failed(
                    "This tool intentionally returns an error for testing",
                ));
            }
            "test_missing_capability" if client.sampling.is_none() => {
                let needed = ClientCapabilities::builder().enable_sampling().build();
                return Err(ErrorData::missing_required_client_capability(needed));
            }
            "test_logging_tool" => {
                if let Some(level) = context.meta.log_level() {
                    log(context, level, &["It logs."]).await;
                }
            }
            "test_tool_with_logging" => {
                let messages = ["It starts.", "It works.", "It is done."];
                log(context, LoggingLevel::Info, &messages).await;
            }
            "test_tool_with_progress" => progress(context).await,
            // Without subscribers a change is told to none.
            "test_trigger_prompt_change" => drop(self.changes.send(Change::Prompts)),
            "test_trigger_tool_change" => drop(self.changes.send(Change::Tools)),
            _ => {}
        }
        let given = json!(request.input_responses);
        Ok(said(format!("It is done (state-ok): {given}")))
    }
}

impl ServerHandler for Fixture {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_completions()
            .enable_logging()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_tasks();
        ServerConfig::new(capabilities.build())
            .with_server_info(Implementation::new("fixture", "1"))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        // The suite calls the first tool without tasks.
        let mut known = Vec::from_iter(tools());
        known.sort_by_key(|(_, known)| known.get("is_task").is_some());
        let tools = known.into_iter().map(|(name, known)| tool(name, known));
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().get(name).map(|known| tool(name, known))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let known = tools().get_key_value(&*request.name);
        let (name, known) =
            known.ok_or_else(|| ErrorData::invalid_params("there is no such tool", None))?;
        let client = context.client_capabilities().unwrap_or_default();
        let given = request.input_responses.as_ref();
        let state = request.request_state.as_deref();
        if let Some(missing) = missing((name, known), given, state, &client)? {
            return Ok(missing.into());
        }
        if known.get("is_task").is_some() {
            return self.begin(request, &client);
        }
        match known.get("content") {
            Some(content) => {
                let arguments = request.arguments.unwrap_or_default();
                Ok(CallToolResult::success(fill(content, &arguments)).into())
            }
            None => Ok(self.perform(request, &client, &context).await?.into()),
        }
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        let prompts = FIXTURE["prompts"].as_object().unwrap().iter();
        let prompts = prompts.map(|(name, known)| {
            let arguments = known.get("arguments").map(read);
            Prompt::new(name, Some("For the conformance suite"), arguments)
        });
        Ok(ListPromptsResult::with_all_items(prompts.collect()))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let known = FIXTURE["prompts"].get(&request.name);
        let known =
            known.ok_or_else(|| ErrorData::invalid_params("there is no such prompt", None))?;
        let client = context.client_capabilities().unwrap_or_default();
        let given = request.input_responses.as_ref();
        let state = request.request_state.as_deref();
        if let Some(missing) = missing((&request.name, known), given, state, &client)? {
            return Ok(missing.into());
        }
        let arguments = request.arguments.unwrap_or_default();
        let content: Vec<ContentBlock> = fill(&known["content"], &arguments);
        let messages = content
            .into_iter()
            .map(|part| PromptMessage::new(Role::User, part));
        Ok(GetPromptResult::new(messages.collect()).into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let values = ["paris", "park", "party"].map(Into::into).into();
        let info = CompletionInfo::with_all_values(values).unwrap();
        Ok(CompleteResult::new(info))
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let resources = read(&FIXTURE["resources"]);
        Ok(ListResourcesResult::with_all_items(resources))
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let templates = read(&FIXTURE["templates"]);
        Ok(ListResourceTemplatesResult::with_all_items(templates))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let id = request.uri.strip_prefix("test://template/");
        let id = id.and_then(|rest| rest.strip_suffix("/data"));
        let name = id.map_or(&*request.uri, |_| "test://template/{id}/data");
        match FIXTURE["contents"].get(name) {
            Some(content) => {
                let content = fill(content, &object(json!({"id": id})));
                Ok(ReadResourceResult::new(vec![content]).into())
            }
            None => {
                let data = json!({"uri": request.uri});
                let why = "there is no such resource";
                Err(ErrorData::resource_not_found(why, Some(data)))
            }
        }
    }

    async fn subscribe(
        &self,
        _: SubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn unsubscribe(
        &self,
        _: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        Some(requested.clone())
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let (mut changed, sink) = (self.changed.lock().await, context.sink());
        loop {
            let change = tokio::select! {
                () = context.cancelled() => return Ok(()),
                change = changed.recv() => change.unwrap(),
            };
            // The sink refuses what the subscriber did not ask for.
            let _ = match change {
                Change::Tools => sink.notify_tool_list_changed().await,
                Change::Prompts => sink.notify_prompt_list_changed().await,
            };
        }
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        let task = self.tasks.get_task(&request.task_id);
        task.map(GetTaskResult::new)
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let given = request.input_responses;
        self.tasks.update_task(&request.task_id, given)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the conformance suite of MCP: make test-all"]
async fn http_carries_what_the_conformance_suite_asks_for() {
    let client = Client::over(Arc::new(MemoryBus::new(MemoryHub::new())));
    let front = Front::new(client, FrontOptions::default());
    let (tasks, changes) = (TaskManager::new(), broadcast::Sender::new(16));
    let handler = move || Fixture {
        tasks: tasks.clone(),
        changed: Mutex::new(changes.subscribe()),
        changes: changes.clone(),
    };
    let message = move |request: McpRequest| answer(handler.clone(), request);
    let routes = Router::new()
        .route("/mcp", require(key::Role::Observe, post(message)))
        .layer(from_fn_with_state(Arc::clone(&front), guard))
        .with_state(front);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let limits = ConnectionLimits {
        all: 64,
        keyless: 64,
    };
    let serving = tokio::spawn(server::serve(listener, routes, limits, stop.clone()));
    judge_mcp_server(&url, "known-fixture").await.unwrap();
    stop.cancel();
    serving.await.unwrap();
}
