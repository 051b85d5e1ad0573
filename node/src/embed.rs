//! The runtime as a library: a node inside a program's process, with the program's own tools.

mod builder;
mod scripted;

use std::time::Duration;

use planck_client::{AnswerError, Client, ClientError, Follow};
use planck_common::{
    AgentId, NodeId, SessionId,
    command::{Accepted, Outcome, Prompt, Start, Started},
    spec::Member,
};
use planck_toolbox::BadTool;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::{
    config::Problems,
    node::{self, RunningNode},
};

pub use builder::RuntimeBuilder;
pub use scripted::ScriptedModel;

/// A node in the process of a program. It hosts agents and runs the tools that the program
/// provides.
///
/// Without NATS, nothing outside the process can reach the node. With NATS, the node is like every
/// other node of the cluster. It can be drained or declared dead, and its sessions then continue on
/// another runtime with the same [name](RuntimeBuilder::name), if there is one.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use planck_node::{Agent, Event, Runtime, ScriptedModel};
///
/// let runtime = Runtime::builder()
///     .scripted_model(ScriptedModel::new().text("Hello!"))
///     .start()
///     .await?;
/// let session = runtime.start(Agent::new("greeter")).await?;
/// let mut events = session.events().await?;
/// session.prompt("Hi.").await?;
/// loop {
///     match events.next().await?.event() {
///         Some(Event::TurnEnd(end)) => {
///             assert_eq!(end.message.as_deref(), Some("Hello!"));
///             break;
///         }
///         Some(Event::Error(error)) => return Err(error.reason.into()),
///         _ => {}
///     }
/// }
/// runtime.shut_down().await;
/// # Ok(())
/// # }
/// ```
///
/// Call [`Runtime::shut_down`] at the end. If it is not called, a `Runtime` that is dropped inside
/// a tokio runtime shuts down in the background, without time for running turns and only if the
/// tokio runtime keeps running long enough.
pub struct Runtime {
    id: NodeId,
    /// The node, or `None` once the runtime is shutting down.
    running: Option<RunningNode>,
    client: Client,
    /// The workspace of the sessions that this runtime starts.
    workspace: String,
    /// The tools of an agent that does not name any.
    tools: Vec<String>,
    /// How long running turns may continue after [`Runtime::shut_down`] is called.
    drain_timeout: Duration,
    /// The temporary folder for data for which the program did not name a place.
    folder: Option<TempDir>,
}

/// Why a runtime could not be started. The message says what is wrong and how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A setting does not exist or has an invalid value.
    #[error("{0}")]
    Settings(String),
    /// The name of a tool is already used or not allowed, or the schema of its arguments is
    /// invalid.
    #[error("{0}")]
    Tool(String),
    /// NATS, the store or the cluster was unreachable or unusable, or the system refused a thread
    /// or a folder.
    #[error("{0}")]
    Start(String),
}

impl From<Problems> for RuntimeError {
    fn from(problems: Problems) -> Self {
        Self::Settings(problems.to_string())
    }
}

impl From<BadTool> for RuntimeError {
    fn from(bad: BadTool) -> Self {
        Self::Tool(bad.to_string())
    }
}

impl From<node::AssemblyError> for RuntimeError {
    fn from(error: node::AssemblyError) -> Self {
        match error {
            node::AssemblyError::Config(why) => Self::Settings(why),
            node::AssemblyError::Tool(bad) => bad.into(),
            node::AssemblyError::Bus(_)
            | node::AssemblyError::Store(_)
            | node::AssemblyError::Join(_)
            | node::AssemblyError::Threads(_) => Self::Start(error.to_string()),
        }
    }
}

impl Runtime {
    /// Returns a builder with the default settings.
    pub fn builder() -> RuntimeBuilder {
        RuntimeBuilder::default()
    }

    #[cfg(test)]
    pub(crate) fn services(&self) -> &crate::services::Services {
        let running = self.running.as_ref();
        running.expect("the runtime runs").node().services()
    }

    /// Returns the id of this node in the cluster.
    pub fn node_id(&self) -> &NodeId {
        &self.id
    }

