use proptest::prelude::*;
use serde_json::{Value, json};

use planck_common::message::MessageBody;

use super::*;
use crate::testing::{TestEndpoint, call, head, message, result};

fn said() -> impl Strategy<Value = Part> {
    let token = || {
        proptest::option::of(prop_oneof![
            Just("anthropic:t".to_owned()),
            Just("google:t".to_owned())
        ])
    };
    prop_oneof![
        ("[ a-c\"ü]{0,3}", token()).prop_map(|(text, signature)| Part::Text { text, signature }),
        (token(), any::<bool>()).prop_map(|(signature, redacted)| Part::Thinking {
            text: "hm".into(),
            signature,
            redacted
        }),
        "[a-c.:]{1,3}".prop_map(|id| call(&id, "read", json!({"path": "}]"}))),
    ]
}

fn heard() -> impl Strategy<Value = Part> {
    prop_oneof![
        "[ a-c\"ü]{0,3}".prop_map(Part::text),
        Just(Part::Image {
            mime: "image/png".into(),
            source: MediaSource::Data("AA==".into())
        }),
        Just(Part::File {
            mime: "text/plain".into(),
            name: None,
            source: MediaSource::Data("aGk=".into())
        }),
    ]
}

/// Generates messages in any order, including partial and empty ones. Results follow their calls.
fn conversation() -> impl Strategy<Value = Vec<MessageBody>> {
    let user = proptest::collection::vec(heard(), 0..3)
        .prop_map(|parts| vec![message(MessageRole::User, parts)]);
    let reply = proptest::collection::vec(said(), 0..4).prop_map(|parts| {
        let results: Vec<Part> = parts
            .iter()
            .filter_map(|part| {
                if let Part::ToolCall { id, .. } = part {
                    Some(result(id, "r", id.len() == 2))
                } else {
                    None
                }
            })
            .collect();
        let answered = (!results.is_empty()).then(|| message(MessageRole::ToolResult, results));
        [message(MessageRole::Assistant, parts)]
            .into_iter()
            .chain(answered)
            .collect()
    });
    proptest::collection::vec(prop_oneof![user, reply], 1..6).prop_map(|groups| groups.concat())
}

fn roles(request: &Value, list: &str) -> Vec<String> {
    request[list]
        .as_array()
        .unwrap()
        .iter()
        .map(|turn| turn["role"].as_str().unwrap().to_owned())
        .collect()
}

proptest! {
    /// Checks for any sequence of messages that every request is complete. For formats whose turns
    /// must alternate, also checks that the turns alternate and that the last turn is the user's.
    #[test]
    fn requests_are_legal(messages in conversation()) {
        for (preset, list) in [("anthropic", "messages"), ("google", "contents"), ("openai", "messages"), ("mistral", "messages")] {
            for request in TestEndpoint::by(preset).requests(head("m", json!({})), &messages) {
                let roles = roles(&request, list);
                let neighbours = |pair: &[String]| pair[0] == pair[1] && pair[0] != "tool";
                prop_assert!(!roles.windows(2).any(neighbours), "{preset}: {roles:?}");
                prop_assert!(!roles.windows(2).any(|pair| pair[0] == "tool" && pair[1] == "user"), "{preset}: {roles:?}");
                let ends_well = |role: &String| ["user", "tool", "system"].contains(&role.as_str());
                prop_assert!(roles.last().is_none_or(ends_well), "{preset}: {roles:?}");
            }
        }
        for request in TestEndpoint::by("ollama").requests(head("m", json!({})), &messages) {
            prop_assert!(!roles(&request, "messages").is_empty());
        }
    }
}

#[test]
fn an_error_without_a_flag_is_marked_in_its_text() {
    for (text, error, expected) in [
        ("fine", false, "fine"),
        ("no such file", true, "error: no such file"),
        ("Error: no such file", true, "Error: no such file"),
        ("ünï", true, "error: ünï"),
    ] {
        assert_eq!(result_text(text, error), expected);
    }
}

#[test]
fn only_text_is_read_as_text() {
    let data = |data: &str| MediaSource::Data(data.into());
    assert_eq!(file_text("text/plain", &data("aGk=")), Some("hi".into()));
    assert_eq!(
        file_text("application/json", &data("e30=")),
        Some("{}".into())
    );
    assert_eq!(file_text("image/png", &data("aGk=")), None);
    assert_eq!(file_text("text/plain", &data("/w==")), None);
    assert_eq!(file_text("text/plain", &data("?")), None);
    assert_eq!(
        file_text("text/plain", &MediaSource::Url("https://x".into())),
        None
    );
}

#[test]
fn a_call_of_an_unknown_tool_can_be_sent_back() {
    for (name, expected) in [
        ("read", "read"),
        ("functions.read", "functions_read"),
        ("", "_"),
        ("lésen!", "l_sen_"),
    ] {
        assert_eq!(legal_name(name), expected);
    }
    assert_eq!(legal_name(&"x".repeat(99)).len(), 64);
    let messages = [
        message(MessageRole::User, vec![Part::text("go")]),
        message(MessageRole::Assistant, vec![call("a", "do it!", json!({}))]),
    ];
    for preset in ["anthropic", "openai", "google", "ollama"] {
        let request = TestEndpoint::by(preset)
            .request(head("m", json!({})), &messages)
            .to_string();
        assert!(
            request.contains("do_it_") && !request.contains("do it!"),
            "{preset}: {request}"
        );
    }
    let responses = TestEndpoint::new(crate::WireKind::Responses, "openai")
        .request(head("m", json!({})), &messages)
        .to_string();
    assert!(
        responses.contains("do_it_") && !responses.contains("do it!"),
        "{responses}"
    );
}

#[test]
fn known_options_are_read_and_others_kept() {
    let Value::Object(opts) = json!({"temperature": 0, "max_output_tokens": 10, "stop": "x", "cache": "1h", "seed": 3, "messages": [], "top_p": "no"})
    else {
        unreachable!()
    };
    let read = Opts::read(opts);
    assert_eq!(read.temperature, Some(0.0));
    assert_eq!(read.max_output_tokens, Some(10));
    assert_eq!(read.top_p, None);
    assert_eq!(
        (read.stop, read.cache),
        (vec!["x".to_owned()], Cache::OneHour)
    );
    assert_eq!(Value::Object(read.rest), json!({"seed": 3}));
}
