//! Reserves the name of a session before its file is created.

use planck_common::{AgentId, InputId, NodeId, SessionId, SessionName, Timestamp, event::json};
use sqlx::query;

use super::{Index, id_and_name};
use crate::{
    NewSession, StoreError,
    sqlite::fault::{Abort, SqliteFault},
};

/// The result of reserving a name.
#[derive(Debug, PartialEq, Eq)]
pub enum Reserved {
    Yes,
    /// The session already has this name.
    Known(SessionName),
    /// Another session has the name.
    Taken(SessionId),
    /// Another session had the name, and was removed meanwhile. Another attempt may succeed.
    Gone,
}

/// What is added to the index with the name of a new session.
#[derive(Debug, Default)]
pub struct NewRows<'a> {
    pub agents: Vec<&'a AgentId>,
    /// The node that holds the leases of the agents.
    pub node: Option<&'a NodeId>,
    /// The unread inputs, each with its agent.
    pub inputs: Vec<(&'a InputId, &'a AgentId)>,
}

impl Index {
    /// Reserves a name for a session, and adds these rows, with one statement. Nothing is changed
    /// if the session or the name is known.
    pub async fn reserve(
        &self,
        id: &SessionId,
        name: &SessionName,
        created_at: Timestamp,
        rows: NewRows<'_>,
    ) -> Result<Reserved, StoreError> {
        const RESERVE: &str = "INSERT INTO new_session (id, name, created_at, agents, node_id, inputs, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let NewRows {
            agents,
            node,
            inputs,
        } = rows;
        let statement = query(RESERVE)
            .bind(id.as_str())
            .bind(name.as_str())
            .bind(created_at.millis())
            .bind(json(&agents))
            .bind(node.map(|node| node.to_string()))
            .bind(json(&inputs))
            .bind(Timestamp::now().millis());
        match self.db().await?.execute(statement).await {
            Ok(_) => {
                for agent in agents {
                    self.known.belongs(agent, id);
                }
                self.known.announced(inputs.iter().map(|(input, _)| *input));
                Ok(Reserved::Yes)
            }
            Err(SqliteFault::Aborted(Abort::Known)) => self.holder(id, name).await,
            Err(fault) => Err(fault.into()),
        }
    }

    /// Returns which session has this id or this name.
    async fn holder(&self, id: &SessionId, name: &SessionName) -> Result<Reserved, StoreError> {
        const HOLDER: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 OR name = ?2 ORDER BY id <> ?1";
        let statement = query(HOLDER).bind(id.as_str()).bind(name.as_str());
        let found = self.read(statement, id_and_name).await?;
        Ok(match found.into_iter().next() {
            Some((known, name)) if known == *id => Reserved::Known(name),
            Some((other, _)) => Reserved::Taken(other),
            None => Reserved::Gone,
        })
    }

    /// Reserves a name for a new session, and adds its agents, their lease and its prompt. The
    /// caller does so before it writes them to the session's file.
    pub async fn reserve_new(
        &self,
        session: &NewSession,
        name: &SessionName,
        node: &NodeId,
    ) -> Result<Reserved, StoreError> {
        let prompt = session.prompt.iter();
        let rows = NewRows {
            agents: session.agents.iter().map(|agent| &agent.id).collect(),
            node: Some(node),
            inputs: prompt.map(|prompt| (&prompt.id, &prompt.agent)).collect(),
        };
        self.reserve(&session.id, name, session.at, rows).await
    }

    /// Records that the file of a new session is complete.
    pub async fn state_of_new(&self, session: &SessionId) -> Result<(), StoreError> {
        let statement = query("UPDATE sessions SET state = 'open' WHERE id = ?1 AND state = 'new'")
            .bind(session.as_str());
        self.execute(statement).await.map(drop)
    }

    /// Returns whether the session's name was reserved before `at`, in milliseconds since 1970, and
    /// its file does not exist.
    pub async fn abandoned(&self, session: &SessionId, at: i64) -> Result<bool, StoreError> {
        const ABANDONED: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 AND state = 'new' AND changed_at < ?2";
        let found = self
            .read(
                query(ABANDONED).bind(session.as_str()).bind(at),
                id_and_name,
            )
            .await?;
        Ok(found
            .first()
            .is_some_and(|(id, name)| !self.folder.join(format!("{id}_{name}.db")).exists()))
    }
}
