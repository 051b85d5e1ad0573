use serde_json::{Value, json};

use super::{Case, events, http::post, judge};
use crate::{Reply, Script, Server};

const HEADERS: &[(&str, &str)] = &[("x-api-key", "k"), ("anthropic-version", "2023-06-01")];

fn sound() -> Value {
    json!({
        "model": "claude", "max_tokens": 100, "stream": true, "system": "be brief",
        "tools": [{"name": "read", "description": "reads", "input_schema": {"type": "object", "properties": {}}}],
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": [
                {"type": "text", "text": "reading"},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
                {"type": "tool_use", "id": "b", "name": "read", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "one"},
                {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "two"}]},
                {"type": "text", "text": "go on"}]}
        ]
    })
}

#[tokio::test]
async fn request_that_the_real_server_refuses_is_refused() {
    let case = |wrong, at, put, says| Case {
        wrong,
        at,
        put,
        says,
    };
    let call = json!({"type": "tool_use", "id": "a", "name": "read", "input": {}});
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": "forged"});
    let bound =
        json!({"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    let cases = [
        case(
            "no max_tokens",
            "/max_tokens",
            Value::Null,
            "max_tokens: Field required",
        ),
        case("max_tokens of 0", "/max_tokens", json!(0), "max_tokens"),
        case(
            "an unknown field",
            "/foo",
            json!(1),
            "foo: Extra inputs are not permitted",
        ),
        case(
            "an empty system text",
            "/system",
            json!([{"type": "text", "text": ""}]),
            "non-empty",
        ),
        case(
            "no messages",
            "/messages",
            json!([]),
            "at least one message",
        ),
        case(
            "the model first",
            "/messages/0",
            json!({"role": "assistant", "content": "x"}),
            "first message must use",
        ),
        case(
            "a system role",
            "/messages/0/role",
            json!("system"),
            "messages.0.role",
        ),
        case(
            "an empty text",
            "/messages/0/content",
            json!(""),
            "non-empty",
        ),
        case(
            "no content",
            "/messages/0/content",
            json!([]),
            "non-empty content",
        ),
        case(
            "a result too few",
            "/messages/2/content/1",
            Value::Null,
            "without `tool_result` blocks immediately after: b",
        ),
        case(
            "no results",
            "/messages/2",
            Value::Null,
            "without `tool_result` blocks immediately after: a, b",
        ),
        case(
            "an orphan result",
            "/messages/1/content/2",
            Value::Null,
            "unexpected `tool_use_id`",
        ),
        case(
            "a doubled id",
            "/messages/1/content/2",
            call,
            "ids must be unique",
        ),
        case(
            "text before results",
            "/messages/2/content/0",
            json!({"type": "text", "text": "x"}),
            "immediately after",
        ),
        case(
            "arguments as text",
            "/messages/1/content/1/input",
            json!("{}"),
            "valid dictionary",
        ),
        case(
            "a forged signature",
            "/messages/1/content/0",
            thinking,
            "Invalid `signature`",
        ),
        case(
            "the model last",
            "/messages/-",
            json!({"role": "assistant", "content": "x"}),
            "must end with a user message",
        ),
        case(
            "a bad tool name",
            "/tools/0/name",
            json!("read file"),
            "should match pattern",
        ),
        case(
            "a schema of a string",
            "/tools/0/input_schema",
            json!({"type": "string"}),
            "input_schema",
        ),
        case(
            "a tool twice",
            "/tools/-",
            sound()["tools"][0].clone(),
            "unique",
        ),
        case(
            "a binding",
            "/thinking",
            bound.clone(),
            "thinking.adaptive.block_binding: Extra inputs are not permitted",
        ),
        case(
            "a thin budget",
            "/thinking",
            json!({"type": "enabled", "budget_tokens": 5}),
            "1024",
        ),
    ];
    judge("/v1/messages", HEADERS, &sound(), &cases).await;
    let mut named = sound();
    named["thinking"] = bound;
    let headers = [
        HEADERS,
        &[("anthropic-beta", "a,thinking-binding-controls-2026-08-01")],
    ]
    .concat();
    let again = sound()["messages"].as_array().unwrap()[1..].to_vec();
    let mut doubled = named.clone();
    doubled["messages"].as_array_mut().unwrap().extend(again);
    let case = case(
        "an id of an earlier round",
        "/messages",
        doubled["messages"].clone(),
        "`tool_use` ids must be unique",
    );
    judge("/v1/messages", &headers, &named, &[case]).await;
}

#[tokio::test]
async fn request_without_its_headers_is_refused() {
    let server = Server::start(Script::new().key("k")).await.unwrap();
    let cases = [
        (&[("x-api-key", "k")][..], 400, "anthropic-version"),
        (
            &[("anthropic-version", "2023-06-01")],
            401,
            "authentication_error",
        ),
        (
            &[("anthropic-version", "2023-06-01"), ("x-api-key", "other")],
            401,
            "invalid x-api-key",
        ),
        (HEADERS, 200, "message_stop"),
    ];
    for (headers, status, says) in cases {
        let answer = post(&server, "/v1/messages", headers, &sound()).await;
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(says), "{}", answer.body);
    }
}

#[tokio::test]
async fn thinking_is_accepted_back_with_its_signature() {
    let reply = Reply::new()
        .think("let me see")
        .say("yes")
        .and_call("read", json!({"path": "a"}));
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    let body = json!({"model": "m", "max_tokens": 9, "stream": true, "messages": [{"role": "user", "content": "x"}]});
    let answer = post(&server, "/v1/messages", HEADERS, &body).await;
    let events = events(&answer);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(
        (kinds[0], kinds[kinds.len() - 1]),
        ("message_start", "message_stop")
    );
    let signature = events
        .iter()
        .find_map(|event| event.pointer("/delta/signature"))
        .unwrap();
    let id = events
        .iter()
        .find_map(|event| event.pointer("/content_block/id"))
        .unwrap();
    let args: String = events
        .iter()
        .filter_map(|event| event.pointer("/delta/partial_json")?.as_str())
        .collect();
    assert_eq!(args, r#"{"path":"a"}"#);
    let again = json!({"model": "m", "max_tokens": 9, "stream": true, "messages": [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "let me see", "signature": signature},
            {"type": "tool_use", "id": id, "name": "read", "input": {"path": "a"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "text"}]}]});
    let answer = post(&server, "/v1/messages", HEADERS, &again).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
}
