use planck_common::message::{MediaSource, MessageRole, Part};
use serde_json::{Value, json};

use crate::testing::{TestEndpoint, call, head, message, result, user};

fn spoken() -> TestEndpoint {
    TestEndpoint::by("google")
}

#[test]
fn recorded_streams_match_their_snapshots() {
    spoken().check_streams("google");
}

fn signed(part: Part, token: &str) -> Part {
    let token = Some(token.to_owned());
    match part {
        Part::Text { text, .. } => Part::Text {
            text,
            signature: token,
        },
        Part::ToolCall {
            id,
            call_id,
            name,
            args,
            invalid,
            ..
        } => Part::ToolCall {
            id,
            call_id,
            name,
            args,
            invalid,
            signature: token,
        },
        Part::Thinking { .. }
        | Part::ToolResult { .. }
        | Part::Image { .. }
        | Part::File { .. } => part,
    }
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking {
        text: "hm".into(),
        signature: None,
        redacted: false,
    };
    let calls = vec![
        thinking,
        signed(call("t1", "read", json!({"path": "a"})), "google:c2ln"),
        call("t2", "list", json!({})),
    ];
    let messages = [
        user("go"),
        message(MessageRole::Assistant, calls),
        message(
            MessageRole::ToolResult,
            vec![
                result("t1", "text", false),
                result("t2", "no such folder", true),
            ],
        ),
        user("and now?"),
        message(
            MessageRole::Assistant,
            vec![signed(Part::text(""), "google:c2ln2")],
        ),
    ];
    let opts = json!({"temperature": 0.5, "topK": 3, "max_output_tokens": 9, "thinking_budget": 100, "stop": "X", "safetySettings": []});
    insta::assert_json_snapshot!(
        "google_request",
        spoken().request(head("gemini-3.8-flash", opts), &messages)
    );
}

#[test]
fn a_call_of_another_model_gets_a_placeholder_signature() {
    let calls = || {
        vec![
            signed(call("a", "read", json!({})), "anthropic:x"),
            call("b", "read", json!({})),
        ]
    };
    let messages = || [user("go"), message(MessageRole::Assistant, calls())];
    let signatures = |model: &str| -> Vec<Value> {
        let parts =
            spoken().request(head(model, json!({})), &messages())["contents"][1]["parts"].clone();
        parts
            .as_array()
            .unwrap()
            .iter()
            .map(|part| part["thoughtSignature"].clone())
            .collect()
    };
    assert_eq!(
        signatures("gemini-3.8-flash"),
        [json!("skip_thought_signature_validator"), Value::Null]
    );
    assert_eq!(signatures("gemini-2.5-pro"), [Value::Null, Value::Null]);
}

#[test]
fn without_options_tools_or_prompt_a_request_is_still_complete() {
    let mut bare = head("gemini-2.5-pro", json!({}));
    (bare.system_prompt, bare.tools) = ("".into(), [].into());
    assert_eq!(
        spoken().requests(bare, &[user("a"), user("b")])[1],
        json!({"contents": [{"role": "user", "parts": [{"text": "a"}, {"text": "b"}]}]})
    );
}

#[test]
fn attachments() {
    let parts = vec![
        Part::Image {
            mime: "image/png".into(),
            source: MediaSource::Data("AAAA".into()),
        },
        Part::File {
            mime: "application/pdf".into(),
            name: None,
            source: MediaSource::Url("https://x/y.pdf".into()),
        },
        Part::File {
            mime: "text/plain".into(),
            name: Some("n.txt".into()),
            source: MediaSource::Data("aGk=".into()),
        },
    ];
    assert_eq!(
        spoken().request(
            head("gemini-2.5-pro", json!({})),
            &[message(MessageRole::User, parts)]
        )["contents"][0]["parts"],
        json!([{"inlineData": {"mimeType": "image/png", "data": "AAAA"}},
               {"fileData": {"mimeType": "application/pdf", "fileUri": "https://x/y.pdf"}},
               {"text": "File n.txt:\nhi"}])
    );
}

#[test]
fn a_base_url_leads_to_the_address_of_the_api() {
    for base in ["https://g", "https://g/v1beta"] {
        let TestEndpoint { wire, target, .. } = spoken();
        let url = wire.url(&base.parse().unwrap(), "models/m", &target);
        assert_eq!(
            url.as_str(),
            "https://g/v1beta/models/m:streamGenerateContent?alt=sse"
        );
    }
}
