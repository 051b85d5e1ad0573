//! The store in Postgres, for any number of hosts: shared tables, every method one statement or one
//! function of `migrations/postgres`, every statement with a deadline.

mod database;
mod migrate;

mod append;
mod birth;
mod inbox;
mod lease;
mod log;
mod rows;
mod session;
mod trial;

#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use planck_common::{
    AgentId, InputId, NodeId, Seq, SessionId, Timestamp,
    command::{Events, ListSessions, Messages, RemovedCounts, SessionState, Sessions},
    event::WorkerExit,
    spec::AgentSpec,
};

use super::*;
use database::Database;

pub use trial::PostgresTrial;

/// How a node reaches its Postgres.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    pub url: String,
    /// Connections of this node at most.
    pub connections: u32,
    /// How long a statement waits for a connection.
    pub acquire_timeout: Duration,
    pub statement_timeout: Duration,
    /// What the server lists this node's connections under.
    pub application_name: String,
    /// Whether the server refuses every change.
    pub read_only: bool,
    pub inbox: InboxBounds,
}

impl PostgresOptions {
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            connections: 10,
            acquire_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(5),
            application_name: "planck".into(),
            read_only: false,
            inbox: InboxBounds::default(),
        }
    }
}

/// The shared store; a clone shares the connections.
#[derive(Debug, Clone)]
pub struct PostgresStore {
    database: Database,
    inbox: InboxBounds,
}

impl PostgresStore {
    /// Connects, and brings the schema up to date.
    pub async fn connect(options: PostgresOptions) -> Result<Self, StoreError> {
        let database = Database::connect(&options)?;
        migrate::run(&database, planck_migrations::POSTGRES).await?;
        Ok(Self {
            database,
            inbox: options.inbox,
        })
    }

    /// Connects only to look: the schema stays as it is, and the server refuses every change.
    /// `None`: there are no tables yet.
    pub async fn look(options: PostgresOptions) -> Result<Option<Self>, StoreError> {
        let options = PostgresOptions {
            read_only: true,
            ..options
        };
        let (found, known) = Self::schema(&options).await?;
        if found == 0 {
            return Ok(None);
        }
        if found != known {
            let way_out = if found > known {
                "run a newer planck"
            } else {
                "the next node on it brings it up to date"
            };
            return Err(StoreError::Broken(format!(
                "the database has schema version {found}, this planck needs version {known} to look at it: {way_out}"
            )));
        }
        Ok(Some(Self {
            database: Database::connect(&options)?,
            inbox: options.inbox,
        }))
    }

    /// Tries whether a node could use a database. Nothing is changed.
    pub async fn try_out(options: &PostgresOptions) -> Result<PostgresTrial, StoreError> {
        trial::run(&Database::connect(options)?, planck_migrations::POSTGRES).await
    }

    /// The schema's version in a database (0: none yet), and the newest one this node knows.
    /// Nothing is changed.
    pub async fn schema(options: &PostgresOptions) -> Result<(u32, u32), StoreError> {
        migrate::versions(&Database::connect(options)?, planck_migrations::POSTGRES).await
    }
}

#[async_trait]
impl SessionStore for PostgresStore {
    async fn close(&self) {
        self.database.close().await;
    }

    async fn id(&self) -> Result<String, StoreError> {
        session::store_id(&self.database).await
    }

    async fn create(&self, session: NewSession, node: &NodeId) -> Result<Created, StoreError> {
        session::create(&self.database, session, node).await
    }

    async fn session(&self, id_or_name: &str) -> Result<Option<SessionRecord>, StoreError> {
        session::find(&self.database, id_or_name).await
    }

    async fn sessions(&self, filter: ListSessions) -> Result<Sessions, StoreError> {
        session::list(&self.database, filter).await
    }

    async fn set_state(
        &self,
        session: &SessionId,
        epoch: i64,
        state: SessionState,
    ) -> Result<(), StoreError> {
        session::set_state(&self.database, session, epoch, state).await
    }

    async fn delete(&self, session: &SessionId) -> Result<RemovedCounts, StoreError> {
        session::delete(&self.database, session).await
    }

    async fn expired(&self, before: Timestamp) -> Result<Vec<SessionId>, StoreError> {
        session::expired(&self.database, before).await
    }

