//! Tests of streams that deviate from OpenAI's, as servers send them.

use planck_common::message::{Part, text_of};
use serde_json::{Value, json};

use crate::{
    WireKind,
    answer_bounds::MOST_PARTS,
    testing::{TestEndpoint, folded},
};
use planck_agent::model::{Failure, FailureKind, Finish};

/// What is read of a stream: the text, the thoughts, the calls with their arguments, and the end.
type Reply = (String, String, Vec<String>, Finish);

fn decoded(chunks: &[Value]) -> (Vec<Part>, Result<Finish, Failure>) {
    let mut stream: String = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    stream.push_str("data: [DONE]\n\n");
    let (chunks, end) = TestEndpoint::new(WireKind::Chat, "server").decoded(stream.as_bytes());
    (folded(&chunks), end)
}

fn reply(chunks: &[Value]) -> Reply {
    let (parts, end) = decoded(chunks);
    let (mut thoughts, mut calls) = (String::new(), Vec::new());
    for part in &parts {
        if let Part::Thinking { text, .. } = part {
            thoughts.push_str(text);
        }
        if let Part::ToolCall { id, name, args, .. } = part {
            calls.push(format!("{id} {name} {args}"));
        }
    }
    (text_of(&parts), thoughts, calls, end.unwrap())
}

fn chunk(members: Value) -> Value {
    let mut choice = json!({"index": 0});
    let own = choice.as_object_mut().unwrap();
    own.extend(members.as_object().unwrap().clone());
    json!({"id": "c1", "model": "m", "choices": [choice]})
}

fn delta(delta: Value) -> Value {
    chunk(json!({"delta": delta}))
}

fn stop(reason: &str) -> Value {
    chunk(json!({"delta": {}, "finish_reason": reason}))
}

/// Returns a delta with one piece of a call. What is null is left out.
fn piece(index: Value, id: Value, name: Value, args: Value) -> Value {
    let mut function = json!({"name": name, "arguments": args});
    let mut call = json!({"index": index, "id": id});
    for members in [&mut function, &mut call] {
        let members = members.as_object_mut().unwrap();
        members.retain(|_, value| !value.is_null());
    }
    call["function"] = function;
    delta(json!({"tool_calls": [call]}))
}

fn notes(finish: &Finish) -> Vec<&'static str> {
    let usage = |note: &&str| !note.starts_with("it sent no usage");
    finish.deviations.iter().copied().filter(usage).collect()
}

const BESIDE: &str = "it sent `message` beside `delta`";
const IN_PLACE: &str = "it sent `message` in place of `delta`";

#[test]
fn a_message_beside_the_delta_does_not_count() {
    let said = |new: &str, all: &str| {
        let message = json!({"role": "assistant", "content": all});
        chunk(json!({"delta": {"role": "assistant", "content": new}, "message": message}))
    };
    let last = chunk(
        json!({"delta": {"content": ""}, "message": {"content": "The answer is 4."}, "finish_reason": "stop"}),
    );
    // Perplexity sends the delta and the growing message in each chunk.
    let perplexity = [
        said("", ""),
        said("The", "The"),
        said(" answer", "The answer"),
        said(" is 4.", "The answer is 4."),
        last.clone(),
    ];
    // Other servers send the whole message at the end.
    let at_the_end = [
        delta(json!({"content": "The answer"})),
        delta(json!({"content": " is 4."})),
        last,
    ];
    for chunks in [&perplexity[..], &at_the_end] {
        let (text, _, _, finish) = reply(chunks);
        assert_eq!(text, "The answer is 4.");
        assert_eq!(notes(&finish), [BESIDE]);
    }
}

#[test]
fn a_member_that_came_in_no_delta_counts_in_the_message() {
    let message = json!({"content": "4.", "reasoning_content": "2 + 2", "tool_calls": []});
    let chunks = [
        delta(json!({"reasoning_content": "2 + 2"})),
        chunk(json!({"message": message, "finish_reason": "stop"})),
    ];
    let (text, thought, _, _) = reply(&chunks);
    assert_eq!((text.as_str(), thought.as_str()), ("4.", "2 + 2"));
}

