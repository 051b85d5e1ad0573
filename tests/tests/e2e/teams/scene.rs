//! A running team in its own world, and functions that read its log.

use anyhow::{Context, Result};
use planck_common::{
    AgentId,
    command::{AgentVerb, Started},
    envelope::Envelope,
    event::{Event, ToolEnd, TurnOutcome},
};
use planck_scripted_model::{Reply, Script, ScriptedFault, When};
use planck_tests::{
    caller::agent_at,
    eventually::eventually,
    node::Node,
    recorder::Recorder,
    world::{Backend, World},
};
use serde_json::{Value, json};

/// Returns a member that the script recognises by its name.
pub fn member(name: &str, tools: &[&str]) -> Value {
    json!({ "type": name, "system_prompt": format!("You are {name}."), "tools": tools })
}

pub fn lead(tools: &[&str]) -> Value {
    member("lead", &[&["spawn_agent"], tools].concat())
}

/// Returns a condition that matches the requests of the member with this name.
pub fn by(name: &str) -> When {
    When::any().system(&format!("You are {name}."))
}

/// A request to which the model never replies.
pub fn never() -> Reply {
    Reply::fault(ScriptedFault::HangBeforeHead)
}

/// Returns the answer with which a turn ended. Fails if the turn was not completed.
pub fn said(end: &Envelope) -> Result<String> {
    match end.event() {
        Some(Ok(Event::TurnEnd(end))) if end.outcome == TurnOutcome::Completed => {
            end.message.context("it said nothing")
        }
        other => anyhow::bail!("the turn ended otherwise: {other:?}"),
    }
}

pub struct Scene {
    pub world: World,
    pub node: Option<Node>,
    pub recorder: Recorder,
    pub started: Started,
}

impl Scene {
    /// Starts a team with its first prompt.
    pub async fn start(script: Script, members: &[Value], prompt: &str) -> Result<Self> {
        Self::start_on(
            World::start(Backend::Sqlite, script).await?,
            members,
            prompt,
        )
        .await
    }

    pub async fn start_on(world: World, members: &[Value], prompt: &str) -> Result<Self> {
        let node = world.node().await?;
        Self::start_beside(world, node, members, prompt).await
    }

    /// Starts a team on a node that runs.
    pub async fn start_beside(
        world: World,
        node: Node,
        members: &[Value],
        prompt: &str,
    ) -> Result<Self> {
        let body = json!({ "dir": world.dir(), "members": members, "prompt": prompt });
        Self::start_as(world, node, &body).await
    }

    /// Starts a session with this body of the request, on a node that runs.
    pub async fn start_as(world: World, node: Node, body: &Value) -> Result<Self> {
        let recorder = world.record().await?;
        let started = world.caller.start(body).await?;
        Ok(Self {
            world,
            node: Some(node),
            recorder,
            started,
        })
    }

    /// Kills the node and starts another.
    pub async fn again(&mut self) -> Result<()> {
        if let Some(mut node) = self.node.take() {
            node.kill().await?;
        }
        self.node = Some(self.world.node().await?);
        Ok(())
    }

    /// Waits for the end of the turn of the prompt in `started`, and returns the agent's answer.
    /// Fails if the turn was not completed.
    pub async fn answer(&self) -> Result<String> {
        let prompt = self
            .started
            .prompt_id
            .clone()
            .context("it was started without a prompt")?;
        said(&self.recorder.answered(&prompt).await?)
    }

    /// Sends a further prompt, and returns the agent's answer. Fails if the turn was not completed.
    pub async fn ask(&self, prompt: &str) -> Result<String> {
        let session = self.started.session_id.as_str();
        let accepted = self.world.caller.prompt(session, prompt).await?;
        said(&self.recorder.answered(&accepted.prompt_id).await?)
    }

    /// Returns the id of the agent of that name, even if it is stopped.
    pub async fn id(&self, name: &str) -> Result<AgentId> {
        let session = self.world.caller.session(&self.started.session_id).await?;
        let found = session.agents.into_iter().find(|agent| agent.name == name);
        Ok(found.with_context(|| format!("no agent {name}"))?.id)
    }

    pub async fn log(&self) -> Result<Vec<Envelope>> {
        self.world.caller.log(&self.started.session_id, 1).await
    }

    /// Returns the log of one agent.
    pub async fn log_of(&self, name: &str) -> Result<Vec<Event>> {
        let id = self.id(name).await?;
        let log = self
            .log()
            .await?
            .into_iter()
            .filter(|envelope| envelope.agent_id == id);
        log.map(|envelope| {
            envelope
                .event()
                .context("unknown event")?
                .context("unreadable event")
        })
        .collect()
    }

    /// Returns the results of an agent's calls of a tool, in the order in which they ended.
    pub async fn results(&self, name: &str, tool: &str) -> Result<Vec<ToolEnd>> {
        let ends = self
            .log_of(name)
            .await?
            .into_iter()
            .filter_map(|event| match event {
                Event::ToolEnd(end) if end.name == tool => Some(end),
                _ => None,
            });
        Ok(ends.collect())
    }

    pub async fn result(&self, name: &str, tool: &str) -> Result<ToolEnd> {
        self.results(name, tool)
            .await?
            .pop()
            .with_context(|| format!("{name} did not call {tool}"))
    }

    /// Sends a command to an agent by its name.
    pub async fn tell(&self, name: &str, verb: AgentVerb, body: Value) -> Result<Value> {
        self.world
            .caller
            .ask(&agent_at(&self.id(name).await?, verb), &body)
            .await
    }

    /// Waits until the model gets a request of the member with this text in its latest message.
    pub async fn is_asked(&self, name: &str, text: &str) -> Result<()> {
        let system = format!("You are {name}.");
        let asked = || {
            let requests = self
                .world
                .model
                .requests()
                .into_iter()
                .filter_map(|request| request.asked);
            requests
                .filter(|asked| asked.system.contains(&system))
                .any(|asked| format!("{:?}", asked.messages.last()).contains(text))
        };
        eventually(&format!("{name} is asked {text:?}"), async || {
            asked().then_some(())
        })
        .await
    }

    /// Returns the messages of all requests of the member, as one text.
    pub fn requests_text(&self, name: &str) -> String {
        let system = format!("You are {name}.");
        let requests = self
            .world
            .model
            .requests()
            .into_iter()
            .filter_map(|request| request.asked);
        let theirs = requests.filter(|asked| asked.system.contains(&system));
        theirs
            .map(|asked| format!("{:?}\n", asked.messages))
            .collect()
    }

    /// Checks that the model got only valid requests, and that the node leaves in order.
    pub async fn end(mut self) -> Result<()> {
        self.world.check_model()?;
        let node = self.node.take().context("the node is gone")?;
        node.leave().await
    }
}
