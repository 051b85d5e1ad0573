//! Commands between nodes.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{AgentId, InputId, NodeId, SessionId, TeamId, message::Sender, registry::TeamEnd};

fn is_false(value: &bool) -> bool {
    !value
}

bodies! {
    /// Between nodes: tells the host of an agent to read the agent's rows in SQL again.
    Wake {
        session_id: SessionId,
        agent_id: AgentId,
        /// The new input, or absent if the agent is to read its whole inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_id: Option<InputId>,
        /// A question of this agent that was answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<InputId>,
        /// Whether workers of this orchestrator stopped, so that its log gets their `worker_exit`
        /// events.
        #[serde(default, skip_serializing_if = "is_false")]
        exits: bool,
    }
    /// Between nodes: passes a client's command on to the node that hosts its agent or session.
    Relay {
        /// The subject as the client sent it, without prefix.
        subject: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        body: Box<RawValue>,
    }
    /// Between nodes: asks a node to host an agent. With `spec` the agent is new; otherwise its
    /// record is in SQL and its lease can be claimed.
    HostAgent {
        session_id: SessionId,
        agent_id: AgentId,
        /// The epoch last seen, for the claim; 0 for a new agent.
        epoch: i64,
        incarnation: i64,
        lead: AgentId,
        team_id: TeamId,
        /// The complete specification of a new agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        spec: Option<Box<RawValue>>,
        /// The task that a new agent finds in its inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<FirstTask>,
        /// How long the agent's tools wait before they start, in milliseconds. During that time,
        /// tools that a dead node ran for the agent may still run.
        #[serde(default)]
        tools_wait_ms: u64,
    }
    /// The task for which an agent is spawned.
    FirstTask {
        id: InputId,
        from: Sender,
        text: String,
    }
    Hosted {
        node_id: NodeId,
        epoch: i64,
        name: String,
        /// Whether the agent was created with its task. If not, the caller has to send the task.
        #[serde(default, skip_serializing_if = "is_false")]
        has_task: bool,
    }
    /// Between nodes: asks a node to stop the agents of a team that it hosts, of this incarnation
    /// or an earlier one.
    StopTeam {
        team_id: TeamId,
        incarnation: i64,
        reason: TeamEnd,
        /// The reason written into the logs of the members; by default it follows from `reason`.
        #[serde(rename = "said", default, skip_serializing_if = "Option::is_none")]
        log_reason: Option<String>,
    }
    StoppedTeam {
        agents: u32,
    }
}

impl Wake {
    /// Creates the command that makes the host of an agent read the agent's whole inbox.
    pub fn look(session: &SessionId, agent: &AgentId) -> Self {
        Self {
            session_id: session.clone(),
            agent_id: agent.clone(),
            input_id: None,
            answered: None,
            exits: false,
        }
    }
}
