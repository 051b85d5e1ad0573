//! Teams as tools of MCP clients, over a node in this process.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends at the first surprise"
)]

#[path = "mcp/guard.rs"]
mod guard;
#[path = "mcp/judges.rs"]
mod judges;
#[path = "mcp/tasks.rs"]
mod tasks;
#[path = "mcp/tools.rs"]
mod tools;

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{Request, Response, StatusCode, header},
};
use futures_util::StreamExt as _;
use planck_client::protocol::command::{ReadEvents, ReadMessages};
use planck_http::{Front, FrontOptions, Key, KeyHash, Keys, Role, StartDefaults};
use planck_node::{Runtime, ScriptedModel, Tool, ToolContext};
use serde_json::{Map, Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;

const PATIENCE: Duration = Duration::from_secs(40);
const PACE: Duration = Duration::from_millis(40);
const STORY: &str = "Once there was a small robot that wanted to see the sea and so it went there.";
/// The protocol with `initialize`, and the one without.
const OLD: &str = "2025-11-25";
const NEW: &str = "2026-07-28";

/// A node with a scripted model, and two fronts over it. The teams `painter` and `asker` have a tool, and
/// `asker` asks before it uses it.
struct Served {
    fronts: [Arc<Front>; 2],
    runtime: Runtime,
    _folder: TempDir,
}

fn keys() -> Keys {
    let key = |name: &str, role| Key {
        name: name.into(),
        hash: KeyHash::of(name),
        role,
    };
    Keys::Listed(vec![key("viewer", Role::Observe), key("ann", Role::Use)])
}

impl Served {
    async fn start(model: ScriptedModel) -> Self {
        Self::with(model, Keys::Off).await
    }

    async fn with(model: ScriptedModel, keys: Keys) -> Self {
        let folder = TempDir::new().unwrap();
        let asks = json!([{"tool": "paint", "action": "ask"}]);
        for (name, permissions) in [("asker", asks), ("painter", json!([]))] {
            let lead = json!({"type": "lead", "description": "Leads", "tools": ["paint"], "permissions": permissions});
            let members = json!({"name": name, "description": "Paints", "members": [lead]});
            let team = folder.path().join("teams").join(name);
            std::fs::create_dir_all(&team).unwrap();
            std::fs::write(team.join("TEAM.json"), members.to_string()).unwrap();
        }
        let teams = folder.path().join("teams").display().to_string();
        let paint = |_: ToolContext, args: Map<String, Value>| async move {
            tokio::time::sleep(PACE * 40).await;
            Ok::<_, Infallible>(Value::Object(args).to_string())
        };
        let paint = Tool::new("paint", "Paints a wall.", paint);
        let builder = Runtime::builder().set("teams.dirs", teams).tool(paint);
        let runtime = builder.scripted_model(model).start().await.unwrap();
        let front = || {
            let options = FrontOptions {
                keys: keys.clone(),
                start: StartDefaults {
                    workspace: Some("embedded".into()),
                    dir: None,
                },
                ..FrontOptions::default()
            };
            Front::new(runtime.client().clone(), options)
        };
        Self {
            fronts: [front(), front()],
            runtime,
            _folder: folder,
        }
    }

    /// Returns a client of the first front, or of the second one.
    fn client(&self, front: usize, version: &'static str) -> McpClient {
        McpClient {
            routes: self.fronts[front].routes(),
            version,
            key: None,
            capabilities: json!({}),
        }
    }

    async fn prompts(&self, session: &str) -> usize {
        let read = ReadMessages::default();
        let messages = self.runtime.client().messages(session, &read);
        let messages = messages.await.unwrap().messages;
        let texts = messages.iter().map(|message| message.get());
        texts
            .filter(|text| text.contains(r#""role":"user""#))
            .count()
    }
}

/// Returns the events of a session as they are in its log.
async fn log_of(served: &Served, session: &str) -> String {
    let read = ReadEvents::default();
    let page = served
        .runtime
        .client()
        .events(session, &read)
        .await
        .unwrap();
    page.events.iter().map(|event| event.get()).collect()
}

/// A client that sends each message in a request of its own.
#[derive(Clone)]
struct McpClient {
    routes: Router,
    version: &'static str,
    key: Option<&'static str>,
    capabilities: Value,
}

impl McpClient {
    fn request(&self, message: &Value) -> Request<Body> {
        let mut request = Request::post("/mcp")
            .header(header::HOST, "127.0.0.1:8400")
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header(header::CONTENT_TYPE, "application/json")
            .header("mcp-protocol-version", self.version);
        if let Some(key) = self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        if self.version == NEW {
            request = request.header("mcp-method", message["method"].as_str().unwrap());
            let params = &message["params"];
            let name = params["name"].as_str().or(params["taskId"].as_str());
            if let Some(name) = name {
                request = request.header("mcp-name", name);
            }
        }
        request.body(Body::from(message.to_string())).unwrap()
    }

    fn message(&self, method: &str, mut params: Value, token: Option<&str>) -> Value {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let mut meta = json!({});
        if self.version == NEW {
            meta = json!({
                "io.modelcontextprotocol/protocolVersion": NEW,
                "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
                "io.modelcontextprotocol/clientCapabilities": self.capabilities,
            });
        }
        if let Some(token) = token {
            meta["progressToken"] = token.into();
        }
        params["_meta"] = meta;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
    }

    async fn open(&self, message: &Value) -> Response<Body> {
        let answer = self.routes.clone().oneshot(self.request(message));
        let answer = tokio::time::timeout(PATIENCE, answer).await;
        answer.unwrap().unwrap()
    }

    /// Sends a request, and returns all messages of the answer. The last one is the response.
    async fn messages(&self, message: &Value) -> Vec<Value> {
        read(self.open(message).await).await
    }

    /// Sends a request, and returns its response.
    async fn ask(&self, method: &str, params: Value) -> Value {
        let message = self.message(method, params, None);
        self.messages(&message).await.pop().unwrap()
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        let params = json!({"name": tool, "arguments": arguments});
        let response = self.ask("tools/call", params).await;
        let result = response["result"].clone();
        assert!(result.is_object(), "{response}");
        result
    }

    /// Calls a tool, and returns its structured content, which is the same as its text.
    async fn work(&self, tool: &str, arguments: Value) -> Value {
        let result = self.call(tool, arguments).await;
        let content = result["structuredContent"].clone();
        let text = result["content"][0]["text"].as_str().unwrap();
        assert!(content.is_object(), "{result}");
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), content);
        content
    }

    /// Calls a tool that fails, and returns why.
    async fn refused(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments).await;
        assert_eq!(result["isError"], true, "{result}");
        result["content"][0]["text"].as_str().unwrap().to_owned()
    }
}

/// Reads the messages of an answer: one as JSON, or several as server-sent events.
async fn read(response: Response<Body>) -> Vec<Value> {
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 24);
    let body = tokio::time::timeout(PATIENCE, body).await.unwrap().unwrap();
    let text = String::from_utf8(body.to_vec()).unwrap();
    if text.starts_with('{') {
        return vec![serde_json::from_str(&text).unwrap()];
    }
    assert_eq!(status, StatusCode::OK, "{text}");
    data(&text)
}

fn data(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("data:"));
    let lines = lines.map(str::trim).filter(|line| !line.is_empty());
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Reads the beginning of a stream, up to its first message.
async fn first(response: Response<Body>) -> Value {
    let mut body = response.into_body().into_data_stream();
    let mut text = String::new();
    loop {
        let bytes = tokio::time::timeout(PATIENCE, body.next()).await.unwrap();
        text.push_str(std::str::from_utf8(&bytes.unwrap().unwrap()).unwrap());
        if let Some(message) = data(&text).into_iter().next() {
            return message;
        }
    }
}
