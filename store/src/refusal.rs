//! Errors that both stores return with the same text.

use planck_common::{AgentId, InputId, Seq, SessionId, SessionName};

use super::StoreError;

pub fn no_session(session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no session {session}"))
}

pub fn no_agent(agent: &AgentId, session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no agent {agent} in session {session}"))
}

/// Returns the error for a name that another session has.
pub fn name_taken(name: &SessionName) -> StoreError {
    StoreError::Exists(format!("there is a session `{name}` already"))
}

/// Returns the error for a session whose generated names were all taken.
pub fn no_free_name() -> StoreError {
    StoreError::Limit("found no free name for the session; give it one".into())
}

pub fn still_open(session: &SessionId) -> StoreError {
    StoreError::Busy(format!("session {session} is open; close it first"))
}

pub fn stale_lease(agent: &AgentId) -> StoreError {
    StoreError::StaleEpoch(agent.to_string())
}

/// Returns the error for an epoch that is not that of the orchestrator's lease.
pub fn stale_lead(session: &SessionId) -> StoreError {
    StoreError::StaleEpoch(format!("the orchestrator of session {session}"))
}

/// Returns the error for a rewind to a row that is not a visible message.
pub fn no_message(to: Seq, session: &SessionId) -> StoreError {
    StoreError::BadRequest(format!("session {session} has no visible message {to}"))
}

/// Returns the error for a new input whose id already belongs to an input of another agent, or to a
/// question of another asker.
pub fn input_taken(input: &InputId) -> StoreError {
    StoreError::BadRequest(format!("the id {input} belongs to another input"))
}

pub fn no_sender() -> StoreError {
    StoreError::BadRequest("a question needs a sender".into())
}