    /// Returns a client with all commands of the protocol as typed calls. Without NATS, it reaches
    /// only this runtime.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Starts a session with one agent.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Refused`] with the reason if the agent has no model or is invalid in
    /// another way. An unknown tool is not an error: the session gets a warning, and the agent gets
    /// the tool as soon as a sidecar offers it.
    pub async fn start(&self, agent: Agent) -> Result<Session, ClientError> {
        self.start_team([agent]).await
    }

    /// Starts a session with a team. If there are several agents, exactly one of them must have the
    /// tool `spawn_agent`. That agent is the orchestrator, which receives the session's prompts.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use planck_node::{Agent, Runtime, ScriptedModel};
    ///
    /// let runtime = Runtime::builder().scripted_model(ScriptedModel::new()).start().await?;
    /// let lead = Agent::new("lead").tools(["spawn_agent", "ask_agent"]);
    /// let session = runtime.start_team([lead, Agent::new("reviewer")]).await?;
    /// assert_eq!(runtime.client().session(session.id()).await?.agents.len(), 2);
    /// runtime.shut_down().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Runtime::start`].
    pub async fn start_team(
        &self,
        agents: impl IntoIterator<Item = Agent>,
    ) -> Result<Session, ClientError> {
        let member = |agent: Agent| agent.member(&self.tools);
        let request = Start {
            members: Some(agents.into_iter().map(member).collect()),
            workspace: Some(self.workspace.clone()),
            ..Start::default()
        };
        let started = self.client.start(request).await?;
        Ok(Session::new(self.client.clone(), started))
    }

    /// Waits until the runtime has to leave its cluster, and returns the reason. Either the cluster
    /// declared this node dead or refuses it, or an operator drains the node. The program must then
    /// call [`Runtime::shut_down`]. Without NATS, only the program itself can drain the node,
    /// through its [`client`](Runtime::client).
    pub async fn must_leave(&self) -> String {
        let Some(running) = &self.running else {
            return "the runtime is shut down".to_owned();
        };
        tokio::select! {
            why = running.must_end() => why,
            _ = running.must_drain() => "the node is being drained".to_owned(),
        }
    }

    /// Leaves the cluster and stops. Running turns may continue for up to `node.drain_timeout` (2
    /// minutes by default), unless another node takes them over. If the program named a store, the
    /// sessions are kept, and the next runtime with this store and the same
    /// [name](RuntimeBuilder::name) continues them.
    pub async fn shut_down(mut self) {
        let patience = self.drain_timeout;
        if let Some(running) = self.running.take() {
            running.shut_down(patience).await;
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let folder = self.folder.take();
        if let Some(running) = self.running.take()
            && let Ok(handle) = tokio::runtime::Handle::try_current()
        {
            handle.spawn(async move {
                running.shut_down(Duration::ZERO).await;
                drop(folder);
            });
        }
    }
}

/// An agent to start, with its prompt, its model and its tools.
///
/// Other properties are set through [`Member`], the protocol's description of an agent:
///
/// ```
/// use planck_node::{Agent, protocol::spec::Member};
///
/// let agent = Agent::new("reviewer").system_prompt("You review pull requests.");
/// let colder = Agent::from(Member {
///     opts: [("temperature".to_owned(), 0.2.into())].into_iter().collect(),
///     ..Member::from(agent)
/// });
/// ```
#[derive(Debug, Clone)]
pub struct Agent {
    member: Member,
}

impl Agent {
    /// Creates an agent of a type. The type is a word for the agent's purpose, and is also the
    /// agent's name.
    pub fn new(r#type: impl Into<String>) -> Self {
        Self {
            member: Member {
                r#type: r#type.into(),
                ..Member::default()
            },
        }
    }

    /// Sets the system prompt, which precedes the conversation.
    #[must_use]
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> Self {
        self.member.system_prompt = Some(prompt.into());
        self
    }

    /// Sets the model as `PROVIDER:MODEL`. By default an agent has the runtime's model.
    #[must_use]
    pub fn model(mut self, model: impl Into<String>) -> Self {
        self.member.model_id = Some(model.into());
        self
    }

