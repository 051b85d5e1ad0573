//! Accepts prompts, and delivers inputs to agents. This node first commits an input to an agent's
//! inbox. Then it notifies the agent's host, or has the agent taken over if no node hosts it. A
//! delivery that is lost only delays the input until a sweep finds it.

use planck_common::{
    AgentId, InputId, NodeId, SessionId, Timestamp,
    command::{Accepted, InputMode, MOST_BY, Prompt, Wake},
    event::{InputKind, json},
    message::Part,
    reply::{Code, Refusal},
    spec::OutputSpec,
};
use planck_store::{AgentRecord, InputOutcome, NewInput, PutResult, StoredInput};
use planck_toolbox::schema::check_output;

use super::Sessions;
use crate::{
    actor::{DeliveryOutcome, Hosting, Opening, host::NotHere},
    agent::OpenTurn,
    storable,
};

/// The agent to which a prompt goes.
pub struct PromptTarget {
    agent: AgentId,
    session: SessionId,
    /// The node that holds the agent's lease.
    node: Option<NodeId>,
}

impl From<&AgentRecord> for PromptTarget {
    fn from(agent: &AgentRecord) -> Self {
        Self {
            agent: agent.id.clone(),
            session: agent.session.clone(),
            node: agent.node.clone(),
        }
    }
}

impl Sessions {
    /// Returns an agent on this node as the target of a prompt, without reading its record. The
    /// prompt is refused when it is put if the agent is stopped.
    pub fn target_here(&self, agent: &AgentId) -> Option<PromptTarget> {
        let hosting = self.handles.host.hosting(agent)?;
        Some(PromptTarget {
            agent: hosting.agent,
            session: hosting.session.id.clone(),
            node: Some(self.handles.view.id().clone()),
        })
    }

    /// Puts a prompt into an agent's inbox, and notifies the agent's host.
    pub async fn prompt(
        &self,
        target: impl Into<PromptTarget>,
        prompt: Prompt,
    ) -> Result<Accepted, Refusal> {
        let PromptTarget {
            agent,
            session,
            node: holder,
        } = target.into();
        self.check_reachable(holder.as_ref()).await?;
        if prompt.mode == InputMode::Reject {
            self.check_answers(&agent).await?;
        }
        let input = new_input(&agent, prompt, self.limits.max_prompt)?;
        let accepted = |seq, warning| Accepted {
            warning,
            prompt_id: input.id.clone(),
            session_id: session.clone(),
            agent_id: agent.clone(),
            seq,
        };
        let (head, outcome) = match self.handles.store.put(&session, input.clone()).await? {
            PutResult::Put { head, node, .. } => {
                (head, self.deliver(&session, node, &input).await?)
            }
            PutResult::Known(known)
                if (&known.input.content, &known.input.output)
                    != (&input.content, &input.output) =>
            {
                return Err(other_content(&input.id));
            }
            PutResult::Known(known) if was_refused(&known) => return Err(busy(&agent)),
            // The host may not have been notified of the first put.
            PutResult::Known(known) if known.is_unread() => {
                let delivered = self.deliver(&session, holder.clone(), &known.input);
                (known.head, delivered.await?)
            }
            PutResult::Known(known) => return Ok(accepted(known.head, None)),
            PutResult::NotFound => {
                return Err(Refusal::not_found(format!("agent {agent} is stopped")));
            }
        };
        match outcome {
            DeliveryOutcome::Taken => {
                let warning = self.why_waiting(&session, &agent, holder.as_ref()).await;
                Ok(accepted(head, warning))
            }
            DeliveryOutcome::Busy => Err(busy(&agent)),
        }
    }

    /// Returns why no node runs a prompt of this agent, if no living node has the workspace of its
    /// session or can host it otherwise. `node` held the agent's lease before the prompt.
    async fn why_waiting(
        &self,
        session: &SessionId,
        agent: &AgentId,
        node: Option<&NodeId>,
    ) -> Option<String> {
        if self.handles.host.has(agent) {
            return None;
        }
        if let Some(node) = node
            && self.handles.view.is_alive(node).await
        {
            return None;
        }
        let record = self.handles.lookup.session(session).await.ok()?;
        let (why, until) = if self.placement.has_workspace(&record) {
            let refusal = self.placement.session_host(&record).await.err()?;
            (refusal.message, "a node can host its session")
        } else {
            let workspace = &record.spec.workspace;
            let why = format!("no node has workspace `{workspace}`");
            (why, "a node with this workspace starts")
        };
        Some(format!(
            "{why}; the prompt is stored, and runs when {until}"
        ))
    }
}

