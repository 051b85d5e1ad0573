//! The baselines of calls, in SQLite.

use async_trait::async_trait;
use planck_common::{CallId, SessionId, event::json};
use sqlx::query;

use super::SqliteStore;
use crate::{
    Baselines, StoreError,
    baselines::{CallBaseline, MOST_BASELINES},
};

const PUT: &str =
    "INSERT OR IGNORE INTO baselines (call_id, agent_id, epoch, roots) VALUES (?1, ?2, ?3, ?4)";

const UNDECIDED: &str = "SELECT b.call_id, b.agent_id, b.epoch, b.roots FROM baselines b LEFT JOIN agents a ON a.id = b.agent_id
    WHERE b.changed OR a.id IS NULL OR a.epoch <> b.epoch OR a.state = 'stopped' ORDER BY b.call_id LIMIT ?1";

#[async_trait]
impl Baselines for SqliteStore {
    async fn put_baseline(
        &self,
        session: &SessionId,
        CallBaseline {
            call,
            agent,
            epoch,
            roots,
        }: &CallBaseline,
    ) -> Result<(), StoreError> {
        let file = self.file(session).await?;
        let put = query(PUT).bind(call.as_str()).bind(agent.as_str());
        file.db.execute(put.bind(*epoch).bind(roots)).await?;
        Ok(())
    }

    async fn undecided_baselines(
        &self,
        session: &SessionId,
    ) -> Result<Vec<CallBaseline>, StoreError> {
        let file = self.file(session).await?;
        let rows = file.db.rows(query(UNDECIDED).bind(MOST_BASELINES)).await?;
        let baseline = |row| file.reader(row).baseline();
        rows.iter().map(baseline).collect()
    }

    async fn baseline_changed(&self, session: &SessionId, call: &CallId) -> Result<(), StoreError> {
        const CHANGED: &str = "UPDATE baselines SET changed = 1 WHERE call_id = ?1";
        let file = self.file(session).await?;
        file.db.execute(query(CHANGED).bind(call.as_str())).await?;
        Ok(())
    }

    async fn remove_baselines(
        &self,
        session: &SessionId,
        calls: &[CallId],
    ) -> Result<(), StoreError> {
        const REMOVE: &str =
            "DELETE FROM baselines WHERE call_id IN (SELECT value FROM json_each(?1))";
        let file = self.file(session).await?;
        file.db.execute(query(REMOVE).bind(json(&calls))).await?;
        Ok(())
    }
}
