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

/// Keeps the changes of these calls, so that calls of their session may run again. Should the node
/// end before this is stored, a person is asked once more.
pub(super) async fn keep(
    store: &dyn SessionStore,
    session: &SessionRecord,
    calls: &BTreeSet<CallId>,
) -> Result<(), Refusal> {
    if !calls.is_empty() {
        let calls: Vec<CallId> = calls.iter().cloned().collect();
        store.remove_baselines(&session.id, &calls).await?;
    }
    Ok(())
}

impl Sessions {
    /// Does for the rest of the session what follows from a decision about the changes of these
    /// calls: keeps the same changes elsewhere, or ends the session's work. Does nothing without
    /// calls.
    pub(super) async fn follow(
        &self,
        session: &SessionRecord,
        calls: &BTreeSet<CallId>,
        answered: &Answered,
    ) -> Result<(), Refusal> {
        if calls.is_empty() {
            return Ok(());
        }
        if answered.decision == WaitDecision::Allow {
            return self.keep_elsewhere(session, calls, answered).await;
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
        for row in self
            .base
            .store
            .waits(Some(&session.id), &filter)
            .await?
            .waits
        {
            if !calls_of(&row).is_subset(kept) {
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
            let stored = store_answer(&*self.base.store, most, session, answer).await?;
            if let (_, Some((agent, _))) = stored {
                self.wake(&session.id, &agent).await;
            }
        }
        Ok(())
    }
}

/// Returns the calls that made the changes which a wait is about, or none if it is about something
/// else.
pub(super) fn calls_of(row: &WaitRow) -> BTreeSet<CallId> {
    if row.kind != WaitKind::Change {
        return BTreeSet::new();
    }
    let request = serde_json::from_str::<ChangeRequest>(row.request.get());
    request.map_or_else(|_| BTreeSet::new(), |request| request.calls)
}
