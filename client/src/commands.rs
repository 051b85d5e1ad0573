//! The commands about sessions, agents, the cluster and waits as typed calls. A session is identified
//! by its id or its name.

use std::time::Duration;

use futures_util::{
    StreamExt as _,
    stream::{self, BoxStream},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::value::RawValue;

use planck_common::{
    AgentId, InputId, Seq, SessionId,
    command::{
        AbortSession, Aborted, Accepted, AgentInfo, AgentStateNow, AgentVerb, Answer, Answered,
        Because, ChangeModel, Drain, Draining, Empty, Events, HeadAt, InputMode, ListSessions,
        ListWaits, MOST_ABORT_MS, Messages, Model, Models, NodeInfo, NodeVerb, Nodes, Prompt,
        ReadEvents, ReadMessages, Removed, Rename, Renamed, Rewind, SavedAt, SessionInfo,
        SessionStateNow, SessionVerb, Sessions, SessionsVerb, SetCheckpoint, Sidecars, Snapshot,
        Start, Started, Teams, ToolName, Tools, Waits,
    },
    decision::Decision,
    subject::{Address, LIST, Target, Topic},
};

use crate::client::{Client, ClientError, RetryPolicy};

pub(super) fn session_address(session: &str, verb: SessionVerb) -> Address {
    Address::session(session, verb.name())
}

/// Returns the prompt with an id, by which a node recognises a retry, and the retry policy that
/// fits the prompt's mode.
pub(super) fn identified(mut prompt: Prompt) -> (Prompt, RetryPolicy) {
    prompt.prompt_id.get_or_insert_with(InputId::mint);
    let policy = match prompt.mode {
        InputMode::Queue | InputMode::Steer => RetryPolicy::Idempotent,
        InputMode::Reject => RetryPolicy::Never,
    };
    (prompt, policy)
}

impl Client {
    pub(super) async fn call_session<T: DeserializeOwned>(
        &self,
        session: &str,
        verb: SessionVerb,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        let policy = RetryPolicy::of(verb.is_idempotent());
        self.call(&session_address(session, verb), body, policy)
            .await
    }

    /// Starts a session. `dir` or `workspace` must say where the session's agents work. Without
    /// `members` and `team` the session has one agent, with the node's defaults.
    ///
    /// The call is idempotent: absent ids are generated before the first attempt, so that a retry
    /// starts nothing more.
    pub async fn start(&self, mut start: Start) -> Result<Started, ClientError> {
        start.session_id.get_or_insert_with(SessionId::mint);
        if start.prompt.is_some() {
            start.prompt_id.get_or_insert_with(InputId::mint);
        }
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::Start.name()),
            &start,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists sessions, one page per call. The call is idempotent.
    pub async fn sessions(&self, filter: &ListSessions) -> Result<Sessions, ClientError> {
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::List.name()),
            filter,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Sends a prompt to a session's orchestrator, or to the agent that the prompt names. The reply
    /// confirms that the prompt is stored. The answer comes as events, which
    /// [`follow`](Self::follow) returns from `seq + 1` of the reply on.
    ///
    /// The prompt gets an id if it has none. With [`InputMode::Queue`] and [`InputMode::Steer`] the
    /// call is idempotent by that id and is retried; with [`InputMode::Reject`] it is tried once.
    pub async fn prompt(
        &self,
        session: &str,
        prompt: impl Into<Prompt>,
    ) -> Result<Accepted, ClientError> {
        let (prompt, policy) = identified(prompt.into());
        self.call(
            &session_address(session, SessionVerb::Prompt),
            &prompt,
            policy,
        )
        .await
    }

    /// Reads a page of a session's log. The call is idempotent. To see events as they happen, use
    /// [`follow`](Self::follow).
    pub async fn events(&self, session: &str, read: &ReadEvents) -> Result<Events, ClientError> {
        self.call_session(session, SessionVerb::Events, read).await
    }

    /// Reads a session's log from one number to another, page by page. The last page may go beyond
    /// `to`. A failure ends the stream.
    pub fn pages<'a>(
        &'a self,
        session: &'a str,
        from: Seq,
        to: Seq,
    ) -> BoxStream<'a, Result<Vec<Box<RawValue>>, ClientError>> {
        let next = move |from: Seq| async move {
            if from > to {
                return Ok(None);
            }
            let read = ReadEvents {
                from: Some(from),
                limit: None,
                agent: None,
            };
            let page = self.events(session, &read).await?;
            if page.next <= from {
                return Err(ClientError::Malformed {
                    to: session_address(session, SessionVerb::Events).to_string(),
                    what: format!("no page follows event {from}"),
                });
            }
            Ok(Some((page.events, page.next)))
        };
        stream::try_unfold(from, next).boxed()
    }

    /// Reads messages of one agent or of all agents: those since the latest checkpoint, or earlier
    /// ones. The call is idempotent.
    pub async fn messages(
        &self,
        session: &str,
        read: &ReadMessages,
    ) -> Result<Messages, ClientError> {
        self.call_session(session, SessionVerb::Messages, read)
            .await
    }

    /// Describes a session: its state, its agents, and its usage. The call is idempotent.
    pub async fn session(&self, session: &str) -> Result<SessionInfo, ClientError> {
        self.call_session(session, SessionVerb::Info, &Empty {})
            .await
    }

    /// Aborts the running turns of a session's agents and, for up to 5 s, those that they begin
    /// because of it, until the work of a prompt is over. With `None` in place of a prompt, this is the
    /// work of all prompts that agents have read; those that wait are read afterwards. Returns the
    /// agents that had a running turn at first. The call is not idempotent.
    pub async fn abort_session(
        &self,
        session: &str,
        prompt: impl Into<Option<&InputId>> + Send,
        reason: Option<String>,
    ) -> Result<Aborted, ClientError> {
        let abort = AbortSession {
            reason,
            prompt_id: prompt.into().cloned(),
        };
        let to = session_address(session, SessionVerb::Abort);
        let wait = Duration::from_millis(MOST_ABORT_MS);
        self.call_that_waits(&to, &abort, RetryPolicy::of(false), wait)
            .await
    }

    /// Hides a message and all later ones, so that the session continues from the message before
    /// it. Aborts running turns. `by` is the name under which the log records the rewind. The call
    /// is not idempotent.
    pub async fn rewind(
        &self,
        session: &str,
        to_message: Seq,
        by: Option<String>,
    ) -> Result<HeadAt, ClientError> {
        let rewind = Rewind { to: to_message, by };
        self.call_session(session, SessionVerb::Rewind, &rewind)
            .await
    }

    /// Gives a session a title, or removes it. The call is idempotent.
    pub async fn rename(
        &self,
        session: &str,
        title: Option<String>,
    ) -> Result<Renamed, ClientError> {
        self.call_session(session, SessionVerb::Rename, &Rename { title })
            .await
    }

    /// Resumes a session that was closed or interrupted. The call is idempotent.
    pub async fn resume(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Started, ClientError> {
        self.call_session(session, SessionVerb::Resume, &Because { reason })
            .await
    }

    /// Closes a session: its agents stop, and its log is kept. The call is idempotent.
    pub async fn close(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<SessionStateNow, ClientError> {
        self.call_session(session, SessionVerb::Close, &Because { reason })
            .await
    }

    /// Closes a session and deletes it with its log. The call is not idempotent.
    pub async fn delete(
        &self,
        session: &str,
        reason: Option<String>,
    ) -> Result<Removed, ClientError> {
        self.call_session(session, SessionVerb::Delete, &Because { reason })
            .await
    }
}

// Commands about agents.

fn agent_address(agent: &AgentId, verb: AgentVerb) -> Address {
    Address::agent(agent, verb.name())
}

impl Client {
    async fn call_agent<T: DeserializeOwned>(
        &self,
        agent: &AgentId,
        verb: AgentVerb,
        body: &(impl Serialize + Sync),
    ) -> Result<T, ClientError> {
        let policy = RetryPolicy::of(verb.is_idempotent());
        self.call(&agent_address(agent, verb), body, policy).await
    }

    /// Sends a prompt to one agent. The call is retried like [`prompt`](Self::prompt).
    pub async fn prompt_agent(
        &self,
        agent: &AgentId,
        prompt: impl Into<Prompt>,
    ) -> Result<Accepted, ClientError> {
        let (prompt, policy) = identified(prompt.into());
        self.call(&agent_address(agent, AgentVerb::Prompt), &prompt, policy)
            .await
    }

    /// Describes an agent. The call is idempotent.
    pub async fn agent(&self, agent: &AgentId) -> Result<AgentInfo, ClientError> {
        self.call_agent(agent, AgentVerb::Info, &Empty {}).await
    }

    /// Reads the work in progress of an agent: the streaming reply and the running tools. The call
    /// is idempotent.
    pub async fn snapshot(&self, agent: &AgentId) -> Result<Snapshot, ClientError> {
        self.call_agent(agent, AgentVerb::Snapshot, &Empty {}).await
    }

    /// Aborts an agent's running turn. The call is not idempotent.
    pub async fn abort_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Abort, &Because { reason })
            .await
    }

    /// Stops an agent permanently. The call is not idempotent.
    pub async fn stop_agent(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Stop, &Because { reason })
            .await
    }

    /// Opens a turn without an input, if the agent is idle and its history is not empty. The call
    /// is not idempotent.
    pub async fn nudge(
        &self,
        agent: &AgentId,
        reason: Option<String>,
    ) -> Result<AgentStateNow, ClientError> {
        self.call_agent(agent, AgentVerb::Nudge, &Because { reason })
            .await
    }

    /// Saves a summary as the agent's checkpoint, after the running turn if there is one. Older
    /// messages are no longer sent to the model. The call is not idempotent.
    pub async fn checkpoint(
        &self,
        agent: &AgentId,
        summary: String,
    ) -> Result<SavedAt, ClientError> {
        self.call_agent(agent, AgentVerb::Checkpoint, &SetCheckpoint { summary })
            .await
    }

    /// Adds the tool `name` to an agent. The call is idempotent.
    pub async fn add_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.call_agent(agent, AgentVerb::AddTool, &ToolName { name })
            .await
    }

    /// Removes the tool `name` from an agent. The call is idempotent.
    pub async fn remove_tool(&self, agent: &AgentId, name: String) -> Result<Tools, ClientError> {
        self.call_agent(agent, AgentVerb::RemoveTool, &ToolName { name })
            .await
    }

    /// Changes the model of an agent from its next request on. The call is idempotent.
    pub async fn change_model(
        &self,
        agent: &AgentId,
        model: &ChangeModel,
    ) -> Result<Model, ClientError> {
        self.call_agent(agent, AgentVerb::ChangeModel, model).await
    }
}

