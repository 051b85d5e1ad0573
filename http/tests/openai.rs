//! The wire of OpenAI's clients, over a node in this process.
#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends at the first surprise"
)]

#[path = "openai/chat.rs"]
mod chat;
#[path = "openai/judges.rs"]
mod judges;
#[path = "openai/open_webui.rs"]
mod open_webui;
#[path = "openai/responses.rs"]
mod responses;
#[path = "openai/shapes.rs"]
mod shapes;
#[path = "openai/team.rs"]
mod team;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::{Body, to_bytes},
    http::{HeaderMap, Method, Request, Response, StatusCode, header},
};
use futures_util::StreamExt as _;
use planck_client::protocol::command::ReadMessages;
use planck_http::{Front, FrontOptions, StartDefaults};
use planck_node::{Runtime, ScriptedModel};
use serde_json::{Value, json};
use tempfile::TempDir;
use tower::ServiceExt as _;

const PATIENCE: Duration = Duration::from_secs(30);
const PACE: Duration = Duration::from_millis(40);
const STORY: &str = "Once there was a small robot that wanted to see the sea and so it went there.";

/// A front over a node with scripted models, and with the teams `duo` and `crew`.
struct Served {
    routes: Router,
    front: Arc<Front>,
    runtime: Runtime,
    _folder: TempDir,
}

impl Served {
    async fn start(model: ScriptedModel) -> Self {
        Self::of([model]).await
    }

    async fn of(models: impl IntoIterator<Item = ScriptedModel>) -> Self {
        let folder = TempDir::new().unwrap();
        let duo = json!({"name": "duo", "description": "Two agents", "members": [
            {"type": "lead", "description": "Leads", "tools": ["spawn_agent", "ask_agent"]},
            {"type": "helper", "description": "Helps"},
        ]});
        let crew = json!([
            {"type": "lead", "model_id": "scripted:lead", "tools": ["spawn_agent", "delegate_task"]},
            {"type": "helper", "model_id": "scripted:helper", "tools": ["send_response"]},
        ]);
        for (name, members) in [("duo", duo), ("crew", crew)] {
            let team = folder.path().join("teams").join(name);
            std::fs::create_dir_all(&team).unwrap();
            std::fs::write(team.join("TEAM.json"), members.to_string()).unwrap();
        }
        let teams = folder.path().join("teams").display().to_string();
        let builder = Runtime::builder().set("teams.dirs", teams);
        let builder = models
            .into_iter()
            .fold(builder, |builder, model| builder.scripted_model(model));
        let runtime = builder.start().await.unwrap();
        let options = FrontOptions {
            start: StartDefaults {
                workspace: Some("embedded".into()),
                dir: None,
            },
            ..FrontOptions::default()
        };
        let front = Front::new(runtime.client().clone(), options);
        Self {
            routes: front.routes(),
            front,
            runtime,
            _folder: folder,
        }
    }

    async fn send(&self, request: Request<Body>) -> Response<Body> {
        let answer = self.routes.clone().oneshot(request);
        tokio::time::timeout(PATIENCE, answer)
            .await
            .unwrap()
            .unwrap()
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Response<Body> {
        let mut request =
            request(Method::POST, path).header(header::CONTENT_TYPE, "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::from(body.to_string())).unwrap())
            .await
    }

    async fn get(&self, path: &str) -> Response<Body> {
        self.send(request(Method::GET, path).body(Body::empty()).unwrap())
            .await
    }

    /// Sends the messages as a chat, and returns the session and the answer.
    async fn chat(&self, headers: &[(&str, &str)], messages: &Value) -> (String, Value) {
        let body = json!({"model": "planck", "messages": messages});
        let response = self
            .post("/openai/v1/chat/completions", headers, &body)
            .await;
        let session = session(response.headers());
        let (status, body) = read(response).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        (session, body)
    }

    async fn turns(&self, session: &str) -> usize {
        let read = ReadMessages::default();
        let messages = self.runtime.client().messages(session, &read);
        let messages = messages.await.unwrap().messages;
        let texts = messages.iter().map(|message| message.get());
        texts
            .filter(|text| text.contains(r#""role":"user""#))
            .count()
    }
}

fn request(method: Method, path: &str) -> axum::http::request::Builder {
    let host = (header::HOST, "127.0.0.1:8400");
    Request::builder()
        .method(method)
        .uri(path)
        .header(host.0, host.1)
}

fn session(headers: &HeaderMap) -> String {
    let name = headers.get("x-planck-session");
    name.map(|name| name.to_str().unwrap().to_owned())
        .unwrap_or_default()
}

async fn read(response: Response<Body>) -> (StatusCode, Value) {
    let status = response.status();
    let body = tokio::time::timeout(PATIENCE, to_bytes(response.into_body(), 1 << 22));
    let body = body.await.unwrap().unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

fn text(completion: &Value) -> &str {
    completion["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
}

/// Reads events of a stream until `is_last`, or to the end.
async fn events(response: Response<Body>, is_last: impl Fn(&Value) -> bool) -> Vec<Value> {
    assert_eq!(response.status(), StatusCode::OK);
    let mut body = response.into_body().into_data_stream();
    let (mut text, mut events) = (String::new(), Vec::new());
    while let Some(bytes) = tokio::time::timeout(PATIENCE, body.next()).await.unwrap() {
        text.push_str(std::str::from_utf8(&bytes.unwrap()).unwrap());
        while let Some((frame, rest)) = text.split_once("\n\n") {
            let data = frame.lines().find_map(|line| line.strip_prefix("data: "));
            let event = data
                .filter(|data| *data != "[DONE]")
                .map(|data| serde_json::from_str(data).unwrap());
            let rest = rest.to_owned();
            if let Some(event) = event {
                let is_over = is_last(&event);
                events.push(event);
                if is_over {
                    return events;
                }
            }
            text = rest;
        }
    }
    events
}
