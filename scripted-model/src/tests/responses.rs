use serde_json::{Value, json};

use super::{Case, events, http::post, judge};
use crate::{Reply, RequestMessage, Script, ScriptedUsage, Server, Stop};

const PATH: &str = "/v1/responses";
const HEADERS: &[(&str, &str)] = &[("authorization", "Bearer k")];

fn user(text: &str) -> Value {
    json!({"role": "user", "content": [{"type": "input_text", "text": text}]})
}

fn sound() -> Value {
    let schema = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let strict = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false});
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "read", "arguments": "{}"});
    let output =
        |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "text"});
    let said = json!({"type": "output_text", "text": "reading", "annotations": []});
    json!({
        "model": "gpt-6-sol", "stream": true, "store": false, "include": ["reasoning.encrypted_content"],
        "instructions": "be brief", "reasoning": {"effort": "low", "summary": "auto"},
        "tools": [
            {"type": "function", "name": "read", "description": "reads", "parameters": schema, "strict": false},
            {"type": "function", "name": "list", "description": "lists", "parameters": strict, "strict": true}
        ],
        "input": [
            user("hello"),
            {"type": "message", "role": "assistant", "content": [said], "phase": "commentary"},
            call("a"), call("b"), output("a"), output("b"),
            user("go on")
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
    let thought = |id: &str| json!({"type": "reasoning", "id": id, "summary": [], "encrypted_content": "gAAAAABforged"});
    let nested = json!({"type": "function", "function": {"name": "read"}});
    let cases = [
        case(
            "no model",
            "/model",
            Value::Null,
            "Missing required parameter: 'model'",
        ),
        case(
            "an unknown field",
            "/stop",
            json!(["X"]),
            "Unknown parameter: 'stop'.",
        ),
        case(
            "storage",
            "/store",
            json!(true),
            "Store must be set to false",
        ),
        case(
            "storage by default",
            "/store",
            Value::Null,
            "Store must be set to false",
        ),
        case(
            "an unknown inclusion",
            "/include/0",
            json!("all"),
            "Invalid value",
        ),
        case(
            "an unknown effort",
            "/reasoning/effort",
            json!("huge"),
            "Supported values are: none",
        ),
        case(
            "a temperature",
            "/temperature",
            json!(0.5),
            "'temperature' is not supported with this model",
        ),
        case(
            "a thin limit",
            "/max_output_tokens",
            json!(5),
            "Expected a value >= 16",
        ),
        case("no input", "/input", json!([]), "minimum length 1"),
        case(
            "an unknown item",
            "/input/0/type",
            json!("item_reference"),
            "Supported values are: 'message'",
        ),
        case(
            "an unknown field of an item",
            "/input/0/name",
            json!("x"),
            "Unknown parameter: 'input[0].name'",
        ),
        case(
            "an unknown role",
            "/input/0/role",
            json!("tool"),
            "Supported values are: 'assistant'",
        ),
        case(
            "an answer's content from a user",
            "/input/0/content/0/type",
            json!("output_text"),
            "'input_text'",
        ),
        case(
            "a user's content in an answer",
            "/input/1/content/0/type",
            json!("input_text"),
            "'output_text' and 'refusal'",
        ),
        case(
            "an answer without annotations",
            "/input/1/content/0/annotations",
            Value::Null,
            "annotations",
        ),
        case(
            "an unknown phase",
            "/input/1/phase",
            json!("middle"),
            "'commentary' and 'final_answer'",
        ),
        case(
            "an unanswered call",
            "/input/5",
            Value::Null,
            "No tool output found for function call b",
        ),
        case(
            "an orphan output",
            "/input/2",
            Value::Null,
            "No tool call found for function call output with call_id a",
        ),
        case(
            "a doubled id",
            "/input/3/call_id",
            json!("a"),
            "Duplicate function call id a",
        ),
        case(
            "a long id",
            "/input/2/call_id",
            json!("x".repeat(65)),
            "1 to 64",
        ),
        case(
            "a strange id",
            "/input/2/call_id",
            json!("functions.read:0"),
            "1 to 64",
        ),
        case(
            "a strange name",
            "/input/2/name",
            json!("a b"),
            "does not match pattern",
        ),
        case(
            "arguments as an object",
            "/input/2/arguments",
            json!({}),
            "arguments",
        ),
        case(
            "a call without its reasoning",
            "/input/2/call_id",
            json!("call_0000000701_00"),
            "its required 'reasoning' item: 'rs_0000000700'",
        ),
        case(
            "a forged ciphertext",
            "/input/1",
            thought("rs_1"),
            "could not be verified",
        ),
        case(
            "an id that is none",
            "/input/1",
            thought("x"),
            "begins with 'rs'",
        ),
        case(
            "no ciphertext",
            "/input/1",
            json!({"type": "reasoning", "id": "rs_1", "summary": []}),
            "not persisted",
        ),
        case(
            "a tool as chat completions have it",
            "/tools/0",
            nested,
            "'tools[0].name'",
        ),
        case("a tool twice", "/tools/1/name", json!("read"), "unique"),
        case(
            "a schema without properties",
            "/tools/0/parameters/properties",
            Value::Null,
            "object schema missing properties",
        ),
        case(
            "a loose schema as strict",
            "/tools/1/parameters/required",
            json!([]),
            "Missing 'a'",
        ),
        case(
            "an open schema as strict",
            "/tools/1/parameters/additionalProperties",
            Value::Null,
            "'additionalProperties'",
        ),
        case(
            "no word on strictness",
            "/tools/0/strict",
            Value::Null,
            "must be said",
        ),
    ];
    judge(PATH, HEADERS, &sound(), &cases).await;
}

#[tokio::test]
async fn request_without_a_key_is_refused() {
    let server = Server::start(Script::new().key("k")).await.unwrap();
    for (headers, status) in [
        (&[][..], 401),
        (&[("authorization", "Bearer other")][..], 401),
        (HEADERS, 200),
    ] {
        assert_eq!(post(&server, PATH, headers, &sound()).await.status, status);
    }
}

#[tokio::test]
async fn request_is_read_in_the_common_form() {
    let server = Server::start(Script::new()).await.unwrap();
    post(&server, PATH, HEADERS, &sound()).await;
    let asked = server.requests()[0].asked.clone().unwrap();
    assert_eq!(
        (asked.system.as_str(), asked.tools.as_slice()),
        ("be brief", &["read".to_owned(), "list".to_owned()][..])
    );
    let [
        RequestMessage::User(first),
        RequestMessage::Model { text, calls },
        RequestMessage::Results(results),
        RequestMessage::User(last),
    ] = asked.messages.as_slice()
    else {
        panic!("{:?}", asked.messages)
    };
    assert_eq!([first, text, last], ["hello", "reading", "go on"]);
    assert_eq!(
        (calls.len(), results.len(), results[1].name.as_str()),
        (2, 2, "read")
    );
}

/// Returns a request that sends the items of an earlier answer back, followed by more items.
fn after(items: &[Value], more: &[Value]) -> Value {
    let mut body = sound();
    let mut input = vec![user("hello")];
    for item in items {
        let mut item = item.clone();
        let fields = item.as_object_mut().unwrap();
        fields.remove("status");
        if fields["type"] != "reasoning" {
            fields.remove("id");
        }
        input.push(item);
    }
    input.extend_from_slice(more);
    body["input"] = json!(input);
    body
}

#[tokio::test]
async fn stream_has_items_whose_reasoning_must_be_sent_back() {
    let usage = ScriptedUsage {
        input: 10,
        output: 4,
        cache_read: 3,
        cache_write: 2,
    };
    let reply = Reply::new()
        .think("first")
        .and_call("read", json!({}))
        .think("then")
        .say("hällo wörld")
        .usage(usage);
    let server = Server::start(Script::new().always(reply)).await.unwrap();
    let answer = post(&server, PATH, HEADERS, &sound()).await;
    let events = events(&answer);
    let numbers: Vec<u64> = events
        .iter()
        .map(|event| event["sequence_number"].as_u64().unwrap())
        .collect();
    assert!(
        numbers.iter().copied().eq(0..numbers.len() as u64),
        "{numbers:?}"
    );
    let deltas = |kind: &str| {
        let of = events.iter().filter(|event| event["type"] == kind);
        of.filter_map(|event| event["delta"].as_str())
            .collect::<Vec<_>>()
            .concat()
    };
    assert_eq!(deltas("response.output_text.delta"), "hällo wörld");
    assert_eq!(deltas("response.reasoning_summary_text.delta"), "firstthen");
    assert_eq!(deltas("response.function_call_arguments.delta"), "{}");
    let whole = &events[events.len() - 1]["response"];
    assert_eq!(
        (&whole["status"], &whole["usage"]["total_tokens"]),
        (&json!("completed"), &json!(14))
    );
    let items = whole["output"].as_array().unwrap();
    let id = items[1]["call_id"].as_str().unwrap();
    let output = json!({"type": "function_call_output", "call_id": id, "output": "x"});
    for (kept, says) in [
        (&[0, 1, 2, 3][..], None),
        (&[0, 1, 3], None),
        (
            &[1, 2, 3],
            Some("'function_call' was provided without its required 'reasoning' item"),
        ),
        (&[0, 2, 3, 1], Some("without its required following item")),
        (&[0, 1, 2], Some("without its required following item")),
    ] {
        let items: Vec<Value> = kept.iter().map(|at| items[*at].clone()).collect();
        let again = post(
            &server,
            PATH,
            HEADERS,
            &after(&items, &[output.clone(), user("on")]),
        )
        .await;
        match says {
            None => assert_eq!(again.status, 200, "{kept:?}: {}", again.body),
            Some(says) => assert!(again.body.contains(says), "{kept:?}: {}", again.body),
        }
    }
}

#[tokio::test]
async fn incomplete_answer_has_its_reason_and_ciphertext_comes_only_on_request() {
    for (stop, reason) in [
        (Stop::Length, "max_output_tokens"),
        (Stop::Refusal, "content_filter"),
    ] {
        let server =
            Server::start(Script::new().always(Reply::new().think("hm").say("cut").stop(stop)))
                .await
                .unwrap();
        let mut body = sound();
        body["include"] = json!([]);
        let answer = post(&server, PATH, HEADERS, &body).await;
        let events = events(&answer);
        let last = &events[events.len() - 1];
        assert_eq!(
            (
                &last["type"],
                &last["response"]["incomplete_details"]["reason"]
            ),
            (&json!("response.incomplete"), &json!(reason))
        );
        assert_eq!(
            last["response"]["output"][0]["encrypted_content"],
            Value::Null
        );
    }
}
