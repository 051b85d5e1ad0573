//! Lists and answers waits. Any node does both, because an answer is a row in SQL that the agent
//! reads.

use std::{collections::BTreeSet, sync::Arc};

use planck_common::{
    AgentId, CallId, Timestamp,
    command::{AbortSession, Answer, Answered, ListWaits, WaitRow, Waits},
    event::ToolEffect,
    permission::RuleAction,
    reply::{Code, Refusal},
    wait::{WaitAnswer, WaitDecision, WaitKind, WaitScope, WaitState},
};
use planck_store::{AnswerOutcome, SessionRecord, SessionStore, nobody_answered};
use planck_toolbox::schema::CompiledSchema;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{CommandOrigin, Sessions, checked_author, prompt::bounded};
use crate::{
    agent::permission::{self, CallFacts},
    storable,
};

impl Sessions {
    pub async fn waits(&self, filter: ListWaits) -> Result<Waits, Refusal> {
        let session = match &filter.session {
            Some(session) => Some(self.handles.lookup.session(session).await?.id),
            None => None,
        };
        let mut page = self.handles.store.waits(session.as_ref(), &filter).await?;
        // The waits of one answer were opened at the same time, and are listed as the answer has
        // them.
        page.waits.sort_by(|one, other| {
            let place = |wait: &WaitRow| (wait.opened_at, wait.seq);
            (place(one), &one.session_id).cmp(&(place(other), &other.session_id))
        });
        if filter.newest {
            page.waits.reverse();
        }
        Ok(page)
    }

    /// Stores the answer to a wait, and wakes the agent. The first answer holds. If the same answer
    /// comes again, it gets the same reply; another one is refused with `exists`.
    pub async fn answer(
        &self,
        session: &SessionRecord,
        answer: Answer,
    ) -> Result<Answered, Refusal> {
        self.check_permitted(session, &answer).await?;
        let most = self.limits.max_prompt;
        let (answered, told) = store_answer(&*self.handles.store, most, session, answer).await?;
        if let Some((agent, changes)) = told {
            self.wake(&session.id, &agent).await;
            self.follow_change(session, &changes, &answered).await?;
        }
        Ok(answered)
    }

    /// Refuses arguments that the agent's permissions deny, so that the person who wrote them can
    /// answer again. A node that does not know the session's folder leaves this to the agent, which
    /// denies the call.
    async fn check_permitted(
        &self,
        session: &SessionRecord,
        answer: &Answer,
    ) -> Result<(), Refusal> {
        let Some(args) = answer.args.as_deref() else {
            return Ok(());
        };
        let Ok(context) = self.handles.lookup.context(session, 0) else {
            return Ok(());
        };
        let Some(wait) = self.handles.store.wait(&session.id, &answer.wait).await? else {
            return Ok(());
        };
        let Some(agent) = self.handles.store.find_agent(&wait.agent_id).await? else {
            return Ok(());
        };
        let Ok(asked) = serde_json::from_str::<AskedCall>(wait.request.get()) else {
            return Ok(());
        };
        let call = CallFacts {
            tool: &asked.tool,
            effect: asked.effect,
            sidecar: wait.rule.as_ref().and_then(|rule| rule.sidecar.as_deref()),
            args: args.get(),
            dir: &context.dir.to_string_lossy(),
        };
        let verdict = permission::judge(&agent.spec.permissions, &call);
        if wait.kind != WaitKind::Approval || verdict.action != RuleAction::Deny {
            return Ok(());
        }
        let why = verdict.why.unwrap_or_default();
        Err(Refusal::bad_request(format!(
            "wait {}: a call with these `args` would not run: {why}",
            wait.id
        )))
    }
}

/// The part of an approval's request that rules look at.
#[derive(Deserialize)]
struct AskedCall {
    tool: String,
    effect: ToolEffect,
}

