use planck_common::message::{MediaSource, MessageBody, MessageRole, Part};
use serde_json::{Value, json};

use crate::{
    WireKind,
    catalogue::{ModelCatalogue, ModelTable},
    preset::Preset,
    testing::{TestEndpoint, call, folded, head, message, result, user},
};
use planck_agent::model::FailureKind;

fn spoken() -> TestEndpoint {
    TestEndpoint {
        wire: WireKind::Responses.wire(),
        ..TestEndpoint::by("openai")
    }
}

/// Returns the endpoint with the catalogue's entry for one of OpenAI's models.
fn of_model(model: &str) -> TestEndpoint {
    let entry = ModelCatalogue::new(ModelTable::built_in(), &[])
        .find("openai", Preset::find("openai").unwrap(), model)
        .entry;
    TestEndpoint { entry, ..spoken() }
}

fn thought(text: &str, token: Value) -> Part {
    let signature = Some(format!("openai/responses:{token}"));
    Part::Thinking {
        text: text.into(),
        signature,
        redacted: false,
    }
}

fn reasoning(number: u32) -> Part {
    thought(
        "",
        json!({"id": format!("rs_{number}"), "encrypted_content": "gAAA"}),
    )
}

fn input(messages: &[MessageBody]) -> Value {
    spoken().request(head("gpt-6-sol", json!({})), messages)["input"].clone()
}

/// Returns the types of the items after the user's first message, with the ids of reasoning items.
fn kinds(messages: &[MessageBody]) -> Vec<String> {
    let kind = |item: &Value| {
        item["id"]
            .as_str()
            .or(item["role"].as_str())
            .or(item["type"].as_str())
            .map(str::to_owned)
            .expect("an item has a type")
    };
    input(messages)
        .as_array()
        .unwrap()
        .iter()
        .skip(1)
        .map(kind)
        .collect()
}

#[test]
fn recorded_streams_match_their_snapshots() {
    spoken().check_streams("responses");
}

#[test]
fn items_without_content_are_limited() {
    for item in ["reasoning", "message"] {
        let added = |at: usize| json!({"type": "response.output_item.added", "output_index": at, "item": {"type": item}});
        let mut decoder = spoken().wire.decoder(&spoken().target);
        let fed = (0..5_000).try_for_each(|at| {
            decoder.feed(
                format!("data: {}\n\n", added(at)).as_bytes(),
                &mut Vec::new(),
            )
        });
        assert_eq!(fed.unwrap_err().kind, FailureKind::AnswerLimit, "{item}");
    }
}

