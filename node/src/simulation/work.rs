//! The models and the tools of simulated nodes, with the processes of the tools and their reapers.
//! The last two words that an agent reads say which tools it calls, one call after the other. After
//! `work N` it calls the tool `work` N times. After `work NAME` or `respond NAME` it gives this agent
//! the task to work, and after `respond N` the agent responds to its task when it has worked. With
//! `shape N` at the beginning its answer is the object after N wrong ones, or prose if N is [`PROSE`].

use std::{future::pending, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream, stream::BoxStream};
use planck_common::{
    CallId, NodeId,
    event::ToolEffect,
    message::{MessageBody, MessageRole, StopReason, text_of},
    usage::Usage,
};
use serde_json::{Value, json, value::RawValue};
use tokio::{sync::oneshot, time::sleep};
use tokio_util::sync::CancellationToken;

use super::world::SimWorld;
use crate::{
    agent::SUBMIT_OUTPUT,
    model::{Chunk, Failure, Finish, ToolSpec},
    node::Reapers,
};
use planck_cluster::times::ClusterTimes;
use planck_providers::{Clients, Encoder, Provider, ReplyProgress, RequestHead, WireRequest};
use planck_toolbox::{Invocation, Tool, ToolOutcome};

/// The provider of the simulated models.
pub(super) const PROVIDER: &str = "scripted";
/// The tool of the simulated agents.
pub(super) const TOOL: &str = "work";
/// The tool with which an agent gives another one a task.
pub(super) const DELEGATE: &str = "delegate_task";
/// The tool with which an agent responds to a task.
pub(super) const RESPOND: &str = "send_response";
/// How many wrong answers stand for one in prose.
pub(super) const PROSE: usize = 4;

/// How long the work of a call takes, in milliseconds.
const WORK: Range<u64> = 100..4_000;
/// The same for a long call, and how many of 1,000 calls are long.
const LONG_WORK: Range<u64> = 4_000..30_000;
const LONG: u32 = 60;
/// How long a reaper takes to kill its processes when it is told so, in milliseconds.
const KILLING: Range<u64> = 20..100;
/// The same for a reaper that its node no longer tells that it runs. The grace before tools start
/// elsewhere allows it a second.
const NOTICING: Range<u64> = 0..800;

pub(super) struct SimProvider {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
}

/// The calls that a conversation asks for, and how many of them were made.
#[derive(Default)]
struct CallPlan {
    calls: Vec<(&'static str, Value)>,
    done: usize,
}

impl CallPlan {
    fn of(text: &str) -> Self {
        let answer = || (SUBMIT_OUTPUT, json!({ "n": 1 }));
        if text.contains(SUBMIT_OUTPUT) {
            let calls = vec![answer()];
            return Self { calls, done: 0 };
        }
        let shape = text.strip_prefix("shape ");
        let shape = shape.and_then(|rest| rest.split_once(' '));
        let (wrong, text) = shape.map_or((None, text), |(wrong, text)| (wrong.parse().ok(), text));
        let mut words = text.rsplit(' ');
        let (last, verb) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let responds = verb.ends_with("respond");
        let calls = match last.parse() {
            Ok(count) => {
                let mut calls = vec![(TOOL, json!({})); count];
                if responds {
                    calls.push((RESPOND, json!({ "response": "it is done" })));
                }
                if let Some(wrong) = wrong.filter(|wrong| *wrong != PROSE) {
                    calls.extend(vec![(SUBMIT_OUTPUT, json!({})); wrong]);
                    calls.push(answer());
                }
                calls
            }
            Err(_) if text.starts_with("delegate ") => {
                let task = if responds { "respond 1" } else { "work 1" };
                vec![(DELEGATE, json!({ "agent": last, "task": task }))]
            }
            Err(_) => Vec::new(),
        };
        Self { calls, done: 0 }
    }
}

impl Encoder for CallPlan {
    fn push(&mut self, message: &MessageBody) {
        match message.role {
            MessageRole::User => *self = Self::of(&text_of(&message.content)),
            MessageRole::ToolResult => self.done += 1,
            MessageRole::Assistant | MessageRole::Custom => {}
        }
    }

    fn request(&self, _: Option<&str>) -> WireRequest {
        let next = json!(self.calls.get(self.done));
        next.to_string().into_bytes().into()
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
        Box::<CallPlan>::default()
    }

