//! Decisions about changes of protected files.

use std::collections::BTreeSet;

use planck_common::{
    CallId,
    command::{AbortSession, Answer, Answered, ListWaits, WaitRow},
    reply::Refusal,
    wait::{WaitDecision, WaitKind, WaitState},
};
use planck_store::{SessionRecord, SessionStore};
use serde::Deserialize;

use super::{Sessions, store_answer};
use crate::sessions::CommandOrigin;

/// The part of a wait's request that says which calls made the changes.
#[derive(Deserialize)]
struct ChangeRequest {
    calls: BTreeSet<CallId>,
}

/// Keeps the changes that an allowed wait is about, so that calls of its session may run again.
/// Should the node end before this is stored, a person is asked once more.
pub(super) async fn keep(store: &dyn SessionStore, wait: &WaitRow) -> Result<(), Refusal> {
    if let Some(calls) = calls_of(wait) {
        let calls: Vec<CallId> = calls.into_iter().collect();
        store.remove_baselines(&wait.session_id, &calls).await?;
    }
    Ok(())
}

impl Sessions {
    /// Does for the rest of the session what follows from a decision about changes: keeps the same
    /// changes elsewhere, or ends the session's work. Does nothing if the wait is about something
    /// else.
    pub(super) async fn follow(
        &self,
        session: &SessionRecord,
        answered: &Answered,
    ) -> Result<(), Refusal> {
        let row = self.store.wait(&session.id, &answered.wait).await?;
        let Some(calls) = row.as_ref().and_then(calls_of) else {
            return Ok(());
        };
        if answered.decision == WaitDecision::Allow {
            return self.keep_elsewhere(session, &calls, answered).await;
        }
        let request = AbortSession {
            reason: Some("a person did not keep changes of protected files".into()),
            prompt_id: None,
        };
        self.abort(session, request, CommandOrigin::Client).await?;
        Ok(())
    }

    /// Answers the other waits of the session that are about kept changes alone.
    async fn keep_elsewhere(
        &self,
        session: &SessionRecord,
        kept: &BTreeSet<CallId>,
        answered: &Answered,
    ) -> Result<(), Refusal> {
        let filter = ListWaits {
            session: Some(session.id.to_string()),
            state: Some(WaitState::Open),
            kind: Some(WaitKind::Change),
            ..ListWaits::default()
        };
        for row in self.store.waits(Some(&session.id), &filter).await?.waits {
            if !calls_of(&row).is_some_and(|calls| calls.is_subset(kept)) {
                continue;
            }
            let answer = Answer {
                wait: row.id,
                decision: WaitDecision::Allow,
                args: None,
                value: None,
                reason: Some(format!(
                    "the answer to {} keeps the same changes",
                    answered.wait
                )),
                scope: None,
                digest: Some(row.digest),
                by: answered.answered_by.clone(),
            };
            let most = self.limits.max_prompt;
            if let (_, Some(agent)) = store_answer(&*self.store, most, session, answer).await? {
                self.wake(&session.id, &agent).await;
            }
        }
        Ok(())
    }
}

fn calls_of(row: &WaitRow) -> Option<BTreeSet<CallId>> {
    let is_change = row.kind == WaitKind::Change;
    let request = is_change.then(|| serde_json::from_str(row.request.get()).ok());
    request.flatten().map(|ChangeRequest { calls }| calls)
}
