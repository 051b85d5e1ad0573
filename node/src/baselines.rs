//! Keeps the baselines of tool calls in the session store.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{CallId, SessionId};

use planck_store::{CallBaseline, SessionStore, StoreError};
use planck_toolbox::{CallBaselines, Invocation, Wall};

/// Returns the wall around the protected files of sessions in this store.
pub fn wall(store: &Arc<dyn SessionStore>) -> Wall {
    Wall::new(Arc::new(InStore(Arc::clone(store))))
}

struct InStore(Arc<dyn SessionStore>);

#[async_trait]
impl CallBaselines for InStore {
    async fn put(&self, call: &Invocation, baselines: String) -> Result<(), String> {
        let baseline = CallBaseline {
            call: call.call_id.clone(),
            agent: call.agent_id.clone(),
            epoch: call.epoch,
            roots: baselines,
        };
        let put = self.0.put_baseline(&call.session_id, &baseline).await;
        put.map_err(told)
    }

    async fn undecided(&self, session: &SessionId) -> Result<Vec<(CallId, String)>, String> {
        let rows = self.0.undecided_baselines(session).await.map_err(told)?;
        let baselines = rows.into_iter().map(|row| (row.call, row.roots));
        Ok(baselines.collect())
    }

    async fn changed(&self, session: &SessionId, call: &CallId) -> Result<(), String> {
        let changed = self.0.baseline_changed(session, call).await;
        changed.map_err(told)
    }

    async fn remove(&self, session: &SessionId, calls: &[CallId]) -> Result<(), String> {
        let removed = self.0.remove_baselines(session, calls).await;
        removed.map_err(told)
    }
}

fn told(error: StoreError) -> String {
    error.to_string()
}