#[test]
fn a_whole_request() {
    let commentary = Part::Text {
        text: "I look.".into(),
        signature: Some(r#"openai/responses:{"phase":"commentary"}"#.into()),
    };
    let own = thought("Hm", json!({"id": "rs_1", "encrypted_content": "gAAA"}));
    let messages = [
        user("go"),
        message(
            MessageRole::Assistant,
            vec![
                own,
                commentary,
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
        message(MessageRole::Assistant, vec![Part::text("done")]),
        user(""),
        user("and now?"),
    ];
    let opts = json!({"temperature": 0.5, "stop": "X", "max_output_tokens": 99, "thinking_budget": 9000, "input": [], "store": true});
    insta::assert_json_snapshot!(of_model("gpt-6-sol").request(head("gpt-6-sol", opts), &messages));
}

#[test]
fn attachments() {
    let data = |data: &str| MediaSource::Data(data.into());
    let parts = vec![
        Part::text("see"),
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
            mime: "application/pdf".into(),
            name: None,
            source: MediaSource::Url("https://x/y.pdf".into()),
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
    insta::assert_json_snapshot!(input(&[message(MessageRole::User, parts)]));
}

#[test]
fn the_assistants_message_is_never_last() {
    let messages = [
        user("a"),
        message(MessageRole::Assistant, vec![Part::text("b")]),
        user("c"),
    ];
    let requests = spoken().requests(head("gpt-6-sol", json!({})), &messages);
    let roles = |at: usize| {
        let items = requests[at]["input"].as_array().unwrap();
        items
            .iter()
            .map(|item| item["role"].as_str().unwrap())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(
        [roles(0), roles(1), roles(2)],
        ["user", "user assistant user", "user assistant user"]
    );
    assert_eq!(requests[1]["input"][2]["content"][0]["text"], "(go on)");
    assert_eq!(requests[2]["input"][2]["content"][0]["text"], "c");
}

#[test]
fn reasoning_goes_back_together_with_what_followed_it() {
    let text = || Part::text("a");
    let reading = |id: &str| call(id, "read", json!({"path": "a"}));
    let token = json!({"id": "rs_9", "encrypted_content": "x"});
    let signed = |signature: Option<String>| Part::Thinking {
        text: "hm".into(),
        signature,
        redacted: false,
    };
    let foreign = ["openai", "other/responses", "openai@other:1/responses"]
        .map(|label| signed(Some(format!("{label}:{token}"))));
    for (content, interrupted, expected) in [
        (
            vec![reasoning(1), reading("t1")],
            false,
            "rs_1 function_call",
        ),
        (
            vec![reasoning(1), reasoning(2), reading("t1")],
            false,
            "rs_1 rs_2 function_call",
        ),
        (
            vec![reasoning(1), text(), reasoning(2), reading("t1")],
            false,
            "rs_1 assistant rs_2 function_call",
        ),
        (vec![text(), reasoning(1)], false, "assistant"),
        (vec![reasoning(1), reasoning(2)], false, ""),
        // The call that followed the first reasoning item is not stored, because the reply was
        // interrupted.
        (
            vec![reasoning(1), reasoning(2), text()],
            true,
            "rs_2 assistant",
        ),
        (
            vec![reasoning(1), text(), reasoning(2)],
            true,
            "rs_1 assistant",
        ),
        (
            vec![reasoning(1), Part::text(" "), reasoning(2), text()],
            false,
            "rs_2 assistant",
        ),
        (
            vec![
                signed(None),
                foreign[0].clone(),
                foreign[1].clone(),
                foreign[2].clone(),
                text(),
            ],
            false,
            "assistant",
        ),
        (
            vec![signed(Some("openai/responses:no json".into())), text()],
            false,
            "assistant",
        ),
    ] {
        let mut reply = message(MessageRole::Assistant, content.clone());
        reply.metadata.interrupted = interrupted;
        let results = message(MessageRole::ToolResult, vec![result("t1", "x", false)]);
        let messages = if expected.contains("function_call") {
            vec![user("go"), reply, results]
        } else {
            vec![user("go"), reply]
        };
        let sent = kinds(&messages)
            .into_iter()
            .filter(|kind| kind != "user" && kind != "function_call_output");
        assert_eq!(sent.collect::<Vec<_>>().join(" "), expected, "{content:?}");
    }
}

#[test]
fn a_model_that_does_not_reason_is_given_no_reasoning() {
    let messages = [
        user("go"),
        message(MessageRole::Assistant, vec![reasoning(1), Part::text("a")]),
        user("on"),
    ];
    let opts = json!({"temperature": 0.5, "top_p": 0.9, "thinking_budget": 100});
    let request = of_model("gpt-4.1").request(head("gpt-4.1", opts), &messages);
    assert_eq!(request["input"][1]["type"], "message");
    assert_eq!(
        (request.get("include"), request.get("reasoning")),
        (None, None)
    );
    assert_eq!(
        (
            &request["temperature"],
            &request["top_p"],
            &request["store"]
        ),
        (&json!(0.5), &json!(0.9), &json!(false))
    );
}

#[test]
fn effort_comes_from_the_options_or_the_budget() {
    for (opts, reasoning, temperature) in [
        (json!({}), Value::Null, Value::Null),
        (
            json!({"thinking_budget": 1, "temperature": 0.5}),
            json!({"effort": "low", "summary": "auto"}),
            Value::Null,
        ),
        (
            json!({"thinking_budget": 8000}),
            json!({"effort": "medium", "summary": "auto"}),
            Value::Null,
        ),
        (
            json!({"thinking_budget": 20_000}),
            json!({"effort": "high", "summary": "auto"}),
            Value::Null,
        ),
        (
            json!({"reasoning_effort": "xhigh", "thinking_budget": 1}),
            json!({"effort": "xhigh", "summary": "auto"}),
            Value::Null,
        ),
        (
            json!({"reasoning_effort": "none", "temperature": 0.5}),
            json!({"effort": "none"}),
            json!(0.5),
        ),
        (
            json!({"reasoning": {"mode": "pro"}, "thinking_budget": 1}),
            json!({"mode": "pro", "effort": "low"}),
            Value::Null,
        ),
        (
            json!({"reasoning": {"effort": "max"}, "reasoning_effort": "low"}),
            json!({"effort": "max"}),
            Value::Null,
        ),
    ] {
        let request = of_model("gpt-6-sol").request(head("gpt-6-sol", opts.clone()), &[user("go")]);
        assert_eq!(
            (&request["reasoning"], &request["temperature"]),
            (&reasoning, &temperature),
            "{opts}"
        );
        assert_eq!(request.get("reasoning_effort"), None, "{opts}");
    }
}

#[test]
fn ids_and_names_fit_the_api() {
    let long = format!("{}{}", ".".repeat(30), "x".repeat(60));
    let round = |id: &str, name: &str| {
        [
            message(MessageRole::Assistant, vec![call(id, name, json!({}))]),
            message(MessageRole::ToolResult, vec![result(id, "x", false)]),
        ]
    };
    let rounds = [
        round("functions.read:0", "read"),
        round("functions_read_0", "no.such tool"),
        round(&long, &long),
    ];
    let messages: Vec<MessageBody> = [vec![user("go")], rounds.concat()].concat();
    let input = input(&messages);
    let of = |name: &str| {
        let texts = input
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|item| item.get(name)?.as_str());
        texts.map(str::to_owned).collect::<Vec<_>>()
    };
    let ids = of("call_id");
    assert_eq!(
        ids[..4],
        [
            "functions_read_0",
            "functions_read_0",
            "functions_read_0_2",
            "functions_read_0_2"
        ]
    );
    let short = long[..64].replace('.', "_");
    assert_eq!((&ids[4], &ids[5]), (&short, &short));
    assert_eq!(of("name"), ["read", "no_such_tool", &short]);
}

#[test]
fn a_decoded_reply_is_encoded_unchanged() {
    for (stream, sent) in [
        (
            &include_bytes!("streams/reasoning.sse")[..],
            json!([
                {"type": "reasoning", "id": "rs_00000000", "encrypted_content": "gAAAAABwhole==",
                    "summary": [{"type": "summary_text", "text": "**Reading**\n\nI open it.\n\n**Then**\n\nI tell."}]},
                {"type": "function_call", "call_id": "call_reason1", "name": "read", "arguments": "{\"path\":\"b\"}"},
                {"type": "reasoning", "id": "rs_00000002", "encrypted_content": "gAAAAABsecret==", "summary": []},
                {"type": "message", "role": "assistant", "phase": "final_answer",
                    "content": "Done."}
            ]),
        ),
        (
            include_bytes!("streams/open_weights.sse"),
            json!([
                {"type": "reasoning", "id": "rs_o", "summary": [], "content": [{"type": "reasoning_text", "text": "The user greets."}]},
                {"type": "message", "role": "assistant", "content": "Hello."}
            ]),
        ),
        (
            include_bytes!("streams/no_ciphertext.sse"),
            json!([
                {"type": "message", "role": "assistant", "content": "3"}
            ]),
        ),
    ] {
        let (chunks, end) = spoken().decoded(stream);
        end.unwrap();
        let input = input(&[
            user("go"),
            message(MessageRole::Assistant, folded(&chunks)),
            user("on"),
        ]);
        let items = input.as_array().unwrap();
        assert_eq!(json!(items[1..items.len() - 1]), sent);
    }
}

#[test]
fn tokens_are_not_sent_to_chat_completions() {
    let (chunks, _) = spoken().decoded(include_bytes!("streams/reasoning.sse"));
    let messages = [
        user("go"),
        message(MessageRole::Assistant, folded(&chunks)),
        user("on"),
    ];
    let request = TestEndpoint::by("openai")
        .request(head("gpt-5", json!({})), &messages)
        .to_string();
    for token in ["gAAAA", "rs_0", "extra_content", "phase"] {
        assert!(!request.contains(token), "{token}: {request}");
    }
}

#[test]
fn a_base_url_leads_to_the_address_of_the_api() {
    for (preset, base, expected) in [
        (
            "openai",
            "https://api.openai.com/v1",
            "https://api.openai.com/v1/responses",
        ),
        (
            "openai",
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/v1/responses",
        ),
        (
            "openai",
            "https://x/api/v3?team=a",
            "https://x/api/v3/responses?team=a",
        ),
        (
            "azure",
            "https://r.openai.azure.com",
            "https://r.openai.azure.com/openai/v1/responses",
        ),
        (
            "azure",
            "https://r.openai.azure.com/openai/v1/",
            "https://r.openai.azure.com/openai/v1/responses",
        ),
        (
            "azure",
            "https://r.openai.azure.com?api-version=2025-04-01-preview",
            "https://r.openai.azure.com/openai/responses?api-version=2025-04-01-preview",
        ),
    ] {
        let target = TestEndpoint::by(preset).target;
        assert_eq!(
            WireKind::Responses
                .wire()
                .url(&base.parse().unwrap(), "a/b", &target)
                .as_str(),
            expected
        );
    }
}
