//! A session for benches that need a store.

use planck_common::{
    AgentId, SessionId, TeamId, Timestamp,
    spec::{
        AgentLimits, AgentRole, AgentSpec, Grant, ModelRef, OnNodeDeath, SessionLimits, SessionSpec,
    },
};
use planck_store::{NewAgent, NewSession};
use serde_json::Map;

/// Returns a new session with some agents, the first of which is the lead.
pub fn session(agents: usize) -> NewSession {
    let id = SessionId::mint();
    let agent = |n: usize| NewAgent {
        session: id.clone(),
        id: AgentId::mint(),
        spec: AgentSpec {
            r#type: "worker".into(),
            name: format!("agent {n}"),
            description: String::new(),
            role: AgentRole::Worker,
            model: ModelRef {
                provider: "scripted".into(),
                id: "one".into(),
                base_url: None,
            },
            system_prompt: String::new(),
            opts: Map::new(),
            tools: vec![],
            skills: vec![],
            grant: Grant::default(),
            compactor: None,
            listed_tools: None,
            limits: AgentLimits::default(),
            labels: Map::new(),
            permissions: Vec::new(),
            client_tools: Vec::new(),
            spawned_by: None,
            output: None,
        },
    };
    let agents: Vec<_> = (0..agents).map(agent).collect();
    let spec = SessionSpec {
        team_id: TeamId::mint(),
        lead: agents.first().unwrap().id.clone(),
        workspace: "here".into(),
        dir: ".".into(),
        team: None,
        limits: SessionLimits::default(),
        on_node_death: OnNodeDeath::Resume,
    };
    NewSession {
        id,
        name: None,
        spec,
        metadata: Map::new(),
        agents,
        at: Timestamp::now(),
        prompt: None,
    }
}
