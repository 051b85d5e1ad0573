//! The models and the tools of simulated nodes. A prompt `work N` makes an agent call the tool
//! `work` N times, one call after the other.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use planck_common::{
    NodeId,
    event::ToolEffect,
    message::{MessageBody, MessageRole, StopReason, text_of},
    usage::Usage,
};
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::world::SimWorld;
use crate::model::{Chunk, Failure, Finish, ToolSpec};
use planck_providers::{Clients, Encoder, Provider, ReplyProgress, RequestHead, WireRequest};
use planck_toolbox::{Invocation, Tool, ToolOutcome};

/// The provider of the simulated models.
pub(super) const PROVIDER: &str = "scripted";
/// The tool of the simulated agents.
pub(super) const TOOL: &str = "work";

pub(super) struct SimProvider {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
}

/// Counts how many calls a conversation still needs.
#[derive(Default)]
struct CallCounter {
    wanted: usize,
    done: usize,
}

impl Encoder for CallCounter {
    fn push(&mut self, message: &MessageBody) {
        match message.role {
            MessageRole::User => {
                let text = text_of(&message.content);
                let wanted = text.rsplit(' ').next().and_then(|last| last.parse().ok());
                *self = Self {
                    wanted: wanted.unwrap_or(0),
                    done: 0,
                };
            }
            MessageRole::ToolResult => self.done += 1,
            MessageRole::Assistant | MessageRole::Custom => {}
        }
    }

    fn request(&self, _: Option<&str>) -> WireRequest {
        let left = self.wanted.saturating_sub(self.done);
        left.to_string().into_bytes().into()
    }
}

impl Provider for SimProvider {
    fn name(&self) -> &str {
        PROVIDER
    }

    fn server(&self) -> Option<(&str, u16)> {
        None
    }

    fn encoder(&self, _: RequestHead) -> Box<dyn Encoder> {
        Box::<CallCounter>::default()
    }

    fn stream(
        &self,
        _: &Clients,
        _: &str,
        request: WireRequest,
    ) -> BoxStream<'static, Result<ReplyProgress, Failure>> {
        let is_done = request.body.as_ref() == b"0";
        let (world, node) = (Arc::clone(&self.world), self.node.clone());
        let (chunks, stop) = if is_done {
            let text = Chunk::Text {
                part: 0,
                text: "done".into(),
            };
            (vec![text], StopReason::End)
        } else {
            let call = Chunk::Call {
                part: 0,
                id: String::new(),
                name: TOOL.into(),
            };
            let json = "{}".into();
            (
                vec![call, Chunk::Args { part: 0, json }],
                StopReason::ToolUse,
            )
        };
        let pieces = [
            ReplyProgress::Chunks(chunks),
            ReplyProgress::Finished(Finish::new(stop, Usage::default())),
        ];
        let thinking = stream::once(async move {
            world.pause(30..600).await;
            world.unless_crashed(&node).await;
        });
        thinking
            .flat_map(move |()| stream::iter(pieces.clone().map(Ok)))
            .boxed()
    }
}

pub(super) struct SimTool {
    world: Arc<SimWorld>,
    node: NodeId,
    spec: ToolSpec,
}

impl SimTool {
    pub(super) fn new(world: &Arc<SimWorld>, node: &NodeId) -> Self {
        let parameters = RawValue::from_string(r#"{"type":"object"}"#.into()).unwrap();
        Self {
            world: Arc::clone(world),
            node: node.clone(),
            spec: ToolSpec {
                name: TOOL.into(),
                description: "works".into(),
                parameters: parameters.into(),
                effect: ToolEffect::Mutating,
                sidecar: None,
                wait: None,
            },
        }
    }
}

#[async_trait]
impl Tool for SimTool {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    async fn run(&self, call: Invocation) -> ToolOutcome {
        self.world.unless_crashed(&self.node).await;
        self.world.tool_began(&self.node, &call);
        let ended = EndOfTool {
            world: Arc::clone(&self.world),
            node: self.node.clone(),
            call: call.call_id.clone(),
        };
        let millis = self.world.draw(100..4_000);
        let outcome = tokio::select! {
            biased;
            () = call.cancel.cancelled() => ToolOutcome::stopped(""),
            () = sleep(Duration::from_millis(millis)) => ToolOutcome::ok("worked"),
        };
        self.world.unless_crashed(&self.node).await;
        drop(ended);
        outcome
    }
}

/// Ends the call when it is dropped, unless its node crashed, which ends it in its own time.
struct EndOfTool {
    world: Arc<SimWorld>,
    node: NodeId,
    call: planck_common::CallId,
}

impl Drop for EndOfTool {
    fn drop(&mut self) {
        if !self.world.link(&self.node).is_crashed {
            self.world.tool_ended(&self.call);
        }
    }
}
