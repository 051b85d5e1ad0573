use planck_common::message::{MediaSource, MessageRole, Part};
use serde_json::{Value, json};

use crate::{
    catalogue::{ModelCatalogue, ModelTable},
    preset::Preset,
    testing::{TestEndpoint, call, folded, head, message, result, user},
};

fn spoken() -> TestEndpoint {
    TestEndpoint::by("anthropic")
}

#[test]
fn recorded_streams_match_their_snapshots() {
    spoken().check_streams("anthropic");
}

fn marked(mut block: Value) -> Value {
    block["cache_control"] = json!({"type": "ephemeral"});
    block
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking {
        text: "hm".into(),
        signature: Some("anthropic:sig".into()),
        redacted: false,
    };
    let messages = [
        user("go"),
        message(
            MessageRole::Assistant,
            vec![
                thinking,
                call("t1", "read", json!({"path": "a"})),
                call("t2", "list", json!({})),
            ],
        ),
        message(
            MessageRole::ToolResult,
            vec![
                result("t1", "text", false),
                result("t2", "no such folder", true),
            ],
        ),
        user("and now?"),
    ];
    let request = spoken().request(
        head(
            "claude-x",
            json!({"temperature": 0.5, "stop": ["X"], "top_k": 3}),
        ),
        &messages,
    );
    insta::assert_json_snapshot!(request);
}

#[test]
fn the_cache_is_marked_at_the_ends_of_the_users_last_two_turns() {
    let messages = [
        user("a"),
        user("b"),
        message(MessageRole::Assistant, vec![Part::text("c")]),
        user("d"),
        message(MessageRole::Assistant, vec![Part::text("e")]),
        user("f"),
    ];
    let text = |text: &str| json!({"type": "text", "text": text});
    let marks: Vec<Value> = spoken()
        .requests(head("claude-x", json!({})), &messages)
        .iter()
        .map(|request| {
            request["messages"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|turn| turn["content"].as_array().unwrap())
                .cloned()
                .collect()
        })
        .collect();
    assert_eq!(marks[0], json!([marked(text("a"))]));
    assert_eq!(marks[1], json!([text("a"), marked(text("b"))]));
    assert_eq!(
        marks[2],
        json!([text("a"), marked(text("b")), text("c"), text("(go on)")])
    );
    assert_eq!(
        marks[3],
        json!([text("a"), marked(text("b")), text("c"), marked(text("d"))])
    );
    assert_eq!(
        marks[5],
        json!([
            text("a"),
            text("b"),
            text("c"),
            marked(text("d")),
            text("e"),
            marked(text("f"))
        ])
    );
}

#[test]
fn parts_that_cannot_be_sent_are_left_out() {
    let unsigned = || Part::Thinking {
        text: "hm".into(),
        signature: None,
        redacted: false,
    };
    let foreign = || Part::Thinking {
        text: "hm".into(),
        signature: Some("google:x".into()),
        redacted: false,
    };
    let own = || Part::Thinking {
        text: "hm".into(),
        signature: Some("anthropic:x".into()),
        redacted: false,
    };
    for (content, expected) in [
        (
            vec![unsigned(), foreign(), Part::text("a"), Part::text("  \n")],
            json!([{"type": "text", "text": "a"}]),
        ),
        (
            vec![Part::text("a"), own()],
            json!([{"type": "text", "text": "a"}]),
        ),
        (vec![own()], Value::Null),
        (
            vec![
                Part::Thinking {
                    text: String::new(),
                    signature: Some("anthropic:c".into()),
                    redacted: true,
                },
                Part::text("a"),
            ],
            json!([{"type": "redacted_thinking", "data": "c"}, {"type": "text", "text": "a"}]),
        ),
        (vec![Part::text("")], Value::Null),
        (
            vec![call("functions.read:0", "read", json!({}))],
            json!([{"type": "tool_use", "id": "functions_read_0", "name": "read", "input": {}}]),
        ),
    ] {
        let messages = [user("go"), message(MessageRole::Assistant, content)];
        assert_eq!(
            spoken().request(head("claude-x", json!({})), &messages)["messages"][1]["content"],
            expected
        );
    }
}

#[test]
fn thinking_leaves_room_for_the_reply_and_sets_no_temperature() {
    for (opts, budget, temperature) in [
        (
            json!({"thinking_budget": 0, "temperature": 0.5}),
            Value::Null,
            json!(0.5),
        ),
        (
            json!({"thinking_budget": 10, "temperature": 0.5}),
            json!(1024),
            Value::Null,
        ),
        (json!({"thinking_budget": 9000}), json!(4095), Value::Null),
        (
            json!({"thinking_budget": 9000, "max_output_tokens": 10_000}),
            json!(9000),
            Value::Null,
        ),
        (
            json!({"thinking_budget": 9000, "max_output_tokens": 500}),
            Value::Null,
            Value::Null,
        ),
        (
            json!({"thinking": {"type": "disabled"}, "thinking_budget": 9000, "temperature": 1}),
            Value::Null,
            json!(1.0),
        ),
    ] {
        let request = spoken().request(head("claude-x", opts.clone()), &[user("go")]);
        assert_eq!(request["thinking"]["budget_tokens"], budget, "{opts}");
        assert_eq!(request["temperature"], temperature, "{opts}");
    }
}