#[test]
fn messages_in_place_of_deltas_are_pieces_or_grow() {
    let call = |args: &str| json!([{"index": 0, "id": "a", "function": {"name": "read", "arguments": args}}]);
    let message = |text: &str, thought: &str, args: Option<&str>| {
        let calls = args.map_or(json!([]), call);
        let message = json!({"content": text, "reasoning_content": thought, "tool_calls": calls});
        chunk(json!({"message": message, "delta": {}}))
    };
    let whole = r#"{"path":"a"}"#;
    let growing = [
        message("", "h", None),
        message("", "hm", None),
        message("L", "hmm", None),
        message("Look", "hmm", None),
        message("Look.", "hmm", Some("{\"pa")),
        message("Look.", "hmm", Some(whole)),
        stop("tool_calls"),
    ];
    let pieces = [
        message("Lo", "h", None),
        message("ok", "m", None),
        message(".", "m", Some("{\"path\"")),
        message("", "", Some(":\"a\"}")),
        stop("tool_calls"),
    ];
    let one = [message("Look.", "hmm", Some(whole)), stop("tool_calls")];
    for chunks in [&growing[..], &pieces, &one] {
        let (text, thought, calls, finish) = reply(chunks);
        assert_eq!((text.as_str(), thought.as_str()), ("Look.", "hmm"));
        assert_eq!(calls, [format!("a read {whole}")]);
        assert_eq!(notes(&finish), [IN_PLACE]);
    }
}

#[test]
fn pieces_of_calls_find_their_call() {
    const A: &str = r#"{"path":"a"}"#;
    const B: &str = r#"{"path":"b"}"#;
    let none = || Value::Null;
    let other_index = "it sent one call under the index of another";
    let late = "it sent a call's id or name after the call had begun";
    let placeholder = "it sent `{}` before a call's arguments";
    for (server, pieces, calls, note) in [
        (
            "DeepSeek",
            vec![
                piece(json!(0), json!("a"), json!("read"), json!("")),
                piece(json!(0), none(), none(), json!(A)),
                piece(json!(0), json!("b"), json!("write"), json!("")),
                piece(json!(1), json!("b"), none(), json!("{\"path\"")),
                piece(json!(1), none(), none(), json!(":\"b\"}")),
            ],
            vec![format!("a read {A}"), format!("b write {B}")],
            Some(other_index),
        ),
        (
            "the name in every piece",
            vec![
                piece(json!(0), json!("a"), json!("read"), json!(A)),
                piece(json!(0), json!("b"), json!("read"), json!("")),
                piece(json!(1), json!("b"), json!("read"), json!(B)),
            ],
            vec![format!("a read {A}"), format!("b read {B}")],
            Some(other_index),
        ),
        (
            "one id for all calls",
            vec![
                piece(json!(0), json!("a"), json!("list"), json!("")),
                piece(json!(1), json!("a"), json!("list"), json!("")),
                piece(json!(2), json!("a"), json!("read"), json!("")),
                piece(json!(2), json!("a"), none(), json!(A)),
            ],
            vec![
                "a list {}".into(),
                "a list {}".into(),
                format!("a read {A}"),
            ],
            None,
        ),
        (
            "an id of its own for each piece",
            vec![
                piece(json!(0), json!("a"), json!("read"), json!("")),
                piece(json!(0), json!("b"), none(), json!("{\"path\"")),
                piece(json!(0), json!("c"), none(), json!(":\"a\"}")),
            ],
            vec![format!("a read {A}")],
            None,
        ),
        (
            "interleaved",
            vec![
                piece(json!(0), json!("a"), json!("read"), json!("{\"path\"")),
                piece(json!(1), json!("b"), json!("read"), json!("{\"path\"")),
                piece(json!(0), none(), none(), json!(":\"a\"}")),
                piece(json!(1), none(), none(), json!(":\"b\"}")),
            ],
            vec![format!("a read {A}"), format!("b read {B}")],
            None,
        ),
        (
            "SGLang",
            vec![
                piece(json!(0), none(), none(), json!(A)),
                piece(json!(0), json!("a"), json!("read"), none()),
                piece(json!(1), json!("b"), none(), json!("{\"path\"")),
                piece(json!(1), json!("b"), json!("read"), json!(":\"b\"}")),
            ],
            vec![format!("a read {A}"), format!("b read {B}")],
            Some(late),
        ),
        (
            "Bedrock behind a gateway",
            vec![
                piece(json!(0), json!("a"), json!("read"), json!("{}")),
                piece(json!(0), none(), none(), json!("{\"path\"")),
                piece(json!(0), none(), none(), json!(":\"a\"}")),
                piece(json!(1), json!("b"), json!("list"), json!("{}")),
            ],
            vec![format!("a read {A}"), "b list {}".into()],
            Some(placeholder),
        ),
        (
            "equal calls without ids",
            vec![
                piece(json!(0), none(), json!("list"), json!("{}")),
                piece(json!(0), none(), json!("list"), json!("{}")),
            ],
            vec![" list {}".into(), " list {}".into()],
            None,
        ),
    ] {
        let chunks = [pieces, vec![stop("tool_calls")]].concat();
        let (_, _, read, finish) = reply(&chunks);
        assert_eq!(read, calls, "{server}");
        assert_eq!(
            notes(&finish),
            note.into_iter().collect::<Vec<_>>(),
            "{server}"
        );
    }
}

