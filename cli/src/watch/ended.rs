//! The end of a watch: how the work that it showed has ended.

use planck_common::{
    InputId, SessionId,
    command::{Outcome, WorkOutcome, WorkState},
    event::TurnError,
};
use serde::Serialize;

use crate::exit::Exit;
use planck_client::{Client, ClientError};

/// How the work on a prompt has ended, as far as the watch knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchOutcome {
    /// Agents wait for answers from outside, and nothing else happens until there is one.
    Waiting,
    /// The end of the work was not seen: the session could not be followed any longer, or the user
    /// left.
    Lost,
    #[serde(untagged)]
    Over(WorkOutcome),
}

/// The end of the work on a prompt.
#[derive(Debug)]
pub struct WorkEnd {
    pub outcome: WatchOutcome,
    pub answer: Option<String>,
    pub error: Option<TurnError>,
}

impl WatchOutcome {
    pub fn exit(self) -> Exit {
        match self {
            Self::Over(WorkOutcome::Completed) => Exit::Done,
            Self::Waiting => Exit::Waiting,
            Self::Over(
                WorkOutcome::Aborted
                | WorkOutcome::Truncated
                | WorkOutcome::Refused
                | WorkOutcome::Limit
                | WorkOutcome::Error
                | WorkOutcome::Busy
                | WorkOutcome::Stopped
                | WorkOutcome::Rewound
                | WorkOutcome::Other,
            )
            | Self::Lost => Exit::Failed,
        }
    }
}

impl WorkEnd {
    pub fn without_answer(outcome: WatchOutcome) -> Self {
        Self {
            outcome,
            answer: None,
            error: None,
        }
    }
}

impl From<Outcome> for WorkEnd {
    fn from(found: Outcome) -> Self {
        Self {
            outcome: match (found.state, found.outcome) {
                (WorkState::Waiting, _) => WatchOutcome::Waiting,
                (WorkState::Over | WorkState::Working, Some(outcome)) => {
                    WatchOutcome::Over(outcome)
                }
                (WorkState::Over | WorkState::Working, None) => WatchOutcome::Lost,
            },
            answer: found.message,
            error: found.error,
        }
    }
}

/// Waits until the work on a prompt is over or, if `leaves`, until it only waits for answers. Without
/// a prompt, the work is all that is open in the session.
pub async fn end_of_work(
    client: Client,
    session: SessionId,
    prompt: Option<InputId>,
    leaves: bool,
) -> Result<Outcome, ClientError> {
    match leaves {
        true => client.wait_for_outcome(&session, prompt.as_ref()).await,
        false => client.wait_until_over(&session, prompt.as_ref()).await,
    }
}
