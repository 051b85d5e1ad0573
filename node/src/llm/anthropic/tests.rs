use planck_common::message::{Part, Role, Source};
use serde_json::{Value, json};

use super::Anthropic;
use crate::llm::{
    catalogue::Catalogue,
    testing::{call, check_streams, head, message, request, requests, result, user},
    wire::Wire,
};

#[test]
fn recorded_streams() {
    check_streams(&Anthropic, "anthropic");
}

fn marked(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking { text: "hm".into(), signature: Some("anthropic:sig".into()), redacted: false };
    let messages = [
        user("go"),
        message(Role::Assistant, vec![thinking, call("t1", "read", json!({"path": "a"})), call("t2", "list", json!({}))]),
        message(Role::ToolResult, vec![result("t1", "text", false), result("t2", "no such folder", true)]),
        user("and now?"),
    ];
    let request = request(&Anthropic, head("claude-x", json!({"temperature": 0.5, "stop": ["X"], "top_k": 3})), &messages);
    insta::assert_json_snapshot!(request);
}

#[test]
fn the_cache_is_marked_at_the_last_two_ends_of_the_user() {
    let messages = [
        user("a"),
        user("b"),
        message(Role::Assistant, vec![Part::text("c")]),
        user("d"),
        message(Role::Assistant, vec![Part::text("e")]),
        user("f"),
    ];
    let text = |text: &str| json!({"type": "text", "text": text});
    let marks: Vec<Value> = requests(&Anthropic, head("claude-x", json!({})), &messages)
        .iter()
        .map(|request| {
            request["messages"].as_array().unwrap().iter().flat_map(|turn| turn["content"].as_array().unwrap()).cloned().collect()
        })
        .collect();
    assert_eq!(marks[0], json!([marked(text("a"))]));
    assert_eq!(marks[1], json!([text("a"), marked(text("b"))]));
    assert_eq!(marks[2], json!([text("a"), marked(text("b")), text("c"), text("(go on)")]));
    assert_eq!(marks[3], json!([text("a"), marked(text("b")), text("c"), marked(text("d"))]));
    assert_eq!(marks[5], json!([text("a"), text("b"), text("c"), marked(text("d")), text("e"), marked(text("f"))]));
}

#[test]
fn what_cannot_be_sent_is_left_out() {
    let unsigned = || Part::Thinking { text: "hm".into(), signature: None, redacted: false };
    let foreign = || Part::Thinking { text: "hm".into(), signature: Some("google:x".into()), redacted: false };
    let own = || Part::Thinking { text: "hm".into(), signature: Some("anthropic:x".into()), redacted: false };
    for (content, expected) in [
        (vec![unsigned(), foreign(), Part::text("a"), Part::text("  \n")], json!([{"type": "text", "text": "a"}])),
        (vec![Part::text("a"), own()], json!([{"type": "text", "text": "a"}])),
        (vec![own()], Value::Null),
        (
            vec![Part::Thinking { text: String::new(), signature: Some("anthropic:c".into()), redacted: true }, Part::text("a")],
            json!([{"type": "redacted_thinking", "data": "c"}, {"type": "text", "text": "a"}]),
        ),
        (vec![Part::text("")], Value::Null),
        (
            vec![call("functions.read:0", "read", json!({}))],
            json!([{"type": "tool_use", "id": "functions_read_0", "name": "read", "input": {}}]),
        ),
    ] {
        let messages = [user("go"), message(Role::Assistant, content)];
        assert_eq!(request(&Anthropic, head("claude-x", json!({})), &messages)["messages"][1]["content"], expected);
    }
}

#[test]
fn thinking_has_room_and_no_temperature() {
    for (opts, budget, temperature) in [
        (json!({"thinking_budget": 0, "temperature": 0.5}), Value::Null, json!(0.5)),
        (json!({"thinking_budget": 10, "temperature": 0.5}), json!(1024), Value::Null),
        (json!({"thinking_budget": 9000}), json!(4095), Value::Null),
        (json!({"thinking_budget": 9000, "max_output_tokens": 10_000}), json!(9000), Value::Null),
        (json!({"thinking_budget": 9000, "max_output_tokens": 500}), Value::Null, Value::Null),
        (json!({"thinking": {"type": "disabled"}, "thinking_budget": 9000, "temperature": 1}), Value::Null, json!(1.0)),
    ] {
        let request = request(&Anthropic, head("claude-x", opts.clone()), &[user("go")]);
        assert_eq!(request["thinking"]["budget_tokens"], budget, "{opts}");
        assert_eq!(request["temperature"], temperature, "{opts}");
    }
}

#[test]
fn a_model_that_thinks_by_itself_is_not_given_a_budget() {
    let settings = |model: &str, opts: Value| {
        let entry = Catalogue::new(&[]).find("anthropic", model).unwrap();
        let request: Value = serde_json::from_slice(&Anthropic.encoder(head(model, opts), &entry).request()).unwrap();
        (request["thinking"].clone(), request["temperature"].clone())
    };
    let bound = |display: &str| json!({"type": "adaptive", "display": display, "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    assert_eq!(settings("claude-opus-5-5", json!({"temperature": 0.5})), (bound("omitted"), Value::Null));
    assert_eq!(settings("claude-opus-5-5", json!({"thinking_budget": 9})), (bound("summarized"), Value::Null));
    assert_eq!(
        settings("claude-opus-5", json!({"thinking_budget": 9})),
        (json!({"type": "adaptive", "display": "summarized"}), Value::Null)
    );
    assert_eq!(settings("claude-opus-5", json!({})), (Value::Null, Value::Null));
}

#[test]
fn attachments() {
    let data = |data: &str| Source::Data(data.into());
    let parts = vec![
        Part::Image { mime: "image/png".into(), source: data("AAAA") },
        Part::Image { mime: "image/png".into(), source: Source::Url("https://x/y.png".into()) },
        Part::File { mime: "application/pdf".into(), name: Some("p.pdf".into()), source: data("AAAA") },
        Part::File { mime: "text/plain".into(), name: Some("n.txt".into()), source: data("aGk=") },
        Part::File { mime: "application/zip".into(), name: None, source: data("AAAA") },
    ];
    insta::assert_json_snapshot!(request(&Anthropic, head("claude-x", json!({})), &[message(Role::User, parts)])["messages"]);
}
