use serde_json::{Value, json};

use super::{Case, http::post, judge};
use crate::{Reply, Script, Server};

fn sound() -> Value {
    json!({
        "model": "llama",
        "tools": [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"function": {"name": "read", "arguments": {"path": "a"}}},
                {"function": {"name": "list", "arguments": {}}}]},
            {"role": "tool", "tool_name": "read", "content": "one"},
            {"role": "tool", "tool_name": "list", "content": "two"}
        ]
    })
}

#[tokio::test]
async fn request_that_would_confuse_the_model_is_refused() {
    let case = |wrong, at, put, says| Case {
        wrong,
        at,
        put,
        says,
    };
    let cases = [
        case("no model", "/model", Value::Null, "model is required"),
        case("no messages", "/messages", json!([]), "must not be empty"),
        case(
            "an unknown role",
            "/messages/1/role",
            json!("human"),
            "invalid role: human",
        ),
        case(
            "content in parts",
            "/messages/1/content",
            json!([]),
            "cannot unmarshal",
        ),
        case(
            "arguments as text",
            "/messages/2/tool_calls/0/function/arguments",
            json!("{}"),
            "cannot unmarshal",
        ),
        case(
            "an unanswered call",
            "/messages/4",
            Value::Null,
            "\\\"list\\\" was not answered",
        ),
        case(
            "an orphan result",
            "/messages/3/tool_name",
            json!("write"),
            "answers no call",
        ),
        case(
            "a schema of a string",
            "/tools/0/function/parameters",
            json!({"type": "string"}),
            "schema must be of type",
        ),
    ];
    judge("/api/chat", &[], &sound(), &cases).await;
}

#[tokio::test]
async fn stream_consists_of_lines_with_complete_calls() {
    let reply = Reply::new()
        .think("hm")
        .say("yes")
        .and_call("read", json!({"path": "a"}));
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    let answer = post(&server, "/api/chat", &[], &sound()).await;
    assert!(
        answer.head.contains("application/x-ndjson"),
        "{}",
        answer.head
    );
    let lines: Vec<Value> = answer
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["message"]["thinking"], "hm");
    assert_eq!(lines[1]["message"]["content"], "yes");
    assert_eq!(
        lines[2]["message"]["tool_calls"][0]["function"]["arguments"],
        json!({"path": "a"})
    );
    assert_eq!(
        (&lines[3]["done"], &lines[3]["done_reason"]),
        (&json!(true), &json!("stop"))
    );
}
