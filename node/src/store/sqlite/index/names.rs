//! Reserves the name of a session before its file is created.

use planck_common::{NodeId, SessionId, SessionName, Timestamp};
use sqlx::query;

use super::{Index, added, id_and_name, leased, pending};
use crate::store::{NewSession, StoreError, sqlite::db::SqliteStatement};

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

impl Index {
    /// Reserves a name for a session, and runs other statements in the same transaction. Nothing is
    /// changed if the session or the name is known.
    pub async fn reserve(
        &self,
        id: &SessionId,
        name: &SessionName,
        at: Timestamp,
        others: Vec<SqliteStatement<'_>>,
    ) -> Result<Reserved, StoreError> {
        const RESERVE: &str = "INSERT INTO sessions (id, name, state, created_at, changed_at) VALUES (?1, ?2, 'new', ?3, ?3) ON CONFLICT DO NOTHING";
        let first = query(RESERVE)
            .bind(id.as_str())
            .bind(name.as_str())
            .bind(at.millis());
        if self.db().await?.all_or_nothing(first, others).await? {
            return Ok(Reserved::Yes);
        }
        const HOLDER: &str =
            "SELECT id, name FROM sessions WHERE id = ?1 OR name = ?2 ORDER BY id <> ?1";
        let found = self
            .read(
                query(HOLDER).bind(id.as_str()).bind(name.as_str()),
                id_and_name,
            )
            .await?;
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
        let agents = session.agents.iter().map(|agent| &agent.id);
        let mut others = vec![added(&session.id, agents), leased(&session.id, node)];
        let prompt = session.prompt.iter();
        let inputs: Vec<_> = prompt.map(|prompt| (&prompt.id, &prompt.agent)).collect();
        if !inputs.is_empty() {
            others.push(pending(&session.id, &inputs, Timestamp::now()));
        }
        let reserved = self.reserve(&session.id, name, session.at, others).await?;
        if reserved == Reserved::Yes {
            self.known.announced(inputs.iter().map(|(input, _)| *input));
        }
        Ok(reserved)
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
