//! The work that a watch waits for.

use planck_client::{Client, ClientError};
use planck_common::{
    InputId, Seq, SessionId, Timestamp,
    command::{Accepted, ReadEvents, SessionInfo},
    envelope::Envelope,
    event::EventKind,
};

/// A prompt that was sent, and the log position from which to follow the session.
#[derive(Debug, Clone)]
pub struct WatchedWork {
    pub session: SessionId,
    /// The prompt, or `None` to follow the work that is in progress.
    pub prompt: Option<InputId>,
    pub from: Seq,
}

impl WatchedWork {
    /// Follows the session from its present end on, without a prompt.
    pub fn from_now(info: &SessionInfo) -> Self {
        Self {
            session: info.id.clone(),
            prompt: None,
            from: info.head + 1,
        }
    }

    /// Follows a session from the first step of a turn at `since` or later on, or from the last
    /// hundred events if there are more. Returns `None` if there is no such step.
    pub async fn since(
        client: &Client,
        info: &SessionInfo,
        since: Timestamp,
    ) -> Result<Option<Self>, ClientError> {
        let read = ReadEvents {
            from: Some(info.head.saturating_sub(99).max(1)),
            limit: None,
            agent: None,
        };
        let page = client.events(&info.id, &read).await?;
        let events = page.events.iter();
        let mut events = events.filter_map(|event| serde_json::from_str(event.get()).ok());
        let first = events.find(|event: &Envelope| event.at >= since && is_step(&event.kind));
        Ok(first.and_then(|event| event.seq).map(|from| Self {
            from,
            ..Self::from_now(info)
        }))
    }
}

/// Returns whether events of this kind are written only while an agent works on a turn.
fn is_step(kind: &str) -> bool {
    use EventKind::{Error, Message, ToolEnd, ToolStart, TurnEnd, TurnStart};
    EventKind::find(kind).is_some_and(|kind| {
        matches!(
            kind,
            Error | Message | ToolEnd | ToolStart | TurnEnd | TurnStart
        )
    })
}

impl From<Accepted> for WatchedWork {
    fn from(accepted: Accepted) -> Self {
        Self {
            session: accepted.session_id,
            prompt: Some(accepted.prompt_id),
            from: accepted.seq + 1,
        }
    }
}