/// Stores the answer to a wait, and keeps the changes that it allows. If the answer was not stored
/// before, also returns the agent to wake, and the calls whose changes were decided about. No part
/// of the answer may have more than `most` bytes.
pub async fn store_answer(
    store: &dyn SessionStore,
    most: u64,
    session: &SessionRecord,
    answer: Answer,
) -> Result<(Answered, Option<(AgentId, BTreeSet<CallId>)>), Refusal> {
    let id = answer.wait.clone();
    let unknown = || Refusal::not_found(format!("session {} has no wait {id}", session.name));
    let row = store.wait(&session.id, &id).await?.ok_or_else(unknown)?;
    let given = checked(&row, answer, most).await?;
    match store.answer(&session.id, &id, &row.digest, &given).await? {
        AnswerOutcome::Answered { agent, .. } => {
            let changes = changing_calls(&row);
            if given.decision == WaitDecision::Allow {
                keep_changes(store, session, &changes).await?;
            }
            let answered = Answered {
                wait: id,
                state: WaitState::Answered,
                decision: given.decision,
                answered_by: given.by,
                answered_at: given.at,
            };
            Ok((answered, Some((agent, changes))))
        }
        AnswerOutcome::Refused { row, answer } => match answer {
            Some(known) if known.says_the_same(&given) => {
                let answered = Answered {
                    wait: id,
                    state: row.state,
                    decision: known.decision,
                    answered_by: known.by,
                    answered_at: known.at,
                };
                Ok((answered, None))
            }
            _ => Err(decided_before(&row)),
        },
        AnswerOutcome::NotFound => Err(unknown()),
    }
}

/// Returns the answer to store, or a refusal if it does not fit the wait.
async fn checked(row: &WaitRow, answer: Answer, most: u64) -> Result<WaitAnswer, Refusal> {
    let Answer {
        wait: _,
        decision,
        args,
        value,
        reason,
        scope,
        digest,
        by,
    } = answer;
    if digest.is_some_and(|digest| digest != row.digest) {
        let why = "its request has changed since it was read; read it again";
        return Err(Refusal::new(
            Code::Exists,
            format!("wait {}: {why}", row.id),
        ));
    }
    check_decision(row, decision)?;
    check_parts(row, decision, args.as_deref(), value.as_deref(), scope)?;
    check_schema(row, args.as_deref().or(value.as_deref())).await?;
    for part in args.iter().chain(&value) {
        bounded(part.get().to_owned(), most)?;
    }
    let reason = match reason {
        Some(reason) => Some(bounded(storable::text(reason), most)?),
        None => None,
    };
    Ok(WaitAnswer {
        decision,
        args,
        value,
        reason,
        scope,
        by: checked_author(by)?,
        at: Timestamp::now(),
    })
}

/// Returns a refusal if the decision does not fit the kind of the wait.
fn check_decision(row: &WaitRow, decision: WaitDecision) -> Result<(), Refusal> {
    let fitting: &[WaitDecision] = match row.kind {
        WaitKind::Approval | WaitKind::Budget | WaitKind::Change => {
            &[WaitDecision::Allow, WaitDecision::Deny]
        }
        WaitKind::Question => &[WaitDecision::Answer, WaitDecision::Deny],
        WaitKind::ClientTool => &[
            WaitDecision::Answer,
            WaitDecision::Error,
            WaitDecision::Deny,
        ],
    };
    if fitting.contains(&decision) {
        return Ok(());
    }
    let names: Vec<&str> = fitting.iter().map(|decision| decision.name()).collect();
    Err(Refusal::bad_request(format!(
        "wait {} is of the kind {}; `decision` must be {}, got {}",
        row.id,
        row.kind.name(),
        names.join(" or "),
        decision.name()
    )))
}

/// Returns a refusal if a part of the answer is missing or has no meaning for the wait.
fn check_parts(
    row: &WaitRow,
    decision: WaitDecision,
    args: Option<&RawValue>,
    value: Option<&RawValue>,
    scope: Option<WaitScope>,
) -> Result<(), Refusal> {
    let refused = |why: &str| Err(Refusal::bad_request(format!("wait {}: {why}", row.id)));
    let is_approved = row.kind == WaitKind::Approval && decision == WaitDecision::Allow;
    if args.is_some() && !is_approved {
        return refused("`args` belong to the `allow` of an approval");
    }
    if scope == Some(WaitScope::Session) && !is_approved {
        return refused("`scope` belongs to the `allow` of an approval");
    }
    if scope == Some(WaitScope::Session) && row.rule.is_none() {
        return refused("no rule covers this call; answer with the scope `once`");
    }
    let is_raised = row.kind == WaitKind::Budget && decision == WaitDecision::Allow;
    if value.is_some() != (decision == WaitDecision::Answer || is_raised) {
        return refused("`value` is the answer, or the new limit of an allowed budget");
    }
    if args.is_some_and(|args| !args.get().starts_with('{')) {
        return refused("`args` must be an object");
    }
    Ok(())
}

