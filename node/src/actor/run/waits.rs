//! The waits of an agent: applies the session's rules to them, and reads the answers.

use planck_common::{
    SessionId, Timestamp,
    wait::{WaitAnswer, WaitDecision},
};

use super::{Actor, perform::Performed};
use crate::{
    actor::saving::ActorLost,
    agent::{
        Agent, Input,
        permission::{self, Match},
    },
};
use planck_store::{SessionRule, SessionStore, StoreError};

impl Actor {
    /// Answers the approvals that a rule of the session covers, and passes all answers to the agent.
    /// Only a person can answer an approval whose rule could not be read now.
    pub(super) async fn check_waits(&mut self) -> Result<Performed, ActorLost> {
        let session = &self.identity.session.id;
        let applied = apply_session_rules(&self.agent, &*self.context.store, session).await;
        if let Err(error) = applied {
            let agent = &self.identity.agent;
            tracing::warn!(%agent, %error, "cannot read the rules of the session; its open waits stay open");
        }
        self.read_answers().await
    }

    /// Passes the answers that the agent has not read yet to the agent. If the store cannot be read
    /// now, the next sweep has the agent read them.
    pub(super) async fn read_answers(&mut self) -> Result<Performed, ActorLost> {
        let (session, agent) = (&self.identity.session.id, &self.identity.agent);
        let answers = match self.context.store.answers(session, agent).await {
            Ok(answers) => answers,
            Err(error) => {
                tracing::warn!(%agent, %error, "cannot read the answers to waits; the next sweep requests another check");
                return Ok(Performed::GoOn);
            }
        };
        for (wait, answer) in answers {
            if self.step(Input::Decided { wait, answer }).await? == Performed::Stopped {
                return Ok(Performed::Stopped);
            }
        }
        Ok(Performed::GoOn)
    }
}

/// Allows the calls that a rule of the session covers.
async fn apply_session_rules(
    agent: &Agent,
    store: &dyn SessionStore,
    session: &SessionId,
) -> Result<(), StoreError> {
    let approvals = agent.approvals();
    if approvals.is_empty() {
        return Ok(());
    }
    let rules = store.session_rules(session).await?;
    for (wait, digest, call) in approvals {
        let allows =
            |rule: &&SessionRule| matches!(permission::matches(&rule.rule, &call), Match::Yes);
        let Some(rule) = rules.iter().find(allows) else {
            continue;
        };
        let answer = WaitAnswer {
            decision: WaitDecision::Allow,
            args: None,
            value: None,
            reason: Some(format!(
                "the answer to {} allows calls like this one",
                rule.wait
            )),
            scope: None,
            by: rule.by.clone(),
            at: Timestamp::now(),
        };
        store.answer(session, &wait, &digest, &answer).await?;
    }
    Ok(())
}
