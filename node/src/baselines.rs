//! Keeps the baselines of tool calls in the session store.

use std::sync::Arc;

use async_trait::async_trait;
use planck_common::{CallId, SessionId};

use planck_store::{CallBaseline, SessionStore, StoreError};
use planck_toolbox::{CallBaselines, StoredBaseline, Wall};

/// Returns the wall around the protected files of sessions in this store.
pub fn wall(store: &Arc<dyn SessionStore>) -> Wall {
    Wall::new(Arc::new(InStore(Arc::clone(store))))
}

struct InStore(Arc<dyn SessionStore>);

#[async_trait]
impl CallBaselines for InStore {
    async fn put(&self, session: &SessionId, baseline: StoredBaseline) -> Result<(), String> {
        let StoredBaseline {
            call,
            agent,
            epoch,
            roots,
        } = baseline;
        let baseline = CallBaseline {
            call,
            agent,
            epoch,
            roots,
        };
        let put = self.0.put_baseline(session, &baseline).await;
        put.map_err(told)
    }

    async fn undecided(&self, session: &SessionId) -> Result<Vec<StoredBaseline>, String> {
        let rows = self.0.undecided_baselines(session).await.map_err(told)?;
        let baselines = rows.into_iter().map(|row| StoredBaseline {
            call: row.call,
            agent: row.agent,
            epoch: row.epoch,
            roots: row.roots,
        });
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
