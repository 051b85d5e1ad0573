//! Accepts prompts. This node first commits a prompt to an agent's inbox. Then it notifies the
//! agent's host, or has the agent taken over if no node hosts it.

use planck_common::{
    AgentId, InputId, NodeId, SessionId, Timestamp,
    command::{Accepted, InputMode, MOST_BY, Prompt},
    event::{InputKind, json},
    message::Part,
    reply::{Code, Refusal},
};

use super::Sessions;
use crate::{actor::DeliveryOutcome, storable};
use planck_store::{AgentRecord, InputOutcome, NewInput, PutResult, StoredInput};

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
        let hosting = self.base.host.hosting(agent)?;
        Some(PromptTarget {
            agent: hosting.agent,
            session: hosting.session.id.clone(),
            node: Some(self.base.view.id().clone()),
        })
    }

    /// Puts a prompt into an agent's inbox, and notifies the agent's host.
    pub async fn prompt(
        &self,
        target: impl Into<PromptTarget>,
        mut prompt: Prompt,
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
        let (mode, by) = (prompt.mode, checked_author(prompt.by.take())?);
        let input = NewInput {
            id: prompt.prompt_id.clone().unwrap_or_else(InputId::mint),
            agent: agent.clone(),
            kind: InputKind::Prompt,
            mode,
            sender: None,
            by,
            reply_to: None,
            content: bounded(json(&content(prompt)?), self.limits.max_prompt)?,
            fresh: false,
            at: Timestamp::now(),
        };
        let accepted = |seq, warning| Accepted {
            warning,
            prompt_id: input.id.clone(),
            session_id: session.clone(),
            agent_id: agent.clone(),
            seq,
        };
        let (head, outcome) = match self.base.store.put(&session, input.clone()).await? {
            PutResult::Put { head, node, .. } => {
                (head, self.deliver(&session, node, &input).await?)
            }
            PutResult::Known(known) if known.input.content != input.content => {
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
        if self.base.host.has(agent) {
            return None;
        }
        if let Some(node) = node
            && self.base.view.is_alive(node).await
        {
            return None;
        }
        let record = self.base.lookup.session(session).await.ok()?;
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