    async fn find_agent(&self, agent: &AgentId) -> Result<Option<AgentRecord>, StoreError> {
        lease::find_agent(&self.database, agent).await
    }

    async fn agents(&self, session: &SessionId) -> Result<Vec<AgentRecord>, StoreError> {
        lease::agents(&self.database, session).await
    }

    async fn meant(&self, session: &SessionId, text: &str) -> Result<Vec<AgentRecord>, StoreError> {
        lease::meant(&self.database, session, text).await
    }

    async fn births(
        &self,
        session: &SessionId,
        born: &[Newborn],
        under: &Under,
        node: &NodeId,
    ) -> Result<Vec<Birth>, StoreError> {
        birth::births(&self.database, session, born, under, node).await
    }

    async fn claim(
        &self,
        session: &SessionId,
        agent: &AgentId,
        seen: i64,
        claim: Claim,
        node: &NodeId,
    ) -> Result<Option<Lease>, StoreError> {
        lease::claim(&self.database, session, agent, seen, claim, node).await
    }

    async fn release(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        stopped: bool,
    ) -> Result<(), StoreError> {
        lease::release(&self.database, session, agent, epoch, stopped).await
    }

    async fn respec(
        &self,
        session: &SessionId,
        agent: &AgentId,
        epoch: i64,
        spec: &AgentSpec,
    ) -> Result<(), StoreError> {
        lease::respec(&self.database, session, agent, epoch, spec).await
    }

    async fn append(
        &self,
        session: &SessionId,
        node: &NodeId,
        batches: &[Batch],
    ) -> Result<Appended, StoreError> {
        append::append(&self.database, session, node, batches).await
    }

    async fn put(&self, session: &SessionId, input: NewInput) -> Result<PutResult, StoreError> {
        inbox::put(&self.database, session, input, &self.inbox).await
    }

    async fn ask(
        &self,
        session: &SessionId,
        question: NewInput,
        asker_epoch: i64,
        max_depth: u32,
    ) -> Result<Asked, StoreError> {
        inbox::ask(&self.database, session, question, asker_epoch, max_depth).await
    }

    async fn withdraw(&self, session: &SessionId, question: &InputId) -> Result<bool, StoreError> {
        inbox::withdraw(&self.database, session, question).await
    }

    async fn input(
        &self,
        session: &SessionId,
        id: &InputId,
    ) -> Result<Option<StoredInput>, StoreError> {
        inbox::input(&self.database, session, id).await
    }

    async fn open_inputs(
        &self,
        session: &SessionId,
        agent: &AgentId,
    ) -> Result<Vec<StoredInput>, StoreError> {
        inbox::open_inputs(&self.database, session, agent).await
    }

    async fn tasks(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<Task>, StoreError> {
        inbox::tasks(&self.database, session, agent).await
    }

    async fn load(&self, session: &SessionId, agent: &AgentId) -> Result<Vec<LogRow>, StoreError> {
        log::load(&self.database, session, agent).await
    }

    async fn head(&self, session: &SessionId) -> Result<Seq, StoreError> {
        log::head(&self.database, session).await
    }

    async fn events(
        &self,
        session: &SessionId,
        from: Seq,
        limit: u32,
        agent: Option<&AgentId>,
    ) -> Result<Events, StoreError> {
        log::events(&self.database, session, from, limit, agent).await
    }

    async fn messages(
        &self,
        session: &SessionId,
        agent: Option<&AgentId>,
        before: Option<Seq>,
        limit: Option<u32>,
    ) -> Result<Messages, StoreError> {
        log::messages(&self.database, session, agent, before, limit).await
    }

    async fn rewind(
        &self,
        session: &SessionId,
        lead_epoch: i64,
        to: Seq,
        by: &str,
    ) -> Result<Rewound, StoreError> {
        log::rewind(&self.database, session, lead_epoch, to, by).await
    }

    async fn untold_exits(&self, session: &SessionId) -> Result<Vec<WorkerExit>, StoreError> {
        lease::untold_exits(&self.database, session).await
    }

    async fn sweep(&self, alive: &[NodeId]) -> Result<Vec<Stray>, StoreError> {
        lease::sweep(&self.database, alive).await
    }

    async fn held(&self, node: &NodeId) -> Result<Vec<Stray>, StoreError> {
        lease::held(&self.database, node).await
    }
}
