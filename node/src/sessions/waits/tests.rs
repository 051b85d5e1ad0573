//! Tests of answers that agents of a whole node wait for.

use planck_common::{
    command::{Answer, ListWaits, WaitRow},
    permission::{PermissionMode, Rule, RuleAction},
    reply::Code,
    wait::{WaitDecision, WaitKind},
};
use planck_scripted_model::{Reply, Script, When};
use serde_json::{json, value::to_raw_value};

use super::checked;
use crate::services::testing::{TestNode, World};

fn answer(value: serde_json::Value) -> Answer {
    serde_json::from_value(value).unwrap()
}

/// Returns the open waits as soon as there are `count` of them.
async fn open_waits(node: &TestNode, count: usize) -> Vec<WaitRow> {
    let list = async || {
        let sessions = &node.services().sessions;
        sessions.waits(ListWaits::default()).await.unwrap().waits
    };
    node.until("the waits are open", async |_| list().await.len() == count)
        .await;
    list().await
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_of_one_answer_are_listed_and_answered_one_by_one() {
    let file = |name: &str| json!({ "path": name, "content": "hello" });
    let names = ["a.txt", "b.txt", "c.txt", "d.txt", "e.txt"];
    let calls = names.iter().fold(Reply::text("So."), |reply, name| {
        reply.and_call("write", file(name))
    });
    let script = Script::new().rounds(When::any().user("go"), [calls, Reply::text("Done.")]);
    let world = World::with(script).await;
    let node = world.node().await;
    let mut request = world.request(&["lead"]);
    let member = &mut request.members.as_mut().unwrap()[0];
    member.tools = Some(vec!["write".into()]);
    member.permissions = vec![Rule {
        tool: Some("write".into()),
        effect: None,
        path: Some("secret/**".into()),
        command: None,
        sidecar: None,
        action: RuleAction::Deny,
    }];
    request.permissions = Some(PermissionMode::Careful);
    request.prompt = Some("go".into());
    let started = node.start(request).await;

    let waits = open_waits(&node, names.len()).await;
    for (wait, name) in waits.iter().zip(names) {
        assert!(wait.title.contains(name), "{} is not {name}", wait.title);
    }

    let session = node.session(&started).await;
    let sessions = &node.services().sessions;
    let id = &waits[0].id;
    let edited = json!({ "wait": id, "decision": "allow", "args": file("secret/a.txt") });
    let refusal = sessions.answer(&session, answer(edited)).await.unwrap_err();
    assert_eq!(refusal.code, Code::BadRequest);
    assert!(refusal.message.contains("secret/**"), "{refusal}");
    assert_eq!(open_waits(&node, names.len()).await[0].id, *id);

    let allowed_by = |name: &str| answer(json!({ "wait": id, "decision": "allow", "by": name }));
    let first = sessions.answer(&session, allowed_by("ann")).await.unwrap();
    let second = sessions.answer(&session, allowed_by("bob")).await;
    let refusal = second.unwrap_err();
    assert_eq!(refusal.code, Code::Exists);
    assert!(refusal.message.contains("by ann"), "{refusal}");
    let again = sessions.answer(&session, allowed_by("ann")).await.unwrap();
    assert_eq!(again.answered_at, first.answered_at);
    node.leave().await;
}

fn reached(limit: &str, kind: &str) -> WaitRow {
    let row = json!({
        "id": "7f3c2a10-0000-5000-8000-000000000000", "session_id": "s", "agent_id": "a", "seq": 3,
        "kind": "budget", "state": "open", "title": "", "digest": "d", "opened_at": "2026-01-01T00:00:00Z",
        "request": { "limit": limit, "max": 2.0, "used": 1.5 },
        "schema": { "type": kind, "exclusiveMinimum": 2.0 },
    });
    serde_json::from_value(row).unwrap()
}

#[tokio::test]
async fn limit_that_does_not_fit_is_told_what_fits() {
    for (limit, kind, value, number) in [
        (
            "max_requests_per_turn",
            "integer",
            json!(2),
            "a whole number",
        ),
        (
            "max_requests_per_turn",
            "integer",
            json!(2.5),
            "a whole number",
        ),
        ("max_cost_usd", "number", json!(2), "a number"),
    ] {
        let row = reached(limit, kind);
        assert_eq!(row.kind, WaitKind::Budget);
        let given = Answer {
            value: Some(to_raw_value(&value).unwrap()),
            ..answer(json!({ "wait": row.id, "decision": WaitDecision::Allow }))
        };
        let refusal = checked(&row, given, 1_000).await.unwrap_err();
        let expected = format!("the new value of `{limit}` must be {number} above 2");
        assert!(refusal.message.ends_with(&expected), "{refusal}");
    }
}