#[test]
fn usage_is_read_wherever_servers_put_it() {
    let usage = json!({"prompt_tokens": 10, "completion_tokens": 2});
    let said = || delta(json!({"content": "Hi"}));
    let moonshot = chunk(json!({"delta": {}, "finish_reason": "stop", "usage": usage}));
    let mut groq = stop("stop");
    groq["x_groq"] = json!({"id": "req_1", "usage": usage});
    for last in [moonshot, groq] {
        let (_, _, _, finish) = reply(&[said(), last]);
        let counts = (finish.usage.input_tokens, finish.usage.output_tokens);
        assert_eq!((counts, finish.deviations), ((10, 2), vec![]));
    }
    let (_, _, _, finish) = reply(&[said(), stop("stop")]);
    let note = "it sent no usage, so that limits of tokens and costs do not count its answers";
    assert_eq!(finish.deviations, [note]);
}

#[test]
fn an_error_in_a_chunk_is_told() {
    let full =
        "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens.";
    for (chunk, kind, words) in [
        // DeepInfra.
        (
            json!({"id": "c1", "choices": null, "error_type": "BadRequestError", "error_message": full}),
            FailureKind::ContextFull,
            full,
        ),
        (
            json!({"choices": [], "error_type": "BadRequestError", "error_message": "no such model"}),
            FailureKind::Refused,
            "BadRequestError: no such model",
        ),
        (
            json!({"choices": null, "error_message": "busy", "error_type": "RateLimitError"}),
            FailureKind::Transient,
            "RateLimitError: busy",
        ),
        // Older versions of vLLM.
        (
            json!({"object": "error", "message": "no tools", "type": "BadRequestError", "code": 400}),
            FailureKind::Refused,
            "no tools",
        ),
        (
            json!({"detail": "Not authenticated", "status": "401"}),
            FailureKind::Auth,
            "Not authenticated",
        ),
        // Groq.
        (
            json!({"choices": [], "x_groq": {"id": "r", "error": {"message": "over", "type": "server_error"}}}),
            FailureKind::Transient,
            "server_error: over",
        ),
        // OpenRouter.
        (
            json!({"choices": [{"delta": {"content": ""}, "finish_reason": "error", "error": {"code": 400, "message": "bad"}}]}),
            FailureKind::Refused,
            "bad",
        ),
    ] {
        let (_, end) = decoded(std::slice::from_ref(&chunk));
        let failure = end.unwrap_err();
        assert_eq!(failure.kind, kind, "{chunk}: {failure}");
        assert!(failure.message.contains(words), "{chunk}: {failure}");
    }
    let harmless = [
        json!({"choices": [], "prompt_filter_results": []}),
        json!({"type": "ping", "message": "waits for a place"}),
        json!({"choices": [], "usage": {"prompt_tokens": 1}, "code": 0, "status": "ok"}),
    ];
    let chunks = [
        &harmless[..],
        &[delta(json!({"content": "Hi"})), stop("stop")],
    ]
    .concat();
    assert_eq!(reply(&chunks).0, "Hi");
}

#[test]
fn a_lone_end_is_not_requested_again() {
    let failure = decoded(&[]).1.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Refused);
    assert!(failure.message.contains("its log may say why"), "{failure}");
}

#[test]
fn no_more_calls_are_read_than_the_largest_limit_allows() {
    let many: Vec<Value> = (0..20_000)
        .map(|index| json!({"index": index, "id": format!("c{index}"), "function": {"name": "f"}}))
        .collect();
    for part in ["delta", "message"] {
        let chunk = chunk(json!({(part): {"tool_calls": many}, "finish_reason": "tool_calls"}));
        let stream = format!("data: {chunk}\n\ndata: [DONE]\n\n");
        let endpoint = TestEndpoint::new(WireKind::Chat, "server");
        let (chunks, _) = endpoint.decode([stream.as_bytes()]);
        assert_eq!(folded(&chunks).len(), MOST_PARTS + 1, "{part}");
    }
}
