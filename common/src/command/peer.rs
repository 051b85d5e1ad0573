//! Between nodes.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::{AgentId, InputId, NodeId, SessionId, TeamId, message::Sender, registry::TeamEnd};

fn is_false(value: &bool) -> bool {
    !value
}

bodies! {
    /// Between nodes: something of this agent changed in SQL; look there.
    Wake {
        session_id: SessionId,
        agent_id: AgentId,
        /// The input that came; absent where the agent is to look for itself.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        input_id: Option<InputId>,
        /// Where to send `answered` news of this input: the asker's agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<InputId>,
        /// Workers of this lead stopped: its log is to be told.
        #[serde(default, skip_serializing_if = "is_false")]
        exits: bool,
    }
    /// Between nodes: a command for an agent or session hosted there.
    Relay {
        /// The subject as the client sent it, without prefix.
        subject: String,
        #[cfg_attr(feature = "schema", schemars(with = "serde_json::Value"))]
        body: Box<RawValue>,
    }
    /// Between nodes: start this agent; its record and lease are in SQL under the host's id or
    /// unheld.
    HostAgent {
        session_id: SessionId,
        agent_id: AgentId,
        /// The epoch last seen, for the claim; 0 for an agent that is yet to be born.
        epoch: i64,
        incarnation: i64,
        lead: AgentId,
        team_id: TeamId,
        /// The whole spec of an agent that is yet to be born.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
        spec: Option<Box<RawValue>>,
        /// What an agent that is yet to be born finds in its inbox.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<FirstTask>,
        /// How long its tools wait: what a dead node ran for it may go on until then.
        #[serde(default)]
        tools_wait_ms: u64,
    }
    /// The task that an agent is spawned for.
    FirstTask {
        id: InputId,
        from: Sender,
        text: String,
    }
    Hosted {
        node_id: NodeId,
        epoch: i64,
        name: String,
        /// Whether it was born with its task; else whoever wants it done gives it.
        #[serde(default, skip_serializing_if = "is_false")]
        has_task: bool,
    }
    /// Between nodes: end what is hosted there of this team, of this incarnation or an earlier one.
    StopTeam {
        team_id: TeamId,
        incarnation: i64,
        reason: TeamEnd,
        /// What the members' logs are told, where they are told.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        said: Option<String>,
    }
    StoppedTeam {
        agents: u32,
    }
}

impl Wake {
    /// Has an agent look into its inbox.
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
