//! Requests for the permission to run a tool call, and what the client's answers mean.

use std::collections::{HashMap, HashSet};

use planck_client::turn::TurnEvent;
use planck_common::{
    AgentId, CallId,
    command::Answer,
    wait::{WaitDecision, WaitKind, WaitOpened, WaitScope},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    updates::{kind, title},
    wire::{
        PermissionAnswer, PermissionKind, PermissionOption, PermissionOutcome, RequestPermission,
        ToolCall, ToolContent, ToolStatus,
    },
};
use crate::waits::own_name;

/// The names are short, because editors draw long ones badly.
const ALLOW: PermissionOption = PermissionOption {
    option_id: "allow",
    name: "Allow once",
    kind: PermissionKind::AllowOnce,
};
const ALLOW_IN_SESSION: PermissionOption = PermissionOption {
    option_id: "allow_in_session",
    name: "Allow in session",
    kind: PermissionKind::AllowAlways,
};
const DENY: PermissionOption = PermissionOption {
    option_id: "deny",
    name: "Deny",
    kind: PermissionKind::RejectOnce,
};

/// The call that an approval is about.
#[derive(Deserialize)]
struct RequestedCall<'a> {
    tool: String,
    #[serde(borrow)]
    args: &'a RawValue,
    #[serde(default)]
    why: Option<String>,
}

/// Returns the request for a wait, with the whole of what is asked. Returns `None` if the wait is
/// none for an approval.
pub fn request<'a>(session: &'a str, wait: &WaitOpened) -> Option<RequestPermission<'a>> {
    if wait.kind != WaitKind::Approval {
        return None;
    }
    let call: RequestedCall<'_> = serde_json::from_str(wait.request.get()).ok()?;
    Some(RequestPermission {
        session_id: session,
        tool_call: ToolCall {
            tool_call_id: wait.call().to_string(),
            title: Some(title(&call.tool, call.args)),
            kind: Some(kind(&call.tool)),
            status: Some(ToolStatus::Pending),
            content: call.why.map(|why| vec![ToolContent::text(why)]),
            raw_input: serde_json::from_str(call.args.get()).ok(),
        },
        options: offered(wait),
    })
}