    fn stream(
        &self,
        _: &Clients,
        _: &str,
        request: WireRequest,
    ) -> BoxStream<'static, Result<ReplyProgress, Failure>> {
        let next: Option<(String, Value)> = serde_json::from_slice(&request.body).unwrap();
        let (world, node) = (Arc::clone(&self.world), self.node.clone());
        let (chunks, stop) = match next {
            None => {
                let text = "done".into();
                (vec![Chunk::Text { part: 0, text }], StopReason::End)
            }
            Some((name, args)) => {
                let id = String::new();
                let json = args.to_string();
                let call = Chunk::Call { part: 0, id, name };
                (
                    vec![call, Chunk::Args { part: 0, json }],
                    StopReason::ToolUse,
                )
            }
        };
        let pieces = [
            ReplyProgress::Chunks(chunks),
            ReplyProgress::Finished(Finish::new(stop, Usage::default())),
        ];
        let thinking = stream::once(async move {
            world.pause(30..600).await;
            world.while_running(&node).await;
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
                is_searched: false,
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
        if !self.begins(&call).await {
            return ToolOutcome::stopped("");
        }
        let stop = self.world.tool_began(&self.node, &call);
        let _dropped = EndOfCall {
            world: Arc::clone(&self.world),
            node: self.node.clone(),
            stop: stop.clone(),
        };
        let (ended, end) = oneshot::channel();
        let processes = Processes {
            world: Arc::clone(&self.world),
            node: self.node.clone(),
            call: call.call_id.clone(),
            stop: stop.clone(),
        };
        tokio::spawn(processes.run(ended));
        let cancelled = async {
            call.cancel.cancelled().await;
            self.world.stop_tool(&self.node, &stop);
            pending::<()>().await;
        };
        let is_done = tokio::select! {
            biased;
            ended = end => ended == Ok(true),
            () = cancelled => false,
        };
        self.world.while_running(&self.node).await;
        match is_done {
            true => ToolOutcome::ok("worked"),
            false => ToolOutcome::stopped(""),
        }
    }
}

impl SimTool {
    /// Waits until the node begins the call. A process that is stopped has not read its permit yet.
    async fn begins(&self, call: &Invocation) -> bool {
        while !self.world.is_running(&self.node) {
            self.world.while_running(&self.node).await;
            if let Some(node) = self.world.link(&self.node).node.upgrade() {
                let permit = node.services().handles.view.permit().clone();
                drop(node);
                permit.given().await;
            }
        }
        !call.cancel.is_cancelled()
    }
}

/// Ends the processes of a call whose agent was dropped.
struct EndOfCall {
    world: Arc<SimWorld>,
    node: NodeId,
    stop: CancellationToken,
}

impl Drop for EndOfCall {
    fn drop(&mut self) {
        self.world.stop_tool(&self.node, &self.stop);
    }
}

/// The processes of a call with their reaper.
struct Processes {
    world: Arc<SimWorld>,
    node: NodeId,
    call: CallId,
    stop: CancellationToken,
}

impl Processes {
    /// Runs until the work is done, or until the reaper has killed the processes. Reports whether the
    /// work is done.
    async fn run(self, ended: oneshot::Sender<bool>) {
        let world = &self.world;
        let lasts = match world.chance(LONG) {
            true => world.draw(LONG_WORK),
            false => world.draw(WORK),
        };
        let is_done = tokio::select! {
            biased;
            () = sleep(Duration::from_millis(lasts)) => true,
            () = self.stop.cancelled() => {
                world.pause(KILLING).await;
                false
            }
            () = self.unheard() => {
                world.pause(NOTICING).await;
                false
            }
        };
        let (call, on) = (
            world.name("call", &self.call),
            world.name("node", self.node.as_str()),
        );
        if !is_done {
            world.note(&format!("{call} was killed on {on}"));
        }
        world.tool_ended(&self.call);
        let _ = ended.send(is_done);
    }

    /// Waits until the reaper was not told for too long that its node runs.
    async fn unheard(&self) {
        let reap_after = ClusterTimes::default().reap_after;
        let reap_after = u64::try_from(reap_after.as_millis()).unwrap();
        loop {
            let until = self.world.link(&self.node).beaten_at + reap_after;
            let left = until.saturating_sub(self.world.millis());
            if left == 0 {
                return;
            }
            sleep(Duration::from_millis(left)).await;
        }
    }
}

/// The reapers of a node's tools.
pub(super) struct SimReapers {
    pub world: Arc<SimWorld>,
    pub node: NodeId,
}

impl Reapers for SimReapers {
    fn beat(&self) {
        if self.world.is_running(&self.node) {
            let now = self.world.millis();
            self.world.change(&self.node, |link| link.beaten_at = now);
        }
    }

    fn cut(&self) {
        let tools = self.world.tools_of(&self.node);
        tools
            .iter()
            .for_each(|stop| self.world.stop_tool(&self.node, stop));
    }
}

impl SimWorld {
    fn tools_of(&self, node: &NodeId) -> Vec<CancellationToken> {
        let state = self.state();
        let tools = state.running.values().filter(|tool| tool.node == *node);
        tools.map(|tool| tool.stop.clone()).collect()
    }

    /// Makes a reaper kill its processes, if the node runs. A node that is stopped does so when it
    /// continues, and one that crashed does not.
    fn stop_tool(self: &Arc<Self>, node: &NodeId, stop: &CancellationToken) {
        if self.is_running(node) {
            stop.cancel();
        } else if !self.link(node).is_crashed {
            let (world, node, stop) = (Arc::clone(self), node.clone(), stop.clone());
            tokio::spawn(async move {
                world.while_running(&node).await;
                stop.cancel();
            });
        }
    }
}