// Commands about nodes, teams, models and sidecars.

/// The decisions of a cluster as they are published: which nodes joined, left or died, and why.
pub type DecisionStream = BoxStream<'static, Decision>;

impl Client {
    /// Subscribes to the decisions of the cluster. Decisions are not stored, so those that were
    /// published earlier are missing. Messages that are no decisions are left out.
    ///
    /// # Errors
    ///
    /// [`ClientError::Unreachable`] when the subscription is not active within four seconds, or
    /// this user may not subscribe.
    pub async fn decisions(&self) -> Result<DecisionStream, ClientError> {
        let subject = Topic::Cluster("*").to_string();
        let published = self.bus().subscribe(&subject).await;
        let published = published.map_err(ClientError::Unreachable)?;
        let decisions = published
            .flat_map(|delivery| stream::iter(serde_json::from_slice(&delivery.payload).ok()));
        Ok(decisions.boxed())
    }

    /// Lists the nodes of the cluster. The call is idempotent.
    pub async fn nodes(&self) -> Result<Nodes, ClientError> {
        self.call(
            &Address::new(Target::Nodes, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Describes a node. The call is idempotent.
    pub async fn node(&self, node: &str) -> Result<NodeInfo, ClientError> {
        self.call(
            &Address::node(node, NodeVerb::Info.name()),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Makes a node hand over its agents and accept no new ones. The call is idempotent.
    pub async fn drain(&self, node: &str, drain: &Drain) -> Result<Draining, ClientError> {
        self.call(
            &Address::node(node, NodeVerb::Drain.name()),
            drain,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the templates of teams. The call is idempotent.
    pub async fn teams(&self) -> Result<Teams, ClientError> {
        self.call(
            &Address::new(Target::Teams, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the models that agents may use. The call is idempotent.
    pub async fn models(&self) -> Result<Models, ClientError> {
        self.call(
            &Address::new(Target::Models, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Lists the sidecars that offer tools or compactors. The call is idempotent.
    pub async fn sidecars(&self) -> Result<Sidecars, ClientError> {
        self.call(
            &Address::new(Target::Sidecars, LIST),
            &Empty {},
            RetryPolicy::Idempotent,
        )
        .await
    }
}

// Commands about waits: list them, and answer them.

impl Client {
    /// Lists what agents wait for: by default the open waits of all sessions, oldest first, one page
    /// per call. The call is idempotent.
    pub async fn waits(&self, filter: &ListWaits) -> Result<Waits, ClientError> {
        self.call(
            &Address::new(Target::Sessions, SessionsVerb::Waits.name()),
            filter,
            RetryPolicy::Idempotent,
        )
        .await
    }

    /// Answers a wait of a session. The first answer holds: another one is refused with `exists`,
    /// and the same one gets the same reply, so the call is idempotent.
    pub async fn answer(&self, session: &str, answer: &Answer) -> Result<Answered, ClientError> {
        self.call_session(session, SessionVerb::Answer, answer)
            .await
    }
}
