//! Finds the answers to waits in a message of the assistant that the client sends back.

use std::collections::{HashMap, HashSet};

use planck_common::{
    CallId,
    command::{Answer, WaitRow},
    wait::{WaitDecision, WaitKind},
};
use serde_json::{Value, value::RawValue};

use super::{
    body::{ToolPart, ToolState},
    chunks::Continued,
    ids,
};
use crate::problem::Problem;

/// Returns the answers to the open waits.
pub fn answers(open: &[WaitRow], calls: &[ToolPart]) -> Result<Vec<Answer>, Problem> {
    let answers = open.iter().filter_map(|wait| {
        let call = calls.iter().find(|call| call.call == wait.id.as_str())?;
        answer(wait, call).transpose()
    });
    answers.collect()
}

fn answer(wait: &WaitRow, call: &ToolPart) -> Result<Option<Answer>, Problem> {
    let digest = match wait.kind {
        WaitKind::Approval => approved_digest(wait, call)?,
        WaitKind::Question | WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change => None,
    };
    let (decision, value, reason) = match (wait.kind, &call.state) {
        (WaitKind::Approval, ToolState::Approved { approved: true, .. }) => {
            (WaitDecision::Allow, None, None)
        }
        (
            _,
            ToolState::Approved {
                approved: false,
                reason,
            },
        ) => (WaitDecision::Deny, None, reason.clone()),
        (WaitKind::Question | WaitKind::ClientTool, ToolState::Output(output)) => {
            (WaitDecision::Answer, raw(output), None)
        }
        (WaitKind::ClientTool, ToolState::Error(why)) => {
            (WaitDecision::Error, None, Some(why.clone()))
        }
        (WaitKind::Question, ToolState::Error(why)) => {
            (WaitDecision::Deny, None, Some(why.clone()))
        }
        // No other state is an answer, least of all an approval.
        (
            WaitKind::Approval | WaitKind::Budget | WaitKind::Change,
            ToolState::Output(_) | ToolState::Error(_) | ToolState::Open,
        )
        | (
            WaitKind::Question | WaitKind::ClientTool | WaitKind::Budget | WaitKind::Change,
            ToolState::Approved { .. },
        )
        | (WaitKind::Question | WaitKind::ClientTool, ToolState::Open) => return Ok(None),
    };
    Ok(Some(Answer {
        wait: wait.id.clone(),
        decision,
        args: None,
        value,
        reason,
        scope: None,
        digest,
        by: None,
    }))
}

/// Returns the digest of what the client has approved or denied.
fn approved_digest(wait: &WaitRow, call: &ToolPart) -> Result<Option<String>, Problem> {
    let ToolState::Approved { .. } = call.state else {
        return Ok(None);
    };
    let id = call.approval.as_deref().unwrap_or_default();
    match ids::approval(id) {
        Some((call, digest)) if call == wait.id => Ok(Some(digest.to_owned())),
        Some(_) | None => Err(Problem::bad_request(format!(
            "the approval of call {} has an id that this front did not send",
            wait.id
        ))),
    }
}

fn raw(value: &Value) -> Option<Box<RawValue>> {
    serde_json::value::to_raw_value(value).ok()
}

/// Returns what the client already has of the turn. `answered` are the waits that it answers now. If
/// there are none, it repeats a request, and has answered the calls of the last step.
pub fn continued(answered: &[Answer], calls: &[ToolPart]) -> Option<Continued> {
    let mut ids: HashSet<CallId> = answered.iter().map(|answer| answer.wait.clone()).collect();
    if ids.is_empty() {
        let latest = calls
            .iter()
            .filter(|call| call.is_latest && call.is_answered());
        ids.extend(latest.filter_map(|call| CallId::parse(&call.call).ok()));
    }
    let approvals: HashMap<CallId, String> = calls
        .iter()
        .filter_map(|call| Some((CallId::parse(&call.call).ok()?, call.approval.clone()?)))
        .collect();
    (!ids.is_empty()).then_some(Continued {
        answered: ids,
        approvals,
    })
}

impl ToolPart {
    fn is_answered(&self) -> bool {
        match self.state {
            ToolState::Approved { .. } | ToolState::Output(_) | ToolState::Error(_) => true,
            ToolState::Open => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use planck_common::{AgentId, SessionId, Timestamp, wait::WaitState};

    use super::*;

    fn open(kind: WaitKind) -> WaitRow {
        WaitRow {
            seq: 3,
            id: CallId::parse("c1").unwrap(),
            session_id: SessionId::parse("s").unwrap(),
            agent_id: AgentId::parse("a").unwrap(),
            kind,
            state: WaitState::Open,
            title: "t".into(),
            request: Box::default(),
            digest: "d".into(),
            options: None,
            schema: None,
            rule: None,
            opened_at: Timestamp::from_millis(0),
            expires_at: None,
            decision: None,
            reason: None,
            answered_by: None,
            answered_at: None,
        }
    }

    fn part(approval: Option<&str>, state: ToolState) -> ToolPart {
        ToolPart {
            call: "c1".into(),
            approval: approval.map(str::to_owned),
            state,
            is_latest: true,
        }
    }

    #[test]
    fn only_what_fits_the_wait_is_an_answer() {
        use WaitDecision::{Allow, Answer, Deny, Error};
        use WaitKind::{Approval, Budget, ClientTool, Question};
        let approved = |approved| ToolState::Approved {
            approved,
            reason: None,
        };
        let output = || ToolState::Output(7.into());
        let error = || ToolState::Error("e".into());
        for (kind, state, expected) in [
            (Approval, approved(true), Some(Allow)),
            (Approval, approved(false), Some(Deny)),
            (Approval, output(), None),
            (Approval, error(), None),
            (Approval, ToolState::Open, None),
            (ClientTool, output(), Some(Answer)),
            (ClientTool, error(), Some(Error)),
            (ClientTool, approved(true), None),
            (Question, output(), Some(Answer)),
            (Question, error(), Some(Deny)),
            (Question, ToolState::Open, None),
            (Budget, approved(true), None),
            (Budget, output(), None),
        ] {
            let call = part(Some("c1:d"), state);
            let answer = answers(&[open(kind)], std::slice::from_ref(&call)).unwrap();
            let decision = answer.first().map(|answer| answer.decision);
            assert_eq!(decision, expected, "{kind:?} {call:?}");
        }
    }

    #[test]
    fn approval_names_what_was_shown() {
        let approved = ToolState::Approved {
            approved: true,
            reason: None,
        };
        let waits = [open(WaitKind::Approval)];
        let answer = answers(&waits, &[part(Some("c1:old"), approved.clone())]).unwrap();
        assert_eq!(answer[0].digest.as_deref(), Some("old"));
        for wrong in [None, Some(""), Some("c1"), Some("c2:d")] {
            assert!(
                answers(&waits, &[part(wrong, approved.clone())]).is_err(),
                "{wrong:?}"
            );
        }
    }
}