/// Returns the name of the person or program that sent a command in a form that the store takes, or a
/// refusal if the name is too long.
pub fn checked_author(by: Option<String>) -> Result<Option<String>, Refusal> {
    if by.as_ref().is_some_and(|by| by.len() > MOST_BY) {
        let why = format!("`by` is longer than {MOST_BY} bytes");
        return Err(Refusal::bad_request(why));
    }
    Ok(by.map(storable::text))
}

/// Returns the input of a prompt, or a refusal if the prompt is invalid or has more than `most` bytes.
fn new_input(agent: &AgentId, mut prompt: Prompt, most: u64) -> Result<NewInput, Refusal> {
    let (mode, by) = (prompt.mode, checked_author(prompt.by.take())?);
    let output = checked_output(prompt.output.take())?;
    Ok(NewInput {
        id: prompt.prompt_id.clone().unwrap_or_else(InputId::mint),
        agent: agent.clone(),
        kind: InputKind::Prompt,
        mode,
        sender: None,
        by,
        reply_to: None,
        content: bounded(json(&content(prompt)?), most)?,
        fresh: false,
        output,
        at: Timestamp::now(),
    })
}

/// Returns the shape of an answer, or a refusal if it cannot be kept.
pub(super) fn checked_output(output: Option<OutputSpec>) -> Result<Option<OutputSpec>, Refusal> {
    match output.as_ref().map(check_output) {
        Some(Err((field, why))) => Err(Refusal::bad_request(format!("`output.{field}`: {why}"))),
        Some(Ok(())) | None => Ok(output),
    }
}

/// Returns the content, or a refusal if it has more than `most` bytes.
pub(super) fn bounded(content: String, most: u64) -> Result<String, Refusal> {
    let bytes = content.len();
    if u64::try_from(bytes).is_ok_and(|bytes| bytes <= most) {
        return Ok(content);
    }
    let way_out = "put it into a file of the workspace, or raise `limits.max_prompt`";
    Err(Refusal::new(
        Code::TooLarge,
        format!("the prompt has {bytes} bytes as JSON, over the limit of {most}; {way_out}"),
    ))
}

fn content(prompt: Prompt) -> Result<Vec<Part>, Refusal> {
    let content = match (prompt.text, prompt.content) {
        (Some(text), None) => vec![Part::text(text)],
        (None, Some(content)) => content,
        (Some(_), Some(_)) | (None, None) => {
            return Err(Refusal::bad_request(
                "a prompt has one of `text` and `content`",
            ));
        }
    };
    let empty = content
        .iter()
        .all(|part| matches!(part, Part::Text { text, .. } if text.trim().is_empty()));
    let foreign = content.iter().find(|part| match part {
        Part::Text { .. } | Part::Image { .. } | Part::File { .. } => false,
        Part::Thinking { .. } | Part::ToolCall { .. } | Part::ToolResult { .. } => true,
    });
    if foreign.is_some() {
        return Err(Refusal::bad_request(
            "a prompt's parts are of type text, image or file",
        ));
    }
    if empty {
        return Err(Refusal::bad_request("the prompt is empty"));
    }
    let fault = content.iter().find_map(|part| match part {
        Part::Image { source, .. } | Part::File { source, .. } => source.fault(),
        Part::Text { .. }
        | Part::Thinking { .. }
        | Part::ToolCall { .. }
        | Part::ToolResult { .. } => None,
    });
    match fault {
        Some(fault) => Err(Refusal::bad_request(fault)),
        None => Ok(content),
    }
}

fn was_refused(known: &StoredInput) -> bool {
    known.input.mode == InputMode::Reject && known.outcome == Some(InputOutcome::Busy)
}

fn other_content(id: &InputId) -> Refusal {
    Refusal::new(
        Code::Exists,
        format!("the prompt `{id}` was sent before with another content; use a new `prompt_id`"),
    )
}

