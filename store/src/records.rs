//! The records of sessions and agents, each with its resolved specification.

use async_trait::async_trait;
use serde_json::{Map, Value};

use planck_common::{
    AgentId, NodeId, Seq, SessionId, SessionName, TeamId, Timestamp,
    command::{AgentRow, AgentState, ListSessions, RemovedCounts, SessionState, Sessions},
    event::WorkerExit,
    spec::{AgentSpec, SessionLimits, SessionSpec},
    usage::Usage,
};

use crate::{HeldLease, NewInput, StoreError, inbox::check_content};

/// Creates, reads, changes and removes the records of sessions and agents.
#[async_trait]
pub trait SessionRecords: Send + Sync {
    /// Records a session with its first agents, and leases them to `node` at epoch 1. The team has
    /// incarnation 1, and the names of the agents are made unique.
    ///
    /// If a session with this id exists, nothing changes and the result is [`Created::Known`].
    /// Returns `Exists` if another session has the name, and `Limit` if there are more agents than
    /// the session may have or no free name was found.
    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError>;

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError>;

    /// Returns a session that a node has recorded in this store. Unlike [`session`](Self::session),
    /// this does not search for session files that were copied into the store's folder, so it is
    /// cheap for unknown ids.
    async fn recorded(&self, id: &SessionId) -> Result<Option<SessionRecord>, StoreError> {
        self.session(id.as_str()).await
    }

    /// Returns a page of at most `limit` sessions (100 by default, never more than 1,000) and at most
    /// 512 KiB, newest first. `after` is the `next` of the preceding page.
    ///
    /// What a row says about the log (`first_prompt`, `last_line`, `failure`) comes from the first and
    /// the last rows of the orchestrator, so its cost does not depend on the length of the log. It is
    /// absent if those rows do not hold it.
    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError>;

    /// Returns the names of at most `limit` sessions, newest first, without reading the sessions.
    async fn session_names(&self, limit: u32) -> Result<Vec<String>, StoreError>;

    /// Opens or closes a session. Fails unless `epoch` is that of the orchestrator's lease.
    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError>;

    /// Replaces the metadata of a session. After the session was created, only its title changes, so
    /// concurrent calls lose nothing but a title.
    async fn set_metadata(
        &self,
        session: &SessionId,
        metadata: &Map<String, Value>,
    ) -> Result<(), StoreError>;

    /// Removes a closed session with all its rows. Returns `Busy` if the session is open.
    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError>;

    /// Returns the closed sessions whose log was last written before `before`. An empty log counts
    /// as written when the session was created.
    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError>;

    /// Finds an agent of any session by its id.
    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError>;

    /// Returns all agents of a session in the order in which they were created.
    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError>;

    /// Returns the agents of a session to which a text may refer: the one with this id and the one
    /// with this name. If neither exists or both are stopped, agents of this type follow, at most
    /// [`NAMESAKES`] of them, with the stopped ones last. The cost does not depend on the size of
    /// the team.
    async fn agents_matching(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let mut found = self.agents_named(session, text).await?;
        if !found.iter().any(AgentRecord::is_there) {
            found.extend(self.agents_of_type(session, text).await?);
        }
        Ok(found)
    }

    /// Returns the agents with this id or name, at most one of each.
    async fn agents_named(
        &self,
        session: &SessionId,
        id_or_name: &str,
    ) -> Result<Vec<AgentRecord>, StoreError>;

    /// Returns at most [`NAMESAKES`] agents of a type, with the stopped ones last.
    async fn agents_of_type(
        &self,
        session: &SessionId,
        r#type: &str,
    ) -> Result<Vec<AgentRecord>, StoreError>;

    /// Records new members of a session, each with its first task, and leases them to `node` at
    /// epoch 1. Their names are made unique in the team. Returns one outcome for each member, in
    /// order. If the orchestrator has another incarnation or the session is closed, the outcome of
    /// every new member is `TeamDead`.
    async fn create_agents(
        &self,
        session: &SessionId,
        members: &[NewMember],
        lead: &LeadIncarnation,
        node: &NodeId,
    ) -> Result<Vec<AgentCreation>, StoreError>;

    /// Replaces the recorded specification of an agent on condition that its lease has this epoch.
    async fn replace_spec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError>;

    /// Returns the stopped workers whose end is not yet recorded in the orchestrator's log, except
    /// those whose creation was rewound.
    async fn unreported_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError>;
}

