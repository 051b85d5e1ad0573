use planck_common::{AgentId, SessionId, Timestamp, wait::WaitState};
use serde_json::json;

use super::*;

fn read(body: Value) -> Result<UiRequest, Problem> {
    serde_json::from_value::<ChatBody>(body).unwrap().read()
}

fn user(parts: Value) -> Value {
    json!({"id": "c", "messages": [{"id": "m", "role": "user", "parts": parts}]})
}

fn prompt(body: Value) -> PromptMessage {
    match read(body).unwrap().asks {
        Asks::Prompt(message) => message,
        Asks::Answer(message) => panic!("{message:?}"),
    }
}

#[test]
fn last_message_of_the_user_is_the_prompt() {
    let message = |id: &str, role: &str| {
        json!({"id": id, "role": role,
        "parts": [{"type": "text", "text": id}]})
    };
    let messages = json!([
        message("s", "system"),
        message("a", "user"),
        message("b", "assistant"),
        message("d", "user")
    ]);
    for (more, replaces) in [
        (json!({}), false),
        (json!({"trigger": "submit-message"}), false),
        (
            json!({"trigger": "submit-message", "messageId": "a"}),
            false,
        ),
        (json!({"trigger": "submit-message", "messageId": "d"}), true),
        (
            json!({"trigger": "regenerate-message", "messageId": "x"}),
            true,
        ),
    ] {
        let mut body = json!({"id": "c", "messages": messages});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let message = prompt(body);
        assert_eq!(
            (message.id.as_str(), message.replaces),
            ("d", replaces),
            "{more}"
        );
        assert_eq!(message.before.unwrap(), ["a"]);
    }
    let alone = json!({"id": "c", "message": message("d", "user")});
    assert_eq!(prompt(alone).before, None);
}

#[test]
fn fields_of_a_start_are_read() {
    let mut body = user(json!([{"type": "text", "text": "x"}]));
    body["team"] = "review".into();
    body["permissions"] = "read-only".into();
    body["clientTools"] = json!([{"name": "t", "parameters": {"type": "object"}}]);
    body["somethingElse"] = json!([1]);
    let start = read(body).unwrap().start;
    assert_eq!(start.team.unwrap(), "review");
    assert_eq!(start.permissions, Some(PermissionMode::ReadOnly));
    assert_eq!(start.client_tools[0].name, "t");
}

#[test]
fn files_become_parts_of_the_prompt() {
    for (file, expected) in [
        (
            json!({"mediaType": "image/png", "url": "data:image/png;base64,AAAA"}),
            json!({"type": "image", "mime": "image/png", "data": "AAAA"}),
        ),
        (
            json!({"mediaType": "text", "filename": "n", "url": "data:text/plain;charset=utf-8;base64,AA=="}),
            json!({"type": "file", "mime": "text/plain", "name": "n", "data": "AA=="}),
        ),
        (
            json!({"mediaType": "application/pdf", "url": "https://x/y.pdf"}),
            json!({"type": "file", "mime": "application/pdf", "url": "https://x/y.pdf"}),
        ),
    ] {
        let mut part = file;
        part["type"] = "file".into();
        let content = prompt(user(json!([part]))).content;
        assert_eq!(serde_json::to_value(&content[0]).unwrap(), expected);
    }
}

#[track_caller]
fn check_refusal(body: Value, expected: &str) {
    let problem = read(body).unwrap_err();
    assert_eq!(problem.status(), axum::http::StatusCode::BAD_REQUEST);
    assert!(problem.detail().contains(expected), "{problem:?}");
}

#[test]
fn refusal_names_what_is_wrong() {
    let assistant =
        json!({"id": "a", "role": "assistant", "parts": [{"type": "text", "text": "x"}]});
    for (body, expected) in [
        (
            json!({"id": "c", "trigger": "resume-stream"}),
            "unknown trigger `resume-stream`",
        ),
        (json!({"id": "", "messages": []}), "malformed chat id ``"),
        (json!({"id": "c", "messages": []}), "no message of the user"),
        (
            json!({"id": "c", "messages": [{"id": "a", "role": "tool"}]}),
            "unknown role `tool`",
        ),
        (
            json!({"id": "c", "messages": [assistant]}),
            "has no tool call",
        ),
        (
            json!({"id": "c", "trigger": "regenerate-message", "messages": [assistant]}),
            "needs the user's message last",
        ),
    ] {
        check_refusal(body, expected);
    }
}

#[test]
fn refusal_names_the_part_that_is_wrong() {
    for (body, expected) in [
        (user(json!([])), "is empty"),
        (user(json!([7])), "no part of type ``"),
        (
            user(json!([{"type": "text"}])),
            "a part of type `text` needs `text`",
        ),
        (
            user(json!([{"type": "source-url", "url": "x"}])),
            "no part of type `source-url`",
        ),
        (
            user(json!([{"type": "data-x", "data": 1}])),
            "no part of type `data-x`",
        ),
        (user(json!([{"type": "file"}])), "needs `url`"),
        (
            user(json!([{"type": "file", "url": "ftp://x"}])),
            "begins with data:",
        ),
        (
            user(json!([{"type": "file", "url": "https://x"}])),
            "needs `mediaType`",
        ),
        (
            user(json!([{"type": "file", "url": "data:a/b,x"}])),
            "data:TYPE;base64,DATA",
        ),
        (
            user(json!([{"type": "file", "url": "data:a/b;base64,A"}])),
            "must be Base64",
        ),
        (
            user(json!([{"type": "file", "url": "data:a/b;base64,===="}])),
            "must be Base64",
        ),
    ] {
        check_refusal(body, expected);
    }
}

#[test]
fn unclear_approval_is_no_approval() {
    let part = |approval: Value| {
        json!({"type": "dynamic-tool", "toolName": "x", "toolCallId": "c1",
        "state": "approval-responded", "approval": approval})
    };
    for (approval, approved) in [
        (json!({"id": "a", "approved": true}), true),
        (json!({"id": "a", "approved": false}), false),
        (json!({"id": "a", "approved": "true"}), false),
        (json!({"id": "a", "approved": 1}), false),
        (json!({"id": "a"}), false),
        (json!(true), false),
    ] {
        let read = calls(&[part(approval.clone())]).unwrap();
        let expected = ToolState::Approved {
            approved,
            reason: None,
        };
        assert_eq!(read[0].state, expected, "{approval}");
    }
    let state = |state: &str| json!({"type": "tool-x", "toolCallId": "c1", "state": state});
    for name in [
        "approval-requested",
        "input-available",
        "approved",
        "output-denied",
    ] {
        assert_eq!(
            calls(&[state(name)]).unwrap()[0].state,
            ToolState::Open,
            "{name}"
        );
    }
}

#[test]
fn calls_of_the_last_step_are_told_from_earlier_ones() {
    let call = |id: &str| json!({"type": "tool-x", "toolCallId": id, "state": "output-available"});
    let step = json!({"type": "step-start"});
    let read = calls(&[step.clone(), call("c1"), step, call("c2")]).unwrap();
    let latest: Vec<_> = read
        .iter()
        .map(|call| (call.call.as_str(), call.is_latest))
        .collect();
    assert_eq!(latest, [("c1", false), ("c2", true)]);
}

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
