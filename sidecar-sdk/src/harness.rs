//! Calls a sidecar's tools and compactors in a test, without a node and without NATS. The calls run
//! through the same code that answers a node.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use planck_common::{
    message::Message,
    sidecar::{CompactMessage, IN_PROGRESS, ToolMessage},
};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{Sidecar, context::REPORTS, request_handler::RequestHandler};

/// A sidecar under test.
#[derive(Clone)]
pub struct Harness {
    handler: Arc<RequestHandler>,
    calls: Arc<AtomicU64>,
}

/// A call that was prepared but not made.
pub struct HarnessCall<'a> {
    harness: &'a Harness,
    tool: String,
    request: Value,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub said: Result<String, String>,
    /// The first 64 progress reports before the answer, each with its percent.
    pub progress: Vec<(String, Option<f64>)>,
}

impl Harness {
    pub fn of(sidecar: Sidecar) -> Self {
        Self {
            handler: Arc::new(RequestHandler::of(sidecar)),
            calls: Arc::default(),
        }
    }

    /// Calls a tool with arguments as JSON text.
    ///
    /// # Errors
    /// Returns the error that a node would receive.
    pub async fn call(&self, tool: &str, args: &str) -> Result<String, String> {
        self.request(tool, args).send().await.said
    }

    /// Prepares a call. The methods of [`HarnessCall`] change its call id, agent id, epoch and deadline.
    /// Arguments that are not JSON are sent as a JSON string.
    pub fn request(&self, tool: &str, args: &str) -> HarnessCall<'_> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let args = serde_json::from_str(args).unwrap_or_else(|_| Value::from(args));
        let request = json!({
            "v": 1, "call_id": format!("call-{number}"), "tool": tool, "args": args, "agent_id": "agent", "session_id": "session",
            "team_id": "team", "epoch": 1, "deadline_ms": 60_000,
        });
        HarnessCall {
            harness: self,
            tool: tool.into(),
            request,
        }
    }

    /// Calls a tool with an unchanged request body, and returns the result.
    pub async fn send(&self, tool: &str, body: &[u8]) -> Answer {
        let (reports, mut heard) = mpsc::channel(REPORTS);
        let reply = self.handler.tool(tool, body, None, reports).await;
        let said = match reply.message {
            ToolMessage::Ok(text) => Ok(text),
            ToolMessage::InProgress => Err(IN_PROGRESS.into()),
            ToolMessage::Ask(question) => Err(format!("asks: {}", question.message)),
            ToolMessage::Error(text) | ToolMessage::Progress { message: text, .. } => Err(text),
        };
        let mut progress = Vec::new();
        while let Ok(report) = heard.try_recv() {
            if let ToolMessage::Progress { message, percent } = report {
                progress.push((message, percent));
            }
        }
        Answer { said, progress }
    }

    /// Cancels the running call with this id.
    pub fn cancel(&self, call_id: &str) {
        self.handler.cancel(call_id);
    }

    /// Compacts a conversation for a model with a context window of `window` tokens.
    pub async fn compact(
        &self,
        compactor: &str,
        messages: &[Message],
        window: u64,
    ) -> CompactMessage {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let text = serde_json::to_string(messages).unwrap_or_default();
        let request = json!({
            "v": 1, "call_id": format!("call-{number}"), "compactor": compactor, "model": {"id": "model", "context_window": window},
            "messages": messages, "tokens": text.len() / 4, "agent_id": "agent", "session_id": "session", "deadline_ms": 60_000,
        });
        self.handler
            .compact(compactor, request.to_string().as_bytes(), None)
            .await
            .message
    }
}

impl HarnessCall<'_> {
    #[must_use]
    pub fn call_id(self, id: &str) -> Self {
        self.with("call_id", id.into())
    }

    #[must_use]
    pub fn agent(self, id: &str) -> Self {
        self.with("agent_id", id.into())
    }

    #[must_use]
    pub fn epoch(self, epoch: i64) -> Self {
        self.with("epoch", epoch.into())
    }

    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(
            "deadline_ms",
            u64::try_from(deadline.as_millis())
                .unwrap_or(u64::MAX)
                .into(),
        )
    }

    fn with(mut self, key: &str, value: Value) -> Self {
        if let Some(request) = self.request.as_object_mut() {
            request.insert(key.into(), value);
        }
        self
    }

    pub async fn send(self) -> Answer {
        self.harness
            .send(&self.tool, self.request.to_string().as_bytes())
            .await
    }
}
