//! The names under which values of closed sets are stored.

use planck_common::{
    command::{AgentState, SessionState},
    spec::AgentRole,
};

pub const fn session_state_name(state: SessionState) -> &'static str {
    match state {
        SessionState::Open => "open",
        SessionState::Closed => "closed",
    }
}

pub fn session_state(name: &str) -> Option<SessionState> {
    [SessionState::Open, SessionState::Closed]
        .into_iter()
        .find(|state| session_state_name(*state) == name)
}

pub fn agent_state(name: &str) -> Option<AgentState> {
    use AgentState::{Compacting, ExecutingTools, Idle, Stopped, Streaming, Waiting};
    [
        Idle,
        Streaming,
        ExecutingTools,
        Waiting,
        Compacting,
        Stopped,
    ]
    .into_iter()
    .find(|state| state.name() == name)
}

pub const fn role_name(role: AgentRole) -> &'static str {
    match role {
        AgentRole::Orchestrator => "orchestrator",
        AgentRole::Worker => "worker",
    }
}
