//! Rows of the store as the runtime sees them.

use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    command::{AgentState, SessionState},
    message::Sender,
    spec::{AgentSpec, SessionLimits, SessionSpec},
    usage::Usage,
};
use serde_json::{Map, Value};

use super::{StoreError, name};
use crate::agent::{Entry, InputOutcome, Mark, NewInput, StoredInput};

#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    /// Made up unless given.
    pub name: Option<SessionName>,
    pub spec: SessionSpec,
    pub metadata: Map<String, Value>,
    /// The lead first.
    pub agents: Vec<NewAgent>,
    pub at: Timestamp,
    /// Put into the lead's inbox in the same transaction.
    pub prompt: Option<NewInput>,
}

impl NewSession {
    /// Whether it can be recorded at all.
    pub fn check(&self) -> Result<(), StoreError> {
        let max = max_agents(&self.spec.limits);
        if max > LARGEST_TEAM {
            return Err(StoreError::BadRequest(format!(
                "`max_agents` is {max}, and at most {LARGEST_TEAM}"
            )));
        }
        let names = self
            .agents
            .iter()
            .flat_map(|agent| [&agent.spec.name, &agent.spec.r#type]);
        if let Some(name) = names.into_iter().find(|name| name.contains('\0')) {
            return Err(StoreError::BadRequest(format!(
                "the name {name:?} holds a NUL character"
            )));
        }
        if self.agents.first().map(|agent| &agent.id) != Some(&self.spec.lead) {
            return Err(StoreError::BadRequest(
                "a session's first agent is its lead".into(),
            ));
        }
        if self.agents.len() > usize::try_from(max).unwrap_or(usize::MAX) {
            return Err(StoreError::Limit(format!(
                "{} agents are over the session's limit of {max}",
                self.agents.len()
            )));
        }
        Ok(())
    }

    /// The names of its agents, each one's own: a second one of a name gets `-2`.
    pub fn agent_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.agents.len());
        for agent in &self.agents {
            let free = (1..)
                .map(|n| name::nth(&agent.spec.name, n))
                .find(|name| !names.contains(name));
            names.extend(free);
        }
        names
    }
}

/// The most agents that a session can be allowed: what Postgres' `integer` holds.
pub const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// How many agents a session may have.
pub fn max_agents(limits: &SessionLimits) -> u32 {
    limits.max_agents.unwrap_or(1000)
}

/// As many agents of one type are told apart for who named it.
pub const NAMESAKES: u32 = 32;

#[derive(Debug, Clone)]
pub struct NewAgent {
    pub session: SessionId,
    pub id: AgentId,
    pub spec: AgentSpec,
}

#[derive(Debug, Clone)]
pub enum Created {
    New(SessionRecord),
    /// It was there before.
    Known(SessionRecord),
}

#[derive(Debug, Clone)]
pub struct SessionRecord {
    pub id: SessionId,
    pub name: SessionName,
    pub state: SessionState,
    pub spec: SessionSpec,
    pub head: Seq,
    pub agents: u32,
    pub totals: Usage,
    pub metadata: Map<String, Value>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Who holds the lead's lease.
    pub owner: Option<NodeId>,
}

#[derive(Debug, Clone)]
pub struct AgentRecord {
    pub session: SessionId,
    pub id: AgentId,
    pub team: TeamId,
    pub spec: AgentSpec,
    pub state: AgentState,
    pub totals: Usage,
    pub node: Option<NodeId>,
    pub epoch: i64,
    pub last_seq: Seq,
    /// Of the lead; 0 for others.
    pub incarnation: i64,
}

/// The lead and its incarnation under which a member is born or claimed.
#[derive(Debug, Clone)]
pub struct Under {
    pub lead: AgentId,
    pub incarnation: i64,
}

#[derive(Debug, Clone)]
pub enum Claim {
    Lead { after_death: bool },
    Member(Under),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    pub epoch: i64,
    pub last_seq: Seq,
    /// Of the lead; 0 for others.
    pub incarnation: i64,
}

/// An agent to be born, with the task that it finds in its inbox.
#[derive(Debug, Clone)]
pub struct Newborn {
    pub agent: NewAgent,
    pub task: Option<NewInput>,
}

#[derive(Debug, Clone)]
pub enum Birth {
    /// With the name it got.
    Born { lease: Lease, name: String },
    /// The same id was born before; its record says where it is.
    Known(Box<AgentRecord>),
    /// The lead was claimed since: the team is dead.
    TeamDead,
    /// The session has as many agents as it may.
    Full { max: u32 },
    /// The data itself was refused, or the id is one of another session.
    Refused(String),
}

/// One agent's rows and marks: written whole, or not at all.
#[derive(Debug, Clone)]
pub struct Batch {
    pub agent: AgentId,
    pub epoch: i64,
    /// The agent's last seq before this batch.
    pub prev: Seq,
    pub entries: Vec<Entry>,
    pub marks: Vec<Mark>,
    pub puts: Vec<NewInput>,
    /// Added to the totals of agent and session with the entries; a batch without entries adds
    /// none.
    pub usage: Usage,
    pub state: AgentState,
}

/// The outcome of an append: one for each batch, and the session's totals with all that was
/// written.
#[derive(Debug, Clone)]
pub struct Appended {
    pub batches: Vec<BatchOutcome>,
    pub session: Usage,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchOutcome {
    /// The seqs of its entries, in order; its last seq is the next batch's `prev`.
    Written(Vec<Seq>),
    StaleEpoch,
    /// These inputs were withdrawn or consumed; build the batch anew.
    InputsGone(Vec<InputId>),
    /// The data itself was refused (a NUL byte, say).
    Refused(String),
}

#[derive(Debug, Clone)]
pub enum PutResult {
    /// It is durable. `head` is the log's last seq before it.
    Put {
        head: Seq,
        node: Option<NodeId>,
        epoch: i64,
    },
    /// The same id was put before: the reply it got, and what became of it.
    Known(Box<StoredInput>),
    /// The agent does not exist or is stopped.
    NotFound,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// It is in the inbox, and the asker's wait is recorded.
    Asked {
        node: Option<NodeId>,
    },
    /// It was asked before: its outcome so far.
    Known {
        outcome: Option<InputOutcome>,
    },
    NotFound,
    /// The path of waits it would close, from the asker over the target back to the asker.
    Cycle(Vec<AgentId>),
    /// How deep it would have been.
    TooDeep(u32),
    StaleEpoch,
}

/// A task given to an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    pub id: InputId,
    pub from: Option<Sender>,
    pub consumed: bool,
    pub responded: bool,
}

#[derive(Debug, Clone)]
pub struct Rewound {
    pub head: Seq,
    /// Every agent with its new epoch.
    pub agents: Vec<(AgentId, i64)>,
    /// Agents whose birth is hidden now.
    pub unborn: Vec<AgentId>,
}

/// An agent somebody should look after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stray {
    pub session: SessionId,
    pub agent: AgentId,
    pub node: Option<NodeId>,
    pub epoch: i64,
}
