use serde_json::{Value, json};

use super::{Case, events, http::post, judge};
use crate::{Reply, Script, ScriptedUsage, Server, Stop};

const HEADERS: &[(&str, &str)] = &[("authorization", "Bearer k")];

fn sound() -> Value {
    let call = |id: &str| json!({"id": id, "type": "function", "function": {"name": "read", "arguments": "{\"path\":\"x\"}"}});
    json!({
        "model": "gpt", "stream": true, "stream_options": {"include_usage": true},
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": null, "tool_calls": [call("a"), call("b")]},
            {"role": "tool", "tool_call_id": "a", "content": "one"},
            {"role": "tool", "tool_call_id": "b", "content": "two"},
            {"role": "assistant", "content": "read"},
            {"role": "user", "content": "go on"}
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
    let cases = [
        case("no model", "/model", Value::Null, "model parameter"),
        case(
            "an unknown field",
            "/foo",
            json!(1),
            "Unrecognized request argument supplied: foo",
        ),
        case(
            "an unknown field of a message",
            "/messages/1/foo",
            json!(1),
            "Unknown parameter: 'messages[1].foo'",
        ),
        case(
            "options without a stream",
            "/stream",
            Value::Null,
            "only allowed when 'stream' is enabled",
        ),
        case("no messages", "/messages", json!([]), "empty array"),
        case(
            "an unknown role",
            "/messages/1/role",
            json!("human"),
            "not one of the supported roles",
        ),
        case(
            "null from a user",
            "/messages/1/content",
            json!({}),
            "Invalid value for 'content'",
        ),
        case(
            "an unanswered call",
            "/messages/4",
            Value::Null,
            "did not have response messages: b",
        ),
        case(
            "an orphan result",
            "/messages/2",
            Value::Null,
            "must be a response to a preceeding message",
        ),
        case(
            "a user in between",
            "/messages/3",
            json!({"role": "user", "content": "x"}),
            "response messages: a, b",
        ),
        case(
            "a doubled id",
            "/messages/2/tool_calls/1/id",
            json!("a"),
            "duplicate",
        ),
        case(
            "an empty id",
            "/messages/2/tool_calls/0/id",
            json!(""),
            "1 to 40 characters",
        ),
        case(
            "arguments as an object",
            "/messages/2/tool_calls/0/function/arguments",
            json!({}),
            "arguments",
        ),
        case(
            "arguments that are no JSON",
            "/messages/2/tool_calls/0/function/arguments",
            json!("{"),
            "holds a JSON object",
        ),
        case(
            "no calls in a list",
            "/messages/2/tool_calls",
            json!([]),
            "minimum length 1",
        ),
        case(
            "no tools in a list",
            "/tools",
            json!([]),
            "minimum length 1",
        ),
        case(
            "a bad tool name",
            "/tools/0/function/name",
            json!("a.b"),
            "does not match pattern",
        ),
        case(
            "a user twice",
            "/messages/0/role",
            json!("user"),
            "Unexpected role 'user' after role 'user'",
        ),
        case(
            "a user after results",
            "/messages/5",
            Value::Null,
            "Unexpected role 'user' after role 'tool'",
        ),
        case(
            "an answer twice",
            "/messages/6/role",
            json!("assistant"),
            "\"code\":\"3230\"",
        ),
        case(
            "an answer at the end",
            "/messages/6",
            Value::Null,
            "Expected last role User or Tool",
        ),
        case(
            "tools for a new model",
            "/model",
            json!("gpt-6-astra"),
            "not supported for gpt-6-astra in /v1/chat/completions",
        ),
        case(
            "a schema of a list",
            "/tools/0/function/parameters",
            json!({"type": "array"}),
            "Invalid schema for function",
        ),
    ];
    judge("/v1/chat/completions", HEADERS, &sound(), &cases).await;
}

#[tokio::test]
async fn tools_of_a_new_model_that_does_not_reason_are_accepted() {
    let server = Server::start(Script::new()).await.unwrap();
    let mut body = sound();
    (body["model"], body["reasoning_effort"]) = (json!("gpt-5.6-luna"), json!("none"));
    assert_eq!(
        post(&server, "/v1/chat/completions", HEADERS, &body)
            .await
            .status,
        200
    );
    body["reasoning_effort"] = json!("low");
    let refused = post(&server, "/v1/chat/completions", HEADERS, &body).await;
    assert!(
        refused
            .body
            .contains("use /v1/responses or set reasoning_effort to 'none'"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn request_without_a_key_is_refused() {
    let server = Server::start(Script::new().key("k")).await.unwrap();
    for (headers, status) in [
        (&[][..], 401),
        (&[("authorization", "Bearer other")][..], 401),
        (HEADERS, 200),
    ] {
        let answer = post(&server, "/v1/chat/completions", headers, &sound()).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
}

#[tokio::test]
async fn stream_has_chunks_usage_and_done() {
    let usage = ScriptedUsage {
        input: 10,
        output: 4,
        cache_read: 3,
        cache_write: 0,
    };
    let reply = Reply::text("hällo wörld")
        .and_call("read", json!({"path": "a"}))
        .usage(usage);
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    let answer = post(&server, "/v1/chat/completions", HEADERS, &sound()).await;
    let events = events(&answer);
    let text: String = events
        .iter()
        .filter_map(|event| event.pointer("/choices/0/delta/content")?.as_str())
        .collect();
    assert_eq!(text, "hällo wörld");
    let last = &events[events.len() - 1];
    assert_eq!(last["choices"], json!([]));
    assert_eq!(
        (
            &last["usage"]["prompt_tokens"],
            &last["usage"]["total_tokens"]
        ),
        (&json!(10), &json!(14))
    );
    assert!(answer.body.ends_with("data: [DONE]\n\n"));
    assert!(answer.body.contains(r#""finish_reason":"tool_calls""#));
}

#[tokio::test]
async fn llama_cpp_checks_less_and_adds_timings() {
    let server = Server::start(Script::new().always(Reply::text("cut").stop(Stop::Length)))
        .await
        .unwrap();
    let mut body = sound();
    body["cache_prompt"] = json!(true);
    body["messages"][2]["reasoning_content"] = json!("hm");
    let answer = post(&server, "/llama_cpp/v1/chat/completions", &[], &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert!(
        events(&answer)
            .iter()
            .any(|event| event.pointer("/timings/predicted_n").is_some())
    );
    assert!(answer.body.contains(r#""finish_reason":"length""#));
    body["messages"][1]["role"] = json!("tool");
    let refused = post(&server, "/llama_cpp/v1/chat/completions", &[], &body).await;
    let error: Value = serde_json::from_str(&refused.body).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["type"]),
        (&json!(400), &json!("invalid_request_error"))
    );
}

#[tokio::test]
async fn calls_without_their_reasoning_are_refused_by_models_that_require_it() {
    let reply = Reply::new()
        .think("hm")
        .and_call("read", json!({"path": "a"}));
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    for (model, reasoning, says) in [
        (
            "deepseek-v4-pro",
            Value::Null,
            Some("must be passed back to the API"),
        ),
        ("kimi-k3", json!(""), Some("must be passed back to the API")),
        ("kimi-k3", json!("hm"), None),
        ("gpt", Value::Null, None),
    ] {
        let mut body = sound();
        body["model"] = json!(model);
        let answer = post(&server, "/v1/chat/completions", HEADERS, &body).await;
        let id = events(&answer)
            .iter()
            .find_map(|event| event.pointer("/choices/0/delta/tool_calls/0/id").cloned())
            .unwrap();
        let calls = json!([{"id": id, "type": "function", "function": {"name": "read", "arguments": "{}"}}]);
        let mut said = json!({"role": "assistant", "content": null, "tool_calls": calls});
        if !reasoning.is_null() {
            said["reasoning_content"] = reasoning;
        }
        body["messages"] = json!([{"role": "user", "content": "x"}, said, {"role": "tool", "tool_call_id": id, "content": "text"}]);
        let again = post(&server, "/v1/chat/completions", HEADERS, &body).await;
        match says {
            Some(says) => assert!(
                again.status == 400 && again.body.contains(says),
                "{model}: {}",
                again.body
            ),
            None => assert_eq!(again.status, 200, "{model}: {}", again.body),
        }
    }
}