fn busy(agent: &AgentId) -> Refusal {
    Refusal::new(
        Code::Busy,
        format!("agent {agent} is busy and the prompt wanted no waiting (mode reject)"),
    )
}

impl Sessions {
    /// Delivers an input that was just committed to its agent. `node` is the agent's host according
    /// to its record. If no living node hosts the agent, this node takes the session over or asks the
    /// session's host to do so, but only a prompt reopens a closed session. Returns `Taken` also if
    /// the agent did not get the input, because a sweep then finds it.
    pub async fn deliver(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Result<DeliveryOutcome, Refusal> {
        if let Some(outcome) = self.deliver_to_host(session, node, input).await {
            return Ok(outcome);
        }
        // If the record names this node, the agent is just being started or stopped. If the session
        // cannot be taken over now because no node fits, this node is leaving or the store is
        // unreachable, a later sweep finds the input.
        let is_prompt = input.sender.is_none();
        let taken_over = self.take_over_agent(session, &input.agent, is_prompt, "prompted");
        match taken_over.await {
            Err(refusal) if refusal.retryable || self.has_no_place(session).await => {
                tracing::debug!(agent = %input.agent, %refusal, "cannot take over the agent now; the next sweep does");
                Ok(DeliveryOutcome::Taken)
            }
            taken_over => taken_over.map(|()| DeliveryOutcome::Taken),
        }
    }

    /// Returns whether no node can host a session now.
    async fn has_no_place(&self, session: &SessionId) -> bool {
        match self.handles.lookup.session(session).await {
            Ok(record) => self.placement.session_host(&record).await.is_err(),
            Err(_) => false,
        }
    }

    /// Delivers an input through the agent's host, which is this node or `node`. Returns `None` if
    /// neither hosts the agent or `node` is gone. Returns `Taken` if a living node does not answer,
    /// because its next sweep finds the input.
    async fn deliver_to_host(
        &self,
        session: &SessionId,
        node: Option<NodeId>,
        input: &NewInput,
    ) -> Option<DeliveryOutcome> {
        let agent = &input.agent;
        if let Ok(outcome) = self.deliver_here(agent, Some(input.clone())).await {
            return Some(outcome);
        }
        let node = node.filter(|node| node != self.handles.view.id())?;
        let wake = Wake {
            input_id: Some(input.id.clone()),
            ..Wake::look(session, agent)
        };
        match self.handles.peers.wake(&node, &wake).await {
            Ok(()) => Some(DeliveryOutcome::Taken),
            Err(refusal) if refusal.code == Code::Busy => Some(DeliveryOutcome::Busy),
            Err(refusal) => {
                tracing::debug!(%agent, %node, %refusal, "cannot inform the host of the input; its next sweep finds it");
                let is_alive = self.handles.view.is_alive(&node).await;
                is_alive.then_some(DeliveryOutcome::Taken)
            }
        }
    }

    /// Makes an agent read its inbox, whichever node hosts it. An agent without a living host is
    /// taken over, unless its session is closed.
    pub async fn wake(&self, session: &SessionId, agent: &AgentId) {
        if self.deliver_here(agent, None).await.is_ok() {
            return;
        }
        if let Err(refusal) = self.wake_elsewhere(session, agent).await {
            tracing::debug!(%agent, %refusal, "cannot wake the agent; the next sweep does");
        }
    }

    async fn wake_elsewhere(&self, session: &SessionId, agent: &AgentId) -> Result<(), Refusal> {
        let record = self.handles.lookup.agent(agent).await?;
        if let Some(node) = self.placement.other_host(&record) {
            let woken = self
                .handles
                .peers
                .wake(node, &Wake::look(session, agent))
                .await;
            if woken.is_ok() || self.handles.view.is_alive(node).await {
                return woken;
            }
        }
        self.take_over_agent(session, agent, false, "woken").await
    }

    /// Notifies an asker that its question has an outcome, if another node hosts the asker. If the
    /// message is lost, the asker finds the outcome the next time it reads the question's row.
    pub async fn tell_answered(&self, session: &SessionId, asker: &AgentId, question: InputId) {
        let sent = async {
            let record = self.handles.lookup.agent(asker).await?;
            let Some(node) = self.placement.other_host(&record) else {
                return Ok(());
            };
            let wake = Wake {
                answered: Some(question),
                ..Wake::look(session, asker)
            };
            self.handles.peers.wake(node, &wake).await
        };
        let sent: Result<(), Refusal> = sent.await;
        if let Err(refusal) = sent {
            tracing::debug!(%asker, %refusal, "cannot inform the asker of its answer; the asker finds it at its next check");
        }
    }

    /// Notifies an agent that a question to it was withdrawn, so that the agent removes it from its
    /// queue.
    pub async fn tell_withdrawn(&self, target: &AgentRecord, question: &InputId) {
        let sent = match self.placement.other_host(target) {
            Some(node) => {
                let wake = Wake {
                    input_id: Some(question.clone()),
                    ..Wake::look(&target.session, &target.id)
                };
                self.handles.peers.wake(node, &wake).await.is_ok()
            }
            None => {
                let sent = self
                    .handles
                    .host
                    .withdrawn(&target.id, question.clone())
                    .await;
                sent.is_ok()
            }
        };
        if !sent {
            tracing::debug!(agent = %target.id, %question, "cannot inform the agent of the withdrawn question; it finds out when it reads the question");
        }
    }

    /// Handles the request of another node to wake an agent on this node, whose rows in SQL have
    /// changed.
    pub async fn wake_here(&self, wake: Wake) -> Result<(), Refusal> {
        let Wake {
            session_id,
            agent_id,
            input_id,
            answered,
            exits,
        } = wake;
        if let Some(answered) = &answered {
            self.waiters().settle(answered);
            return Ok(());
        }
        if exits {
            return self.takeover.record_exits(&session_id).await;
        }
        let input = match &input_id {
            Some(input) => self.handles.store.input(&session_id, input).await?,
            None => None,
        };
        let agent = &agent_id;
        let delivered = match input {
            Some(row) if row.outcome.is_some() => {
                let withdrawn = self.handles.host.withdrawn(agent, row.input.id).await;
                withdrawn.map(|()| DeliveryOutcome::Taken)
            }
            Some(row) => self.deliver_here(agent, Some(row.input)).await,
            None => {
                self.reload_if_superseded(agent).await;
                self.deliver_here(agent, None).await
            }
        };
        match delivered {
            Ok(DeliveryOutcome::Taken) => Ok(()),
            Ok(DeliveryOutcome::Busy) => Err(Refusal::new(Code::Busy, "the agent is busy")),
            Err(gone) => Err(Refusal::not_found(gone.to_string())),
        }
    }

    /// Delivers an input to an agent on this node. Without an input, makes the agent read its inbox.
    /// An agent that is about to start here reads its inbox once it has started.
    async fn deliver_here(
        &self,
        agent: &AgentId,
        input: Option<NewInput>,
    ) -> Result<DeliveryOutcome, NotHere> {
        let host = &self.handles.host;
        let deliver = async |input| match input {
            Some(input) => host.deliver(agent, input).await,
            None => host.look(agent).await.map(|()| DeliveryOutcome::Taken),
        };
        match deliver(input.clone()).await {
            Err(_) if self.placement.local().admission().leave_news(agent) => {
                Ok(DeliveryOutcome::Taken)
            }
            // The agent may have started between the two checks.
            Err(_) => deliver(input).await,
            delivered => delivered,
        }
    }

    /// Compares the epoch of an agent on this node with the epoch in SQL. A later epoch means that
    /// another node rewound the session or took the lease. This function then loads the agent
    /// again, or drops it if it was stopped or this node no longer holds its lease.
    async fn reload_if_superseded(&self, agent: &AgentId) {
        let Some(hosting) = self.handles.host.hosting(agent) else {
            return;
        };
        let Ok(Some(record)) = self.handles.store.find_agent(agent).await else {
            return;
        };
        if record.epoch <= hosting.epoch {
            return;
        }
        if record.is_there() && record.node.as_ref() == Some(self.handles.view.id()) {
            self.reload(hosting, record.epoch);
        } else {
            self.handles.host.drop_agent(agent);
        }
    }

    /// Loads an agent on this node again under a later epoch.
    pub(super) fn reload(&self, hosting: Hosting, epoch: i64) {
        let opening = Opening {
            open_turn: OpenTurn::Close,
            ..Opening::default()
        };
        self.handles.host.start(Hosting {
            epoch,
            opening,
            ..hosting
        });
    }
}