/// A session to record.
#[derive(Debug, Clone)]
pub struct NewSession {
    pub id: SessionId,
    /// The name, or `None` if the store should generate one.
    pub name: Option<SessionName>,
    pub spec: SessionSpec,
    pub metadata: Map<String, Value>,
    /// The first agents. The first one is the orchestrator.
    pub agents: Vec<NewAgent>,
    pub at: Timestamp,
    /// The first prompt, which is put into the orchestrator's inbox in the same transaction.
    pub prompt: Option<NewInput>,
}

impl NewSession {
    /// Returns an error if no store can record this session.
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

    /// Returns the records that a store keeps after it created this session under this name, so
    /// that they need not be read back.
    pub fn created(&self, name: SessionName, node: &NodeId) -> Created {
        let agents = self.agents.iter().zip(self.agent_names()).enumerate();
        let agents: Vec<AgentRecord> = agents
            .map(|(n, (agent, name))| AgentRecord {
                session: self.id.clone(),
                id: agent.id.clone(),
                team: self.spec.team_id.clone(),
                spec: AgentSpec {
                    name,
                    ..agent.spec.clone()
                },
                state: AgentState::Idle,
                totals: Usage::default(),
                node: Some(node.clone()),
                epoch: 1,
                last_seq: 0,
                incarnation: i64::from(n == 0),
            })
            .collect();
        let session = SessionRecord {
            id: self.id.clone(),
            name,
            state: SessionState::Open,
            spec: self.spec.clone(),
            head: 0,
            agents: u32::try_from(agents.len()).unwrap_or(u32::MAX),
            totals: Usage::default(),
            metadata: self.metadata.clone(),
            created_at: self.at,
            updated_at: self.at,
            owner: Some(node.clone()),
        };
        Created::New(session, agents)
    }

    /// Returns the names of the agents, made unique: the second agent with a name gets the suffix
    /// `-2`.
    pub fn agent_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::with_capacity(self.agents.len());
        for agent in &self.agents {
            let free = (1..)
                .map(|n| numbered_name(&agent.spec.name, n))
                .find(|name| !names.contains(name));
            names.extend(free);
        }
        names
    }
}

/// The largest possible limit of agents in a session, because Postgres reads the limit as
/// `integer`.
pub const LARGEST_TEAM: u32 = i32::MAX.unsigned_abs();

/// The maximum number of agents in a session whose limits do not set one.
pub const DEFAULT_MAX_AGENTS: u32 = 1_000;

/// Returns the maximum number of agents in a session with these limits.
pub fn max_agents(limits: &SessionLimits) -> u32 {
    limits.max_agents.unwrap_or(DEFAULT_MAX_AGENTS)
}

/// The maximum number of agents that [`SessionRecords::agents_matching`] returns by their type.
pub const NAMESAKES: u32 = 32;

/// A new agent to record.
#[derive(Debug, Clone)]
pub struct NewAgent {
    pub session: SessionId,
    pub id: AgentId,
    pub spec: AgentSpec,
}

impl NewAgent {
    /// Returns an error if the name or the type contains NUL, which Postgres cannot store.
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

/// The result of [`SessionRecords::create`].
#[derive(Debug, Clone)]
pub enum Created {
    /// The new session and its agents, in the order in which they were created.
    New(SessionRecord, Vec<AgentRecord>),
    /// The session already existed.
    Known(SessionRecord),
}

/// The record of a session.
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

/// The record of an agent, with its lease.
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
    /// The incarnation of the team if the agent is the orchestrator, otherwise 0.
    pub incarnation: i64,
}

/// The orchestrator and the incarnation under which a member is created or claimed.
#[derive(Debug, Clone)]
pub struct LeadIncarnation {
    pub lead: AgentId,
    pub incarnation: i64,
}

/// A new member of a running session, with its first task if it has one.
#[derive(Debug, Clone)]
pub struct NewMember {
    pub agent: NewAgent,
    pub task: Option<NewInput>,
}

impl NewMember {
    /// Returns the outcome for a member that no store can record, or `None` for a valid one.
    pub fn refusal(&self) -> Option<AgentCreation> {
        let task = self.task.as_ref().map_or(Ok(()), check_content);
        let checked = self
            .agent
            .check()
            .and(task.map_err(|error| error.to_string()));
        checked.err().map(AgentCreation::Refused)
    }
}

