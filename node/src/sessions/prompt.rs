//! Accepts prompts. This node first commits a prompt to an agent's inbox. Then it notifies the
//! agent's host, or has the agent taken up if no node hosts it.

use planck_common::{
    InputId, Timestamp,
    command::{Accepted, InputMode, Prompt},
    event::{InputKind, json},
    message::Part,
    reply::{Code, Refusal},
};

use super::Sessions;
use crate::{
    actor::ArrivalOutcome,
    store::{AgentRecord, InputOutcome, NewInput, PutResult, StoredInput},
};

impl Sessions {
    /// Puts a prompt into an agent's inbox, and notifies the agent's host.
    pub async fn prompt(&self, agent: &AgentRecord, prompt: Prompt) -> Result<Accepted, Refusal> {
        self.check_reachable(agent.node.as_ref()).await?;
        let mode = prompt.mode;
        let input = NewInput {
            id: prompt.prompt_id.clone().unwrap_or_else(InputId::mint),
            agent: agent.id.clone(),
            kind: InputKind::Prompt,
            mode,
            sender: None,
            reply_to: None,
            content: bounded(json(&content(prompt)?), self.limits.max_prompt)?,
            fresh: false,
            at: Timestamp::now(),
        };
        let accepted = |seq| Accepted {
            prompt_id: input.id.clone(),
            session_id: agent.session.clone(),
            agent_id: agent.id.clone(),
            seq,
        };
        match self.store.put(&agent.session, input.clone()).await? {
            PutResult::Put { head, node, .. } => {
                match self.deliver(&agent.session, node, &input).await? {
                    ArrivalOutcome::Taken => Ok(accepted(head)),
                    ArrivalOutcome::Busy => Err(busy(agent)),
                }
            }
            PutResult::Known(known) if known.input.content != input.content => {
                Err(other_content(&input.id))
            }
            PutResult::Known(known) if was_refused(&known) => Err(busy(agent)),
            PutResult::Known(known) => Ok(accepted(known.head)),
            PutResult::NotFound => {
                Err(Refusal::not_found(format!("agent {} is stopped", agent.id)))
            }
        }
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
    Ok(content)
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

fn busy(agent: &AgentRecord) -> Refusal {
    Refusal::new(
        Code::Busy,
        format!(
            "{} is busy and the prompt wanted no waiting (mode reject)",
            agent.spec.name
        ),
    )
}
