use serde_json::{Value, json};

use super::{Case, events, http::post, judge};
use crate::{Reply, Script, Server};

const PATH: &str = "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse";
const HEADERS: &[(&str, &str)] = &[("x-goog-api-key", "k")];

/// Returns the signature that this server gives to calls of `read`.
async fn signature() -> String {
    let server = Server::start(Script::new().always(Reply::call("read", json!({}))))
        .await
        .unwrap();
    let body = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let events = events(&post(&server, PATH, HEADERS, &body).await);
    let signature = events[0]
        .pointer("/candidates/0/content/parts/0/thoughtSignature")
        .unwrap();
    signature.as_str().unwrap().to_owned()
}

fn sound(signature: &str) -> Value {
    json!({
        "systemInstruction": {"parts": [{"text": "be brief"}]},
        "tools": [{"functionDeclarations": [
            {"name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
            {"name": "list", "parametersJsonSchema": {"type": "object", "additionalProperties": false}}]}],
        "contents": [
            {"role": "user", "parts": [{"text": "hello"}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "read", "args": {}}, "thoughtSignature": signature},
                {"functionCall": {"name": "list", "args": {}}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "read", "response": {"output": "one"}}},
                {"functionResponse": {"name": "list", "response": {"output": "two"}}}]}
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
    let orphan = json!({"functionResponse": {"name": "read", "response": {}}});
    let cases = [
        case(
            "an unknown field",
            "/foo",
            json!(1),
            "Unknown name \\\"foo\\\"",
        ),
        case(
            "no contents",
            "/contents",
            json!([]),
            "contents is not specified",
        ),
        case(
            "an assistant",
            "/contents/1/role",
            json!("assistant"),
            "valid role: user, model",
        ),
        case(
            "no parts",
            "/contents/0/parts",
            json!([]),
            "must not be empty",
        ),
        case(
            "an empty text",
            "/contents/0/parts/0/text",
            json!(""),
            "required oneof field",
        ),
        case(
            "a response too few",
            "/contents/2/parts/1",
            Value::Null,
            "number of function response parts",
        ),
        case(
            "a response of another",
            "/contents/2/parts/1",
            orphan.clone(),
            "number of function response parts",
        ),
        case(
            "an orphan response",
            "/contents/0/parts/0",
            orphan,
            "immediately after a function call turn",
        ),
        case(
            "no responses",
            "/contents/2",
            Value::Null,
            "ends with a user role",
        ),
        case(
            "arguments as text",
            "/contents/1/parts/0/functionCall/args",
            json!("{}"),
            "Invalid value at",
        ),
        case(
            "a response as text",
            "/contents/2/parts/0/functionResponse/response",
            json!("x"),
            "Invalid value at",
        ),
        case(
            "no signature",
            "/contents/1/parts/0/thoughtSignature",
            Value::Null,
            "missing a thought_signature",
        ),
        case(
            "a forged signature",
            "/contents/1/parts/0/thoughtSignature",
            json!("x"),
            "signature is not valid",
        ),
        case(
            "a bad tool name",
            "/tools/0/functionDeclarations/0/name",
            json!("1a"),
            "Invalid function name",
        ),
        case(
            "JSON Schema in OpenAPI",
            "/tools/0/functionDeclarations/0/parameters/$schema",
            json!("x"),
            "Cannot find field",
        ),
        case(
            "no properties",
            "/tools/0/functionDeclarations/0/parameters/properties",
            json!({}),
            "should be non-empty",
        ),
    ];
    judge(PATH, HEADERS, &sound(&signature().await), &cases).await;
}

#[tokio::test]
async fn key_is_required_in_the_header_or_the_query() {
    let server = Server::start(Script::new().key("k")).await.unwrap();
    let body = json!({"contents": [{"role": "user", "parts": [{"text": "x"}]}]});
    let with_key = format!("{PATH}&key=k");
    let cases = [
        (PATH, &[][..], 403),
        (PATH, &[("x-goog-api-key", "other")][..], 400),
        (PATH, HEADERS, 200),
        (&with_key, &[][..], 200),
    ];
    for (path, headers, status) in cases {
        let answer = post(&server, path, headers, &body).await;
        assert_eq!(answer.status, status, "{}", answer.body);
    }
    assert_eq!(
        server
            .requests()
            .last()
            .unwrap()
            .asked
            .as_ref()
            .unwrap()
            .model,
        "gemini-3-pro"
    );
}
