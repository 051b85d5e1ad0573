use planck_common::{AgentId, SessionId, message::text_of};

use super::*;

fn call_id(part: usize) -> CallId {
    CallId::of(
        &SessionId::parse("s").unwrap(),
        &AgentId::parse("a").unwrap(),
        1,
        1,
        1,
        part,
    )
}

fn draft(chunks: Vec<Chunk>) -> Draft {
    let mut draft = Draft::default();
    draft.take(chunks);
    draft
}

fn call(part: usize, id: &str, args: &str) -> Vec<Chunk> {
    vec![
        Chunk::Call {
            part,
            id: id.into(),
            name: "read".into(),
        },
        Chunk::Args {
            part,
            json: args.into(),
        },
    ]
}

#[test]
fn a_call_may_get_its_name_after_its_arguments() {
    let named = |id: &str, name: &str| Chunk::Call {
        part: 0,
        id: id.into(),
        name: name.into(),
    };
    let args = Chunk::Args {
        part: 0,
        json: r#"{"n":1}"#.into(),
    };
    let parts = draft(vec![named("", ""), args, named("x", "read")]).content(call_id);
    let [Part::ToolCall { id, name, args, .. }] = parts.as_slice() else {
        panic!("{parts:?}")
    };
    assert_eq!(
        (id.as_str(), name.as_str(), args.get()),
        ("x", "read", r#"{"n":1}"#)
    );
}

#[test]
fn parts_keep_the_order_and_text_of_the_provider() {
    let chunks = vec![
        Chunk::Thinking {
            part: 0,
            text: "hm".into(),
        },
        Chunk::Redacted {
            part: 1,
            data: "xyz".into(),
        },
        Chunk::Text {
            part: 2,
            text: "I ".into(),
        },
        Chunk::Signature {
            part: 0,
            signature: "sig".into(),
        },
        Chunk::Text {
            part: 2,
            text: "look".into(),
        },
        Chunk::Call {
            part: 3,
            id: "x".into(),
            name: "read".into(),
        },
        Chunk::Args {
            part: 3,
            json: r#"{"n": 1"#.into(),
        },
        Chunk::Args {
            part: 3,
            json: ".0}".into(),
        },
        Chunk::Text {
            part: 4,
            text: String::new(),
        },
    ];
    let content = serde_json::to_string(&draft(chunks).content(call_id)).unwrap();
    insta::assert_snapshot!(content, @r#"[{"type":"thinking","text":"hm","signature":"sig"},{"type":"thinking","text":"","signature":"xyz","redacted":true},{"type":"text","text":"I look"},{"type":"tool_call","id":"x","call_id":"837e825e-2326-50a9-bc12-25ac2dfd75be","name":"read","args":{"n": 1.0}}]"#);
}

#[test]
fn provider_ids_are_made_unique_and_never_empty() {
    let chunks = [
        call(0, "x", ""),
        call(1, "x", ""),
        call(2, "x_2", ""),
        call(3, "", ""),
        call(4, "x", ""),
    ]
    .concat();
    let content = draft(chunks).content(call_id);
    let ids: Vec<_> = content
        .iter()
        .filter_map(|part| {
            if let Part::ToolCall { id, .. } = part {
                Some(id.clone())
            } else {
                None
            }
        })
        .collect();
    assert_eq!(ids, ["x", "x_2", "x_2_2", &*call_id(3), "x_3"]);
}

#[test]
fn arguments_that_are_no_object_are_kept_beside_an_empty_one() {
    let cases = [
        ("", "{}", None),
        (" \n", "{}", None),
        (r#"{"a":[1, 2]}"#, r#"{"a":[1, 2]}"#, None),
        (" {} ", "{}", None),
        ("[1]", "{}", Some("[1]")),
        ("null", "{}", Some("null")),
        (r#"{"a":"#, "{}", Some(r#"{"a":"#)),
        (r#"{"a":1} trailing"#, "{}", Some(r#"{"a":1} trailing"#)),
    ];
    for (sent, args, invalid) in cases {
        let (parsed, kept) = parse_args(sent.into());
        assert_eq!((parsed.get(), kept.as_deref()), (args, invalid), "{sent}");
    }
}

#[test]
fn partial_reply_keeps_its_text_and_signed_thoughts() {
    let chunks = [
        vec![
            Chunk::Thinking {
                part: 0,
                text: "unsigned".into(),
            },
            Chunk::Thinking {
                part: 1,
                text: "signed".into(),
            },
            Chunk::Signature {
                part: 1,
                signature: "s".into(),
            },
            Chunk::Text {
                part: 2,
                text: "half".into(),
            },
        ],
        call(3, "x", "{}"),
    ];
    let body = draft(chunks.concat()).partial().unwrap();
    assert_eq!(
        (
            body.content.len(),
            text_of(&body.content).as_str(),
            body.metadata.interrupted
        ),
        (2, "half", true)
    );
    assert!(draft(call(0, "x", "{}")).partial().is_none());
}
