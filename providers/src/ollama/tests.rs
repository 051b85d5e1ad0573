use planck_common::message::{MediaSource, MessageRole, Part};
use serde_json::json;

use crate::testing::{TestEndpoint, call, head, message, result, user};

fn spoken() -> TestEndpoint {
    TestEndpoint::by("ollama")
}

#[test]
fn recorded_streams_match_their_snapshots() {
    spoken().check_streams("ollama");
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking {
        text: "hm".into(),
        signature: None,
        redacted: false,
    };
    let picture = message(
        MessageRole::User,
        vec![
            Part::text("see"),
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Data("AAAA".into()),
            },
            Part::Image {
                mime: "image/png".into(),
                source: MediaSource::Url("https://x/y.png".into()),
            },
        ],
    );
    let messages = [
        picture,
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
        message(MessageRole::Assistant, vec![]),
        user(""),
    ];
    let opts = json!({"temperature": 0.5, "seed": 3, "keep_alive": "5m", "max_output_tokens": 9, "thinking_budget": 0});
    insta::assert_json_snapshot!(
        "ollama_request",
        spoken().request(head("qwen3:8b", opts), &messages)
    );
}