fn offered(wait: &WaitOpened) -> Vec<PermissionOption> {
    let in_session = wait.rule.is_some().then_some(ALLOW_IN_SESSION);
    [Some(ALLOW), in_session, Some(DENY)]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the answer to a wait that an answer of the client means. Everything but an option that
/// was offered decides nothing.
pub fn answer(wait: &WaitOpened, said: &RawValue) -> Option<Answer> {
    let said: PermissionAnswer = serde_json::from_str(said.get()).ok()?;
    let PermissionOutcome::Selected { option_id } = said.outcome else {
        return None;
    };
    let chosen = offered(wait)
        .into_iter()
        .find(|option| option.option_id == option_id)?;
    let (decision, scope) = match chosen.kind {
        PermissionKind::AllowOnce => (WaitDecision::Allow, None),
        PermissionKind::AllowAlways => (WaitDecision::Allow, Some(WaitScope::Session)),
        PermissionKind::RejectOnce => (WaitDecision::Deny, None),
    };
    Some(Answer {
        wait: wait.id.clone(),
        decision,
        args: None,
        value: None,
        reason: None,
        scope,
        digest: Some(wait.digest.clone()),
        by: own_name(),
    })
}

/// Returns how a person answers a wait without this client.
pub fn way_out(wait: &WaitOpened) -> String {
    let word = match wait.kind {
        WaitKind::Approval | WaitKind::Change => "allow|deny",
        WaitKind::Question | WaitKind::ClientTool => "TEXT",
        WaitKind::Budget => "NEW-LIMIT|deny",
    };
    format!("`planck answer {} {word}` answers it", wait.id)
}

/// The open waits of a prompt.
#[derive(Debug, Default)]
pub struct OpenWaits {
    /// The waits of the workers, and with no id those of the lead.
    open: HashMap<Option<AgentId>, Vec<WaitOpened>>,
    /// The waits that were returned, with their digests.
    told: HashSet<(CallId, String)>,
    /// Whether the log was read. Before that, an open wait may have been answered long ago.
    is_live: bool,
}

impl OpenWaits {
    /// Returns whether the log was read, so that what follows is new.
    pub fn are_live(&self) -> bool {
        self.is_live
    }

    /// Takes an event, and returns the waits that the client is now to be asked about.
    pub fn take(&mut self, event: &TurnEvent) -> Vec<WaitOpened> {
        let own = self.open.entry(None).or_default();
        if let TurnEvent::WaitOpened(wait) = event {
            own.retain(|known| known.id != wait.id);
            own.push(WaitOpened::clone(wait));
        } else if let TurnEvent::WaitClosed(wait) = event {
            own.retain(|known| known.id != wait.id);
        } else if let TurnEvent::Worker(worker) = event {
            self.open
                .insert(Some(worker.id.clone()), worker.waits.clone());
        } else if let TurnEvent::CaughtUp = event {
            self.is_live = true;
        } else {
            return Vec::new();
        }
        if !self.is_live {
            return Vec::new();
        }
        let place = |wait: &WaitOpened| (wait.id.clone(), wait.digest.clone());
        let open = self.open.values().flatten();
        let now: HashSet<_> = open.clone().map(place).collect();
        let new = open.filter(|wait| !self.told.contains(&place(wait)));
        let new = new.cloned().collect();
        self.told = now;
        new
    }
}

#[cfg(test)]
mod tests {
    use planck_client::turn::{WorkerState, WorkerUpdate};
    use serde_json::{Value, json, value::to_raw_value};

    use super::*;

    fn wait(more: Value) -> WaitOpened {
        let mut wait = json!({"id": "c1", "kind": "approval", "title": "bash: rm …", "digest": "d",
            "request": {"tool": "bash", "args": {"command": "rm a\nrm b"}, "effect": "mutating"}});
        let fields = wait.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        serde_json::from_value(wait).unwrap()
    }

    fn decided(wait: &WaitOpened, said: Value) -> Option<(WaitDecision, Option<WaitScope>)> {
        let answer = answer(wait, &to_raw_value(&said).unwrap())?;
        assert_eq!(answer.digest.as_deref(), Some("d"));
        Some((answer.decision, answer.scope))
    }

    #[test]
    fn request_has_the_whole_command() {
        let request = serde_json::to_value(request("s1", &wait(json!({}))).unwrap()).unwrap();
        let call = json!({"toolCallId": "c1", "title": "rm a\nrm b", "kind": "execute",
            "status": "pending", "rawInput": {"command": "rm a\nrm b"}});
        let options = json!([
            {"optionId": "allow", "name": "Allow once", "kind": "allow_once"},
            {"optionId": "deny", "name": "Deny", "kind": "reject_once"},
        ]);
        let expected = json!({"sessionId": "s1", "toolCall": call, "options": options});
        assert_eq!(request, expected);
    }

    #[test]
    fn only_offered_options_decide() {
        let choose = |option: &str| json!({"outcome": {"outcome": "selected", "optionId": option}});
        let (plain, ruled) = (
            wait(json!({})),
            wait(json!({"rule": {"tool": "bash", "action": "allow"}})),
        );
        let allowed = Some((WaitDecision::Allow, None));
        let denied = Some((WaitDecision::Deny, None));
        let in_session = Some((WaitDecision::Allow, Some(WaitScope::Session)));
        assert_eq!(decided(&plain, choose("allow")), allowed);
        assert_eq!(decided(&plain, choose("deny")), denied);
        assert_eq!(decided(&plain, choose("allow_in_session")), None);
        assert_eq!(decided(&ruled, choose("allow_in_session")), in_session);
        for nothing in [
            choose("Allow once"),
            choose(""),
            json!({"outcome": {"outcome": "cancelled"}}),
            json!({"outcome": {"outcome": "selected"}}),
            json!({"outcome": "selected", "optionId": "allow"}),
            json!({"outcome": {"outcome": "allow"}}),
            json!({}),
            json!(null),
            json!(true),
        ] {
            assert_eq!(decided(&ruled, nothing.clone()), None, "{nothing}");
        }
    }

    #[test]
    fn other_waits_are_no_requests_for_a_permission() {
        for kind in ["question", "client_tool", "budget", "change"] {
            assert!(
                request("s1", &wait(json!({"kind": kind}))).is_none(),
                "{kind}"
            );
        }
    }

    #[test]
    fn waits_are_asked_about_once_and_only_if_they_are_open() {
        let opened = |id: &str| TurnEvent::WaitOpened(Box::new(wait(json!({"id": id}))));
        let closed = |id: &str| {
            let closed = json!({"id": id, "decision": "allow"});
            TurnEvent::WaitClosed(serde_json::from_value(closed).unwrap())
        };
        let worker = |ids: &[&str]| {
            TurnEvent::Worker(WorkerUpdate {
                id: AgentId::parse("w").unwrap(),
                name: "w".into(),
                state: WorkerState::Working,
                text: None,
                waits: ids.iter().map(|id| wait(json!({"id": id}))).collect(),
            })
        };
        let mut waits = OpenWaits::default();
        for (event, expected) in [
            (opened("c1"), &[][..]),
            (opened("c2"), &[]),
            (closed("c1"), &[]),
            (TurnEvent::CaughtUp, &["c2"]),
            (opened("c3"), &["c3"]),
            (worker(&["c4"]), &["c4"]),
            (worker(&["c4", "c5"]), &["c5"]),
            (worker(&[]), &[]),
            (closed("c2"), &[]),
            // The call asks again.
            (opened("c2"), &["c2"]),
        ] {
            let new = waits.take(&event);
            let ids: Vec<&str> = new.iter().map(|wait| wait.id.as_str()).collect();
            assert_eq!(ids, expected, "{event:?}");
        }
    }
}
