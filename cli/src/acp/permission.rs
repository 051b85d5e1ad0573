//! Requests for permissions, and what the client's answers mean. This module does no I/O.

use std::collections::{HashMap, HashSet};

use planck_client::turn::TurnEvent;
use planck_common::{
    AgentId, CallId,
    command::Answer,
    wait::{ProtectedChange, WaitDecision, WaitKind, WaitOpened, WaitScope},
};
use planck_host::terminal::clean;
use serde_json::value::RawValue;

use super::{
    question::answered,
    updates::CallHead,
    wire::{
        PermissionAnswer, PermissionKind, PermissionOption, PermissionOutcome, RequestPermission,
        ToolCall, ToolContent, ToolStatus,
    },
};
use crate::ask::request::{RequestedCall, RequestedChanges, head_of};

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

/// Returns the request for a wait, with the whole of what is asked. Returns `None` if the wait is
/// neither about an approval nor about a change.
pub fn request<'a>(session: &'a str, wait: &WaitOpened) -> Option<RequestPermission<'a>> {
    let request = wait.request.get();
    let asked = match wait.kind {
        WaitKind::Approval => {
            let call: RequestedCall<'_> = serde_json::from_str(request).ok()?;
            let CallHead { title, kind } = CallHead::of(&call.tool, call.args);
            ToolCall {
                title: Some(title),
                kind: Some(kind),
                content: call.why.map(|why| vec![ToolContent::text(clean(&why))]),
                raw_input: serde_json::from_str(call.args.get()).ok(),
                ..ToolCall::default()
            }
        }
        WaitKind::Change => {
            let RequestedChanges { changes } = serde_json::from_str(request).ok()?;
            let texts = changes
                .iter()
                .map(|change| ToolContent::text(words(change)));
            ToolCall {
                title: Some(clean(&wait.title).into_owned()),
                content: Some(texts.collect()),
                raw_input: serde_json::from_str(request).ok(),
                ..ToolCall::default()
            }
        }
        WaitKind::Question | WaitKind::ClientTool | WaitKind::Budget => return None,
    };
    Some(RequestPermission {
        session_id: session,
        tool_call: ToolCall {
            tool_call_id: wait.call().to_string(),
            status: Some(ToolStatus::Pending),
            ..asked
        },
        options: offered(wait),
    })
}

/// Returns a changed file with its present text.
fn words(change: &ProtectedChange) -> String {
    let text = change.text.as_deref().unwrap_or_default();
    clean(&format!("{}\n{text}", head_of(change))).into_owned()
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
        scope,
        ..answered(wait, decision)
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

    /// Takes an event, and returns what has changed of the waits that the client is asked about.
    pub fn take(&mut self, event: &TurnEvent) -> WaitNews {
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
            return WaitNews::default();
        }
        if !self.is_live {
            return WaitNews::default();
        }
        let place = |wait: &WaitOpened| (wait.id.clone(), wait.digest.clone());
        let open = self.open.iter();
        let open = open.flat_map(|(agent, waits)| waits.iter().map(move |wait| (agent, wait)));
        let now: HashSet<_> = open.clone().map(|(_, wait)| place(wait)).collect();
        let new = open.filter(|(_, wait)| !self.told.contains(&place(wait)));
        let new = new.map(|(agent, wait)| (agent.clone(), wait.clone()));
        let new = new.collect();
        let told = std::mem::replace(&mut self.told, now);
        let closed = told.difference(&self.told);
        WaitNews {
            closed: closed.map(|(id, _)| id.clone()).collect(),
            new,
        }
    }
}

/// What has changed of the open waits.
#[derive(Debug, Default)]
pub struct WaitNews {
    /// The waits that are no longer open as the client was asked about them.
    pub closed: Vec<CallId>,
    /// The waits that are new, and the worker that waits, if it is not the lead.
    pub new: Vec<(Option<AgentId>, WaitOpened)>,
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
        for kind in ["question", "client_tool", "budget"] {
            assert!(
                request("s1", &wait(json!({"kind": kind}))).is_none(),
                "{kind}"
            );
        }
    }

    #[test]
    fn changed_files_are_shown_with_their_text() {
        let changes =
            json!([{"call": "c1", "path": "/a/.git/hooks/x", "change": "added", "text": "x"}]);
        let request = request(
            "s1",
            &wait(json!({"kind": "change", "title": "a hook", "request": {"changes": changes}})),
        );
        let asked = serde_json::to_value(request.unwrap()).unwrap();
        let text = &asked["toolCall"]["content"][0]["content"]["text"];
        assert_eq!(*text, "new: /a/.git/hooks/x\nx");
        assert_eq!(asked["toolCall"]["title"], "a hook");
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
        for (event, expected, withdrawn) in [
            (opened("c1"), &[][..], &[][..]),
            (opened("c2"), &[], &[]),
            (closed("c1"), &[], &[]),
            (TurnEvent::CaughtUp, &["c2"], &[]),
            (opened("c3"), &["c3"], &[]),
            (worker(&["c4"]), &["c4"], &[]),
            (worker(&["c4", "c5"]), &["c5"], &[]),
            (worker(&["c5"]), &[], &["c4"]),
            (closed("c2"), &[], &["c2"]),
            // The call asks again.
            (opened("c2"), &["c2"], &[]),
        ] {
            let WaitNews { closed, new } = waits.take(&event);
            let ids: Vec<&str> = new.iter().map(|(_, wait)| wait.id.as_str()).collect();
            assert_eq!(ids, expected, "{event:?}");
            let closed: Vec<&str> = closed.iter().map(CallId::as_str).collect();
            assert_eq!(closed, withdrawn, "{event:?}");
            let is_of_worker = |(agent, wait): &(Option<AgentId>, WaitOpened)| {
                agent.is_some() == ["c4", "c5"].contains(&wait.id.as_str())
            };
            assert!(new.iter().all(is_of_worker), "{event:?}");
        }
    }
}
