//! The baselines of calls, in Postgres.

use async_trait::async_trait;
use planck_common::{CallId, SessionId};

use super::{PostgresStore, database::reader};
use crate::{
    Baselines, StoreError,
    baselines::{CallBaseline, MOST_BASELINES},
};

const PUT: &str = "INSERT INTO baselines (session_id, call_id, agent_id, epoch, roots) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING";

const UNDECIDED: &str = "
SELECT b.call_id, b.agent_id, b.epoch, b.roots
FROM baselines b LEFT JOIN agents a ON a.session_id = b.session_id AND a.id = b.agent_id
WHERE b.session_id = $1 AND (b.changed OR a.id IS NULL OR a.epoch <> b.epoch OR a.state = 'stopped') ORDER BY b.call_id LIMIT $2";

#[async_trait]
impl Baselines for PostgresStore {
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
        let put = sqlx::query(PUT)
            .bind(session.as_str())
            .bind(call.as_str())
            .bind(agent.as_str())
            .bind(*epoch)
            .bind(roots);
        self.database.all(put).await?;
        Ok(())
    }

    async fn undecided_baselines(
        &self,
        session: &SessionId,
    ) -> Result<Vec<CallBaseline>, StoreError> {
        let undecided = sqlx::query(UNDECIDED)
            .bind(session.as_str())
            .bind(i64::from(MOST_BASELINES));
        let rows = self.database.all(undecided).await?;
        rows.iter().map(|row| reader(row).baseline()).collect()
    }

    async fn baseline_changed(&self, session: &SessionId, call: &CallId) -> Result<(), StoreError> {
        const CHANGED: &str =
            "UPDATE baselines SET changed = true WHERE session_id = $1 AND call_id = $2";
        let changed = sqlx::query(CHANGED)
            .bind(session.as_str())
            .bind(call.as_str());
        self.database.all(changed).await?;
        Ok(())
    }

    async fn remove_baselines(
        &self,
        session: &SessionId,
        calls: &[CallId],
    ) -> Result<(), StoreError> {
        const REMOVE: &str = "DELETE FROM baselines WHERE session_id = $1 AND call_id = ANY($2)";
        let calls: Vec<&str> = calls.iter().map(CallId::as_str).collect();
        let remove = sqlx::query(REMOVE).bind(session.as_str()).bind(calls);
        self.database.all(remove).await?;
        Ok(())
    }
}
