//! The work of a session that a watch follows.

use planck_common::{
    InputId, Seq, SessionId,
    command::{Accepted, SessionInfo},
};

/// A prompt that was sent, and the log position from which to follow the session.
#[derive(Debug, Clone)]
pub struct Sent {
    pub session: SessionId,
    /// The prompt, or `None` to follow the work that is in progress.
    pub prompt: Option<InputId>,
    pub from: Seq,
}

impl Sent {
    /// Follows the session from its present end on, without a prompt.
    pub fn nothing(info: &SessionInfo) -> Self {
        Self {
            session: info.id.clone(),
            prompt: None,
            from: info.head + 1,
        }
    }
}

impl From<Accepted> for Sent {
    fn from(accepted: Accepted) -> Self {
        Self {
            session: accepted.session_id,
            prompt: Some(accepted.prompt_id),
            from: accepted.seq + 1,
        }
    }
}