/// The outcome of recording a member.
#[derive(Debug, Clone)]
pub enum AgentCreation {
    /// The member is recorded. `name` may differ from the name in the specification, because it is
    /// made unique in the team.
    Created { lease: HeldLease, name: String },
    /// An agent with this id already exists. Its record contains its host.
    Known(Box<AgentRecord>),
    /// The orchestrator has another incarnation than the caller expects, or the session is closed.
    TeamDead,
    /// The session already has its maximum number of agents.
    Full { max: u32 },
    /// The data cannot be stored, or the id belongs to an agent of another session.
    Refused(String),
}

impl AgentRecord {
    /// Returns whether the agent is not stopped.
    pub fn is_there(&self) -> bool {
        self.state != AgentState::Stopped
    }

    /// Converts the record to its form in replies.
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

// Generates session names of an adjective and a noun, and numbers agents that ask for the same
// name. Later attempts at a session name append a random number, in case most names are taken.

const ADJECTIVES: &str = "able agile amber ample azure bold brave breezy bright brisk calm candid cheery civil clear clever cosy crisp curious daring
    deft eager early easy fair fancy fine firm fleet fluent fond frank free fresh gentle glad golden good grand green handy happy hardy
    hearty honest humble jolly keen kind lively light loyal lucid lucky lush mellow merry mild modest neat nimble noble novel open patient
    placid plain pleasant plucky polite prime proud pure quick quiet rapid ready regal robust rosy serene sharp shiny silent silver simple
    sleek smart smooth snappy snug sober solid spry stable steady still stout sunny sure swift tidy upbeat vivid warm wise witty zesty";

const NOUNS: &str = "acorn anchor apple arrow aspen badger bamboo basil beacon beaver birch bison bridge brook canyon cedar cherry cliff cloud clover
    comet coral crane creek cricket daisy dawn delta dolphin dove dune eagle echo elm ember falcon fern field finch fjord forest fox garden
    glacier grove harbor hazel heron hill holly island ivy jasmine juniper kestrel lagoon lake lantern lark laurel lily linden lotus lynx
    maple marsh meadow meteor mint moon moss nectar oak ocean olive orchid otter owl pearl pebble pine planet plum pond poplar prairie quartz
    rain raven reed reef river robin rowan sage seal shore sky sparrow spring spruce star stone stream summit swan thistle tide tiger trail
    tulip valley violet walnut wave willow wren zephyr";

/// How many generated names are tried before creation of the session fails.
pub(crate) const NAME_TRIES: u32 = 40;

/// Generates a session name. The first `attempt` is 0. From attempt 3 on, the name ends with a
/// random number of at most 2 digits, and each further attempt allows 2 digits more, up to 16.
pub fn make_up_name(attempt: u32) -> SessionName {
    let name = format!("{}-{}{}", pick(ADJECTIVES), pick(NOUNS), suffix(attempt));
    SessionName::parse(&name).unwrap_or_else(|_too_long| make_up_name(0))
}

fn suffix(attempt: u32) -> String {
    match attempt.checked_sub(3) {
        None => String::new(),
        Some(more) => format!(
            "-{}",
            fastrand::u64(1..100_u64.saturating_pow(more.min(7) + 1))
        ),
    }
}

fn pick(words: &str) -> &str {
    let count = words.split_whitespace().count();
    words
        .split_whitespace()
        .nth(fastrand::usize(..count.max(1)))
        .unwrap_or_default()
}

/// Returns the name of the `n`-th agent that asks for `name`: the first gets `name` itself, and
/// later ones get the suffix `-n`. A name with a suffix has at most 64 characters.
pub fn numbered_name(name: &str, n: u32) -> String {
    if n <= 1 {
        return name.to_owned();
    }
    let end = format!("-{n}");
    name.chars()
        .take(64 - end.len())
        .chain(end.chars())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn there_are_ten_thousand_plain_names() {
        for words in [ADJECTIVES, NOUNS] {
            let all: Vec<_> = words.split_whitespace().collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            assert!(all.len() >= 100);
        }
    }

    #[test]
    fn later_tries_have_numbers() {
        for attempt in 0..40 {
            let name = make_up_name(attempt);
            assert_eq!(
                name.split('-').count(),
                if attempt < 3 { 2 } else { 3 },
                "{name}"
            );
        }
    }

    #[test]
    fn a_second_agent_of_a_name_gets_a_number() {
        assert_eq!(
            [
                numbered_name("coder", 1),
                numbered_name("coder", 2),
                numbered_name(&"ä".repeat(64), 12)
            ],
            [
                "coder".into(),
                "coder-2".into(),
                format!("{}-12", "ä".repeat(61))
            ]
        );
    }
}
