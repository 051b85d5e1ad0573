//! The records: which sessions and agents there should be, each with its resolved specification.

use async_trait::async_trait;
use planck_common::{
    AgentId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    command::{
        AgentRow, AgentState, ListSessions, RemovedCounts, SessionActivity, SessionRow,
        SessionState, Sessions,
    },
    event::WorkerExit,
    spec::{AgentSpec, SessionLimits, SessionSpec},
    usage::Usage,
};
use serde_json::{Map, Value};

use super::{HeldLease, NewInput, StoreError, inbox::check_content, name};

/// Sessions and agents, as they were specified.
#[async_trait]
pub trait SessionRecords: Send + Sync {
    /// Records a session with its first agents, leased to `node` at epoch 1, incarnation 1. Agents
    /// get names that are unique in the team.
    ///
    /// Creating a session whose id is there already changes nothing and returns
    /// [`Created::Known`]. A name that another session has is `Exists`, and more agents than the
    /// session may have is `Limit`.
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError>;

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError>;

    /// Returns a page of sessions, newest first: `limit` of them (100 by default, at most 1,000).
    /// `after` takes the `next` of the page before.
    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError>;

    /// Opens or closes a session. `epoch` is that of the orchestrator's lease.
    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError>;

    /// Removes a closed session with all its rows. An open one is `Busy`.
    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError>;

    /// Returns the closed sessions that were last written to before `before`.
    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError>;

    /// Finds an agent by its id alone, in whichever session it is.
    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError>;

    /// Returns all agents of a session in the order in which they were created.
    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError>;

    /// Returns the agents of a session that a text may refer to: the one with this id and the one
    /// with this name. If neither exists or both are stopped, agents of this type follow, at most
    /// [`NAMESAKES`] of them, stopped ones last. The cost does not depend on the size of the team.
    async fn agents_matching(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<Vec<AgentRecord>, StoreError>;

    /// Records new members of a session under the incarnation of its orchestrator, leased to
    /// `node` at epoch 1, each with its first task. Members get names that are unique in the team.
    /// Returns one outcome for each, in order. A closed session gets no new members.
    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError>;

    /// Replaces the recorded specification of an agent, under its lease.
    async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError>;

    /// Returns the stopped workers whose end is not in the orchestrator's log yet. Workers whose
    /// creation was rewound are left out.
    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError>;
}

/// A session to record.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    /// The store makes up a name if this is `None`.
    pub name: Option<SessionName>,
    pub spec: SessionSpec,
    pub metadata: Map<String, Value>,
    /// The orchestrator first.
    pub agents: Vec<NewAgent>,
    pub at: Timestamp,
    /// Is put into the orchestrator's inbox in the same transaction.
    pub prompt: Option<NewInput>,
}

impl NewSession {
    /// Refuses a session that no store can record.
    pub fn check(&self) -> Result<(), StoreError> {
        let max = max_agents(&self.spec.limits);
        if max > LARGEST_TEAM {
            return Err(StoreError::BadRequest(format!(
                "`max_agents` is {max}, and at most {LARGEST_TEAM}"
            )));
        }
        for agent in &self.agents {
            agent.check().map_err(StoreError::BadRequest)?;
        }
        if let Some(prompt) = &self.prompt {
            check_content(prompt)?;
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

    /// Returns the names of the agents, made unique: the second one of a name gets `-2`.
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

/// The highest limit of agents in a session: what Postgres' `integer` holds.
pub const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// How many agents a session may have if its limits do not tell.
pub const DEFAULT_MAX_AGENTS: u32 = 1_000;

/// Returns how many agents a session may have.
pub fn max_agents(limits: &SessionLimits) -> u32 {
    limits.max_agents.unwrap_or(DEFAULT_MAX_AGENTS)
}

/// At most this many agents are returned when a text refers to agents by their type.
pub const NAMESAKES: u32 = 32;

/// An agent to record.
#[derive(Debug, Clone)]
pub struct NewAgent {
    pub session: SessionId,
    pub id: AgentId,
    pub spec: AgentSpec,
}

impl NewAgent {
    /// Refuses names that Postgres cannot hold.
    fn check(&self) -> Result<(), String> {
        match [&self.spec.name, &self.spec.r#type]
            .into_iter()
            .find(|name| name.contains('\0'))
        {
            Some(name) => Err(format!("the name {name:?} holds a NUL character")),
            None => Ok(()),
        }
    }
}

/// What came of recording a session.
#[derive(Debug, Clone)]
pub enum Created {
    New(SessionRecord),
    /// The session existed before.
    Known(SessionRecord),
}

/// A session as it is recorded.
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
    /// The node that holds the orchestrator's lease.
    pub owner: Option<NodeId>,
}

/// An agent as it is recorded, with its lease.
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
    /// The incarnation of the team in the orchestrator's record; 0 in those of other agents.
    pub incarnation: i64,
}

/// The orchestrator and the incarnation under which a member is created or claimed.
#[derive(Debug, Clone)]
pub struct LeadIncarnation {
    pub lead: AgentId,
    pub incarnation: i64,
}

/// A member to record in a running session, with the task that it finds in its inbox.
#[derive(Debug, Clone)]
pub struct NewMember {
    pub agent: NewAgent,
    pub task: Option<NewInput>,
}

impl NewMember {
    /// Returns why no store can record this member.
    pub fn refusal(&self) -> Option<AgentCreation> {
        let task = self.task.as_ref().map_or(Ok(()), check_content);
        let checked = self
            .agent
            .check()
            .and(task.map_err(|error| error.to_string()));
        checked.err().map(AgentCreation::Refused)
    }
}

/// What came of recording a member.
#[derive(Debug, Clone)]
pub enum AgentCreation {
    /// `name` is unique in the team, so it may differ from the one in the specification.
    Created { lease: HeldLease, name: String },
    /// An agent with this id was created before; its record tells its host.
    Known(Box<AgentRecord>),
    /// The orchestrator has another incarnation, or the session is closed.
    TeamDead,
    /// The session has its maximum of agents.
    Full { max: u32 },
    /// The database refused the data, or the id belongs to an agent of another session.
    Refused(String),
}

impl AgentRecord {
    /// Tells whether the agent was not stopped for good.
    pub fn is_there(&self) -> bool {
        self.state != AgentState::Stopped
    }

    /// Returns the row that describes the agent in a reply.
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
    /// Returns the row that describes the session in a list.
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
