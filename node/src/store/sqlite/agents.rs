//! Reads agents.

use planck_common::{AgentId, SessionId};
use sqlx::{query, sqlite::SqliteRow};

use super::{SqliteStore, decode::Reader, files::InUse};
use crate::store::{AgentRecord, NAMESAKES, StoreError};

impl SqliteStore {
    pub(super) async fn agent_record(
        &self,
        agent: &AgentId,
    ) -> Result<Option<AgentRecord>, StoreError> {
        let Some(session) = self.index.session_of(agent).await? else {
            return Ok(None);
        };
        let Some(file) = self.file_if_any(&session).await? else {
            return Ok(None);
        };
        self.agent_in(&file, agent).await
    }

    pub(super) async fn agent_in(
        &self,
        file: &InUse,
        agent: &AgentId,
    ) -> Result<Option<AgentRecord>, StoreError> {
        let row = file
            .db
            .row(query("SELECT * FROM agents WHERE id = ?1").bind(agent.as_str()))
            .await?;
        row.map(|row| {
            Reader {
                row: &row,
                path: file.db.path(),
            }
            .agent(&file.id, &file.team)
        })
        .transpose()
    }

    pub(super) async fn agents_meant(
        &self,
        session: &SessionId,
        text: &str,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        const NAMED: &str = "SELECT * FROM agents WHERE id = ?1 OR name = ?1";
        const TYPED: &str =
            "SELECT * FROM agents WHERE type = ?1 ORDER BY state = 'stopped', n LIMIT ?2";
        let file = self.file(session).await?;
        let mut meant = agents_of(&file, &file.db.rows(query(NAMED).bind(text)).await?)?;
        if !meant.iter().any(AgentRecord::is_there) {
            meant.extend(agents_of(
                &file,
                &file
                    .db
                    .rows(query(TYPED).bind(text).bind(NAMESAKES))
                    .await?,
            )?);
        }
        Ok(meant)
    }

    pub(super) async fn all_agents(
        &self,
        session: &SessionId,
    ) -> Result<Vec<AgentRecord>, StoreError> {
        let file = self.file(session).await?;
        agents_of(
            &file,
            &file
                .db
                .rows(query("SELECT * FROM agents ORDER BY n"))
                .await?,
        )
    }
}

fn agents_of(file: &InUse, rows: &[SqliteRow]) -> Result<Vec<AgentRecord>, StoreError> {
    rows.iter()
        .map(|row| {
            Reader {
                row,
                path: file.db.path(),
            }
            .agent(&file.id, &file.team)
        })
        .collect()
}
