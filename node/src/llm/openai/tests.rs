use planck_common::message::{Custom, Part, Role, Source};
use serde_json::{Value, json};

use super::{ChatCompletions, Dialect};
use crate::llm::{
    testing::{call, check_streams, head, message, request, result, user},
    wire::Wire,
};

const OPENAI: ChatCompletions = ChatCompletions(Dialect::OpenAi);
const LLAMA_CPP: ChatCompletions = ChatCompletions(Dialect::LlamaCpp);

#[test]
fn recorded_streams() {
    check_streams(&OPENAI, "openai");
}

#[test]
fn a_whole_request() {
    let thinking = Part::Thinking { text: "hm".into(), signature: None, redacted: false };
    let mut summary = user("so far");
    (summary.role, summary.custom) = (Role::Custom, Some(Custom::Summary));
    let mut note = user("not for the model");
    (note.role, note.custom) = (Role::Custom, Some(Custom::Other("note".into())));
    let messages = [
        summary,
        note,
        user("go"),
        message(Role::Assistant, vec![thinking, call("t1", "read", json!({"path": "a"})), call("t2", "list", json!({}))]),
        message(Role::ToolResult, vec![result("t1", "text", false), result("t2", "no such folder", true)]),
        message(Role::Assistant, vec![Part::text("")]),
        message(Role::Assistant, vec![Part::text("done"), Part::text(".")]),
        user(""),
    ];
    let opts = json!({"temperature": 0.5, "stop": "X", "seed": 3, "max_output_tokens": 99});
    insta::assert_json_snapshot!("openai_request", request(&OPENAI, head("gpt-5", opts.clone()), &messages));
    insta::assert_json_snapshot!("llama_cpp_request", request(&LLAMA_CPP, head("gpt-5", opts), &messages));
}

#[test]
fn the_name_of_the_output_limit() {
    for (model, wire, name) in [
        ("gpt-5", &OPENAI, "max_completion_tokens"),
        ("o4-mini", &OPENAI, "max_completion_tokens"),
        ("openai/gpt-4.1", &OPENAI, "max_completion_tokens"),
        ("gpt-oss-120b", &OPENAI, "max_tokens"),
        ("olmo-3", &OPENAI, "max_tokens"),
        ("qwen3", &OPENAI, "max_tokens"),
        ("gpt-5", &LLAMA_CPP, "max_tokens"),
    ] {
        let request = request(wire, head(model, json!({"max_output_tokens": 7})), &[user("go")]);
        let limits: Vec<&str> =
            ["max_tokens", "max_completion_tokens"].into_iter().filter(|name| request.get(name).is_some()).collect();
        assert_eq!(limits, [name], "{model}");
    }
    assert_eq!(request(&OPENAI, head("gpt-5", json!({})), &[user("go")]).get("max_completion_tokens"), None);
}

#[test]
fn attachments() {
    let data = |data: &str| Source::Data(data.into());
    let parts = vec![
        Part::text("see"),
        Part::Image { mime: "image/png".into(), source: data("AAAA") },
        Part::Image { mime: "image/png".into(), source: Source::Url("https://x/y.png".into()) },
        Part::File { mime: "application/pdf".into(), name: Some("p.pdf".into()), source: data("AAAA") },
        Part::File { mime: "text/plain".into(), name: Some("n.txt".into()), source: data("aGk=") },
        Part::File { mime: "application/pdf".into(), name: None, source: Source::Url("https://x/y.pdf".into()) },
    ];
    insta::assert_json_snapshot!(
        "openai_attachments",
        request(&OPENAI, head("gpt-5", json!({})), &[message(Role::User, parts)])["messages"][1]
    );
}

#[test]
fn addresses() {
    for (base, expected) in [
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1/chat/completions"),
        ("https://x/api/v3", "https://x/api/v3/chat/completions"),
    ] {
        assert_eq!(OPENAI.url(base, "m"), expected);
    }
}

#[test]
fn thinking_is_asked_for_in_the_dialects_way() {
    let asked = |wire: &ChatCompletions, budget: u64| request(wire, head("m", json!({"thinking_budget": budget})), &[user("go")]);
    assert_eq!(asked(&OPENAI, 1)["reasoning_effort"], "low");
    assert_eq!(asked(&OPENAI, 8_000)["reasoning_effort"], "medium");
    assert_eq!(asked(&OPENAI, 20_000)["reasoning_effort"], "high");
    assert_eq!(asked(&LLAMA_CPP, 0)["chat_template_kwargs"]["enable_thinking"], Value::Bool(false));
}