#[test]
fn a_model_with_adaptive_thinking_is_given_no_budget() {
    let settings = |model: &str, opts: Value| {
        let TestEndpoint { wire, target, .. } = spoken();
        let entry = ModelCatalogue::new(ModelTable::built_in(), &[])
            .find("anthropic", Preset::find("anthropic").unwrap(), model)
            .entry;
        let request: Value = serde_json::from_slice(
            &wire
                .encoder(head(model, opts), &entry, &target)
                .request(None)
                .body,
        )
        .unwrap();
        (request["thinking"].clone(), request["temperature"].clone())
    };
    let bound = |display: &str| json!({"type": "adaptive", "display": display, "block_binding": {"prefix_mismatch_behavior": "drop_block"}});
    assert_eq!(
        settings("claude-opus-5-5", json!({"temperature": 0.5})),
        (bound("omitted"), Value::Null)
    );
    assert_eq!(
        settings("claude-opus-5-5", json!({"thinking_budget": 9})),
        (bound("summarized"), Value::Null)
    );
    assert_eq!(
        settings("claude-opus-5", json!({"thinking_budget": 9})),
        (
            json!({"type": "adaptive", "display": "summarized"}),
            Value::Null
        )
    );
    assert_eq!(
        settings("claude-opus-5", json!({})),
        (Value::Null, Value::Null)
    );
}

#[test]
fn attachments() {
    let data = |data: &str| MediaSource::Data(data.into());
    let parts = vec![
        Part::Image {
            mime: "image/png".into(),
            source: data("AAAA"),
        },
        Part::Image {
            mime: "image/png".into(),
            source: MediaSource::Url("https://x/y.png".into()),
        },
        Part::File {
            mime: "application/pdf".into(),
            name: Some("p.pdf".into()),
            source: data("AAAA"),
        },
        Part::File {
            mime: "text/plain".into(),
            name: Some("n.txt".into()),
            source: data("aGk="),
        },
        Part::File {
            mime: "application/zip".into(),
            name: None,
            source: data("AAAA"),
        },
    ];
    insta::assert_json_snapshot!(
        spoken().request(
            head("claude-x", json!({})),
            &[message(MessageRole::User, parts)]
        )["messages"]
    );
}

#[test]
fn features_are_named_when_a_member_needs_them() {
    let asked = |spoken: TestEndpoint, model: &str, opts: Value| {
        let TestEndpoint { wire, target, .. } = spoken;
        let entry = ModelCatalogue::new(ModelTable::built_in(), &[])
            .find("anthropic", Preset::find("anthropic").unwrap(), model)
            .entry;
        let request = wire
            .encoder(head(model, opts), &entry, &target)
            .request(None);
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let features = request
            .headers
            .get("anthropic-beta")
            .map(|value| value.to_str().unwrap().to_owned());
        (body["thinking"].get("block_binding").is_some(), features)
    };
    let elsewhere = || TestEndpoint::new(crate::WireKind::Anthropic, "gateway");
    let binding = || Some("thinking-binding-controls-2026-08-01".to_owned());
    let interleaved = || Some("interleaved-thinking-2025-05-14".to_owned());
    let own = json!({"thinking": {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "error"}}});
    let budget = || json!({"thinking_budget": 2000});
    assert_eq!(
        asked(spoken(), "claude-sonnet-5-5", json!({})),
        (true, binding())
    );
    assert_eq!(
        asked(elsewhere(), "claude-sonnet-5-5", budget()),
        (false, None)
    );
    assert_eq!(
        asked(elsewhere(), "claude-sonnet-5-5", own),
        (true, binding())
    );
    assert_eq!(
        asked(spoken(), "claude-sonnet-4-5", budget()),
        (false, interleaved())
    );
    assert_eq!(
        asked(spoken(), "claude-sonnet-4-5", json!({})),
        (false, None)
    );
    assert_eq!(
        asked(elsewhere(), "claude-sonnet-4-5", budget()),
        (false, None)
    );
    assert_eq!(asked(spoken(), "claude-opus-5", budget()), (false, None));
}

#[test]
fn the_cache_is_kept_for_five_minutes_an_hour_or_not_at_all() {
    let marks = |cache: &str| {
        let request = spoken().request(head("claude-x", json!({"cache": cache})), &[user("go")]);
        assert_eq!(request.get("cache"), None);
        let mark = |value: &Value| value.get("cache_control").cloned();
        (
            mark(&request["system"][0]),
            mark(&request["messages"][0]["content"][0]),
        )
    };
    let hour = || Some(json!({"type": "ephemeral", "ttl": "1h"}));
    assert_eq!(marks("1h"), (hour(), hour()));
    assert_eq!(marks("5m").0, Some(json!({"type": "ephemeral"})));
    assert_eq!(marks("off"), (None, None));
}

#[test]
fn unsigned_thinking_goes_back_to_a_server_that_signs_nothing() {
    let stream = concat!(
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\"}}\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"hm\"}}\n\n",
        "data: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"Hi\"}}\n\n",
        "data: {\"type\":\"message_stop\"}\n\n",
    );
    let elsewhere = || TestEndpoint::new(crate::WireKind::Anthropic, "gateway");
    let said = |spoken: &TestEndpoint| {
        message(
            MessageRole::Assistant,
            folded(&spoken.decoded(stream.as_bytes()).0),
        )
    };
    let sent = |spoken: TestEndpoint, body| {
        spoken.request(head("m", json!({})), &[user("go"), body])["messages"][1]["content"].clone()
    };
    let text = json!({"type": "text", "text": "Hi"});
    let thinking = json!({"type": "thinking", "thinking": "hm", "signature": ""});
    assert_eq!(
        sent(elsewhere(), said(&elsewhere())),
        json!([thinking, text])
    );
    assert_eq!(
        sent(spoken(), said(&elsewhere())),
        json!([text]),
        "it came from elsewhere"
    );
    assert_eq!(
        sent(spoken(), said(&spoken())),
        json!([text]),
        "the vendor signs"
    );
}