/// Returns a refusal if the answer does not fit the wait's schema.
async fn check_schema(row: &WaitRow, given: Option<&RawValue>) -> Result<(), Refusal> {
    let (Some(given), Some(schema)) = (given, row.schema.clone()) else {
        return Ok(());
    };
    let compiled =
        tokio::task::spawn_blocking(move || CompiledSchema::of_value(schema.get())).await;
    // The model wrote the schema of a question. A schema that is wrong must not keep a person from
    // answering.
    let Ok(Ok(schema)) = compiled else {
        return Ok(());
    };
    let mistakes = Arc::new(schema).mistakes(given.get()).await;
    let why = match row.kind {
        _ if mistakes.is_empty() => return Ok(()),
        WaitKind::Budget => too_low(row),
        WaitKind::Approval | WaitKind::Question | WaitKind::ClientTool | WaitKind::Change => {
            format!("the answer does not fit: {}", mistakes.join("; "))
        }
    };
    Err(Refusal::bad_request(format!("wait {}: {why}", row.id)))
}

/// Returns what the new value of a limit must be.
fn too_low(row: &WaitRow) -> String {
    #[derive(Deserialize)]
    struct Reached {
        limit: String,
        max: f64,
        used: f64,
    }
    match serde_json::from_str::<Reached>(row.request.get()) {
        Ok(Reached { limit, max, used }) => {
            let number = match limit.as_str() {
                "max_cost_usd" => "a number",
                _ => "a whole number",
            };
            let least = max.max(used);
            format!("the new value of `{limit}` must be {number} above {least}")
        }
        Err(_) => "the new limit must be above the old one and above what is used".into(),
    }
}

/// Returns the refusal of an answer to a wait that no longer takes one.
fn decided_before(row: &WaitRow) -> Refusal {
    let by = row.answered_by.as_deref().unwrap_or("somebody");
    let expired = || {
        let why = nobody_answered(row.opened_at, row.expires_at);
        format!("has expired; {why}")
    };
    let what = match (row.state, row.decision) {
        (WaitState::Withdrawn, _) => "was withdrawn, because its turn ended".to_owned(),
        (_, Some(WaitDecision::Expired)) => expired(),
        (_, Some(decision)) => format!("was answered before, with {} by {by}", decision.name()),
        (_, None) if row.expires_at.is_some_and(|at| at <= Timestamp::now()) => expired(),
        (_, None) => "has changed since it was read; read it again".to_owned(),
    };
    Refusal::new(Code::Exists, format!("wait {} {what}", row.id))
}

/// The part of a wait's request that says which calls made the changes.
#[derive(Deserialize)]
struct ChangingCalls {
    calls: BTreeSet<CallId>,
}

/// Keeps the changes of these calls, so that calls of their session may run again. Should the node
/// end before this is stored, a person is asked once more.
async fn keep_changes(
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
    async fn follow_change(
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
            .handles
            .store
            .waits(Some(&session.id), &filter)
            .await?
            .waits
        {
            if !changing_calls(&row).is_subset(kept) {
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
            let stored = store_answer(&*self.handles.store, most, session, answer).await?;
            if let (_, Some((agent, _))) = stored {
                self.wake(&session.id, &agent).await;
            }
        }
        Ok(())
    }
}

/// Returns the calls that made the changes which a wait is about, or none if it is about something
/// else.
fn changing_calls(row: &WaitRow) -> BTreeSet<CallId> {
    if row.kind != WaitKind::Change {
        return BTreeSet::new();
    }
    let request = serde_json::from_str::<ChangingCalls>(row.request.get());
    request.map_or_else(|_| BTreeSet::new(), |request| request.calls)
}

#[cfg(test)]
mod tests;