    /// Sets the names of the tools that the agent may use: tools of the program, tools for files,
    /// tools of sidecars, and tools between agents such as `spawn_agent`. By default an agent has
    /// all tools of the program and, if the program gave the runtime a
    /// [workspace](crate::RuntimeBuilder::workspace), the tools for files.
    #[must_use]
    pub fn tools<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.member.tools = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Converts the agent to the protocol's description. `tools` are the tools of an agent that
    /// does not name any.
    fn member(self, tools: &[String]) -> Member {
        let mut member = self.member;
        member.tools.get_or_insert_with(|| tools.to_vec());
        member
    }
}

impl From<Member> for Agent {
    fn from(member: Member) -> Self {
        Self { member }
    }
}

impl From<Agent> for Member {
    fn from(agent: Agent) -> Self {
        agent.member
    }
}

/// A handle to a session, with methods that send prompts and follow events. Dropping this value
/// does not end the session.
///
/// [`Client`] has all other operations on a session, which they identify by its
/// [`id`](Session::id).
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    started: Started,
}

impl Session {
    fn new(client: Client, started: Started) -> Self {
        Self { client, started }
    }

    /// Returns the session's id, with which another process can find the session later.
    pub fn id(&self) -> &SessionId {
        &self.started.session_id
    }

    /// Returns the id of the agent that receives the session's prompts.
    pub fn orchestrator(&self) -> &AgentId {
        &self.started.orchestrator
    }

    /// Sends a prompt. The prompt is stored when this function returns, and the answer arrives as
    /// [events](Self::events).
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Refused`], for example if the session was deleted or its inbox is
    /// full.
    pub async fn prompt(&self, prompt: impl Into<Prompt>) -> Result<Accepted, ClientError> {
        self.client.prompt(self.id(), prompt).await
    }

    /// Sends a prompt, and waits until the work that it caused is over: the agent's turns, and those
    /// of the agents to which it gave tasks or questions. Also returns if nothing can happen before
    /// an answer from outside, such as an approval; the [`state`](Outcome::state) tells.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use planck_node::{Agent, Runtime, ScriptedModel};
    ///
    /// let runtime = Runtime::builder()
    ///     .scripted_model(ScriptedModel::new().text("Hello!"))
    ///     .start()
    ///     .await?;
    /// let session = runtime.start(Agent::new("greeter")).await?;
    /// let outcome = session.run("Hi.").await?;
    /// assert_eq!(outcome.message.as_deref(), Some("Hello!"));
    /// runtime.shut_down().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Client::run`].
    pub async fn run(&self, prompt: impl Into<Prompt>) -> Result<Outcome, ClientError> {
        self.client.run(self.id(), prompt).await
    }

    /// Does the same as [`run`](Self::run), and returns the answer as a value of a type. The type's
    /// JSON Schema is the shape of the answer, so the type must be a struct or a map.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use planck_node::{Agent, Runtime, ScriptedModel};
    ///
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Rivers {
    ///     names: Vec<String>,
    /// }
    ///
    /// let answer = serde_json::json!({"names": ["Rhine", "Elbe"]});
    /// let runtime = Runtime::builder()
    ///     .scripted_model(ScriptedModel::new().call("submit_output", answer))
    ///     .start()
    ///     .await?;
    /// let session = runtime.start(Agent::new("geographer")).await?;
    /// let rivers: Rivers = session.prompt_as("Name two rivers.").await?;
    /// assert_eq!(rivers.names, ["Rhine", "Elbe"]);
    /// runtime.shut_down().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Client::prompt_as`].
    pub async fn prompt_as<T: DeserializeOwned + JsonSchema>(
        &self,
        prompt: impl Into<Prompt>,
    ) -> Result<T, AnswerError> {
        self.client.prompt_as(self.id(), prompt).await
    }

    /// Follows the events of all agents of the session, from the first one on. While replies are
    /// streamed, their parts are included.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Client::follow`].
    pub async fn events(&self) -> Result<Follow, ClientError> {
        self.client.follow(self.id(), 1).await
    }
}
