//! The errors that every store gives in the same words.

use planck_common::{AgentId, InputId, Seq, SessionId, SessionName};

use super::StoreError;

pub fn no_session(session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no session {session}"))
}

pub fn no_agent(agent: &AgentId, session: &SessionId) -> StoreError {
    StoreError::NotFound(format!("there is no agent {agent} in session {session}"))
}

/// Another session has the name that was asked for.
pub fn name_taken(name: &SessionName) -> StoreError {
    StoreError::Exists(format!("there is a session `{name}` already"))
}

/// All names that were made up are taken.
pub fn no_free_name() -> StoreError {
    StoreError::Limit("found no free name for the session; give it one".into())
}

pub fn still_open(session: &SessionId) -> StoreError {
    StoreError::Busy(format!("session {session} is open; close it first"))
}

pub fn stale_lease(agent: &AgentId) -> StoreError {
    StoreError::StaleEpoch(agent.to_string())
}

/// The epoch is not that of the lease on the session's orchestrator.
pub fn stale_lead(session: &SessionId) -> StoreError {
    StoreError::StaleEpoch(format!("the orchestrator of session {session}"))
}

/// A rewind names a row that is not a visible message.
pub fn no_message(to: Seq, session: &SessionId) -> StoreError {
    StoreError::BadRequest(format!("session {session} has no visible message {to}"))
}

/// The id of a new input is the id of an input from another sender or for another agent.
pub fn input_taken(input: &InputId) -> StoreError {
    StoreError::BadRequest(format!("the id {input} belongs to another input"))
}

pub fn no_sender() -> StoreError {
    StoreError::BadRequest("a question needs a sender".into())
}
