//! Records as the wire shows them.

use planck_common::command::{AgentRow, AgentState, SessionActivity, SessionRow};

use super::{AgentRecord, SessionRecord};

impl AgentRecord {
    /// Whether it was not stopped for good.
    pub fn is_there(&self) -> bool {
        self.state != AgentState::Stopped
    }

    /// As the information on its session lists it.
    pub fn row(&self) -> AgentRow {
        AgentRow {
            id: self.id.clone(),
            name: self.spec.name.clone(),
            r#type: self.spec.r#type.clone(),
            role: self.spec.role,
            node_id: self.node.clone(),
            state: self.state,
            epoch: self.epoch,
        }
    }
}

impl SessionRecord {
    /// As a list of sessions shows it.
    pub fn row(self, activity: SessionActivity) -> SessionRow {
        SessionRow {
            id: self.id,
            name: self.name,
            state: self.state,
            activity: Some(activity),
            owner: self.owner,
            agents: self.agents,
            workspace: self.spec.workspace,
            created_at: self.created_at,
            updated_at: self.updated_at,
        }
    }
}
